"""A process killed at any request leaves the graph exactly before or exactly after what it did.

The next open needs no repair: it issues the requests that it always issues, and finds one of the two states. The loops
cut a client off after each of its requests in turn, which is all of a kill that the store can see; then a few
processes are really killed.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pytest

import omnigraph
from omnigraph.errors import NotAGraph, OmnigraphError, OutcomeUnknown
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import Append, Delete, Upsert
from omnigraph.manifest.commit.publish import PublishPolicy
from omnigraph.manifest.repository import init_repository
from omnigraph.schema.catalog import Schema
from support.catalogs import (
    COMPANY,
    KNOWS,
    PERSON,
    WORKS_AT,
    company_rows,
    ids_of,
    knows_rows,
    people,
    person_rows,
    works_at_rows,
)
from support.clients import impatient
from support.proxy import Hang, Log, Matcher, Proxy, creates, puts
from support.s3 import S3Location

MANIFESTS, REFS, STAMP, SCHEMA = "/__manifest/", "/__refs/", "/_omnigraph.json", "/__schema/"
REQUESTS_MAX = 60  # more than any operation here makes: a loop that gets there would never end
START_S = 60.0  # for a process to start and come to its point
TABLES = (PERSON, COMPANY, KNOWS, WORKS_AT)


# What there is to see


@dataclass(frozen=True)
class State:
    """All that a reader can tell of a graph."""

    rows: dict[str, list[str]]  # the ids in "branch table"
    history: dict[str, list[str]]  # the commit ids of every branch, newest first

    @property
    def branches(self) -> list[str]:
        return list(self.history)


def state_of(s3: S3Location) -> State:
    """As somebody sees it who has only now heard of the graph."""
    graph = reopened(s3)
    names = graph.branches.list()
    return State(
        {f"{name} {table}": ids_of(graph.snapshot(name).to_arrow(table)) for name in names for table in TABLES},
        {name: [commit.id for commit in graph.commits(name, limit=None)] for name in names},
    )


class Step(NamedTuple):
    """The difference between two states; none at all is `Step()`."""

    commits: int = 0
    tables: int = 0
    branches: int = 0


def step(before: State, after: State) -> Step:
    common = before.history.keys() & after.history.keys()
    for name in common:
        kept = len(before.history[name])
        assert after.history[name][-kept:] == before.history[name], "a commit is gone"
    return Step(
        sum(len(after.history[name]) - len(before.history[name]) for name in common),
        sum(after.rows[table] != rows for table, rows in before.rows.items() if table in after.rows),
        len(before.history.keys() ^ after.history.keys()),
    )


def reopened(location: S3Location) -> Graph:
    return omnigraph.open(location.uri, location.options)


def opening(proxy: Proxy, place: S3Location) -> list[str]:
    """The requests of opening the graph, in order."""
    with proxy.recording() as log:
        reopened(place)
    return [request.method for request in log]


# What is interrupted


def add_to_one_table(graph: Graph, name: str) -> None:
    graph.write([Append(PERSON, person_rows(name))])


def add_the_first_rows_of_a_type(graph: Graph, name: str) -> None:
    graph.write([Append(WORKS_AT, works_at_rows((name, name)))])


def add_to_three_tables(graph: Graph, name: str) -> None:
    graph.write(
        [
            Append(PERSON, person_rows(name)),
            Append(COMPANY, company_rows(name)),
            Append(KNOWS, knows_rows((name, name))),
        ]
    )


def change_three_tables(graph: Graph, name: str) -> None:
    """Replace rows, remove some and add some, at once."""
    graph.write(
        [
            Upsert(PERSON, person_rows("first", name, age=7)),
            Delete(COMPANY, ("first",)),
            Append(KNOWS, knows_rows((name, name))),
        ]
    )


def create_branch(graph: Graph, name: str) -> None:
    graph.branches.create(name)


def create_branch_again(graph: Graph, name: str) -> None:
    """With a name that was used before."""
    graph.branches.create("reborn")


def delete_branch(graph: Graph, name: str) -> None:
    graph.branches.delete("doomed")


def nothing(graph: Graph) -> None:
    """To be done before the operation can be tried again."""


Operation = Callable[[Graph, str], None]
OPERATIONS: dict[Operation, tuple[Step, Callable[[Graph], object]]] = {
    add_to_one_table: (Step(commits=1, tables=1), nothing),
    add_the_first_rows_of_a_type: (Step(commits=1, tables=1), nothing),
    add_to_three_tables: (Step(commits=1, tables=3), nothing),
    change_three_tables: (
        Step(commits=1, tables=3),
        lambda graph: graph.write([Upsert(COMPANY, company_rows("first"))]),
    ),
    create_branch: (Step(branches=1), nothing),
    create_branch_again: (Step(branches=1), lambda graph: graph.branches.delete("reborn")),
    delete_branch: (Step(branches=1), lambda graph: graph.branches.create("doomed")),
}


@pytest.fixture
def rows() -> str:
    return "512"


@pytest.fixture
def place(s3: S3Location, s3_proxied: S3Location, rows: str, monkeypatch: pytest.MonkeyPatch) -> S3Location:
    """A graph with rows in three tables and some branches, reached through the proxy.

    `rows`: how many of a commit ride in its manifest, for this process and those that it starts; 0 stages all.
    """
    monkeypatch.setenv("OMNIGRAPH_INLINE_ROWS", rows)
    graph = omnigraph.init(s3.uri, people(), s3.options)
    for name in ("first", "second"):
        add_to_three_tables(graph, name)
    for name in ("doomed", "reborn"):
        graph.branches.create(name)
    graph.branches.delete("reborn")
    return s3_proxied


# Cut off after every request


@pytest.fixture
def nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is cut off need not be waited for: no request of it will ever be let through."""
    monkeypatch.setattr("omnigraph.storage.table.handles._RETRY_OPTIONS", {"client_max_retries": "0"})
    monkeypatch.setattr("omnigraph.runtime.SystemClock.sleep", lambda self, seconds: None)


@contextmanager
def cut_off(proxy: Proxy, k: int) -> Iterator[Log]:
    """Whoever makes requests in here gets `k` of them through."""
    with proxy.recording() as log:
        proxy.cut_after(k)
        yield log
    proxy.restore()


def was_cut(log: Log) -> bool:
    return any(request.fault == "cut" for request in log)


def told(operation: Callable[[], object]) -> str:
    """What the client heard of its operation: done, failed, or unknown."""
    try:
        operation()
    except OutcomeUnknown:
        return "unknown"
    except OmnigraphError:
        return "failed"
    return "done"


@pytest.mark.s3
@pytest.mark.parametrize(
    ("operation", "rows"),
    [
        *((operation, "0") for operation in OPERATIONS),
        (add_the_first_rows_of_a_type, "512"),
        (change_three_tables, "512"),
    ],
)
def test_a_client_cut_off_after_any_request_leaves_the_graph_before_or_after(
    operation: Operation, place: S3Location, s3: S3Location, proxy: Proxy, nobody_waits: None
) -> None:
    whole_step, make_ready = OPERATIONS[operation]
    undisturbed = opening(proxy, place)
    steps: list[Step] = []
    before = state_of(s3)
    for k in range(REQUESTS_MAX):
        client = impatient(place, attempts=1, settles_for_s=0.0)
        with cut_off(proxy, k) as log:
            answer = told(lambda client=client, k=k: operation(client, f"row-{k}"))  # type: ignore[misc]

        assert opening(proxy, place) == undisturbed, log.describe()
        after = state_of(s3)
        steps.append(step(before, after))
        before = after
        if answer != "unknown":
            assert steps[-1] == (whole_step if answer == "done" else Step()), log.describe()
        if not was_cut(log):
            break
        if steps[-1] != Step():
            make_ready(reopened(s3))
            before = state_of(s3)

    done_at = steps.index(whole_step)
    assert steps == [Step()] * done_at + [whole_step] * (len(steps) - done_at), "one request decides, and it alone"
    assert len(steps) < REQUESTS_MAX
    add_to_three_tables(reopened(s3), "next")


@pytest.mark.s3
def test_an_init_cut_off_after_any_request_leaves_no_graph_or_a_whole_one(
    s3_proxied: S3Location, s3: S3Location, proxy: Proxy, nobody_waits: None
) -> None:
    def init(place: S3Location) -> None:
        init_repository(place.uri, Schema(people()), place.options, policy=PublishPolicy(time_limit_s=0.0))

    made: list[bool] = []
    for k in range(REQUESTS_MAX):
        place, directly = (replace(location, uri=f"{location.uri}-{k}") for location in (s3_proxied, s3))
        with cut_off(proxy, k) as log:
            answer = told(lambda place=place: init(place))  # type: ignore[misc]
        try:
            reopened(directly)
            made.append(True)
        except NotAGraph:
            made.append(False)
            init(directly)
        if answer != "unknown":
            assert made[-1] == (answer == "done"), log.describe()
        assert opening(proxy, place) == ["GET"] * 5  # one for the hint, beside the listing
        assert state_of(directly).branches == ["main"]
        add_to_three_tables(reopened(directly), "first")
        if not was_cut(log):
            break

    assert made == sorted(made)
    assert made[-1]
    assert 4 <= len(made) < REQUESTS_MAX


# Really killed


@contextmanager
def running(script: str) -> Iterator[subprocess.Popen[str]]:
    """A process that knows the names of this module and runs the script; dead when the block ends."""
    tests = Path(__file__).parent.parent
    search_path = os.pathsep.join([str(tests), str(tests / "simulation"), *sys.path])
    process = subprocess.Popen(
        [sys.executable, "-c", f"from test_kills import *\n{script}"],
        env=os.environ | {"PYTHONPATH": search_path},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def drained(proxy: Proxy) -> None:
    """Wait until the store has done all that was sent to it."""
    deadline = time.monotonic() + START_S
    while any(request.ended is None for request in proxy.log):
        assert time.monotonic() < deadline, proxy.log.describe()
        time.sleep(0.005)


@pytest.mark.s3
@pytest.mark.parametrize(
    ("operation", "at", "decides", "rows"),
    [
        pytest.param(
            add_the_first_rows_of_a_type, puts("/_versions/"), False, "0", id="first commit of a type, at its table"
        ),
        pytest.param(add_to_three_tables, puts("/data/"), False, "0", id="commit, at a data file"),
        pytest.param(add_to_three_tables, puts("/_versions/"), False, "0", id="commit, at a table version"),
        pytest.param(add_to_three_tables, creates(MANIFESTS), True, "0", id="commit, at the manifest"),
        pytest.param(add_to_three_tables, creates(MANIFESTS), True, "512", id="small commit, at the manifest"),
        pytest.param(create_branch, creates(REFS), False, "512", id="branch create, at the ref"),
        pytest.param(create_branch, creates(MANIFESTS), True, "512", id="branch create, at manifest 1"),
        pytest.param(delete_branch, creates(MANIFESTS), True, "512", id="branch delete, at the tombstone"),
        pytest.param(delete_branch, puts(REFS), False, "512", id="branch delete, at the marker"),
    ],
)
def test_a_killed_process_leaves_the_graph_before_or_after(
    operation: Operation, at: Matcher, decides: bool, place: S3Location, s3: S3Location, proxy: Proxy
) -> None:
    whole_step, _ = OPERATIONS[operation]
    undisturbed, before, held = opening(proxy, place), state_of(s3), Hang()
    proxy.on(at, held)

    with running(f"{operation.__name__}(omnigraph.open({place.uri!r}, {place.options!r}), 'ada')"):
        assert held.arrived.wait(START_S)
    at_the_kill = state_of(s3)
    assert opening(proxy, place) == undisturbed
    held.release.set()  # what it had sent arrives all the same
    drained(proxy)
    afterwards = state_of(s3)

    assert step(before, at_the_kill) in (Step(), whole_step)
    assert step(before, afterwards) in (Step(), whole_step)
    assert (step(at_the_kill, afterwards) == whole_step) == decides
    assert opening(proxy, place) == undisturbed
    add_to_three_tables(reopened(s3), "next")


@pytest.mark.s3
@pytest.mark.parametrize(
    ("at", "makes_it"),
    [(puts(SCHEMA), False), (creates(MANIFESTS), False), (creates(STAMP), True)],
    ids=["schema", "manifest 1", "stamp"],
)
def test_a_killed_init_has_made_a_graph_only_if_its_stamp_arrived(
    at: Matcher, makes_it: bool, s3_proxied: S3Location, s3: S3Location, proxy: Proxy
) -> None:
    held = Hang()
    proxy.on(at, held)

    with running(f"omnigraph.init({s3_proxied.uri!r}, people(), {s3_proxied.options!r})"):
        assert held.arrived.wait(START_S)
    with pytest.raises(NotAGraph):
        reopened(s3)
    held.release.set()
    drained(proxy)

    if not makes_it:
        with pytest.raises(NotAGraph):
            reopened(s3)
        omnigraph.init(s3.uri, people(), s3.options)
    add_to_three_tables(reopened(s3), "first")
    assert state_of(s3).branches == ["main"]


@pytest.mark.parametrize("kills", [4, pytest.param(60, marks=pytest.mark.soak)])
def test_a_writer_on_a_local_disk_killed_at_any_moment_loses_nothing_that_was_acknowledged(
    kills: int, tmp_path: Path
) -> None:
    omnigraph.init(tmp_path, people())
    promised: list[str] = []
    for round_ in range(kills):
        moment_s = random.uniform(0.0, 0.3)
        with running(f"write_for_ever({str(tmp_path)!r}, {round_})") as process:
            assert process.stdout is not None
            promised.append(process.stdout.readline().strip())  # it is at work
            time.sleep(moment_s)
            process.kill()
            promised += process.stdout.read().split()

        graph = omnigraph.open(tmp_path)
        snapshot = graph.snapshot()
        there = ids_of(snapshot.to_arrow(PERSON))
        assert ids_of(snapshot.to_arrow(COMPANY)) == there, f"killed after {moment_s:.3f} s"
        assert len(set(there)) == len(there)
        assert set(promised) <= set(there)
        assert len(there) - len(promised) <= round_ + 1, "at most one commit of each round went untold"
        assert len(graph.commits(limit=None)) == len(there) + 1
        assert snapshot.manifest_version == len(graph.commits(limit=None, maintenance=True)), "folds have numbers too"


def write_for_ever(path: str, round_: int) -> None:
    """Tell each commit after it was acknowledged; the other end of the pipe knows at least those."""
    graph = omnigraph.open(path)
    for n in range(1 << 30):
        name = f"{round_}-{n}"
        graph.write([Append(PERSON, person_rows(name)), Append(COMPANY, company_rows(name))])
        print(name, flush=True)
