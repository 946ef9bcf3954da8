"""The caches that all in-memory caches are built on: LRU, LRU with single-flight construction, and derived values."""

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from omnigraph.fork_safety import keep_inherited, renew_after_fork
from omnigraph.threads import run_blocking_hook

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """Values by key, bounded in entries, in total size, or in both; evicts the least recently used entry first.

    A size is in whatever unit the owner chooses, such as bytes. Not thread-safe, except for `peek` and `in`: the owner
    holds a lock, which usually guards more than the cache.
    """

    __slots__ = ("_entries", "_entries_max", "_size_max", "size")

    def __init__(self, entries_max: int = sys.maxsize, size_max: int = sys.maxsize) -> None:
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._entries_max, self._size_max = entries_max, size_max
        self.size = 0  # of all entries

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        return iter(self._entries)

    def get(self, key: K) -> V | None:
        """The value of `key`, which becomes the most recently used."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def peek(self, key: K) -> V | None:
        """The value of `key`, without counting as a use."""
        entry = self._entries.get(key)
        return None if entry is None else entry[0]

    def put(self, key: K, value: V, size: int = 0) -> list[K]:
        """Add or replace a value; returns the evicted keys, its own if it is larger than the whole cache may be."""
        entries, evicted = self._entries, []
        replaced = entries.pop(key, None)
        self.size += size if replaced is None else size - replaced[1]
        entries[key] = (value, size)
        while len(entries) > self._entries_max or self.size > self._size_max:
            oldest, (_, freed) = entries.popitem(last=False)
            self.size -= freed
            evicted.append(oldest)
        return evicted

    def setdefault(self, key: K, value: V) -> V:
        """The value of `key`, which is this one if there was none, and becomes the most recently used."""
        entries = self._entries
        found = entries.setdefault(key, (value, 0))[0]
        entries.move_to_end(key)
        if len(entries) > self._entries_max:
            _, (_, freed) = entries.popitem(last=False)
            self.size -= freed
        return found

    def pop(self, key: K) -> V | None:
        """Remove `key` and return its value, or None."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self.size -= entry[1]
        return entry[0]

    def items(self) -> list[tuple[K, V]]:
        """All entries, the least recently used first."""
        return [(key, value) for key, (value, _) in self._entries.items()]

    def clear(self) -> None:
        self._entries.clear()
        self.size = 0


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
            return self._values.setdefault(key, value)


class DerivedCache(Generic[T, V]):
    """What is derived from immutable values, once for each, kept beside them.

    By identity, because to compare two types or schemas takes longer than to derive most things from one.
    """

    def __init__(self, derive: Callable[[T], V], entries_max: int = 4096) -> None:
        self._derive = derive
        self._entries_max = entries_max
        self._known: dict[int, tuple[T, V]] = {}  # with the value, so that its number is not another's

    def of(self, value: T) -> V:
        known = self._known.get(id(value))
        if known is not None:
            return known[1]
        if len(self._known) >= self._entries_max:
            self._known.clear()
        derived = self._derive(value)
        self._known[id(value)] = (value, derived)
        return derived
