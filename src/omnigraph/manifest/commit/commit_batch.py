"""A batch of a group commit under construction: each write on top of the ones before it, as one manifest to be put."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

from omnigraph.errors import ExpectedVersionMismatch, OutcomeUnknown, RetriesExhausted
from omnigraph.manifest.commit.commit_queue import (
    Committed,
    NoChange,
    PendingCommit,
    Standalone,
    may_share,
    size_of_rows,
)
from omnigraph.manifest.commit.compose import append_commit, compose_manifest, truncate_to_ms
from omnigraph.manifest.commit.plan import PublishPlan
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.commit.write_op import TooLargeToShare, WriteOp
from omnigraph.manifest.model.manifest import CommitId, Manifest, TableKey, TxnId
from omnigraph.manifest.model.paths import commit_id
from omnigraph.storage import meter
from omnigraph.storage.table.overlay import Overlay

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
