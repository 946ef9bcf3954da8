"""The flags that every command understands, before or after its name, and the store that they name."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import click

from omnigraph.cli.output import JsonOutput, Output, TextOutput, printable

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
LOCAL_COMMANDS = {  # what each of them does, which no server does for it
    "init": "makes a graph in a store",
    "demo": "builds its own graph in a directory",
    "serve": "is a server itself",
    "token": "keeps the tokens in a file of this machine",
}

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(slots=True)
class Settings:
    """What the common flags said; one for a run, passed as click's `obj`."""

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
    graphs: "list[Graph]" = field(default_factory=list)
    connected: "list[RemoteGraph]" = field(default_factory=list)

    @property
    def output(self) -> Output:
        return JsonOutput(quiet=self.quiet) if self.json else TextOutput(quiet=self.quiet)

    @property
    def branch_or_main(self) -> str:
        return DEFAULT_BRANCH if self.branch is None else self.branch

    def open_graph(self, positional: str | None = None, *, read_only: bool = False) -> "GraphLike":
        """The graph that was named: in a store by `--store`, as the argument or by the environment; or on a server."""
        url = self.server_url(positional)
        if url is not None:
            return self._connect(url)
        from omnigraph.graph.graph import open as open_graph

        graph = open_graph(self.store_uri(positional), self.storage_options, read_only=read_only)
        graph.maintenance.background = False  # nothing runs behind a command; see `finish`
        self.graphs.append(graph)
        return graph

    def finish(self) -> None:
        """What a run leaves to the time after its answer: folds, where twice the limit is due."""
        for graph in self.graphs:
            graph.maintenance.finish()
        for remote in self.connected:
            remote.close()

    def _connect(self, url: str) -> "GraphLike":
        from omnigraph.remote import connect

        if self.actor is not None:
            raise click.UsageError("A server records the actor of the token, nobody else: leave out --as.")
        if self.storage_options:
            raise click.UsageError("--storage-option is for a store, and the server has its own: leave it out.")
        graph = connect(url, DEFAULT_GRAPH if self.graph is None else self.graph, self.token)
        self.connected.append(graph)
        return graph

    def server_version(self) -> Mapping[str, Any]:
        """What the server that was named runs."""
        from omnigraph.remote import connect

        with connect(str(self.server), token=self.token) as graph:
            return graph.server_version()

    def server_url(self, positional: str | None = None) -> str | None:
        """The server that was named; None if it is a store. What is nearer counts: the line before the environment."""
        store = self.store if positional is None else positional
        if self.server is not None and store is not None:
            raise click.UsageError(f"Both a server, {self.server}, and a store, {store}, are named: name one of them.")
        if self.server is not None or store is not None:
            return self.server
        url = os.environ.get(SERVER_VARIABLE) or None
        if url is not None and os.environ.get(STORE_VARIABLE):
            raise click.UsageError(
                f"Both ${SERVER_VARIABLE} and ${STORE_VARIABLE} are set: say which with --server or --store."
            )
        if self.graph is not None and url is None:
            raise click.UsageError("--graph names a graph of a server: give --server URL too.")
        return url

    def store_uri(self, positional: str | None = None) -> str:
        if self.store is not None and positional is not None:
            raise click.UsageError(f"The store is named twice, as {self.store} and as {positional}: name it once.")
        uri = self.store or positional or os.environ.get(STORE_VARIABLE)
        if not uri:
            raise click.UsageError(
                f"No store is named: give --store URI, or set ${STORE_VARIABLE}; or name a server with --server URL."
            )
        return uri


def common_options(command: Command) -> Command:
    """Add the common flags to a command or group. The one nearest to the end of the line wins."""
    return common_options_but_graph(_GRAPH_OPTION(command))


def common_options_but_graph(command: Command) -> Command:
    """The same for commands that mean something else by `--graph`."""
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


def _named(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """An id, if one is given: what a script left empty would be one id for all its writes."""
    if value == "":
        raise click.BadParameter("it is empty: give an id, or leave it out.")
    return value


txn_id_option = click.option(
    "--txn-id",
    metavar="ID",
    callback=_named,
    help="Makes a repeated run harmless: the same id returns what the first one did.",
)
pass_settings = click.make_pass_decorator(Settings)


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Into the one `Settings`; a flag that was not given must not undo one before the command's name."""
    if value not in (None, False, ()):
        setattr(context.ensure_object(Settings), str(parameter.name), value)


def _keep_server(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    at: click.Context | None = context
    while value is not None and at is not None:
        refuse_server(at.command.name)
        at = at.parent
    _keep(context, parameter, value)


def refuse_server(command: str | None) -> None:
    """Say so where a command has nothing to do with a server."""
    if command in LOCAL_COMMANDS:
        raise click.UsageError(f"`{command}` {LOCAL_COMMANDS[command]}: leave out --server.")


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


_GRAPH_OPTION = click.option(
    "--graph",
    metavar="ID",
    expose_value=False,
    callback=_keep,
    help=f"Which graph of the server.  [default: {DEFAULT_GRAPH}]",
)
_OPTIONS = (
    click.option(
        "--store",
        metavar="URI",
        expose_value=False,
        callback=_keep,
        help=f"The graph: a path, file://, s3://, gs:// or az:// URI.  [default: ${STORE_VARIABLE}]",
    ),
    click.option(
        "--server",
        metavar="URL",
        expose_value=False,
        callback=_keep_server,
        help=f"A server to ask instead of a store, with --graph.  [default: ${SERVER_VARIABLE}]",
    ),
    click.option(
        "--token",
        metavar="TOKEN",
        expose_value=False,
        callback=_keep,
        help=f"Who you are to the server; ${TOKEN_VARIABLE} shows it to fewer people.",
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
