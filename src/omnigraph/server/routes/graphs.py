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
from omnigraph.server.http.request_context import TheCall
from omnigraph.server.models.request_models import LintRequest, Reference, SchemaApplyRequest, SchemaPlanRequest
from omnigraph.server.routes.shared import IfCommit, TxnId, described, graph_router

all_router = APIRouter(route_class=GraphRoute, tags=["graphs"])
router = graph_router("graphs")


@all_router.get("/graphs", responses=described(GraphsAnswer), name="list_graphs")
async def list_graphs(request: Request) -> Response:
    """The graphs that this token may do anything with, those that can't be opened among them."""
    principal = request.state.principal
    hosted = request.app.state.service.hosted.graphs
    return json_response(
        {
            "graphs": [
                GraphEntry.encode(one, error=one.error_body(), roles=access.widest(principal.grants, name))
                for name, one in hosted.items()
                if access.knows(principal, name)
            ]
        }
    )


@router.get("/snapshot", responses=described(SnapshotAnswer), name="snapshot")
async def snapshot(
    call: TheCall, branch: Annotated[str, Query(max_length=200)] = "main", at: Reference | None = None
) -> Response:
    """A branch's state: its commit, and the rows of every type."""
    call.require(Action.READ, branch)

    def work(graph: Graph) -> object:
        call.require_state(graph, branch, at)
        return SnapshotAnswer.encode(graph.snapshot(branch, at))

    return call.answer(await call.read(work))


@router.post("/lint", responses=described(list[LintFinding]), name="lint")
async def lint(call: TheCall, body: LintRequest) -> Response:
    """Check every query of a text against the schema, without running any."""
    call.require(Action.READ, body.branch)

    def work(graph: Graph) -> object:
        call.require_state(graph, body.branch, body.at)
        catalog = graph.snapshot(body.branch, body.at).pinned.catalog
        return [LintFinding.encode(issue) for issue in lint_queries(body.query, catalog, body.name)]

    return call.answer(await call.read(work))


schema_router = graph_router("schema")


@schema_router.get("/schema", responses=described(SchemaAnswer), name="show_schema")
async def show_schema(
    call: TheCall, branch: Annotated[str, Query(max_length=200)] = "main", at: Reference | None = None
) -> Response:
    """The schema as text, as it was given."""
    call.require(Action.READ, branch)

    def work(graph: Graph) -> object:
        call.require_state(graph, branch, at)
        return {"schema": graph.schema.show(branch, at)}

    return call.answer(await call.read(work))


@schema_router.post("/schema/plan", responses=described(SchemaPlanAnswer, writes=True), name="plan_schema")
async def plan_schema(call: TheCall, body: SchemaPlanRequest) -> Response:
    """The steps from the branch's schema to a wanted one, and which can't be; changes nothing."""
    call.require(Action.READ, body.branch)
    plan = await call.read(lambda graph: graph.schema.plan(body.schema_, body.branch, name=body.name))
    return call.answer(SchemaPlanAnswer.encode(plan))


@schema_router.post("/schema/apply", responses=described(SchemaApplyAnswer, writes=True), name="apply_schema")
async def apply_schema(
    call: TheCall, body: SchemaApplyRequest, if_commit: IfCommit = None, txn_id: TxnId = None
) -> Response:
    """Make a schema the branch's, as one atomic commit."""
    call.require(Action.SCHEMA_APPLY, body.branch)

    def work(graph: Graph) -> object:
        applied = graph.schema.apply(
            body.schema_,
            body.allow_data_loss,
            body.branch,
            actor=call.principal.actor,
            if_commit=if_commit,
            txn_id=txn_id,
            name=body.name,
        )
        with suppress(OmnigraphError):  # the commit has landed, whatever can be said about stored queries now
            call.service.stored.errors(call.graph_id, graph.repository.snapshot(body.branch))
        return SchemaApplyAnswer.encode(applied)

    return call.answer(await call.write(work))
