"""A transparent HTTP proxy in front of an S3 server: it counts, delays, caps and breaks the requests of any library.

It runs as one event loop in a thread of the test's process, so clients may be in this process or in others. A request
is read whole before anything is decided about it, so "applied" and "not applied" are exact: a request that was read
and not refused reaches the server once, whether or not its client still waits for the answer. The request line and
all headers but the hop-by-hop ones (`Connection`, `Expect`) reach the server as sent, so signatures stay valid.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

T = TypeVar("T")

TIMEOUT_S = 30.0
HEAD_BYTES_MAX = 1 << 20


@dataclass(slots=True)
class Request:
    """One request as the proxy saw it.

    `started` is the arrival of its head, before its body and any waiting for a slot, a delay or a fault; `ended` is
    the moment before its answer leaves. So a request that a client sends because of an answer always starts after
    that answer's request ended, and waiting in the proxy never makes two requests look like one after the other.
    """

    index: int
    connection: int
    method: str
    path: str
    query: str
    range: str | None
    if_none_match: str | None
    request_bytes: int
    started: float
    ended: float | None = None  # None while it is in the proxy
    status: int | None = None  # what the client was told; None if its connection was dropped
    server_status: int | None = None  # what the server said; None if the request did not reach it (yet)
    response_bytes: int = 0
    fault: str = ""

    @property
    def applied(self) -> bool:
        return self.server_status is not None

    def __str__(self) -> str:
        target = self.path + (f"?{self.query}" if self.query else "")
        notes = [self.range or "", f"if-none-match {self.if_none_match}" if self.if_none_match else "", self.fault]
        return " ".join([self.method, target, *(f"[{note}]" for note in notes if note)])


class Log:
    """The requests of one stretch of time, in order of arrival; grows until its `recording` block ends."""

    def __init__(self, requests: list[Request], since: int) -> None:
        self._all = requests
        self._since = since
        self._until: int | None = None

    @property
    def requests(self) -> list[Request]:
        return self._all[self._since : self._until]

    def __len__(self) -> int:
        return len(self.requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self.requests)

    @property
    def serial(self) -> int:
        """Serial round trips: the longest chain of requests that don't overlap in time.

        Requests sent together overlap only if the first still runs when the last arrives: on a server that answers
        within a millisecond set `delay_s` to some ten of them, or a scheduling hiccup counts as a round trip.
        """
        chain, free_at = 0, float("-inf")
        for request in sorted(self.requests, key=_end):
            if request.started >= free_at:
                chain, free_at = chain + 1, _end(request)
        return chain

    def count(self, method: str | None = None, path_contains: str = "") -> int:
        return sum(_matches(request, method, path_contains) for request in self.requests)

    def describe(self) -> str:
        """A table for assertion messages: when each request ran, what came of it, and how long the chain is."""
        requests = self.requests
        origin = requests[0].started if requests else 0.0
        lines = [f"{len(requests)} requests, {self.serial} serial", "   # conn start ms   end ms status   bytes out/in"]
        for r in requests:
            start = f"{(r.started - origin) * 1e3:.1f}"
            end = "..." if r.ended is None else f"{(r.ended - origin) * 1e3:.1f}"
            size = f"{r.request_bytes}/{r.response_bytes}"
            lines.append(f"{r.index:4} {r.connection:4} {start:>8} {end:>8} {r.status or 'none':>6} {size:>14}  {r}")
        return "\n".join(lines)


def _end(request: Request) -> float:
    return float("inf") if request.ended is None else request.ended


def _matches(request: Request, method: str | None, path_contains: str) -> bool:
    return (method is None or request.method == method) and path_contains in request.path


Matcher = Callable[[Request], bool]


def anything(request: Request) -> bool:
    return True


def puts(path_contains: str = "") -> Matcher:
    return lambda request: _matches(request, "PUT", path_contains)


def gets(path_contains: str = "") -> Matcher:
    return lambda request: _matches(request, "GET", path_contains)


def creates(path_contains: str = "") -> Matcher:
    """Conditional puts: what a commit is."""
    return lambda request: _matches(request, "PUT", path_contains) and request.if_none_match == "*"


@dataclass(frozen=True, slots=True)
class Drop:
    """The server never sees it; the client's connection is closed without an answer."""


@dataclass(frozen=True, slots=True)
class ApplyThenDrop:
    """The server does it, but the answer is lost."""


@dataclass(frozen=True, slots=True)
class ApplyLate:
    """The client's connection is closed at once, and the server does it `seconds` later: see `Proxy.settle`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Answer:
    """The server never sees it; the client gets this answer."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ApplyThenAnswer:
    """The server does it, and the client is told this instead."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Delay:
    """It reaches the server `seconds` later than usual, and is answered."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Hang:
    """Held until `release` is set, then as usual; `arrived` tells the test that it is here."""

    release: threading.Event = field(default_factory=threading.Event)
    arrived: threading.Event = field(default_factory=threading.Event)


Action = Drop | ApplyThenDrop | ApplyLate | Answer | ApplyThenAnswer | Delay | Hang


def exists_answer() -> bytes:
    """The body of S3's 412 to a conditional put whose key is taken."""
    return error_body("PreconditionFailed", "At least one of the pre-conditions you specified did not hold")


def error_body(code: str, message: str = "") -> bytes:
    text = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'
    return text.encode()


@dataclass(slots=True)
class Rule:
    """Do `action` to the next `times` requests that match (None: to all); `hits` are those it was done to."""

    match: Matcher
    action: Action
    times: int | None
    hits: list[Request] = field(default_factory=list)

    def takes(self, request: Request) -> bool:
        return (self.times is None or len(self.hits) < self.times) and self.match(request)


@dataclass(frozen=True, slots=True)
class _Message:
    """A request or an answer as read from the wire; `body` keeps its chunk framing if it has one."""

    start_line: str
    headers: tuple[tuple[str, str], ...]
    body: bytes = b""
    arrived: float = field(default_factory=time.monotonic)

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name), None)

    @property
    def chunked(self) -> bool:
        return (self.header("transfer-encoding") or "").lower() == "chunked"

    def with_connection(self, value: str) -> bytes:
        kept = [f"{key}: {text}" for key, text in self.headers if key.lower() not in ("connection", "expect")]
        return "\r\n".join([self.start_line, *kept, f"Connection: {value}", "", ""]).encode("latin-1") + self.body


class Proxy:
    """`with Proxy("http://127.0.0.1:9000") as proxy:` listens on `proxy.endpoint` until the block ends.

    delay_s        latency added to each request that is forwarded
    max_in_flight  how many requests, delay included, may be at the server at once; the rest wait here in order
    Both may be set at any time, by any thread.
    """

    def __init__(self, upstream: str, delay_s: float = 0.0, max_in_flight: int | None = None) -> None:
        address = urlsplit(upstream)
        if address.scheme != "http" or address.hostname is None:
            raise ValueError(f"the proxy speaks plain http only, not {upstream}")
        self._upstream = (address.hostname, address.port or 80)
        self.delay_s = delay_s
        self._max_in_flight = max_in_flight
        self._slot_freed = asyncio.Condition()
        self.endpoint = ""
        self._requests: list[Request] = []
        self._rules: list[Rule] = []
        self._admit_until: int | None = None  # requests with this index or a higher one are refused
        self._in_flight = 0
        self._connections = 0
        self._late: set[asyncio.Task[None]] = set()
        # Once a killed client is gone, nothing else refers to a task that waits for the server: it would be collected.
        self._serving: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def start(self) -> Proxy:
        self._thread.start()
        port = self._on_loop(self._listen())
        self.endpoint = f"http://127.0.0.1:{port}"
        return self

    def stop(self) -> None:
        """Close every connection and forget what was still held or late."""
        self._on_loop(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()

    def __enter__(self) -> Proxy:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def max_in_flight(self) -> int | None:
        return self._max_in_flight

    @max_in_flight.setter
    def max_in_flight(self, cap: int | None) -> None:
        self._max_in_flight = cap
        self._on_loop(self._wake_waiting())

    @property
    def log(self) -> Log:
        """Everything since the start or the last `reset`."""
        return Log(self._requests, 0)

    @contextmanager
    def recording(self) -> Iterator[Log]:
        log = Log(self._requests, len(self._requests))
        try:
            yield log
        finally:
            log._until = len(log._all)

    def on(self, match: Matcher, action: Action, times: int | None = 1) -> Rule:
        """Add a fault rule; of several that match a request, the one added first is applied."""
        rule = Rule(match, action, times)
        self._rules.append(rule)
        return rule

    def cut_after(self, k: int) -> None:
        """Let `k` more requests through, then refuse all: the client, seen from the server, died at request k.

        Counted on arrival: request k + 1 is not applied even if it comes while request k still runs.
        """
        self._on_loop(self._set_cut(k))

    def restore(self) -> None:
        """Let requests through again after `cut_after`."""
        self._on_loop(self._set_cut(None))

    def settle(self, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until the server has done every request that was to be applied late."""
        self._on_loop(self._late_done(), timeout_s)

    def reset(self) -> None:
        """As new: an empty log, no rules, no cut, no delay, no cap; logs handed out before keep their requests."""
        self._on_loop(self._forget())

    def _on_loop(self, work: Coroutine[Any, Any, T], timeout_s: float = TIMEOUT_S) -> T:
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(timeout_s)

    # What follows runs on the loop's thread only.

    async def _listen(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=HEAD_BYTES_MAX, backlog=1024)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _shut(self) -> None:
        self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _set_cut(self, k: int | None) -> None:
        self._admit_until = None if k is None else len(self._requests) + k

    async def _late_done(self) -> None:
        while self._late:
            await asyncio.gather(*self._late)

    async def _forget(self) -> None:
        self._requests, self._rules, self._admit_until = [], [], None
        self.delay_s, self._max_in_flight = 0.0, None
        await self._wake_waiting()

    async def _wake_waiting(self) -> None:
        async with self._slot_freed:
            self._slot_freed.notify_all()

    def _has_free_slot(self) -> bool:
        return self._max_in_flight is None or self._in_flight < self._max_in_flight

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client connection: requests one after another, until either side closes it."""
        self._connections += 1
        connection = self._connections
        serving = asyncio.current_task()
        assert serving is not None
        self._serving.add(serving)
        try:
            while message := await _read_request(reader, writer):
                request = self._arrival(message, connection)
                answer = await self._answer(request, message)
                request.ended = time.monotonic()
                if answer is None:
                    break
                request.status, request.response_bytes = _status(answer), len(answer.body)
                writer.write(answer.with_connection("keep-alive"))
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client went away, or was cut off in the middle of a request that then never counted
        except asyncio.CancelledError:
            writer.transport.abort()  # the proxy stops; asyncio would report a cancelled connection as an error
        finally:
            self._serving.discard(serving)
            writer.close()

    def _arrival(self, message: _Message, connection: int) -> Request:
        method, target, _ = message.start_line.split(" ", 2)
        path, _, query = target.partition("?")
        request = Request(
            index=len(self._requests),
            connection=connection,
            method=method,
            path=unquote(path),
            query=query,
            range=message.header("range"),
            if_none_match=message.header("if-none-match"),
            request_bytes=len(message.body),
            started=message.arrived,
        )
        self._requests.append(request)
        return request

    async def _answer(self, request: Request, message: _Message) -> _Message | None:
        """What the client shall be told; None: nothing, and its connection ends."""
        if self._admit_until is not None and request.index >= self._admit_until:
            request.fault = "cut"
            return None
        rule = next((rule for rule in self._rules if rule.takes(request)), None)
        if rule is None:
            return await self._forward(request, message)
        rule.hits.append(request)
        request.fault = type(rule.action).__name__
        match rule.action:
            case Drop():
                return None
            case ApplyThenDrop():
                await self._forward(request, message)
                return None
            case ApplyLate(seconds):
                late = asyncio.ensure_future(self._forward_later(request, message, seconds))
                self._late.add(late)
                late.add_done_callback(self._late.discard)
                return None
            case Answer(status, body, headers):
                return _made_up(request, status, body, headers)
            case ApplyThenAnswer(status, body, headers):
                await self._forward(request, message)
                return _made_up(request, status, body, headers)
            case Delay(seconds):
                await asyncio.sleep(seconds)
            case Hang(release, arrived):
                arrived.set()
                while not release.is_set():  # polled: a thread per held request would outlive the proxy
                    await asyncio.sleep(0.001)
        return await self._forward(request, message)

    async def _forward_later(self, request: Request, message: _Message, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self._forward(request, message)

    async def _forward(self, request: Request, message: _Message) -> _Message | None:
        """The server's answer; None if it closed the connection, which the client then sees as well."""
        async with self._slot_freed:
            await self._slot_freed.wait_for(self._has_free_slot)
            self._in_flight += 1
        try:
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            answer = await _exchange(self._upstream, request.method, message)
        except (OSError, asyncio.IncompleteReadError):
            return None
        finally:
            self._in_flight -= 1
            await self._wake_waiting()
        request.server_status = _status(answer)
        return answer


async def _exchange(upstream: tuple[str, int], method: str, message: _Message) -> _Message:
    """One request on a connection of its own: one that a server had ended meanwhile would look like a fault."""
    reader, writer = await asyncio.open_connection(*upstream, limit=HEAD_BYTES_MAX)
    try:
        writer.write(message.with_connection("close"))
        head = await _read_head(reader)
        if method == "HEAD" or _status(head) in (204, 304):
            return head
        if head.chunked or head.header("content-length") is not None:
            return await _with_body(head, reader)
        body = await reader.read()
        return _Message(head.start_line, (*head.headers, ("Content-Length", str(len(body)))), body)
    finally:
        writer.close()


async def _read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> _Message | None:
    """The next request of a connection, whole; None at its orderly end."""
    try:
        head = await _read_head(reader)
    except asyncio.IncompleteReadError as end:
        if end.partial:
            raise
        return None
    if (head.header("expect") or "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    return await _with_body(head, reader)


async def _read_head(reader: asyncio.StreamReader) -> _Message:
    start_line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip("\r\n").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return _Message(start_line, tuple((name, value.strip()) for name, _, value in pairs))


async def _with_body(head: _Message, reader: asyncio.StreamReader) -> _Message:
    if not head.chunked:
        length = int(head.header("content-length") or 0)
        return replace(head, body=await reader.readexactly(length)) if length else head
    parts = []
    size = -1
    while size != 0:
        parts.append(await reader.readuntil(b"\r\n"))
        size = int(parts[-1].split(b";")[0], 16)
        if size:
            parts.append(await reader.readexactly(size + 2))
    while parts[-1] != b"\r\n":  # trailers, up to an empty line
        parts.append(await reader.readuntil(b"\r\n"))
    return replace(head, body=b"".join(parts))


def _status(answer: _Message) -> int:
    return int(answer.start_line.split(" ", 2)[1])


def _made_up(request: Request, status: int, body: bytes, headers: Mapping[str, str]) -> _Message:
    named = {"Content-Length": str(len(body)), "Content-Type": "application/xml", **headers}
    return _Message(f"HTTP/1.1 {status} Made-Up", tuple(named.items()), b"" if request.method == "HEAD" else body)
