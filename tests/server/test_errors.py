"""Every error over HTTP: status, code, and the fields of its details."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from omnigraph.errors import (
    HTTP_STATUS,
    AccessDenied,
    ExpectedVersionMismatch,
    OmnigraphError,
    OutcomeUnknown,
    StorageFull,
    Unavailable,
)
from omnigraph.graph.graph import Graph
from omnigraph.server.http.errors import Redaction, error_response
from omnigraph.server.settings import GraphSource, Limits, ServerSettings
from support.server import ADD, PEOPLE, QUICK, SCHEMA, SET_AGE, Served, ndjson, served

SHAPE = {"error", "code", "details"}


def refused(answer: httpx.Response, code: str) -> dict[str, Any]:
    """The details of an answer that is an error of this code and of the one shape."""
    body = answer.json()
    assert set(body) == SHAPE
    assert (answer.status_code, body["code"]) == (HTTP_STATUS[code], code)
    assert body["error"].endswith((".", "]"))
    assert answer.headers["Content-Type"] == "application/json"
    details: dict[str, Any] = body["details"]
    return details


def add(http: httpx.Client, branch: str, **params: Any) -> httpx.Response:
    return http.post("/mutate", json={"query": ADD, "params": params, "branch": branch})


def test_a_text_that_does_not_parse_says_where(http: httpx.Client) -> None:
    details = refused(http.post("/query", json={"query": "query q() { match }"}), "bad_request")

    assert (details["line"], details["source"]) == (1, "query")


def test_a_request_of_the_wrong_form_names_the_places(http: httpx.Client) -> None:
    details = refused(http.post("/query", json={"query": 3, "brunch": "main"}), "bad_request")

    assert {problem["place"] for problem in details["errors"]} == {"body.query", "body.brunch"}
    assert details["total"] == 2


def test_a_bad_line_of_a_load_names_its_place_and_no_path_of_the_server(http: httpx.Client) -> None:
    answer = http.post("/load", content=ndjson([{"type": "Nobody", "data": {}}]) + "{\n")

    details = refused(answer, "bad_request")
    assert details["total"] == 2
    assert [problem["place"] for problem in details["errors"]] == ["body.jsonl line 1", "body.jsonl line 2"]
    assert "/tmp" not in answer.text
    assert "omnigraph-" not in answer.text


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/snapshot?branch=nowhere"),
        ("GET", "/commits/aaaaaaaaaaaaa.9"),
        ("DELETE", "/branches/nowhere"),
        ("DELETE", "/tag/nothing"),
        ("GET", "/jobs/nothing"),
        ("POST", "/queries/nothing"),
        ("GET", "/nothing"),
    ],
)
def test_what_is_not_there_is_404(http: httpx.Client, method: str, path: str) -> None:
    refused(http.request(method, path, json={} if method == "POST" else None), "not_found")


def test_an_unknown_graph_is_404(server: Served) -> None:
    with server.client() as client:
        refused(client.get("/graphs/nobody/snapshot"), "not_found")


def test_a_wrong_method_is_405_and_says_what_is_allowed(http: httpx.Client) -> None:
    answer = http.put("/snapshot")

    assert answer.status_code == 405
    assert set(answer.json()) == SHAPE
    assert answer.headers["Allow"] == "GET"


def test_a_taken_name_is_a_conflict(http: httpx.Client) -> None:
    http.post("/branches", json={"name": "b"})

    refused(http.post("/branches", json={"name": "b"}), "conflict")


def test_a_lost_race_names_table_expected_and_actual() -> None:
    answer = error_response(ExpectedVersionMismatch("node:Person", "aaaaaaaaaaaaa.2", "aaaaaaaaaaaaa.3"), Redaction())

    assert answer.status_code == 409
    assert json.loads(bytes(answer.body))["details"] == {
        "manifest_conflict": {
            "table_key": "node:Person",
            "expected": "aaaaaaaaaaaaa.2",
            "actual": "aaaaaaaaaaaaa.3",
        }
    }


def test_a_merge_that_is_refused_lists_every_conflict(http: httpx.Client) -> None:
    http.post("/branches", json={"name": "b"})
    for branch, age in (("main", 40), ("b", 41)):
        http.post("/mutate", json={"query": SET_AGE, "params": {"slug": "ada", "age": age}, "branch": branch})
        add(http, branch, slug="cy", age=age)

    conflicts = refused(http.post("/branches/merge", json={"source": "b"}), "conflict")["merge_conflicts"]

    assert all(set(one) == {"entity_kind", "type_name", "entity_id", "kind", "message"} for one in conflicts)
    assert {(one["entity_kind"], one["type_name"], one["entity_id"], one["kind"]) for one in conflicts} == {
        ("node", "Person", "ada", "DivergentUpdate"),
        ("node", "Person", "cy", "DivergentInsert"),
    }


def test_a_precondition_that_fails_tells_both_commits(http: httpx.Client, graph: Graph) -> None:
    head = graph.snapshot().commit_id
    answer = http.post(
        "/mutate", json={"query": ADD, "params": {"slug": "cy"}}, headers={"If-Graph-Commit": "aaaaaaaaaaaaa.1"}
    )

    assert refused(answer, "precondition_failed") == {"expected": "aaaaaaaaaaaaa.1", "actual": head}
    assert graph.snapshot().commit_id == head


def test_a_precondition_that_holds_lets_the_write_through(http: httpx.Client, graph: Graph) -> None:
    head = {"If-Graph-Commit": graph.snapshot().commit_id}
    body = {"query": ADD, "params": {"slug": "cy"}}

    assert http.post("/mutate", json=body, headers=head).status_code == 200
    refused(http.post("/mutate", json=body, headers=head), "precondition_failed")


def test_a_violated_constraint_names_itself_type_property_and_entities(http: httpx.Client) -> None:
    details = refused(add(http, "main", slug="cy", age=900), "constraint_violation")

    assert (details["type_name"], details["property"], details["entity_ids"]) == ("Person", "age", ["cy"])
    assert "0..150" in details["constraint"]
    assert details["total"] == 1
    assert set(details["violations"][0]) >= {"constraint", "type_name", "property", "entity_ids", "count", "message"}


def test_an_edge_without_its_node_is_a_violation(http: httpx.Client) -> None:
    line = ndjson([{"edge": "Knows", "from": "ada", "to": "nobody", "data": {}}])

    details = refused(http.post("/load", content=line), "constraint_violation")

    assert details["entity_ids"] == ["nobody"]
    assert "Knows" in details["constraint"]


def test_an_outcome_that_is_unknown_says_how_to_ask_again() -> None:
    answer = error_response(OutcomeUnknown("T1", "main", 7), Redaction())

    assert answer.status_code == 504
    assert json.loads(bytes(answer.body))["details"] == {"txn_id": "T1", "branch": "main", "number": 7}


@pytest.fixture
def small(graph: Graph, store: Path) -> Iterator[httpx.Client]:
    """A server with limits that are soon reached."""
    limits = Limits(json_bytes=10_000, load_bytes=2_000, result_rows=1, running=1, waiting=0, waiting_s=0.1)
    with served({"people": store}, ServerSettings(limits=limits, grace_s=1.0)) as server, server.client() as client:
        client.base_url = httpx.URL(f"{server.url}/graphs/people")
        yield client


def test_a_body_beyond_the_limit_is_413_with_the_limit(small: httpx.Client) -> None:
    details = refused(small.post("/query", json={"query": "q" * 20_000}), "too_large")
    loaded = refused(small.post("/load", content="x" * 3_000), "too_large")

    assert (details["limit"], details["unit"]) == (10_000, "bytes")
    assert loaded["limit"] == 2_000


def test_a_body_that_does_not_say_its_length_is_counted(small: httpx.Client) -> None:
    refused(small.post("/load", content=(b"x" * 500 for _ in range(10))), "too_large")


def test_a_result_beyond_the_limit_is_413(small: httpx.Client) -> None:
    details = refused(small.post("/query", json={"query": PEOPLE}), "too_large")

    assert (details["limit"], details["unit"]) == (1, "rows")


def test_errors_of_a_store_do_not_show_its_address() -> None:
    redaction = Redaction()
    redaction.hide_store("people", "s3://secret-bucket/graph", {"aws_secret_access_key": "hunter2hunter2"})
    for error in (
        Unavailable("s3://secret-bucket/graph/x", "connection to 10.0.0.9 refused"),
        StorageFull("s3://secret-bucket/graph/x", "quota of hunter2hunter2"),
        AccessDenied("s3://secret-bucket/graph/x", "key hunter2hunter2"),
    ):
        text = bytes(error_response(error, redaction).body).decode()
        assert not any(secret in text for secret in ("secret-bucket", "hunter2", "10.0.0.9"))


def test_a_bug_is_500_with_the_id_under_which_the_log_has_it(
    server: Served, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("password is hunter2")

    monkeypatch.setattr(server.service.hosted, "open", broken)
    answer = http.get("/snapshot", headers={"X-Request-Id": "req-1"})

    details = refused(answer, "internal")
    assert details == {"request_id": "req-1"}
    assert "hunter2" not in answer.text
    assert "Traceback" not in answer.text


def test_a_graph_that_comes_back_is_opened(tmp_path: Path) -> None:
    from omnigraph import init

    settings = ServerSettings(reopen_s=0.0, grace_s=1.0)
    with served({"late": GraphSource(str(tmp_path / "late"), QUICK)}, settings) as server, server.client() as client:
        refused(client.get("/graphs/late/snapshot"), "unavailable")
        init(tmp_path / "late", SCHEMA, QUICK)
        assert client.get("/graphs/late/snapshot").status_code == 200


def test_every_code_of_the_surface_has_its_status() -> None:
    class Some(OmnigraphError):
        pass

    for code, status in HTTP_STATUS.items():
        Some.code = code
        assert error_response(Some("x"), Redaction()).status_code == status
