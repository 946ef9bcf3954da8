"""Processes that write to one branch at once share it: nobody starves, nobody fails, nobody pays who is alone."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import omnigraph
from concurrency.virtual_time import World
from concurrency.workers import workers
from omnigraph.graph.graph import Graph
from omnigraph.maintenance.background import fold_due, folds_due
from omnigraph.manifest.commit.contention import RESERVE_AFTER_LOSSES
from omnigraph.manifest.commit.plan import Append
from omnigraph.manifest.commit.publish import PublishPolicy
from omnigraph.manifest.settings import HARD_LIMIT, Settings
from omnigraph.storage import meter
from support.catalogs import PERSON, people, person_rows
from support.proxy import Proxy
from support.s3 import S3Location
from support.soak import SoakReport

PROCESSES = 12
RTT_S = 0.02
SHARE_MAX = 3.0  # of the one that commits most, in shares of the one that commits least
SHARE_MAX_IF_BUSY = 8.0
LOSSES_MAX = 8 * RESERVE_AFTER_LOSSES
SETTLING_S = 2.0  # until those who were there first have noticed the others
WRITERS = 16


@dataclass
class Writer:
    """A process that commits one row after the other, and what came of it."""

    name: str
    world: World
    since_s: float = 0.0
    seconds: list[float] = field(default_factory=list)
    losses: list[int] = field(default_factory=list)

    def work(self, graph: Graph) -> None:
        number = 0
        while True:
            before = self.world.now_s
            row = person_rows(f"{self.name}-{number}")
            commit = graph.write([Append(PERSON, row, fresh_ids=True)], actor=self.name)
            assert commit is not None
            number += 1
            if self.world.now_s > self.since_s:
                self.seconds.append(self.world.now_s - before)
                self.losses.append(commit.cost.retries)


def writers_in(world: World, count: int, since_s: float = 0.0) -> list[Writer]:
    writers = [Writer(f"w{number:02d}", world, since_s) for number in range(count)]
    for writer in writers:
        world.spawn(writer.name, writer.work)
    return writers


@pytest.mark.parametrize("processes", [2, PROCESSES])
def test_equal_processes_get_about_equal_shares(tmp_path: Path, processes: int) -> None:
    world = World(tmp_path, people(), seed=processes, rtt_s=RTT_S)
    writers = writers_in(world, processes, SETTLING_S)

    world.run(SETTLING_S + 8.0)

    commits = [len(writer.seconds) for writer in writers]
    assert max(commits) <= SHARE_MAX * min(commits), sorted(commits)
    assert max(max(writer.losses) for writer in writers) <= LOSSES_MAX
    assert max(max(writer.seconds) for writer in writers) < PublishPolicy().time_limit_s / 10
    promised = sum(1 for commit in world.graph().commits(limit=None) if commit.kind != "init")
    assert promised >= sum(commits)


def test_a_writer_that_is_alone_loses_no_race_and_little_time(tmp_path: Path) -> None:
    world = World(tmp_path, people(), seed=1, rtt_s=RTT_S)
    (writer,) = writers_in(world, 1)

    world.run(8.0)

    possible = 8.0 / (world.rtt_s + world.compute_s)
    assert max(writer.losses) == 0
    assert len(writer.seconds) > 0.94 * possible


def test_a_process_that_comes_later_is_let_in(tmp_path: Path) -> None:
    """Behind one that has been alone for so long that it hardly leaves a gap."""
    world = World(tmp_path, people(), seed=1, rtt_s=RTT_S)
    writers_in(world, 1)
    late = Writer("late", world)

    def come_late(graph: Graph) -> None:
        world.pass_time(5.0)
        late.work(graph)

    world.spawn("late", come_late)
    world.run(10.0)

    assert late.seconds[0] < 3.0
    assert late.losses[0] <= LOSSES_MAX
    assert len(late.seconds) > 10


@contextmanager
def busy_threads(graph: Graph) -> Iterator[None]:
    """So many threads of one process commit one row after the other."""
    over = threading.Event()
    errors: list[BaseException] = []

    def work(name: str) -> None:
        try:
            number = 0
            while not over.is_set():
                graph.write([Append(PERSON, person_rows(f"{name}-{number}"), fresh_ids=True)])
                number += 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(f"t{number}",)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not errors, errors[0]


@pytest.mark.s3
@pytest.mark.parametrize("whose", ["own", "another"])
def test_a_fold_is_committed_behind_a_process_that_never_rests(
    s3_proxied: S3Location, proxy: Proxy, whose: str
) -> None:
    """Before the tail is so long that writers have to stop for it."""
    calm = Settings(maintenance=0)
    busy = omnigraph.init(s3_proxied.uri, people(), s3_proxied.options, settings=calm)
    other = busy if whose == "own" else omnigraph.open(s3_proxied.uri, s3_proxied.options, settings=calm)
    proxy.delay_s = RTT_S

    with busy_threads(busy):
        while not folds_due(head := other.begin().base, calm):
            time.sleep(0.1)
        with meter.operation("fold") as operation:
            landed = fold_due(other.repository, "main")
        proxy.delay_s = 0.0

    assert landed is not None
    assert landed.commit is not None
    assert operation.cost.retries <= (RESERVE_AFTER_LOSSES if whose == "own" else LOSSES_MAX)
    if whose == "own":  # those who write are those who fold: their tails stay far from the hard limit
        assert landed.commit.manifest_version - head.manifest_version < (HARD_LIMIT - 1) * calm.tail_manifests
    assert len(busy.snapshot().to_arrow(PERSON)) == busy.snapshot().types[0].rows


@pytest.mark.soak
@pytest.mark.alone
@pytest.mark.s3
def test_twelve_processes_share_a_branch(s3: S3Location, proxy: Proxy, soak_report: SoakReport) -> None:
    omnigraph.init(s3.uri, people(), s3.options)
    distant = s3.via(proxy.endpoint)
    seconds = 60.0
    with workers(PROCESSES, distant.uri, distant.options) as processes:
        for number, process in enumerate(processes):
            process.call("insert_for", name=f"warm{number}", seconds=0.01)
        proxy.delay_s = RTT_S
        load = os.getloadavg()[0]
        for number, process in enumerate(processes):
            process.ask("insert_for", name=f"w{number:02d}", seconds=seconds)
        answers = [process.answer() for process in processes]

    assert not [answer for answer in answers if "raised" in answer], "nobody fails"
    commits = sorted(len(answer["seconds"]) for answer in answers)
    losses = [lost for answer in answers for lost in answer["losses"]]
    slowest = max(max(answer["seconds"]) for answer in answers)
    soak_report.line(
        f"{PROCESSES} processes with one writer each on one branch for {seconds:.0f} s, every request "
        f"{RTT_S * 1000:.0f} ms on its way: {sum(commits) / seconds:.1f} commits/s, {commits[0]} to {commits[-1]} a "
        f"process, {statistics.median(commits):.0f} in the middle; {statistics.mean(losses):.1f} lost races a commit, "
        f"{max(losses)} at most; slowest commit {slowest:.1f} s; load {load:.0f} on {os.cpu_count()} processors."
    )
    assert commits[-1] <= SHARE_MAX_IF_BUSY * commits[0], commits
    assert max(losses) <= 2 * LOSSES_MAX
    assert slowest < PublishPolicy().time_limit_s
