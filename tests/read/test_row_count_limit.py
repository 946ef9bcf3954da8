"""A match of more rows than 64 bits can count is refused; one below that is counted exactly."""

from pathlib import Path

import pytest

import omnigraph
from omnigraph.errors import BadRequest
from omnigraph.graph.graph import Graph


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    graph = omnigraph.init(tmp_path / "graph", "node Item { slug: String @key }")
    graph.load([{"type": "Item", "data": {"slug": slug}} for slug in "abc"])
    return graph


def combinations(graph: Graph, variables: int) -> int:
    match = " ".join(f"$v{number}: Item" for number in range(variables))
    (row,) = graph.query(f"query q() {{ match {{ {match} }} return {{ count($v0) as n }} }}").rows
    return int(row["n"])


@pytest.mark.parametrize("variables", [20, 33, 38])
def test_as_many_as_can_be_counted_are_counted_exactly(graph: Graph, variables: int) -> None:
    assert combinations(graph, variables) == 3**variables


@pytest.mark.parametrize("variables", [41, 45, 80])
def test_more_are_refused(graph: Graph, variables: int) -> None:
    with pytest.raises(BadRequest, match="more rows than can be counted: add a filter"):
        combinations(graph, variables)
