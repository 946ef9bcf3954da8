"""`branch-ids`: lost answers to refs, first manifests and tombstones; death; names that are used again."""

from __future__ import annotations

import pytest

from omnigraph.errors import (
    AccessDenied,
    AlreadyExists,
    BranchNotFound,
    OmnigraphError,
    OutcomeUnknown,
    Unavailable,
)
from omnigraph.manifest.commit.plan import Append
from omnigraph.manifest.commit.publish import PublishPolicy
from support.catalogs import COMPANY, PERSON, company_rows, person_rows
from support.steps import Fault

from .schedules import (
    AN_INNER_RETRY_SAYS_EXISTS,
    APPLIED_ANSWER_LOST,
    NEITHER_APPLIED_NOR_ANSWERED,
    World,
    a_put_of_manifest,
    a_put_of_ref,
    refused,
)
from .test_schedule_branch_create import branch_ids, create

IMPATIENT = PublishPolicy(time_limit_s=0.05)
DOWN = Unavailable("the store", "503")
DENIED = AccessDenied("the store", "403")


# Lost answers


@pytest.mark.parametrize(
    "fault",
    [AN_INNER_RETRY_SAYS_EXISTS, APPLIED_ANSWER_LOST, NEITHER_APPLIED_NOR_ANSWERED],
    ids=["an inner retry says exists", "applied", "not applied"],
)
@pytest.mark.parametrize("request_", [a_put_of_ref("b"), a_put_of_manifest(1)], ids=["of the ref", "of manifest 1"])
def test_a_lost_answer_is_settled_and_the_branch_made_once(world: World, fault: Fault, request_: object) -> None:
    creator = world.client("creator")
    with creator.start(lambda: create(creator)) as stepper:
        stepper.run_until(request_)  # type: ignore[arg-type]
        stepper.step(fault)
        stepper.run_to_end()
        stepper.result()

    assert world.keys("__refs/b") == ["__refs/b/1.json"]
    assert len(branch_ids(world)) == 1
    assert world.client("fresh").graph.branches.list() == ["b", "main"]


def test_a_lost_ref_whose_name_another_took_differs_from_it_by_the_branch_id(world: World) -> None:
    creator, other = world.client("creator"), world.client("other")
    with creator.start(lambda: create(creator)) as stepper:
        stepper.run_until(a_put_of_ref("b"))
        create(other)
        stepper.step(NEITHER_APPLIED_NOR_ANSWERED)
        stepper.run_to_end()
        with pytest.raises(AlreadyExists):
            stepper.result()

    assert world.client("fresh").head("b").branch_id == other.head("b").branch_id


def test_a_create_whose_first_manifest_may_exist_is_not_reported_as_a_failure(world: World) -> None:
    creator = world.client("creator", IMPATIENT)
    with creator.start(lambda: create(creator)) as stepper:
        stepper.run_until(a_put_of_manifest(1))
        stepper.step(APPLIED_ANSWER_LOST)
        while not stepper.done:
            stepper.step(refused(DOWN))
        with pytest.raises(OutcomeUnknown) as unknown:
            stepper.result()

    assert (unknown.value.branch, unknown.value.number) == ("b", 1)
    assert world.client("fresh").graph.branches.list() == ["b", "main"]


@pytest.mark.parametrize("error", [DOWN, DENIED], ids=["unavailable", "denied"])
def test_a_create_that_fails_at_its_ref_has_made_nothing_whatever_became_of_the_ref(
    world: World, error: OmnigraphError
) -> None:
    creator = world.client("creator", IMPATIENT)
    with creator.start(lambda: create(creator)) as stepper:
        stepper.run_until(a_put_of_ref("b"))
        stepper.step(APPLIED_ANSWER_LOST)
        while not stepper.done:
            stepper.step(refused(error))
        with pytest.raises(type(error)):
            stepper.result()

    assert world.client("fresh").graph.branches.list() == ["main"]
    create(creator)
    assert world.client("fresh").graph.branches.list() == ["b", "main"]


@pytest.mark.parametrize("fault", [APPLIED_ANSWER_LOST, NEITHER_APPLIED_NOR_ANSWERED], ids=["applied", "not applied"])
def test_a_lost_answer_to_a_tombstone_is_settled(world: World, fault: Fault) -> None:
    client = world.client("client")
    create(client)
    with client.start(lambda: client.graph.branches.delete("b")) as stepper:
        stepper.run_until(a_put_of_manifest(2))
        stepper.step(fault)
        stepper.run_to_end()
        stepper.result()

    assert world.client("fresh").graph.branches.list() == ["main"]
    assert world.keys("__refs/b") == ["__refs/b/1.dead", "__refs/b/1.json"]


# Delete


def test_the_tombstone_decides_death_though_the_markers_put_was_lost(world: World) -> None:
    client = world.client("client")
    create(client)
    with client.start(lambda: client.graph.branches.delete("b")) as stepper:
        stepper.run_until(lambda call: call.method == "put")
        stepper.step(refused(DOWN))
        stepper.result()

    assert world.keys("__refs/b") == ["__refs/b/1.json"]
    fresh = world.client("fresh")
    assert fresh.graph.branches.list() == ["main"]
    with pytest.raises(BranchNotFound):
        fresh.people("b")
    create(fresh)
    assert client.head("b") == fresh.head("b")


def test_a_deleter_that_dies_before_its_tombstone_has_deleted_nothing(world: World) -> None:
    client = world.client("client")
    create(client)
    with client.start(lambda: client.graph.branches.delete("b")) as stepper:
        stepper.run_until(a_put_of_manifest(2))

    assert world.client("fresh").graph.branches.list() == ["b", "main"]
    assert world.client("fresh").insert("ada", branch="b").manifest_version == 2


def test_no_ref_is_ever_removed_and_a_name_used_again_has_a_new_id(world: World) -> None:
    client = world.client("client")
    ids = []
    for _ in range(3):
        create(client)
        ids.append(client.head("b").branch_id)
        client.graph.branches.delete("b")

    assert len(set(ids)) == 3
    assert [key for key in world.keys("__refs/b") if key.endswith("json")] == [f"__refs/b/{k}.json" for k in (1, 2, 3)]


def test_a_transaction_of_an_earlier_life_loses_though_the_name_lives_again(world: World) -> None:
    writer, other = world.client("writer"), world.client("other")
    create(other)
    held = writer.graph.begin("b")
    with writer.start(lambda: writer.graph.write([Append(PERSON, person_rows("ada"))], txn=held)) as stalled:
        stalled.run_until(a_put_of_manifest(2))
        other.graph.branches.delete("b")
        create(other)
        stalled.run_to_end()
        with pytest.raises(BranchNotFound):
            stalled.result()
    with pytest.raises(BranchNotFound):
        writer.graph.write([Append(PERSON, person_rows("ada"))], txn=held)

    assert other.people("b") == []
    assert writer.insert("ada", branch="b").manifest_version == 2


def test_a_write_by_name_goes_to_the_branch_that_has_the_name_now(world: World) -> None:
    """Its process still knows the life before: that this one is over is nothing to the branch that lives now."""
    writer, other = world.client("writer"), world.client("other")
    create(other)
    writer.insert("ada", branch="b")
    with writer.start(lambda: writer.insert("bob", branch="b")) as stalled:
        stalled.run_until(a_put_of_manifest(3))
        other.graph.branches.delete("b")
        create(other)
        stalled.run_to_end()
        commit = stalled.result()

    assert commit.id == f"{other.head('b').branch_id}.2"
    assert other.people("b") == ["bob"]


def test_a_write_by_name_to_a_branch_that_is_gone_finds_none(world: World) -> None:
    writer, other = world.client("writer"), world.client("other")
    create(other)
    writer.insert("ada", branch="b")
    other.graph.branches.delete("b")

    with pytest.raises(BranchNotFound):
        writer.insert("bob", branch="b")


def test_a_delete_that_loses_to_a_commit_ends_the_branch_on_top_of_it(world: World) -> None:
    deleter, writer = world.client("deleter"), world.client("writer")
    create(deleter)
    branch_id = deleter.head("b").branch_id
    with deleter.start(lambda: deleter.graph.branches.delete("b")) as stepper:
        stepper.run_until(a_put_of_manifest(2))
        commit = writer.insert("ada", branch="b")
        stepper.run_to_end()
        stepper.result()

    grave = writer.stored(branch_id, 3)
    assert commit.manifest_version == 2
    assert grave is not None
    assert grave.tombstone is not None
    assert writer.graph.branches.list() == ["main"]
    assert writer.graph.commit(commit.id) == commit.commit, "what was acknowledged is still on record"


def test_a_commit_that_loses_to_a_delete_fails_because_the_branch_is_gone(world: World) -> None:
    deleter, writer = world.client("deleter"), world.client("writer")
    create(deleter)
    with writer.start(
        lambda: writer.graph.write([Append(COMPANY, company_rows("acme"))], branch="b", on_conflict="fail")
    ) as stepper:
        stepper.run_until(a_put_of_manifest(2))
        deleter.graph.branches.delete("b")
        stepper.run_to_end()
        with pytest.raises(BranchNotFound):
            stepper.result()


def test_of_two_deleters_one_finds_nothing_to_delete(world: World) -> None:
    one, two = world.client("one"), world.client("two")
    create(one)
    two.head("b")
    with one.start(lambda: one.graph.branches.delete("b")) as first:
        first.run_until(a_put_of_manifest(2))
        two.graph.branches.delete("b")
        first.run_to_end()
        with pytest.raises(BranchNotFound):
            first.result()


def test_a_deleter_that_knew_an_earlier_life_deletes_the_one_that_lives(world: World) -> None:
    warm, other = world.client("warm"), world.client("other")
    create(other)
    warm.head("b")
    other.graph.branches.delete("b")
    create(other)

    warm.graph.branches.delete("b")

    assert other.graph.branches.list() == ["main"]
    assert "__refs/b/2.dead" in world.keys("__refs/b")
