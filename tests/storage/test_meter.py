"""The meter: what each operation cost is put on its account, whoever else is at work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import omnigraph
from omnigraph.errors import Unavailable
from omnigraph.manifest.commit.plan import Append
from omnigraph.runtime import Runtime
from omnigraph.storage import meter
from omnigraph.storage.location import Location
from omnigraph.storage.meter import Cost, LanceIo, Span, longest_chain
from omnigraph.storage.objects.object_store import (
    ETag,
    ObjectInfo,
    ObjectStore,
    PutResult,
    RetryPolicy,
    StoredObject,
    TransientError,
)
from omnigraph.threads import gather
from support.catalogs import COMPANY, PERSON, company_rows, people, person_rows

# Serial stages


@st.composite
def spans(draw: st.DrawFn) -> Span:
    start, length = draw(st.integers(0, 20)), draw(st.integers(1, 8))
    return Span(float(start), float(start + length), draw(st.integers(1, 5)))


def chain_by_trying_all(every: list[Span]) -> int:
    def is_chain(some: tuple[Span, ...]) -> bool:
        return all(a.end <= b.start or b.end <= a.start for a, b in combinations(some, 2))

    subsets = (some for size in range(len(every) + 1) for some in combinations(every, size))
    return max(sum(span.stages for span in some) for some in subsets if is_chain(some))


@given(st.lists(spans(), max_size=9))
def test_the_longest_chain_is_the_best_of_all_subsets_that_do_not_overlap(every: list[Span]) -> None:
    assert longest_chain(every) == chain_by_trying_all(every)


def test_requests_that_overlap_are_one_stage_and_those_that_follow_are_more() -> None:
    assert longest_chain([]) == 0
    assert longest_chain([Span(0, 2, 1), Span(1, 3, 1)]) == 1
    assert longest_chain([Span(0, 2, 1), Span(2, 3, 1)]) == 2
    assert longest_chain([Span(0, 9, 3), Span(0, 1, 1), Span(2, 3, 1)]) == 3
    assert longest_chain([Span(0, 9, 1), Span(0, 1, 1), Span(2, 3, 1)]) == 2


# Accounts


def request(at: float = 0.0, bytes_moved: int = 10) -> None:
    meter.record_request(at, at + 1, bytes_moved=bytes_moved)


def test_an_operation_is_charged_for_what_is_asked_inside_it_and_for_nothing_else() -> None:
    request()
    with meter.operation("write") as operation:
        request(0)
        request(0.5)
        request(2)
        assert operation.cost == Cost(requests=3, stages=2, bytes=30)
    request()

    assert operation.cost == Cost(requests=3, stages=2, bytes=30)


def test_a_nested_operation_is_charged_to_itself_and_to_those_around_it() -> None:
    with meter.operation("outer") as outer:
        request()
        with meter.operation("inner") as inner:
            request(2)
        request(4)

    assert inner.cost == Cost(requests=1, stages=1, bytes=10)
    assert outer.cost == Cost(requests=3, stages=3, bytes=30)


def test_threads_of_an_operation_are_charged_to_it() -> None:
    with meter.operation("write") as operation:
        gather([request for _ in range(20)])

    assert (operation.cost.requests, operation.cost.stages) == (20, 1)


def test_operations_side_by_side_are_each_charged_their_own() -> None:
    together = threading.Barrier(2)

    def work(requests: int) -> Cost:
        with meter.operation("write") as operation:
            together.wait(10)
            gather([request for _ in range(requests)])
            request(2)
            together.wait(10)
        return operation.cost

    with ThreadPoolExecutor(2) as pool:
        costs = list(pool.map(work, (3, 50)))

    assert costs == [Cost(requests=4, stages=2, bytes=40), Cost(requests=51, stages=2, bytes=510)]


def test_an_operation_that_fails_is_charged_as_well() -> None:
    with pytest.raises(Unavailable), meter.operation("read") as operation:
        store_with(faults=100).get("key")

    assert operation.cost.requests == 4
    assert meter.open_accounts() == ()


# Lance's part


class Counter:
    """What Lance would say of a store."""

    def __init__(self) -> None:
        self.io = LanceIo(0, 0)

        self._lock = threading.Lock()

    def ask(self, requests: int = 1) -> None:
        meter.track_lance()  # as whoever takes a dataset in hand says
        with self._lock:
            self.io = LanceIo(self.io.requests + requests, self.io.bytes + 100 * requests)


@pytest.fixture
def lance() -> Iterator[Callable[[str], Counter]]:
    """Makes a store that Lance counts; its probe is gone afterwards."""
    made: list[str] = []

    def counter(name: str) -> Counter:
        counter = Counter()
        meter.set_probe(name, lambda: counter.io)
        made.append(name)
        return counter

    yield counter
    for name in made:
        meter._probes.pop(name, None)


def test_lances_requests_are_those_that_its_counters_grew_by(lance: Callable[[str], Counter]) -> None:
    one, two = lance("one"), lance("two")
    one.ask(7)
    with meter.operation("write") as operation:
        request()
        with meter.lance_call(stages=2):
            one.ask(3)
            two.ask(1)
    one.ask(7)

    assert operation.cost == Cost(requests=5, stages=3, bytes=410)


def test_what_lance_does_before_an_operation_comes_to_it_is_not_on_its_account(
    lance: Callable[[str], Counter],
) -> None:
    one = lance("one")
    with meter.operation("write") as operation:
        request()
        elsewhere = threading.Thread(target=one.ask, args=(5,))  # on nobody's account
        elsewhere.start()
        elsewhere.join()
        meter.track_lance()
        one.ask(2)

    assert operation.cost.requests == 3


def test_a_counter_that_appears_during_an_operation_counts_from_nothing(lance: Callable[[str], Counter]) -> None:
    with meter.operation("write") as operation:
        lance("new").ask(4)

    assert operation.cost.requests == 4


def test_lances_part_is_marked_shared_only_where_another_operation_ran_beside(lance: Callable[[str], Counter]) -> None:
    counter = lance("one")
    with meter.operation("alone") as alone:
        counter.ask()
        with meter.operation("nested") as nested:
            counter.ask()
    assert not alone.cost.shared
    assert not nested.cost.shared

    def beside() -> Cost:
        with meter.operation("beside") as operation:
            request()
            counter.ask()
        return operation.cost

    with meter.operation("first") as first, ThreadPoolExecutor(1) as pool:
        its_cost = pool.submit(beside).result()  # a pool of its own does not inherit the account
        with meter.operation("nested") as nested:
            counter.ask()

    assert first.cost.shared
    assert its_cost.shared
    assert nested.cost.shared
    with meter.operation("afterwards") as afterwards:
        counter.ask()
    assert not afterwards.cost.shared


def test_an_operation_without_lance_is_exact_even_beside_others() -> None:
    with meter.operation("first") as first, ThreadPoolExecutor(1) as pool:
        request()

        def beside() -> None:
            with meter.operation("beside"):
                request()

        pool.submit(beside).result()

    assert first.cost == Cost(requests=1, stages=1, bytes=10, shared=False)


# Retries


class Flaky:
    """A backend whose first answers are faults."""

    def __init__(self, faults: int) -> None:
        self.faults = faults

    def _answer(self) -> None:
        self.faults -= 1
        if self.faults >= 0:
            raise TransientError("busy")

    def get(self, key: str) -> StoredObject | None:
        self._answer()
        return None

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        raise AssertionError("no test here asks for this")

    def create(self, key: str, data: bytes) -> PutResult:
        raise AssertionError("no test here asks for this")

    def put(self, key: str, data: bytes, durable: bool) -> ETag | None:
        self._answer()
        return None

    def replace(self, key: str, data: bytes, seen: ETag) -> bool:
        raise AssertionError("no test here asks for this")

    def head(self, key: str) -> ObjectInfo | None:
        raise AssertionError("no test here asks for this")

    def pages(self, prefix: str, *, repeat_pages: bool) -> Iterator[Sequence[ObjectInfo]]:
        raise AssertionError("no test here asks for this")

    def delete(self, key: str) -> None:
        raise AssertionError("no test here asks for this")


def store_with(faults: int) -> ObjectStore:
    return ObjectStore(Location("s3://bucket/graph"), Flaky(faults), Runtime(), RetryPolicy(4, 0.0, 0.0))


def test_every_request_counts_also_those_that_had_to_be_repeated() -> None:
    with meter.operation("read") as operation:
        store_with(faults=2).get("key")
        store_with(faults=0).put("key", b"12345")

    assert operation.cost == Cost(requests=4, stages=4, bytes=5, retries=2)


def test_a_try_that_has_to_be_made_again_is_a_retry_of_every_account_that_is_open() -> None:
    with meter.operation("outer") as outer:
        meter.record_retry()
        with meter.operation("inner") as inner:
            meter.record_retry()

    assert (outer.cost.retries, inner.cost.retries) == (2, 1)


# Telling


def test_subscribers_hear_of_every_operation_as_it_ends() -> None:
    heard: list[tuple[str, Cost]] = []
    stop = meter.subscribe(lambda kind, cost: heard.append((kind, cost)))

    with meter.operation("outer") as outer:
        with meter.operation("inner") as inner:
            request()
        assert heard == [("inner", inner.cost)]
    stop()
    with meter.operation("unheard"):
        pass

    assert heard == [("inner", inner.cost), ("outer", outer.cost)]


def test_a_subscriber_that_fails_does_not_make_a_commit_look_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(kind: str, cost: Cost) -> None:
        raise RuntimeError("no metrics today")

    graph = omnigraph.init(tmp_path, people())
    stop = meter.subscribe(fail)

    assert graph.write([Append(PERSON, person_rows("ada"))]) is not None

    stop()
    assert "no metrics today" in caplog.text


def test_every_verb_of_a_graph_tells_its_cost(tmp_path: Path) -> None:
    """On its result where that has room, and to subscribers."""
    heard: list[tuple[str, Cost]] = []
    stop = meter.subscribe(lambda kind, cost: heard.append((kind, cost)))
    graph = omnigraph.init(tmp_path, people())
    commit = graph.write([Append(PERSON, person_rows("ada")), Append(COMPANY, company_rows("acme"))])
    snapshot = graph.snapshot()
    snapshot.to_arrow(PERSON)
    created = graph.branches.create("dev")
    graph.branches.list()
    deleted = graph.branches.delete("dev")
    graph.commits()
    opened = omnigraph.open(tmp_path)
    stop()

    kinds = ["init", "mutation", "snapshot", "scan", "branch_create", "branch_list", "branch_delete", "commits", "open"]
    assert [kind for kind, _ in heard] == kinds
    told = dict(heard)
    assert commit is not None
    results = [graph.cost, commit.cost, snapshot.cost, created, deleted, opened.cost]
    assert results == [told[k] for k in ("init", "mutation", "snapshot", "branch_create", "branch_delete", "open")]
    assert all(cost.requests >= cost.stages >= 1 for cost in results)
