"""A small graph with a past: people who change, maintenance that must not show, and a cleanup's traces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

import omnigraph
from omnigraph.graph.graph import Graph, GraphSnapshot
from omnigraph.manifest.commit.plan import (
    ConflictPolicy,
    DataChange,
    Delete,
    PublishPlan,
    RaiseFence,
    Rewrite,
    StagedTable,
    TableAction,
    Upsert,
)
from omnigraph.manifest.model.manifest import MAIN, Manifest, Point, RowCounts
from omnigraph.manifest.store.stub_index import StubIndex
from omnigraph.schema.arrow import arrow_schema

SCHEMA = """
node Person { slug: String @key  name: String?  age: I32?  tags: [String]?  score: F64? }
node Company { name: String @key }
edge Knows: Person -> Person { since: I32? }
"""
NO_FSYNC = {"fsync": "false"}
Entities: TypeAlias = dict[tuple[str, str], dict[str, Any]]  # (type, id) to its image


def make_graph(place: Path, schema: str = SCHEMA) -> Graph:
    return omnigraph.init(place, schema, NO_FSYNC)


def run(graph: Graph, body: str, branch: str = MAIN, actor: str | None = None) -> str:
    """Run the statements of a mutation; the id of its commit."""
    commit = graph.mutate(f"query q() {{ {body} }}", branch=branch, actor=actor)
    assert commit is not None
    return commit.id


def person(slug: str, **values: Any) -> str:
    given = "".join(f", {name}: {_literal(value)}" for name, value in values.items())
    return f'insert Person {{ slug: "{slug}"{given} }} '


def update(slug: str, **values: Any) -> str:
    given = ", ".join(f"{name}: {_literal(value)}" for name, value in values.items())
    return f'update Person set {{ {given} }} where slug = "{slug}" '


def delete(slug: str) -> str:
    return f'delete Person where slug = "{slug}" '


def _literal(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    return "null" if value is None else f'"{value}"' if isinstance(value, str) else repr(value)


def write_people(graph: Graph, put: dict[str, dict[str, Any]], gone: Sequence[str] = (), branch: str = MAIN) -> str:
    """Persons by slug with all their values, and the slugs of those that go, as one commit."""
    shape = arrow_schema(graph.repository.snapshot(branch).catalog.by_name["Person"])
    rows = [dict.fromkeys(shape.names) | {"id": slug, "slug": slug} | values for slug, values in put.items()]
    actions: list[TableAction] = [Delete("node:Person", tuple(gone))] if gone else []
    if rows:
        actions.append(Upsert("node:Person", pa.Table.from_pylist(rows, schema=shape)))
    commit = graph.write(actions, branch=branch)
    assert commit is not None
    return commit.id


def content(graph: Graph, reference: str = MAIN) -> Entities:
    """All entities of a state, by property names."""
    snapshot = graph.repository.resolve(reference)
    found: Entities = {}
    for definition in snapshot.catalog.types:
        rows = GraphSnapshot(snapshot, graph.repository).to_arrow(definition.table_key)
        names = {definition.column(name): name for name in (*definition.physical_columns, *definition.by_name)}
        for row in rows.to_pylist():
            found[definition.name, row["id"]] = {names[column]: value for column, value in row.items()}
    return found


def compact(graph: Graph, key: str = "node:Person", branch: str = MAIN) -> str:
    """Rewrite a type's rows into other files, as maintenance; the id of its commit."""
    txn = graph.repository.open_txn(branch)
    ref = txn.base.tables[key]
    content, tables = txn.content(key), graph.repository.tables
    assert content is not None
    at = tables.fold_tail(content, graph.repository.runtime.ids.short_id()).at
    made = tables.overwrite(at, tables.scan(at)).at
    staged = StagedTable(made, ref.rows, RowCounts(), ref.stored, ref.tail)
    change = DataChange("optimize", (Rewrite(key),), {key: staged})
    plan = PublishPlan(graph.repository.runtime.ids.txn_id(), ConflictPolicy.MAINTENANCE, change)
    published = graph.repository.publisher.publish(txn, plan)
    assert published is not None
    return published.id


def expire(graph: Graph, oldest_retained: int, branch: str = MAIN, *, keep: tuple[int, ...] = ()) -> Manifest:
    """A fence, then stubs for what is older, as a cleanup leaves them; `keep` are those that a tag names.

    What a retained state has in its tails stays too.
    """
    txn = graph.repository.open_txn(branch)
    plan = PublishPlan(graph.repository.runtime.ids.txn_id(), ConflictPolicy.MAINTENANCE, RaiseFence(oldest_retained))
    graph.repository.publisher.publish(txn, plan)
    manifests = graph.repository.manifests
    numbers = range(1, txn.base.manifest_version + 1)
    entries = {number: manifests.read(Point(txn.base.branch_id, number)) for number in numbers}
    retained = [entry for number, entry in entries.items() if number >= oldest_retained or number in keep]
    named = {
        one.manifest_version
        for entry in retained
        if isinstance(entry, Manifest)
        for ref in entry.tables.values()
        for one in ref.tail
    }
    for number in range(1, oldest_retained):
        entry = entries[number]
        if isinstance(entry, Manifest) and number not in {*keep, *named}:
            manifests.replace_with_stub(entry)
    rows = tuple(sorted(number for number in named if number < oldest_retained and number not in keep))
    manifests.update_stub_index(txn.base.branch_id, StubIndex(oldest_retained, keep, rows))
    return graph.repository.branches.find(branch).head
