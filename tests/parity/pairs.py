"""Two copies of one graph: one is asked directly, the other through a server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import omnigraph
from omnigraph.api.interface import GraphLike
from support.server import QUICK

PAIRS = 300


@dataclass
class Pair:
    """The store, and the server that serves the other copy."""

    store: Path
    url: str
    graph: str

    @property
    def here(self) -> list[str]:
        return ["--store", str(self.store), "--storage-option", "fsync=false"]

    @property
    def there(self) -> list[str]:
        return ["--server", self.url, "--graph", self.graph]

    @contextmanager
    def graphs(self) -> Iterator[tuple[GraphLike, GraphLike]]:
        with omnigraph.connect(self.url, self.graph) as remote:
            yield omnigraph.open(self.store, QUICK), remote


class Pairs:
    """Copies are made when they are asked for: the server opens a graph when it is asked for it."""

    def __init__(self, seeded: Path, folder: Path, url: str) -> None:
        self._seeded, self._folder, self._url = seeded, folder, url
        self._next = 0

    def new(self) -> Pair:
        number, self._next = self._next, self._next + 1
        here, there = self._folder / f"here-{number}", self._folder / f"there-{number}"
        shutil.copytree(self._seeded, here)
        shutil.copytree(self._seeded, there)
        return Pair(here, self._url, f"g{number}")
