"""The harness of the hostile-client suite: a server, an attack on it, and what other clients notice meanwhile.

How to write an attack:

    from hostile.siege import BOUNDS, Bounds, Target, besiege

    @BOUNDS
    def test_a_body_of_nothing_but_brackets_delays_nobody(target: Target, bounds: Bounds) -> None:
        def attack(target: Target) -> None:
            with target.client("reader") as client:
                for _ in range(bounds.scale):
                    client.post(f"{GRAPH}/query", content=b"[" * 10**6, headers=JSON)

        besiege(target, attack, bounds)

`target` (see conftest.py) is a real `omnigraph serve` process with a graph of 10,000 people and 30,000 edges, and a
token of each of `ROLES`. Attackers come from another address than the other clients (`ATTACKER`; all of 127/8 is this
machine), so that limits of a peer can be told from those of the server: use `target.client` and `target.connect`.
What is expensive to make is made before `besiege` is called: the attack should cost the server, not the machine.

`besiege` watches the idle server, then runs the attack, which may start threads of its own (`at_once`) and returns
when it is over. Then it requires what `Bounds` say: how long other clients waited, compared with the idle server; that
all of them got a 200; that memory, threads and connections are soon as before. After the test, the fixture requires
that SIGTERM ends the server in time, with exit code 0. `watch` does the same as `besiege` and requires nothing.

`BOUNDS` runs a test twice: in `make test` with generous bounds that hold on a loaded machine and fail if the server
stalls; in `make soak`, alone on the machine, with those that are promised, and `scale` times as much attack.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from hostile.monitor import Sample
from support.http_load import percentile, resident_mib
from support.server import ServerProcess

ATTACKER = "127.0.0.66"
GRAPH = "/graphs/default"
JSON = {"Content-Type": "application/json"}
ROLES = {
    "reader": ("read",),
    "writer": ("write",),
    "admin": ("admin",),
    "bound": ("write@*:agent/*", "read@*:main"),  # a writer that is bound to its branches
    "neighbour": ("read",),  # of the clients that are not to notice anything
}
POINT = json.dumps(
    {
        "query": "query look($slug: String) { match { $p: Person { slug: $slug } } return { $p.name as name } }",
        "params": {"slug": "p77"},
    }
)
TESTS = Path(__file__).parents[1]
EXIT_S = 20.0
RECOVERY_S = 30.0
WARM_UP_REQUESTS = 30


@dataclass(frozen=True)
class Bounds:
    """What other clients may notice: seconds beyond what the idle server took, or so many times as much."""

    healthz_s: float  # at most, of any request
    point_p95_s: float
    point_s: float
    times: float  # of the same figure of the idle server, if that is more: it is slow where the machine is
    scale: int  # how much attack there is
    idle_s: float  # for how long the idle server is watched
    memory_mib: float  # that may be left of an attack


EVERY_DAY = Bounds(healthz_s=6.0, point_p95_s=6.0, point_s=8.0, times=10, scale=1, idle_s=1.0, memory_mib=200)
STRICT = Bounds(healthz_s=0.05, point_p95_s=0.1, point_s=1.0, times=0, scale=4, idle_s=5.0, memory_mib=100)
BOUNDS = pytest.mark.parametrize(
    "bounds", [EVERY_DAY, pytest.param(STRICT, marks=[pytest.mark.soak, pytest.mark.alone])], ids=["usual", "strict"]
)


@dataclass(frozen=True)
class Usage:
    """What the server process holds."""

    memory_mib: float
    threads: int
    sockets: int


@dataclass
class Target:
    """A server that is attacked."""

    process: ServerProcess
    tokens: dict[str, str]
    store: Path

    @property
    def url(self) -> str:
        return self.process.url

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        assert parts.port is not None
        return parts.hostname, parts.port

    def client(self, role: str | None = "reader", timeout_s: float = 120) -> httpx.Client:
        """A client of the attacker's; without a role it has no token."""
        headers = {} if role is None else {"Authorization": f"Bearer {self.tokens[role]}"}
        limits = httpx.Limits(max_connections=None)
        transport = httpx.HTTPTransport(local_address=ATTACKER, limits=limits, trust_env=False)
        return httpx.Client(base_url=self.url, headers=headers, timeout=timeout_s, transport=transport)

    def connect(self, address: str = ATTACKER, timeout_s: float = 120) -> socket.socket:
        """A connection of the attacker's, for bytes that are no HTTP."""
        return socket.create_connection(self.address, timeout_s, (address, 0))

    def head(self, method: str, path: str, *headers: str, role: str | None = "reader") -> bytes:
        """The head of a request, for those who send it by hand."""
        token = () if role is None else (f"Authorization: Bearer {self.tokens[role]}",)
        lines = (f"{method} {path} HTTP/1.1", "Host: x", *token, *headers)
        return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n"

    def usage(self) -> Usage:
        pid = self.process.process.pid
        threads = len(os.listdir(f"/proc/{pid}/task"))
        open_files = [_link(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
        return Usage(resident_mib(pid), threads, sum(link.startswith("socket:") for link in open_files))

    def end(self) -> None:
        """By SIGTERM, in time, with nothing cut off."""
        assert self.process.process.poll() is None, f"the server ended: {self.process.log[-5:]}"
        self.process.signal(signal.SIGTERM)
        assert self.process.wait(EXIT_S) == 0, self.process.log[-5:]


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except FileNotFoundError:  # closed meanwhile
        return ""


@dataclass
class Latencies:
    """Of the requests of one kind that were due in a span of time."""

    samples: Sequence[Sample]

    @property
    def max_s(self) -> float:
        return max((seconds for _, seconds, _ in self.samples), default=0.0)

    @property
    def p95_s(self) -> float:
        return percentile([seconds for _, seconds, _ in self.samples], 0.95)

    @property
    def refused(self) -> list[int]:
        return [status for _, _, status in self.samples if status != 200]


@dataclass
class Report:
    """What was seen, by kind of client."""

    idle: dict[str, Latencies]
    attacked: dict[str, Latencies]
    before: Usage
    after: Usage
    attack_s: float

    def __str__(self) -> str:
        kinds = ", ".join(
            f"{kind} p95 {self.idle[kind].p95_s * 1000:.0f}→{self.attacked[kind].p95_s * 1000:.0f} ms, "
            f"max {self.idle[kind].max_s * 1000:.0f}→{self.attacked[kind].max_s * 1000:.0f} ms"
            for kind in self.idle
        )
        return f"{self.attack_s:.1f} s of attack: {kinds}; {self.before} → {self.after}"

    def require(self, bounds: Bounds) -> None:
        for kind, latencies in self.attacked.items():
            assert latencies.refused == [], f"{kind} was not served: {self}"
        for kind, idle in self.idle.items():
            found, limit_s = self.attacked[kind], bounds.point_s if kind == "point" else bounds.healthz_s
            assert found.max_s - idle.max_s <= max(limit_s, bounds.times * idle.max_s), f"{kind} was delayed: {self}"
        idle_s, found_s = self.idle["point"].p95_s, self.attacked["point"].p95_s
        assert found_s - idle_s <= max(bounds.point_p95_s, bounds.times * idle_s), f"point queries were slow: {self}"
        assert self.after.memory_mib <= self.before.memory_mib + bounds.memory_mib, f"memory is kept: {self}"
        assert self.after.threads <= self.before.threads + THREADS_MORE, f"threads are left: {self}"
        assert self.after.sockets <= self.before.sockets + SOCKETS_MORE, f"connections are left: {self}"


THREADS_MORE = 48  # those of the pools, which are kept once they have been started
SOCKETS_MORE = 2


@dataclass
class Monitor:
    """The other clients; see monitor.py."""

    process: subprocess.Popen[str]
    _output: list[str] = field(default_factory=list)

    @classmethod
    def start(cls, target: Target) -> Monitor:
        command = [sys.executable, "-m", "hostile.monitor", target.url, target.tokens["neighbour"], POINT]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=TESTS)
        assert process.stdout is not None
        assert process.stdout.readline() == "polling\n"
        return cls(process)

    def stop(self) -> dict[str, list[Sample]]:
        """Wait for the answers that are due, however late they are."""
        output, _ = self.process.communicate(timeout=200)
        found: dict[str, list[Sample]] = json.loads(output)
        return found


def besiege(target: Target, attack: Callable[[Target], object], bounds: Bounds) -> Report:
    """Run an attack while others use the server, and require that they notice no more than the bounds say."""
    report = watch(target, attack, bounds.idle_s)
    print(report)
    report.require(bounds)
    return report


def watch(target: Target, attack: Callable[[Target], object], idle_s: float = 1.0) -> Report:
    """The same, but it is left to the caller what may be noticed."""
    _warm_up(target)
    before = target.usage()
    monitor = Monitor.start(target)
    try:
        time.sleep(idle_s)
        begins = time.monotonic()
        attack(target)
        ends = time.monotonic()
        time.sleep(0.2)  # what the last of it does to others
        seen = monitor.stop()
    finally:
        monitor.process.kill()
        monitor.process.wait()
    return Report(
        _between(seen, 0.0, begins),
        _between(seen, begins, float("inf")),
        before,
        _settled(target, before),
        ends - begins,
    )


def _between(seen: dict[str, list[Sample]], begins: float, ends: float) -> dict[str, Latencies]:
    """A request is due in one span and answered in another if the server stalls between them: the second counts."""
    return {
        kind: Latencies([sample for sample in samples if begins <= sample[0] + min(sample[1], 0.01) < ends])
        for kind, samples in seen.items()
    }


def _warm_up(target: Target) -> None:
    with target.client("neighbour") as client:
        for _ in range(WARM_UP_REQUESTS):
            client.post(f"{GRAPH}/query", content=POINT, headers=JSON).raise_for_status()


def _settled(target: Target, before: Usage) -> Usage:
    """What is held once all is over; that takes a moment, for which this waits as long as it gets less."""
    end = time.monotonic() + RECOVERY_S
    while True:
        usage = target.usage()
        back = usage.sockets <= before.sockets + SOCKETS_MORE and usage.memory_mib <= before.memory_mib + 50
        if back or time.monotonic() > end:
            return usage
        time.sleep(0.2)


@contextmanager
def at_once(works: Sequence[Callable[[], object]]) -> Iterator[None]:
    """Threads that all do their work at the same time, until they are done; the first error is raised."""
    failures: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]
