"""Two copies of one graph: one asked directly, the other through a server, one pair for each case."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from omnigraph.server.settings import ServerSettings
from parity.pairs import PAIRS, Pair, Pairs
from parity.seeds import seed
from support.server import served


@pytest.fixture(scope="package")  # while it runs, its process shares the Spark session that it keeps
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pairs]:
    folder = tmp_path_factory.mktemp("parity")
    seed(folder / "seed")
    settings = ServerSettings(grace_s=5.0, reopen_s=0.0)
    with served({f"g{number}": folder / f"there-{number}" for number in range(PAIRS)}, settings) as running:
        yield Pairs(folder / "seed", folder, running.url)


@pytest.fixture
def pair(pairs: Pairs, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("OMNIGRAPH_EMBED_PROVIDER", "offline")
    for name in ("OMNIGRAPH_STORE", "OMNIGRAPH_SERVER", "OMNIGRAPH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return pairs.new()
