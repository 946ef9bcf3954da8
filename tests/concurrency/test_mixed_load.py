"""A day's work, compressed: one-row commits of several processes with automatic maintenance, and readers all the while.

No row is lost and no reader fails; what a reader has to take together stays bounded, and a commit or a lookup costs at
the end what it cost in the beginning.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import omnigraph
from concurrency import mixed_load
from omnigraph.graph.graph import Graph
from omnigraph.manifest.settings import HARD_LIMIT
from support.proxy import Proxy
from support.s3 import S3Location
from support.soak import SoakReport

PROGRAM = Path(mixed_load.__file__)
PROCESSES, READERS = 4, 1
SOAK_COMMITS, SOAK_WRITERS = 20_000, 4  # writers of a process: they share puts, and race with those of the others
FRAGMENTS_MAX = 64  # of one table, at any time
LOOKUP = "query q($s: String) { match { $e: Event { slug: $s } } return { $e.text } }"


class Costs(NamedTuple):
    """Requests of a warm process, each the least of some tries: another process may commit or fold meanwhile."""

    insert: int
    lookup: int


@pytest.mark.s3
def test_a_short_day(tmp_path: Path, s3: S3Location) -> None:
    settings = {"OMNIGRAPH_TAIL_MANIFESTS": "8", "OMNIGRAPH_TAILS_MANIFESTS": "24"}
    run_a_day(s3, tmp_path, writers=1, commits=30, settings=settings)


@pytest.mark.s3
@pytest.mark.soak
def test_a_day_of_20_000_commits(tmp_path: Path, s3: S3Location, soak_report: SoakReport) -> None:
    commits = SOAK_COMMITS // (PROCESSES * SOAK_WRITERS)
    for line in run_a_day(s3, tmp_path, writers=SOAK_WRITERS, commits=commits, settings={}):
        soak_report.line(f"- {line}")


def run_a_day(s3: S3Location, folder: Path, *, writers: int, commits: int, settings: dict[str, str]) -> Iterator[str]:
    """`writers` in each process, each with so many commits."""
    graph = omnigraph.init(s3.uri, mixed_load.SCHEMA, s3.options)
    names = [[f"w{process}{'abcdefgh'[writer]}" for writer in range(writers)] for process in range(PROCESSES)]
    for name in chain.from_iterable(names):
        graph.mutate("query q($w: String) { insert Writer { slug: $w, last: -1 } }", params={"w": name})
    graph.mutate(mixed_load.EVENT, params={"s": "first", "w": "nobody", "n": 0, "t": "x"})
    graph.optimize()
    before = costs(s3, "before")

    started = time.monotonic()
    answers, watched, most = work(s3, folder, names, commits, settings)
    seconds = time.monotonic() - started

    mixed_load.look(omnigraph.open(s3.uri, s3.options), {name: answer["events"] for name, answer in answers.items()})
    after = costs(s3, "after")
    assert after.insert <= before.insert, (before, after)
    assert after.lookup <= before.lookup + 2, (before, after)  # an index of two segments is asked twice
    limit = int(settings.get("OMNIGRAPH_TAILS_MANIFESTS", 128))
    assert most["manifests"] <= HARD_LIMIT * limit + PROCESSES  # each of them may have looked just before the limit
    assert most["fragments"] <= FRAGMENTS_MAX
    report = omnigraph.open(s3.uri, s3.options, read_only=True).verify()
    assert report.ok, report
    total = PROCESSES * writers * commits
    return iter(
        [
            f"{total} one-row commits of {PROCESSES} processes with {writers} writers each in {seconds:.0f} s "
            f"({total / seconds:.0f} a second), "
            f"slowest {max(one['slowest_s'] for one in answers.values()):.1f} s, "
            f"median {max(one['median_s'] for one in answers.values()) * 1000:.0f} ms",
            f"{watched['looks']} looks of the reader, each at every row",
            f"at most {most['manifests']} manifests in all tails, {most['fragments']} fragments of a table",
            f"requests before and after: insert {before.insert} and {after.insert}, lookup {before.lookup} and "
            f"{after.lookup}",
        ]
    )


def work(
    s3: S3Location, folder: Path, names: list[list[str]], commits: int, settings: dict[str, str]
) -> tuple[dict[str, Any], Any, dict[str, int]]:
    """All processes at once; looks now and then how much lies in tails and fragments."""
    started = [begin("write", s3, ",".join(together), commits, folder, settings) for together in names]
    readers = [begin("read", s3, f"r{number}", 0, folder, settings) for number in range(READERS)]
    most = {"manifests": 0, "fragments": 0}
    watcher = omnigraph.open(s3.uri, s3.options, read_only=True)
    while any(process.poll() is None for process in started):
        most = {key: max(count, most[key]) for key, count in extent(watcher).items()}
        time.sleep(0.2)
    answers = {name: answer for process in started for name, answer in ended(process).items()}
    (folder / "done").touch()
    watched = [ended(process) for process in readers]
    return answers, watched[0], most


def begin(
    verb: str, s3: S3Location, name: str, commits: int, folder: Path, settings: dict[str, str]
) -> subprocess.Popen[str]:
    command = [sys.executable, str(PROGRAM), verb, s3.uri, json.dumps(s3.options), name, str(commits), str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | settings)


def ended(process: subprocess.Popen[str]) -> Any:
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0, "a process failed; its own words are on stderr"
    return json.loads(out)


def extent(graph: Graph) -> dict[str, int]:
    """How many manifests and fragments a reader of the newest state has to take together."""
    refs = graph.snapshot().pinned.manifest.tables.values()
    manifests = {(entry.branch_id, entry.manifest_version) for ref in refs for entry in ref.tail}
    stored = [graph.repository.tables.open(ref.stored) for ref in refs if ref.stored is not None]
    return {"manifests": len(manifests), "fragments": max((len(one.get_fragments()) for one in stored), default=0)}


def costs(s3: S3Location, name: str) -> Costs:
    """What a one-row commit with a key, and a lookup by key, ask of the store."""
    with Proxy(s3.endpoint) as proxy:
        place = s3.via(proxy.endpoint)
        graph = omnigraph.open(place.uri, place.options, settings=omnigraph.Settings(maintenance=0))
        graph.optimize()
        inserts, lookups = [], []
        for number in range(4):
            params = {"s": f"{name}-{number}", "w": name, "n": number, "t": "x"}
            with proxy.recording() as log:
                graph.mutate(mixed_load.EVENT, params=params)
            inserts.append(len(log.requests))
            with proxy.recording() as log:
                graph.query(LOOKUP, params={"s": "first"})
            lookups.append(len(log.requests))
    return Costs(min(inserts), min(lookups))
