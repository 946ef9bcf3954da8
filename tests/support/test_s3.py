"""The server that tests trust: one winner a key, and no process left behind."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest

from .s3 import SIGNED, S3Location, clear, keys


def create(location: S3Location, key: str, body: bytes) -> int:
    connection = http.client.HTTPConnection(urlsplit(location.endpoint).netloc)
    connection.request("PUT", f"/{location.bucket}/{key}", body, SIGNED | {"If-None-Match": "*"})
    status = connection.getresponse().status
    connection.close()
    return status


def test_of_concurrent_creates_of_one_key_exactly_one_wins(s3: S3Location) -> None:
    """Large bodies: with them plain moto was seen to acknowledge two creates in one round of twelve."""
    writers, large = 12, bytes(3_000_000)
    with ThreadPoolExecutor(writers) as pool:
        for round_number in range(20):
            answers = pool.map(lambda _, key=f"k{round_number}": create(s3, key, large), range(writers))
            assert sorted(answers) == [200] + [412] * (writers - 1)


@contextmanager
def connected(location: S3Location) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(urlsplit(location.endpoint).netloc, timeout=30)
    try:
        yield connection
    finally:
        connection.close()


def test_a_connection_serves_one_request_after_another(s3: S3Location) -> None:
    """Also after answers without a body: the next answer would begin in the middle of the last."""
    seen, sockets = [], set()
    with connected(s3) as connection:
        for method, key, body in [
            ("PUT", "a", b"first"),
            ("HEAD", "a", b""),
            ("HEAD", "none", b""),
            ("GET", "a", b""),
            ("GET", "none", b""),
            ("DELETE", "a", b""),
            ("GET", "a", b""),
        ]:
            connection.request(method, f"/{s3.bucket}/{key}", body, SIGNED)
            sockets.add(connection.sock)
            response = connection.getresponse()
            answer = response.read()
            seen.append((method, response.status, answer if response.status == 200 else b""))

    assert len(sockets) == 1
    assert seen == [
        ("PUT", 200, b""),
        ("HEAD", 200, b""),
        ("HEAD", 404, b""),
        ("GET", 200, b"first"),
        ("GET", 404, b""),
        ("DELETE", 204, b""),
        ("GET", 404, b""),
    ]


def test_a_body_may_come_in_chunks_and_in_pieces(s3: S3Location) -> None:
    sent = f"PUT /{s3.bucket}/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n".encode()
    sent += b"".join(f"{name}: {value}\r\n".encode() for name, value in SIGNED.items())
    sent += b"\r\n3\r\none\r\n4;x=y\r\n\r\n23\r\n0\r\n\r\n"
    address = urlsplit(s3.endpoint)
    with socket.create_connection((address.hostname, address.port), timeout=30) as client:
        for at in range(len(sent)):
            client.sendall(sent[at : at + 1])
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 ")

    with connected(s3) as connection:
        connection.request("GET", f"/{s3.bucket}/a", headers=SIGNED)
        assert connection.getresponse().read() == b"one\r\n23"


def test_a_client_that_has_not_sent_all_holds_up_nobody(s3: S3Location) -> None:
    address = urlsplit(s3.endpoint)
    with socket.create_connection((address.hostname, address.port), timeout=30) as slow:
        slow.sendall(f"PUT /{s3.bucket}/a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab".encode())
        assert create(s3, "a", b"whole") == 200


@pytest.mark.parametrize(
    "query",
    [
        "",
        "prefix=a/",
        "prefix=a/&delimiter=/",
        "delimiter=/",
        "max-keys=2",
        "max-keys=0",
        "prefix=a/&start-after=a/b",
        "prefix=none",
        "prefix=a/%26&encoding-type=url",
        "start-after=a/b&max-keys=1&delimiter=/",
    ],
)
def test_a_listing_says_what_moto_says(query: str, s3: S3Location) -> None:
    """With a parameter that means nothing, it is moto's own."""
    for key in ("a/b", "a/b/1", "a/b/2", "a/%26c", "a/c%20d", "e", "f"):
        assert create(s3, key, key.encode()) == 200

    with connected(s3) as connection:
        while True:
            answers = []
            for more in ("", "&x-id=ListObjectsV2"):
                connection.request("GET", f"/{s3.bucket}?list-type=2&{query}{more}", headers=SIGNED)
                answers.append(told(ElementTree.fromstring(connection.getresponse().read())))
            assert answers[0] == answers[1]
            token = answers[0].get("NextContinuationToken")
            if token is None:
                return
            query = f"{query.split('&continuation-token')[0]}&continuation-token={token[0]}"


def told(page: ElementTree.Element) -> dict[str, list[object]]:
    """What a page says, by the names of its elements; what is empty as if it weren't there."""
    found: dict[str, list[object]] = {}
    for child in page:
        value = told(child) if len(child) else child.text
        if value:
            found.setdefault(child.tag.rpartition("}")[2], []).append(value)
    return found


def test_clear_deletes_what_is_under_a_prefix(s3: S3Location) -> None:
    for key in ("a/1", "a/&2", "b/1"):
        assert create(s3, key, b"") == 200

    clear(s3.endpoint, s3.bucket, "a/")

    assert keys(s3.endpoint, s3.bucket) == ["b/1"]


def test_the_server_ends_when_its_parent_is_killed() -> None:
    script = "from support.s3 import S3Server; import time; s = S3Server().start(); print(s._process.pid, flush=True)"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", script + "; time.sleep(60)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        server = int(parent.stdout.readline())
        parent.kill()

    deadline = time.monotonic() + 10
    while running(server):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
