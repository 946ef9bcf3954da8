"""`embed`: vectors for rows that lack them."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from omnigraph.api.models import EmbedSummary
from omnigraph.cli.options import Settings, common_options, pass_settings, store_argument
from omnigraph.cli.output import Paint, counted, printable, table
from omnigraph.cli.progress import working
from omnigraph.errors import BadRequest

if TYPE_CHECKING:
    from omnigraph.pipeline.embedding.embed import EmbedResult

REFUSED_SHOWN_MAX = 5


@click.command()
@store_argument
@click.option("--type", "type_", metavar="TYPE", help="Only the vectors of this type.")
@click.option("--property", "property_", metavar="NAME", help="Only the vectors of this property.")
@click.option("--batch", type=int, default=128, show_default=True, help="Texts in a request.")
@click.option(
    "--commit-every", type=click.IntRange(1), default=100, show_default=True, metavar="N", help="Batches in a commit."
)
@click.option("--one-commit", is_flag=True, help="One commit at the end: an interruption then loses what was asked.")
@click.option("--rate-limit", type=float, metavar="N", help="At most so many requests a minute.")
@click.option("--concurrency", type=int, default=4, show_default=True, help="Requests at the same time.")
@click.option("--dry-run", is_flag=True, help="Say what it would take, and ask for nothing.")
@click.option("--price-per-1k", type=float, metavar="PRICE", help="Of 1,000 tokens, to estimate what it costs.")
@click.option("--engine", type=click.Choice(("local", "spark")), default="local", help="Where requests are sent from.")
@click.option("--master", metavar="URL", help="The Spark master of --engine spark.  [default: a local session]")
@common_options
@pass_settings
def embed(
    settings: Settings,
    /,
    place: str | None,
    type_: str | None,
    property_: str | None,
    commit_every: int,
    one_commit: bool,
    dry_run: bool,
    **options: Any,
) -> int:
    """Fill the vectors declared with @embed in all rows that have a text and no vector.

    The provider is the one that $OMNIGRAPH_EMBED_PROVIDER and its kind name. Every commit is progress: what an
    interrupted run left is done by the next one.
    """
    graph = settings.open_graph(place, read_only=dry_run)
    with working("Embedding", settings.branch_or_main, quiet=settings.quiet or settings.json):
        result = graph.embed(
            type_,
            property_,
            settings.branch_or_main,
            commit_every=None if one_commit else commit_every,
            dry_run=dry_run,
            actor=settings.actor,
            **options,
        )
    settings.output.data(EmbedSummary.encode(result), lambda paint: _lines(result, paint))
    if not dry_run:
        settings.output.note(_sentence(result))
    for row, reason in result.refused[:REFUSED_SHOWN_MAX]:
        settings.output.note(printable(f"{row}: {reason}"))
    if result.refused:
        raise BadRequest(f"{counted(len(result.refused), 'row')} left without a vector: their texts were refused.")
    return 0


def _lines(result: "EmbedResult", paint: Paint) -> Iterable[str]:
    headings = ["property", "rows", "without text", "characters", "tokens", "requests"]
    rows = [
        [
            f"{estimate.type_name}.{estimate.property_name}",
            estimate.rows,
            estimate.skipped,
            estimate.characters,
            estimate.tokens,
            estimate.requests,
        ]
        for estimate in result.estimates
    ]
    yield from table(paint, headings, rows)
    if result.price is not None:
        yield f"about {result.price:.4g} for {result.model}"


def _sentence(result: "EmbedResult") -> str:
    if not result.rows:
        return "Every text has its vector: nothing to do."
    return (
        f"Embedded {counted(result.embedded, 'row')} with {result.model} in {counted(len(result.commits), 'commit')}."
    )
