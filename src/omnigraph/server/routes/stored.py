"""Stored queries: what there are, with typed parameters; each by its name."""

from typing import Annotated

from fastapi import Path, Query
from starlette.responses import Response

from omnigraph.api.models import QueryAnswer, StoredAnswer, StoredEntry, WriteAnswer
from omnigraph.errors import BadRequest
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.publish import PublishedCommit
from omnigraph.read.result import QueryResult
from omnigraph.server.auth.access import Action
from omnigraph.server.http.request_context import TheCall
from omnigraph.server.models.request_models import StoredRequest
from omnigraph.server.routes.data import answer_mutation, answer_query
from omnigraph.server.routes.shared import ARROW, NDJSON, IfCommit, TxnId, described, graph_router

router = graph_router("stored queries")


@router.get("/queries", responses=described(StoredAnswer), name="list_queries")
async def list_queries(call: TheCall, branch: Annotated[str, Query(max_length=200)] = "main") -> Response:
    """The stored queries, reads and writes, checked against the schema that the branch has now."""
    call.require(Action.INVOKE_QUERY, branch)
    stored = call.service.stored

    def work(graph: Graph) -> object:
        errors = stored.errors(call.graph_id, graph.repository.snapshot(branch))
        known = sorted(stored.of(call.graph_id).items())
        reasons = {name: str(error) for name, error in errors.items()}
        return {"queries": [StoredEntry.encode(query, error=reasons.get(name)) for name, query in known]}

    return call.answer(await call.read(work))


@router.post(
    "/queries/{name}", responses=described(QueryAnswer | WriteAnswer, NDJSON, ARROW, writes=True), name="invoke_query"
)
async def invoke_query(
    call: TheCall,
    name: Annotated[str, Path(max_length=300)],
    body: StoredRequest,
    if_commit: IfCommit = None,
    txn_id: TxnId = None,
) -> Response:
    """Run one. A read answers as `query` does and a write as `mutate`; a write needs a token that may write."""
    call.require(Action.INVOKE_QUERY, body.branch)
    stored = call.service.stored
    query = stored.find(call.graph_id, name)
    if query.writes:
        call.require(Action.CHANGE, body.branch)
        if body.at is not None:
            raise BadRequest(f"{name} writes, and history can't be written: leave out at.")

        def change(graph: Graph) -> PublishedCommit | None:
            stored.require(call.graph_id, query, graph.repository.snapshot(body.branch))
            return graph.mutate(
                query.text, name, body.params, body.branch, call.principal.actor, if_commit, txn_id=txn_id
            )

        return await answer_mutation(call, change)

    def read(graph: Graph) -> QueryResult:
        call.require_state(graph, body.branch, body.at)
        stored.require(call.graph_id, query, graph.repository.snapshot(body.branch, body.at))
        return graph.query(query.text, name, body.params, body.branch, body.at)

    return await answer_query(call, read)
