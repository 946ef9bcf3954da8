"""Maintenance cut off after any of its requests, Lance's among them: the graph is unharmed, the next run ends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import omnigraph
from omnigraph.errors import OmnigraphError
from omnigraph.graph.graph import Graph
from omnigraph.maintenance.background import fold_due
from omnigraph.manifest.commit.plan import Append, Delete, Upsert
from omnigraph.manifest.settings import Settings
from support.catalogs import KNOWS, PERSON, knows_rows, people, person_rows
from support.clients import impatient
from support.proxy import Proxy
from support.s3 import S3Location
from support.table_layout import content, stored, tails

REQUESTS_MAX = 200


@pytest.fixture
def nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is cut off need not be waited for: no request of it will ever be let through."""
    monkeypatch.setenv("OMNIGRAPH_MAINTENANCE", "0")
    monkeypatch.setenv("OMNIGRAPH_TAIL_MANIFESTS", "1")
    monkeypatch.setattr("omnigraph.storage.table.handles._RETRY_OPTIONS", {"client_max_retries": "0"})
    monkeypatch.setattr("omnigraph.runtime.SystemClock.sleep", lambda self, seconds: None)


def prepared(place: S3Location) -> Graph:
    """A table with rows in several fragments, some of them indexed, and small commits on top; and edges."""
    graph = omnigraph.init(place.uri, people(), place.options)
    staging = omnigraph.open(place.uri, place.options, settings=Settings(inline_rows=0, maintenance=0))
    staging.write([Append(PERSON, person_rows(*(f"s{n}" for n in range(20))))])
    graph.optimize()
    staging.write([Append(PERSON, person_rows("late"))])
    graph.write([Upsert(PERSON, person_rows("s3", "new", age=3))])
    graph.write([Delete(PERSON, ("s5",))])
    for n in (1, 2):
        graph.write([Append(KNOWS, knows_rows((f"s{n}", "s9")))])
    return graph


@contextmanager
def cut_off(proxy: Proxy, k: int) -> Iterator[list[bool]]:
    """Whoever makes requests in here gets `k` of them through; was one cut?"""
    cut: list[bool] = []
    with proxy.recording() as log:
        proxy.cut_after(k)
        yield cut
    proxy.restore()
    cut.append(any(request.fault == "cut" for request in log))


def fold(graph: Graph) -> None:
    fold_due(graph.repository, "main")


def optimize(graph: Graph) -> None:
    graph.optimize()


@pytest.mark.s3
@pytest.mark.parametrize(
    ("operation", "stride"),
    [
        pytest.param(fold, 5, id="fold"),
        pytest.param(optimize, 13, id="optimize"),
        pytest.param(fold, 1, id="fold, every request", marks=pytest.mark.soak),
        pytest.param(optimize, 1, id="optimize, every request", marks=pytest.mark.soak),
    ],
)
def test_cut_off_after_any_request_the_graph_is_unharmed_and_the_next_run_ends_it(
    operation: Callable[[Graph], None],
    stride: int,
    s3: S3Location,
    s3_proxied: S3Location,
    proxy: Proxy,
    nobody_waits: None,
) -> None:
    whole = content(prepared(s3))
    for k in range(1, REQUESTS_MAX, stride):
        client = impatient(s3_proxied, attempts=1, settles_for_s=0.0)
        with cut_off(proxy, k) as cut:
            try:
                operation(client)
            except OmnigraphError:
                pass
        assert content(omnigraph.open(s3.uri, s3.options)) == whole, f"cut off after {k} requests"
        if not cut[0]:
            break
    assert not cut[0]

    last = omnigraph.open(s3.uri, s3.options)
    last.optimize()
    assert content(last) == whole
    assert tails(last) == {PERSON: 0, KNOWS: 0}
    assert (stored(last, PERSON).fragments, stored(last, PERSON).unindexed) == (1, 0)
    assert omnigraph.open(s3.uri, s3.options).verify(full=True).problems == ()
