"""The reference interpreter against definitions that are written another way, and the IR as a value."""

from __future__ import annotations

import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnigraph.query import ir
from omnigraph.query.compile import bind
from query.gq import NOW, person, read, read_text, values
from query.test_query_examples import FRIENDS
from support.interpreter import reachable

NODES = "abcde"
pairs = st.lists(st.tuples(st.sampled_from(NODES), st.sampled_from(NODES)), max_size=10)
bounds = st.tuples(st.integers(1, 4), st.none() | st.integers(0, 3))


@given(pairs, bounds, st.booleans(), st.sampled_from(NODES))
def test_reachability_is_a_range_of_shortest_distances(
    edges: list[tuple[str, str]], hops: tuple[int, int | None], undirected: bool, source: str
) -> None:
    least = hops[0]
    most = None if hops[1] is None else least + hops[1]
    step = ir.Traverse("edge:Knows", "a", "b", "node:Person", "node:Person", least, most, undirected)
    rows = [{"id": str(i), "src": src, "dst": dst} for i, (src, dst) in enumerate(edges)]

    found = reachable(step, source, rows)

    both = {*edges, *((dst, src) for src, dst in edges)} if undirected else set(edges)
    distance = _distances(source, both)
    top = math.inf if most is None else most
    by_distance = {node for node in NODES if node != source and least <= distance[node] <= top}
    by_loop = {node for node in NODES if (node, node) in both and least <= distance[node] + 1 <= top}
    assert found == {node for node in by_distance | by_loop if distance[node] < math.inf}


def _distances(source: str, edges: set[tuple[str, str]]) -> dict[str, float]:
    """Bellman and Ford's: as many rounds as there are nodes."""
    distance = {node: 0.0 if node == source else math.inf for node in NODES}
    for _ in NODES:
        for src, dst in edges:
            distance[dst] = min(distance[dst], distance[src] + 1)
    return distance


def test_a_sum_that_leaves_its_64_bits_is_an_error() -> None:
    graph = {"node:Person": [person("a", big=2**63 - 1), person("b", big=1)]}

    with pytest.raises(OverflowError):
        values(read_text("$p: Person", "return { sum($p.big) }"), graph)
    assert values(read_text("$p: Person", "return { avg($p.big) }"), graph) == [2.0**62]


def test_a_query_can_be_compared_hashed_and_pickled() -> None:
    query = bind(read(FRIENDS), {"name": "Ada"}, now=NOW)

    assert pickle.loads(pickle.dumps(query)) == query
    assert {query: 1}[bind(read(FRIENDS), {"name": "Ada", "min": None}, now=NOW)] == 1
    assert query != bind(read(FRIENDS), {"name": "Eve"}, now=NOW)


def test_limit_nothing() -> None:
    assert values(read_text("$p: Person", "return { $p.slug } limit 0"), {"node:Person": [person("a")]}) == []
