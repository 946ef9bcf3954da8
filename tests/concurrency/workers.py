"""Worker processes as a test sees them: orders in, answers out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("writer.py")
PATIENCE_S = 30.0


class WorkerProcess:
    """One `writer.py`; `ask` sends an order, `answer` waits for what came of it."""

    def __init__(self, uri: str, options: Mapping[str, str]) -> None:
        command = [sys.executable, str(PROGRAM), uri, json.dumps(dict(options))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._owed = 1  # answers; the first is "ready"

    @property
    def is_idle(self) -> bool:
        """Whether it has answered all that it was asked."""
        return self._owed == 0

    def ask(self, do: str, **order: Any) -> None:
        assert self._process.stdin is not None
        self._owed += 1
        self._process.stdin.write(json.dumps({"do": do, **order}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"a worker ended with {self._process.wait()}; its own words are on stderr"
        self._owed -= 1
        return json.loads(line)

    def call(self, do: str, **order: Any) -> Any:
        self.ask(do, **order)
        return self.answer()

    def await_stopped(self) -> None:
        """Wait until the process has stopped itself, as `stop=True` tells it to."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            state = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state == "T":
                return
            time.sleep(0.01)
        raise AssertionError(f"the worker did not stop within {PATIENCE_S:.0f} s")

    def continue_(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def workers(count: int, uri: str, options: Mapping[str, str]) -> Iterator[list[WorkerProcess]]:
    """That many processes, all of which have the graph open."""
    with ExitStack() as stack:
        started = [WorkerProcess(uri, options) for _ in range(count)]
        for worker in started:
            stack.callback(worker.end)
        for worker in started:
            assert worker.answer() == "ready"
        yield started
