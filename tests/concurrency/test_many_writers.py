"""Twelve processes that write to one branch at once: every commit lands, once, in one line."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from concurrency.workers import workers
from omnigraph.graph import graph as omnigraph
from omnigraph.graph.graph import Graph
from omnigraph.manifest.model.manifest import Commit
from omnigraph.storage.location import parse_location
from omnigraph.storage.objects.object_store import open_store
from support.catalogs import COMPANY, PERSON, ids_of, people
from support.s3 import S3Location

WRITERS = 12
COMMITS = [6, pytest.param(25, marks=pytest.mark.soak)]  # of each: together enough to be folded meanwhile
COMMITS_ON_S3 = 5
SECONDS_MAX = 240.0  # no aim, but an end: who is starved waits for ever


@pytest.mark.parametrize("commits", COMMITS)
def test_on_a_local_disk_all_commits_of_all_writers_land(tmp_path: Path, commits: int) -> None:
    root = str(tmp_path / "graph")
    omnigraph.init(root, people())

    answers, watched = run_writers(root, {}, tmp_path / "done", commits)

    check_all_commits_in_one_line(omnigraph.open(root), answers, commits)
    check_both_tables_at_every_commit(omnigraph.open(root), commits)
    assert watched["sizes"] == sorted(watched["sizes"])


@pytest.mark.s3
def test_on_s3_all_commits_of_all_writers_land(tmp_path: Path, s3: S3Location) -> None:
    omnigraph.init(s3.uri, people(), s3.options)

    answers, watched = run_writers(s3.uri, s3.options, tmp_path / "done", COMMITS_ON_S3)

    graph = omnigraph.open(s3.uri, s3.options)
    check_all_commits_in_one_line(graph, answers, COMMITS_ON_S3)
    persons, companies = (ids_of(graph.snapshot().to_arrow(table)) for table in (PERSON, COMPANY))
    assert persons == companies == all_rows(COMMITS_ON_S3)
    copy = download(s3, tmp_path / "copy")  # hundreds of whole tables are read faster from a disk
    check_both_tables_at_every_commit(omnigraph.open(copy), COMMITS_ON_S3)
    assert watched["sizes"] == sorted(watched["sizes"])


def run_writers(uri: str, options: Mapping[str, str], done: Path, commits: int) -> tuple[list[Any], Any]:
    """All at once, and one process that reads meanwhile; odd writers do not promise fresh ids."""
    with workers(WRITERS + 1, uri, options) as (reader, *writers):
        reader.ask("watch", path=str(done))
        started = time.monotonic()
        for number, writer in enumerate(writers):
            writer.ask("insert_many", name=f"w{number:02d}", commits=commits, fresh_ids=number % 2 == 0)
        answers = [writer.answer() for writer in writers]
        seconds = time.monotonic() - started
        done.touch()
        watched = reader.answer()
    print(figures(answers, watched, seconds), file=sys.stderr)
    assert seconds < SECONDS_MAX
    assert watched["looks"] > 3
    return answers, watched


def figures(answers: list[Any], watched: Any, seconds: float) -> str:
    losses = [sum(answer["losses"]) for answer in answers]
    slowest = [max(answer["seconds"]) for answer in answers]
    finished = [answer["total_s"] for answer in answers]
    commits = sum(len(answer["commits"]) for answer in answers)
    return (
        f"\n{commits} commits of {WRITERS} processes in {seconds:.1f} s, the first one done after "
        f"{min(finished):.1f} s; lost races by process {sorted(losses)}; slowest commit of each process "
        f"{min(slowest):.1f} to {max(slowest):.1f} s, median {statistics.median(slowest):.1f} s; "
        f"{watched['looks']} looks of the reader"
    )


def check_all_commits_in_one_line(graph: Graph, answers: list[Any], commits: int) -> None:
    history = graph.commits(limit=None)[::-1]
    reported = [commit for answer in answers for commit in answer["commits"]]

    assert len(history) == WRITERS * commits + 1
    assert history[0].kind == "init"
    assert sorted(reported) == sorted(commit.id for commit in history[1:])
    assert [commit.parent for commit in history] == [None, *(commit.id for commit in history[:-1])]
    assert len({commit.txn_id for commit in history}) == len(history)
    everything = graph.commits(limit=None, maintenance=True)[::-1]  # those who lost too often asked for a turn
    assert {commit.kind for commit in everything} <= {"init", "mutation", "turn", "fold", "optimize"}
    assert [manifest_number(commit) for commit in everything] == list(range(1, graph.snapshot().manifest_version + 1))
    for number, answer in enumerate(answers):
        of_this_writer = [commit.id for commit in history if commit.actor == f"w{number:02d}"]
        assert of_this_writer == answer["commits"], "a writer's commits are in the order in which it made them"


def check_both_tables_at_every_commit(graph: Graph, commits: int) -> None:
    """Each commit added its row to both tables, and to nothing else."""
    rows: list[str] = []
    for commit in graph.commits(limit=None)[::-1]:
        snapshot = graph.snapshot(at=commit.id)
        persons = ids_of(snapshot.to_arrow(PERSON, columns=["id"]))
        companies = ids_of(snapshot.to_arrow(COMPANY, columns=["id"]))
        assert persons == companies, commit.id
        assert [entry.rows for entry in snapshot.types[:2]] == [len(persons)] * 2
        new = set(persons) - set(rows)
        assert len(persons) == len(rows) + len(new), "none is lost"
        assert {row.partition("-")[0] for row in new} == ({commit.actor} if commit.kind != "init" else set())
        rows = persons
    assert rows == all_rows(commits)


def all_rows(commits: int) -> list[str]:
    return [f"w{writer:02d}-{number:02d}" for writer in range(WRITERS) for number in range(commits)]


def manifest_number(commit: Commit) -> int:
    return int(commit.id.partition(".")[2])


def download(s3: S3Location, to: Path) -> Path:
    """The same objects as files."""
    store = open_store(parse_location(s3.uri, s3.options))
    for listed in store.list(""):
        stored = store.get(listed.key)
        assert stored is not None
        (to / listed.key).parent.mkdir(parents=True, exist_ok=True)
        (to / listed.key).write_bytes(stored.data)
    return to
