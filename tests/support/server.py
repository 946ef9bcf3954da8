"""A server for tests: uvicorn on a free port, in a thread of this process or in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

import omnigraph
from omnigraph.graph.graph import Graph
from omnigraph.server.auth.tokens import create_token, parse_grant
from omnigraph.server.run import Bind, GracefulServer, create_app, listen
from omnigraph.server.service import Service
from omnigraph.server.settings import GraphSource, ServerSettings
from omnigraph.server.tracing import Tracing

QUICK = {"fsync": "false"}
START_TIMEOUT_S = 30
SCHEMA = """\
node Person { slug: String @key  name: String?  age: I32?  email: String? @unique  @range(age, 0..150) }
edge Knows: Person -> Person { since: Date? }
"""
ENTITIES: list[dict[str, Any]] = [
    {"type": "Person", "data": {"slug": "ada", "name": "Ada", "age": 36}},
    {"type": "Person", "data": {"slug": "bob", "name": "Bob"}},
    {"edge": "Knows", "from": "ada", "to": "bob", "data": {"since": "2020-01-31"}},
]
PEOPLE = "query people() { match { $p: Person } return { $p.slug as slug, $p.age as age } order { slug } }"
ADD = "query add($slug: String, $age: I32?) { insert Person { slug: $slug, age: $age } }"
SET_AGE = "query older($slug: String, $age: I32) { update Person set { age: $age } where slug = $slug }"


def ndjson(entities: Sequence[Mapping[str, Any]] = ENTITIES) -> str:
    return "".join(f"{json.dumps(entity)}\n" for entity in entities)


def people_graph(folder: Path) -> Graph:
    """A new graph where ada knows bob."""
    graph = omnigraph.init(folder, SCHEMA, QUICK)
    graph.load(ENTITIES)
    return graph


def token(path: Path, actor: str, *grants: str) -> str:
    return create_token(path, actor, [parse_grant(grant) for grant in grants], datetime.now(UTC))[1]


@dataclass
class Served:
    """A running server."""

    url: str
    service: Service

    def client(self, token: str | None = None, headers: Mapping[str, str] | None = None) -> httpx.Client:
        own = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self.url, headers=own | dict(headers or {}), timeout=60, trust_env=False)


@contextmanager
def served(
    graphs: Mapping[str, str | Path | GraphSource],
    settings: ServerSettings | None = None,
    tracing: Tracing | None = None,
) -> Iterator[Served]:
    """Serve graphs from a thread of this process."""
    sources = {
        name: source if isinstance(source, GraphSource) else GraphSource(str(source), QUICK)
        for name, source in graphs.items()
    }
    settings = settings or ServerSettings(grace_s=5.0)
    app = create_app(sources, settings, tracing=tracing or Tracing())
    service: Service = app.state.service
    service.start()
    server = GracefulServer(app, settings)
    with listen(Bind("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield Served(f"http://127.0.0.1:{listener.getsockname()[1]}", service)
        finally:
            server.should_exit = True
            thread.join(30)
            service.close(5.0)


class ServerProcess:
    """`omnigraph serve` as a user runs it; its log is read while it runs."""

    def __init__(self, *arguments: str, env: Mapping[str, str] | None = None, before: str = "") -> None:
        """`before` is Python that runs in the process before the command, to make it more sensitive."""
        program = ("-c", f"{before}\nfrom omnigraph.cli.main import main\nraise SystemExit(main())")
        command = [sys.executable, *(program if before else ("-m", "omnigraph"))]
        command += ["serve", "--bind", "127.0.0.1:0", *arguments]
        own = {name: value for name, value in os.environ.items() if not name.startswith("OMNIGRAPH_")}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=own | dict(env or {}))
        self.log: list[dict[str, Any]] = []
        self._serving = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._serving.wait(START_TIMEOUT_S)
        self.url = next((line["url"] for line in self.log if line["message"] == "serving"), "")

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            try:
                self.log.append(json.loads(line))
            except ValueError:
                self.log.append({"message": line.rstrip()})
            if self.log[-1]["message"] == "serving":
                self._serving.set()
        self._serving.set()

    def client(self, token: str | None = None) -> httpx.Client:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, timeout_s: float = 60) -> int:
        code = self.process.wait(timeout_s)
        self._reader.join(10)
        return code

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()
