"""Staging: a plan's actions become rows in the manifest, or detached table versions that no manifest names yet.

Everything is derived from the transaction's base and the plan's rows and ids, so it can be derived again on another
base after a lost race.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from omnigraph.manifest.commit.plan import (
    Append,
    Bulk,
    Create,
    DataChange,
    Delete,
    Drop,
    Index,
    InlineTable,
    Move,
    Overwrite,
    PublishPlan,
    Reshape,
    Rewrite,
    StagedTable,
    TableAction,
    Upsert,
)
from omnigraph.manifest.commit.txn import TooLargeToShare, WriteTxn
from omnigraph.manifest.model.manifest import RowCounts, TableKey, TableRef
from omnigraph.manifest.settings import Settings
from omnigraph.manifest.store.inline_rows import change_size, encode_change
from omnigraph.runtime import IdSource
from omnigraph.schema.indexes import declared_indexes
from omnigraph.storage.table.index.segments import INDEXED_ROWS_MIN
from omnigraph.storage.table.overlay import Overlay, unique_ids
from omnigraph.storage.table.table_content import TableContent, VersionWithTail
from omnigraph.storage.table.tables import DetachedVersion, Tables, TableVersion
from omnigraph.threads import gather
from omnigraph.write.delta import texts
from omnigraph.write.validate.violations import already_exists, raise_violations

if TYPE_CHECKING:
    import pyarrow as pa


class Stager:
    def __init__(self, tables: Tables, ids: IdSource, settings: Settings | None = None) -> None:
        self._tables = tables
        self._ids = ids
        self._settings = settings or Settings()

    def stage(self, txn: WriteTxn, plan: PublishPlan) -> PublishPlan:
        """Stage all tables of a plan: together in the manifest if they are small, otherwise as detached versions."""
        assert isinstance(plan.change, DataChange)
        inline = self.inline_rows(txn, plan.change.actions)
        return self.stage_tables(txn, plan) if inline is None else plan.with_inline(inline)

    def inline_rows(self, txn: WriteTxn, actions: Sequence[TableAction]) -> dict[TableKey, InlineTable] | None:
        """All tables as rows in the manifest itself; None where they are too large for it."""
        small = small_actions(actions, self._settings)
        if not small:
            return None
        inline = inline_tables(self._tables, txn, small)
        return inline if fits(inline, self._settings) else None

    def stage_tables(self, txn: WriteTxn, plan: PublishPlan) -> PublishPlan:
        """All tables as detached versions."""
        assert isinstance(plan.change, DataChange)
        if txn.pending and plan.change.actions:
            raise TooLargeToShare
        return self._restage(txn, plan, plan.writes, from_scratch=True)

    def restage(self, txn: WriteTxn, plan: PublishPlan, tables: frozenset[TableKey], from_scratch: bool) -> PublishPlan:
        """Derive again, on another base, what was derived from the base of these tables (`rebase`)."""
        assert isinstance(plan.change, DataChange)
        if not plan.inline:
            return self._restage(txn, plan, tables, from_scratch)
        small = small_actions([action for action in plan.change.actions if action.table in tables], self._settings)
        assert small is not None, "what was small is small on any base"
        # Rows whose ids nobody else can have used are the same on any base.
        same = {
            key: rebase_inline(txn, key, plan.inline[key]) for key in small if all(map(has_only_new_ids, small[key]))
        }
        others = {key: actions for key, actions in small.items() if key not in same}
        return plan.with_inline({**plan.inline, **same, **inline_tables(self._tables, txn, others, again=True)})

    def _restage(
        self, txn: WriteTxn, plan: PublishPlan, tables: frozenset[TableKey], from_scratch: bool
    ) -> PublishPlan:
        assert isinstance(plan.change, DataChange)
        groups = _by_table(plan.change.actions, tables)
        previous = {} if from_scratch else plan.staged

        def one(key: TableKey, actions: Sequence[TableAction]) -> StagedTable | None:
            ref = txn.table(key)
            if key in plan.staged and ref is not None:
                self._refuse_taken(ref, actions, plan.staged[key])
            made = self._carried(txn, key, actions, previous.get(key)) or self._fresh(txn, key, actions)
            if made is None:
                return None
            made = made if _rows_written(actions) < INDEXED_ROWS_MIN else self._indexed(txn, key, made)
            return replace(made, files=self._tables.new_files(made.base, made.at))

        results = gather([partial(one, key, actions) for key, actions in groups.items()])
        kept = {key: table for key, table in plan.staged.items() if key not in groups}
        made = {key: table for key, table in zip(groups, results, strict=True) if table is not None}
        return plan.with_staged({**kept, **made})

    def _carried(
        self, txn: WriteTxn, key: TableKey, actions: Sequence[TableAction], previous: StagedTable | None
    ) -> StagedTable | None:
        """Appended fragments as they are on the new version, if they share no id with what came."""
        ref, content = txn.table(key), txn.content(key)
        if previous is None or previous.carryable is None or previous.base is None or ref is None or content is None:
            return None
        if ref.stored is None or previous.at.table_id != ref.stored.table_id:
            return None
        # `whole-tail`: the version has the tail in it.
        at = self._tables.fold_tail(content, self._ids.short_id(), _schema_of(txn, key)).at
        if isinstance(actions[0], Upsert) and self._tables.written_since(at, previous.base, previous.carryable.ids):
            return None
        carried = self._tables.append_fragments(at, previous.carryable)
        columns = txn.base.schema
        return StagedTable(carried.at, carried.rows, previous.counts, ref.stored, ref.tail, carried.appended, columns)

    def _refuse_taken(self, ref: TableRef, actions: Sequence[TableAction], previous: StagedTable) -> None:
        """An append must not meet rows that came with its ids: Lance would keep both, and no check may have looked."""
        base = previous.base
        for action in actions:
            if isinstance(action, Append) and not action.fresh_ids:
                ids = texts(action.rows, "id")
                if (
                    ref.stored is not None
                    and not ref.tail
                    and base is not None
                    and base.table_id == ref.stored.table_id
                ):
                    taken = self._tables.written_since(ref.stored, base, ids)
                else:
                    taken = self._tables.exists(ref.content, ids)
                raise_violations(already_exists(action.table, taken))

    def _fresh(self, txn: WriteTxn, key: TableKey, actions: Sequence[TableAction]) -> StagedTable | None:
        """The actions one after another, each on the version that the one before made; the first takes the tail in."""
        ref = txn.table(key)
        at = None if ref is None else ref.content
        rows = 0 if ref is None else ref.rows
        touch = NO_ROWS
        carryable = None
        for action in actions:
            result = self._apply(at, action, _schema_of(txn, key))
            if result is not None:
                touch = _with(touch, action, rows, result.rows)
                at, rows = result.at, result.rows
                # Rows of the tail that were written beside them may be in the other version already.
                alone = len(actions) == 1 and ref is not None and not ref.tail
                carryable = result.appended if alone else None
        if at is None:
            return None  # deleting from a type that has no rows
        assert isinstance(at, TableVersion), "every action makes a version"
        stored, tail = (None, ()) if ref is None else (ref.stored, ref.tail)
        return StagedTable(at, rows, touch, stored, tail, carryable, txn.base.schema)

    def _indexed(self, txn: WriteTxn, key: TableKey, made: StagedTable) -> StagedTable:
        """With segments of the declared indexes over the rows that came, as one more version.

        Segments are never carried: they name row addresses, which are others on another base.
        """
        since = made.base if made.base is not None and made.base.table_id == made.at.table_id else None
        return replace(made, at=self._tables.index_new_rows(made.at, since, declared_indexes(txn.catalog.type_of(key))))

    def _apply(self, at: TableContent | None, action: TableAction, schema: "pa.Schema") -> DetachedVersion | None:
        tables, fresh_id = self._tables, self._ids.short_id
        match action:
            case Delete(_, ids):
                if at is None:
                    return None
                if isinstance(at, VersionWithTail):
                    return tables.fold(at, Overlay.of(None, ids), fresh_id(), schema)
                return tables.delete(at, ids)
            case Overwrite(_, rows):
                stored = at.stored if isinstance(at, VersionWithTail) else at  # nothing of what lies on top survives
                return tables.create(fresh_id(), rows) if stored is None else tables.overwrite(stored, rows)
            case Append(_, rows) | Upsert(_, rows) | Create(_, rows):
                if at is None:
                    return tables.create(fresh_id(), rows)
                if isinstance(at, VersionWithTail):
                    return tables.fold(at, Overlay.of(rows, new=not isinstance(action, Upsert)), fresh_id(), schema)
                return tables.upsert(at, rows) if isinstance(action, Upsert) else tables.append(at, rows)
            case Drop() | Rewrite() | Index() | Bulk() | Reshape() | Move():
                raise AssertionError(f"{action} is staged by the verb that plans it")


def _schema_of(txn: WriteTxn, key: TableKey) -> "pa.Schema":
    from omnigraph.schema.arrow import arrow_schema

    return arrow_schema(txn.catalog.type_of(key))


def _rows_written(actions: Sequence[TableAction]) -> int:
    counts = (action.count for action in actions if isinstance(action, Append | Upsert))
    return sum(counts) + sum(action.rows.num_rows for action in actions if isinstance(action, Create | Overwrite))


def _by_table(actions: Sequence[TableAction], tables: frozenset[TableKey]) -> dict[TableKey, list[TableAction]]:
    groups: dict[TableKey, list[TableAction]] = {}
    for action in actions:
        if action.table in tables and not isinstance(action, Drop):
            groups.setdefault(action.table, []).append(action)
    return groups


def _with(touch: RowCounts, action: TableAction, before: int, after: int) -> RowCounts:
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


NO_ROWS = RowCounts()

SmallAction: TypeAlias = Append | Upsert | Delete

WEIGHED_MIN = 8  # rows; fewer are encoded first, and `fits` compares the result with the limit


def small_actions(actions: Sequence[TableAction], settings: Settings) -> dict[TableKey, list[SmallAction]] | None:
    """The actions by table, if rows are all that they change and there are few; None otherwise."""
    groups: dict[TableKey, list[SmallAction]] = {}
    rows = size = 0
    for action in actions:
        match action:
            case Append() | Upsert():
                rows += action.count
                if rows > WEIGHED_MIN:
                    size += action.rows.nbytes
            case Delete():
                rows += len(action.ids)
            case _:
                return None
        if rows > settings.inline_rows or size > settings.inline_bytes:
            return None
        groups.setdefault(action.table, []).append(action)
    return groups


def inline_tables(
    tables: Tables, txn: WriteTxn, groups: Mapping[TableKey, Sequence[SmallAction]], *, again: bool = False
) -> dict[TableKey, InlineTable]:
    """What the actions of each table amount to on this base.

    `again`: they were planned on another base, where appended ids were seen to be new, and what was known may no
    longer be true.
    """
    return {key: _inline(tables, txn, key, actions, again=again) for key, actions in groups.items()}


def has_only_new_ids(action: SmallAction) -> bool:
    return isinstance(action, Append) and action.fresh_ids


def rebase_inline(txn: WriteTxn, key: TableKey, made: InlineTable) -> InlineTable:
    """The same rows on another base, where they amount to the same."""
    return InlineTable(made.change, made.overlay, made.counts, txn.base.changed_at(key))


def fits(inline: Mapping[TableKey, InlineTable], settings: Settings) -> bool:
    return sum([change_size(made.change) for made in inline.values()]) <= settings.inline_bytes


def _inline(
    tables: Tables, txn: WriteTxn, key: TableKey, actions: Sequence[SmallAction], *, again: bool
) -> InlineTable:
    present = _present(tables, txn, key, actions, again=again)
    touch, overlay = NO_ROWS, Overlay.EMPTY
    deletes: set[str] = set()
    for action in actions:
        ids = _ids(action)
        there = ids & present
        match action:
            case Delete():
                touch = RowCounts(touch.inserted, touch.updated, touch.deleted + len(there))
                overlay, present = overlay.compose(Overlay.of(None, there)), present - ids
                deletes |= there
            case Append() | Upsert():
                if there and isinstance(action, Append):
                    raise_violations(already_exists(key, there))
                touch = RowCounts(touch.inserted + len(ids) - len(there), touch.updated + len(there), touch.deleted)
                overlay, present = overlay.compose(_overlay_of(action, ids, new=not there)), present | ids
    change = encode_change(overlay, deletes, new=not touch.updated)
    return InlineTable(change, overlay, touch, txn.base.changed_at(key))


def _ids(action: SmallAction) -> frozenset[str]:
    if isinstance(action, Delete):
        return frozenset(action.ids)
    return frozenset(unique_ids(action.rows)) if action.overlay is None else action.overlay.ids


def _overlay_of(action: Append | Upsert, ids: frozenset[str], *, new: bool) -> Overlay:
    if action.overlay is not None:
        return action.overlay.as_new(new)
    return Overlay.of_rows(action.rows, ids, new) if ids else Overlay.EMPTY


def _present(
    tables: Tables, txn: WriteTxn, key: TableKey, actions: Sequence[SmallAction], *, again: bool
) -> frozenset[str]:
    """Which of the ids that the actions are about have rows, as far as that matters."""
    known: set[str] = set()
    asked: set[str] = set()
    for action in actions:
        match action:
            case Append():
                if again and not action.fresh_ids:
                    asked |= _ids(action)
            case Upsert() | Delete():
                if action.known is not None and not again:
                    known |= action.known
                else:
                    asked |= _ids(action)
    if not asked:
        return frozenset(known)
    content = txn.content(key)
    return frozenset(known) if content is None else tables.exists(content, asked) | known
