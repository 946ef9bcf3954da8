"""Whoever is bound to branches gets at no other: not by a tag called like one, not by a page token made up at home."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from omnigraph.diff.changes import Filters
from omnigraph.diff.cursor import encode_token, fingerprint
from omnigraph.graph.graph import Graph
from omnigraph.server.auth.access import visible_graph
from omnigraph.server.auth.tokens import Principal, parse_grant
from omnigraph.server.settings import ServerSettings
from support.commit_groups import together
from support.server import ADD, PEOPLE, Served, ndjson, people_graph, served, token


@dataclass
class Place:
    """A graph with a branch `secret`, and a client that may write below `agent/` and see nothing else."""

    server: Served
    tokens: Path
    graph: Graph
    http: httpx.Client
    hidden: str  # the commit on `secret`

    def client(self, actor: str, *grants: str) -> httpx.Client:
        client = self.server.client(token(self.tokens, actor, *grants))
        client.base_url = httpx.URL(f"{self.server.url}/graphs/people")
        return client


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("bound")
    graph = people_graph(folder / "graph")
    graph.branches.create("secret")
    hidden = graph.mutate(ADD, params={"slug": "spy"}, branch="secret")
    assert hidden is not None
    graph.branches.create("agent/1")
    graph.mutate(ADD, params={"slug": "own"}, branch="agent/1")
    graph.mutate(ADD, params={"slug": "later"})
    (folder / "queries").mkdir()
    (folder / "queries" / "all.gq").write_text(f"{PEOPLE}\n{ADD}\n")
    tokens = folder / "tokens.json"
    text = token(tokens, "agent", "write@people:agent/*")
    settings = ServerSettings(tokens=tokens, queries=folder / "queries", grace_s=2.0, spark=False)
    both = {"people": folder / "graph", "other": folder / "graph"}
    with served(both, settings) as server, server.client(text) as http:
        http.base_url = httpx.URL(f"{server.url}/graphs/people")
        yield Place(server, tokens, graph, http, hidden.id)


def test_a_tag_that_is_called_like_a_branch_of_theirs_leads_nowhere(place: Place) -> None:
    """`at` takes a tag before anything else, so the gate has to do so too."""
    place.graph.tags.create("agent/named", place.hidden)
    assert place.http.post("/branches", json={"name": "agent/named", "from": "agent/1"}).status_code == 200
    at = {"branch": "agent/1", "at": "agent/named"}

    answers = [
        place.http.post("/query", json={"query": PEOPLE, **at}),
        place.http.post("/queries/people", json=at),
        place.http.post("/export", json=at),
        place.http.post("/lint", json={"query": PEOPLE, **at}),
        place.http.get("/snapshot", params=at),
        place.http.get("/schema", params=at),
        place.http.get("/commits", params=at),
        place.http.post("/branches", json={"name": "agent/2", "from": "agent/1", "at": "agent/named"}),
        place.http.get("/commits/agent/named"),
        place.http.get("/commits/agent/named/changes"),
        place.http.post("/revert", json={"commit": "agent/named", "branch": "agent/1"}),
        place.http.post("/tag", json={"name": "agent/t", "commit": "agent/named", "branch": "agent/1"}),
        place.http.get("/changes", params={"branch": "agent/1", "start": "agent/named"}),
    ]

    nowhere = place.http.get("/snapshot", params={**at, "at": "agent/nowhere"})
    assert nowhere.status_code == 400  # it is no tag, and no time either
    assert [answer.status_code for answer in answers[:8]] == [400] * 8
    assert answers[4].json()["error"] == nowhere.json()["error"].replace("nowhere", "named")
    assert [answer.status_code for answer in answers[8:]] == [404] * len(answers[8:])
    job = place.http.post("/analyze", json={"algorithm": "degrees", **at}, headers={"Prefer": "wait=20"})
    assert job.status_code == 400


def test_a_page_token_made_up_at_home_leads_nowhere(place: Place) -> None:
    """Its digest is no signature: whoever knows the format can write one for other states."""
    branch_id, number = place.hidden.split(".")
    secret = {"a": [branch_id, 1], "b": [branch_id, int(number)], "p": ["node", "Aaa", "", ""]}
    head = place.graph.snapshot("agent/1").commit_id
    for path, question, params in (
        ("/changes", "agent/1 agent/1 agent/1", {"a": "agent/1", "b": "agent/1", "branch": "agent/1"}),
        (f"/commits/{head}/changes", head, {}),
    ):
        forged = encode_token(
            "page token", {**secret, "f": fingerprint(question, Filters.of(None, None, None).to_json())}
        )

        answer = place.http.get(path, params={**params, "page": forged, "limit": 100})

        assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), answer.text


def test_pages_of_their_own_changes_are_theirs(place: Place) -> None:
    place.http.post(
        "/load?branch=agent/1&mode=merge",
        content=ndjson([{"type": "Person", "data": {"slug": f"p{n}"}} for n in range(3)]),
    )
    commit = place.graph.snapshot("agent/1").commit_id
    seen: list[str] = []
    page: dict[str, str] = {}
    while True:
        answer = place.http.get(f"/commits/{commit}/changes", params={"limit": 2, **page}).json()
        seen += [change["id"] for change in answer["changes"]]
        if answer["next_page"] is None:
            break
        page = {"page": answer["next_page"]}

    assert seen == ["p0", "p1", "p2"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/branches/merge", {"source": "agent/1", "into": "main"}),
        ("POST", "/branches/merge", {"source": "agent/1", "into": "main", "dry_run": True}),
        ("POST", "/branches/merge", {"source": "secret", "into": "agent/1"}),
        ("POST", "/branches/merge", {"source": "secret", "into": "agent/1", "dry_run": True}),
        ("POST", "/branches", {"name": "agent/9", "from": "main"}),
        ("POST", "/branches", {"name": "agent/9"}),
        ("POST", "/branches", {"name": "elsewhere", "from": "agent/1"}),
        ("POST", "/queries/people", {}),
        ("POST", "/queries/add", {"params": {"slug": "x"}, "branch": "secret"}),
        ("POST", "/analyze", {"algorithm": "degrees", "branch": "secret"}),
        ("POST", "/embed", {"branch": "secret", "dry_run": True}),
        ("POST", "/schema/plan", {"schema": "node A { x: String @key }", "branch": "secret"}),
        ("POST", "/schema/apply", {"schema": "node A { x: String @key }", "branch": "agent/1"}),
        ("POST", "/optimize", {"branch": "agent/1"}),
        ("POST", "/verify", {"branch": "agent/1"}),
        ("POST", "/verify", {}),
        ("POST", "/cleanup", {}),
        ("POST", "/recover", {}),
        ("DELETE", "/branches/secret", None),
        ("GET", "/queries", None),
        ("GET", "/commits", None),
        ("GET", "/commits?graph=true&branch=secret", None),
        ("GET", "/changes?a=main&b=agent/1", None),
        ("GET", "/tag", None),
    ],
)  # fmt: skip
def test_other_branches_are_closed(place: Place, method: str, path: str, body: Any) -> None:
    before = place.graph.branches.list(), place.graph.snapshot().commit_id, place.graph.snapshot("secret").commit_id

    answer = place.http.request(method, path, json=body)

    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert "spy" not in answer.text
    assert (
        place.graph.branches.list(),
        place.graph.snapshot().commit_id,
        place.graph.snapshot("secret").commit_id,
    ) == before


def test_stored_queries_are_listed_for_a_branch_that_may_be_read(place: Place) -> None:
    listed = place.http.get("/queries", params={"branch": "agent/1"})

    assert [query["name"] for query in listed.json()["queries"]] == ["add", "people"]


def test_a_deleted_and_an_unknown_branch_look_alike_from_outside(place: Place) -> None:
    assert place.http.get("/snapshot?branch=secret").json() == place.http.get("/snapshot?branch=secret").json()
    one, other = (place.http.get("/snapshot", params={"branch": name}).json() for name in ("secret", "nowhere"))

    assert one["error"].replace("secret", "nowhere") == other["error"]


def test_a_tag_is_taken_and_deleted_by_who_may_write_branches_of_its_name(place: Place) -> None:
    """A name such as `release-1` belongs to whoever decides what is released."""
    before = [tag.name for tag in place.graph.tags.list()]
    for name in ("release-1", "agent", "agentx", "AGENT/1"):
        answer = place.http.post("/tag", json={"name": name, "branch": "agent/1"})
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), name
        assert f"the tag '{name}'" in answer.json()["error"]
        assert place.http.delete(f"/tag/{name}").status_code == 403
    assert [tag.name for tag in place.graph.tags.list()] == before

    made = place.http.post("/tag", json={"name": "agent/mine", "branch": "agent/1"})
    assert made.json()["tag"]["commit_id"] == place.graph.snapshot("agent/1").commit_id
    assert place.http.get("/commits/agent/mine").status_code == 200
    assert place.http.delete("/tag/agent/mine").status_code == 200
    assert place.http.delete("/tag/agent/mine").status_code == 404


def test_a_grant_that_fits_the_tag_and_not_the_branch_does_not_tag_its_head(place: Place) -> None:
    with place.client("releaser", "write@people:release-*", "read@people:agent/*") as http:
        assert http.post("/tag", json={"name": "release-2", "branch": "agent/1"}).status_code == 403
    with place.client("releaser", "write@people:release-*", "write@people:agent/1") as http:
        assert http.post("/tag", json={"name": "release-2", "branch": "agent/1"}).status_code == 200
        assert http.delete("/tag/release-2").status_code == 200


def test_a_tag_that_is_moved_while_it_is_asked_for_leads_nowhere_else(place: Place) -> None:
    """What a name stands for is looked up once: what was checked is what is read."""
    place.graph.tags.create("agent/moving", place.graph.snapshot("agent/1").commit_id)
    graph = place.server.service.hosted.open("people")
    limited = visible_graph(Principal("agent", (parse_grant("read@people:agent/*"),)), "people", graph)
    find = graph.repository.tags.find
    found: list[Any] = []

    def moving(name: str) -> Any:
        tag = find(name)
        if not found and name == "agent/moving":
            place.graph.tags.delete(name)
            place.graph.tags.create(name, place.hidden)
        found.append(tag)
        return tag

    graph.repository.tags.find = moving  # type: ignore[method-assign]
    try:
        read = limited.query(PEOPLE, branch="agent/1", at="agent/moving")
        assert "spy" not in {row["slug"] for row in read.rows}
    finally:
        graph.repository.tags.find = find  # type: ignore[method-assign]
        place.graph.tags.delete("agent/moving")


@pytest.mark.parametrize("n", [0, 1, 2])
def test_a_fork_inside_a_group_of_commits_is_wholly_its_tokens(tmp_path: Path, n: int) -> None:
    """It has some of the commits of a manifest of main, which the token may not read, and not the others."""

    def add(slug: str) -> Callable[[], Any]:
        return lambda: graph.mutate(ADD, params={"slug": slug})

    graph = people_graph(tmp_path / "graph")
    _, *group = together(graph, add("first"), add("p0"), add("p1"), add("p2"))
    graph.branches.create("agent/1", at=group[n])
    made_at = graph.commit(group[n]).authored_at.isoformat()
    tokens = tmp_path / "tokens.json"
    text = token(tokens, "agent", "write@people:agent/*")
    settings = ServerSettings(tokens=tokens, grace_s=1.0, spark=False)
    with served({"people": tmp_path / "graph"}, settings) as server, server.client(text) as http:
        http.base_url = httpx.URL(f"{server.url}/graphs/people")
        for round in range(2):  # the second time the fork has a commit of its own
            for at in (*group[: n + 1], made_at):
                on = {"branch": "agent/1", "at": at}
                answers = [
                    http.get("/snapshot", params=on),
                    http.get("/schema", params=on),
                    http.get("/commits", params=on),
                    http.get("/changes", params={"branch": "agent/1", "a": at, "b": "agent/1"}),
                    http.post("/query", json={"query": PEOPLE, **on}),
                    http.post("/export", json=on),
                    http.post("/lint", json={"query": PEOPLE, **on}),
                    http.post("/analyze", json={"algorithm": "degrees", **on}, headers={"Prefer": "wait=20"}),
                    http.post("/branches", json={"name": "agent/2", "from": "agent/1", "at": at}),
                    http.delete("/branches/agent/2"),
                ]
                assert [answer.status_code for answer in answers] == [200] * len(answers), at
            for commit in group[: n + 1]:
                tag = f"agent/tag-{round}-{commit}"
                page = http.get(f"/commits/{commit}/changes", params={"limit": 1})
                answers = [
                    page,
                    http.get(f"/commits/{commit}"),
                    http.post("/tag", json={"name": tag, "commit": commit, "branch": "agent/1"}),
                    http.get(f"/commits/{tag}"),
                    http.get("/changes", params={"branch": "agent/1", "start": commit}),
                    http.post("/branches", json={"name": "agent/3", "from": commit}),
                    http.post("/branches/merge", json={"source": "agent/3", "into": "agent/1"}),
                    http.delete("/branches/agent/3"),
                ]
                assert [answer.status_code for answer in answers] == [200] * len(answers), commit
            for commit in group[n + 1 :]:
                assert http.get(f"/commits/{commit}").status_code == 404
                assert http.get("/snapshot", params={"branch": "agent/1", "at": commit}).status_code == 404
                assert http.post("/branches", json={"name": "agent/4", "from": commit}).status_code == 404
            first: dict[str, Any] = {"a": group[0], "b": "agent/1", "branch": "agent/1", "limit": 1}
            while (page := http.get("/changes", params=first)).json()["next_page"] is not None:
                first["page"] = page.json()["next_page"]
            assert page.status_code == 200
            own = http.post("/mutate", json={"query": ADD, "params": {"slug": "own"}, "branch": "agent/1"})
            assert own.status_code == 200


def test_a_fork_inside_a_group_of_an_older_release_is_wholly_its_tokens(tmp_path: Path) -> None:
    """Format 1 said of such a fork that it has none of the commits of the group."""
    data = Path(__file__).parents[1] / "format" / "data"
    with tarfile.open(data / "format-1.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    recorded = json.loads((data / "format-1.json").read_text())
    tokens = tmp_path / "tokens.json"
    text = token(tokens, "agent", "write@people:middle")
    settings = ServerSettings(tokens=tokens, grace_s=1.0, spark=False)
    with served({"people": tmp_path / "graph"}, settings) as server, server.client(text) as http:
        http.base_url = httpx.URL(f"{server.url}/graphs/people")
        own = [commit[0] for commit in recorded["log"]["middle"]]
        hidden = {commit[0] for commit in recorded["log"]["main"]} - set(own)
        assert any(one.count(".") == 2 for one in own)
        assert any(one.count(".") == 2 for one in hidden)
        assert {http.get(f"/commits/{one}").status_code for one in own} == {200}
        assert {http.get(f"/commits/{one}").status_code for one in hidden} == {404}
        for one in own:
            at = http.get("/snapshot", params={"branch": "middle", "at": one})
            assert at.status_code == (404 if one in recorded["expired"] else 200), at.text


def test_a_job_on_a_hidden_branch_keeps_its_id_and_does_not_tell_where_it_is(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids of jobs are for the whole graph: somebody who guesses one must neither learn of the job nor take it over."""
    monkeypatch.setattr("omnigraph.server.routes.bulk.MEMORY_BYTES", 1)
    repository = place.graph.repository
    base = repository.branches.find("secret").head.point
    held = repository.intents.create("load-nightly", "secret", base, "load", "root", {})
    line = ndjson([{"type": "Person", "data": {"slug": "guessed"}}])

    for _ in range(2):  # while its process lives, and when it is gone
        answer = place.http.post("/load?branch=agent/1&mode=merge&job_id=nightly", content=line)
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict"), answer.text
        assert not [word for word in ("secret", "root", held.intent.owner.host) if word in answer.text]
        held.release()
    seen = repository.intents.read("load-nightly")
    assert seen is not None
    assert seen.intent.tokens == held.intent.tokens
    assert place.http.post("/load?branch=agent/1&mode=merge&job_id=other", content=line).status_code == 200


def test_metrics_are_for_who_may_read_everything(place: Place) -> None:
    """They name graphs and types, and count rows."""
    with place.server.client(token(place.tokens, "half", "admin@people")) as half:
        assert half.get("/metrics").status_code == 403
    with place.server.client(token(place.tokens, "probe", "read")) as probe:
        assert "omnigraph_rows" in probe.get("/metrics").text
    with place.server.client() as nobody:
        assert nobody.get("/metrics").status_code == 401


def test_another_token_of_the_same_actor_sees_only_jobs_that_it_could_have_started(place: Place) -> None:
    """An actor may have a token for everything and one for a branch: the second must not fetch what the first got."""
    with place.client("agent", "read") as wide:
        made = wide.post("/export", json={"branch": "secret"}, headers={"Prefer": "respond-async"}).json()["id"]
        assert wide.get(f"/jobs/{made}", headers={"Prefer": "wait=20"}).json()["state"] == "done"
        assert "spy" in wide.get(f"/jobs/{made}/export").text

        assert place.http.get(f"/jobs/{made}/export").status_code == 404
        assert place.http.get(f"/jobs/{made}").status_code == 404
        assert place.http.delete(f"/jobs/{made}").status_code == 404
        assert made not in place.http.get("/jobs").text
        own = place.http.post("/export", json={"branch": "agent/1"}, headers={"Prefer": "respond-async"}).json()["id"]
        assert place.http.get(f"/jobs/{own}").status_code == 200
        assert wide.get(f"/jobs/{own}").status_code == 404


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("agent/*", "agent/1/2", True),
        ("agent/*", "agent", False),
        ("*", "anything/at all", True),
        ("a*c", "abc", True),
        ("a*c", "abcd", False),
        ("a?c", "abc", False),
        ("[ab]", "a", False),
        ("[ab]", "[ab]", True),
        ("main", "main\n", False),
        ("a.c", "abc", False),
        ("main", "MAIN", False),
        ("*a*a*a*a*a*a*a*a*a*b", "a" * 200, False),
    ],
)
def test_only_a_star_is_special_in_a_pattern(pattern: str, name: str, fits: bool) -> None:
    from omnigraph.server.auth.access import Action, allows
    from omnigraph.server.auth.tokens import Grant, Principal

    assert allows(Principal("x", (Grant("read", "*", pattern),)), Action.READ, "g", name) is fits
