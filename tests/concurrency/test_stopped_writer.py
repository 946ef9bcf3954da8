"""A writer that is stopped between staging and its put finds another world when it continues."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from concurrency.workers import WorkerProcess, workers
from omnigraph.graph import graph as omnigraph
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import Append, ConflictPolicy, PublishPlan, RaiseFence
from omnigraph.storage.location import parse_location
from omnigraph.storage.objects.object_store import open_store
from support.catalogs import COMPANY, PERSON, company_rows, ids_of, people, person_rows
from support.s3 import S3Location


class Store:
    """A graph with Ada in it, and what a test needs to see of its files."""

    def __init__(self, uri: str, options: dict[str, str]) -> None:
        self.uri, self.options = uri, options
        self.graph = omnigraph.init(uri, people(), options)
        self.graph.write([Append(PERSON, person_rows("ada"))])

    @property
    def table_files(self) -> set[str]:
        store = open_store(parse_location(self.uri, self.options))
        return {entry.key for entry in store.list("tables")}

    def sweep(self, keys: set[str]) -> None:
        """Delete files for good, as cleanup would."""
        store = open_store(parse_location(self.uri, self.options))
        for key in keys:
            store.delete(key)

    @property
    def persons(self) -> list[str]:
        return ids_of(omnigraph.open(self.uri, self.options).snapshot().to_arrow(PERSON))


staged = pytest.mark.parametrize("rows", ["0"], ids=["staged"])  # what is told is about staged files
either = pytest.mark.parametrize("rows", ["0", "512"], ids=["staged", "small"])


@pytest.fixture(autouse=True)
def inline(rows: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many rows may ride in a manifest, for this process and for the writer's."""
    monkeypatch.setenv("OMNIGRAPH_INLINE_ROWS", rows)


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.s3)])
def store(request: pytest.FixtureRequest, tmp_path: Path, inline: None) -> Store:
    if request.param == "local":
        return Store(str(tmp_path / "graph"), {})
    s3: S3Location = request.getfixturevalue("s3")
    return Store(s3.uri, s3.options)


@pytest.fixture(scope="module")
def idle() -> Iterator[list[WorkerProcess]]:
    """Processes that wait for another graph to open: to start one takes longer than most tests here."""
    processes: list[WorkerProcess] = []
    yield processes
    for process in processes:
        process.end()


@pytest.fixture
def writer(store: Store, rows: str, idle: list[WorkerProcess]) -> Iterator[WorkerProcess]:
    if not idle:
        idle.append(WorkerProcess(store.uri, store.options))
        assert idle[-1].answer() == "ready"
    process = idle.pop()
    opening = {"uri": store.uri, "options": store.options, "environment": {"OMNIGRAPH_INLINE_ROWS": rows}}
    try:
        assert process.call("open", **opening) == {"inline_rows": int(rows)}
        yield process
    finally:
        if process.is_idle:
            idle.append(process)
        else:
            process.end()


def stop_before_its_put(writer: WorkerProcess, ids: list[str], **order: Any) -> None:
    writer.ask("append", ids=ids, stop=True, **order)
    writer.await_stopped()


def continued(writer: WorkerProcess) -> Any:
    writer.continue_()
    return writer.answer()


def raise_fence(graph: Graph, branch: str = "main") -> None:
    """What cleanup will do; until it exists, a maintenance plan through the one publish."""
    txn = graph.repository.open_txn(branch)
    plan = PublishPlan(graph.repository.runtime.ids.txn_id(), ConflictPolicy.MAINTENANCE, RaiseFence(1), "test")
    graph.repository.publisher.publish(txn, plan)


@either
def test_others_wrote_other_tables_and_it_is_committed_on_top(store: Store, writer: WorkerProcess) -> None:
    stop_before_its_put(writer, ["bob"])
    for number in range(3):
        store.graph.write([Append(COMPANY, company_rows(f"company-{number}"))])
    staged = store.table_files

    answer = continued(writer)

    assert answer["commit"] == store.graph.snapshot().commit_id
    assert answer["losses"] == 1
    assert store.persons == ["ada", "bob"]
    assert len(ids_of(store.graph.snapshot().to_arrow(COMPANY))) == 3
    assert store.table_files == staged, "nothing had to be staged again"


@either
def test_others_wrote_the_same_table_and_it_is_committed_on_top(store: Store, writer: WorkerProcess) -> None:
    stop_before_its_put(writer, ["bob"])
    for number in range(6):
        store.graph.write([Append(PERSON, person_rows(f"row-{number}"))])

    answer = continued(writer)

    assert answer["commit"] == store.graph.snapshot().commit_id
    assert store.persons == ["ada", "bob", *(f"row-{number}" for number in range(6))]
    parents = [commit.parent for commit in store.graph.commits(limit=None)]
    assert parents == [*(commit.id for commit in store.graph.commits(limit=None)[1:]), None]


@either
def test_a_strict_writer_gets_a_clean_conflict(store: Store, writer: WorkerProcess) -> None:
    base = store.graph.snapshot().commit_id
    writer.call("begin")
    stop_before_its_put(writer, ["bob"], held=True)
    winner = store.graph.write([Append(PERSON, person_rows("eve"))])
    assert winner is not None

    answer = continued(writer)

    assert answer["raised"] == "ExpectedVersionMismatch"
    assert answer["details"]["manifest_conflict"] == {"table_key": PERSON, "expected": base, "actual": winner.id}
    assert store.graph.snapshot().commit_id == winner.id
    assert store.persons == ["ada", "eve"]


@either
def test_a_strict_writer_does_not_mind_other_tables(store: Store, writer: WorkerProcess) -> None:
    writer.call("begin")
    stop_before_its_put(writer, ["bob"], held=True)
    store.graph.write([Append(COMPANY, company_rows("acme"))])

    assert continued(writer)["commit"] == store.graph.snapshot().commit_id
    assert store.persons == ["ada", "bob"]


@either
def test_a_conditional_writer_fails_with_its_condition(store: Store, writer: WorkerProcess) -> None:
    base = store.graph.snapshot().commit_id
    stop_before_its_put(writer, ["bob"], if_commit=base)
    winner = store.graph.write([Append(COMPANY, company_rows("acme"))])
    assert winner is not None

    answer = continued(writer)

    assert answer["raised"] == "PreconditionFailed"
    assert answer["details"] == {"expected": base, "actual": winner.id}
    assert store.persons == ["ada"]


@either
def test_the_branch_was_deleted_meanwhile(store: Store, writer: WorkerProcess) -> None:
    store.graph.branches.create("side")
    stop_before_its_put(writer, ["bob"], branch="side")
    store.graph.branches.delete("side")

    answer = continued(writer)

    assert (answer["raised"], answer["code"]) == ("BranchNotFound", "not_found")
    assert "'side'" in answer["error"]
    assert store.graph.branches.list() == ["main"]
    assert store.persons == ["ada"]


@either
def test_the_branch_was_deleted_and_its_name_lives_again(store: Store, writer: WorkerProcess) -> None:
    """A writer that was given a name begins again with the branch that has it now, from nothing."""
    store.graph.branches.create("side")
    store.graph.write([Append(PERSON, person_rows("gone"))], branch="side")
    stop_before_its_put(writer, ["bob"], branch="side")
    store.graph.branches.delete("side")
    store.graph.branches.create("side")

    answer = continued(writer)

    assert answer["commit"] == store.graph.snapshot("side").commit_id
    assert ids_of(store.graph.snapshot("side").to_arrow(PERSON)) == ["ada", "bob"]


@pytest.mark.parametrize("hidden", [False, True], ids=["the fence is the head", "a commit lies on the fence"])
@staged
def test_a_fence_passed_and_what_it_staged_was_swept(store: Store, writer: WorkerProcess, hidden: bool) -> None:
    before = store.table_files
    stop_before_its_put(writer, ["bob"])
    staged = store.table_files - before
    assert staged
    raise_fence(store.graph)
    if hidden:
        store.graph.write([Append(COMPANY, company_rows("acme"))])
    store.sweep(staged)

    answer = continued(writer)

    assert answer["commit"] == store.graph.snapshot().commit_id
    assert store.persons == ["ada", "bob"]


@staged
def test_a_fence_passed_over_the_first_table_of_a_type(tmp_path: Path) -> None:
    """The swept table was the type's first: not even its directory is left."""
    graph = omnigraph.init(tmp_path / "graph", people())
    with workers(1, str(tmp_path / "graph"), {}) as (writer,):
        stop_before_its_put(writer, ["bob"])
        assert len(os.listdir(tmp_path / "graph/tables")) == 1
        raise_fence(graph)
        shutil.rmtree(tmp_path / "graph/tables")

        continued(writer)

    assert ids_of(graph.snapshot().to_arrow(PERSON)) == ["bob"]


@staged
def test_a_fence_passed_and_a_strict_writer_stages_again(store: Store, writer: WorkerProcess) -> None:
    """A fence changes no content, so it never fails anybody."""
    before = store.table_files
    writer.call("begin")
    stop_before_its_put(writer, ["bob"], held=True)
    staged = store.table_files - before
    raise_fence(store.graph)
    store.sweep(staged)

    assert "commit" in continued(writer)
    assert store.persons == ["ada", "bob"]


@either
def test_stopped_again_after_every_loss_it_is_still_committed_once(store: Store, writer: WorkerProcess) -> None:
    stop_before_its_put(writer, ["bob"])
    for number in range(4):
        store.graph.write([Append(PERSON, person_rows(f"row-{number}"))])
        if number == 1:
            raise_fence(store.graph)
    answer = continued(writer)

    again = writer.call("append", ids=["carl"])

    assert [commit.id for commit in store.graph.commits(limit=2)] == [again["commit"], answer["commit"]]
    assert store.persons == ["ada", "bob", "carl", *(f"row-{number}" for number in range(4))]
