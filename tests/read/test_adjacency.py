"""Adjacency: what is saved is only ever a shortcut, what lies on top is laid over it, and cost decides who uses it."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import Append, Upsert
from omnigraph.read.graph.adjacency import Adjacency, build_adjacency
from omnigraph.read.graph.adjacency_file import adjacency_key, load_adjacency, save_adjacency
from omnigraph.read.graph.csr import Csr
from omnigraph.read.reader import SnapshotReader
from omnigraph.read.tables.read_cache import ReadCache
from omnigraph.read.tables.resident_table import ResidentTable

from .graphs import KNOWS, PERSON, Data, edge, graph_of, names, person, reader_of, run, table

DATA: Data = {
    PERSON: [person(slug) for slug in "abcd"],
    KNOWS: [edge("a", "b"), edge("b", "c", "1"), edge("b", "c", "2"), edge("c", "c"), edge("d", "a")],
}
REACHED = 'match { $p: Person { slug: "a" }  $p knows{1,} $f } return { $f.id as f }'


def spaces_of(reader: SnapshotReader) -> tuple[ResidentTable, ResidentTable]:
    edges, people = (ResidentTable(reader.tables, reader.caches, reader.state(key)) for key in (KNOWS, PERSON))
    return edges, people


def saved(graph: Graph) -> str:
    edges, people = spaces_of(reader_of(graph))
    return save_adjacency(graph.repository.store, build_adjacency(edges, people, people), edges, people, people)


def same(one: Adjacency, other: Adjacency) -> bool:
    return all(
        np.array_equal(getattr(mine, field), getattr(theirs, field))
        for mine, theirs in ((one.forward, other.forward), (one.backward, other.backward))
        for field in ("starts", "targets", "edges")
    )


def test_what_was_saved_is_what_is_built() -> None:
    with graph_of(DATA, stored=True) as graph:
        key = saved(graph)
        assert key.startswith("tables/")
        assert key.endswith(".arrow")
        edges, people = spaces_of(reader_of(graph))
        loaded = load_adjacency(graph.repository.store, edges, people, people)
        assert loaded is not None
        assert same(loaded, build_adjacency(edges, people, people))


def test_a_saved_adjacency_is_used_and_saves_reading_the_edges() -> None:
    with graph_of(DATA, stored=True) as graph:
        saved(graph)
        caches = ReadCache()
        reader = reader_of(graph, caches=caches, expand="csr")
        assert names(run(reader, REACHED).rows) == ["b", "c"]
        at = reader.state(KNOWS).at
        assert not any(key[0] == at and key[1] == "src" for key in caches._values if isinstance(key, tuple))


@pytest.mark.parametrize("damage", ["cut", "flipped", "nonsense", "empty"])
def test_a_damaged_file_is_as_good_as_none(damage: str) -> None:
    with graph_of(DATA, stored=True) as graph:
        store, key = graph.repository.store, saved(graph)
        stored = store.get(key)
        assert stored is not None
        data = bytearray(stored.data)
        if damage == "flipped":
            middle = data.index(b"\x01\x00\x00\x00\x02\x00\x00\x00")
            data[middle] ^= 1
        changed = {"cut": bytes(data[:-200]), "flipped": bytes(data), "nonsense": b"x" * 500, "empty": b""}[damage]
        store.put(key, changed)
        edges, people = spaces_of(reader_of(graph))
        assert load_adjacency(store, edges, people, people) is None
        assert names(run(reader_of(graph, expand="csr"), REACHED).rows) == ["b", "c"]


def test_it_serves_other_versions_of_the_nodes_too() -> None:
    with graph_of(DATA, stored=True) as graph:
        saved(graph)
        graph.write([Append(PERSON, table(PERSON, [person("0")])), Upsert(PERSON, table(PERSON, [person("a", age=5)]))])
        edges, people = spaces_of(reader_of(graph))
        loaded = load_adjacency(graph.repository.store, edges, people, people)
        assert loaded is not None
        assert same(loaded, build_adjacency(edges, people, people))
        assert names(run(reader_of(graph, expand="csr"), REACHED).rows) == ["b", "c"]


def test_another_version_of_the_edges_has_its_own() -> None:
    with graph_of(DATA, stored=True) as graph:
        key = saved(graph)
        graph.write([Append(KNOWS, table(KNOWS, [edge("a", "d")]))])
        at = reader_of(graph).state(KNOWS).at
        assert at is not None
        assert adjacency_key(at) != key
        assert names(run(reader_of(graph, expand="csr"), REACHED).rows) == ["b", "c", "d"]


def test_laying_edges_over_is_the_same_as_building_with_them() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        n = int(rng.integers(1, 6))
        count, more = int(rng.integers(0, 12)), int(rng.integers(0, 5))
        sources, targets = rng.integers(0, n, count), rng.integers(0, n, count)
        base = Csr.build(sources, targets, np.arange(count), n, n)
        gone = rng.random(count) < 0.3
        wider = n + int(rng.integers(0, 3))
        new_sources, new_targets = rng.integers(0, wider, more), rng.integers(0, wider, more)
        new_edges = count + np.arange(more)
        patched = base.patch(np.flatnonzero(gone[base.edges]), new_sources, new_targets, new_edges, wider, wider)
        whole = Csr.build(
            np.concatenate([sources[~gone], new_sources]),
            np.concatenate([targets[~gone], new_targets]),
            np.concatenate([np.arange(count)[~gone], new_edges]),
            wider,
            wider,
        )
        assert np.array_equal(patched.starts, whole.starts)
        assert np.array_equal(patched.targets, whole.targets)
        assert sorted(patched.edges.tolist()) == sorted(whole.edges.tolist())
        assert np.array_equal(patched.without_parallels().targets, whole.without_parallels().targets)


def test_counts_and_connections_come_straight_from_the_lists() -> None:
    csr = Csr.build(np.array([0, 0, 0, 2]), np.array([1, 1, 2, 0]), np.arange(4), 3, 3)
    assert csr.without_parallels().degrees(np.array([0, 1, 2])).tolist() == [2, 0, 1]
    assert csr.count_passing(np.array([True, False, True])).tolist() == [1, 0, 1]
    assert csr.connects(np.array([0, 0, 1, 2, 2]), np.array([1, 0, 0, 0, 2])).tolist() == [
        True,
        False,
        False,
        True,
        False,
    ]
    assert csr.without_parallels().reverse().expand(np.array([1, 2]))[1].tolist() == [0, 0]


def test_many_pairs_are_answered_as_few_are() -> None:
    """Most are ruled out by a hash of the edges; parallel edges, loops and lonely vertices included."""
    rng = np.random.default_rng(3)
    edges, vertices, others = 3_000, 400, 300
    csr = Csr.build(rng.integers(0, 200, edges), rng.integers(0, others, edges), np.arange(edges), vertices, others)
    sources, targets = rng.integers(0, vertices, 5_000), rng.integers(0, others, 5_000)
    there = set(zip(csr.owners().tolist(), csr.targets.tolist(), strict=True))
    expected = [pair in there for pair in zip(sources.tolist(), targets.tolist(), strict=True)]
    assert csr._likely(sources, targets) is not None
    assert csr.connects(sources, targets).tolist() == expected
    assert csr.connects(sources[:100], targets[:100]).tolist() == expected[:100]


def test_a_frontier_that_repeats_itself_is_filtered_once_for_each_vertex() -> None:
    rng = np.random.default_rng(4)
    edges, vertices = 2_000, 300
    csr = Csr.build(rng.integers(0, 200, edges), rng.integers(0, 50, edges), np.arange(edges), vertices, vertices)
    frontier = rng.integers(0, vertices, 5_000)
    distinct = csr.distinct_if_repeated(frontier)
    assert distinct is not None
    assert csr.distinct_if_repeated(distinct) is None, "nothing would be saved"
    places = np.zeros(vertices, np.int64)
    places[distinct] = np.arange(len(distinct))
    narrow = csr.restrict(distinct, lambda reached: reached % 3 == 0).expand(places[frontier])
    owners, reached, _ = csr.expand_once(frontier)
    kept = reached % 3 == 0
    assert narrow[0].tolist() == owners[kept].tolist()
    assert narrow[1].tolist() == reached[kept].tolist()


@pytest.mark.parametrize("traversal", ["knows", "<knows>"])
def test_triangles_are_the_same_by_either_way(traversal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    people = [person(f"p{i:02}", age=i % 5) for i in range(30)]
    pairs = [(i, (i * j + j) % 30) for i in range(30) for j in (1, 2, 3, 5, 7, 7)]
    data: Data = {PERSON: people, KNOWS: [edge(f"p{a:02}", f"p{b:02}", str(i)) for i, (a, b) in enumerate(pairs)]}
    text = (
        f"match {{ $a: Person  $a.age < 4  $a {traversal} $b  $b.age < 4  $b {traversal} $c  $c.age < 4  "
        f"$c {traversal} $a }} return {{ $a.id as a, $b.id as b, $c.id as c }}"
    )
    with graph_of(data, stored=True) as graph:
        expected = run(reader_of(graph, expand="csr"), text).rows
        assert len(expected) > 10
        monkeypatch.setattr("omnigraph.read.graph.csr.MANY_ROWS", 1)
        monkeypatch.setattr("omnigraph.read.match.match.MANY_ROWS", 1)
        assert run(reader_of(graph, expand="csr"), text).rows == expected


def test_lookups_serve_until_the_frontier_is_wide_or_they_have_cost_as_much() -> None:
    people = [person(f"p{i:03}") for i in range(100)]
    data: Data = {PERSON: people, KNOWS: [edge("p000", row["slug"]) for row in people[1:]]}
    with graph_of(data, stored=True) as graph:
        caches = ReadCache()
        options: dict[str, Any] = {"resident_rows": 10, "frontier_max": 20}
        one = 'match { $p: Person { slug: "p001" }  $p <knows> $f } return { $f.id as f }'
        plan = run(reader_of(graph, caches=caches, **options), one).plan
        assert "by lookup" in str(plan)
        wide = 'match { $p: Person { slug: "p001" }  $p <knows>{1,3} $f } return { count($f) as n }'
        result = run(reader_of(graph, caches=caches, **options), wide)
        assert "by adjacency" in str(result.plan)
        assert result.rows == [{"n": 99}]
        assert "by adjacency" in str(run(reader_of(graph, caches=caches, **options), one).plan)
        patient = ReadCache()
        for _ in range(200):
            plan = run(reader_of(graph, caches=patient, **options), one).plan
            if "by adjacency" in str(plan):
                break
        assert "by adjacency" in str(plan)


def test_many_sources_are_reached_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = Random(5)
    people = [person(f"p{i:02}") for i in range(30)]
    slugs = [row["slug"] for row in people]
    data: Data = {
        PERSON: people,
        KNOWS: [edge(rng.choice(slugs), rng.choice(slugs), f"e{i}") for i in range(60)],
    }
    query = "match { $a: Person  $a knows{1,3} $b } return { $a.id as a, $b.id as b }"
    with graph_of(data, stored=True) as graph:
        whole = run(reader_of(graph, expand="csr"), query).rows
        monkeypatch.setattr("omnigraph.read.match.expand._MARKS_MAX", 100)
        assert run(reader_of(graph, expand="csr"), query).rows == whole
        assert run(reader_of(graph, expand="index"), query).rows == whole
