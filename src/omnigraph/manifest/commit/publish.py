"""The commit loop: put manifest N+1, or read what won and decide. It is the only way to change a graph.

Every write goes through the same loop, alone or in a batch: a commit is a batch of one. Small writes of one process
that meet share a put (group commit, `commit_queue.py`). Writes that stage tables, merges, bulk loads and maintenance
have a manifest to themselves: they take a turn in the same queue for each put, and leave it while they stage again.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from omnigraph.cancellation import checkpoint
from omnigraph.errors import (
    Damaged,
    KeyReused,
    OmnigraphError,
    OutcomeUnknown,
    PreconditionFailed,
    RetriesExhausted,
    UnsupportedFormat,
)
from omnigraph.manifest.commit.commit_queue import (
    CommitBatch,
    CommitQueue,
    Committed,
    Conflicted,
    NoChange,
    PendingCommit,
    Standalone,
    may_share,
)
from omnigraph.manifest.commit.compose import compose_manifest
from omnigraph.manifest.commit.contention import (
    RESERVATION_PUTS_MAX,
    ContentionControl,
    PublishPolicy,
    Reservations,
    find_stable_head,
    reservation_plan,
    should_reserve,
)
from omnigraph.manifest.commit.plan import ConflictPolicy, EmptyBranch, PublishPlan
from omnigraph.manifest.commit.rebase import Rebaser
from omnigraph.manifest.commit.txn import WriteOp, WriteTxn
from omnigraph.manifest.history.txn_lookup import find_txn, find_txn_since
from omnigraph.manifest.model.codec import row_counts_to_json
from omnigraph.manifest.model.manifest import Commit, Entry, Manifest, Point, TableKey, TxnId, is_committed
from omnigraph.manifest.model.request_key import RequestKey, require_same_request
from omnigraph.manifest.model.table_columns import TablesLackColumns
from omnigraph.manifest.settings import Settings
from omnigraph.manifest.store.inline_rows import InlineRows
from omnigraph.manifest.store.manifest_store import Manifests, Schemas
from omnigraph.runtime import Runtime
from omnigraph.storage import meter
from omnigraph.storage.meter import NO_COST, Cost
from omnigraph.storage.objects.object_store import PutOutcome, PutResult
from omnigraph.storage.table.overlay import Overlay
from omnigraph.threads import with_blocking_hook

__all__ = ["CommitListener", "PublishPolicy", "PublishedCommit", "Publisher"]

CommitListener: TypeAlias = Callable[[Manifest], None]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PublishedCommit:
    """A commit that is part of the graph: every later read of its branch sees all of it."""

    commit: Commit
    branch: str
    manifest_version: int
    cost: Cost = NO_COST

    @property
    def id(self) -> str:
        return self.commit.id

    @property
    def touched(self) -> dict[TableKey, dict[str, int]]:
        return {key: row_counts_to_json(touch) for key, touch in self.commit.touched.items()}


class ConditionalPut:
    """The conditional put by which a manifest comes to be, and how its outcome is settled."""

    def __init__(
        self, manifests: Manifests, contention: ContentionControl, runtime: Runtime, policy: PublishPolicy
    ) -> None:
        self._manifests = manifests
        self._contention = contention
        self._runtime = runtime
        self._policy = policy

    def create(self, manifest: Manifest) -> PutResult:
        """One create-if-absent under the manifest's number. No other code creates manifests."""
        self._contention.on_put(manifest)
        before = self._runtime.clock.monotonic()
        result = self._manifests.create(manifest)
        self._contention.on_latency(self._runtime.clock.monotonic() - before)
        return result

    def put(
        self, manifest: Manifest, txn_id: TxnId, deadline: float, before_retry: Callable[[], None] | None = None
    ) -> Entry:
        """`settle-by-reading`: create; unless the response is "created", read the number.

        Returns what is there: the manifest itself, another entry with its transactions, or the winner of the race.
        Absent after a lost response means that the put may still take effect, so the same body goes to the same number
        again until some object is there. Giving up then is `OutcomeUnknown`. `before_retry` is called before each wait.
        """
        may_have_landed = False
        for attempt in range(1, 1 << 30):
            refusal: OmnigraphError | None = None
            entry: Entry | None = None
            try:
                result = self.create(manifest)
                if result.outcome is PutOutcome.CREATED:
                    return manifest
                may_have_landed = may_have_landed or result.outcome is PutOutcome.UNKNOWN
            except OmnigraphError as error:  # denied or full: this put took no effect, an earlier one may have
                refusal = error
            try:
                entry = self._manifests.read(manifest.point, cached=False)
            except (Damaged, UnsupportedFormat):
                raise  # an object is there, and ours would be readable
            except OmnigraphError as error:
                may_have_landed = may_have_landed or refusal is None  # "exists" may have been about our own object
                refusal = refusal or error
            if entry is not None and is_committed(entry, manifest):
                return entry
            if refusal is not None and (entry is not None or not may_have_landed):
                raise refusal
            if entry is not None:
                return entry
            meter.record_retry()
            if self._runtime.clock.monotonic() > deadline:
                raise OutcomeUnknown(txn_id, manifest.branch, manifest.manifest_version) from refusal
            if before_retry is not None:
                before_retry()
            self._runtime.clock.sleep(self._runtime.jitter(self._policy.ceiling_s(attempt)))
        raise AssertionError("unreachable")


class Publisher:
    """Commits the writes of this process. `listeners` are called after each commit that changes the content."""

    def __init__(
        self,
        manifests: Manifests,
        schemas: Schemas,
        inline_rows: InlineRows,
        runtime: Runtime,
        policy: PublishPolicy | None = None,
        settings: Settings | None = None,
    ) -> None:
        settings = settings or Settings()
        self._manifests = manifests
        self._inline_rows = inline_rows
        self._runtime = runtime
        self._policy = policy or PublishPolicy()
        self._batch_bytes_max = settings.group_bytes
        self._queue = CommitQueue(settings)
        self._reservations = Reservations(runtime, self._queue)
        self._contention = ContentionControl(runtime, self._policy.first_wait_s, self._policy.wait_max_s)
        self._conditional_put = ConditionalPut(manifests, self._contention, runtime, self._policy)
        self._rebaser = Rebaser(manifests, schemas, inline_rows)
        self.listeners: list[CommitListener] = []

    def publish(
        self, txn: WriteTxn, plan: PublishPlan, op: WriteOp | None = None, *, time_limit_s: float | None = None
    ) -> PublishedCommit | None:
        """Make the plan the branch's next commit, with others if it may; None where it would change nothing.

        `op` decides what becomes of the write if it loses a race, for as long as the time limit allows.
        """
        checkpoint()  # the last place before a put where a write can be stopped
        entry = self._commit(self._pending(txn, plan, op, time_limit_s))
        return None if entry is None else _published(entry, plan.txn_id)

    def find_earlier_commit(self, txn: WriteTxn, txn_id: TxnId, since: Point | None = None) -> PublishedCommit | None:
        """The commit of a transaction id that the caller supplied, if an earlier call made it.

        To be asked before planning: a write that was committed would fail its own checks. Of a write with an
        intent it is known since which base it may be there; otherwise the search goes back for a day.
        """
        head = self._manifests.refresh_head(txn.base)
        if since is not None and since.branch_id == head.branch_id:
            entry = find_txn_since(self._manifests, since, head, txn_id)
            return None if entry is None else _published(entry, txn_id)
        return self.find_commit_before(head, txn_id)

    def find_commit_before(self, head: Manifest, txn_id: TxnId) -> PublishedCommit | None:
        """The same for a head that may be old: what came after it is found by losing to it."""
        entry = find_txn(self._manifests, head, txn_id, self._runtime.clock.now())
        return None if entry is None else _published(entry, txn_id)

    def refuse_if_lost(self, txn: WriteTxn, plan: PublishPlan) -> None:
        """Raise if a held base has lost already: then nothing need be staged that cannot be committed."""
        head = self._manifests.refresh_head(txn.base)
        if head.point != txn.base.point:
            self._rebaser.decide(txn, plan, head)

    def delete_branch(self, txn: WriteTxn, plan: PublishPlan) -> None:
        """Put the tombstone that ends the branch, on top of whatever its newest manifest is by then."""
        entry = self._commit(self._pending(txn, plan))
        if plan.idempotent and entry is not None:
            if entry.tombstone is None or entry.tombstone.txn_id != plan.txn_id:
                raise KeyReused(plan.txn_id)  # a commit of the branch has the key
            require_same_request(plan.txn_id, entry.tombstone)

    def create_branch(self, base: EmptyBranch, plan: PublishPlan) -> Manifest | None:
        """Manifest 1 of a branch id, or a tombstone in its place; None if the other was first."""
        manifest = compose_manifest(base, plan, self._runtime.clock.now())
        deadline = self._runtime.clock.monotonic() + self._policy.time_limit_s
        entry = self._conditional_put.put(manifest, plan.txn_id, deadline)
        return manifest if is_committed(entry, manifest) else None

    def _pending(
        self, txn: WriteTxn, plan: PublishPlan, op: WriteOp | None = None, time_limit_s: float | None = None
    ) -> PendingCommit:
        limit_s = self._policy.time_limit_s if time_limit_s is None else time_limit_s
        deadline = self._runtime.clock.monotonic() + limit_s
        return PendingCommit(txn, plan, op or WriteOp(), deadline, limit_s, exclusive=not may_share(plan))

    def _commit(self, write: PendingCommit) -> Entry | None:
        """The entry with the write in it, which this call or the leader of another batch has put."""
        try:
            if write.exclusive:
                self._run((write,))
            else:
                with self._queue.turn(write) as batch:
                    if batch:
                        self._run(batch)
        except BaseException:
            self._queue.leave(write)
            raise
        match write.outcome:
            case Committed(entry):
                return entry
            case Standalone(txn, plan):
                alone = self._pending(txn, plan, write.op, write.time_limit_s)
                alone.exclusive = True
                return self._commit(alone)
            case BaseException() as error:
                raise error
            case NoChange():
                return None
            case None:
                raise AssertionError("a turn ended without an outcome")

    def _run(self, batch: Sequence[PendingCommit]) -> None:
        """The loop: give every write of a batch its outcome. `one-txn-id`: no batch is formed again before its put is
        settled."""
        clock, leader, base = self._runtime.clock, batch[0], self._newest_base(batch)
        losses = 0
        while waiting := [write for write in batch if not self._is_settled(write, base, leader)]:
            started = clock.monotonic()
            winner = self._try(base, waiting, leader, losses)
            if winner is None:
                return
            attempt_s = clock.monotonic() - started - leader.queued_s
            losses += 1
            for write in waiting:
                write.losses += 1
                write.context.run(meter.record_retry)
            if losses == 1 or clock.monotonic() > max(write.deadline for write in waiting):
                base = self._read_head(winner)
            else:
                base = self._back_off_and_refresh(winner, waiting[0].plan, losses, attempt_s)

    def _newest_base(self, batch: Sequence[PendingCommit]) -> Manifest:
        """Of all that the writes know and this process has seen. An exclusive write starts with its own."""
        newest = batch[0].txn.base
        if batch[0].exclusive:
            return newest
        known = self._manifests.cached_head(newest.branch_id)
        if known is not None and known.manifest_version > newest.manifest_version:
            newest = known
        for write in batch:
            if write.txn.base.manifest_version > newest.manifest_version:
                newest = write.txn.base
        return newest

    def _is_settled(self, write: PendingCommit, head: Manifest, leader: PendingCommit) -> bool:
        """Whether the write was committed by another call, here or in another process, or its time is spent."""
        plan = write.plan
        if plan.guard is not None or (plan.idempotent and head.point != write.txn.base.point):
            try:
                find = with_blocking_hook(leader.ack_previous, self._find_own_commit)
                entry = write.context.run(find, write, head)
            except OmnigraphError as error:
                write.outcome = error
                return True
            if entry is not None:
                write.outcome = Committed(entry)
                return True
        if write.losses and self._runtime.clock.monotonic() > write.deadline:  # whatever the limit, it is tried once
            write.outcome = RetriesExhausted(write.txn.branch, write.losses, write.time_limit_s)
            return True
        return False

    def _find_own_commit(self, write: PendingCommit, head: Manifest) -> Entry | None:
        guard, base = write.plan.guard, write.txn.base.point
        if guard is not None:
            return guard.search(head) if head.point == base else guard.check(head)
        return find_txn_since(self._manifests, base, head, write.plan.txn_id)

    def _try(
        self, base: Manifest, waiting: Sequence[PendingCommit], leader: PendingCommit, losses: int
    ) -> Entry | None:
        """One conditional put: the entry that was first, or None if every write has its outcome."""
        if leader.exclusive:
            return self._try_exclusive(base, leader, losses)
        if waiting == [leader] and leader.txn.base is base and not leader.to_ack:
            return self._put_single(leader, losses)
        batch = CommitBatch(base, self._runtime.clock.now(), self._batch_bytes_max)
        rebase = with_blocking_hook(leader.ack_previous, self._rebaser.rebase)
        for write in waiting:
            batch.add(write, rebase)
        try:
            return self._put_batch(batch, leader, max(write.deadline for write in waiting), losses)
        except OutcomeUnknown:
            batch.complete_unknown()
            return None

    def _try_exclusive(self, base: Manifest, write: PendingCommit, losses: int) -> Entry | None:
        """Derived again while others put; then in its turn, on top of what this process has put meanwhile."""
        clock = self._runtime.clock
        write.queued_s = 0.0
        if write.txn.base.point != base.point:
            write.txn, write.plan = self._rebaser.rebase(write.txn, write.plan, base, write.op)
        while True:
            before = clock.monotonic()
            try:
                with self._queue.turn(write):
                    write.queued_s += clock.monotonic() - before  # waiting in line is no part of the attempt
                    return self._rebaser.catch_up(write) or self._put_single(write, losses)
            except TablesLackColumns as lack:
                write.txn, write.plan = self._rebaser.rederive_tables(
                    write.txn, write.plan, write.op, lack, clock.now()
                )

    def _put_single(self, write: PendingCommit, losses: int) -> Entry | None:
        """Put one write on its base, with the number to itself."""
        txn, plan = write.txn, write.plan
        if write.exclusive and (plan.changes_nothing or plan.if_commit not in (None, txn.base.logical_head)):
            return self._answer_without_put(write)
        is_maintenance = plan.policy is ConflictPolicy.MAINTENANCE
        if (
            head := self._wait_to_put(txn.base, plan.txn_id, write, paced=not losses and not is_maintenance)
        ) is not None:
            return head
        if plan.guard is not None and (entry := plan.guard.check(txn.base)):  # a put that is unsettled needs no other
            write.outcome = Committed(entry)
            return None
        manifest = compose_manifest(txn.base, plan, self._runtime.clock.now())
        if write.exclusive:  # what may share a manifest has no tables with columns
            self._rebaser.require_columns(txn.base, plan, manifest)
        rows = {key: made.overlay for key, made in plan.inline.items() if made.counts}
        # The outcome may be unknown for as long as the store is down, and for up to the time limit of a bulk load.
        before_retry = partial(self._queue.leave, write) if write.exclusive else None
        result = self._put(manifest, plan.txn_id, write.deadline, losses, rows, before_retry)
        if isinstance(result, Conflicted):
            return result.winner
        write.outcome = result
        if result.entry is manifest and not is_maintenance:
            self._notify(manifest)
        return None

    def _answer_without_put(self, write: PendingCommit) -> Manifest | None:
        """`confirmed-head`: what no won put seals (a no-op, a 412) is answered only from a head confirmed here."""
        base, plan = write.txn.base, write.plan
        head = self._manifests.refresh_head(base)
        if head.point != base.point:
            return head
        if plan.guard is not None and (entry := plan.guard.check(head)):
            write.outcome = Committed(entry)
        elif plan.if_commit not in (None, head.logical_head):
            write.outcome = PreconditionFailed(str(plan.if_commit), head.logical_head)
        else:
            write.outcome = NoChange()
        return None

    def _put_batch(self, batch: CommitBatch, leader: PendingCommit, deadline: float, losses: int) -> Entry | None:
        """Put all writes of a batch that were accepted; the others hear of it when that is certain."""
        base = batch.base
        if not batch.plans:
            leader.ack_previous()
            head = self._manifests.refresh_head(base)  # `confirmed-head`
            if head.point != base.point:
                return head
            batch.complete(NoChange(), leader)
            return None
        newer = self._wait_to_put(base, batch.reservation_txn, leader, paced=not losses)
        if newer is not None:
            return newer
        manifest = batch.to_manifest()
        leader.ack_previous()
        result = self._put(manifest, batch.plans[0].txn_id, deadline, losses, batch.pending)
        if isinstance(result, Conflicted):
            batch.mark_conflicted()
            return result.winner
        batch.complete(result, leader)
        if result.entry is manifest:
            self._notify(manifest)
        return None

    def _wait_to_put(self, base: Manifest, txn_id: TxnId, leader: PendingCommit, *, paced: bool) -> Manifest | None:
        """Leave the number after `base` to a write that has reserved it, or pace; the head, if it moves meanwhile."""
        if (wait_s := self._reservations.remaining_s(base, txn_id)) > 0:
            leader.ack_previous()
            self._reservations.yield_to(base, wait_s)
            head = self._manifests.refresh_head(base)
            return head if head.point != base.point else None
        if paced and (pace_s := self._contention.pace_s(base)) > 0:
            leader.ack_previous()
            self._runtime.clock.sleep(pace_s)
        return None

    def _put(
        self,
        manifest: Manifest,
        txn_id: TxnId,
        deadline: float,
        losses: int,
        rows: dict[TableKey, Overlay],
        before_retry: Callable[[], None] | None = None,
    ) -> Committed | Conflicted:
        entry = self._conditional_put.put(manifest, txn_id, deadline, before_retry)
        if not is_committed(entry, manifest):
            self._contention.on_conflict(entry)
            return Conflicted(entry)
        self._contention.on_commit(entry, losses)
        if entry is manifest:
            self._inline_rows.cache_put(manifest, rows)
        return Committed(entry)

    def _notify(self, manifest: Manifest) -> None:
        """Call the listeners. The commit is there, whatever they do: no failure may be reported for it."""
        for listener in self.listeners:
            try:
                listener(manifest)
            except Exception:
                _log.exception("Commit %s is there, but a commit listener raised.", manifest.logical_head)

    def _read_head(self, winner: Entry) -> Manifest:
        if isinstance(winner, Manifest):
            return self._manifests.refresh_head(winner)
        newest = self._manifests.find_head(winner.branch_id)  # `unique-numbers`: a stub, so list again
        assert newest is not None, "a branch with a stub has a head"
        return newest

    def _back_off_and_refresh(self, winner: Entry, plan: PublishPlan, losses: int, attempt_s: float) -> Manifest:
        """Let writes go first that have lost more often, and after some losses reserve a number; returns a head to put
        on, as far as anybody can know."""
        if (backoff_s := self._contention.backoff_s(winner.branch_id, losses)) > 0:
            self._runtime.clock.sleep(backoff_s)
        head = find_stable_head(self._manifests, winner) if isinstance(winner, Manifest) else self._read_head(winner)
        if not should_reserve(losses) or head.tombstone is not None or head.reservation is not None:
            return head
        # A long attempt is lost without a reservation, so a few quick puts for one are worth their while.
        for _ in range(RESERVATION_PUTS_MAX):
            reservation = reservation_plan(plan, attempt_s, self._runtime.ids.txn_id())
            manifest = compose_manifest(head, reservation, self._runtime.clock.now())
            with suppress(OmnigraphError):  # its failure, or an unknown outcome, matters to nobody
                if self._conditional_put.create(manifest).outcome is PutOutcome.CREATED:
                    return manifest
            head = self._manifests.refresh_head(head)
            if head.tombstone is not None or head.reservation is not None:
                break
        return head


def _published(entry: Entry, txn_id: TxnId) -> PublishedCommit:
    """The commit of a transaction, which an entry contains; `KeyReused` if it is that of another request."""
    for commit in entry.commits:
        if commit.txn_id == txn_id:
            if isinstance(txn_id, RequestKey):
                require_same_request(txn_id, commit)
            return PublishedCommit(commit, entry.branch, entry.manifest_version)
    raise KeyReused(txn_id)  # the key ended the branch
