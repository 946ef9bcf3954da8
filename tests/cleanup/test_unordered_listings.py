"""Cleanup, verify and recovery on a store whose listings have no order and several pages (see `conftest.py`)."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

import omnigraph
from omnigraph.graph.graph import Graph
from omnigraph.manifest.settings import Settings
from support.cleanup import assert_sound, clean, table_files

SCHEMA = "node Person { slug: String @key }"
PUT = "query put($slug: String) { insert Person { slug: $slug } }"
ALL = "query all() { match { $p: Person } return { $p.slug } order { $p.slug } }"
MANY = 8


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    """Many branches and tags, each with tables of its own."""
    settings = Settings(inline_rows=0, maintenance=0)
    made = omnigraph.init(tmp_path / "graph", SCHEMA, {"fsync": "false"}, settings=settings)
    for number in range(MANY):
        made.branches.create(f"b{number}")
        for slug in ("first", "second", "third"):
            made.mutate(PUT, params={"slug": f"{slug} of {number}"}, branch=f"b{number}")
        if number % 2:
            made.tags.create(f"t{number}", branch=f"b{number}")
            made.mutate(PUT, params={"slug": "after the tag"}, branch=f"b{number}")
    return made


def slugs(graph: Graph, **at: str) -> list[str]:
    return [row["p.slug"] for row in graph.query(ALL, **at).rows]  # type: ignore[arg-type]


def test_a_cleanup_keeps_the_tables_of_every_branch_and_tag(graph: Graph) -> None:
    assert clean(graph, keep=1).files

    for number in range(MANY):
        own = [f"{slug} of {number}" for slug in ("first", "second", "third")]
        assert slugs(graph, branch=f"b{number}") == (["after the tag", *own] if number % 2 else own)
        if number % 2:
            assert slugs(graph, at=f"t{number}") == own
    assert_sound(graph)


def test_a_cleanup_finds_every_file_that_may_go(graph: Graph) -> None:
    for number in range(MANY):
        if number % 2:
            graph.tags.delete(f"t{number}")
        graph.branches.delete(f"b{number}")

    clean(graph, keep=1)

    assert table_files(graph.repository.location.path) == set()


def test_every_leftover_of_a_dead_job_is_removed(graph: Graph) -> None:
    store = graph.repository.store
    for number in range(MANY):
        store.put(f"__recovery/gone/part-{number}.arrow", b"x")

    clean(graph, intent_ttl=timedelta())

    assert [listed.key for listed in store.list("__recovery/gone")] == []
