"""Group commit: writes of one process to one branch that meet share one put.

The first to come leads: it puts its own write at once, so no write that is alone waits for another. Those that come
while its put is under way wait in a queue, and the next leader takes them all as one batch. Each is judged in order, on
top of the ones before it; one that fails, fails alone, and each keeps its own commit. Exclusive writes wait in the same
queue and are put by themselves.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context, copy_context
from copy import copy
from dataclasses import dataclass, field

from omnigraph.errors import OmnigraphError, OutcomeUnknown
from omnigraph.fork_safety import renew_after_fork
from omnigraph.manifest.commit.plan import ConflictPolicy, DataChange, PublishPlan
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.commit.write_op import WriteOp
from omnigraph.manifest.model.manifest import BranchId, Entry, TxnId
from omnigraph.manifest.settings import Settings
from omnigraph.manifest.store.inline_rows import change_size


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

    @contextmanager
    def turn(self, write: PendingCommit) -> Iterator[Sequence[PendingCommit]]:
        """Wait for a turn: yields the batch that this write leads, which must have outcomes at the end of the turn, and
        nothing if another leader has decided its outcome. While an exclusive write has a turn, no other write of this
        process puts to the branch."""
        branch_id = write.txn.base.branch_id
        try:
            if not self._enqueue(branch_id, write):
                write.wait()
                if write.exclusive:
                    write.ack_previous()
                elif write.leads:
                    self._take_batch(branch_id, write)
            if write.leads and not write.batch:
                write.batch = (write,)
            yield write.batch
            self._release(branch_id, write)
            self._promote_next(branch_id, write)
        except BaseException as error:  # interrupted, perhaps while it waited: no other write may wait for it in turn
            if isinstance(error, OmnigraphError):
                for other in write.batch:
                    if other.outcome is None and other is not write:
                        other.outcome = copy(error)  # it concerns all of them, but each raises its own
            self._withdraw(branch_id, write)
            raise

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

    def _release(self, branch_id: BranchId, write: PendingCommit) -> None:
        """The write was tried: a leader that waits for its reservation goes on."""
        if write.exclusive:
            self._end_reservation(branch_id, write.plan.txn_id)

    def _withdraw(self, branch_id: BranchId, write: PendingCommit) -> None:
        self._release(branch_id, write)
        with self._lock:
            queue = self._waiting.get(branch_id, ())
            if write in queue:
                assert isinstance(queue, deque)
                queue.remove(write)
        self._promote_next(branch_id, write)
        write.ack_previous()

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
