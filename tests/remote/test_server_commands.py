"""What only a server has: stored queries and jobs, from Python and from the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import omnigraph
from omnigraph.cli.main import main
from omnigraph.errors import BadRequest, NotFound
from omnigraph.graph.graph import Graph
from omnigraph.remote.graph import RemoteGraph
from omnigraph.server.settings import ServerSettings
from support.server import ADD, PEOPLE, Served, served


@pytest.fixture
def server(graph: Graph, store: Path, tmp_path: Path) -> Iterator[Served]:
    queries = tmp_path / "queries"
    queries.mkdir()
    (queries / "people.gq").write_text(f"{PEOPLE}\n{ADD}\n")
    with served({"people": store}, ServerSettings(queries=queries, grace_s=5.0)) as running:
        yield running


@pytest.fixture
def remote(server: Served) -> Iterator[RemoteGraph]:
    with omnigraph.connect(server.url, graph="people") as connected:
        yield connected


def test_stored_queries_are_listed_with_their_parameters(remote: RemoteGraph) -> None:
    assert [(query.name, query.kind, query.error) for query in remote.queries.list()] == [
        ("add", "write", None),
        ("people", "read", None),
    ]
    (add, _) = remote.queries.list()
    assert [param["name"] for param in add.params] == ["slug", "age"]


def test_a_stored_read_is_a_query_and_a_stored_write_a_mutation(remote: RemoteGraph, graph: Graph) -> None:
    commit = remote.queries.mutate("add", {"slug": "eve", "age": 3}, txn_id="once")
    assert commit is not None
    again = remote.queries.mutate("add", {"slug": "eve", "age": 3}, txn_id="once")
    assert again is not None
    assert again.commit == commit.commit
    result = remote.queries.run("people")
    assert result.rows == graph.query(PEOPLE).rows
    assert (result.commit_id, result.query) == (commit.id, "people")
    with pytest.raises(NotFound, match="nope"):
        remote.queries.run("nope")


def test_reads_and_writes_are_kept_apart(remote: RemoteGraph, graph: Graph) -> None:
    with pytest.raises(BadRequest, match=r"add writes: run it with queries\.mutate"):
        remote.queries.run("add", {"slug": "zoe"})
    with pytest.raises(BadRequest, match=r"people only reads: run it with queries\.run"):
        remote.queries.mutate("people")
    assert len(graph.commits()) == 2


def test_jobs_are_listed_shown_and_cancelled(remote: RemoteGraph) -> None:
    remote.optimize()
    (job,) = remote.jobs.list()
    assert (job.kind, job.state, remote.jobs.show(job.id)) == ("optimize", "done", job)
    assert remote.jobs.cancel(job.id).state == "done"  # what has ended stays as it is
    with pytest.raises(NotFound, match="nope"):
        remote.jobs.show("nope")


def test_jobs_on_the_command_line(remote: RemoteGraph, server: Served, capsys: pytest.CaptureFixture[str]) -> None:
    remote.verify()
    named = ("--server", server.url, "--graph", "people")
    assert main(["jobs", "list", *named, "--json"]) == 0
    (job,) = json.loads(capsys.readouterr().out)["jobs"]
    assert (job["kind"], job["state"], job["result"]["ok"]) == ("verify", "done", True)
    assert main(["jobs", "show", job["id"], *named]) == 0
    assert f"id          {job['id']}" in capsys.readouterr().out
    assert main(["jobs", "cancel", job["id"], *named, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == job["id"]
