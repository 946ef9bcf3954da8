"""`fence-before-sweep`: cleanup beside every other operation, either of them stalled or killed anywhere."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from manifest.schedules import Client, World
from omnigraph.errors import BranchNotFound, CommitNotFound, ConflictError, Damaged
from omnigraph.gc.cleanup import Cleaned
from omnigraph.gc.mark import Marks, Overtaken
from omnigraph.gc.sweep import Sweeper
from omnigraph.manifest.commit.plan import Upsert
from omnigraph.manifest.model.manifest import Manifest, Point, Stub
from omnigraph.manifest.settings import Settings
from omnigraph.storage.table.maintain.table_files import Needed
from support.catalogs import PERSON, person_rows
from support.cleanup import assert_sound, clean, table_files
from support.steps import Call

STAGED, INLINE = Settings(inline_rows=0, maintenance=0), Settings(maintenance=0)


class Copy(World):
    """A graph that was made before, in a directory of its own."""

    def __init__(self, made: World, root: Path) -> None:
        shutil.copytree(made.root, root)
        self.root, self.settings, self.main_id, self._ordered = root, made.settings, made.main_id, False


@pytest.fixture(scope="module", params=[STAGED, INLINE], ids=["staged", "inline"])
def prepared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Main with a past, a branch that went on, one that was deleted, a tag: built once, copied for each schedule."""
    world = World(tmp_path_factory.mktemp("prepared") / "graph", settings=request.param)
    founder = world.client("founder")
    founder.insert("ada")
    founder.insert("bob")
    founder.graph.tags.create("early")
    founder.graph.optimize()
    for name in ("b", "dead"):
        founder.graph.branches.create(name)
        founder.insert(f"of-{name}", branch=name)
    for age in range(3):
        founder.graph.write([Upsert(PERSON, person_rows("ada", age=age))])
    founder.graph.branches.delete("dead")
    return world


@pytest.fixture
def world(prepared: World, tmp_path: Path) -> World:
    return Copy(prepared, tmp_path / "graph")


def cleaning(client: Client, keep: int = 1) -> Callable[[], Cleaned]:
    return lambda: clean(client.graph, keep)


def people(world: World, branch: str = "main", at: str | None = None) -> list[str]:
    return world.client("reader").people(branch, at)


def after(world: World) -> None:
    """Whatever happened: one more cleanup leaves nothing to do, and nothing dangles."""
    clean(world.client("last").graph)
    again = clean(world.client("idle").graph)
    assert (again.files, again.manifests) == (0, 0)
    assert_sound(world.client("judge").graph)
    assert {"ada", "bob"} <= set(people(world))
    assert {"ada", "bob", "of-b"} <= set(people(world, "b"))


# Where a cleanup may be stopped: before these requests of its.


def is_put_of_a_fence(call: Call) -> bool:
    return call.method == "create" and call.key.startswith("__manifest/") and call.key.endswith(".json")


class Nth:
    """The n-th request that fits."""

    def __init__(self, fits: Callable[[Call], bool], n: int) -> None:
        self._fits, self._left = fits, n

    def __call__(self, call: Call) -> bool:
        if self._fits(call):
            self._left -= 1
        return self._left == 0 and self._fits(call)


def listing(prefix: str) -> Callable[[Call], bool]:
    return lambda call: call == ("list", prefix)


STOPS: dict[str, Callable[[], Callable[[Call], bool]]] = {
    "before it lists candidates": lambda: Nth(listing("tables"), 1),
    "before it lists refs": lambda: Nth(listing("__refs"), 1),
    "before it fences": lambda: Nth(is_put_of_a_fence, 1),
    "between its fences": lambda: Nth(is_put_of_a_fence, 2),
    "before it lists tags again": lambda: Nth(listing("__tags"), 2),
    "before it lists refs again": lambda: Nth(listing("__refs"), 2),
    "before it makes stubs": lambda: Nth(lambda call: call.method == "put" and "__manifest" in call.key, 1),
    "before it deletes": lambda: Nth(lambda call: call.method == "delete", 1),
    "after it deleted some": lambda: Nth(lambda call: call.method == "delete", 2),
}


# What others may do meanwhile.


def insert(world: World) -> None:
    world.client("writer").insert("new")


def insert_on_the_branch(world: World) -> None:
    world.client("writer").insert("new", branch="b")


def fork(world: World) -> None:
    client = world.client("forker")
    client.graph.branches.create("new")
    client.insert("on-new", branch="new")


def fork_from_the_tag_which_goes(world: World) -> None:
    client = world.client("forker")
    client.graph.branches.create("new", "early")
    client.graph.tags.delete("early")
    assert client.people("new") == ["ada", "bob"]


def merge(world: World) -> None:
    assert world.client("merger").graph.branches.merge("b").commit is not None


def merge_and_delete(world: World) -> None:
    client = world.client("merger")
    client.graph.branches.merge("b", delete_branch=True)
    client.graph.branches.create("b")


def optimize(world: World) -> None:
    world.client("optimizer").graph.optimize()


def tag(world: World) -> None:
    client = world.client("tagger")
    commits = client.graph.commits(limit=None)
    for number in (1, 2):
        try:
            client.graph.tags.create(f"tag-{number}", commits[number].id)
        except CommitNotFound:
            continue
        client.people(at=f"tag-{number}")


def clean_up_too(world: World) -> None:
    clean(world.client("other").graph)


MEANWHILE = [
    insert,
    insert_on_the_branch,
    fork,
    fork_from_the_tag_which_goes,
    merge,
    merge_and_delete,
    optimize,
    tag,
    clean_up_too,
]


def pairs() -> list[Any]:
    """Every stop with every operation; all but a few of them in the long run only."""
    return [
        pytest.param(stop, meanwhile, marks=[] if (row + column) % 4 == 0 else [pytest.mark.soak])
        for row, stop in enumerate(STOPS)
        for column, meanwhile in enumerate(MEANWHILE)
    ]


@pytest.mark.parametrize(("stop", "meanwhile"), pairs())
def test_a_stalled_cleanup_deletes_nothing_that_others_need_meanwhile(
    world: World, stop: str, meanwhile: Callable[[World], None]
) -> None:
    cleaner = world.client("cleaner")
    with cleaner.start(cleaning(cleaner)) as stalled:
        stalled.run_until(STOPS[stop]())
        meanwhile(world)
        stalled.run_to_end()
        try:
            stalled.result()
        except Overtaken:
            assert meanwhile is clean_up_too
    after(world)


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("meanwhile", MEANWHILE[:-1])
def test_a_client_that_stalls_during_a_cleanup_refers_to_nothing_that_is_gone(
    prepared: World, tmp_path: Path, meanwhile: Callable[[World], None], every: int
) -> None:
    """Stopped before each of its requests in turn."""
    for number in range(0, 100, every):
        case = Copy(prepared, tmp_path / f"case-{number}")
        if not stalled_at(case, meanwhile, number):
            assert number > 1
            return
        after(case)
    raise AssertionError("it never ended")


def stalled_at(world: World, meanwhile: Callable[[World], None], number: int) -> bool:
    """Run it up to its request of that number, clean up, run on; False if it had ended before."""
    actor = world.client("actor")
    eyes = mock.Mock(client=lambda *_: actor)
    with actor.start(lambda: meanwhile(eyes)) as running:
        for _ in range(number):
            if running.done:
                running.result()
                return False
            running.step()
        clean(world.client("cleaner").graph)
        running.run_to_end()
        try:
            running.result()
        except (ConflictError, BranchNotFound, CommitNotFound):
            pass  # an expected refusal; anything else fails the test
    return True


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.soak)])
def test_a_cleanup_that_is_killed_at_any_request_has_harmed_nothing_and_the_next_one_finishes(
    prepared: World, world: World, tmp_path: Path, every: int
) -> None:
    clean(world.client("cleaner").graph)
    files = table_files(world.root)
    for number in range(0, 500, every):
        case = Copy(prepared, tmp_path / f"case-{number}")
        cleaner = case.client("cleaner")
        with cleaner.start(cleaning(cleaner)) as killed:
            for _ in range(number):
                if killed.done:
                    assert number > 40
                    return
                killed.step()
        assert people(case, at="early") == ["ada", "bob"]
        assert people(case) == ["ada", "bob"]
        assert people(case, "b") == ["ada", "bob", "of-b"]
        clean(case.client("next").graph)
        assert len(table_files(case.root)) == len(files)
        if every == 1:
            after(case)
    raise AssertionError("it never ended")


# Single facts


def test_candidates_are_listed_first_then_refs_and_heads_and_tags_before_refs_behind_the_fences(world: World) -> None:
    cleaner = world.client("cleaner")
    with cleaner.start(cleaning(cleaner)) as stepped:
        calls = stepped.run_to_end()
    listings = [call for call in calls if call.method == "list" and call.key in ("tables", "__refs", "__tags")]
    fence = max(number for number, call in enumerate(calls) if is_put_of_a_fence(call))
    assert [call.key for call in listings if calls.index(call) < fence][:2] == ["tables", "__refs"]
    behind = [call.key for call in calls[fence:] if call.method == "list"]
    assert behind.index("__tags") < behind.index("__refs")
    first_delete = next(number for number, call in enumerate(calls) if call.method == "delete")
    assert all(call.method != "put" or "__manifest" not in call.key for call in calls[first_delete:]), "stubs first"


def test_a_cleanup_that_was_overtaken_stops(world: World) -> None:
    """What it must mark has become a stub: it can't know what that needed."""
    slow = world.client("slow")
    for number in range(3):
        world.client("writer").insert(f"p{number}")
    with slow.start(cleaning(slow, keep=4)) as stalled:
        stalled.run_until(listing("__tags"))
        slow.repository.manifests._cache.clear()
        clean(world.client("fast").graph, keep=1)
        slow.repository.manifests._cache.clear()
        stalled.run_to_end()
        with pytest.raises(Overtaken, match="run it again"):
            stalled.result()
    after(world)


def rewrite(world: World) -> None:
    """Several states that have no file in common."""
    for number in range(3):
        world.client("writer").insert(f"p{number}")
        world.client("writer").graph.optimize()


def test_a_cleanup_that_finds_files_missing_because_it_was_overtaken_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewrite(world)
    overtaking: Iterator[Callable[[], Cleaned]] = iter([lambda: clean(world.client("fast").graph, keep=1)])
    read = Sweeper._needed_files

    def late(sweeper: Sweeper, table_ids: set[str], marks: Marks) -> dict[str, Needed]:
        for overtake in overtaking:
            overtake()
        return read(sweeper, table_ids, marks)

    monkeypatch.setattr(Sweeper, "_needed_files", late)

    with pytest.raises(Overtaken, match="run it again"):
        clean(world.client("slow").graph, keep=4)
    after(world)


def test_a_cleanup_that_finds_files_missing_that_were_not_swept_reports_the_damage(world: World) -> None:
    rewrite(world)
    for path in (world.root / "tables").rglob("_versions/*"):
        path.unlink()

    with pytest.raises(Damaged, match="missing"):
        clean(world.client("cleaner").graph, keep=4)


def test_a_writer_that_stalls_for_longer_than_the_floor_stages_again(world: World) -> None:
    writer = world.client("writer")
    before = table_files(world.root)
    with writer.start(lambda: writer.insert("late")) as stalled:
        stalled.run_until(is_put_of_a_fence)  # its own put is the first
        staged = table_files(world.root) - before
        clean(world.client("cleaner").graph, floor=timedelta())
        assert not staged & table_files(world.root)
        stalled.run_to_end()
        stalled.result()
    assert "late" in people(world)
    after(world)


def test_a_branch_whose_creator_stalled_keeps_its_fork_point(world: World) -> None:
    forker, writer = world.client("forker"), world.client("writer")
    with forker.start(lambda: forker.graph.branches.create("new")) as stalled:
        stalled.run_until(lambda call: call.method == "create" and call.key.startswith("__manifest/"))
        expected = people(world)
        fork_point = writer.head().point
        for number in range(3):
            writer.insert(f"later-{number}")
            writer.graph.optimize()
        clean(world.client("cleaner").graph)
        assert isinstance(writer.stored(fork_point.branch_id, fork_point.manifest_version), Manifest)
        stalled.run_to_end()
        stalled.result()
    assert people(world, "new") == expected
    after(world)


def test_numbers_are_never_freed(world: World) -> None:
    writer = world.client("writer")
    head = writer.head()
    clean(world.client("cleaner").graph)
    entries = [writer.stored(head.branch_id, number) for number in range(1, head.manifest_version + 2)]
    assert None not in entries
    assert any(isinstance(entry, Stub) for entry in entries)


def test_a_late_put_to_a_branch_that_is_deleted_and_swept_has_no_effect(world: World) -> None:
    writer, other = world.client("writer"), world.client("other")
    writer.insert("one", branch="b")
    with writer.start(lambda: writer.insert("late", branch="b")) as asleep:
        asleep.run_until(is_put_of_a_fence)
        dead = other.head("b").branch_id
        other.graph.branches.delete("b")
        clean(world.client("cleaner").graph)
        asleep.run_to_end()
        with pytest.raises(BranchNotFound):
            asleep.result()
    assert isinstance(other.stored(dead, 1), Stub)
    other.graph.branches.create("b")
    other.insert("of-b", branch="b")
    after(world)


def test_a_reader_that_pinned_an_expired_state_gets_an_error_when_it_reads_again(world: World) -> None:
    reader = world.client("reader")
    old = reader.graph.commits(limit=None)[1].id
    clean(world.client("cleaner").graph)
    with pytest.raises(CommitNotFound, match="cleanup has expired it"):
        reader.people(at=old)


def test_oldest_retained_never_falls(world: World) -> None:
    client = world.client("client")
    clean(client.graph, keep=1)
    raised = client.head().oldest_retained
    clean(client.graph, keep=100)
    client.insert("more")
    clean(client.graph, keep=100)
    assert client.head().oldest_retained == raised
    assert client.stored(world.main_id, raised) is not None
    assert Point(world.main_id, raised).manifest_version > 1
