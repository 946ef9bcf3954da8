"""What is there: the graphs, the state of a branch, and whether queries fit it."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from omnigraph.api.job_models import GraphEntry, GraphsAnswer
from omnigraph.api.models import LintFinding, SnapshotAnswer
from omnigraph.graph.graph import Graph
from omnigraph.query.lint import lint as lint_queries
from omnigraph.server.auth import access
from omnigraph.server.auth.access import Action
from omnigraph.server.http.errors import json_response
from omnigraph.server.http.request_body import GraphRoute
from omnigraph.server.http.request_context import TheCall
from omnigraph.server.models.request_models import LintRequest, Reference
from omnigraph.server.routes.shared import described, graph_router

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
