"""Bulk loads in CPU seconds of driver, JVM and workers, beside one process without Spark; writes docs/bench-bulk.md.

python -m bench.bulk [--report PATH] [--scale S] [--largest M]

Everything is measured in one run after one warm-up Python job. CPU seconds, not time: the machine is shared.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import omnigraph
from bench.bulk_data import EDGES, PEOPLE, SCHEMA
from bench.cpu import forget_peak, peak_mib, tree_cpu_s

LARGER = 4  # times the edges


@dataclass
class Load:
    """One load: its CPU seconds, by phase where it says so, and what the driver held at most."""

    cpu_s: float
    phases: Mapping[str, float] = field(default_factory=dict)
    driver_mib: float = 0.0


def measured(work: Callable[[], Any]) -> Load:
    forget_peak()
    before = tree_cpu_s()
    answer = work()
    return Load(tree_cpu_s() - before, getattr(answer, "phases", {}) or {}, peak_mib())


def generate(folder: Path, persons: int, knows: int, *lines: Path) -> None:
    numbers = [str(persons), str(knows)]
    subprocess.run([sys.executable, "-m", "bench.bulk_data", str(folder), *numbers, *map(str, lines)], check=True)


def peer(which: str, source: Path, scratch: Path) -> Load:
    out = scratch / f"peer-{which}"
    command = [sys.executable, "-m", "bench.bulk_peers", which, str(source), str(out)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    shutil.rmtree(out)
    phases = json.loads(said)
    return Load(sum(phases.values()), phases)


def ours(source: Path, scratch: Path, spark: Any, expected: int) -> Load:
    place = scratch / "graph"
    graph = omnigraph.init(str(place), SCHEMA)
    load = measured(lambda: graph.load(str(source), engine="spark", spark=spark))
    rows = sum(one.rows for one in graph.snapshot().types)
    assert rows == expected, f"{rows} rows, expected {expected}"
    shutil.rmtree(place)
    return load


def spark_copies(source: Path, scratch: Path, spark: Any) -> Load:
    """Spark alone: it reads that Parquet and writes Parquet, and checks nothing."""
    out = scratch / "copy"

    def copy() -> None:
        for name in ("Person", "Knows"):
            spark.read.parquet(str(source / f"{name}.parquet")).write.parquet(str(out / name))

    load = measured(copy)
    shutil.rmtree(out)
    return load


def warm(spark: Any) -> None:
    """One Python job: the workers are there, and have imported what every task uses."""

    def task(number: int) -> int:
        import duckdb  # noqa: F401
        import lance  # noqa: F401
        import pyarrow.parquet  # noqa: F401

        return number

    spark.sparkContext.parallelize(range(8), 8).map(task).collect()


def run(scale: float, largest: int) -> dict[str, Load]:
    from omnigraph.pipeline.spark.session import obtain

    persons, knows = int(PEOPLE * scale), int(EDGES * scale)
    found: dict[str, Load] = {}
    with tempfile.TemporaryDirectory(prefix="omnigraph-bulk-") as folder:
        scratch = Path(folder)
        parquet, lines = scratch / "parquet", scratch / "all.jsonl"
        generate(parquet, persons, knows, lines)
        found["floor"] = peer("floor", parquet, scratch)
        found["one process, Parquet"] = peer("parquet", parquet, scratch)
        found["one process, NDJSON"] = peer("ndjson", lines, scratch)
        with obtain() as session:
            spark = session.spark
            warm(spark)
            found["omnigraph, Parquet"] = ours(parquet, scratch, spark, persons + knows)
            found["omnigraph, NDJSON"] = ours(lines, scratch, spark, persons + knows)
            found["Spark, Parquet to Parquet"] = spark_copies(parquet, scratch, spark)
            lines.unlink()
            larger = scratch / "larger"
            generate(larger, persons, knows * largest)
            found["omnigraph, more edges"] = ours(larger, scratch, spark, persons + knows * largest)
    return found


def report(found: Mapping[str, Load], scale: float, largest: int) -> str:
    def ratio(one: str, other: str) -> float:
        return found[one].cpu_s / found[other].cpu_s

    def verdict(value: float, allowed: float) -> str:
        return "met" if value <= allowed else "**missed**"

    parquet, lines = (
        ratio("omnigraph, Parquet", "one process, Parquet"),
        ratio("omnigraph, NDJSON", "one process, NDJSON"),
    )
    spark = ratio("omnigraph, Parquet", "Spark, Parquet to Parquet")
    growth = ratio("omnigraph, more edges", "omnigraph, Parquet")
    rows_growth = (PEOPLE + EDGES * largest) / (PEOPLE + EDGES)
    held, held_more = found["omnigraph, Parquet"].driver_mib, found["omnigraph, more edges"].driver_mib
    text = [
        "# Bulk loads",
        "",
        "Written by `make bench`; do not edit. CPU seconds of driver, JVM and workers, after one warm-up Python job,",
        f"all in one run: {int(PEOPLE * scale):,} nodes, {int(EDGES * scale):,} edges, all constraints checked (key,",
        "unique, required, enum, range, check, ends, cardinality, ids), on a local disk with fsync. A shared machine.",
        "",
        "| load | CPU s | share of the floor | phases |",
        "|---|---|---|---|",
    ]
    for name, load in found.items():
        phases = ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in load.phases.items())
        text.append(f"| {name} | {load.cpu_s:.1f} | {load.cpu_s / found['floor'].cpu_s:.1f}x | {phases} |")
    text += [
        "",
        "The floor is `lance.write_dataset` of the same typed Arrow in memory. One process is pyarrow or DuckDB for",
        "the decode, DuckDB for the checks, Lance for the write, no Spark (`bench/bulk_peers.py`).",
        "",
        "| aim | found | |",
        "|---|---|---|",
        f"| from Parquet at most 2x of one process | {parquet:.2f}x | {verdict(parquet, 2)} |",
        f"| from Parquet cheaper than Spark copying that Parquet | {spark:.2f}x | {verdict(spark, 1)} |",
        f"| from NDJSON at most 2x of one process with DuckDB | {lines:.2f}x | {verdict(lines, 2)} |",
        f"| {int(EDGES * scale * largest):,} edges: CPU grows linearly, within 1.5x |"
        f" {growth:.2f}x for {rows_growth:.2f}x the rows | {verdict(growth / rows_growth, 1.5)} |",
        f"| … and the driver's memory stays flat | {held:.0f} → {held_more:.0f} MiB |"
        f" {verdict(held_more / held, 1.25)} |",
        "",
    ]
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--report", type=Path)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--largest", type=int, default=LARGER)
    chosen = parser.parse_args()
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    text = report(run(chosen.scale, chosen.largest), chosen.scale, chosen.largest)
    if chosen.report is not None:
        chosen.report.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
