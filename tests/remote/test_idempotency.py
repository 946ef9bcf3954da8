"""`Idempotency-Key` on every route that changes something: the same key, to whichever server, does it once.

The cases are held against the OpenAPI document: a route that takes the key, or that changes something without it, is
named here or fails the last test.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

import omnigraph
from omnigraph.graph.graph import Graph
from omnigraph.server.settings import ServerSettings
from support.server import ADD, QUICK, SCHEMA, SET_AGE, people_graph, served, token

KEY = "Idempotency-Key"
AFTER = "Omnigraph-Key-After"
RANKED = SCHEMA.replace("age: I32?", "age: I32?  rank: F64?")
GRAPHS = 80
METHODS = {"get", "put", "post", "delete", "options", "head", "patch", "trace"}
PERSON = '{"type": "Person", "data": {"slug": "eve"}}\n'


@dataclass(frozen=True)
class Case:
    """A request, and what of its answer must be the same when it comes again."""

    method: str
    path: str
    body: Any
    same: Callable[[Any], Any] = lambda document: document["commit"]
    query: str = ""


CASES = {
    "mutate": Case("POST", "/mutate", {"query": ADD, "params": {"slug": "eve"}}),
    "invoke_query": Case("POST", "/queries/{name}", {"params": {"slug": "eve"}}),
    "load": Case("POST", "/load", PERSON),
    "load as a job": Case("POST", "/load", PERSON, query="?engine=local"),
    "merge_branch": Case("POST", "/branches/merge", {"source": "agent"}),
    "apply_schema": Case(
        "POST", "/schema/apply", {"schema": SCHEMA.replace("name: String?", "name: String?  a: I32?")}
    ),
    "revert": Case("POST", "/revert", {"commit": "last"}),
    "analyze": Case("POST", "/analyze", {"algorithm": "pagerank", "write": "Person.rank"}),
    "create_branch": Case("POST", "/branches", {"name": "new"}, lambda document: document["branch"]),
    "delete_branch": Case("DELETE", "/branches/{branch}", None, lambda document: document["branch"]),
    "create_tag": Case("POST", "/tag", {"name": "v2"}, lambda document: document["tag"]),
}
NAMES = {"{name}": "add", "{branch}": "agent"}
READS = {"query", "export", "lint", "plan_schema"}  # they change nothing
WITHOUT = {  # what a second time does no harm, or tells that it is done
    "optimize",  # finds nothing left to do
    "cleanup",
    "verify",  # changes nothing
    "recover",  # ends dead jobs, under their own transaction ids
    "embed",  # takes the rows that have no vector yet
    "delete_tag",  # nothing is left that could remember a key: 404 says that it is gone
    "cancel_job",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("idempotency")
    seed = people_graph(made / "seed")
    seed.schema.apply(RANKED)
    seed.branches.create("agent")
    seed.mutate(ADD, params={"slug": "zoe"}, branch="agent")
    seed.mutate(SET_AGE, params={"slug": "ada", "age": 37})
    seed.tags.create("last")
    (made / "queries").mkdir()
    (made / "queries" / "add.gq").write_text(ADD)
    return made


@pytest.fixture(scope="module")
def urls(folder: Path) -> Iterator[list[str]]:
    """Two servers before the same graphs, which they open when they are asked for them."""
    settings = ServerSettings(grace_s=5.0, reopen_s=0.0, queries=folder / "queries")
    graphs = {f"g{number}": folder / f"g{number}" for number in range(GRAPHS)} | {"seed": folder / "seed"}
    with served(graphs, settings) as one, served(graphs, settings) as other:
        for server in (one, other):  # FastAPI makes routes ready when they are looked through, not for two at once
            assert httpx.get(f"{server.url}/graphs/seed/nowhere", trust_env=False).status_code == 404
        yield [one.url, other.url]


@pytest.fixture
def graph(folder: Path) -> Graph:
    """A copy of the seed for each test."""
    number = sum(1 for _ in folder.glob("g*"))
    return omnigraph.open(shutil.copytree(folder / "seed", folder / f"g{number}"), QUICK)


@pytest.fixture
def servers(graph: Graph, urls: list[str]) -> Iterator[list[httpx.Client]]:
    name = Path(graph.uri).name
    clients = [httpx.Client(base_url=f"{url}/graphs/{name}", timeout=60, trust_env=False) for url in urls]
    yield clients
    for client in clients:
        client.close()


def sent(client: httpx.Client, case: Case, headers: dict[str, str]) -> httpx.Response:
    path = case.path
    for placeholder, name in NAMES.items():
        path = path.replace(placeholder, name)
    own = {"Prefer": "respond-async, wait=30" if case.query else "wait=30"} | headers
    body: dict[str, Any] = {"content": case.body} if isinstance(case.body, str) else {"json": case.body}
    return client.request(case.method, path + case.query, headers=own, **({} if case.body is None else body))


@pytest.mark.parametrize("name", CASES)
def test_the_same_key_does_it_once_on_whichever_server(name: str, graph: Graph, servers: list[httpx.Client]) -> None:
    case = CASES[name]
    seen = graph.snapshot().commit_id
    first = sent(servers[0], case, {KEY: "order-17", AFTER: seen})
    assert first.status_code == 200, first.text
    state = graph.branches.list(), graph.snapshot().commit_id
    for client in servers:
        for headers in ({KEY: "order-17"}, {KEY: "order-17", AFTER: seen}):
            again = sent(client, case, headers)
            assert again.status_code == 200, again.text
            assert case.same(again.json()) == case.same(first.json())
    assert (graph.branches.list(), graph.snapshot().commit_id) == state


@pytest.mark.parametrize("name", CASES)
def test_what_came_in_between_changes_nothing(name: str, graph: Graph, servers: list[httpx.Client]) -> None:
    case = CASES[name]
    seen = graph.snapshot().commit_id
    first = sent(servers[0], case, {KEY: "order-17", AFTER: seen})
    assert first.status_code == 200, first.text
    for number in range(3):
        graph.mutate(ADD, params={"slug": f"p{number}"})
    servers[1].get("/snapshot")  # it has seen the head before the same write comes to it
    newest = graph.snapshot().commit_id
    again = sent(servers[1], case, {KEY: "order-17", AFTER: seen})
    assert again.status_code == 200, again.text
    assert case.same(again.json()) == case.same(first.json())
    assert graph.snapshot().commit_id == newest


@pytest.mark.parametrize("name", CASES)
def test_one_key_from_several_at_once_does_it_once(name: str, graph: Graph, servers: list[httpx.Client]) -> None:
    case = CASES[name]
    before = len(graph.commits())
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda number: sent(servers[number % 2], case, {KEY: "order-17"}), range(6)))
    assert [answer.text for answer in answers if answer.status_code != 200] == []
    first = case.same(answers[0].json())
    assert all(case.same(answer.json()) == first for answer in answers)
    assert len(graph.commits()) - before == (1 if "commit" in answers[0].json() else 0)


OTHER_BODIES: dict[str, Any] = {
    "mutate": {"query": ADD, "params": {"slug": "kim"}},
    "invoke_query": {"params": {"slug": "kim"}},
    "load": PERSON.replace("eve", "kim"),
    "load as a job": PERSON.replace("eve", "kim"),
    "merge_branch": {"source": "agent", "delete_branch": True},
    "apply_schema": {"schema": SCHEMA.replace("name: String?", "name: String?  b: I32?")},
    "analyze": {"algorithm": "pagerank", "write": "Person.rank", "damping": 0.5},
    "create_branch": {"name": "new", "from": "agent"},
    "create_tag": {"name": "v2", "branch": "agent"},
}


@pytest.mark.parametrize("name", OTHER_BODIES)
def test_the_same_key_with_another_body_is_refused_by_every_server(
    name: str, graph: Graph, servers: list[httpx.Client]
) -> None:
    case = CASES[name]
    assert sent(servers[0], case, {KEY: "order-17"}).status_code == 200
    state = graph.branches.list(), graph.snapshot().commit_id
    for client in servers:
        refused = sent(client, replace(case, body=OTHER_BODIES[name]), {KEY: "order-17"})
        body = refused.json()
        assert (refused.status_code, body["code"], body["details"]["txn_id"]) == (422, "key_reused", "order-17")
    assert (graph.branches.list(), graph.snapshot().commit_id) == state


@pytest.mark.parametrize("name", CASES)
def test_the_key_of_another_tokens_actor_is_refused(name: str, graph: Graph, folder: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    known = [token(tokens, actor, "admin") for actor in ("ann", "bob")]
    settings = ServerSettings(tokens=tokens, grace_s=5.0, queries=folder / "queries")
    with (
        served({"people": graph.uri}, settings) as server,
        server.client(known[0]) as ann,
        server.client(known[1]) as bob,
    ):
        for client in (ann, bob):
            client.base_url = httpx.URL(f"{server.url}/graphs/people")
        first = sent(ann, CASES[name], {KEY: "order-17"})
        assert first.status_code == 200, first.text

        refused = sent(bob, CASES[name], {KEY: "order-17"})
        again = sent(ann, CASES[name], {KEY: "order-17"})

    assert (refused.status_code, refused.json()["code"]) == (422, "key_reused")
    assert CASES[name].same(again.json()) == CASES[name].same(first.json())


@pytest.mark.parametrize("name", ["mutate", "load", "revert", "apply_schema"])
def test_another_key_is_another_write(name: str, servers: list[httpx.Client]) -> None:
    case = CASES[name]
    first = sent(servers[0], case, {KEY: "one"})
    second = sent(servers[1], case, {KEY: "two"})
    assert first.status_code == 200, first.text
    assert second.status_code != 200 or second.json()["commit"] != first.json()["commit"]


def test_an_empty_key_is_none(servers: list[httpx.Client]) -> None:
    refused = sent(servers[0], CASES["mutate"], {KEY: ""})
    assert (refused.status_code, refused.json()["code"]) == (400, "bad_request")


def test_every_route_that_changes_something_is_known_here(servers: list[httpx.Client]) -> None:
    url = servers[0].base_url
    document = httpx.get(f"{url.scheme}://{url.host}:{url.port}/openapi.json", trust_env=False).json()
    keyed: dict[str, tuple[str, str]] = {}
    others: dict[str, tuple[str, str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if method not in METHODS - {"get"} or not path.startswith("/graphs/{graph}/"):
                continue
            headers = {entry["name"] for entry in operation.get("parameters", ()) if entry["in"] == "header"}
            found = keyed if KEY in headers else others
            found[operation["operationId"]] = (method.upper(), path.removeprefix("/graphs/{graph}"))
    assert set(keyed.values()) == {(case.method, case.path) for case in CASES.values()}
    assert set(others) == READS | WITHOUT
