"""Stopping what runs: a deadline or a caller that went away ends a read where it stands.

Whoever starts work gives it a `StopToken`; it travels in a context variable, into worker threads too (see
`storage/util/parallel.py`). Work looks at it at its `checkpoint`s, between steps that take a moment each. What blocks
inside a library is interrupted from outside: `interruptible` says how. Checkpoints are in code that reads and stages,
never between the put of a commit and its answer: a write that may have landed is never reported as stopped.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Self

from omnigraph.errors import OmnigraphError


class Stopped(OmnigraphError):
    """The work was ended before it was done. Nothing was written."""

    code = "unavailable"
    known_by = ("stopped",)

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason, remedy)
        self.reason, self.remedy = reason, remedy

    @property
    def details(self) -> dict[str, Any]:
        return {"stopped": self.reason}

    @classmethod
    def from_details(cls, message: str, details: Mapping[str, Any], source: str = "") -> Self:
        start = f"It was stopped because {details['stopped']}: nothing was written, "
        return cls(details["stopped"], message.removeprefix(start).removesuffix("."))

    def __str__(self) -> str:
        return f"It was stopped because {self.reason}: nothing was written, {self.remedy}."


class StopToken:
    """Whether work is to end, and why. Set once, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cause: OmnigraphError | None = None
        self._interrupts: dict[int, Callable[[], None]] = {}
        self._next = 0

    @property
    def cause(self) -> OmnigraphError | None:
        return self._cause

    def set(self, cause: OmnigraphError) -> None:
        """End the work; the first cause counts."""
        with self._lock:
            if self._cause is not None:
                return
            self._cause = cause
            interrupts = list(self._interrupts.values())
        for interrupt in interrupts:
            interrupt()

    def check(self) -> None:
        if self._cause is not None:
            raise self._cause

    @contextmanager
    def interrupting(self, interrupt: Callable[[], None]) -> Iterator[None]:
        """While inside, `set` also calls `interrupt`; whatever that makes the library raise becomes the cause."""
        with self._lock:
            self._next += 1
            place = self._next
            self._interrupts[place] = interrupt
        try:
            self.check()
            yield
        except Exception:
            self.check()
            raise
        finally:
            with self._lock:
                del self._interrupts[place]


_current: ContextVar[StopToken | None] = ContextVar("omnigraph_stop", default=None)


def checkpoint() -> None:
    """End here if the work is to end."""
    stop = _current.get()
    if stop is not None:
        stop.check()


@contextmanager
def interruptible(interrupt: Callable[[], None]) -> Iterator[None]:
    """Around a call that blocks and that `interrupt` ends from another thread."""
    stop = _current.get()
    if stop is None:
        yield
        return
    with stop.interrupting(interrupt):
        yield


@contextmanager
def stop_scope(stop: StopToken) -> Iterator[None]:
    """All work inside ends when `stop` is set."""
    token = _current.set(stop)
    try:
        yield
    finally:
        _current.reset(token)


_memory_limit: ContextVar[int | None] = ContextVar("omnigraph_room", default=None)


def memory_limit_bytes() -> int | None:
    """How much a part of a query's match may take; None where nobody shares the memory."""
    return _memory_limit.get()


@contextmanager
def memory_limit(bytes_max: int) -> Iterator[None]:
    """All work inside is refused what would take more: one query must not end a process that serves many."""
    token = _memory_limit.set(bytes_max)
    try:
        yield
    finally:
        _memory_limit.reset(token)
