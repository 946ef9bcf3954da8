"""A process that runs expensive queries under limits, one after another, and says what became of each.

It reads a JSON document per line from its standard input: `seed`, `text`, `params`, `as_json`, `deadline_s` and
`budget`; and answers with one when a query starts, and one when it has ended. Memory and processor time are measured
from outside (`bomb_run.py`), where nothing that holds the interpreter can delay it; stacks are sampled here.

    python -m hostile.bomb_worker GRAPH
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from typing import Any

import pyarrow as pa

import omnigraph
from omnigraph.cancellation import Stopped, StopToken, stop_scope
from omnigraph.errors import OmnigraphError
from omnigraph.graph.graph import Graph
from omnigraph.memory_budget import MemoryBudget, budget_scope

PAGE = os.sysconf("SC_PAGE_SIZE")
SAMPLE_S = 0.02
SETTLE_S = 0.2
PEAK_STEP = 16 << 20
WARMING = [
    "match { $p: Person } return { $p as whole } order { $p.id }",
    *(
        f"match {{ $p: Person }} return {{ count($p) as n, min($p.{name}) as least }} order {{ n }}"
        for name in ("slug", "name", "bio", "age", "big", "score", "ok", "role", "born", "seen")
    ),
    *(
        f"match {{ $p: Person }} return {{ $p.{name} as value, count($p) as n }} order {{ n }}"
        for name in ("slug", "name", "bio", "age", "big", "score", "ok", "role", "born", "seen", "tags", "nums")
    ),
    *(f"match {{ $p {edge} $q }} return {{ count($p) as n }}" for edge in ("knows", "<knows>", "follows", "<follows>")),
    "match { $p $e:knows $q } return { min($e.since) as s, max($e.weight) as w, min($e.note) as n }",
    "match { $p livesIn $c } return { $c as city, count($p) as n }",
    'match { $p: Person { slug: "p0" } $p knows{1,} $q } return { count($q) as n }',
    'match { $p: Person { slug: "p0" } $q follows{1,} $p } return { count($q) as n }',
    'match { $p: Person search($p.bio, "babababa") } return { $p.id } order { bm25($p.bio, "babababa") } limit 10',
    "match { $p: Person } return { $p.id } order { nearest($p.face, [1,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]) } limit 10",
]


def rss(pid: int | str = "self") -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * PAGE


def settle() -> int:
    """Give back what is free, and the memory that is left."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)
    return rss()


def warm(graph: Graph) -> None:
    """Fill the caches, which queries share and which have a bound of their own."""
    for body in WARMING:
        for batch in graph.query(f"query warm() {{ {body} }}").batches():
            del batch


def run(graph: Graph, job: dict[str, Any]) -> dict[str, Any]:
    stop = StopToken()
    sampler = _Sampler(job["deadline_s"])
    started = time.monotonic()
    timer = threading.Timer(job["deadline_s"], stop.set, [Stopped("of its deadline", "ask for less")])
    timer.start()
    rows, outcome = 0, "answered"
    sampler.start()
    try:
        with stop_scope(stop), budget_scope(MemoryBudget(job["budget"])):
            result = graph.query(job["text"], params=job["params"], engine="local")
            for part in result.json_batches() if job["as_json"] else result.batches():
                rows += len(part)
                del part
    except OmnigraphError as error:
        outcome = f"{type(error).__name__}: {str(error)[:200]}"
    except MemoryError as error:
        outcome = f"MemoryError: {error}"
    except Exception:
        outcome = f"crashed: {traceback.format_exc()[-1500:]}"
    ended = time.monotonic()
    timer.cancel()
    sampler.end()
    return {"started": started, "ended": ended, "rows": rows, "outcome": outcome, "where": sampler.report()}


class _Sampler(threading.Thread):
    """Where a query is when its memory grows, and after its deadline."""

    def __init__(self, deadline_s: float) -> None:
        super().__init__(daemon=True)
        self._query = threading.get_ident()
        self._deadline_s = deadline_s
        self._over = threading.Event()
        self._peak = rss()
        self._first = self._peak
        self._at_peak = ""
        self._late: Counter[str] = Counter()

    def run(self) -> None:
        started = time.monotonic()
        late = 0.0
        while not self._over.wait(SAMPLE_S):
            spent, used = time.monotonic() - started, rss()
            if used > self._peak + PEAK_STEP:
                self._peak, self._at_peak = used, self._stack()
            if spent > self._deadline_s + 0.2 and spent > late + 0.1:
                late = spent
                self._late[self._stack()] += 1

    def end(self) -> None:
        self._over.set()
        self.join()

    def report(self) -> dict[str, Any]:
        return {
            "peak_mib": (self._peak - self._first) >> 20,
            "peak": self._at_peak,
            "late": [[count, stack] for stack, count in self._late.most_common(3)],
        }

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._query)
        calls = traceback.extract_stack(frame)[-9:] if frame is not None else []
        return " < ".join(f"{os.path.basename(call.filename)}:{call.lineno} {call.name}" for call in reversed(calls))


def busy_threads(s: float = 0.3) -> list[str]:
    """The threads that still compute although nothing was asked: name, and processor time of each."""
    before = _thread_ticks()
    time.sleep(s)
    ticks = os.sysconf("SC_CLK_TCK")
    spent = {key: (now - before.get(key, now)) / ticks for key, now in _thread_ticks().items()}
    return [f"{name} {used:.2f} s of {s} s" for (_, name), used in spent.items() if used > s / 2]


def _thread_ticks() -> dict[tuple[str, str], int]:
    found = {}
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/stat") as file:
                name, _, rest = file.read().partition("(")[2].rpartition(")")
        except FileNotFoundError:
            continue
        fields = rest.split()
        found[thread, name] = int(fields[11]) + int(fields[12])
    return found


def say(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def main() -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    graph = omnigraph.open(sys.argv[1], {"fsync": "false"})
    warm(graph)
    say({"ready": settle()})
    for line in sys.stdin:
        job = json.loads(line)
        cached = graph.cache_counts.bytes_held
        say({"baseline": settle()})
        answer = run(graph, job)
        say(answer)
        time.sleep(SETTLE_S)
        busy = busy_threads()
        left = settle()
        say({"busy": busy, "left": left, "cached": graph.cache_counts.bytes_held - cached})


if __name__ == "__main__":
    main()
