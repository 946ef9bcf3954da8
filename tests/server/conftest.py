"""What the tests of the server share: a small graph, and a server without tokens before it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from support.people_server import graph, server, store
from support.server import Served

__all__ = ["graph", "server", "store"]  # fixtures, used by their names


@pytest.fixture
def http(server: Served) -> Iterator[httpx.Client]:
    """Everything below the graph."""
    with server.client() as client:
        client.base_url = httpx.URL(f"{server.url}/graphs/people")
        yield client
