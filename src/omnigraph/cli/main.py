"""The `omnigraph` command: runs a command line, reports errors and returns the exit code."""

import os
import sys
import traceback
from collections.abc import Sequence

import click

from omnigraph.cli.commands.branches import branch, revert, tag
from omnigraph.cli.commands.bulk import analyze, embed, export, load
from omnigraph.cli.commands.history import changes, commit
from omnigraph.cli.commands.maintenance import cleanup, optimize, recover, verify
from omnigraph.cli.commands.query import lint, mutate, query
from omnigraph.cli.commands.schema import init, schema, snapshot, version
from omnigraph.cli.commands.server import jobs, serve, token
from omnigraph.cli.demo import demo
from omnigraph.cli.options import CliSettings, common_options, reject_server
from omnigraph.cli.output import OutputLost, flush_stdout
from omnigraph.errors import BadRequest, OmnigraphError

EXIT_ERROR, EXIT_USAGE = 1, 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells count
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE: the reader of our output went away

HELP = """A typed property graph in object storage.

Name the graph with --store, with $OMNIGRAPH_STORE, or as the argument of commands that take no other; or name one on
a server with --server URL and --graph ID. The common flags go before or after the command's name.

Data goes to stdout, everything else to stderr. With --json a run prints one JSON document: the result to stdout, or
the error as {"error", "code", "details"} to stderr (its last line), with nothing on stdout.

\b
Exit codes:
  0  done
  1  error
  2  usage: the command line is wrong
  3  conflict with a concurrent write, nothing was written
  4  precondition failed, nothing was written
  5  constraint violated, nothing was written
  6  outcome unknown: the write may be committed, check before repeating it
"""


@click.group(help=HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@common_options
@click.pass_context
def cli(context: click.Context) -> None:
    if context.ensure_object(CliSettings).server is not None:
        reject_server(context.invoked_subcommand)


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
    """Run one command line and return its exit code. Raises nothing."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    settings = CliSettings()
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
            settings, BadRequest(f"The output can't be written ({reason}): free some space, or write it elsewhere.")
        )
        return EXIT_ERROR


def _run(arguments: list[str], settings: CliSettings) -> int:
    try:
        # Not standalone: click would print errors and choose exit codes its own way.
        result = cli.main(arguments, prog_name="omnigraph", standalone_mode=False, obj=settings)
        return result if isinstance(result, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        return EXIT_USAGE
    except click.UsageError as error:
        settings.json = settings.json or "--json" in arguments
        _report(settings, BadRequest(_usage_message(error)))
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
    """An exception that is not one of ours."""

    def __str__(self) -> str:
        return f"Internal error ({self.args[0]}): run it again with --debug, and report the output."


def _report(settings: CliSettings, error: OmnigraphError) -> None:
    if settings.debug and sys.exc_info()[0] is not None:
        traceback.print_exc()
    settings.output.error(error)


def _usage_message(error: click.UsageError) -> str:
    where = error.ctx.command_path if error.ctx is not None else "omnigraph"
    message = error.format_message()
    return f"{message}{'' if message.endswith(('.', '?')) else '.'} See `{where} --help`."


def _abandon_stdout() -> None:
    """Discard what is still buffered: nobody reads it, and flushing it at exit would fail again."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(devnull, sys.stdout.fileno())
    except OSError:
        pass  # stdout is not a file
    finally:
        os.close(devnull)
