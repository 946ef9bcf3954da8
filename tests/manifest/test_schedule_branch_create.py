"""`branch-create`: how a branch begins, request by request, and what an unfinished one is."""

from __future__ import annotations

import pytest

from omnigraph.errors import (
    AccessDenied,
    AlreadyExists,
    BranchNotFound,
    ConflictError,
    Unavailable,
)
from omnigraph.manifest.commit.publish import PublishPolicy
from omnigraph.manifest.model.manifest import Manifest

from .schedules import (
    Client,
    World,
    a_put_of_manifest,
    a_put_of_ref,
    stand_in_cleanup,
)

IMPATIENT = PublishPolicy(time_limit_s=0.05)
DOWN = Unavailable("the store", "503")
DENIED = AccessDenied("the store", "403")


def create(client: Client, name: str = "b", from_: str = "main") -> None:
    client.graph.branches.create(name, from_)


def branch_ids(world: World) -> list[str]:
    """Branch ids that have manifests, main left out."""
    return sorted({key.split("/")[1] for key in world.keys("__manifest/")} - {world.main_id})


def tombstones(client: Client, world: World) -> list[bool]:
    """Of every branch id that has a manifest: does its newest one end it?"""
    heads = [client.repository.manifests.find_head(branch_id) for branch_id in branch_ids(world)]
    return [head is not None and head.tombstone is not None for head in heads]


# Create


def test_create_confirms_reserves_looks_again_and_only_then_makes_the_branch(world: World) -> None:
    creator = world.client("creator")
    with creator.start(lambda: create(creator)) as stepper:
        assert world.told(stepper.run_to_end()) == [
            "get main/2",  # the source's head, confirmed
            "create __refs/b/1.json",  # the name's first life, and the pin on the fork point
            "get main/2",  # the source once more
            "create branch/1",  # the moment of creation
        ]


def test_a_source_that_moves_on_between_the_looks_does_not_matter(world: World) -> None:
    creator, other = world.client("creator"), world.client("other")
    with creator.start(lambda: create(creator)) as stepper:
        stepper.run_until(a_put_of_ref("b"))
        other.insert("ada")
        stepper.run_to_end()
        stepper.result()

    head = world.client("fresh").head("b")
    assert head.fork is not None
    assert (head.fork.branch_id, head.fork.manifest_version) == (world.main_id, 1)
    assert other.people("b") == []


def test_a_source_deleted_between_the_ref_and_the_second_look_means_that_nothing_is_created(world: World) -> None:
    creator, other = world.client("creator"), world.client("other")
    create(other, "source")
    with creator.start(lambda: create(creator, "b", "source")) as stepper:
        stepper.run_until(a_put_of_ref("b"))
        stepper.step()
        other.graph.branches.delete("source")
        stepper.run_to_end()
        with pytest.raises(BranchNotFound) as refusal:
            stepper.result()

    assert refusal.value.branch == "source"
    assert other.graph.branches.list() == ["main"]
    assert all(tombstones(other, world))


def test_a_source_deleted_after_the_second_look_leaves_a_branch_that_stands_on_its_own(world: World) -> None:
    creator, other = world.client("creator"), world.client("other")
    create(other, "source")
    other.insert("ada", branch="source")
    with creator.start(lambda: create(creator, "b", "source")) as stepper:
        stepper.run_until(a_put_of_ref("b"))
        stepper.run_until(a_put_of_manifest(1))
        other.graph.branches.delete("source")
        stepper.run_to_end()
        stepper.result()

    assert other.graph.branches.list() == ["b", "main"]
    assert world.client("fresh").people("b") == ["ada"]


def test_a_cleanup_that_passes_the_fork_point_before_the_second_look_means_that_nothing_is_created(
    world: World,
) -> None:
    creator, cleaner = world.client("creator"), world.client("cleaner")
    with creator.start(lambda: create(creator)) as stepper:
        stepper.run_until(a_put_of_ref("b"))
        cleaner.insert("ada")
        stand_in_cleanup(cleaner)  # it listed the refs before ours was there
        stepper.run_to_end()
        with pytest.raises(ConflictError, match="cleanup passed"):
            stepper.result()

    assert cleaner.graph.branches.list() == ["main"]
    create(cleaner)
    assert world.client("fresh").people("b") == ["ada"]


def test_a_cleanup_that_keeps_the_fork_point_does_not_disturb_a_create(world: World) -> None:
    creator, cleaner = world.client("creator"), world.client("cleaner")
    with creator.start(lambda: create(creator)) as stepper:
        stepper.run_until(a_put_of_ref("b"))
        cleaner.insert("ada")
        stand_in_cleanup(cleaner, oldest_retained=1)
        stepper.run_to_end()
        stepper.result()

    assert world.client("fresh").people("b") == []


def test_a_fork_from_an_older_commit_is_refused_once_it_expired_though_its_object_is_there(world: World) -> None:
    client, cleaner = world.client("client"), world.client("cleaner")
    client.insert("ada")
    old = client.repository.snapshot(at=f"{world.main_id}.1").manifest
    stand_in_cleanup(cleaner, oldest_retained=2, retire=False)
    assert isinstance(client.stored(world.main_id, 1), Manifest)

    with pytest.raises(ConflictError):
        client.repository.branches.create("b", old)

    assert client.graph.branches.list() == ["main"]


# Unfinished refs


def unfinished(world: World, name: str = "b") -> Client:
    """A creator that stopped for good after its ref."""
    creator = world.client("vanished")
    with creator.start(lambda: create(creator, name)) as stepper:
        stepper.run_until(a_put_of_manifest(1))
    return creator


def test_an_unfinished_ref_is_a_branch_for_nobody(world: World) -> None:
    unfinished(world)
    other = world.client("other")

    assert world.keys("__refs/b") == ["__refs/b/1.json"]
    assert other.graph.branches.list() == ["main"]
    with pytest.raises(BranchNotFound):
        other.head("b")
    with pytest.raises(BranchNotFound):
        other.insert("ada", branch="b")
    with pytest.raises(BranchNotFound):
        other.graph.branches.delete("b")


def test_a_create_under_the_name_of_an_unfinished_ref_ends_it_and_takes_the_next_life(world: World) -> None:
    unfinished(world)
    other = world.client("other")

    create(other)

    assert world.keys("__refs/b") == ["__refs/b/1.json", "__refs/b/2.json"]
    assert sorted(tombstones(other, world)) == [False, True]
    assert other.graph.branches.list() == ["b", "main"]


def test_a_creator_whose_name_was_taken_while_it_slept_loses_cleanly(world: World) -> None:
    """Nobody commits on a branch that its creator then withdraws, nor on one that another has taken over."""
    sleeper, other = world.client("sleeper"), world.client("other")
    with sleeper.start(lambda: create(sleeper)) as stalled:
        stalled.run_until(a_put_of_manifest(1))
        create(other)
        commit = other.insert("ada", branch="b")
        stalled.run_to_end()
        with pytest.raises(ConflictError):
            stalled.result()

    for client in (sleeper, other, world.client("fresh")):
        assert client.people("b") == ["ada"]
        assert client.graph.commits("b", limit=1) == [commit.commit]
    assert sorted(tombstones(other, world)) == [False, True]


def test_a_creator_that_wakes_up_in_time_keeps_its_name(world: World) -> None:
    sleeper, other = world.client("sleeper"), world.client("other")
    with sleeper.start(lambda: create(sleeper)) as first, other.start(lambda: create(other)) as second:
        first.run_until(a_put_of_manifest(1))
        second.run_until(a_put_of_manifest(1))  # about to end the unfinished one
        first.run_to_end()
        first.result()
        second.run_to_end()
        with pytest.raises(AlreadyExists):
            second.result()

    assert other.graph.branches.list() == ["b", "main"]
    assert world.keys("__refs/b") == ["__refs/b/1.json"]
    assert sleeper.insert("ada", branch="b").manifest_version == 2


def test_two_who_want_the_same_unfinished_name_get_one_branch(world: World) -> None:
    unfinished(world)
    one, two = world.client("one"), world.client("two")
    with one.start(lambda: create(one)) as first, two.start(lambda: create(two)) as second:
        first.run_until(a_put_of_manifest(1))
        second.run_until(a_put_of_manifest(1))
        first.run_to_end()
        second.run_to_end()
        first.result()
        with pytest.raises(AlreadyExists):
            second.result()

    assert world.client("fresh").graph.branches.list() == ["b", "main"]
    assert tombstones(one, world).count(False) == 1


@pytest.mark.parametrize("stop_second_at", [a_put_of_ref("b"), a_put_of_manifest(1)], ids=["its ref", "manifest 1"])
def test_of_two_creators_at_once_at_most_one_branch_lives(world: World, stop_second_at: object) -> None:
    one, two = world.client("one"), world.client("two")
    with one.start(lambda: create(one)) as first, two.start(lambda: create(two)) as second:
        first.run_until(a_put_of_ref("b"))
        second.run_until(stop_second_at)  # type: ignore[arg-type]
        outcomes = []
        for stepper in (first, second):
            stepper.run_to_end()
            try:
                stepper.result()
                outcomes.append("created")
            except ConflictError:
                outcomes.append("conflict")

    assert sorted(outcomes) == ["conflict", "created"]
    fresh = world.client("fresh")
    assert fresh.graph.branches.list() == ["b", "main"]
    assert tombstones(fresh, world).count(False) == 1
