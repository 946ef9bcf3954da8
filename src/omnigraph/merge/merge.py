"""`branch merge` and `revert`: the whole verbs, from the heads to one published commit.

A merge is strict in reads and writes, but is planned again instead of failing (`merge-replans`), so that it includes
what was committed first. The source's head is read after the target's, and again with every plan
(`other-branch-after-base`), so that the merge adopts nothing that a cleanup has swept. If a cleanup sweeps one of the
two while it is read, the merge is retried from the start.

A revert is a new commit that undoes one: a three-way merge with that commit's state as the base. Rows that the branch
still has as the commit left them are restored. What later commits changed of them is a conflict; what they restored
themselves needs nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from omnigraph.diff.changes import states_of_commit
from omnigraph.diff.graph_state import GraphState, TypeState, state_of, type_id_of
from omnigraph.diff.type_diff import TypeHistory, table_difference, type_histories
from omnigraph.engine import Engine, require_engine
from omnigraph.errors import (
    BadRequest,
    ConflictError,
    MergeConflict,
    MergeConflicts,
    OmnigraphError,
    PreconditionFailed,
    RevertConflicts,
)
from omnigraph.manifest.commit.plan import ConflictPolicy, DataChange, Drop, Merged, Move, PublishPlan
from omnigraph.manifest.commit.publish import PublishedCommit
from omnigraph.manifest.commit.stale_base import retry_if_base_swept
from omnigraph.manifest.commit.txn import Snapshot, WriteOp, WriteTxn
from omnigraph.manifest.history.history import find_commit
from omnigraph.manifest.model.ancestry import contains_commit
from omnigraph.manifest.model.manifest import MAIN, Commit, CommitClass, CommitId, Manifest, RowCounts, TableKey, TxnId
from omnigraph.manifest.repository import Repository
from omnigraph.merge.plan import CHANGED_ROWS_LOCAL_MAX, ChooseMergeRunner, MergeOutcome, MergePlan, plan_merge
from omnigraph.merge.row_merge import DELETE_VS_UPDATE, DIVERGENT_INSERT, MergedRows, merge_rows
from omnigraph.merge.table_merge import read_changes
from omnigraph.schema.catalog import TypeDef
from omnigraph.storage import meter
from omnigraph.storage.meter import Cost
from omnigraph.storage.table.overlay import ids_of, with_ids
from omnigraph.storage.table.table_content import TableContent
from omnigraph.storage.table.tables import Tables
from omnigraph.storage.util.runner import Runner
from omnigraph.write.commit import Changes, CommitOptions, PlannedWrite
from omnigraph.write.delta import Delta, TableDelta
from omnigraph.write.stage import Stager
from omnigraph.write.validate.validate import checks_for

if TYPE_CHECKING:
    import pyarrow as pa

_REVERT = "revert"
LOOKUP_ROWS_MAX = 50_000  # rows that are looked up by id; more are found by one scan of the table


@dataclass(frozen=True, slots=True)
class MergeResult:
    """The result of a merge, or of a dry run."""

    source: str
    into: str
    outcome: MergeOutcome
    commit: PublishedCommit | None = None
    types: Mapping[TableKey, RowCounts] = field(default_factory=dict)  # changed rows of the target, by type
    conflicts: tuple[MergeConflict, ...] = ()  # of a dry run; otherwise conflicts are raised
    dry_run: bool = False
    deleted: bool = False
    not_deleted: str | None = None  # why the source branch was not deleted, although that was requested
    cost: Cost = field(default_factory=Cost)


def merge(
    repository: Repository,
    source: str,
    into: str = MAIN,
    *,
    delete_branch: bool = False,
    dry_run: bool = False,
    actor: str | None = None,
    if_commit: CommitId | None = None,
    txn_id: TxnId | None = None,
    engine: Engine = "auto",
    runner: Callable[[], Runner] | None = None,
) -> MergeResult:
    """Merge one branch into another as one atomic commit.

    `runner` creates the runner that merges the rows of large tables; it is called only if there are any.
    """
    _require_sensible(source, into, delete_branch, engine)
    if not dry_run:
        repository.require_writable("Merging")
    with meter.operation("merge") as operation:
        merging = _Merge(repository, source, into, actor, if_commit, txn_id, choose_runner(engine, runner))
        result = merging.dry_run() if dry_run else merging.run()
        if delete_branch and not dry_run:
            result = merging.delete_source(result)
    commit = None if result.commit is None else replace(result.commit, cost=operation.cost)
    return replace(result, commit=commit, cost=operation.cost)


def _require_sensible(source: str, into: str, delete_branch: bool, engine: str) -> None:
    if source == into:
        raise BadRequest(f"The branch {source!r} can't be merged into itself: name another one.")
    if delete_branch and source == MAIN:
        raise BadRequest(f"The branch {MAIN!r} can't be deleted: merge it without delete_branch.")
    require_engine(engine)


def choose_runner(engine: Engine, runner: Callable[[], Runner] | None) -> ChooseMergeRunner:
    def choose(changed: int) -> Runner | None:
        wanted = engine == "spark" or (engine == "auto" and changed > CHANGED_ROWS_LOCAL_MAX)
        if not wanted or (runner is None and engine == "auto"):
            return None
        if runner is None:
            raise BadRequest("There is no Spark to merge with: install it, or use the engine 'local'.")
        return runner()

    return choose


class _Merge(WriteOp):
    """One merge while it runs; the last plan is the one that is committed."""

    can_replan = True

    def __init__(
        self,
        repository: Repository,
        source: str,
        into: str,
        actor: str | None,
        if_commit: CommitId | None,
        txn_id: TxnId | None,
        choose: ChooseMergeRunner,
    ) -> None:
        self._repository = repository
        self._source = source
        self._into = into
        self._actor = actor
        self._if_commit = if_commit
        self._idempotent = txn_id is not None
        self._txn_id = txn_id or repository.runtime.ids.txn_id()
        self._choose = choose
        self._stager = Stager(repository.tables, repository.runtime.ids)
        self._merge_plan: MergePlan | None = None
        self._planned_on: CommitId | None = None
        self._merged: Manifest | None = None
        self._source_head: Manifest | None = None  # as it was read last

    def run(self) -> MergeResult:
        return retry_if_base_swept(self._repository, self._run, self.bases_in_use)

    def dry_run(self) -> MergeResult:
        return retry_if_base_swept(self._repository, self._dry_run, self.bases_in_use)

    def _run(self) -> MergeResult:
        publisher = self._repository.publisher
        txn = self._open()
        earlier = publisher.find_earlier_commit(txn, self._txn_id) if self._idempotent else None
        if earlier is not None:
            return MergeResult(self._source, self._into, MergeOutcome.MERGED, earlier, earlier.commit.touched)
        commit = publisher.publish(txn, self.first_plan(txn), self)
        if commit is None:
            return MergeResult(self._source, self._into, MergeOutcome.UP_TO_DATE, None, {})
        return MergeResult(self._source, self._into, self._outcome(commit), commit, commit.commit.touched)

    def _outcome(self, commit: PublishedCommit) -> MergeOutcome:
        """As planned; but it is no fast-forward if commits to other types came first."""
        assert self._merge_plan is not None
        if self._merge_plan.outcome is MergeOutcome.FAST_FORWARD and commit.commit.parent != self._planned_on:
            return MergeOutcome.MERGED
        return self._merge_plan.outcome

    def _dry_run(self) -> MergeResult:
        """`confirmed-head`: both heads are confirmed in this call, so this is what a merge would do now."""
        txn = self._open()
        merge_plan = self._plan_merge(txn)
        counts = _count_changes(self._repository.tables, txn, merge_plan)
        return MergeResult(
            self._source, self._into, merge_plan.outcome, None, counts, merge_plan.conflicts, dry_run=True
        )

    def delete_source(self, result: MergeResult) -> MergeResult:
        """`delete-merged`: the merge is committed, and does not fail if its source can't be deleted."""
        if self._merged is None:
            return replace(result, not_deleted="it was merged by an earlier call: delete it by name")
        try:
            if self._repository.branches.delete_merged(self._merged, self._actor):
                return replace(result, deleted=True)
            return replace(result, not_deleted="merged, not deleted: it moved on")
        except OmnigraphError as error:
            return replace(result, not_deleted=f"merged, not deleted: {error}")

    def bases_in_use(self) -> tuple[Manifest, ...]:
        return super().bases_in_use() + (() if self._source_head is None else (self._source_head,))

    def _open(self) -> WriteTxn:
        txn = self._repository.open_txn(self._into)
        if not self._idempotent and self._if_commit not in (None, txn.commit_id):
            raise PreconditionFailed(str(self._if_commit), txn.commit_id)
        return txn

    def _plan_merge(self, txn: WriteTxn) -> MergePlan:
        source = self._repository.branches.find(self._source).head  # after the own base
        self.base, self._source_head = txn.base, source
        self._planned_on = txn.base.logical_head
        self._merge_plan, self._merged = plan_merge(self._repository, txn, source, self._choose), source
        return self._merge_plan

    def plan(self, txn: WriteTxn) -> PublishPlan:
        merge_plan = self._plan_merge(txn)
        if merge_plan.conflicts:
            raise MergeConflicts(self._source, self._into, merge_plan.conflicts)
        if merge_plan.outcome is MergeOutcome.UP_TO_DATE:
            return self._publish_plan(DataChange("merge"), frozenset())
        if merge_plan.schema.hash not in (txn.base.schema, merge_plan.source.schema):
            self._repository.schemas.write(merge_plan.schema)
        actions = [action for delta in merge_plan.deltas.values() for action in delta.actions()]
        change = DataChange(
            "merge",
            (
                *(Drop(key) for key in merge_plan.dropped),
                *(Move(key, origin) for key, origin in merge_plan.moved.items()),
                *actions,
            ),
            schema=merge_plan.schema.hash if merge_plan.schema.hash != txn.base.schema else None,
            merged_parent=merge_plan.source.logical_head,
            merged=Merged(merge_plan.source.ancestry, merge_plan.adopted),
            unstaged=merge_plan.unstaged_tables(txn.base),
        )
        plan = self._publish_plan(change, merge_plan.reads)
        return self._stager.restage(txn, plan, frozenset(merge_plan.deltas), from_scratch=True)

    def _publish_plan(self, change: DataChange, reads: frozenset[TableKey]) -> PublishPlan:
        return PublishPlan(
            self._txn_id,
            ConflictPolicy.STRICT,
            change,
            self._actor,
            read_rows=reads,
            if_commit=self._if_commit,
            idempotent=self._idempotent,
        )

    def restage(self, txn: WriteTxn, plan: PublishPlan, tables: frozenset[TableKey], from_scratch: bool) -> PublishPlan:
        return self._stager.restage(txn, plan, tables, from_scratch)


def _count_changes(tables: "Tables", txn: WriteTxn, merge_plan: MergePlan) -> dict[TableKey, RowCounts]:
    """How many rows of each type would change; only a dry run reads rows for this."""
    counts = {key: _count_delta(delta) for key, delta in merge_plan.deltas.items()}
    ours, remaining = state_of(txn.base, txn.schema), {type_id_of(entry) for entry in merge_plan.schema.catalog.types}
    for key, adopted in merge_plan.adopted.items():
        wanted = merge_plan.schema.catalog.by_key[key]
        before, after = ours.of(type_id_of(wanted)), TypeState(wanted, adopted.ref)
        contents = (None if before is None else before.content), after.content
        if max(tables.differing_rows(*contents)) > CHANGED_ROWS_LOCAL_MAX:
            ids = tables.differing_ids(*contents)  # among so many, rows that were only moved may count as changed
            was, now = frozenset(ids.before.to_pylist()), frozenset(ids.after.to_pylist())
        else:
            changed = read_changes(tables, before, after, wanted)
            was, now = (frozenset(rows.column("id").to_pylist()) for rows in (changed.before, changed.after))
        counts[key] = RowCounts(len(now - was), len(now & was), len(was - now))
    for type_id, state in ours.types.items():
        if state.ref is not None and type_id not in remaining:
            known = counts.get(state.definition.table_key, RowCounts())  # of another type that has the name now
            counts[state.definition.table_key] = replace(known, deleted=known.deleted + state.ref.rows)
    return {key: touch for key, touch in counts.items() if touch}


def _count_delta(delta: TableDelta) -> RowCounts:
    updated = len(delta.ids & delta.ids_before)
    return RowCounts(len(delta.ids) - updated, updated, len(delta.removed))


@dataclass(frozen=True, slots=True)
class _Undone:
    """The commit to undo, with the states before and after it."""

    commit: Commit
    before: GraphState
    after: GraphState


def revert(
    repository: Repository,
    reference: str,
    *,
    branch: str = MAIN,
    actor: str | None = None,
    if_commit: CommitId | None = None,
    txn_id: TxnId | None = None,
) -> PublishedCommit | None:
    """Undo one commit, named by its id or a tag, on a branch that has it; None where nothing of it is left to undo."""
    repository.require_writable("Reverting")
    commit_id = repository.find_commit_id(reference)

    def plan(txn: WriteTxn) -> Changes:
        undone = _read_undoable(repository, commit_id)  # each time: a cleanup may have expired it meanwhile
        if not contains_commit(txn.base.ancestry, undone.commit.id):
            raise BadRequest(
                f"{undone.commit.id} is not in the history of {txn.branch!r}: revert it on a branch that has it."
            )
        return _plan_inverse(repository.tables, txn, undone)

    return PlannedWrite(repository, plan, CommitOptions(branch, actor, if_commit, txn_id), kind=_REVERT).commit()


def _read_undoable(repository: Repository, commit_id: CommitId) -> _Undone:
    """The commit, if it can be undone: it changed rows and nothing else."""
    _, commit = find_commit(repository.manifests, commit_id)
    if commit.commit_class is CommitClass.MAINTENANCE:
        raise BadRequest(f"{commit.id} is a maintenance commit ({commit.kind}), which changed no content to undo.")
    if commit.parent is None:
        raise BadRequest(f"{commit.id} created the graph, which can't be undone: remove the store instead.")
    before, after = states_of_commit(repository, commit.id)
    if before.manifest.schema != after.manifest.schema:
        raise BadRequest(
            f"{commit.id} ({commit.kind}) changed the schema, which revert does not undo: restore the earlier schema "
            "with `schema apply`."
        )
    return _Undone(commit, _state(before), _state(after))


def _plan_inverse(tables: Tables, txn: WriteTxn, undone: _Undone) -> Changes:
    """Plan the revert on one base: for each type, rows that are as the commit left them get their values before it."""
    head = state_of(txn.base, txn.schema)
    deltas: list[TableDelta] = []
    conflicts: list[MergeConflict] = []
    read: set[TableKey] = set()
    for history in type_histories([undone.before, undone.after]):
        if not history.comparisons():
            continue
        current = head.of(type_id_of(history.definition))
        if current is None:
            raise ConflictError(
                f"{undone.commit.id} can't be reverted, because {history.definition.name} was dropped since: nothing "
                "was written; apply a schema that has this type."
            )
        key = current.definition.table_key
        merged = _merge_inverse(tables, history, current.definition, txn.content(key))
        read.add(key)
        conflicts += [_reword(conflict) for conflict in merged.conflicts]
        deltas.append(merged.delta(key))
    if conflicts:
        raise RevertConflicts(undone.commit.id, txn.branch, tuple(conflicts))
    delta = Delta.of(deltas)
    return Changes(delta.actions(), checks_for(txn, delta), frozenset(read))


def _merge_inverse(
    tables: Tables, history: TypeHistory, definition: TypeDef, content: TableContent | None
) -> MergedRows:
    """Merge the rows before the commit into the current rows, with the rows after the commit as the base."""
    found = table_difference(tables, *history.comparisons()[0], definition)
    ids = sorted({*ids_of(found.before), *ids_of(found.after)})
    return merge_rows(found.after, _current_rows(tables, definition, content, ids), found.before, definition)


def _current_rows(tables: Tables, definition: TypeDef, content: TableContent | None, ids: list[str]) -> "pa.Table":
    from omnigraph.schema.arrow import arrow_schema

    shape = arrow_schema(definition)
    if len(ids) <= LOOKUP_ROWS_MAX or content is None:
        return tables.lookup(content, ids, shape.names, schema=shape)
    return with_ids(tables.scan(content, shape.names, schema=shape), ids)


def _reword(conflict: MergeConflict) -> MergeConflict:
    """The conflict, worded for a revert."""
    subject = f"{conflict.type_name} {conflict.entity_id!r}"
    if conflict.kind == DELETE_VS_UPDATE:
        return replace(conflict, message=f"{subject} was changed or deleted by a later commit")
    if conflict.kind == DIVERGENT_INSERT:
        return replace(conflict, message=f"{subject} was inserted again with other values by a later commit")
    changed = conflict.message.partition("both sides changed")[2]
    return replace(conflict, message=f"{subject}: a later commit changed the same{changed}")


def _state(snapshot: Snapshot) -> GraphState:
    return state_of(snapshot.manifest, snapshot.schema)
