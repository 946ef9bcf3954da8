"""`serve`: the HTTP server."""

import re
from pathlib import Path

import click

from omnigraph.cli.options import Settings, common_options_but_graph, pass_settings, store_argument
from omnigraph.errors import BadRequest

GRAPH_ID_DEFAULT = "default"
_GRAPH = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,99})=(.+)\Z", re.DOTALL)


def _parse_graphs(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in values:
        match = _GRAPH.match(text)
        if match is None:
            raise click.BadParameter(f"{text!r} is not of the form NAME=URI, NAME of letters, digits and . _ -")
        name, uri = match.groups()
        if found.setdefault(name, uri) != uri:
            raise click.BadParameter(f"the graph {name} is given twice.")
    return found


@click.command()
@store_argument
@click.option(
    "--graph", "graphs", metavar="NAME=URI", multiple=True, callback=_parse_graphs, help="A graph; may be repeated."
)
@click.option("--bind", metavar="HOST:PORT", default="127.0.0.1:8080", show_default=True, help="Where to listen.")
@click.option(
    "--tokens", type=click.Path(path_type=Path), metavar="FILE", help="Who may do what, see `omnigraph token`."
)
@click.option("--queries", type=click.Path(path_type=Path), metavar="DIR", help="Stored queries: .gq files.")
@click.option("--unauthenticated", is_flag=True, help="Without tokens, bind to other than loopback addresses too.")
@click.option("--no-spark", is_flag=True, help="Refuse what asks for Spark, and run everything in this process.")
@click.option("--read-only", is_flag=True, help="Refuse every write, whatever a token allows.")
@click.option(
    "--grace",
    metavar="SECONDS",
    type=click.IntRange(0, 3600),
    default=30,
    show_default=True,
    help="How long what is in flight may take to end after a signal; a second signal does not wait.",
)
@common_options_but_graph
@pass_settings
def serve(
    settings: Settings,
    place: str | None,
    graphs: dict[str, str],
    bind: str,
    tokens: Path | None,
    queries: Path | None,
    unauthenticated: bool,
    no_spark: bool,
    read_only: bool,
    grace: int,
) -> None:
    """Serve graphs over HTTP until a signal ends it: one with --store, or several with --graph NAME=URI.

    A graph that can't be opened is reported, and tried again when it is asked for; the others are served.
    """
    try:
        from omnigraph.server.run import parse_bind
        from omnigraph.server.run import serve as run_server
        from omnigraph.server.settings import GraphSource, ServerSettings
    except ModuleNotFoundError as error:
        raise BadRequest(f"The server needs {error.name}: pip install 'omnigraph[server]'.") from error

    if graphs and (settings.store is not None or place is not None):
        raise click.UsageError("Name one graph with --store, or several with --graph NAME=URI, not both.")
    uris = graphs or {GRAPH_ID_DEFAULT: settings.store_uri(place)}
    sources = {name: GraphSource(uri, settings.storage_options, read_only) for name, uri in uris.items()}
    wanted = ServerSettings(tokens, queries, spark=not no_spark, grace_s=grace)
    run_server(sources, wanted, parse_bind(bind), unauthenticated=unauthenticated)
