"""Compaction and index builds by tasks: the same rows, and indexes that answer as a look at every row does."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omnigraph.maintenance.policy import GENTLE, THOROUGH
from omnigraph.maintenance.table_maintenance import FinishedWork, maintain_table
from omnigraph.pipeline.spark.session import SparkSessionHandle
from omnigraph.schema.indexes import DeclaredIndex
from omnigraph.storage.location import Location, parse_location
from omnigraph.storage.table.index.segments import run_segment_task
from omnigraph.storage.table.tables import Tables, TableVersion
from omnigraph.storage.table.write.column_updates import commit_updates, update_fragment
from omnigraph.storage.util.runner import LocalRunner, Runner
from support.arrow import values_of
from support.s3 import S3Location

INDEXES = (
    DeclaredIndex("id", "btree"),
    DeclaredIndex("age", "btree"),
    DeclaredIndex("bio", "full_text"),
    DeclaredIndex("vec", "vector", "cosine"),
)
ANY: dict[str, Any] = {"rows_min": 1, "vectors_min": 1}
WORDS = ("apple", "bread", "cheese", "dates", "eggs")
DIMENSION = 8


def rows(first: int, last: int) -> pa.Table:
    """People with ages, words and, but for every seventh, vectors: all by their number."""
    numbers = range(first, last)
    vectors = [None if n % 7 == 0 else np.random.default_rng(n).normal(size=DIMENSION).tolist() for n in numbers]
    return pa.table(
        {
            "id": [f"p{n:05}" for n in numbers],
            "age": pa.array([n % 90 for n in numbers], pa.int32()),
            "bio": [f"{WORDS[n % 5]} and {WORDS[n // 5 % 5]} for number {n}" for n in numbers],
            "vec": pa.array(vectors, pa.list_(pa.float32(), DIMENSION)),
        }
    )


class People:
    """One table that many small writes made."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self.tables = Tables(location)

    def made_of(self, *counts: int) -> TableVersion:
        first, at = 0, None
        for count in counts:
            some = rows(first, first + count)
            at = self.tables.create("people", some).at if at is None else self.tables.append(at, some).at
            first += count
        assert at is not None
        return at

    def content(self, at: TableVersion) -> pa.Table:
        return self.tables.scan(at).sort_by("id")

    def covered(self, at: TableVersion) -> dict[str, int]:
        return {index.name: int(index.num_rows_indexed) for index in self.tables.open(at).describe_indices()}

    def segments(self, at: TableVersion) -> dict[str, int]:
        return {index.name: len(index.segments) for index in self.tables.open(at).describe_indices()}

    def fragments(self, at: TableVersion) -> list[int]:
        return [int(fragment.count_rows()) for fragment in self.tables.open(at).get_fragments()]


def compact(
    location: Location,
    at: TableVersion,
    indexes: Sequence[DeclaredIndex],
    runner: Runner,
    finished: FinishedWork | None = None,
    **how: Any,
) -> TableVersion:
    return maintain_table(location, at, indexes, replace(THOROUGH, **how), lambda _: runner, finished).at


def build_indexes(
    location: Location, at: TableVersion, indexes: Sequence[DeclaredIndex], runner: Runner, **how: Any
) -> TableVersion:
    """The indexes alone: no fragment is small enough to be put together with others."""
    return compact(location, at, indexes, runner, target_rows=1, deleted_share=2.0, **how)


class Noted(LocalRunner):
    """Remembers what it ran."""

    def __init__(self) -> None:
        self.items: list[Any] = []

    def run(self, task: Callable[[Any], Any], items: Sequence[Any], **options: Any) -> list[Any]:
        self.items += items
        return super().run(task, items, **options)


@pytest.fixture
def people(tmp_path: Path) -> People:
    return People(parse_location(tmp_path / "graph", {"fsync": "false"}))


def found(people: People, at: TableVersion, where: str, *, by_index: bool) -> list[str]:
    scanner: Any = people.tables.open(at).scanner(columns=["id"], filter=where, use_scalar_index=by_index)
    return sorted(scanner.to_table().column("id").to_pylist())


def nearest(people: People, at: TableVersion, number: int, *, by_index: bool) -> list[str]:
    query = np.random.default_rng(number).normal(size=DIMENSION).astype(np.float32)
    how: dict[str, Any] = {"column": "vec", "q": query, "k": 5, "metric": "cosine", "use_index": by_index}
    if by_index:
        how |= {"nprobes": 1_000, "refine_factor": 20}
    return values_of(people.tables.open(at).scanner(columns=["id"], nearest=how).to_table().column("id"))


def containing(people: People, at: TableVersion, word: str) -> list[str]:
    scanner: Any = people.tables.open(at).scanner(columns=["id"], full_text_query=word)
    return sorted(scanner.to_table().column("id").to_pylist())


def assert_indexes_answer_as_a_look_at_every_row(people: People, at: TableVersion) -> None:
    content = people.content(at)
    for where in ("id = 'p00003'", "id IN ('p00011', 'p00029', 'nobody')", "age = 17", "age BETWEEN 3 AND 5"):
        assert found(people, at, where, by_index=True) == found(people, at, where, by_index=False), where
    for word in ("cheese", "29"):
        texts = zip(content.column("id").to_pylist(), content.column("bio").to_pylist(), strict=True)
        assert containing(people, at, word) == [id_ for id_, text in texts if word in str(text).split()], word
    for number in (1, 2, 11):
        assert nearest(people, at, number, by_index=True) == nearest(people, at, number, by_index=False)


# Compaction


def test_many_small_fragments_become_one_with_the_same_rows(people: People) -> None:
    at = people.made_of(40, 30, 20, 10)

    made = compact(people.location, at, (), LocalRunner())

    assert people.fragments(made) == [100]
    assert people.content(made).equals(people.content(at))
    assert people.fragments(at) == [40, 30, 20, 10], "the version before is as it was"


def test_deleted_rows_do_not_come_back(people: People) -> None:
    at = people.made_of(40, 30)
    at = people.tables.delete(at, [f"p{n:05}" for n in range(0, 70, 3)]).at

    made = compact(people.location, at, (), LocalRunner())

    assert people.content(made).equals(people.content(at))
    (fragment,) = people.tables.open(made).get_fragments()
    assert fragment.num_deletions == 0


def test_a_table_that_is_as_it_should_be_is_left_alone(people: People) -> None:
    at = people.made_of(50)

    made = compact(people.location, at, INDEXES, LocalRunner(), **ANY)

    assert made != at, "it had no indexes"
    assert compact(people.location, made, INDEXES, LocalRunner(), **ANY) == made


def test_the_work_is_divided_where_fragments_would_be_too_large(people: People) -> None:
    at = people.made_of(*[10] * 12)

    noted = Noted()
    made = compact(people.location, at, (), noted, target_rows=30)

    assert len(noted.items) == 4
    assert people.fragments(made) == [30] * 4
    assert people.content(made).equals(people.content(at))


def test_indexes_cover_every_row_again_and_stale_segments_are_gone(people: People) -> None:
    at = build_indexes(people.location, people.made_of(60, 40), INDEXES, LocalRunner(), **ANY)
    at = people.tables.append(at, rows(100, 150)).at
    at = people.tables.delete(at, ["p00003", "p00120"]).at

    made = compact(people.location, at, INDEXES, LocalRunner(), **ANY)

    assert people.covered(made) == {"id_btree": 148, "age_btree": 148, "bio_full_text": 148, "vec_vector": 148}
    assert set(people.segments(made).values()) == {1}
    assert people.content(made).equals(people.content(at))
    assert_indexes_answer_as_a_look_at_every_row(people, made)


def test_fragments_that_different_segments_cover_are_put_together(people: People) -> None:
    """As after several large loads, each of which brought segments of its own."""
    at = build_indexes(people.location, people.made_of(60, 40, 50), INDEXES, LocalRunner(), segment_rows=1, **ANY)
    assert set(people.segments(at).values()) == {3}

    made = compact(people.location, at, INDEXES, LocalRunner(), **ANY)

    assert people.fragments(made) == [150]
    assert set(people.segments(made).values()) == {1}
    assert_indexes_answer_as_a_look_at_every_row(people, made)


def test_segments_over_fragments_that_stay_stay_too(people: People) -> None:
    at = build_indexes(people.location, people.made_of(500, 10, 10), INDEXES, LocalRunner(), segment_rows=1, **ANY)
    before = {segment.uuid for index in people.tables.open(at).describe_indices() for segment in index.segments}

    made = compact(people.location, at, INDEXES, LocalRunner(), target_rows=100, segment_rows=500, **ANY)

    after = {segment.uuid for index in people.tables.open(made).describe_indices() for segment in index.segments}
    assert len(before & after) == len(INDEXES), "of each index the segment over the first 500 rows"
    assert set(people.covered(made).values()) == {520}
    assert_indexes_answer_as_a_look_at_every_row(people, made)


def test_a_segment_half_of_whose_fragments_were_compacted_is_built_again_over_the_rest(people: People) -> None:
    at = people.made_of(500, 10, 10)
    at = build_indexes(people.location, at, INDEXES, LocalRunner(), **ANY)
    assert set(people.segments(at).values()) == {1}

    made = compact(people.location, at, INDEXES, LocalRunner(), target_rows=100, **ANY)

    assert len(people.fragments(made)) == 2
    assert set(people.covered(made).values()) == {520}
    assert_indexes_answer_as_a_look_at_every_row(people, made)


# Carried over to a version that others have made meanwhile (`maintenance-rebase`)


def carried(people: People, at: TableVersion, head: TableVersion) -> tuple[TableVersion, list[Any]]:
    """What becomes of a compaction of `at` on `head`, and the tasks that were run for it there."""
    finished, noted = FinishedWork(), Noted()
    compact(people.location, at, INDEXES, LocalRunner(), finished, target_rows=100, segment_rows=50, **ANY)
    made = compact(people.location, head, INDEXES, noted, finished, target_rows=100, segment_rows=50, **ANY)
    assert people.content(made).equals(people.content(head))
    assert set(people.covered(made).values()) == {people.content(head).num_rows}
    assert_indexes_answer_as_a_look_at_every_row(people, made)
    return made, noted.items


def test_a_compaction_is_carried_to_a_version_with_more_rows_and_not_done_again(people: People) -> None:
    at = people.made_of(40, 30, 20)
    head = people.tables.append(at, rows(90, 290)).at

    made, ran = carried(people, at, head)

    assert sorted(people.fragments(made)) == [90, 200]
    assert {task.fragments for task in ran} == {(3,)}, "an index over what came, and nothing else"


def test_a_compaction_whose_fragments_have_lost_rows_since_is_done_again(people: People) -> None:
    at = people.made_of(40, 30, 20)
    head = people.tables.delete(at, ["p00003"]).at

    made, ran = carried(people, at, head)

    assert people.fragments(made) == [89]
    assert len(ran) == 1 + len(INDEXES)


def test_a_compaction_of_fragments_that_another_has_put_together_is_not_done_twice(people: People) -> None:
    at = people.made_of(40, 30, 20)
    head = compact(people.location, at, INDEXES, LocalRunner(), **ANY)

    made, ran = carried(people, at, head)

    assert made == head
    assert ran == []


def test_a_compaction_whose_numbers_were_taken_is_done_again(people: People) -> None:
    at = people.made_of(40, 30, 200)
    finished, noted = FinishedWork(), Noted()
    compact(people.location, at, (), LocalRunner(), finished, target_rows=100)
    head = people.tables.delete(at, [f"p{n:05}" for n in range(100, 200)]).at
    head = compact(people.location, head, (), LocalRunner(), fan=50, small_rows=0)

    made = compact(people.location, head, (), noted, finished, target_rows=100)

    assert len(noted.items) == 1
    assert sorted(people.fragments(made)) == [70, 100]
    assert people.content(made).equals(people.content(head))


def test_numbers_are_never_used_twice_in_a_line_of_versions(people: People) -> None:
    """A segment may speak of fragments that are gone: a new one under their number would be taken for them."""
    at = build_indexes(people.location, people.made_of(10, 10, 10), INDEXES[:1], LocalRunner(), **ANY)
    seen = set[int]()
    for n in range(30, 60, 10):
        at = people.tables.append(people.tables.delete(at, [f"p{n - 1:05}"]).at, rows(n, n + 10)).at
        at = compact(people.location, at, INDEXES[:1], LocalRunner(), **ANY)
        numbers = {int(fragment.fragment_id) for fragment in people.tables.open(at).get_fragments()}
        assert not numbers & seen
        seen |= numbers


# With little effort, behind a stream of folds


def test_behind_many_small_writes_fragments_and_segments_stay_few(people: People) -> None:
    gentle = replace(GENTLE, rows_min=1, fan=4, small_rows=0)
    at = maintain_table(people.location, people.made_of(300), INDEXES[:1], gentle).at
    fragments, segments, rewritten = [], [], 0
    for n in range(300, 370):
        at = people.tables.append(at, rows(n, n + 1)).at
        done = maintain_table(people.location, at, INDEXES[:1], gentle)
        at, rewritten = done.at, rewritten + done.rewritten
        fragments.append(done.fragments)
        segments.append(max(people.segments(at).values()))

    assert max(fragments) <= 1 + 3 * 4
    assert max(segments) <= 1 + 3 * 4
    assert set(people.covered(at).values()) == {370}
    assert rewritten <= 70 * 4 / 3, "a row is moved once for each order of magnitude"
    assert found(people, at, "id = 'p00350'", by_index=True) == ["p00350"]


def test_a_segment_with_entries_of_removed_fragments_still_works(people: People) -> None:
    gentle = replace(GENTLE, rows_min=1, vectors_min=1, fan=3, small_rows=0)
    at = people.made_of(300, 250, 200, 10, 10, 10)
    at = build_indexes(people.location, at, INDEXES, LocalRunner(), **ANY)
    at = people.tables.delete(at, ["p00003", "p00755"]).at
    before = {segment.uuid for index in people.tables.open(at).describe_indices() for segment in index.segments}

    made = maintain_table(people.location, at, INDEXES, gentle).at

    after = {segment.uuid for index in people.tables.open(made).describe_indices() for segment in index.segments}
    assert sorted(people.fragments(made)) == [29, 200, 250, 299]
    assert before < after
    assert set(people.covered(made).values()) == {778}
    assert_indexes_answer_as_a_look_at_every_row(people, made)


def test_a_segment_most_of_which_is_gone_is_built_again(people: People) -> None:
    gentle = replace(GENTLE, rows_min=1, vectors_min=1, fan=3, small_rows=0)
    at = build_indexes(people.location, people.made_of(300, 10, 10, 10), INDEXES, LocalRunner(), **ANY)

    made = maintain_table(people.location, at, INDEXES, gentle).at

    assert sorted(people.fragments(made)) == [30, 300]
    assert set(people.segments(made).values()) == {1}
    assert_indexes_answer_as_a_look_at_every_row(people, made)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    counts=st.lists(st.integers(1, 25), min_size=1, max_size=6),
    deleted=st.sets(st.integers(0, 100)),
    target=st.integers(5, 60),
)
def test_whatever_it_is_made_of_the_rows_stay(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], deleted: set[int], target: int
) -> None:
    people = People(parse_location(tmp_path_factory.mktemp("g") / "graph", {"fsync": "false"}))
    at = people.tables.delete(people.made_of(*counts), [f"p{n:05}" for n in deleted]).at

    made = compact(people.location, at, INDEXES[:2], LocalRunner(), target_rows=target, deleted_share=0.0, **ANY)

    assert people.content(made).equals(people.content(at))
    some = f"p{min(sum(counts) - 1, 3):05}"
    assert found(people, made, f"id = '{some}'", by_index=True) == found(people, at, f"id = '{some}'", by_index=False)


# Index builds


def test_segments_are_built_in_groups_and_answer_as_one(people: People) -> None:
    at = people.made_of(100, 100, 100)

    made = build_indexes(people.location, at, INDEXES, LocalRunner(), segment_rows=100, **ANY)

    assert people.segments(made) == {"id_btree": 3, "age_btree": 3, "bio_full_text": 3, "vec_vector": 3}
    assert set(people.covered(made).values()) == {300}
    assert_indexes_answer_as_a_look_at_every_row(people, made)


def test_only_what_no_segment_covers_is_built(people: People) -> None:
    at = build_indexes(people.location, people.made_of(100), INDEXES, LocalRunner(), **ANY)
    at = people.tables.append(at, rows(100, 150)).at

    noted = Noted()
    made = build_indexes(people.location, at, INDEXES, noted, whole_segments=False, **ANY)

    assert {task.fragments for task in noted.items} == {(1,)}
    assert set(people.segments(made).values()) == {2}
    assert set(people.covered(made).values()) == {150}
    assert_indexes_answer_as_a_look_at_every_row(people, made)
    assert build_indexes(people.location, made, INDEXES, LocalRunner(), whole_segments=False, **ANY) == made
    made = build_indexes(people.location, made, INDEXES, LocalRunner(), **ANY)
    assert set(people.segments(made).values()) == {1}, "put together"


def test_few_rows_are_not_worth_an_index(people: People) -> None:
    at = people.made_of(100)

    assert build_indexes(people.location, at, INDEXES, LocalRunner(), rows_min=101) == at


def test_vectors_are_divided_by_centroids_that_are_trained_once(people: People) -> None:
    at = people.made_of(100, 100)

    noted = Noted()
    build_indexes(people.location, at, INDEXES[3:], noted, segment_rows=100, **ANY)

    tasks = noted.items
    assert len(tasks) == 2
    assert tasks[0].centroids == tasks[1].centroids
    assert len(tasks[0].centroids or b"") == 13 * DIMENSION * 4, "as many as the root of 171 vectors"


def test_fragments_without_a_vector_need_no_segment(people: People) -> None:
    bare = rows(0, 7).slice(0, 1)
    at = people.tables.append(people.tables.create("people", bare).at, rows(1, 60)).at

    made = build_indexes(people.location, at, INDEXES[3:], LocalRunner(), segment_rows=1, **ANY)

    assert people.segments(made) == {"vec_vector": 1}
    assert nearest(people, made, 5, by_index=True) == nearest(people, made, 5, by_index=False)


def test_a_column_that_the_table_does_not_have_yet_is_left_out(people: People) -> None:
    at = people.made_of(50)

    made = build_indexes(people.location, at, [*INDEXES[:1], DeclaredIndex("new", "btree")], LocalRunner(), **ANY)

    assert people.covered(made) == {"id_btree": 50}


def test_a_segment_that_covers_nothing_any_more_is_replaced(people: People) -> None:
    """Values that were written into a column take its fragments out of the index."""
    at = build_indexes(people.location, people.made_of(50), INDEXES, LocalRunner(), **ANY)
    new = pa.table({"id": ["p00001"], "age": pa.array([1_000], pa.int32())})
    at = commit_updates(people.location, at, [update_fragment(people.location, at, 0, "age", new)]).at
    assert people.covered(at)["age_btree"] == 0

    made = build_indexes(people.location, at, INDEXES, LocalRunner(), **ANY)

    assert people.covered(made)["age_btree"] == 50
    assert people.segments(made)["age_btree"] == 1
    assert found(people, made, "age = 1000", by_index=True) == ["p00001"]


def test_a_task_that_runs_twice_does_no_harm(people: People) -> None:
    at = people.made_of(60, 40)

    class Twice(LocalRunner):
        """Speculation: every task runs again, and the later answer is taken."""

        def run(self, task: Callable[[Any], Any], items: Sequence[Any], **options: Any) -> list[Any]:
            super().run(task, items, **options)
            return super().run(task, items, **options)

    made = compact(people.location, at, INDEXES, Twice(), **ANY)

    assert people.content(made).equals(people.content(at))
    assert set(people.covered(made).values()) == {100}
    assert_indexes_answer_as_a_look_at_every_row(people, made)


def test_tasks_and_answers_can_be_sent_elsewhere(people: People) -> None:
    class Sent(LocalRunner):
        def run(self, task: Callable[[Any], Any], items: Sequence[Any], **options: Any) -> list[Any]:
            there = pickle.loads(pickle.dumps((task, list(items))))
            return pickle.loads(pickle.dumps(super().run(*there, **options)))  # type: ignore[no-any-return]

    made = compact(people.location, people.made_of(60, 40), INDEXES, Sent(), **ANY)

    assert_indexes_answer_as_a_look_at_every_row(people, made)
    assert run_segment_task.__module__ == "omnigraph.storage.table.index.segments"


def test_what_a_new_version_refers_to_is_synced_before_the_version_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    people = People(parse_location(tmp_path / "graph"))
    at = people.made_of(60, 40)
    folder = tmp_path / "graph" / "tables" / "people"
    synced: set[str] = set()
    fsync = os.fsync

    def noted(fd: int) -> None:
        fsync(fd)
        synced.add(os.readlink(f"/proc/self/fd/{fd}"))

    monkeypatch.setattr(os, "fsync", noted)
    before = {path for path in folder.rglob("*") if path.is_file()}
    new = pa.table({"id": ["p00001"], "age": pa.array([1_000], pa.int32())})
    at = commit_updates(people.location, at, [update_fragment(people.location, at, 0, "age", new)]).at
    compact(people.location, at, INDEXES, LocalRunner(), **ANY)

    written = {path for path in folder.rglob("*") if path.is_file()} - before
    assert len(written) > 10
    assert {str(path) for path in written | {path.parent for path in written}} - synced == set()


@pytest.mark.s3
def test_it_works_on_an_object_store(s3: S3Location) -> None:
    people = People(parse_location(s3.uri, s3.options))
    at = people.made_of(60, 40)

    made = compact(people.location, at, INDEXES, LocalRunner(), **ANY)

    assert people.content(made).equals(people.content(at))
    assert_indexes_answer_as_a_look_at_every_row(people, made)


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_executors_do_the_same(people: People, spark_session: SparkSessionHandle) -> None:
    runner: Runner = spark_session.runner
    at = build_indexes(people.location, people.made_of(60, 40, 50), INDEXES, runner, segment_rows=60, **ANY)
    assert_indexes_answer_as_a_look_at_every_row(people, at)

    made = compact(people.location, at, INDEXES, runner, target_rows=100, **ANY)

    assert len(people.fragments(made)) < 3
    assert set(people.covered(made).values()) == {150}
    assert people.content(made).equals(people.content(at))
    assert_indexes_answer_as_a_look_at_every_row(people, made)
