"""Queries and mutations as text, and those that are stored by name."""

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from fastapi import Path, Query
from starlette.responses import Response

from omnigraph.api.documents import json_text
from omnigraph.api.models import QueryAnswer, QueryHead, StoredAnswer, StoredEntry, WriteAnswer
from omnigraph.api.wire_model import Document
from omnigraph.errors import BadRequest
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.publish import PublishedCommit
from omnigraph.read.result import QueryResult
from omnigraph.server.auth.access import Action
from omnigraph.server.http.errors import too_large
from omnigraph.server.http.pipe import Pipe
from omnigraph.server.http.request_context import COST_HEADER, Context, RequestContext, cost_header
from omnigraph.server.metrics import REQUEST
from omnigraph.server.models.request_models import MutateRequest, QueryRequest, StoredRequest
from omnigraph.server.routes.shared import ARROW, NDJSON, IfCommitHeader, TxnIdHeader, describe_responses, graph_router
from omnigraph.storage import meter

router = graph_router("data")


@router.post("/query", responses=describe_responses(QueryAnswer, NDJSON, ARROW), name="query")
async def query(context: Context, body: QueryRequest) -> Response:
    """Run a read query at one pinned state.

    `Accept: application/x-ndjson` streams the rows, `application/vnd.apache.arrow.stream` streams Arrow batches; the
    headers then say what a JSON document says before its rows.
    """
    context.require(Action.READ, body.branch)

    def run(graph: Graph) -> QueryResult:
        # What outgrows its room is refused: only who asks for Spark gets it.
        engine = "local" if body.engine == "auto" else context.engine(body.engine)
        return graph.query(
            body.query, body.name, body.params, body.branch, body.at, explain=body.explain, engine=engine
        )

    return await respond_to_query(context, run)


async def respond_to_query(context: RequestContext, run: "Callable[[Graph], QueryResult]") -> Response:
    """The result of a read in the form that the caller accepts."""
    accepted = context.request.headers.get("accept", "")
    if ARROW in accepted:
        return await _stream(context, run, ARROW, _write_arrow)
    if NDJSON in accepted:
        return await _stream(context, run, NDJSON, _write_ndjson)

    def work(graph: Graph) -> bytes:
        result = require_bounded(context, run(graph))
        head = QueryHead.encode(result)
        if result.plan is not None:
            head["plan"] = result.plan.to_json()
        return _json_body(head, result, context.service.settings.limits.result_bytes)

    return context.respond_text(await context.read(work))


def require_bounded(context: RequestContext, result: QueryResult) -> QueryResult:
    limit = context.service.settings.limits.result_rows
    if len(result) > limit:
        raise too_large("The result", limit, "rows", "ask for fewer with limit, or page through it")
    return result


def _json_body(head: Mapping[str, Any], result: QueryResult, limit: int) -> bytes:
    """The text of the answer, made in the thread of the query; given up as soon as it does not fit any more."""
    parts, size = [], 0
    for batch in result.json_batches():
        text = ",".join(map(json_text, batch)).encode("utf-8", "backslashreplace")
        size += len(text)
        if size > limit:
            raise too_large("The result", limit, "bytes", "ask for fewer rows or columns, or for a stream")
        parts.append(text)
    start = json_text(head)[:-1].encode("utf-8", "backslashreplace")
    return b'%s,"rows":[%s]}' % (start, b",".join(part for part in parts if part))


async def _stream(
    context: RequestContext,
    run: "Callable[[Graph], QueryResult]",
    media_type: str,
    write: "Callable[[QueryResult, Pipe], None]",
) -> Response:
    known: dict[str, str] = {}

    def produce(graph: Graph, pipe: Pipe) -> None:
        result = require_bounded(context, run(graph))
        known["Omnigraph-Query"] = result.query
        known["Omnigraph-Branch"] = result.branch
        known["Omnigraph-Commit"] = result.commit_id
        known["Omnigraph-Columns"] = json.dumps(result.columns)
        known[COST_HEADER] = cost_header(result.cost)
        write(result, pipe)

    def headers() -> Mapping[str, str]:
        return known

    return await context.stream(produce, media_type, headers)


def _write_ndjson(result: QueryResult, pipe: Pipe) -> None:
    for batch in result.json_batches():
        pipe.write("".join(f"{json_text(row)}\n" for row in batch).encode("utf-8", "backslashreplace"))


def _write_arrow(result: QueryResult, pipe: Pipe) -> None:
    import pyarrow as pa

    sink = pa.PythonFile(pipe, mode="w")  # type: ignore[arg-type]  # it only writes
    with pa.ipc.new_stream(sink, result.schema) as writer:
        for batch in result.batches():
            writer.write_batch(batch)


@router.post("/mutate", responses=describe_responses(WriteAnswer, writes=True), name="mutate")
async def mutate(
    context: Context, body: MutateRequest, if_commit: IfCommitHeader = None, txn_id: TxnIdHeader = None
) -> Response:
    """Run a mutation as one atomic commit; `commit` is null where it changes nothing."""
    context.require(Action.CHANGE, body.branch)

    def run(graph: Graph) -> PublishedCommit | None:
        return graph.mutate(
            body.query,
            body.name,
            body.params,
            body.branch,
            context.principal.actor,
            if_commit,
            body.on_conflict,
            txn_id=txn_id,
        )

    return await respond_to_mutation(context, run)


async def respond_to_mutation(context: RequestContext, run: "Callable[[Graph], PublishedCommit | None]") -> Response:
    def work(graph: Graph) -> Document:
        with meter.operation(REQUEST) as operation:
            commit = run(graph)
        return WriteAnswer.encode(commit=commit, cost=operation.cost if commit is None else commit.cost)

    return context.respond(await context.write(work))


stored_router = graph_router("stored queries")


@stored_router.get("/queries", responses=describe_responses(StoredAnswer), name="list_queries")
async def list_queries(context: Context, branch: Annotated[str, Query(max_length=200)] = "main") -> Response:
    """The stored queries, reads and writes, checked against the schema that the branch has now."""
    context.require(Action.INVOKE_QUERY, branch)
    stored = context.service.stored

    def work(graph: Graph) -> object:
        errors = stored.errors(context.graph_id, graph.repository.snapshot(branch))
        known = sorted(stored.of_graph(context.graph_id).items())
        reasons = {name: str(error) for name, error in errors.items()}
        return {"queries": [StoredEntry.encode(query, error=reasons.get(name)) for name, query in known]}

    return await context.respond_read(work)


@stored_router.post(
    "/queries/{name}",
    responses=describe_responses(QueryAnswer | WriteAnswer, NDJSON, ARROW, writes=True),
    name="invoke_query",
)
async def invoke_query(
    context: Context,
    name: Annotated[str, Path(max_length=300)],
    body: StoredRequest,
    if_commit: IfCommitHeader = None,
    txn_id: TxnIdHeader = None,
) -> Response:
    """Run one. A read answers as `query` does and a write as `mutate`; a write needs a token that may write."""
    context.require(Action.INVOKE_QUERY, body.branch)
    stored = context.service.stored
    query = stored.find(context.graph_id, name)
    if query.writes:
        context.require(Action.CHANGE, body.branch)
        if body.at is not None:
            raise BadRequest(f"{name} writes, and history can't be written: leave out at.")

        def change(graph: Graph) -> PublishedCommit | None:
            stored.require(context.graph_id, query, graph.repository.snapshot(body.branch))
            return graph.mutate(
                query.text, name, body.params, body.branch, context.principal.actor, if_commit, txn_id=txn_id
            )

        return await respond_to_mutation(context, change)

    def read(graph: Graph) -> QueryResult:
        stored.require(context.graph_id, query, graph.repository.snapshot(body.branch, body.at))
        return graph.query(query.text, name, body.params, body.branch, body.at, engine="local")

    return await respond_to_query(context, read)
