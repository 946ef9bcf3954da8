"""`confirmed-head`: one process commits and tells another, which must not answer from before.

`teller` acts and tells; `told` is warm: it knows the state from before, and answers from a confirmed head all the same.
"""

from __future__ import annotations

import pytest

from omnigraph.errors import (
    AlreadyExists,
    BranchNotFound,
    CommitNotFound,
    ConstraintViolation,
    ExpectedVersionMismatch,
    PreconditionFailed,
)
from omnigraph.manifest.commit.plan import Append, Delete, Upsert
from omnigraph.write.validate.checks import IdsAbsent, NodesExist
from support.catalogs import COMPANY, KNOWS, PERSON, company_rows, knows_rows, person_rows

from .schedules import Client, World, a_put_of_manifest, a_read_of_manifest, stand_in_cleanup


@pytest.fixture
def teller(any_world: World) -> Client:
    client = any_world.client("teller")
    client.insert("base")
    return client


@pytest.fixture
def told(any_world: World, teller: Client) -> Client:
    """Opened after the first commit: everything that `teller` does in a test is news."""
    return any_world.client("told")


def test_a_snapshot_shows_what_was_reported(teller: Client, told: Client) -> None:
    news = teller.insert("news")

    assert told.graph.snapshot().commit_id == news.id
    assert told.people() == ["base", "news"]


def test_the_log_begins_with_what_was_reported(teller: Client, told: Client) -> None:
    news = teller.insert("news")

    assert told.graph.commits(limit=1) == [news.commit]
    assert told.graph.commit(news.id) == news.commit


def test_time_travel_is_refused_after_a_cleanup_that_was_reported(teller: Client, told: Client) -> None:
    first = told.graph.commits()[-1]
    assert told.graph.snapshot(at=first.id).manifest_version == 1
    stand_in_cleanup(teller)

    with pytest.raises(CommitNotFound, match="expired"):
        told.graph.snapshot(at=first.id)


def test_a_write_that_would_have_been_a_no_op_before_is_done(teller: Client, told: Client) -> None:
    teller.insert("news")

    commit = told.graph.write([Delete(PERSON, ("news",))])

    assert commit is not None
    assert teller.people() == ["base"]


@pytest.mark.parametrize("table", [PERSON, COMPANY], ids=["with a table", "without a table yet"])
@pytest.mark.parametrize("stance", ["retry", "fail"])
def test_a_no_op_is_answered_from_the_head_at_its_end_not_at_its_beginning(
    any_world: World, teller: Client, told: Client, table: str, stance: str
) -> None:
    """It had looked at the head that it knew and found nothing to delete; before it confirms that, the row comes."""
    rows = person_rows("news") if table == PERSON else company_rows("news")
    with told.start(lambda: told.graph.write([Delete(table, ("news",))], on_conflict=stance)) as deleting:  # type: ignore[arg-type]
        deleting.run_until(a_read_of_manifest(3))
        teller.graph.write([Append(table, rows)])
        deleting.run_to_end()

        assert deleting.result() is not None
        assert any_world.client("fresh").graph.snapshot().to_arrow(table).num_rows == (1 if table == PERSON else 0)


def test_a_strict_write_whose_table_changed_after_its_base_is_refused(teller: Client, told: Client) -> None:
    held = told.graph.begin()
    teller.insert("news")

    with pytest.raises(ExpectedVersionMismatch):
        told.graph.write([Delete(PERSON, ("news",))], txn=held)


def test_a_true_no_op_confirms_the_head_and_writes_nothing(any_world: World, teller: Client, told: Client) -> None:
    stand_in_cleanup(teller)
    with told.start(lambda: told.graph.write([Delete(PERSON, ("nobody",))])) as deleting:
        calls = any_world.told(deleting.run_to_end())
        assert deleting.result() is None

    assert calls[-1] == "get main/4", "the head was confirmed last"
    assert told.head().manifest_version == 3


def test_a_condition_on_the_commit_that_was_reported_is_met(teller: Client, told: Client) -> None:
    news = teller.insert("news")

    assert told.insert("more", if_commit=news.id).commit.parent == news.id


def test_a_412_names_the_commit_that_was_reported(teller: Client, told: Client) -> None:
    before = told.head().logical_head
    news = teller.insert("news")

    with pytest.raises(PreconditionFailed) as refusal:
        told.insert("more", if_commit=before)

    assert (refusal.value.expected, refusal.value.actual) == (before, news.id)
    assert teller.head().manifest_version == 3


def test_a_condition_that_the_head_has_come_to_meet_meanwhile_is_not_refused(teller: Client, told: Client) -> None:
    """With a held base the condition is compared with the branch's head, not with the base."""
    held = told.graph.begin()
    news = teller.graph.write([Append(COMPANY, company_rows("acme"))])
    assert news is not None

    commit = told.graph.write([Upsert(PERSON, person_rows("base", age=3))], txn=held, if_commit=news.id)

    assert commit is not None
    assert commit.commit.parent == news.id


def test_a_condition_that_was_met_at_first_and_lost_meanwhile_is_a_412(teller: Client, told: Client) -> None:
    before = told.head().logical_head
    with told.start(lambda: told.insert("more", if_commit=before)) as stalled:
        stalled.run_until(a_put_of_manifest(3))
        news = teller.graph.write([Append(COMPANY, company_rows("acme"))])
        assert news is not None
        stalled.run_to_end()
        with pytest.raises(PreconditionFailed) as refusal:
            stalled.result()

    assert refusal.value.actual == news.id


def test_a_version_mismatch_names_the_newest_change(teller: Client, told: Client) -> None:
    held = told.graph.begin()
    teller.insert("news")
    newest = teller.insert("newest")

    with pytest.raises(ExpectedVersionMismatch) as refusal:
        told.graph.write([Upsert(PERSON, person_rows("base", age=3))], txn=held)

    assert refusal.value.actual == newest.id


def test_a_mismatch_that_comes_up_at_the_put_names_the_newest_change_and_not_the_first(
    teller: Client, told: Client
) -> None:
    held = told.graph.begin()
    with told.start(lambda: told.graph.write([Upsert(PERSON, person_rows("base", age=3))], txn=held)) as stalled:
        stalled.run_until(a_put_of_manifest(3))
        teller.insert("news")
        newest = teller.insert("newest")
        stalled.run_to_end()
        with pytest.raises(ExpectedVersionMismatch) as refusal:
            stalled.result()

    assert refusal.value.actual == newest.id


def test_a_violation_that_no_longer_holds_is_not_reported(teller: Client, told: Client) -> None:
    assert told.people() == ["base"]
    teller.graph.write([Delete(PERSON, ("base",))])

    assert told.insert("base").manifest_version == 4


def test_a_violation_that_has_come_to_hold_is_reported(teller: Client, told: Client) -> None:
    teller.insert("news")

    with pytest.raises(ConstraintViolation):
        told.insert("news")

    assert teller.head().manifest_version == 3


def test_a_held_base_whose_table_changed_gets_that_error_and_not_a_violation_from_before(
    teller: Client, told: Client
) -> None:
    held = told.graph.begin()
    gone = teller.graph.write([Delete(PERSON, ("base",))])
    assert gone is not None

    with pytest.raises(ExpectedVersionMismatch) as refusal:
        told.graph.write(
            [Append(PERSON, person_rows("base"))], checks=[IdsAbsent(PERSON, frozenset({"base"}))], txn=held
        )

    assert refusal.value.actual == gone.id


def test_a_held_base_on_a_branch_that_is_gone_gets_that_error_and_not_a_violation_from_before(
    teller: Client, told: Client
) -> None:
    teller.graph.branches.create("b")
    held = told.graph.begin("b")
    teller.graph.branches.delete("b")

    with pytest.raises(BranchNotFound):
        told.graph.write(
            [Append(PERSON, person_rows("base"))], checks=[IdsAbsent(PERSON, frozenset({"base"}))], txn=held
        )


def test_a_violation_that_comes_up_while_losing_the_race_is_reported_from_the_new_head(
    any_world: World, teller: Client, told: Client
) -> None:
    """Write skew: an edge to a node that is being removed, by way of disjoint tables."""
    edge = [Append(KNOWS, knows_rows(("base", "base")))]
    ends = [NodesExist(PERSON, frozenset({"base"}), KNOWS)]
    with told.start(lambda: told.graph.write(edge, checks=ends)) as stalled:
        stalled.run_until(a_put_of_manifest(3))
        teller.graph.write([Delete(PERSON, ("base",))])
        stalled.run_to_end()
        with pytest.raises(ConstraintViolation):
            stalled.result()

    assert any_world.client("fresh").graph.snapshot().to_arrow(KNOWS).num_rows == 0


def test_the_branch_list_shows_the_branches_that_were_reported(teller: Client, told: Client) -> None:
    assert told.graph.branches.list() == ["main"]
    teller.graph.branches.create("b")
    assert told.graph.branches.list() == ["b", "main"]
    teller.graph.branches.delete("b")
    assert told.graph.branches.list() == ["main"]


def test_a_name_that_was_freed_does_not_already_exist(teller: Client, told: Client) -> None:
    teller.graph.branches.create("b")
    with pytest.raises(AlreadyExists):
        told.graph.branches.create("b")
    teller.graph.branches.delete("b")

    told.graph.branches.create("b")

    assert teller.head("b") == told.head("b")


def test_a_branch_that_was_made_again_is_found_in_its_new_life(teller: Client, told: Client) -> None:
    teller.graph.branches.create("b")
    first = told.head("b")
    teller.graph.branches.delete("b")
    with pytest.raises(BranchNotFound):
        told.head("b")
    teller.graph.branches.create("b")
    teller.insert("news", branch="b")

    assert told.head("b").branch_id != first.branch_id
    assert told.people("b") == ["base", "news"]
    assert told.insert("more", branch="b").manifest_version == 3


def test_a_warm_read_confirms_with_one_request(any_world: World, told: Client) -> None:
    with told.start(lambda: told.graph.snapshot()) as reading:
        assert any_world.told(reading.run_to_end()) == ["get main/3"]
