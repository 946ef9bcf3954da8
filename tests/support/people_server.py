"""Fixtures of the tests of server and client: one small graph, and a server without tokens before it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from omnigraph.graph.graph import Graph
from support.server import Served, people_graph, served

__all__ = ["graph", "server", "store"]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "graph"


@pytest.fixture
def graph(store: Path) -> Graph:
    return people_graph(store)


@pytest.fixture
def server(graph: Graph, store: Path) -> Iterator[Served]:
    with served({"people": store}) as running:
        yield running
