"""The server that tests trust: one winner a key, and no process left behind."""

from __future__ import annotations

import http.client
import io
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .s3 import SIGNED, OneRequestAtATime, S3Location, clear, keys


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


def test_the_server_does_one_request_at_a_time_with_its_answer() -> None:
    inside, most_inside = 0, 0

    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        nonlocal inside, most_inside
        inside += 1
        most_inside = max(most_inside, inside)
        time.sleep(0.01)
        yield environ["wsgi.input"].read()
        inside -= 1

    one_at_a_time = OneRequestAtATime(app)

    def request(number: int) -> list[bytes]:
        body = str(number).encode()
        return one_at_a_time({"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}, None)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(request, range(8)))

    assert answers == [[str(number).encode()] for number in range(8)]
    assert most_inside == 1


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
