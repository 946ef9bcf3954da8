"""Bulk loads beside other writers: a lost race is verified again on the new head, and staged again only if it must."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from bulk import SCHEMA, SMALL_SPLITS, BulkWorld, edge, node, person, write_lines

from omnigraph.errors import BranchNotFound, ConstraintViolation, ExpectedVersionMismatch
from omnigraph.manifest.model import Touch
from omnigraph.manifest.plan import Change, PublishPlan, RaiseFence, Rewrite, StagedTable, Stance
from omnigraph.manifest.repository import open_repository
from omnigraph.pipeline.bulk.load import bulk_load
from omnigraph.pipeline.progress import Progress
from omnigraph.pipeline.runner import InProcess
from omnigraph.storage.handles import TableVersion
from omnigraph.write.load import LoadResult
from omnigraph.write.migrate import apply_schema

T = TypeVar("T")
R = TypeVar("R")

PEOPLE = [person(f"p{number:03}", age=number % 90) for number in range(60)]


class Counting(InProcess):
    """Knows how many splits were staged."""

    def __init__(self) -> None:
        self.staged = 0

    def run(
        self, task: Callable[[T], R], items: Sequence[T], *, stage: str, on_done: Callable[[R], None] | None = None
    ) -> list[R]:
        self.staged += len(items) if stage == "loading" else 0
        return super().run(task, items, stage=stage, on_done=on_done)


class Meddling(Progress):
    """Lets somebody else write when the load is about to publish, once."""

    def __init__(self, *others: Callable[[], Any]) -> None:
        super().__init__()
        self._others = list(others)

    def stage(self, name: str, tasks: int | None = None) -> None:
        super().stage(name, tasks)
        if name == "publishing":
            while self._others:
                self._others.pop(0)()


@pytest.fixture
def world(tmp_path: Path) -> BulkWorld:
    return BulkWorld.make(tmp_path / "graph", runner=Counting())


def meddled(world: BulkWorld, given: Path, *others: Callable[[], Any], **options: Any) -> tuple[LoadResult, int]:
    """A load while others write; how many splits it staged."""
    assert isinstance(world.runner, Counting)
    before = world.runner.staged
    result = world.bulk(str(given), progress=Meddling(*others), **options)
    return result, world.runner.staged - before


def splits_of(given: Path) -> int:
    return -(-given.stat().st_size // (SMALL_SPLITS.split_bytes or 1))


def compacted(world: BulkWorld, type_name: str) -> None:
    """The same rows in other fragments."""
    repository = world.repository
    txn = repository.open_txn()
    key = txn.catalog.by_name[type_name].table_key
    ref = txn.base.tables[key]
    at = TableVersion(ref.table_id, ref.table_version)
    made = repository.tables.overwrite(at, repository.tables.scan(at)).at
    staged = StagedTable(made.table_id, made.table_version, ref.rows, Touch(), (ref.table_id, ref.table_version))
    change = Change("optimize", (Rewrite(key),), {key: staged})
    plan = PublishPlan(repository.runtime.ids.txn_id(), Stance.MAINTENANCE, change)
    assert repository.publisher.publish(txn, plan) is not None


def fenced(world: BulkWorld, *, honouring: bool) -> None:
    """A cleanup's mark: what was staged before it may be gone, but for the intents that it honours."""
    repository = world.repository
    intents = tuple(seen.intent.txn_id for seen in repository.intents.list()) if honouring else ()
    plan = PublishPlan(repository.runtime.ids.txn_id(), Stance.MAINTENANCE, RaiseFence(1, intents))
    assert repository.publisher.publish(repository.open_txn(), plan) is not None


def test_loads_of_different_types_both_land(world: BulkWorld, tmp_path: Path) -> None:
    people = write_lines(tmp_path / "people.jsonl", PEOPLE)
    notes = write_lines(tmp_path / "notes.jsonl", [node("Note", text=f"n{n}") for n in range(40)])

    result, staged = meddled(world, people, lambda: BulkWorld(world.repository, InProcess()).bulk(str(notes)))

    assert result.commit is not None
    assert (world.count("Person"), world.count("Note")) == (60, 40)
    assert staged == splits_of(people)


@pytest.mark.parametrize("before", [True, False], ids=["into a table", "into a type without one"])
def test_appends_of_one_type_both_land_and_nothing_is_parsed_twice(
    world: BulkWorld, tmp_path: Path, before: bool
) -> None:
    if before:
        world.in_process([person("first")])
    one = write_lines(tmp_path / "one.jsonl", [*PEOPLE, edge("Likes", "p000", "p001")])
    other = [person(f"q{n}") for n in range(30)] + [edge("Likes", "q1", "q2")]

    result, staged = meddled(world, one, lambda: world.in_process(other))

    assert result.commit is not None
    assert result.commit.touched == {"node:Person": {"inserted": 60}, "edge:Likes": {"inserted": 1}}
    assert (world.count("Person"), world.count("Likes")) == (90 + before, 2)
    assert staged == splits_of(one)


def test_the_second_append_is_validated_against_the_first(world: BulkWorld, tmp_path: Path) -> None:
    given = write_lines(tmp_path / "given.jsonl", PEOPLE)

    with pytest.raises(ConstraintViolation) as raised:
        meddled(world, given, lambda: world.in_process([person("p007")]))

    assert raised.value.violations[0].entity_ids == ("p007",)
    assert raised.value.violations[0].places == ("given.jsonl line 8",)
    assert world.count("Person") == 1


def test_an_edge_to_a_node_that_goes_meanwhile_is_refused(world: BulkWorld, tmp_path: Path) -> None:
    world.in_process(PEOPLE)
    given = write_lines(tmp_path / "given.jsonl", [edge("Likes", "p001", "p002")])
    others = write_lines(tmp_path / "others.jsonl", PEOPLE[:2])

    with pytest.raises(ConstraintViolation, match="does not exist"):
        meddled(world, given, lambda: world.in_process(str(others), mode="overwrite"))

    assert world.count("Likes") == 0


def test_a_quarantine_judges_again_what_can_be_taken(world: BulkWorld, tmp_path: Path) -> None:
    world.in_process([node("Company", name="acme")])
    given = write_lines(tmp_path / "given.jsonl", [*PEOPLE, person("x", age=999)])

    result, staged = meddled(world, given, lambda: world.in_process([person("p007")]), on_error="quarantine")

    assert (result.rejected, result.counts) == (2, {"Person": 59})
    assert world.count("Person") == 60
    assert staged == splits_of(given)


def test_a_merge_keeps_what_another_merge_has_just_written(world: BulkWorld, tmp_path: Path) -> None:
    world.in_process([person("ada", age=1), person("bob", age=1)])
    ages = write_lines(tmp_path / "ages.jsonl", [node("Person", slug="ada", name="Ada", age=50)])
    names = write_lines(tmp_path / "names.jsonl", [node("Person", slug="ada", name="Lovelace"), person("eve")])

    result, staged = meddled(world, names, lambda: world.bulk(str(ages), mode="merge"), mode="merge")

    assert staged == 3 * splits_of(names)  # its own two passes, and the other's one split
    assert result.commit is not None
    assert result.commit.touched == {"node:Person": {"inserted": 1, "updated": 1}}
    assert [(row["id"], row["name"], row["age"]) for row in world.rows("Person")] == [
        ("ada", "Lovelace", 50),
        ("bob", "Bob", 1),
        ("eve", "Eve", None),
    ]


@pytest.mark.parametrize("mode", ["append", "merge", "overwrite"])
def test_maintenance_meanwhile_costs_no_second_pass(world: BulkWorld, tmp_path: Path, mode: str) -> None:
    world.in_process([person("ada", age=1), *PEOPLE[:20]])
    fresh = PEOPLE[20:] if mode == "append" else [person("p003", age=77), *PEOPLE[20:], person("bad", age=999)]
    given = write_lines(tmp_path / "given.jsonl", fresh)

    result, staged = meddled(
        world,
        given,
        lambda: compacted(world, "Person"),
        mode=mode,
        on_error="fail" if mode == "append" else "quarantine",
    )

    assert staged == splits_of(given)
    assert result.commit is not None
    expected = {"append": 61, "merge": 61, "overwrite": 41}[mode]
    assert world.count("Person") == expected
    assert len({row["id"] for row in world.rows("Person")}) == expected
    if mode != "append":
        assert next(row for row in world.rows("Person") if row["id"] == "p003")["age"] == 77


def test_an_overwrite_that_lost_its_base_is_a_conflict(world: BulkWorld, tmp_path: Path) -> None:
    world.in_process(PEOPLE[:3])
    given = write_lines(tmp_path / "given.jsonl", PEOPLE)

    with pytest.raises(ExpectedVersionMismatch):
        meddled(world, given, lambda: world.in_process([person("new")]), mode="overwrite")

    assert world.count("Person") == 4


@pytest.mark.parametrize("mode", ["append", "overwrite"])
@pytest.mark.parametrize("honouring", [True, False])
def test_only_a_cleanup_that_did_not_know_of_the_load_has_it_staged_again(
    world: BulkWorld, tmp_path: Path, mode: str, honouring: bool
) -> None:
    world.in_process([person("ada")])
    given = write_lines(tmp_path / "given.jsonl", PEOPLE)

    result, staged = meddled(world, given, lambda: fenced(world, honouring=honouring), mode=mode)

    assert result.commit is not None
    assert staged == splits_of(given) * (1 if honouring else 2)
    assert world.count("Person") == (61 if mode == "append" else 60)


@pytest.mark.parametrize("mode", ["append", "merge"])
def test_a_schema_that_changes_meanwhile_is_the_one_that_is_loaded_by(
    world: BulkWorld, tmp_path: Path, mode: str
) -> None:
    world.in_process([person("ada", age=3)])
    given = write_lines(tmp_path / "given.jsonl", [*PEOPLE, *([person("ada", age=4)] if mode == "merge" else [])])
    wider = SCHEMA.replace("    bio:  String?", '    nick: String @default("none")\n    bio:  String?')

    result, staged = meddled(world, given, lambda: apply_schema(world.repository, wider), mode=mode)

    assert result.commit is not None
    assert staged == 2 * splits_of(given)
    assert {row["nick"] for row in world.rows("Person")} == {"none"}
    assert world.count("Person") == 61


def test_a_branch_that_is_deleted_meanwhile_takes_nothing(world: BulkWorld, tmp_path: Path) -> None:
    world.repository.branches.create("draft", world.repository.open_txn().base, None)
    given = write_lines(tmp_path / "given.jsonl", PEOPLE)

    with pytest.raises(BranchNotFound):
        meddled(world, given, lambda: world.repository.branches.delete("draft", None), branch="draft")


def _append(place: str, given: str) -> None:
    bulk_load(open_repository(place), InProcess(), given, settings=SMALL_SPLITS)


def test_processes_that_append_at_once_all_land(world: BulkWorld, tmp_path: Path) -> None:
    files = [
        write_lines(tmp_path / f"{name}.jsonl", [person(f"{name}{n:02}") for n in range(40)])
        for name in ("a", "b", "c")
    ]
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_append, args=(world.repository.location.uri, str(one))) for one in files]

    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)

    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert sorted(row["id"] for row in world.rows("Person")) == sorted(f"{x}{n:02}" for x in "abc" for n in range(40))
