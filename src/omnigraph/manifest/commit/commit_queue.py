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
from omnigraph.manifest.commit.plan import Change, PublishPlan, Stance
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.model.manifest import BranchId, Entry, TxnId
from omnigraph.manifest.settings import Settings
from omnigraph.manifest.store.inline_rows import change_size


@dataclass(frozen=True, slots=True)
class Landed:
    """The commit is in this entry."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Lost:
    """The number is another's: nothing of the try has happened."""

    to: Entry


@dataclass(frozen=True, slots=True)
class NothingToDo:
    """The write would change nothing."""


@dataclass(frozen=True, slots=True)
class GoAlone:
    """Planned again, the write has become too large to ride with others: it starts over by itself."""

    txn: WriteTxn
    plan: PublishPlan


Outcome = Landed | NothingToDo | GoAlone | BaseException


@dataclass(slots=True, eq=False)
class Member:
    """One write that wants to be in the next manifest. What it asks of the store goes on its own account."""

    txn: WriteTxn
    plan: PublishPlan
    recourse: Recourse
    deadline: float
    context: Context = field(default_factory=copy_context)
    losses: int = 0
    outcome: Outcome | None = None
    sent_at: int | None = None  # the number of a manifest with this write in it whose fate is not known yet
    leads: bool = False
    alone: bool = False  # it shares a manifest with nobody
    group: "Sequence[Member]" = ()  # whom it leads
    to_tell: "Sequence[Member]" = ()  # of the group before: their put has landed, and they do not know it yet
    _called: threading.Event | None = None  # while it waits in a line

    @property
    def size(self) -> int:
        return size_of_rows(self.plan)

    def call(self) -> None:
        """Its turn has come: it has an outcome, or it leads."""
        if self._called is not None:
            self._called.set()

    def tell_others(self) -> None:
        """Those of the group before may go on: this member's put is on its way, or will not be soon.

        Nobody is forgotten if the one that tells is interrupted, and nobody notices if two threads tell at once.
        """
        for other in self.to_tell:
            other.call()
        self.to_tell = ()

    def stand(self, line: "deque[Member]") -> None:
        """At the end of a line: whoever leads at once never waits, and needs nothing to wait for."""
        self._called = threading.Event()
        line.append(self)

    def wait(self) -> None:
        assert self._called is not None
        self._called.wait()


Land = Callable[[Sequence[Member]], None]


def size_of_rows(plan: PublishPlan) -> int:
    return sum(change_size(made.change) for made in plan.inline.values())


def may_share(plan: PublishPlan) -> bool:
    """Whether a plan may ride with others: rows that are in the manifest itself, and nothing else."""
    effect = plan.effect
    return (
        isinstance(effect, Change)
        and not effect.staged
        and effect.schema is None
        and effect.merged_parent is None
        and plan.stance is not Stance.MAINTENANCE
        and plan.if_commit is None
        and plan.guard is None
        and plan.intent is None
        and effect.changes_rows
    )


class Lines:
    """Who waits for which branch, in order of arrival. There is a line exactly while somebody leads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        renew_after_fork(self, Lines._renew)

    def _renew(self) -> None:
        """No member waits and none leads: a forked child has none of the threads that did."""
        self._waiting: dict[BranchId, deque[Member]] = {}
        self._lent: dict[BranchId, TxnId] = {}
        self._lock = threading.Lock()

    def join(self, member: Member, land: Land) -> Outcome:
        """Wait for the member's outcome, or lead the group that it is in: `land` gives everybody theirs."""
        branch_id = member.txn.base.branch_id
        try:
            if not self._enter(branch_id, member):
                member.wait()
                if member.leads:
                    self._take(branch_id, member)
            if member.leads:
                self._lead(branch_id, member, land)
        except BaseException:  # interrupted, perhaps while it waited: nobody may wait for it in turn
            self._leave(branch_id, member)
            raise
        assert member.outcome is not None
        return member.outcome

    @contextmanager
    def held(self, member: Member) -> Iterator[None]:
        """Wait in line for a try that the member makes alone: meanwhile nobody else of this process puts there."""
        branch_id, member.alone = member.txn.base.branch_id, True
        try:
            if not self._enter(branch_id, member):
                member.wait()
                member.tell_others()
            yield
        finally:
            self._give_back(branch_id, member.plan.txn_id)
            self._leave(branch_id, member)

    @contextmanager
    def lent(self, branch_id: BranchId, txn_id: TxnId) -> Iterator[Callable[[], bool]]:
        """Somebody, as a rule the leader, is about to wait for a write to go first, which may well stand in this line:
        then it passes by. Yields whether it is still to come."""
        try:
            with self._lock:
                self._lent[branch_id] = txn_id
                line = self._waiting.get(branch_id, ())
                asked = next((other for other in line if other.alone and other.plan.txn_id == txn_id), None)
                if asked is not None:
                    asked.call()  # first: whoever was called takes itself out of the line
                    assert isinstance(line, deque)
                    line.remove(asked)
            yield lambda: self._lent.get(branch_id) == txn_id
        finally:
            self._give_back(branch_id, txn_id)

    def _give_back(self, branch_id: BranchId, txn_id: TxnId) -> None:
        with self._lock:
            if self._lent.get(branch_id) == txn_id:
                del self._lent[branch_id]

    def _enter(self, branch_id: BranchId, member: Member) -> bool:
        """Whether the member may go ahead: it leads, since there was nobody, or its turn is waited for."""
        with self._lock:
            line = self._waiting.get(branch_id)
            if line is None:
                self._waiting[branch_id] = deque()
                member.leads = True
                return True
            if member.alone and self._lent.get(branch_id) == member.plan.txn_id:
                return True
            member.stand(line)
            return False

    def _lead(self, branch_id: BranchId, member: Member, land: Land) -> None:
        group = member.group = member.group or [member]
        try:
            land(group)
        except OmnigraphError as error:
            for other in group:
                if other.outcome is None:
                    other.outcome = copy(error)  # everybody's, but each raises its own
        finally:
            self._hand_over(branch_id, member)

    def _take(self, branch_id: BranchId, leader: Member) -> None:
        """As many of those who wait as may share a manifest with the leader."""
        group = leader.group = [leader]
        room = self._settings.group_bytes - leader.size
        with self._lock:
            line = self._waiting[branch_id]
            while line and len(group) < self._settings.group_commits and line[0].size <= room:
                if line[0].alone:
                    break
                room -= line[0].size
                group.append(line.popleft())

    def _hand_over(self, branch_id: BranchId, leader: Member) -> None:
        """The next in line leads. Whoever the leader leaves without an answer comes before all others again, unless
        a manifest that the write is in may have landed."""
        with self._lock:
            line = self._waiting.get(branch_id)
            if not leader.leads or line is None:  # None in a child that was forked by what the leader called
                return
            others = leader.group[1:]
            for other in reversed(others):
                if other.outcome is not None:
                    continue
                if other.sent_at is None:
                    line.appendleft(other)
                else:
                    other.outcome = OutcomeUnknown(other.plan.txn_id, other.txn.branch, other.sent_at)
            leader.leads = False
            leader.group = ()  # it names itself there, which only the collector would undo
            if others:
                leader.to_tell = [*leader.to_tell, *[other for other in others if other.outcome is not None]]
            if line:
                line[0].leads, line[0].to_tell = True, leader.to_tell
                leader.to_tell = ()
                line.popleft().call()
                return
            del self._waiting[branch_id]
        leader.tell_others()

    def _leave(self, branch_id: BranchId, member: Member) -> None:
        with self._lock:
            line = self._waiting.get(branch_id, ())
            if member in line:
                assert isinstance(line, deque)
                line.remove(member)
        self._hand_over(branch_id, member)
        member.tell_others()
