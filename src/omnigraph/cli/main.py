"""The `omnigraph` command: what a run prints and how it exits, whatever happens."""

import os
import sys
import traceback
from collections.abc import Sequence

import click

from omnigraph.cli.commands.analyze import analyze
from omnigraph.cli.commands.branches import branch
from omnigraph.cli.commands.bulk import export, load
from omnigraph.cli.commands.changes import changes
from omnigraph.cli.commands.embed import embed
from omnigraph.cli.commands.history import commit
from omnigraph.cli.commands.maintenance import cleanup
from omnigraph.cli.commands.optimize import optimize
from omnigraph.cli.commands.query import lint, mutate, query
from omnigraph.cli.commands.recover import recover
from omnigraph.cli.commands.schema import init, schema
from omnigraph.cli.commands.serve import serve
from omnigraph.cli.commands.server import jobs
from omnigraph.cli.commands.snapshot import snapshot, version
from omnigraph.cli.commands.tag import revert, tag
from omnigraph.cli.commands.token import token
from omnigraph.cli.commands.verify import verify
from omnigraph.cli.demo import demo
from omnigraph.cli.options import Settings, common_options, refuse_server
from omnigraph.cli.output import OutputLost, flush_stdout
from omnigraph.errors import BadRequest, OmnigraphError

EXIT_ERROR, EXIT_USAGE = 1, 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells count
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE: the reader of our output went away

HELP = """A typed property graph that lives in object storage.

The graph is named by --store, by $OMNIGRAPH_STORE, or as the first argument of commands that take no other; or it is
one that a server serves, --server URL and --graph ID. The common flags go before or after the command's name.

Data goes to stdout, everything else to stderr. With --json a run prints one JSON document: the answer to stdout, or
the error as {"error", "code", "details"} to stderr (its last line), with stdout left empty.

\b
Exit codes:
  0  done
  1  error
  2  usage: the command line itself is wrong
  3  conflict: somebody else was first, nothing was written
  4  precondition failed, nothing was written
  5  a constraint would be violated, nothing was written
  6  outcome unknown: the write may have landed, ask again
"""


@click.group(help=HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@common_options
@click.pass_context
def cli(context: click.Context) -> None:
    if context.ensure_object(Settings).server is not None:
        refuse_server(context.invoked_subcommand)


for command in (
    init,
    load,
    query,
    mutate,
    lint,
    schema,
    export,
    analyze,
    embed,
    snapshot,
    branch,
    commit,
    changes,
    tag,
    revert,
    optimize,
    cleanup,
    recover,
    verify,
    serve,
    token,
    jobs,
    demo,
    version,
):
    cli.add_command(command)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; answers its exit code. Nothing but an exit code leaves this function."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    settings = Settings()
    try:
        code = _run(arguments, settings)
        flush_stdout()
        settings.finish()
        return code
    except OutputLost as lost:
        _abandon_stdout()
        if isinstance(lost.cause, BrokenPipeError):
            return EXIT_BROKEN_PIPE
        reason = lost.cause.strerror or str(lost.cause)
        _report(
            settings, BadRequest(f"The answer can't be written ({reason}): make room for it, or send it elsewhere.")
        )
        return EXIT_ERROR


def _run(arguments: list[str], settings: Settings) -> int:
    try:
        # Not standalone: click would print errors and choose exit codes its own way.
        result = cli.main(arguments, prog_name="omnigraph", standalone_mode=False, obj=settings)
        return result if isinstance(result, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        return EXIT_USAGE
    except click.UsageError as error:
        settings.json = settings.json or "--json" in arguments
        _report(settings, BadRequest(_usage_sentence(error)))
        return EXIT_USAGE
    except click.Abort:
        if not settings.quiet:
            print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except OmnigraphError as error:
        _report(settings, error)
        return error.exit_code
    except OutputLost:
        raise
    except Exception as error:
        _report(settings, _Bug(f"{type(error).__name__}: {error}"))
        return EXIT_ERROR


class _Bug(OmnigraphError):
    """Anything that is not one of our errors."""

    def __str__(self) -> str:
        return f"Something went wrong that should not ({self.args[0]}): run it again with --debug, and report that."


def _report(settings: Settings, error: OmnigraphError) -> None:
    if settings.debug and sys.exc_info()[0] is not None:
        traceback.print_exc()
    settings.output.error(error)


def _usage_sentence(error: click.UsageError) -> str:
    where = error.ctx.command_path if error.ctx is not None else "omnigraph"
    message = error.format_message()
    return f"{message}{'' if message.endswith(('.', '?')) else '.'} See `{where} --help`."


def _abandon_stdout() -> None:
    """Nobody reads on: what is still buffered goes nowhere, instead of failing once more at exit."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(devnull, sys.stdout.fileno())
    except OSError:
        pass  # a stdout that is no file
    finally:
        os.close(devnull)
