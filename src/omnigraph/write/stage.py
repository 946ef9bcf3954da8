"""Staging: a plan's actions become detached table versions that nobody was told of yet.

Everything is derived from the transaction's base and the plan's rows and ids, so it can be derived
again on another base whenever the race was lost.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from omnigraph.manifest.model import TableKey, TableRef, Touch
from omnigraph.manifest.plan import (
    Append,
    Bulk,
    Change,
    Create,
    Delete,
    Drop,
    Index,
    Move,
    Overwrite,
    PublishPlan,
    Reshape,
    Rewrite,
    StagedTable,
    TableAction,
    Upsert,
)
from omnigraph.manifest.txn import WriteTxn
from omnigraph.runtime import IdSource
from omnigraph.schema.indexes import declared_indexes
from omnigraph.storage.indexing import INDEXED_ROWS_MIN
from omnigraph.storage.parallel import gather
from omnigraph.storage.tables import Staged, Tables, TableVersion
from omnigraph.write.delta import texts
from omnigraph.write.violations import existing, refuse


class Stager:
    def __init__(self, tables: Tables, ids: IdSource) -> None:
        self._tables = tables
        self._ids = ids

    def stage(self, txn: WriteTxn, plan: PublishPlan) -> PublishPlan:
        """All tables of a plan, at once."""
        return self.restage(txn, plan, plan.writes, from_scratch=True)

    def restage(self, txn: WriteTxn, plan: PublishPlan, tables: frozenset[TableKey], from_scratch: bool) -> PublishPlan:
        """The physical part of these tables, derived again on the transaction's base (rule 9)."""
        assert isinstance(plan.effect, Change)
        groups = _by_table(plan.effect.actions, tables)
        previous = {} if from_scratch else plan.staged

        def one(key: TableKey, actions: Sequence[TableAction]) -> StagedTable | None:
            ref = txn.table(key)
            if key in plan.staged and ref is not None:
                self._refuse_taken(ref, actions, plan.staged[key])
            made = self._carried(ref, actions, previous.get(key)) or self._fresh(ref, actions)
            return made if made is None or _rows_written(actions) < INDEXED_ROWS_MIN else self._indexed(txn, key, made)

        results = gather([partial(one, key, actions) for key, actions in groups.items()])
        kept = {key: table for key, table in plan.staged.items() if key not in groups}
        made = {key: table for key, table in zip(groups, results, strict=True) if table is not None}
        return plan.with_staged({**kept, **made})

    def _carried(
        self, ref: TableRef | None, actions: Sequence[TableAction], previous: StagedTable | None
    ) -> StagedTable | None:
        """Appended fragments as they are on the new version, if they share no id with what came."""
        if previous is None or previous.carryable is None or previous.base is None or ref is None:
            return None
        if previous.table_id != ref.table_id:
            return None
        at, since = _at(ref), TableVersion(*previous.base)
        if isinstance(actions[0], Upsert) and self._tables.came_with(at, since, previous.carryable.ids):
            return None
        carried = self._tables.carry(at, previous.carryable)
        return StagedTable(
            carried.at.table_id, carried.at.table_version, carried.rows, previous.touch, _base(ref), carried.appended
        )

    def _refuse_taken(self, ref: TableRef, actions: Sequence[TableAction], previous: StagedTable) -> None:
        """An append must not meet rows that came with its ids: Lance would keep both, and no check may have looked."""
        at, base = _at(ref), previous.base
        for action in actions:
            if isinstance(action, Append) and not action.fresh_ids:
                ids = texts(action.rows, "id")
                if base is not None and base[0] == ref.table_id:
                    taken = self._tables.came_with(at, TableVersion(*base), ids)
                else:
                    taken = self._tables.exists(at, ids)
                refuse(existing(action.table, taken))

    def _fresh(self, ref: TableRef | None, actions: Sequence[TableAction]) -> StagedTable | None:
        """The actions one after another, each on the version that the one before made."""
        at = None if ref is None else _at(ref)
        rows = 0 if ref is None else ref.rows
        touch = Touch()
        carryable = None
        for action in actions:
            result = self._apply(at, action)
            if result is not None:
                touch = _with(touch, action, rows, result.rows)
                at, rows = result.at, result.rows
                carryable = result.appended if len(actions) == 1 and ref is not None else None
        if at is None:
            return None  # deleting from a type that has no rows
        return StagedTable(at.table_id, at.table_version, rows, touch, _base(ref), carryable)

    def _indexed(self, txn: WriteTxn, key: TableKey, made: StagedTable) -> StagedTable:
        """With segments of the declared indexes over the rows that came, as one more version.

        Segments are never carried: they name row addresses, which are others on another base.
        """
        at = TableVersion(made.table_id, made.table_version)
        since = TableVersion(*made.base) if made.base is not None and made.base[0] == made.table_id else None
        indexed = self._tables.index_new_rows(at, since, declared_indexes(txn.catalog.type_of(key)))
        return replace(made, table_version=indexed.table_version)

    def _apply(self, at: TableVersion | None, action: TableAction) -> Staged | None:
        match action:
            case Delete(_, ids):
                return None if at is None else self._tables.delete(at, ids)
            case Append(_, rows) | Upsert(_, rows) | Create(_, rows) | Overwrite(_, rows):
                if at is None:
                    return self._tables.create(self._ids.short_id(), rows)
                if isinstance(action, Overwrite):
                    return self._tables.overwrite(at, rows)
                return self._tables.upsert(at, rows) if isinstance(action, Upsert) else self._tables.append(at, rows)
            case Drop() | Rewrite() | Index() | Bulk() | Reshape() | Move():
                raise AssertionError(f"{action} is staged by the verb that plans it")


def _rows_written(actions: Sequence[TableAction]) -> int:
    return sum(action.rows.num_rows for action in actions if isinstance(action, Append | Upsert | Create | Overwrite))


def _by_table(actions: Sequence[TableAction], tables: frozenset[TableKey]) -> dict[TableKey, list[TableAction]]:
    groups: dict[TableKey, list[TableAction]] = {}
    for action in actions:
        if action.table in tables and not isinstance(action, Drop):
            groups.setdefault(action.table, []).append(action)
    return groups


def _at(ref: TableRef) -> TableVersion:
    return TableVersion(ref.table_id, ref.table_version)


def _base(ref: TableRef | None) -> tuple[str, int] | None:
    return None if ref is None else (ref.table_id, ref.table_version)


def _with(touch: Touch, action: TableAction, before: int, after: int) -> Touch:
    """What an action did, told from the row counts before and after it."""
    match action:
        case Delete():
            return replace(touch, deleted=touch.deleted + before - after)
        case Overwrite():
            return replace(touch, inserted=touch.inserted + after, deleted=touch.deleted + before)
        case Upsert(_, rows):
            inserted = after - before
            updated = rows.num_rows - inserted
            return replace(touch, inserted=touch.inserted + inserted, updated=touch.updated + updated)
        case _:
            return replace(touch, inserted=touch.inserted + after - before)
