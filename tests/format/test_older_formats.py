"""A graph that an older release wrote reads exactly as recorded, and everything can be done to it.

`make_graph.py` made the archives in `data/`. Each JSON file beside an archive holds what that release read.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import S3Store

import omnigraph
from omnigraph.errors import CommitNotFound, ConstraintViolation, OmnigraphError, PreconditionFailed
from omnigraph.graph.graph import Graph
from omnigraph.manifest.settings import Settings
from support.cleanup import assert_sound, clean
from support.s3 import S3Location

from .make_graph import Rows, rows_of

DATA = Path(__file__).resolve().parent / "data"
NO_FSYNC = {"fsync": "false"}
QUIET = Settings(maintenance=0)
ARCHIVES = sorted(path.name.removesuffix(".tar.xz") for path in DATA.glob("*.tar.xz"))


@dataclass(frozen=True)
class Stored:
    """An unpacked graph of an older release, and what that release said about it."""

    root: Path
    expected: dict[str, Any]

    def open(self) -> Graph:
        return omnigraph.open(self.root, NO_FSYNC, settings=QUIET)

    @property
    def branches(self) -> dict[str, str]:
        return dict(self.expected["branches"])

    @property
    def states(self) -> dict[str, Rows]:
        return dict(self.expected["states"])

    def head(self, branch: str = "main") -> Rows:
        return self.states[self.branches[branch]]


@pytest.fixture(params=ARCHIVES)
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Stored:
    with tarfile.open(DATA / f"{request.param}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    for path in tmp_path.rglob("*"):
        os.utime(path)  # the store's clock decides how old a job is: as on a store to which the graph was just copied
    return Stored(tmp_path / "graph", json.loads((DATA / f"{request.param}.json").read_text()))


def assert_states(graph: Graph, stored: Stored) -> None:
    for commit_id, rows in stored.states.items():
        assert rows_of(graph, at=commit_id) == rows, commit_id


def assert_heads(graph: Graph, stored: Stored, *but: str) -> None:
    for branch in stored.branches.keys() - {*but}:
        assert rows_of(graph, branch) == stored.head(branch), branch


def with_person(rows: Rows, slug: str, **values: Any) -> Rows:
    """A state with one more person, all of whose other properties are null or the default."""
    nothing: dict[str, Any] = dict.fromkeys(rows["Person"][0])
    default = {"team": "core"} if "team" in nothing else {}
    added = {**nothing, **default, "id": slug, "slug": slug, **values}
    return {**rows, "Person": sorted([*rows["Person"], added], key=lambda row: str(row["id"]))}


def insert(graph: Graph, slug: str, branch: str = "main", **options: Any) -> Any:
    return graph.mutate(f'query q() {{ insert Person {{ slug: "{slug}" }} }}', branch=branch, **options)


def test_there_is_an_archive_of_format_1() -> None:
    assert "format-1" in ARCHIVES


# Reading


def test_every_branch_reads_as_recorded(stored: Stored) -> None:
    graph = stored.open()

    assert sorted(graph.branches.list()) == sorted(stored.branches)
    assert {branch: graph.snapshot(branch).commit_id for branch in stored.branches} == stored.branches
    assert_heads(graph, stored)


def test_every_retained_commit_reads_as_recorded(stored: Stored) -> None:
    assert_states(stored.open(), stored)


def test_the_commits_of_a_group_are_separate_states(stored: Stored) -> None:
    group = stored.expected["group"]
    people = [{row["slug"] for row in rows_of(stored.open(), at=commit_id)["Person"]} for commit_id in group]

    assert [len(after - before) for before, after in pairwise(people)] == [1] * (len(group) - 1)


def test_the_log_of_every_branch_is_as_recorded(stored: Stored) -> None:
    graph = stored.open()
    for branch, recorded in stored.expected["log"].items():
        commits = graph.commits(branch, limit=None)
        found = [[one.id, one.kind, one.parent, one.merged_parent, one.actor, one.txn_id] for one in commits]
        assert found == recorded, branch


def test_an_expired_commit_is_in_the_log_and_its_state_is_refused(stored: Stored) -> None:
    graph = stored.open()

    for commit_id in stored.expected["expired"]:
        assert graph.commit(commit_id).id == commit_id
        with pytest.raises(CommitNotFound):
            graph.snapshot(at=commit_id)


def test_tags_name_the_commits_that_they_named(stored: Stored) -> None:
    graph = stored.open()

    assert {tag.name: tag.commit_id for tag in graph.tags.list()} == stored.expected["tags"]
    for name, commit_id in stored.expected["tags"].items():
        assert rows_of(graph, at=name) == stored.states[commit_id]


def test_a_time_leads_to_the_commit_to_which_it_led(stored: Stored) -> None:
    graph = stored.open()

    assert [[time, graph.snapshot(at=time).commit_id] for time, _ in stored.expected["times"]] == stored.expected[
        "times"
    ]


def test_queries_use_the_stored_indexes_and_return_what_they_returned(stored: Stored) -> None:
    graph = stored.open()

    for name, (text, rows) in stored.expected["queries"].items():
        assert graph.query(text).rows == rows, name


def test_a_feed_continues_at_a_stored_cursor(stored: Stored) -> None:
    page = stored.open().poll_changes(stored.expected["feed"]["cursor"])

    found = [[one.commit.id, one.change.operation, one.change.type_name, one.change.id] for one in page.changes]
    assert found == stored.expected["feed"]["changes"]


@pytest.mark.parametrize("full", [False, True], ids=["samples", "full"])
def test_verify_finds_no_damage(stored: Stored, full: bool) -> None:
    report = stored.open().verify(full=full)

    assert report.ok, report.damage


# Writing


def test_every_branch_takes_writes_and_older_states_stay_as_they_were(stored: Stored) -> None:
    graph = stored.open()
    for branch in stored.branches:
        commit = insert(graph, "new", branch)
        assert graph.commit(commit.id).parent == stored.branches[branch]

    again = stored.open()
    for branch in stored.branches:
        assert rows_of(again, branch) == with_person(stored.head(branch), "new")
    assert_states(again, stored)
    assert_sound(again)


def test_a_staged_write_contains_the_inline_rows_of_the_older_release(stored: Stored) -> None:
    graph = omnigraph.open(stored.root, NO_FSYNC, settings=Settings(maintenance=0, inline_rows=0))
    for branch in stored.branches:
        insert(graph, "staged", branch)

    again = stored.open()
    for branch in stored.branches:
        assert rows_of(again, branch) == with_person(stored.head(branch), "staged")
    assert_states(again, stored)
    assert_sound(again)


def test_constraints_see_the_rows_of_the_older_release(stored: Stored) -> None:
    graph = stored.open()
    refused = [
        'insert Person { slug: "x", email: "in-tail@example.org" }',  # in a tail
        'insert Person { slug: "x", email: "p05@example.org" }',  # in a stored table
        'insert WorksAt { from: "p00", to: "globex" }',
        'insert Knows { from: "p00", to: "p01" }',
        'insert Knows { from: "p00", to: "p13" }',  # it was deleted
    ]

    for statement in refused:
        with pytest.raises(ConstraintViolation):
            graph.mutate(f"query q() {{ {statement} }}")
    for slug in ("in-tail", "p04"):
        assert insert(graph, slug) is None, "a keyed insert of a row that exists changes nothing"
    assert_heads(stored.open(), stored)


def test_a_repeated_key_finds_the_commit_of_the_older_release(stored: Stored) -> None:
    graph = stored.open()
    (known,) = [one[0] for one in stored.expected["log"]["main"] if one[5] == "in-tail-key"]

    again = graph.mutate(
        'query q() { insert Person { slug: "in-tail", email: "in-tail@example.org" } }', txn_id="in-tail-key"
    )

    assert again is not None
    assert again.id == known
    assert_heads(stored.open(), stored)


def test_if_commit_compares_with_the_head_of_the_older_release(stored: Stored) -> None:
    graph = stored.open()
    head = stored.branches["main"]
    before = next(one[2] for one in stored.expected["log"]["main"] if one[0] == head)

    with pytest.raises(PreconditionFailed):
        insert(graph, "new", if_commit=before)

    commit = insert(graph, "new", if_commit=head)
    assert graph.commit(commit.id).parent == head


def test_the_schema_changes_again(stored: Stored) -> None:
    graph = stored.open()
    text = graph.schema.show().replace("note:  String?", "note:  String?\n    size: I32 @default(4)")

    graph.schema.apply(text)

    people = [{**row, "size": 4} for row in stored.head()["Person"]]
    assert rows_of(stored.open()) == {**stored.head(), "Person": people}
    assert_states(stored.open(), stored)
    assert_sound(stored.open())


def test_optimize_changes_how_the_graph_is_stored_and_nothing_else(stored: Stored) -> None:
    graph = stored.open()
    for branch in stored.branches:
        graph.optimize(branch)

    again = stored.open()
    assert_heads(again, stored)
    assert_states(again, stored)
    assert_sound(again)


# Branches


def test_a_branch_is_forked_from_every_retained_state(stored: Stored) -> None:
    graph = stored.open()
    deleted = stored.expected["tags"]["of-deleted"]
    starts = {*stored.branches, *stored.expected["tags"], *stored.states} - {deleted}

    for number, start in enumerate(sorted(starts)):
        graph.branches.create(f"fork-{number}", from_=start)
        commit_id = stored.branches.get(start) or stored.expected["tags"].get(start) or start
        assert rows_of(graph, f"fork-{number}") == stored.states[commit_id], start
    insert(graph, "on-a-fork", "fork-0")
    assert_sound(stored.open())


@pytest.mark.parametrize("branch", ["open", "middle", "reused", "new-schema"])
def test_a_merge_has_the_result_that_the_older_release_gave(stored: Stored, branch: str) -> None:
    graph = stored.open()

    result = graph.branches.merge(branch)

    assert result.outcome == "merged"
    assert rows_of(stored.open()) == stored.expected["merges"][branch]
    assert_heads(stored.open(), stored, "main")
    assert_states(stored.open(), stored)
    assert graph.branches.merge("merged").outcome == "already_up_to_date"


def test_a_row_that_main_deletes_stays_deleted_when_a_fork_from_inside_a_group_is_merged(stored: Stored) -> None:
    """The fork has the first commit of the group, and so the row: `ancestry-positions`."""
    graph = stored.open()
    slug = str(graph.commit(stored.expected["group"][0]).actor)
    assert slug in {row["slug"] for row in stored.head("middle")["Person"]}
    graph.mutate(f'query q() {{ delete Person where slug = "{slug}" }}')

    graph.branches.merge("middle")

    merged = stored.expected["merges"]["middle"]["Person"]
    assert rows_of(stored.open())["Person"] == [row for row in merged if row["slug"] != slug]


def test_a_graph_is_sound_after_a_merge(stored: Stored) -> None:
    graph = stored.open()

    graph.branches.merge("open")
    assert graph.branches.merge("open").outcome == "already_up_to_date"
    assert graph.branches.merge("main", into="open").outcome == "fast_forward"

    assert rows_of(stored.open(), "open") == rows_of(stored.open()) == stored.expected["merges"]["open"]
    assert_sound(stored.open())


def test_a_branch_is_deleted_and_its_name_is_used_again(stored: Stored) -> None:
    graph = stored.open()
    graph.branches.delete("reused")
    graph.branches.create("reused", from_="v1")

    assert rows_of(stored.open(), "reused") == stored.states[stored.expected["tags"]["v1"]]
    assert_heads(stored.open(), stored, "reused")


# Cleanup and recovery


def test_a_cleanup_keeps_every_head_and_tag_and_expires_the_rest(stored: Stored) -> None:
    cleaned = clean(stored.open())

    assert cleaned.manifests > 0
    assert cleaned.jobs == (stored.expected["jobs"]["honoured"], stored.expected["jobs"]["staged"])
    again = stored.open()
    assert_heads(again, stored)
    for commit_id in stored.expected["tags"].values():
        assert rows_of(again, at=commit_id) == stored.states[commit_id]
    assert_sound(again)
    insert(again, "after-the-cleanup")
    assert rows_of(stored.open()) == with_person(stored.head(), "after-the-cleanup")


def test_a_cleanup_after_writes_of_both_releases(stored: Stored) -> None:
    graph = stored.open()
    for branch in stored.branches:
        insert(graph, "new", branch)
        graph.optimize(branch)

    clean(stored.open())

    again = stored.open()
    for branch in stored.branches:
        assert rows_of(again, branch) == with_person(stored.head(branch), "new")
    assert_sound(again)


@pytest.mark.parametrize("before", ["nothing", "cleanup", "write"])
def test_a_job_that_was_staged_completely_is_completed(stored: Stored, before: str) -> None:
    prepare: dict[str, Callable[[Graph], object]] = {
        "nothing": lambda _: None,
        "cleanup": clean,
        "write": lambda graph: insert(graph, "between"),
    }
    prepare[before](stored.open())
    job = stored.expected["jobs"]["staged"]
    assert {one.txn_id for one in stored.open().recover().jobs if one.can_complete} >= {job}

    (ended,) = stored.open().recover(complete=[job]).ended

    expected: Rows = stored.expected["completed"]
    assert (ended.txn_id, ended.outcome) == (job, "completed")
    assert rows_of(stored.open()) == (with_person(expected, "between") if before == "write" else expected)
    assert_sound(stored.open())


def test_a_job_that_a_fence_of_the_older_release_honours_is_completed_or_refused_but_never_damaged(
    stored: Stored,
) -> None:
    """A fence of format 1 names the job and not a start of it, so refusing to complete the job is correct too."""
    job = stored.expected["jobs"]["honoured"]
    try:
        stored.open().recover(complete=[job])
    except OmnigraphError:
        assert rows_of(stored.open()) == stored.head()
    else:
        assert rows_of(stored.open()) == stored.expected["completed_honoured"]
    assert_sound(stored.open())


@pytest.mark.parametrize("name", ["staged", "honoured"])
def test_a_job_is_discarded_and_its_files_are_swept(stored: Stored, name: str) -> None:
    job = stored.expected["jobs"][name]

    (ended,) = stored.open().recover(discard=[job]).ended
    clean(stored.open())

    assert (ended.txn_id, ended.outcome) == (job, "discarded")
    assert job not in {one.txn_id for one in stored.open().recover().jobs}
    assert_heads(stored.open(), stored)
    assert_sound(stored.open())


def test_a_closed_job_is_ended_by_a_cleanup_and_can_be_started_again(stored: Stored, tmp_path: Path) -> None:
    graph = stored.open()
    clean(graph)
    assert "load-closed" not in {job.txn_id for job in graph.recover().jobs}
    given = tmp_path / "closed.jsonl"
    given.write_text('{"type": "Person", "data": {"slug": "started-again"}}\n')

    graph.load(str(given), job_id="closed", engine="local")

    assert rows_of(stored.open()) == with_person(stored.head(), "started-again")
    assert_sound(stored.open())


# On object storage


@pytest.mark.s3
def test_the_same_graph_on_s3(stored: Stored, s3: S3Location) -> None:
    config: Any = {name: value for name, value in s3.options.items() if name.startswith("aws_")}
    bucket = S3Store.from_url(s3.uri, config=config, client_options={"allow_http": True})
    for path in sorted(stored.root.rglob("*")):
        if path.is_file() and path.name != "_hint":
            obstore.put(bucket, str(path.relative_to(stored.root)), path.read_bytes())

    def opened() -> Graph:
        return omnigraph.open(s3.uri, s3.options, settings=QUIET)

    graph = opened()
    assert_heads(graph, stored)
    assert_states(graph, stored)
    assert graph.verify(full=True).ok
    insert(graph, "new", "open")
    graph.branches.create("fork", from_=stored.expected["group"][0])
    graph.branches.merge("reused")
    clean(opened())
    (ended,) = opened().recover(complete=[stored.expected["jobs"]["staged"]]).ended
    assert ended.outcome == "completed"

    again = opened()
    assert rows_of(again, "open") == with_person(stored.head("open"), "new")
    assert rows_of(again, "fork") == stored.states[stored.expected["group"][0]]
    slugs = {row["slug"] for row in rows_of(again)["Person"]}
    assert slugs == {row["slug"] for name in ("merges", "completed") for row in people_of(stored, name)}
    assert again.verify(full=True).ok


def people_of(stored: Stored, name: str) -> list[dict[str, Any]]:
    found = stored.expected[name]
    rows: list[dict[str, Any]] = (found["reused"] if name == "merges" else found)["Person"]
    return rows
