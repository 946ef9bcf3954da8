"""Where the SQL of verification runs: DuckDB in this process, or Spark SQL when the keys outgrow one machine.

The texts are the same (`verification_sql.py`), in the SQL that both engines read alike. A query names its inputs, each
of them once, because in DuckDB an input is a stream.
"""

import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from omnigraph.storage.location import Location
from omnigraph.storage.table.handles import TableVersion
from omnigraph.storage.table.write.fragments import fragment_rows, key_batches, key_schema
from omnigraph.storage.util.duckdb_stream import BatchStreams

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection
    from pyspark.sql import DataFrame, SparkSession

MEMORY_MB_MIN, MEMORY_MB_MAX = 512, 16 * 1024
MEMORY_SHARE = 0.25  # of what is free
FRAGMENTS_A_PARTITION = 4
_INPUT = re.compile(r"\b(FROM|JOIN) (\w+)\b")


@dataclass(frozen=True, slots=True)
class KeyColumns:
    """Some columns of some fragments of one table version, under the names that a query uses."""

    location: Location = field(repr=False)
    at: TableVersion
    columns: Mapping[str, str]  # stored name → name in the query
    fragments: tuple[int, ...] | None = None  # None: all


Inputs: TypeAlias = "Mapping[str, KeyColumns | pa.Table]"


class SqlEngine(Protocol):
    """Runs a query over named inputs."""

    name: str

    def rows(self, sql: str, inputs: Inputs) -> "pa.Table": ...


class DuckDbEngine:
    """DuckDB: key columns come as streams from Lance, what does not fit in memory goes to disk."""

    name = "duckdb"

    def __init__(self, memory_mb: int | None = None) -> None:
        self._memory_mb = memory_mb

    def rows(self, sql: str, inputs: Inputs) -> "pa.Table":
        streams = BatchStreams()
        with connect_duckdb(self._memory_mb) as connection, streams.original_errors():
            for name, keys in inputs.items():
                connection.register(name, _stream(streams, keys) if isinstance(keys, KeyColumns) else keys)
            answer: pa.Table = connection.sql(sql).to_arrow_table()
            return answer


class SparkSqlEngine:
    """Spark SQL: executors read the key columns of their fragments themselves."""

    name = "spark"

    def __init__(self, spark: "SparkSession") -> None:
        self._spark = spark

    def rows(self, sql: str, inputs: Inputs) -> "pa.Table":
        views: dict[str, Any] = {name: self._frame(keys) for name, keys in inputs.items()}
        answer: pa.Table = self._spark.sql(_name_inputs(sql, views), None, **views).toArrow()
        return answer

    def _frame(self, keys: "KeyColumns | pa.Table") -> "DataFrame":
        if not isinstance(keys, KeyColumns):
            return self._spark.createDataFrame(keys.cast(_for_spark(keys.schema)))
        from pyspark.sql.pandas.types import from_arrow_schema

        numbers = keys.fragments if keys.fragments is not None else tuple(fragment_rows(keys.location, keys.at))
        schema = from_arrow_schema(_for_spark(key_schema(keys.location, keys.at, keys.columns)))
        starts = range(0, len(numbers), FRAGMENTS_A_PARTITION)
        groups = [(list(numbers[start : start + FRAGMENTS_A_PARTITION]),) for start in starts]
        if not groups:
            return self._spark.createDataFrame([], schema)
        read = partial(_read_groups, keys.location, keys.at, dict(keys.columns))
        listed = self._spark.createDataFrame(
            self._spark.sparkContext.parallelize(groups, len(groups)), "fragments array<int>"
        )
        return listed.mapInArrow(read, schema)


@contextmanager
def connect_duckdb(memory_mb: int | None = None) -> "Iterator[DuckDBPyConnection]":
    """A DuckDB connection with bounded memory and a place on disk for the rest."""
    import duckdb

    with tempfile.TemporaryDirectory(prefix="omnigraph-keys-") as scratch:
        settings: dict[str, Any] = {
            "memory_limit": f"{memory_mb if memory_mb is not None else _memory_mb()}MB",
            "temp_directory": scratch,
            "preserve_insertion_order": "false",
        }
        connection = duckdb.connect(config=settings)
        try:
            yield connection
        finally:
            connection.close()


def _memory_mb() -> int:
    from omnigraph.pipeline.spark.sizing import free_memory

    return max(MEMORY_MB_MIN, min(MEMORY_MB_MAX, int(free_memory() * MEMORY_SHARE) >> 20))


def _stream(streams: BatchStreams, keys: KeyColumns) -> "pa.RecordBatchReader":
    schema = key_schema(keys.location, keys.at, keys.columns)
    return streams.reader(schema, key_batches(keys.location, keys.at, keys.columns, keys.fragments))


def _read_groups(
    location: Location, at: TableVersion, columns: Mapping[str, str], batches: "Iterator[pa.RecordBatch]"
) -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa

    schema = _for_spark(key_schema(location, at, columns))
    for batch in batches:
        for group in batch.column(0).to_pylist():
            for part in key_batches(location, at, columns, group):
                pairs = zip(part.columns, schema, strict=True)
                arrays: list[Any] = [array.cast(field.type) for array, field in pairs]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _for_spark(schema: "pa.Schema") -> "pa.Schema":
    """Spark has no unsigned integers, and its times are in microseconds."""
    import pyarrow as pa

    wider: dict[Any, Any] = {
        pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0),
        pa.timestamp("ms", tz="UTC"): pa.timestamp("us", tz="UTC"),
        pa.large_binary(): pa.binary(),
    }
    return pa.schema([field.with_type(wider.get(field.type, field.type)) for field in schema])


def _name_inputs(sql: str, views: Iterable[str]) -> str:
    """The text with each input as Spark's parameters write it."""
    inputs = frozenset(views)
    return _INPUT.sub(lambda found: f"{found[1]} {{{found[2]}}} {found[2]}" if found[2] in inputs else found[0], sql)
