"""`init`: make a graph. `schema`: what types it has."""

import click

from omnigraph.cli.common import Settings, at_option, common_options, pass_settings, store_argument
from omnigraph.cli.files import read_source
from omnigraph.cli.output import cost_document, counted, printable


@click.command()
@click.option("--schema", "path", metavar="FILE", required=True, help="The schema, a .pg file; - is stdin.")
@store_argument
@common_options
@pass_settings
def init(settings: Settings, path: str, place: str | None) -> None:
    """Make a graph with a schema. Refuses a STORE that already holds one."""
    from omnigraph.graph import init as init_graph
    from omnigraph.schema.compile import compile_schema

    uri = settings.store_uri(place)
    source = read_source(path)
    catalog = compile_schema(source.text, name=source.name).catalog
    graph = init_graph(uri, source.text, settings.storage_options, actor=settings.actor)
    nodes, edges = [entry.name for entry in catalog.nodes], [entry.name for entry in catalog.edges]
    document = {
        "store": graph.uri,
        "node_types": nodes,
        "edge_types": edges,
        "cost": cost_document(graph.cost),
    }
    types = f"{counted(len(nodes), 'node type')} and {counted(len(edges), 'edge type')}"
    settings.output.done(document, f"Made a graph at {graph.uri} with {types} in {graph.cost.requests} requests.")


@click.group()
@common_options
def schema() -> None:
    """The schema: what types a graph has."""


@schema.command()
@store_argument
@at_option
@common_options
@pass_settings
def show(settings: Settings, place: str | None, at: str | None) -> None:
    """Print the schema as text, as it was given to init."""
    text = settings.open_graph(place, read_only=True).schema.show(settings.branch_or_main, at)
    lines = text.rstrip("\n").split("\n")
    settings.output.data({"schema": text}, lambda _: ("\t".join(map(printable, line.split("\t"))) for line in lines))
