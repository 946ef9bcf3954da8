"""The memory of one query: one budget for all its parts, accounted before memory is taken.

The front door of a query sets a `MemoryBudget`, which travels in a context variable, into worker threads too. Arrays
count from their allocation until they are freed (`hold`), and what an operation needs besides while it runs
(`reserved`). Arrays of a few pages are not counted. What is shared between queries has its own bound (`ReadCache`).
"""

import ctypes
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from omnigraph.errors import BadRequest, OmnigraphError, Unavailable
from omnigraph.fork_safety import renew_after_fork

A = TypeVar("A")

COUNTED_MIN = 16 * 1024  # bytes of an array, from which it counts
_MIB = 1 << 20
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


class NoRoom(BadRequest):
    """A query needs more memory than its budget has; on Spark it may fit."""


class ProcessBusy(Unavailable):
    """The queries that run in this process need all the memory there is for queries; later there is room again."""

    def __str__(self) -> str:
        return f"Other queries use the memory that this process has for queries ({self.reason}): try again later."


class MemoryBudget:
    """What one query may use, and what it uses; safe for threads. What it uses counts in `whole` too."""

    def __init__(self, limit: int, whole: "MemoryBudget | None" = None) -> None:
        self.limit = limit
        self.peak = 0
        self._whole = whole
        self._used = 0
        self._lock = threading.Lock()
        self._held: dict[int, weakref.ref[Any]] = {}  # by the id of the array
        # Memory may be freed at any moment, also by the garbage collector inside `reserve`: so without a lock.
        self._freed: deque[int] = deque()

    def __del__(self) -> None:
        if self._whole is not None:
            self._whole.release(self._collect())

    @property
    def used(self) -> int:
        with self._lock:
            return self._collect()

    @property
    def left(self) -> int:
        return max(0, self.limit - self.used)

    def reserve(self, size: int, what: str) -> None:
        """Count `size` bytes for `what`, or refuse the query."""
        with self._lock:
            used = self._collect()
            if used + size <= self.limit:
                if self._whole is not None:
                    self._whole.reserve(size, what)
                self._used = used + size
                self.peak = max(self.peak, self._used)
                return
        raise self._refusal(size, max(0, self.limit - used), what)

    def _refusal(self, size: int, left: int, what: str) -> OmnigraphError:
        return NoRoom(
            f"The query needs {_format(size)} of memory for {what}, and {_format(left)} of its {_format(self.limit)} "
            "are free: add a filter to it, return less, run it on Spark, or raise OMNIGRAPH_QUERY_BYTES."
        )

    def release(self, size: int) -> None:
        self._freed.append(size)
        if self._whole is not None:
            self._whole.release(size)

    def own(self, array: Any, size: int) -> None:
        """From now on `size` bytes that are reserved belong to an array: they are released when it is freed."""
        key = id(array)
        self._held[key] = weakref.ref(array, partial(self._on_freed, key, size))

    def owns(self, array: Any) -> bool:
        return id(array) in self._held

    def _on_freed(self, key: int, size: int, _: object) -> None:
        self._held.pop(key, None)
        self.release(size)

    def _collect(self) -> int:
        while self._freed:
            self._used -= self._freed.popleft()
        return self._used


class _ProcessBudget(MemoryBudget):
    """What all queries of a process use together."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        renew_after_fork(self, _ProcessBudget._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def _refusal(self, size: int, left: int, what: str) -> OmnigraphError:
        return ProcessBusy(what, f"{_format(left)} of {_format(self.limit)} are free")


_current: ContextVar[MemoryBudget | None] = ContextVar("omnigraph_memory_budget", default=None)


def current_budget() -> MemoryBudget | None:
    return _current.get()


class budget_scope:  # noqa: N801 - it is used like a function: `with budget_scope(budget)`
    """All memory inside counts towards `budget`. A class, because every point lookup opens one."""

    __slots__ = ("_budget", "_token")

    def __init__(self, budget: MemoryBudget | None) -> None:
        self._budget = budget

    def __enter__(self) -> None:
        self._token = _current.set(self._budget)

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)


def hold(array: A, what: str = "an intermediate result") -> A:
    """Count a new array, or one whose size was not known before, until it is freed. A view counts as its owner."""
    budget = _current.get()
    if budget is None:
        return array
    owner: Any = array
    while isinstance(getattr(owner, "base", None), type(array)):
        owner = owner.base
    size = int(owner.nbytes)
    if size >= COUNTED_MIN and not budget.owns(owner):
        budget.reserve(size, what)
        budget.own(owner, size)
    return array


@contextmanager
def reserved(size: int, what: str) -> Iterator[None]:
    """Count what an operation needs besides its result while it runs."""
    budget = _current.get()
    if budget is None or size < COUNTED_MIN:
        yield
        return
    budget.reserve(size, what)
    try:
        yield
    finally:
        budget.release(size)


def require_room(size: int, what: str) -> None:
    """Refuse a query early that is going to need more than is left."""
    budget = _current.get()
    if budget is not None and size >= COUNTED_MIN:
        budget.reserve(size, what)
        budget.release(size)


@cache
def machine_bytes() -> int:
    """The memory of this machine, or of its container."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = _CGROUP_LIMIT.read_text(encoding="ascii").strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdecimal() else total


def query_budget(limit: int = 0) -> MemoryBudget:
    """The budget of one query; 0: a quarter of the machine's memory. All queries together may use three quarters."""
    return MemoryBudget(limit or machine_bytes() // 4, _process_budget())


@cache
def _process_budget() -> MemoryBudget:
    return _ProcessBudget(machine_bytes() * 3 // 4)


def return_free_memory() -> None:
    """Give what was freed back to the system, where possible: allocators keep it for each thread."""
    arrow = sys.modules.get("pyarrow")
    if arrow is not None:
        arrow.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def _format(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / _MIB:.1f} MiB"
