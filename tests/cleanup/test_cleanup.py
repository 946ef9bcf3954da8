"""Cleanup keeps everything that a retained state needs, and nothing else (`fence-before-sweep`)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.errors import BadRequest, CommitNotFound, Damaged, ReadOnly, UnsupportedFormat
from omnigraph.gc.retention import Retention, oldest_retained, parse_span
from omnigraph.graph.graph import Graph
from omnigraph.manifest.model.manifest import Manifest, Point, Stub
from omnigraph.manifest.model.paths import parse_commit_id
from omnigraph.manifest.settings import Settings
from omnigraph.manifest.store.stub_index import StubIndex
from support.cleanup import assert_sound, clean, table_files
from support.s3 import S3Location

SCHEMA = "node Person { slug: String @key age: I32? } edge Knows: Person -> Person"
PUT = "query put($slug: String, $age: I32?) { insert Person { slug: $slug, age: $age } }"
ALL = "query all() { match { $p: Person } return { $p.slug, $p.age } order { $p.slug } }"
STAGED, INLINE = Settings(inline_rows=0, maintenance=0), Settings(maintenance=0)
NO_FSYNC = {"fsync": "false"}


@pytest.fixture(params=[STAGED, INLINE], ids=["staged", "inline"])
def settings(request: pytest.FixtureRequest) -> Settings:
    chosen: Settings = request.param
    return chosen


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Settings], Path]:
    """Graphs that are made once, to be copied."""
    folder = tmp_path_factory.mktemp("made")
    return cache(lambda settings: Path(made_at(f"{folder}/{settings.inline_rows}", settings, NO_FSYNC).uri))


@pytest.fixture
def graph(tmp_path: Path, settings: Settings, made: Callable[[Settings], Path]) -> Graph:
    """Twelve commits on four people, by default as rows in manifests, folded once on the way."""
    shutil.copytree(made(settings), tmp_path / "graph")
    return omnigraph.open(tmp_path / "graph", NO_FSYNC, settings=settings)


def made_at(uri: str, settings: Settings, options: dict[str, str]) -> Graph:
    made = omnigraph.init(uri, SCHEMA, options, settings=settings)
    for number in range(12):
        put(made, f"p{number % 4}", number)
        if number in (3, 7):
            made.optimize()
    return made


def put(graph: Graph, slug: str, age: int | None = None, **options: Any) -> None:
    assert graph.mutate(PUT, params={"slug": slug, "age": age}, **options) is not None


def fresh(graph: Graph) -> Graph:
    return omnigraph.open(graph.uri, graph.repository.location.options, settings=graph.repository.settings)


def files(graph: Graph) -> set[str]:
    return table_files(graph.repository.location.path)


def rows(graph: Graph, **options: Any) -> list[dict[str, Any]]:
    return list(fresh(graph).query(ALL, **options).rows)


def test_a_dry_run_changes_nothing_and_reports_what_would_be_deleted(graph: Graph) -> None:
    root = graph.repository.location.path
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name != "_clock"}

    said = clean(graph, dry_run=True)

    after = {path: path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name != "_clock"}
    assert after == before
    size = sum((root / name).stat().st_size for name in files(graph))
    done = clean(graph)
    assert (said.dry_run, done.dry_run) == (True, False)
    assert (said.files, said.bytes, said.manifests) == (done.files, done.bytes, done.manifests)
    assert said.files > 0
    assert said.manifests > 0
    assert said.bytes + said.kept_bytes == size
    assert done.kept_files == len(files(graph))


def test_the_head_reads_the_same_from_a_cold_process(graph: Graph) -> None:
    expected, before = rows(graph), len(files(graph))

    clean(graph)

    assert len(files(graph)) < before
    assert rows(graph) == expected
    assert_sound(graph)


def test_kept_commits_stay_readable_and_expired_ones_say_so(graph: Graph) -> None:
    commits = graph.commits(limit=None)
    answers = {commit.id: rows(graph, at=commit.id) for commit in commits}

    clean(graph, keep=3)

    for commit in commits[:3]:
        assert rows(graph, at=commit.id) == answers[commit.id]
    for commit in commits[3:]:
        with pytest.raises(CommitNotFound, match="cleanup has expired it"):
            rows(graph, at=commit.id)


def test_keep_counts_logical_commits_and_not_maintenance(graph: Graph) -> None:
    for _ in range(3):
        graph.optimize()
        clean(graph, keep=4)
    readable = [commit.id for commit in graph.commits(limit=4)]
    assert len({len(rows(graph, at=commit)) for commit in readable}) == 1


def test_what_is_younger_than_the_span_stays(graph: Graph) -> None:
    done = graph.cleanup(older_than="1h", keep=1, dry_run=False)
    assert (done.files, done.manifests) == (0, 0)
    assert done.branches == {"main": 1}


def test_the_state_at_the_beginning_of_the_span_stays_readable(graph: Graph) -> None:
    head = graph.snapshot().pinned.manifest
    moment = head.authored_at + timedelta(hours=1)
    oldest = oldest_retained(graph.repository.manifests, head, Retention(timedelta(hours=1), 1), moment)
    assert oldest == head.manifest_version
    assert oldest_retained(graph.repository.manifests, head, Retention(timedelta(hours=2), 1), moment) == 1


def test_the_log_still_tells_all_commits(graph: Graph) -> None:
    before = [commit.id for commit in graph.commits(limit=None)]
    clean(graph)
    assert [commit.id for commit in fresh(graph).commits(limit=None)] == before


def test_a_tagged_commit_stays_until_its_tag_is_deleted(graph: Graph) -> None:
    old = graph.commits(limit=None)[6].id
    expected = rows(graph, at=old)
    graph.tags.create("before", old)

    clean(graph)

    assert rows(graph, at="before") == expected
    assert_sound(graph)
    graph.tags.delete("before")
    clean(graph)
    with pytest.raises(CommitNotFound):
        rows(graph, at=old)


def test_what_was_pinned_once_becomes_a_stub_too(graph: Graph) -> None:
    graph.tags.create("before", graph.commits(limit=None)[6].id)
    clean(graph)
    graph.tags.delete("before")
    graph.optimize()  # so that no tail needs an old manifest either
    put(graph, "p0", 99)
    graph.optimize()
    clean(graph)

    head = fresh(graph).snapshot().pinned.manifest
    entries = [stored(graph, Point(head.branch_id, number)) for number in range(1, head.oldest_retained)]
    assert len(entries) > 12
    assert all(isinstance(entry, Stub) for entry in entries)


def stored(graph: Graph, point: Point) -> Manifest | Stub | None:
    return fresh(graph).repository.manifests.read(point, cached=False)


def test_a_manifest_whose_rows_a_tail_needs_stays_until_they_are_folded(tmp_path: Path) -> None:
    graph = omnigraph.init(str(tmp_path / "graph"), SCHEMA, NO_FSYNC, settings=INLINE)
    for number in range(5):
        put(graph, f"p{number}", number)

    clean(graph)

    assert len(rows(graph)) == 5
    (ref,) = graph.snapshot().pinned.manifest.tables.values()
    named = [Point(entry.branch_id, entry.manifest_version) for entry in ref.tail]
    assert len(named) == 5
    assert all(isinstance(stored(graph, point), Manifest) for point in named)
    assert graph.repository.manifests.read_stub_index(named[0].branch_id).rows == (2, 3, 4, 5)
    graph.optimize()
    put(graph, "p9")
    clean(graph)
    assert all(isinstance(stored(graph, point), Stub) for point in named[:-1])
    assert len(rows(graph)) == 6
    assert_sound(graph)


def test_the_tables_of_a_manifest_that_only_a_tail_names_are_not_kept_for_that(tmp_path: Path) -> None:
    graph = omnigraph.init(str(tmp_path / "graph"), SCHEMA, NO_FSYNC, settings=INLINE)
    put(graph, "ada", 1)
    graph.optimize()
    put(graph, "ada", 2)  # on the table as it is now; its rows are folded on main, not on the branch
    graph.branches.create("agent")
    for number in range(3):
        put(graph, "ada", 10 + number)
        graph.optimize()

    clean(graph)

    assert_sound(graph)
    assert [row["p.age"] for row in rows(graph, branch="agent")] == [2]
    assert [row["p.age"] for row in rows(graph)] == [12]


# Commits that share a manifest


@pytest.fixture
def grouped(tmp_path: Path) -> tuple[Graph, list[str]]:
    """A graph whose newest manifest has several commits, oldest first."""
    graph = omnigraph.init(str(tmp_path / "graph"), SCHEMA, NO_FSYNC, settings=INLINE)
    put(graph, "first")
    for attempt in range(50):
        with ThreadPoolExecutor(12) as pool:
            list(pool.map(lambda number: put(graph, f"p{attempt}-{number}"), range(12)))  # noqa: B023
        head = graph.snapshot().pinned.manifest
        if len(head.commits) > 2:
            return graph, [commit.id for commit in head.commits]
    raise AssertionError("no two writes ever shared a manifest")


def test_the_first_commits_of_a_group_count_among_those_that_are_kept(grouped: tuple[Graph, list[str]]) -> None:
    graph, ids = grouped
    expected = {commit: rows(graph, at=commit) for commit in ids}
    clean(graph, keep=len(ids))
    assert {commit: rows(graph, at=commit) for commit in ids} == expected
    assert_sound(graph)


def test_a_tag_keeps_a_commit_in_the_middle_of_a_group(grouped: tuple[Graph, list[str]]) -> None:
    graph, ids = grouped
    expected = rows(graph, at=ids[1])
    graph.tags.create("middle", ids[1])
    for number in range(4):
        put(graph, "first", number)
        graph.optimize()
    clean(graph)
    assert rows(graph, at="middle") == expected
    assert_sound(graph)


# Branches


def test_a_branch_keeps_its_own_history_while_main_is_cleaned(graph: Graph) -> None:
    graph.branches.create("agent")
    put(graph, "new", 1, branch="agent")
    expected = rows(graph, branch="agent")
    for number in range(5):
        put(graph, "p0", 100 + number)

    clean(graph)

    again = fresh(graph)
    assert rows(again, branch="agent") == expected
    assert_sound(again)
    assert again.branches.merge("agent").commit is not None
    assert {row["p.slug"] for row in rows(again)} == {"p0", "p1", "p2", "p3", "new"}


def test_the_merge_base_of_living_branches_is_kept(graph: Graph) -> None:
    """What both sides changed alike since then, and what only one did, can be distinguished only from there."""
    graph.branches.create("agent")
    put(graph, "p1", 500)
    graph.mutate('query q() { update Person set { age: 600 } where slug = "p2" }', branch="agent")
    for number in range(4):
        put(graph, "p3", 700 + number)
    clean(graph)
    clean(graph)

    merged = fresh(graph).branches.merge("agent")

    assert merged.commit is not None
    ages = {row["p.slug"]: row["p.age"] for row in rows(graph)}
    assert (ages["p1"], ages["p2"], ages["p3"]) == (500, 600, 703)


def test_a_deleted_branch_leaves_nothing_but_stubs(graph: Graph) -> None:
    clean(graph)
    before = files(graph)
    graph.branches.create("agent")
    branch_id = graph.repository.branches.find("agent").head.branch_id
    for number in range(4):
        put(graph, f"b{number}", branch="agent")
    graph.optimize("agent")
    old = graph.commits("agent")[0].id
    graph.branches.delete("agent")
    assert rows(graph, at=old), "readable until a cleanup"

    clean(graph)

    assert files(graph) <= before
    entries = [stored(graph, Point(branch_id, number)) for number in range(1, 5)]
    assert all(isinstance(entry, Stub) for entry in entries)
    with pytest.raises(CommitNotFound, match="cleanup has expired it"):
        rows(graph, at=old)
    assert clean(graph).manifests == 0


def test_a_tag_keeps_a_commit_of_a_deleted_branch_and_a_branch_can_be_forked_from_it(graph: Graph) -> None:
    graph.branches.create("agent")
    put(graph, "b", 1, branch="agent")
    graph.tags.create("of-agent", branch="agent")
    graph.branches.delete("agent")

    clean(graph)

    assert "b" in {row["p.slug"] for row in rows(graph, at="of-agent")}
    again = fresh(graph)
    again.branches.create("back", "of-agent")
    again.tags.delete("of-agent")
    clean(again)
    assert "b" in {row["p.slug"] for row in rows(graph, branch="back")}
    assert_sound(graph)


def test_fences_forget_branches_that_are_dead_and_needed_by_no_state(graph: Graph) -> None:
    graph.branches.create("agent")
    put(graph, "b", 1, branch="agent")
    dead = graph.repository.branches.find("agent").head.branch_id
    graph.branches.create("child", "agent")
    graph.branches.merge("agent", delete_branch=True)
    assert dead in graph.snapshot().pinned.manifest.ancestry

    clean(graph)  # the child was forked from it
    assert dead in fresh(graph).snapshot("child").pinned.manifest.ancestry
    graph.branches.delete("child")
    put(graph, "p0", 5)
    graph.optimize()
    put(graph, "p0", 6)
    clean(graph)

    assert dead not in fresh(graph).snapshot().pinned.manifest.ancestry
    assert_sound(graph)


# What is kept


def test_files_younger_than_the_floor_are_kept(graph: Graph) -> None:
    before = files(graph)
    done = clean(graph, floor=timedelta(hours=1))
    assert done.files == 0
    assert done.young_files == len(before)
    assert files(graph) == before


def test_files_that_were_never_published_are_deleted_when_they_are_old_enough(graph: Graph) -> None:
    clean(graph)
    txn = graph.repository.open_txn()
    from omnigraph.manifest.commit.plan import Append, ConflictPolicy, DataChange, PublishPlan
    from omnigraph.write.stage import Stager

    rows_of = graph.snapshot().to_arrow("node:Person").slice(0, 0)
    plan = PublishPlan("lost", ConflictPolicy.CONSTRUCTIVE, DataChange("load", (Append("node:Person", rows_of),)))
    before = files(graph)
    graph.repository.tables.create("z" * 13, rows_of)
    Stager(graph.repository.tables, graph.repository.runtime.ids).stage(txn, plan)
    assert files(graph) > before

    lost = files(graph) - before

    assert clean(graph).files == len(lost)

    assert files(graph) == before


def test_an_index_stays_with_the_versions_that_use_it(tmp_path: Path, settings: Settings) -> None:
    schema = "node Note { slug: String @key text: String @index }"
    graph = omnigraph.init(str(tmp_path / "graph"), schema, NO_FSYNC, settings=settings)
    for number in range(4):
        graph.mutate(
            'query n($n: String) { insert Note { slug: $n, text: "of some kind" } }', params={"n": str(number)}
        )
        graph.optimize()
        clean(graph)

    found = fresh(graph).query(
        'query q() { match { $n: Note search($n.text, "kind") } return { $n.slug } order { $n.slug } }'
    )

    assert [row["n.slug"] for row in found.rows] == ["0", "1", "2", "3"]
    stored_at = graph.snapshot().pinned.manifest.tables["node:Note"].stored
    assert stored_at is not None
    assert len(graph.repository.tables.open(stored_at).describe_indices()) >= 2


def test_a_saved_adjacency_stays_exactly_while_its_table_version_does(graph: Graph) -> None:
    graph.mutate('query e() { insert Knows { from: "p0", to: "p1" } }')
    graph.optimize()
    put(graph, "p9")
    clean(graph)
    saved = {name for name in files(graph) if "/_adjacency/" in name}
    assert len(saved) == 1
    graph.mutate('query e() { insert Knows { from: "p1", to: "p2" } }')
    graph.optimize()
    put(graph, "p9", 1)
    clean(graph)
    now = {name for name in files(graph) if "/_adjacency/" in name}
    assert len(now) == 1
    assert now != saved


# Runs


def test_a_second_run_finds_nothing_more_and_writes_nothing(graph: Graph) -> None:
    clean(graph)
    head = fresh(graph).snapshot().manifest_version

    again = clean(graph)

    assert (again.files, again.manifests) == (0, 0)
    assert fresh(graph).snapshot().manifest_version == head


def test_writing_and_optimizing_go_on_after_a_cleanup(graph: Graph) -> None:
    clean(graph)
    again = fresh(graph)
    put(again, "p0", 7)
    again.optimize()
    assert again.query(ALL).rows[0] == {"p.slug": "p0", "p.age": 7}
    assert_sound(graph)


def test_a_version_that_is_missing_stops_the_run_and_nothing_is_deleted(graph: Graph) -> None:
    stored_at = graph.snapshot().pinned.manifest.tables["node:Person"].stored
    assert stored_at is not None
    root = graph.repository.location.path
    (root / f"tables/{stored_at.table_id}/_versions/d{stored_at.table_version}.manifest").unlink()
    before = files(graph)

    with pytest.raises(Damaged):
        clean(fresh(graph))

    assert files(graph) == before


def test_a_manifest_that_is_missing_stops_the_run_and_nothing_is_deleted(graph: Graph) -> None:
    from omnigraph.manifest.model.paths import manifest_key

    head = graph.snapshot().pinned.manifest
    (graph.repository.location.path / manifest_key(Point(head.branch_id, head.manifest_version - 2))).unlink()
    before = files(graph)

    with pytest.raises(Damaged, match=f"manifest {head.manifest_version - 2} "):
        clean(fresh(graph), keep=4)

    assert files(graph) == before


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format": 1, "below": 3}', b'{"format": 9}'])
def test_a_note_on_stubs_that_can_not_be_read_stops_the_run(graph: Graph, content: bytes) -> None:
    from omnigraph.manifest.model.paths import stubs_key

    clean(graph, keep=3)
    put(graph, "p0", 50)
    (graph.repository.location.path / stubs_key(graph.repository.stamp.main_id)).write_bytes(content)
    before = files(graph)

    with pytest.raises((Damaged, UnsupportedFormat), match="the note on stubs of"):
        clean(fresh(graph))

    assert files(graph) == before


def test_a_stalled_cleanup_does_not_take_back_what_another_has_noted_on_stubs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state that had a tag when the first one planned is left for its rows alone by the second one."""
    graph = omnigraph.init(str(tmp_path / "graph"), SCHEMA, NO_FSYNC, settings=INLINE)
    put(graph, "p0")
    graph.optimize()  # a stored table, of which only this state's version is to go
    put(graph, "p1")
    tagged = graph.snapshot().commit_id
    graph.tags.create("then", tagged)
    put(graph, "p2")
    put(graph, "p3")
    slow = fresh(graph)
    manifests = slow.repository.manifests
    note, point = manifests.update_stub_index, parse_commit_id(tagged)

    def late(branch_id: str, stubbed: StubIndex) -> None:
        monkeypatch.undo()
        assert point.manifest_version in stubbed.states
        graph.tags.delete("then")
        clean(fresh(graph))
        assert manifests.read_stub_index(branch_id).rows != ()
        note(branch_id, stubbed)

    monkeypatch.setattr(manifests, "update_stub_index", late)
    clean(slow)

    now = manifests.read_stub_index(point.branch_id)
    assert point.manifest_version in now.rows
    assert point.manifest_version not in now.states
    manifest = stored(graph, point)
    assert isinstance(manifest, Manifest)
    assert not fresh(graph).repository.manifests.is_state(manifest)
    with pytest.raises(CommitNotFound):
        fresh(graph).snapshot(at=tagged)


NOTES = [
    (StubIndex(), StubIndex(5, (2,), (3,)), StubIndex(5, (2,), (3,))),
    (StubIndex(5, (2,), (3,)), StubIndex(9, (), (2, 6)), StubIndex(9, (), (2, 6))),
    (StubIndex(5, (2, 4)), StubIndex(5, (4,), (2,)), StubIndex(5, (4,), (2,))),
    (StubIndex(5, (2,)), StubIndex(9, (2, 7), ()), StubIndex(9, (2, 7), ())),
    (StubIndex(5, (), (2,)), StubIndex(5), StubIndex(5)),
]


@pytest.mark.parametrize(("one", "other", "both"), NOTES)
def test_two_stub_indexes_merge_to_the_later_state_of_each_manifest(
    one: StubIndex, other: StubIndex, both: StubIndex
) -> None:
    assert one.merge(other) == other.merge(one) == both
    assert both.merge(one) == both


def test_without_the_stub_index_all_manifests_are_read_again(graph: Graph) -> None:
    from omnigraph.manifest.model.paths import stubs_key

    graph.tags.create("early", graph.commits(limit=None)[6].id)
    clean(graph)
    path = graph.repository.location.path / stubs_key(graph.repository.stamp.main_id)
    noted = path.read_bytes()
    path.unlink()

    assert clean(fresh(graph)).manifests == 0

    assert path.read_bytes() == noted


def test_a_graph_that_may_only_be_read_can_be_looked_at_and_not_cleaned(graph: Graph) -> None:
    reader = omnigraph.open(graph.uri, NO_FSYNC, read_only=True)
    assert clean(reader, dry_run=True).manifests > 0
    with pytest.raises(ReadOnly):
        clean(reader)


def test_leftovers_of_a_job_that_died_long_ago_are_deleted(graph: Graph) -> None:
    folder = graph.repository.location.path / "__recovery" / "load-old" / "x-1"
    folder.mkdir(parents=True)
    (folder / "0000000.json").write_text("{}")
    assert clean(graph).files > 0
    assert not (folder / "0000000.json").exists()


@pytest.mark.s3
def test_on_s3_the_same_is_kept(s3: S3Location) -> None:
    graph = made_at(s3.uri, STAGED, s3.options)
    graph.branches.create("agent")
    expected = rows(graph)
    said = clean(graph, dry_run=True)

    done = clean(graph)

    assert (done.files, done.manifests) == (said.files, said.manifests)
    assert done.files > 0
    assert rows(graph) == rows(graph, branch="agent") == expected
    assert_sound(graph)
    assert clean(graph).files == 0


# What may be asked for


@pytest.mark.parametrize("text", ["", "7", "d", "-1d", "7 d", "1.5h", "7days", "1000000000d", "٣d", None, 7])
def test_what_is_no_span_of_time_is_refused(text: Any) -> None:
    with pytest.raises(BadRequest, match=r"Invalid span of time .*: use a number and s, m, h, d or w, such as 7d\."):
        parse_span(text)


def test_spans_are_read() -> None:
    assert [parse_span(text) for text in ("0s", "30m", "12h", "7d", "2w")] == [
        timedelta(),
        timedelta(minutes=30),
        timedelta(hours=12),
        timedelta(days=7),
        timedelta(weeks=2),
    ]
    with pytest.raises(BadRequest, match="negative"):
        parse_span(timedelta(days=-1))


def test_a_span_longer_than_time_keeps_everything(graph: Graph) -> None:
    head = graph.snapshot().pinned.manifest
    long = Retention(timedelta(weeks=999_999 // 7), 1)
    assert oldest_retained(graph.repository.manifests, head, long, datetime(2026, 1, 1, tzinfo=UTC)) == 1


@pytest.mark.parametrize("keep", [0, -1, True, 1.5, "3"])
def test_to_keep_nothing_or_nonsense_is_refused(graph: Graph, keep: Any) -> None:
    with pytest.raises(BadRequest, match="keep must be"):
        graph.cleanup(keep=keep)


def test_a_copy_of_the_directory_is_as_clean(graph: Graph, tmp_path: Path) -> None:
    """Nothing but what is on the store decides."""
    shutil.copytree(graph.repository.location.path, tmp_path / "copy")
    done, copied = clean(graph), clean(omnigraph.open(str(tmp_path / "copy"), NO_FSYNC))
    assert (done.files, done.manifests) == (copied.files, copied.manifests)


def test_temporary_files_of_a_killed_put_are_deleted_when_they_are_old(tmp_path: Path) -> None:
    graph = omnigraph.init(tmp_path, "node N { slug: String @key }", {"fsync": "false"})
    folder = tmp_path / "__recovery"
    folder.mkdir(exist_ok=True)
    old, young = folder / ".tmp-1-a", folder / ".tmp-1-b"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))

    graph.cleanup(dry_run=True)
    assert old.exists()
    graph.cleanup(dry_run=False)
    assert not old.exists()
    assert young.exists()
