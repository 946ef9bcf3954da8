"""Run expensive queries from seeds, and say which exceed their deadline or their memory budget.

    PYTHONPATH=src:tests python -m hostile.bomb_run --seeds 1..200 [--graph large] [--deadline 2] [--budget 256]

The graph is made in a temporary directory (`--at FOLDER` keeps it there for the next time). Each failing seed is
printed with its query, and `--seeds N` runs it again. A query exceeds its deadline if it works on for more than a
second; time that it spends waiting for a processor does not count, because the machine may be busy. It exceeds its
budget if the process grows by more than that and a tenth; what the shared caches have kept of it does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hostile.bomb_graph import LARGE, SMALL, make_graph
from hostile.bomb_worker import rss
from hostile.bombs import Bomb, bomb

MIB = 1 << 20
OVERSHOOT_S = 1.0
OVERSHOOT_SHARE = 0.1
NOISE = 24 * MIB  # of allocators, and of a process as such
KILL_AFTER_S = 15.0  # beyond the deadline
KILL_ABOVE = 2_000 * MIB  # beyond the baseline
SAMPLE_S = 0.005


@dataclass(frozen=True)
class Limits:
    deadline_s: float = 2.0
    budget: int = 256 * MIB


@dataclass(frozen=True)
class Outcome:
    """What a query did: how long it worked beyond its deadline, and how much it took."""

    outcome: str
    rows: int
    seconds: float
    late_s: float  # by the clock
    late_cpu_s: float
    grown: int
    cached: int
    left: int
    busy: Sequence[str]
    where: dict[str, Any]

    def failures(self, limits: Limits) -> list[str]:
        found = []
        allowed = limits.budget * (1 + OVERSHOOT_SHARE) + max(0, self.cached) + NOISE
        if min(self.late_s, self.late_cpu_s) > OVERSHOOT_S:
            found.append(f"late by {self.late_s:.1f} s ({self.late_cpu_s:.1f} s of processor time)")
        if self.grown > allowed:
            found.append(f"grew by {self.grown / MIB:.0f} MiB, {allowed / MIB:.0f} allowed")
        if self.busy:
            found.append(f"threads go on: {', '.join(self.busy)}")
        if self.outcome.startswith(("crashed", "killed", "MemoryError")):
            found.append(self.outcome)
        return found


class Worker:
    """A process for queries; a new one where the last was killed."""

    def __init__(self, graph: Path) -> None:
        self._graph = graph
        self._process: subprocess.Popen[str] | None = None
        self._fresh = self._cached = 0
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed with the worker
        self.kept = 0  # bytes that were left of all queries of the process, besides caches

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._log.close()

    def run(self, query: Bomb, limits: Limits) -> Outcome:
        process = self._running()
        assert process.stdin is not None
        job = {"text": query.text, "params": query.params, "as_json": query.as_json}
        job |= {"deadline_s": limits.deadline_s, "budget": limits.budget}
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        baseline = self._hear()["baseline"]
        watch = _Watch(process.pid, baseline, limits, self._dump)
        watch.start()
        answer = self._hear()
        watch.end()
        after = self._hear() if answer else {}
        if not after:
            tail = self._log_tail()
            self.close()
            seconds = watch.samples[-1][0] - watch.samples[0][0]
            return Outcome(
                f"killed: {watch.reason or 'it died'}\n{tail}",
                0,
                seconds,
                max(0.0, seconds - limits.deadline_s),
                watch.cpu_after(watch.samples[0][0] + limits.deadline_s, watch.samples[-1][0]),
                watch.peak - baseline,
                0,
                0,
                [],
                {},
            )
        deadline = answer["started"] + limits.deadline_s
        self._cached += after["cached"]
        self.kept = after["left"] - self._fresh - self._cached
        return Outcome(
            answer["outcome"],
            answer["rows"],
            answer["ended"] - answer["started"],
            max(0.0, answer["ended"] - deadline),
            watch.cpu_after(deadline, answer["ended"]),
            watch.peak - baseline,
            after["cached"],
            after["left"] - baseline,
            after["busy"],
            answer["where"],
        )

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            command = [sys.executable, "-m", "hostile.bomb_worker", str(self._graph)]
            own = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, env=own
            )
            ready = self._hear()
            assert ready, self._log_tail()
            self._fresh, self._cached, self.kept = ready["ready"], 0, 0
        return self._process

    def _hear(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found: dict[str, Any] = json.loads(line) if line else {}
        return found

    def _dump(self) -> None:
        """Have the stacks of all threads in the log."""
        assert self._process is not None
        self._process.send_signal(signal.SIGUSR1)
        time.sleep(0.5)
        self._process.kill()

    def _log_tail(self) -> str:
        self._log.seek(0)
        return self._log.read()[-3_000:]


class _Watch(threading.Thread):
    """Memory and processor time of a process while it answers."""

    def __init__(self, pid: int, baseline: int, limits: Limits, kill: Any) -> None:
        super().__init__(daemon=True)
        self._pid, self._baseline, self._limits, self._kill = pid, baseline, limits, kill
        self._over = threading.Event()
        self.samples: list[tuple[float, float]] = [(time.monotonic(), _cpu_s(pid))]
        self.peak = baseline
        self.reason = ""

    def run(self) -> None:
        while not self._over.wait(SAMPLE_S):
            now = time.monotonic()
            try:
                self.peak = max(self.peak, rss(self._pid))
                self.samples.append((now, _cpu_s(self._pid)))
            except (FileNotFoundError, ProcessLookupError, IndexError):
                return
            if self.peak - self._baseline > KILL_ABOVE:
                self.reason = "too much memory"
            elif now - self.samples[0][0] > self._limits.deadline_s + KILL_AFTER_S:
                self.reason = "too late"
            if self.reason:
                self._kill()
                return

    def end(self) -> None:
        self._over.set()
        self.join()

    def cpu_after(self, start: float, end: float) -> float:
        """Processor time of all threads between two times."""
        inside = [cpu for at, cpu in self.samples if start <= at <= end]
        return inside[-1] - inside[0] if inside else 0.0


def _cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_twice(worker: Worker, query: Bomb, limits: Limits) -> tuple[Outcome, list[str]]:
    """The outcome and what is wrong with it: what has failed once is run again, in a new process."""
    outcome = worker.run(query, limits)
    failures = outcome.failures(limits)
    if failures and not outcome.outcome.startswith("killed"):
        worker.close()
        outcome = worker.run(query, limits)
        failures = outcome.failures(limits)
    return outcome, failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1..50")
    parser.add_argument("--graph", choices=["small", "large"], default="small")
    parser.add_argument("--at", type=Path)
    parser.add_argument("--deadline", type=float, default=2.0)
    parser.add_argument("--budget", type=int, default=256, help="MiB")
    parser.add_argument("--verbose", action="store_true")
    chosen = parser.parse_args()
    first, _, last = chosen.seeds.partition("..")
    queries = [bomb(seed) for seed in range(int(first), int(last or first) + 1)]
    limits = Limits(chosen.deadline, chosen.budget * MIB)
    outcomes: Counter[str] = Counter()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        graph = chosen.at or Path(folder) / "graph"
        if not graph.exists():
            make_graph(graph, LARGE if chosen.graph == "large" else SMALL)
        worker = stack.enter_context(Worker(graph))
        for query in queries:
            outcome, failed = run_twice(worker, query, limits)
            outcomes["failed" if failed else outcome.outcome.partition(":")[0]] += 1
            if chosen.verbose or failed:
                print(
                    f"{query.seed}: {outcome.seconds:.1f} s, late {outcome.late_s:.1f}, {outcome.grown / MIB:.0f} MiB, "
                    f"cached {outcome.cached / MIB:.0f}, left {outcome.left / MIB:.0f}, {outcome.rows} rows, "
                    f"{outcome.outcome[:150]}",
                    flush=True,
                )
            if failed:
                print(f"FAILED {query}\n  {'; '.join(failed)}", flush=True)
                print(f"  at its peak of {outcome.where.get('peak_mib')} MiB: {outcome.where.get('peak')}")
                for count, stack in outcome.where.get("late", []):
                    print(f"  late, {count} samples: {stack}", flush=True)
    print(dict(outcomes))
    raise SystemExit(1 if outcomes["failed"] else 0)


if __name__ == "__main__":
    main()
