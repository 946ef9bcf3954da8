"""A process whose clock is far ahead of the store's must not stamp commits: all later ones would carry its time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from omnigraph.errors import ClockAhead
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import Append
from omnigraph.manifest.commit.publish import PublishedCommit
from omnigraph.manifest.repository import Repository, init_repository, open_repository
from omnigraph.manifest.settings import Settings, settings_from
from omnigraph.manifest.store.clock_check import AGAIN_EVERY_S, EVERY_S
from omnigraph.runtime import Runtime
from omnigraph.schema.catalog import Schema
from omnigraph.storage.meter import Cost
from support.catalogs import PERSON, people, person_rows
from support.proxy import Proxy
from support.s3 import S3Location

from .schedules import World

DEFAULTS = Settings()


@dataclass
class Wrong:
    """This machine's clock, and how far it is ahead; it can also be made to be later by all clocks."""

    ahead: timedelta = timedelta()
    passed_s: float = 0.0

    def now(self) -> datetime:
        return datetime.now(UTC) + self.ahead

    def monotonic(self) -> float:
        return time.monotonic() + self.passed_s

    def sleep(self, seconds: float) -> None:
        self.passed_s += seconds


@dataclass(frozen=True)
class Writer:
    graph: Graph
    clock: Wrong

    def write(self, name: str) -> PublishedCommit:
        commit = self.graph.write([Append(PERSON, person_rows(name))])
        assert commit is not None
        if self.graph.repository.clock_check is not None:
            self.graph.repository.clock_check.wait()
        return commit


def writer(at: S3Location, ahead: timedelta = timedelta(), settings: Settings = DEFAULTS) -> Writer:
    clock = Wrong(ahead)
    repository = open_repository(at.uri, at.options, runtime=Runtime(clock=clock), settings=settings)
    return Writer(Graph(repository, Cost()), clock)


@pytest.fixture
def made(s3: S3Location) -> Repository:
    return init_repository(s3.uri, Schema(people()), s3.options, settings=Settings(maintenance=0))


on_s3 = pytest.mark.usefixtures("made")


@pytest.mark.s3
@on_s3
@pytest.mark.parametrize("ahead", [timedelta(minutes=6), timedelta(days=365)], ids=str)
def test_a_writer_that_is_far_ahead_is_refused_from_its_first_write_on(s3: S3Location, ahead: timedelta) -> None:
    wrong = writer(s3, ahead)

    with pytest.raises(ClockAhead, match="set the clock, or raise OMNIGRAPH_CLOCK_AHEAD_S above 300") as refused:
        wrong.write("first")

    assert abs(refused.value.ahead_s - ahead.total_seconds()) < 60
    assert writer(s3).graph.snapshot().to_arrow(PERSON)["id"].to_pylist() == []


@pytest.mark.s3
@on_s3
@pytest.mark.parametrize("ahead", [timedelta(), timedelta(minutes=4), timedelta(days=-365)], ids=str)
def test_a_clock_that_is_a_little_ahead_or_behind_is_nobodys_concern(s3: S3Location, ahead: timedelta) -> None:
    one = writer(s3, ahead)
    for name in ("a", "b", "c"):
        one.write(name)


@pytest.mark.s3
@on_s3
def test_a_writer_goes_on_when_its_clock_was_set(s3: S3Location) -> None:
    wrong = writer(s3, timedelta(hours=2))
    with pytest.raises(ClockAhead):
        wrong.write("first")
    wrong.clock.ahead = timedelta()

    with pytest.raises(ClockAhead):
        wrong.write("too soon")
    wrong.clock.passed_s += AGAIN_EVERY_S + 1

    assert wrong.write("later")


@pytest.mark.s3
@on_s3
def test_the_clocks_are_compared_again_after_an_hour(s3: S3Location) -> None:
    one = writer(s3)
    one.write("first")
    one.clock.ahead = timedelta(minutes=30)
    one.write("not compared")

    one.clock.passed_s += EVERY_S + 1
    one.write("compared")

    with pytest.raises(ClockAhead):
        one.write("refused")


@pytest.mark.s3
@on_s3
def test_comparing_costs_two_requests_beside_the_first_write_and_one_an_hour(
    s3_proxied: S3Location, proxy: Proxy
) -> None:
    one = writer(s3_proxied)
    with proxy.recording() as log:
        one.write("first")
    assert [request.method for request in log] == ["PUT", "HEAD", "PUT"]

    one.clock.passed_s += EVERY_S + 1
    one.graph.snapshot()
    with proxy.recording() as log:
        costs = [one.write(name).cost for name in ("a", "b", "c")]

    assert [request.method for request in log] == ["PUT", "HEAD", "PUT", "PUT"]
    assert [(cost.requests, cost.stages) for cost in costs] == [(1, 1)] * 3


@pytest.mark.s3
@on_s3
def test_who_only_reads_compares_nothing(s3_proxied: S3Location, proxy: Proxy) -> None:
    with proxy.recording() as log:
        open_repository(s3_proxied.uri, s3_proxied.options, settings=DEFAULTS).snapshot()

    assert not [request for request in log if request.method == "PUT"]


@pytest.mark.s3
@on_s3
@pytest.mark.parametrize("settings", [Settings(clock_ahead_s=0), Settings(maintenance=0)], ids=["0", "no maintenance"])
def test_the_comparison_can_be_turned_off(s3_proxied: S3Location, proxy: Proxy, settings: Settings) -> None:
    one = writer(s3_proxied, timedelta(days=365), settings)

    with proxy.recording() as log:
        for name in ("a", "b"):
            one.write(name)

    assert "HEAD" not in {request.method for request in log}


@pytest.mark.s3
@on_s3
def test_the_limit_is_a_setting(s3: S3Location) -> None:
    assert settings_from({"OMNIGRAPH_CLOCK_AHEAD_S": "7200"}).clock_ahead_s == 7200
    tolerant = writer(s3, timedelta(hours=1), Settings(clock_ahead_s=7200))
    for name in ("a", "b"):
        tolerant.write(name)


@pytest.mark.s3
@on_s3
def test_a_writer_whose_clock_is_right_goes_on_after_a_commit_from_the_future(s3: S3Location) -> None:
    """Its commits carry the time of the one from the future until that has come: times never fall along a branch."""
    future = writer(s3, timedelta(days=365), Settings(clock_ahead_s=0)).write("future")
    right = writer(s3)

    commits = [right.write(name) for name in ("a", "b")]

    assert [commit.commit.authored_at for commit in commits] == [future.commit.authored_at] * 2
    assert right.graph.snapshot().to_arrow(PERSON).num_rows == 3


def test_on_a_local_disk_there_is_nothing_to_compare(world: World) -> None:
    client = world.client("client")
    client.clock.pass_time(days=10 * 365)

    for name in ("ada", "bob"):
        client.insert(name)
