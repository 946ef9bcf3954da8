"""Throughput on a store with latency: writers of one process that meet share their puts."""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import dataclass

import pytest

import omnigraph
from concurrency.workers import workers
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.publish import PublishPolicy
from support.catalogs import people
from support.proxy import Proxy
from support.s3 import S3Location
from support.soak import SoakReport

SCHEMA = """
node Note { text: String  stars: I32? }
node Person { name: String @key  age: I32? }
"""
NOTE = "query add($text: String) { insert Note { text: $text } }"
PERSON = "query add($text: String) { insert Person { name: $text, age: 36 } }"
RTT_S = 0.02
WRITERS = 64
TIMES_ONE_WRITER = 20
PROCESSES, COMMITS_EACH = 12, 50


@dataclass(frozen=True)
class Measured:
    commits: int
    seconds: float
    slowest_s: float
    of_each: list[int]
    puts: int
    requests: int

    @property
    def per_second(self) -> float:
        return self.commits / self.seconds


def write_for(graph: Graph, proxy: Proxy, text: str, writers: int, seconds: float, prefix: str) -> Measured:
    """So many threads write one row after another, each commit on its own, for so long."""
    counts, slowest = [0] * writers, [0.0] * writers
    errors: list[BaseException] = []
    begin, until = threading.Barrier(writers + 1), [0.0]

    def run(number: int) -> None:
        try:
            begin.wait()
            while (before := time.monotonic()) < until[0]:
                commit = graph.mutate(text, params={"text": f"{prefix}-{number}-{counts[number]}"}, actor=f"w{number}")
                assert commit is not None
                slowest[number] = max(slowest[number], time.monotonic() - before)
                counts[number] += 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    with proxy.recording() as log:
        started = time.monotonic()
        until[0] = started + seconds
        begin.wait()
        for thread in threads:
            thread.join()
        took = time.monotonic() - started
    assert not errors, errors[0]
    return Measured(sum(counts), took, max(slowest), counts, log.count("PUT", "__manifest"), len(log))


@pytest.fixture
def distant(s3: S3Location, s3_proxied: S3Location, proxy: Proxy) -> Graph:
    """A graph twenty milliseconds away."""
    omnigraph.init(s3.uri, SCHEMA, s3.options)
    graph = omnigraph.open(s3_proxied.uri, s3_proxied.options)
    graph.mutate(NOTE, params={"text": "first"})
    graph.mutate(PERSON, params={"text": "first"})
    proxy.delay_s = RTT_S
    return graph


@pytest.mark.s3
def test_of_64_writers_in_one_process_at_least_20_share_a_put(distant: Graph, proxy: Proxy) -> None:
    """So they get 20 times as much done as one, where they wait for the store and not for a processor (see soak).

    The store is so far away that a busy processor does not decide who comes in time for the next put.
    """
    proxy.delay_s = 5 * RTT_S
    alone = write_for(distant, proxy, NOTE, 1, 1.0, "alone")
    crowd = write_for(distant, proxy, NOTE, WRITERS, 3.0, "crowd")

    assert alone.puts >= alone.commits
    assert crowd.commits >= TIMES_ONE_WRITER * crowd.puts, (alone, crowd)
    assert crowd.per_second >= TIMES_ONE_WRITER / 4 * alone.per_second, (alone, crowd)
    assert min(crowd.of_each) > statistics.mean(crowd.of_each) / 2, "nobody starves"
    rows = {entry.type_name: entry.rows for entry in distant.snapshot().types}
    assert rows["Note"] == 1 + alone.commits + crowd.commits


@pytest.mark.soak
@pytest.mark.alone
@pytest.mark.s3
def test_the_throughput_of_writers_that_meet(distant: Graph, proxy: Proxy, soak_report: SoakReport) -> None:
    rows = []
    for what, text in (("a new row", NOTE), ("a keyed row", PERSON)):
        alone = write_for(distant, proxy, text, 1, 10.0, "alone")
        for writers in (1, 8, 64, 256):
            found = alone if writers == 1 else write_for(distant, proxy, text, writers, 10.0, f"of-{writers}")
            times = found.per_second / alone.per_second
            per_put = found.commits / max(found.puts, 1)
            fair = f"{min(found.of_each)} to {max(found.of_each)}"
            slowest = f"{found.slowest_s * 1000:.0f}"
            rows.append((what, writers, f"{found.per_second:.0f}", f"{times:.1f}", f"{per_put:.1f}", fair, slowest))
            if writers == WRITERS and text == NOTE:
                assert times >= TIMES_ONE_WRITER
    soak_report.line(f"Writers in one process on one branch, every request {RTT_S * 1000:.0f} ms on its way.")
    soak_report.table(
        ("each commit", "writers", "commits/s", "times one", "commits a put", "of each writer", "slowest ms"), rows
    )


@pytest.mark.soak
@pytest.mark.alone
@pytest.mark.s3
def test_twelve_processes_all_get_through(s3: S3Location, proxy: Proxy, soak_report: SoakReport) -> None:
    omnigraph.init(s3.uri, people(), s3.options)
    proxy.delay_s = RTT_S
    distant = s3.via(proxy.endpoint)
    with workers(PROCESSES, distant.uri, distant.options) as writers:
        started = time.monotonic()
        for number, writer in enumerate(writers):
            writer.ask("insert_many", name=f"w{number:02d}", commits=COMMITS_EACH, fresh_ids=True)
        answers = [writer.answer() for writer in writers]
        seconds = time.monotonic() - started

    rows = {entry.type_name: entry.rows for entry in omnigraph.open(s3.uri, s3.options).snapshot().types}
    assert rows["Person"] == PROCESSES * COMMITS_EACH, "none is lost, none is there twice"
    slowest = max(max(answer["seconds"]) for answer in answers)
    assert slowest < PublishPolicy().time_limit_s / 2
    finished, losses = [answer["total_s"] for answer in answers], [sum(answer["losses"]) for answer in answers]
    soak_report.line(
        f"{PROCESSES} processes with one writer each on one branch, every request {RTT_S * 1000:.0f} ms on its way: "
        f"{PROCESSES * COMMITS_EACH / seconds:.1f} commits/s; the first is done after {min(finished):.0f} s, the last "
        f"after {max(finished):.0f} s; {sum(losses) / PROCESSES / COMMITS_EACH:.1f} lost races a commit, "
        f"{max(max(answer['losses']) for answer in answers)} at most; slowest commit {slowest:.1f} s."
    )
