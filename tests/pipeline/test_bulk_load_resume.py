"""A bulk load that ends half-way: the graph is as it was, and the same job id goes on where it stood, once."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from omnigraph.errors import BadRequest, ConstraintViolation, JobRunning
from omnigraph.manifest.intent.intent_store import OwnedIntent
from omnigraph.manifest.model.paths import RECOVERY
from omnigraph.manifest.repository import open_repository
from omnigraph.pipeline.bulk.job import SplitResult
from omnigraph.pipeline.bulk.load import bulk_load
from omnigraph.pipeline.bulk.staging.stage import stage_split
from omnigraph.pipeline.progress import Progress
from omnigraph.storage.objects.object_store import ObjectStore
from omnigraph.storage.util.runner import LocalRunner
from omnigraph.write.load.load_options import LoadOptions
from pipeline.bulk import SMALL_SPLITS, BulkWorld, edge, node, person, write_lines
from support import jobs

T = TypeVar("T")
R = TypeVar("R")

STORED = [person(f"p{number:03}", age=1) for number in range(10)]
GIVEN = [
    *(person(f"p{number:03}", age=number) for number in range(80)),
    *(node("Note", text=f"note {number}") for number in range(40)),
    *(edge("Likes", f"p{number:03}", f"p{number + 1:03}") for number in range(40)),
]
JOB = "nightly"


class Dying(LocalRunner):
    """Kills its own process after so many splits."""

    def __init__(self, after: int | None = None, how: Callable[[], None] | None = None) -> None:
        self.after, self.staged = after, 0
        self._how = how or die

    def run(
        self, task: Callable[[T], R], items: Sequence[T], *, stage: str, on_done: Callable[[R], None] | None = None
    ) -> list[R]:
        def counted(answer: R) -> None:
            if stage == "loading":
                self.staged += 1
                if self.staged == self.after:
                    self._how()
            if on_done is not None:
                on_done(answer)

        return super().run(task, items, stage=stage, on_done=counted)


class DyingAt(Progress):
    def __init__(self, stage: str | None, how: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._at, self._how = stage, how or die

    def stage(self, name: str, tasks: int | None = None) -> None:
        super().stage(name, tasks)
        if name == self._at:
            self._how()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt() -> None:
    raise KeyboardInterrupt


def _dying_load(place: str, given: str, mode: str, point: str, branch: str = "main") -> None:
    """Load in this process until the point is reached, which is its end."""
    stage, _, number = point.partition(" ")
    if point == "after the commit":

        def finish(self: OwnedIntent) -> bool:
            die()
            return True

        OwnedIntent.finish = finish  # type: ignore[method-assign]
    if point == "while forgetting":
        removed = ObjectStore.delete

        def delete(self: ObjectStore, key: str) -> None:
            removed(self, key)
            if key.startswith(f"{RECOVERY}/load-{JOB}/"):
                die()

        ObjectStore.delete = delete  # type: ignore[method-assign]
    if point == "before a result":
        settled = SplitResult.encode
        seen: list[int] = []

        def encoded(self: Any) -> bytes:
            seen.append(1)
            if len(seen) == 3:  # its fragments are written, and nobody knows
                die()
            return settled(self)

        SplitResult.encode = encoded  # type: ignore[method-assign]
    bulk_load(
        open_repository(place),
        Dying(int(number) if stage == "splits" else None),
        given,
        LoadOptions(mode=mode, branch=branch, from_="main", job_id=JOB),  # type: ignore[arg-type]
        progress=DyingAt(point),
        settings=SMALL_SPLITS,
    )


def killed(world: BulkWorld, given: str, mode: str, point: str, branch: str = "main") -> None:
    process = multiprocessing.get_context("spawn").Process(
        target=_dying_load, args=(world.repository.location.uri, given, mode, point, branch)
    )
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL, process.exitcode


@pytest.fixture(autouse=True)
def _publishes_what_its_intent_names(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs.refusing_unnamed_tables(monkeypatch)


@pytest.fixture
def world(tmp_path: Path) -> BulkWorld:
    world = BulkWorld.make(tmp_path / "graph")
    world.in_process(STORED)
    return world


def left_over(world: BulkWorld) -> list[str]:
    return jobs.left_over(world.repository)


def all_there(world: BulkWorld) -> None:
    assert [row["id"] for row in world.rows("Person")] == [f"p{number:03}" for number in range(80)]
    assert [row["age"] for row in world.rows("Person")] == list(range(80))
    assert sorted(row["text"] for row in world.rows("Note")) == sorted(f"note {number}" for number in range(40))
    assert len({(row["src"], row["dst"]) for row in world.rows("Likes")}) == world.count("Likes") == 40


POINTS = ["splits 1", "splits 5", "before a result", "verifying", "publishing", "after the commit", "while forgetting"]


@pytest.mark.parametrize("point", POINTS)
def test_a_load_that_was_killed_is_finished_by_its_job_id(world: BulkWorld, tmp_path: Path, point: str) -> None:
    given = str(write_lines(tmp_path / "given.jsonl", GIVEN))
    before = (world.head, world.everything())

    killed(world, given, "merge", point)

    landed = point in ("after the commit", "while forgetting")
    assert ((world.head, world.everything()) == before) is not landed
    runner = Dying()
    result = bulk_load(world.repository, runner, given, LoadOptions(mode="merge", job_id=JOB), settings=SMALL_SPLITS)
    assert result.commit is not None
    assert result.job_id == JOB
    all_there(world)
    splits = splits_of(given)
    done = {"splits 1": 1, "splits 5": 5, "before a result": 2}.get(point, splits)
    assert runner.staged == splits - done
    assert [commit.commit.kind for commit in commits(world)].count("load") == 2  # the first rows, and these
    assert left_over(world) == []


def splits_of(given: str) -> int:
    return -(-Path(given).stat().st_size // (SMALL_SPLITS.split_bytes or 1))


def commits(world: BulkWorld) -> list[Any]:
    from omnigraph.manifest.commit.publish import PublishedCommit
    from omnigraph.manifest.history.history import read_log

    head = world.repository.snapshot().manifest
    return [
        PublishedCommit(commit, entry.branch, entry.manifest_version)
        for entry, commit in read_log(world.repository.manifests, head)
    ]


def test_a_resumed_append_meets_what_came_meanwhile(world: BulkWorld, tmp_path: Path) -> None:
    given = str(write_lines(tmp_path / "given.jsonl", GIVEN[10:]))
    killed(world, given, "append", "splits 5")
    world.in_process([person("other"), node("Note", text="other")])
    runner = Dying()

    bulk_load(world.repository, runner, given, LoadOptions(job_id=JOB), settings=SMALL_SPLITS)

    assert runner.staged == splits_of(given) - 5
    assert (world.count("Person"), world.count("Note")) == (81, 41)


def test_a_resumed_merge_stages_again_what_another_has_changed(world: BulkWorld, tmp_path: Path) -> None:
    lines = [node("Person", slug=f"p{number:03}", name=f"new {number}") for number in range(40)]
    given = str(write_lines(tmp_path / "given.jsonl", lines))
    killed(world, given, "merge", "verifying")
    world.in_process([person("p003", age=77)], mode="merge")

    bulk_load(world.repository, Dying(), given, LoadOptions(mode="merge", job_id=JOB), settings=SMALL_SPLITS)

    row = next(row for row in world.rows("Person") if row["id"] == "p003")
    assert (row["name"], row["age"]) == ("new 3", 77)
    assert world.count("Person") == 40


@pytest.mark.parametrize("point", ["splits 5", "publishing", "after the commit"])
def test_a_load_onto_a_branch_of_its_own_is_finished_there(world: BulkWorld, tmp_path: Path, point: str) -> None:
    given = str(write_lines(tmp_path / "given.jsonl", GIVEN[10:]))
    killed(world, given, "append", point, "draft")

    result = world.bulk(given, job_id=JOB, branch="draft", from_="main")

    assert result.commit is not None
    assert result.commit.branch == "draft"
    assert (world.count("Person", "draft"), world.count("Person")) == (80, 10)
    assert left_over(world) == []


def test_a_load_that_is_committed_is_answered_by_its_commit(world: BulkWorld, tmp_path: Path) -> None:
    given = str(write_lines(tmp_path / "given.jsonl", GIVEN[10:]))

    first = world.bulk(given, job_id=JOB)
    head = world.head
    again = world.bulk(given, job_id=JOB)

    assert first.commit is not None
    assert again.commit is not None
    assert (again.commit.id, world.head) == (first.commit.id, head)
    assert again.counts == {"Person": 70, "Note": 40, "Likes": 40}


@pytest.mark.parametrize("change", ["the file", "the mode", "the branch"])
def test_another_load_under_the_same_job_id_is_refused(world: BulkWorld, tmp_path: Path, change: str) -> None:
    path = write_lines(tmp_path / "given.jsonl", GIVEN[10:])
    killed(world, str(path), "append", "splits 5")
    options: dict[str, Any] = {"mode": "append", "branch": "main"}
    if change == "the file":
        write_lines(path, GIVEN[11:])
    elif change == "the mode":
        options["mode"] = "merge"
    else:
        world.repository.branches.create("draft", world.repository.open_txn().base, None)
        options["branch"] = "draft"

    refusal = "begun on the branch 'main'" if change == "the branch" else "another input, mode or branch"
    with pytest.raises(BadRequest, match=refusal):
        world.bulk(str(path), job_id=JOB, **options)

    assert world.count("Person") == 10
    assert any("/" in key.removeprefix(f"{RECOVERY}/") for key in left_over(world))  # still there to be gone on with


def test_a_job_that_is_running_is_not_started_a_second_time(world: BulkWorld, tmp_path: Path) -> None:
    given = str(write_lines(tmp_path / "given.jsonl", GIVEN[10:]))
    refused: list[BaseException] = []

    def start_again() -> None:
        with pytest.raises(JobRunning) as raised:
            world.bulk(given, job_id=JOB)
        refused.append(raised.value)

    result = bulk_load(world.repository, Dying(3, start_again), given, LoadOptions(job_id=JOB), settings=SMALL_SPLITS)

    assert result.commit is not None
    assert len(refused) == 1
    assert world.count("Person") == 80


@pytest.mark.parametrize("named", [True, False], ids=["with a job id", "without one"])
@pytest.mark.parametrize("point", ["splits", "verifying", "publishing"])
def test_ctrl_c_leaves_nothing_but_what_a_named_job_needs(
    world: BulkWorld, tmp_path: Path, named: bool, point: str
) -> None:
    given = str(write_lines(tmp_path / "given.jsonl", GIVEN[10:]))
    before = (world.head, world.everything())
    runner = Dying(3 if point == "splits" else None, interrupt)
    job_id = JOB if named else None

    with pytest.raises(KeyboardInterrupt) as raised:
        bulk_load(
            world.repository,
            runner,
            given,
            LoadOptions(job_id=job_id),
            progress=DyingAt(point, interrupt),
            settings=SMALL_SPLITS,
        )

    assert (world.head, world.everything()) == before
    assert bool(left_over(world)) is named
    assert any(JOB in note for note in getattr(raised.value, "__notes__", ())) is named
    again = Dying()
    result = bulk_load(world.repository, again, given, LoadOptions(job_id=job_id), settings=SMALL_SPLITS)
    assert result.commit is not None
    assert again.staged == splits_of(given) - (runner.staged if named else 0)
    assert world.count("Person") == 80
    assert left_over(world) == []


def test_a_named_job_whose_input_can_not_be_loaded_may_be_started_with_another(
    world: BulkWorld, tmp_path: Path
) -> None:
    path = write_lines(tmp_path / "given.jsonl", GIVEN)

    with pytest.raises(ConstraintViolation):
        world.bulk(str(path), job_id=JOB)
    assert left_over(world) == []
    write_lines(path, GIVEN[10:])

    assert world.bulk(str(path), job_id=JOB).counts["Person"] == 70


def test_a_split_that_is_staged_twice_counts_once(world: BulkWorld, tmp_path: Path) -> None:
    """A speculative task, or one whose answer was lost: whoever comes second answers what the first put."""
    given = str(write_lines(tmp_path / "given.jsonl", GIVEN[10:]))

    class Twice(LocalRunner):
        def run(self, task: Any, items: Any, *, stage: str, on_done: Any = None) -> Any:
            if stage == "loading":
                for item in items:
                    _ = task(item)
                    stored = world.repository.store.get(task.args[0].result_key(item.number))
                    assert stored is not None
                    assert stage_split(task.args[0], item).encode() == stored.data
            return super().run(task, items, stage=stage, on_done=on_done)

    bulk_load(world.repository, Twice(), given, settings=SMALL_SPLITS)

    assert (world.count("Person"), world.count("Note"), world.count("Likes")) == (80, 40, 40)
