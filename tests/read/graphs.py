"""Graphs to read from: one schema with every kind of property, rows as dicts, stored and overlaid in any proportion."""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

import omnigraph
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import Append, TableAction
from omnigraph.manifest.settings import Settings
from omnigraph.query.compile import compile_queries
from omnigraph.query.ir import ReadQuery
from omnigraph.read.execute import run_query
from omnigraph.read.reader import ReadOptions, SnapshotReader
from omnigraph.read.result import QueryResult
from omnigraph.read.tables.read_cache import ReadCache
from omnigraph.schema.arrow import arrow_schema
from omnigraph.schema.catalog import Catalog
from omnigraph.schema.lang.compile import compile_schema
from omnigraph.storage.table.overlay import Overlay
from support import interpreter

SCHEMA = """
node Person {
    slug: String @key
    name: String?
    age: I32?
    big: I64?
    vast: U64?
    score: F64?
    weight: F32?
    ok: Bool?
    role: enum(ops, lead)?
    born: Date?
    seen: DateTime?
    tags: [String]?
    nums: [I32]?
    face: Vector(2)?
    data: Blob?
}
node City { name: String @key  size: I64? }
edge Knows: Person -> Person { since: Date?  weight: F32? }
edge LivesIn: Person -> City { kind: String? }
"""
CATALOG: Catalog = compile_schema(SCHEMA).catalog
PERSON, CITY, KNOWS, LIVES_IN = "node:Person", "node:City", "edge:Knows", "edge:LivesIn"
NOW = dt.datetime(2026, 1, 31, 12, 0, 0, tzinfo=dt.UTC)

Row = Mapping[str, Any]
Data = Mapping[str, Sequence[Row]]


def column_names(table_key: str) -> dict[str, str]:
    """Properties of a type by the columns they are kept in."""
    definition = CATALOG.type_of(table_key)
    return {prop.name: prop.column for prop in definition.properties} | {"id": "id", "src": "src", "dst": "dst"}


def stored_row(table_key: str, row: Row) -> dict[str, Any]:
    """A row by column instead of by property."""
    names = column_names(table_key)
    return {names[name]: value for name, value in row.items()}


def person(slug: str, **values: Any) -> dict[str, Any]:
    return {"id": slug, "slug": slug, **values}


def city(name: str, **values: Any) -> dict[str, Any]:
    return {"id": name, "name": name, **values}


def edge(src: str, dst: str, id: str | None = None, **values: Any) -> dict[str, Any]:
    return {"id": id or f"{src}->{dst}", "src": src, "dst": dst, **values}


def table(table_key: str, rows: Sequence[Row]) -> pa.Table:
    schema = arrow_schema(CATALOG.type_of(table_key))
    columns = [stored_row(table_key, row) for row in rows]
    return pa.Table.from_pylist(columns, schema=schema)


@contextmanager
def graph_of(
    data: Data, uri: str | None = None, options: Mapping[str, str] | None = None, *, stored: bool = False
) -> Iterator[Graph]:
    """A graph with these rows, on a local disk by default; `stored`: in tables, however few they are."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(inline_rows=0) if stored else Settings()
        graph = omnigraph.init(uri or f"{folder}/g", CATALOG, options or {"fsync": "false"}, settings=settings)
        write(graph, data)
        yield graph


def write(graph: Graph, data: Data, branch: str = "main") -> None:
    actions: list[TableAction] = [Append(key, table(key, rows)) for key, rows in data.items() if rows]
    if actions:
        graph.write(actions, branch=branch)


def reader_of(
    graph: Graph,
    overlays: Mapping[str, Overlay] | None = None,
    caches: ReadCache | None = None,
    branch: str = "main",
    **options: Any,
) -> SnapshotReader:
    repository = graph.repository
    return SnapshotReader(
        repository.tables,
        repository.snapshot(branch),
        caches or ReadCache(),
        overlays or {},
        repository.store,
        ReadOptions(**options),
    )


def bound(text: str, params: Mapping[str, object] | None = None, catalog: Catalog = CATALOG) -> ReadQuery:
    """A query's text, with or without its head, as bound IR."""
    whole = text if text.lstrip().startswith("query") else f"query q() {{ {text} }}"
    return compile_queries(whole, catalog).bind_read(params or {}, now=NOW)


def run(reader: SnapshotReader, text: str, params: Mapping[str, object] | None = None) -> QueryResult:
    return run_query(reader, bound(text, params, reader.snapshot.catalog), explain=True)


def interpreted(query: ReadQuery, data: Data) -> list[dict[str, Any]]:
    stored = {key: [stored_row(key, row) for row in rows] for key, rows in data.items()}
    return interpreter.run(query, stored)


# By cost, which for tables this small means in memory; always so; by lookups; and by lookups until that gets too much.
MODES: Mapping[str, Mapping[str, Any]] = {
    "auto": {},
    "csr": {"expand": "csr"},
    "index": {"expand": "index"},
    "mixed": {"resident_rows": 0, "frontier_max": 1},
}


def answers(data: Data, text: str, params: Mapping[str, object] | None = None) -> list[dict[str, Any]]:
    """The rows of a query, which every way of running it agrees on."""
    query = bound(text, params)
    expected = interpreted(query, data)
    with graph_of(data) as graph:
        for mode, options in MODES.items():
            found = run_query(reader_of(graph, **options), query).rows
            assert found == expected, mode
    return expected


def split(
    final: Sequence[Row], stored_ids: set[str], stale: Sequence[Row], deleted: Sequence[Row], table_key: str
) -> tuple[list[Row], Overlay]:
    """Rows to store, and the overlay that makes `final` of them: stale images are replaced, deleted rows shadowed."""
    stale_ids = {row["id"] for row in stale}
    final_ids = {row["id"] for row in final}
    gone = [row for row in deleted if row["id"] not in final_ids]
    kept = [row for row in final if row["id"] in stored_ids and row["id"] not in stale_ids]
    stored = [*kept, *(row for row in stale if row["id"] in final_ids), *gone]
    kept_ids = {row["id"] for row in kept}
    upserts = [row for row in final if row["id"] not in kept_ids]
    overlay = Overlay.of(table(table_key, upserts) if upserts else None, [row["id"] for row in gone])
    return stored, overlay


def names(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The values of one-column results."""
    return [next(iter(row.values())) for row in rows]
