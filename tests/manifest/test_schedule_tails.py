"""`whole-tail` and `rebase` where small commits meet staged ones: what lies on top of a table, and what must not."""

from __future__ import annotations

import pytest

from omnigraph.errors import ExpectedVersionMismatch
from omnigraph.manifest.commit.plan import Delete, Upsert
from omnigraph.manifest.settings import Settings
from support.catalogs import PERSON, person_rows

from .schedules import Client, World, a_put_of_manifest, stand_in_cleanup

# Up to two rows are a small commit, three are a staged one.
both_ways = pytest.mark.parametrize("settings", [Settings(inline_rows=2, maintenance=0)], ids=[""])


@pytest.fixture
def writer(world: World) -> Client:
    client = world.client("writer")
    client.insert("ada", "bob", "cleo")
    return client


@pytest.fixture
def other(world: World, writer: Client) -> Client:
    return world.client("other")


def aged(client: Client, age: int, *ids: str) -> None:
    client.graph.write([Upsert(PERSON, person_rows(*ids, age=age))])


def ages(world: World) -> dict[str, int | None]:
    rows = world.client("fresh").graph.snapshot().to_arrow(PERSON).to_pylist()
    return {row["id"]: row["age"] for row in rows}


@both_ways
def test_a_staged_write_takes_the_tail_in_and_empties_it(world: World, writer: Client) -> None:
    """*Without:* the overlay lies on top of a newer staged row: an acknowledged write is invisible."""
    aged(writer, 1, "ada")
    assert len(writer.head().tables[PERSON].tail) == 1

    aged(writer, 2, "ada", "bob", "dan")

    assert writer.head().tables[PERSON].tail == ()
    assert ages(world) == {"ada": 2, "bob": 2, "cleo": None, "dan": 2}


@both_ways
def test_a_staged_write_that_loses_to_small_commits_of_its_own_rows_is_staged_again(
    world: World, writer: Client, other: Client
) -> None:
    """It is acknowledged after them, so its values count and theirs are gone."""
    with writer.start(lambda: aged(writer, 9, "ada", "bob", "dan")) as stalled:
        stalled.run_until(a_put_of_manifest(3))
        aged(other, 1, "ada")
        other.graph.write([Delete(PERSON, ("bob",))])
        stalled.run_to_end()
        stalled.result()

    assert writer.head().tables[PERSON].tail == ()
    assert ages(world) == {"ada": 9, "bob": 9, "cleo": None, "dan": 9}
    assert writer.head().tables[PERSON].rows == 4


@both_ways
def test_a_staged_write_that_loses_to_small_commits_of_other_rows_goes_under_them(
    world: World, writer: Client, other: Client
) -> None:
    with writer.start(lambda: aged(writer, 9, "ada", "bob", "dan")) as stalled:
        stalled.run_until(a_put_of_manifest(3))
        aged(other, 1, "cleo")
        other.insert("eve")
        before = world.table_files()
        stalled.run_to_end()
        stalled.result()

    assert world.table_files() == before, "nothing had to be staged again"
    assert [entry.manifest_version for entry in writer.head().tables[PERSON].tail] == [3, 4]
    assert ages(world) == {"ada": 9, "bob": 9, "cleo": 1, "dan": 9, "eve": None}
    assert writer.head().tables[PERSON].rows == 5


@both_ways
def test_a_small_write_that_loses_to_a_staged_one_lies_on_top_and_is_counted_again(
    world: World, writer: Client, other: Client
) -> None:
    """Dan was new to it, and Ada was there; when it lands it is the other way round."""
    with writer.start(lambda: writer.graph.write([Upsert(PERSON, person_rows("ada", "dan", age=7))])) as stalled:
        stalled.run_until(a_put_of_manifest(3))
        aged(other, 1, "dan", "eve", "fay")
        other.graph.write([Delete(PERSON, ("ada",))])
        stalled.run_to_end()
        commit = stalled.result()

    assert commit is not None
    assert commit.touched == {PERSON: {"inserted": 1, "updated": 1}}
    assert ages(world) == {"ada": 7, "bob": None, "cleo": None, "dan": 7, "eve": 1, "fay": 1}
    assert writer.head().tables[PERSON].rows == 6


@both_ways
def test_a_small_write_that_lost_to_the_same_row_lies_on_top_of_it(world: World, writer: Client, other: Client) -> None:
    with writer.start(lambda: aged(writer, 2, "ada")) as stalled:
        stalled.run_until(a_put_of_manifest(3))
        aged(other, 1, "ada")
        stalled.run_to_end()
        stalled.result()

    assert ages(world)["ada"] == 2
    assert writer.head().tables[PERSON].rows == 3


@both_ways
def test_a_small_write_takes_a_fence_for_plain_maintenance(world: World, writer: Client, other: Client) -> None:
    """`fence-tokens`: it staged nothing that could be gone."""
    with writer.start(lambda: writer.insert("dan")) as stalled:
        stalled.run_until(a_put_of_manifest(3))
        stand_in_cleanup(other, oldest_retained=1)
        assert world.told(stalled.run_to_end()) == ["create main/3", "get main/3", "get main/4", "create main/4"]
        assert stalled.result().manifest_version == 4

    assert sorted(ages(world)) == ["ada", "bob", "cleo", "dan"]


@both_ways
def test_a_held_transaction_loses_to_a_small_commit_as_to_any_other(
    world: World, writer: Client, other: Client
) -> None:
    held = writer.graph.begin()
    aged(other, 1, "ada")

    for ids in (("bob",), ("bob", "dan", "eve")):
        with pytest.raises(ExpectedVersionMismatch):
            writer.graph.write([Upsert(PERSON, person_rows(*ids))], txn=held)

    assert ages(world) == {"ada": 1, "bob": None, "cleo": None}


@both_ways
def test_a_tail_is_kept_by_a_fork_and_read_from_the_branch_that_wrote_it(world: World, writer: Client) -> None:
    aged(writer, 1, "ada")
    writer.graph.branches.create("side")
    aged(writer, 2, "ada")

    reader = world.client("reader")
    rows = reader.graph.snapshot("side").to_arrow(PERSON).to_pylist()
    assert {row["id"]: row["age"] for row in rows}["ada"] == 1
    (entry,) = reader.head("side").tables[PERSON].tail
    assert (entry.branch_id, entry.manifest_version) == (world.main_id, 3)
    assert ages(world)["ada"] == 2
