"""A query on Spark that is stopped, by a deadline or because its caller went away, leaves no job behind."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

import omnigraph
from omnigraph.cancellation import Stopped, StopToken, stop_scope

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

NODES = 1_500
# Billions of rows to count: hours of work.
ENDLESS = "query q() { match { $a: Item  $b: Item  $c: Item  $a.n <= $b.n  $b.n <= $c.n } return { count($a) as n } }"


def test_a_stopped_query_ends_its_jobs_on_spark(spark: Any, tmp_path: Path) -> None:
    graph = omnigraph.init(tmp_path / "graph", "node Item { n: I64 }")
    graph.load([{"type": "Item", "data": {"n": n}} for n in range(NODES)])
    stop = StopToken()
    active = spark.sparkContext.statusTracker().getActiveJobsIds

    def when_it_runs() -> None:
        while not active():
            time.sleep(0.05)
        stop.set(Stopped("it ran long enough", "ask for less"))

    timer = Timer(0, when_it_runs)
    timer.start()
    with pytest.raises(Stopped, match="long enough"), stop_scope(stop):
        graph.query(ENDLESS, engine="spark", spark=spark)
    timer.join()

    until = time.monotonic() + 20
    while active() and time.monotonic() < until:
        time.sleep(0.1)
    assert active() == []
