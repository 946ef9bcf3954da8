"""A query and its result keep to one memory budget, and obey a stop wherever they are."""

from __future__ import annotations

import gc
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph import NoRoom, Settings
from omnigraph.cancellation import Stopped, StopToken, stop_scope
from omnigraph.graph.graph import Graph
from omnigraph.memory_budget import MemoryBudget, budget_scope
from omnigraph.read.execute import run_query
from omnigraph.read.tables.read_cache import ReadCache

from .graphs import PERSON, bound, graph_of, person, reader_of

SCHEMA = "node Item { slug: String @key  number: I64?  text: String? }  edge Next: Item -> Item"
ITEMS = 2_000
PAIRS = "match { $a: Item  $b: Item }"
KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("memory") / "graph"
    items: list[Any] = [
        {"type": "Item", "data": {"slug": f"i{n}", "number": n % 50, "text": f"text {n} " * 10}} for n in range(ITEMS)
    ]
    edges: list[Any] = [
        {"edge": "Next", "from": f"i{n}", "to": f"i{(n * 7 + step) % ITEMS}"} for n in range(ITEMS) for step in range(9)
    ]
    omnigraph.init(folder, SCHEMA, {"fsync": "false"}).load(items + edges)
    return folder


def open_with(folder: Path, size: int) -> Graph:
    return omnigraph.open(folder, {"fsync": "false"}, settings=Settings(query_bytes=size))


TOO_LARGE = {
    "a product": f"{PAIRS} return {{ $a.slug, $b.slug as b }}",
    "an ordered product": f"{PAIRS} return {{ $a.slug, $b.slug as b }} order {{ $a.text desc, $b.number }} limit 3",
    "a grouped product": f"{PAIRS} return {{ $a.slug, $b.number, count($a) as n }}",
    "a chain": "match { $a next $b  $b next $c  $c next $d  $d next $e } "
    "return { $a.slug, $e.slug as e, $c.slug as c }",
    "paths": "match { $a next{1,9} $b } return { $a.slug, $b.slug as b }",
    "a join": "match { $a: Item  $b: Item  $a.number = $b.number  $a.text < $b.text } return { $a.slug, $b.slug as b }",
    "an inequality": "match { $a: Item  $b: Item  $a.number < $b.number } return { $a.slug, $b.slug as b }",
    "a negation": "match { $a: Item  $b: Item  not { $a next $b } } return { $a.slug, $b.slug as b }",
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_query_that_needs_more_than_its_budget_is_refused(folder: Path, name: str) -> None:
    graph = open_with(folder, 4 * MIB)
    with pytest.raises(NoRoom, match=r"add a filter"):
        graph.query(f"query q() {{ {TOO_LARGE[name]} }}", engine="local")


@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_query_that_fits_its_budget_leaves_none_of_it(folder: Path, name: str) -> None:
    budget = MemoryBudget(2_000 * MIB)
    with budget_scope(budget):
        result = open_with(folder, 0).query(f"query q() {{ {TOO_LARGE[name]} }}", engine="local")
        assert len(result) > 0
        del result
        gc.collect()

    assert budget.peak > MIB
    assert budget.used == 0


def test_rows_count_but_batches_of_them_need_not_fit_together(folder: Path) -> None:
    graph = open_with(folder, 4 * MIB)
    text = "query q() { match { $a: Item  $b: Item { number: 1 } } return { $a.text, $b.slug as b } }"
    with pytest.raises(NoRoom):
        len(graph.query(text, engine="local").rows)
    with pytest.raises(NoRoom):
        graph.query(text, engine="local").to_arrow()

    result = graph.query(text, engine="local")
    assert sum(batch.num_rows for batch in result.batches()) == ITEMS * ITEMS // 50


@pytest.mark.parametrize("cache", [50 * KIB, 400 * KIB], ids=["not cached", "longer than expected"])
def test_long_texts_are_read_in_batches_that_fit(cache: int) -> None:
    people = [person(f"p{n}", name="x" * 2_000) for n in range(3_000)]
    with graph_of({PERSON: people}, stored=True) as graph:
        reader = replace(reader_of(graph, memory_bytes=2 * MIB), caches=ReadCache(cache))
        result = run_query(reader, bound("query q() { match { $p: Person } return { $p.name } }"))
        sizes = [batch.nbytes for batch in result.batches()]

    assert sum(sizes) > 5 * MIB
    assert max(sizes) <= 2 * MIB


@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_query_obeys_its_stop_wherever_it_is(folder: Path, name: str) -> None:
    """In processor time, because the machine may be busy."""
    graph = open_with(folder, 2_000 * MIB)
    for after_s in (0.001, 0.02, 0.1, 0.3):
        stop = StopToken()
        stopped_at: list[float] = []

        def stop_now(stop: StopToken = stop, stopped_at: list[float] = stopped_at) -> None:
            stop.set(Stopped("of the test", "go on"))
            stopped_at.append(time.process_time())

        timer = threading.Timer(after_s, stop_now)
        timer.start()
        try:
            with stop_scope(stop):
                graph.query(f"query q() {{ {TOO_LARGE[name]} }}", engine="local")
        except Stopped:
            assert time.process_time() - stopped_at[0] < 0.5
        finally:
            timer.cancel()
