"""What happens when a server refuses for now, can't be reached, or its answer is lost: nothing twice, all said."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import omnigraph
from omnigraph.errors import (
    AnswerLost,
    BadRequest,
    OutcomeUnknown,
    ServerUnreachable,
    TooManyRequests,
    Unavailable,
)
from omnigraph.graph.graph import Graph
from omnigraph.remote.graph import RemoteGraph
from omnigraph.remote.transport import HttpRequest, quote_segment
from support.proxy import Answer, ApplyThenDrop, Drop, Hang, Matcher, Proxy, Request
from support.server import ADD, PEOPLE, Served

BUSY = {"error": "Too many requests run: try again in 1 s.", "code": "too_many_requests", "details": {}}
AWAY = {"error": "The store did not serve: try again later.", "code": "unavailable", "details": {}}
TXN = "01HZZZZZZZZZZZZZZZZZZZZZZZ"


def body(document: object) -> bytes:
    return json.dumps(document).encode()


def posts(ending: str) -> Matcher:
    def matches(request: Request) -> bool:
        return request.method == "POST" and request.path.endswith(ending)

    return matches


@pytest.fixture
def proxy(server: Served) -> Iterator[Proxy]:
    with Proxy(server.url) as between:
        yield between


@pytest.fixture
def remote(proxy: Proxy) -> Iterator[RemoteGraph]:
    with omnigraph.connect(proxy.endpoint, graph="people", timeout=20, retry=10) as connected:
        yield connected


def impatient(proxy: Proxy) -> RemoteGraph:
    return omnigraph.connect(proxy.endpoint, graph="people", timeout=0.5, retry=0)


def test_a_server_that_is_busy_is_asked_again_when_it_says(remote: RemoteGraph, proxy: Proxy) -> None:
    rule = proxy.on(posts("/mutate"), Answer(429, body(BUSY), {"Retry-After": "1"}), times=2)
    started = time.monotonic()
    assert remote.mutate(ADD, params={"slug": "eve"}) is not None
    assert len(rule.hits) == 2
    assert time.monotonic() - started >= 2.0


def test_a_server_that_stays_busy_is_not_asked_for_ever(proxy: Proxy) -> None:
    rule = proxy.on(posts("/query"), Answer(429, body(BUSY), {"Retry-After": "0"}), times=None)
    with (
        omnigraph.connect(proxy.endpoint, graph="people", retry=1) as remote,
        pytest.raises(TooManyRequests, match="Too many requests run"),
    ):
        remote.query(PEOPLE)
    assert 2 <= len(rule.hits) <= 6


def test_a_store_that_is_away_for_a_moment_does_not_show(remote: RemoteGraph, proxy: Proxy) -> None:
    proxy.on(posts("/query"), Answer(503, body(AWAY)))
    assert len(remote.query(PEOPLE).rows) == 2


def test_a_wait_that_would_be_too_long_is_the_callers_to_decide(proxy: Proxy) -> None:
    proxy.on(posts("/query"), Answer(503, body(AWAY), {"Retry-After": "3600"}), times=None)
    started = time.monotonic()
    with omnigraph.connect(proxy.endpoint, graph="people", retry=5) as remote, pytest.raises(Unavailable):
        remote.query(PEOPLE)
    assert time.monotonic() - started < 3


def test_a_read_whose_answer_is_lost_is_asked_again(remote: RemoteGraph, proxy: Proxy) -> None:
    rule = proxy.on(posts("/query"), ApplyThenDrop())
    assert len(remote.query(PEOPLE).rows) == 2
    assert len(rule.hits) == 1


def test_a_write_whose_answer_is_lost_is_committed_once(remote: RemoteGraph, proxy: Proxy, graph: Graph) -> None:
    proxy.on(posts("/mutate"), ApplyThenDrop())
    commit = remote.mutate(ADD, params={"slug": "eve"})
    assert commit is not None
    assert [found.kind for found in graph.commits()] == ["mutation", "load", "init"]
    assert graph.commits()[0].id == commit.id


def test_a_load_whose_answer_is_lost_is_committed_once(remote: RemoteGraph, proxy: Proxy, graph: Graph) -> None:
    proxy.on(posts("/load"), ApplyThenDrop())
    result = remote.load([{"type": "Person", "data": {"slug": "eve"}}])
    assert result.commit is not None
    assert graph.commits()[0].id == result.commit.id
    assert len(graph.commits()) == 3


def test_a_write_that_gets_no_answer_in_time_may_have_been_committed(proxy: Proxy, graph: Graph) -> None:
    held = Hang()
    proxy.on(posts("/mutate"), held)
    with impatient(proxy) as remote, pytest.raises(AnswerLost, match="may have been committed") as lost:
        remote.mutate(ADD, params={"slug": "eve"})
    assert isinstance(lost.value, OutcomeUnknown)
    assert (lost.value.exit_code, lost.value.branch) == (6, "main")
    held.release.set()
    with omnigraph.connect(proxy.endpoint, graph="people") as patient:
        again = patient.mutate(ADD, params={"slug": "eve"}, txn_id=lost.value.txn_id)
    assert again is not None
    assert [found.txn_id for found in graph.commits()].count(lost.value.txn_id) == 1


def test_names_whose_answers_are_lost_are_made_and_deleted_once(
    remote: RemoteGraph, proxy: Proxy, graph: Graph
) -> None:
    proxy.on(posts("/branches"), ApplyThenDrop())
    remote.branches.create("agent")
    proxy.on(posts("/tag"), ApplyThenDrop())
    assert remote.tags.create("v1").commit_id == graph.tags.list()[0].commit_id
    assert graph.branches.list() == ["agent", "main"]
    proxy.on(lambda request: request.method == "DELETE", ApplyThenDrop())
    remote.branches.delete("agent")
    assert graph.branches.list() == ["main"]


def test_a_tag_is_not_deleted_twice_to_find_out(remote: RemoteGraph, proxy: Proxy, graph: Graph) -> None:
    graph.tags.create("v1")
    rule = proxy.on(lambda request: request.method == "DELETE", ApplyThenDrop(), times=None)
    with pytest.raises(AnswerLost, match="may have been committed"):
        remote.tags.delete("v1")
    assert len(rule.hits) == 1
    assert graph.tags.list() == []


def test_a_write_that_never_reached_the_server_is_sent_again(remote: RemoteGraph, proxy: Proxy, graph: Graph) -> None:
    proxy.on(posts("/mutate"), Drop())
    assert remote.mutate(ADD, params={"slug": "eve"}, txn_id=TXN) is not None
    assert graph.commits()[0].txn_id == TXN


def test_entities_that_can_be_read_once_are_not_sent_twice(remote: RemoteGraph, proxy: Proxy) -> None:
    proxy.on(posts("/load"), ApplyThenDrop())
    with pytest.raises(AnswerLost):
        remote.load(entity for entity in [{"type": "Person", "data": {"slug": "eve"}}])


def test_an_address_where_nobody_listens_is_said_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with omnigraph.connect(url, retry=0) as remote, pytest.raises(ServerUnreachable, match=url):
            remote.branches.list()


def test_what_is_no_omnigraph_server_is_said_so(proxy: Proxy) -> None:
    proxy.on(lambda _: True, Answer(404, b"<html>not here</html>"), times=None)
    with omnigraph.connect(proxy.endpoint) as remote, pytest.raises(ServerUnreachable, match="status 404"):
        remote.branches.list()


@pytest.mark.parametrize(
    "url", ["localhost:8080", "ftp://host", "http://host/?x=1", "", "http://", "http://h:x", "http://["]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(BadRequest, match=r"address of (a|the) server"):
        omnigraph.connect(url)


def test_what_json_has_no_words_for_is_not_sent(remote: RemoteGraph, proxy: Proxy) -> None:
    with pytest.raises(BadRequest, match="finite"):
        remote.analyze("pagerank", damping=float("nan"))
    with pytest.raises(BadRequest, match="finite"):
        remote.query(PEOPLE, params={"x": float("inf")})
    assert len(proxy.log) == 0


def test_an_export_that_breaks_off_leaves_no_file(tmp_path: Path) -> None:
    """A server that dies in the middle: what came is no export."""

    def half() -> None:
        for _ in range(2):
            connection, _ = listener.accept()
            with connection:
                request = connection.recv(65536)
                if b"/snapshot" in request:
                    found = body({"branch": "main", "commit_id": "abc.1", "manifest_version": 1, "types": []})
                    connection.sendall(
                        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(found), found)
                    )
                else:
                    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=half, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with omnigraph.connect(url) as remote, pytest.raises(ServerUnreachable, match="broke off"):
            remote.export(tmp_path / "out.jsonl")
        thread.join(10)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "quoted"), [("a/b", "a%2Fb"), ("..", "%2E%2E"), ("ä?#", "%C3%A4%3F%23"), (".x", ".x")]
)
def test_no_character_of_a_name_means_anything_to_a_url(name: str, quoted: str) -> None:
    assert quote_segment(name) == quoted


@pytest.mark.parametrize("text", ["", "a\nb", "ä", "x" * 201])
def test_what_is_no_header_is_not_sent(text: str, remote: RemoteGraph, proxy: Proxy) -> None:
    with pytest.raises(BadRequest, match="printable"):
        remote.mutate(ADD, params={"slug": "eve"}, txn_id=text)
    with pytest.raises(BadRequest, match="printable"):
        remote.mutate(ADD, params={"slug": "eve"}, if_commit=text)
    with pytest.raises(BadRequest, match="printable"):
        omnigraph.connect(proxy.endpoint, token=text)
    assert len(proxy.log) == 0


def test_a_password_in_an_address_is_not_repeated() -> None:
    with pytest.raises(BadRequest, match="give a token") as refused:
        omnigraph.connect("http://ada:secret@host")
    assert "secret" not in str(refused.value)


def test_a_redirect_is_not_followed_with_a_token(proxy: Proxy) -> None:
    proxy.on(lambda _: True, Answer(302, b"", {"Location": "http://127.0.0.1:1/"}), times=None)
    with omnigraph.connect(proxy.endpoint, token="t") as remote, pytest.raises(ServerUnreachable, match="status 302"):
        remote.branches.list()


def test_what_can_not_be_sent_ends_a_load_before_it_is_committed(remote: RemoteGraph, graph: Graph) -> None:
    people = [{"type": "Person", "data": {"slug": f"p{number}"}} for number in range(10_000)]
    with pytest.raises(BadRequest, match="object can't be sent"):
        remote.load([*people, {"type": "Person", "data": {"slug": object()}}])
    assert len(graph.commits()) == 2


def test_a_first_attempt_that_arrives_after_its_repetition_is_not_applied(
    server: Served, proxy: Proxy, graph: Graph
) -> None:
    """It hung on the way while the client gave up, asked again and wrote more."""
    held = Hang()
    rule = proxy.on(posts("/mutate"), held)
    with impatient(proxy) as remote, pytest.raises(AnswerLost) as lost:
        remote.mutate(ADD, params={"slug": "eve"})
    with omnigraph.connect(server.url, graph="people") as direct:
        landed = direct.mutate(ADD, params={"slug": "eve"}, txn_id=lost.value.txn_id)
        direct.mutate('query away() { delete Person where slug = "eve" }')
    newest = graph.snapshot().commit_id
    held.release.set()
    deadline = time.monotonic() + 20
    while not rule.hits[0].applied and time.monotonic() < deadline:
        time.sleep(0.01)
    assert landed is not None
    assert rule.hits[0].server_status == 200
    assert graph.snapshot().commit_id == newest
    assert {row["slug"] for row in graph.query(PEOPLE).rows} == {"ada", "bob"}


def test_an_actor_is_the_tokens(remote: RemoteGraph) -> None:
    with pytest.raises(BadRequest, match="leave out actor"):
        remote.mutate(ADD, params={"slug": "eve"}, actor="somebody")


def test_a_fresh_key_costs_nothing_and_a_repeated_one_is_looked_for(
    remote: RemoteGraph, graph: Graph, proxy: Proxy
) -> None:
    """Who makes a key for one write says behind which commit: a small commit stays the one put that it is."""
    for number in range(3):
        made = remote.mutate(ADD, params={"slug": f"p{number}"})
    assert made is not None
    assert made.cost.requests == 1
    asked = [request.path for request in proxy.log]
    assert asked == ["/graphs/people/snapshot", *["/graphs/people/mutate"] * 3]
    again = remote.mutate(ADD, params={"slug": "p2"}, txn_id=made.commit.txn_id)
    assert again is not None
    assert again.id == made.id


def test_a_job_that_can_not_be_polled_any_more_may_have_been_committed(proxy: Proxy, graph: Graph) -> None:
    proxy.on(lambda request: "/jobs/" in request.path, Drop(), times=None)
    document = b'{"type": "Person", "data": {"slug": "eve"}}\n'
    with omnigraph.connect(proxy.endpoint, graph="people", timeout=5, retry=0) as remote:
        session = remote._session
        ask = HttpRequest(
            "POST", f"{session.base}/load", body=lambda: iter([document]), write=session.commit_request("main")
        )
        with pytest.raises(AnswerLost, match="can't be asked for any more") as lost:
            session.run_job_with_files(ask)  # it does not wait for a job that ends at once
    patience = time.monotonic() + 20
    while len(graph.commits()) < 3 and time.monotonic() < patience:
        time.sleep(0.05)  # nobody waits for the job any more
    assert graph.commits()[0].txn_id == lost.value.txn_id
