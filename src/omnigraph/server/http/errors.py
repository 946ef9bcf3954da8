"""Errors over HTTP: one shape, the codes and statuses of `surface.md`, never a traceback, never a secret."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from omnigraph.errors import (
    AccessDenied,
    BadRequest,
    Forbidden,
    NotAGraph,
    OmnigraphError,
    StorageFull,
    TooLarge,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)

ERRORS_SHOWN_MAX = 20
PLACE_SHOWN_MAX = 200  # a name that is not known may be as long as a body
_STORE_ERRORS = (Unavailable, AccessDenied, NotAGraph)
_HIDDEN_DETAILS = {"what": "this graph", "reason": "the server's log has more", "uri": "this graph"}
SECRET_LENGTH_MIN = 4  # a shorter option such as "true" is no secret, and hiding it would garble sentences


def unauthorized() -> Unauthorized:
    """No token, or none that is known."""
    return Unauthorized(
        "A bearer token is needed, and this one is missing or unknown: send Authorization: Bearer TOKEN."
    )


def forbidden(what: str) -> Forbidden:
    """The token is known, and does not allow this."""
    return Forbidden(f"This token does not allow {what}: ask for a token that does.")


def too_large(what: str, limit: int, unit: str, remedy: str) -> TooLarge:
    """A body or a result is beyond a limit."""
    return TooLarge(f"{what} is larger than {limit:,} {unit}: {remedy}.", limit, unit)


def too_many_requests(what: str, retry_after_s: int) -> TooManyRequests:
    """More than may run at once."""
    return TooManyRequests(f"{what}: nothing was begun, try again in {retry_after_s} s.", retry_after_s)


class NotFromHere(OmnigraphError):
    """A cross-site request, which a browser may send unasked, to a server without tokens."""

    code = "forbidden"

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return f"This server has no tokens, so a request {self.what} is refused: call it by 127.0.0.1, or use tokens."


class Internal(OmnigraphError):
    """A bug in the server; the log has the traceback."""

    def __init__(self, request_id: str) -> None:
        super().__init__(request_id)
        self.request_id = request_id

    @property
    def details(self) -> dict[str, Any]:
        return {"request_id": self.request_id}

    def __str__(self) -> str:
        return f"Something went wrong that should not: report it with the request id {self.request_id}."


class BodyRefused(HTTPException):
    """An error that FastAPI lets through while it reads a body."""

    def __init__(self, error: OmnigraphError) -> None:
        super().__init__(error.http_status)
        self.error = error


class Redaction:
    """Secrets, and what replaces them in messages: addresses and options of stores, paths of temporary files."""

    def __init__(self, hidden: Iterable[tuple[str, str]] = ()) -> None:
        self._hidden = [pair for pair in hidden if pair[0]]

    def hide(self, text: str, instead: str) -> None:
        self._hidden.append((text, instead))

    def hiding(self, text: str, instead: str) -> "Redaction":
        """A copy that hides this too."""
        return Redaction([*self._hidden, (text, instead)])

    def hide_store(self, name: str, uri: str, options: Mapping[str, str]) -> None:
        plain = uri.rstrip("/")
        self.hide(plain, f"the graph {name!r}")
        if (path := plain.removeprefix("file://")) != plain:
            self.hide(path, f"the graph {name!r}")
        for value in (*_credentials_in(plain), *options.values()):
            if len(value) >= SECRET_LENGTH_MIN and value.lower() not in ("true", "false"):
                self.hide(value, "***")

    def text(self, text: str) -> str:
        for secret, instead in sorted(self._hidden, key=lambda pair: -len(pair[0])):
            text = text.replace(secret, instead)
        return text

    def document(self, value: Any) -> Any:
        match value:
            case str():
                return self.text(value)
            case list() | tuple():
                return [self.document(item) for item in value]
            case dict():
                return {key: self.document(item) for key, item in value.items()}
            case _:
                return value


def _credentials_in(uri: str) -> list[str]:
    """The user, password and query of an address, as written and decoded."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return []
    user, at, _ = parts.netloc.rpartition("@")
    found = [user, *user.split(":", 1)] if at else []
    found += [parts.query, *(value for _, value in parse_qsl(parts.query))]
    return [text for one in found if one for text in {one, unquote(one)}]


def error_body(error: OmnigraphError, redaction: Redaction) -> dict[str, Any]:
    """The body of an error response. The store's own words stay in the log."""
    body = error.to_json()
    if type(error) in (Unavailable, StorageFull):
        effect = "nothing was committed" if isinstance(error, StorageFull) else "nothing was changed"
        body["error"] = f"The store did not serve: {effect}, try again later."
    elif isinstance(error, AccessDenied):
        body["error"] = "The store denies the server access to this graph: its operator has to look at the credentials."
    elif isinstance(error, NotAGraph):
        body["error"] = "There is no graph where this server looks for it: its operator has to look at the address."
    if isinstance(error, _STORE_ERRORS):
        body["details"] = {name: _HIDDEN_DETAILS.get(name, value) for name, value in body["details"].items()}
    return {name: redaction.document(value) for name, value in body.items()}


def error_response(error: OmnigraphError, redaction: Redaction) -> Response:
    headers = {}
    if isinstance(error, TooManyRequests):
        headers["Retry-After"] = str(error.retry_after_s)
    elif isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    return json_response(error_body(error, redaction), error.http_status, headers)


def json_bytes(document: Any) -> bytes:
    """Lone surrogates in stored text are escaped, so that the response can be encoded.

    The items of a list, or of the lists in an object, are encoded one by one: the encoder lets no other thread run.
    """
    match document:
        case list():
            return b"[%s]" % b",".join(map(_json_bytes, document))
        case dict() if any(isinstance(value, list) for value in document.values()):
            return b"{%s}" % b",".join(
                b"%s:%s" % (_json_bytes(name), json_bytes(value) if isinstance(value, list) else _json_bytes(value))
                for name, value in document.items()
            )
    return _json_bytes(document)


def _json_bytes(document: Any) -> bytes:
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")


def json_response(document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    headers = {} if headers is None else dict(headers)
    return Response(_json_bytes(document), status, headers, media_type="application/json")


def validation_error(errors: Sequence[Any]) -> BadRequest:
    """The errors of a request model by place, without the values that were given."""
    listed = [
        {"place": ".".join(str(part) for part in error["loc"])[:PLACE_SHOWN_MAX], "error": str(error["msg"])}
        for error in errors[:ERRORS_SHOWN_MAX]
    ]
    return RequestRefused(listed, len(errors))


class RequestRefused(BadRequest):
    """A request that is not of the documented form."""

    def __init__(self, errors: list[dict[str, str]], total: int) -> None:
        super().__init__(errors, total)
        self.errors, self.total = errors, total

    @property
    def details(self) -> dict[str, Any]:
        return {"errors": self.errors, "total": self.total}

    def __str__(self) -> str:
        first = self.errors[0]
        more = f" (and {self.total - 1} more)" if self.total > 1 else ""
        return f"{first['place']}: {first['error']}{more}, see /openapi.json for what is expected."


class NoSuchGraph(OmnigraphError):
    """No graph of that id is served here."""

    code = "not_found"

    def __init__(self, graph: str) -> None:
        super().__init__(graph)
        self.graph = graph[:PLACE_SHOWN_MAX]

    def __str__(self) -> str:
        return f"No graph {self.graph!r} is served here: see GET /graphs."


class NoSuchRoute(OmnigraphError):
    code = "not_found"

    def __str__(self) -> str:
        return "There is nothing here: see /openapi.json for what there is."


class WrongMethod(BadRequest):
    """`surface.md` has no code for it, HTTP has a status: 405, with `Allow`."""

    def __str__(self) -> str:
        return "This method is not served here: use one of those in the Allow header."


def install(app: FastAPI) -> None:
    """Handle every exception in one way."""

    async def ours(request: Request, error: Exception) -> Response:
        assert isinstance(error, OmnigraphError)
        request.state.info.failed(error)
        return error_response(error, request.state.info.redaction)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return await ours(request, validation_error(error.errors()))

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if isinstance(error, BodyRefused):
            return await ours(request, error.error)
        if error.status_code == 405:
            request.state.info.failed(WrongMethod())
            body = error_body(WrongMethod(), request.state.info.redaction)
            return json_response(body, 405, error.headers)
        if error.status_code == 404:
            return await ours(request, NoSuchRoute())
        return await ours(request, BadRequest("The body can't be read: see /openapi.json for what is expected."))

    app.add_exception_handler(OmnigraphError, ours)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
