"""A fair share of the processors: long queries take time slices in turn, so that short ones need not wait for them.

A query that has computed for more than about `SHORT_S` goes on only in a time slice, of which there are few at once.
Slices go to the query that has had the least time so far. A query that is blocked, on the store or by another query,
does not keep its slice: it ends when no checkpoint was reached for `BLOCKED_S`. Besides, long queries pause while there
is short work: queries and requests that began a moment ago.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from omnigraph.fork_safety import renew_after_fork

SHORT_S = 0.05
SLICE_S = 0.1
BLOCKED_S = 0.25
SHORT_WORK_S = 0.25  # for so long a request that has begun may be short
GIVE_WAY_S = 0.05  # at most, for short work
PROGRESS_S = 0.01  # before a query gives way again
_POLL_S = 0.05
_NAP_S = 0.001

_short_work: dict[object, float] = {}  # since when


class Share:
    """One query. Only the thread that began it waits for slices: others of it mostly wait for the store."""

    __slots__ = ("_computed_s", "_gives_way_at", "_is_long", "_thread", "due", "is_next", "seen", "sliced_s")

    def __init__(self) -> None:
        now = time.monotonic()
        _short_work[self] = now
        self.due = now + SHORT_S  # when a checkpoint looks at it again
        self._gives_way_at = 0.0
        self.seen = 0.0
        self.sliced_s = 0.0
        self.is_next: threading.Event | None = None
        self._thread = threading.get_ident()
        self._computed_s: float | None = None
        self._is_long = False

    def pause(self, check: Callable[[], None]) -> None:
        """Wait for a time slice if one is needed; `check` raises if the work must stop."""
        now = time.monotonic()
        self.seen = now
        if self._is_long and _short_work and now >= self._gives_way_at and threading.get_ident() == self._thread:
            self._give_way(now, check)
        if now < self.due or threading.get_ident() != self._thread:
            return
        if not self._is_long:
            computed_s = time.thread_time()
            if self._computed_s is None:  # only now, which costs a short query nothing
                self._computed_s = computed_s
            left_s = SHORT_S - (computed_s - self._computed_s)
            if left_s > 0:
                self.due = now + left_s
                return
            self._is_long = True
            _short_work.pop(self, None)
        _scheduler.next_slice(self, check)

    def _give_way(self, now: float, check: Callable[[], None]) -> None:
        """Pause while there is short work, not for long and not often."""
        end = now + GIVE_WAY_S
        while now < end and any(now - since < SHORT_WORK_S for since in list(_short_work.values())):
            time.sleep(_NAP_S)
            check()
            now = self.seen = time.monotonic()
        self._gives_way_at = now + PROGRESS_S

    def end(self) -> None:
        _short_work.pop(self, None)
        if self._is_long:
            _scheduler.end_slice(self)


class _Scheduler:
    """The time slices of a process."""

    def __init__(self, slices: int) -> None:
        self._slices = slices
        renew_after_fork(self, _Scheduler._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[Share, float] = {}  # since when
        self._waiting: list[Share] = []

    def next_slice(self, share: Share, check: Callable[[], None]) -> None:
        """Go on if nobody else waits, otherwise when it is this query's turn again."""
        with self._lock:
            if share in self._running and not self._waiting:
                self._begin(share)
                return
            self._end(share)
            turn = share.is_next = threading.Event()
            self._waiting.append(share)
            self._hand_out()
        try:
            while not turn.wait(_POLL_S):
                check()
                with self._lock:
                    self._hand_out()
        except BaseException:
            with self._lock:
                if share in self._waiting:
                    self._waiting.remove(share)
                self._end(share)
                self._hand_out()
            raise

    def end_slice(self, share: Share) -> None:
        with self._lock:
            self._end(share)
            self._hand_out()

    def _begin(self, share: Share) -> None:
        now = time.monotonic()
        if share in self._running:
            share.sliced_s += now - self._running[share]
        self._running[share] = share.seen = now
        share.due = now + SLICE_S

    def _end(self, share: Share) -> None:
        since = self._running.pop(share, None)
        if since is not None:
            share.sliced_s += time.monotonic() - since

    def _hand_out(self) -> None:
        """Give free slices to those that have had the least time."""
        now = time.monotonic()
        for share in [share for share in self._running if now - share.seen > BLOCKED_S]:
            self._end(share)
        while self._waiting and len(self._running) < self._slices:
            share = min(self._waiting, key=lambda waiting: waiting.sliced_s)
            self._waiting.remove(share)
            self._begin(share)
            assert share.is_next is not None
            share.is_next.set()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_scheduler = _Scheduler(max(1, _cores() - 1))
current_share: ContextVar[Share | None] = ContextVar("omnigraph_fair_share", default=None)


class fair_share:  # noqa: N801 - it is used like a function: `with fair_share()`
    """The work inside is one query, or a part of the query that it is in. A class, because every query opens one."""

    __slots__ = ("_share", "_token")

    def __enter__(self) -> None:
        self._share = None if current_share.get() is not None else Share()
        if self._share is not None:
            self._token = current_share.set(self._share)

    def __exit__(self, *_: object) -> None:
        if self._share is not None:
            current_share.reset(self._token)
            self._share.end()


@contextmanager
def short_work() -> Iterator[None]:
    """The work inside is short if it ends soon; long queries give way to it."""
    work = object()
    _short_work[work] = time.monotonic()
    try:
        yield
    finally:
        del _short_work[work]


@contextmanager
def without_pauses() -> Iterator[None]:
    """The work inside is not held up, because other queries wait for it."""
    token = current_share.set(None)
    try:
        yield
    finally:
        current_share.reset(token)
