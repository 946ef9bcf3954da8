"""The OpenAPI document is true: whatever is sent by it, right or wrong, there is no 5xx and no undescribed answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from omnigraph.server.run import create_app
from omnigraph.server.settings import Limits, ServerSettings
from support.server import ADD, PEOPLE, SCHEMA, Served, people_graph, served

EXAMPLES = 6  # of every operation, right ones and wrong ones each
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
PLAUSIBLE = {"name": "people", "branch": "b", "commit": "main", "tag": "t", "job": "x", "file": "export"}
SENSIBLE: dict[str, Any] = {
    "/query": {"query": PEOPLE, "explain": True},
    "/mutate": {"query": ADD, "params": {"slug": "new"}},
    "/queries/{name}": {},
    "/branches": {"name": "another"},
    "/branches/merge": {"source": "merged"},
    "/tag": {"name": "t"},
    "/lint": {"query": "query q() { match { $p: Person } return { $p.nothing } }"},
    "/schema/plan": {"schema": SCHEMA.replace("age: I32?", "age: I32")},
}
DESCRIBED = create_app({}).openapi()
OPERATIONS = [(method, path) for path, operations in DESCRIBED["paths"].items() for method in operations]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("described")
    graph = people_graph(folder / "graph")
    for name in ("b", "merged"):
        graph.branches.create(name)
    (folder / "queries").mkdir()
    (folder / "queries" / "all.gq").write_text(f"{ADD}\n{PEOPLE}\n")
    limits = Limits(jobs_waiting=10_000, jobs_per_actor=10_000)
    options = ServerSettings(queries=folder / "queries", limits=limits, grace_s=5.0, spark=False)
    with served({"people": folder / "graph"}, options) as running:
        yield running


@pytest.mark.parametrize("path", SENSIBLE)
def test_what_succeeds_answers_as_described(server: Served, path: str) -> None:
    operation = schemathesis.openapi.from_dict(DESCRIBED)[f"/graphs/{{graph}}{path}"]["post"]
    parameters = {"graph": "people"} | ({"name": "people"} if "{name}" in path else {})
    case = operation.Case(path_parameters=parameters, body=SENSIBLE[path], media_type="application/json")

    answer = case.call_and_validate(base_url=server.url, checks=CHECKS, timeout=60)

    assert answer.status_code == 200


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_every_operation_answers_as_described(server: Served, method: str, path: str, mode: GenerationMode) -> None:
    operation = schemathesis.openapi.from_dict(DESCRIBED)[path][method]
    if mode is GenerationMode.NEGATIVE and not (operation.body or operation.query or operation.headers):
        mode = GenerationMode.POSITIVE  # nothing in it can be wrong

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        parameters = case.path_parameters or {}
        for name in parameters:
            if name == "graph" or len(str(parameters[name])) % 2:  # what is not there is soon known
                parameters[name] = {"graph": "people", **PLAUSIBLE}[name]
        if path.endswith("/embed") and isinstance(case.body, dict) and "dry_run" in case.body:
            case.body["dry_run"] = True
        case.call_and_validate(base_url=server.url, checks=CHECKS, timeout=60)

    ask()
