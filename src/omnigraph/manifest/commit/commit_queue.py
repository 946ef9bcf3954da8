"""Group commit: writes of one process to one branch that meet share one put.

The first to come leads: it puts its own write at once, so nobody who is alone waits for anybody. Those that come while
its put is under way wait together, and the next leader takes them all. Each is judged in order, against the base with
the ones before it on top; one that fails, fails alone, and each keeps its own commit.
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
from omnigraph.manifest.commit.conflict_handlers import Recourse
from omnigraph.manifest.commit.plan import ConflictPolicy, DataChange, PublishPlan
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.model.manifest import BranchId, Entry, TxnId
from omnigraph.manifest.settings import Settings
from omnigraph.manifest.store.inline_rows import change_size


@dataclass(frozen=True, slots=True)
class Committed:
    """The commit is in this entry."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Conflicted:
    """The number is another's: nothing of the try has happened."""

    winner: Entry


@dataclass(frozen=True, slots=True)
class NoChange:
    """The write would change nothing."""


@dataclass(frozen=True, slots=True)
class Standalone:
    """Planned again, the write has become too large to ride with others: it starts over by itself."""

    txn: WriteTxn
    plan: PublishPlan


CommitOutcome = Committed | NoChange | Standalone | BaseException


@dataclass(slots=True, eq=False)
class PendingCommit:
    """One write that wants to be in the next manifest. What it asks of the store goes on its own account."""

    txn: WriteTxn
    plan: PublishPlan
    recourse: Recourse
    deadline: float
    context: Context = field(default_factory=copy_context)
    losses: int = 0
    outcome: CommitOutcome | None = None
    put_at: int | None = None  # the number of a manifest with this write in it whose fate is not known yet
    leads: bool = False
    exclusive: bool = False  # it shares a manifest with nobody
    batch: "Sequence[PendingCommit]" = ()  # whom it leads
    to_ack: "Sequence[PendingCommit]" = ()  # of the group before: their put has landed, and they do not know it yet
    _woken: threading.Event | None = None  # while it waits in a line

    @property
    def size(self) -> int:
        return size_of_rows(self.plan)

    def wake(self) -> None:
        """Its turn has come: it has an outcome, or it leads."""
        if self._woken is not None:
            self._woken.set()

    def ack_previous(self) -> None:
        """Those of the group before may go on: this member's put is on its way, or will not be soon.

        Nobody is forgotten if the one that tells is interrupted, and nobody notices if two threads tell at once.
        """
        for other in self.to_ack:
            other.wake()
        self.to_ack = ()

    def enqueue(self, line: "deque[PendingCommit]") -> None:
        """At the end of a line: whoever leads at once never waits, and needs nothing to wait for."""
        self._woken = threading.Event()
        line.append(self)

    def wait(self) -> None:
        assert self._woken is not None
        self._woken.wait()


RunBatch = Callable[[Sequence[PendingCommit]], None]


def size_of_rows(plan: PublishPlan) -> int:
    return sum(change_size(made.change) for made in plan.inline.values())


def may_share(plan: PublishPlan) -> bool:
    """Whether a plan may ride with others: rows that are in the manifest itself, and nothing else."""
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
    """Who waits for which branch, in order of arrival. There is a line exactly while somebody leads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        renew_after_fork(self, CommitQueue._renew)

    def _renew(self) -> None:
        """No member waits and none leads: a forked child has none of the threads that did."""
        self._waiting: dict[BranchId, deque[PendingCommit]] = {}
        self._reserved: dict[BranchId, TxnId] = {}
        self._lock = threading.Lock()

    def submit(self, member: PendingCommit, land: RunBatch) -> CommitOutcome:
        """Wait for the member's outcome, or lead the group that it is in: `land` gives everybody theirs."""
        branch_id = member.txn.base.branch_id
        try:
            if not self._enqueue(branch_id, member):
                member.wait()
                if member.leads:
                    self._take_batch(branch_id, member)
            if member.leads:
                self._lead(branch_id, member, land)
        except BaseException:  # interrupted, perhaps while it waited: nobody may wait for it in turn
            self._withdraw(branch_id, member)
            raise
        assert member.outcome is not None
        return member.outcome

    @contextmanager
    def exclusive(self, member: PendingCommit) -> Iterator[None]:
        """Wait in line for a try that the member makes alone: meanwhile nobody else of this process puts there."""
        branch_id, member.exclusive = member.txn.base.branch_id, True
        try:
            if not self._enqueue(branch_id, member):
                member.wait()
                member.ack_previous()
            yield
        finally:
            self._release(branch_id, member.plan.txn_id)
            self._withdraw(branch_id, member)

    @contextmanager
    def reserve_for(self, branch_id: BranchId, txn_id: TxnId) -> Iterator[Callable[[], bool]]:
        """Somebody, as a rule the leader, is about to wait for a write to go first, which may well stand in this line:
        then it passes by. Yields whether it is still to come."""
        try:
            with self._lock:
                self._reserved[branch_id] = txn_id
                line = self._waiting.get(branch_id, ())
                asked = next((other for other in line if other.exclusive and other.plan.txn_id == txn_id), None)
                if asked is not None:
                    asked.wake()  # first: whoever was called takes itself out of the line
                    assert isinstance(line, deque)
                    line.remove(asked)
            yield lambda: self._reserved.get(branch_id) == txn_id
        finally:
            self._release(branch_id, txn_id)

    def _release(self, branch_id: BranchId, txn_id: TxnId) -> None:
        with self._lock:
            if self._reserved.get(branch_id) == txn_id:
                del self._reserved[branch_id]

    def _enqueue(self, branch_id: BranchId, member: PendingCommit) -> bool:
        """Whether the member may go ahead: it leads, since there was nobody, or its turn is waited for."""
        with self._lock:
            line = self._waiting.get(branch_id)
            if line is None:
                self._waiting[branch_id] = deque()
                member.leads = True
                return True
            if member.exclusive and self._reserved.get(branch_id) == member.plan.txn_id:
                return True
            member.enqueue(line)
            return False

    def _lead(self, branch_id: BranchId, member: PendingCommit, land: RunBatch) -> None:
        group = member.batch = member.batch or [member]
        try:
            land(group)
        except OmnigraphError as error:
            for other in group:
                if other.outcome is None:
                    other.outcome = copy(error)  # everybody's, but each raises its own
        finally:
            self._promote_next(branch_id, member)

    def _take_batch(self, branch_id: BranchId, leader: PendingCommit) -> None:
        """As many of those who wait as may share a manifest with the leader."""
        group = leader.batch = [leader]
        room = self._settings.group_bytes - leader.size
        with self._lock:
            line = self._waiting[branch_id]
            while line and len(group) < self._settings.group_commits and line[0].size <= room:
                if line[0].exclusive:
                    break
                room -= line[0].size
                group.append(line.popleft())

    def _promote_next(self, branch_id: BranchId, leader: PendingCommit) -> None:
        """The next in line leads. Whoever the leader leaves without an answer comes before all others again, unless
        a manifest that the write is in may have landed."""
        with self._lock:
            line = self._waiting.get(branch_id)
            if not leader.leads or line is None:  # None in a child that was forked by what the leader called
                return
            others = leader.batch[1:]
            for other in reversed(others):
                if other.outcome is not None:
                    continue
                if other.put_at is None:
                    line.appendleft(other)
                else:
                    other.outcome = OutcomeUnknown(other.plan.txn_id, other.txn.branch, other.put_at)
            leader.leads = False
            leader.batch = ()  # it names itself there, which only the collector would undo
            if others:
                leader.to_ack = [*leader.to_ack, *[other for other in others if other.outcome is not None]]
            if line:
                line[0].leads, line[0].to_ack = True, leader.to_ack
                leader.to_ack = ()
                line.popleft().wake()
                return
            del self._waiting[branch_id]
        leader.ack_previous()

    def _withdraw(self, branch_id: BranchId, member: PendingCommit) -> None:
        with self._lock:
            line = self._waiting.get(branch_id, ())
            if member in line:
                assert isinstance(line, deque)
                line.remove(member)
        self._promote_next(branch_id, member)
        member.ack_previous()
