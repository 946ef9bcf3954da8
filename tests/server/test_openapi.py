"""The OpenAPI document is good enough to generate a client from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import validate

from omnigraph.errors import HTTP_STATUS
from omnigraph.server.run import create_app
from omnigraph.server.settings import ServerSettings
from support.server import token

DOCUMENT = create_app({}).openapi()
OPERATIONS = [(method, path) for path, operations in DOCUMENT["paths"].items() for method in operations]
FREE = {  # what may be anything because only a query, a schema or an algorithm says what it is
    "QueryRequest.params",
    "MutateRequest.params",
    "StoredRequest.params",
    "QueryAnswer.rows",
    "AnalyzeAnswer.rows",
    "Change.before",
    "Change.after",
    "FeedChange.before",
    "FeedChange.after",
    "SchemaStep.before",
    "SchemaStep.after",
    "ErrorBody.details",
    "UnauthorizedBody.details",
    "ForbiddenBody.details",
    "NotFoundBody.details",
    "InternalBody.details",
}


def operation_of(method: str, path: str) -> dict[str, Any]:
    found: dict[str, Any] = DOCUMENT["paths"][path][method]
    return found


def test_it_is_valid() -> None:
    validate(DOCUMENT)


def test_every_operation_has_an_id_of_its_own_a_tag_and_a_text() -> None:
    operations = [operation_of(*one) for one in OPERATIONS]

    assert len({operation["operationId"] for operation in operations}) == len(operations)
    for operation in operations:
        assert re.fullmatch(r"[a-z][a-z_]*", operation["operationId"])
        assert operation["tags"]
        assert operation["description"]


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_every_part_of_an_address_is_a_parameter(method: str, path: str) -> None:
    parameters = operation_of(method, path).get("parameters", [])

    named = {one["name"] for one in parameters if one["in"] == "path"}
    assert named == set(re.findall(r"\{([a-z]+)\}", path))
    assert len({(one["in"], one["name"]) for one in parameters}) == len(parameters)


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_every_answer_has_a_schema_and_every_error_the_code_of_its_status(method: str, path: str) -> None:
    for status, answer in operation_of(method, path)["responses"].items():
        assert answer["content"], status
        assert all(one.get("schema") for one in answer["content"].values()), status
        if int(status) >= 400:
            schema = answer["content"]["application/json"]["schema"]
            for one in schema.get("anyOf", [schema]):
                body = DOCUMENT["components"]["schemas"][one["$ref"].rsplit("/", 1)[-1]]
                code = body["properties"]["code"]["const"]
                assert int(status) in (HTTP_STATUS[code], 405)
                assert {"error", "code", "details"} <= set(body["required"])


def test_every_status_of_an_error_is_described_somewhere() -> None:
    told = {int(status) for one in OPERATIONS for status in operation_of(*one)["responses"]}

    assert set(HTTP_STATUS.values()) <= told


def bare(schema: Any) -> Iterator[str]:
    """The fields that are objects of no known form."""
    for name, model in schema["components"]["schemas"].items():
        for field, kind in model.get("properties", {}).items():
            choices = [kind, *kind.get("anyOf", ()), kind.get("items", {})]
            open_ended = [one for one in choices if one.get("additionalProperties") is True]
            if open_ended or not {"type", "$ref", "anyOf", "const", "enum"} & set(kind):
                yield f"{name}.{field}"


def test_what_has_a_known_form_is_documented_with_it() -> None:
    assert set(bare(DOCUMENT)) - FREE == set()


def test_with_tokens_it_says_where_they_are_needed(tmp_path: Path) -> None:
    token(tmp_path / "tokens.json", "ada", "read")
    secured = create_app({}, ServerSettings(tokens=tmp_path / "tokens.json")).openapi()

    validate(secured)
    assert secured["components"]["securitySchemes"] == {"token": {"type": "http", "scheme": "bearer"}}
    for path, operations in secured["paths"].items():
        for operation in operations.values():
            assert operation.get("security") == (None if path in ("/healthz", "/readyz") else [{"token": []}])
