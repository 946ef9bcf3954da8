"""The intent of one bulk load: a new one, or that of a run which ended; and what becomes of it in the end."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from omnigraph.errors import BadRequest, ConflictError, NotFound, OmnigraphError, OutcomeUnknown, Unavailable
from omnigraph.manifest.intents import HeldIntent
from omnigraph.manifest.model import TxnId
from omnigraph.manifest.repository import Repository
from omnigraph.manifest.txn import WriteTxn
from omnigraph.pipeline.bulk.resume import Details, forget


@dataclass(frozen=True, slots=True)
class Job:
    """Who loads: a job has a name if it was given one, and a txn id if either was."""

    job_id: str | None
    txn_id: TxnId | None
    actor: str | None
    branch: str | None = None  # where it is to land


@contextmanager
def held_intent(
    repository: Repository, job: Job, base: WriteTxn, fingerprint: str, split_bytes: int
) -> Iterator[tuple[HeldIntent, Details]]:
    """Hold the intent, refreshed, as long as the load goes on; nothing may be staged before."""
    own_id = job.txn_id or repository.runtime.ids.txn_id()
    held = _taken(repository, job, own_id, base, fingerprint, split_bytes)
    details = Details.from_json(held.intent.details, f"the intent of {own_id}")
    if details.fingerprint != fingerprint:
        held.release()
        raise BadRequest(
            f"The job {job.job_id or own_id} was begun with another input, mode or branch: start it with the same "
            "ones, or take another job id."
        )
    try:
        with repository.intents.keeping(held):
            yield held, details
    except BaseException as error:
        _give_up(repository, job, held, error)
        raise
    held.finish()
    forget(repository.store, own_id)


def clear_away(repository: Repository, own_id: TxnId) -> None:
    """What a run has left that was killed after its commit."""
    with suppress(OmnigraphError):  # another has it, or there is none: either way the answer is known
        with suppress(NotFound):
            repository.intents.adopt(own_id).finish()
        forget(repository.store, own_id)


def _taken(
    repository: Repository, job: Job, own_id: TxnId, base: WriteTxn, fingerprint: str, split_bytes: int
) -> HeldIntent:
    if job.txn_id is not None:
        with suppress(NotFound):
            return repository.intents.adopt(own_id)
    runtime = repository.runtime
    now = int(runtime.clock.now().timestamp() * 1000)
    details = Details(fingerprint, runtime.ids.short_id(), now, split_bytes, base.base.point, job.branch)
    held = repository.intents.begin(own_id, base.branch, base.base.point, "load", job.actor, details.to_json())
    # A cleanup that lists intents from now on spares the base; one that did before has passed it by now.
    if repository.manifests.confirm(base.base).oldest_retained > base.base.manifest_version:
        held.discard()
        raise ConflictError("A cleanup passed while the load began: nothing was written, run it again.")
    return held


def _give_up(repository: Repository, job: Job, held: HeldIntent, error: BaseException) -> None:
    """A job that was named, and may succeed when it is started again, keeps what it has; others leave nothing."""
    if isinstance(error, OutcomeUnknown):
        return  # it may have landed: whoever asks again with its id will know
    lasting = isinstance(error, OmnigraphError) and not isinstance(error, ConflictError | Unavailable)
    if job.job_id is not None and not lasting:
        error.add_note(f"What is staged is kept: start the load again with the job id {job.job_id} to go on.")
        return
    with suppress(OmnigraphError):
        if held.discard():
            forget(repository.store, held.txn_id)
