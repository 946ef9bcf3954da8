"""Names that somebody made up on purpose: in addresses, logs, headers and metrics."""

from __future__ import annotations

import io
import json
import logging
import socket
from collections.abc import Iterator
from urllib.parse import quote

import httpx
import pytest

from omnigraph.server.run import log_to
from omnigraph.server.settings import ServerSettings
from server.test_observability import wait_until
from support.server import PEOPLE, Served, people_graph, served, token

BASE = "/graphs/people"
EVIL = 'x\n{"level": "error", "message": "forged"}\r\nSet-Cookie: a=b\x00\x1b[31m\u2028'


@pytest.fixture(scope="module")
def bound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, str, str]]:
    """A server with a branch of an agent's, the agent's token, and one for everything."""
    folder = tmp_path_factory.mktemp("names")
    people_graph(folder / "graph").branches.create("agent/1")
    tokens = folder / "tokens.json"
    agent, root = token(tokens, "agent", "write@people:agent/*"), token(tokens, "root", "admin")
    with served({"people": folder / "graph"}, ServerSettings(tokens=tokens, grace_s=1.0, spark=False)) as server:
        yield server, agent, root


def ask_raw(server: Served, target: str, text: str, method: str = "DELETE") -> tuple[int, bytes]:
    """A request line as it stands: clients tidy up addresses before they send them."""
    host, port = server.url.removeprefix("http://").split(":")
    head = f"Host: x\r\nAuthorization: Bearer {text}\r\nConnection: close\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=20) as raw:
        raw.sendall(f"{method} {target} HTTP/1.1\r\n{head}".encode())
        answer = b"".join(iter(lambda: raw.recv(65536), b""))
    return int(answer.split(b" ", 2)[1]), answer


@pytest.mark.parametrize(
    "written",
    [
        "agent/../main",
        "agent/..%2Fmain",
        "agent/%2e%2e/main",
        "agent%2F..%2Fmain",
        "agent/./1",
        "agent//1",
        "agent/1/",
        "agent/1/..",
        "agent/1%00",
        "agent/1%00/main",
        "agent/1%20",
        "agent/1%0A",
        "agent/1%0D%0ASet-Cookie:a=b",
        "agent/%EF%BC%91",  # a full-width 1, which is a 1 after normalisation
        "agent%2F1%CC%81",  # with a combining accent
        "agent%E2%81%841",  # a fraction slash
        "agent/" + "x" * 195,
        "agent/" + "x" * 5000,
        "agent/%ff",
        "AGENT/1",
        "agent%252F1",
        "*",
        "agent/*",
    ],
)
def test_a_branch_is_the_one_that_is_written_or_none(bound: tuple[Served, str, str], written: str) -> None:
    """Nothing is folded, cut or decoded twice after the gate has looked at the name."""
    server, agent, root = bound
    with server.client(root) as client:
        before = client.get(f"{BASE}/branches").json()
        status, answer = ask_raw(server, f"{BASE}/branches/{written}", agent)
        assert status in (400, 403, 404), answer
        assert b"Set-Cookie" not in answer.partition(b"\r\n\r\n")[0]
        status, answer = ask_raw(server, f"{BASE}/snapshot?branch={written}", agent, "GET")
        assert status in (400, 403, 404), answer
        assert client.get(f"{BASE}/branches").json() == before


def test_percent_encoding_is_no_other_name(bound: tuple[Served, str, str]) -> None:
    server, agent, _ = bound
    for written in ("agent/1", "agent%2F1", "agent%2f1", "%61gent/%31"):
        assert ask_raw(server, f"{BASE}/snapshot?branch={written}", agent, "GET")[0] == 200


def test_the_log_has_a_line_for_each_request_whatever_it_is_called(bound: tuple[Served, str, str]) -> None:
    server, agent, _ = bound
    stream = io.StringIO()
    handler = log_to(stream, server.service.hosted.redaction)
    try:
        with server.client(agent) as client:
            for place in (
                f"/graphs/{quote(EVIL)}/snapshot",
                f"{BASE}/snapshot?branch={quote(EVIL)}",
                f"{BASE}/snapshot?{quote(EVIL)}=1",
                f"{BASE}/snapshot?branch=agent/1&at={quote(EVIL)}",
                f"{BASE}/commits/{quote(EVIL)}",
                f"{BASE}/jobs/{quote(EVIL)}",
                f"{BASE}/{quote(EVIL)}",
                f"/graphs/{'x' * 5000}/snapshot",
            ):
                answer = client.get(place)
                assert 400 <= answer.status_code < 500
                assert "set-cookie" not in answer.headers
                assert len(answer.content) < 2000, place[:50]
            client.post(f"{BASE}/lint", json={"query": PEOPLE, "name": EVIL, "branch": "agent/1"})
            client.post(f"{BASE}/branches", json={"name": EVIL})
            wait_until(lambda: len(stream.getvalue().splitlines()) >= 10)
    finally:
        for name in ("omnigraph", "uvicorn.error"):
            logging.getLogger(name).removeHandler(handler)

    lines = stream.getvalue().splitlines()
    assert len(lines) == 10
    assert stream.getvalue().isascii()
    assert {json.loads(line)["message"] for line in lines} == {"request"}
    assert max(map(len, lines)) < 3000


def test_names_make_no_metrics(bound: tuple[Served, str, str]) -> None:
    """Each new label would stay in the memory of the server for ever."""

    def series(client: httpx.Client) -> set[str]:
        lines = client.get("/metrics").text.splitlines()
        return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}

    def ask(client: httpx.Client, word: str) -> None:
        client.request(word.upper(), BASE)
        for place in (
            f"/{word}",
            f"/graphs/{word}/snapshot",
            f"{BASE}/{word}",
            f"{BASE}/snapshot?branch={word}",
            f"{BASE}/snapshot?{word}=1",
            f"{BASE}/commits/{word}",
            f"{BASE}/jobs/{word}/{word}",
        ):
            client.get(place, headers={"X-Request-Id": word, "User-Agent": word, "Host": word})
        client.post(f"{BASE}/queries/{word}", json={"branch": word})
        client.post(f"{BASE}/mutate", json={"query": word, "name": word})

    server, agent, root = bound
    with server.client(agent) as client, server.client(root) as everything:
        series(everything)
        ask(client, "first")
        ask(everything, "first")
        before = series(everything)
        for number in range(20):
            ask(client, f"word{number}")
            ask(everything, f"word{number}")

        assert series(everything) == before


@pytest.mark.parametrize("accept", ["application/x-ndjson", "application/vnd.apache.arrow.stream"])
@pytest.mark.parametrize("name", ["q", "x" * 250, "\u00e9t\u00e9", "\u6a19"])
def test_a_streams_headers_hold_any_name_of_a_query(bound: tuple[Served, str, str], name: str, accept: str) -> None:
    server, agent, _ = bound
    text = f"query {name}() {{ match {{ $p: Person }} return {{ $p.slug as slug }} }}"
    with server.client(agent, {"Accept": accept}) as client:
        answer = client.post(f"{BASE}/query", json={"query": text, "branch": "agent/1"})

    assert answer.status_code == 200 or (answer.status_code, answer.json()["code"]) == (400, "bad_request")


def test_two_tokens_or_keys_are_refused(bound: tuple[Served, str, str]) -> None:
    """A proxy may have looked at the one, and the server would take the other."""
    server, agent, root = bound
    with server.client() as client:
        both = [("Authorization", f"Bearer {agent}"), ("Authorization", f"Bearer {root}")]
        assert client.get(f"{BASE}/snapshot?branch=agent/1", headers=both).status_code == 401
        assert client.get(f"{BASE}/snapshot?branch=agent/1", headers=[both[0], both[0]]).status_code == 401
        keys = [both[0], ("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
        answer = client.delete(f"{BASE}/branches/agent/9", headers=keys)
        assert (answer.status_code, answer.json()["details"]["errors"][0]["place"]) == (400, "header.Idempotency-Key")


def test_no_origin_is_invited_by_a_server_with_tokens_either(bound: tuple[Served, str, str]) -> None:
    server, agent, _ = bound
    headers = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    with server.client(agent, headers) as client:
        for answer in (client.options(f"{BASE}/query"), client.get(f"{BASE}/snapshot?branch=agent/1")):
            assert not [name for name in answer.headers if name.lower().startswith("access-control")]
            assert "vary" not in answer.headers
