"""Bodies that are expensive to unpack, to parse or to check: nobody else waits for them."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import httpx
import pytest

from hostile.siege import BOUNDS, EVERY_DAY, GRAPH, JSON, STRICT, Bounds, Target, at_once, besiege

PACKED = JSON | {"Content-Encoding": "gzip"}
MIB = 1024 * 1024
PARAMS = b'{"query": "x", "params": {"x": %s}}'
BODIES: dict[str, Callable[[], bytes]] = {
    "spaces": lambda: b" " * (15 * MIB),
    "brackets": lambda: b"[" * (15 * MIB),
    "deep names": lambda: b'{"a":' * (3 * MIB),
    "numbers": lambda: PARAMS % (b"[" + b"1," * (7 * MIB) + b"1]"),
    "floats": lambda: PARAMS % (b"[" + b"1e1," * (3 * MIB) + b"1]"),
    "empty objects": lambda: PARAMS % (b"[" + b"{}," * (5 * MIB) + b"1]"),
    "as many values as may be": lambda: PARAMS % (b"[" + b"1," * 200_000 + b"[]," * 4_900 + b"1]"),
    "one long number": lambda: PARAMS % (b"9" * (15 * MIB)),
    "numbers of 4,000 digits": lambda: PARAMS % (b"[" + (b"9" * 4000 + b",") * 3900 + b"1]"),
    "escapes": lambda: b'{"query": "' + b"\\n" * (7 * MIB) + b'"}',
    "half characters": lambda: b'{"query": "' + b"\\ud800" * (2 * MIB) + b'"}',
    "names": lambda: PARAMS % (b"{" + _names(1_200_000) + b"}"),
    "unknown fields": lambda: b"{" + _names(1_200_000) + b"}",
    "few unknown fields": lambda: b"{" + _names(2_500) + b"}",
    "one name again and again": lambda: b"{" + b'"a":0,' * (2 * MIB) + b'"a":0}',
    "wide characters": lambda: ('{"query": "' + "é😀" * (2 * MIB) + '"}').encode(),
    "no text": lambda: b'{"query": "' + b"\xff" * (15 * MIB) + b'"}',
    "open string": lambda: b'"' + b"a" * (15 * MIB),
}


def _names(count: int) -> bytes:
    return b",".join(b'"%x":0' % number for number in range(count))


def send(target: Target, content: bytes, times: int, statuses: set[int]) -> None:
    with target.client() as client:
        for _ in range(times):
            statuses.add(client.post(f"{GRAPH}/query", content=content, headers=PACKED).status_code)


def attack_by(target: Target, bodies: list[bytes], bounds: Bounds, senders: int) -> None:
    """Each body is sent by several at once."""
    statuses: set[int] = set()

    def attack(target: Target) -> None:
        with at_once([partial(send, target, body, bounds.scale, statuses) for body in bodies for _ in range(senders)]):
            pass

    besiege(target, attack, bounds)
    assert statuses <= {400, 413, 429}, statuses


def test_expensive_bodies_of_all_kinds_delay_nobody(target: Target) -> None:
    """A few kilobytes of gzip each."""
    attack_by(target, [gzip.compress(make(), 6) for make in BODIES.values()], EVERY_DAY, senders=2)


@pytest.mark.soak
@pytest.mark.alone
@pytest.mark.parametrize("kind", list(BODIES))
def test_an_expensive_body_delays_nobody(target: Target, kind: str) -> None:
    attack_by(target, [gzip.compress(BODIES[kind](), 6)], STRICT, senders=6)


@BOUNDS
def test_gzip_of_nothing_but_empty_members_delays_nobody(target: Target, bounds: Bounds) -> None:
    attack_by(target, [gzip.compress(b"") * 200_000], bounds, senders=3)


@BOUNDS
def test_bodies_that_nobody_reads_delay_nobody(target: Target, bounds: Bounds) -> None:
    """The answer is there before the body: the rest of it is not waited for."""
    head = target.head("POST", f"{GRAPH}/mutate", "Content-Type: application/json", f"Content-Length: {2**33}")

    def one() -> None:
        end = time.monotonic() + 5.0 * bounds.scale
        with target.connect() as raw, suppress(OSError):
            raw.sendall(head)
            while time.monotonic() < end:
                raw.sendall(bytes(MIB))

    def attack(_: Target) -> None:
        with at_once([one] * 8):
            pass

    besiege(target, attack, bounds)


@BOUNDS
def test_many_bodies_that_stop_coming_take_no_place_from_others(target: Target, bounds: Bounds) -> None:
    head = target.head("POST", f"{GRAPH}/query", "Content-Type: application/json", f"Content-Length: {15 * MIB}")
    with_some = head + b" " * 60_000

    def attack(target: Target) -> None:
        raws = [target.connect() for _ in range(200)]
        try:
            for raw in raws:
                raw.sendall(with_some)
            time.sleep(3.0 * bounds.scale)
        finally:
            for raw in raws:
                raw.close()

    besiege(target, attack, bounds)


@BOUNDS
def test_parameters_without_end_delay_nobody(target: Target, bounds: Bounds) -> None:
    query = "&".join(f"{number:x}" for number in range(3000))

    def one() -> None:
        with target.client() as client:
            for _ in range(5 * bounds.scale):
                assert client.get(f"{GRAPH}/snapshot?{query}").status_code == 400

    def attack(_: Target) -> None:
        with at_once([one] * 4):
            pass

    besiege(target, attack, bounds)


@pytest.mark.parametrize(
    ("path", "role"),
    [
        ("/mutate", "reader"),
        ("/load", "reader"),
        ("/branches", "reader"),
        ("/tag", "reader"),
        ("/revert", "reader"),
        ("/schema/apply", "writer"),
        ("/optimize", "writer"),
        ("/cleanup", "writer"),
        ("/verify", "writer"),
        ("/recover", "writer"),
        ("/query", None),
        ("/load", None),
    ],
)
def test_who_may_not_do_it_is_told_so_before_the_body_comes(target: Target, path: str, role: str | None) -> None:
    head = target.head("POST", f"{GRAPH}{path}", "Content-Type: application/json", "Content-Length: 1000", role=role)
    with target.connect(timeout_s=30) as raw:
        raw.sendall(head)
        answer = raw.recv(65536)

    assert answer.split(b" ")[1] == (b"403" if role else b"401"), answer


def test_who_may_not_send_a_body_is_not_asked_to_go_on_with_it(target: Target) -> None:
    expecting = ("Content-Type: application/json", "Content-Length: 1000", "Expect: 100-continue")
    with target.connect(timeout_s=30) as raw:
        raw.sendall(target.head("POST", f"{GRAPH}/mutate", *expecting))
        assert raw.recv(65536).startswith(b"HTTP/1.1 403 ")
    with target.connect(timeout_s=30) as raw:
        raw.sendall(target.head("POST", f"{GRAPH}/query", *expecting))
        assert raw.recv(65536).startswith(b"HTTP/1.1 100 ")


def test_a_large_text_is_taken(target: Target) -> None:
    query = "query q($x: String) { match { $p: Person { slug: $x } } return { $p.name as name } }"
    with target.client() as client:
        answer: httpx.Response = client.post(f"{GRAPH}/query", json={"query": query, "params": {"x": "😀" * 3_000_000}})
    assert answer.json()["rows"] == []
