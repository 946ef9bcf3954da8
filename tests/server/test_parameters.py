"""A request takes the parameters and headers that its route declares: what is misspelt or given twice is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from omnigraph.server.run import create_app
from support.server import Served, people_graph, served

DOCUMENT = create_app({}).openapi()
OPERATIONS = [(method, path) for path, operations in DOCUMENT["paths"].items() for method in operations]
PLACES = {"graph": "people", "name": "x", "branch": "b", "tag": "t", "commit": "main", "job": "x", "file": "export"}
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("parameters")
    people_graph(folder / "graph")
    with served({"people": folder / "graph"}) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def declared(method: str, path: str, place: str) -> dict[str, Any]:
    parameters = DOCUMENT["paths"][path][method].get("parameters", [])
    return {one["name"]: one["schema"] for one in parameters if one["in"] == place}


def refused(answer: httpx.Response) -> str:
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request"), answer.text
    return str(answer.json()["error"])


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_an_unknown_query_parameter_is_refused_with_those_that_are_known(
    client: httpx.Client, method: str, path: str
) -> None:
    answer = client.request(method, path.format(**PLACES), params={"unheard-of": "x"})

    message = refused(answer)
    assert message.startswith("query.unheard-of: unknown parameter")
    assert all(name in message for name in declared(method, path, "query"))
    assert answer.json()["details"]["errors"][0]["place"] == "query.unheard-of"
    assert DOCUMENT["paths"][path][method]["responses"]["400"]


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_a_query_parameter_with_one_value_is_refused_twice(client: httpx.Client, method: str, path: str) -> None:
    for name, schema in declared(method, path, "query").items():
        answer = client.request(method, path.format(**PLACES), params=[(name, "1"), (name, "2")])

        ambiguous = f"query.{name}: given 2 times" in answer.text or f'"query.{name}","error":"given 2' in answer.text
        assert ambiguous is ("array" not in str(schema)), (name, answer.text)


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_a_header_with_one_value_is_refused_twice(client: httpx.Client, method: str, path: str) -> None:
    for name in {*declared(method, path, "header"), "Content-Type"} - {"Prefer"}:
        answer = client.request(method, path.format(**PLACES), headers=[(name, "1"), (name, "1")])

        assert refused(answer).startswith(f"header.{name}: given more than once")


def test_a_misspelt_branch_does_not_read_main(client: httpx.Client) -> None:
    message = refused(client.get("/graphs/people/snapshot?brnch=agent/1"))

    assert "did you mean branch? There are at, branch" in message


def test_the_description_of_the_server_takes_no_parameters_either(client: httpx.Client) -> None:
    assert client.get("/openapi.json").json()["openapi"].startswith("3.")
    assert "unknown parameter" in refused(client.get("/openapi.json?x=1"))


def test_as_many_unknown_parameters_as_an_address_holds_make_a_short_answer(client: httpx.Client) -> None:
    answer = client.get("/graphs/people/snapshot?" + "&".join(f"x{number}={number}" for number in range(500)))

    assert len(answer.content) < 5000
    assert answer.json()["details"]["total"] == 500


WITH_BODY = [
    (method, path) for method, path in OPERATIONS
    if "application/json" in DOCUMENT["paths"][path][method].get("requestBody", {}).get("content", {})
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), WITH_BODY)
def test_the_error_for_a_body_without_a_content_type_names_the_missing_header(
    client: httpx.Client, method: str, path: str
) -> None:
    path = path.format(**PLACES)
    without = refused(client.request(method, path, content=b"{}"))
    wrong = refused(client.request(method, path, content=b"{}", headers={"Content-Type": "text/plain; charset=utf-8"}))
    nothing = refused(client.request(method, path))

    assert without == "The header Content-Type is missing: send a JSON object with the header " + (
        "Content-Type: application/json."
    )
    assert "'text/plain'" in wrong
    assert "Content-Type: application/json" in wrong
    assert nothing.startswith("The request has no body")
    assert "Content-Type: application/json" in nothing


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8", "application/problem+json"])
def test_json_is_known_by_its_type_however_it_is_written(client: httpx.Client, kind: str) -> None:
    body = b'{"query": "query q() { match { $p: Person } return { count($p) as n } }"}'

    assert client.post("/graphs/people/query", content=body, headers={"Content-Type": kind}).status_code == 200


def test_a_load_says_by_its_type_only_what_is_not_lines(client: httpx.Client) -> None:
    line = b'{"type": "Person", "data": {"slug": "typeless"}}\n'

    assert client.post("/graphs/people/load", content=line).status_code == 200


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "TRACE"])
@pytest.mark.parametrize("path", sorted(DOCUMENT["paths"]))
def test_other_methods_are_refused_with_those_that_there_are(client: httpx.Client, method: str, path: str) -> None:
    answer = client.request(method, path.format(**PLACES))

    assert answer.status_code == 405
    assert set(answer.headers["Allow"].split(", ")) <= {"GET", "POST", "DELETE"}
    assert not [name for name in answer.headers if name.lower().startswith("access-control")]
    assert method != "HEAD" or not answer.content
