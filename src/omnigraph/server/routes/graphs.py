"""The server's health and metrics; its graphs, the state and the schema of a branch, and whether queries fit it.

Health is for machines that watch the server, so without tokens, and says nothing about what is in the graphs.
`/metrics` names types: it needs a token where there are any.
"""

import asyncio
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from omnigraph.api.documents import version_document
from omnigraph.api.job_models import GraphEntry, GraphsAnswer, HealthAnswer, ReadyAnswer
from omnigraph.api.models import LintFinding, SchemaAnswer, SchemaApplyAnswer, SchemaPlanAnswer, SnapshotAnswer
from omnigraph.errors import OmnigraphError
from omnigraph.graph.graph import Graph
from omnigraph.query.lint import lint as lint_queries
from omnigraph.server.auth import access
from omnigraph.server.auth.access import Action
from omnigraph.server.http.errors import error_response, forbidden, json_response
from omnigraph.server.http.request_body import GraphRoute, PublicRoute
from omnigraph.server.http.request_context import Context
from omnigraph.server.metrics import CONTENT_TYPE
from omnigraph.server.models.error_models import BadRequestBody, ForbiddenBody, UnauthorizedBody, UnavailableBody
from omnigraph.server.models.request_models import LintRequest, Reference, SchemaApplyRequest, SchemaPlanRequest
from omnigraph.server.openapi import schema_model
from omnigraph.server.routes.shared import IfCommitHeader, TxnIdHeader, describe_responses, graph_router

health_router = APIRouter(tags=["server"], route_class=PublicRoute)
metrics_router = APIRouter(tags=["server"], route_class=GraphRoute)
_BAD_REQUEST: dict[int | str, dict[str, Any]] = {
    400: {"model": schema_model(BadRequestBody), "description": "There are parameters, and none are taken."},
}
_NOT_READY = _BAD_REQUEST | {
    403: {"model": schema_model(ForbiddenBody), "description": "A page in a browser asks."},
    503: {"model": schema_model(UnavailableBody), "description": "Not ready."},
}
_METRICS = _BAD_REQUEST | {
    200: {"description": "Prometheus text.", "content": {"text/plain": {"schema": {"type": "string"}}}},
    401: {"model": schema_model(UnauthorizedBody), "description": "A token is missing or unknown."},
    403: {"model": schema_model(ForbiddenBody), "description": "The token does not allow reading every graph."},
}


class NotReady(OmnigraphError):
    code = "unavailable"

    def __str__(self) -> str:
        return f"This server takes no requests, {self.args[0]}: ask another one, or try again later."


@health_router.get("/healthz", response_model=schema_model(HealthAnswer), responses=_BAD_REQUEST, name="healthz")
async def healthz() -> Response:
    """The process is alive: its release, the format it speaks, its libraries."""
    return json_response({"status": "ok", **version_document()})


@health_router.get("/readyz", response_model=schema_model(ReadyAnswer), responses=_NOT_READY, name="readyz")
async def readyz(request: Request) -> Response:
    """It takes requests: it is not about to end, and at least one graph is open."""
    service = request.app.state.service
    if service.tokens is None:  # the ids of graphs are for no page that somebody visits
        access.require_no_browser(request, local_only=service.settings.local_only)
    graphs = {name: hosted.graph is not None for name, hosted in service.hosted.graphs.items()}
    if service.draining:
        return error_response(NotReady("it is about to end"), request.state.info.redaction)
    if service.tokens is not None and not service.tokens.is_believed():
        return error_response(NotReady("its token file is refused"), request.state.info.redaction)
    if not any(graphs.values()):
        return error_response(NotReady("no graph could be opened"), request.state.info.redaction)
    shown = graphs if service.tokens is None else {}
    return json_response({"status": "ready", "graphs": shown})


@health_router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> Response:
    """This description of the server."""
    return json_response(request.app.openapi())


@metrics_router.get("/metrics", responses=_METRICS, response_class=Response, name="metrics")
async def metrics(request: Request) -> Response:
    """For Prometheus. It tells of all graphs and their types, so it takes a token that may read them."""
    service = request.app.state.service
    if not all(access.sees_everything(request.state.principal, name) for name in service.hosted.graphs):
        raise forbidden("watching the server, which tells of every graph")
    service.metrics.running.set(service.admission.running)
    service.metrics.waiting.set(service.admission.waiting)
    service.metrics.token_file_refusals.set(0 if service.tokens is None else service.tokens.refusals)
    exposed = await asyncio.to_thread(service.metrics.render)
    return Response(exposed, headers={"Content-Type": CONTENT_TYPE})


all_router = APIRouter(route_class=GraphRoute, tags=["graphs"])
router = graph_router("graphs")


@all_router.get("/graphs", responses=describe_responses(GraphsAnswer), name="list_graphs")
async def list_graphs(request: Request) -> Response:
    """The graphs that this token may do anything with, those that can't be opened among them."""
    principal = request.state.principal
    hosted = request.app.state.service.hosted.graphs
    return json_response(
        {
            "graphs": [
                GraphEntry.encode(one, error=one.error_body(), roles=access.roles_on(principal.grants, name))
                for name, one in hosted.items()
                if access.has_access(principal, name)
            ]
        }
    )


@router.get("/snapshot", responses=describe_responses(SnapshotAnswer), name="snapshot")
async def snapshot(
    context: Context, branch: Annotated[str, Query(max_length=200)] = "main", at: Reference | None = None
) -> Response:
    """A branch's state: its commit, and the rows of every type."""
    context.require(Action.READ, branch)

    def work(graph: Graph) -> object:
        return SnapshotAnswer.encode(graph.snapshot(branch, at))

    return await context.respond_read(work)


@router.post("/lint", responses=describe_responses(list[LintFinding]), name="lint")
async def lint(context: Context, body: LintRequest) -> Response:
    """Check every query of a text against the schema, without running any."""
    context.require(Action.READ, body.branch)

    def work(graph: Graph) -> object:
        catalog = graph.snapshot(body.branch, body.at).pinned.catalog
        return [LintFinding.encode(issue) for issue in lint_queries(body.query, catalog, body.name)]

    return await context.respond_read(work)


schema_router = graph_router("schema")


@schema_router.get("/schema", responses=describe_responses(SchemaAnswer), name="show_schema")
async def show_schema(
    context: Context, branch: Annotated[str, Query(max_length=200)] = "main", at: Reference | None = None
) -> Response:
    """The schema as text, as it was given."""
    context.require(Action.READ, branch)

    def work(graph: Graph) -> object:
        return {"schema": graph.schema.show(branch, at)}

    return await context.respond_read(work)


@schema_router.post("/schema/plan", responses=describe_responses(SchemaPlanAnswer, writes=True), name="plan_schema")
async def plan_schema(context: Context, body: SchemaPlanRequest) -> Response:
    """The steps from the branch's schema to a wanted one, and which can't be; changes nothing."""
    context.require(Action.READ, body.branch)

    def work(graph: Graph) -> object:
        return SchemaPlanAnswer.encode(graph.schema.plan(body.schema_, body.branch, name=body.name))

    return await context.respond_read(work)


@schema_router.post("/schema/apply", responses=describe_responses(SchemaApplyAnswer, writes=True), name="apply_schema")
async def apply_schema(
    context: Context, body: SchemaApplyRequest, if_commit: IfCommitHeader = None, txn_id: TxnIdHeader = None
) -> Response:
    """Make a schema the branch's, as one atomic commit."""
    context.require(Action.SCHEMA_APPLY, body.branch)

    def work(graph: Graph) -> object:
        applied = graph.schema.apply(
            body.schema_,
            body.allow_data_loss,
            body.branch,
            actor=context.principal.actor,
            if_commit=if_commit,
            txn_id=txn_id,
            name=body.name,
        )
        with suppress(OmnigraphError):  # the commit is made, whatever becomes of stored queries
            context.service.stored.errors(context.graph_id, graph.repository.snapshot(body.branch))
        return SchemaApplyAnswer.encode(applied)

    return context.respond(await context.write(work))
