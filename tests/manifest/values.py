"""Manifests and plans as plain values, for the pure parts: no store, no clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from omnigraph.manifest.model import Fence, Manifest, TableKey, TableRef, Tombstone, Touch
from omnigraph.manifest.plan import Append, Change, PublishPlan, Rewrite, StagedTable, Stance, TableAction
from omnigraph.manifest.txn import WriteTxn

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
BRANCH_ID = "aaaaaaaaaaaaa"
ONE_INSERTED = Touch(inserted=1)


def ref(version: int = 1, changed_at: str = "aaaaaaaaaaaaa.1", table_id: str = "t1", rows: int = 1) -> TableRef:
    return TableRef(table_id, version, rows, changed_at)


def manifest(number: int = 1, tables: dict[TableKey, TableRef] | None = None, **more: Any) -> Manifest:
    values: dict[str, Any] = {
        "branch": "main",
        "branch_id": BRANCH_ID,
        "manifest_version": number,
        "schema": "sha256:one",
        "logical_head": f"{BRANCH_ID}.{number}",
        "authored_at": NOON,
        "ancestry": {BRANCH_ID: number},
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


def staged_on(base: Manifest, key: TableKey, touch: Touch = ONE_INSERTED, version: int = 77) -> StagedTable:
    """What staging a change of this table on this base makes."""
    found = base.tables.get(key)
    if found is None:
        return StagedTable(f"new-{key}", 1, touch.inserted, touch, None)
    return StagedTable(
        found.table_id, version, found.rows + touch.inserted, touch, (found.table_id, found.table_version)
    )


def plan(
    stance: Stance,
    base: Manifest,
    *,
    writes: Iterable[TableKey] = (),
    reads: Iterable[TableKey] = (),
    read_rows: Iterable[TableKey] = (),
    stages: bool = True,
    **more: Any,
) -> PublishPlan:
    """A plan of one action for every table that it writes."""
    keys = sorted(writes)
    actions: tuple[TableAction, ...] = tuple(
        Rewrite(key) if stance is Stance.MAINTENANCE else Append(key, None)  # type: ignore[arg-type]
        for key in keys
    )
    touch = Touch() if stance is Stance.MAINTENANCE else ONE_INSERTED
    staged = {key: staged_on(base, key, touch) for key in keys} if stages else {}
    return PublishPlan(
        "txn",
        stance,
        Change("test", actions, staged),
        checks=(Relies(frozenset(reads)),),
        read_rows=frozenset(read_rows),
        **more,
    )
