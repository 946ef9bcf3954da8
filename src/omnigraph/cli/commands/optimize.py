"""`optimize`: fold, compact, index, and save the adjacency of edges."""

from typing import TYPE_CHECKING, cast

import click

from omnigraph.api.job_models import OptimizeAnswer
from omnigraph.cli.options import Settings, common_options, pass_settings, store_argument
from omnigraph.cli.output import counted, printable
from omnigraph.cli.progress import working
from omnigraph.cli.render.commit import spent_text
from omnigraph.engine import ENGINES, Engine

if TYPE_CHECKING:
    from omnigraph.maintenance.report import OptimizeResult, TypeReport


@click.command()
@store_argument
@click.option("--type", "types", metavar="TYPE", multiple=True, help="Only these types; may be repeated.")
@click.option("--engine", type=click.Choice(ENGINES), default="auto", help="Where to run: auto decides by size.")
@click.option("--master", metavar="URL", help="The Spark master of --engine spark.  [default: a local session]")
@common_options
@pass_settings
def optimize(settings: Settings, place: str | None, types: tuple[str, ...], engine: str, master: str | None) -> None:
    """Store the graph as if it had just been loaded: small commits folded, fragments put together, rows indexed.

    It changes nothing that a query sees, and no write that runs meanwhile fails because of it.
    """
    graph = settings.open_graph(place)
    with working("Optimizing", settings.branch_or_main, quiet=settings.quiet or settings.json):
        result = graph.optimize(
            settings.branch_or_main, types or None, cast(Engine, engine), master=master, actor=settings.actor
        )
    settings.output.done(OptimizeAnswer.encode(result), optimize_text(result))


def optimize_text(result: "OptimizeResult") -> str:
    """A line for the whole, and one for each type that something was done to or is left to do."""
    spent = f"({spent_text(result.cost)})"
    if result.commit is None:
        head = f"Every table of {result.branch} is as it should be {spent}."
    else:
        head = f"Optimized {result.branch} as {result.commit.id} {spent}."
    told = [report for report in result.types.values() if report.did_something or report.pending]
    return "\n".join([head, *(printable(line) for report in told for line in _lines(report))])


def _lines(report: "TypeReport") -> list[str]:
    name = report.table_key.partition(":")[2]
    done = []
    if report.folded_commits:
        done.append(f"folded {counted(report.folded_rows, 'row')} of {counted(report.folded_commits, 'commit')}")
    if report.compacted:
        done.append(f"{counted(report.fragments_before, 'fragment')} became {report.fragments_after}")
    if report.built:
        done.append(f"built {', '.join(report.built)}")
    if report.extended:
        done.append(f"extended {', '.join(report.extended)}")
    if report.adjacency:
        done.append("saved its adjacency")
    lines = [f"  {name}: {'; '.join(done)}"] if done else []
    return lines + [f"  {name}: pending: {reason}" for reason in report.pending]
