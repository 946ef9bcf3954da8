"""`unique-numbers`: a number is used once, for ever."""

from __future__ import annotations

import pytest

from omnigraph.errors import BranchNotFound, ExpectedVersionMismatch
from omnigraph.manifest.commit.plan import Append
from omnigraph.manifest.model.manifest import Stub
from support.catalogs import COMPANY, PERSON, company_rows, person_rows

from .schedules import World, a_put_of_manifest, a_read_of_manifest, staged_only, stand_in_cleanup, stand_in_retire


@staged_only
def test_an_idle_writer_that_knows_head_1_cant_use_a_number_that_a_cleanup_retired(any_world: World) -> None:
    idle, busy = any_world.client("idle"), any_world.client("busy")
    with idle.start(lambda: idle.insert("idle")) as stalled:
        stalled.run_until(a_put_of_manifest(2))
        busy.insert("ada")
        busy.insert("bob")
        stand_in_cleanup(busy)

        stalled.run_to_end()
        commit = stalled.result()

    assert isinstance(busy.stored(any_world.main_id, 2), Stub)
    assert commit.manifest_version == 5
    assert busy.chain().count(commit.commit.txn_id) == 1
    assert any_world.client("fresh").people() == ["ada", "bob", "idle"]


def test_a_held_transaction_from_before_the_cleanup_is_refused_where_its_table_changed(any_world: World) -> None:
    idle, busy = any_world.client("idle"), any_world.client("busy")
    held = idle.graph.begin()
    busy.insert("ada")
    last = busy.insert("bob")
    stand_in_cleanup(busy)

    with pytest.raises(ExpectedVersionMismatch) as refusal:
        idle.graph.write([Append(PERSON, person_rows("idle"))], txn=held)

    assert (refusal.value.table_key, refusal.value.expected, refusal.value.actual) == (PERSON, None, last.id)
    assert busy.head().manifest_version == 4


def test_a_held_transaction_from_before_the_cleanup_is_committed_if_its_table_did_not_change(
    any_world: World,
) -> None:
    idle, busy = any_world.client("idle"), any_world.client("busy")
    held = idle.graph.begin()
    busy.insert("ada")
    busy.insert("bob")
    stand_in_cleanup(busy)

    commit = idle.graph.write([Append(COMPANY, company_rows("acme"))], txn=held)

    assert commit is not None
    assert commit.manifest_version == 5
    assert any_world.client("fresh").people() == ["ada", "bob"]


@staged_only
def test_an_idle_reader_that_knows_manifest_1_gets_the_true_head_past_the_stubs(any_world: World) -> None:
    reader, busy = any_world.client("reader"), any_world.client("busy")
    busy.insert("ada")
    busy.insert("bob")
    fence = stand_in_cleanup(busy)

    with reader.start(reader.head) as reading:
        calls = any_world.told(reading.run_to_end())
        head = reading.result()

    assert head == fence
    assert calls[0] == "get main/2", "the successor it expected"
    assert calls[-1] == f"get main/{fence.manifest_version}"
    assert ("list __manifest/main" in calls) or ("head main/1" in calls), "it looked again from nothing"


@staged_only
def test_a_reader_that_finds_a_stub_where_its_listing_showed_the_head_lists_again(any_world: World) -> None:
    busy = any_world.client("busy")
    busy.insert("ada")
    reader = any_world.cold_client("reader")
    with reader.start(reader.head) as reading:
        reading.run_until(a_read_of_manifest(2))  # it found that 2 is the highest number
        busy.insert("bob")
        fence = stand_in_cleanup(busy)
        assert isinstance(busy.stored(any_world.main_id, 2), Stub)

        reading.run_to_end()

        assert reading.result() == fence


def test_a_reader_that_is_many_commits_behind_still_gets_the_head(any_world: World) -> None:
    reader, busy = any_world.client("reader"), any_world.client("busy")
    for _ in range(40):
        stand_in_cleanup(busy, oldest_retained=1)

    with reader.start(reader.head) as reading:
        calls = reading.run_to_end()

    assert reading.result().manifest_version == 41
    assert len(calls) < 20, "it does not walk there"


def test_a_put_to_a_branch_that_was_deleted_meanwhile_fails_with_branch_not_found(any_world: World) -> None:
    writer, other = any_world.client("writer"), any_world.client("other")
    other.graph.branches.create("b")
    with writer.start(lambda: writer.insert("ada", branch="b")) as stalled:
        stalled.run_until(a_put_of_manifest(2))
        other.graph.branches.delete("b")
        stalled.run_to_end()
        with pytest.raises(BranchNotFound):
            stalled.result()

    assert other.graph.branches.list() == ["main"]


def test_a_put_to_a_deleted_branch_fails_even_after_a_cleanup_swept_its_tombstone(any_world: World) -> None:
    writer, other = any_world.client("writer"), any_world.client("other")
    other.graph.branches.create("b")
    branch_id = other.head("b").branch_id
    held = writer.graph.begin("b")
    with writer.start(lambda: writer.insert("ada", branch="b")) as stalled:
        stalled.run_until(a_put_of_manifest(2))
        other.insert("bob", branch="b")
        other.graph.branches.delete("b")
        stand_in_retire(other, branch_id, range(1, 4))
        stalled.run_to_end()
        with pytest.raises(BranchNotFound):
            stalled.result()

    with pytest.raises(BranchNotFound):
        writer.graph.write([Append(COMPANY, company_rows("acme"))], txn=held)
    with pytest.raises(BranchNotFound):
        any_world.client("fresh").head("b")
    assert all(isinstance(other.stored(branch_id, number), Stub) for number in (1, 2, 3))
    assert other.stored(branch_id, 4) is None
