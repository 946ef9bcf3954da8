"""A bounded cache of values that are expensive to make, each made by one thread."""

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from omnigraph.fork_safety import keep_inherited, renew_after_fork
from omnigraph.lru_cache import LruCache
from omnigraph.storage.util.blocking_hook import run_blocking_hook

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SingleFlightCache(Generic[K, V]):
    """A thread-safe LRU cache with single-flight construction.

    Threads that want the same missing value wait for the first of them to make it: for an open dataset that saves
    requests, and all threads share one.
    """

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        renew_after_fork(self, SingleFlightCache._renew)

    def _renew(self) -> None:
        """A forked child starts empty: open datasets and views on scratch disk are its parent's."""
        keep_inherited(getattr(self, "_values", None))
        self._values: LruCache[K, V] = LruCache(self._entries_max)
        self._in_flight: dict[K, threading.Lock] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: K) -> bool:
        return key in self._values

    def get(self, key: K) -> V | None:
        """The value of `key`, or None if it is not cached."""
        with self._lock:
            return self._values.get(key)

    def get_or_create(self, key: K, make: Callable[[], V]) -> V:
        """The value of `key`, made by one thread if it is not cached."""
        found = self.get(key)
        if found is not None:
            return found
        with self._lock:
            flight = self._in_flight.setdefault(key, threading.Lock())
        if not flight.acquire(blocking=False):
            run_blocking_hook()  # for another thread's requests
            flight.acquire()
        try:
            found = self.get(key)
            if found is not None:
                return found
            try:
                return self.put(key, make())
            finally:
                with self._lock:
                    self._in_flight.pop(key, None)
        finally:
            flight.release()

    def put(self, key: K, value: V) -> V:
        """Cache a value and return it; a value that is cached already wins, so that all threads share one."""
        with self._lock:
            cached = self._values.get(key)
            if cached is None:
                self._values.put(key, value)
                return value
            return cached
