"""An S3 server for tests: moto in a process of its own, so its CPU and GIL are not those of the code under test.

`S3Server` needs neither pytest nor boto3, so examples and benchmarks can start one too.
"""

from __future__ import annotations

import http.client
import os
import select
import subprocess
import sys
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO
from urllib.parse import quote, urlencode, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

PROGRAM = Path(__file__).resolve().with_name("s3_server.py")
START_TIMEOUT_S = 30.0
REGION = "us-east-1"
# Moto wants to see that a request is signed, and does not look whether it is signed rightly.
SIGNED = {"Authorization": f"AWS4-HMAC-SHA256 Credential=test/20260101/{REGION}/s3/aws4_request, Signature=none"}


@dataclass(frozen=True, slots=True)
class S3Location:
    """Where a test keeps its graph: an `s3://` URI, and the storage options that reach it."""

    uri: str
    options: dict[str, str]

    @property
    def endpoint(self) -> str:
        return self.options["aws_endpoint"]

    @property
    def bucket(self) -> str:
        return urlsplit(self.uri).netloc

    def via(self, endpoint: str) -> S3Location:
        """The same objects, reached through another endpoint such as a proxy's."""
        return replace(self, options=self.options | {"aws_endpoint": endpoint})


class S3Server:
    """A moto server in a child process that ends with `stop`, with the `with` block, or with its parent."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self.endpoint = ""

    def start(self) -> S3Server:
        """Returns once the server accepts connections: it names its port only after listening on it."""
        command = [sys.executable, "-P", str(PROGRAM), str(os.getpid())]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C is the parent's to handle
        )
        assert self._process.stdout is not None
        try:
            self.endpoint = f"http://127.0.0.1:{_read_port(self._process.stdout)}"
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None

    def __enter__(self) -> S3Server:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def bucket(self, name: str | None = None) -> S3Location:
        """Create a bucket (a fresh name unless told) and give a location inside it."""
        name = name or f"test-{uuid.uuid4().hex[:12]}"
        _call(self.endpoint, "PUT", f"/{name}")
        options = {
            "aws_endpoint": self.endpoint,
            "aws_region": REGION,
            "aws_access_key_id": "test",
            "aws_secret_access_key": "test",
            "allow_http": "true",
        }
        return S3Location(f"s3://{name}/graph", options)

    def drop(self, bucket: str) -> None:
        """Delete a bucket and all that is in it: the server keeps everything in memory, a test need not."""
        clear(self.endpoint, bucket)
        _call(self.endpoint, "DELETE", f"/{bucket}")


def keys(endpoint: str, bucket: str, prefix: str = "") -> list[str]:
    """Every key under a prefix, as the server itself tells it."""
    found: list[str] = []
    query = {"list-type": "2", "prefix": prefix}
    while True:
        page = ElementTree.fromstring(_call(endpoint, "GET", f"/{bucket}?{urlencode(query, quote_via=quote)}"))
        found += [key.text or "" for key in page.findall("{*}Contents/{*}Key")]
        token = page.findtext("{*}NextContinuationToken")
        if not token:
            return found
        query["continuation-token"] = token


def clear(endpoint: str, bucket: str, prefix: str = "") -> None:
    """Delete every object under a prefix."""
    found = keys(endpoint, bucket, prefix)
    for start in range(0, len(found), 1000):
        objects = "".join(f"<Object><Key>{escape(key)}</Key></Object>" for key in found[start : start + 1000])
        _call(endpoint, "POST", f"/{bucket}?delete", f"<Delete><Quiet>true</Quiet>{objects}</Delete>".encode())


def _call(endpoint: str, method: str, target: str, body: bytes = b"") -> bytes:
    address = urlsplit(endpoint)
    assert address.hostname is not None
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=START_TIMEOUT_S)
    try:
        connection.request(method, target, body, SIGNED)
        response = connection.getresponse()
        answer = response.read()
    finally:
        connection.close()
    if response.status >= 300:
        raise RuntimeError(f"{method} {target}: {response.status} {answer!r}")
    return answer


def _read_port(pipe: IO[bytes]) -> int:
    ready, _, _ = select.select([pipe], [], [], START_TIMEOUT_S)
    line = pipe.readline() if ready else b""
    if not line:
        raise RuntimeError(f"moto did not start within {START_TIMEOUT_S:.0f} s; its own words are on stderr")
    return int(line)
