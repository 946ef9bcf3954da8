"""Small commits: a plan's rows encoded for the manifest itself. Nothing is written to any table."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from omnigraph.manifest.commit.conflicts import changed_at
from omnigraph.manifest.commit.plan import Append, Delete, InlineTable, TableAction, Upsert
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.model.manifest import RowCounts, TableKey
from omnigraph.manifest.settings import Settings
from omnigraph.manifest.store.inline_rows import change_size, encode_change
from omnigraph.storage.table.overlay import Overlay, unique_ids
from omnigraph.storage.table.tables import Tables
from omnigraph.write.validate.violations import already_exists, raise_violations

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
    return InlineTable(made.change, made.overlay, made.counts, changed_at(txn.base, key))


def fits(inline: Mapping[TableKey, InlineTable], settings: Settings) -> bool:
    return sum([change_size(made.change) for made in inline.values()]) <= settings.inline_bytes


def _inline(
    tables: Tables, txn: WriteTxn, key: TableKey, actions: Sequence[SmallAction], *, again: bool
) -> InlineTable:
    present = _present(tables, txn, key, actions, again=again)
    touch, overlay = RowCounts(), Overlay.EMPTY
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
    return InlineTable(change, overlay, touch, changed_at(txn.base, key))


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
