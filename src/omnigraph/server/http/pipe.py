"""Bytes from a thread to a socket, no faster than they are read.

The thread writes into a pipe of a few pieces and waits while it is full; the socket's side takes one piece after the
other. A reader that goes away, or takes nothing for too long, stops the work; so does a slow one while others wait for
a place. What goes wrong before the first piece is an ordinary error; after it the connection is cut, so that nobody
takes a part for the whole.
"""

import asyncio
import concurrent.futures
from collections.abc import AsyncGenerator, Callable
from typing import Any

from omnigraph.cancellation import Stopped, StopToken

CHUNK_BYTES = 64 * 1024
CHUNKS_MAX = 8
PIECE_BYTES_MAX = 4 * CHUNK_BYTES
LOOK_S = 0.1  # between looks at whether the reader still deserves its place
PATIENCE_S = 5.0  # with a reader that is behind
SLOW_BYTES_S = 64 * 1024  # of the time for which the stream waited


class Pipe:
    """One stream. `write` is for the thread, the rest for the event loop."""

    def __init__(self, stop: StopToken, stall_s: float, crowded: Callable[[], bool]) -> None:
        """`crowded` says whether others wait for the place that this stream keeps."""
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(CHUNKS_MAX)
        self._stop = stop
        self._stall_s = stall_s
        self._crowded = crowded
        self._waited_s = 0.0
        self._held: list[bytes] = []
        self._size = 0
        self.sent = 0
        self.closed = False  # for Arrow, which asks

    # For the thread

    def write(self, data: bytes) -> int:
        """Takes what it is given; blocks while the reader is behind."""
        self._held.append(bytes(data))
        self._size += len(data)
        if self._size >= CHUNK_BYTES:
            self.flush()
        return len(data)

    def flush(self) -> None:
        if self._held:
            held, self._held, self._size = b"".join(self._held), [], 0
            for start in range(0, len(held), PIECE_BYTES_MAX):
                self._put(held[start : start + PIECE_BYTES_MAX])

    def end(self) -> None:
        self.flush()
        self._put(None)

    def _put(self, piece: bytes | None) -> None:
        self._stop.check()
        waiting = asyncio.run_coroutine_threadsafe(self._queue.put(piece), self._loop)
        try:
            self._wait(waiting)
        except concurrent.futures.CancelledError:
            self._stop.set(Stopped("its reader went away", "ask again"))
        self._stop.check()

    def _wait(self, waiting: "concurrent.futures.Future[None]") -> None:
        """Until there is room in the pipe, which is as long as the reader is behind."""
        stalled_s = 0.0
        while True:
            try:
                return waiting.result(LOOK_S)
            except concurrent.futures.TimeoutError:
                stalled_s += LOOK_S
                self._waited_s += LOOK_S
                if stalled_s >= self._stall_s:
                    late = Stopped(f"its reader took nothing for {self._stall_s:g} s", "read faster")
                elif self._is_slow() and self._crowded():
                    late = Stopped("its reader was slow while others waited for a place", "read faster")
                else:
                    continue
                waiting.cancel()
                self._stop.set(late)
                return None

    def _is_slow(self) -> bool:
        return self._waited_s > PATIENCE_S and self.sent < SLOW_BYTES_S * self._waited_s

    # For the event loop

    async def pieces(self, work: "asyncio.Future[None]") -> AsyncGenerator[bytes, None]:
        """All pieces until the end; raises what the work raised."""
        try:
            while True:
                piece = await self._next(work)
                if piece is None:
                    await work
                    return
                self.sent += len(piece)
                yield piece
        finally:
            self._stop.set(Stopped("its reader went away", "ask again"))
            while not self._queue.empty():
                self._queue.get_nowait()

    async def _next(self, work: "asyncio.Future[None]") -> bytes | None:
        if not self._queue.empty():
            return self._queue.get_nowait()
        getting = asyncio.ensure_future(self._queue.get())
        both: set[asyncio.Future[Any]] = {getting, work}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # the reader went away: `wait` leaves what it waits for as it is
            getting.cancel()
            raise
        if getting.done():
            return getting.result()
        getting.cancel()
        if work.exception() is None and not self._queue.empty():
            return self._queue.get_nowait()
        await work  # raises
        return None


def write_to_pipe(pipe: Pipe, produce: Callable[[Pipe], None]) -> None:
    """Run a producer to its end, or let its error be the stream's."""
    produce(pipe)
    pipe.end()


def retrieve_exception(work: "asyncio.Future[None]") -> None:
    """Take note of how work ended that perhaps nobody waits for any more: asyncio would call that forgotten."""
    if not work.cancelled():
        work.exception()
