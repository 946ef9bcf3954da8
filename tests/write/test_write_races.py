"""Concurrent writers: constraints hold in any order, in one process or with a graph for each."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

import omnigraph
from omnigraph.errors import ConstraintViolation
from omnigraph.manifest.commit.plan import Append
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.repository import open_repository
from omnigraph.write.commit import Changes
from support.catalogs import PERSON, ids_of, people, person_rows
from write.world import World, make_world

ROUNDS = 8
SCHEMA = """
node P { k: String @key  code: String? @unique  n: I32? }
node Q { code: String @unique }
edge E: P -> P @card(0..1) { @unique(src, dst) }
"""


@pytest.fixture(params=[True, False], ids=["one graph", "a graph for each"])
def both(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[World, World]:
    first = make_world(tmp_path / "graph", SCHEMA)
    if request.param:
        return first, first
    return first, World(open_repository(first.repository.location.uri))


def race(*writes: Callable[[], object]) -> list[bool]:
    """Run writes at the same moment: which landed, and which were told of a constraint."""
    barrier = threading.Barrier(len(writes), timeout=30)

    def one(write: Callable[[], object]) -> bool:
        barrier.wait()
        try:
            return write() is not None
        except ConstraintViolation:
            return False

    with ThreadPoolExecutor(len(writes)) as pool:
        return list(pool.map(one, writes))


def test_of_two_writers_of_one_unique_value_exactly_one_wins(both: tuple[World, World]) -> None:
    first, second = both
    for number in range(ROUNDS):
        landed = race(
            partial(first.mutate, f'insert P {{ k: "a{number}", code: "c{number}" }}'),
            partial(second.mutate, f'insert P {{ k: "b{number}", code: "c{number}" }}'),
        )
        assert sorted(landed) == [False, True]
    codes = [row["code"] for row in first.rows("P")]
    assert len(codes) == len(set(codes)) == ROUNDS


def test_fresh_ids_do_not_spare_the_look_at_unique_values(both: tuple[World, World]) -> None:
    first, second = both
    for number in range(ROUNDS):
        insert = f'insert Q {{ code: "c{number}" }}'
        landed = race(partial(first.mutate, insert), partial(second.mutate, insert))
        assert sorted(landed) == [False, True]


def test_a_cardinality_holds_between_two_writers(both: tuple[World, World]) -> None:
    first, second = both
    first.mutate(" ".join(f'insert P {{ k: "p{n}" }}' for n in range(ROUNDS + 2)))
    for number in range(ROUNDS):
        landed = race(
            partial(first.mutate, f'insert E {{ from: "p{number}", to: "p{number + 1}" }}'),
            partial(second.mutate, f'insert E {{ from: "p{number}", to: "p{number + 2}" }}'),
        )
        assert sorted(landed) == [False, True]


def test_an_edge_never_outlives_its_node(both: tuple[World, World]) -> None:
    first, second = both
    first.mutate('insert P { k: "hub" }')
    for number in range(ROUNDS):
        first.mutate(f'insert P {{ k: "p{number}" }}')
        race(
            partial(first.mutate, f'insert E {{ from: "p{number}", to: "hub" }}'),
            partial(second.mutate, f'delete P where k = "p{number}"'),
        )
        nodes = set(first.ids("P"))
        assert all(src in nodes and dst in nodes for src, dst in first.pairs("E"))
        assert f"p{number}" not in nodes


def test_updates_of_one_row_by_many_all_count(both: tuple[World, World]) -> None:
    first, second = both
    first.mutate('insert P { k: "a" }')
    race(
        *(
            (
                lambda n=number, world=world: world.mutate(
                    f'insert P {{ k: "a", {"n: 1" if n else "code: " + chr(34) + "x" + chr(34)} }}'
                )
            )
            for number, world in enumerate((first, second))
        )
    )

    (row,) = first.rows("P")
    assert (row["n"], row["code"]) == (1, "x")


@pytest.mark.parametrize("first_rows", [True, False], ids=["a type without rows", "a type with rows"])
def test_an_append_never_adds_a_second_row_to_an_id_that_was_committed_concurrently(
    tmp_path: Path, first_rows: bool
) -> None:
    graph = omnigraph.init(tmp_path / "graph", people())
    if not first_rows:
        graph.write([Append(PERSON, person_rows("ada"))])
    other = omnigraph.open(tmp_path / "graph")

    def plan(txn: WriteTxn) -> Changes:
        if txn.base.manifest_version == (1 if first_rows else 2):
            other.write([Append(PERSON, person_rows("bob"))])
        return Changes((Append(PERSON, person_rows("bob")),))  # no check: its caller believes that the id is new

    with pytest.raises(ConstraintViolation, match="already exists"):
        graph.write(plan)

    assert ids_of(graph.snapshot().to_arrow(PERSON)).count("bob") == 1
