"""Admission control: how many requests run at once, and the threads in which they run.

Work blocks (on the store, in Lance, in DuckDB), so it has a thread of a bounded pool. A request that finds no free slot
waits in a queue; if the queue is full, or the wait too long, it gets 429 and `Retry-After`. One actor can't take all
slots.
"""

import asyncio
import contextvars
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import TypeVar

from omnigraph.cancellation import Stopped, StopToken, stop_scope
from omnigraph.fair_share import fair_share
from omnigraph.memory_budget import return_free_memory
from omnigraph.server.http.errors import too_many_requests
from omnigraph.server.settings import Limits

T = TypeVar("T")

LONG_S = 0.2  # of processor time
STOP_GRACE_S = 2.0  # for a read that was stopped; then its caller is answered, and its thread goes on to its end


class Admission:
    """The places, and the line before them. For one event loop."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._running: Counter[str] = Counter()
        self._line: deque[tuple[str, asyncio.Future[None]]] = deque()

    @property
    def running(self) -> int:
        return self._running.total()

    @property
    def waiting(self) -> int:
        return len(self._line)

    async def enter(self, actor: str) -> None:
        if not self._line and self._has_room(actor):
            self._running[actor] += 1
            return
        if len(self._line) >= self._limits.waiting:
            raise too_many_requests("The line of waiting requests is full", self._retry_after())
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append((actor, mine))
        self._admit_next()
        try:
            await asyncio.wait_for(asyncio.shield(mine), self._limits.waiting_s)
        except (TimeoutError, asyncio.CancelledError) as error:
            if mine.done() and not mine.cancelled():
                self.leave(actor)  # the place came too late
            else:
                mine.cancel()
                self._line = deque(entry for entry in self._line if entry[1] is not mine)
            if isinstance(error, asyncio.CancelledError):
                raise
            raise too_many_requests(
                f"No place became free within {self._limits.waiting_s:g} s", self._retry_after()
            ) from None

    def leave(self, actor: str) -> None:
        self._running[actor] -= 1
        if not self._running[actor]:
            del self._running[actor]
        self._admit_next()

    def _has_room(self, actor: str) -> bool:
        limits = self._limits
        return self.running < limits.running and self._running[actor] < limits.running_per_actor

    def _admit_next(self) -> None:
        """In order, but for those whose actor has all that one may have: they don't hold up the others."""
        passed: list[tuple[str, asyncio.Future[None]]] = []
        while self._line and self.running < self._limits.running:
            actor, waiting = self._line.popleft()
            if waiting.cancelled():
                continue
            if self._has_room(actor):
                self._running[actor] += 1
                waiting.set_result(None)
            else:
                passed.append((actor, waiting))
        self._line.extendleft(reversed(passed))

    def _retry_after(self) -> int:
        """More for who comes while many wait."""
        return 1 + self.waiting // max(1, self._limits.running)


class Workers:
    """The threads. Each call runs in the context of its caller, with its own stop."""

    def __init__(self, limits: Limits, admission: Admission) -> None:
        self._pool = ThreadPoolExecutor(limits.running, thread_name_prefix="omnigraph-request")
        self._admission = admission
        self._limits = limits
        self._returning = threading.Lock()

    async def run(
        self,
        actor: str,
        work: Callable[[], T],
        *,
        stop: StopToken | None = None,
        deadline_s: float | None = None,
        to_its_end: bool = False,
    ) -> T:
        """The answer of `work`, in a place of its actor's, which it keeps until its thread is done.

        When a deadline has passed it is stopped, and its caller hears so. A write is waited for `to_its_end` however
        long that takes, because only its end says what became of it.
        """
        await self._admission.enter(actor)
        loop = asyncio.get_running_loop()
        own = StopToken() if stop is None else stop
        context = contextvars.copy_context()

        def stoppable() -> T:
            computed_s = time.thread_time()
            try:
                with stop_scope(own), nullcontext() if to_its_end else fair_share():
                    own.check()
                    return work()
            finally:
                if time.thread_time() - computed_s > LONG_S:
                    self._return_free_memory()

        try:
            future = loop.run_in_executor(self._pool, context.run, stoppable)
        except BaseException:
            self._admission.leave(actor)
            raise
        future.add_done_callback(lambda _: self._admission.leave(actor))
        future.add_done_callback(_retrieve_exception)
        if deadline_s is None:
            return await asyncio.shield(future)
        late = Stopped(f"it ran longer than {deadline_s:g} s", "ask for less, or allow more time")
        timer = loop.call_later(deadline_s, own.set, late)
        try:
            if to_its_end:
                return await asyncio.shield(future)
            return await asyncio.wait_for(asyncio.shield(future), deadline_s + STOP_GRACE_S)
        except TimeoutError:
            raise late from None
        finally:
            timer.cancel()

    def _return_free_memory(self) -> None:
        """After a long request, which may have used much; not for each of many at once."""
        if self._returning.acquire(blocking=False):
            try:
                return_free_memory()
            finally:
                self._returning.release()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _retrieve_exception(future: "asyncio.Future[T]") -> None:
    """Take the exception of an abandoned future, so that asyncio does not log it; a waiter gets it all the same."""
    if not future.cancelled():
        future.exception()
