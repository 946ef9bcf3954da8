"""Fold: inline rows are written into Lance. The schedules of `whole-tail`, `rebase` and `maintenance-rebase`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import omnigraph
from manifest.schedules import Client, World, a_put_of_manifest, stand_in_cleanup
from omnigraph.graph.graph import Graph
from omnigraph.maintenance.background import fold_due
from omnigraph.maintenance.commit import MaintenanceResult, MaintenanceRun, Task
from omnigraph.maintenance.policy import GENTLE
from omnigraph.manifest.commit.plan import Append, Delete, Upsert
from omnigraph.manifest.model.manifest import CommitClass
from omnigraph.manifest.settings import Settings
from support.catalogs import COMPANY, KNOWS, PERSON, company_rows, ids_of, knows_rows, people, person_rows
from support.fsync_log import Synced
from support.table_layout import content, head_of, stored, tails

EAGER = Settings(tail_manifests=2, maintenance=0)


def fold(graph: Graph, *keys: str, branch: str = "main") -> MaintenanceResult:
    """Fold these tables whether or not they are due, as `optimize` does."""
    txn = graph.repository.open_txn(branch)
    chosen = keys or tuple(txn.base.tables)
    tasks = tuple(Task(key, GENTLE) for key in chosen)
    return MaintenanceRun(graph.repository, tasks, kind="fold").publish(txn)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A graph of people whose clients fold when the schedule says so."""
    return World(tmp_path / "graph")


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return omnigraph.init(tmp_path / "graph", people(), {"fsync": "false"}, settings=EAGER)


def ages(graph: Graph) -> dict[str, int | None]:
    return {row["id"]: row["age"] for row in graph.snapshot().to_arrow(PERSON).to_pylist()}


def staged_write(client: Client, *ids: str, age: int | None = None) -> None:
    """A write that goes to Lance, however small: another process with an inline limit of 0."""
    opened = omnigraph.open(client.graph.uri, {"fsync": "false"}, settings=Settings(inline_rows=0, maintenance=0))
    opened.write([Upsert(PERSON, person_rows(*ids, age=age))])


# What a fold does


@pytest.fixture
def folded_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Synced, Graph]:
    """A table on a disk whose second fold puts its rows together with those of the first, and what that synced."""
    graph = omnigraph.init(tmp_path / "graph", people(), settings=EAGER)
    graph.write([Append(PERSON, person_rows("ada"))])
    fold(graph)
    graph.write([Append(PERSON, person_rows("bob"))])
    synced = Synced(tmp_path, monkeypatch)
    assert fold(graph).reports[PERSON].compacted == 2
    at = head_of(graph).tables[PERSON].stored
    assert at is not None
    return tmp_path / "graph" / "tables" / at.table_id, synced, graph


def test_all_that_the_version_of_a_fold_refers_to_is_synced(folded_twice: tuple[Path, Synced, Graph]) -> None:
    table, synced, graph = folded_twice
    at = head_of(graph).tables[PERSON].stored
    assert at is not None
    fragments = graph.repository.tables.open(at).get_fragments()
    named = {table / "data" / file.path for fragment in fragments for file in fragment.data_files()}
    named.add(table / "_versions" / f"d{at.table_version}.manifest")

    assert len(named) == 2
    assert named | {path.parent for path in named} | {table} <= synced.paths


def test_what_a_fold_wrote_on_the_way_is_not_waited_for(folded_twice: tuple[Path, Synced, Graph]) -> None:
    """The version before the compaction, which no manifest will ever name, and the rows as they were in it."""
    table, synced, _ = folded_twice

    assert len([path for path in synced.paths if path.parent == table / "_versions"]) == 1
    assert len([path for path in synced.paths if path.parent == table / "data"]) == 1


def test_inserted_and_deleted_rows_leave_the_tail_and_keep_the_stored_version(graph: Graph) -> None:
    """Otherwise such a tail grows for ever, and a fold is due for ever."""
    graph.write([Append(PERSON, person_rows(*(f"p{n}" for n in range(5))))])
    graph.optimize()
    before = head_of(graph).tables[PERSON]
    for _ in range(2):
        graph.write([Append(PERSON, person_rows("guest"))])
        graph.write([Delete(PERSON, ("guest",))])

    result = fold_due(graph.repository, "main")

    assert result is not None
    assert result.commit is not None
    after = head_of(graph).tables[PERSON]
    assert (after.stored, after.tail, after.rows) == (before.stored, (), 5)
    assert fold_due(graph.repository, "main") is None
    assert graph.verify(full=True).problems == ()


def test_a_fold_moves_every_row_into_lance_and_changes_nothing_else(graph: Graph) -> None:
    for name in ("ada", "bob", "eve"):
        graph.write([Append(PERSON, person_rows(name)), Append(COMPANY, company_rows(name))])
    graph.write([Upsert(PERSON, person_rows("bob", age=7))])
    graph.write([Delete(PERSON, ("eve",))])
    before, head = content(graph), head_of(graph)

    result = fold(graph)

    assert result.commit is not None
    commit = result.commit.commit
    assert (commit.kind, commit.commit_class, commit.touched) == ("fold", CommitClass.MAINTENANCE, {})
    assert commit.parent == head.logical_head == head_of(graph).logical_head
    assert tails(graph) == {PERSON: 0, COMPANY: 0}
    assert content(graph) == before
    assert result.reports[PERSON].folded_commits == 5
    assert result.reports[PERSON].folded_rows == 3


def test_a_second_fold_replaces_the_rows_that_were_changed_since(graph: Graph) -> None:
    graph.write([Append(PERSON, person_rows("ada", "bob", "eve"))])
    fold(graph)
    graph.write([Upsert(PERSON, person_rows("bob", "hedy", age=7))])
    graph.write([Delete(PERSON, ("ada",))])
    before = content(graph)

    fold(graph)

    assert content(graph) == before
    assert ages(graph) == {"bob": 7, "eve": None, "hedy": 7}


def test_what_is_not_due_is_left_alone(graph: Graph) -> None:
    graph.write([Append(PERSON, person_rows("ada"))])
    head = head_of(graph)

    assert fold_due(graph.repository, "main") is None
    for name in ("bob", "eve"):
        graph.write([Append(PERSON, person_rows(name)), Append(COMPANY, company_rows(name))])
    result = fold_due(graph.repository, "main")

    assert result is not None
    assert tails(graph) == {PERSON: 0, COMPANY: 2}
    assert head.manifest_version == 2


def test_a_fold_of_a_table_that_has_indexes_indexes_what_it_adds(graph: Graph) -> None:
    graph.write([Append(PERSON, person_rows("ada", "bob"))])
    graph.optimize()
    assert stored(graph, PERSON).segments == 1
    for name in ("eve", "hedy", "joan"):
        graph.write([Append(PERSON, person_rows(name))])

    result = fold(graph)

    assert result.commit is not None
    assert result.commit.commit.kind == "fold"
    assert result.reports[PERSON].extended == ("id_btree",)
    assert stored(graph, PERSON).unindexed == 0
    assert ids_of(graph.snapshot().lookup(PERSON, ["joan", "bob"])) == ["bob", "joan"]


def test_a_branch_folds_what_it_inherited_for_itself(graph: Graph) -> None:
    graph.write([Append(PERSON, person_rows("ada"))])
    graph.branches.create("agent")
    graph.write([Append(PERSON, person_rows("bob"))], branch="agent")

    fold(graph, branch="agent")

    assert tails(graph, "agent") == {PERSON: 0}
    assert tails(graph) == {PERSON: 1}
    assert ids_of(graph.snapshot("agent").to_arrow(PERSON)) == ["ada", "bob"]
    assert ids_of(graph.snapshot().to_arrow(PERSON)) == ["ada"]


# `whole-tail`: all of the base's tail, and nothing of it stays on top


def test_an_overlay_never_lies_on_top_of_a_newer_staged_row(world: World) -> None:
    writer, folder = world.client("writer"), world.client("folder")
    writer.graph.write([Upsert(PERSON, person_rows("ada", age=1))])

    with folder.start(lambda: fold(folder.graph)) as stalled:
        stalled.run_until(a_put_of_manifest(3))
        staged_write(writer, "ada", age=2)
        stalled.run_to_end()
        stalled.result()

    assert ages(world.client("reader").graph) == {"ada": 2}
    assert tails(writer.graph) == {PERSON: 0}


# `rebase`: a physical part belongs to the version that it was derived from


def test_a_deletion_that_was_computed_before_a_compaction_deletes_no_other_row(world: World) -> None:
    writer, keeper = world.client("writer"), world.client("keeper")
    for name in ("ada", "bob", "eve", "hedy"):
        staged_write(writer, name)
    other = Client("other", omnigraph.open(world.root, settings=Settings(inline_rows=0, maintenance=0)), writer.gate)

    held = other.graph.begin()
    keeper.graph.optimize()
    other.graph.write([Delete(PERSON, ("bob",))], txn=held)

    assert keeper.people() == ["ada", "eve", "hedy"]


def test_a_writer_that_stalls_across_a_compaction_stages_again(world: World) -> None:
    writer, keeper = world.client("writer"), world.client("keeper")
    for name in ("ada", "bob", "eve"):
        staged_write(keeper, name)
    number = writer.head().manifest_version

    with writer.start(lambda: writer.graph.write([Delete(PERSON, ("bob",)), Append(PERSON, person_rows("joan"))])) as w:
        w.run_until(a_put_of_manifest(number + 1))
        keeper.graph.optimize()
        w.run_to_end()
        w.result()

    assert world.client("reader").people() == ["ada", "eve", "joan"]


# `maintenance-rebase`


def test_two_folds_of_pure_inserts_leave_every_row_once(world: World) -> None:
    one, other = world.client("one"), world.client("other")
    one.insert("ada")
    one.insert("bob")

    with one.start(lambda: fold(one.graph)) as first:
        first.run_until(a_put_of_manifest(4))
        assert fold(other.graph).commit is not None
        first.run_to_end()
        result = first.result()

    assert result.commit is None, "there was nothing left to fold"
    assert world.client("reader").people() == ["ada", "bob"]
    assert tails(one.graph) == {PERSON: 0}


def test_a_fold_that_another_was_faster_with_leaves_what_is_not_due_alone(tmp_path: Path) -> None:
    world = World(tmp_path / "graph", settings=EAGER)
    one, other = world.client("one"), world.client("other")
    for name in ("ada", "bob", "eve"):
        one.insert(name)

    with one.start(lambda: fold_due(one.repository, "main")) as stalled:
        stalled.run_until(a_put_of_manifest(5))
        fold_due(other.repository, "main")
        other.insert("hedy")
        stalled.run_to_end()
        result = stalled.result()

    assert result is not None
    assert result.commit is None
    assert tails(other.graph) == {PERSON: 1}


def test_a_fold_keeps_what_small_commits_have_added_meanwhile_on_top(world: World) -> None:
    writer, folder = world.client("writer"), world.client("folder")
    writer.insert("ada")

    with folder.start(lambda: fold(folder.graph)) as stalled:
        stalled.run_until(a_put_of_manifest(3))
        writer.graph.write([Upsert(PERSON, person_rows("ada", age=9))])
        writer.insert("bob")
        before = content(writer.graph)
        calls = stalled.run_to_end()
        result = stalled.result()

    assert result.commit is not None
    assert content(world.client("reader").graph) == before
    assert tails(writer.graph) == {PERSON: 2}, "its own entry is gone, the later ones stay"
    assert [call.method for call in calls].count("create") == 2, "a lost put and a won one: nothing was staged again"
    files = world.table_files()
    fold(folder.graph)
    assert content(folder.graph) == before
    assert world.table_files() > files


def test_a_fold_that_lost_to_a_staged_write_plans_again(world: World) -> None:
    writer, folder = world.client("writer"), world.client("folder")
    writer.insert("ada")
    fold(folder.graph)
    writer.insert("bob")

    with folder.start(lambda: fold(folder.graph)) as stalled:
        stalled.run_until(a_put_of_manifest(5))
        staged_write(writer, "eve")
        writer.insert("hedy")
        stalled.run_to_end()
        assert stalled.result().commit is not None

    assert world.client("reader").people() == ["ada", "bob", "eve", "hedy"]
    assert tails(writer.graph) == {PERSON: 0}


def test_a_fold_of_several_tables_keeps_its_valid_work_when_one_has_changed(world: World) -> None:
    writer, folder = world.client("writer"), world.client("folder")
    writer.graph.write([Append(PERSON, person_rows("ada")), Append(COMPANY, company_rows("acme"))])

    with folder.start(lambda: fold(folder.graph)) as stalled:
        stalled.run_until(a_put_of_manifest(3))
        tables = {path.parts[-3] for path in world.table_files()}
        staged_write(writer, "eve")
        stalled.run_to_end()
        assert stalled.result().commit is not None

    company = head_of(writer.graph).tables[COMPANY].stored
    assert company is not None
    assert company.table_id in {part for path in world.table_files() for part in path.parts}
    assert tables
    assert tails(writer.graph) == {PERSON: 0, COMPANY: 0}
    assert world.client("reader").people() == ["ada", "eve"]


def test_a_fold_that_lost_to_a_fence_stages_everything_again(world: World) -> None:
    writer, folder, cleaner = world.client("writer"), world.client("folder"), world.client("cleaner")
    writer.insert("ada")
    writer.insert("bob")

    with folder.start(lambda: fold(folder.graph)) as stalled:
        stalled.run_until(a_put_of_manifest(4))
        staged = {path.parent.parent for path in world.table_files() if path.suffix == ".lance"}
        stand_in_cleanup(cleaner, oldest_retained=1)
        stalled.run_to_end()
        assert stalled.result().commit is not None

    table = head_of(writer.graph).tables[PERSON].stored
    assert table is not None
    assert table.table_id not in {path.name for path in staged}, "what was staged before the fence is not trusted"
    assert world.client("reader").people() == ["ada", "bob"]


def test_a_fold_conflicts_with_no_write(world: World) -> None:
    writer, folder = world.client("writer"), world.client("folder")
    writer.insert("ada", "bob")
    strict, if_commit = writer.graph.begin(), writer.head().logical_head

    fold(folder.graph)
    writer.graph.write([Delete(PERSON, ("bob",))], txn=strict)
    after = writer.head().logical_head
    fold(folder.graph)
    writer.graph.write([Append(KNOWS, knows_rows(("ada", "ada")))], if_commit=after)

    assert if_commit != after
    assert world.client("reader").people() == ["ada"]


def test_fifty_commits_succeed_during_a_fold(world: World) -> None:
    writer, folder = world.client("writer"), world.client("folder")
    writer.insert("ada")
    held = writer.graph.begin()

    with folder.start(lambda: fold(folder.graph)) as stalled:
        stalled.run_until(a_put_of_manifest(3))
        for n in range(50):
            writer.insert(f"p{n:02}")
        writer.graph.write([Append(COMPANY, company_rows("acme"))], txn=held)
        stalled.run_to_end()
        assert stalled.result().commit is not None

    assert len(world.client("reader").people()) == 51
    assert tails(writer.graph) == {PERSON: 50, COMPANY: 1}


# Killed


@pytest.mark.parametrize("requests", range(6))
def test_a_fold_killed_before_any_of_its_requests_leaves_the_graph_as_it_was(world: World, requests: int) -> None:
    writer, folder = world.client("writer"), world.client("folder")
    writer.insert("ada")
    writer.graph.write([Upsert(PERSON, person_rows("ada", "bob", age=3))])
    before = content(writer.graph)

    with folder.start(lambda: fold(folder.graph)) as doomed:
        for _ in range(requests):
            if not doomed.done:
                doomed.step()
        doomed.kill()

    assert content(world.client("reader").graph) == before
    next_one = world.client("next")
    fold(next_one.graph)
    assert content(next_one.graph) == before
    assert tails(next_one.graph) == {PERSON: 0}


FOLDER = """
import sys, omnigraph
from omnigraph.maintenance.background import fold_due
from omnigraph.manifest.settings import Settings
graph = omnigraph.open(sys.argv[1], {"fsync": "false"}, settings=Settings(tail_manifests=2, maintenance=0))
print("ready", flush=True)
sys.stdin.readline()
for _ in range(5):
    fold_due(graph.repository, "main")
"""


def test_processes_that_fold_at_once_leave_every_row_once(graph: Graph) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", FOLDER, str(graph.uri)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for _ in range(2)
    ]
    names = [f"p{n:02}" for n in range(20)]
    for name in names[:10]:
        graph.write([Append(PERSON, person_rows(name))])
    for process in processes:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        process.stdin.write("go\n")
        process.stdin.flush()
    for name in names[10:]:
        graph.write([Append(PERSON, person_rows(name))])
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0

    assert ids_of(graph.snapshot().to_arrow(PERSON)) == names
    fold_due(graph.repository, "main")
    assert ids_of(graph.snapshot().to_arrow(PERSON)) == names
