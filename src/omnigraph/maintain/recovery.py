"""Recovery: what becomes of long writes whose process is gone (rule 19).

Nothing needs repair: before its put a job is garbage, after it a commit. This lists the intents of jobs that have not
ended, completes those that staged everything, and discards others. Each time it says so in a commit of its own kind
and actor, which names whose the job was. One that somebody works on is left alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal, TypeAlias

from omnigraph.errors import BadRequest, BranchNotFound, ConflictError, NotFound, OmnigraphError
from omnigraph.manifest.intent import State
from omnigraph.manifest.intents import HeldIntent, SeenIntent
from omnigraph.manifest.landed import landed_since
from omnigraph.manifest.model import MAIN, CommitId, Point, Recovered, TxnId
from omnigraph.manifest.plan import LABEL_LENGTH_MAX, Change, PublishPlan, Stance
from omnigraph.manifest.publish import PublishedCommit, Recourse
from omnigraph.manifest.repository import Repository
from omnigraph.manifest.txn import WriteTxn
from omnigraph.storage import meter

ACTOR = "omnigraph:recovery"
KIND = "recovery"
_TO_RECORD = "discarded_by"  # in the details of an intent whose discarding is not recorded yet

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
    """What recovery did; `landed`: its commit was there already, and only its intent was left."""

    txn_id: TxnId
    outcome: Outcome
    commit_id: CommitId | None  # of the load, or of the note that it was discarded
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
        open_ = [seen for seen in repository.intents.list() if not seen.closed]
        return sorted((_job(repository, seen, completers) for seen in open_), key=lambda job: (job.since, job.txn_id))


def complete(repository: Repository, txn_id: TxnId, completers: Completers) -> RecoveredJob:
    """Make the commit of a dead job whose plan is complete, under its own transaction id."""
    repository.require_writable("Recovering")
    with meter.operation("recover"):
        seen = _dead(repository, txn_id)
        landed = _finish_landed(repository, seen)
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
        held.finish()
        repository.intents.forget(txn_id)
    return RecoveredJob(
        txn_id,
        "completed",
        None if commit is None else commit.id,
        seen.intent.branch if commit is None else commit.branch,
    )


def discard(repository: Repository, txn_id: TxnId) -> RecoveredJob:
    """End a dead job: what it staged is garbage, and its owner, should it wake up, learns that when it refreshes."""
    repository.require_writable("Recovering")
    with meter.operation("recover"):
        ended = end_job(repository, _dead(repository, txn_id))
    if ended is None:
        raise ConflictError(f"Somebody has just taken up the job {txn_id}: nothing was discarded, look at it again.")
    return ended


def end_job(repository: Repository, seen: SeenIntent) -> RecoveredJob | None:
    """Discard an intent exactly as it was seen, or remove one that is over; None if it has changed since.

    Closed first, recorded then, removed last: killed in between, the next cleanup or recovery goes on here.
    """
    landed = None if seen.closed else _finish_landed(repository, seen)
    if landed is not None:
        return landed
    closed = repository.intents.close(seen, State.DISCARDED, {_TO_RECORD: ACTOR})
    if closed is None:
        return None
    record = _record(repository, closed) if _TO_RECORD in closed.intent.details else None
    repository.intents.remove(closed)
    branch = seen.intent.branch if record is None else record.branch
    return RecoveredJob(seen.intent.txn_id, "discarded", None if record is None else record.id, branch)


def _record(repository: Repository, closed: SeenIntent) -> PublishedCommit:
    """The note in the history that a job was discarded: where the job was begun, on main if that is gone."""
    intent = closed.intent
    whose = Recovered(intent.txn_id, intent.kind, intent.actor, "discarded")
    plan = PublishPlan(
        f"discard {intent.txn_id}"[:LABEL_LENGTH_MAX], Stance.MAINTENANCE, Change(KIND), ACTOR, recovered=whose
    )
    head = repository.manifests.head(intent.base.branch_id)
    try:
        if head is not None and head.tombstone is None:
            txn = WriteTxn(head, repository.schemas.read(head.schema))
            return _published(repository, txn, replace(plan, intent_base=intent.base))
    except BranchNotFound:
        pass
    txn = repository.open_txn(MAIN)
    return _published(repository, txn, replace(plan, idempotent=True))


def _published(repository: Repository, txn: WriteTxn, plan: PublishPlan) -> PublishedCommit:
    commit = repository.publisher.publish(txn, plan, Recourse(plan_again=lambda _: plan))
    assert commit is not None, "a maintenance commit is never nothing"
    return commit


def _dead(repository: Repository, txn_id: TxnId) -> SeenIntent:
    seen = repository.intents.read(txn_id)
    if seen is None or (seen.closed and _TO_RECORD not in seen.intent.details):
        raise NotFound(f"There is no unfinished job {txn_id}: see `recover` for those that there are.")
    if seen.alive:
        owner = seen.intent.owner
        raise ConflictError(
            f"The job {txn_id} is being worked on by process {owner.pid} on {owner.host}, which was heard of "
            f"{seen.age.total_seconds():.0f} s ago: it is left alone, wait for it or stop it."
        )
    return seen


def _finish_landed(repository: Repository, seen: SeenIntent) -> RecoveredJob | None:
    """End the intent of a job whose owner was killed after its put; None if it has not landed.

    It is looked for in all manifests since its first base, stubs too.
    """
    for point, branch_id in _places(repository, seen):
        head = repository.manifests.head(branch_id)
        entry = None if head is None else landed_since(repository.manifests, point, head, seen.intent.txn_id)
        if entry is not None:
            closed = repository.intents.close(seen, State.FINISHED)
            if closed is not None:  # otherwise another has it, who finds the same
                repository.intents.remove(closed)
            commit = next(commit for commit in entry.commits if commit.txn_id == seen.intent.txn_id)
            return RecoveredJob(seen.intent.txn_id, "landed", commit.id, entry.branch)
    return None


def _places(repository: Repository, seen: SeenIntent) -> list[tuple[Point, str]]:
    """Where it may have landed: on the branch of its base, and on one that it was to fork from there."""
    base = seen.intent.base
    places = [(base, base.branch_id)]
    target = seen.intent.details.get("target")
    if isinstance(target, str) and target != seen.intent.branch:
        try:
            head = repository.branches.find(target).head
            places.append((Point(head.branch_id, 1), head.branch_id))
        except BranchNotFound:
            pass
    return places


def _job(repository: Repository, seen: SeenIntent, completers: Completers) -> Job:
    intent = seen.intent
    completer = completers.get(intent.kind)
    ready = completer is not None and not seen.alive and completer.can_complete(repository, seen)
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
