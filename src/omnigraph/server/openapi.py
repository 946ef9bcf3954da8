"""The OpenAPI document, with what FastAPI does not know by itself: tokens, and the headers that every route takes."""

from functools import reduce
from operator import or_
from types import UnionType
from typing import Any, ForwardRef, Union, get_args, get_origin

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, ConfigDict, Field, create_model

from omnigraph.api.wire_model import WireModel

UNAUTHENTICATED = ("/healthz", "/readyz")
_GRAPH_PREFIX = "/graphs/{graph}"
_GRAPH = {
    "name": "graph",
    "in": "path",
    "required": True,
    "description": "The id of a graph, from GET /graphs.",
    "schema": {"type": "string", "maxLength": 200},
}
_TIMEOUT = {
    "name": "Request-Timeout",
    "in": "header",
    "required": False,
    "description": "Seconds until the work is stopped; a write is stopped only before its commit is sent.",
    "schema": {"type": "string", "pattern": r"^[0-9]{1,6}(\.[0-9]{1,3})?$"},
}
_PREFER = {
    "name": "Prefer",
    "in": "header",
    "required": False,
    "description": "`respond-async` starts a job, `wait=SECONDS` waits for its end.",
    "schema": {"type": "string", "examples": ["respond-async", "wait=10"]},
}
_REQUEST_ID = {
    "description": "The id of the request in the log.",
    "required": True,
    "schema": {"type": "string"},
}


_schemas: dict[str, type[BaseModel]] = {}  # by name, which is unique in a document


def schema_model(model: type[WireModel]) -> type[BaseModel]:
    """A wire model in the form from which FastAPI makes a schema. Responses are sent as they are, not through it."""
    known = _schemas.get(model.openapi_name)
    if known is not None:
        return known
    members: dict[str, Any] = {}
    for field in model.fields():
        default = _default(field.annotation) if field.source.omit_empty else {}
        described = Field(alias=field.key, description=field.source.description, **default)
        members[field.name] = (schemas_in(field.annotation, model), described)
    config = ConfigDict(extra="allow")
    made = _schemas[model.openapi_name] = create_model(
        model.openapi_name, __config__=config, __doc__=model.__doc__, **members
    )
    return made


def _default(annotation: Any) -> dict[str, Any]:
    """What it means that a member is left out."""
    if get_origin(annotation) is list:
        return {"default_factory": list}
    return {"default": 0 if annotation is int else None}


def schemas_in(annotation: Any, around: type[WireModel] | None = None) -> Any:
    """An annotation with schema models in the place of wire models."""
    if annotation is around and around is not None:
        return ForwardRef(around.openapi_name)
    if isinstance(annotation, type) and issubclass(annotation, WireModel):
        return schema_model(annotation)
    inner = tuple(schemas_in(one, around) for one in get_args(annotation))
    if inner == get_args(annotation):
        return annotation
    origin = get_origin(annotation)
    return reduce(or_, inner) if origin in (Union, UnionType) else origin[inner]


def openapi_document(app: FastAPI, *, secured: bool) -> dict[str, Any]:
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
    if path not in UNAUTHENTICATED:
        answers.pop("422" if "409" not in answers else "", None)  # FastAPI's own, which is a 400 here
        if secured:
            operation["security"] = [{"token": []}]
    if path.startswith(_GRAPH_PREFIX):
        takes_job = "202" in answers or path.endswith("/jobs/{job}")
        own = operation.get("parameters", [])
        operation["parameters"] = [_GRAPH, *own, _TIMEOUT, *([_PREFER] if takes_job else [])]
    for answer in answers.values():
        answer.setdefault("headers", {})["X-Request-Id"] = _REQUEST_ID
