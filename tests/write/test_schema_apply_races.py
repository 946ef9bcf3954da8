"""Schema changes concurrent with other writes: no write is committed under the wrong schema, in either order.

One client is stopped just before the put that would make its commit, another one does its whole work, then the first
goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

import omnigraph
from omnigraph.errors import ConflictError, ExpectedVersionMismatch, OmnigraphError
from omnigraph.graph.graph import Graph
from omnigraph.lexer import LanguageError
from omnigraph.manifest.commit.plan import Append, ConflictPolicy, DataChange, PublishPlan, Rewrite, StagedTable
from omnigraph.manifest.model.manifest import RowCounts
from omnigraph.manifest.repository import Repository
from omnigraph.runtime import Runtime
from omnigraph.storage.meter import Cost
from omnigraph.storage.objects.object_store import open_store
from support.steps import Call, Gate, SteppedStore, Stepper

T = TypeVar("T")
BASE = "node A { k: String @key x: I32? } node B { k: String @key } node C { k: String @key } edge E: A -> B"
INSERT = 'query q() { insert A { k: "new", x: 5 } }'


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    graph = omnigraph.init(tmp_path / "graph", BASE)
    graph.load([{"type": "A", "data": {"k": "a", "x": 1}}, {"type": "B", "data": {"k": "b"}}])
    return graph


def stopped(graph: Graph, write: Callable[[Graph], T]) -> Stepper[T]:
    """Another client's write, stopped before it puts its manifest."""
    gate = Gate()
    runtime = Runtime()
    store: Any = SteppedStore(open_store(graph.repository.location, runtime), gate)
    other = Graph(Repository(store, graph.repository.stamp, runtime=runtime), Cost())
    stepper = Stepper(lambda: write(other), gate)
    stepper.run_until(puts_a_manifest)
    return stepper


def puts_a_manifest(call: Call) -> bool:
    return call.method == "create" and "__manifest/" in call.key


def finished(stepper: Stepper[T]) -> T:
    with stepper:
        stepper.run_to_end()
        return stepper.result()


def rows(graph: Graph, type_name: str, **options: Any) -> list[dict[str, Any]]:
    found = graph.query(f"query q() {{ match {{ $e: {type_name} }} return {{ $e }} order {{ $e.id }} }}", **options)
    return [row["e"] for row in found.rows]


# A write that planned on the old schema


def test_a_mutation_plans_again_on_the_new_schema(graph: Graph) -> None:
    write = stopped(graph, lambda g: g.mutate(INSERT))
    graph.schema.apply(BASE.replace("x: I32?", "x: I64? y: I32 @default(7)"))

    assert finished(write) is not None
    assert rows(graph, "A") == [
        {"id": "a", "k": "a", "x": 1, "y": 7},
        {"id": "new", "k": "new", "x": 5, "y": 7},
    ]


def test_a_mutation_of_what_was_dropped_is_refused(graph: Graph) -> None:
    write = stopped(graph, lambda g: g.mutate(INSERT))
    graph.schema.apply(BASE.replace("x: I32?", ""))

    with pytest.raises(LanguageError, match="x"):
        finished(write)
    assert rows(graph, "A") == [{"id": "a", "k": "a"}]


def test_a_mutation_of_a_renamed_type_is_refused_and_not_written_elsewhere(graph: Graph) -> None:
    write = stopped(graph, lambda g: g.mutate(INSERT))
    graph.schema.apply(BASE.replace("node A", 'node Z @rename_from("A")').replace("A ->", "Z ->"))

    with pytest.raises(LanguageError, match="A"):
        finished(write)
    assert rows(graph, "Z") == [{"id": "a", "k": "a", "x": 1}]


def test_a_mutation_of_a_swapped_name_is_planned_again(graph: Graph) -> None:
    """The type that it names is another one by now: it must not land in the table that it looked at."""
    write = stopped(graph, lambda g: g.mutate('query q() { insert B { k: "new" } }'))
    swap = 'node C @rename_from("B") { k: String @key } node B @rename_from("C") { k: String @key }'
    graph.schema.apply(f"node A {{ k: String @key x: I32? }} {swap} edge E: A -> C")

    assert finished(write) is not None
    assert [row["id"] for row in rows(graph, "B")] == ["new"]
    assert [row["id"] for row in rows(graph, "C")] == ["b"]


@pytest.mark.parametrize("mode", ["append", "merge"])
def test_a_load_plans_again_on_the_new_schema(graph: Graph, mode: Any) -> None:
    write = stopped(graph, lambda g: g.load([{"type": "A", "data": {"k": "new"}}], mode=mode))
    graph.schema.apply(BASE.replace("x: I32?", 'x: I64? y: String @default("d")'))

    assert finished(write).commit is not None
    assert rows(graph, "A") == [
        {"id": "a", "k": "a", "x": 1, "y": "d"},
        {"id": "new", "k": "new", "x": None, "y": "d"},
    ]


def test_a_load_that_replaces_all_rows_is_refused(graph: Graph) -> None:
    write = stopped(graph, lambda g: g.load([{"type": "A", "data": {"k": "new"}}], mode="overwrite"))
    graph.schema.apply(BASE.replace("x: I32?", "x: I64?"))

    with pytest.raises(ExpectedVersionMismatch):
        finished(write)
    assert rows(graph, "A") == [{"id": "a", "k": "a", "x": 1}]


def test_a_load_of_what_was_dropped_is_refused(graph: Graph) -> None:
    write = stopped(graph, lambda g: g.load([{"type": "A", "data": {"k": "new", "x": 3}}]))
    graph.schema.apply(BASE.replace("x: I32?", ""))

    with pytest.raises(OmnigraphError, match="x"):
        finished(write)
    assert rows(graph, "A") == [{"id": "a", "k": "a"}]


def test_a_held_base_is_refused(graph: Graph) -> None:
    import pyarrow as pa

    held = graph.begin()
    table = pa.table({"id": ["new"], "k": ["new"], "x": pa.array([5], pa.int32())})
    write = stopped(graph, lambda g: g.write([Append("node:A", table)], txn=held))
    graph.schema.apply(BASE.replace("x: I32?", "x: I64?"))

    with pytest.raises(ExpectedVersionMismatch) as caught:
        finished(write)
    assert caught.value.table_key == "schema"
    assert rows(graph, "A") == [{"id": "a", "k": "a", "x": 1}]


# A schema change that others overtake


ADDS = BASE.replace("x: I32?", "x: I32? y: I32 @default(7)")


def test_a_change_is_refused_when_rows_that_it_reshapes_are_committed_first(graph: Graph) -> None:
    apply = stopped(graph, lambda g: g.schema.apply(ADDS))
    graph.mutate(INSERT)

    with pytest.raises(ExpectedVersionMismatch) as caught:
        finished(apply)
    assert caught.value.table_key == "node:A"
    assert graph.schema.show() == BASE
    assert graph.schema.apply(ADDS).commit is not None
    assert [row["y"] for row in rows(graph, "A")] == [7, 7]


def test_a_change_is_committed_on_top_of_writes_to_other_types(graph: Graph) -> None:
    apply = stopped(graph, lambda g: g.schema.apply(ADDS))
    graph.mutate('query q() { insert B { k: "other" } }')

    assert finished(apply).commit is not None
    assert [row["y"] for row in rows(graph, "A")] == [7]
    assert [row["id"] for row in rows(graph, "B")] == ["b", "other"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("node C { k: String @key }", "node C { k: String @key y: I32 }"),
        ("node C { k: String @key }", "node C { k: String @key y: I32 @default(7) }"),
        ("node C { k: String @key }", "node C { k: String @key y: I32? }"),
        ("node C { k: String @key }", "node C { k: String }"),
        ("node C { k: String @key }", 'node D @rename_from("C") { k: String @key }'),
        ("node C { k: String @key }", 'node C { k: String @key @check(k, "[a-z]") }'),
        ("node C { k: String @key }", ""),
    ],
)
def test_the_first_row_of_a_type_that_a_change_took_for_empty_refuses_it(graph: Graph, old: str, new: str) -> None:
    apply = stopped(graph, lambda g: g.schema.apply(BASE.replace(old, new)))
    graph.mutate('query q() { insert C { k: "Long" } }')

    with pytest.raises(ExpectedVersionMismatch) as caught:
        finished(apply)
    assert caught.value.table_key == "node:C"
    assert rows(graph, "C") == [{"id": "Long", "k": "Long"}]


def test_of_two_changes_one_wins(graph: Graph) -> None:
    apply = stopped(graph, lambda g: g.schema.apply(ADDS))
    other = BASE.replace("node C { k: String @key }", "node C { k: String @key z: I32? }")
    graph.schema.apply(other)

    with pytest.raises(ConflictError):
        finished(apply)
    assert graph.schema.show() == other


def test_a_change_is_committed_on_top_of_maintenance(graph: Graph) -> None:
    """The table was moved by a compaction: what was made of it is made again."""
    apply = stopped(
        graph, lambda g: g.schema.apply(ADDS.replace("node A", 'node Z @rename_from("A")').replace("A ->", "Z ->"))
    )
    compact(graph, "node:A")

    assert finished(apply).commit is not None
    assert rows(graph, "Z") == [{"id": "a", "k": "a", "x": 1, "y": 7}]


def test_a_change_that_dies_before_its_put_has_not_happened(graph: Graph) -> None:
    apply = stopped(graph, lambda g: g.schema.apply(ADDS))
    apply.kill()

    assert graph.schema.show() == BASE
    graph.mutate(INSERT)
    assert graph.schema.apply(ADDS).commit is not None
    assert [row["y"] for row in rows(graph, "A")] == [7, 7]


def compact(graph: Graph, key: str) -> None:
    """The same rows in another version, as a maintenance commit."""
    repository = graph.repository
    txn = repository.open_txn()
    ref, content = txn.base.tables[key], txn.content(key)
    assert content is not None
    at = repository.tables.fold_tail(content, repository.runtime.ids.short_id()).at
    moved = repository.tables.overwrite(at, repository.tables.scan(at))
    staged = StagedTable(moved.at, moved.rows, RowCounts(), ref.stored, ref.tail)
    effect = DataChange("optimize", (Rewrite(key),), {key: staged})
    repository.publisher.publish(txn, PublishPlan(repository.runtime.ids.txn_id(), ConflictPolicy.MAINTENANCE, effect))
