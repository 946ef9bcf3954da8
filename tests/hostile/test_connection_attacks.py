"""Connections that are opened and not used, requests that never end, and heads that may be read in two ways."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from hostile.conftest import target_of
from hostile.siege import ATTACKER, BOUNDS, GRAPH, POINT, Bounds, Target, at_once, besiege

MIB = 1024 * 1024
OTHERS = tuple(f"127.0.0.{number}" for number in range(70, 76))
HEAD_S = 10.0
ASK = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@contextmanager
def opened(target: Target, count: int, sent: bytes = b"", addresses: tuple[str, ...] = (ATTACKER,)) -> Iterator[None]:
    """So many connections at once, each of which has sent the same."""
    raws: list[socket.socket] = []
    try:
        for number in range(count):
            with suppress(OSError):
                raws.append(target.connect(addresses[number % len(addresses)]))
                raws[-1].sendall(sent)
        yield
    finally:
        for raw in raws:
            raw.close()


def hold(
    target: Target, bounds: Bounds, count: int, sent: bytes, addresses: tuple[str, ...] = (ATTACKER,), held_s: float = 2
) -> None:
    def attack(target: Target) -> None:
        with opened(target, count, sent, addresses):
            time.sleep(held_s * bounds.scale)

    besiege(target, attack, bounds)


@BOUNDS
@pytest.mark.parametrize(
    "sent", [b"", b"G", b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: "], ids=["nothing", "a letter", "a part of a head"]
)
def test_half_open_connections_block_nobody(target: Target, sent: bytes, bounds: Bounds) -> None:
    hold(target, bounds, 1500, sent)


FEW_FILES = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))"


@BOUNDS
def test_half_open_connections_do_not_use_up_the_files(large_store: Path, tmp_path: Path, bounds: Bounds) -> None:
    with target_of(large_store, tmp_path, before=FEW_FILES) as target:
        hold(target, bounds, 1500, b"GET /", held_s=6)


@BOUNDS
def test_connections_of_many_peers_block_nobody(large_store: Path, tmp_path: Path, bounds: Bounds) -> None:
    limits = ("--max-connections", "200", "--max-connections-per-peer", "100")
    with target_of(large_store, tmp_path, *limits) as target:
        hold(target, bounds, 600, b"GET /healthz HTTP/1.1\r\n", OTHERS)


@BOUNDS
def test_idle_connections_block_nobody(large_store: Path, tmp_path: Path, bounds: Bounds) -> None:
    """They have all been served once."""
    limits = ("--max-connections", "200", "--max-connections-per-peer", "100")
    with target_of(large_store, tmp_path, *limits) as target:
        hold(target, bounds, 600, ASK, OTHERS)


@BOUNDS
def test_connections_that_come_and_go_delay_nobody(target: Target, bounds: Bounds) -> None:
    def one() -> None:
        for _ in range(300 * bounds.scale):
            with suppress(OSError):
                target.connect().close()

    def attack(_: Target) -> None:
        with at_once([one] * 4):
            pass

    besiege(target, attack, bounds)


@BOUNDS
def test_requests_that_are_sent_all_at_once_delay_nobody(target: Target, bounds: Bounds) -> None:
    def attack(target: Target) -> None:
        raws = [target.connect(timeout_s=5) for _ in range(4)]
        for raw in raws:
            raw.settimeout(0.5)
            with suppress(OSError):
                raw.sendall(ASK * 3000 * bounds.scale)
        time.sleep(2.0)
        for raw in raws:
            raw.close()

    besiege(target, attack, bounds)


@BOUNDS
def test_a_body_of_one_byte_chunks_delays_nobody(target: Target, bounds: Bounds) -> None:
    head = target.head("POST", f"{GRAPH}/query", "Content-Type: application/json", "Transfer-Encoding: chunked")
    chunks = b"1\r\n \r\n" * 300_000

    def one() -> None:
        for _ in range(5 * bounds.scale):
            with target.connect() as raw, suppress(OSError):
                raw.sendall(head + chunks + b"0\r\n\r\n")
                raw.recv(65536)

    def attack(_: Target) -> None:
        with at_once([one] * 4):
            pass

    besiege(target, attack, bounds)


@BOUNDS
def test_answers_that_nobody_reads_block_nobody(target: Target, bounds: Bounds) -> None:
    body = json.dumps(
        {"query": "query q() { match { $p: Person } return { $p.slug as slug, $p.text as text } }"}
    ).encode()
    head = target.head("POST", f"{GRAPH}/query", "Content-Type: application/json", f"Content-Length: {len(body)}")
    hold(target, bounds, 30, head + body)


@BOUNDS
def test_heads_of_many_headers_delay_nobody(target: Target, bounds: Bounds) -> None:
    head = b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"a:\r\n" * 4000 + b"\r\n"

    def one() -> None:
        for _ in range(20 * bounds.scale):
            with target.connect() as raw, suppress(OSError):
                raw.sendall(head)
                assert raw.recv(65536).startswith(b"HTTP/1.1 431 ")

    def attack(_: Target) -> None:
        with at_once([one] * 4):
            pass

    besiege(target, attack, bounds)


# What a connection gets


def answer_to(target: Target, sent: bytes, timeout_s: float = 30) -> bytes:
    with target.connect(timeout_s=timeout_s) as raw:
        raw.sendall(sent)
        answer = b""
        with suppress(ConnectionResetError):
            while piece := raw.recv(65536):
                answer += piece
        return answer


def test_a_head_that_trickles_in_gets_a_408_after_ten_seconds(target: Target) -> None:
    started = time.monotonic()
    with target.connect(timeout_s=60) as raw:
        raw.settimeout(1.0)
        answer = b""
        with suppress(OSError):
            for letter in b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 200:
                raw.sendall(bytes([letter]))
                try:
                    answer = raw.recv(65536)
                    break
                except TimeoutError:
                    continue

    assert answer.startswith(b"HTTP/1.1 408 "), answer
    assert time.monotonic() - started > HEAD_S - 1


def test_a_connection_that_says_nothing_is_closed_after_ten_seconds(target: Target) -> None:
    started = time.monotonic()

    assert answer_to(target, b"", timeout_s=60) == b""
    assert time.monotonic() - started > HEAD_S - 1


def test_a_full_server_answers_503_while_all_connections_work(large_store: Path, tmp_path: Path) -> None:
    with target_of(large_store, tmp_path, "--max-connections", "5", "--max-connections-per-peer", "5") as target:
        body = target.head("POST", f"{GRAPH}/query", "Content-Type: application/json", "Content-Length: 1000")
        with opened(target, 5, body):
            time.sleep(1.0)
            answer = answer_to(target, ASK)
        assert answer.startswith(b"HTTP/1.1 503 "), answer
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "too_many_requests"


def test_a_peer_that_is_full_does_not_concern_another(large_store: Path, tmp_path: Path) -> None:
    with target_of(large_store, tmp_path, "--max-connections-per-peer", "5") as target:
        body = target.head("POST", f"{GRAPH}/query", "Content-Type: application/json", "Content-Length: 1000")
        with opened(target, 5, body):
            time.sleep(1.0)
            assert answer_to(target, ASK).startswith(b"HTTP/1.1 503 ")
            with target.connect(OTHERS[0]) as raw:
                raw.sendall(ASK)
                assert raw.recv(65536).startswith(b"HTTP/1.1 200 ")


def query_head(*headers: str) -> bytes:
    lines = (f"POST {GRAPH}/query HTTP/1.1", "Host: x", "Content-Type: application/json", *headers)
    return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n"


LENGTH = f"Content-Length: {len(POINT)}"
SMUGGLED = {
    "bare line feeds": (b"GET /healthz HTTP/1.1\nHost: x\n\n", 400),
    "one bare line feed": (b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: b\nX-C: d\r\n\r\n", 400),
    "a bare line feed at the end": (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\n", 400),
    "a bare carriage return": (b"GET /healthz HTTP/1.1\r\nHost: x\rX-A: b\r\n\r\n", 400),
    "both lengths": (query_head(LENGTH, "Transfer-Encoding: chunked") + b"0\r\n\r\n", 400),
    "both lengths, the other way": (query_head("Transfer-Encoding: chunked", LENGTH) + b"0\r\n\r\n", 400),
    "two lengths": (query_head(LENGTH, "Content-Length: 0") + POINT.encode(), 400),
    "one length twice": (query_head(LENGTH, LENGTH) + POINT.encode(), 400),
    "a length with a sign": (query_head(f"Content-Length: +{len(POINT)}") + POINT.encode(), 400),
    "another encoding": (query_head("Transfer-Encoding: gzip, chunked") + b"0\r\n\r\n", 501),
    "two encodings": (query_head("Transfer-Encoding: chunked", "Transfer-Encoding: chunked") + b"0\r\n\r\n", 501),
    "an encoding in HTTP/1.0": (
        query_head("Transfer-Encoding: chunked").replace(b"HTTP/1.1", b"HTTP/1.0") + b"0\r\n\r\n",
        400,
    ),
    "a folded header": (b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: b\r\n c\r\n\r\n", 400),
    "a space before the colon": (b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A : b\r\n\r\n", 400),
    "two hosts": (b"GET /healthz HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
    "no host": (b"GET /healthz HTTP/1.1\r\n\r\n", 400),
    "a chunk of no length": (query_head("Transfer-Encoding: chunked") + b"x\r\nabc\r\n0\r\n\r\n", 400),
    "a chunk with a bare line feed": (query_head("Transfer-Encoding: chunked") + b"1\n{\r\n0\r\n\r\n", 400),
    "a long request line": (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
    "a long header": (b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 20_000 + b"\r\n\r\n", 431),
    "many headers": (b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"X-A: b\r\n" * 200 + b"\r\n", 431),
}


@pytest.fixture(scope="module")
def quiet(large_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with target_of(large_store, tmp_path_factory.mktemp("quiet")) as found:
        yield found


@pytest.mark.parametrize("kind", list(SMUGGLED))
def test_a_request_whose_end_is_not_clear_is_refused_and_its_connection_closed(quiet: Target, kind: str) -> None:
    sent, status = SMUGGLED[kind]
    token = f"Authorization: Bearer {quiet.tokens['reader']}\r\nHost: x\r\n".encode()
    answer = answer_to(quiet, sent.replace(b"Host: x\r\n", token, 1) if b"/query" in sent else sent)

    assert answer.startswith(b"HTTP/1.1 %d " % status), answer
    assert b"\r\nconnection: close\r\n" in answer.lower()
    assert answer.count(b"HTTP/1.1 ") == 1


def test_ordinary_chunks_and_pipelined_requests_are_served(quiet: Target) -> None:
    text = POINT.encode()
    chunked = b"%x\r\n%s\r\n1\r\n%s\r\n0\r\n\r\n" % (len(text) - 1, text[:-1], text[-1:])
    head = quiet.head("POST", f"{GRAPH}/query", "Content-Type: application/json", "Transfer-Encoding: chunked")
    with quiet.connect(timeout_s=30) as raw:
        raw.sendall(head + chunked + ASK + ASK + ASK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        answer = b"".join(iter(lambda: raw.recv(65536), b""))

    assert answer.count(b"HTTP/1.1 200 ") == 4
    assert b"Name 77" in answer
