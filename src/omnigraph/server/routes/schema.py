"""The schema: what types there are, and how they change."""

from contextlib import suppress
from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from omnigraph.api.models import SchemaAnswer, SchemaApplyAnswer, SchemaPlanAnswer
from omnigraph.errors import OmnigraphError
from omnigraph.graph.graph import Graph
from omnigraph.server.auth.access import Action
from omnigraph.server.http.request_context import TheCall
from omnigraph.server.models.request_models import Reference, SchemaApplyRequest, SchemaPlanRequest
from omnigraph.server.routes.shared import IfCommit, TxnId, described, graph_router

router = graph_router("schema")


@router.get("/schema", responses=described(SchemaAnswer), name="show_schema")
async def show_schema(
    call: TheCall, branch: Annotated[str, Query(max_length=200)] = "main", at: Reference | None = None
) -> Response:
    """The schema as text, as it was given."""
    call.require(Action.READ, branch)

    def work(graph: Graph) -> object:
        call.require_state(graph, branch, at)
        return {"schema": graph.schema.show(branch, at)}

    return call.answer(await call.read(work))


@router.post("/schema/plan", responses=described(SchemaPlanAnswer, writes=True), name="plan_schema")
async def plan_schema(call: TheCall, body: SchemaPlanRequest) -> Response:
    """The steps from the branch's schema to a wanted one, and which can't be; changes nothing."""
    call.require(Action.READ, body.branch)
    plan = await call.read(lambda graph: graph.schema.plan(body.schema_, body.branch, name=body.name))
    return call.answer(SchemaPlanAnswer.encode(plan))


@router.post("/schema/apply", responses=described(SchemaApplyAnswer, writes=True), name="apply_schema")
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
