"""A hundred clients at once: no error but honest 429s, nothing lost, memory that does not grow."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import omnigraph
from omnigraph.graph.graph import Graph
from support.http_load import BRANCHES, CLIENTS, Tally, drive, percentile
from support.server import PEOPLE, QUICK, ServerProcess
from support.soak import SoakReport

WARM = 0.4  # of the time, after which memory has to stay as it is
GROWTH_MAX = 1.15


@pytest.mark.parametrize(
    "seconds",
    [
        10,
        pytest.param(60, marks=pytest.mark.soak),
        pytest.param(300, marks=[pytest.mark.soak, pytest.mark.timeout(1200)]),
    ],
)
def test_a_hundred_clients_half_writing_to_twenty_branches(
    seconds: int, graph: Graph, store: Path, soak_report: SoakReport
) -> None:
    for number in range(BRANCHES):
        graph.branches.create(f"load/{number}")
    with ServerProcess("--store", str(store), "--storage-option", "fsync=false") as server:
        tally = asyncio.run(drive(server.url, seconds, server.process.pid))
        bugs = [line for line in server.log if line.get("status", 0) >= 500 or "exception" in line]

    assert bugs == []
    assert tally.wrong == []
    assert set(tally.statuses) <= {200, 429}
    assert tally.writes_ms
    assert tally.reads_ms
    _require_nothing_lost(store, tally)
    warm = tally.memory_mib[int(len(tally.memory_mib) * WARM) :]
    if seconds >= 60:
        assert max(warm[-5:]) < GROWTH_MAX * min(warm[:5]), tally.memory_mib
    _report(soak_report, seconds, tally)


def _require_nothing_lost(store: Path, tally: Tally) -> None:
    graph = omnigraph.open(store, QUICK)
    for branch, known in tally.acknowledged.items():
        rows = {row["slug"] for row in graph.query(PEOPLE, branch=branch).rows}
        commits = [commit.id for commit in graph.commits(branch, limit=None)]
        assert len(commits) == len(set(commits))
        assert {slug for slug, _ in known} <= rows
        assert {commit for _, commit in known} <= set(commits)


def _report(report: SoakReport, seconds: int, tally: Tally) -> None:
    refused = tally.statuses[429]
    at = [
        tally.memory_mib[min(len(tally.memory_mib) - 1, int(len(tally.memory_mib) * share))] for share in (0, WARM, 1)
    ]
    report.line(
        f"{CLIENTS} clients for {seconds} s, {refused} answers of 429; the server's memory: {at[0]:.0f} MiB at the"
    )
    report.line(f"start, {at[1]:.0f} when it was warm, {at[2]:.0f} at the end.")
    rows = [
        (name, f"{rate:,.0f}", *(f"{percentile(spent, share):.0f} ms" for share in (0.5, 0.99)))
        for name, rate, spent in (
            ("writes", tally.writes_a_second, tally.writes_ms),
            ("point queries", tally.reads_a_second, tally.reads_ms),
        )
    ]
    report.table(("", "a second", "p50", "p99"), rows)
