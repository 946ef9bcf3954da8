"""Request bodies: what comes from anybody is bounded and checked before anything else looks at it.

A body that is parsed as a whole has at most so many bytes, unpacked too, and so many levels; it is UTF-8 without half
characters, and JSON without NaN. A gzip bomb is noticed at the limit, not behind it.
"""

import asyncio
import json
import math
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from omnigraph.cancellation import Stopped
from omnigraph.errors import BadRequest, OmnigraphError
from omnigraph.server.http.errors import BodyRefused, too_large
from omnigraph.server.http.parameters import Parameters
from omnigraph.server.settings import Limits

CHUNK_BYTES = 64 * 1024
NAME_SHOWN_MAX = 100
_REMEDY = "send less at once"


async def read_body(request: Request, limit: int, stall_s: float) -> AsyncIterator[bytes]:
    """The pieces of a body, gunzipped where it says that it is packed, and never more than the limit."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip"):
        raise BadRequest("The body has a content encoding that is not understood: send it plain or gzipped.")
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared[:20]) > limit:
        raise too_large("The body", limit, "bytes", _REMEDY)
    pieces = _receive(request, stall_s)
    size = 0
    async for piece in _gunzip(pieces) if encoding == "gzip" else pieces:
        size += len(piece)
        if size > limit:
            raise too_large("The body", limit, "bytes", _REMEDY)
        yield piece


async def _receive(request: Request, stall_s: float) -> AsyncIterator[bytes]:
    stream = request.stream()
    while True:
        try:
            piece = await asyncio.wait_for(anext(stream), stall_s)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise Stopped(f"no more of the body came for {stall_s:g} s", "send it again") from None
        except ClientDisconnect:
            raise Stopped("the client went away", "send it again") from None
        if piece:
            yield piece


async def _gunzip(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """A bounded piece at a time, so that what a few bytes unfold to is counted while it unfolds."""
    unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        async for packed in pieces:
            while packed:
                if unpacker.eof:  # several members, as gzip allows
                    unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
                plain = unpacker.decompress(packed, CHUNK_BYTES)
                packed = unpacker.unconsumed_tail or unpacker.unused_data
                if plain:
                    yield plain
                    await asyncio.sleep(0)  # others are served meanwhile
        while not unpacker.eof:
            plain = unpacker.decompress(unpacker.unconsumed_tail, CHUNK_BYTES)
            if not plain:
                raise BadRequest("The gzipped body ends too early: send all of it.")
            yield plain
    except zlib.error as error:
        raise BadRequest("The body says that it is gzipped and is not: leave out Content-Encoding.") from error


def parse_json(data: bytes, depth_max: int) -> Any:
    """A JSON value as the standard has it, not deeper than allowed."""
    try:
        text = data.decode("utf-8")
        value = json.loads(
            text, parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_refuse_duplicates
        )
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode("utf-8")  # half a character, written as an escape
    except UnicodeError:
        raise BadRequest("The body holds what is no text in UTF-8: send whole characters.") from None
    except RecursionError:
        raise _too_deep(depth_max) from None
    except _DuplicateKey as error:
        raise BadRequest(f"The body has {str(error)!r} twice in one object: leave one of them out.") from None
    except ValueError as error:
        place = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise BadRequest(f"The body is no JSON{place}: send one JSON document.") from None
    _check_depth(value, depth_max)
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:20]} is beyond every float")
    return number


class _DuplicateKey(ValueError):
    """A name that an object has twice. Who reads the first and who reads the last would see different requests."""


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        raise _DuplicateKey(next(name for name, _ in pairs if name in seen or seen.add(name))[:NAME_SHOWN_MAX])  # type: ignore[func-returns-value]
    return found


def _check_depth(value: Any, depth_max: int) -> None:
    level = [value]
    for _ in range(depth_max):
        level = [
            item
            for container in level
            if isinstance(container, dict | list)
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, dict | list)
        ]
        if not level:
            return
    raise _too_deep(depth_max)


def _too_deep(depth_max: int) -> BadRequest:
    return BadRequest(f"The body has more than {depth_max} levels of arrays and objects: send it flatter.")


class StrictRequest(Request):
    """A request whose JSON was checked. FastAPI lets an error through only if it is an `HTTPException`."""

    limits: Limits

    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            try:
                async with asyncio.timeout(self.limits.body_s):
                    pieces = [piece async for piece in read_body(self, self.limits.json_bytes, self.limits.stall_s)]
            except TimeoutError as error:  # a byte now and then is not enough for a body that fits into memory
                late = Stopped(f"its body did not come within {self.limits.body_s:g} s", "send it again")
                raise BodyRefused(late) from error
            except OmnigraphError as error:
                raise BodyRefused(error) from error
            self._body = b"".join(pieces)
        return self._body

    async def json(self) -> Any:
        data = await self.body()
        try:
            return parse_json(data, self.limits.json_depth)
        except OmnigraphError as error:
            raise BodyRefused(error) from error


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

        async def handler(request: Request) -> Response:
            service = request.app.state.service
            request.state.info.route = self.path_format
            service.identify(request)
            parameters.require_known(request)
            parameters.require_json(request)
            strict = StrictRequest(request.scope, request.receive)
            strict.limits = service.settings.limits
            return await handle(strict)

        return handler
