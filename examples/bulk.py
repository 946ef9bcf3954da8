"""Bulk data in, through and out on Spark: what `make run` shows last.

    python examples/bulk.py [PEOPLE]

Writes a file of people and whom they know, some lines of it broken, loads it as one atomic commit on a local Spark
session, asks it in process and on Spark, ranks everybody, writes the ranks back, and exports the graph as Parquet that
gives the same graph again.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import omnigraph
from omnigraph import ConstraintViolation, InvalidInput, OmnigraphError
from omnigraph.pipeline.spark.session import obtain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PEOPLE = 60_000
FRIENDS = 3
SCHEMA = """
node Person {
    slug: String @key
    city: enum(berlin, lagos, lima, osaka)
    age: I32?
    rank: F64?
    @range(age, 0..150)
}
edge Knows: Person -> Person { since: Date? }
"""
QUERIES = """
query by_city() {
    match { $p: Person  $p knows $f  $f.age >= 60 }
    return { $p.city as city, count($f) as friends_over_60 }
    order { city }
}
query top() {
    match { $p: Person }
    return { $p.slug, $p.city, $p.rank }
    order { $p.rank desc }
    limit 5
}
"""


def write_lines(path: Path, people: int) -> None:
    """One entity a line, edges before their nodes here and there: order means nothing."""
    dice = random.Random(5)
    with path.open("w") as file:
        for number in range(people):
            age = dice.randint(18, 90)
            data = {"slug": f"p{number}", "city": dice.choice(("berlin", "lagos", "lima", "osaka")), "age": age}
            file.write(json.dumps({"type": "Person", "data": data}) + "\n")
            for _ in range(FRIENDS):
                friend = int(people * dice.random() ** 3)  # a few are known by many
                file.write(json.dumps({"edge": "Knows", "from": f"p{number}", "to": f"p{friend}"}) + "\n")
        file.write('{"type": "Person", "data": {"slug": "methuselah", "city": "lima", "age": 969}}\n')
        file.write('{"edge": "Knows", "from": "p0", "to": "nobody"}\n')
        file.write("this is no JSON\n")


def main() -> None:
    people = int(sys.argv[1]) if len(sys.argv) > 1 else PEOPLE
    with tempfile.TemporaryDirectory(prefix="omnigraph-bulk-") as folder:
        root = Path(folder)
        lines = root / "people.jsonl"
        write_lines(lines, people)
        print(
            f"{lines.name}: {lines.stat().st_size / 2**20:.1f} MiB, {people * (1 + FRIENDS) + 3:,} lines, 3 of them bad"
        )
        print("\nStarting a local Spark session; only work that needs one pays for it …")
        with obtain() as session:
            walk(root, lines, session.spark)


def walk(root: Path, lines: Path, spark: SparkSession) -> None:
    graph = omnigraph.init(str(root / "graph"), schema=SCHEMA)
    print("\nA load takes everything or nothing:")
    try:
        graph.load(lines, engine="spark", spark=spark)
    except (ConstraintViolation, InvalidInput) as error:
        print(f"  refused: {error}")
        print(f"  rows in the graph: {rows(graph)}")
    print("\nWith a quarantine, everything that can be taken, still as one commit:")
    loaded = graph.load(lines, engine="spark", spark=spark, on_error="quarantine", job_id="people")
    assert loaded.commit is not None
    assert loaded.quarantine is not None
    print(f"  commit {loaded.commit.id}: {dict(loaded.counts)}, {loaded.rejected} rejected")
    for entry in map(json.loads, loaded.quarantine.read_text().splitlines()):
        print(f"  {entry['place']}: {entry['reasons'][0]}")
    print("\nThe same job started again is recognised, and not applied twice:")
    again = graph.load(lines, engine="spark", spark=spark, on_error="quarantine", job_id="people")
    assert again.commit is not None
    print(f"  commit {again.commit.id}, rows in the graph: {rows(graph):,}")

    print("\nOne query, two engines:")
    here = graph.query(QUERIES, "by_city")
    there = graph.query(QUERIES, "by_city", engine="spark", spark=spark)
    assert here.rows == there.rows
    for row in there.rows:
        print(f"  {row['city']:<8}{row['friends_over_60']:>8,}")

    print("\nPageRank over all edges, written back as a commit:")
    ranked = graph.analyze("pagerank", ["Knows"], write="Person.rank")
    assert ranked.commit is not None
    print(f"  commit {ranked.commit.id} {ranked.commit.touched}")
    for row in graph.query(QUERIES, "top").rows:
        print(f"  {row['p.slug']:<8}{row['p.city']:<8}{row['p.rank']:.6f}")

    print("\nOut as Parquet, back into an empty graph, and out again: the same graph.")
    graph.export(root / "dump", format="parquet", engine="spark", spark=spark)
    copy = omnigraph.init(str(root / "copy"), schema=SCHEMA)
    copy.load(root / "dump", engine="spark", spark=spark)
    for name, one in (("first", graph), ("second", copy)):
        one.export(root / f"{name}.jsonl")
    same = (root / "first.jsonl").read_bytes() == (root / "second.jsonl").read_bytes()
    print(f"  {rows(copy):,} rows, byte for byte the same export: {'yes' if same else 'NO'}")
    if not same:
        sys.exit(1)


def rows(graph: omnigraph.Graph) -> int:
    return sum(one.rows for one in graph.snapshot().types)


if __name__ == "__main__":
    try:
        main()
    except OmnigraphError as error:
        sys.exit(f"error: {error}")
