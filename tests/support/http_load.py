"""Many clients of one server, cheaply: plain HTTP/1.1 over asyncio, so that the cores are left to the server."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from support.server import ADD

CLIENTS = 100
BRANCHES = 20
LOOK = "query look($slug: String) { match { $p: Person { slug: $slug } } return { $p.slug as slug, $p.age as age } }"


@dataclass
class Tally:
    """What the clients saw."""

    seconds: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)
    writes_ms: list[float] = field(default_factory=list)
    reads_ms: list[float] = field(default_factory=list)
    acknowledged: dict[str, list[tuple[str, str]]] = field(default_factory=dict)  # branch: slug, commit id
    wrong: list[str] = field(default_factory=list)
    memory_mib: list[float] = field(default_factory=list)

    @property
    def writes_a_second(self) -> float:
        return len(self.writes_ms) / self.seconds

    @property
    def reads_a_second(self) -> float:
        return len(self.reads_ms) / self.seconds


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


class Connection:
    """One keep-alive connection."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, str], Any]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._streams
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Length: {len(data)}\r\n"
        writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + data)
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
        answer = await reader.readexactly(int(headers["content-length"]))
        return int(first.split(" ")[1]), headers, json.loads(answer)

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            await self._streams[1].wait_closed()


def resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


async def drive(url: str, seconds: float, pid: int, clients: int = CLIENTS) -> Tally:
    """Half of the clients write to their branches, the other half look up rows, one request after the other."""
    tally = Tally()
    end = time.monotonic() + seconds

    async def ask(connection: Connection, path: str, body: dict[str, Any], spent: list[float]) -> Any:
        started = time.monotonic()
        status, headers, answer = await connection.post(path, body)
        tally.statuses[status] += 1
        if status == 429:
            if answer["code"] != "too_many_requests" or int(headers["retry-after"]) < 1:
                tally.wrong.append(f"a dishonest 429: {answer}")
            await asyncio.sleep(0.2)
            return None
        if status != 200:
            tally.wrong.append(f"{status}: {answer}")
            return None
        spent.append((time.monotonic() - started) * 1000)
        return answer

    async def write(number: int) -> None:
        connection, branch, turn = Connection(url), f"load/{number % BRANCHES}", 0
        while time.monotonic() < end:
            turn += 1
            slug = f"c{number}-{turn}"
            body = {"query": ADD, "params": {"slug": slug, "age": turn % 100}, "branch": branch}
            answer = await ask(connection, "/graphs/default/mutate", body, tally.writes_ms)
            if answer is not None:
                tally.acknowledged.setdefault(branch, []).append((slug, answer["commit"]["id"]))
        await connection.close()

    async def read(number: int) -> None:
        connection = Connection(url)
        while time.monotonic() < end:
            branch = f"load/{number % BRANCHES}"
            known = tally.acknowledged.get(branch, [])
            slug = known[-1][0] if known else "ada"
            body = {"query": LOOK, "params": {"slug": slug}, "branch": branch}
            answer = await ask(connection, "/graphs/default/query", body, tally.reads_ms)
            if answer is not None and [row["slug"] for row in answer["rows"]] != [slug]:
                tally.wrong.append(f"{slug} was acknowledged and is not there")
        await connection.close()

    async def watch() -> None:
        while time.monotonic() < end:
            tally.memory_mib.append(resident_mib(pid))
            await asyncio.sleep(max(0.5, seconds / 100))

    kinds: list[Callable[[int], Any]] = [write, read]
    started = time.monotonic()
    await asyncio.gather(watch(), *(kinds[number % 2](number) for number in range(clients)))
    tally.seconds = time.monotonic() - started
    return tally
