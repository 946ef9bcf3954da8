"""Transaction ids minted for one write after a known commit: only later commits are searched for them."""

from __future__ import annotations

from pathlib import Path

import pytest

import omnigraph
from omnigraph.graph.graph import Graph
from omnigraph.manifest.model.manifest import FreshTxnId

QUICK = {"fsync": "false"}
SCHEMA = "node Person { slug: String @key  age: I32? }  node Note { text: String? }"
ADD = "query add($slug: String) { insert Person { slug: $slug } }"
NOTE = 'query note() { insert Note { text: "again" } }'
NOTES = "query notes() { match { $n: Note } return { count($n) as notes } }"


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    made = omnigraph.init(tmp_path / "graph", SCHEMA, QUICK)
    made.mutate(ADD, params={"slug": "ada"})
    return made


def newest(graph: Graph) -> str:
    return graph.snapshot().commit_id


def times(graph: Graph, txn_id: str) -> int:
    return [commit.txn_id for commit in graph.commits()].count(txn_id)


def test_a_fresh_id_costs_what_none_costs(graph: Graph) -> None:
    without = graph.mutate(ADD, params={"slug": "bob"})
    assert without is not None
    fresh = graph.mutate(ADD, params={"slug": "eve"}, txn_id=FreshTxnId("e", without.id))
    looked_for = graph.mutate(ADD, params={"slug": "zoe"}, txn_id="z")
    assert fresh is not None
    assert looked_for is not None
    assert fresh.cost.requests == without.cost.requests < looked_for.cost.requests


def test_a_later_call_with_the_id_finds_its_commit(graph: Graph) -> None:
    first = graph.mutate(ADD, params={"slug": "eve"}, txn_id=FreshTxnId("e", newest(graph)))
    again = graph.mutate(ADD, params={"slug": "eve"}, txn_id="e")
    assert first is not None
    assert again is not None
    assert again.id == first.id


def test_the_second_attempt_with_a_fresh_id_finds_the_commit_of_the_first(graph: Graph) -> None:
    """An answer was lost, the write was asked for again, and that was faster than the first attempt."""
    other = omnigraph.open(graph.uri, QUICK)
    seen = newest(graph)
    repeated = other.mutate(ADD, params={"slug": "eve"}, txn_id="e")
    slow = graph.mutate(ADD, params={"slug": "eve"}, txn_id=FreshTxnId("e", seen))
    assert repeated is not None
    assert slow is not None
    assert slow.id == repeated.id
    assert times(graph, "e") == 1


@pytest.mark.parametrize("later", [0, 3], ids=["at the head", "below the head"])
def test_a_delayed_first_attempt_is_not_applied_again(graph: Graph, later: int) -> None:
    """The same, but this process has seen the head with the second attempt's commit before it runs the first."""
    other = omnigraph.open(graph.uri, QUICK)
    seen = newest(graph)
    repeated = other.mutate(NOTE, txn_id="e")
    for number in range(later):
        other.mutate(ADD, params={"slug": f"p{number}"})
    newest(graph)
    late = graph.mutate(NOTE, txn_id=FreshTxnId("e", seen))
    assert repeated is not None
    assert late is not None
    assert late.id == repeated.id
    assert graph.query(NOTES).rows == [{"notes": 1}]
    assert times(graph, "e") == 1


def test_a_delayed_first_attempt_is_found_before_it_is_refused(graph: Graph) -> None:
    """What it inserts is there already: by its own second attempt."""
    add = 'query add() { insert Person { slug: "eve" }  insert Note { text: "x" } }'
    seen = newest(graph)
    repeated = graph.mutate(add, txn_id="e")
    late = graph.mutate(add, txn_id=FreshTxnId("e", seen), on_conflict="fail")
    assert repeated is not None
    assert late is not None
    assert late.id == repeated.id


def test_a_commit_of_another_branch_says_nothing_about_this_one(graph: Graph) -> None:
    graph.branches.create("agent")
    graph.mutate(NOTE, branch="agent", txn_id="e")
    for number in range(3):
        graph.mutate(ADD, params={"slug": f"p{number}"})
    again = graph.mutate(NOTE, branch="agent", txn_id=FreshTxnId("e", newest(graph)))
    assert again is not None
    assert times(graph, "e") == 0
    assert graph.query(NOTES, branch="agent").rows == [{"notes": 1}]


@pytest.mark.parametrize("seen", ["", "nonsense", "a.b", "x.1"])
def test_what_is_no_commit_makes_an_id_no_fresher(graph: Graph, seen: str) -> None:
    first = graph.mutate(NOTE, txn_id="e")
    again = graph.mutate(NOTE, txn_id=FreshTxnId("e", seen))
    assert first is not None
    assert again is not None
    assert again.id == first.id


def test_a_load_and_a_schema_look_behind_that_commit_too(graph: Graph) -> None:
    for number in range(20):
        graph.mutate(ADD, params={"slug": f"p{number}"})
    cold = omnigraph.open(graph.uri, QUICK)
    fresh = cold.load([{"type": "Person", "data": {"slug": "l1"}}], txn_id=FreshTxnId("l", newest(graph)))
    cold = omnigraph.open(graph.uri, QUICK)
    looked_for = cold.load([{"type": "Person", "data": {"slug": "l2"}}], txn_id="m")
    assert fresh.cost.requests < looked_for.cost.requests
    applied = graph.schema.apply(f"{SCHEMA}  node Extra {{ }}", txn_id=FreshTxnId("s", newest(graph)))
    assert graph.schema.apply(f"{SCHEMA}  node Extra {{ }}", txn_id="s").commit == applied.commit
