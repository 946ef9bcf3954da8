"""How a group of writes lands: formed on the newest head, put, and formed anew where the number was another's."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

from omnigraph.errors import OmnigraphError, OutcomeUnknown, RetriesExhausted
from omnigraph.manifest.commit.commit_batch import CommitBatch
from omnigraph.manifest.commit.commit_queue import Committed, Conflicted, NoChange, PendingCommit
from omnigraph.manifest.commit.conflict_handlers import Recourse
from omnigraph.manifest.commit.contention import ContentionControl
from omnigraph.manifest.commit.plan import PublishPlan
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.commit.write_reservation import Reservations
from omnigraph.manifest.history.txn_lookup import find_txn_since
from omnigraph.manifest.model.manifest import Entry, Manifest, TableKey, TxnId
from omnigraph.manifest.store.inline_rows import InlineRows
from omnigraph.manifest.store.manifest_store import Manifests
from omnigraph.runtime import Runtime
from omnigraph.storage import meter
from omnigraph.storage.table.overlay import Overlay
from omnigraph.storage.util.blocking_hook import with_blocking_hook


class Ways(Protocol):
    """What the publisher does for a group as it does for a single write."""

    def attempt(self, txn: WriteTxn, plan: PublishPlan, deadline: float, losses: int) -> Committed | Conflicted: ...

    def put(self, manifest: Manifest, txn_id: TxnId, deadline: float) -> Committed | Entry: ...

    def read_head(self, winner: Entry) -> Manifest: ...

    def rebase(
        self, txn: WriteTxn, plan: PublishPlan, head: Manifest, recourse: Recourse, pending: Mapping[TableKey, Overlay]
    ) -> tuple[WriteTxn, PublishPlan]: ...

    def tell(self, manifest: Manifest) -> None: ...

    def back_off_and_refresh(self, winner: Entry, plan: PublishPlan, losses: int, attempt_s: float) -> Manifest: ...


class Groups:
    def __init__(
        self,
        ways: Ways,
        manifests: Manifests,
        inline_rows: InlineRows,
        turns: Reservations,
        company: ContentionControl,
        runtime: Runtime,
        time_limit_s: float,
        bytes_max: int,
    ) -> None:
        self._ways = ways
        self._manifests = manifests
        self._inline_rows = inline_rows
        self._reservations = turns
        self._contention = company
        self._runtime = runtime
        self._time_limit_s = time_limit_s
        self._bytes_max = bytes_max

    def land(self, members: Sequence[PendingCommit]) -> None:
        """Give every member its outcome. `one-txn-id`: a group is not formed anew before its put is settled."""
        leader, base = members[0], self._newest_base(members)
        waiting = [member for member in members if not self._ended(member, base, leader)]
        losses = 0
        while waiting:
            started = self._runtime.clock.monotonic()
            if waiting == [leader] and leader.txn.base is base and not leader.to_ack:
                entry = self._alone(leader, losses)
            else:
                entry = self._together(base, waiting, leader, losses)
            if entry is None:
                return
            losses += 1
            for member in waiting:
                member.losses += 1
                member.context.run(meter.record_retry)
            if losses > 1:
                attempt_s = self._runtime.clock.monotonic() - started
                base = self._ways.back_off_and_refresh(entry, waiting[0].plan, losses, attempt_s)
            else:
                base = self._ways.read_head(entry)
            waiting = [member for member in waiting if not self._ended(member, base, leader)]

    def _alone(self, leader: PendingCommit, losses: int) -> Entry | None:
        """Of one write that stands on the head there is nothing to form."""
        put = self._ways.attempt(leader.txn, leader.plan, leader.deadline, losses)
        if isinstance(put, Conflicted):
            return put.winner
        leader.outcome = put
        return None

    def _together(
        self, base: Manifest, members: Sequence[PendingCommit], leader: PendingCommit, losses: int
    ) -> Entry | None:
        group = self._formed(base, members, leader)
        try:
            return self._attempt(group, leader, max(member.deadline for member in members), losses)
        except OutcomeUnknown:
            group.complete_unknown(self._time_limit_s)
            return None

    def _newest_base(self, members: Sequence[PendingCommit]) -> Manifest:
        """Of all that the members know and this process has seen."""
        newest = members[0].txn.base
        known = self._manifests.cached_head(newest.branch_id)
        if known is not None and known.manifest_version > newest.manifest_version:
            newest = known
        for member in members:
            if member.txn.base.manifest_version > newest.manifest_version:
                newest = member.txn.base
        return newest

    def _formed(self, base: Manifest, members: Sequence[PendingCommit], leader: PendingCommit) -> CommitBatch:
        """Usually by what is in memory alone. Whoever has landed must not wait where the store is asked for others."""
        group = CommitBatch(base, self._runtime.clock.now(), self._bytes_max)
        rebase = with_blocking_hook(leader.ack_previous, self._ways.rebase)
        for member in members:
            group.add(member, partial(rebase, member.txn, member.plan, recourse=member.recourse))
        return group

    def _attempt(self, group: CommitBatch, leader: PendingCommit, deadline: float, losses: int) -> Entry | None:
        """One try: None if everybody has an outcome, otherwise what came in between.

        `confirmed-head`: if nobody is left to put anything, that is answered only from a head confirmed here.
        """
        base = group.base
        wait_s = self._reservations.remaining_s(base, group.reservation_txn) if group.plans else 0.0
        gap_s = 0.0 if wait_s > 0 or losses or not group.plans else self._contention.pace_s(base)
        if wait_s > 0 or gap_s > 0 or not group.plans:
            leader.ack_previous()
        if wait_s > 0:
            self._reservations.yield_to(base, wait_s)
        elif gap_s > 0:
            self._runtime.clock.sleep(gap_s)
        if not group.plans or wait_s > 0:
            head = self._manifests.refresh_head(base)
            if head.point != base.point:
                return head
        if not group.plans:
            group.complete(NoChange(), leader)
            return None
        manifest = group.to_manifest()
        leader.ack_previous()
        put = self._ways.put(manifest, group.plans[0].txn_id, deadline)
        if not isinstance(put, Committed):
            group.mark_conflicted()
            self._contention.on_conflict(put)
            return put
        self._contention.on_commit(put.entry, losses)
        if put.entry is manifest:
            self._inline_rows.cache_put(manifest, group.pending)
        group.complete(put, leader)
        if put.entry is manifest:
            self._ways.tell(manifest)
        return None

    def _ended(self, member: PendingCommit, head: Manifest, leader: PendingCommit) -> bool:
        """Whether the write has landed by another's hand, here or elsewhere, or its time is spent."""
        base = member.txn.base.point
        if member.plan.idempotent and head.point != base:
            try:
                look = with_blocking_hook(leader.ack_previous, find_txn_since)
                landed = member.context.run(look, self._manifests, base, head, member.plan.txn_id)
            except OmnigraphError as error:
                member.outcome = error
                return True
            if landed is not None:
                member.outcome = Committed(landed)
                return True
        if member.losses and self._runtime.clock.monotonic() > member.deadline:  # whatever the limit, it is tried once
            member.outcome = RetriesExhausted(member.txn.branch, member.losses, self._time_limit_s)
            return True
        return False
