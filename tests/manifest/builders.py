"""Manifests and plans as plain values, for the pure parts: no store, no clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from omnigraph.manifest.commit.plan import (
    Append,
    ConflictPolicy,
    DataChange,
    InlineTable,
    PublishPlan,
    Rewrite,
    StagedTable,
    TableAction,
)
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.model.manifest import (
    Fence,
    InlineChange,
    Manifest,
    Position,
    RowCounts,
    TableKey,
    TableRef,
    Tombstone,
)
from omnigraph.storage.table.handles import TableVersion
from omnigraph.storage.table.overlay import Overlay
from omnigraph.storage.table.table_content import Tail, TailEntry

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
BRANCH_ID = "aaaaaaaaaaaaa"
ONE_INSERTED = RowCounts(inserted=1)
ONE_ROW = pa.table({"id": ["new"]})


def ref(
    version: int = 1, changed_at: str = "aaaaaaaaaaaaa.1", table_id: str = "t1", rows: int = 1, tail: Tail = ()
) -> TableRef:
    return TableRef(TableVersion(table_id, version), rows, changed_at, tail, columns="sha256:one")


def entry(number: int, key: TableKey) -> TailEntry:
    """Rows of a small commit."""
    return TailEntry(BRANCH_ID, number, key, 10)


def manifest(number: int = 1, tables: dict[TableKey, TableRef] | None = None, **more: Any) -> Manifest:
    values: dict[str, Any] = {
        "branch": "main",
        "branch_id": BRANCH_ID,
        "manifest_version": number,
        "schema": "sha256:one",
        "logical_head": f"{BRANCH_ID}.{number}",
        "authored_at": NOON,
        "ancestry": {BRANCH_ID: Position(number)},
        "tables": tables or {},
    }
    return Manifest(**(values | more))


TOMBSTONE = Tombstone("grave", None)


def fence(previous: int = 0, *honoured: str) -> Fence:
    return Fence(previous, honoured)


@dataclass(frozen=True)
class Relies:
    """A check that reads these tables and is content with anything."""

    reads: frozenset[TableKey]

    def run(self, txn: WriteTxn, tables: object) -> None:
        pass


def staged_on(base: Manifest, key: TableKey, touch: RowCounts = ONE_INSERTED, version: int = 77) -> StagedTable:
    """What staging a change of this table on this base makes."""
    found = base.tables.get(key)
    if found is None:
        return StagedTable(TableVersion(f"new-{key}", 1), touch.inserted, touch, None)
    table_id = f"new-{key}" if found.stored is None else found.stored.table_id
    return StagedTable(
        TableVersion(table_id, version), found.rows + touch.inserted, touch, found.stored, folded=found.tail
    )


def inline_on(base: Manifest, key: TableKey) -> InlineTable:
    """What one new row of this table is on this base, in the manifest itself."""
    found = base.tables.get(key)
    overlay = Overlay.of(ONE_ROW, new=True)
    return InlineTable(InlineChange(b"rows", new=True), overlay, ONE_INSERTED, found.changed_at if found else None)


def plan(
    stance: ConflictPolicy,
    base: Manifest,
    *,
    writes: Iterable[TableKey] = (),
    reads: Iterable[TableKey] = (),
    read_rows: Iterable[TableKey] = (),
    stages: bool = True,
    inline: bool = False,
    **more: Any,
) -> PublishPlan:
    """A plan of one action for every table that it writes."""
    keys = sorted(writes)
    actions: tuple[TableAction, ...] = tuple(
        Rewrite(key) if stance is ConflictPolicy.MAINTENANCE else Append(key, ONE_ROW) for key in keys
    )
    touch = RowCounts() if stance is ConflictPolicy.MAINTENANCE else ONE_INSERTED
    staged = {key: staged_on(base, key, touch) for key in keys} if stages and not inline else {}
    small = {key: inline_on(base, key) for key in keys} if inline else {}
    return PublishPlan(
        "txn",
        stance,
        DataChange("test", actions, staged, small),
        checks=(Relies(frozenset(reads)),),
        read_rows=frozenset(read_rows),
        **more,
    )
