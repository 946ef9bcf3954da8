"""The graphs, the state and the schema of a branch, and whether queries fit it."""

from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from omnigraph.api.job_models import GraphEntry, GraphsAnswer
from omnigraph.api.models import LintFinding, SchemaAnswer, SchemaApplyAnswer, SchemaPlanAnswer, SnapshotAnswer
from omnigraph.errors import OmnigraphError
from omnigraph.graph.graph import Graph
from omnigraph.query.lint import lint as lint_queries
from omnigraph.server.auth import access
from omnigraph.server.auth.access import Action
from omnigraph.server.http.errors import json_response
from omnigraph.server.http.request_body import GraphRoute
from omnigraph.server.http.request_context import Context
from omnigraph.server.models.request_models import LintRequest, Reference, SchemaApplyRequest, SchemaPlanRequest
from omnigraph.server.routes.shared import IfCommitHeader, TxnIdHeader, describe_responses, graph_router

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
        context.require_state(graph, branch, at)
        return SnapshotAnswer.encode(graph.snapshot(branch, at))

    return context.respond(await context.read(work))


@router.post("/lint", responses=describe_responses(list[LintFinding]), name="lint")
async def lint(context: Context, body: LintRequest) -> Response:
    """Check every query of a text against the schema, without running any."""
    context.require(Action.READ, body.branch)

    def work(graph: Graph) -> object:
        context.require_state(graph, body.branch, body.at)
        catalog = graph.snapshot(body.branch, body.at).pinned.catalog
        return [LintFinding.encode(issue) for issue in lint_queries(body.query, catalog, body.name)]

    return context.respond(await context.read(work))


schema_router = graph_router("schema")


@schema_router.get("/schema", responses=describe_responses(SchemaAnswer), name="show_schema")
async def show_schema(
    context: Context, branch: Annotated[str, Query(max_length=200)] = "main", at: Reference | None = None
) -> Response:
    """The schema as text, as it was given."""
    context.require(Action.READ, branch)

    def work(graph: Graph) -> object:
        context.require_state(graph, branch, at)
        return {"schema": graph.schema.show(branch, at)}

    return context.respond(await context.read(work))


@schema_router.post("/schema/plan", responses=describe_responses(SchemaPlanAnswer, writes=True), name="plan_schema")
async def plan_schema(context: Context, body: SchemaPlanRequest) -> Response:
    """The steps from the branch's schema to a wanted one, and which can't be; changes nothing."""
    context.require(Action.READ, body.branch)
    plan = await context.read(lambda graph: graph.schema.plan(body.schema_, body.branch, name=body.name))
    return context.respond(SchemaPlanAnswer.encode(plan))


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
        with suppress(OmnigraphError):  # the commit has landed, whatever can be said about stored queries now
            context.service.stored.errors(context.graph_id, graph.repository.snapshot(body.branch))
        return SchemaApplyAnswer.encode(applied)

    return context.respond(await context.write(work))
