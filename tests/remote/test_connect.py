"""`omnigraph.connect`: what it needs, who it is, and how it moves data."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.api.interface import GraphLike
from omnigraph.errors import Forbidden, NotFound, Unauthorized
from omnigraph.graph.graph import Graph
from omnigraph.pipeline.progress import Progress
from omnigraph.remote.changes import ListHead, ListItem, ListTail, NotADocument, read_list
from omnigraph.remote.graph import RemoteGraph
from omnigraph.remote.transport import HttpRequest
from omnigraph.remote.wire.upload import prepare_upload
from omnigraph.server.settings import ServerSettings
from support.server import ADD, PEOPLE, Served, served, token


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


@pytest.fixture
def guarded(graph: Graph, store: Path, tokens: Path) -> Iterator[Served]:
    token(tokens, "nobody", "read@nothing")
    with served({"people": store}, ServerSettings(tokens=tokens, grace_s=5.0)) as running:
        yield running


def test_importing_the_package_does_not_import_httpx() -> None:
    code = "import sys, omnigraph; omnigraph.connect; sys.exit('httpx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_without_httpx_the_remedy_is_said() -> None:
    code = "import sys; sys.modules['httpx'] = None; import omnigraph; omnigraph.connect('http://127.0.0.1:1')"
    run = subprocess.run([sys.executable, "-c", code], timeout=60, check=False, capture_output=True, text=True)
    assert "BadRequest: A server is asked with httpx" in run.stderr
    assert "install omnigraph[server]" in run.stderr


def test_nothing_is_asked_before_it_is_used() -> None:
    with omnigraph.connect("http://127.0.0.1:1", graph="a/b") as remote:
        assert remote.uri == "http://127.0.0.1:1/graphs/a%2Fb"


def test_a_graph_that_is_not_served_is_not_found(server: Served) -> None:
    with omnigraph.connect(server.url, graph="nope") as remote, pytest.raises(NotFound, match="'nope'"):
        remote.branches.list()


def test_the_tokens_actor_is_on_the_commit(guarded: Served, tokens: Path) -> None:
    with omnigraph.connect(guarded.url, "people", token(tokens, "ada", "write@people")) as remote:
        commit = remote.mutate(ADD, params={"slug": "eve"})
    assert commit is not None
    assert commit.commit.actor == "ada"


def test_the_environment_has_the_token_that_is_not_given(
    guarded: Served, tokens: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNIGRAPH_TOKEN", token(tokens, "ada", "read@people"))
    with omnigraph.connect(guarded.url, "people") as remote:
        assert len(remote.query(PEOPLE).rows) == 2


def test_without_a_token_nobody_is_let_in(guarded: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMNIGRAPH_TOKEN", raising=False)
    with omnigraph.connect(guarded.url, "people") as remote, pytest.raises(Unauthorized, match="token"):
        remote.query(PEOPLE)


def test_a_token_that_may_read_may_not_write(guarded: Served, tokens: Path) -> None:
    with (
        omnigraph.connect(guarded.url, "people", token(tokens, "ada", "read@people")) as remote,
        pytest.raises(Forbidden, match="writing"),
    ):
        remote.mutate(ADD, params={"slug": "eve"})


def test_who_is_bound_to_a_branch_can_do_everything_there(guarded: Served, graph: Graph, tokens: Path) -> None:
    graph.branches.create("agent/1")
    with omnigraph.connect(guarded.url, "people", token(tokens, "agent", "write@people:agent/*")) as remote:
        commit = remote.mutate(ADD, params={"slug": "eve"}, branch="agent/1")
        assert commit is not None
        assert [change.id for change in remote.commit_changes(commit.id)] == ["eve"]
        assert [change.id for change in remote.changes(commit.commit.parent or "", commit.id, branch="agent/1")] == [
            "eve"
        ]
        page = remote.poll_changes(start="beginning", branch="agent/1")
        assert len(remote.poll_changes(page.cursor)) == 0
        assert [told.change.id for told in page][-1] == "eve"
        assert remote.snapshot("agent/1").to_arrow("node:Person").num_rows == 3
        assert remote.load([{"type": "Person", "data": {"slug": "zoe"}}], branch="agent/1").counts == {"Person": 1}
        with pytest.raises(Forbidden):
            remote.query(PEOPLE)


def test_a_load_that_is_not_allowed_is_not_sent_to_its_end(guarded: Served, tokens: Path) -> None:
    made = 0

    def people() -> Iterator[dict[str, Any]]:
        nonlocal made
        for made in range(1, 1_000_001):
            yield {"type": "Person", "data": {"slug": f"p{made}", "name": "x" * 1000}}

    with (
        omnigraph.connect(guarded.url, "people", token(tokens, "ada", "read@people")) as remote,
        pytest.raises(Forbidden, match="writing"),
    ):
        remote.load(people())
    assert made < 100_000


def test_a_load_is_sent_while_it_is_made(remote: RemoteGraph) -> None:
    """The server has its first lines before the last are there: neither side holds all of them."""
    made = 0

    def people() -> Iterator[dict[str, Any]]:
        nonlocal made
        for made in range(1, 20_001):  # counted for the test below
            yield {"type": "Person", "data": {"slug": f"p{made}", "name": "x" * 100}}

    pieces = iter(_sent_pieces(people()))
    next(pieces)
    assert 0 < made < 20_000
    assert remote.load(people(), progress=Progress()).counts == {"Person": 20_000}


def _sent_pieces(entities: Iterator[dict[str, Any]]) -> Iterator[bytes]:
    return prepare_upload(entities, None, lambda: pytest.fail("no schema is needed"), ExitStack()).body()


class Interrupted(Progress):
    """A Ctrl-C while somebody looks at a bar."""

    @property
    def state(self) -> Any:
        raise KeyboardInterrupt


def test_who_is_interrupted_while_waiting_leaves_no_job_behind(server: Served, remote: RemoteGraph) -> None:
    session = remote._session
    ask = HttpRequest("POST", f"{session.base}/verify", document={"full": True}, headers={"Prefer": "respond-async"})
    begun = session.transport.call(ask)
    begun.document["state"] = "running"  # however fast it was
    with pytest.raises(KeyboardInterrupt):
        session._wait_for_job(begun, ask, 1, Interrupted())
    (job,) = server.service.jobs.of_graph("people")
    assert job.stop.cause is not None


def test_times_in_parameters_and_states_need_no_text(remote: RemoteGraph, graph: Graph) -> None:
    made = remote.commits()[0].authored_at
    assert remote.snapshot(at=made.replace(year=made.year + 1)).commit_id == graph.snapshot().commit_id


def test_a_protocol_is_enough_for_code_that_takes_either(remote: RemoteGraph, graph: Graph) -> None:
    def names(given: GraphLike) -> list[str]:
        return [row["slug"] for row in given.query(PEOPLE)]

    assert names(remote) == names(graph) == ["ada", "bob"]


# Documents that are read piece by piece

DOCUMENT = '{"from": "ä", "n": 12, "changes": [{"a": [1, "]"]}, {"b": null}], "next_page": null, "more": 3}'.encode()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_long_list_is_read_however_it_is_cut(size: int) -> None:
    pieces = [DOCUMENT[start : start + size] for start in range(0, len(DOCUMENT), size)]
    found = list(read_list(iter(pieces), "changes"))
    assert found == [
        ListHead({"from": "ä", "n": 12}),
        ListItem({"a": [1, "]"]}),
        ListItem({"b": None}),
        ListTail({"next_page": None, "more": 3}),
    ]


@pytest.mark.parametrize("end", range(1, len(DOCUMENT) - 1, 9))
def test_a_document_that_ends_too_early_is_none(end: int) -> None:
    with pytest.raises(NotADocument):
        list(read_list(iter([DOCUMENT[:end].decode(errors="ignore").encode()]), "changes"))
