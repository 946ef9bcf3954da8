"""Connections: deadlines, and answers that are not read. Attacks on them are in tests/hostile."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import omnigraph
from omnigraph.server.settings import Limits, ServerSettings
from support.server import QUICK, Served, served

ASK = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
COLUMNS = ", ".join(f"$x.text as t{number}" for number in range(20))
ROWS = json.dumps({"query": f"query q() {{ match {{ $x: N }} return {{ {COLUMNS} }} }}"}).encode()
COUNT = "query q() { match { $x: N } return { count($x) as n } }"
ANSWER_BYTES_MIN = 15_000_000


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph of which one short query returns 16 MB."""
    folder = tmp_path_factory.mktemp("wide") / "graph"
    graph = omnigraph.init(folder, "node N { slug: String @key  text: String }", QUICK)
    graph.load([{"type": "N", "data": {"slug": f"n{number}", "text": "x" * 400}} for number in range(2000)])
    return folder


@contextmanager
def limited(graph: Path, limits: Limits) -> Iterator[Served]:
    with served({"g": graph}, ServerSettings(limits=limits, grace_s=1.0)) as server:
        yield server


def connect(server: Served) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.settimeout(30)
    raw.connect((host, int(port)))
    return raw


def ask_for_rows(server: Served, accept: str = "application/json") -> socket.socket:
    raw = connect(server)
    lines = ("POST /graphs/g/query HTTP/1.1", "Host: x", f"Accept: {accept}", "Content-Type: application/json")
    raw.sendall("\r\n".join((*lines, f"Content-Length: {len(ROWS)}", "\r\n")).encode() + ROWS)
    raw.recv(1)
    return raw


def read_to_end(raw: socket.socket, wanted: int = ANSWER_BYTES_MIN) -> int:
    """How much came until the connection was cut, or enough was there."""
    size = 0
    with suppress(OSError):
        while size < wanted and (piece := raw.recv(1_000_000)):
            size += len(piece)
    return size


def test_of_the_answers_that_nobody_reads_the_oldest_is_given_up(wide: Path) -> None:
    with (
        limited(wide, Limits(unread_bytes=20_000_000)) as server,
        ask_for_rows(server) as first,
        ask_for_rows(server) as second,
        ask_for_rows(server) as third,
    ):
        assert read_to_end(third) >= ANSWER_BYTES_MIN
        assert read_to_end(first) < ANSWER_BYTES_MIN
        assert read_to_end(second) < ANSWER_BYTES_MIN


def test_an_answer_that_is_not_read_is_cut_off_after_a_while(wide: Path) -> None:
    with limited(wide, Limits(stall_s=0.5)) as server, ask_for_rows(server) as raw:
        time.sleep(2.0)

        assert read_to_end(raw) < ANSWER_BYTES_MIN


def test_streams_that_are_read_slowly_leave_their_places_to_others(wide: Path) -> None:
    ended = threading.Event()

    def read_slowly(raw: socket.socket) -> None:
        while not ended.is_set():
            with suppress(OSError):
                raw.recv(1000)
            time.sleep(0.1)

    limits = Limits(running=2, running_per_actor=2, waiting_s=60.0)
    with (
        limited(wide, limits) as server,
        ask_for_rows(server, "application/x-ndjson") as first,
        ask_for_rows(server, "application/x-ndjson") as second,
    ):
        readers = [threading.Thread(target=read_slowly, args=(raw,)) for raw in (first, second)]
        for reader in readers:
            reader.start()
        try:
            time.sleep(7.0)
            assert server.service.admission.running == 2  # nobody else needs the places
            with server.client() as client:
                answer = client.post("/graphs/g/query", json={"query": COUNT})
        finally:
            ended.set()
            for reader in readers:
                reader.join()

    assert answer.json()["rows"] == [{"n": 2000}]


def test_an_answer_that_is_read_slowly_is_sent_to_its_end(wide: Path) -> None:
    with limited(wide, Limits(stall_s=5.0)) as server, ask_for_rows(server) as raw:
        size = 0
        while size < ANSWER_BYTES_MIN:
            size += read_to_end(raw, 2_500_000)
            time.sleep(1.0)

    assert size >= ANSWER_BYTES_MIN


@pytest.mark.parametrize(("sent", "status"), [(b"", b""), (b"GET /healthz HT", b"408"), (ASK[:-2], b"408")])
def test_a_head_has_to_come_within_its_deadline(wide: Path, sent: bytes, status: bytes) -> None:
    with limited(wide, Limits(head_s=3.0)) as server, connect(server) as raw:
        raw.sendall(sent)
        answer = b"".join(iter(lambda: raw.recv(65536), b""))

    assert answer.split(b" ")[1:2] == [status] * bool(status)


def test_the_deadline_of_a_head_holds_for_the_next_request_of_a_connection_too(wide: Path) -> None:
    with limited(wide, Limits(head_s=3.0)) as server, connect(server) as raw:
        raw.sendall(ASK)
        raw.sendall(ASK + ASK[:10])
        answer = b"".join(iter(lambda: raw.recv(65536), b""))

    assert answer.count(b"HTTP/1.1 200 ") == 2
    assert answer.count(b"HTTP/1.1 408 ") == 1


def test_a_connection_goes_on_after_a_request_that_was_refused_before_its_body_came(wide: Path) -> None:
    with limited(wide, Limits()) as server, connect(server) as raw:
        raw.sendall(b"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n")
        answer = b""
        while not answer.endswith(b"}}"):
            answer += raw.recv(65536)
        raw.sendall(b"12345" + ASK)

        assert answer.startswith(b"HTTP/1.1 404 ")
        assert raw.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_a_body_that_nobody_reads_has_a_deadline(wide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omnigraph.server.http.connections.DRAIN_S", 0.5)
    with limited(wide, Limits()) as server, connect(server) as raw:
        raw.sendall(b"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n")
        answer = b"".join(iter(lambda: raw.recv(65536), b""))

    assert answer.startswith(b"HTTP/1.1 404 ")
