"""The one way a manifest comes to be: put N+1, or read what won and decide.

Before the put nothing has happened; after it everything has. No other code creates manifests
(a test walks the source), so the rules in here hold for every verb.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from omnigraph.cancellation import checkpoint
from omnigraph.errors import (
    BranchNotFound,
    ConflictError,
    Damaged,
    ExpectedVersionMismatch,
    OmnigraphError,
    OutcomeUnknown,
    PreconditionFailed,
    RetriesExhausted,
    UnsupportedFormat,
)
from omnigraph.manifest.commit.commit_queue import (
    CommitQueue,
    Committed,
    Conflicted,
    NoChange,
    PendingCommit,
    Standalone,
    may_share,
)
from omnigraph.manifest.commit.compose import compose
from omnigraph.manifest.commit.conflict_handlers import PlanOn, Recourse
from omnigraph.manifest.commit.conflicts import BranchDeleted, Proceed, Refuse, Replan, decide
from omnigraph.manifest.commit.contention import ContentionControl, find_stable_head
from omnigraph.manifest.commit.group_commit import Groups
from omnigraph.manifest.commit.plan import ConflictPolicy, DataChange, EmptyBranch, PublishPlan
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.commit.write_reservation import (
    RESERVATION_PUTS_MAX,
    Reservations,
    reservation_plan,
    should_reserve,
)
from omnigraph.manifest.history.txn_lookup import fences_honour, find_txn, find_txn_since
from omnigraph.manifest.model.codec import touch_to_json
from omnigraph.manifest.model.manifest import Commit, Entry, Manifest, Point, TableKey, TxnId, txn_ids
from omnigraph.manifest.model.table_columns import TablesLackColumns, missing_columns
from omnigraph.manifest.settings import Settings
from omnigraph.manifest.store.inline_rows import InlineRows
from omnigraph.manifest.store.manifest_store import Manifests
from omnigraph.manifest.store.schemas import Schemas
from omnigraph.runtime import Runtime
from omnigraph.storage import meter
from omnigraph.storage.meter import NO_COST, Cost
from omnigraph.storage.objects.object_store import PutOutcome, PutResult
from omnigraph.storage.table.overlay import Overlay
from omnigraph.storage.table.table_content import Tail

__all__ = ["PublishPolicy", "PublishedCommit", "Publisher", "Recourse"]

NO_ROWS: Mapping[TableKey, Overlay] = {}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PublishPolicy:
    """How long a write that loses races goes on, and how it makes room for others meanwhile."""

    time_limit_s: float = 60.0
    first_wait_s: float = 0.01  # what waits are measured in before it is known how long a put takes
    wait_max_s: float = 1.0

    def ceiling_s(self, attempts: int) -> float:
        return min(self.wait_max_s, self.first_wait_s * 2.0 ** min(attempts, 16))


@dataclass(frozen=True, slots=True)
class PublishedCommit:
    """A commit that is there: whoever looks now sees all of it."""

    commit: Commit
    branch: str
    manifest_version: int
    cost: Cost = NO_COST

    @property
    def id(self) -> str:
        return self.commit.id

    @property
    def touched(self) -> dict[TableKey, dict[str, int]]:
        return {key: touch_to_json(touch) for key, touch in self.commit.touched.items()}


class Publisher:
    def __init__(
        self,
        manifests: Manifests,
        schemas: Schemas,
        inline_rows: InlineRows,
        runtime: Runtime,
        policy: PublishPolicy | None = None,
        settings: Settings | None = None,
    ) -> None:
        self._manifests = manifests
        self._schemas = schemas
        self._inline_rows = inline_rows
        self._runtime = runtime
        self._policy = policy or PublishPolicy()
        settings = settings or Settings()
        self._queue = CommitQueue(settings)
        self._reservations = Reservations(runtime, self._queue)
        self._contention = ContentionControl(runtime, self._policy.first_wait_s, self._policy.wait_max_s)
        self._groups = Groups(
            self,
            manifests,
            inline_rows,
            self._reservations,
            self._contention,
            runtime,
            self._policy.time_limit_s,
            settings.group_bytes,
        )
        self.on_landed: Callable[[Manifest], None] | None = None  # told of every commit that changes the content

    def publish(self, txn: WriteTxn, plan: PublishPlan, recourse: Recourse | None = None) -> PublishedCommit | None:
        """Make the plan the branch's next commit, with others if it may; None where it would change nothing."""
        checkpoint()  # the last place before a put where a write can be stopped
        recourse = recourse or Recourse()
        if not may_share(plan):
            entry = self._advance(txn, plan, recourse)
            return None if entry is None else _published(entry, plan.txn_id)
        match self._queue.submit(PendingCommit(txn, plan, recourse, self._deadline()), self._groups.land):
            case Committed(entry):
                return _published(entry, plan.txn_id)
            case NoChange():
                return None
            case Standalone(txn, plan):
                entry = self._advance(txn, plan, recourse)
                return None if entry is None else _published(entry, plan.txn_id)
            case BaseException() as error:
                raise error

    def find_earlier_commit(self, txn: WriteTxn, txn_id: TxnId, since: Point | None = None) -> PublishedCommit | None:
        """The commit of a transaction id that the caller supplied, if an earlier call made it.

        To be asked before planning: a write that has landed would fail its own checks. Of a write with an
        intent it is known since which base it may have landed; otherwise one looks back for a day.
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
        """Raise if a held base has lost already: then nothing need be staged that nobody would use."""
        head = self._manifests.refresh_head(txn.base)
        if head.point != txn.base.point:
            self._decide(txn, plan, head)

    def delete_branch(self, txn: WriteTxn, plan: PublishPlan) -> None:
        """Put the tombstone that ends the branch, on top of whatever its newest manifest is by then."""
        self._advance(txn, plan, Recourse())

    def create_branch(self, unborn: EmptyBranch, plan: PublishPlan) -> Manifest | None:
        """Manifest 1 of a branch id, or a tombstone in its place; None if the other was first."""
        manifest = compose(unborn, plan, self._runtime.clock.now())
        put = self.put(manifest, plan.txn_id, self._deadline())
        return manifest if isinstance(put, Committed) else None

    def _advance(self, txn: WriteTxn, plan: PublishPlan, recourse: Recourse) -> Entry | None:
        deadline = self._deadline()
        losses = 0
        rebase_s = 0.0
        guard = plan.guard  # the same for every plan that is made again
        if guard is not None and (landed := guard.search(txn.base)):
            return landed
        may_be_another = plan.idempotent or guard is not None
        while True:
            started = self._runtime.clock.monotonic()
            try:
                if losses:  # perhaps to writers of this very process, which have always the next put under way
                    with self._queue.exclusive(PendingCommit(txn, plan, recourse, deadline)):
                        started = self._runtime.clock.monotonic()  # a turn is not for waiting in one's own line
                        if not may_be_another:
                            txn, plan = self._onto_known(txn, plan, recourse)
                        result = self._attempt(txn, plan, deadline, losses)
                else:
                    result = self._attempt(txn, plan, deadline, losses)
            except TablesLackColumns as lack:
                txn, plan = self._derived_again(txn, plan, recourse, lack)
                continue
            if isinstance(result, NoChange):
                return None
            if isinstance(result, Committed):
                return result.entry
            entry = result.winner
            attempt_s = rebase_s + self._runtime.clock.monotonic() - started
            losses += 1
            meter.record_retry()
            out_of_time = self._runtime.clock.monotonic() > deadline
            if losses == 1 or out_of_time:
                head = self.read_head(entry)
            else:
                head = self.back_off_and_refresh(entry, plan, losses, attempt_s)
            # Before anything is staged again.
            landed = self._landed_meanwhile(txn, plan, head) if guard is None else guard.check(head)
            if landed is not None:
                return landed
            if out_of_time:
                raise RetriesExhausted(txn.branch, losses, self._policy.time_limit_s)
            rebasing = self._runtime.clock.monotonic()
            txn, plan = self.rebase(txn, plan, head, recourse)
            rebase_s = self._runtime.clock.monotonic() - rebasing

    def _derived_again(
        self, txn: WriteTxn, plan: PublishPlan, recourse: Recourse, lack: TablesLackColumns
    ) -> tuple[WriteTxn, PublishPlan]:
        """`rebase`: no manifest is put whose tables lack a column of its schema; these are derived again
        from the same base. If that does not help it is a bug: an error is better than a commit that can't be read."""
        if recourse.plan_again is not None:
            txn, plan = self._planned_again(txn.base, plan, recourse.plan_again)
        elif recourse.restage is not None:
            plan = recourse.restage(txn, plan, frozenset(lack.missing), True)
        try:
            self._require_columns(txn.base, plan, compose(txn.base, plan, self._runtime.clock.now()))
        except TablesLackColumns as still:
            key, name = next(iter(still.missing.items()))
            raise AssertionError(f"the table of {key} would lack a column for {name}: nothing was written") from still
        return txn, plan

    def _require_columns(self, base: Manifest, plan: PublishPlan, manifest: Manifest) -> None:
        if isinstance(plan.change, DataChange) and (plan.change.staged or plan.change.schema or plan.change.merged):
            missing = missing_columns(base, manifest, plan.change, self._schemas.read)
            if missing:
                raise TablesLackColumns(missing)

    def _onto_known(self, txn: WriteTxn, plan: PublishPlan, recourse: Recourse) -> tuple[WriteTxn, PublishPlan]:
        """On top of what this process itself has put meanwhile, where that takes no time: others wait for it."""
        head = self._manifests.cached_head(txn.base.branch_id)
        if head is None or head.manifest_version <= txn.base.manifest_version:
            return txn, plan
        decision = self._decide(txn, plan, head, can_plan_again=True)
        if isinstance(decision, Replan) or decision.restage:
            return txn, plan
        return self.rebase(txn, plan, head, recourse)

    def _landed_meanwhile(self, txn: WriteTxn, plan: PublishPlan, head: Manifest) -> Entry | None:
        """The entry in which another call has put a txn id that callers supply, behind the base of a lost put."""
        return find_txn_since(self._manifests, txn.base.point, head, plan.txn_id) if plan.idempotent else None

    def back_off_and_refresh(self, winner: Entry, plan: PublishPlan, losses: int, attempt_s: float) -> Manifest:
        """Let those go first who have lost more often, and after some losses ask the others to; answers a head to put
        on, as far as anybody can know."""
        if (wait_s := self._contention.backoff_s(winner.branch_id, losses)) > 0:
            self._runtime.clock.sleep(wait_s)
        head = find_stable_head(self._manifests, winner) if isinstance(winner, Manifest) else self.read_head(winner)
        if not should_reserve(losses) or head.tombstone is not None or head.reservation is not None:
            return head
        # Where the next try takes long it is lost without a turn, so a few quick puts for one are worth their while.
        for _ in range(RESERVATION_PUTS_MAX):
            manifest = compose(
                head, reservation_plan(plan, attempt_s, self._runtime.ids.txn_id()), self._runtime.clock.now()
            )
            with suppress(OmnigraphError):  # that it fails, or that its fate is unknown, matters to nobody
                if self._create(manifest).outcome is PutOutcome.CREATED:
                    return manifest
            head = self._manifests.refresh_head(head)
            if head.tombstone is not None or head.reservation is not None:
                break
        return head

    def _create(self, manifest: Manifest) -> PutResult:
        """The conditional put by which a manifest comes to be: there is no other."""
        self._contention.on_put(manifest)
        before = self._runtime.clock.monotonic()
        answer = self._manifests.create(manifest)
        self._contention.on_latency(self._runtime.clock.monotonic() - before)
        return answer

    def _attempt(
        self, txn: WriteTxn, plan: PublishPlan, deadline: float, losses: int
    ) -> Committed | Conflicted | NoChange:
        """One try on one base.

        `confirmed-head`: what no won put seals (a no-op, a 412) is answered only from a head confirmed here.
        """
        wanted = plan.if_commit
        if plan.changes_nothing or (wanted is not None and wanted != txn.base.logical_head):
            head = self._manifests.refresh_head(txn.base)
            if head.point != txn.base.point:
                return Conflicted(head)
            if plan.guard is not None and (landed := plan.guard.check(head)):
                return Committed(landed)
            if wanted is not None and wanted != head.logical_head:
                raise PreconditionFailed(wanted, head.logical_head)
            return NoChange()
        return self.attempt(txn, plan, deadline, losses)

    def attempt(self, txn: WriteTxn, plan: PublishPlan, deadline: float, losses: int) -> Committed | Conflicted:
        """The same for a plan that changes something, whatever the head."""
        if (wait_s := self._reservations.remaining_s(txn.base, plan.txn_id)) > 0:
            self._reservations.yield_to(txn.base, wait_s)
            head = self._manifests.refresh_head(txn.base)
            if head.point != txn.base.point:
                return Conflicted(head)
        elif (
            not losses
            and plan.policy is not ConflictPolicy.MAINTENANCE
            and (gap_s := self._contention.pace_s(txn.base)) > 0
        ):
            self._runtime.clock.sleep(gap_s)
        if plan.guard is not None and (landed := plan.guard.check(txn.base)):  # a put that is unsettled needs no other
            return Committed(landed)
        manifest = compose(txn.base, plan, self._runtime.clock.now())
        self._require_columns(txn.base, plan, manifest)
        put = self.put(manifest, plan.txn_id, deadline)
        if isinstance(put, Committed):
            self._contention.on_commit(put.entry, losses)
            if put.entry is manifest:
                self._inline_rows.cache_put(
                    manifest, {key: made.overlay for key, made in plan.inline.items() if made.counts}
                )
                if plan.policy is not ConflictPolicy.MAINTENANCE:
                    self.tell(manifest)
            return put
        self._contention.on_conflict(put)
        return Conflicted(put)

    def tell(self, manifest: Manifest) -> None:
        """Tell whoever wants to know. Whatever that does, the commit has landed: no failure may be reported for it."""
        if self.on_landed is not None:
            try:
                self.on_landed(manifest)
            except Exception:
                _log.exception("Commit %s has landed, but who was told of it failed.", manifest.logical_head)

    def read_head(self, winner: Entry) -> Manifest:
        if isinstance(winner, Manifest):
            return self._manifests.refresh_head(winner)
        newest = self._manifests.find_head(winner.branch_id)  # `unique-numbers`: a stub, so list again
        assert newest is not None, "a branch with a stub has a head"
        return newest

    def put(self, manifest: Manifest, txn_id: TxnId, deadline: float) -> Committed | Entry:
        """`settle-by-reading`: create; whatever the answer, unless "created", read the number: ours, or who was first.

        Absent after a lost answer means that the put may still land, so the same body goes to the
        same number again until somebody's object is there. Giving up then is `OutcomeUnknown`.
        """
        may_have_landed = False
        for attempt in range(1, 1 << 30):
            refusal: OmnigraphError | None = None
            entry: Entry | None = None
            try:
                answer = self._create(manifest)
                if answer.outcome is PutOutcome.CREATED:
                    return Committed(manifest)
                may_have_landed = may_have_landed or answer.outcome is PutOutcome.UNKNOWN
            except OmnigraphError as error:  # denied or full: this put did not land, an earlier one may have
                refusal = error
            try:
                entry = self._manifests.read(manifest.point, cached=False)
            except (Damaged, UnsupportedFormat):
                raise  # an object is there, and ours would be readable
            except OmnigraphError as error:
                may_have_landed = may_have_landed or refusal is None  # "exists" may have spoken of our own object
                refusal = refusal or error
            if entry is not None and (_carries_all(entry, manifest) or _is_same_first_manifest(entry, manifest)):
                # With a supplied txn id it may be an earlier call's, which staged other files: theirs count.
                return Committed(entry)
            if refusal is not None and (entry is not None or not may_have_landed):
                raise refusal
            if entry is not None:
                return entry
            meter.record_retry()
            if self._runtime.clock.monotonic() > deadline:
                raise OutcomeUnknown(txn_id, manifest.branch, manifest.manifest_version) from refusal
            self._runtime.clock.sleep(self._runtime.jitter(self._policy.ceiling_s(attempt)))
        raise AssertionError("unreachable")

    def rebase(
        self,
        txn: WriteTxn,
        plan: PublishPlan,
        head: Manifest,
        recourse: Recourse,
        pending: Mapping[TableKey, Overlay] = NO_ROWS,
    ) -> tuple[WriteTxn, PublishPlan]:
        """Carry out what the conflict table says about losing to this head, or to those before it in a group."""
        checkpoint()  # the put was another's for sure, so nothing of this has happened
        match self._decide(txn, plan, head, can_plan_again=recourse.plan_again is not None, pending=pending):
            case Replan(reason):
                if recourse.plan_again is None:
                    raise ConflictError(f"The write lost its base ({reason}): nothing was written, run it again.")
                return self._planned_again(head, plan, recourse.plan_again, pending)
            case Proceed(validate, restage, from_scratch):
                txn = WriteTxn(head, txn.schema, pending)
                if validate and recourse.validate is not None:
                    recourse.validate(txn, plan)
                if restage:
                    assert recourse.restage is not None, "a plan that stages must bring its way to stage again"
                    plan = recourse.restage(txn, plan, restage, from_scratch)
                return txn, plan

    def _planned_again(
        self, head: Manifest, plan: PublishPlan, replan: PlanOn, pending: Mapping[TableKey, Overlay] = NO_ROWS
    ) -> tuple[WriteTxn, PublishPlan]:
        txn = WriteTxn(head, self._schemas.read(head.schema), pending)
        again = replace(replan(txn), txn_id=plan.txn_id, idempotent=plan.idempotent)  # `one-txn-id`
        return txn, replace(again, intent=plan.intent, guard=plan.guard, token=plan.token, input=plan.input)

    def _decide(
        self,
        txn: WriteTxn,
        plan: PublishPlan,
        head: Manifest,
        *,
        can_plan_again: bool = False,
        pending: Mapping[TableKey, Overlay] = NO_ROWS,
    ) -> Proceed | Replan:
        """What the conflict table says; what it refuses is raised."""
        if head.tombstone is None and plan.if_commit not in (None, head.logical_head):
            raise PreconditionFailed(str(plan.if_commit), head.logical_head)
        honoured = plan.intent is not None and fences_honour(self._manifests, txn.base, head, plan.intent)
        match decide(
            plan, txn.base, head, came=partial(self._written_since, head.point, pending), intent_honoured=honoured
        ):
            case BranchDeleted():
                raise BranchNotFound(txn.branch)
            case Refuse(table_key, expected, actual):
                if can_plan_again:
                    return Replan(f"{table_key} changed")
                raise ExpectedVersionMismatch(table_key, expected, actual)
            case Proceed() | Replan() as decision:
                return decision

    def _written_since(self, head: Point, pending: Mapping[TableKey, Overlay], tail: Tail) -> frozenset[str]:
        """Which rows these small commits wrote; of a head that is being made, `pending` tells."""
        made = {
            entry
            for entry in tail
            if entry.table_key in pending and Point(entry.branch_id, entry.manifest_version) == head
        }
        found = self._inline_rows.written_ids(entry for entry in tail if entry not in made)
        return found.union(*(pending[entry.table_key].decided_ids for entry in made))

    def _deadline(self) -> float:
        return self._runtime.clock.monotonic() + self._policy.time_limit_s


def _carries_all(entry: Entry, manifest: Manifest) -> bool:
    """Whether all transactions of a manifest are in what lies under its number. The birth of a branch has none."""
    own = txn_ids(manifest)
    return bool(own) and own <= txn_ids(entry)


def _is_same_first_manifest(entry: Entry, manifest: Manifest) -> bool:
    """Only its creator, who minted the branch id, ever puts a living manifest 1."""
    return manifest.manifest_version == 1 and entry.tombstone is None and manifest.tombstone is None


def _published(entry: Entry, txn_id: TxnId) -> PublishedCommit:
    commit = entry.commits[0]
    if commit.txn_id != txn_id:
        commit = next(commit for commit in entry.commits if commit.txn_id == txn_id)
    return PublishedCommit(commit, entry.branch, entry.manifest_version)
