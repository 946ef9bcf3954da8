"""The input of the bulk benchmark: people and whom they know, as Parquet and as NDJSON; the same rows each time.

python -m bench.bulk_data FOLDER PEOPLE EDGES [LINES]: in a process of its own, so that it counts as nobody's memory.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

PEOPLE, EDGES = 1_000_000, 5_000_000

SCHEMA = """
node Person {
    slug: String @key
    name: String
    email: String @unique
    age: I32?
    role: enum(engineer, lead, ops)
    score: F64?
    joined: Date?
    @range(age, 0..150)
    @range(score, 0.0..1.0)
    @check(slug, "p[0-9]+")
}
edge Knows: Person -> Person @card(0..1000) {
    since: Date?
    weight: F64?
}
"""
_SYLLABLES = np.array(["ba", "lo", "mi", "ne", "ru", "sa", "ti", "vo", "ka", "du"])
_LINES = {
    "Person": """SELECT '{"type":"Person","data":' || to_json({'slug': slug, 'name': name, 'email': email, 'age': age,
        'role': role, 'score': score, 'joined': joined::VARCHAR})::VARCHAR || '}' FROM read_parquet(?)""",
    "Knows": """SELECT '{"edge":"Knows","from":"' || "from" || '","to":"' || "to" || '","data":' || to_json({
        'since': since::VARCHAR, 'weight': weight})::VARCHAR || '}' FROM read_parquet(?)""",
}


def people(count: int, rng: np.random.Generator) -> pa.Table:
    numbers = np.arange(count).astype(str)
    parts = [_SYLLABLES[rng.integers(0, 10, count)] for _ in range(4)]
    names = np.char.add(np.char.add(parts[0], parts[1]), np.char.add(np.char.add(" ", parts[2]), parts[3]))
    return pa.table(
        {
            "slug": pa.array(np.char.add("p", numbers)),
            "name": pa.array(names),
            "email": pa.array(np.char.add(np.char.add("m", numbers), "@example.org")),
            "age": pa.array(rng.integers(18, 90, count).astype(np.int32), mask=rng.random(count) < 0.1),
            "role": pa.array(np.array(["engineer", "lead", "ops"])[rng.integers(0, 3, count)]),
            "score": pa.array(np.round(rng.random(count), 6)),
            "joined": _days(count, rng),
        }
    )


def edges(count: int, among: int, rng: np.random.Generator) -> pa.Table:
    return pa.table(
        {
            "from": pa.array(np.char.add("p", rng.integers(0, among, count).astype(str))),
            "to": pa.array(np.char.add("p", rng.integers(0, among, count).astype(str))),
            "since": _days(count, rng),
            "weight": pa.array(np.round(rng.random(count), 4)),
        }
    )


def _days(count: int, rng: np.random.Generator) -> Any:
    return pa.array(rng.integers(14_000, 20_000, count).astype("datetime64[D]"))


def write_parquet(folder: Path, persons: int = PEOPLE, knows: int = EDGES) -> None:
    """One file a type, in row groups that a task can take by itself."""
    rng = np.random.default_rng(11)
    folder.mkdir(parents=True)
    pq.write_table(people(persons, rng), folder / "Person.parquet", row_group_size=250_000)
    with pq.ParquetWriter(folder / "Knows.parquet", edges(1, persons, rng).schema) as writer:
        for done in range(0, knows, 1_000_000):
            writer.write_table(edges(min(1_000_000, knows - done), persons, rng), row_group_size=500_000)


def write_ndjson(parquet: Path, path: Path) -> None:
    """The same rows, one entity a line, nodes first."""
    with duckdb.connect() as connection, path.open("wb") as file:
        for name, lines in _LINES.items():
            found: Any = connection.sql(lines, params=[str(parquet / f"{name}.parquet")])
            for batch in found.to_arrow_reader(100_000):
                file.write("\n".join(batch.column(0).to_pylist()).encode() + b"\n")


if __name__ == "__main__":
    write_parquet(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    if len(sys.argv) > 4:
        write_ndjson(Path(sys.argv[1]), Path(sys.argv[4]))
