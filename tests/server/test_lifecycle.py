"""A server from its start to its end: where it binds, what it says, what it finishes."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from omnigraph.errors import BadRequest
from omnigraph.graph.graph import Graph
from omnigraph.server.run import Bind, parse_bind, require_safe
from omnigraph.server.settings import ServerSettings
from support.server import ADD, PEOPLE, ServerProcess, ndjson, token


def test_an_address_is_host_and_port() -> None:
    assert parse_bind("127.0.0.1:80") == Bind("127.0.0.1", 80)
    assert parse_bind("[::1]:80") == Bind("::1", 80)
    assert parse_bind(":80") == Bind("127.0.0.1", 80)
    for text in ("80", "host", "host:x", "host:99999", ""):
        with pytest.raises(BadRequest):
            parse_bind(text)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        *[(host, True) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost")],
        *[(host, False) for host in ("0.0.0.0", "::", "10.0.0.1", "localhost.evil.example", "")],
    ],
)
def test_without_tokens_only_loopback_is_bound(host: str, loopback: bool, tmp_path: Path) -> None:
    bind = Bind(host, 1)
    require_safe(bind, ServerSettings(), unauthenticated=True)
    require_safe(bind, ServerSettings(tokens=tmp_path), unauthenticated=False)
    if loopback:
        require_safe(bind, ServerSettings(), unauthenticated=False)
    else:
        with pytest.raises(BadRequest, match="--unauthenticated"):
            require_safe(bind, ServerSettings(), unauthenticated=False)


def test_the_command_refuses_to_be_open_to_the_world(store: Path, graph: Graph) -> None:
    with ServerProcess("--store", str(store), "--bind", "0.0.0.0:0") as server:
        assert server.wait() == 1
        assert "--unauthenticated" in str(server.log)


def test_several_graphs_are_served_and_one_that_can_not_be_opened_is_reported(
    store: Path, graph: Graph, tmp_path: Path
) -> None:
    with ServerProcess("--graph", f"people={store}", "--graph", f"gone={tmp_path}/gone") as server:
        with server.client() as client:
            assert client.get("/graphs/people/snapshot").status_code == 200
            assert client.get("/graphs/gone/snapshot").status_code == 503
        started = next(line for line in server.log if line["message"] == "serving")
        assert started["graphs"] == {"people": True, "gone": False}
        assert any(line["level"] == "error" and line.get("graph") == "gone" for line in server.log)
        assert str(tmp_path) not in json.dumps([line for line in server.log if "graph" in line])


def test_a_signal_lets_what_is_in_flight_end(store: Path, graph: Graph) -> None:
    """A load whose body is still coming when the signal comes is answered, and committed."""
    with ServerProcess("--store", str(store)) as server:
        half = threading.Event()
        answers: list[httpx.Response] = []

        def pieces() -> Any:
            yield ndjson([{"type": "Person", "data": {"slug": "early"}}]).encode()
            half.set()
            time.sleep(1.5)
            yield ndjson([{"type": "Person", "data": {"slug": "late"}}]).encode()

        def load() -> None:
            with server.client() as client:
                answers.append(client.post("/graphs/default/load", content=pieces()))

        thread = threading.Thread(target=load)
        thread.start()
        assert half.wait(10)
        time.sleep(0.3)
        server.signal(signal.SIGTERM)
        thread.join(30)

        assert server.wait(30) == 0
        assert answers[0].json()["counts"] == {"Person": 2}
        assert {row["slug"] for row in graph.query(PEOPLE).rows} >= {"early", "late"}
        assert [line["signal"] for line in server.log if line["message"] == "ending"] == ["SIGTERM"]


SLOW_VERIFY = """
import time
from omnigraph.graph.graph import Graph
verify = Graph.verify
def slowly(graph, *words, **named):
    time.sleep({seconds})
    return verify(graph, *words, **named)
Graph.verify = slowly
import omnigraph.server.jobs as jobs
jobs.STOP_WAIT_S = 0.2
"""


def test_a_signal_lets_streams_and_jobs_end(store: Path, graph: Graph) -> None:
    """A stream is read to its end, jobs that run get done, and who waits for one hears so; what waits never begins."""
    graph.load([{"type": "Person", "data": {"slug": f"p{n}", "name": "x" * 1000}} for n in range(8000)])
    answers: list[httpx.Response] = []
    with ServerProcess("--store", str(store), before=SLOW_VERIFY.format(seconds=3)) as server:

        def verify() -> None:
            with server.client() as client:
                answers.append(client.post("/graphs/default/verify", json={}, headers={"Prefer": "wait=20"}))

        with server.client() as client, client.stream("POST", "/graphs/default/export", json={}) as stream:
            lines = stream.iter_lines()
            next(lines)
            threads = [threading.Thread(target=verify) for _ in range(3)]  # two run at once
            for thread in threads:
                thread.start()
            while len(client_jobs(server)) < 3:
                time.sleep(0.01)
            server.signal(signal.SIGTERM)
            time.sleep(0.5)
            assert sum(1 for _ in lines) == 8000 + 2
        for thread in threads:
            thread.join(30)

        assert server.wait(30) == 0
        assert sorted(answer.status_code for answer in answers) == [200, 200, 503]
        for answer in answers:
            if answer.status_code == 200:
                assert answer.json()["ok"]
            else:
                assert answer.json()["details"] == {"stopped": "the server ends"}


def client_jobs(server: ServerProcess) -> list[Any]:
    with server.client() as client:
        return list(client.get("/graphs/default/jobs").json()["jobs"])


@pytest.mark.parametrize(("grace", "signals", "code"), [("30", 2, 130), ("1", 1, 1)])
def test_a_job_that_takes_too_long_is_cut_off(store: Path, graph: Graph, grace: str, signals: int, code: int) -> None:
    """By a second signal at once, or when the grace is over; which the exit code says."""
    slow = SLOW_VERIFY.format(seconds=25)
    with ServerProcess("--store", str(store), "--grace", grace, before=slow) as server:
        with server.client() as client:
            client.post("/graphs/default/verify", json={})
        for number in range(signals):
            time.sleep(0.6 * number)  # by then nothing is left but the job
            server.signal(signal.SIGTERM)

        assert server.wait(10) == code
        assert [line["at_once"] for line in server.log if line["message"] == "ending"] == [False, True][:signals]


def test_a_second_signal_does_not_wait(store: Path, graph: Graph) -> None:
    with ServerProcess("--store", str(store)) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as slow:
            head = f"POST /graphs/default/load HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1000\r\n\r\n"
            slow.sendall(head.encode() + b"{")
            time.sleep(0.5)
            server.signal(signal.SIGTERM)
            time.sleep(0.5)
            assert server.process.poll() is None
            server.signal(signal.SIGTERM)

            assert server.wait(10) == 130


def test_a_server_that_ends_takes_no_new_requests(store: Path, graph: Graph) -> None:
    with ServerProcess("--store", str(store)) as server:
        server.signal(signal.SIGINT)

        assert server.wait(30) == 0
        with server.client() as client, pytest.raises(httpx.ConnectError):
            client.get("/healthz")


def test_the_log_has_one_object_a_request_and_no_token(store: Path, graph: Graph, tmp_path: Path) -> None:
    text = token(tmp_path / "tokens", "ada", "write")
    with ServerProcess("--store", str(store), "--tokens", str(tmp_path / "tokens")) as server:
        with server.client(text) as client:
            client.post("/graphs/default/mutate", json={"query": ADD, "params": {"slug": "cy"}})
            client.get("/graphs/default/snapshot?branch=nowhere", headers={"X-Request-Id": "mine-1"})
        with server.client("og_wrong-token-wrong-token") as client:
            client.get("/graphs")
        server.signal(signal.SIGTERM)
        server.wait(30)

    lines = [line for line in server.log if line.get("message") == "request"]
    assert [(line["route"], line["status"], line["actor"]) for line in lines] == [
        ("/graphs/{graph}/mutate", 200, "ada"),
        ("/graphs/{graph}/snapshot", 404, "ada"),
        ("/graphs", 401, None),
    ]
    assert lines[0]["cost"] == {"requests": 1, "stages": 1, "bytes": lines[0]["cost"]["bytes"], "retries": 0}
    assert lines[1]["request_id"] == "mine-1"
    assert lines[1]["code"] == "not_found"
    everything = json.dumps(server.log)
    assert text not in everything
    assert "wrong-token" not in everything
