"""Revert: a new commit that undoes one, as a three-way merge with that commit's state as the base.

Rows that the branch still has as the commit left them are restored. What later commits changed of them is a conflict;
what they restored themselves needs nothing. The rows are merged as in `row_merge.py`.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from omnigraph.diff.changes import states_of_commit
from omnigraph.diff.graph_state import GraphState, state_of, type_id_of
from omnigraph.diff.type_diff import TypeHistory, table_difference, type_histories
from omnigraph.errors import BadRequest, ConflictError, MergeConflict, RevertConflicts
from omnigraph.manifest.commit.publish import PublishedCommit
from omnigraph.manifest.commit.txn import Snapshot, WriteTxn
from omnigraph.manifest.history.history import find_commit
from omnigraph.manifest.model.ancestry import contains_commit
from omnigraph.manifest.model.manifest import MAIN, Commit, CommitClass, CommitId, TableKey, TxnId
from omnigraph.manifest.repository import Repository
from omnigraph.merge.row_merge import DELETE_VS_UPDATE, DIVERGENT_INSERT, MergedRows, merge_rows
from omnigraph.schema.catalog import TypeDef
from omnigraph.storage.table.overlay import ids_of, with_ids
from omnigraph.storage.table.table_content import TableContent
from omnigraph.storage.table.tables import Tables
from omnigraph.write.commit import Changes, CommitOptions, PlannedWrite
from omnigraph.write.delta import Delta, TableDelta
from omnigraph.write.validate.validate import checks_for

if TYPE_CHECKING:
    import pyarrow as pa

KIND = "revert"
LOOKUP_ROWS_MAX = 50_000  # rows that are looked up by id; more are found by one scan of the table


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

    return PlannedWrite(repository, plan, CommitOptions(branch, actor, if_commit, txn_id), kind=KIND).commit()


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
