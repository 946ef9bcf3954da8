"""A worker process of the concurrency tests: opens a graph, says "ready", and does what it is told, line by line.

It reads one JSON order a line from stdin and answers each with one JSON line on stdout, so that a test can let
many of them begin at the same moment, and stop one at a chosen point.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from omnigraph.errors import OmnigraphError
from omnigraph.graph import graph as omnigraph
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import Append, Delete
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.storage.objects.object_store import PutOutcome
from omnigraph.write.validate.checks import NodesExist, Unreferenced
from support.catalogs import COMPANY, KNOWS, PERSON, company_rows, ids_of, knows_rows, person_rows

Answer = dict[str, Any]


class Worker:
    _graph: Graph
    _txn: WriteTxn | None
    _lost: int
    _stop_before_put: bool
    _create: Any

    def open(self, uri: str, options: dict[str, str], environment: dict[str, str]) -> Answer:
        """Begin anew, with this graph."""
        os.environ.update(environment)
        self._graph = graph = omnigraph.open(uri, options)
        self._txn = None
        self._lost = 0
        self._stop_before_put = False
        self._create = graph.repository.manifests.create
        graph.repository.manifests.create = self._counted_create  # type: ignore[method-assign]
        return {"inline_rows": graph.repository.settings.inline_rows}

    def _counted_create(self, manifest: Any) -> Any:
        if self._stop_before_put:
            self._stop_before_put = False
            os.kill(os.getpid(), signal.SIGSTOP)
        answer = self._create(manifest)
        self._lost += answer.outcome is PutOutcome.EXISTS
        return answer

    def insert_many(self, name: str, commits: int, fresh_ids: bool) -> Answer:
        """`commits` commits, each with a new row in two tables; how long each took and how often it lost."""
        seconds, losses, ids = [], [], []
        started = time.monotonic()
        for number in range(commits):
            before, lost = time.monotonic(), self._lost
            row = f"{name}-{number:02d}"
            commit = self._graph.write(
                [
                    Append(PERSON, person_rows(row), fresh_ids=fresh_ids),
                    Append(COMPANY, company_rows(row), fresh_ids=fresh_ids),
                ],
                actor=name,
            )
            assert commit is not None
            ids.append(commit.id)
            seconds.append(time.monotonic() - before)
            losses.append(self._lost - lost)
        return {"commits": ids, "seconds": seconds, "losses": losses, "total_s": time.monotonic() - started}

    def insert_for(self, name: str, seconds: float) -> Answer:
        """One-row commits, one after the other, for so long: how long each took and how often it lost."""
        took: list[float] = []
        losses: list[int] = []
        until = time.monotonic() + seconds
        while (before := time.monotonic()) < until:
            lost = self._lost
            row = person_rows(f"{name}-{len(took)}")
            assert self._graph.write([Append(PERSON, row, fresh_ids=True)], actor=name) is not None
            took.append(time.monotonic() - before)
            losses.append(self._lost - lost)
        return {"seconds": took, "losses": losses}

    def watch(self, path: str) -> Answer:
        """Read the newest state again and again until the file `path` appears: both tables have the same rows."""
        looks = 0
        sizes: list[int] = []
        while True:
            last = os.path.exists(path)
            started = time.monotonic()
            snapshot = self._graph.snapshot()
            persons = ids_of(snapshot.to_arrow(PERSON, columns=["id"]))
            companies = ids_of(snapshot.to_arrow(COMPANY, columns=["id"]))
            assert persons == companies, (snapshot.commit_id, set(persons) ^ set(companies))
            assert len(persons) == snapshot.types[0].rows < snapshot.manifest_version, snapshot.commit_id
            looks, sizes = looks + 1, [*sizes, len(persons)]
            if last:
                return {"looks": looks, "sizes": sizes}
            time.sleep(0.1 + time.monotonic() - started)  # leave the store to the writers, half of the time

    def begin(self) -> Answer:
        self._txn = self._graph.begin()
        return {"base": self._txn.commit_id}

    def append(self, ids: list[str], *, held: bool = False, stop: bool = False, **more: Any) -> Answer:
        self._stop_before_put = stop
        txn = self._txn if held else None
        commit = self._graph.write([Append(PERSON, person_rows(*ids))], txn=txn, **more)
        return {"commit": None if commit is None else commit.id, "losses": self._lost}

    def add_edge(self, ends: tuple[str, str]) -> Answer:
        source, target = ends
        check = NodesExist(PERSON, frozenset({source, target}), KNOWS)
        commit = self._graph.write([Append(KNOWS, knows_rows((source, target)))], checks=[check])
        return {"commit": None if commit is None else commit.id}

    def remove_node(self, id: str) -> Answer:
        checks = [Unreferenced(PERSON, frozenset({id}), KNOWS, column) for column in ("src", "dst")]
        commit = self._graph.write([Delete(PERSON, (id,))], checks=checks)
        return {"commit": None if commit is None else commit.id}

    def obey(self, order: Answer) -> Answer:
        verb = order.pop("do")
        try:
            answer: Answer = getattr(self, verb)(**order)
            return answer
        except OmnigraphError as error:
            return {"raised": type(error).__name__, **error.to_json()}


def main() -> None:
    uri, options = sys.argv[1], json.loads(sys.argv[2])
    worker = Worker()
    worker.open(uri, options, {})
    import lance  # noqa: F401  # importing takes a while; not part of any measurement

    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        print(json.dumps(worker.obey(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
