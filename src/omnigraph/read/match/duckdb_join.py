"""Joins by comparisons other than equality, in DuckDB, which is imported only for that.

DuckDB works within a part of the query's memory budget and spills to disk beyond it. Its result is read in parts.
"""

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from omnigraph.cancellation import interruptible
from omnigraph.memory_budget import NoRoom, current_budget, reserved
from omnigraph.read.tables.arrow_numpy import ArrowArray, NumArray
from omnigraph.read.tables.large_arrays import CHUNK_ROWS, chunks, count_up

DEFAULT_BYTES = 1 << 30
MEMORY_MIN = 64 << 20  # DuckDB does little with less
_SQL = {"=": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of the values of all rows on one side with those of all rows on the other."""

    left: ArrowArray
    right: ArrowArray
    op: str


def duckdb_join(comparisons: Sequence[Comparison]) -> Iterator[tuple[NumArray, NumArray]]:
    """The positions of the pairs for which all comparisons hold, in parts.

    DuckDB compares text by its bytes, as we do.
    """
    import duckdb

    left = {f"k{i}": comparison.left for i, comparison in enumerate(comparisons)}
    right = {f"k{i}": comparison.right for i, comparison in enumerate(comparisons)}
    on = " AND ".join(f"one.k{i} {_SQL[comparison.op]} other.k{i}" for i, comparison in enumerate(comparisons))
    budget = current_budget()
    memory = max(MEMORY_MIN, (DEFAULT_BYTES if budget is None else budget.left) // 2)
    with reserved(memory, "a join"), tempfile.TemporaryDirectory(prefix="omnigraph-query-") as folder:
        settings: dict[str, Any] = {
            "memory_limit": f"{memory}B",
            "temp_directory": folder,
            "threads": max(1, (os.cpu_count() or 1) // 2),
            "preserve_insertion_order": False,
        }
        with duckdb.connect(config=settings) as connection:
            for name, keys in (("one", left), ("other", right)):
                connection.register(name, pa.table({"place": count_up(len(keys["k0"])), **keys}))
            sql = f"SELECT one.place AS l, other.place AS r FROM one JOIN other ON {on}"
            try:
                for batch in _batches(connection, sql):
                    yield batch.column("l").to_numpy(), batch.column("r").to_numpy()
            except duckdb.OutOfMemoryException as error:
                raise NoRoom(
                    f"A join of the query needs more than {memory >> 20} MiB of memory and the free disk space: "
                    "add a filter to it, or run it on Spark."
                ) from error


def _batches(connection: Any, sql: str) -> Iterator[pa.RecordBatch]:
    with interruptible(connection.interrupt):
        reader = connection.sql(sql).to_arrow_reader(CHUNK_ROWS)
    while True:
        with interruptible(connection.interrupt):
            batch = next(reader, None)
        if batch is None:
            return
        for part in chunks(batch.num_rows):  # with a checkpoint
            yield batch.slice(part.start, part.stop - part.start)
