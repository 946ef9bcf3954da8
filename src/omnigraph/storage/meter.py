"""What an operation cost: requests, serial stages, bytes and retries.

Our own requests are recorded where they are made and attributed exactly: the open accounts travel in a context
variable, also into worker threads (see `threads.py`). Lance only counts its requests, per store: an operation is
charged the difference of that counter, which is exact while it runs alone in its process; otherwise its cost says
`shared`.
"""

import bisect
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import NamedTuple

from omnigraph.storage.util.fork_guard import LANCE
from omnigraph.threads import run_blocking_hook


@dataclass(frozen=True, slots=True)
class Cost:
    """The price of one logical operation, in requests to the store."""

    requests: int = 0
    stages: int = 0  # the longest chain of requests that do not overlap in time
    bytes: int = 0
    retries: int = 0
    shared: bool = False  # a put was charged to another operation, or Lance's part may include concurrent operations

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.requests + other.requests,
            self.stages + other.stages,
            self.bytes + other.bytes,
            self.retries + other.retries,
            self.shared or other.shared,
        )


NO_COST = Cost()


class Span(NamedTuple):
    """A time span in which `stages` requests followed one another."""

    start: float
    end: float
    stages: int


class LanceIo(NamedTuple):
    """A cumulative counter of Lance's requests to one store."""

    requests: int
    bytes: int


_NO_IO = LanceIo(0, 0)


def longest_chain(spans: Iterable[Span]) -> int:
    """The largest sum of stages over spans that do not overlap (weighted interval scheduling)."""
    spans = list(spans)
    if len(spans) < 2:
        return spans[0].stages if spans else 0
    ends: list[float] = []
    best: list[int] = [0]
    for span in sorted(spans, key=itemgetter(1)):
        before = bisect.bisect_right(ends, span.start)
        ends.append(span.end)
        best.append(max(best[-1], best[before] + span.stages))
    return best[-1]


Probe = Callable[[], LanceIo]


@dataclass(slots=True, eq=False)
class CostAccount:
    """The account of one logical operation."""

    kind: str
    root: "CostAccount | None" = None
    spans: list[Span] = field(default_factory=list)
    requests: int = 0
    bytes: int = 0
    retries: int = 0
    shared: bool = False
    charged_to_leader: bool = False
    _lance_before: dict[str, LanceIo] | None = None  # counters at the first use of Lance, if any
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: Cost | None = None

    @property
    def cost(self) -> Cost:
        """The final cost, or the cost so far while the operation runs."""
        return self._closed if self._closed is not None else self.add_lance_cost(self.own_cost())

    def add(self, span: Span, requests: int, bytes_moved: int, retries: int) -> None:
        with self._lock:
            self.spans.append(span)
            self.requests += requests
            self.bytes += bytes_moved
            self.retries += retries

    def count_retry(self) -> None:
        with self._lock:
            self.retries += 1

    def own_cost(self) -> Cost:
        """The cost without Lance's part."""
        with self._lock:
            return Cost(self.requests, longest_chain(self.spans), self.bytes, self.retries)

    def track_lance(self) -> None:
        """Count Lance's requests from here on. Reading its counters costs more than everything else in here."""
        if self._lance_before is None:
            before = _read_probes()
            with self._lock:
                self._lance_before = self._lance_before or before

    def add_lance_cost(self, ours: Cost) -> Cost:
        """Our own cost plus the growth of Lance's counters."""
        if self._lance_before is None:
            return replace(ours, shared=True) if self.charged_to_leader else ours
        requests = moved = 0
        for key, now in _read_probes().items():
            was = self._lance_before.get(key, _NO_IO)
            requests, moved = requests + now.requests - was.requests, moved + now.bytes - was.bytes
        return Cost(
            ours.requests + requests,
            min(ours.requests + requests, ours.stages),  # stages of reads are estimates: cached reads make none
            ours.bytes + moved,
            ours.retries,
            self.charged_to_leader or (self.shared and requests > 0),
        )


_stack: ContextVar[tuple[CostAccount, ...]] = ContextVar("omnigraph_operations", default=())
_lock = threading.Lock()
_roots: set[CostAccount] = set()
_probes: dict[str, Probe] = {}
_subscribers: list[Callable[[str, Cost], None]] = []
_log = logging.getLogger(__name__)


def _renew() -> None:
    """In a forked child only the operations of the forking thread continue."""
    global _lock
    _lock = threading.Lock()
    _roots.intersection_update(_stack.get())


os.register_at_fork(after_in_child=_renew)


def _read_probes() -> dict[str, LanceIo]:
    return {key: probe() for key, probe in list(_probes.items())} if _probes else {}


class operation:  # noqa: N801 - it is used like a function: `with operation("write") as account`
    """Open an account: every request made inside, also by threads of `parallel`, is charged to it.

    A class rather than a generator function because every small commit opens one.
    """

    __slots__ = ("_account", "_outer", "_token")

    def __init__(self, kind: str) -> None:
        self._account = CostAccount(kind)

    def __enter__(self) -> CostAccount:
        op = self._account
        outer = self._outer = _stack.get()
        if outer:
            op.root, op.shared = outer[0], outer[0].shared
        else:
            with _lock:
                for other in _roots:
                    other.shared = op.shared = True
                _roots.add(op)
        self._token = _stack.set((*outer, op))
        return op

    def __exit__(self, *_: object) -> None:
        op = self._account
        _stack.reset(self._token)
        if op.root is not None:
            op.shared = op.root.shared
        op._closed = op.add_lance_cost(op.own_cost())
        if not self._outer:
            with _lock:
                _roots.discard(op)
        for notify in list(_subscribers):
            try:
                notify(op.kind, op._closed)
            except Exception:  # the operation has happened, perhaps a commit: it must not be reported as failed
                _log.exception("A subscriber of the meter raised.")


def record_request(start: float, end: float, *, bytes_moved: int = 0, retries: int = 0) -> None:
    """Charge one request of ours to the open accounts."""
    for op in _stack.get():
        op.add(Span(start, end, 1), 1, bytes_moved, retries)


def record_retry() -> None:
    """Count an attempt that must be repeated: a lost race, or a put whose answer was lost."""
    for op in _stack.get():
        op.count_retry()


def mark_charged_to_leader() -> None:
    """The leader of the group commit put this operation's rows: the request is on the leader's account."""
    for op in _stack.get():
        op.charged_to_leader = True


def track_lance() -> None:
    """Call this before using a dataset: Lance's requests are charged to the open accounts."""
    LANCE.check()
    for op in _stack.get():
        op.track_lance()


@contextmanager
def lance_call(stages: int) -> Iterator[None]:
    """Mark a call into Lance that makes `stages` requests one after another.

    Lance counts the requests but not how many of them are serial, so the caller says that, and a test compares its
    figures with a log of real traffic.
    """
    track_lance()
    run_blocking_hook()
    start = time.monotonic()
    try:
        yield
    finally:
        span = Span(start, time.monotonic(), stages)
        for op in _stack.get():
            op.add(span, 0, 0, 0)


def set_probe(store: str, probe: Probe) -> None:
    """Set the function that reads Lance's counter of a store; a second one replaces the first."""
    _probes[store] = probe


def drop_probe(store: str) -> None:
    """Stop reading a store's counter."""
    _probes.pop(store, None)


def subscribe(callback: Callable[[str, Cost], None]) -> Callable[[], None]:
    """Call `callback(kind, cost)` at the end of every operation; returns a function that unsubscribes."""
    _subscribers.append(callback)
    return lambda: _subscribers.remove(callback)


def open_accounts() -> Sequence[CostAccount]:
    """The accounts open in this context, outermost first."""
    return _stack.get()
