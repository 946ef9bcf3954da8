"""Recovery: what becomes of long writes whose process is gone (`intent-tokens`).

Nothing needs repair: before its put a job is garbage, after it a commit. This lists the intents of jobs that have not
ended, completes those that staged everything, and discards others. Each time it says so in a commit of its own kind
and actor, which names whose the job was. One that somebody works on is left alone.

A discard closes the intent, records itself in the branch at one past the manifest up to which it searched for the
transaction, and ends the intent. The record takes the number that a start which was only stalled would have used, and
names the tokens of all starts, so that none of them publishes later. A discard that was killed in between is continued
by the next cleanup, recovery or start of the job.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal, TypeAlias

from omnigraph.errors import BadRequest, BranchNotFound, ConflictError, NotFound, OmnigraphError
from omnigraph.manifest.commit.plan import LABEL_LENGTH_MAX, Discard, PublishPlan, Stance
from omnigraph.manifest.commit.publish import PublishedCommit
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.history.txn_lookup import find_txn_since
from omnigraph.manifest.intent.guard import DiscardGuard, HasCommitted
from omnigraph.manifest.intent.intent_store import HeldIntent, SeenIntent
from omnigraph.manifest.model.manifest import MAIN, CommitId, Entry, Manifest, Point, Recovered, TxnId
from omnigraph.manifest.repository import Repository
from omnigraph.storage import meter

ACTOR = "omnigraph:recovery"
KIND = "recovery"

Outcome: TypeAlias = Literal["completed", "discarded", "landed"]


@dataclass(frozen=True, slots=True)
class Job:
    """A long write that has not ended, as its intent tells."""

    txn_id: TxnId
    kind: str
    branch: str
    actor: str | None
    state: Literal["running", "released", "dead"]  # released: its process let go of it, and may take it up again
    can_complete: bool  # it staged everything, so that its commit can be made without its input
    since: datetime
    refreshed_ago: timedelta
    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class RecoveredJob:
    """What recovery did; `landed`: it was committed already, and only its intent was left."""

    txn_id: TxnId
    outcome: Outcome
    commit_id: CommitId | None  # of the load, or of the record of its discard
    branch: str


Complete: TypeAlias = Callable[[Repository, HeldIntent, Recovered], PublishedCommit | None]


@dataclass(frozen=True, slots=True)
class Completer:
    """How jobs of one kind are completed: by the layer that runs them."""

    can_complete: Callable[[Repository, SeenIntent], bool]
    complete: Complete


Completers: TypeAlias = Mapping[str, Completer]


def list_unfinished(repository: Repository, completers: Completers) -> list[Job]:
    """All jobs that have not ended, oldest first."""
    with meter.operation("recover"):
        found = [seen for seen in repository.intents.list() if not seen.ended]
        return sorted((_job(repository, seen, completers) for seen in found), key=lambda job: (job.since, job.txn_id))


def complete(repository: Repository, txn_id: TxnId, completers: Completers) -> RecoveredJob:
    """Make the commit of a dead job whose plan is complete, under its own transaction id."""
    repository.require_writable("Recovering")
    with meter.operation("recover"):
        seen = _dead(repository, txn_id)
        if seen.closed:
            return _ended_first(repository, seen)
        landed = _end_if_committed(repository, seen)
        if landed is not None:
            return landed
        completer = completers.get(seen.intent.kind)
        if completer is None or not completer.can_complete(repository, seen):
            raise BadRequest(
                f"The job {txn_id} had not staged everything, so only its own command can go on with it: start that "
                "again with the same job id, or discard the job."
            )
        held = repository.intents.adopt(txn_id)
        with repository.intents.keeping(held):
            whose = Recovered(txn_id, seen.intent.kind, seen.intent.actor, "completed")
            commit = completer.complete(repository, held, whose)
        with suppress(OmnigraphError):  # the commit is there: what is left goes with the next cleanup
            if held.finish():
                repository.intents.forget(held.intent)
    if commit is None:
        return RecoveredJob(txn_id, "completed", None, seen.intent.branch)
    by_us = commit.commit.token == held.token
    return RecoveredJob(txn_id, "completed" if by_us else "landed", commit.id, commit.branch)


def discard(repository: Repository, txn_id: TxnId) -> RecoveredJob:
    """End a dead job: what it staged is garbage, and none of its starts publishes it, should one continue later."""
    repository.require_writable("Recovering")
    with meter.operation("recover"):
        ended = end_job(repository, _dead(repository, txn_id))
    if ended is None:
        raise ConflictError(f"Somebody has just taken up the job {txn_id}: nothing was discarded, look at it again.")
    return ended


def end_job(repository: Repository, seen: SeenIntent) -> RecoveredJob | None:
    """Discard an intent exactly as it was seen, or continue a discard; None if it has changed since.

    Closed first, recorded then, removed last. If its transaction turns out to be committed, it is not discarded.
    """
    closed = repository.intents.close(seen)
    if closed is None:
        return None
    try:
        record = _record(repository, closed)
        ended = RecoveredJob(seen.intent.txn_id, "discarded", record.id, record.branch)
    except HasCommitted as found:
        ended = _committed(seen.intent.txn_id, found.entry)
    repository.intents.remove(closed)
    return ended


def _record(repository: Repository, closed: SeenIntent) -> PublishedCommit:
    """The discard, in the branch where the job would be committed; raises `HasCommitted`.

    Nothing can be published to a branch that is deleted, and a job whose branch was not made yet finds its intent
    closed after it has made it: then the record is for people only, and is put on main.
    """
    intent = closed.intent
    whose = Recovered(intent.txn_id, intent.kind, intent.actor, "discarded")
    plan = PublishPlan(
        f"discard {intent.token} {intent.txn_id}"[:LABEL_LENGTH_MAX],
        Stance.MAINTENANCE,
        Discard(KIND, intent.tokens),
        ACTOR,
        recovered=whose,
    )
    since = _place(repository, closed)
    head = repository.manifests.read_head(since.branch_id)
    while head is not None:
        guard = DiscardGuard(repository.manifests, since, intent.txn_id, intent.token)
        recorded = guard.search(head)
        if recorded is not None:
            return _recorded(recorded, plan.txn_id)
        if head.tombstone is not None:
            break
        try:
            return _published(repository, head, replace(plan, guard=guard))
        except BranchNotFound:  # deleted meanwhile, perhaps after the job was committed
            head = repository.manifests.read_head(since.branch_id)
    main = repository.open_txn(MAIN)
    earlier = repository.publisher.landed_earlier(main, plan.txn_id)
    return earlier or _published(repository, main.base, replace(plan, idempotent=True))


def _published(repository: Repository, head: Manifest, plan: PublishPlan) -> PublishedCommit:
    commit = repository.publisher.publish(WriteTxn(head, repository.schemas.read(head.schema)), plan)
    assert commit is not None, "a maintenance commit is never nothing"
    return commit


def _recorded(entry: Entry, txn_id: TxnId) -> PublishedCommit:
    commit = next(commit for commit in entry.commits if commit.txn_id == txn_id)
    return PublishedCommit(commit, entry.branch, entry.manifest_version)


def _ended_first(repository: Repository, seen: SeenIntent) -> RecoveredJob:
    """The discard of a job that is to be completed had begun: it is ended, unless the job was committed before."""
    ended = end_job(repository, seen)
    if ended is not None and ended.outcome == "landed":
        return ended
    raise ConflictError(
        f"The job {seen.intent.txn_id} was being discarded, which is done now: start it again to load its input."
    )


def _dead(repository: Repository, txn_id: TxnId) -> SeenIntent:
    seen = repository.intents.read(txn_id)
    if seen is None or seen.ended:
        raise NotFound(f"There is no unfinished job {txn_id}: see `recover` for those that there are.")
    if seen.alive:
        owner = seen.intent.owner
        raise ConflictError(
            f"The job {txn_id} is being worked on by process {owner.pid} on {owner.host}, which was heard of "
            f"{seen.age.total_seconds():.0f} s ago: it is left alone, wait for it or stop it."
        )
    return seen


def _end_if_committed(repository: Repository, seen: SeenIntent) -> RecoveredJob | None:
    """End the intent of a job whose owner was killed after its put; None if it is not committed.

    It is looked for in all manifests since its first base, stubs too.
    """
    since = _place(repository, seen)
    head = repository.manifests.read_head(since.branch_id)
    entry = None if head is None else find_txn_since(repository.manifests, since, head, seen.intent.txn_id)
    if entry is None:
        return None
    repository.intents.remove(seen)  # if it has changed, another has it, and finds the same
    return _committed(seen.intent.txn_id, entry)


def _committed(txn_id: TxnId, entry: Entry) -> RecoveredJob:
    commit = next(commit for commit in entry.commits if commit.txn_id == txn_id)
    return RecoveredJob(txn_id, "landed", commit.id, entry.branch)


def _place(repository: Repository, seen: SeenIntent) -> Point:
    """Behind which point it may be committed: its first base, or the beginning of the branch that it was to make.

    On a branch that has the name of its own, which was deleted, no start of it commits (`Intent.behind`).
    """
    intent = seen.intent
    if intent.target != intent.branch:
        with suppress(BranchNotFound):
            return intent.behind(repository.branches.find(intent.target).head.branch_id) or intent.base
    return intent.base


def _job(repository: Repository, seen: SeenIntent, completers: Completers) -> Job:
    intent = seen.intent
    completer = completers.get(intent.kind)
    ready = completer is not None and not seen.alive and not seen.closed and completer.can_complete(repository, seen)
    return Job(
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
    """What a run of `recover` found and did."""

    jobs: tuple[Job, ...] = ()  # that have not ended, now
    ended: tuple[RecoveredJob, ...] = ()
    left: Mapping[TxnId, str] = field(default_factory=dict)  # why a dead job could not be ended


def recover(
    repository: Repository,
    completers: Completers,
    *,
    to_complete: Sequence[TxnId] = (),
    to_discard: Sequence[TxnId] = (),
    everything: bool = False,
) -> Recovery:
    """End the jobs that are named, in this order; or all dead ones: completed if they can be, otherwise discarded."""
    twice = {*to_complete} & {*to_discard}
    if twice:
        raise BadRequest(f"The job {min(twice)} can't be both completed and discarded: choose one.")
    if everything and (to_complete or to_discard):
        raise BadRequest("All dead jobs and single ones were named: name either.")
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
