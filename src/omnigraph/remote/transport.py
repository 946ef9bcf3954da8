"""Requests to a server: what is retried and how often, what a lost response means, errors as exceptions.

Three things can go wrong. The server refuses for now (429, 503): nothing happened, so the request is retried, as the
server says and not for ever. It can't be reached: nothing happened either. Or its response is lost: then a read is
retried, and so is a write with a transaction id, which is committed at most once; any other write may have been
committed, and the error says so.
"""

import io
import json
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from omnigraph.cancellation import Stopped
from omnigraph.errors import AnswerLost, BadRequest, OmnigraphError, ServerUnreachable
from omnigraph.fork_safety import keep_inherited, renew_after_fork
from omnigraph.remote.wire.errors import error_from
from omnigraph.runtime import Runtime

if TYPE_CHECKING:
    import httpx

CONNECT_TIMEOUT_S = 10.0
RESPONSE_TIMEOUT_S = 120.0  # for the first byte of an answer, and for every further one
ATTEMPTS_MAX = 6
RETRY_TIME_S = 30.0  # from the first attempt to the last
BACKOFF_S, BACKOFF_MAX_S = 0.1, 3.0
JOB_WAIT_S = 20  # a server holds back its answer for so long, if the job ends meanwhile
RETRYABLE_STATUSES = (429, 503)
HEADER_LENGTH_MAX = 200
IDEMPOTENCY_KEY = "Idempotency-Key"
IF_COMMIT = "If-Graph-Commit"
KEY_AFTER = "Omnigraph-Key-After"

BodySource = Callable[[], Iterator[bytes]]  # the pieces of a body, from the start; as often as it is asked for


@dataclass(frozen=True, slots=True)
class Write:
    """That a request writes: where, under which id, and whether the server applies that id once."""

    branch: str
    txn_id: str
    repeatable: bool = True
    fresh: bool = False  # the id was made for this write
    keyed: bool = True  # False where the request says otherwise what it is: a load by its job id
    seen: str | None = None  # a commit older than the id: the write can only come after it


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request, as often as it is sent."""

    method: str
    path: str
    params: Mapping[str, Any] = field(default_factory=dict)
    document: Any = None  # sent as JSON
    body: BodySource | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    write: Write | None = None
    source: str = ""  # the source that an error may quote

    def all_headers(self) -> dict[str, str]:
        own = {}
        if self.write is not None and self.write.keyed:
            own[IDEMPOTENCY_KEY] = check_header(self.write.txn_id, "A txn id")
        if self.write is not None and self.write.seen is not None:
            own[KEY_AFTER] = self.write.seen
        kind = {"Content-Type": "application/json"} if self.document is not None else {}
        return {**kind, **own, **self.headers}


@dataclass(frozen=True, slots=True)
class JsonResponse:
    document: Any
    status: int
    headers: Mapping[str, str]


class SingleUseBody:
    """A body that can be sent once: what it is made from is used up then."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces

    def __call__(self) -> Iterator[bytes]:
        return self._pieces


class _RetryableError(Exception):
    """An attempt that failed and may be made again: if that is safe, and after a while."""

    def __init__(self, error: OmnigraphError, *, safe: bool = True, after_s: float = 0.0, lost: str = "") -> None:
        super().__init__(error)
        self.error, self.safe, self.after_s, self.lost = error, safe, after_s, lost


def quote_segment(text: str) -> str:
    """A name as one part of a path: no character of it means anything to a URL."""
    if not text:
        raise BadRequest("A name is empty: give one.")
    quoted = quote(text, safe="")
    return quoted.replace(".", "%2E") if not text.strip(".") else quoted


class Transport:
    """A pool of connections to one server; usable from threads."""

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        timeout_s: float = RESPONSE_TIMEOUT_S,
        retry_s: float = RETRY_TIME_S,
        runtime: Runtime | None = None,
        client: "httpx.Client | None" = None,
    ) -> None:
        import httpx

        self.url = _check_url(url)
        self.runtime = runtime or Runtime()
        self._retry_s = retry_s
        secret = {} if token is None else {"Authorization": f"Bearer {check_header(token, 'A token')}"}
        self._headers = {"Accept-Encoding": "gzip"} | secret
        self._timeout = httpx.Timeout(timeout_s, connect=min(CONNECT_TIMEOUT_S, timeout_s))
        self._given_client = client
        renew_after_fork(self, Transport._connect)

    def _connect(self) -> None:
        """A pool of connections; a forked child has its own, since two processes can't share a connection."""
        import httpx

        keep_inherited(getattr(self, "_client", None))
        self._client = self._given_client or httpx.Client(timeout=self._timeout, follow_redirects=False, trust_env=True)
        self._client.headers.update(self._headers)
        weakref.finalize(self, self._client.close)  # for those who don't close it

    def close(self) -> None:
        self._client.close()

    def new_txn_id(self) -> str:
        return self.runtime.ids.txn_id()

    # Whole answers

    def call(self, request: HttpRequest) -> JsonResponse:
        """The answer as JSON; an error body is raised as the error."""
        answer: JsonResponse = self._send_with_retries(request, self._read_json)
        return answer

    def _read_json(self, request: HttpRequest, response: "httpx.Response") -> JsonResponse:
        return JsonResponse(_parse_json(self.url, response.read()), response.status_code, response.headers)

    # Streams

    @contextmanager
    def stream(self, request: HttpRequest) -> Iterator["httpx.Response"]:
        """An answer that is read piece by piece. One that ends too early is an error, never a shorter answer."""
        response = self._send_with_retries(request, lambda _, found: found, keep=True)
        try:
            yield response
        finally:
            response.close()

    def open_stream(self, request: HttpRequest) -> "httpx.Response":
        """The same for who reads it later; to be closed by them."""
        response: httpx.Response = self._send_with_retries(request, lambda _, found: found, keep=True)
        return response

    def pieces(self, response: "httpx.Response") -> Iterator[bytes]:
        import httpx

        try:
            yield from response.iter_bytes()
        except httpx.RequestError as error:
            raise ServerUnreachable(self.url, f"its answer broke off: {_reason(error)}") from error

    # Attempts

    def _send_with_retries(
        self, request: HttpRequest, take: Callable[[HttpRequest, "httpx.Response"], Any], *, keep: bool = False
    ) -> Any:
        """Send it, again where that is safe, until there is an answer, an error, or no time."""
        clock = self.runtime.clock
        deadline = clock.monotonic() + self._retry_s
        lost = ""  # why an earlier attempt may have been carried out all the same
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                return self._attempt(request, take, keep)
            except _RetryableError as again:
                lost = again.lost or lost
                wait_s = again.after_s + self.runtime.jitter(min(BACKOFF_S * 2**attempt, BACKOFF_MAX_S))
                if attempt == ATTEMPTS_MAX or not again.safe or clock.monotonic() + wait_s > deadline:
                    if lost and request.write is not None:
                        raise AnswerLost(request.write.txn_id, request.write.branch, lost) from again.error
                    raise again.error from again.error.__cause__
                clock.sleep(wait_s)
        raise AssertionError("the last attempt ends one way or the other")

    def _attempt(self, request: HttpRequest, take: Callable[[HttpRequest, "httpx.Response"], Any], keep: bool) -> Any:
        import httpx

        can_repeat = not isinstance(request.body, SingleUseBody)
        try:
            with self._send(request, keep=keep) as response:
                if response.status_code < 300:
                    return take(request, response)
                error = self._error(response, request)
                if response.status_code not in RETRYABLE_STATUSES or isinstance(error, Stopped):
                    raise error  # what was stopped, at its deadline say, would be stopped again
                raise _RetryableError(error, safe=can_repeat, after_s=_retry_after(response))
        except (httpx.LocalProtocolError, httpx.UnsupportedProtocol) as failure:
            raise self._unreachable(failure) from failure  # it was never sent, and never will be
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as failure:
            raise _RetryableError(self._unreachable(failure)) from failure  # before a byte of the body was asked for
        except httpx.RequestError as failure:
            safe = can_repeat and (request.write is None or request.write.repeatable)
            why = "" if request.write is None else _reason(failure)
            raise _RetryableError(self._unreachable(failure), safe=safe, lost=why) from failure

    @contextmanager
    def _send(self, request: HttpRequest, *, keep: bool) -> Iterator["httpx.Response"]:
        content: Any = None
        if request.body is not None:
            content = request.body()
        elif request.document is not None:
            content = _encode_json(request.document)
        params = {name: value for name, value in request.params.items() if value is not None}
        prepared = self._client.build_request(
            request.method,
            f"{self.url}{request.path}",
            params=params or None,
            content=content,
            headers=request.all_headers(),
        )
        response = self._client.send(prepared, stream=True)
        try:
            yield response
        except BaseException:
            response.close()
            raise
        if not keep or response.status_code >= 300:
            response.close()

    def _error(self, response: "httpx.Response", request: HttpRequest) -> OmnigraphError:
        data = response.read()
        try:
            body = json.loads(data)
        except ValueError:
            body = None
        if not isinstance(body, dict) or "error" not in body:
            reason = f"status {response.status_code}, which is not how an Omnigraph server answers"
            return ServerUnreachable(self.url, reason)
        return error_from(body, request.source)

    def _unreachable(self, failure: Exception) -> ServerUnreachable:
        error = ServerUnreachable(self.url, _reason(failure))
        error.__cause__ = failure
        return error


def _encode_json(document: Any) -> bytes:
    try:
        return json.dumps(document, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise BadRequest(
            f"The request can't be sent as JSON ({error}): give text, finite numbers and lists."
        ) from error


def _check_url(url: str) -> str:
    """The server's address without what would be ambiguous in it; it may lie below a path."""
    import httpx

    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise BadRequest(f"{url!r} is no address of a server: give http://HOST:PORT or https://….")
    try:
        host, place = httpx.URL(url).host, urlsplit(url).netloc
    except (httpx.InvalidURL, ValueError):
        host = place = ""
    if not host:
        raise BadRequest("The address of the server is no URL: give http://HOST:PORT or https://….")
    if "@" in place:
        raise BadRequest("The address of the server holds a name or a password: leave them out, and give a token.")
    if "?" in url or "#" in url:
        raise BadRequest(f"{url!r} is no address of a server: leave out what follows the path.")
    return url.rstrip("/")


def check_header(text: str, what: str) -> str:
    """What can be sent as a header; a line end in it would be another one."""
    if not isinstance(text, str) or not (text.isascii() and text.isprintable() and 0 < len(text) <= HEADER_LENGTH_MAX):
        raise BadRequest(f"{what} has 1 to {HEADER_LENGTH_MAX} printable characters of ASCII: correct it.")
    return text


def _parse_json(url: str, data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise ServerUnreachable(url, "its answer is no JSON, which is not how an Omnigraph server answers") from error


def _retry_after(response: "httpx.Response") -> float:
    """In seconds; a date, which HTTP allows too, is not worth the clock."""
    text = response.headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() else 0.0


def _reason(failure: Exception) -> str:
    import httpx

    if isinstance(failure, httpx.TimeoutException):
        return "no answer in time"
    return str(failure) or type(failure).__name__


class StreamReader(io.RawIOBase):
    """Pieces as a file that is read from the start to the end."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._held = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        wanted = -1 if size is None else size
        held = [self._held]
        length = len(self._held)
        while wanted < 0 or length < wanted:
            piece = next(self._pieces, None)
            if piece is None:
                break
            held.append(piece)
            length += len(piece)
        data = b"".join(held)
        cut = len(data) if wanted < 0 else wanted
        self._held = data[cut:]
        return data[:cut]
