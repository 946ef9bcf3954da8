"""`one-txn-id`: each logical commit has its own id, generated once, or given by the caller as an idempotency key."""

from __future__ import annotations

import pytest

from omnigraph.errors import ExpectedVersionMismatch, KeyReused, OutcomeUnknown, PreconditionFailed
from omnigraph.manifest.commit.plan import Append, Upsert
from omnigraph.manifest.commit.publish import PublishPolicy
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.model.manifest import Stub
from omnigraph.write.commit import Changes
from support.catalogs import PERSON, person_rows

from .schedules import (
    APPLIED_ANSWER_LOST,
    NEITHER_APPLIED_NOR_ANSWERED,
    SeededIds,
    World,
    a_put_of_manifest,
    refused,
    staged_only,
    stand_in_cleanup,
)
from .test_schedule_lost_answers import DOWN, IMPATIENT


def test_a_transaction_keeps_the_id_it_minted_first_through_retries_and_rebases(world: World) -> None:
    writer, other = world.client("writer"), world.client("other")
    minted_first = SeededIds("writer").txn_id()
    with writer.start(lambda: writer.insert("ada")) as stalled:
        for number in (2, 3, 4):
            stalled.run_until(a_put_of_manifest(number))
            other.insert(f"other-{number}")
        stalled.run_until(a_put_of_manifest(5))
        stalled.step(NEITHER_APPLIED_NOR_ANSWERED)
        stalled.run_to_end()
        commit = stalled.result()

    assert commit.manifest_version == 5
    assert commit.commit.txn_id == minted_first
    assert world.client("fresh").chain().count(minted_first) == 1


def test_a_transaction_keeps_its_id_when_it_plans_again(world: World) -> None:
    writer, other = world.client("writer"), world.client("other")
    bases: list[int] = []

    def rename_everybody(txn: WriteTxn) -> Changes:
        bases.append(txn.base.manifest_version)
        return Changes((Upsert(PERSON, person_rows("ada")),), read_rows=frozenset({PERSON}))

    with writer.start(lambda: writer.graph.write(rename_everybody)) as stalled:
        stalled.run_until(a_put_of_manifest(2))
        other.insert("bob")
        stalled.run_to_end()
        commit = stalled.result()

    assert bases == [1, 2], "it planned again, from the new head"
    assert commit is not None
    assert commit.commit.txn_id == SeededIds("writer").txn_id()


def test_two_transactions_never_share_an_id(world: World) -> None:
    writer = world.client("writer")
    for person in ("ada", "bob", "cleo"):
        writer.insert(person)

    chain = writer.chain()
    assert len(set(chain)) == len(chain) == 4


def test_the_same_key_returns_the_first_commit_and_writes_nothing(world: World) -> None:
    writer, other = world.client("writer"), world.client("other")
    first = writer.insert("ada", txn_id="key-1")
    other.insert("bob")

    for client in (writer, other, world.client("fresh")):
        again = client.insert("ada", txn_id="key-1")
        assert (again.id, again.commit) == (first.id, first.commit)

    assert world.client("reader").people() == ["ada", "bob"]
    assert other.head().manifest_version == 3


def test_a_key_finds_its_commit_though_the_condition_of_the_call_no_longer_holds(world: World) -> None:
    writer = world.client("writer")
    base = writer.head().logical_head
    first = writer.insert("ada", txn_id="key-1", if_commit=base)

    assert writer.insert("ada", txn_id="key-1", if_commit=base).id == first.id
    with pytest.raises(PreconditionFailed):
        writer.insert("bob", txn_id="key-2", if_commit=base)


def test_a_key_finds_its_commit_where_the_first_call_was_reported_unknown(world: World) -> None:
    writer = world.client("writer", IMPATIENT)
    with writer.start(lambda: writer.insert("ada", txn_id="key-1")) as stepper:
        stepper.run_until(a_put_of_manifest(2))
        stepper.step(APPLIED_ANSWER_LOST)
        while not stepper.done:
            stepper.step(refused(DOWN))
        with pytest.raises(OutcomeUnknown) as unknown:
            stepper.result()
    assert unknown.value.txn_id == "key-1"

    for client in (writer, world.client("another process")):
        assert client.insert("ada", txn_id="key-1").manifest_version == 2
    assert world.client("reader").people() == ["ada"]


@staged_only
def test_a_key_finds_its_commit_in_a_stub(any_world: World) -> None:
    writer, cleaner = any_world.client("writer"), any_world.client("cleaner")
    first = writer.insert("ada", txn_id="key-1")
    cleaner.insert("bob")
    stand_in_cleanup(cleaner)
    assert isinstance(cleaner.stored(any_world.main_id, 2), Stub)

    for client in (writer, cleaner, any_world.client("fresh")):
        assert client.insert("ada", txn_id="key-1").id == first.id
    assert any_world.client("reader").people() == ["ada", "bob"]


@pytest.mark.parametrize("others_between", [0, 1, 6])
def test_two_concurrent_clients_with_one_key_make_one_commit(world: World, others_between: int) -> None:
    slow, fast, other = world.client("slow"), world.client("fast"), world.client("other")
    with slow.start(lambda: slow.insert("ada", txn_id="key-1")) as stalled:
        stalled.run_until(a_put_of_manifest(2))
        for i in range(others_between):
            other.insert(f"other-{i}")
        first = fast.insert("ada", txn_id="key-1")
        stalled.run_to_end()
        commit = stalled.result()

    assert (commit.id, commit.commit) == (first.id, first.commit)
    assert world.client("fresh").chain().count("key-1") == 1
    assert slow.people() == world.client("reader").people()


@staged_only
def test_the_second_of_two_clients_with_one_key_goes_on_from_what_the_first_one_stored(world: World) -> None:
    """Both staged files of their own; only those that the stored manifest names are the graph's."""
    slow, fast = world.client("slow"), world.client("fast")
    with slow.start(lambda: slow.insert("ada", txn_id="key-1")) as stalled:
        stalled.run_until(a_put_of_manifest(2))
        first = fast.insert("ada", txn_id="key-1")
        stalled.run_to_end()
        commit = stalled.result()

    assert commit.commit == first.commit
    assert slow.head() == fast.head() == slow.stored(world.main_id, 2)
    assert slow.people() == slow.people(at=commit.id) == ["ada"]
    slow.insert("bob")
    tables = [one.head().tables[PERSON].stored for one in (world.client("fresh"), fast)]
    assert len({table.table_id for table in tables if table is not None}) == 1
    assert None not in tables
    assert world.client("fresh").people() == ["ada", "bob"]


@pytest.mark.parametrize(("slugs", "actor"), [(("ada", "not stored"), None), (("ada",), "another")])
def test_the_second_of_two_clients_with_one_key_is_refused_if_its_request_is_another(
    world: World, slugs: tuple[str, ...], actor: str | None
) -> None:
    """Both put the same number; the loser reads the winner's manifest, which has its own key."""
    slow, fast = world.client("slow"), world.client("fast")
    rows = [Append(PERSON, person_rows(*slugs))]
    with slow.start(lambda: slow.graph.write(rows, actor=actor, txn_id="key-1")) as stalled:
        stalled.run_until(a_put_of_manifest(2))
        fast.graph.write([Append(PERSON, person_rows("ada"))], txn_id="key-1")
        stalled.run_to_end()
        with pytest.raises(KeyReused):
            stalled.result()

    assert world.client("fresh").people() == ["ada"]


def test_a_held_transaction_repeated_with_its_key_returns_the_first_commit(world: World) -> None:
    writer, other = world.client("writer"), world.client("other")
    held = writer.graph.begin()
    first = writer.graph.write([Append(PERSON, person_rows("ada"))], txn=held, txn_id="key-1")
    assert first is not None
    other.insert("bob")

    again = writer.graph.write([Append(PERSON, person_rows("ada"))], txn=held, txn_id="key-1")

    assert again is not None
    assert again.id == first.id
    assert writer.people() == ["ada", "bob"]
    with pytest.raises(ExpectedVersionMismatch):
        writer.graph.write([Append(PERSON, person_rows("cleo"))], txn=held, txn_id="key-2")


def test_a_client_at_its_time_limit_still_finds_that_its_key_is_committed(world: World) -> None:
    slow = world.client("slow", PublishPolicy(time_limit_s=1.0))
    fast, other = world.client("fast"), world.client("other")
    with slow.start(lambda: slow.insert("ada", txn_id="key-1")) as stalled:
        stalled.run_until(a_put_of_manifest(2))
        other.insert("bob")
        first = fast.insert("ada", txn_id="key-1")
        slow.clock.sleep(10)
        stalled.run_to_end()

        assert stalled.result().id == first.id


def test_one_key_on_two_branches_is_two_commits(world: World) -> None:
    writer = world.client("writer")
    writer.graph.branches.create("b")

    on_main = writer.insert("ada", txn_id="key-1")
    on_b = writer.insert("ada", txn_id="key-1", branch="b")

    assert on_main.id != on_b.id
    assert writer.people() == writer.people("b") == ["ada"]


@pytest.mark.parametrize("days", [-3, 3], ids=["slow", "fast"])
def test_a_key_is_found_though_a_clock_is_days_wrong(world: World, days: int) -> None:
    right, wrong = world.client("right"), world.client("wrong")
    wrong.clock.pass_time(days=days)
    first = right.insert("ada", txn_id="key-1")
    right.insert("cleo")
    assert wrong.insert("ada", txn_id="key-1").id == first.id

    wrong.insert("bob")
    right.clock.pass_time(minutes=1)

    assert right.insert("ada", txn_id="key-1").id == first.id
    assert world.client("fresh").people() == ["ada", "bob", "cleo"]
