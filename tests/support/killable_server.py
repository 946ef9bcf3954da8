"""Clients of a server that may be killed at any moment: each knows what it asked for, and what it was told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import httpx

from support.server import ADD, ndjson

GRAPH = "/graphs/default"
LOAD_ROWS = 20
JOB_WAIT = {"Prefer": "wait=20"}


@dataclass
class Write:
    """One write under a key of its own, which is sent again until it is answered."""

    path: str
    branch: str
    slugs: tuple[str, ...]  # that are there once it has landed
    headers: Mapping[str, str] = field(default_factory=dict)
    document: Mapping[str, Any] | None = None
    content: str | None = None
    commit: str | None = None  # what was acknowledged

    def send(self, client: httpx.Client) -> None:
        """Ask, and note the answer; whoever is cut off has none."""
        answer = client.post(GRAPH + self.path, json=self.document, content=self.content, headers=dict(self.headers))
        if answer.status_code == 202:
            while answer.json().get("state") in (None, "waiting", "running"):
                answer = client.get(answer.headers.get("Location", str(answer.url)), headers=JOB_WAIT)
                answer.raise_for_status()
            assert answer.json()["error"] is None, answer.text
            document = answer.json()["result"]
        else:
            assert answer.status_code == 200, answer.text
            document = answer.json()
        assert document["commit"] is not None, document
        self.commit = document["commit"]["id"]


def mutation(name: str, branch: str) -> Write:
    document = {"query": ADD, "params": {"slug": name}, "branch": branch}
    return Write("/mutate", branch, (name,), {"Idempotency-Key": name}, document)


def load(name: str, branch: str) -> Write:
    slugs = tuple(f"{name}-{number}" for number in range(LOAD_ROWS))
    text = ndjson([{"type": "Person", "data": {"slug": slug}} for slug in slugs])
    return Write(f"/load?branch={branch}", branch, slugs, {"Idempotency-Key": name}, content=text)


def job(name: str, branch: str) -> Write:
    """A bulk load, whatever its size, because it has a job id."""
    plain = load(name, branch)
    path = f"/load?branch={branch}&engine=local&job_id={name}"
    return Write(path, branch, plain.slugs, {"Prefer": "respond-async"}, content=plain.content)


class Clients:
    """Some that write, some that read, until the server is gone."""

    def __init__(self, url: str, name: str) -> None:
        self._url = url
        self._name = name
        self._gone = threading.Event()
        self._began = threading.Semaphore(0)
        self.writes: list[Write] = []
        self.failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(work,)) for work in self._works()]
        for thread in self._threads:
            thread.start()
        for _ in self._threads:
            assert self._began.acquire(timeout=30)

    def _works(self) -> list[Callable[[httpx.Client, str], None]]:
        works: list[Callable[[httpx.Client, str], None]] = []
        for branch in ("main", "one", "two"):
            works.append(lambda client, name, branch=branch: self._write(client, mutation(name, branch)))  # type: ignore[misc]
        works.append(lambda client, name: self._write(client, load(name, "one")))
        works.append(lambda client, name: self._write(client, job(name, "two")))
        return [*works, self._merge, self._read]

    def _run(self, work: Callable[[httpx.Client, str], None]) -> None:
        own = self._threads.index(threading.current_thread())
        try:
            with httpx.Client(base_url=self._url, timeout=60, trust_env=False) as client:
                client.get("/healthz")
                self._began.release()
                for turn in count():
                    if self._gone.is_set():
                        return
                    work(client, f"{self._name}-{own}-{turn}")
        except httpx.TransportError:
            return  # the server is gone
        except BaseException as error:
            self.failures.append(error)

    def _write(self, client: httpx.Client, write: Write) -> None:
        self.writes.append(write)
        write.send(client)

    def _merge(self, client: httpx.Client, name: str) -> None:
        """A branch that is made, written and merged into main."""
        made = client.post(f"{GRAPH}/branches", json={"name": name})
        assert made.status_code == 200, made.text
        self._write(client, mutation(f"{name}-on", name))
        document = {"source": name, "into": "main"}
        self._write(client, Write("/branches/merge", "main", (f"{name}-on",), {"Idempotency-Key": name}, document))

    def _read(self, client: httpx.Client, _: str) -> None:
        with client.stream("POST", f"{GRAPH}/export", json={}) as answer:
            for line in answer.iter_lines():
                json.loads(line)
        client.post(f"{GRAPH}/export", json={"directory": True}, headers={"Prefer": "respond-async"})

    def ended(self) -> list[Write]:
        """After the end of the server: everything that was asked of it."""
        self._gone.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        if self.failures:
            raise self.failures[0]
        return self.writes
