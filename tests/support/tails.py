"""Tails without manifests: overlays under the names that a tail would give them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from omnigraph.storage.table.overlay import Overlay
from omnigraph.storage.table.table_content import Tail, TailEntry


class Tails:
    """Keeps what small commits said, and reads tails of them as `Tables` wants it."""

    def __init__(self) -> None:
        self._said: dict[TailEntry, Overlay] = {}

    def add(self, said: Overlay) -> TailEntry:
        """One more small commit."""
        entry = TailEntry("main", len(self._said) + 1, "node:Person")
        self._said[entry] = said
        return entry

    def tail(self, *said: Overlay) -> Tail:
        return tuple(self.add(one) for one in said)

    def __call__(self, tail: Tail) -> Overlay:
        both = Overlay.EMPTY
        for entry in tail:
            both = both.compose(self._said[entry])
        return both


def numbers_of(table: pa.Table) -> dict[Any, Any]:
    """The column `n` by id; no id may come twice."""
    found = dict(zip(table["id"].to_pylist(), table["n"].to_pylist(), strict=True))
    assert len(found) == table.num_rows, "an id came twice"
    return found
