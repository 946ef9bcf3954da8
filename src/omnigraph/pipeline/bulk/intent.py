"""The intent of one bulk load: a new one, or that of an earlier start; and what becomes of it in the end."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from omnigraph.errors import (
    BadRequest,
    ConflictError,
    Damaged,
    JobDiscarded,
    JobEnding,
    JobLost,
    NotFound,
    OmnigraphError,
    OutcomeUnknown,
    Unavailable,
)
from omnigraph.maintain.recovery import end_job
from omnigraph.manifest.intents import HeldIntent
from omnigraph.manifest.model import TxnId
from omnigraph.manifest.repository import Repository
from omnigraph.manifest.txn import WriteTxn
from omnigraph.pipeline.bulk.resume import Details, tables_of

_HELPS_MAX = 3  # discards that a start ends before it begins


@dataclass(frozen=True, slots=True)
class Job:
    """Who loads: a job has a name if it was given one, and a txn id if either was."""

    job_id: str | None
    txn_id: TxnId | None
    actor: str | None
    branch: str | None = None  # where it is to be committed


@contextmanager
def held_intent(
    repository: Repository, job: Job, base: WriteTxn, fingerprint: str, split_bytes: int
) -> Iterator[tuple[HeldIntent, Details]]:
    """Hold the intent, refreshed, as long as the load goes on; nothing may be staged before."""
    own_id = job.txn_id or repository.runtime.ids.txn_id()
    held = taken(repository, own_id, lambda: _taken(repository, job, own_id, base, fingerprint, split_bytes))
    details = Details.from_json(held.intent.details, f"the intent of {own_id}")
    if details.fingerprint != fingerprint:
        held.release()
        raise BadRequest(
            f"The job {job.job_id or own_id} was begun with another input, mode or branch ({details.fingerprint}; now "
            f"given: {fingerprint}): start it with the same ones, discard it first (`recover --discard {own_id}`), or "
            "take another job id."
        )
    try:
        with repository.intents.keeping(held):
            yield held, details
    except BaseException as error:
        if isinstance(error, Damaged) and _was_lost(held):
            raise JobLost(held.txn_id) from error  # what this start staged may have been swept since
        _give_up(repository, job, held, error)
        raise
    with suppress(OmnigraphError):  # the commit is there: what is left goes with the next cleanup
        if held.finish():  # otherwise another start has it, and needs what is there
            repository.intents.forget(held.intent)


def taken(repository: Repository, txn_id: TxnId, take: Callable[[], HeldIntent]) -> HeldIntent:
    """Take an intent; a discard of the job that has begun is completed first, by the process that began it or here."""
    for _ in range(_HELPS_MAX):
        with suppress(JobEnding):
            return take()
        seen = repository.intents.read(txn_id)
        if seen is not None and seen.closed and not seen.ended:
            end_job(repository, seen)
    return take()


def clear_away(repository: Repository, own_id: TxnId) -> None:
    """What a start has left that was killed after its commit."""
    with suppress(OmnigraphError):  # another has it: it will find the commit too
        with suppress(NotFound):
            repository.intents.adopt(own_id).finish()
        seen = repository.intents.read(own_id)
        if seen is not None and seen.ended:
            repository.intents.forget(seen.intent)


def _taken(
    repository: Repository, job: Job, own_id: TxnId, base: WriteTxn, fingerprint: str, split_bytes: int
) -> HeldIntent:
    if job.txn_id is not None:
        with suppress(NotFound):
            return repository.intents.adopt(own_id)
    runtime = repository.runtime
    now = int(runtime.clock.now().timestamp() * 1000)
    details = Details(fingerprint, runtime.ids.short_id(), now, split_bytes, base.base.point, job.branch)
    held = repository.intents.begin(
        own_id,
        base.branch,
        base.base.point,
        "load",
        job.actor,
        details.to_json(),
        tables=tables_of(details, base),
        named=job.txn_id is not None,
    )
    # A cleanup that lists intents from now on spares the base; one that did before has passed it by now.
    if repository.manifests.confirm(base.base).oldest_retained > base.base.manifest_version:
        held.discard()
        raise ConflictError("A cleanup passed while the load began: nothing was written, run it again.")
    return held


def _was_lost(held: HeldIntent) -> bool:
    with suppress(OmnigraphError):
        return not held.is_owned()
    return False


def _give_up(repository: Repository, job: Job, held: HeldIntent, error: BaseException) -> None:
    """A job that was named, and may succeed when it is started again, keeps what it has; others leave nothing."""
    if isinstance(error, OutcomeUnknown):
        return  # it may be committed: the next call with its id will know
    if isinstance(error, JobDiscarded | JobLost):
        return  # what is there, if anything, belongs to another start
    lasting = isinstance(error, OmnigraphError) and not isinstance(error, ConflictError | Unavailable)
    if job.job_id is not None and not lasting:
        error.add_note(f"What is staged is kept: start the load again with the job id {job.job_id} to go on.")
        return
    with suppress(OmnigraphError):
        if held.discard():
            repository.intents.forget(held.intent)
