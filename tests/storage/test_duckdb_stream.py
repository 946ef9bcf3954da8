"""What goes wrong in a stream that DuckDB reads is raised as what it was."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pyarrow as pa
import pytest

from omnigraph.errors import Damaged
from omnigraph.storage.table.diff.row_diff import diff_by_join
from omnigraph.storage.util.duckdb_stream import BatchStreams

SHAPE = pa.schema([("id", pa.string())])


def broken() -> Iterator[pa.RecordBatch]:
    yield pa.record_batch([pa.array(["a"])], schema=SHAPE)
    raise Damaged("table t1", "a stored file is missing")


def whole() -> Iterator[pa.RecordBatch]:
    yield pa.record_batch([pa.array(["a"])], schema=SHAPE)


def asked(sql: str, rows: Iterator[pa.RecordBatch]) -> None:
    streams = BatchStreams()
    with duckdb.connect() as connection, streams.original_errors():
        connection.register("rows", streams.reader(SHAPE, rows))
        connection.execute(sql).fetchall()


def test_an_error_of_ours_comes_through_a_query() -> None:
    with pytest.raises(Damaged, match="table t1"):
        asked("SELECT count(id) FROM rows", broken())


def test_an_error_of_the_query_stays_one() -> None:
    with pytest.raises(duckdb.Error, match="nope"):
        asked("SELECT nope FROM rows", whole())


def test_a_comparison_of_rows_that_are_gone_says_so() -> None:
    with pytest.raises(Damaged, match="table t1"):
        diff_by_join(whole, broken, SHAPE)
