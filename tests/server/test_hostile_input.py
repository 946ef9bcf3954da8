"""Hostile inputs are refused cleanly and quickly, whatever they are."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import socket
import tarfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnigraph.diff.changes import Filters
from omnigraph.diff.cursor import encode_token, fingerprint
from omnigraph.errors import BadRequest, StorageFull
from omnigraph.graph.graph import Graph
from omnigraph.server.http.json_body import parse_json
from omnigraph.server.scratch import spool
from omnigraph.server.settings import Limits, ServerSettings
from support.server import ADD, PEOPLE, Served, ndjson, people_graph, served

JSON = {"Content-Type": "application/json"}
PACKED = {"Content-Encoding": "gzip"}
QUICK_S = 5.0  # on a machine that does other things too
NAMES = [
    "..",
    "../..",
    "a/../../b",
    "%2e%2e%2f",
    "a//b",
    "/etc/passwd",
    "main\x00",
    "a\nb",
    "-x",
    "C:\\x",
    "é",
    "x" * 201,
    "' OR 1=1 --",
    '"; DROP TABLE x; --',
    "${jndi:ldap://x}",
    "{{7*7}}",
    "\u202e",
    "__refs",
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile") / "graph"


@pytest.fixture(scope="module")
def graph(store: Path) -> Graph:
    return people_graph(store)


@pytest.fixture(scope="module")
def server(graph: Graph, store: Path) -> Iterator[Served]:
    """One for all: whatever is sent to it, it goes on."""
    with served({"people": store}) as running:
        yield running


@pytest.fixture(scope="module")
def http(server: Served) -> Iterator[httpx.Client]:
    with server.client() as client:
        client.base_url = httpx.URL(f"{server.url}/graphs/people")
        yield client


def clean(answer: httpx.Response) -> None:
    assert 400 <= answer.status_code < 500, answer.text
    assert set(answer.json()) == {"error", "code", "details"}
    assert "Traceback" not in answer.text


@pytest.mark.parametrize("name", NAMES)
def test_a_branch_that_can_not_be_is_refused_everywhere(http: httpx.Client, store: Path, name: str) -> None:
    before = sorted(path.relative_to(store) for path in store.rglob("*"))

    if name not in ("__refs", "-x"):  # as branches of their own these are merely unknown
        clean(http.post("/branches", json={"name": name}))
    clean(http.post("/query", json={"query": PEOPLE, "branch": name}))
    clean(http.post("/mutate", json={"query": ADD, "params": {"slug": "x"}, "branch": name}))
    clean(http.post("/load", params={"branch": name}, content=ndjson()))
    clean(http.get("/snapshot", params={"branch": name}))
    clean(http.get("/changes", params={"branch": name}))
    clean(http.post("/branches/merge", json={"source": name}))
    clean(http.delete(f"/branches/{quote(name, safe='')}"))
    for at in (name, f"tag:{name}"):
        clean(http.post("/query", json={"query": PEOPLE, "at": at}))
    clean(http.get(f"/commits/{quote(name, safe='')}"))
    clean(http.delete(f"/tag/{quote(name, safe='')}"))

    after = sorted(path.relative_to(store) for path in store.rglob("*"))
    assert after == before


@pytest.mark.parametrize(
    "path", ["/graphs/../../etc/passwd", "/graphs/%2e%2e/x", "//graphs", "/graphs/people%00/schema"]
)
def test_a_path_that_climbs_finds_nothing(server: Served, path: str) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as raw:
        raw.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: raw.recv(65536), b""))

    assert answer.split(b" ", 2)[1] in (b"400", b"404")
    assert b"root:" not in answer


@pytest.mark.parametrize(
    "value",
    [
        "' OR 1=1 --",
        '") } } query evil() { delete Person',
        "\x00",
        "\U0001d54f" * 100,
        "null",
        "ada' --",
        "\\",
        "%",
        "_",
    ],
)
def test_a_parameter_is_a_value_and_never_part_of_a_filter(http: httpx.Client, graph: Graph, value: str) -> None:
    read = "query q($x: String) { match { $p: Person { slug: $x } } return { $p.slug as slug } }"
    found = http.post("/query", json={"query": read, "params": {"x": value}})
    assert (found.status_code, found.json().get("rows")) == (200, [])

    made = http.post("/mutate", json={"query": ADD, "params": {"slug": value}})
    if made.status_code == 200:
        again = http.post("/query", json={"query": read, "params": {"x": value}})
        assert again.json()["rows"] == [{"slug": value}]
    else:
        clean(made)
    assert {"ada", "bob"} <= {row["slug"] for row in graph.query(PEOPLE).rows}


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 1_000_000,
        b'{"query":' * 100_000,
        b'{"params": ' + b"[" * 100 + b"]" * 100 + b', "query": "x"}',
        b"\xff\xfe\x00",
        b'{"query": "\xff"}',
        b'{"query": "\\ud800"}',
        b'{"query": NaN}',
        b'{"query": "x", "params": {"x": Infinity}}',
        b'{"query": ' + b"9" * 10_000 + b"}",
        b'{"query": "x", "params": {"x": 1e400}}',
        b'{"query": "x", "query": "y"}',
        b'{"query": "x", "params": {"a": 1, "b": {"c": 1, "c": 2}}}',
        b'{"query": "x", "params": {}, "' + b"k" * 100_000 + b'": 1}',
        b"",
        b"null",
        b"[]",
        b'{"query"',
        b"\xef\xbb\xbf{}",
    ],
)
def test_a_body_that_is_no_json_is_refused_quickly(http: httpx.Client, body: bytes) -> None:
    started = time.monotonic()

    for path in ("/query", "/mutate", "/branches", "/export", "/queries/x"):
        answer = http.post(path, content=body, headers=JSON)
        clean(answer)
        assert len(answer.content) < 5000

    assert time.monotonic() - started < QUICK_S


def test_a_gzip_bomb_is_noticed_at_the_limit(http: httpx.Client, server: Served) -> None:
    bomb = gzip.compress(b" " * 300_000_000, compresslevel=9)
    started = time.monotonic()

    answer = http.post("/query", content=bomb, headers=JSON | PACKED)

    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert time.monotonic() - started < QUICK_S


def test_gzipped_bodies_are_taken_and_broken_ones_refused(http: httpx.Client) -> None:
    good = gzip.compress(json.dumps({"query": PEOPLE}).encode())
    lines = gzip.compress(ndjson([{"type": "Person", "data": {"slug": "packed"}}]).encode())

    assert http.post("/query", content=good, headers=JSON | PACKED).status_code == 200
    assert http.post("/load", content=lines, headers=PACKED).json()["counts"] == {"Person": 1}
    clean(http.post("/query", content=good[:-12], headers=JSON | PACKED))
    clean(http.post("/load", content=b"not gzip", headers=PACKED))
    clean(http.post("/load", content=b"x", headers={"Content-Encoding": "br"}))


def tar(*members: tuple[str, bytes, bytes]) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as file:
        for name, kind, data in members:
            info = tarfile.TarInfo(name)
            info.type, info.size, info.linkname = kind, len(data), "/etc/passwd"
            file.addfile(info, io.BytesIO(data))
    return archive.getvalue()


@pytest.mark.parametrize(
    "members",
    [
        [("../../evil.sh", tarfile.REGTYPE, b"x")],
        [("Person.jsonl", tarfile.SYMTYPE, b"")],
        [("Person.jsonl", tarfile.LNKTYPE, b"")],
        [("Person.jsonl", tarfile.CHRTYPE, b"")],
        [("a.jsonl", tarfile.REGTYPE, b""), ("b/a.jsonl", tarfile.REGTYPE, b"")],
        [(".jsonl", tarfile.REGTYPE, b"")],
        [],
    ],
)
def test_a_tar_with_tricks_is_refused(http: httpx.Client, members: list[Any]) -> None:
    clean(http.post("/load", content=tar(*members), headers={"Content-Type": "application/x-tar"}))


def test_what_is_no_tar_or_parquet_is_refused(http: httpx.Client) -> None:
    clean(http.post("/load", content=b"x" * 2000, headers={"Content-Type": "application/x-tar"}))
    parquet = {"Content-Type": "application/vnd.apache.parquet"}
    answer = http.post("/load?type=Person", content=b"PAR1 not really PAR1", headers=parquet)
    clean(answer)
    assert "/tmp" not in answer.text


@pytest.mark.parametrize("header", ["If-Graph-Commit", "Idempotency-Key", "Request-Timeout", "X-Request-Id", "Prefer"])
@pytest.mark.parametrize("value", ["x" * 5000, "\xe9\xff", "';--", "wait=99999999", "-1", "nan"])
def test_headers_may_say_anything(http: httpx.Client, header: str, value: str) -> None:
    body = {"query": ADD, "params": {"slug": "cy"}}
    answer = http.post("/mutate", json=body, headers={header.encode(): value.encode("latin-1")})
    read = http.post("/query", json={"query": PEOPLE}, headers={header.encode(): value.encode("latin-1")})

    for one in (answer, read):
        assert one.status_code < 500
        assert one.headers["X-Request-Id"] != value or header != "X-Request-Id" or len(value) <= 64
        assert "\n" not in one.headers["X-Request-Id"]


def test_no_answer_invites_another_origin_and_all_have_careful_headers(server: Served) -> None:
    with server.client(headers={"Origin": "https://evil.example"}) as client:
        answers = [
            client.get("/healthz"),
            client.get("/graphs/people/snapshot"),
            client.get("/nothing"),
            client.options("/graphs/people/query", headers={"Access-Control-Request-Method": "POST"}),
            client.post("/graphs/people/export", json={}),
        ]

    for answer in answers:
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert "server" not in answer.headers
        assert answer.headers["X-Request-Id"]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"b": "main", "i": "x", "n": [1, 2], "p": None},
        {"b": "main", "i": "aaaaaaaaaaaaa", "n": [], "p": None},
        {"b": "main", "i": "aaaaaaaaaaaaa", "n": ["aaaaaaaaaaaaa", 10**30], "p": None},
        {"b": "main", "i": "aaaaaaaaaaaaa", "n": ["aaaaaaaaaaaaa", -4], "p": None},
        {"b": "main", "i": "aaaaaaaaaaaaa", "n": ["aaaaaaaaaaaaa", 1, -1], "p": [1]},
        {"b": ["main"], "i": "aaaaaaaaaaaaa", "n": "aaaaaaaaaaaaa", "p": {"x": 1}},
    ],
)
def test_a_cursor_that_somebody_made_up_is_refused(http: httpx.Client, fields: dict[str, Any]) -> None:
    clean(http.get("/changes", params={"cursor": encode_token("cursor", fields)}))
    clean(http.get("/changes", params={"a": "main", "b": "main", "limit": 1, "page": encode_token("page", fields)}))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"a": 1, "b": 2, "p": 3},
        {"a": ["x", 1], "b": ["aaaaaaaaaaaaa", 1], "p": ["node", "Person", "x", "y"]},
        {"a": ["aaaaaaaaaaaaa", 10**30], "b": ["aaaaaaaaaaaaa", -1], "p": ["node", "Person", "x", "y"]},
        {"a": ["aaaaaaaaaaaaa", True], "b": ["aaaaaaaaaaaaa", "1"], "p": ["node", "Person", "x", "y"]},
        {"a": ["aaaaaaaaaaaaa", 1], "b": ["aaaaaaaaaaaaa", 1], "p": ["node"]},
        {"a": ["aaaaaaaaaaaaa", 1, 9], "b": ["aaaaaaaaaaaaa", 1, -9], "p": ["node", "Person", "x", "y"]},
        {"a": ["../../x", 1], "b": [["aaaaaaaaaaaaa"], 1], "p": None},
    ],
)
def test_a_page_token_that_somebody_made_up_is_refused(http: httpx.Client, fields: dict[str, Any]) -> None:
    """With the right fingerprint: it is no secret."""
    fits = fingerprint("main main main", Filters.of(None, None, None).to_json())
    for page in (encode_token("page token", fields), encode_token("page token", {**fields, "f": fits})):
        clean(http.get("/changes", params={"a": "main", "b": "main", "limit": 1, "page": page}))


def test_a_body_that_stops_coming_does_not_hold_a_place(server: Served) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    slow = []
    for _ in range(40):
        raw = socket.create_connection((host, int(port)), timeout=10)
        raw.sendall(b"POST /graphs/people/load HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
        slow.append(raw)
    try:
        with server.client() as client:
            assert client.post("/graphs/people/query", json={"query": PEOPLE}).status_code == 200
            assert server.service.admission.running == 0
    finally:
        for raw in slow:
            raw.close()


def test_a_body_that_trickles_in_is_refused_after_a_while(graph: Graph, store: Path) -> None:
    limits = Limits(body_s=0.3)
    with served({"people": store}, ServerSettings(limits=limits, grace_s=1.0)) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as raw:
            head = b"Host: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\nConnection: close\r\n\r\n{"
            raw.sendall(b"POST /graphs/people/query HTTP/1.1\r\n" + head)
            with suppress(OSError):  # until it does not listen any more
                for _ in range(8):
                    time.sleep(0.07)
                    raw.sendall(b" ")
            answer = raw.recv(65536)

    assert b" 503 " in answer.partition(b"\r\n")[0]
    assert b"did not come within 0.3 s" in answer


def test_a_body_that_the_disk_can_not_take_is_refused_as_unavailable(tmp_path: Path) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"x" * 2_000_000

    (tmp_path / "body.jsonl").symlink_to("/dev/full")
    with pytest.raises(StorageFull, match="nothing was committed"):
        asyncio.run(spool(pieces(), tmp_path, ".jsonl"))


def test_a_query_that_multiplies_without_end_is_refused_before_it_takes_the_memory(graph: Graph, store: Path) -> None:
    match = " ".join(f"$p{number}: Person" for number in range(40))  # 2**40 combinations at least
    limits = Limits(query_bytes=1_000_000)
    with served({"people": store}, ServerSettings(limits=limits, grace_s=1.0)) as small, small.client() as client:
        started = time.monotonic()
        for wanted in ("$p0.slug as slug", "count($p1) as n"):
            text = f"query q() {{ match {{ {match} }} return {{ {wanted} }} }}"
            answer = client.post("/graphs/people/query", json={"query": text})
            assert answer.status_code in (200, 400), answer.text
            assert answer.status_code == 200 or "add a filter" in answer.json()["error"]
        assert client.post("/graphs/people/query", json={"query": PEOPLE}).status_code == 200

    assert time.monotonic() - started < QUICK_S


def test_more_headers_than_anybody_needs_are_refused_before_they_fill_the_memory(server: Served) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as raw:
        raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
        answer, sent = b"", 0
        try:
            while sent < 10_000_000:
                raw.sendall(b"".join(b"X-%d: %s\r\n" % (number, b"x" * 1000) for number in range(64)))
                sent += 64_000
        except OSError:
            pass
        with suppress(OSError):
            answer = raw.recv(65536)

    assert sent < 9_000_000  # what lies in the buffers of the two sockets
    assert answer[:12] in (b"", b"HTTP/1.1 400", b"HTTP/1.1 431")
    with server.client() as client:
        assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    "raw_path", [b"/graphs/people/snapshot?branch=%ff%fe", b"/graphs/%ff/snapshot", b"/graphs/p\xff"]
)
def test_an_address_that_is_no_utf8_is_refused(server: Served, raw_path: bytes) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as raw:
        raw.sendall(b"GET " + raw_path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: raw.recv(65536), b""))

    assert answer.split(b" ", 2)[1] in (b"400", b"404")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda s: st.lists(s) | st.dictionaries(st.text(), s)
    )
)
def test_json_that_is_flat_enough_is_taken_as_it_is(value: Any) -> None:
    assert parse_json(json.dumps(value).encode(), 64, 1000) == value


@given(st.binary())
def test_no_bytes_do_more_than_be_refused(data: bytes) -> None:
    try:
        parse_json(data, 8, 1000)
    except BadRequest as error:
        assert str(error)  # noqa: PT017  # the others are values
