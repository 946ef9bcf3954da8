"""The flags that every command accepts, before or after its name, and opening the graph that they name."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import click

from omnigraph.cli.output import JsonOutput, Output, TextOutput, escape_control

if TYPE_CHECKING:
    from omnigraph.api.interface import GraphLike
    from omnigraph.graph.graph import Graph
    from omnigraph.remote.graph import RemoteGraph

STORE_VARIABLE = "OMNIGRAPH_STORE"
SERVER_VARIABLE = "OMNIGRAPH_SERVER"
TOKEN_VARIABLE = "OMNIGRAPH_TOKEN"
ACTOR_LENGTH_MAX = 200
DEFAULT_BRANCH = "main"
DEFAULT_GRAPH = "default"
LOCAL_COMMANDS = {  # commands that a server can't run, and what they do instead
    "init": "creates a graph in a store",
    "demo": "builds its own graph in a directory",
    "serve": "starts a server itself",
    "token": "manages tokens in a local file",
}

CommandFunction = TypeVar("CommandFunction", bound=Callable[..., Any])


@dataclass(slots=True)
class CliSettings:
    """The values of the common flags; one for each run, passed as click's `obj`."""

    store: str | None = None
    server: str | None = None
    graph: str | None = None  # its id on the server
    token: str | None = None
    branch: str | None = None
    actor: str | None = None
    storage_options: dict[str, str] = field(default_factory=dict)
    json: bool = False
    quiet: bool = False
    debug: bool = False
    opened: "list[Graph]" = field(default_factory=list)
    connected: "list[RemoteGraph]" = field(default_factory=list)

    @property
    def output(self) -> Output:
        return JsonOutput(quiet=self.quiet) if self.json else TextOutput(quiet=self.quiet)

    @property
    def branch_or_main(self) -> str:
        return DEFAULT_BRANCH if self.branch is None else self.branch

    def open_graph(self, positional: str | None = None, *, read_only: bool = False) -> "GraphLike":
        """Open the graph that the flags, the argument or the environment name, in a store or on a server."""
        url = self.server_url(positional)
        if url is not None:
            return self._connect(url)
        from omnigraph.graph.graph import open as open_graph

        graph = open_graph(self.store_uri(positional), self.storage_options, read_only=read_only)
        graph.maintenance.background = False  # a command has no background thread; see `finish`
        self.opened.append(graph)
        return graph

    def finish(self) -> None:
        """Do the work that a run leaves until its output is written: folds, where twice the limit is due."""
        for graph in self.opened:
            graph.maintenance.finish()
        for remote in self.connected:
            remote.close()

    def _connect(self, url: str) -> "GraphLike":
        from omnigraph.remote import connect

        if self.actor is not None:
            raise click.UsageError("A server records the actor of the token: leave out --as.")
        if self.storage_options:
            raise click.UsageError("--storage-option is for a store, and a server has its own: leave it out.")
        graph = connect(url, DEFAULT_GRAPH if self.graph is None else self.graph, self.token)
        self.connected.append(graph)
        return graph

    def server_version(self) -> Mapping[str, Any]:
        """The release of the server that `--server` names, its format and its libraries."""
        from omnigraph.remote import connect

        with connect(str(self.server), token=self.token) as graph:
            return graph.server_version()

    def server_url(self, positional: str | None = None) -> str | None:
        """The URL of the named server; None if a store is named. The command line overrides the environment."""
        store = self.store if positional is None else positional
        if self.server is not None and store is not None:
            raise click.UsageError(f"Both a server ({self.server}) and a store ({store}) are given: choose one.")
        if self.server is not None or store is not None:
            return self.server
        url = os.environ.get(SERVER_VARIABLE) or None
        if url is not None and os.environ.get(STORE_VARIABLE):
            raise click.UsageError(
                f"Both ${SERVER_VARIABLE} and ${STORE_VARIABLE} are set: choose one with --server or --store."
            )
        if self.graph is not None and url is None:
            raise click.UsageError("--graph names a graph of a server: give --server URL too.")
        return url

    def store_uri(self, positional: str | None = None) -> str:
        if self.store is not None and positional is not None:
            raise click.UsageError(f"The store is given twice, as {self.store} and as {positional}: give it once.")
        uri = self.store or positional or os.environ.get(STORE_VARIABLE)
        if not uri:
            raise click.UsageError(
                f"No store is given: use --store URI, or set ${STORE_VARIABLE}; or use a server with --server URL."
            )
        return uri


def common_options(command: CommandFunction) -> CommandFunction:
    """Add the common flags to a command or group. The last one on the command line wins."""
    return common_options_without_graph(_GRAPH_OPTION(command))


def common_options_without_graph(command: CommandFunction) -> CommandFunction:
    """The same for commands whose `--graph` has another meaning."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


store_argument = click.argument("uri", required=False, metavar="[STORE]")  # the name `store` belongs to the flag
at_option = click.option(
    "--at", metavar="COMMIT|TAG|TIME", help="An older state: a commit id, a tag, or a time such as 2026-01-31T12:00Z."
)
if_commit_option = click.option(
    "--if-commit", metavar="ID", help="Commit only if this is the branch's newest commit; otherwise exit with 4."
)


def _reject_empty(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """An empty variable in a script would give all of its writes the same id."""
    if value == "":
        raise click.BadParameter("it is empty: give an id, or leave it out.")
    return value


txn_id_option = click.option(
    "--txn-id",
    metavar="ID",
    callback=_reject_empty,
    help="An idempotency key: a repeated run with the same id returns the first one's result.",
)
pass_settings = click.make_pass_decorator(CliSettings)


def _set_flag(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Set a field of `CliSettings`; a flag that is absent must not undo one given before the command's name."""
    if value not in (None, False, ()):
        setattr(context.ensure_object(CliSettings), str(parameter.name), value)


def _set_server(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    ancestor: click.Context | None = context
    while value is not None and ancestor is not None:
        reject_server(ancestor.command.name)
        ancestor = ancestor.parent
    _set_flag(context, parameter, value)


def reject_server(command: str | None) -> None:
    """Refuse `--server` for a command that can't use one."""
    if command in LOCAL_COMMANDS:
        raise click.UsageError(f"`{command}` {LOCAL_COMMANDS[command]}: leave out --server.")


def _set_actor(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None and not (0 < len(value) <= ACTOR_LENGTH_MAX and value.isprintable()):
        raise click.BadParameter(f"an actor has 1 to {ACTOR_LENGTH_MAX} printable characters.")
    _set_flag(context, parameter, value)


def _set_storage_options(context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> None:
    settings = context.ensure_object(CliSettings)
    for entry in values:
        key, equals, value = entry.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{escape_control(key)!r} is not of the form key=value.")
        settings.storage_options[key] = value


_GRAPH_OPTION = click.option(
    "--graph",
    metavar="ID",
    expose_value=False,
    callback=_set_flag,
    help=f"The id of the graph on the server.  [default: {DEFAULT_GRAPH}]",
)
_OPTIONS = (
    click.option(
        "--store",
        metavar="URI",
        expose_value=False,
        callback=_set_flag,
        help=f"The graph: a path, file://, s3://, gs:// or az:// URI.  [default: ${STORE_VARIABLE}]",
    ),
    click.option(
        "--server",
        metavar="URL",
        expose_value=False,
        callback=_set_server,
        help=f"The URL of a server to use instead of a store; see --graph.  [default: ${SERVER_VARIABLE}]",
    ),
    click.option(
        "--token",
        metavar="TOKEN",
        expose_value=False,
        callback=_set_flag,
        help=f"The server's access token. ${TOKEN_VARIABLE} is safer: other users can read command lines.",
    ),
    click.option(
        "--branch",
        metavar="NAME",
        expose_value=False,
        callback=_set_flag,
        help=f"The branch to work on.  [default: {DEFAULT_BRANCH}]",
    ),
    click.option(
        "--as", "actor", metavar="ACTOR", expose_value=False, callback=_set_actor, help="The author to record."
    ),
    click.option(
        "--storage-option",
        "storage_options",
        metavar="KEY=VALUE",
        multiple=True,
        expose_value=False,
        callback=_set_storage_options,
        help="A setting of the object store, such as aws_region=eu-west-1; may be repeated.",
    ),
    click.option("--json", is_flag=True, expose_value=False, callback=_set_flag, help="Print JSON."),
    click.option("--quiet", is_flag=True, expose_value=False, callback=_set_flag, help="Print only data and errors."),
    click.option("--debug", is_flag=True, expose_value=False, callback=_set_flag, help="Show tracebacks of errors."),
)
