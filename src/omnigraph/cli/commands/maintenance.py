"""`cleanup`: expire old history, delete what nothing refers to."""

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from omnigraph.api.job_models import CleanupAnswer
from omnigraph.cli.options import Settings, common_options, pass_settings, store_argument
from omnigraph.cli.output import Paint, counted, printable

if TYPE_CHECKING:
    from omnigraph.gc.cleanup import Cleaned

KEEP_MAX = 10**9
_STEPS = ("B", "KiB", "MiB", "GiB", "TiB")


def _span(_context: click.Context, _parameter: click.Parameter, text: str) -> timedelta:
    from omnigraph.errors import BadRequest
    from omnigraph.gc.retention import parse_span

    try:
        return parse_span(text)
    except BadRequest as error:
        raise click.BadParameter(str(error)) from error


@click.command()
@store_argument
@click.option(
    "--older-than",
    metavar="SPAN",
    default="7d",
    show_default=True,
    callback=_span,
    help="Keep every state of this span, such as 12h or 7d.",
)
@click.option(
    "--keep",
    type=click.IntRange(1, KEEP_MAX),
    metavar="N",
    default=10,
    show_default=True,
    help="Keep the last N commits of every branch, whatever their age.",
)
@click.option(
    "--intent-ttl",
    metavar="SPAN",
    default="7d",
    show_default=True,
    callback=_span,
    help="Discard jobs that died longer ago.",
)
@click.option("--confirm", is_flag=True, help="Do it. Without this, only show what would go.")
@common_options
@pass_settings
def cleanup(
    settings: Settings, place: str | None, older_than: timedelta, keep: int, intent_ttl: timedelta, confirm: bool
) -> None:
    """Expire old history on all branches, and delete what no retained state, tag or running job needs."""
    graph = settings.open_graph(place, read_only=not confirm)
    done = graph.cleanup(older_than, keep, not confirm, intent_ttl=intent_ttl, actor=settings.actor)
    settings.output.data(CleanupAnswer.encode(done), lambda paint: _lines(done, paint))
    if done.dry_run:
        settings.output.note("Nothing was changed: run it again with --confirm to do it.")


def _lines(done: "Cleaned", _: Paint) -> Iterable[str]:
    going = f"{counted(done.files, 'file')} ({size_text(done.bytes)})"
    states = counted(done.manifests, "state")
    yield f"Would delete {going} and expire {states}." if done.dry_run else f"Deleted {going} and expired {states}."
    young = f", {done.young_files:,} of them too young to look at" if done.young_files else ""
    kept = f"{counted(done.kept_files, 'file')} ({size_text(done.kept_bytes)}{young})"
    yield f"Would keep {kept}." if done.dry_run else f"Kept {kept}."
    if done.jobs:
        yield f"{counted(len(done.jobs), 'job')} under way or not given up: {printable(', '.join(done.jobs))}."
    if done.discarded:
        verb = "Would discard" if done.dry_run else "Discarded"
        yield f"{verb} {counted(len(done.discarded), 'dead job')}: {printable(', '.join(done.discarded))}."


def size_text(size: int) -> str:
    """`0 B`, `1.5 MiB`."""
    value, step = float(size), 0
    while value >= 1024 and step < len(_STEPS) - 1:
        value, step = value / 1024, step + 1
    return f"{size} B" if step == 0 else f"{value:.1f} {_STEPS[step]}"
