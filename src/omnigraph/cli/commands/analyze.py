"""`analyze`: PageRank, components, degrees and triangles, shown or written back."""

from collections.abc import Iterable
from typing import Any, cast

import click

from omnigraph.api.models import AnalyzeAnswer
from omnigraph.cli.options import (
    Settings,
    at_option,
    common_options,
    if_commit_option,
    pass_settings,
    store_argument,
    txn_id_option,
)
from omnigraph.cli.output import Paint, counted, table
from omnigraph.cli.progress import working
from omnigraph.cli.render.commit import commit_sentence
from omnigraph.engine import ENGINES

ALGORITHMS = ("pagerank", "components", "degrees", "triangles")


@click.command()
@click.argument("algorithm", type=click.Choice(ALGORITHMS))
@store_argument
@click.option(
    "--edge", "edges", metavar="TYPE", multiple=True, help="Only these edges; may be repeated.  [default: all]"
)
@click.option("--write", metavar="TYPE.PROPERTY", help="Give every row of TYPE its value, as one commit.")
@click.option(
    "--direction",
    type=click.Choice(("out", "in", "both")),
    help="How edges are followed or counted.  [default: out for pagerank, else both]",
)
@click.option("--damping", type=float, default=0.85, show_default=True, help="Of pagerank: how likely a walk goes on.")
@click.option("--tolerance", type=float, default=1e-6, show_default=True, help="Of pagerank: when to stop.")
@click.option("--iterations", type=int, default=100, show_default=True, help="Of pagerank: how often at most.")
@click.option("--limit", type=click.IntRange(0), default=20, show_default=True, help="How many rows to print.")
@click.option("--engine", type=click.Choice(ENGINES), default="auto", help="Where to run: auto decides by size.")
@click.option("--master", metavar="URL", help="The Spark master of --engine spark.  [default: a local session]")
@at_option
@if_commit_option
@txn_id_option
@common_options
@pass_settings
def analyze(
    settings: Settings,
    /,
    algorithm: str,
    place: str | None,
    edges: tuple[str, ...],
    write: str | None,
    at: str | None,
    if_commit: str | None,
    txn_id: str | None,
    **options: Any,
) -> None:
    """Compute ALGORITHM over nodes and edges; print the first rows, and with --write store all values.

    A component is named by the smallest id in it, or numbered where --write names a property of whole numbers.
    With --at an older state is analysed, and its values go to the rows that are still there.
    """
    if write is None and (if_commit is not None or txn_id is not None):
        raise click.UsageError("--if-commit and --txn-id are about a commit: give --write too.")
    graph = settings.open_graph(place, read_only=write is None)
    with working("Analysing", algorithm, quiet=settings.quiet or settings.json):
        found = graph.analyze(
            cast(Any, algorithm),
            edges or None,
            write,
            branch=settings.branch_or_main,
            at=at,
            actor=settings.actor,
            if_commit=if_commit,
            txn_id=txn_id,
            **options,
        )
    rows = found.table.to_pylist()
    document = AnalyzeAnswer.encode(found, rows=rows)

    def lines(paint: Paint) -> Iterable[str]:
        return table(paint, found.table.column_names, [list(row.values()) for row in rows])

    settings.output.data(document, lines)
    where = f"{counted(found.vertices, 'node')} and {counted(found.edges, 'edge')} at commit {found.commit_id}"
    settings.output.note(f"{where}, {found.engine}")
    if found.converged is False:
        settings.output.note(
            f"Not settled after {found.iterations} iterations: allow more with --iterations, or a larger --tolerance."
        )
    if write is not None:
        settings.output.note(commit_sentence(found.commit, found.cost))
