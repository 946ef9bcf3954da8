"""What the routes share: descriptions of responses, and headers."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header

from omnigraph.api.job_models import JobAnswer
from omnigraph.manifest.model.manifest import FreshTxnId
from omnigraph.server.http.request_body import GraphRoute
from omnigraph.server.models.error_models import BODIES
from omnigraph.server.openapi import schema_model, schemas_in

_ERRORS = {
    400: "The request can't be used as it is.",
    401: "A token is missing or unknown.",
    403: "The token does not allow this.",
    404: "What was named does not exist.",
    405: "This method is not served here.",
    413: "The body or the answer is beyond a limit.",
    429: "More than may run at once; see Retry-After.",
    500: "A bug of the server's.",
    503: "The store or the graph can't be reached, or the deadline has passed.",
}
_WRITE_ERRORS = {
    409: "Somebody else was first, or the two sides can't be merged.",
    412: "If-Graph-Commit does not name the newest commit.",
    422: "A constraint would be violated, or the Idempotency-Key is that of another actor or request.",
    504: "The answer of the store was lost: ask again with the same Idempotency-Key.",
}
NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"

IfCommitHeader = Annotated[
    str | None,
    Header(alias="If-Graph-Commit", max_length=200, description="Only if this is the branch's newest commit."),
]
_Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="The same request with the same key returns the first commit.",
    ),
]
_KeyAfter = Annotated[
    str | None,
    Header(
        alias="Omnigraph-Key-After",
        max_length=200,
        description="A commit of the branch that is older than the key: the key is not searched for before it.",
    ),
]


async def _txn_id(key: _Key = None, seen: _KeyAfter = None) -> str | None:
    return key if key is None or seen is None else FreshTxnId(key, seen)


TxnIdHeader = Annotated[str | None, Depends(_txn_id)]


def graph_router(tag: str) -> APIRouter:
    return APIRouter(prefix="/graphs/{graph}", route_class=GraphRoute, tags=[tag])


def describe_responses(
    model: Any, *streams: str, writes: bool = False, job: bool = False, status: int = 200
) -> dict[Any, Any]:
    """The answers of a route for OpenAPI; `streams` are media types that it can answer in beside JSON."""
    errors = _ERRORS | (_WRITE_ERRORS if writes else {})
    found: dict[Any, Any] = {
        code: {"model": schemas_in(BODIES[code]), "description": text} for code, text in errors.items()
    }
    found[429]["headers"] = {"Retry-After": _header("integer", "Seconds after which to try again.", required=True)}
    content = {media: {"schema": {"type": "string", "format": "binary"}} for media in streams}
    found[status] = {"model": schemas_in(model), "description": "Done."} | ({"content": content} if content else {})
    if job:
        where = {"Location": _header("string", "The job.", required=True)}
        found[202] = {
            "model": schema_model(JobAnswer),
            "description": "Goes on as a job; Location says where to ask.",
            "headers": where,
        }
    found[status]["headers"] = {"Omnigraph-Cost": _header("string", "What it asked of the store.")}
    return found


def _header(kind: str, text: str, *, required: bool = False) -> dict[str, Any]:
    return {"description": text, "required": required, "schema": {"type": kind}}
