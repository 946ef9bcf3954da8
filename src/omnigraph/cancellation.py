"""Cancellation: a deadline or a caller that went away stops running work.

The caller sets a `StopToken`, which travels in a context variable, into worker threads too (see
`threads.py`). Work checks it at `checkpoint`s, between short steps. A call that blocks inside a library
is interrupted from another thread, see `interruptible`. Checkpoints are in code that reads and stages, never between
the put of a commit and its answer: a write that may have been applied is never reported as stopped.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Self

from omnigraph.errors import OmnigraphError
from omnigraph.fair_share import current_share


class Stopped(OmnigraphError):
    """The work was cancelled. Nothing was written."""

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
    """Whether work must stop, and why. Set once, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cause: OmnigraphError | None = None
        self._interrupts: dict[int, Callable[[], None]] = {}
        self._next = 0

    @property
    def cause(self) -> OmnigraphError | None:
        return self._cause

    def set(self, cause: OmnigraphError) -> None:
        """Stop the work; the first cause counts."""
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
        """While inside, `set` also calls `interrupt`; the error that this makes the library raise becomes the cause."""
        with self._lock:
            self._next += 1
            key = self._next
            self._interrupts[key] = interrupt
        try:
            self.check()
            yield
        except Exception:
            self.check()
            raise
        finally:
            with self._lock:
                del self._interrupts[key]


_current: ContextVar[StopToken | None] = ContextVar("omnigraph_stop", default=None)


def checkpoint() -> None:
    """Raise here if the work must stop, and let other queries go on if it has had its time slice."""
    _check()
    share = current_share.get()
    if share is not None:
        share.pause(_check)


def _check() -> None:
    stop = _current.get()
    if stop is not None:
        stop.check()


@contextmanager
def interruptible(interrupt: Callable[[], None]) -> Iterator[None]:
    """Wrap a blocking call that `interrupt` ends from another thread."""
    stop = _current.get()
    if stop is None:
        yield
        return
    with stop.interrupting(interrupt):
        yield


@contextmanager
def stop_scope(stop: StopToken) -> Iterator[None]:
    """All work inside stops when `stop` is set."""
    token = _current.set(stop)
    try:
        yield
    finally:
        _current.reset(token)
