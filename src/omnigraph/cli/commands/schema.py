"""`init`, `schema`, `snapshot`, `version`: create a graph, change its schema, show its state."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from omnigraph.api.documents import version_document
from omnigraph.api.models import CostEntry, SchemaApplyAnswer, SchemaPlanAnswer, SnapshotAnswer
from omnigraph.cli.inputs import read_source
from omnigraph.cli.options import (
    CliSettings,
    at_option,
    common_options,
    if_commit_option,
    pass_settings,
    store_argument,
    txn_id_option,
)
from omnigraph.cli.output import Style, escape_control, format_fields, format_table, pluralize
from omnigraph.cli.render.commit import cost_text, touched_text
from omnigraph.cli.render.migration import plan_lines

if TYPE_CHECKING:
    from omnigraph.api.interface import SnapshotLike

target_schema_option = click.option(
    "--schema", "path", metavar="FILE", required=True, help="The new schema, a .pg file; - is stdin."
)


@click.command()
@click.option("--schema", "path", metavar="FILE", required=True, help="The schema, a .pg file; - is stdin.")
@store_argument
@common_options
@pass_settings
def init(settings: CliSettings, path: str, uri: str | None) -> None:
    """Create a graph with a schema. Fails if STORE already contains a graph."""
    from omnigraph.graph.graph import init as init_graph
    from omnigraph.schema.lang.compile import compile_schema

    uri = settings.store_uri(uri)
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
    types = f"{pluralize(len(nodes), 'node type')} and {pluralize(len(edges), 'edge type')}"
    requests = pluralize(graph.cost.requests, "request")
    settings.output.done(document, f"Created a graph at {graph.uri} with {types} in {requests}.")


@click.group()
@common_options
def schema() -> None:
    """Show, plan and apply schemas."""


@schema.command()
@store_argument
@at_option
@common_options
@pass_settings
def show(settings: CliSettings, uri: str | None, at: str | None) -> None:
    """Print the schema's source text."""
    text = settings.open_graph(uri, read_only=True).schema.show(settings.branch_or_main, at)
    lines = text.rstrip("\n").split("\n")
    settings.output.data(
        {"schema": text}, lambda _: ("\t".join(map(escape_control, line.split("\t"))) for line in lines)
    )


@schema.command()
@target_schema_option
@store_argument
@common_options
@pass_settings
def plan(settings: CliSettings, path: str, uri: str | None) -> None:
    """Show the steps from the branch's schema to the one in FILE, without changing anything.

    Reads the rows that the steps concern. Unsupported steps are marked; the exit code is 0 also with these.
    """
    source = read_source(path)
    graph = settings.open_graph(uri, read_only=True)
    document = SchemaPlanAnswer.encode(graph.schema.plan(source.text, settings.branch_or_main, name=source.name))
    settings.output.data(document, lambda style: plan_lines(document, style))


@schema.command()
@target_schema_option
@click.option("--allow-data-loss", is_flag=True, help="Delete the data of dropped properties instead of hiding it.")
@if_commit_option
@txn_id_option
@store_argument
@common_options
@pass_settings
def apply(
    settings: CliSettings,
    path: str,
    allow_data_loss: bool,
    if_commit: str | None,
    txn_id: str | None,
    uri: str | None,
) -> None:
    """Change the branch's schema to the one in FILE, as one atomic commit.

    Fails, with nothing changed, if a step is not supported (exit 1) or rows violate a new constraint (exit 5).
    """
    source = read_source(path)
    applied = settings.open_graph(uri).schema.apply(
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
        settings.output.done(document, "Nothing to change: the schema is already in place, so there is no commit.")
        return
    if not settings.json and not settings.quiet:
        settings.output.data(document, lambda style: plan_lines(document, style))
    rows = f": {touched_text(commit.touched)}" if commit.touched else ""
    settings.output.done(document, f"Committed {commit.id} on {commit.branch}{rows} ({cost_text(applied.cost)}).")


@click.command()
@store_argument
@at_option
@common_options
@pass_settings
def snapshot(settings: CliSettings, uri: str | None, at: str | None) -> None:
    """Show a branch's state: its commit, and the number of rows of each type."""
    graph = settings.open_graph(uri, read_only=True)
    pinned = graph.snapshot(settings.branch_or_main, at)
    settings.output.data(SnapshotAnswer.encode(pinned), lambda style: _snapshot_lines(pinned, style))


def _snapshot_lines(pinned: "SnapshotLike", style: Style) -> Iterable[str]:
    head = [("branch", pinned.branch), ("commit", pinned.commit_id), ("manifest", pinned.manifest_version)]
    yield from format_fields(head)
    yield ""
    rows = [(entry.type_name, entry.kind, entry.rows, entry.changed_at) for entry in pinned.types]
    yield from format_table(style, ("TYPE", "KIND", "ROWS", "CHANGED AT"), rows)


@click.command()
@common_options
@pass_settings
def version(settings: CliSettings) -> None:
    """Show the release, the storage format and the library versions; with --server, the server's."""
    document = version_document() if settings.server is None else settings.server_version()
    lines = [("omnigraph", document["release"]), ("format", document["format_version"]), *document["libraries"].items()]
    settings.output.data(document, lambda _: format_fields(lines))
