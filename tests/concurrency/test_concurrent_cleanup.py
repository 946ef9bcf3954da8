"""Cleanup while real processes write, fork, merge, load and travel in time, and are stopped beyond the floor."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from omnigraph.errors import ConflictError
from omnigraph.gc.cleanup import cleanup
from omnigraph.gc.retention import Retention
from omnigraph.graph import graph as omnigraph
from omnigraph.manifest.commit.plan import Append
from omnigraph.verify.verify import verify
from support.catalogs import PERSON, ids_of, people, person_rows

PROGRAM = Path(__file__).with_name("busy_process.py")
NO_FSYNC = {"fsync": "false"}
ROLES = ("write", "write", "fork", "load", "travel")
FLOOR = timedelta(seconds=0.2)


class Process:
    """One `busy_process.py`."""

    def __init__(self, role: str, name: str, uri: str, environment: dict[str, str]) -> None:
        self.role = role
        command = [sys.executable, str(PROGRAM), role, name, uri, json.dumps(NO_FSYNC)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )

    def say(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def hear(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"{self.role} ended with {self._process.wait()}; its own words are on stderr"
        return json.loads(line)

    def signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def end(self) -> None:
        self.signal(signal.SIGCONT)
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # it has ended by itself, and others are to be ended too
                    pipe.close()


@pytest.mark.parametrize("seconds", [4.0, pytest.param(600.0, marks=pytest.mark.soak)])
def test_nothing_dangles_and_no_promise_is_broken(tmp_path: Path, seconds: float) -> None:
    uri = str(tmp_path / "graph")
    graph = omnigraph.init(uri, people(), NO_FSYNC)
    graph.write([Append(PERSON, person_rows("first"))])
    ways = [{"OMNIGRAPH_INLINE_ROWS": "0"}, {"OMNIGRAPH_TAIL_MANIFESTS": "4"}]
    processes = [Process(role, f"{role}{number}", uri, ways[number % len(ways)]) for number, role in enumerate(ROLES)]
    try:
        for process in processes:
            assert process.hear() == "ready"
        for process in processes:
            process.say()
        swept = clean_beside(uri, processes, seconds)
        for process in processes:
            process.say()
        told = [process.hear() for process in processes]
    finally:
        for process in processes:
            process.end()

    assert [one["wrong"] for one in told] == [[]] * len(told)
    assert all(one["done"].get("done") for one in told), told
    assert swept > 0
    fresh = omnigraph.open(uri, NO_FSYNC)
    report = verify(fresh.repository, full=True)
    assert report.ok, report.damage[:3]
    there = ids_of(fresh.snapshot().to_arrow(PERSON))
    for promise in (promise for one in told for promise in one["promised"]):
        count, _, prefix = promise.partition(" of ")
        found = sum(row.startswith(prefix) for row in there) if prefix else there.count(promise)
        assert found == (int(count) if prefix else 1), promise


def clean_beside(uri: str, processes: list[Process], seconds: float) -> int:
    """One cleanup after the other; every now and then a process is stopped while a few of them pass."""
    dice = random.Random(7)
    graph = omnigraph.open(uri, NO_FSYNC)
    swept, stopped = 0, None
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if stopped is None:
            stopped = dice.choice(processes)
            stopped.signal(signal.SIGSTOP)
            time.sleep(FLOOR.total_seconds() * 2)
        try:
            swept += cleanup(graph.repository, Retention(timedelta(), 3), dry_run=False, floor=FLOOR).files
        except ConflictError:
            continue  # it lost too many races, and deleted nothing
        stopped.signal(signal.SIGCONT)
        stopped = None
        time.sleep(dice.uniform(0.0, 0.4))
    if stopped is not None:
        stopped.signal(signal.SIGCONT)
    return swept
