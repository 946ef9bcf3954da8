"""An S3 server for tests: moto in a process of its own, so its CPU and GIL are not those of the code under test.

`S3Server` needs neither pytest nor boto3, so examples and benchmarks can start one too.
"""

from __future__ import annotations

import http.client
import io
import os
import select
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, urlencode, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

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
        command = [sys.executable, "-P", str(Path(__file__).resolve()), str(os.getpid())]
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


class OneRequestAtATime:
    """A WSGI app whose requests are atomic, as S3's are.

    Moto checks `If-None-Match` and stores the object in two steps without a lock, and its threads were seen to
    acknowledge two creates of one key: every test of the commit protocol on it would prove nothing. Bodies are read
    before the lock is taken, so a slow client holds up nobody.
    """

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self._app = app
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        chunked = environ.get("wsgi.input_terminated", False)
        body = environ["wsgi.input"].read(*(() if chunked else (int(environ.get("CONTENT_LENGTH") or 0),)))
        environ["wsgi.input"] = io.BytesIO(body)
        environ["CONTENT_LENGTH"] = str(len(body))
        with self._lock:
            answer = self._app(environ, start_response)
            try:
                return [b"".join(answer)]
            finally:
                getattr(answer, "close", lambda: None)()


def _serve(parent: int) -> None:
    """The child's main: listen on a port the kernel picks, tell it on stdout, serve until the parent is gone."""
    import logging

    from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    def end_with_parent() -> None:
        while os.getppid() == parent:  # also true of a parent that was killed and could tell nobody
            time.sleep(0.5)
        os._exit(0)

    threading.Thread(target=end_with_parent, daemon=True).start()
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    app = OneRequestAtATime(create_backend_app("s3"))
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=MotoRequestHandler)
    print(server.port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
