"""The bounded cache that all in-memory caches are built on."""

import sys
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
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
