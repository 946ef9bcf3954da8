"""A three-way merge against a plain full outer join of the three versions' ids and hashes, in one run.

python -m bench.merge [--rows N] [--share S] [--spark] [--report PATH]

The join is the least that a merge without knowledge of fragments would have to do: read every row of base, ours and
theirs, hash it, and join by id. Our merge does all of its work: decide, validate, stage and publish.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import omnigraph
from omnigraph.engine import Engine
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import Append, Upsert
from omnigraph.storage.table.table_content import make_content

SCHEMA = """
node Person { slug: String @key  name: String?  age: I64?  city: String?  score: F64? }
"""
KEY = "node:Person"
ROUNDS = 3
AIM = 2.0
JOIN = """
SELECT count(*) FROM base FULL OUTER JOIN ours ON base.id = ours.id
FULL OUTER JOIN theirs ON coalesce(base.id, ours.id) = theirs.id
WHERE base.h IS DISTINCT FROM ours.h OR base.h IS DISTINCT FROM theirs.h
"""
HASHED = "SELECT id, hash(slug, name, age, city, score) AS h FROM"


def people(ids: Any, dice: np.random.Generator) -> pa.Table:
    names = pa.array([f"person-{number:09d}" for number in ids.tolist()])
    return pa.table(
        {
            "id": names,
            "slug": names,
            "name": pa.array([f"name {number}" for number in ids.tolist()]),
            "age": pa.array(dice.integers(0, 100, len(ids))),
            "city": pa.array([f"city {number % 1000}" for number in ids.tolist()]),
            "score": pa.array(dice.random(len(ids))),
        }
    )


def make(place: Path, rows: int, share: float) -> tuple[Graph, int]:
    """A graph with two branches that have each changed their share of the rows, here and there."""
    dice = np.random.default_rng(7)
    graph = omnigraph.init(str(place), SCHEMA, {"fsync": "false"})
    graph.write([Append(KEY, people(np.arange(rows), dice), fresh_ids=True)])
    graph.branches.create("b")
    changed = max(1, int(rows * share))
    chosen = dice.permutation(rows)[: 2 * changed]
    for branch, ids in (("main", chosen[:changed]), ("b", chosen[changed:])):
        graph.write([Upsert(KEY, people(np.sort(ids), dice))], branch=branch)
    return graph, changed


def versions(graph: Graph) -> dict[str, Any]:
    """The three versions of the table, to be read whole."""
    base = graph.repository.manifests.read(graph.repository.branches.find("b").head.fork)  # type: ignore[arg-type]
    heads = {"base": base, "ours": graph.snapshot().pinned.manifest, "theirs": graph.snapshot("b").pinned.manifest}
    tables = graph.repository.tables
    found = {}
    for name, manifest in heads.items():
        ref = manifest.tables[KEY]  # type: ignore[union-attr]
        found[name] = tables.dataset(make_content(ref.stored, ref.tail))
    return found


def join_in_duckdb(graph: Graph) -> int:
    import duckdb

    with duckdb.connect() as connection:
        for name, dataset in versions(graph).items():
            connection.register(f"{name}_rows", dataset.scanner().to_reader())
            connection.execute(f"CREATE TABLE {name} AS {HASHED} {name}_rows")
        return int(connection.execute(JOIN).fetchall()[0][0])


def join_in_spark(graph: Graph, spark: Any, folder: Path) -> int:
    """The same on Spark, from Parquet files of the rows; writing those is not counted."""
    for name, dataset in versions(graph).items():
        import pyarrow.parquet as pq

        target = folder / f"{name}.parquet"
        if not target.exists():
            pq.write_table(dataset.to_table(), target)
    started = time.perf_counter()
    hashed = {
        name: spark.read.parquet(str(folder / f"{name}.parquet")).selectExpr(
            "id", f"xxhash64(slug, name, age, city, score) as {name}"
        )
        for name in ("base", "ours", "theirs")
    }
    joined = hashed["base"].join(hashed["ours"], "id", "full").join(hashed["theirs"], "id", "full")
    count = joined.where("not (base <=> ours) or not (base <=> theirs)").count()
    join_in_spark.seconds = time.perf_counter() - started  # type: ignore[attr-defined]
    return int(count)


def merge(graph: Graph, engine: Engine, spark: Any = None) -> None:
    """Into a branch of its own, so that it can be repeated."""
    name = f"into-{time.monotonic_ns()}"
    graph.branches.create(name)
    result = graph.branches.merge("b", name, engine=engine, spark=spark)
    assert result.commit is not None


def seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def compare(rows: int, share: float, with_spark: bool) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        graph, changed = make(Path(folder) / "graph", rows, share)
        assert join_in_duckdb(graph) == 2 * changed
        merge(graph, "local")
        pairs = [
            (seconds(lambda: merge(graph, "local")), seconds(lambda: join_in_duckdb(graph))) for _ in range(ROUNDS)
        ]
        found = {
            "merge": statistics.median(one for one, _ in pairs),
            "join": statistics.median(other for _, other in pairs),
        }
        if with_spark:
            found |= compare_on_spark(graph, changed, Path(folder))
        return found


def compare_on_spark(graph: Graph, changed: int, folder: Path) -> dict[str, float]:
    from omnigraph.pipeline.spark.session import obtain

    with obtain(memory="1g") as session:
        spark = session.spark
        times: list[tuple[float, float]] = []
        for _ in range(ROUNDS + 1):
            merging = seconds(lambda: merge(graph, "spark", spark))
            assert join_in_spark(graph, spark, folder) == 2 * changed
            times.append((merging, join_in_spark.seconds))  # type: ignore[attr-defined]
    return {
        "merge on Spark": statistics.median(one for one, _ in times[1:]),
        "join on Spark": statistics.median(other for _, other in times[1:]),
    }


def report(found: dict[str, float], rows: int, share: float) -> str:
    text = [
        "# Merges",
        "",
        "Written by `make bench`; do not edit. A three-way merge with all that belongs to it (decide, validate, stage,",
        "publish) beside a plain full outer join of the three versions' ids and hashes in the same engine and run.",
        "",
        f"{rows:,} rows, {share:.1%} changed on each side. Medians, in seconds of a shared machine.",
        "",
        "| engine | merge | full outer join | ratio | at most 2x |",
        "|---|---|---|---|---|",
    ]
    for engine, name in (("", "in this process, DuckDB"), (" on Spark", "Spark")):
        if f"merge{engine}" in found:
            ours, theirs = found[f"merge{engine}"], found[f"join{engine}"]
            met = "met" if ours <= AIM * theirs else "**missed**"
            text.append(f"| {name} | {ours:.2f} | {theirs:.2f} | {ours / theirs:.2f}x | {met} |")
    return "\n".join(text) + "\n"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    arguments.add_argument("--rows", type=int, default=1_000_000)
    arguments.add_argument("--share", type=float, default=0.01)
    arguments.add_argument("--spark", action="store_true")
    arguments.add_argument("--report", type=Path)
    given = arguments.parse_args()
    text = report(compare(given.rows, given.share, given.spark), given.rows, given.share)
    if given.report is not None:
        given.report.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
