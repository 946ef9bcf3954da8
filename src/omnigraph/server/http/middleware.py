"""The outermost layer: every request has an id, headers that keep browsers careful, one log line and one measurement.

No exception passes it. After the first byte of a response an error can't be reported any more: the connection is
closed then, so that a partial response is not taken for a complete one.
"""

import logging
import re
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omnigraph.cancellation import Stopped
from omnigraph.errors import BadRequest, OmnigraphError
from omnigraph.fair_share import short_work
from omnigraph.runtime import Runtime
from omnigraph.server.http.errors import Internal, Redaction, error_response
from omnigraph.server.metrics import Metrics
from omnigraph.server.tracing import Tracing, finish
from omnigraph.storage.meter import Cost

REQUEST_ID = "X-Request-Id"
METHOD_SHOWN_MAX = 20
SECURITY_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")  # a route would match `x%0A` as `x`: its `$` stands before a last line end
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
_log = logging.getLogger("omnigraph.server.access")


@dataclass(slots=True)
class RequestInfo:
    """What becomes known of a request on its way; for its log line, its measurement and its span."""

    request_id: str
    redaction: Redaction
    route: str = "none"
    actor: str | None = None
    graph: str | None = None
    status: int = 0
    sent: int = 0
    cost: Cost | None = None
    error: OmnigraphError | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def failed(self, error: OmnigraphError) -> None:
        self.error = error

    def hide(self, text: str, instead: str) -> None:
        """For this request alone."""
        self.redaction = self.redaction.hiding(text, instead)


class Middleware:
    """ASGI middleware around everything."""

    def __init__(
        self, app: ASGIApp, runtime: Runtime, metrics: Metrics, redaction: Redaction, tracing: Tracing
    ) -> None:
        self._app = app
        self._runtime = runtime
        self._metrics = metrics
        self._redaction = redaction
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get(REQUEST_ID, "")
        info = RequestInfo(given if _ID.match(given) else self._runtime.ids.short_id(), self._redaction)
        scope.setdefault("state", {})["info"] = info
        started = self._runtime.clock.monotonic()
        with short_work(), self._tracing.request(scope["method"], headers) as span:
            await self._respond(scope, receive, send, info)
            seconds = self._runtime.clock.monotonic() - started
            self._log_request(scope, info, seconds)
            attributes = {
                "http.request.method": scope["method"],
                "http.route": info.route,
                "http.response.status_code": info.status,
                "omnigraph.request_id": info.request_id,
                "omnigraph.graph.graph": info.graph,
            }
            finish(span, f"{scope['method']} {info.route}", attributes, info.cost)
        scope["state"].clear()  # an idle connection keeps its last request, with the frames of its error

    async def _respond(self, scope: Scope, receive: Receive, send: Send, info: RequestInfo) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                info.status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID] = info.request_id
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            elif message["type"] == "http.response.body":
                info.sent += len(message.get("body", b""))
            await send(message)

        try:
            if _CONTROL.search(scope["path"]):
                raise BadRequest("The address has control characters: write it without them.")
            await self._app(scope, receive, sending)
        except OmnigraphError as error:
            info.failed(error)
            if not info.status:
                await error_response(error, info.redaction)(scope, receive, sending)
        except Exception:
            bug = Internal(info.request_id)
            info.failed(bug)
            fields = {"request_id": info.request_id, "route": info.route}
            _log.exception("A request failed for a reason that is a bug.", extra={"fields": fields})
            if not info.status:
                await error_response(bug, info.redaction)(scope, receive, sending)

    def _log_request(self, scope: Scope, info: RequestInfo, seconds: float) -> None:
        self._metrics.request_ended(scope["method"], info.route, info.status, seconds)
        if info.error is not None:
            self._metrics.failed(info.error)
        fields: dict[str, Any] = {
            "request_id": info.request_id,
            "method": scope["method"][:METHOD_SHOWN_MAX],
            "route": info.route,
            "status": info.status,
            "ms": round(seconds * 1000, 1),
            "bytes": info.sent,
            "actor": info.actor,
            "graph": info.graph,
            **info.facts,
        }
        if info.cost is not None:
            fields["cost"] = {
                "requests": info.cost.requests,
                "stages": info.cost.stages,
                "bytes": info.cost.bytes,
                "retries": info.cost.retries,
            }
        if info.error is not None:
            fields |= {"code": info.error.code, "error": str(info.error)}
        level = logging.WARNING if info.status >= 500 and not isinstance(info.error, Stopped) else logging.INFO
        _log.log(level, "request", extra={"fields": fields})
