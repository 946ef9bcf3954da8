"""What the checksums of table files cost a load on a local disk: the same load with and without them, in turn.

python -m bench.file_records --rows 1000000
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq

import omnigraph
from omnigraph.storage.table import file_records
from omnigraph.storage.table.file_records import FileRecord

SCHEMA = "node Person { slug: String @key  name: String  age: I32 }"
RUNS = 5


def load_s(source: Path, *, checksums: bool) -> tuple[float, float]:
    """Seconds and processor seconds of one load into a new graph."""

    def size_alone(path: Path) -> FileRecord:
        return FileRecord(path.stat().st_size, "")

    hashing = file_records.hash_file if checksums else size_alone
    with tempfile.TemporaryDirectory() as root, mock.patch.object(file_records, "hash_file", hashing):
        graph = omnigraph.init(f"{root}/graph", SCHEMA)
        start, processor = time.perf_counter(), time.process_time()
        graph.load(source, type="Person", engine="local")
        return time.perf_counter() - start, time.process_time() - processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as root:
        source = Path(root) / "people.parquet"
        numbers = range(rows)
        names = pa.array([f"Person number {number}" for number in numbers])
        table = {"slug": pa.array([f"p{number:09d}" for number in numbers]), "name": names}
        pq.write_table(pa.table({**table, "age": pa.array([n % 90 for n in numbers], pa.int32())}), source)
        load_s(source, checksums=True)
        taken: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        for _ in range(RUNS):
            for checksums in (True, False):
                taken[checksums].append(load_s(source, checksums=checksums))
    for number, what in enumerate(("time", "processor time")):
        found, without = (statistics.median(run[number] for run in taken[checksums]) for checksums in (True, False))
        print(
            f"{what} of a load of {rows:,} rows: {found:.2f} s with checksums, {without:.2f} s without, "
            f"{100 * (found / without - 1):+.1f} %"
        )


if __name__ == "__main__":
    main()
