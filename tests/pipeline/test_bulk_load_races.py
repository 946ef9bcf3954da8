"""Bulk loads beside other writers: a lost race is verified again on the new head, and staged again only if it must."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

import omnigraph
from omnigraph.errors import BranchNotFound, ConstraintViolation, ExpectedVersionMismatch
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import ConflictPolicy, DataChange, PublishPlan, RaiseFence, Rewrite, StagedTable
from omnigraph.manifest.model.manifest import RowCounts
from omnigraph.manifest.repository import open_repository
from omnigraph.manifest.settings import Settings
from omnigraph.pipeline.bulk.load import BulkSettings, bulk_load
from omnigraph.pipeline.progress import Progress
from omnigraph.storage.util.runner import LocalRunner
from omnigraph.write.load.load import LoadResult
from omnigraph.write.migrate.migrate import apply_schema
from pipeline.bulk import SCHEMA, SMALL_SPLITS, BulkWorld, edge, node, person, write_lines
from support.jobs import refusing_unnamed_tables

T = TypeVar("T")
R = TypeVar("R")

PEOPLE = [person(f"p{number:03}", age=number % 90) for number in range(60)]


class Counting(LocalRunner):
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


@pytest.fixture(autouse=True)
def _publishes_what_its_intent_names(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing_unnamed_tables(monkeypatch)


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
    ref, content = txn.base.tables[key], txn.content(key)
    assert content is not None
    at = repository.tables.fold_tail(content, repository.runtime.ids.short_id()).at
    made = repository.tables.overwrite(at, repository.tables.scan(at)).at
    staged = StagedTable(made, ref.rows, RowCounts(), ref.stored, ref.tail)
    change = DataChange("optimize", (Rewrite(key),), {key: staged})
    plan = PublishPlan(repository.runtime.ids.txn_id(), ConflictPolicy.MAINTENANCE, change)
    assert repository.publisher.publish(txn, plan) is not None


def fenced(world: BulkWorld, *, honouring: bool) -> None:
    """A cleanup's mark: what was staged before it may be gone, but for the intents that it honours."""
    repository = world.repository
    tokens = tuple(token for seen in repository.intents.list() for token in seen.intent.tokens if honouring)
    plan = PublishPlan(repository.runtime.ids.txn_id(), ConflictPolicy.MAINTENANCE, RaiseFence(1, tokens))
    assert repository.publisher.publish(repository.open_txn(), plan) is not None


def test_loads_of_different_types_both_land(world: BulkWorld, tmp_path: Path) -> None:
    people = write_lines(tmp_path / "people.jsonl", PEOPLE)
    notes = write_lines(tmp_path / "notes.jsonl", [node("Note", text=f"n{n}") for n in range(40)])

    result, staged = meddled(world, people, lambda: BulkWorld(world.repository, LocalRunner()).bulk(str(notes)))

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
    bulk_load(open_repository(place), LocalRunner(), given, settings=SMALL_SPLITS)


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


# Beside small commits


class Verifying(Meddling):
    """Counts how often the load was verified as a whole."""

    verified = 0

    def stage(self, name: str, tasks: int | None = None) -> None:
        self.verified += name == "verifying"
        super().stage(name, tasks)


BASE = [
    *(person(f"p{n}", age=n) for n in range(6)),
    node("Company", name="acme"),
    node("Note", id="n1", text="one", rank=1),
    edge("Knows", "p0", "p1"),
    edge("WorksAt", "p0", "acme"),
]
# mode, what is loaded, the small commit that comes before it lands, and whether it has to do with the load
BESIDE: dict[str, tuple[str, list[Any], list[Any] | str, bool]] = {
    "another row": ("append", [person("x")], [person("y")], False),
    "an update of another row": ("append", [person("x")], 'update Person set { age: 50 } where slug = "p2"', False),
    "a removal of another row": ("append", [person("x")], 'delete Person where slug = "p5"', False),
    "the same id": ("append", [person("x")], [person("x", name="Other")], True),
    "the same unique values": ("append", [person("x")], [person("y", name="X")], True),
    "the same number": ("append", [node("Note", text="a", rank=7)], [node("Note", text="b", rank=7)], True),
    "another number": ("append", [node("Note", text="a", rank=7)], [node("Note", text="b", rank=8)], False),
    "a node of an edge is gone": ("append", [edge("Likes", "p5", "p1")], 'delete Person where slug = "p5"', True),
    "a node of no edge is gone": ("append", [edge("Likes", "p4", "p1")], 'delete Person where slug = "p5"', False),
    "the one edge a node may have": ("append", [edge("WorksAt", "p1", "acme")], [edge("WorksAt", "p1", "acme")], True),
    "the edge of another node": ("append", [edge("WorksAt", "p1", "acme")], [edge("WorksAt", "p2", "acme")], False),
    "another row than is merged": ("merge", [person("p1", age=70)], [person("y")], False),
    "another row than is as it was": ("merge", [person("p1", age=1)], [person("y")], False),
    "the row that is merged": (
        "merge",
        [node("Person", slug="p1", name="P1", age=70)],
        'update Person set { bio: "b" } where slug = "p1"',
        True,
    ),
    "the row that was as it was": (
        "merge",
        [person("p1", age=1), person("z")],
        'update Person set { age: 80 } where slug = "p1"',
        True,
    ),
    "the row that is merged is gone": ("merge", [person("p5", age=70)], 'delete Person where slug = "p5"', True),
    "the edge that is merged": ("merge", [edge("Knows", "p2", "p3")], [edge("Knows", "p2", "p3")], True),
    "a first row of the type": ("append", [edge("Likes", "p1", "p2")], [edge("Likes", "p2", "p3")], False),
}


@pytest.mark.parametrize(("mode", "load", "comes", "matters"), BESIDE.values(), ids=BESIDE)
def test_a_small_commit_before_the_put_comes_to_the_same_as_one_before_the_load(
    tmp_path: Path, mode: str, load: list[Any], comes: list[Any] | str, matters: bool
) -> None:
    given = write_lines(tmp_path / "given.jsonl", load)
    told = []
    for name in ("before", "meanwhile"):
        quick = {"fsync": "false"}
        graph = omnigraph.init(tmp_path / name, SCHEMA, quick, settings=Settings(inline_rows=0))
        graph.load(BASE[:4])
        graph = omnigraph.open(tmp_path / name, quick, settings=Settings(maintenance=0))
        graph.load(BASE[4:])  # rides in a manifest
        world = BulkWorld(graph.repository, Counting())
        others = partial(_small, graph, comes)
        progress = Verifying(*([others] if name == "meanwhile" else []))
        if name == "before":
            others()
        told.append(world.outcome("bulk", str(given), mode=mode, progress=progress))

    assert told[1] == told[0]
    assert progress.verified == 1 + matters or (matters and told[1].error is not None)
    tables = graph.repository.snapshot().manifest.tables
    assert {key: ref.rows for key, ref in tables.items()} == {
        key: graph.snapshot().to_arrow(key, ["id"]).num_rows for key in tables
    }


def _small(graph: Graph, what: list[Any] | str) -> None:
    if isinstance(what, str):
        graph.mutate(f"query q() {{ {what} }}")
    else:
        graph.load(what)


@pytest.mark.parametrize("mode", ["append", "merge"])
def test_a_fold_with_small_commits_before_and_after_it_costs_no_second_verification(
    world: BulkWorld, tmp_path: Path, mode: str
) -> None:
    world.in_process(PEOPLE[:20])
    given = write_lines(
        tmp_path / "given.jsonl", [*PEOPLE[20:], *([person("p003", age=77)] if mode == "merge" else [])]
    )
    progress = Verifying(
        lambda: world.in_process([person("early")]),
        lambda: compacted(world, "Person"),
        lambda: world.in_process([person("late")]),
    )

    world.bulk(str(given), mode=mode, progress=progress)

    assert progress.verified == 1
    assert sorted(row["id"] for row in world.rows("Person")) == sorted(
        [*(f"p{n:03}" for n in range(60)), "early", "late"]
    )
    assert world.repository.snapshot().manifest.tables["node:Person"].rows == 62


def _write_on(place: str, begun: Any, enough: Any) -> None:
    """Small commits, one after the other, until it is enough."""
    graph = omnigraph.open(place)
    number = 0
    while not enough.is_set():
        graph.load([person(f"w{number:05}", age=number % 90)])
        if number:
            graph.mutate(f'query q() {{ update Person set {{ bio: "{number}" }} where slug = "w{number - 1:05}" }}')
            graph.load([edge("Likes", f"w{number:05}", f"w{number - 1:05}")])
        number += 1
        begun.set()


@pytest.mark.parametrize("mode", ["append", "merge"])
def test_a_load_gets_through_beside_a_process_that_writes_to_the_same_types_all_the_while(
    world: BulkWorld, tmp_path: Path, mode: str
) -> None:
    world.in_process(PEOPLE)
    fresh = [person(f"q{n:04}", age=n % 90) for n in range(2_000)]
    links = [edge("Likes", f"q{n:04}", f"p{n % 60:03}") for n in range(500)]
    changed = [person(f"p{n:03}", age=99) for n in range(60)] if mode == "merge" else []
    given = write_lines(tmp_path / "given.jsonl", [*fresh, *changed, *links])
    context = multiprocessing.get_context("spawn")
    begun, enough = context.Event(), context.Event()
    writer = context.Process(target=_write_on, args=(world.repository.location.uri, begun, enough))
    writer.start()
    progress = Verifying()
    try:
        assert begun.wait(60)
        result = world.bulk(str(given), mode=mode, progress=progress, settings=BulkSettings(publish_s=60))
        begun.clear()
        assert begun.wait(60), "the writer goes on after it"
    finally:
        enough.set()
        writer.join(60)

    assert writer.exitcode == 0
    assert result.commit is not None
    assert progress.verified == 1
    assert result.commit.cost.retries < 20
    ids = [row["id"] for row in world.rows("Person")]
    written = [one for one in ids if one.startswith("w")]
    assert len(ids) == len(set(ids)) == 2_060 + len(written)
    assert written == [f"w{n:05}" for n in range(len(written))]
    assert world.count("Likes") == 500 + len(written) - 1
    assert world.repository.snapshot().manifest.tables["node:Person"].rows == len(ids)
    if mode == "merge":
        assert {row["age"] for row in world.rows("Person") if row["id"].startswith("p")} == {99}
