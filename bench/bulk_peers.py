"""What a bulk load is measured against: the same decode, checks and write by one process without Spark.

python -m bench.bulk_peers (floor|parquet|ndjson) INPUT OUT: prints the CPU seconds of each phase as JSON. Imports and
start-up are not counted: a load is measured after a warm-up too.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import lance
import pyarrow as pa
import pyarrow.parquet as pq

ROLES = ("engineer", "lead", "ops")
# Each finds rows that break something; all are to find none.
CHECKS = {
    "id once": "SELECT id FROM person GROUP BY id HAVING count(*) > 1",
    "email unique": "SELECT email FROM person WHERE email IS NOT NULL GROUP BY email HAVING count(*) > 1",
    "required": "SELECT id FROM person WHERE id IS NULL OR name IS NULL OR email IS NULL OR role IS NULL",
    "enum": f"SELECT id FROM person WHERE role NOT IN {ROLES}",
    "range": "SELECT id FROM person WHERE age < 0 OR age > 150",
    "score": "SELECT id FROM person WHERE NOT (score >= 0.0 AND score <= 1.0)",
    "check": "SELECT id FROM person WHERE NOT regexp_full_match(slug, 'p[0-9]+')",
    "edge id once": "SELECT id FROM knows GROUP BY id HAVING count(*) > 1",
    "from": "SELECT src FROM knows ANTI JOIN person ON src = person.id",
    "to": "SELECT dst FROM knows ANTI JOIN person ON dst = person.id",
    "card": "SELECT src FROM knows GROUP BY src HAVING count(*) > 1000",
}
PERSON = """SELECT slug AS id, slug, name, email, age, role, score, joined FROM ({source})"""
KNOWS = """SELECT printf('01%024d', row_number() OVER ()) AS id, "from" AS src, "to" AS dst, since, weight
    FROM ({source})"""
_JSON_PERSON = """SELECT data->>'$.slug' AS slug, data->>'$.name' AS name, data->>'$.email' AS email,
    TRY_CAST(data->>'$.age' AS INTEGER) AS age, data->>'$.role' AS role, TRY_CAST(data->>'$.score' AS DOUBLE) AS score,
    TRY_CAST(data->>'$.joined' AS DATE) AS joined FROM lines WHERE type = 'Person'"""
_JSON_KNOWS = """SELECT "from", "to", TRY_CAST(data->>'$.since' AS DATE) AS since,
    TRY_CAST(data->>'$.weight' AS DOUBLE) AS weight FROM lines WHERE edge = 'Knows'"""


class Phases:
    """CPU seconds of this process, all threads, by what it was doing."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        before = _cpu()
        yield
        self.seconds[name] = round(self.seconds.get(name, 0.0) + _cpu() - before, 3)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def from_parquet(source: Path, out: Path, phases: Phases) -> None:
    """pyarrow decodes, DuckDB derives and checks, Lance writes."""
    with duckdb.connect() as connection:
        with phases.phase("decode"):
            raw_person, raw_knows = (pq.read_table(source / f"{name}.parquet") for name in ("Person", "Knows"))
            connection.register("raw_person", raw_person)
            connection.register("raw_knows", raw_knows)
            person = connection.sql(PERSON.format(source="SELECT * FROM raw_person")).to_arrow_table()
            knows = connection.sql(KNOWS.format(source="SELECT * FROM raw_knows")).to_arrow_table()
        _check_and_write(connection, person, knows, out, phases)


def from_ndjson(source: Path, out: Path, phases: Phases) -> None:
    """DuckDB reads the lines once, and their values as text that is cast to the declared types."""
    with duckdb.connect() as connection:
        with phases.phase("decode"):
            columns = "{'type': 'VARCHAR', 'edge': 'VARCHAR', 'from': 'VARCHAR', 'to': 'VARCHAR', 'data': 'JSON'}"
            connection.execute(
                f"CREATE TABLE lines AS FROM read_json(?, format='newline_delimited', columns={columns})", [str(source)]
            )
            person = connection.sql(PERSON.format(source=_JSON_PERSON)).to_arrow_table()
            knows = connection.sql(KNOWS.format(source=_JSON_KNOWS)).to_arrow_table()
        _check_and_write(connection, person, knows, out, phases)


def floor(source: Path, out: Path, phases: Phases) -> None:
    """Only the write, of typed Arrow in memory: less is not possible."""
    with duckdb.connect() as connection:
        person = connection.sql(PERSON.format(source=f"SELECT * FROM '{source}/Person.parquet'")).to_arrow_table()
        knows = connection.sql(KNOWS.format(source=f"SELECT * FROM '{source}/Knows.parquet'")).to_arrow_table()
    _write(person, knows, out, phases)


def _check_and_write(connection: Any, person: pa.Table, knows: pa.Table, out: Path, phases: Phases) -> None:
    with phases.phase("checks"):
        connection.register("person", person)
        connection.register("knows", knows)
        for name, text in CHECKS.items():
            broken = connection.execute(f"SELECT count(*) FROM ({text})").fetchone()[0]
            assert broken == 0, f"{name}: {broken}"
    _write(person, knows, out, phases)


def _write(person: pa.Table, knows: pa.Table, out: Path, phases: Phases) -> None:
    with phases.phase("write"):
        lance.write_dataset(person, str(out / "person.lance"))
        lance.write_dataset(knows, str(out / "knows.lance"))


def main() -> None:
    which, source, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    phases = Phases()
    {"floor": floor, "parquet": from_parquet, "ndjson": from_ndjson}[which](source, out, phases)
    print(json.dumps(phases.seconds))


if __name__ == "__main__":
    main()
