"""Tokens: who is let in, and what for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from omnigraph.graph.graph import Graph
from omnigraph.server.auth.access import LEAST_ACTIONS
from omnigraph.server.auth.tokens import read_tokens, revoke_token
from omnigraph.server.settings import Limits, ServerSettings
from support.server import ADD, PEOPLE, SCHEMA, Served, ndjson, served, token

ADD_QUERY = f"{ADD}\n{PEOPLE}\n"


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


@pytest.fixture
def queries(tmp_path: Path) -> Path:
    folder = tmp_path / "queries"
    folder.mkdir()
    (folder / "all.gq").write_text(ADD_QUERY)
    return folder


@pytest.fixture
def guarded(graph: Graph, store: Path, tokens: Path, queries: Path) -> Iterator[Served]:
    """A server with tokens; the graph is also there as `other`."""
    token(tokens, "nobody", "read@nothing")
    settings = ServerSettings(tokens=tokens, queries=queries, grace_s=2.0)
    with served({"people": store, "other": store}, settings) as running:
        yield running


def client_for(server: Served, tokens: Path, actor: str, *grants: str) -> httpx.Client:
    client = server.client(token(tokens, actor, *grants))
    client.base_url = httpx.URL(f"{server.url}/graphs/people")
    return client


# Over HTTP


def test_without_tokens_a_page_in_a_browser_can_not_write(graph: Graph, store: Path) -> None:
    """A form may send text anywhere without asking; what it can't hide is where it comes from."""
    before = graph.snapshot().commit_id
    line = ndjson([{"type": "Person", "data": {"slug": "evil"}}])
    with served({"people": store}, ServerSettings(local_only=True, grace_s=1.0)) as server, server.client() as client:
        for headers in (
            {"Origin": "http://[", "Content-Type": "text/plain"},
            {"Host": "["},
            {"Host": "localhost.evil.example"},
            {"Host": "localhost:1", "Sec-Fetch-Site": "cross-site"},
            {"Origin": "https://evil.example", "Content-Type": "text/plain"},
            {"Origin": "null", "Content-Type": "text/plain"},
            {"Host": "rebound.evil.example"},
            {"Host": "127.0.0.1.evil.example:80", "Origin": "http://127.0.0.1.evil.example:80"},
        ):
            answer = client.post("/graphs/people/load", content=line, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
        assert graph.snapshot().commit_id == before
        assert client.post("/graphs/people/load", content=line, headers={"Host": "localhost:1"}).status_code == 200


def test_who_has_no_known_token_is_401_everywhere(guarded: Served) -> None:
    with guarded.client() as client:
        described = client.get("/openapi.json").json()["paths"]
        for header in (None, "Bearer", "Bearer wrong", "Basic YTpi", "Bearer og_" + "A" * 43, "Bearer \xff\xfe"):
            headers = {} if header is None else {b"Authorization": header.encode("latin-1")}
            for path, operations in described.items():
                for method in operations:
                    if path in ("/healthz", "/readyz"):
                        continue
                    answer = client.request(method, filled(path), headers=headers)
                    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized"), (method, path)
                    assert answer.headers["WWW-Authenticate"] == "Bearer"


def filled(path: str) -> str:
    return (
        path.replace("{graph}", "people")
        .replace("{name}", "add")
        .replace("{branch}", "victim")
        .replace("{tag}", "kept")
        .replace("{commit}", "kept")
        .replace("{job}", "x")
        .replace("{file}", "export")
    )


BODIES: dict[str, Any] = {
    "/query": {"query": ADD, "params": {"slug": "evil"}},
    "/mutate": {"query": ADD, "params": {"slug": "evil"}},
    "/queries/{name}": {"params": {"slug": "evil"}},
    "/export": {},
    "/lint": {"query": ADD},
    "/branches": {"name": "evil"},
    "/branches/merge": {"source": "victim"},
    "/tag": {"name": "evil"},
    "/revert": {"commit": "kept"},
    "/schema/plan": {"schema": SCHEMA.replace("name: String?", "")},
    "/schema/apply": {"schema": SCHEMA.replace("name: String?", "")},
    "/optimize": {},
    "/cleanup": {"confirm": True, "older_than": "0s", "keep": 1},
    "/verify": {},
    "/recover": {"all": True},
    "/analyze": {"algorithm": "degrees", "write": "Person.age"},
    "/embed": {},
}
HARMLESS = {"/query", "/export", "/lint", "/schema/plan"}  # posts that a reader may make


def state(graph: Graph) -> Any:
    return graph.snapshot().commit_id, graph.branches.list(), [tag.name for tag in graph.tags.list()]


@pytest.mark.parametrize("grants", [("read",), ("write@other", "read@people"), ("admin@people:agent/*", "read")])
def test_a_token_without_write_can_not_write_by_any_route(
    guarded: Served, graph: Graph, tokens: Path, grants: tuple[str, ...]
) -> None:
    graph.branches.create("victim")
    graph.mutate(ADD, params={"slug": "cy"}, branch="victim")
    graph.tags.create("kept", graph.snapshot("victim").commit_id)
    before = state(graph)
    sneaky = {"Idempotency-Key": "k", "X-Actor": "root", "X-HTTP-Method-Override": "GET", "X-Forwarded-User": "root"}

    with guarded.client(token(tokens, "eve", *grants)) as client:
        described = client.get("/openapi.json").json()["paths"]
        posts = 0
        for path, operations in described.items():
            below = path.removeprefix("/graphs/{graph}")
            for method in operations:
                options: dict[str, Any] = {"json": BODIES.get(below)} if below in BODIES else {}
                if below == "/load":
                    options = {"content": ndjson([{"type": "Person", "data": {"slug": "evil"}}])}
                answer = client.request(method, filled(path), headers=sneaky, **options)
                posts += method != "get"
                assert answer.status_code < 500, (method, path, answer.text)
                if method != "get" and below not in HARMLESS and not below.startswith("/jobs"):
                    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), (method, path)
        for method in ("PUT", "PATCH", "HEAD", "OPTIONS", "TRACE", "GET", "DELETE", "MERGE"):
            assert client.request(method, "/graphs/people/mutate", json=BODIES["/mutate"]).status_code in (404, 405)
        for override in ("X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"):
            answer = client.get("/graphs/people/branches/victim", headers={override: "DELETE"})
            assert answer.status_code in (404, 405)
            forced = {"query": BODIES["/mutate"]["query"], "params": {"slug": "evil"}}
            answer = client.post("/graphs/people/query?_method=mutate", json=forced, headers={override: "PUT"})
            assert answer.status_code == 400
        for path in (
            "/graphs/people/mutate/",
            "/graphs/people//mutate",
            "/graphs/people/./mutate",
            "/GRAPHS/people/mutate",
        ):
            assert client.post(path, json=BODIES["/mutate"]).status_code in (403, 404)

    assert posts >= 20
    assert state(graph) == before


def test_every_route_that_needs_more_than_reading_is_known_by_its_name(guarded: Served) -> None:
    with guarded.client() as client:
        paths = client.get("/openapi.json").json()["paths"]
    named = {operation["operationId"] for operations in paths.values() for operation in operations.values()}

    assert set(LEAST_ACTIONS) <= named


def test_a_read_query_route_runs_no_mutation(guarded: Served, tokens: Path, graph: Graph) -> None:
    before = graph.snapshot().commit_id
    with client_for(guarded, tokens, "ada", "admin") as http:
        answer = http.post("/query", json={"query": ADD, "params": {"slug": "evil"}})

    assert answer.status_code == 400
    assert graph.snapshot().commit_id == before


def test_the_actor_of_a_commit_is_the_tokens_whatever_the_request_says(
    guarded: Served, tokens: Path, graph: Graph
) -> None:
    with client_for(guarded, tokens, "ada", "write") as http:
        made = http.post("/mutate", json={"query": ADD, "params": {"slug": "cy"}}, headers={"X-Actor": "root"})
        named = http.post("/mutate", json={"query": ADD, "params": {"slug": "d"}, "actor": "root"})

    assert made.json()["commit"]["actor"] == "ada"
    assert named.status_code == 400
    assert graph.commits(limit=1)[0].actor == "ada"


def test_no_write_of_any_kind_has_another_actor_than_the_tokens(guarded: Served, tokens: Path, graph: Graph) -> None:
    before = {commit.id for commit in graph.commits(limit=None)}
    sneaky = dict.fromkeys(("X-Actor", "X-Forwarded-User", "Omnigraph-Actor", "From", "Remote-User", "As"), "root")
    asked = {"actor": "root", "as": "root", "user": "root"}
    wait = {"Prefer": "wait=20"}
    renamed = SCHEMA.replace("name: String?", 'title: String? @rename_from("name")')
    writes: list[tuple[str, dict[str, Any]]] = [
        ("/mutate", {"json": {"query": ADD, "params": {"slug": "a"}}}),
        ("/queries/add", {"json": {"params": {"slug": "b"}}}),
        ("/load", {"content": ndjson([{"type": "Person", "data": {"slug": "c"}}])}),
        ("/load?branch=x&from=main", {"content": ndjson([{"type": "Person", "data": {"slug": "d"}}]), "headers": wait}),
        ("/branches/merge", {"json": {"source": "x"}}),
        ("/schema/apply", {"json": {"schema": renamed}}),
        ("/analyze", {"json": {"algorithm": "degrees", "write": "Person.age"}, "headers": wait}),
        ("/tag", {"json": {"name": "t"}}),
        ("/optimize", {"json": {}, "headers": wait}),
    ]
    with client_for(guarded, tokens, "ada", "admin") as http:
        for path, options in writes:
            options["headers"] = sneaky | options.get("headers", {})
            named = http.post(path, params={**httpx.URL(path).params, **asked}, **options)
            assert (named.status_code, named.json()["code"]) == (400, "bad_request"), path
            answer = http.post(path, **options)
            assert answer.status_code == 200, (path, answer.text)
        newest = graph.snapshot().commit_id
        reverted = next(commit.id for commit in graph.commits(limit=None) if commit.kind == "load")
        assert http.post("/revert", json={"commit": reverted}, headers=sneaky).status_code in (200, 409)
        assert http.get("/tag").json()["tags"][0]["actor"] == "ada"
        for body in ({"query": ADD, "params": {"slug": "e"}, "actor": "root"}, {"query": ADD, "as": "root"}):
            assert http.post("/mutate", json=body).status_code == 400

    assert newest not in before
    made = [commit for commit in graph.commits(limit=None, maintenance=True) if commit.id not in before]
    assert len(made) >= 6
    assert {commit.actor for commit in made if not (commit.actor or "").startswith("omnigraph:")} == {"ada"}


def test_a_token_counts_in_its_header_only(guarded: Served, tokens: Path) -> None:
    text = token(tokens, "ada", "admin")
    with guarded.client() as client:
        for options in (
            {"params": {"access_token": text, "token": text}},
            {"cookies": {"token": text, "Authorization": f"Bearer {text}"}},
            {"headers": {"X-Api-Key": text, "Proxy-Authorization": f"Bearer {text}"}},
            {"headers": [("Authorization", f"Bearer {text}"), ("Authorization", "Bearer other")]},
            {"headers": {"Authorization": f"Token {text}"}},
            {"headers": {"Authorization": text}},
        ):
            request = client.build_request("GET", "/graphs", **options)
            assert client.send(request).status_code == 401, options


def test_who_is_bound_to_branches_writes_there_and_nowhere_else(guarded: Served, tokens: Path, graph: Graph) -> None:
    with client_for(guarded, tokens, "agent", "write@people:agent/*", "read@people:main") as http:
        assert http.post("/branches", json={"name": "agent/1"}).status_code == 200
        assert (
            http.post("/mutate", json={"query": ADD, "params": {"slug": "a"}, "branch": "agent/1"}).status_code == 200
        )
        for body in ({"query": ADD, "params": {"slug": "b"}}, {"query": ADD, "params": {"slug": "b"}, "branch": "x"}):
            assert http.post("/mutate", json=body).status_code == 403
        assert http.post("/branches", json={"name": "elsewhere"}).status_code == 403
        assert http.post("/branches/merge", json={"source": "agent/1"}).status_code == 403
        assert http.post("/load?branch=main", content="{}").status_code == 403
        assert http.get("/branches").json() == {"branches": ["agent/1", "main"]}


def test_who_is_bound_to_branches_sees_no_other_by_any_name(guarded: Served, tokens: Path, graph: Graph) -> None:
    graph.branches.create("secret")
    hidden = graph.mutate(ADD, params={"slug": "spy"}, branch="secret")
    assert hidden is not None
    graph.tags.create("hidden", hidden.id)
    graph.branches.create("agent/1")
    cursor = graph.poll_changes(start="beginning", branch="secret", limit=1).cursor

    with client_for(guarded, tokens, "agent", "write@people:agent/*") as http:
        head = graph.snapshot("agent/1").commit_id
        assert http.post("/query", json={"query": PEOPLE, "branch": "agent/1", "at": head}).status_code == 200
        for at in (hidden.id, "hidden", "tag:hidden"):
            missing = 400 if at == "hidden" else 404  # as what is no tag and no time
            read = {"query": PEOPLE, "branch": "agent/1", "at": at}
            assert http.post("/query", json=read).status_code == missing
            assert http.post("/export", json={"branch": "agent/1", "at": at}).status_code == missing
            assert http.get("/snapshot", params={"branch": "agent/1", "at": at}).status_code == missing
            fork = {"name": "agent/2", "from": "agent/1", "at": at}
            assert http.post("/branches", json=fork).status_code == missing
            assert http.get(f"/commits/{at}").status_code == 404
            assert http.get(f"/commits/{at}/changes").status_code == 404
            assert http.get("/changes", params={"a": "agent/1", "b": at, "branch": "agent/1"}).status_code == 404
            assert http.post("/branches", json={"name": "agent/2", "from": at}).status_code == 404
            assert http.post("/revert", json={"commit": at, "branch": "agent/1"}).status_code == 404
            assert http.post("/tag", json={"name": "agent/t", "commit": at, "branch": "agent/1"}).status_code == 404
        for path in ("/changes?branch=secret", f"/changes?cursor={cursor}", "/commits?branch=secret", "/tag"):
            assert http.get(path).status_code == 403
        assert http.get("/changes?branch=agent/1&start=hidden").status_code == 404
        assert http.post("/branches", json={"name": "agent/2", "from": "secret"}).status_code == 404
        assert http.post("/branches/merge", json={"source": "secret", "into": "agent/1"}).status_code == 403
        assert http.post("/load?branch=agent/9&from=secret", content="").status_code == 403
        drawn = http.get("/commits?graph=true").json()["commits"]
        assert hidden.id not in {commit["id"] for commit in drawn}


def test_graphs_that_a_token_does_not_know_are_not_listed(guarded: Served, tokens: Path) -> None:
    with guarded.client(token(tokens, "ada", "read@people")) as client:
        assert [entry["id"] for entry in client.get("/graphs").json()["graphs"]] == ["people"]
        assert client.get("/graphs/other/snapshot").status_code == 403
        assert client.get("/graphs/unheard-of/snapshot").status_code == 403
        assert client.get("/readyz").json()["graphs"] == {}


def test_a_revoked_token_ends_with_the_next_request(guarded: Served, tokens: Path) -> None:
    text = token(tokens, "ada", "read")
    with guarded.client(text) as client:
        assert client.get("/graphs").status_code == 200
        revoke_token(tokens, next(one.id for one in read_tokens(tokens) if one.actor == "ada"))
        assert client.get("/graphs").status_code == 401


def test_one_actor_can_not_take_all_places_for_jobs(
    graph: Graph, store: Path, tokens: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, eve = token(tokens, "ada", "read"), token(tokens, "eve", "read")
    limits = Limits(jobs_running=1, jobs_waiting=5, jobs_per_actor=2)
    with served({"people": store}, ServerSettings(tokens=tokens, limits=limits, grace_s=2.0, spark=False)) as server:
        held = threading.Event()
        monkeypatch.setattr(Graph, "analyze", lambda *_, **__: held.wait(20) and None)
        try:
            with server.client(eve) as greedy, server.client(ada) as other:
                path, body = "/graphs/people/analyze", {"algorithm": "degrees"}
                taken = [greedy.post(path, json=body) for _ in range(3)]
                assert [answer.status_code for answer in taken] == [202, 202, 429]
                assert taken[2].headers["Retry-After"] == str(taken[2].json()["details"]["retry_after_s"])
                assert other.post(path, json=body).status_code == 202
        finally:
            held.set()


def test_the_jobs_of_others_are_not_seen(guarded: Served, tokens: Path) -> None:
    with client_for(guarded, tokens, "ada", "read") as ada, client_for(guarded, tokens, "eve", "read") as eve:
        job = ada.post("/analyze", json={"algorithm": "degrees"}).json()["id"]

        assert ada.get(f"/jobs/{job}", headers={"Prefer": "wait=20"}).json()["state"] == "done"
        assert eve.get(f"/jobs/{job}").status_code == 404
        assert eve.delete(f"/jobs/{job}").status_code == 404
        assert eve.get("/jobs").json() == {"jobs": []}
