"""Whatever a graph has been through, as long as only the library wrote it, `verify` finds nothing."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import pytest

import omnigraph
from omnigraph.gc.cleanup import cleanup
from omnigraph.gc.retention import Retention
from omnigraph.graph.graph import Graph
from omnigraph.manifest.settings import Settings
from verify.damage import STAGED

SCHEMA = """
node Person { slug: String @key  name: String?  age: I32? }
edge Knows: Person -> Person
"""
LATER = """
node Human @rename_from("Person") { slug: String @key  title: String? @rename_from("name")  age: I64?  tall: F64? }
node Place { name: String @key }
edge Knows: Human -> Human
"""


@pytest.fixture(params=[Settings(maintenance=0), STAGED], ids=["inline", "staged"])
def graph(request: pytest.FixtureRequest, tmp_path: Path) -> Graph:
    return omnigraph.init(tmp_path / "graph", schema=SCHEMA, settings=request.param)


def insert(graph: Graph, slug: str, branch: str = "main", kind: str = "Person") -> str:
    made = graph.mutate(f'query q() {{ insert {kind} {{ slug: "{slug}" }} }}', branch=branch)
    assert made is not None
    return made.id


def assert_whole(graph: Graph) -> None:
    report = graph.verify(full=True)
    assert not report.problems, "\n".join(problem.sentence for problem in report.problems)


def test_a_merge_of_two_sides_and_a_fast_forward(graph: Graph) -> None:
    insert(graph, "ada")
    graph.branches.create("side")
    insert(graph, "bob", "side")
    insert(graph, "eve")
    graph.branches.merge("side")
    graph.branches.create("next")
    insert(graph, "zoe", "next")
    graph.branches.merge("next", delete_branch=True)
    graph.branches.create("next")
    insert(graph, "yan", "next")
    assert_whole(graph)


def test_a_schema_that_changed(graph: Graph) -> None:
    for slug in ("ada", "bob"):
        insert(graph, slug)
    graph.mutate('query q() { insert Knows { from: "ada", to: "bob" } }')
    graph.schema.apply(LATER.replace("age: I64?", "age: I32?"))
    insert(graph, "eve", kind="Human")
    graph.mutate('query q() { update Human set { tall: 1.5 } where slug = "ada" }')
    assert_whole(graph)


def test_commits_that_share_a_manifest_and_states_between_them(graph: Graph) -> None:
    insert(graph, "ada")
    made: list[str] = []
    together = threading.Barrier(8)

    def write(number: int) -> None:
        together.wait()
        made.append(insert(graph, f"p{number}"))

    writers = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    for place, commit in enumerate(sorted(made)[:3]):
        graph.tags.create(f"t{place}", commit)
        graph.branches.create(f"b{place}", commit)
    assert_whole(graph)


def test_deletes_reverts_and_overwrites(graph: Graph) -> None:
    insert(graph, "ada")
    commit = insert(graph, "bob")
    graph.mutate('query q() { delete Person where slug = "ada" }')
    graph.revert(commit)
    assert_whole(graph)
    graph.load([{"type": "Person", "data": {"slug": "new"}}], mode="overwrite")
    assert_whole(graph)


def test_a_staged_delete_of_rows_that_rode_in_manifests(tmp_path: Path) -> None:
    """The tail goes with it, though the stored version stays: it never had these rows."""
    graph = omnigraph.init(tmp_path / "graph", schema=SCHEMA, settings=STAGED)
    insert(graph, "ada")
    insert(omnigraph.open(tmp_path / "graph", settings=Settings(maintenance=0)), "eve")

    graph.mutate('query q() { delete Person where slug = "eve" }')

    assert not graph.snapshot().pinned.manifest.tables["node:Person"].tail
    assert_whole(graph)


def test_maintenance_and_cleanup(graph: Graph) -> None:
    for number in range(4):
        insert(graph, f"p{number}")
    graph.optimize()
    graph.tags.create("then")
    graph.branches.create("side")
    for number in range(4, 8):
        insert(graph, f"p{number}")
    graph.mutate('query q() { delete Person where slug = "p1" }')
    graph.optimize()
    cleaned = cleanup(graph.repository, Retention(timedelta(), 1), dry_run=False, floor=timedelta())
    assert cleaned.manifests
    insert(graph, "p9", "side")
    graph.branches.merge("side")
    assert_whole(graph)
