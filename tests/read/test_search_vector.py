"""Vectors: exact among few, nearly so among many, and ranks that are fused."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import omnigraph
from omnigraph.errors import BadRequest
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import Append, Delete
from omnigraph.manifest.settings import Settings
from omnigraph.query.compile import compile_queries
from omnigraph.query.ir import STRING, Bm25, Literal, Nearest, Rrf
from omnigraph.read.reader import SnapshotReader
from omnigraph.read.search import vector
from omnigraph.read.search.embedding import OfflineEmbedder
from omnigraph.read.search.search import positions_by_score, rank_positions, rank_scores
from omnigraph.read.search.vector import distances, matrix_of
from omnigraph.read.tables.read_cache import ReadCache
from omnigraph.schema.arrow import arrow_schema
from omnigraph.schema.catalog import Catalog
from omnigraph.schema.definitions import Metric
from omnigraph.schema.lang.compile import compile_schema
from omnigraph.storage.table.index import segments as index_segments
from omnigraph.storage.table.overlay import Overlay
from omnigraph.write import stage
from support import interpreter
from support.s3 import S3Location

DOC = "node:Doc"
DIMENSION = 8


def catalog_of(metric: Metric = "cosine", dimension: int = DIMENSION) -> Catalog:
    declared = f'slug: String @key  body: String? @index  vec: Vector({dimension})? @embed("body") @index'
    return compile_schema(f'node Doc {{ {declared}(metric="{metric}") }}').catalog


STORED = Settings(inline_rows=0)  # however few rows there are
CATALOG = catalog_of()
Row = tuple[str | None, Sequence[float] | None]


def table(rows: Mapping[str, Row], catalog: Catalog = CATALOG) -> pa.Table:
    definition = catalog.type_of(DOC)
    columns: dict[str, Any] = {
        "id": list(rows),
        definition.column("slug"): list(rows),
        definition.column("body"): [body for body, _ in rows.values()],
        definition.column("vec"): [vec for _, vec in rows.values()],
    }
    return pa.Table.from_pydict(columns, schema=arrow_schema(definition))


def reader_of(graph: Graph, overlay: Overlay = Overlay.EMPTY) -> SnapshotReader:
    overlays = {} if overlay.is_empty else {DOC: overlay}
    return SnapshotReader(graph.repository.tables, graph.repository.snapshot("main"), ReadCache(), overlays)


def new_graph(path: Path, catalog: Catalog = CATALOG) -> Graph:
    return omnigraph.init(str(path), catalog, {"fsync": "false"}, settings=STORED)


def nearest(query: Sequence[float] | str, catalog: Catalog = CATALOG) -> Nearest:
    text = 'query q() { match { $d: Doc } return { $d.id } order { nearest($d.vec, "x") } limit 1 }'
    found = compile_queries(text, catalog).bind_read({}, now=datetime(2026, 1, 1, tzinfo=UTC)).order[0].expr
    assert isinstance(found, Nearest)
    literal = Literal(query, STRING) if isinstance(query, str) else Literal(tuple(query), found.field.type)
    return Nearest(found.field, literal, found.metric)


def bm25(query: str) -> Bm25:
    text = 'query q() { match { $d: Doc } return { $d.id } order { bm25($d.body, "x") } }'
    found = compile_queries(text, CATALOG).bind_read({}, now=datetime(2026, 1, 1, tzinfo=UTC)).order[0].expr
    assert isinstance(found, Bm25)
    return Bm25(found.field, Literal(query, STRING))


def distances_of(reader: SnapshotReader, rank: Nearest, ids: Sequence[str], top: int | None = None) -> dict[str, Any]:
    values = rank_scores(reader, rank, pa.array(ids, pa.string()), top).to_pylist()
    return dict(zip(ids, values, strict=True))


POINTS: dict[str, Row] = {
    "east": (None, [1, 0, 0, 0, 0, 0, 0, 0]),
    "far east": (None, [5, 0, 0, 0, 0, 0, 0, 0]),
    "north": (None, [0, 1, 0, 0, 0, 0, 0, 0]),
    "west": (None, [-1, 0, 0, 0, 0, 0, 0, 0]),
    "zero": (None, [0] * 8),
    "null": (None, None),
}
EAST = [2.0, 0, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("stored", [0, 3, 6])
def test_distances_by_cosine(tmp_path: Path, stored: int) -> None:
    graph = new_graph(tmp_path / "g")
    if stored:
        kept = dict(list(POINTS.items())[:stored]) | {"gone": (None, EAST), "north": (None, EAST)}
        graph.write([Append(DOC, table(kept))])
    overlay = Overlay.of(table({**dict(list(POINTS.items())[stored:]), "north": POINTS["north"]}), ["gone"])
    reader = reader_of(graph, overlay)

    found = distances_of(reader, nearest(EAST), sorted(POINTS))

    assert found == {"east": 0.0, "far east": 0.0, "north": 1.0, "west": 2.0, "zero": None, "null": None}
    assert distances_of(reader, nearest(EAST), ["west", "null"]) == {"west": 2.0, "null": None}
    assert distances_of(reader, nearest(EAST), []) == {}
    assert set(distances_of(reader, nearest([0.0] * 8), sorted(POINTS)).values()) == {None}


def test_distances_by_l2(tmp_path: Path) -> None:
    catalog = catalog_of("l2")
    graph = new_graph(tmp_path / "g", catalog)
    graph.write([Append(DOC, table(POINTS, catalog))])

    found = distances_of(reader_of(graph), nearest(EAST, catalog), sorted(POINTS))

    assert found == pytest.approx(
        {"east": 1.0, "far east": 3.0, "north": math.sqrt(5), "west": 3.0, "zero": 2.0, "null": None}
    )


def test_a_vector_of_another_dimension_is_refused(tmp_path: Path) -> None:
    graph = new_graph(tmp_path / "g")
    graph.write([Append(DOC, table(POINTS))])

    with pytest.raises(BadRequest, match=r"vec is Vector\(8\): give nearest as many numbers, not 3"):
        rank_scores(reader_of(graph), nearest([1, 2, 3]), pa.array(["east"]))


def test_sliced_columns_are_read_at_their_offset() -> None:
    vectors = pa.array([[9.0, 9.0], None, [1.0, 0.0], [0.0, 0.0]], pa.list_(pa.float32(), 2))

    values, known = distances(*matrix_of(vectors.slice(1)), np.array([1.0, 0.0], np.float32), "cosine")

    assert known.tolist() == [False, True, False]
    assert values.tolist() == [0, 0, 0]


floats = st.integers(-4, 4).map(float) | st.floats(-100, 100, width=32)
vectors_of = st.none() | st.lists(floats, min_size=3, max_size=3)


@settings(max_examples=200, deadline=None)
@given(st.lists(vectors_of, max_size=12), st.lists(floats, min_size=3, max_size=3), st.sampled_from(["cosine", "l2"]))
def test_distances_are_those_of_the_interpreter(
    vectors: list[list[float] | None], query: list[float], metric: Metric
) -> None:
    catalog = catalog_of(metric, 3)
    column = catalog.type_of(DOC).column("vec")
    rank = nearest(query, catalog)
    reference = interpreter._Search({DOC: [{"id": str(i), column: v} for i, v in enumerate(vectors)]}, None)
    wanted = [reference.score(rank, entity) for entity in reference.graph[DOC]]

    array = pa.array(vectors, pa.list_(pa.float32(), 3))
    values, known = distances(*matrix_of(array), np.array(query, np.float32), metric)

    if metric == "cosine" and not any(query):
        assert not known.any()
        return
    assert known.tolist() == [value is not None for value in wanted]
    for value, expected in zip(values[known].tolist(), [w for w in wanted if w is not None], strict=True):
        assert value == pytest.approx(expected, abs=1e-9)


def clustered(count: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(60, DIMENSION))
    return (centres[rng.integers(0, 60, count)] + 0.7 * rng.normal(size=(count, DIMENSION))).astype(np.float32)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[Graph, dict[str, Any]]:
    """Vectors in two indexed writes, some not indexed, some removed, some null and one zero."""
    graph = new_graph(tmp_path_factory.mktemp("many") / "g")
    points = clustered(27_000)
    points[11] = 0
    rows: dict[str, Row] = {f"d{i:05}": (None, None if i % 97 == 0 else points[i].tolist()) for i in range(27_000)}
    ids = list(rows)
    for low, high in ((0, 12_500), (12_500, 25_000), (25_000, 27_000)):
        graph.write([Append(DOC, table({id_: rows[id_] for id_ in ids[low:high]}))])
    gone = set(ids[5::50])
    graph.write([Delete(DOC, tuple(sorted(gone)))])
    return graph, {id_: rows[id_][1] for id_ in ids if id_ not in gone}


@pytest.mark.parametrize("share", [1, 2])
@pytest.mark.parametrize("overlaid", [False, True])
def test_the_index_finds_nearly_what_looking_at_all_finds(
    many: tuple[Graph, dict[str, Any]], share: int, overlaid: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, stored = many
    rows = dict(stored)
    overlay = Overlay.EMPTY
    if overlaid:
        images: dict[str, Row] = {f"new{i}": (None, point.tolist()) for i, point in enumerate(clustered(300, seed=5))}
        images |= {"d00001": (None, None)}
        overlay = Overlay.of(table(images), ["d00002"])
        rows = {**rows, **{id_: vec for id_, (_, vec) in images.items()}}
        del rows["d00002"]
    reader = reader_of(graph, overlay)
    ids = list(rows)[::share]
    searched: list[int] = []
    search_nearest = reader.tables.search_nearest

    def counted(*args: Any, **options: Any) -> Any:
        searched.append(1)
        return search_nearest(*args, **options)

    monkeypatch.setattr(reader.tables, "search_nearest", counted)
    for limit in ("SCANNED_VALUES_MAX", "SCANNED_IN_MEMORY_MAX"):
        monkeypatch.setattr(vector, limit, 1_000)
    hits = 0
    queries = clustered(20, seed=9).tolist()
    for query in queries:
        near = {id_: v for id_, v in distances_of(reader, nearest(query), ids, top=10).items() if v is not None}
        exact = {id_: v for id_, v in distances_of(reader, nearest(query), ids).items() if v is not None}
        assert near.items() <= exact.items(), "an index chooses rows, it computes no distance"
        best = sorted(exact, key=lambda id_: (exact[id_], id_))[:10]
        hits += len(set(best) & near.keys())

    assert len(searched) == len(queries)
    assert hits >= 0.9 * 10 * len(queries)


@pytest.mark.parametrize("overlaid", [False, True])
@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_the_short_list_has_the_best_and_their_equals(
    many: tuple[Graph, dict[str, Any]], metric: Metric, overlaid: bool
) -> None:
    graph, stored = many
    images: dict[str, Row] = {f"new{i}": (None, EAST) for i in range(3)} | {
        "d00001": (None, EAST),
        "d00003": (None, None),
    }
    overlay = Overlay.of(table(images), ["d00002"]) if overlaid else Overlay.EMPTY
    rows = {**stored, **({id_: vec for id_, (_, vec) in images.items()} if overlaid else {})}
    ids = [id_ for id_ in rows if id_ != "d00002"]
    reader = reader_of(graph, overlay)
    for query in (EAST, *clustered(5, seed=4).tolist()):
        rank = Nearest(nearest(query).field, nearest(query).query, metric)
        exact = {id_: v for id_, v in distances_of(reader, rank, ids).items() if v is not None}
        found = {id_: v for id_, v in distances_of(reader, rank, ids, top=3).items() if v is not None}
        last = sorted(exact.values())[2]
        assert found.items() <= exact.items()
        assert {id_ for id_, v in exact.items() if v <= last} <= found.keys()


def test_too_few_found_by_the_index_means_looking_at_all(
    many: tuple[Graph, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, stored = many
    monkeypatch.setattr(vector, "SCANNED_VALUES_MAX", 10)
    empty = [id_ for id_, vec in stored.items() if vec is None][:30]

    found = distances_of(reader_of(graph), nearest(EAST), [*empty, "d00011", "d00001"], top=5)

    assert [id_ for id_, value in found.items() if value is not None] == ["d00001"]


def test_a_text_is_embedded_when_the_query_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIGRAPH_EMBED_PROVIDER", "offline")
    texts = ["graphs in object storage", "cats and dogs", "storage of graphs"]
    catalog = catalog_of(dimension=64)
    vectors = OfflineEmbedder().embed(texts, 64)
    graph = new_graph(tmp_path / "g", catalog)
    rows: dict[str, Row] = {f"d{i}": (text, vec) for i, (text, vec) in enumerate(zip(texts, vectors, strict=True))}
    graph.write([Append(DOC, table(rows, catalog))])

    found = distances_of(reader_of(graph), nearest("graph storage", catalog), ["d0", "d1", "d2"])

    assert min(found, key=lambda id_: found[id_]) == "d2"
    assert found["d0"] < found["d1"]


def test_ranks_are_fused_as_the_interpreter_does(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    rows: dict[str, Row] = {}
    for i in range(60):
        point = rng.integers(-1, 2, DIMENSION).astype(float).tolist()  # many are equally far
        rows[f"d{i:02}"] = (["red", "blue sky", "red red sky", None][i % 4], None if i % 7 == 0 else point)
    graph = new_graph(tmp_path / "g")
    graph.write([Append(DOC, table(rows))])
    near, text = nearest(EAST), bm25("red sky")
    ids = pa.array(sorted(rows)[10:])

    first, second = (rank_positions(reader_of(graph), rank, ids) for rank in (near, text))

    definition = CATALOG.type_of(DOC)
    data: list[dict[str, Any]] = [
        {"id": id_, definition.column("body"): body, definition.column("vec"): vec} for id_, (body, vec) in rows.items()
    ]
    matched: list[interpreter.Row] = [{"d": entity} for entity in data[10:]]
    ranks = interpreter._Ranks(matched, interpreter._Search({DOC: data}, None))
    fused = Rrf((near, text), Literal(60, STRING))
    for row, one, other in zip(matched, first.tolist(), second.tolist(), strict=True):
        assert one == (ranks.place(near, row) or 0)
        assert (other == 0) == (ranks.place(text, row) is None)
        parts = [1 / (60 + place) for place in (one, other) if place]
        assert (ranks.value(fused, row) is None) == (not parts)


def test_places_of_equal_scores_follow_the_ids() -> None:
    scores = pa.array([1.0, None, 3.0, 1.0, 3.0])
    ids = pa.array(["b", "x", "d", "a", "c"])

    assert positions_by_score(scores, lambda: ids, descending=False).tolist() == [2, 0, 4, 1, 3]
    assert positions_by_score(scores, lambda: ids, descending=True).tolist() == [4, 0, 2, 3, 1]
    assert positions_by_score(pa.array([], pa.float64()), lambda: ids, descending=True).tolist() == []


@pytest.mark.s3
def test_vectors_on_s3(s3: S3Location, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (index_segments, stage):
        monkeypatch.setattr(module, "INDEXED_ROWS_MIN", 50)
    monkeypatch.setattr(index_segments, "VECTORS_MIN", 50)
    monkeypatch.setattr(vector, "SCANNED_VALUES_MAX", 10)
    graph = omnigraph.init(f"{s3.uri}/g", CATALOG, s3.options, settings=STORED)
    points = clustered(300)
    graph.write([Append(DOC, table({f"d{i}": (None, point.tolist()) for i, point in enumerate(points)}))])
    overlay = Overlay.of(table({"new": (None, points[7].tolist())}), ["d8"])
    ids = [f"d{i}" for i in range(300) if i != 8] + ["new"]

    found = distances_of(reader_of(graph, overlay), nearest(points[7].tolist()), ids, top=2)

    best = sorted((value, id_) for id_, value in found.items() if value is not None)[:2]
    assert [id_ for _, id_ in best] == ["d7", "new"]
