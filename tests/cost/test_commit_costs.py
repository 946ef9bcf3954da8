"""The cost contract of the design, counted in requests to an S3 server, never in seconds.

Every operation is measured at several depths of history and with several numbers of types. What it costs must keep
within its promise, and must be the same everywhere: nothing grows with a graph's age or with its schema. Maintenance
runs by itself, as it does for everybody; it is let finish before anything is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import obstore
import pyarrow as pa
import pytest
from obstore.store import S3Store

import omnigraph
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import Append
from omnigraph.manifest.commit.publish import PublishedCommit
from omnigraph.manifest.settings import Settings
from omnigraph.storage import meter
from omnigraph.storage.meter import Cost
from support.catalogs import wide, wide_rows
from support.proxy import Log, Proxy
from support.s3 import S3Location, S3Server
from support.soak import SoakReport

pytestmark = [pytest.mark.s3, pytest.mark.xdist_group("commit costs")]  # in one process, which makes each graph once

RTT_S = 0.02  # long enough for requests that are sent together to overlap, also on a busy machine
TRIES = 8
BRANCHES = 3  # that live beside main while branches are listed
PEOPLE = 10_000  # that are stored and indexed
LARGE = 600  # rows that don't ride in a manifest
COLUMNS = 4  # of Person, its id included


@dataclass(frozen=True)
class Promise:
    """At most so many round trips one after another, and so many requests."""

    serial: int
    requests: int


class Size(NamedTuple):
    """Commits on main, and types in the schema."""

    depth: int
    types: int


SIZES = (Size(10, 5), Size(10, 500), Size(100, 50), Size(1000, 5))
SOAK_SIZES = (Size(10, 5), Size(1000, 500), Size(10_000, 5))


def schema(types: int) -> str:
    """Types of every kind that a write may have to look at, and as many more as are wanted."""
    more = "\n".join(f"node T{number} {{ name: String }}" for number in range(4, types))
    return f"""
        node T0 {{ name: String }} node T1 {{ name: String }} node T2 {{ name: String }} node T3 {{ name: String }}
        node Large0 {{ name: String }} node Large1 {{ name: String }}
        node Note {{ text: String }}
        node Person {{ slug: String @key  name: String?  age: I32? }}
        node Member {{ slug: String @key  email: String? @unique }}
        edge Knows: Person -> Person
        edge Reports: Person -> Person @card(0..9)
        {more}
    """


@dataclass
class Subject:
    """A graph to measure, reached through the proxy: people are stored, with tails on top; T2 and T3 have no rows.

    `staging` is another process, the only one that writes to the types T…: everything is staged, and nothing indexed.
    """

    place: S3Location
    types: int
    graph: Graph
    staging: Graph
    fresh: Iterator[int] = field(default_factory=lambda: count(1))

    def mutate(self, body: str, branch: str = "main") -> PublishedCommit | None:
        return self.graph.mutate(f"query q() {{ {body} }}", branch=branch)

    def stage(self, *types: int, branch: str = "main") -> PublishedCommit | None:
        """One row into each of these types, staged."""
        id_ = f"row-{next(self.fresh)}"
        return self.staging.write([Append(f"node:T{i}", wide_rows(i, id_)) for i in types], branch=branch)

    def branch(self, graph: Graph | None = None) -> str:
        name = self.unused_name()
        (graph or self.graph).branches.create(name)
        return name

    def person(self) -> str:
        """Anybody who is stored."""
        return f"p{next(self.fresh) * 37 % (PEOPLE - 1)}"

    def unused_name(self) -> str:
        return f"branch-{next(self.fresh)}"

    def settle(self) -> None:
        for graph in (self.graph, self.staging):
            assert graph.maintenance.settle(30.0)
            graph.snapshot()


# What is measured: each prepares, and answers with the call that counts.

Operation = Callable[[Subject], Callable[[], object]]


def one_row_with_nothing_to_look_up(subject: Subject) -> Callable[[], object]:
    return partial(subject.mutate, f'insert Note {{ text: "{next(subject.fresh)}" }}')


def one_row_whose_key_must_be_new(subject: Subject) -> Callable[[], object]:
    return partial(subject.mutate, f'insert Person {{ slug: "new-{next(subject.fresh)}", name: "x" }}')


def one_row_with_a_unique_value(subject: Subject) -> Callable[[], object]:
    number = next(subject.fresh)
    return partial(subject.mutate, f'insert Member {{ slug: "new-{number}", email: "{number}@new" }}')


def partial_upsert_of_a_stored_row(subject: Subject) -> Callable[[], object]:
    return partial(subject.mutate, f'insert Person {{ slug: "{subject.person()}", age: {next(subject.fresh)} }}')


def update_of_a_stored_row(subject: Subject) -> Callable[[], object]:
    age = next(subject.fresh)
    return partial(subject.mutate, f'update Person set {{ age: {age} }} where slug = "{subject.person()}"')


def edge_between_stored_nodes(subject: Subject) -> Callable[[], object]:
    return partial(subject.mutate, f'insert Knows {{ from: "{subject.person()}", to: "{subject.person()}" }}')


def edge_with_a_cardinality(subject: Subject) -> Callable[[], object]:
    return partial(subject.mutate, f'insert Reports {{ from: "{subject.person()}", to: "{subject.person()}" }}')


def one_row_on_a_new_branch(subject: Subject) -> Callable[[], object]:
    return partial(subject.mutate, f'insert Note {{ text: "{next(subject.fresh)}" }}', branch=subject.branch())


def commit_to_two_tables(subject: Subject) -> Callable[[], object]:
    return partial(subject.stage, 0, 1)


def commit_with_a_first_write(subject: Subject) -> Callable[[], object]:
    return partial(subject.stage, 0, 2, branch=subject.branch(subject.staging))


def commit_with_two_first_writes(subject: Subject) -> Callable[[], object]:
    return partial(subject.stage, 2, 3, branch=subject.branch(subject.staging))


def first_commit_on_a_new_branch(subject: Subject) -> Callable[[], object]:
    return partial(subject.stage, 0, 1, branch=subject.branch(subject.staging))


def large_commit_onto_two_tails(subject: Subject) -> Callable[[], object]:
    """What rode in manifests is stored with it, in the same version."""
    number = next(subject.fresh)
    for i in (0, 1):
        subject.mutate(f'insert Large{i} {{ name: "{number}" }}')
    ids = [f"large-{number}-{row}" for row in range(LARGE)]
    rows = pa.table({"id": ids, "name": ids})
    return partial(subject.graph.write, [Append(f"node:Large{i}", rows, fresh_ids=True) for i in (0, 1)])


def branch_create(subject: Subject) -> Callable[[], object]:
    return partial(subject.graph.branches.create, subject.unused_name())


def branch_create_with_a_used_name(subject: Subject) -> Callable[[], object]:
    name = subject.branch()
    subject.graph.branches.delete(name)
    return partial(subject.graph.branches.create, name)


def branch_delete(subject: Subject) -> Callable[[], object]:
    name = subject.branch()
    return partial(subject.graph.branches.delete, name)


def branch_list(subject: Subject) -> Callable[[], object]:
    """Warm, with some branches alive and any number dead."""
    graph = subject.graph
    for name in graph.branches.list():
        if name != "main":
            graph.branches.delete(name)
    for _ in range(BRANCHES):
        subject.branch()
    return graph.branches.list


def fast_forward_merge(subject: Subject) -> Callable[[], object]:
    name = subject.branch()
    subject.mutate(f'insert Note {{ text: "{name}" }}', branch=name)
    subject.graph.snapshot()
    return partial(subject.graph.branches.merge, name)


def cold_open(subject: Subject) -> Callable[[], object]:
    return partial(omnigraph.open, subject.place.uri, subject.place.options)


def cold_open_and_point_read(subject: Subject) -> Callable[[], object]:
    """Of a stored row, by its key, with all its columns."""
    person = subject.person()
    text = f'query q() {{ match {{ $p: Person {{ slug: "{person}" }} }} return {{ $p.slug, $p.name, $p.age }} }}'

    def run() -> object:
        return omnigraph.open(subject.place.uri, subject.place.options).query(text)

    return run


def warm_read_of_the_head(subject: Subject) -> Callable[[], object]:
    return subject.graph.snapshot


def init(subject: Subject) -> Callable[[], object]:
    uri = f"{subject.place.uri}-{next(subject.fresh)}"
    return partial(omnigraph.init, uri, wide(subject.types), subject.place.options)


CONTRACT: Mapping[Operation, Promise] = {
    one_row_with_nothing_to_look_up: Promise(1, 1),
    one_row_whose_key_must_be_new: Promise(2, 2 + 2),
    one_row_with_a_unique_value: Promise(2, 2 + 2 + 2),
    partial_upsert_of_a_stored_row: Promise(4, 5 + COLUMNS),
    update_of_a_stored_row: Promise(4, 5 + COLUMNS),
    edge_between_stored_nodes: Promise(3, 6),
    edge_with_a_cardinality: Promise(3, 6 + 2),
    one_row_on_a_new_branch: Promise(1, 1),
    commit_to_two_tables: Promise(5, 8),
    commit_with_a_first_write: Promise(5 + 2, 8 + 2),
    commit_with_two_first_writes: Promise(5 + 2, 8 + 2 * 2),
    first_commit_on_a_new_branch: Promise(5, 8),
    large_commit_onto_two_tails: Promise(5, 8 + 2),  # and what each of the two has for indexes, meanwhile
    branch_create: Promise(4, 4),
    branch_create_with_a_used_name: Promise(4 + 3, 4 + 3),
    branch_delete: Promise(3, 4),
    branch_list: Promise(2, 1 + BRANCHES),
    fast_forward_merge: Promise(4, 6),
    cold_open: Promise(4, 6),
    cold_open_and_point_read: Promise(14, 20 + 2 * COLUMNS + Settings().tail_manifests),
    warm_read_of_the_head: Promise(1, 1),
    init: Promise(5, 6),
}
# What Lance remembers of a table, and how long its tail is, differ from graph to graph: kept is the promise.
VARIES = {
    one_row_whose_key_must_be_new,
    one_row_with_a_unique_value,
    partial_upsert_of_a_stored_row,
    update_of_a_stored_row,
    edge_between_stored_nodes,
    edge_with_a_cardinality,
    cold_open_and_point_read,
}
SEVERAL = {cold_open_and_point_read}  # each of the two calls has an account of its own
BESIDE = {large_commit_onto_two_tails}  # what is read beside a write counts as a round trip for the meter
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


def measured(operation: Operation, subject: Subject, others: Iterable[Subject], proxy: Proxy) -> Measured:
    """One run, alone: nothing goes on behind other graphs of this process either.

    The scheduler's hiccups may add a round trip and never take one away: then it is run again.
    """
    for _ in range(TRIES):
        call = operation(subject)
        for one in (*others, subject):
            one.settle()
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
        if log.serial <= CONTRACT[operation].serial and (
            operation in SEVERAL | BESIDE or costs[-1].stages == log.serial
        ):
            break
    return found


class Bench:
    """Graphs of every size, and what was measured on them; each made when first asked for."""

    def __init__(self, server: S3Server, proxy: Proxy) -> None:
        self._server = server
        self._subjects: dict[Size, Subject] = {}
        self._measured: dict[tuple[Operation, int | None], dict[Size, Measured]] = {}
        self.proxy = proxy

    def measured(
        self, operation: Operation, sizes: Sequence[Size] = SIZES, cap: int | None = None
    ) -> dict[Size, Measured]:
        """By depth and number of types; `cap`: how many requests the store serves at once."""
        known = self._measured.setdefault((operation, cap), {})
        for size in sizes:
            if size not in known:
                known[size] = self._once(operation, size, cap)
        least = min(known[size].figures.serial for size in sizes)
        for size in sizes:  # a hiccup that a promise leaves room for would look like growth
            for _ in range(TRIES):
                if known[size].figures.serial > least:
                    known[size] = self._once(operation, size, cap)
        return {size: known[size] for size in sizes}

    def _once(self, operation: Operation, size: Size, cap: int | None) -> Measured:
        subject = self._subject(size)
        self.proxy.max_in_flight = cap
        try:
            return measured(operation, subject, self._subjects.values(), self.proxy)
        finally:
            self.proxy.max_in_flight = None

    def _subject(self, size: Size) -> Subject:
        if size not in self._subjects:
            place = self._server.bucket()
            with TemporaryDirectory() as folder:
                grow(omnigraph.init(folder, schema(size.types), {"fsync": "false"}), size.depth)
                upload(Path(folder), place)
            via = place.via(self.proxy.endpoint)
            staging = omnigraph.open(via.uri, via.options, settings=Settings(inline_rows=0, maintenance=0))
            subject = Subject(via, size.types, omnigraph.open(via.uri, via.options), staging)
            for operation in CONTRACT:  # as in a process that has done it all before
                operation(subject)()
            self._subjects[size] = subject
        return self._subjects[size]


def grow(graph: Graph, depth: int) -> None:
    """People and members that are stored and indexed, then so many small commits, folded now and then as they come."""
    people = [{"type": "Person", "data": {"slug": f"p{n}", "name": f"P{n}", "age": n}} for n in range(PEOPLE)]
    members = [{"type": "Member", "data": {"slug": f"m{n}", "email": f"{n}@old"}} for n in range(PEOPLE)]
    edges: list[dict[str, Any]] = [{"edge": edge, "from": "p0", "to": "p1"} for edge in ("Knows", "Reports")]
    fields = {"Note": "text", "Large0": "name", "Large1": "name"}
    others = [{"type": type_, "data": {name: "x"}} for type_, name in fields.items()]
    graph.load([*people, *members, *edges, *others])
    graph.optimize()
    graph.write([Append(f"node:T{i}", wide_rows(i, *(f"t{n}" for n in range(LARGE)))) for i in (0, 1)])
    for number in range(graph.snapshot().manifest_version, depth):
        graph.write([Append("node:Note", note_rows(number), fresh_ids=True)])
    assert graph.maintenance.settle(60.0)


def upload(folder: Path, place: S3Location) -> None:
    """A graph that was made on a disk, where commits take no time, as it would be if it had been made there."""
    store = S3Store.from_url(place.uri, config=_config(place), client_options={"allow_http": True})
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "_hint"]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda path: obstore.put(store, path.relative_to(folder).as_posix(), path.read_bytes()), files))


def note_rows(number: int) -> pa.Table:
    return pa.table({"id": [f"note-{number}"], "text": ["x"]})


@pytest.fixture(scope="module")
def bench(s3_server: S3Server) -> Iterator[Bench]:
    with Proxy(s3_server.endpoint) as proxy:
        yield Bench(s3_server, proxy)


# The contract


@every_operation
def test_it_costs_what_was_promised_however_deep_and_however_wide(operation: Operation, bench: Bench) -> None:
    assert_flat_and_as_promised(operation, bench.measured(operation))


@pytest.mark.parametrize("operation", [one for one in CONTRACT if one not in SEVERAL], ids=lambda one: one.__name__)
def test_the_meter_agrees_with_the_log(operation: Operation, bench: Bench) -> None:
    for found in bench.measured(operation).values():
        serial = min(found.metered.stages, found.figures.serial) if operation in BESIDE else found.metered.stages
        assert Promise(serial, found.metered.requests) == found.figures, found.log.describe()
        assert found.metered.retries == 0
        assert not found.metered.shared
        assert found.told in (None, found.metered)


@pytest.mark.parametrize("known_as", ["made it", "opened it"])
def test_the_meter_agrees_on_the_first_commit_of_a_process(
    known_as: str, proxy: Proxy, s3: S3Location, s3_proxied: S3Location
) -> None:
    """Lance counts where nobody looked yet: for tables that are made now, and for those that are opened now."""
    staged = Settings(inline_rows=0, clock_ahead_s=0)
    graph = omnigraph.init(s3_proxied.uri, wide(2), s3_proxied.options, settings=staged)
    if known_as == "opened it":
        directly = omnigraph.open(s3.uri, s3.options, settings=staged)
        directly.write([Append(f"node:T{i}", wide_rows(i, "first")) for i in (0, 1)])
        graph = omnigraph.open(s3_proxied.uri, s3_proxied.options, settings=staged)
    subject = Subject(s3_proxied, 2, graph, graph)

    for _ in range(2):
        with proxy.recording() as log:
            commit = subject.stage(0, 1)
        assert commit is not None
        assert commit.cost.requests == len(log), log.describe()


@every_operation
def test_a_store_that_serves_8_at_a_time_sees_the_same_requests(operation: Operation, bench: Bench) -> None:
    size = SIZES[-1]
    freely, capped = bench.measured(operation)[size], bench.measured(operation, [size], cap=8)[size]

    if operation in VARIES:
        assert len(capped.log) <= CONTRACT[operation].requests, capped.log.describe()
    else:
        assert len(capped.log) == len(freely.log), capped.log.describe()


def test_the_first_commit_on_a_new_branch_costs_the_same_as_on_main(bench: Bench) -> None:
    on_main = bench.measured(commit_to_two_tables)
    on_branch = bench.measured(first_commit_on_a_new_branch)

    assert all(on_branch[size].figures == on_main[size].figures for size in on_main)


@pytest.mark.soak
@pytest.mark.alone
def test_ten_thousand_commits_deep_the_costs_are_those_of_ten(bench: Bench, soak_report: SoakReport) -> None:
    rows = []
    for operation, promise in CONTRACT.items():
        found = bench.measured(operation, SOAK_SIZES)
        assert_flat_and_as_promised(operation, found)
        figures = next(iter(found.values())).figures
        name = operation.__name__.replace("_", " ")
        rows.append((name, figures.serial, promise.serial, figures.requests, promise.requests))
    soak_report.line("The same at " + ", ".join(f"depth {depth:,} with {types} types" for depth, types in SOAK_SIZES))
    soak_report.table(("operation", "serial", "promised", "requests", "promised"), rows)


def assert_flat_and_as_promised(operation: Operation, found: Mapping[Size, Measured]) -> None:
    promise = CONTRACT[operation]
    for size, one in found.items():
        story = f"{size}\n{one.log.describe()}"
        assert one.figures.serial <= promise.serial, story
        assert one.figures.requests <= promise.requests, story
    if operation not in VARIES:
        # What is read beside a write may or may not fit into its round trips: that is the scheduler's to say.
        alike = {one.figures.requests if operation in BESIDE else one.figures for one in found.values()}
        assert len(alike) == 1, {size: one.figures for size, one in found.items()}


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
