"""What becomes of a plan that lost a race: validated, staged or planned again on the new head, or refused."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial

from omnigraph.cancellation import checkpoint
from omnigraph.errors import BranchNotFound, ConflictError, ExpectedVersionMismatch, OmnigraphError, PreconditionFailed
from omnigraph.manifest.commit.commit_queue import PendingCommit
from omnigraph.manifest.commit.compose import compose_manifest
from omnigraph.manifest.commit.conflicts import BranchDeleted, Proceed, Refuse, Replan, decide
from omnigraph.manifest.commit.plan import DataChange, PublishPlan
from omnigraph.manifest.commit.txn import WriteOp, WriteTxn
from omnigraph.manifest.history.txn_lookup import fences_honour
from omnigraph.manifest.model.manifest import Manifest, Point, TableKey
from omnigraph.manifest.model.table_columns import TablesLackColumns, missing_columns
from omnigraph.manifest.store.inline_rows import InlineRows
from omnigraph.manifest.store.manifest_store import Manifests, Schemas
from omnigraph.storage.table.overlay import Overlay
from omnigraph.storage.table.table_content import Tail

NO_ROWS: Mapping[TableKey, Overlay] = {}


class Rebaser:
    """Carries out what the conflict table says. It reads the winners and calls the operation, and puts nothing."""

    def __init__(self, manifests: Manifests, schemas: Schemas, inline_rows: InlineRows) -> None:
        self._manifests = manifests
        self._schemas = schemas
        self._inline_rows = inline_rows

    def rebase(
        self,
        txn: WriteTxn,
        plan: PublishPlan,
        head: Manifest,
        op: WriteOp,
        pending: Mapping[TableKey, Overlay] = NO_ROWS,
    ) -> tuple[WriteTxn, PublishPlan]:
        """The write on a newer head; `pending` are the rows of those before it in a batch."""
        checkpoint()  # the put was another's for sure, so nothing of this has happened
        match self.decide(txn, plan, head, can_replan=op.can_replan, pending=pending):
            case Replan(reason):
                if not op.can_replan:
                    raise ConflictError(f"The write lost its base ({reason}): nothing was written, run it again.")
                return self._replan(head, plan, op, pending)
            case Proceed(validate, restage, from_scratch):
                txn = WriteTxn(head, txn.schema, pending)
                op.base = head
                if validate:
                    op.validate(txn, plan)
                if restage:
                    plan = op.restage(txn, plan, restage, from_scratch)
                return txn, plan

    def catch_up(self, write: PendingCommit) -> Manifest | None:
        """Rebase onto what this process has put meanwhile, if that takes no time; otherwise the head that is newer.

        That head was not confirmed in this call, so nothing is refused because of it (`confirmed-head`).
        """
        head = self._manifests.cached_head(write.txn.base.branch_id)
        if head is None or head.manifest_version <= write.txn.base.manifest_version:
            return None
        if write.plan.guard is None and not write.plan.idempotent:
            with suppress(OmnigraphError):
                decision = self.decide(write.txn, write.plan, head, can_replan=True)
                if not isinstance(decision, Replan) and not decision.restage:
                    write.txn, write.plan = self.rebase(write.txn, write.plan, head, write.op)
                    return None
        return head

    def rederive_tables(
        self, txn: WriteTxn, plan: PublishPlan, op: WriteOp, lack: TablesLackColumns, now: datetime
    ) -> tuple[WriteTxn, PublishPlan]:
        """`rebase`: no manifest is put whose tables lack a column of its schema; these are derived again
        from the same base. If that does not help it is a bug: an error is better than a commit that can't be read."""
        if op.can_replan:
            txn, plan = self._replan(txn.base, plan, op)
        else:
            plan = op.restage(txn, plan, frozenset(lack.missing), True)
        try:
            self.require_columns(txn.base, plan, compose_manifest(txn.base, plan, now))
        except TablesLackColumns as still:
            key, name = next(iter(still.missing.items()))
            raise AssertionError(f"the table of {key} would lack a column for {name}: nothing was written") from still
        return txn, plan

    def require_columns(self, base: Manifest, plan: PublishPlan, manifest: Manifest) -> None:
        if isinstance(plan.change, DataChange) and (plan.change.staged or plan.change.schema or plan.change.merged):
            missing = missing_columns(base, manifest, plan.change, self._schemas.read)
            if missing:
                raise TablesLackColumns(missing)

    def decide(
        self,
        txn: WriteTxn,
        plan: PublishPlan,
        head: Manifest,
        *,
        can_replan: bool = False,
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
                if can_replan:
                    return Replan(f"{table_key} changed")
                raise ExpectedVersionMismatch(table_key, expected, actual)
            case Proceed() | Replan() as decision:
                return decision

    def _replan(
        self, head: Manifest, plan: PublishPlan, op: WriteOp, pending: Mapping[TableKey, Overlay] = NO_ROWS
    ) -> tuple[WriteTxn, PublishPlan]:
        txn = WriteTxn(head, self._schemas.read(head.schema), pending)
        op.base = head
        again = replace(op.plan(txn), txn_id=plan.txn_id, idempotent=plan.idempotent)  # `one-txn-id`
        return txn, replace(again, intent=plan.intent, guard=plan.guard, token=plan.token, input=plan.input)

    def _written_since(self, head: Point, pending: Mapping[TableKey, Overlay], tail: Tail) -> frozenset[str]:
        """Which rows these small commits wrote; of a manifest that is not there yet, `pending` has them."""
        made = {
            entry
            for entry in tail
            if entry.table_key in pending and Point(entry.branch_id, entry.manifest_version) == head
        }
        found = self._inline_rows.written_ids(entry for entry in tail if entry not in made)
        return found.union(*(pending[entry.table_key].decided_ids for entry in made))
