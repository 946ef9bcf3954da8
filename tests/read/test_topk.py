"""The best of all rows, found by looking at hits alone, are the same as by looking at every row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import omnigraph
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import Append, Delete
from omnigraph.read.project import topk
from omnigraph.read.search import ranking
from omnigraph.read.search.vector import kth_smallest
from omnigraph.schema.definitions import Metric

from .test_search_vector import DIMENSION, DOC, Row, catalog_of, new_graph, table

ROWS = 3_000
NEAR = f"nearest($d.vec, {[1.0, 0.5, *[0.0] * (DIMENSION - 2)]})"
FAR = f"nearest($d.vec, {[0.0, -1.0, *[1.0] * (DIMENSION - 2)]})"
COMMON, RARE = 'bm25($d.body, "red blue")', 'bm25($d.body, "rare")'
ORDERS = [
    COMMON,
    RARE,
    NEAR,
    f"rrf({NEAR}, {COMMON})",
    f"rrf({COMMON}, {FAR})",
    f"rrf({NEAR}, {RARE}, 1)",
    f"rrf({COMMON}, {RARE})",
    f"rrf({NEAR}, {FAR}, 2)",
    f"rrf({FAR}, {COMMON}), $d.slug desc",
]


def made(path: Path, metric: Metric) -> Graph:
    """Many rows are equal: vectors of few small numbers, texts of few words, some of them missing."""
    rng = np.random.default_rng(5)
    vectors = rng.integers(-2, 3, (ROWS, DIMENSION)).astype(np.float32)
    vectors[rng.random(ROWS) < 0.05] = 0
    words = ["red", "blue", "green", "white", "black", "grey", "brown", "pink"]
    rows: dict[str, Row] = {}
    for number in rng.permutation(ROWS).tolist():
        body = " ".join([*rng.choice(words, int(rng.integers(1, 5))), *(["rare"] if number % 200 == 0 else [])])
        rows[f"doc{number}"] = (
            body if rng.random() < 0.9 else None,
            vectors[number].tolist() if rng.random() < 0.9 else None,
        )
    graph = new_graph(path, catalog_of(metric))
    graph.write([Append(DOC, table(rows, catalog_of(metric)), fresh_ids=True)])
    return graph


def answers(graph: Graph, order: str, limit: int, *, shown: bool) -> Any:
    rank = order.partition(", $d.slug")[0]
    more = f", {rank} as value" if shown else ""
    return graph.query(
        f"query q() {{ match {{ $d: Doc }} return {{ $d.slug as slug{more} }} order {{ {order} }} limit {limit} }}"
    ).rows


@pytest.mark.parametrize("metric", ["cosine", "l2"])
@pytest.mark.parametrize("change", ["none", "deleted"])
def test_the_best_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metric: Metric, change: str) -> None:
    graph = made(tmp_path / "graph", metric)
    if change == "deleted":
        graph.write([Delete(DOC, tuple(f"doc{number}" for number in range(0, ROWS, 7)))])
    used = []
    real = ranking.top_rows

    def noted(*args: Any) -> Any:
        found = real(*args)
        used.append(found is not None)
        return found

    for head in (40, 400, 1_000):
        monkeypatch.setattr(topk, "HEAD_ROWS", head)
        for order in ORDERS:
            for limit, shown in ((1, True), (10, False), (10, True)):
                monkeypatch.setattr(ranking, "top_rows", noted)
                found = answers(graph, order, limit, shown=shown)
                monkeypatch.setattr(ranking, "top_rows", lambda *_: None)
                assert found == answers(graph, order, limit, shown=shown), (head, order, limit)
    assert sum(used) > len(used) // 2 or change == "deleted"


def test_rows_without_a_value_come_after_the_best(tmp_path: Path) -> None:
    graph = new_graph(tmp_path / "graph")
    rows: dict[str, Row] = {"a": (None, None), "b": ("red", [1.0] * DIMENSION), "c": ("blue", None)}
    graph.write([Append(DOC, table(rows), fresh_ids=True)])
    graph = omnigraph.open(str(tmp_path / "graph"))
    assert [row["slug"] for row in answers(graph, NEAR, 3, shown=False)] == ["b", "a", "c"]
    assert [row["slug"] for row in answers(graph, RARE, 3, shown=False)] == []
    assert [row["slug"] for row in answers(graph, f"rrf({NEAR}, {COMMON})", 3, shown=False)] == ["b", "c"]


@given(st.lists(st.integers(0, 9) | st.just(float("nan")), min_size=2, max_size=200), st.data())
def test_the_smallest_of_many_numbers(values: list[float], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(values) - 1))
    expected = np.sort(np.array(values, np.float32))[count - 1]
    found = kth_smallest(np.array(values, np.float32), count)
    assert found == expected or (np.isnan(found) and np.isnan(expected))
