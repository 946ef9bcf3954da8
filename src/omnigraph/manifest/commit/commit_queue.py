"""Group commit: writes of one process to one branch that meet share one put.

The first to come leads: it puts its own write at once, so no write that is alone waits for another. Those that come
while its put is under way wait in a queue, and the next leader takes them all as one batch (`CommitBatch`). Each is
judged in order, on top of the ones before it; one that fails, fails alone, and each keeps its own commit. Exclusive
writes wait in the same queue and are put by themselves.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context, copy_context
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

from omnigraph.errors import ExpectedVersionMismatch, OmnigraphError, OutcomeUnknown, RetriesExhausted
from omnigraph.fork_safety import renew_after_fork
from omnigraph.manifest.commit.compose import append_commit, compose_manifest, truncate_to_ms
from omnigraph.manifest.commit.plan import ConflictPolicy, DataChange, PublishPlan
from omnigraph.manifest.commit.txn import TooLargeToShare, WriteOp, WriteTxn
from omnigraph.manifest.model.manifest import BranchId, CommitId, Entry, Manifest, TableKey, TxnId
from omnigraph.manifest.model.paths import commit_id
from omnigraph.manifest.settings import Settings
from omnigraph.manifest.store.inline_rows import change_size
from omnigraph.storage import meter
from omnigraph.storage.table.overlay import Overlay


@dataclass(frozen=True, slots=True)
class Committed:
    """The commit is in this entry."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Conflicted:
    """Another write has the number: nothing of the attempt has happened."""

    winner: Entry


@dataclass(frozen=True, slots=True)
class NoChange:
    """The write would change nothing."""


@dataclass(frozen=True, slots=True)
class Standalone:
    """Planned again, the write has become too large to share a manifest: it starts over by itself."""

    txn: WriteTxn
    plan: PublishPlan


CommitOutcome = Committed | NoChange | Standalone | BaseException


@dataclass(slots=True, eq=False)
class PendingCommit:
    """One write on its way to a manifest. What it requests from the store is charged to its own account."""

    txn: WriteTxn
    plan: PublishPlan
    op: WriteOp
    deadline: float
    time_limit_s: float
    exclusive: bool = False  # it shares a manifest with no other write
    context: Context = field(default_factory=copy_context)
    losses: int = 0
    outcome: CommitOutcome | None = None
    put_at: int | None = None  # the number of a manifest with this write in it whose outcome is not known yet
    queued_s: float = 0.0  # how long the last attempt waited for its turn
    leads: bool = False
    batch: "Sequence[PendingCommit]" = ()  # that it leads
    to_ack: "Sequence[PendingCommit]" = ()  # writes of the batch before: they have outcomes, and still wait
    _woken: threading.Event | None = None  # while it waits in the queue

    @property
    def size(self) -> int:
        return size_of_rows(self.plan)

    def wake(self) -> None:
        """Its turn has come, or its outcome is there."""
        if self._woken is not None:
            self._woken.set()

    def ack_previous(self) -> None:
        """Wake the writes of the batch before: this one's put is on its way, or will not be soon.

        No write is forgotten if this thread is interrupted, and no write notices if two threads do this at once.
        """
        for other in self.to_ack:
            other.wake()
        self.to_ack = ()

    def enqueue(self, queue: "deque[PendingCommit]") -> None:
        """At the end of a queue. A write that leads at once never waits, and needs no event."""
        self._woken = threading.Event()
        queue.append(self)

    def wait(self) -> None:
        assert self._woken is not None
        self._woken.wait()


def size_of_rows(plan: PublishPlan) -> int:
    return sum(change_size(made.change) for made in plan.inline.values())


def may_share(plan: PublishPlan) -> bool:
    """Whether a plan may share a manifest: its rows are in the manifest itself, and there is nothing else to it."""
    change = plan.change
    return (
        isinstance(change, DataChange)
        and not change.staged
        and change.schema is None
        and change.merged_parent is None
        and plan.policy is not ConflictPolicy.MAINTENANCE
        and plan.if_commit is None
        and plan.guard is None
        and plan.intent is None
        and change.changes_rows
    )


class CommitQueue:
    """The writes that wait for each branch, in order of arrival. A branch has a queue exactly while a write leads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        renew_after_fork(self, CommitQueue._renew)

    def _renew(self) -> None:
        """No write waits and none leads: a forked child has none of the threads that did."""
        self._waiting: dict[BranchId, deque[PendingCommit]] = {}
        self._reserved: dict[BranchId, TxnId] = {}
        self._lock = threading.Lock()

    def turn(self, write: PendingCommit) -> "Turn":
        """A turn of the write; while an exclusive write has one, no other write of this process puts to the branch."""
        return Turn(self, write)

    def wait_for_turn(self, write: PendingCommit) -> Sequence[PendingCommit]:
        """The batch that this write leads; nothing if another leader has decided its outcome."""
        branch_id = write.txn.base.branch_id
        if not self._enqueue(branch_id, write):
            write.wait()
            if write.exclusive:
                write.ack_previous()
            elif write.leads:
                self._take_batch(branch_id, write)
        if write.leads and not write.batch:
            write.batch = (write,)
        return write.batch

    def leave(self, write: PendingCommit) -> None:
        """End the turn of a write, or its wait for one; if that is over, nothing happens.

        A caller that fails calls this too: an interrupt can hit the context manager itself, outside of `turn`.
        """
        branch_id = write.txn.base.branch_id
        if write.exclusive:  # it was tried: a leader that waits for its reservation goes on
            self._end_reservation(branch_id, write.plan.txn_id)
        if write.exclusive or write.outcome is None:  # perhaps it is still in the queue
            with self._lock:
                queue = self._waiting.get(branch_id, ())
                if write in queue:  # it was interrupted, or `reserve_for` was, after it had woken this one
                    assert isinstance(queue, deque)
                    queue.remove(write)
        self._promote_next(branch_id, write)
        write.ack_previous()

    @contextmanager
    def reserve_for(self, branch_id: BranchId, txn_id: TxnId) -> Iterator[Callable[[], bool]]:
        """While the leader waits for the write of a reservation, that write passes the queue if it is one of this
        process. Yields whether it is still outstanding."""
        try:
            with self._lock:
                self._reserved[branch_id] = txn_id
                queue = self._waiting.get(branch_id, ())
                reserved = next((other for other in queue if other.exclusive and other.plan.txn_id == txn_id), None)
                if reserved is not None:
                    reserved.wake()  # first: a write that was woken takes itself out of the queue
                    assert isinstance(queue, deque)
                    queue.remove(reserved)
            yield lambda: self._reserved.get(branch_id) == txn_id
        finally:
            self._end_reservation(branch_id, txn_id)

    def _end_reservation(self, branch_id: BranchId, txn_id: TxnId) -> None:
        with self._lock:
            if self._reserved.get(branch_id) == txn_id:
                del self._reserved[branch_id]

    def _enqueue(self, branch_id: BranchId, write: PendingCommit) -> bool:
        """Whether the write may go on at once: it leads, since no other did, or its reservation is waited for."""
        with self._lock:
            queue = self._waiting.get(branch_id)
            if queue is None:
                self._waiting[branch_id] = deque()
                write.leads = True
                return True
            if write.exclusive and self._reserved.get(branch_id) == write.plan.txn_id:
                return True
            write.enqueue(queue)
            return False

    def _take_batch(self, branch_id: BranchId, leader: PendingCommit) -> None:
        """As many of the waiting writes as may share a manifest with the leader."""
        batch = leader.batch = [leader]
        room = self._settings.group_bytes - leader.size
        with self._lock:
            queue = self._waiting[branch_id]
            while queue and len(batch) < self._settings.group_commits and queue[0].size <= room:
                if queue[0].exclusive:
                    break
                room -= queue[0].size
                batch.append(queue.popleft())

    def _promote_next(self, branch_id: BranchId, leader: PendingCommit) -> None:
        """The next write in the queue leads. Writes that the leader leaves without an outcome go to the front, unless
        a manifest with them in it may have taken effect."""
        with self._lock:
            queue = self._waiting.get(branch_id)
            if not leader.leads or queue is None:  # None in a child that was forked by what the leader called
                return
            others = leader.batch[1:]
            for other in reversed(others):
                if other.outcome is not None:
                    continue
                if other.put_at is None:
                    queue.appendleft(other)
                else:
                    other.outcome = OutcomeUnknown(other.plan.txn_id, other.txn.branch, other.put_at)
            leader.leads = False
            leader.batch = ()  # it names itself there, which only the garbage collector would undo
            if others:
                leader.to_ack = [*leader.to_ack, *[other for other in others if other.outcome is not None]]
            if queue:
                queue[0].leads, queue[0].to_ack = True, leader.to_ack
                leader.to_ack = ()
                queue.popleft().wake()
                return
            del self._waiting[branch_id]
        leader.ack_previous()


class Turn:
    """A write's turn. The batch that it yields must have outcomes at the end.

    A class rather than a generator function because every small commit takes one.
    """

    __slots__ = ("_queue", "_write")

    def __init__(self, queue: CommitQueue, write: PendingCommit) -> None:
        self._queue = queue
        self._write = write

    def __enter__(self) -> Sequence[PendingCommit]:
        try:
            return self._queue.wait_for_turn(self._write)
        except BaseException:  # interrupted while it waited: no other write may wait for it in turn
            self._queue.leave(self._write)
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OmnigraphError):
            for other in self._write.batch:
                if other.outcome is None and other is not self._write:
                    other.outcome = copy(error)  # it concerns all of them, but each raises its own
        try:
            self._queue.leave(self._write)
        except BaseException:  # interrupted
            self._queue.leave(self._write)
            raise


Rebase: TypeAlias = Callable[
    [WriteTxn, PublishPlan, Manifest, WriteOp, Mapping[TableKey, Overlay]], tuple[WriteTxn, PublishPlan]
]


@dataclass(slots=True, eq=False)
class CommitBatch:
    """Nothing in here is final before the put: a write may be refused because of others that are not committed yet."""

    base: Manifest
    now: datetime
    bytes_max: int
    plans: list[PublishPlan] = field(default_factory=list)
    pending: dict[TableKey, Overlay] = field(default_factory=dict)
    _size: int = 0
    _members: dict[TxnId, PendingCommit] = field(default_factory=dict)
    _duplicates: list[PendingCommit] = field(default_factory=list)
    _rejected: list[tuple[PendingCommit, NoChange | Standalone | BaseException]] = field(default_factory=list)
    _staged: Manifest | None = None

    def add(self, member: PendingCommit, rebase: Rebase) -> None:
        """Rebase a write onto the ones before it, and accept it if it still holds."""
        if member.plan.txn_id in self._members:  # the same idempotency key, twice at once
            self._duplicates.append(member)
            return
        plan = member.plan
        base = member.txn.base
        if self.plans or (base is not self.base and base.point != self.base.point):
            head = self._staged_manifest()
            try:
                _, plan = member.context.run(rebase, member.txn, plan, head, member.op, dict(self.pending))
            except TooLargeToShare:
                self._rejected.append((member, Standalone(member.txn, member.plan)))
                return
            except (KeyboardInterrupt, SystemExit):
                raise  # for the thread that leads
            except BaseException as error:  # a planner's bug or a library's panic concerns this write only
                self._rejected.append((member, error))
                return
            if plan.changes_nothing:
                self._rejected.append((member, NoChange()))
                return
            if not may_share(plan):
                self._rejected.append((member, Standalone(member.txn, member.plan)))
                return
        size = size_of_rows(plan)
        if self.plans and self._size + size > self.bytes_max:
            self._rejected.append((member, Standalone(member.txn, member.plan)))
        else:
            self._accept(member, plan, size)

    def _accept(self, member: PendingCommit, plan: PublishPlan, size: int) -> None:
        self._members[plan.txn_id] = member
        self._size += size
        self.plans.append(plan)
        for key, made in plan.inline.items():
            if made.counts:
                self.pending[key] = self.pending.get(key, Overlay.EMPTY).compose(made.overlay)

    def _staged_manifest(self) -> Manifest:
        """The base with all accepted writes; made when the next write is rebased, since a single one needs none."""
        for index in range(0 if self._staged is None else len(self._staged.commits), len(self.plans)):
            self._staged = append_commit(
                self.base, self._staged or self.base, self.plans[index], index, truncate_to_ms(self.now)
            )
        return self._staged or self.base

    @property
    def reservation_txn(self) -> TxnId:
        """The transaction that the batch puts as: that of the reservation, if it is one of the accepted writes."""
        asked = None if self.base.reservation is None else self.base.reservation.txn_id
        return asked if asked in self._members else self.plans[0].txn_id

    def to_manifest(self) -> Manifest:
        """The manifest to put; the outcome of its writes is unknown until the put is settled."""
        for member in (*self._members.values(), *self._duplicates):
            member.put_at = self.base.manifest_version + 1
        # A plan that is alone has the whole number to itself.
        return compose_manifest(self.base, self.plans[0], self.now) if len(self.plans) == 1 else self._staged_manifest()

    def mark_conflicted(self) -> None:
        """Another write has the number: nothing of this batch has happened."""
        for member in (*self._members.values(), *self._duplicates):
            member.put_at = None

    def complete(self, result: Committed | NoChange, leader: PendingCommit) -> None:
        """The put took effect, or there was nothing to put on a confirmed head: what was decided is final."""
        assert isinstance(result, Committed) or not self._members
        for member in (*self._members.values(), *self._duplicates):
            if member is not leader:
                member.context.run(meter.mark_charged_to_leader)
            member.outcome = result
        names = self._final_ids()
        for member, outcome in self._rejected:
            if isinstance(outcome, ExpectedVersionMismatch):
                outcome = outcome.with_final_ids(names)
            member.outcome = outcome

    def _final_ids(self) -> dict[CommitId, CommitId]:
        """The ids of commits that were put under another id than the one under which others were judged against them.

        How many commits a manifest has is known only when all are judged, and a commit that turns out to be its only
        one has the manifest's number for its id, without an index.
        """
        if self._staged is None or len(self.plans) != 1:
            return {}
        return {self._staged.commits[0].id: commit_id(self._staged.point)}

    def complete_unknown(self) -> None:
        """Nobody knows whether the put took effect, so no write can be refused because of it either."""
        for member in (*self._members.values(), *self._duplicates):
            assert member.put_at is not None
            member.outcome = OutcomeUnknown(member.plan.txn_id, self.base.branch, member.put_at)
        for member, _ in self._rejected:
            member.outcome = RetriesExhausted(self.base.branch, member.losses, member.time_limit_s)
