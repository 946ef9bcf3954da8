"""A table that lacks a column of its manifest's schema, as format 1 could leave one: it is reported, read and mended.

A fold had stored the rows of a type before a property was added to it, and the change that added it, planned before
the fold, was put all the same. Here the checks that prevent this are switched off while that happens.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.graph.graph import Graph
from omnigraph.maintenance.commit import MaintenanceRun, Task
from omnigraph.maintenance.policy import GENTLE
from omnigraph.manifest.commit import conflicts, rebase
from omnigraph.manifest.model.manifest import TableRef
from omnigraph.manifest.repository import Repository
from omnigraph.manifest.settings import Settings
from omnigraph.runtime import Runtime
from omnigraph.storage.meter import Cost
from omnigraph.storage.objects.object_store import open_store
from support.steps import Call, Gate, SteppedStore, Stepper

BEFORE = "node A { k: String @key x: I32? }"
AFTER = "node A { k: String @key x: I32? y: I32? v: Vector(2)? s: String? @index }"
INLINE = Settings(maintenance=0)
QUICK = {"fsync": "false"}


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Graph:
    """A damaged graph, of which nothing is cached."""
    graph = omnigraph.init(tmp_path / "graph", BEFORE, storage_options=QUICK, settings=INLINE)
    graph.mutate('query q() { insert A { k: "a", x: 1 } }')
    with monkeypatch.context() as unprotected:
        unprotected.setattr(rebase, "missing_columns", lambda *_: {})
        unprotected.setattr(conflicts, "_undecided", lambda *_: set())
        gate = Gate()
        store: Any = SteppedStore(open_store(graph.repository.location, Runtime()), gate)
        other = Graph(Repository(store, graph.repository.stamp, runtime=Runtime(), settings=INLINE), Cost())
        with Stepper(lambda: other.schema.apply(AFTER), gate) as apply:
            apply.run_until(puts_a_manifest)
            fold(graph)
            apply.run_to_end()
            apply.result()
    as_format_1(tmp_path / "graph")
    return omnigraph.open(graph.uri, QUICK, settings=INLINE)


def puts_a_manifest(call: Call) -> bool:
    return call.method == "create" and "__manifest/" in call.key


def fold(graph: Graph) -> None:
    run = MaintenanceRun(graph.repository, (Task("node:A", GENTLE),), kind="fold")
    assert run.publish(graph.repository.open_txn()).commit is not None


def as_format_1(place: Path) -> None:
    """The newest manifest as format 1 would have written it."""
    path = min((place / "__manifest").glob("*/*.json"))
    document = json.loads(path.read_text())
    document["format"] = 1
    document.pop("checksum")
    document.pop("schemas", None)
    for table in document["tables"].values():
        table.pop("columns", None)
    path.write_text(json.dumps(document))


def table(graph: Graph) -> TableRef:
    return graph.repository.branches.find("main").head.tables["node:A"]


def columns(graph: Graph) -> list[str]:
    stored = table(graph).stored
    assert stored is not None
    return graph.repository.tables.open(stored).schema.names


ROW = {"id": "a", "k": "a", "x": 1, "y": None, "v": None, "s": None}


def query(graph: Graph, pattern: str) -> list[Any]:
    return [row["e"] for row in graph.query(f"query q() {{ match {{ $e: A {pattern} }} return {{ $e }} }}").rows]


def assert_reads_as_null(graph: Graph) -> None:
    assert graph.snapshot().to_arrow("node:A").to_pylist() == [ROW]
    assert query(graph, "") == [ROW]
    assert query(graph, "$e.y = 1") == []
    assert query(graph, '$e.s = "x"') == []
    assert graph.snapshot().to_arrow("node:A", columns=["id", "y"], filter="y IS NULL").num_rows == 1
    assert graph.snapshot().to_arrow("node:A", columns=["id"], filter="y = 1").num_rows == 0


def test_the_table_really_lacks_the_columns(graph: Graph) -> None:
    assert columns(graph) == ["id", "k", "x"]


@pytest.mark.parametrize("full", [False, True])
def test_verify_reports_each_property_without_a_column_and_what_to_do(graph: Graph, full: bool) -> None:
    problems = [problem.sentence for problem in graph.verify(full=full).damage]

    assert len(problems) == 3
    for problem, name in zip(problems, ("y", "v", "s"), strict=True):
        assert "node:A" in problem
        assert f"no column {name!r} for the property {name!r}" in problem
        assert "run `optimize`" in problem


def test_what_no_row_was_ever_given_reads_as_null(graph: Graph) -> None:
    assert_reads_as_null(graph)


def test_rows_on_top_have_the_column_and_stored_ones_null(graph: Graph) -> None:
    graph.mutate('query q() { insert A { k: "b", y: 2 } }')

    assert query(graph, "$e.y = 2") == [{**ROW, "id": "b", "k": "b", "x": None, "y": 2}]
    assert sorted(row["id"] for row in query(graph, "")) == ["a", "b"]
    assert graph.snapshot().to_arrow("node:A", filter="y IS NULL").column("id").to_pylist() == ["a"]


def test_optimize_adds_the_columns(graph: Graph) -> None:
    graph.optimize()

    assert columns(graph) == ["id", "k", "x", "y", "v", "s"]
    assert table(graph).columns == graph.repository.branches.find("main").head.schema
    assert_reads_as_null(graph)


def test_after_optimize_only_the_older_commit_is_reported(graph: Graph) -> None:
    damaged = graph.repository.branches.find("main").head.manifest_version
    graph.optimize()

    problems = graph.verify(full=True).damage
    assert problems
    assert all(problem.where.startswith(f"manifest {damaged} of branch 'main'") for problem in problems)


def test_a_fold_adds_the_columns(graph: Graph) -> None:
    graph.mutate('query q() { insert A { k: "b" } }')
    fold(graph)

    assert columns(graph) == ["id", "k", "x", "y", "v", "s"]


def test_another_schema_change_adds_the_columns(graph: Graph) -> None:
    graph.schema.apply(AFTER.replace("s: String?", "z: I32 @default(3) s: String?"))

    assert sorted(columns(graph)) == ["id", "k", "s", "v", "x", "y", "z"]
    assert query(graph, "$e.z = 3") == [{**ROW, "z": 3}]
