"""`verify` beside writers and cleanups: what they take away from under it is no damage."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.gc.cleanup import Cleaned, cleanup
from omnigraph.gc.retention import Retention
from omnigraph.graph.graph import Graph
from omnigraph.manifest.settings import Settings
from omnigraph.storage.table.maintain import inspect as checking
from verify.damage import STAGED

SCHEMA = """
node Person { slug: String @key  age: I32? }
edge Knows: Person -> Person
"""


def write(graph: Graph, number: int) -> None:
    person = f'insert Person {{ slug: "p{number}", age: {number} }}'
    graph.mutate(f'query q() {{ {person} insert Knows {{ from: "p{number}", to: "p0" }} }}')


def clean(graph: Graph) -> Cleaned:
    """Everything but the newest state goes at once."""
    return cleanup(graph.repository, Retention(timedelta(), 1), dry_run=False, floor=timedelta())


def begun(root: Path, settings: Settings) -> Graph:
    graph = omnigraph.init(root, schema=SCHEMA, settings=settings)
    for number in range(5):
        write(graph, number)
    return graph


@pytest.mark.parametrize("settings", [STAGED, Settings(maintenance=0)], ids=["staged", "inline"])
def test_a_cleanup_that_overtakes_it_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    """The branch moves on after its head was pinned, and a cleanup takes that head and all before it."""
    graph = begun(tmp_path / "graph", settings)
    other = omnigraph.open(tmp_path / "graph", settings=STAGED)
    gone: list[Cleaned] = []
    chosen = checking.fragment_names if settings is STAGED else None

    def overtaken(*arguments: Any) -> Any:
        if not gone:
            for number in range(10, 13):
                write(other, number)
            gone.append(clean(other))
        return original(*arguments)

    from omnigraph.verify.tables import TableChecks

    original: Any = chosen or TableChecks._check_tail_entry
    target: Any = checking if chosen else TableChecks
    monkeypatch.setattr(target, "fragment_names" if chosen else "_check_tail_entry", overtaken)
    report = graph.verify(full=True)
    assert gone[0].manifests
    assert report.ok, report.problems
    assert report.checked.branches == 1
    assert report.checked.rows


def test_a_branch_that_is_deleted_meanwhile_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = begun(tmp_path / "graph", STAGED)
    graph.branches.create("side")
    other = omnigraph.open(tmp_path / "graph", settings=STAGED)
    write(other, 6)
    other.mutate('query q() { insert Person { slug: "eve" } }', branch="side")
    original, done = checking.fragment_names, threading.Event()

    def deleted(*arguments: Any) -> Any:
        if not done.is_set():
            done.set()
            other.branches.delete("side")
            write(other, 7)
            clean(other)
        return original(*arguments)

    monkeypatch.setattr(checking, "fragment_names", deleted)
    report = graph.verify(full=True)
    assert report.ok, report.problems


def test_it_finds_nothing_while_writers_and_cleanups_run(tmp_path: Path) -> None:
    begun(tmp_path / "graph", STAGED)
    over = threading.Event()
    errors: list[BaseException] = []
    stubs: list[int] = []

    def work() -> None:
        try:
            mine = [omnigraph.open(tmp_path / "graph", settings=one) for one in (STAGED, Settings(maintenance=0))]
            number = 100
            while not over.is_set():
                write(mine[number % 2], number)
                stubs.append(clean(mine[0]).manifests)
                number += 1
        except BaseException as error:
            errors.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        graph = omnigraph.open(tmp_path / "graph", read_only=True)
        reports = [graph.verify(full=True)]
        while len(stubs) < 10 and not errors:
            reports.append(graph.verify(full=True, seed=len(reports)))
    finally:
        over.set()
        worker.join()
    assert not errors
    assert sum(stubs) > 10
    for report in reports:
        assert report.ok, report.problems
