"""The intent of a bulk load: created or taken over from an earlier start; finished, kept or discarded at the end."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from omnigraph.errors import (
    BadRequest,
    ConflictError,
    Damaged,
    JobDiscarded,
    JobEnding,
    JobLost,
    KeyReused,
    OmnigraphError,
    OutcomeUnknown,
    Unavailable,
)
from omnigraph.gc.recovery import end_job
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.intent.intent import Intent
from omnigraph.manifest.intent.intent_store import OwnedIntent
from omnigraph.manifest.model.manifest import BranchId, TxnId
from omnigraph.manifest.repository import Repository
from omnigraph.pipeline.bulk.resume import LoadDetails, writable_tables
from omnigraph.write.load.load_options import LoadOptions

_DISCARDS_COMPLETED_MAX = 3  # unfinished discards that a start completes first


@contextmanager
def hold_intent(
    repository: Repository,
    options: LoadOptions,
    base: WriteTxn,
    fingerprint: str,
    split_bytes: int,
    spooled_intent: Intent | None = None,
) -> Iterator[tuple[OwnedIntent, LoadDetails]]:
    """Hold the intent, refreshed, during the load; nothing may be staged before.

    `spooled_intent` is that of the start which has spooled the rows, and goes on here.
    """
    own_id = options.txn_id or repository.runtime.ids.txn_id()
    if spooled_intent is not None:
        held = repository.intents.resume(spooled_intent)
    else:
        details = new_details(repository, base, fingerprint, split_bytes, options.branch)
        held = take_load_intent(repository, own_id, base, details, options.actor, named=options.txn_id is not None)
    details = LoadDetails.from_json(held.intent.details, f"the intent of {own_id}")
    if is_of_another(options, held) or (details.fingerprint != fingerprint and _is_keyed(options)):
        held.release()
        raise KeyReused(own_id)
    if details.fingerprint != fingerprint:
        held.release()
        raise BadRequest(
            f"The job {options.job_id or own_id} was begun with another input, mode or branch ({details.fingerprint}; "
            f"now given: {fingerprint}): start it with the same ones, discard it first "
            f"(`recover --discard {own_id}`), or take another job id."
        )
    try:
        with repository.intents.keep_refreshed(held):
            yield held, details
    except BaseException as error:
        if isinstance(error, Damaged) and _is_lost(held):
            raise JobLost(held.txn_id) from error  # what this start staged may have been swept since
        _discard_unless_resumable(repository, options, held, error)
        raise
    with suppress(OmnigraphError):  # the commit is there: what is left goes with the next cleanup
        if held.finish():  # otherwise another start has it, and needs what is there
            repository.intents.delete_job_objects(held.intent)


def _is_keyed(options: LoadOptions) -> bool:
    return options.txn_id is not None and options.job_id is None


def is_of_another(options: LoadOptions, held: OwnedIntent) -> bool:
    """Whether another actor began this under the same idempotency key. A job may be restarted by anyone."""
    return _is_keyed(options) and held.intent.actor != options.actor


def new_details(
    repository: Repository, base: WriteTxn, fingerprint: str, split_bytes: int, branch: str | None
) -> LoadDetails:
    runtime = repository.runtime
    now = int(runtime.clock.now().timestamp() * 1000)
    return LoadDetails(fingerprint, runtime.ids.short_id(), now, split_bytes, base.base.point, branch)


def take_load_intent(
    repository: Repository, txn_id: TxnId, base: WriteTxn, details: LoadDetails, actor: str | None, *, named: bool
) -> OwnedIntent:
    """Take the intent of a load that begins: a new one or, if the load has an id, that of an earlier start."""
    intents, tables = repository.intents, writable_tables(details, base)

    def take() -> OwnedIntent:
        return intents.acquire(
            base, txn_id, kind="load", actor=actor, details=details.to_json(), tables=tables, named=named
        )

    held = take_after_discard(repository, txn_id, take)
    # A cleanup that lists intents from now on spares a new one's base; one that did before has passed it by now.
    if not held.resumed and repository.manifests.refresh_head(base.base).oldest_retained > base.base.manifest_version:
        held.discard()
        raise ConflictError("A cleanup passed while the load began: nothing was written, run it again.")
    return held


def take_after_discard(repository: Repository, txn_id: TxnId, take: Callable[[], OwnedIntent]) -> OwnedIntent:
    """Take an intent. If the job is being discarded, complete that first, whichever process began it."""
    for _ in range(_DISCARDS_COMPLETED_MAX):
        with suppress(JobEnding):
            return take()
        seen = repository.intents.read(txn_id)
        if seen is not None and seen.closed and not seen.ended:
            end_job(repository, seen)
    return take()


def remove_leftovers(repository: Repository, own_id: TxnId, branch: str, branch_id: BranchId) -> None:
    """Remove what a start left that was killed after its commit on this branch; not that of another branch's job."""
    with suppress(OmnigraphError):  # another has it: it will find the commit too
        seen = repository.intents.read(own_id)
        if seen is not None and not seen.ended and seen.intent.is_for(branch, branch_id):
            repository.intents.take_over(own_id).finish()
            seen = repository.intents.read(own_id)
        if seen is not None and seen.ended:
            repository.intents.delete_job_objects(seen.intent)


def _is_lost(held: OwnedIntent) -> bool:
    with suppress(OmnigraphError):
        return not held.is_owned()
    return False


def _discard_unless_resumable(
    repository: Repository, options: LoadOptions, held: OwnedIntent, error: BaseException
) -> None:
    """Discard what was staged, unless the job has an id and may succeed when it is started again."""
    if isinstance(error, OutcomeUnknown):
        return  # it may be committed: the next call with its id finds out
    if isinstance(error, JobDiscarded | JobLost):
        return  # what is there, if anything, belongs to another start
    lasting = isinstance(error, OmnigraphError) and not isinstance(error, ConflictError | Unavailable)
    if options.job_id is not None and not lasting:
        error.add_note(f"What is staged is kept: start the load again with the job id {options.job_id} to go on.")
        return
    with suppress(OmnigraphError):
        if held.discard():
            repository.intents.delete_job_objects(held.intent)
