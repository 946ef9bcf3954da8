"""Counts Lance's requests to each store.

Lance keeps a counter per client, and has a client per session, store and way of reaching it (create or open); two
concurrent first uses may each make their own. Which handles share a counter is not exposed. But reading a counter also
resets it: so all handles that may have their own are drained into one sum, and a shared counter is still counted once.
"""

import os
import threading
from enum import Enum
from typing import TYPE_CHECKING

from omnigraph.fork_safety import renew_after_fork
from omnigraph.storage.meter import LanceIo

if TYPE_CHECKING:
    from lance import LanceDataset


class Origin(Enum):
    """How Lance reached a store."""

    CREATED = "created"
    OPENED = "opened"


class StoreCounter:
    """The sum for one store. A client lives as long as one of its handles, so the handles are kept."""

    def __init__(self) -> None:
        renew_after_fork(self, StoreCounter._renew)
        self._followed: list[LanceDataset] = []
        self._followed_origins: set[Origin] = set()
        self._requests = 0
        self._bytes = 0

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def is_followed(self, origin: Origin) -> bool:
        """Whether a handle of that origin is followed: later ones share its client."""
        return origin in self._followed_origins

    def follow(self, origin: Origin, dataset: "LanceDataset") -> None:
        """Count a handle that was requested before any of its origin was followed."""
        with self._lock:
            self._followed.append(dataset)
            self._followed_origins.add(origin)

    def read(self) -> LanceIo:
        with self._lock:
            for dataset in self._followed:
                stats = dataset.io_stats_incremental()
                self._requests += stats.read_iops + stats.write_iops
                self._bytes += stats.read_bytes + stats.written_bytes
            return LanceIo(self._requests, self._bytes)


_lock = threading.Lock()
_counters: dict[str, StoreCounter] = {}


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def drop_counter(store: str) -> None:
    """Drop a counter that is no longer read, with its handles."""
    with _lock:
        _counters.pop(store, None)


def counter_of(store: str) -> StoreCounter:
    """The process's one counter for a store: two would reset each other's."""
    with _lock:
        return _counters.setdefault(store, StoreCounter())
