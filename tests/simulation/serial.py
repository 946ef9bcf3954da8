"""Calls made one after the other on a graph in a local directory, recorded as the simulation records its runs.

The writes of a call are found by looking at the directory before and after it. That is how the checks are tested: on
histories of the real product that are right, and on those that were made wrong on purpose.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import omnigraph
from omnigraph.errors import OmnigraphError
from omnigraph.manifest.settings import Settings
from simulation import ops
from simulation.actors import Hands
from simulation.checks import Checker

INLINE = Settings(inline_rows=1000, maintenance=0)
STAGED = Settings(inline_rows=2, maintenance=0)
NO_FSYNC = {"fsync": "false"}


class Serial:
    """One graph with its history; every call gets two steps."""

    def __init__(self, folder: Path, settings: Settings = INLINE) -> None:
        self._root = folder / "graph"
        self._inputs = folder / "inputs"
        self.graph = omnigraph.init(self._root, ops.schema_text(), NO_FSYNC, settings=settings)
        self.history = ops.History(tables=str(self._root / "tables"))
        self.checker = Checker(self.history)
        self._seen: dict[str, bytes] = {}
        self._step = 1
        self._record(0, "")

    def call(self, verb: ops.Verb) -> ops.Call:
        name = f"c{len(self.history.calls)}"
        txn = None
        if isinstance(verb, ops.WriteHeld):
            txn = self.graph.begin(verb.branch)
            verb = replace(verb, base=txn.base.logical_head)
        call = ops.Call(name, "p0", "t0", verb, self._step)
        self.history.begin(call)
        outcome: ops.Outcome
        try:
            outcome = Hands(self.graph, name, self._inputs, txn).perform(verb)
        except OmnigraphError as error:
            outcome = ops.refused(error)
        self._record(self._step + 1, name)
        call = replace(call, end=self._step + 1, outcome=outcome)
        self.history.calls[name] = call
        self._step += 2
        self.checker.step()
        return call

    def commit(self, verb: ops.Verb) -> str:
        """A call that must commit; the id."""
        call = self.call(verb)
        assert isinstance(call.outcome, ops.Committed), call
        return call.outcome.commit_id

    def _record(self, step: int, call: str) -> None:
        found: list[tuple[Any, str, bytes]] = []
        for path in self._root.rglob("*"):
            key = str(path.relative_to(self._root))
            if not path.is_file() or key.startswith("tables") or path.name.startswith(".tmp-"):
                continue
            body = path.read_bytes()
            if self._seen.get(key) != body:
                found.append((_order(key, body, path.stat().st_mtime_ns), key, body))
        for _, key, body in sorted(found):
            self._seen[key] = body
            self.history.write(step, key, body, call)
        for key in [key for key in self._seen if not (self._root / key).exists()]:
            del self._seen[key]
            self.history.write(step, key, None, call)


def _order(key: str, body: bytes, changed: int) -> tuple[int, int, bool, int]:
    """What a manifest refers to comes first, then manifests by time; within one tick of the clock as they must be."""
    folder, _, rest = key.partition("/")
    if folder != "__manifest" or not rest.endswith(".json"):
        return (0 if folder == "__schema" else 1 if folder == "__refs" else 3), 0, False, 0
    return 2, changed, b'"tombstone"' in body, -int(key.rpartition("/")[2].removesuffix(".json"))
