"""`init`: make a graph. `schema`: what types it has, and how they change."""

import click

from omnigraph.api.models import CostEntry, SchemaApplyAnswer, SchemaPlanAnswer
from omnigraph.cli.inputs import read_source
from omnigraph.cli.options import (
    Settings,
    at_option,
    common_options,
    if_commit_option,
    pass_settings,
    store_argument,
    txn_id_option,
)
from omnigraph.cli.output import counted, printable
from omnigraph.cli.render.commit import spent_text, touched_text
from omnigraph.cli.render.migration import plan_lines

wanted_option = click.option(
    "--schema", "path", metavar="FILE", required=True, help="The wanted schema, a .pg file; - is stdin."
)


@click.command()
@click.option("--schema", "path", metavar="FILE", required=True, help="The schema, a .pg file; - is stdin.")
@store_argument
@common_options
@pass_settings
def init(settings: Settings, path: str, place: str | None) -> None:
    """Make a graph with a schema. Refuses a STORE that already holds one."""
    from omnigraph.graph.graph import init as init_graph
    from omnigraph.schema.lang.compile import compile_schema

    uri = settings.store_uri(place)
    source = read_source(path)
    catalog = compile_schema(source.text, name=source.name).catalog
    graph = init_graph(uri, source.text, settings.storage_options, actor=settings.actor)
    nodes, edges = [entry.name for entry in catalog.nodes], [entry.name for entry in catalog.edges]
    document = {
        "store": graph.uri,
        "node_types": nodes,
        "edge_types": edges,
        "cost": CostEntry.encode(graph.cost),
    }
    types = f"{counted(len(nodes), 'node type')} and {counted(len(edges), 'edge type')}"
    settings.output.done(
        document, f"Made a graph at {graph.uri} with {types} in {counted(graph.cost.requests, 'request')}."
    )


@click.group()
@common_options
def schema() -> None:
    """The schema: what types a graph has, and how they change."""


@schema.command()
@store_argument
@at_option
@common_options
@pass_settings
def show(settings: Settings, place: str | None, at: str | None) -> None:
    """Print the schema as text, as it was given."""
    text = settings.open_graph(place, read_only=True).schema.show(settings.branch_or_main, at)
    lines = text.rstrip("\n").split("\n")
    settings.output.data({"schema": text}, lambda _: ("\t".join(map(printable, line.split("\t"))) for line in lines))


@schema.command()
@wanted_option
@store_argument
@common_options
@pass_settings
def plan(settings: Settings, path: str, place: str | None) -> None:
    """Show the steps from the branch's schema to the one in FILE, and which can't be; changes nothing.

    Looks at the rows that the steps concern. Exits with 0 also where a step is not supported.
    """
    source = read_source(path)
    graph = settings.open_graph(place, read_only=True)
    document = SchemaPlanAnswer.encode(graph.schema.plan(source.text, settings.branch_or_main, name=source.name))
    settings.output.data(document, lambda paint: plan_lines(document, paint))


@schema.command()
@wanted_option
@click.option(
    "--allow-data-loss", is_flag=True, help="Take dropped properties out of the data too, instead of hiding them."
)
@if_commit_option
@txn_id_option
@store_argument
@common_options
@pass_settings
def apply(
    settings: Settings,
    path: str,
    allow_data_loss: bool,
    if_commit: str | None,
    txn_id: str | None,
    place: str | None,
) -> None:
    """Make the schema in FILE the branch's, as one atomic commit.

    Refused, with nothing changed, if a step is not supported (exit 1) or rows break a new constraint (exit 5).
    """
    source = read_source(path)
    applied = settings.open_graph(place).schema.apply(
        source.text,
        allow_data_loss,
        settings.branch_or_main,
        actor=settings.actor,
        if_commit=if_commit,
        txn_id=txn_id,
        name=source.name,
    )
    commit = applied.commit
    document = SchemaApplyAnswer.encode(applied)
    if commit is None:
        settings.output.done(document, "Nothing to change: the schema is as wanted, so there is no commit.")
        return
    if not settings.json and not settings.quiet:
        settings.output.data(document, lambda paint: plan_lines(document, paint))
    rows = f": {touched_text(commit.touched)}" if commit.touched else ""
    settings.output.done(document, f"Committed {commit.id} on {commit.branch}{rows} ({spent_text(applied.cost)}).")
