"""The read cache: an LRU cache, bounded in bytes, of everything derived from immutable table versions.

Every key names a table version and, where there is one, the overlay's fingerprint, so entries never become stale: a new
commit has new keys, and entries that are no longer used are evicted first.
"""

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from omnigraph.caches import LruCache
from omnigraph.cancellation import checkpoint
from omnigraph.fair_share import without_pauses
from omnigraph.fork_safety import keep_inherited, renew_after_fork
from omnigraph.memory_budget import budget_scope

T = TypeVar("T")

BYTES_MAX = 1 << 30
_ENTRY_BYTES = 200  # of an entry besides its value
_COSTS_MAX = 10_000
_WAIT_S = 0.05  # for a value that another thread makes, between checkpoints


@contextmanager
def shared_work() -> Iterator[None]:
    """What is made inside is kept for all queries: it counts towards the memory of none, and its work is not paused."""
    with budget_scope(None), without_pauses():
        yield


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """Counters of the cache and what it holds; `forgotten` counts evictions."""

    hits: int
    misses: int
    forgotten: int
    entries: int
    bytes_held: int


class ReadCache:
    """An LRU cache with single-flight construction, bounded in bytes; safe for threads.

    It also records the time spent on reads that a cached value would have saved. A reader loads a column once lookups
    without it have cost about as much as loading it would.
    """

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        renew_after_fork(self, ReadCache._renew)

    def _renew(self) -> None:
        keep_inherited(getattr(self, "_values", None))
        self._values: LruCache[Hashable, tuple[Any]] = LruCache(size_max=self.bytes_max)
        self._making: dict[Hashable, threading.Lock] = {}
        self._costs_s: LruCache[Hashable, float] = LruCache(_COSTS_MAX)
        self._lock = threading.Lock()
        self._hits = 0
        self._misses = 0
        self._evicted = 0

    @property
    def counts(self) -> CacheCounts:
        with self._lock:
            return CacheCounts(self._hits, self._misses, self._evicted, len(self._values), self._values.size)

    def get(self, key: Hashable, make: Callable[[], T], size_of: Callable[[T], int]) -> T:
        """The cached value of `key`, or a new one; threads that need the same value wait for the first to make it."""
        found = self._find(key)
        if found is not None:
            return found[0]  # type: ignore[no-any-return]
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        while not making.acquire(timeout=_WAIT_S):
            checkpoint()
        try:
            found = self._find(key)
            if found is not None:
                return found[0]  # type: ignore[no-any-return]
            try:
                with shared_work():
                    value = make()
                self._store(key, value, size_of(value) + _ENTRY_BYTES)
                return value
            finally:
                with self._lock:
                    self._making.pop(key, None)
        finally:
            making.release()

    def peek(self, key: Hashable) -> Any | None:
        """The value of `key` if it is cached."""
        found = self._find(key)
        return None if found is None else found[0]

    def has(self, key: Hashable) -> bool:
        with self._lock:
            return key in self._values

    def fits(self, size: int) -> bool:
        """Whether a value of this size can be cached without evicting most of the rest."""
        return size <= self.bytes_max // 2

    def record_cost(self, key: Hashable, seconds: float) -> None:
        """Record time spent on reads that `key` would have saved."""
        with self._lock:
            self._costs_s.put(key, (self._costs_s.peek(key) or 0.0) + seconds)

    def recorded_cost_s(self, key: Hashable) -> float:
        return self._costs_s.peek(key) or 0.0

    def clear(self) -> None:
        with self._lock:
            self._values.clear()
            self._costs_s.clear()

    def _find(self, key: Hashable) -> tuple[Any] | None:
        with self._lock:
            found = self._values.get(key)
            if found is not None:
                self._hits += 1
            return found

    def _store(self, key: Hashable, value: object, size: int) -> None:
        with self._lock:
            self._misses += 1
            if size <= self.bytes_max:  # a larger value would evict all others
                self._evicted += len(self._values.put(key, (value,), size))
