"""`rebase` and `replan-reads`: what a loser may carry over to the new head, and when it must begin again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from omnigraph.errors import ConflictError, ConstraintViolation, ExpectedVersionMismatch
from omnigraph.manifest.commit.plan import Append, Delete, Overwrite, TableAction, Upsert
from omnigraph.manifest.commit.txn import Snapshot, WriteTxn
from omnigraph.read.tables.scan import lookup
from omnigraph.write.commit import Changes
from support.catalogs import COMPANY, PERSON, company_rows, ids_of, person_rows

from .schedules import Client, World, a_put_of_manifest


@pytest.fixture
def writer(world: World) -> Client:
    client = world.client("writer")
    client.graph.write([Append(PERSON, person_rows("ada", "bob"))])
    return client


@pytest.fixture
def other(world: World, writer: Client) -> Client:
    return world.client("other")


def ages(client: Client) -> dict[str, int | None]:
    rows = client.graph.snapshot().to_arrow(PERSON).to_pylist()
    assert len({row["id"] for row in rows}) == len(rows), "no row exists twice"
    return {row["id"]: row["age"] for row in rows}


def upsert(age: int, *ids: str) -> list[TableAction]:
    return [Upsert(PERSON, person_rows(*ids, age=age))]


LOSERS: dict[str, tuple[list[TableAction], list[TableAction], dict[str, int | None]]] = {
    "upsert over an upsert of the same row": (upsert(1, "ada"), upsert(2, "ada"), {"ada": 1, "bob": None}),
    "upsert over an insert of the same new row": (
        upsert(1, "new"),
        upsert(2, "new"),
        {"ada": None, "bob": None, "new": 1},
    ),
    "upsert over a delete of the same row": (upsert(1, "ada"), [Delete(PERSON, ("ada",))], {"ada": 1, "bob": None}),
    "upsert beside a delete of another row": (upsert(1, "ada"), [Delete(PERSON, ("bob",))], {"ada": 1}),
    "delete beside an upsert of another row": ([Delete(PERSON, ("ada",))], upsert(2, "bob"), {"bob": 2}),
    "delete over an upsert of the same row": ([Delete(PERSON, ("ada",))], upsert(2, "ada"), {"bob": None}),
    "delete over a delete of the same row": ([Delete(PERSON, ("ada",))], [Delete(PERSON, ("ada", "bob"))], {}),
    "upsert over an overwrite": (upsert(1, "ada"), [Overwrite(PERSON, person_rows("x"))], {"ada": 1, "x": None}),
    "append beside an append": (
        [Append(PERSON, person_rows("new"))],
        upsert(2, "x"),
        {"ada": None, "bob": None, "new": None, "x": 2},
    ),
    "append beside an overwrite": (
        [Append(PERSON, person_rows("new"))],
        [Overwrite(PERSON, person_rows("x"))],
        {"new": None, "x": None},
    ),
}


@pytest.mark.parametrize("case", LOSERS)
def test_a_loser_means_on_the_new_head_what_it_meant_on_its_own(
    world: World, writer: Client, other: Client, case: str
) -> None:
    mine, theirs, expected = LOSERS[case]
    with writer.start(lambda: writer.graph.write(mine)) as stalled:
        stalled.run_until(a_put_of_manifest(3))
        other.graph.write(theirs)
        stalled.run_to_end()
        stalled.result()

    assert ages(world.client("fresh")) == ages(writer) == expected
    head = writer.head().tables[PERSON]
    assert head.rows == len(expected)


def test_an_insert_whose_id_came_meanwhile_is_a_violation_and_no_second_row(
    world: World, writer: Client, other: Client
) -> None:
    with writer.start(lambda: writer.insert("new")) as stalled:
        stalled.run_until(a_put_of_manifest(3))
        other.insert("new")
        stalled.run_to_end()
        with pytest.raises(ConstraintViolation):
            stalled.result()

    assert world.client("fresh").people() == ["ada", "bob", "new"]


def test_writers_of_disjoint_tables_both_land_and_stage_once(world: World, writer: Client, other: Client) -> None:
    with writer.start(lambda: writer.insert("new")) as stalled:
        stalled.run_until(a_put_of_manifest(3))
        other.graph.write([Append(COMPANY, company_rows("acme"))])
        files = world.table_files()
        stalled.run_to_end()
        stalled.result()

    assert world.table_files() == files, "nothing was staged again"
    assert world.client("fresh").people() == ["ada", "bob", "new"]


def test_a_first_table_made_by_two_writers_at_once_holds_the_rows_of_both(world: World, other: Client) -> None:
    writer = world.client("second writer")
    with writer.start(lambda: writer.graph.write([Append(COMPANY, company_rows("acme"))])) as stalled:
        stalled.run_until(a_put_of_manifest(3))
        other.graph.write([Append(COMPANY, company_rows("bolt"))])
        stalled.run_to_end()
        stalled.result()

    rows = world.client("fresh").graph.snapshot().to_arrow(COMPANY)
    assert ids_of(rows) == ["acme", "bolt"]


def birthday(client: Client, person: str) -> Callable[[WriteTxn], Changes]:
    """A partial upsert: it reads the row, and its new row is computed from what it read."""

    def plan(txn: WriteTxn) -> Changes:
        (row,) = lookup(client.repository.tables, Snapshot(txn.base, txn.schema), PERSON, [person]).to_pylist()
        rows = person_rows(person, age=(row["age"] or 0) + 1)
        return Changes((Upsert(PERSON, rows),), read_rows=frozenset({PERSON}))

    return plan


def test_a_plan_that_read_rows_plans_again_when_they_changed(world: World, writer: Client, other: Client) -> None:
    with writer.start(lambda: writer.graph.write(birthday(writer, "ada"))) as stalled:
        for number in (3, 4):
            stalled.run_until(a_put_of_manifest(number))
            other.graph.write(birthday(other, "ada"))
        stalled.run_to_end()
        stalled.result()

    assert ages(world.client("fresh"))["ada"] == 3, "no birthday was lost"


def test_rows_computed_outside_from_what_was_read_are_not_written_over_newer_ones(
    world: World, writer: Client, other: Client
) -> None:
    """Nobody can plan them again, so losing is a conflict."""
    changes = birthday(writer, "ada")(writer.repository.open_txn())
    with writer.start(lambda: writer.graph.write(changes)) as stalled:
        stalled.run_until(a_put_of_manifest(3))
        other.graph.write(birthday(other, "ada"))
        stalled.run_to_end()
        with pytest.raises(ConflictError):
            stalled.result()

    assert ages(world.client("fresh"))["ada"] == 1
    assert other.head().manifest_version == 3


def test_of_strict_writers_on_one_table_exactly_one_wins_each_round(world: World, writer: Client) -> None:
    clients = [world.client(f"strict-{n}") for n in range(4)]
    for round_ in range(3):
        held = [client.graph.begin() for client in clients]
        first, *losers = zip(clients, held, strict=True)
        won = first[0].graph.write(upsert(round_, "ada"), txn=first[1])
        assert won is not None
        for client, txn in losers:
            with pytest.raises(ExpectedVersionMismatch) as refusal:
                client.graph.write(upsert(round_, "ada"), txn=txn)
            expected = txn.base.tables[PERSON].changed_at
            assert refusal.value.args == (PERSON, expected, won.id)

    assert writer.head().manifest_version == 2 + 3
