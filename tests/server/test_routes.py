"""Every route, by what it answers: the documents of the command line."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

import omnigraph
from omnigraph.api.documents import version_document
from omnigraph.cli.main import main
from omnigraph.graph.graph import Graph
from support.server import ADD, ENTITIES, PEOPLE, SCHEMA, SET_AGE, Served, ndjson, served

NDJSON = {"Accept": "application/x-ndjson"}
ARROW = {"Accept": "application/vnd.apache.arrow.stream"}
WAIT = {"Prefer": "wait=30"}


def printed(capsys: pytest.CaptureFixture[str], store: Path, *arguments: str) -> Any:
    """What the command line prints with --json."""
    capsys.readouterr()
    main([*arguments, "--store", str(store), "--json"])
    return json.loads(capsys.readouterr().out)


def without_cost(document: Any) -> Any:
    return {name: value for name, value in document.items() if name != "cost"}


def test_health_tells_release_format_and_libraries(server: Served) -> None:
    with server.client() as client:
        answer = client.get("/healthz")

    assert answer.status_code == 200
    assert answer.json() == {"status": "ok", **version_document()}


def test_readiness_names_the_graphs_that_are_open(graph: Graph, store: Path, tmp_path: Path) -> None:
    with served({"people": store, "gone": tmp_path / "nothing"}) as server, server.client() as client:
        assert client.get("/readyz").json() == {"status": "ready", "graphs": {"people": True, "gone": False}}
        listed = client.get("/graphs").json()["graphs"]

        assert [(entry["id"], entry["open"]) for entry in listed] == [("people", True), ("gone", False)]
        assert listed[1]["error"]["code"] == "not_found"
        refused = client.get("/graphs/gone/snapshot")
        assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
        assert client.get("/graphs/people/snapshot").status_code == 200


def test_a_server_is_not_ready_without_a_graph_or_when_it_ends(store: Path, graph: Graph, tmp_path: Path) -> None:
    with served({"gone": tmp_path / "nothing"}) as server, server.client() as client:
        assert client.get("/readyz").status_code == 503
    with served({"people": store}) as server, server.client() as client:
        server.service.draining = True
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")


@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("/snapshot", ["snapshot"]),
        ("/schema", ["schema", "show"]),
        ("/branches", ["branch", "list"]),
        ("/commits", ["commit", "list"]),
        ("/commits?all=true&limit=1", ["commit", "list", "--all", "--limit", "1"]),
        ("/commits?graph=true", ["commit", "list", "--graph"]),
        ("/commits?kind=load&type=Person", ["commit", "list", "--filter", "kind=load", "--filter", "type=Person"]),
        ("/tag", ["tag", "list"]),
        ("/changes?start=beginning", ["changes", "poll", "--start", "beginning"]),
    ],
)
def test_what_is_read_is_what_the_command_prints(
    http: httpx.Client, store: Path, path: str, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    answer = http.get(path)

    assert answer.status_code == 200
    assert answer.json() == printed(capsys, store, *command)


def test_a_commit_and_its_changes_are_what_the_commands_print(
    http: httpx.Client, graph: Graph, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = graph.snapshot().commit_id
    first = graph.commits()[-1].id

    assert http.get(f"/commits/{head}").json() == printed(capsys, store, "commit", "show", head)
    assert http.get(f"/commits/{head}/changes").json() == printed(capsys, store, "commit", "changes", head)
    between = http.get("/changes", params={"a": first, "b": "main", "kind": ["node"], "limit": 1})
    expected = printed(capsys, store, "changes", first, "main", "--kind", "node", "--limit", "1")
    assert between.json() == expected
    assert between.json()["next_page"]


def test_commits_come_in_pages_that_link_to_the_next(http: httpx.Client, graph: Graph) -> None:
    for number in range(4):
        graph.mutate(ADD, params={"slug": f"p{number}"})
    everything = [commit.id for commit in graph.commits()]

    seen, path = [], "/commits?limit=2"
    while path:
        answer = http.get(path)
        seen += [commit["id"] for commit in answer.json()["commits"]]
        path = answer.links.get("next", {}).get("url", "").removeprefix("/graphs/people")

    assert seen == everything


def test_a_query_answers_as_document_as_lines_and_as_arrow(
    http: httpx.Client, graph: Graph, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = {"query": PEOPLE}
    document = http.post("/query", json=body)
    lines = http.post("/query", json=body, headers=NDJSON)
    arrow = http.post("/query", json=body, headers=ARROW)

    assert document.json() == printed(capsys, store, "query", "-e", PEOPLE)
    assert [json.loads(line) for line in lines.text.splitlines()] == document.json()["rows"]
    assert pa.ipc.open_stream(arrow.content).read_all() == graph.query(PEOPLE).to_arrow()
    for streamed in (lines, arrow):
        assert json.loads(streamed.headers["Omnigraph-Columns"]) == ["slug", "age"]
        assert streamed.headers["Omnigraph-Commit"] == document.json()["commit_id"]


def test_a_query_at_an_older_state_with_parameters(http: httpx.Client, graph: Graph) -> None:
    before = graph.snapshot().commit_id
    graph.mutate(ADD, params={"slug": "cy", "age": 7})
    text = "query q($min: I32) { match { $p: Person  $p.age >= $min } return { $p.slug as slug } }"

    now = http.post("/query", json={"query": text, "params": {"min": 1}, "name": "q"}).json()
    then = http.post("/query", json={"query": text, "params": {"min": 1}, "at": before}).json()

    assert [{row["slug"] for row in found["rows"]} for found in (now, then)] == [{"ada", "cy"}, {"ada"}]


def test_explain_is_in_the_document(http: httpx.Client) -> None:
    assert "plan" in http.post("/query", json={"query": PEOPLE, "explain": True}).json()


def test_a_mutation_is_one_commit_and_says_what_it_cost(http: httpx.Client, graph: Graph) -> None:
    answer = http.post("/mutate", json={"query": ADD, "params": {"slug": "cy", "age": 3}})

    document = answer.json()
    assert answer.status_code == 200
    assert document["commit"]["id"] == graph.snapshot().commit_id
    assert document["commit"]["touched"] == {"node:Person": {"inserted": 1}}
    assert document["cost"]["requests"] == 1
    assert answer.headers["Omnigraph-Cost"].startswith("requests=1, stages=1")


def test_a_mutation_that_changes_nothing_has_no_commit(http: httpx.Client) -> None:
    answer = http.post("/mutate", json={"query": SET_AGE, "params": {"slug": "nobody", "age": 3}, "at": None})

    assert answer.json()["commit"] is None


def test_the_same_key_answers_the_first_commit(http: httpx.Client, graph: Graph) -> None:
    key = {"Idempotency-Key": "order-17"}
    first = http.post("/mutate", json={"query": ADD, "params": {"slug": "cy"}}, headers=key).json()
    second = http.post("/mutate", json={"query": ADD, "params": {"slug": "cy"}}, headers=key).json()

    assert first["commit"]["id"] == second["commit"]["id"]
    assert len(graph.commits()) == 3


def test_a_load_is_one_commit_whatever_its_form(http: httpx.Client, graph: Graph) -> None:
    more = ndjson([{"type": "Person", "data": {"slug": "cy"}}])
    plain = http.post("/load", content=more, headers={"Content-Type": "application/x-ndjson"})
    csv = http.post("/load?type=Person", content="slug,age\ndan,5\n", headers={"Content-Type": "text/csv"})
    merged = http.post("/load?mode=merge&branch=b&from=main", content=more)

    assert plain.json()["counts"] == csv.json()["counts"] == {"Person": 1}
    assert merged.json()["commit"] is None
    assert graph.branches.list() == ["b", "main"]
    assert {row["slug"] for row in graph.query(PEOPLE).rows} == {"ada", "bob", "cy", "dan"}


def test_a_tar_of_files_is_loaded_as_the_files_would_be(http: httpx.Client, graph: Graph) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, text in (("Person.csv", "slug\neve\n"), ("more.jsonl", ndjson([ENTITIES[2]]))):
            info = tarfile.TarInfo(f"some/{name}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))

    answer = http.post("/load", content=archive.getvalue(), headers={"Content-Type": "application/x-tar"})

    assert answer.json()["counts"] == {"Person": 1, "Knows": 1}


def test_what_a_quarantine_took_can_be_fetched(http: httpx.Client, graph: Graph) -> None:
    body = ndjson([{"type": "Person", "data": {"slug": "cy"}}, {"type": "Person", "data": {"slug": "d", "age": 999}}])
    answer = http.post("/load?on_error=quarantine", content=body).json()

    assert answer["rejected"] == 1
    kept = http.get(answer["quarantine"].removeprefix("/graphs/people"))
    assert json.loads(kept.text)["place"] == "body.jsonl line 2"
    assert {row["slug"] for row in graph.query(PEOPLE).rows} == {"ada", "bob", "cy"}


def test_an_export_loads_again_to_the_same_graph(http: httpx.Client, tmp_path: Path, store: Path) -> None:
    lines = http.post("/export", json={})
    other = omnigraph.init(tmp_path / "other", SCHEMA)
    (tmp_path / "out.jsonl").write_text(lines.text)
    other.load(str(tmp_path / "out.jsonl"))

    assert lines.headers["Content-Type"] == "application/x-ndjson"
    assert [row["slug"] for row in other.query(PEOPLE).rows] == ["ada", "bob"]
    assert http.post("/export", json={"types": ["Person"], "format": "csv"}).text.startswith("id,slug")
    with tarfile.open(fileobj=io.BytesIO(http.post("/export", json={"directory": True}).content)) as tar:
        assert {"Person/part-00000.jsonl", "Knows/part-00000.jsonl"} <= set(tar.getnames())


def test_branches_are_made_merged_and_deleted(http: httpx.Client, graph: Graph) -> None:
    assert http.post("/branches", json={"name": "agent/42"}).json()["branch"] == "agent/42"
    http.post("/mutate", json={"query": ADD, "params": {"slug": "cy"}, "branch": "agent/42"})
    preview = http.post("/branches/merge", json={"source": "agent/42", "dry_run": True}).json()
    merged = http.post("/branches/merge", json={"source": "agent/42", "delete_branch": True}).json()

    assert preview["commit"] is None
    assert merged["outcome"] == "fast_forward"
    assert merged["deleted"]
    assert merged["commit"]["merged_parent"]
    http.post("/branches", json={"name": "x/y", "from": graph.commits()[-1].id})
    assert http.delete("/branches/x/y").json()["branch"] == "x/y"
    assert http.get("/branches").json() == {"branches": ["main"]}


def test_tags_and_reverts(http: httpx.Client, graph: Graph) -> None:
    graph.mutate(ADD, params={"slug": "cy"})
    made = http.post("/tag", json={"name": "release/1"}).json()["tag"]

    assert http.get("/tag").json() == {"tags": [made]}
    assert http.get("/commits/release/1").json()["commit"]["id"] == made["commit_id"]
    assert http.post("/revert", json={"commit": "release/1"}).json()["commit"]["kind"] == "revert"
    assert http.delete("/tag/release/1").json() == {"tag": "release/1"}
    assert [row["slug"] for row in graph.query(PEOPLE).rows] == ["ada", "bob"]


def test_the_schema_is_planned_and_applied(http: httpx.Client, graph: Graph) -> None:
    wanted = SCHEMA.replace("name: String?", "name: String?  city: String?")
    plan = http.post("/schema/plan", json={"schema": wanted}).json()
    applied = http.post("/schema/apply", json={"schema": wanted}).json()

    assert [step["kind"] for step in plan["steps"]] == ["add_property"]
    assert applied["applied"]
    assert http.get("/schema").json()["schema"] == wanted
    refused = http.post("/schema/apply", json={"schema": SCHEMA.replace("name: String?", "name: I32?")})
    assert (refused.status_code, refused.json()["details"]["applied"]) == (400, False)


def test_lint_lists_findings(http: httpx.Client) -> None:
    found = http.post("/lint", json={"query": "query q() { match { $p: Persn } return { $p.id } }", "name": "a.gq"})

    assert found.status_code == 200
    assert found.json()[0]["source"] == "a.gq"


@pytest.mark.parametrize(
    ("command", "body", "field"),
    [
        ("optimize", {}, "types"),
        ("cleanup", {"older_than": "1d"}, "dry_run"),
        ("verify", {"full": True}, "ok"),
        ("analyze", {"algorithm": "pagerank", "limit": 1}, "rows"),
    ],
)
def test_long_commands_are_jobs_whose_result_is_the_document(
    http: httpx.Client, command: str, body: dict[str, Any], field: str
) -> None:
    accepted = http.post(f"/{command}", json=body)
    job = http.get(f"/jobs/{accepted.json()['id']}", headers=WAIT).json()
    waited = http.post(f"/{command}", json=body, headers=WAIT)

    assert accepted.status_code == 202
    assert accepted.headers["Location"] == f"/graphs/people/jobs/{job['id']}"
    assert job["state"] == "done"
    assert field in job["result"]
    assert waited.status_code == 200
    assert field in waited.json()


def test_recover_lists_unfinished_writes(http: httpx.Client) -> None:
    assert http.post("/recover", json={}).json() == {"jobs": [], "ended": [], "left": []}


def test_every_route_of_the_surface_is_described(server: Served) -> None:
    with server.client() as client:
        paths = client.get("/openapi.json").json()["paths"]

    below = {path.removeprefix("/graphs/{graph}") for path in paths}
    assert {
        *("/healthz", "/readyz", "/metrics", "/graphs", "/snapshot", "/schema", "/query", "/mutate", "/queries"),
        *("/queries/{name}", "/load", "/export", "/branches", "/branches/{branch}", "/branches/merge", "/commits"),
        *("/commits/{commit}", "/commits/{commit}/changes", "/changes", "/schema/plan", "/schema/apply"),
        *("/embed", "/analyze", "/tag", "/tag/{tag}", "/revert", "/recover", "/lint", "/jobs", "/jobs/{job}"),
        *("/optimize", "/cleanup", "/verify", "/jobs/{job}/{file}"),
    } == below


def test_operations_have_names_for_generated_clients(server: Served) -> None:
    with server.client() as client:
        paths = client.get("/openapi.json").json()["paths"]

    names = [operation["operationId"] for operations in paths.values() for operation in operations.values()]
    assert len(names) == len(set(names))
    assert {"query", "mutate", "load", "create_branch", "invoke_query"} <= set(names)
