"""Indexes answer like scans, and `verify` says so where they don't: full text and vectors too."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pytest

import omnigraph
from omnigraph.graph.graph import Graph
from omnigraph.schema.indexes import DeclaredIndex
from omnigraph.storage.table.index import segments as index_segments
from omnigraph.storage.table.index.metadata import segments
from omnigraph.verify.verify import VerifyReport
from verify.damage import STAGED, Place

DOC = "node:Doc"
SCHEMA = """
node Doc {
    slug: String @key
    text: String? @index
    rank: F64? @index
    on: Date? @index
    kind: enum(a, b)? @index
    face: Vector(4)? @index
}
"""
FACE = DeclaredIndex("face", "vector", "cosine")
WORDS = ["apple", "pear", "plum", "Ärger", "running", "ran", "x1", "co-op"]


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    """Two fragments, the first with all indexes but the vector's, which takes more rows than a test has."""
    graph = omnigraph.init(tmp_path / "graph", schema=SCHEMA, settings=STAGED)
    graph.load([doc(number) for number in range(300)])
    graph.optimize()
    graph.load([doc(number) for number in range(300, 320)])
    return graph


def doc(number: int) -> dict[str, Any]:
    dice = random.Random(number)
    return {
        "type": "Doc",
        "data": {
            "slug": f"d{number}",
            "text": " ".join(dice.sample(WORDS, 3)) if number % 5 else None,
            "rank": (number % 11 - 5) * 0.5 if number % 4 else None,
            "on": f"2026-01-{number % 28 + 1:02}",
            "kind": "ab"[number % 2],
            "face": [dice.uniform(-1, 1) for _ in range(4)] if number % 9 else None,
        },
    }


def sentences(report: VerifyReport) -> str:
    return "\n".join(problem.sentence for problem in report.problems)


def place_of(graph: Graph) -> Place:
    return Place(Path(graph.uri.removeprefix("file://")))


@pytest.mark.parametrize("full", [False, True])
def test_indexes_that_cover_a_part_of_the_rows_are_whole(graph: Graph, full: bool) -> None:
    report = graph.verify(full=full)
    assert report.ok, sentences(report)
    assert report.checked.unindexed_rows == 20 * report.checked.indexes // 2  # of the newest version and of an older
    assert report.checked.lookups > 10


@pytest.mark.parametrize("full", [False, True])
def test_a_vector_index_that_finds_stored_vectors_is_whole(graph: Graph, full: bool) -> None:
    place = place_of(graph)
    segment = index_segments.build_vector_segment(place.dataset(DOC), FACE, [0, 1])
    place.commit(DOC, lance.LanceOperation.CreateIndex([segment], []), 320)
    before = graph.verify("main", full=full)
    assert before.ok, sentences(before)


def test_a_vector_index_that_misses_rows_is_damage(graph: Graph) -> None:
    place = place_of(graph)
    segment = index_segments.build_vector_segment(place.dataset(DOC), FACE, [1])
    place.commit(DOC, lance.LanceOperation.CreateIndex([replace(segment, fragment_ids={0, 1})], []), 320)
    assert "index face_vector: it misses the nearest row" in sentences(graph.verify("main"))


@pytest.mark.parametrize("full", [False, True])
def test_a_full_text_index_that_misses_rows_is_damage(graph: Graph, full: bool) -> None:
    place = place_of(graph)
    dataset = place.dataset(DOC)
    old = next(one for one in segments(dataset) if one.name == "text_full_text")
    segment = index_segments.build_full_text_segment(dataset, "text", [1])
    place.commit(DOC, lance.LanceOperation.CreateIndex([replace(segment, fragment_ids={0, 1})], [old]), 320)
    assert "index text_full_text: it " in sentences(graph.verify("main", full=full))
