"""What the tests of the client share: one small graph, asked directly and through a server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import omnigraph
from omnigraph.remote.graph import RemoteGraph
from support.people_server import graph, server, store
from support.server import Served

__all__ = ["graph", "server", "store"]  # fixtures, used by their names


@pytest.fixture
def remote(server: Served) -> Iterator[RemoteGraph]:
    with omnigraph.connect(server.url, graph="people") as connected:
        yield connected
