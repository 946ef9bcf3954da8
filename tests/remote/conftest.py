"""What the tests of the client share: one small graph, asked directly and through a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import omnigraph
from omnigraph.graph import Graph
from omnigraph.remote.graph import RemoteGraph
from support.serving import Served, people_graph, served


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


@pytest.fixture
def remote(server: Served) -> Iterator[RemoteGraph]:
    with omnigraph.connect(server.url, graph="people") as connected:
        yield connected
