"""A process that works on a graph until it is told to end, while another cleans up: a writer, forker, loader or reader.

    busy_process.py ROLE NAME URI OPTIONS

It says "ready", begins with the first line on stdin, ends with the second, and tells what it was promised as JSON:
rows that it was told are there, and what went wrong that must not.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from omnigraph.errors import AlreadyExists, BranchNotFound, CommitNotFound, ConflictError, Damaged, OmnigraphError
from omnigraph.graph import graph as omnigraph
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import Append, Upsert
from omnigraph.pipeline.bulk.load import bulk_load
from omnigraph.storage.util.runner import LocalRunner
from omnigraph.write.load.load_options import LoadOptions
from support.catalogs import PERSON, ids_of, person_rows


class Busy:
    def __init__(self, graph: Graph, name: str) -> None:
        self._graph, self._name = graph, name
        self._number = 0
        self.promised: list[str] = []
        self.wrong: list[str] = []
        self.done: dict[str, int] = {}

    def step(self, role: str) -> None:
        self._number += 1
        try:
            getattr(self, role)(f"{self._name}-{self._number}")
            self._count("done")
        except (ConflictError, BranchNotFound, CommitNotFound, AlreadyExists) as error:
            self._count(type(error).__name__)
        except OmnigraphError as error:
            self.wrong.append(f"{role}: {type(error).__name__}: {error}")

    def _count(self, what: str) -> None:
        self.done[what] = self.done.get(what, 0) + 1

    def write(self, row: str) -> None:
        action = Append if self._number % 3 else Upsert
        self._graph.write([action(PERSON, person_rows(row))])
        self.promised.append(row)

    def fork(self, row: str) -> None:
        """A branch with a row of its own, merged or thrown away."""
        branches = self._graph.branches
        source = "main" if self._number % 2 else self._graph.commits(limit=3)[-1].id
        branches.create(row, source)
        self._graph.write([Append(PERSON, person_rows(row))], branch=row)
        if self._number % 3:
            branches.merge(row, delete_branch=True)
            self.promised.append(row)
        else:
            branches.delete(row)

    def load(self, row: str) -> None:
        rows = [{"type": "Person", "data": {"id": f"{row}-{n}", "slug": f"{row}-{n}", "name": row}} for n in range(20)]
        place = Path(self._graph.repository.location.path).parent / f"{row}.jsonl"
        place.write_text("".join(json.dumps(line) + "\n" for line in rows))
        result = bulk_load(self._graph.repository, LocalRunner(), str(place), LoadOptions(mode="append"))
        assert result.commit is not None
        self.promised.append(f"{len(rows)} of {row}-")

    def travel(self, row: str) -> None:
        """Read states of the last commits; one that has expired meanwhile may be gone half-way."""
        for commit in self._graph.commits(limit=6)[1:]:
            snapshot = self._graph.snapshot(at=commit.id)
            try:
                rows = snapshot.to_arrow(PERSON)
            except Damaged:
                self._graph.snapshot(at=commit.id)  # says that it is expired, if that is why
                raise
            expected = sum(kind.rows for kind in snapshot.types if kind.type_name == "Person")
            if len(set(ids_of(rows))) != expected:
                self.wrong.append(f"{commit.id} has {rows.num_rows} rows, {expected} were promised")

    def read(self, row: str) -> None:
        """The head: a cleanup with a floor that no query outlives never takes anything from under it."""
        snapshot = self._graph.snapshot()
        expected = sum(kind.rows for kind in snapshot.types if kind.type_name == "Person")
        if snapshot.to_arrow(PERSON).num_rows != expected:
            self.wrong.append(f"the head {snapshot.commit_id} has not the {expected} rows that it says")


def main(role: str, name: str, uri: str, options: str) -> None:
    busy = Busy(omnigraph.open(uri, json.loads(options)), name)
    over = threading.Event()
    say: Callable[[Any], None] = lambda what: print(json.dumps(what), flush=True)  # noqa: E731
    busy.step(role)  # what is imported and opened first takes a while
    say("ready")
    sys.stdin.readline()

    def wait_for_the_end() -> None:
        sys.stdin.readline()
        over.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    while not over.is_set():
        busy.step(role)
    say({"promised": busy.promised, "wrong": busy.wrong, "done": busy.done})


if __name__ == "__main__":
    main(*sys.argv[1:])
