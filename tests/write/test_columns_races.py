"""Schema changes concurrent with folds and other writers: no commit has a table that lacks a column of its schema.

All rows of the type are inline in manifests when the change is planned, so it stages nothing. One client is stopped
just before the put that would make its commit, another one does its whole work, then the first goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

import omnigraph
from omnigraph.errors import ExpectedVersionMismatch
from omnigraph.graph.graph import Graph
from omnigraph.maintenance.commit import MaintenanceRun, Task
from omnigraph.maintenance.policy import GENTLE
from omnigraph.manifest.model.manifest import MAIN, TableRef
from omnigraph.manifest.repository import Repository
from omnigraph.manifest.settings import Settings
from omnigraph.merge.plan import MergeOutcome
from omnigraph.runtime import Runtime
from omnigraph.storage.meter import Cost
from omnigraph.storage.objects.object_store import open_store
from support.steps import Call, Gate, SteppedStore, Stepper

T = TypeVar("T")
BASE = "node A { k: String @key x: I32? } node B { k: String @key }"
NULLABLE = BASE.replace("x: I32?", "x: I32? y: I32?")
DEFAULT = BASE.replace("x: I32?", "x: I32? y: I32 @default(7)")
NULLABLE_DEFAULT = BASE.replace("x: I32?", "x: I32? y: I32? @default(7)")
INLINE = Settings(maintenance=0)
STAGED = Settings(inline_rows=0, maintenance=0)
QUICK = {"fsync": "false"}


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    """One row of A, which rides in a manifest."""
    graph = omnigraph.init(tmp_path / "graph", BASE, storage_options=QUICK, settings=INLINE)
    insert(graph, "a", x=1)
    assert table(graph).stored is None
    return graph


def insert(graph: Graph, key: str, branch: str = MAIN, **values: Any) -> None:
    given = "".join(f", {name}: {value}" for name, value in values.items())
    graph.mutate(f'query q() {{ insert A {{ k: "{key}"{given} }} }}', branch=branch)


def table(graph: Graph, key: str = "node:A", branch: str = MAIN) -> TableRef:
    return graph.repository.branches.find(branch).head.tables[key]


def fold(graph: Graph, key: str = "node:A", branch: str = MAIN) -> None:
    run = MaintenanceRun(graph.repository, (Task(key, GENTLE),), kind="fold")
    assert run.publish(graph.repository.open_txn(branch)).commit is not None


def stopped(graph: Graph, write: Callable[[Graph], T]) -> Stepper[T]:
    """Another client's write, stopped before it puts its manifest."""
    gate = Gate()
    runtime = Runtime()
    store: Any = SteppedStore(open_store(graph.repository.location, runtime), gate)
    repository = Repository(store, graph.repository.stamp, runtime=runtime, settings=INLINE)
    stepper = Stepper(lambda: write(Graph(repository, Cost())), gate)
    stepper.run_until(puts_a_manifest)
    return stepper


def puts_a_manifest(call: Call) -> bool:
    return call.method == "create" and "__manifest/" in call.key


def finished(stepper: Stepper[T]) -> T:
    with stepper:
        stepper.run_to_end()
        return stepper.result()


def assert_readable(graph: Graph, expected: list[dict[str, Any]], type_name: str = "A", branch: str = MAIN) -> None:
    """The same rows by a scan, by a query, by a filter on each property, and after a fold; and nothing is damaged."""
    for _ in range(2):
        assert scanned(graph, type_name, branch) == expected
        found = graph.query(
            f"query q() {{ match {{ $e: {type_name} }} return {{ $e }} order {{ $e.id }} }}", branch=branch
        )
        assert [row["e"] for row in found.rows] == [{"id": row["k"], **row} for row in expected]
        for name in expected[0]:
            for value in {row[name] for row in expected} - {None}:
                literal = f'"{value}"' if isinstance(value, str) else value
                asked = f"query q() {{ match {{ $e: {type_name} $e.{name} = {literal} }} return {{ $e.k }} }}"
                keys = sorted(row["e.k"] for row in graph.query(asked, branch=branch).rows)
                assert keys == [row["k"] for row in expected if row[name] == value]
        assert graph.verify(full=True).problems == ()
        graph.optimize(branch)


def scanned(graph: Graph, type_name: str, branch: str = MAIN) -> list[dict[str, Any]]:
    """By property name, through Lance's own scanner."""
    snapshot = graph.snapshot(branch)
    definition = snapshot.pinned.catalog.by_name[type_name]
    rows = snapshot.to_arrow(definition.table_key).sort_by("id").to_pylist()
    return [{prop.name: row[prop.column] for prop in definition.properties} for row in rows]


# schema apply


@pytest.mark.parametrize(
    ("schema", "value"), [(NULLABLE, None), (DEFAULT, 7), (NULLABLE_DEFAULT, 7)], ids=["null", "default", "both"]
)
def test_a_property_is_added_although_a_fold_was_first(graph: Graph, schema: str, value: int | None) -> None:
    apply = stopped(graph, lambda g: g.schema.apply(schema))
    fold(graph)

    assert finished(apply).commit is not None
    assert_readable(graph, [{"k": "a", "x": 1, "y": value}])
    insert(graph, "b", y=2)
    assert_readable(graph, [{"k": "a", "x": 1, "y": value}, {"k": "b", "x": None, "y": 2}])


def test_a_property_is_added_although_two_folds_and_a_compaction_were_first(graph: Graph) -> None:
    apply = stopped(graph, lambda g: g.schema.apply(NULLABLE))
    fold(graph)
    graph.optimize()
    with apply:
        apply.step()
        apply.run_until(puts_a_manifest)
        fresh = omnigraph.open(graph.uri, QUICK, settings=INLINE)
        fresh.mutate('query q() { insert B { k: "b" } }')
        fold(graph, "node:B")
        apply.run_to_end()
        assert apply.result().commit is not None

    assert_readable(graph, [{"k": "a", "x": 1, "y": None}])


@pytest.mark.parametrize("settings", [INLINE, STAGED], ids=["inline", "staged"])
@pytest.mark.parametrize("schema", [NULLABLE, DEFAULT], ids=["null", "default"])
def test_another_writers_first_row_refuses_the_change_which_then_finds_it(
    graph: Graph, schema: str, settings: Settings
) -> None:
    apply = stopped(graph, lambda g: g.schema.apply(schema.replace("node B { k", "node B { y: I32? k")))
    writer = omnigraph.open(graph.uri, QUICK, settings=settings)
    writer.mutate('query q() { insert B { k: "b" } }')

    with pytest.raises(ExpectedVersionMismatch):
        finished(apply)
    graph.schema.apply(schema.replace("node B { k", "node B { y: I32? k"))
    assert_readable(graph, [{"y": None, "k": "b"}], "B")


def test_a_writers_first_staged_row_is_indexed_by_a_change_that_saw_no_table(graph: Graph) -> None:
    """The change looks at no row, so nobody's rows refuse it; but it decided that there was no table to index."""
    apply = stopped(graph, lambda g: g.schema.apply(BASE.replace("x: I32?", 'x: I32? @description("a number")')))
    omnigraph.open(graph.uri, QUICK, settings=STAGED).mutate('query q() { insert A { k: "b", x: 2 } }')

    assert finished(apply).commit is not None
    assert_readable(graph, [{"k": "a", "x": 1}, {"k": "b", "x": 2}])


def test_a_property_of_a_renamed_type_is_added_although_a_fold_was_first(graph: Graph) -> None:
    apply = stopped(graph, lambda g: g.schema.apply(NULLABLE.replace("node A", 'node Z @rename_from("A")')))
    fold(graph)

    assert finished(apply).commit is not None
    assert_readable(graph, [{"k": "a", "x": 1, "y": None}], "Z")


def test_a_property_is_added_to_types_that_swap_their_names_although_folds_were_first(graph: Graph) -> None:
    swapped = 'node B @rename_from("A") { k: String @key x: I32? y: I32? } node A @rename_from("B") { k: String @key }'
    apply = stopped(graph, lambda g: g.schema.apply(swapped))
    fold(graph)

    assert finished(apply).commit is not None
    assert_readable(graph, [{"k": "a", "x": 1, "y": None}], "B")


def test_a_property_that_was_dropped_and_is_added_again_is_another_column(graph: Graph) -> None:
    graph.schema.apply(BASE.replace("x: I32?", ""))
    apply = stopped(graph, lambda g: g.schema.apply(BASE))
    fold(graph)

    assert finished(apply).commit is not None
    assert_readable(graph, [{"k": "a", "x": None}])


def test_a_property_that_was_dropped_and_is_added_again_with_a_default_has_it_everywhere(graph: Graph) -> None:
    graph.schema.apply(BASE.replace("x: I32?", ""))
    apply = stopped(graph, lambda g: g.schema.apply(BASE.replace("x: I32?", "x: I32 @default(7)")))
    fold(graph)

    assert finished(apply).commit is not None
    assert_readable(graph, [{"k": "a", "x": 7}])


# A fold that a schema change overtakes


@pytest.mark.parametrize(("schema", "value"), [(NULLABLE, None), (DEFAULT, 7)], ids=["null", "default"])
def test_a_fold_that_was_planned_before_a_schema_change_is_planned_again(
    graph: Graph, schema: str, value: int | None
) -> None:
    write = stopped(graph, fold)
    graph.schema.apply(schema)
    insert(graph, "b", x=2, y=3)

    finished(write)
    assert_readable(graph, [{"k": "a", "x": 1, "y": value}, {"k": "b", "x": 2, "y": 3}])


def test_a_fold_that_was_planned_before_a_property_was_dropped_and_added_again_is_planned_again(graph: Graph) -> None:
    write = stopped(graph, fold)
    graph.schema.apply(BASE.replace("x: I32?", ""))
    graph.schema.apply(BASE)

    finished(write)
    assert_readable(graph, [{"k": "a", "x": None}])


# Merges that bring a schema


@pytest.mark.parametrize(("schema", "value"), [(NULLABLE, None), (DEFAULT, 7)], ids=["null", "default"])
def test_a_merge_brings_a_property_although_a_fold_of_the_target_was_first(
    graph: Graph, schema: str, value: int | None
) -> None:
    graph.branches.create("b")
    graph.schema.apply(schema, branch="b")
    merge = stopped(graph, lambda g: g.branches.merge("b"))
    fold(graph)

    assert finished(merge).outcome is MergeOutcome.FAST_FORWARD
    assert_readable(graph, [{"k": "a", "x": 1, "y": value}])


@pytest.mark.parametrize(("schema", "value"), [(NULLABLE, None), (DEFAULT, 7)], ids=["null", "default"])
def test_a_merge_brings_a_property_although_a_fold_of_the_source_was_first(
    graph: Graph, schema: str, value: int | None
) -> None:
    graph.branches.create("b")
    graph.schema.apply(schema, branch="b")
    merge = stopped(graph, lambda g: g.branches.merge("b"))
    fold(graph, "node:A", "b") if table(graph, branch="b").stored is None else None
    fold(graph)

    assert finished(merge).outcome is MergeOutcome.FAST_FORWARD
    assert_readable(graph, [{"k": "a", "x": 1, "y": value}])
    assert_readable(graph, [{"k": "a", "x": 1, "y": value}], branch="b")


@pytest.mark.parametrize("wide", ["main", "b"])
@pytest.mark.parametrize(("schema", "value"), [(NULLABLE, None), (DEFAULT, 7)], ids=["null", "default"])
def test_a_three_way_merge_of_different_schemas_works_after_folds_on_both_sides(
    graph: Graph, schema: str, value: int | None, wide: str
) -> None:
    graph.branches.create("b")
    graph.schema.apply(schema, branch=wide)
    insert(graph, "m", x=2)
    insert(graph, "s", "b", x=3)
    merge = stopped(graph, lambda g: g.branches.merge("b"))
    for branch in ("main", "b"):
        if table(graph, branch=branch).tail:
            fold(graph, branch=branch)

    assert finished(merge).outcome is MergeOutcome.MERGED
    expected = [
        {"k": "a", "x": 1, "y": value},
        {"k": "m", "x": 2, "y": value},
        {"k": "s", "x": 3, "y": value},
    ]
    assert_readable(graph, expected)


def test_a_merge_brings_a_property_of_a_renamed_type_although_a_fold_was_first(graph: Graph) -> None:
    graph.branches.create("b")
    graph.schema.apply(NULLABLE.replace("node A", 'node Z @rename_from("A")'), branch="b")
    merge = stopped(graph, lambda g: g.branches.merge("b"))
    fold(graph)

    assert finished(merge).outcome is MergeOutcome.FAST_FORWARD
    assert_readable(graph, [{"k": "a", "x": 1, "y": None}], "Z")


def test_a_merge_of_a_property_that_was_dropped_and_added_again_reads_nothing_of_the_old_one(graph: Graph) -> None:
    graph.branches.create("b")
    graph.schema.apply(BASE.replace("x: I32?", ""), branch="b")
    graph.schema.apply(BASE, branch="b")
    merge = stopped(graph, lambda g: g.branches.merge("b"))
    fold(graph)

    assert finished(merge).outcome is MergeOutcome.FAST_FORWARD
    assert_readable(graph, [{"k": "a", "x": None}])


@pytest.mark.parametrize("settings", [INLINE, STAGED], ids=["inline", "staged"])
def test_a_merge_that_numbers_a_property_again_keeps_its_column(graph: Graph, settings: Settings) -> None:
    """Both sides gave out the same property id: the merged schema has another one, for the same column."""
    graph = omnigraph.open(graph.uri, QUICK, settings=settings)
    insert(graph, "n")
    graph.branches.create("b")
    graph.schema.apply(NULLABLE)
    graph.schema.apply(BASE.replace("x: I32?", "x: I32? z: I32?"), branch="b")
    graph.schema.apply(BASE.replace("x: I32?", "x: I32? y: I32? z: I32?"), branch="b")
    insert(graph, "m", y=2)
    insert(graph, "s", "b", y=3, z=4)
    theirs = graph.repository.snapshot("b").catalog.by_name["A"]

    assert graph.branches.merge("b").outcome is MergeOutcome.MERGED

    merged = graph.repository.snapshot("main").catalog.by_name["A"]
    assert merged.by_name["z"].id != theirs.by_name["z"].id
    assert merged.by_name["z"].column == theirs.by_name["z"].column
    expected: list[dict[str, Any]] = [
        {"k": "a", "x": 1, "y": None, "z": None},
        {"k": "m", "x": None, "y": 2, "z": None},
        {"k": "n", "x": None, "y": None, "z": None},
        {"k": "s", "x": None, "y": 3, "z": 4},
    ]
    assert_readable(graph, expected)
