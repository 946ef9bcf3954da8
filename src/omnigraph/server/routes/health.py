"""Whether the server is well, and how it does: for machines that watch it, so without tokens.

They say nothing about what is in the graphs. `/metrics` names types: it needs a token where there are any.
"""

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from omnigraph.api.documents import version_document
from omnigraph.api.job_models import HealthAnswer, ReadyAnswer
from omnigraph.errors import OmnigraphError
from omnigraph.server.auth import access
from omnigraph.server.http.errors import Forbidden, error_response, json_response
from omnigraph.server.http.request_body import GraphRoute
from omnigraph.server.metrics import CONTENT_TYPE
from omnigraph.server.models.error_models import ForbiddenBody, UnauthorizedBody, UnavailableBody
from omnigraph.server.openapi import schema_model

router = APIRouter(tags=["server"])
metrics_router = APIRouter(tags=["server"], route_class=GraphRoute)
_NOT_READY: dict[int | str, dict[str, Any]] = {
    403: {"model": schema_model(ForbiddenBody), "description": "A page in a browser asks."},
    503: {"model": schema_model(UnavailableBody), "description": "Not ready."},
}
_METRICS: dict[int | str, dict[str, Any]] = {
    200: {"description": "Prometheus text.", "content": {"text/plain": {"schema": {"type": "string"}}}},
    401: {"model": schema_model(UnauthorizedBody), "description": "A token is missing or unknown."},
    403: {"model": schema_model(ForbiddenBody), "description": "The token does not allow reading every graph."},
}


class NotReady(OmnigraphError):
    code = "unavailable"

    def __str__(self) -> str:
        return f"This server takes no requests, {self.args[0]}: ask another one, or try again later."


@router.get("/healthz", response_model=schema_model(HealthAnswer), name="healthz")
async def healthz(request: Request) -> Response:
    """The process is alive: its release, the format it speaks, its libraries."""
    request.state.info.route = "/healthz"
    return json_response({"status": "ok", **version_document()})


@router.get("/readyz", response_model=schema_model(ReadyAnswer), responses=_NOT_READY, name="readyz")
async def readyz(request: Request) -> Response:
    """It takes requests: it is not about to end, and at least one graph is open."""
    request.state.info.route = "/readyz"
    service = request.app.state.service
    if service.tokens is None:  # the ids of graphs are for no page that somebody visits
        access.require_no_browser(request, local_only=service.settings.local_only)
    graphs = {name: hosted.graph is not None for name, hosted in service.hosted.graphs.items()}
    if service.draining:
        return error_response(NotReady("it is about to end"), request.state.info.redaction)
    if not any(graphs.values()):
        return error_response(NotReady("no graph could be opened"), request.state.info.redaction)
    shown = graphs if service.tokens is None else {}
    return json_response({"status": "ready", "graphs": shown})


@metrics_router.get("/metrics", responses=_METRICS, response_class=Response, name="metrics")
async def metrics(request: Request) -> Response:
    """For Prometheus. It tells of all graphs and their types, so it takes a token that may read them."""
    service = request.app.state.service
    if not all(access.sees_everything(request.state.principal, name) for name in service.hosted.graphs):
        raise Forbidden("watching the server, which tells of every graph")
    service.metrics.running.set(service.admission.running)
    service.metrics.waiting.set(service.admission.waiting)
    exposed = await asyncio.to_thread(service.metrics.render)
    return Response(exposed, headers={"Content-Type": CONTENT_TYPE})
