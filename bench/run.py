"""Measure everything in one run and write the report.

python -m bench.run [--report PATH] [--scale S]
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import omnigraph
from bench.engines import Answer, Call, DuckDb, Ladybug, LanceDb, Tables, agree, our_text, ours, starts
from bench.graph import generate, load
from bench.queries import BUCKET, GRAPH_QUERIES, SEARCH_AIM, SEARCHES, TEXT
from bench.timing import dominates, medians_ms, parts_ms, timed_ms
from omnigraph.graph.graph import Graph
from omnigraph.query.compile import compile_queries
from omnigraph.read.execute import run_query
from omnigraph.read.graph.adjacency_file import save_adjacency
from omnigraph.read.reader import SnapshotReader
from omnigraph.read.tables.resident_table import ResidentTable
from omnigraph.read.tables.table_access import get_adjacency
from omnigraph.storage import meter

MIB = 1 << 20
OURS = "omnigraph"
FIRST_TIMES = 3
FIRST_CALLS = ("one hop + filter", "1..3 hops, distinct count, hub", "join + group + top 10 over everything")


@dataclass
class Measured:
    """What was found out about one question. `aims` are upper bounds of our time in a peer's."""

    label: str
    ms: dict[str, float]
    aims: dict[str, float]
    same: str
    phases: dict[str, float] = field(default_factory=dict)
    profile: str = ""

    def ratio(self, peer: str) -> float:
        return self.ms[peer] / self.ms[OURS]

    def misses(self) -> list[str]:
        """Which aims are missed, as text."""
        found = []
        for peer, bound in self.aims.items():
            if peer not in self.ms or self.ms[OURS] <= bound * self.ms[peer]:
                continue
            if bound < 1:
                how = "faster, but" if self.ms[OURS] < self.ms[peer] else "slower:"
                found.append(f"{how} {self.ratio(peer):.2g}x where {1 / bound:.0f}x is the aim ({peer})")
            else:
                found.append(f"{1 / self.ratio(peer):.2g}x the time of {peer}, where {bound:.0f}x is allowed")
        return found


@dataclass
class Report:
    """All that goes into docs/bench.md."""

    versions: dict[str, str]
    scale: float
    loads: dict[str, float] = field(default_factory=dict)
    graph: list[Measured] = field(default_factory=list)
    search: list[Measured] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    first: list[tuple[str, float, int]] = field(default_factory=list)
    held: list[tuple[str, str]] = field(default_factory=list)
    load_average: tuple[float, float] = (0.0, 0.0)
    seconds: float = 0.0


def phases_ms(graph: Graph, text: Callable[[], str], params: dict[str, Any]) -> dict[str, float]:
    """What `Graph.query` does, timed between its steps."""
    repository, clock = graph.repository, time.perf_counter

    def call() -> dict[str, float]:
        sent, moments = text(), [clock()]
        with meter.operation("query"):
            moments.append(clock())
            pinned = repository.snapshot()
            moments.append(clock())
            compiled = compile_queries(sent, pinned.catalog, None, schema_hash=pinned.manifest.schema)
            bound = compiled.bind_read(params, now=repository.runtime.clock.now())
            moments.append(clock())
            result = run_query(
                SnapshotReader(repository.tables, pinned, graph._read_caches, store=repository.store), bound
            )
            moments.append(clock())
        moments.append(clock())
        assert isinstance(result.rows, list)
        moments.append(clock())
        took = [(after - before) * 1000 for before, after in itertools.pairwise(moments)]
        return {"head": took[1], "plan": took[2], "run": took[3], "rows": took[5], "meter": took[0] + took[4]}

    return parts_ms(call)


def measure_graph(report: Report, graph: Graph, peers: list[Any], who: dict[str, str]) -> None:
    for question in reversed(GRAPH_QUERIES):  # warm means that what a query buys once it is asked often is bought
        try:
            ours(graph, question, who[question.start])()
        except Exception:
            continue  # said below
    for question in GRAPH_QUERIES:
        start = who[question.start]
        calls: dict[str, Call] = {OURS: ours(graph, question, start)}
        try:
            answer = calls[OURS]()
        except Exception as failure:
            report.left_out.append(f"{question.label}: {type(failure).__name__}: {failure}")
            continue
        wrong = []
        for peer in peers:
            ways = peer.calls(question, start)
            wrong += [peer.name for way in ways if not agree(question, answer, way())]
            calls[peer.name] = _fastest(ways)
        ms = medians_ms(calls)
        params = {"s": start} if question.start else {}
        same = "yes" if not wrong else f"no: {', '.join(sorted(set(wrong)))}"
        phases = phases_ms(graph, partial(our_text, question), params)
        measured = Measured(question.label, ms, question.aims, same, phases)
        if measured.misses():
            measured.profile = dominates(calls[OURS])
        report.graph.append(measured)
        say(f"{question.label}: {rounded(ms)}; same: {same}; {answer[:1]}")


def _fastest(ways: list[Call]) -> Call:
    if len(ways) == 1:
        return ways[0]
    found = medians_ms({str(number): way for number, way in enumerate(ways)}, seconds=0.05, warm=1)
    return ways[int(min(found, key=lambda name: found[name]))]


def measure_search(report: Report, graph: Graph, lancedb: LanceDb, documents: pa.Table) -> None:
    _, vector = _vectors(documents)
    theirs = lancedb.calls(vector.tolist())
    values = references(documents, lancedb.scores())
    for label, text in SEARCHES.items():
        params: dict[str, Any] = {}
        if "$v:" in text:
            params["v"] = vector.tolist()
        if "$t:" in text:
            params["t"] = TEXT

        def call(text: str = text, params: dict[str, Any] = params) -> Answer:
            return [tuple(row.values()) for row in graph.query(text, params=params).rows]

        try:
            answer = [slug for (slug,) in call()]
        except Exception as failure:
            report.left_out.append(f"{label}: {type(failure).__name__}: {failure}")
            say(f"{label}: left out: {failure}")
            continue
        value = values[label]
        tenth = sorted(value.values())[-10]
        right = [
            sum(value.get(slug, -1.0) >= tenth - 1e-9 for slug in set(found))
            for found in (answer, [slug for (slug,) in theirs[label]()])
        ]
        same = f"{right[0]} of 10, {lancedb.name} {right[1]}"
        ms = medians_ms({OURS: call, lancedb.name: theirs[label]})
        phases = phases_ms(graph, partial(str, text), params)
        measured = Measured(label, ms, {lancedb.name: SEARCH_AIM}, same, phases)
        if measured.misses():
            measured.profile = dominates(call)
        report.search.append(measured)
        say(f"{label}: {rounded(ms)}; same: {same}")


def _vectors(documents: pa.Table) -> tuple[Any, Any]:
    column: Any = documents.column("meaning").combine_chunks()
    vectors = np.asarray(column.values).reshape(documents.num_rows, -1).astype(np.float64)
    return vectors, (vectors[17] + 0.1).astype(np.float32)


def references(documents: pa.Table, words: dict[str, float]) -> dict[str, dict[str, float]]:
    """How good each document is for each search, computed over all of them; more is better."""
    vectors, vector = _vectors(documents)
    wanted = vector.astype(np.float64)
    slugs: list[Any] = documents.column("slug").to_pylist()
    closeness = (vectors @ wanted / np.linalg.norm(vectors, axis=1) / np.linalg.norm(wanted)).tolist()
    near = dict(zip(slugs, closeness, strict=True))
    buckets: list[Any] = documents.column("bucket").to_pylist()
    fused = dict.fromkeys(slugs, 0.0)
    for rank in (near, words):
        for place, slug in enumerate(sorted(rank, key=lambda slug: (-rank[slug], slug)), 1):
            fused[slug] += 1 / (60 + place)
    return {
        "bm25 top 10": words,
        "vector top 10": near,
        "vector top 10 of 1 %": {s: near[s] for s, bucket in zip(slugs, buckets, strict=True) if bucket == BUCKET},
        "hybrid by RRF, top 10": fused,
    }


def measure_first_calls(report: Report, uri: str, hub: str) -> None:
    """The first call of an opened graph, nothing in memory; the store's files are in the system's cache."""

    for question in GRAPH_QUERIES:
        if question.label not in FIRST_CALLS:
            continue
        found: dict[str, list[tuple[float, int]]] = {}
        for _ in range(FIRST_TIMES):
            for where in ("absent", "on storage", "in memory"):
                saved = _adjacencies(omnigraph.open(uri), save=True) if where == "on storage" else []
                graph = omnigraph.open(uri)
                if where == "in memory":
                    _adjacencies(graph)
                taken = timed_ms(ours(graph, question, hub))
                found.setdefault(where, []).append((taken, graph._read_caches.counts.bytes_held))
                for key in saved:
                    graph.repository.store.delete(key)
        for where, calls in found.items():
            taken = statistics.median(taken for taken, _ in calls)
            report.first.append((f"{question.label}, adjacency {where}", taken, calls[0][1]))


def _adjacencies(graph: Graph, *, save: bool = False) -> list[str]:
    """Have the adjacencies of both edge tables in the graph's memory; with `save` also on storage, answers where."""
    repository = graph.repository
    reader = SnapshotReader(repository.tables, repository.snapshot(), graph._read_caches, store=repository.store)
    keys = []
    for edge, target_key in (("edge:Knows", "node:Person"), ("edge:WorksAt", "node:Company")):
        edges, source, target = (
            ResidentTable(reader.tables, reader.caches, reader.state(key)) for key in (edge, "node:Person", target_key)
        )
        adjacency = get_adjacency(reader, edges, source, target)
        if save:
            keys.append(save_adjacency(repository.store, adjacency, edges, source, target))
    return keys


def measure_held(report: Report, graph: Graph, uri: str) -> None:
    fresh = omnigraph.open(uri)
    _adjacencies(fresh)
    held = fresh._read_caches.counts.bytes_held
    report.held.append(("both adjacencies, each in both directions, with the ids they number", f"{held / MIB:.0f} MiB"))
    counts = graph._read_caches.counts
    report.held.append(("after all of the questions above", f"{counts.bytes_held / MIB:.0f} MiB"))
    report.held.append(("entries forgotten by then", str(counts.forgotten)))
    report.held.append(("the bound", f"{graph._read_caches.bytes_max / MIB:.0f} MiB"))


def rounded(ms: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in ms.items())


def say(text: str) -> None:
    print(text, flush=True)


def run(scale: float, directory: Path) -> Report:
    began, load_before = time.perf_counter(), os.getloadavg()[0]
    tables: Tables = generate(scale)
    uri = str(directory / "graph")
    report = Report({OURS: omnigraph.__version__}, scale)
    report.loads[OURS] = timed_ms(lambda: load(uri, dict(tables))) / 1000
    made: list[Any] = []
    for name, make in (
        ("ladybug", lambda: made.append(Ladybug(tables, directory))),
        ("DuckDB", lambda: made.append(DuckDb(tables))),
        ("lancedb", lambda: made.append(LanceDb(tables["node:Document"].drop_columns(["id"]), directory))),
    ):
        report.loads[name] = timed_ms(make) / 1000
        report.versions[name] = made[-1].version
        say(f"{name} loaded in {report.loads[name]:.1f} s")
    who = starts(tables)
    measure_first_calls(report, uri, who["hub"])
    graph = omnigraph.open(uri)
    measure_graph(report, graph, made[:2], who)
    measure_search(report, graph, made[2], tables["node:Document"])
    measure_held(report, graph, uri)
    report.load_average = (load_before, os.getloadavg()[0])
    report.seconds = time.perf_counter() - began
    return report


def main() -> None:
    from bench.report import written

    options = argparse.ArgumentParser()
    options.add_argument("--report", type=Path, default=Path("docs/bench.md"))
    options.add_argument("--scale", type=float, default=1.0)
    given = options.parse_args()
    for variable in ("LANCE_LOG", "LANCEDB_LOG", "RUST_LOG"):  # they warn of empty partitions, and of their future
        os.environ.setdefault(variable, "error")
    with tempfile.TemporaryDirectory(prefix="omnigraph-bench-") as directory:
        report = run(given.scale, Path(directory))
    given.report.write_text(written(report), encoding="utf-8")
    say(f"bench: see {given.report}")


if __name__ == "__main__":
    main()
