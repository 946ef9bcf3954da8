"""A branch or a tag that is made or removed under an idempotency key: the second call finds what the first one did."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import omnigraph
from omnigraph.errors import AlreadyExists, BranchNotFound, OmnigraphError
from omnigraph.graph.graph import Graph

QUICK = {"fsync": "false"}
ADD = "query add($slug: String) { insert Person { slug: $slug } }"


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    made = omnigraph.init(tmp_path / "graph", "node Person { slug: String @key }", QUICK)
    made.mutate(ADD, params={"slug": "ada"})
    return made


@pytest.fixture
def other(graph: Graph) -> Graph:
    """The same graph as another process has it."""
    return omnigraph.open(graph.uri, QUICK)


def test_a_branch_is_made_once_under_a_key(graph: Graph, other: Graph) -> None:
    graph.branches.create("agent", txn_id="k")
    first = graph.mutate(ADD, params={"slug": "eve"}, branch="agent")
    other.branches.create("agent", txn_id="k")
    assert first is not None
    assert graph.snapshot("agent").commit_id == first.id
    assert other.verify().problems == ()


@pytest.mark.parametrize("txn_id", [None, "other"])
def test_another_key_finds_the_name_taken(graph: Graph, other: Graph, txn_id: str | None) -> None:
    graph.branches.create("agent", txn_id="k")
    with pytest.raises(AlreadyExists):
        other.branches.create("agent", txn_id=txn_id)


def test_a_branch_that_was_deleted_since_is_not_made_again(graph: Graph, other: Graph) -> None:
    graph.branches.create("agent", txn_id="k")
    graph.branches.delete("agent")
    other.branches.create("agent", txn_id="k")
    assert other.branches.list() == ["main"]


def test_a_branch_that_was_made_is_found_though_its_source_is_gone(graph: Graph, other: Graph) -> None:
    graph.branches.create("source")
    graph.branches.create("agent", "source", txn_id="k")
    graph.branches.delete("source")
    other.branches.create("agent", "source", txn_id="k")
    assert other.branches.list() == ["agent", "main"]


def test_a_branch_that_was_begun_under_the_key_and_not_finished_is_made(graph: Graph, other: Graph) -> None:
    """The first attempt was killed between its ref and its manifest."""
    branches = graph.repository.branches
    branches._reserve("agent", graph.repository.find_state("main"), "k")
    other.branches.create("agent", txn_id="k")
    assert other.branches.list() == ["agent", "main"]
    graph.branches.create("agent", txn_id="k")


def test_one_key_from_several_at_once_makes_one_branch(graph: Graph) -> None:
    failed: list[OmnigraphError] = []

    def create() -> None:
        try:
            omnigraph.open(graph.uri, QUICK).branches.create("agent", txn_id="k")
        except OmnigraphError as error:
            failed.append(error)

    threads = [threading.Thread(target=create) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert graph.branches.list() == ["agent", "main"]
    assert failed == []


def test_a_branch_that_goes_while_it_is_looked_for_was_deleted(graph: Graph, other: Graph) -> None:
    """By the same write, which was asked for twice at once."""
    graph.branches.create("agent")
    buried = other.repository.branches._was_deleted_by
    looks = iter([lambda: (buried("agent", "k"), graph.branches.delete("agent", txn_id="k"))[0]])
    other.repository.branches._was_deleted_by = lambda name, txn_id: next(looks, lambda: buried(name, txn_id))()  # type: ignore[method-assign]
    other.branches.delete("agent", txn_id="k")
    assert other.branches.list() == ["main"]


def test_a_branch_is_deleted_once_under_a_key(graph: Graph, other: Graph) -> None:
    graph.branches.create("agent")
    graph.branches.delete("agent", txn_id="k")
    other.branches.delete("agent", txn_id="k")
    with pytest.raises(BranchNotFound):
        other.branches.delete("agent", txn_id="another")


def test_a_name_that_lives_again_is_not_deleted_by_the_old_key(graph: Graph, other: Graph) -> None:
    graph.branches.create("agent")
    graph.branches.delete("agent", txn_id="k")
    graph.branches.create("agent")
    other.branches.delete("agent", txn_id="k")
    assert other.branches.list() == ["agent", "main"]


def test_a_tag_is_made_once_under_a_key(graph: Graph, other: Graph) -> None:
    made = graph.tags.create("v1", txn_id="k")
    graph.mutate(ADD, params={"slug": "eve"})
    assert other.tags.create("v1", txn_id="k") == made
    with pytest.raises(AlreadyExists):
        other.tags.create("v1", txn_id="another")
