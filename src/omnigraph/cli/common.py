"""The flags that every command understands, before or after its name, and the store that they name."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import click

from omnigraph.cli.output import JsonOutput, Output, TextOutput, printable

if TYPE_CHECKING:
    from omnigraph.graph import Graph

STORE_VARIABLE = "OMNIGRAPH_STORE"
ACTOR_LENGTH_MAX = 200
DEFAULT_BRANCH = "main"

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(slots=True)
class Settings:
    """What the common flags said; one for a run, passed as click's `obj`."""

    store: str | None = None
    branch: str | None = None
    actor: str | None = None
    storage_options: dict[str, str] = field(default_factory=dict)
    json: bool = False
    quiet: bool = False
    debug: bool = False
    graphs: "list[Graph]" = field(default_factory=list)

    @property
    def output(self) -> Output:
        return JsonOutput(quiet=self.quiet) if self.json else TextOutput(quiet=self.quiet)

    @property
    def branch_or_main(self) -> str:
        return DEFAULT_BRANCH if self.branch is None else self.branch

    def open_graph(self, positional: str | None = None, *, read_only: bool = False) -> "Graph":
        """The graph in the store that was named: by `--store`, as the argument, or by the environment."""
        from omnigraph.graph import open as open_graph

        graph = open_graph(self.store_uri(positional), self.storage_options, read_only=read_only)
        graph.maintenance.background = False  # nothing runs behind a command; see `finish`
        self.graphs.append(graph)
        return graph

    def finish(self) -> None:
        """What a run leaves to the time after its answer: folds, where twice the limit is due."""
        for graph in self.graphs:
            graph.maintenance.finish()

    def store_uri(self, positional: str | None = None) -> str:
        if self.store is not None and positional is not None:
            raise click.UsageError(f"The store is named twice, as {self.store} and as {positional}: name it once.")
        uri = self.store or positional or os.environ.get(STORE_VARIABLE)
        if not uri:
            raise click.UsageError(f"No store is named: give --store URI, or set ${STORE_VARIABLE}.")
        return uri


def common_options(command: Command) -> Command:
    """Add the common flags to a command or group. The one nearest to the end of the line wins."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


store_argument = click.argument("place", required=False, metavar="[STORE]")  # `store` is the flag's name
at_option = click.option(
    "--at", metavar="COMMIT|TAG|TIME", help="An older state: a commit id, a tag, or a time such as 2026-01-31T12:00Z."
)
if_commit_option = click.option(
    "--if-commit", metavar="ID", help="Only if this is the branch's newest commit; otherwise exit with 4."
)
txn_id_option = click.option(
    "--txn-id", metavar="ID", help="Makes a repeated run harmless: the same id returns the first commit."
)
pass_settings = click.make_pass_decorator(Settings)


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Into the one `Settings`; a flag that was not given must not undo one before the command's name."""
    if value not in (None, False, ()):
        setattr(context.ensure_object(Settings), str(parameter.name), value)


def _keep_actor(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None and not (0 < len(value) <= ACTOR_LENGTH_MAX and value.isprintable()):
        raise click.BadParameter(f"an actor has 1 to {ACTOR_LENGTH_MAX} printable characters.")
    _keep(context, parameter, value)


def _keep_storage_options(context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> None:
    settings = context.ensure_object(Settings)
    for text in values:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{printable(key)!r} is not of the form key=value.")
        settings.storage_options[key] = value


_OPTIONS = (
    click.option(
        "--store",
        metavar="URI",
        expose_value=False,
        callback=_keep,
        help=f"The graph: a path, file://, s3://, gs:// or az:// URI.  [default: ${STORE_VARIABLE}]",
    ),
    click.option(
        "--branch",
        metavar="NAME",
        expose_value=False,
        callback=_keep,
        help=f"The branch to work on.  [default: {DEFAULT_BRANCH}]",
    ),
    click.option(
        "--as", "actor", metavar="ACTOR", expose_value=False, callback=_keep_actor, help="Who to record as the author."
    ),
    click.option(
        "--storage-option",
        "storage_options",
        metavar="KEY=VALUE",
        multiple=True,
        expose_value=False,
        callback=_keep_storage_options,
        help="A setting of the object store, such as aws_region=eu-west-1; may be repeated.",
    ),
    click.option("--json", is_flag=True, expose_value=False, callback=_keep, help="Answer in JSON."),
    click.option("--quiet", is_flag=True, expose_value=False, callback=_keep, help="Data and errors only."),
    click.option("--debug", is_flag=True, expose_value=False, callback=_keep, help="Show tracebacks of errors."),
)
