"""`recover`: long writes that have not ended, and what is to become of the dead ones."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from omnigraph.api.job_models import RecoverAnswer
from omnigraph.api.models import iso_time
from omnigraph.cli.options import Settings, common_options, pass_settings, store_argument
from omnigraph.cli.output import Paint, printable, table

if TYPE_CHECKING:
    from omnigraph.gc.recovery import Recovery

EXIT_LEFT = 1
_TOLD = {
    "completed": "Completed {txn_id} as {commit_id} on {branch}.",
    "discarded": "Discarded {txn_id}, noted as {commit_id} on {branch}.",
    "landed": "{txn_id} had landed as {commit_id} on {branch}: only its intent was left, and is gone.",
}


@click.command()
@store_argument
@click.option("--complete", "to_complete", metavar="TXN", multiple=True, help="Make the commit of this dead job.")
@click.option("--discard", "to_discard", metavar="TXN", multiple=True, help="Give up this dead job and its files.")
@click.option(
    "--all", "everything", is_flag=True, help="Complete every dead job that staged everything, discard the others."
)
@common_options
@pass_settings
def recover(
    settings: Settings,
    place: str | None,
    to_complete: tuple[str, ...],
    to_discard: tuple[str, ...],
    everything: bool,
) -> int:
    """List the bulk jobs that have not ended; complete or discard those whose process is gone.

    A job is dead when its process was not heard of for 15 minutes, or is known to be gone. One that its process has
    released, and may take up again, is ended only by its name; one that is running never. Without an option nothing is
    changed.
    """
    if everything and (to_complete or to_discard):
        raise click.UsageError("--all ends every dead job: leave out --complete and --discard.")
    acts = bool(everything or to_complete or to_discard)
    graph = settings.open_graph(place, read_only=not acts)
    found = graph.recover(to_complete, to_discard, all=everything)
    settings.output.data(RecoverAnswer.encode(found), lambda paint: _lines(found, paint))
    if not found.jobs and not acts:
        settings.output.note("No job is unfinished.")
    return EXIT_LEFT if found.left else 0


def _lines(found: "Recovery", paint: Paint) -> Iterable[str]:
    for one in RecoverAnswer.encode(found)["ended"]:
        yield printable(_TOLD[one["outcome"]].format(**{**one, "commit_id": one["commit_id"] or "nothing"}))
    for txn_id, reason in found.left.items():
        yield printable(f"{txn_id} was left: {reason}")
    if found.jobs:
        rows = [
            (
                job.txn_id,
                job.kind,
                job.branch,
                job.actor,
                f"{job.state}, can be completed" if job.can_complete else job.state,
                iso_time(job.since),
                f"{job.host}:{job.pid}",
            )
            for job in found.jobs
        ]
        yield from table(paint, ("JOB", "KIND", "BRANCH", "ACTOR", "STATE", "SINCE", "PROCESS"), rows)
