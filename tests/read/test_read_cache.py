"""Caches are bounded, and never serve what is stale: everything in them is named by immutable versions."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor

from omnigraph.manifest.commit.plan import Append, Delete, Upsert
from omnigraph.read.tables.read_cache import ReadCache
from omnigraph.storage.table.overlay import Overlay

from .graphs import KNOWS, MODES, PERSON, Data, edge, graph_of, names, person, reader_of, run, table, write

DATA: Data = {PERSON: [person("a", age=1), person("b", age=2)], KNOWS: [edge("a", "b")]}
FRIENDS = 'match { $p: Person { slug: "a" }  $p knows $f } return { $f.id as f, $f.age as age }'


def test_queries_see_new_commits_and_old_snapshots_do_not_change() -> None:
    caches = ReadCache()
    with graph_of(DATA, stored=True) as graph:
        before = reader_of(graph, caches=caches)
        assert run(before, FRIENDS).rows == [{"f": "b", "age": 2}]
        graph.write(
            [Append(PERSON, table(PERSON, [person("c", age=3)])), Append(KNOWS, table(KNOWS, [edge("a", "c")]))]
        )
        assert names(run(reader_of(graph, caches=caches), FRIENDS).rows) == ["b", "c"]
        graph.write([Upsert(PERSON, table(PERSON, [person("b", age=9)])), Delete(KNOWS, ("a->c",))])
        assert run(reader_of(graph, caches=caches), FRIENDS).rows == [{"f": "b", "age": 9}]
        assert run(before, FRIENDS).rows == [{"f": "b", "age": 2}]


def test_branches_share_what_they_have_in_common_and_nothing_else() -> None:
    caches = ReadCache()
    with graph_of(DATA, stored=True) as graph:
        graph.branches.create("other")
        write(graph, {PERSON: [person("c")], KNOWS: [edge("a", "c")]}, branch="other")
        for _ in range(2):
            assert names(run(reader_of(graph, caches=caches), FRIENDS).rows) == ["b"]
            assert names(run(reader_of(graph, caches=caches, branch="other"), FRIENDS).rows) == ["b", "c"]


def test_overlays_with_different_content_have_different_keys() -> None:
    caches = ReadCache()
    with graph_of(DATA, stored=True) as graph:
        for age in (5, 6, 5):
            overlays = {PERSON: Overlay.of(table(PERSON, [person("b", age=age)]))}
            for options in MODES.values():
                rows = run(reader_of(graph, overlays, caches, **options), FRIENDS).rows
                assert rows == [{"f": "b", "age": age}]
        gone = {KNOWS: Overlay.of(deletes=["a->b"])}
        for options in MODES.values():
            assert run(reader_of(graph, gone, caches, **options), FRIENDS).rows == []


def adjacencies(caches: ReadCache) -> list[Hashable]:
    return [key for key in caches._values if isinstance(key, tuple) and key[0] == "adjacency"]


def test_an_overlay_is_laid_over_the_adjacency_that_is_there() -> None:
    caches = ReadCache()
    with graph_of(DATA, stored=True) as graph:
        run(reader_of(graph, caches=caches, expand="csr"), FRIENDS)
        built = adjacencies(caches)
        overlays = {
            PERSON: Overlay.of(table(PERSON, [person("c", age=3)])),
            KNOWS: Overlay.of(table(KNOWS, [edge("a", "c"), edge("c", "a")])),
        }
        assert names(run(reader_of(graph, overlays, caches, expand="csr"), FRIENDS).rows) == ["b", "c"]
        assert adjacencies(caches)[: len(built)] == built


def test_the_cache_stays_within_its_bytes_and_results_are_the_same() -> None:
    caches = ReadCache(bytes_max=1_000)
    with graph_of(DATA, stored=True) as graph:
        for _ in range(3):
            for options in MODES.values():
                assert names(run(reader_of(graph, caches=caches, **options), FRIENDS).rows) == ["b"]
                assert caches.counts.bytes_held <= 1_000
        assert caches.counts.forgotten > 0


def test_the_least_recently_used_entry_is_evicted_and_counted() -> None:
    caches = ReadCache(bytes_max=1_000)
    for key in ("a", "b", "a", "c"):
        caches.get(key, lambda: "value", lambda _: 200)
    assert caches.has("a")
    assert not caches.has("b")
    counts = caches.counts
    assert (counts.hits, counts.misses, counts.forgotten, counts.entries) == (1, 3, 1, 2)
    assert caches.get("huge", lambda: "x", lambda _: 5_000) == "x"
    assert not caches.has("huge")


def test_threads_that_want_one_value_make_it_once() -> None:
    caches, made, gate = ReadCache(), [], threading.Event()

    def make() -> str:
        gate.wait(5)
        made.append(1)
        return "value"

    with ThreadPoolExecutor(8) as pool:
        found = [pool.submit(caches.get, "key", make, len) for _ in range(8)]
        gate.set()
        assert [future.result() for future in found] == ["value"] * 8
    assert len(made) == 1


def test_threads_may_share_a_reader() -> None:
    with graph_of(DATA, stored=True) as graph:
        reader = reader_of(graph)
        with ThreadPoolExecutor(8) as pool:
            for rows in pool.map(lambda _: run(reader, FRIENDS).rows, range(40)):
                assert rows == [{"f": "b", "age": 2}]
