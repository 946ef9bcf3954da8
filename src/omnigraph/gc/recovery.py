"""Recovery: completes or discards long writes whose process has ended (`intent-tokens`).

The graph needs no repair: before its put a job is garbage, after it a commit. Recovery lists the intents of jobs that
have not ended, completes those that staged everything, and discards others. Each of these is recorded by a commit with
a kind and actor of its own, which names the actor of the job. A job that a process works on is left alone.

A discard closes the intent, records itself in the branch at one past the manifest up to which it searched for the
transaction, and ends the intent. The record takes the number that a stalled start would have used, and names the tokens
of all starts, so that none of them publishes later. A discard that was killed in between is continued by the next
cleanup, recovery or start of the job.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal, TypeAlias

from omnigraph.errors import BadRequest, BranchNotFound, ConflictError, NotFound, OmnigraphError
from omnigraph.manifest.commit.plan import LABEL_LENGTH_MAX, ConflictPolicy, DiscardStarts, PublishPlan
from omnigraph.manifest.commit.publish import PublishedCommit
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.history.txn_lookup import find_txn_since
from omnigraph.manifest.intent.guard import DiscardGuard, HasCommitted
from omnigraph.manifest.intent.intent import StoredIntent
from omnigraph.manifest.intent.intent_store import OwnedIntent
from omnigraph.manifest.model.manifest import MAIN, CommitId, Entry, Manifest, Point, Recovered, TxnId
from omnigraph.manifest.repository import Repository
from omnigraph.storage import meter

ACTOR = "omnigraph:recovery"
KIND = "recovery"

JobOutcome: TypeAlias = Literal["completed", "discarded", "landed"]


@dataclass(frozen=True, slots=True)
class UnfinishedJob:
    """A long write that has not ended, as described by its intent."""

    txn_id: TxnId
    kind: str
    branch: str
    actor: str | None
    state: Literal["running", "released", "dead"]  # released: its process gave it up, and may continue it
    can_complete: bool  # it staged everything, so its commit does not need its input
    since: datetime
    refreshed_ago: timedelta
    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class RecoveredJob:
    """What recovery did to one job; `landed`: it was committed already, and only its intent was left."""

    txn_id: TxnId
    outcome: JobOutcome
    commit_id: CommitId | None  # of the job, or of the record of its discard
    branch: str


@dataclass(frozen=True, slots=True)
class Completer:
    """Completes jobs of one kind; provided by the layer that runs them."""

    can_complete: Callable[[Repository, StoredIntent], bool]
    complete: Callable[[Repository, OwnedIntent, Recovered], PublishedCommit | None]


Completers: TypeAlias = Mapping[str, Completer]


def list_unfinished(repository: Repository, completers: Completers) -> list[UnfinishedJob]:
    """All jobs that have not ended, oldest first."""
    with meter.operation("recover"):
        found = [seen for seen in repository.intents.list() if not seen.ended]
        return sorted(
            (_describe_job(repository, seen, completers) for seen in found), key=lambda job: (job.since, job.txn_id)
        )


def complete(repository: Repository, txn_id: TxnId, completers: Completers) -> RecoveredJob:
    """Make the commit of a dead job whose plan is complete, under its own transaction id."""
    repository.require_writable("Recovering")
    with meter.operation("recover"):
        seen = _read_dead_job(repository, txn_id)
        if seen.closed:
            return _end_discarded_job(repository, seen)
        committed = _end_if_committed(repository, seen)
        if committed is not None:
            return committed
        completer = completers.get(seen.intent.kind)
        if completer is None or not completer.can_complete(repository, seen):
            raise BadRequest(
                f"The job {txn_id} had not staged everything, so only its own command can continue it: run that again "
                "with the same job id, or discard the job."
            )
        held = repository.intents.take_over(txn_id)
        with repository.intents.keep_refreshed(held):
            recovered = Recovered(txn_id, seen.intent.kind, seen.intent.actor, "completed")
            commit = completer.complete(repository, held, recovered)
        with suppress(OmnigraphError):  # the commit exists: the next cleanup removes what is left
            if held.finish():
                repository.intents.delete_job_objects(held.intent)
    if commit is None:
        return RecoveredJob(txn_id, "completed", None, seen.intent.branch)
    by_us = commit.commit.token == held.token
    return RecoveredJob(txn_id, "completed" if by_us else "landed", commit.id, commit.branch)


def discard(repository: Repository, txn_id: TxnId) -> RecoveredJob:
    """Discard a dead job: what it staged is garbage, and none of its starts can publish it later."""
    repository.require_writable("Recovering")
    with meter.operation("recover"):
        ended = end_job(repository, _read_dead_job(repository, txn_id))
    if ended is None:
        raise ConflictError(f"Another process has just continued the job {txn_id}: nothing was discarded, check again.")
    return ended


def end_job(repository: Repository, seen: StoredIntent) -> RecoveredJob | None:
    """Discard an intent exactly as it was seen, or continue a discard; None if it has changed since.

    It is closed, then recorded, then removed. A job whose transaction turns out to be committed is not discarded.
    """
    closed = repository.intents.close(seen)
    if closed is None:
        return None
    try:
        record = _record_discard(repository, closed)
        ended = RecoveredJob(seen.intent.txn_id, "discarded", record.id, record.branch)
    except HasCommitted as found:
        ended = _committed_job(seen.intent.txn_id, found.entry)
    repository.intents.remove(closed)
    return ended


def _record_discard(repository: Repository, closed: StoredIntent) -> PublishedCommit:
    """Commit the discard to the branch where the job would be committed; raises `HasCommitted`.

    Nothing can be published to a deleted branch, and a job that had not created its branch yet finds its intent closed
    after it has done so. In these cases the record is only informative, and is put on main.
    """
    intent = closed.intent
    recovered = Recovered(intent.txn_id, intent.kind, intent.actor, "discarded")
    plan = PublishPlan(
        f"discard {intent.token} {intent.txn_id}"[:LABEL_LENGTH_MAX],
        ConflictPolicy.MAINTENANCE,
        DiscardStarts(KIND, intent.tokens),
        ACTOR,
        recovered=recovered,
    )
    since = _search_start(repository, closed)
    head = repository.manifests.read_head(since.branch_id)
    while head is not None:
        guard = DiscardGuard(repository.manifests, since, intent.txn_id, intent.token)
        recorded = guard.search(head)
        if recorded is not None:
            return _recorded_commit(recorded, plan.txn_id)
        if head.tombstone is not None:
            break
        try:
            return _publish(repository, head, replace(plan, guard=guard))
        except BranchNotFound:  # deleted meanwhile, perhaps after the job was committed
            head = repository.manifests.read_head(since.branch_id)
    main = repository.open_txn(MAIN)
    earlier = repository.publisher.find_earlier_commit(main, plan.txn_id)
    return earlier or _publish(repository, main.base, replace(plan, idempotent=True))


def _publish(repository: Repository, head: Manifest, plan: PublishPlan) -> PublishedCommit:
    commit = repository.publisher.publish(WriteTxn(head, repository.schemas.read(head.schema)), plan)
    assert commit is not None, "a maintenance commit is never nothing"
    return commit


def _recorded_commit(entry: Entry, txn_id: TxnId) -> PublishedCommit:
    commit = next(commit for commit in entry.commits if commit.txn_id == txn_id)
    return PublishedCommit(commit, entry.branch, entry.manifest_version)


def _end_discarded_job(repository: Repository, seen: StoredIntent) -> RecoveredJob:
    """Finish a discard that had begun, where the job should be completed; it may have been committed before."""
    ended = end_job(repository, seen)
    if ended is not None and ended.outcome == "landed":
        return ended
    raise ConflictError(
        f"The job {seen.intent.txn_id} was being discarded, which is finished now: start it again to load its input."
    )


def _read_dead_job(repository: Repository, txn_id: TxnId) -> StoredIntent:
    seen = repository.intents.read(txn_id)
    if seen is None or seen.ended:
        raise NotFound(f"There is no unfinished job {txn_id}: `recover` lists them.")
    if seen.alive:
        owner = seen.intent.owner
        raise ConflictError(
            f"The job {txn_id} is run by process {owner.pid} on {owner.host}, which refreshed its intent "
            f"{seen.age.total_seconds():.0f} s ago: wait for it or stop it."
        )
    return seen


def _end_if_committed(repository: Repository, seen: StoredIntent) -> RecoveredJob | None:
    """End the intent of a job whose owner was killed after its put; None if it is not committed.

    All manifests since its first base are searched, stubs too.
    """
    since = _search_start(repository, seen)
    head = repository.manifests.read_head(since.branch_id)
    entry = None if head is None else find_txn_since(repository.manifests, since, head, seen.intent.txn_id)
    if entry is None:
        return None
    repository.intents.remove(seen)  # if it has changed, another process has it, and finds the same
    return _committed_job(seen.intent.txn_id, entry)


def _committed_job(txn_id: TxnId, entry: Entry) -> RecoveredJob:
    commit = next(commit for commit in entry.commits if commit.txn_id == txn_id)
    return RecoveredJob(txn_id, "landed", commit.id, entry.branch)


def _search_start(repository: Repository, seen: StoredIntent) -> Point:
    """The point behind which it may be committed: its first base, or the start of the branch that it was to create.

    Where its branch was deleted and the name was used again, no start of it commits there (`Intent.search_start`).
    """
    intent = seen.intent
    if intent.target != intent.branch:
        with suppress(BranchNotFound):
            return intent.search_start(repository.branches.find(intent.target).head.branch_id) or intent.base
    return intent.base


def _describe_job(repository: Repository, seen: StoredIntent, completers: Completers) -> UnfinishedJob:
    intent = seen.intent
    completer = completers.get(intent.kind)
    ready = completer is not None and not seen.alive and not seen.closed and completer.can_complete(repository, seen)
    return UnfinishedJob(
        intent.txn_id,
        intent.kind,
        intent.branch,
        intent.actor,
        "running" if seen.alive else "dead" if repository.intents.is_abandoned(seen) else "released",
        ready,
        seen.first_put,
        seen.age,
        intent.owner.host,
        intent.owner.pid,
    )


@dataclass(frozen=True, slots=True)
class Recovery:
    """What `recover` found and did."""

    jobs: tuple[UnfinishedJob, ...] = ()  # after the run
    ended: tuple[RecoveredJob, ...] = ()
    left: Mapping[TxnId, str] = field(default_factory=dict)  # dead jobs that could not be ended, and why


def recover(
    repository: Repository,
    completers: Completers,
    *,
    to_complete: Sequence[TxnId] = (),
    to_discard: Sequence[TxnId] = (),
    everything: bool = False,
) -> Recovery:
    """Complete and discard the named jobs, in this order; or end all dead jobs: complete those that can be completed,
    discard the others.
    """
    twice = {*to_complete} & {*to_discard}
    if twice:
        raise BadRequest(f"The job {min(twice)} can't be both completed and discarded: choose one.")
    if everything and (to_complete or to_discard):
        raise BadRequest("Name single jobs or choose all dead jobs, not both.")
    ended = [complete(repository, txn_id, completers) for txn_id in to_complete]
    ended += [discard(repository, txn_id) for txn_id in to_discard]
    left: dict[TxnId, str] = {}
    if everything:
        repository.require_writable("Recovering")
        for job in list_unfinished(repository, completers):
            if job.state == "dead":
                try:
                    ready = job.can_complete
                    ended.append(
                        complete(repository, job.txn_id, completers) if ready else discard(repository, job.txn_id)
                    )
                except OmnigraphError as error:
                    left[job.txn_id] = str(error)
    return Recovery(tuple(list_unfinished(repository, completers)), tuple(ended), left)
