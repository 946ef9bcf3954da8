"""Short ways to branch, change and merge a small graph: what the tests of merging share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import omnigraph
from omnigraph.errors import MergeConflicts
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import Delete, TableAction, Upsert
from omnigraph.manifest.model.manifest import Manifest
from omnigraph.merge.merge import MergeResult
from omnigraph.schema.arrow import arrow_schema

SCHEMA = """
node Person { slug: String @key  name: String?  age: I32?  email: String? @unique  @range(age, 0..150) }
node Company { name: String @key  city: String? }
edge Knows: Person -> Person { since: I32?  note: String? }
edge WorksAt: Person -> Company @card(0..1)
"""
QUICK = {"fsync": "false"}


@dataclass
class Merging:
    """A graph whose branches are changed by rows: `change("b", Person={"ada": {"age": 3}, "bob": None})`."""

    graph: Graph

    def change(self, branch: str = "main", /, **types: Mapping[str, Mapping[str, Any] | None]) -> None:
        """One commit: rows by id as they are from now on, None for those that go. What is not given stays."""
        actions: list[TableAction] = []
        catalog = self.graph.repository.snapshot(branch).catalog
        for name, rows in types.items():
            definition = catalog.by_name[name]
            gone = [entity for entity, row in rows.items() if row is None]
            stored = {row["id"]: row for row in self.rows(name, branch)}
            kept = [
                {**stored.get(entity, {}), **_keyed(definition.key, entity), **row, "id": entity}
                for entity, row in rows.items()
                if row is not None
            ]
            if gone:
                actions.append(Delete(definition.table_key, tuple(gone)))
            if kept:
                actions.append(Upsert(definition.table_key, pa.Table.from_pylist(kept, arrow_schema(definition))))
        self.graph.write(actions, branch=branch)

    def replace(self, branch: str, type_name: str, entity: str, row: Mapping[str, Any]) -> None:
        """Delete a row and insert another one with its id, in two commits."""
        self.change(branch, **{type_name: {entity: None}})
        self.change(branch, **{type_name: {entity: row}})

    def fork(self, name: str = "b", source: str = "main") -> str:
        self.graph.branches.create(name, source)
        return name

    def merge(self, source: str = "b", into: str = "main", **options: Any) -> MergeResult:
        return self.graph.branches.merge(source, into, **options)

    def conflicts(self, source: str = "b", into: str = "main") -> list[tuple[str, str, str]]:
        """The kinds, types and ids of the conflicts that refuse a merge, which leaves the target as it was."""
        before = self.head(into)
        try:
            result = self.merge(source, into)
        except MergeConflicts as refusal:
            assert self.head(into) == before
            return sorted((one.kind, one.type_name, one.entity_id) for one in refusal.conflicts)
        raise AssertionError(f"it was not refused: {result}")

    def rows(self, type_name: str, branch: str = "main") -> list[dict[str, Any]]:
        snapshot = self.graph.snapshot(branch)
        key = snapshot.pinned.catalog.by_name[type_name].table_key
        return sorted(snapshot.to_arrow(key).to_pylist(), key=lambda row: str(row["id"]))

    def row(self, type_name: str, entity: str, branch: str = "main") -> dict[str, Any] | None:
        return next((row for row in self.rows(type_name, branch) if row["id"] == entity), None)

    def ids(self, type_name: str, branch: str = "main") -> list[str]:
        return [row["id"] for row in self.rows(type_name, branch)]

    def head(self, branch: str = "main") -> Manifest:
        return self.graph.repository.branches.find(branch).head


def _keyed(key: tuple[str, ...], entity: str) -> dict[str, str]:
    return {key[0]: entity} if len(key) == 1 else {}


def make_merging(place: str | Path, schema: str = SCHEMA, options: Mapping[str, str] | None = None) -> Merging:
    return Merging(omnigraph.init(str(place), schema, QUICK if options is None else options))


def knows(source: str, target: str, **more: Any) -> dict[str, Any]:
    return {"src": source, "dst": target, **more}
