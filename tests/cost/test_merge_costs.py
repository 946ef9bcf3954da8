"""What branches and merges cost on S3: requests are counted, with few types and many, with few rows and many.

A branch and a fast-forward merge are numbers that are copied: neither the size of the tables nor how much was written
on the branch may show in what they cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import pyarrow as pa
import pytest

import omnigraph
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import Append, Upsert
from omnigraph.merge.plan import MergeOutcome
from support.catalogs import wide, wide_rows
from support.merge import Merging, knows, make_merging
from support.proxy import Log, Proxy
from support.s3 import S3Location, S3Server

pytestmark = [pytest.mark.s3, pytest.mark.xdist_group("merge costs")]  # in one process, which makes each graph once

RTT_S = 0.03  # long enough for requests that are sent together to overlap, also on a busy machine
TRIES = 6
FRESH = count()


class Size(NamedTuple):
    types: int
    rows: int


SIZES = [Size(types, rows) for types in (5, 500) for rows in (1_000, 1_000_000)]


class Cost(NamedTuple):
    serial: int
    requests: int


@dataclass
class Subject:
    """A graph reached through a proxy; its type T0 has as many rows as the size says."""

    graph: Graph
    proxy: Proxy

    def measured(self, prepare: Callable[[Graph], Callable[[], object]], serial: int) -> Log:
        """One run, alone. A scheduler's hiccup may add a round trip and never takes one away: then it is run again."""
        for _ in range(TRIES):
            call = prepare(self.graph)
            self.proxy.delay_s = RTT_S
            try:
                with self.proxy.recording() as log:
                    call()
            finally:
                self.proxy.delay_s = 0.0
            if log.serial <= serial:
                break
        return log


@pytest.fixture(scope="module", params=SIZES, ids=str)
def subject(request: pytest.FixtureRequest, s3_server: S3Server) -> Iterator[Subject]:
    size: Size = request.param
    with Proxy(s3_server.endpoint) as proxy:
        place = s3_server.bucket().via(proxy.endpoint)
        graph = omnigraph.init(place.uri, wide(size.types), place.options)
        ids = pa.array([f"row-{number:07d}" for number in range(size.rows)])
        graph.write([Append("node:T0", pa.table({"id": ids, "name": ids}), fresh_ids=True)])
        yield Subject(graph, proxy)
        s3_server.drop(place.bucket)


def forked(graph: Graph) -> str:
    name = f"branch-{next(FRESH)}"
    graph.branches.create(name)
    return name


def branch_create(graph: Graph) -> Callable[[], object]:
    return lambda: graph.branches.create(f"branch-{next(FRESH)}")


def fast_forward(commits: int) -> Callable[[Graph], Callable[[], object]]:
    def prepare(graph: Graph) -> Callable[[], object]:
        """The branch has updated a row, added rows to other types, and done so several times."""
        name = forked(graph)
        for number in range(commits):
            other = 1 + number % 3
            added = Append(f"node:T{other}", wide_rows(other, str(next(FRESH))))
            graph.write([Upsert("node:T0", wide_rows(0, "row-0000001")), added], branch=name)

        def merge() -> None:
            assert graph.branches.merge(name).outcome is MergeOutcome.FAST_FORWARD

        return merge

    return prepare


def test_a_branch_is_created_in_four_round_trips_whatever_the_size(subject: Subject) -> None:
    log = subject.measured(branch_create, 4)

    assert Cost(log.serial, len(log)) <= Cost(4, 4), log.describe()
    assert len(log) <= 4, log.describe()


@pytest.mark.parametrize("commits", [1, 8])
def test_a_fast_forward_takes_four_round_trips_and_six_requests_whatever_the_size(
    subject: Subject, commits: int
) -> None:
    log = subject.measured(fast_forward(commits), 4)

    assert log.serial <= 4, log.describe()
    assert len(log) <= 6, log.describe()
    assert log.count(path_contains="/tables/") == 0, log.describe()


def test_a_merge_of_different_types_reads_no_data_file(subject: Subject) -> None:
    def prepare(graph: Graph) -> Callable[[], object]:
        name = forked(graph)
        graph.write([Upsert("node:T0", wide_rows(0, "row-0000002"))], branch=name)
        graph.write([Append("node:T4", wide_rows(4, str(next(FRESH))))])

        def merge() -> None:
            assert graph.branches.merge(name).outcome is MergeOutcome.MERGED

        return merge

    log = subject.measured(prepare, 5)

    assert log.count(path_contains="/tables/") == 0, log.describe()
    assert len(log) <= 6, log.describe()


def test_a_merge_says_itself_what_it_cost(subject: Subject) -> None:
    name = forked(subject.graph)
    subject.graph.write([Append("node:T3", wide_rows(3, str(next(FRESH))))], branch=name)

    with subject.proxy.recording() as log:
        result = subject.graph.branches.merge(name)

    assert (result.cost.requests, result.cost.retries) == (len(log), 0), log.describe()


@pytest.fixture
def people(s3_proxied: S3Location, monkeypatch: pytest.MonkeyPatch) -> Merging:
    """All rows are staged, so that whoever reads some asks a table for them."""
    monkeypatch.setenv("OMNIGRAPH_INLINE_ROWS", "0")
    graph = make_merging(s3_proxied.uri, options=s3_proxied.options)
    graph.change(Person={"ada": {}, "bob": {}}, Company={"acme": {}}, Knows={"e": knows("ada", "bob")})
    graph.fork("b")
    return graph


def test_edges_on_one_side_and_new_nodes_on_the_other_are_merged_unread(people: Merging, proxy: Proxy) -> None:
    """Nothing was removed, which the table map tells: so no edge can have lost its node."""
    people.change("main", Person={"eve": {}, "ada": {"age": 3}})
    people.change("b", Knows={"f": knows("bob", "ada")})

    with proxy.recording() as log:
        assert people.merge().outcome is MergeOutcome.MERGED

    assert log.count(path_contains="/tables/") == 0, log.describe()


def test_edges_on_one_side_and_nodes_removed_on_the_other_are_looked_at(people: Merging, proxy: Proxy) -> None:
    people.change("main", Person={"eve": {}})
    people.merge("main", "b")
    people.change("main", Person={"eve": None})
    people.change("b", Knows={"f": knows("bob", "ada")})

    with proxy.recording() as log:
        assert people.merge().outcome is MergeOutcome.MERGED

    assert log.count(path_contains="/tables/") > 0


def test_two_sources_merged_one_after_the_other_into_an_untouched_target_with_an_indexed_type(s3: S3Location) -> None:
    graph = omnigraph.init(s3.uri, "node Doc { k: String @key  text: String? @index  n: I64? @index }", s3.options)
    keys = [f"d{number:05d}" for number in range(12_000)]  # enough for index segments
    graph.write([Append("node:Doc", documents(keys, "word filler"), fresh_ids=True)])
    for name, key in (("b", "d00000"), ("c", "d00005")):
        graph.branches.create(name)
        graph.write([Upsert("node:Doc", documents([key], name))], branch=name)
        graph.write([Append("node:Doc", documents([f"new-{name}"], name))], branch=name)

    outcomes = [graph.branches.merge(name).outcome for name in ("b", "c")]

    assert outcomes == [MergeOutcome.FAST_FORWARD, MergeOutcome.MERGED]
    searched = graph.query('query q() { match { $d: Doc  search($d.text, "b c") } return { $d.k } }').rows
    assert {row["d.k"] for row in searched} == {"d00000", "d00005", "new-b", "new-c"}
    looked_up = graph.query("query q() { match { $d: Doc { n: 7 } } return { $d.k } }").rows
    assert [row["d.k"] for row in looked_up] == ["d00007"]
    assert graph.query("query q() { match { $d: Doc } return { count($d) as n } }").rows == [{"n": 12_002}]


def documents(keys: list[str], text: str) -> pa.Table:
    numbers = [int(key[1:]) if key[1:].isdigit() else -1 for key in keys]
    return pa.table({"id": keys, "k": keys, "text": [text] * len(keys), "n": pa.array(numbers, pa.int64())})
