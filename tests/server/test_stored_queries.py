"""Stored queries: listed with typed parameters, run by name, checked against every schema they meet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from omnigraph.errors import BadRequest, OmnigraphError
from omnigraph.graph.graph import Graph
from omnigraph.server.service import StoredQueries
from omnigraph.server.settings import ServerSettings
from support.server import ADD, SCHEMA, ServerProcess, served

OLDER_THAN = """\
query older_than($min: I32, $limit: I64?) @description("People above an age.") {
    match { $p: Person  $p.age > $min }
    return { $p.slug as slug, $p.age as age }
    order { slug }
}
"""


@pytest.fixture
def queries(tmp_path: Path) -> Path:
    folder = tmp_path / "queries"
    (folder / "people").mkdir(parents=True)
    (folder / "shared.gq").write_text(OLDER_THAN.replace(", $limit: I64?", ""))
    (folder / "people" / "own.gq").write_text(ADD)
    return folder


@pytest.fixture
def http(graph: Graph, store: Path, queries: Path) -> Iterator[httpx.Client]:
    settings = ServerSettings(queries=queries, grace_s=1.0)
    with served({"people": store, "twin": store}, settings) as server, server.client() as client:
        yield client


def test_they_are_listed_with_kind_description_and_typed_parameters(http: httpx.Client) -> None:
    listed = http.get("/graphs/people/queries").json()["queries"]

    assert listed == [
        {
            "name": "add",
            "kind": "write",
            "description": None,
            "params": [
                {"name": "slug", "type": "String", "optional": False},
                {"name": "age", "type": "I32", "optional": True},
            ],
            "error": None,
        },
        {
            "name": "older_than",
            "kind": "read",
            "description": "People above an age.",
            "params": [{"name": "min", "type": "I32", "optional": False}],
            "error": None,
        },
    ]
    assert [query["name"] for query in http.get("/graphs/twin/queries").json()["queries"]] == ["older_than"]


def test_a_read_answers_as_query_and_a_write_as_mutate(http: httpx.Client, graph: Graph) -> None:
    rows = http.post("/graphs/people/queries/older_than", json={"params": {"min": 30}}).json()
    made = http.post("/graphs/people/queries/add", json={"params": {"slug": "cy", "age": 50}}).json()
    again = http.post(
        "/graphs/people/queries/older_than", json={"params": {"min": 30}}, headers={"Accept": "application/x-ndjson"}
    )

    assert rows["rows"] == [{"slug": "ada", "age": 36}]
    assert made["commit"]["id"] == graph.snapshot().commit_id
    assert len(again.text.splitlines()) == 2


def test_parameters_are_checked_by_their_types(http: httpx.Client) -> None:
    for params in ({}, {"min": "x"}, {"min": 1, "more": 2}, {"min": 2**40}):
        answer = http.post("/graphs/people/queries/older_than", json={"params": params})
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")


def test_a_write_at_an_older_state_is_refused(http: httpx.Client, graph: Graph) -> None:
    body = {"params": {"slug": "cy"}, "at": graph.snapshot().commit_id}

    assert http.post("/graphs/people/queries/add", json=body).status_code == 400


def test_after_a_schema_change_those_that_no_longer_fit_are_listed_with_the_reason(http: httpx.Client) -> None:
    renamed = SCHEMA.replace("age: I32?", 'years: I32? @rename_from("age")').replace("range(age", "range(years")
    assert http.post("/graphs/people/schema/apply", json={"schema": renamed}).status_code == 200

    listed = {query["name"]: query["error"] for query in http.get("/graphs/people/queries").json()["queries"]}
    refused = http.post("/graphs/people/queries/older_than", json={"params": {"min": 3}})

    assert "age" in listed["older_than"]
    assert "age" in listed["add"]
    assert (refused.status_code, refused.json()["error"]) == (400, listed["older_than"])
    assert (
        http.post(
            "/graphs/people/schema/apply",
            json={"schema": SCHEMA.replace("age: I32?", 'age: I32? @rename_from("years")')},
        ).status_code
        == 200
    )
    assert http.post("/graphs/people/queries/older_than", json={"params": {"min": 3}}).status_code == 200


def test_a_schema_that_another_process_changed_is_noticed(http: httpx.Client, graph: Graph) -> None:
    assert http.post("/graphs/people/queries/older_than", json={"params": {"min": 30}}).status_code == 200
    renamed = SCHEMA.replace("age: I32?", 'years: I32? @rename_from("age")').replace("range(age", "range(years")
    graph.branches.create("old")
    graph.schema.apply(renamed)

    refused = http.post("/graphs/people/queries/older_than", json={"params": {"min": 30}})
    listed = {query["name"]: query["error"] for query in http.get("/graphs/people/queries").json()["queries"]}
    there = {one["name"]: one["error"] for one in http.get("/graphs/people/queries?branch=old").json()["queries"]}
    older = http.post("/graphs/people/queries/older_than", json={"params": {"min": 30}, "branch": "old"})

    assert (refused.status_code, "age" in refused.json()["error"]) == (400, True)
    assert "age" in listed["older_than"]
    assert there == {"add": None, "older_than": None}
    assert older.json()["rows"] == [{"slug": "ada", "age": 36}]


def test_a_name_that_is_there_twice_or_a_text_that_does_not_parse_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "a.gq").write_text(ADD)
    (tmp_path / "b.gq").write_text(ADD)
    with pytest.raises(BadRequest, match=r"a\.gq and in b\.gq"):
        StoredQueries(tmp_path)
    (tmp_path / "b.gq").write_text("query {")
    with pytest.raises(OmnigraphError, match=r"b\.gq:1"):
        StoredQueries(tmp_path)
    with pytest.raises(BadRequest, match="no directory"):
        StoredQueries(tmp_path / "none")


def test_a_server_does_not_start_with_a_query_that_fits_no_schema(graph: Graph, store: Path, tmp_path: Path) -> None:
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / "a.gq").write_text("query q() { match { $x: Nobody } return { $x.id } }")
    with ServerProcess("--store", str(store), "--queries", str(tmp_path / "q")) as server:
        assert server.wait() == 1
        assert "a.gq" in str(server.log)
        assert "no type Nobody" in str(server.log)
