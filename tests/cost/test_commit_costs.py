"""The cost contract of the design, counted in requests to an S3 server, never in seconds.

Every operation is measured at several depths of history and with several numbers of types. What it costs must keep
within its promise, and must be the same everywhere: nothing grows with a graph's age or with its schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import obstore
import pytest
from obstore.store import S3Store

import omnigraph
from omnigraph.graph import Graph
from omnigraph.manifest.plan import Append
from omnigraph.manifest.publish import PublishedCommit
from omnigraph.storage import meter
from omnigraph.storage.meter import Cost
from support.catalogs import wide, wide_rows
from support.proxy import Log, Proxy
from support.s3 import S3Location, S3Server
from support.soak import SoakReport

pytestmark = pytest.mark.s3

RTT_S = 0.02  # long enough for requests that are sent together to overlap, also on a busy machine
TRIES = 8
TYPES = (5, 50, 500)
DEPTHS = (10, 100)
SOAK_DEPTH = 1000
BRANCHES = 3  # that live beside main while branches are listed


@dataclass(frozen=True)
class Promise:
    """At most so many round trips one after another, and so many requests."""

    serial: int
    requests: int


class Size(NamedTuple):
    """Commits on main, and types in the schema."""

    depth: int
    types: int


@dataclass
class Subject:
    """A graph to measure, reached through the proxy: the types T0 and T1 have rows, T2 and T3 have none on main."""

    place: S3Location
    types: int
    graph: Graph
    fresh: Iterator[int] = field(default_factory=count)

    def commit(self, *types: int, branch: str = "main") -> PublishedCommit | None:
        """One row into each of these types."""
        id_ = f"row-{next(self.fresh)}"
        return self.graph.write([Append(f"node:T{i}", wide_rows(i, id_)) for i in types], branch=branch)

    def branch(self) -> str:
        name = self.unused_name()
        self.graph.branches.create(name)
        return name

    def unused_name(self) -> str:
        return f"branch-{next(self.fresh)}"


# What is measured: each prepares, and answers with the call that counts.

Operation = Callable[[Subject], Callable[[], object]]


def commit_to_two_tables(subject: Subject) -> Callable[[], object]:
    return partial(subject.commit, 0, 1)


def commit_with_a_first_write(subject: Subject) -> Callable[[], object]:
    return partial(subject.commit, 0, 2, branch=subject.branch())


def commit_with_two_first_writes(subject: Subject) -> Callable[[], object]:
    return partial(subject.commit, 2, 3, branch=subject.branch())


def branch_create(subject: Subject) -> Callable[[], object]:
    return partial(subject.graph.branches.create, subject.unused_name())


def branch_create_with_a_used_name(subject: Subject) -> Callable[[], object]:
    name = subject.branch()
    subject.graph.branches.delete(name)
    return partial(subject.graph.branches.create, name)


def branch_delete(subject: Subject) -> Callable[[], object]:
    name = subject.branch()
    return partial(subject.graph.branches.delete, name)


def first_commit_on_a_new_branch(subject: Subject) -> Callable[[], object]:
    name = subject.branch()
    return partial(subject.commit, 0, 1, branch=name)


def branch_list(subject: Subject) -> Callable[[], object]:
    """Warm, with some branches alive and any number dead."""
    graph = subject.graph
    for name in graph.branches.list():
        if name != "main":
            graph.branches.delete(name)
    for _ in range(BRANCHES):
        subject.branch()
    return graph.branches.list


def cold_open(subject: Subject) -> Callable[[], object]:
    return partial(omnigraph.open, subject.place.uri, subject.place.options)


def warm_read_of_the_head(subject: Subject) -> Callable[[], object]:
    return subject.graph.snapshot


def init(subject: Subject) -> Callable[[], object]:
    uri = f"{subject.place.uri}-{next(subject.fresh)}"
    return partial(omnigraph.init, uri, wide(subject.types), subject.place.options)


CONTRACT: Mapping[Operation, Promise] = {
    commit_to_two_tables: Promise(5, 8),
    commit_with_a_first_write: Promise(5 + 2, 8 + 2),
    commit_with_two_first_writes: Promise(5 + 2, 8 + 2 * 2),
    first_commit_on_a_new_branch: Promise(5, 8),
    branch_create: Promise(4, 4),
    branch_create_with_a_used_name: Promise(4 + 3, 4 + 3),
    branch_delete: Promise(3, 4),
    branch_list: Promise(2, 1 + BRANCHES),
    cold_open: Promise(4, 6),
    warm_read_of_the_head: Promise(1, 1),
    init: Promise(5, 6),
}
every_operation = pytest.mark.parametrize("operation", CONTRACT, ids=lambda operation: operation.__name__)


# Measuring


@dataclass(frozen=True)
class Measured:
    log: Log
    metered: Cost  # what the meter told its subscribers
    told: Cost | None  # what the operation's result says

    @property
    def figures(self) -> Promise:
        return Promise(self.log.serial, len(self.log))


def measured(operation: Operation, subject: Subject, proxy: Proxy) -> Measured:
    """One run, alone. The scheduler's hiccups may add a round trip and never take one away: then it is run again."""
    for _ in range(TRIES):
        call = operation(subject)
        costs: list[Cost] = []
        stop = meter.subscribe(lambda kind, cost, costs=costs: costs.append(cost))  # type: ignore[misc]
        proxy.delay_s = RTT_S
        try:
            with proxy.recording() as log:
                result = call()
        finally:
            stop()
            proxy.delay_s = 0.0
        told = result if isinstance(result, Cost) else getattr(result, "cost", None)
        found = Measured(log, costs[-1], told)
        if log.serial <= CONTRACT[operation].serial and costs[-1].stages == log.serial:
            break
    return found


class Bench:
    """Graphs of every size, and what was measured on them; each made when first asked for."""

    def __init__(self, server: S3Server, proxy: Proxy) -> None:
        self._server = server
        self._subjects: dict[Size, Subject] = {}
        self._measured: dict[tuple[Operation, int | None], dict[Size, Measured]] = {}
        self.proxy = proxy

    def measured(self, operation: Operation, depths: Sequence[int], cap: int | None = None) -> dict[Size, Measured]:
        """By depth and number of types; `cap`: how many requests the store serves at once."""
        known = self._measured.setdefault((operation, cap), {})
        for size in [Size(depth, types) for depth in depths for types in TYPES]:
            if size not in known:
                subject = self._subject(size)
                self.proxy.max_in_flight = cap
                known[size] = measured(operation, subject, self.proxy)
                self.proxy.max_in_flight = None
        return {size: found for size, found in known.items() if size.depth in depths}

    def _subject(self, size: Size) -> Subject:
        """As deep in manifests as in the versions of two tables: by real commits."""
        if size not in self._subjects:
            place = self._server.bucket().via(self.proxy.endpoint)
            graph = omnigraph.init(place.uri, wide(size.types), place.options)
            subject = self._subjects[size] = Subject(place, size.types, graph)
            for _ in range(size.depth):
                subject.commit(0, 1)
        return self._subjects[size]


@pytest.fixture(scope="module")
def bench(s3_server: S3Server) -> Iterator[Bench]:
    with Proxy(s3_server.endpoint) as proxy:
        yield Bench(s3_server, proxy)


# The contract


@every_operation
def test_it_costs_what_was_promised_however_deep_and_however_wide(operation: Operation, bench: Bench) -> None:
    assert_flat_and_as_promised(operation, bench.measured(operation, DEPTHS))


@every_operation
def test_the_meter_agrees_with_the_log(operation: Operation, bench: Bench) -> None:
    for found in bench.measured(operation, DEPTHS).values():
        assert Promise(found.metered.stages, found.metered.requests) == found.figures, found.log.describe()
        assert found.metered.retries == 0
        assert not found.metered.shared
        assert found.told in (None, found.metered)


@pytest.mark.parametrize("known_as", [omnigraph.init, omnigraph.open], ids=["made it", "opened it"])
def test_the_meter_agrees_on_the_first_commit_of_a_process(
    known_as: object, proxy: Proxy, s3: S3Location, s3_proxied: S3Location
) -> None:
    """Lance counts where nobody looked yet: for tables that are made now, and for those that are opened now."""
    graph = omnigraph.init(s3_proxied.uri, wide(2), s3_proxied.options)
    subject = Subject(s3_proxied, 2, graph)
    if known_as is omnigraph.open:
        directly = omnigraph.open(s3.uri, s3.options)
        directly.write([Append(f"node:T{i}", wide_rows(i, "first")) for i in (0, 1)])
        subject.graph = omnigraph.open(s3_proxied.uri, s3_proxied.options)

    for _ in range(2):
        with proxy.recording() as log:
            commit = subject.commit(0, 1)
        assert commit is not None
        assert commit.cost.requests == len(log), log.describe()


@every_operation
def test_a_store_that_serves_8_at_a_time_sees_the_same_requests(operation: Operation, bench: Bench) -> None:
    freely = bench.measured(operation, DEPTHS)
    capped = bench.measured(operation, DEPTHS, cap=8)

    assert {size: len(found.log) for size, found in capped.items()} == {
        size: len(found.log) for size, found in freely.items()
    }


def test_the_first_commit_on_a_new_branch_costs_the_same_as_on_main(bench: Bench) -> None:
    on_main = bench.measured(commit_to_two_tables, DEPTHS)
    on_branch = bench.measured(first_commit_on_a_new_branch, DEPTHS)

    assert all(on_branch[size].figures == on_main[size].figures for size in on_main)


@pytest.mark.soak
def test_a_thousand_commits_deep_the_costs_are_those_of_ten(bench: Bench, soak_report: SoakReport) -> None:
    rows = []
    for operation, promise in CONTRACT.items():
        found = bench.measured(operation, (10, SOAK_DEPTH))
        assert_flat_and_as_promised(operation, found)
        figures = next(iter(found.values())).figures
        name = operation.__name__.replace("_", " ")
        rows.append((name, figures.serial, promise.serial, figures.requests, promise.requests))
    soak_report.line(f"The same at depths 10 and {SOAK_DEPTH:,}, with {', '.join(map(str, TYPES))} types.")
    soak_report.table(("operation", "serial", "promised", "requests", "promised"), rows)


def assert_flat_and_as_promised(operation: Operation, found: Mapping[Size, Measured]) -> None:
    promise = CONTRACT[operation]
    for size, one in found.items():
        story = f"{size}\n{one.log.describe()}"
        assert one.figures.serial <= promise.serial, story
        assert one.figures.requests <= promise.requests, story
    assert len({one.figures for one in found.values()}) == 1, {size: one.figures for size, one in found.items()}


# Listing many branches


def test_a_branch_list_makes_one_request_for_a_thousand_refs_and_one_for_a_life_without_marker(
    proxy: Proxy, s3: S3Location, s3_proxied: S3Location
) -> None:
    graph = omnigraph.init(s3_proxied.uri, wide(1), s3_proxied.options)
    graph.branches.create("alive")
    store = S3Store.from_url(s3.uri, config=_config(s3), client_options={"allow_http": True})
    dead = [f"__refs/gone-{i}/1.{kind}" for i in range(600) for kind in ("json", "dead")]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: obstore.put(store, key, b""), dead))

    with proxy.recording() as log:
        assert graph.branches.list() == ["alive", "main"]

    refs = len(dead) + 2  # and those of the two that live
    assert len(log) == -(-refs // 1000) + 1, log.describe()


def _config(s3: S3Location) -> Any:
    return {key: value for key, value in s3.options.items() if key.startswith("aws_")}
