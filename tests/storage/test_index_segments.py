"""Index segments of staged writes: they make lookups quick and never decide what is found."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import omnigraph
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import (
    Append,
    ConflictPolicy,
    DataChange,
    Delete,
    Overwrite,
    PublishPlan,
    TableAction,
    Upsert,
)
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.settings import Settings
from omnigraph.schema.arrow import arrow_schema
from omnigraph.schema.indexes import DeclaredIndex, declared_indexes
from omnigraph.schema.lang.compile import compile_schema
from omnigraph.storage.table import fsync
from omnigraph.storage.table.index import segments as index_segments
from omnigraph.storage.table.index.segments import INDEXED_ROWS_MIN, unindexed_fragments
from omnigraph.storage.table.tables import Tables, TableVersion
from omnigraph.write import stage
from omnigraph.write.stage import Stager
from support.arrow import values_of
from support.catalogs import ids_of
from support.s3 import S3Location

SCHEMA = """
node Doc {
    slug: String @key
    title: String? @index
    count: I64? @index
    vast: U64? @index
    ratio: F64? @index
    ok: Bool? @index
    day: Date? @index
    seen: DateTime? @index
    role: enum(a, b)? @index
    vec: Vector(4)? @index
}
edge Cites: Doc -> Doc { since: Date? @index }
"""
CATALOG = compile_schema(SCHEMA).catalog
DOC, CITES = "node:Doc", "edge:Cites"
INDEXES = declared_indexes(CATALOG.type_of(DOC))
COLUMN = {prop.name: prop.column for prop in CATALOG.type_of(DOC).properties}
STAGED = Settings(inline_rows=0)
WORDS = ["graph", "running", "table", "storage", "write"]


def docs(*numbers: int, salt: int = 0) -> pa.Table:
    """Documents whose values follow from their number and the salt, with a null in every seventh."""
    rng = np.random.default_rng([salt, *numbers[:1]])
    vectors = rng.normal(size=(len(numbers), 4)).astype(np.float32).tolist()

    def or_null(values: list[Any]) -> list[Any]:
        return [None if (n + salt) % 7 == 0 else value for n, value in zip(numbers, values, strict=True)]

    ids = [f"d{n}" for n in numbers]
    start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    values = {
        "slug": ids,
        "title": or_null([f"{WORDS[n % 5]} {WORDS[(n + salt) % 3]} w{n % 11}" for n in numbers]),
        "count": or_null([(n * 31 + salt) % 13 - 5 for n in numbers]),
        "vast": or_null([2**64 - 1 - (n + salt) % 9 for n in numbers]),
        "ratio": or_null([(n + salt) % 5 / 2 for n in numbers]),
        "ok": or_null([(n + salt) % 2 == 0 for n in numbers]),
        "day": or_null([dt.date(2026, 1, 1) + dt.timedelta(days=(n + salt) % 20) for n in numbers]),
        "seen": or_null([start + dt.timedelta(hours=(n + salt) % 50) for n in numbers]),
        "role": or_null(["ab"[(n + salt) % 2] for n in numbers]),
        "vec": or_null(vectors),
    }
    columns = {"id": ids} | {COLUMN[name]: column for name, column in values.items()}
    return pa.Table.from_pydict(columns, schema=arrow_schema(CATALOG.type_of(DOC)))


FILTERS = [
    "id = 'd3'",
    "id IN ('d1', 'd5', 'd20', 'zzz')",
    f"{COLUMN['slug']} = 'd7'",
    f"{COLUMN['count']} = 3",
    f"{COLUMN['count']} < 0",
    f"{COLUMN['vast']} = 18446744073709551615",
    f"{COLUMN['ok']} = true",
    f"{COLUMN['day']} >= date '2026-01-11'",
    f"{COLUMN['seen']} < timestamp '2026-01-02 00:00:00'",
    f"{COLUMN['role']} = 'a'",
    f"{COLUMN['role']} IS NULL",
    f"{COLUMN['title']} = 'graph running w0'",
    f"{COLUMN['ratio']} > 1.0",
]


def selected(tables: Tables, at: TableVersion, where: str, use_index: bool) -> list[Any]:
    scanner: Any = tables.open(at).scanner(columns=["id"], filter=where, use_scalar_index=use_index)
    return sorted(scanner.to_table().column("id").to_pylist())


def assert_indexes_tell_no_lies(tables: Tables, at: TableVersion) -> None:
    """Every answer through an index is that of looking at every row."""
    rows = tables.open(at).to_table(columns=["id", COLUMN["title"]])
    ids = rows.column("id").to_pylist()
    assert len(set(ids)) == len(ids)
    for where in FILTERS:
        assert selected(tables, at, where, True) == selected(tables, at, where, False), where
    for word in WORDS:
        found = tables.search_text(at, COLUMN["title"], "search", word, with_ids=True)
        assert found.ids is not None
        mask = pc.match_substring(rows.column(COLUMN["title"]), word)
        assert sorted(values_of(found.ids)) == ids_of(rows.filter(mask)), word


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return omnigraph.init(str(tmp_path / "g"), CATALOG, {"fsync": "false"}, settings=STAGED)


@pytest.fixture
def small_writes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments for writes of a handful of rows: what ten thousand do is not different, but slower to try."""
    monkeypatch.setattr(index_segments, "INDEXED_ROWS_MIN", 4)
    monkeypatch.setattr(stage, "INDEXED_ROWS_MIN", 4)
    monkeypatch.setattr(index_segments, "VECTORS_MIN", 4)


def at_head(graph: Graph, key: str = DOC) -> TableVersion:
    ref = graph.repository.snapshot("main").table(key)
    assert ref is not None
    assert ref.stored is not None
    return ref.stored


def index_names(tables: Tables, at: TableVersion) -> dict[str, int]:
    return {index.name: len(index.segments) for index in tables.open(at).describe_indices()}


def test_a_large_write_brings_every_declared_index_in_the_same_commit(graph: Graph) -> None:
    graph.write([Append(DOC, docs(*range(INDEXED_ROWS_MIN)))])
    graph.write([Append(DOC, docs(*range(20_000, 20_000 + 2 * INDEXED_ROWS_MIN), salt=1))])

    tables, at = graph.repository.tables, at_head(graph)
    segments = index_names(tables, at)
    # Nulls leave the first write fewer vectors than are worth an index.
    assert segments == {index.name: 1 if index.kind == "vector" else 2 for index in INDEXES}
    for index in INDEXES:
        assert len(unindexed_fragments(tables.open(at), index)) == (1 if index.kind == "vector" else 0)
    assert [commit.kind for commit in graph.commits()] == ["mutation", "mutation", "init"]
    plan: str = tables.open(at).scanner(columns=["id"], filter="id = 'd3'").explain_plan(True)
    assert "ScalarIndexQuery" in plan
    assert_indexes_tell_no_lies(tables, at)


def test_a_smaller_write_adds_none_and_its_rows_are_found(graph: Graph) -> None:
    graph.write([Append(DOC, docs(*range(INDEXED_ROWS_MIN)))])
    graph.write([Append(DOC, docs(*range(20_000, 20_000 + INDEXED_ROWS_MIN - 1), salt=1))])

    tables, at = graph.repository.tables, at_head(graph)
    assert set(index_names(tables, at).values()) == {1}
    assert selected(tables, at, "id = 'd20000'", True) == ["d20000"]
    assert_indexes_tell_no_lies(tables, at)


def test_overwriting_with_many_rows_indexes_them_and_forgets_what_was(graph: Graph) -> None:
    graph.write([Append(DOC, docs(*range(INDEXED_ROWS_MIN)))])
    graph.write([Overwrite(DOC, docs(*range(5, 5 + INDEXED_ROWS_MIN), salt=2))])

    tables, at = graph.repository.tables, at_head(graph)
    assert index_names(tables, at)["id_btree"] == 1
    assert_indexes_tell_no_lies(tables, at)


def test_ends_of_edges_are_indexed(graph: Graph) -> None:
    count = INDEXED_ROWS_MIN
    graph.write([Append(DOC, docs(*range(10)))])
    ends = {"src": [f"d{n % 10}" for n in range(count)], "dst": [f"d{n % 7}" for n in range(count)]}
    columns = {"id": [f"e{n}" for n in range(count)], **ends}
    schema = arrow_schema(CATALOG.type_of(CITES))
    rows = pa.table([pa.array(columns.get(f.name, [None] * count), f.type) for f in schema], schema=schema)
    graph.write([Append(CITES, rows)])

    tables, at = graph.repository.tables, at_head(graph, CITES)
    assert {"id_btree", "src_btree", "dst_btree"} <= index_names(tables, at).keys()
    assert tables.open(at).count_rows(filter="src = 'd3'") == count // 10


def restaged(graph: Graph, base: WriteTxn, action: TableAction, then: list[TableAction]) -> TableVersion:
    """Stage on `base`, let others commit, then stage again as a writer that lost the race does."""
    repository = graph.repository
    stager = Stager(repository.tables, repository.runtime.ids, repository.settings)
    plan = PublishPlan("t" * 26, ConflictPolicy.CONSTRUCTIVE, DataChange("mutation", (action,)))
    staged = stager.stage(base, plan)
    graph.write(then)
    again = stager.restage(repository.open_txn("main"), staged, frozenset({DOC}), from_scratch=False)
    table = again.staged[DOC]
    assert table.carryable is not None
    assert table.carryable is staged.staged[DOC].carryable, "the rows were carried, not written again"
    return table.at


@pytest.mark.usefixtures("small_writes_count")
def test_rows_that_are_carried_to_another_version_get_segments_of_their_own(graph: Graph) -> None:
    graph.write([Append(DOC, docs(*range(10)))])
    base = graph.begin()
    at = restaged(
        graph,
        base,
        Append(DOC, docs(*range(20, 40))),
        [Append(DOC, docs(*range(50, 60), salt=1)), Delete(DOC, ("d1",))],
    )

    tables = graph.repository.tables
    assert unindexed_fragments(tables.open(at), INDEXES[0]) == []
    assert_indexes_tell_no_lies(tables, at)
    assert selected(tables, at, "id = 'd25'", True) == ["d25"]
    assert selected(tables, at, "id = 'd1'", True) == []


Steps = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "upsert", "delete", "carry", "overwrite"]),
        st.integers(0, 30),
        st.integers(1, 9),
    ),
    min_size=1,
    max_size=6,
)


def check_after(folder: Path, steps: list[tuple[str, int, int]]) -> None:
    graph = omnigraph.init(str(folder), CATALOG, {"fsync": "false"}, settings=STAGED)
    tables = graph.repository.tables
    graph.write([Append(DOC, docs(*range(6)))])
    fresh = iter(range(1000, 10_000, 10))
    for salt, (kind, first, count) in enumerate(steps, 1):
        some = range(first, first + count)
        new = next(fresh)
        match kind:
            case "append":
                graph.write([Append(DOC, docs(*range(new, new + count), salt=salt))])
            case "upsert":
                graph.write([Upsert(DOC, docs(*some, salt=salt))])
            case "delete":
                graph.write([Delete(DOC, tuple(f"d{n}" for n in some))])
            case "overwrite":
                graph.write([Overwrite(DOC, docs(*some, salt=salt))])
            case "carry":
                appended = Append(DOC, docs(*range(new, new + count), salt=salt))
                other = Upsert(DOC, docs(*some, salt=salt + 100))
                assert_indexes_tell_no_lies(tables, restaged(graph, graph.begin(), appended, [other]))
        assert_indexes_tell_no_lies(tables, at_head(graph))


@pytest.mark.usefixtures("small_writes_count")
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(Steps)
def test_after_any_sequence_of_writes_indexes_answer_as_scans_do(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]
) -> None:
    check_after(tmp_path_factory.mktemp("g"), steps)


@pytest.mark.soak
@pytest.mark.usefixtures("small_writes_count")
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(Steps)
def test_after_hundreds_of_other_sequences_indexes_answer_as_scans_do(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]
) -> None:
    check_after(tmp_path_factory.mktemp("g"), steps)


@pytest.mark.usefixtures("small_writes_count")
def test_every_file_of_a_segment_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = omnigraph.init(str(tmp_path / "g"), CATALOG, settings=STAGED)
    synced: set[Path] = set()

    def note(path: Path) -> None:
        synced.add(path)

    monkeypatch.setattr(fsync, "_sync_file", note)
    graph.write([Append(DOC, docs(*range(30)))])

    written = {Path(folder) / name for folder, _, names in os.walk(tmp_path / "g" / "tables") for name in names}
    assert {path for path in written if "_indices" in path.parts}
    assert written <= synced


@pytest.mark.s3
@pytest.mark.usefixtures("small_writes_count")
def test_segments_on_s3(s3: S3Location) -> None:
    graph = omnigraph.init(f"{s3.uri}/g", CATALOG, s3.options, settings=STAGED)
    graph.write([Append(DOC, docs(*range(20)))])
    graph.write([Upsert(DOC, docs(*range(10, 30), salt=1))])

    tables, at = graph.repository.tables, at_head(graph)
    assert index_names(tables, at)["id_btree"] == 2
    assert_indexes_tell_no_lies(tables, at)


def test_a_column_that_the_table_lacks_is_passed_over(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_segments, "INDEXED_ROWS_MIN", 1)
    tables = graph.repository.tables
    staged = tables.create("t1", docs(*range(5)).select(["id", COLUMN["title"]]))

    indexed = tables.index_new_rows(staged.at, None, [*INDEXES, DeclaredIndex("gone", "btree")])

    assert index_names(tables, indexed).keys() == {
        "id_btree",
        f"{COLUMN['title']}_btree",
        f"{COLUMN['title']}_full_text",
    }
