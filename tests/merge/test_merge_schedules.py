"""A merge among other clients, request by request.

The rules are `delete-merged`, `other-branch-after-base`, `merge-replans` and `ancestry-positions`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from manifest.schedules import (
    APPLIED_ANSWER_LOST,
    Client,
    World,
    a_put_of_manifest,
    refused,
    stand_in_cleanup,
    stand_in_retire,
)
from omnigraph.errors import BranchNotFound, MergeBaseExpired, MergeConflicts, Unavailable
from omnigraph.manifest.commit.plan import Append, ConflictPolicy, Delete, PublishPlan, RaiseFence, Upsert
from omnigraph.manifest.settings import Settings
from omnigraph.merge.plan import MergeOutcome
from support.catalogs import COMPANY, KNOWS, PERSON, company_rows, ids_of, knows_rows, person_rows
from support.steps import Call


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "graph")


def forked(world: World) -> tuple[Client, Client]:
    """A merging client and another one; Ada on main, and Bob on a branch `b` of it."""
    merger, other = world.client("merger"), world.client("other")
    merger.insert("ada")
    merger.graph.branches.create("b")
    merger.insert("bob", branch="b")
    other.head()
    other.head("b")
    return merger, other


def a_put_of_main(world: World, number: int) -> Callable[[Call], bool]:
    put = a_put_of_manifest(number)
    return lambda call: put(call) and world.main_id in call.key


def maintain(client: Client, branch: str) -> None:
    """A maintenance commit that changes nothing but the number."""
    plan = PublishPlan(client.repository.runtime.ids.txn_id(), ConflictPolicy.MAINTENANCE, RaiseFence(1))
    client.repository.publisher.publish(client.repository.open_txn(branch), plan)


def test_a_fast_forward_over_a_commit_to_another_type_is_a_merge(world: World) -> None:
    merger, other = forked(world)
    with merger.start(lambda: merger.graph.branches.merge("b")) as stalled:
        stalled.run_until(a_put_of_main(world, 3))
        other.graph.write([Append(COMPANY, company_rows("acme"))])
        stalled.run_to_end()
        result = stalled.result()

    assert result.outcome is MergeOutcome.MERGED
    assert merger.people() == ["ada", "bob"]
    assert ids_of(merger.graph.snapshot().to_arrow(COMPANY)) == ["acme"]


# `delete-merged`


def test_a_source_that_moved_on_after_the_merge_is_not_deleted(world: World) -> None:
    merger, other = forked(world)
    with merger.start(lambda: merger.graph.branches.merge("b", delete_branch=True)) as stalled:
        stalled.run_until(lambda call: call.method == "create" and world.main_id not in call.key)  # the tombstone
        other.insert("eve", branch="b")
        stalled.run_to_end()
        result = stalled.result()

    assert (result.deleted, result.not_deleted) == (False, "merged, not deleted: it moved on")
    assert merger.people() == ["ada", "bob"]
    assert other.people("b") == ["ada", "bob", "eve"]


def test_a_source_with_only_newer_maintenance_commits_is_deleted(world: World) -> None:
    merger, other = forked(world)
    with merger.start(lambda: merger.graph.branches.merge("b", delete_branch=True)) as stalled:
        stalled.run_until(lambda call: call.method == "create" and world.main_id not in call.key)
        maintain(other, "b")
        stalled.run_to_end()
        assert stalled.result().deleted

    with pytest.raises(BranchNotFound):
        other.head("b")


def test_a_commit_on_the_source_between_its_read_and_the_merge_keeps_it_alive(world: World) -> None:
    merger, other = forked(world)
    with merger.start(lambda: merger.graph.branches.merge("b", delete_branch=True)) as stalled:
        stalled.run_until(a_put_of_main(world, 3))
        other.insert("eve", branch="b")
        stalled.run_to_end()
        result = stalled.result()

    assert result.commit is not None
    assert not result.deleted
    assert other.people("b") == ["ada", "bob", "eve"]
    assert merger.graph.branches.merge("b", delete_branch=True).deleted
    assert merger.people() == ["ada", "bob", "eve"]


def test_a_tombstone_that_the_store_refuses_never_fails_the_merge(world: World) -> None:
    merger, _ = forked(world)
    with merger.start(lambda: merger.graph.branches.merge("b", delete_branch=True)) as stalled:
        stalled.run_until(lambda call: call.method == "create" and world.main_id not in call.key)
        stalled.step(refused(Unavailable("the branch", "it is down")))
        stalled.run_to_end()
        result = stalled.result()

    assert result.commit is not None
    assert not result.deleted
    assert result.not_deleted is not None
    assert merger.people() == ["ada", "bob"]


# `other-branch-after-base`


def test_the_source_is_read_after_the_base_and_before_the_put(world: World) -> None:
    merger, _ = forked(world)

    with merger.start(lambda: merger.graph.branches.merge("b")) as client:
        calls = client.run_to_end()

    assert world.told(calls) == ["get main/3", "get branch/3", "create main/3"]


def test_a_merge_that_loses_to_a_fence_looks_at_the_source_again(world: World) -> None:
    """Without it a merge adopts what the cleanup sweeps: the source's table as it was before."""
    merger, cleaner = forked(world)
    with merger.start(lambda: merger.graph.branches.merge("b")) as stalled:
        stalled.run_until(a_put_of_main(world, 3))
        cleaner.insert("eve", branch="b")
        stand_in_cleanup(cleaner, "b")
        stand_in_cleanup(cleaner)
        stalled.run_to_end()
        result = stalled.result()

    assert result.commit is not None
    assert merger.head().tables == cleaner.head("b").tables
    assert merger.people() == ["ada", "bob", "eve"]


def test_a_merge_that_loses_to_a_fence_adopts_nothing_of_a_source_that_is_gone(world: World) -> None:
    merger, cleaner = forked(world)
    with merger.start(lambda: merger.graph.branches.merge("b")) as stalled:
        stalled.run_until(a_put_of_main(world, 3))
        cleaner.graph.branches.delete("b")
        fence = stand_in_cleanup(cleaner)
        stalled.run_to_end()
        with pytest.raises(BranchNotFound):
            stalled.result()

    assert cleaner.head() == fence
    assert cleaner.people() == ["ada"]


# `merge-replans`


def test_a_merge_that_loses_to_a_write_of_the_same_type_plans_again(world: World) -> None:
    merger, writer = forked(world)
    with merger.start(lambda: merger.graph.branches.merge("b")) as stalled:
        stalled.run_until(a_put_of_main(world, 3))
        writer.insert("eve")
        stalled.run_to_end()
        result = stalled.result()

    assert result.outcome is MergeOutcome.MERGED
    assert merger.people() == ["ada", "bob", "eve"]
    assert result.commit is not None
    assert result.commit.commit.parent == writer.stored(world.main_id, 3).commits[0].id  # type: ignore[union-attr]


def test_a_merge_that_loses_to_a_conflicting_write_reports_it_and_not_a_lost_race(world: World) -> None:
    merger, writer = forked(world)
    merger.graph.write([Upsert(PERSON, person_rows("ada", age=5))], branch="b")
    with merger.start(lambda: merger.graph.branches.merge("b")) as stalled:
        stalled.run_until(a_put_of_main(world, 3))
        writer.graph.write([Upsert(PERSON, person_rows("ada", age=6))])
        head = writer.head()
        stalled.run_to_end()
        with pytest.raises(MergeConflicts) as refusal:
            stalled.result()

    assert [(one.kind, one.entity_id) for one in refusal.value.conflicts] == [("DivergentUpdate", "ada")]
    assert writer.head() == head


def test_a_merge_that_loses_to_a_write_of_another_type_is_committed_as_planned(world: World) -> None:
    merger, writer = forked(world)
    with merger.start(lambda: merger.graph.branches.merge("b")) as stalled:
        stalled.run_until(a_put_of_main(world, 3))
        writer.graph.write([Append(COMPANY, company_rows("acme"))])
        calls = stalled.run_to_end()
        stalled.result()

    assert world.told(calls) == ["create main/3", "get main/3", "get main/4", "create main/4"]
    assert merger.people() == ["ada", "bob"]
    assert ids_of(merger.graph.snapshot().to_arrow(COMPANY)) == ["acme"]


def test_a_write_that_orphans_an_adopted_edge_is_seen_by_the_merge_that_loses_to_it(world: World) -> None:
    """Write skew: the merge writes edges and reads nodes, the other one writes nodes."""
    merger, writer = forked(world)
    merger.insert("eve")
    merger.graph.branches.create("c")
    merger.graph.write([Append(KNOWS, knows_rows(("ada", "eve")))], branch="c")
    writer.head()

    with merger.start(lambda: merger.graph.branches.merge("c")) as stalled:
        stalled.run_until(a_put_of_main(world, 4))
        writer.graph.write([Delete(PERSON, ("eve",))])
        stalled.run_to_end()
        with pytest.raises(MergeConflicts) as refusal:
            stalled.result()

    assert [one.kind for one in refusal.value.conflicts] == ["OrphanEdge"]
    assert ids_of(writer.graph.snapshot().to_arrow(PERSON)) == ["ada"]


def test_turns_and_fences_on_the_target_leave_a_fast_forward_what_it_is(world: World) -> None:
    merger, other = forked(world)
    maintain(other, "main")
    stand_in_cleanup(other)

    assert merger.graph.branches.merge("b").outcome is MergeOutcome.FAST_FORWARD
    assert merger.head().tables == merger.head("b").tables


def test_a_merge_whose_answer_was_lost_is_settled_by_its_txn_id(world: World) -> None:
    merger, _ = forked(world)
    with merger.start(lambda: merger.graph.branches.merge("b")) as stalled:
        stalled.run_until(a_put_of_main(world, 3))
        stalled.step(APPLIED_ANSWER_LOST)
        stalled.run_to_end()
        result = stalled.result()

    assert result.commit is not None
    assert result.commit.manifest_version == 3
    assert merger.head().manifest_version == 3


def test_a_merge_that_is_killed_at_any_request_has_happened_or_not(tmp_path: Path) -> None:
    for requests in range(4):
        world = World(tmp_path / f"graph-{requests}")
        merger, other = forked(world)
        with merger.start(lambda merger=merger: merger.graph.branches.merge("b")) as doomed:  # type: ignore[misc]
            for _ in range(requests):
                doomed.step()
            doomed.kill()

        assert other.people() == (["ada", "bob"] if requests == 3 else ["ada"])
        done = MergeOutcome.UP_TO_DATE if requests == 3 else MergeOutcome.FAST_FORWARD
        assert other.graph.branches.merge("b").outcome is done
        assert other.people() == ["ada", "bob"]


def test_of_two_merges_of_the_same_commit_the_slower_one_finds_that_it_is_done(world: World) -> None:
    """Neither would change a row: only the ancestry shows that the merge is done."""
    slow, fast = forked(world)
    slow.graph.branches.create("c")
    slow.insert("bob", branch="c")
    slow.graph.write([Delete(PERSON, ("bob",))], branch="c")
    slow.insert("kay")
    with slow.start(lambda: slow.graph.branches.merge("c")) as stalled:
        stalled.run_until(a_put_of_main(world, 4))
        assert fast.graph.branches.merge("c").outcome is MergeOutcome.MERGED
        stalled.run_to_end()
        result = stalled.result()

    assert result.outcome is MergeOutcome.UP_TO_DATE
    assert fast.head().manifest_version == 4


# ancestry-positions


@pytest.mark.parametrize(("source", "into"), [("b", "main"), ("main", "b")])
def test_where_the_base_has_expired_a_merge_is_refused_though_an_older_common_state_is_there(
    tmp_path: Path, source: str, into: str
) -> None:
    world = World(tmp_path / "graph", settings=Settings(inline_rows=0))  # a tail would keep the base's rows
    merger, cleaner = forked(world)
    merger.graph.write([Upsert(PERSON, person_rows("ada", age=1))])
    merger.graph.branches.merge("main", "b")  # the new base is main's manifest 3
    merger.insert("eve", branch="b")
    merger.insert("kay")
    stand_in_retire(cleaner, world.main_id, range(3, 4))
    again = world.client("again")
    before = again.people(into)

    with pytest.raises(MergeBaseExpired, match=rf"expired {world.main_id}\.3.*nothing was merged, export"):
        again.graph.branches.merge(source, into)
    assert world.client("later").people(into) == before
