"""Bytes from a thread to a socket, no faster than they are read.

The thread writes into a pipe of a few pieces and waits while it is full; the socket's side takes one piece after the
other. A reader that goes away, or takes nothing for too long, stops the work. What goes wrong before the first piece is
an ordinary error; after it the connection is cut, so that nobody takes a part for the whole.
"""

import asyncio
import concurrent.futures
from collections.abc import AsyncGenerator, Callable
from typing import Any

from omnigraph.cancellation import Stopped, StopToken

CHUNK_BYTES = 64 * 1024
CHUNKS_MAX = 8


class Pipe:
    """One stream. `write` is for the thread, the rest for the event loop."""

    def __init__(self, stop: StopToken, stall_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(CHUNKS_MAX)
        self._stop = stop
        self._stall_s = stall_s
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
            piece, self._held, self._size = b"".join(self._held), [], 0
            self._put(piece)

    def end(self) -> None:
        self.flush()
        self._put(None)

    def _put(self, piece: bytes | None) -> None:
        self._stop.check()
        waiting = asyncio.run_coroutine_threadsafe(self._queue.put(piece), self._loop)
        try:
            waiting.result(self._stall_s)
        except concurrent.futures.TimeoutError:
            waiting.cancel()
            self._stop.set(Stopped(f"its reader took nothing for {self._stall_s:g} s", "read faster"))
        except concurrent.futures.CancelledError:
            self._stop.set(Stopped("its reader went away", "ask again"))
        self._stop.check()

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
