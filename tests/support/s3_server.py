"""The program of the S3 server for tests: moto's S3, served by one thread.

    s3_server.py PARENT

Moto checks `If-None-Match` and stores the object in two steps without a lock, and its threads were seen to acknowledge
two creates of one key: every test of the commit protocol on it would prove nothing. Here one thread reads requests as
they come and does each in one go, so they are atomic, as S3's are; a slow client holds up nobody.

Most of what moto's own server takes for a request is not moto: a thread and a connection for each, Flask, and answers
that are made value by value after a model of the service. So connections are kept, requests go to moto's S3 directly,
and the two answers that are wanted most, a listing and that there is no such object, are written here.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import traceback
from bisect import bisect_right
from hashlib import sha256
from http import HTTPStatus
from io import BytesIO
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, unquote
from xml.sax.saxutils import escape

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.core.request import Request
from moto.s3.models import FakeBucket, FakeKey, S3Backend, s3_backends
from moto.s3.responses import S3Response

HEAD_BYTES_MAX = 1 << 16
KEYS_MAX = 1000  # of a page of a listing
DIRECTORY_BUCKET = "--x-s3"  # the suffix of its name: it lists in no order, and knows no "start after"
LISTING = {"list-type", "prefix", "delimiter", "continuation-token", "start-after", "max-keys", "encoding-type"}
BODYLESS = (204, 304)
XML = {"content-type": "application/xml"}
REASONS = {status.value: status.phrase for status in HTTPStatus}


class Asked(NamedTuple):
    """A request, whole; header names in small letters."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


class Answered(NamedTuple):
    status: int
    headers: dict[str, Any]
    body: bytes


class ServedRequest(Request):
    """What moto takes for a request that came to a server."""

    from_wsgi_server = True


def answer(asked: Asked) -> Answered:
    """One request, done by moto."""
    path, _, query = asked.target.partition("?")
    bucket, _, key = path.lstrip("/").partition("/")
    quick = answer_quickly(asked.method, unquote(bucket), unquote(key), query)
    if quick is not None:
        return quick
    request = ServedRequest(environ(asked, path, query))
    dispatch = S3Response.key_dispatch if key else S3Response.ambiguous_dispatch
    status, headers, body = dispatch(request, request.raw_url, dict(request.headers))
    return Answered(status, headers, body.encode() if isinstance(body, str) else body)


def environ(asked: Asked, path: str, query: str) -> dict[str, Any]:
    host, _, port = asked.headers.get("host", "127.0.0.1").partition(":")
    found = {
        "REQUEST_METHOD": asked.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote(path, "latin-1"),
        "QUERY_STRING": query,
        "RAW_URI": asked.target,
        "SERVER_NAME": host,
        "SERVER_PORT": port or "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": "127.0.0.1",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": BytesIO(asked.body),
        "wsgi.errors": sys.stderr,
    }
    kept = {name: value for name, value in asked.headers.items() if name != "transfer-encoding"}  # it is whole by now
    found |= {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in kept.items()}
    found |= {"CONTENT_LENGTH": str(len(asked.body)), "CONTENT_TYPE": asked.headers.get("content-type", "")}
    return found


def answer_quickly(method: str, bucket_name: str, key: str, query: str) -> Answered | None:
    """A listing, or that there is no such object; None: this is for moto to answer."""
    backend: S3Backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    bucket = backend.buckets.get(bucket_name)
    if bucket is None or method not in ("GET", "HEAD"):
        return None
    if key:
        return missing(key) if not query and key not in bucket.keys else None
    asked = {name: values[0] for name, values in parse_qs(query, keep_blank_values=True).items()}
    if asked.get("list-type") != "2" or asked.get("continuation-token") == "" or not asked.keys() <= LISTING:
        return None
    return listing(backend, bucket, asked)


def missing(key: str) -> Answered:
    return error(404, "NoSuchKey", "The specified key does not exist.", f"<Key>{escape(key)}</Key>")


def error(status: int, code: str, message: str, more: str = "") -> Answered:
    told = f"<Code>{code}</Code><Message>{message}</Message>{more}"
    return Answered(status, XML, f'<?xml version="1.0" encoding="UTF-8"?>\n<Error>{told}</Error>'.encode())


def listing(backend: S3Backend, bucket: FakeBucket, asked: dict[str, str]) -> Answered:
    """A page of a listing."""
    most, token = int(asked.get("max-keys", KEYS_MAX)), asked.get("continuation-token")
    prefix, delimiter, after = asked.get("prefix"), asked.get("delimiter"), asked.get("start-after")
    if bucket.name.endswith(DIRECTORY_BUCKET):
        if after:
            return error(501, "NotImplemented", "Directory buckets do not support StartAfter.")
        found, truncated, next_token = unordered(bucket, prefix or "", token, most)
    elif delimiter or bucket.is_versioned:
        found, truncated, next_token = backend.list_objects_v2(bucket, prefix, delimiter, token, after, most)
    else:
        found, truncated, next_token = selected(backend, bucket, prefix or "", token, after, most)
    encoded = quote if asked.get("encoding-type") == "url" else escape
    parts = [
        '<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">',
        f"<Name>{escape(bucket.name)}</Name><Prefix>{encoded(prefix or '')}</Prefix><MaxKeys>{most}</MaxKeys>",
        f"<KeyCount>{len(found)}</KeyCount><IsTruncated>{str(truncated).lower()}</IsTruncated>",
    ]
    parts += [_entry(key, encoded(key.name)) for key in found if isinstance(key, FakeKey)]
    folders = [key for key in found if isinstance(key, str)]
    parts += [f"<CommonPrefixes><Prefix>{encoded(folder)}</Prefix></CommonPrefixes>" for folder in folders]
    told = {"Delimiter": delimiter, "EncodingType": asked.get("encoding-type"), "NextContinuationToken": next_token}
    told |= {"StartAfter": None if token else after}
    parts += [f"<{name}>{escape(value)}</{name}>" for name, value in told.items() if value]
    parts.append("</ListBucketResult>")
    return Answered(200, XML, "".join(parts).encode())


def selected(
    backend: S3Backend, bucket: FakeBucket, prefix: str, token: str | None, after: str | None, most: int
) -> tuple[Any, bool, str | None]:
    """As moto's, where there are no folders and versions: of all names, only those of the page are looked up."""
    names = sorted(name for name in bucket.keys if name.startswith(prefix))
    last = backend._pagination_tokens.get(token) if token else after
    page, truncated, next_token = backend._truncate_result(names[bisect_right(names, last) if last else 0 :], most)
    return [bucket.keys[name] for name in page], truncated, next_token


def unordered(bucket: FakeBucket, prefix: str, token: str | None, most: int) -> tuple[Any, bool, str | None]:
    """As a directory bucket lists: complete, in the order of a hash, continued by a token that is no key."""
    ranked = sorted((sha256(name.encode()).hexdigest(), name) for name in bucket.keys if name.startswith(prefix))
    rest = [(rank, name) for rank, name in ranked if rank > (token or "")]
    truncated = len(rest) > most
    found = [bucket.keys[name] for _, name in rest[:most]]
    return found, truncated, rest[most - 1][0] if truncated else None


def _entry(key: FakeKey, name: str) -> str:
    return (
        f"<Contents><Key>{name}</Key><LastModified>{key.last_modified_ISO8601}</LastModified>"
        f"<ETag>{escape(key.etag)}</ETag><Size>{key.size}</Size><StorageClass>{key.storage_class}</StorageClass>"
        "</Contents>"
    )


class Connection(asyncio.Protocol):
    """One client: its requests are done one after another as they arrive."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._head: tuple[str, str, dict[str, str]] | None = None
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while not self._transport.is_closing() and (asked := self._next()) is not None:
            self._transport.write(served(asked))
            if asked.headers.get("connection", "").lower() == "close":
                self._transport.close()

    def _next(self) -> Asked | None:
        if self._head is None:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                if len(self._received) > HEAD_BYTES_MAX:
                    self._transport.abort()
                return None
            self._head = _head(bytes(self._received[:end]).decode("latin-1"))
            del self._received[: end + 4]
            if self._head[2].get("expect", "").lower() == "100-continue":
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        method, target, headers = self._head
        body = self._chunks() if headers.get("transfer-encoding", "").lower() == "chunked" else self._counted(headers)
        if body is None:
            return None
        self._head = None
        return Asked(method, target, headers, body)

    def _counted(self, headers: dict[str, str]) -> bytes | None:
        length = int(headers.get("content-length") or 0)
        if len(self._received) < length:
            return None
        body = bytes(self._received[:length])
        del self._received[:length]
        return body

    def _chunks(self) -> bytes | None:
        """A body in chunks, once all have come; nothing is taken before."""
        parts: list[bytes] = []
        at = 0
        while (line := self._received.find(b"\r\n", at)) >= 0:
            size = int(bytes(self._received[at:line]).split(b";")[0], 16)
            at = line + 2
            if size == 0:
                end = at + 2 if self._received[at : at + 2] == b"\r\n" else self._received.find(b"\r\n\r\n", at) + 4
                if end < at + 2 or len(self._received) < end:
                    return None
                del self._received[:end]
                return b"".join(parts)
            parts.append(bytes(self._received[at : at + size]))
            at += size + 2
        return None


def _head(text: str) -> tuple[str, str, dict[str, str]]:
    start_line, *lines = text.split("\r\n")
    method, target, _ = start_line.split(" ", 2)
    pairs = (line.partition(":") for line in lines)
    return method, target, {name.lower(): value.strip() for name, _, value in pairs}


def served(asked: Asked) -> bytes:
    """The answer as bytes; what moto could not do is told on stderr too."""
    try:
        status, headers, body = answer(asked)
    except Exception:
        traceback.print_exc()
        status, headers, body = 500, {}, traceback.format_exc().encode()
    named = {name.lower(): value for name, value in headers.items()}
    if status not in BODYLESS and not (asked.method == "HEAD" and "content-length" in named):
        named["content-length"] = len(body)
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, '')}", *(f"{name}: {value}" for name, value in named.items())]
    head = "\r\n".join((*lines, "\r\n")).encode("latin-1")
    return head if asked.method == "HEAD" or status in BODYLESS else head + body


def end_with(parent: int) -> None:
    while os.getppid() == parent:  # also true of a parent that was killed and could tell nobody
        time.sleep(0.5)
    os._exit(0)


async def serve() -> None:
    """Listen on a port the kernel picks, tell it on stdout, serve for ever."""
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    threading.Thread(target=end_with, args=(int(sys.argv[1]),), daemon=True).start()
    asyncio.run(serve())
