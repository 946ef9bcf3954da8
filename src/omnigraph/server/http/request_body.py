"""Parameters and bodies of requests: what comes from anybody is bounded and checked before anything else looks at it.

Query parameters and headers are those that the route declares, each once: FastAPI ignores others and takes the last of
several. A misspelt `branch` would read main.

Who asks, and whether anything of what the route does is allowed, is settled before a byte of the body is read. A body
that is parsed as a whole has at most so many bytes, unpacked too, so many values and so many levels; it is UTF-8
without half characters, and JSON without NaN. A gzip bomb is noticed at the limit, not behind it. What takes more than
a moment is done in threads, in turn; so is unpacking.
"""

import asyncio
import ctypes
import difflib
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, get_args, get_origin

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from omnigraph.cancellation import Stopped
from omnigraph.errors import BadRequest, OmnigraphError
from omnigraph.server.auth.access import LEAST_ACTIONS, Action
from omnigraph.server.http.admission import Admission
from omnigraph.server.http.errors import PLACE_SHOWN_MAX, BodyRefused, RequestRefused, too_large, too_many_requests
from omnigraph.server.http.json_body import SHORT_BYTES, parse_json
from omnigraph.server.settings import Limits

JSON = "application/json"
NAMES_SHOWN_MAX = 20
# Of headers that no route declares, those with one value: RFC 9110 lets others be given several times, as a list.
_SINGLE_HEADERS = ("Content-Type", "Content-Encoding", "Host", "Origin", "Request-Timeout")


class Parameters:
    """What one route takes."""

    def __init__(self, route: APIRoute) -> None:
        dependants = list(_flatten(route.dependant))
        query = [field for one in dependants for field in one.query_params]
        self._query = {field.alias: _is_list(field.field_info.annotation) for field in query}
        self._headers = {field.alias for one in dependants for field in one.header_params} | {*_SINGLE_HEADERS}
        self._has_json_body = any(one.body_params for one in dependants)

    def require_known(self, request: Request) -> None:
        """Refuse query parameters that are unknown, and what may be given once and is given twice."""
        given = Counter(name for name, _ in request.query_params.multi_items())
        unknown = [name for name in given if name not in self._query]
        problems = [_problem(f"query.{name}", _unknown(name, self._query)) for name in unknown[:NAMES_SHOWN_MAX]]
        problems += [
            _problem(f"query.{name}", f"given {count} times, which is ambiguous: give it once")
            for name, count in given.items()
            if count > 1 and not self._query.get(name, True)
        ]
        problems += [
            _problem(f"header.{name}", "given more than once, which is ambiguous: send it once")
            for name in sorted(self._headers)
            if len(request.headers.getlist(name)) > 1
        ]
        if problems:
            total = len(problems) + max(0, len(unknown) - NAMES_SHOWN_MAX)
            raise RequestRefused(problems[:NAMES_SHOWN_MAX], total)

    def require_json(self, request: Request) -> None:
        """Refuse a body that does not say that it is JSON, and a missing one, before any of it is read."""
        if not self._has_json_body:
            return
        given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if given == JSON or (given.startswith("application/") and given.endswith("+json")):
            return
        header = f"send a JSON object with the header Content-Type: {JSON}"
        if given:
            raise BadRequest(f"The body has the Content-Type {given[:100]!r}, which is not served here: {header}.")
        if "transfer-encoding" not in request.headers and request.headers.get("content-length", "0") == "0":
            raise BadRequest(f"The request has no body: {header}.")
        raise BadRequest(f"The header Content-Type is missing: {header}.")


def _flatten(dependant: Dependant) -> Iterator[Dependant]:
    yield dependant
    for inner in dependant.dependencies:
        yield from _flatten(inner)


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is list or any(_is_list(one) for one in get_args(annotation))


def _unknown(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    if not names:
        return "unknown parameter, there are none here: leave it out"
    close = difflib.get_close_matches(name[:PLACE_SHOWN_MAX], names, 1)
    return f"unknown parameter, {f'did you mean {close[0]}? There are' if close else 'there are'} {', '.join(names)}"


def _problem(place: str, error: str) -> dict[str, str]:
    return {"place": place[:PLACE_SHOWN_MAX], "error": error}


T = TypeVar("T")

THREADS = 2
UNPACKED_BYTES = 256 * 1024  # in one step
VALUE_FACTOR = 4  # the memory that a body takes as bytes and as values, to its bytes
TRIM_BYTES = 64 * 1024 * 1024
FIELDS_MAX = 100  # of the object that a body is
_REMEDY = "send less at once"


class Bodies:
    """All bodies that are being read: what they hold in memory, and the threads that unpack and parse them.

    A body is worked on in turn, at most one of an actor's at a time: whoever sends many waits for his own.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._held: Counter[str] = Counter()
        self._most = 0  # since the heap was trimmed
        self._turns = Admission(replace(limits, running=THREADS, running_per_actor=1))
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="omnigraph-body")

    def hold(self, actor: str, size: int) -> None:
        """Take memory for a body, or refuse it: nobody waits for memory while holding some."""
        limits = self._limits
        if self._held[actor] + size > limits.bodies_bytes_per_actor or self._held.total() + size > limits.bodies_bytes:
            raise too_many_requests("The bodies of other requests take all the memory that there is for bodies", 2)
        self._held[actor] += size
        self._most = max(self._most, self._held.total())

    def release(self, actor: str, size: int) -> None:
        self._held[actor] -= size
        if not self._held[actor]:
            del self._held[actor]
        if not self._held and self._most > TRIM_BYTES:
            self._most = 0
            self._pool.submit(trim_heap)

    async def run(self, actor: str, work: Callable[[], T]) -> T:
        await self._turns.enter(actor)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            self._turns.leave(actor)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def trim_heap() -> None:
    """Give free memory back to the system, which glibc does not do by itself where something lies above it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


async def read_body(request: "StrictRequest", limit: int) -> AsyncIterator[bytes]:
    """The pieces of a body, gunzipped where it says that it is packed, and never more than the limit."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip"):
        raise BadRequest("The body has a content encoding that is not understood: send it plain or gzipped.")
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared[:20]) > limit:
        raise too_large("The body", limit, "bytes", _REMEDY)
    pieces = _receive(request)
    size = 0
    async for piece in _gunzip(request, pieces) if encoding == "gzip" else pieces:
        size += len(piece)
        if size > limit:
            raise too_large("The body", limit, "bytes", _REMEDY)
        yield piece


async def _receive(request: "StrictRequest") -> AsyncIterator[bytes]:
    stream = request.stream()
    stall_s = request.limits.stall_s
    while True:
        try:
            async with asyncio.timeout(stall_s):
                piece = await anext(stream)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise Stopped(f"no more of the body came for {stall_s:g} s", "send it again") from None
        except ClientDisconnect:
            raise Stopped("the client went away", "send it again") from None
        if piece:
            yield piece


async def _gunzip(request: "StrictRequest", pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """A bounded piece at a time, so that what a few bytes unfold to is counted while it unfolds."""
    unpacker = _Unpacker()
    async for packed in pieces:
        while packed:
            plain, packed = await request.bodies.run(request.actor, partial(unpacker.unpack, packed))
            if plain:
                yield plain
    while not unpacker.ended:
        plain, _ = await request.bodies.run(request.actor, partial(unpacker.unpack, b""))
        if not plain:
            raise BadRequest("The gzipped body ends too early: send all of it.")
        yield plain


class _Unpacker:
    """gzip, which may have several members."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(16 + zlib.MAX_WBITS)

    @property
    def ended(self) -> bool:
        return self._member.eof

    def unpack(self, packed: bytes) -> tuple[bytes, bytes]:
        """So much of it as fits into one piece, and what is left."""
        plain: list[bytes] = []
        room = UNPACKED_BYTES
        try:
            while True:
                if self._member.eof and packed:
                    self._member = zlib.decompressobj(16 + zlib.MAX_WBITS)
                plain.append(self._member.decompress(packed, room))
                room -= len(plain[-1])
                packed = self._member.unconsumed_tail or self._member.unused_data
                if not packed or not room:
                    return b"".join(plain), packed
        except zlib.error as error:
            raise BadRequest("The body says that it is gzipped and is not: leave out Content-Encoding.") from error


class StrictRequest(Request):
    """A request whose JSON was checked. FastAPI lets an error through only if it is an `HTTPException`."""

    def __init__(self, request: Request, limits: Limits, bodies: Bodies, actor: str) -> None:
        super().__init__(request.scope, request.receive)
        self.limits, self.bodies, self.actor = limits, bodies, actor
        self._held = 0

    def hold(self, size: int) -> None:
        """Take memory until the request ends."""
        self.bodies.hold(self.actor, size)
        self._held += size

    def release(self) -> None:
        """Give back the memory. The connection still knows the request, until the next one or its end."""
        self._body = b""
        self.bodies.release(self.actor, self._held)
        self._held = 0

    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            try:
                async with asyncio.timeout(self.limits.body_s):
                    self._body = await self._read()
            except TimeoutError:  # a byte now and then is not enough for a body that fits into memory
                late = Stopped(f"its body did not come within {self.limits.body_s:g} s", "send it again")
                raise BodyRefused(late) from None
            except OmnigraphError as error:
                raise BodyRefused(error.with_traceback(None)) from None
        return self._body

    async def _read(self) -> bytes:
        pieces: list[bytes] = []
        size = 0
        async for piece in read_body(self, self.limits.json_bytes):
            pieces.append(piece)
            size += len(piece)
            if size > SHORT_BYTES:
                self.hold(VALUE_FACTOR * size - self._held)
        return b"".join(pieces)

    async def json(self) -> Any:
        data = await self.body()
        parse = partial(parse_json, data, self.limits.json_depth, self.limits.json_values)
        try:
            value = parse() if len(data) <= SHORT_BYTES else await self.bodies.run(self.actor, parse)
            if isinstance(value, dict) and len(value) > FIELDS_MAX:
                raise too_large("The body", FIELDS_MAX, "fields", "see /openapi.json for what is expected")
        except OmnigraphError as error:
            raise BodyRefused(error.with_traceback(None)) from None
        return value


class PublicRoute(APIRoute):
    """A route that needs no token. It takes the parameters that it declares, and no others."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        parameters = Parameters(self)

        async def handler(request: Request) -> Response:
            request.state.info.route = self.path_format
            parameters.require_known(request)
            return await handle(request)

        return handler


class GraphRoute(APIRoute):
    """A route of a graph: who asks and what for is settled before a byte of the body is read."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        parameters = Parameters(self)
        least = LEAST_ACTIONS.get(self.name, Action.READ)

        async def handler(request: Request) -> Response:
            service = request.app.state.service
            request.state.info.route = self.path_format
            service.identify(request, least)
            parameters.require_known(request)
            parameters.require_json(request)
            actor = request.state.principal.actor_key
            strict = StrictRequest(request, service.settings.limits, service.bodies, actor)
            try:
                return await handle(strict)
            except BodyRefused as refused:
                raise refused.with_traceback(None) from None  # whose frames hold the body
            finally:
                strict.release()

        return handler
