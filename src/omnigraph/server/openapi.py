"""The OpenAPI document, with what FastAPI does not know by itself: tokens, and the headers that every route takes."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

OPEN = ("/healthz", "/readyz")
_BELOW = "/graphs/{graph}"
_GRAPH = {
    "name": "graph",
    "in": "path",
    "required": True,
    "description": "The id of a graph, as GET /graphs tells it.",
    "schema": {"type": "string", "maxLength": 200},
}
_TIMEOUT = {
    "name": "Request-Timeout",
    "in": "header",
    "required": False,
    "description": "Seconds; what has not ended then is stopped, a write only before its commit is sent.",
    "schema": {"type": "string", "pattern": r"^[0-9]{1,6}(\.[0-9]{1,3})?$"},
}
_PREFER = {
    "name": "Prefer",
    "in": "header",
    "required": False,
    "description": "`respond-async` for a job, `wait=SECONDS` for its end.",
    "schema": {"type": "string", "examples": ["respond-async", "wait=10"]},
}
_REQUEST_ID = {
    "description": "Under which the log has the request.",
    "required": True,
    "schema": {"type": "string"},
}


def document(app: FastAPI, *, secured: bool) -> dict[str, Any]:
    """Made once, when it is first asked for."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        for path, operations in made["paths"].items():
            for operation in operations.values():
                _complete(path, operation, secured=secured)
        for unused in ("HTTPValidationError", "ValidationError"):  # such an error has the one shape here
            made["components"]["schemas"].pop(unused, None)
        if secured:
            made["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        app.openapi_schema = made
    return app.openapi_schema


def _complete(path: str, operation: dict[str, Any], *, secured: bool) -> None:
    answers = operation["responses"]
    if path not in OPEN:
        answers.pop("422" if "409" not in answers else "", None)  # FastAPI's own, which is a 400 here
        if secured:
            operation["security"] = [{"token": []}]
    if path.startswith(_BELOW):
        takes_job = "202" in answers or path.endswith("/jobs/{job}")
        own = operation.get("parameters", [])
        operation["parameters"] = [_GRAPH, *own, _TIMEOUT, *([_PREFER] if takes_job else [])]
    for answer in answers.values():
        answer.setdefault("headers", {})["X-Request-Id"] = _REQUEST_ID
