"""A bounded memory of things that are dear to make, each made by one thread."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from omnigraph.fork_safety import keep_inherited, renew_after_fork
from omnigraph.storage.util.blocking_hook import run_blocking_hook

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SingleFlightCache(Generic[K, V]):
    """Values by key, the least recently used forgotten first.

    Threads that want the same value at once wait for the first of them to make it: for an open
    dataset that saves requests, and everyone has the same one.
    """

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        renew_after_fork(self, SingleFlightCache._renew)

    def _renew(self) -> None:
        """A forked child starts empty: open datasets and views on scratch disk are its parent's."""
        keep_inherited(getattr(self, "_values", None))
        self._values: OrderedDict[K, V] = OrderedDict()
        self._making: dict[K, threading.Lock] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: K) -> bool:
        return key in self._values

    def get_or_create(self, key: K, make: Callable[[], V]) -> V:
        """The value of `key`, made now unless it is remembered."""
        found = self._recall(key)
        if found is not None:
            return found[0]
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        if not making.acquire(blocking=False):
            run_blocking_hook()  # for another's requests
            making.acquire()
        try:
            found = self._recall(key)
            if found is not None:
                return found[0]
            try:
                return self.put(key, make())
            finally:
                with self._lock:
                    self._making.pop(key, None)
        finally:
            making.release()

    def put(self, key: K, value: V) -> V:
        """Remember a value; one that is remembered already wins, so that there is one."""
        with self._lock:
            kept = self._values.setdefault(key, value)
            self._values.move_to_end(key)
            while len(self._values) > self._entries_max:
                self._values.popitem(last=False)
            return kept

    def get(self, key: K) -> V | None:
        """The value of `key`, if it is remembered."""
        found = self._recall(key)
        return None if found is None else found[0]

    def _recall(self, key: K) -> tuple[V] | None:
        with self._lock:
            try:
                value = self._values[key]
            except KeyError:
                return None
            self._values.move_to_end(key)
            return (value,)
