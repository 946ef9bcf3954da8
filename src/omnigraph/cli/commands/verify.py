"""`verify`: look whether everything is there and reads back."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from omnigraph.api.job_models import VerifyAnswer
from omnigraph.cli.options import Settings, common_options, pass_settings, store_argument
from omnigraph.cli.output import Paint, counted, fields, printable

if TYPE_CHECKING:
    from omnigraph.verify.verify import VerifyReport

EXIT_DAMAGED = 1


@click.command()
@store_argument
@click.option("--full", is_flag=True, help="Look at everything instead of samples: reads the whole graph.")
@click.option("--seed", type=int, default=0, show_default=True, help="Which samples to take; the same one, the same.")
@common_options
@pass_settings
def verify(settings: Settings, place: str | None, full: bool, seed: int) -> int:
    """Check that everything stored exists, reads back and agrees, on --branch or everywhere.

    Changes nothing, and may run beside any other command. Exits with 1 if something is damaged.
    """
    report = settings.open_graph(place, read_only=True).verify(settings.branch, full=full, seed=seed)
    settings.output.data(VerifyAnswer.encode(report), lambda paint: _lines(report, paint, quiet=settings.quiet))
    return 0 if report.ok else EXIT_DAMAGED


def _lines(report: "VerifyReport", paint: Paint, *, quiet: bool) -> Iterable[str]:
    for problem in report.problems:
        name = paint.alarm("damage:") if problem.severity == "damage" else "notice:"
        yield f"{name} {printable(problem.sentence)}"
    if report.more:
        yield f"{paint.alarm('damage:')} {report.more:,} more problems are not listed."
    if quiet:
        return
    checked = report.checked
    yield from fields(
        [
            ("branches", f"{checked.branches:,}" + (f" ({', '.join(report.branches)})" if report.branches else "")),
            ("manifests", f"{checked.manifests:,}, with the tables of {checked.states:,} states"),
            ("tables", f"{checked.table_versions:,} versions, {checked.files:,} files, {checked.fragments:,} read"),
            *_compared(report),
            ("rows", f"{checked.rows:,} with {checked.ends:,} ends, {checked.tail_entries:,} small commits on top"),
            (
                "indexes",
                f"{checked.indexes:,} asked {checked.lookups:,} times, {checked.unindexed_rows:,} rows in none",
            ),
            ("tags, intents", f"{checked.tags:,}, {checked.intents:,}"),
        ]
    )
    yield _sentence(report)


def _compared(report: "VerifyReport") -> Iterator[tuple[str, str]]:
    """Only a full verification compares files with what was recorded of them."""
    if report.full:
        checked = report.checked
        yield "checksums", f"{checked.files_compared:,} files compared, {checked.files_not_recorded:,} not recorded"


def _sentence(report: "VerifyReport") -> str:
    how = "in full" if report.full else "by samples (--full looks at everything)"
    requests = counted(report.cost.requests, "request")
    if report.ok:
        return f"Checked {how} in {requests}: no damage."
    count = len(report.damage) + report.more
    return f"Checked {how} in {requests}: {count:,} problem{'' if count == 1 else 's'}."
