"""Slips with branches, commits, tags and limits: each is an error that says what to give, never a traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.errors import BadRequest
from omnigraph.graph.graph import Graph


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    graph = omnigraph.init(tmp_path / "graph", "node Person { slug: String @key }")
    graph.branches.create("b")
    return graph


WHERE_A_NAME_STANDS: dict[str, Callable[[Graph, Any], object]] = {
    "merge": lambda graph, name: graph.branches.merge(name),
    "merge into": lambda graph, name: graph.branches.merge("b", into=name),
    "branch create": lambda graph, name: graph.branches.create(name),
    "branch create from": lambda graph, name: graph.branches.create("n", from_=name),
    "branch delete": lambda graph, name: graph.branches.delete(name),
    "tag create": lambda graph, name: graph.tags.create(name),
    "tag create of": lambda graph, name: graph.tags.create("t", name or 1),  # type: ignore[arg-type]
    "tag delete": lambda graph, name: graph.tags.delete(name),
    "changes": lambda graph, name: list(graph.changes(name, "main")),
    "changes poll": lambda graph, name: graph.poll_changes(start=name or 1),  # type: ignore[arg-type]
    "commit show": lambda graph, name: graph.commit(name),
    "commit changes": lambda graph, name: list(graph.commit_changes(name)),
    "revert": lambda graph, name: graph.revert(name),
    "at": lambda graph, name: graph.snapshot(at=name or 1),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("where", WHERE_A_NAME_STANDS)
def test_a_commit_itself_where_its_name_is_wanted_is_refused(graph: Graph, where: str) -> None:
    for given in (graph.commits()[0], None, 5, b"main"):
        with pytest.raises(BadRequest, match="is named by text"):
            WHERE_A_NAME_STANDS[where](graph, given)


@pytest.mark.parametrize("limit", ["5", b"5", 1.5, [1]])
def test_a_limit_is_a_whole_number(graph: Graph, limit: Any) -> None:
    for asked in (
        lambda: graph.commits(limit=limit),
        lambda: graph.commit_graph(limit=limit),
        lambda: graph.poll_changes(limit=limit),
        lambda: graph.changes("main", "b", limit=limit),
    ):
        with pytest.raises(BadRequest, match=r"A limit of .* is invalid"):
            asked()
