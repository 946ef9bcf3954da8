"""Rows on their way into DuckDB.

What goes wrong while they are read arrives there as text in an error of DuckDB's. Here it is kept, and raised as what
it was: damage is damage, and whoever was told to stop was not mistaken in a query.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from omnigraph.errors import OmnigraphError

if TYPE_CHECKING:
    import pyarrow as pa


class BatchStreams:
    """The streams of one query, or of several that share a connection."""

    def __init__(self) -> None:
        self._error: OmnigraphError | None = None

    def reader(self, schema: "pa.Schema", batches: "Iterable[pa.RecordBatch]") -> "pa.RecordBatchReader":
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(schema, self._record_errors(batches))

    @contextmanager
    def original_errors(self) -> Iterator[None]:
        """Around the query."""
        import duckdb

        try:
            yield
        except duckdb.Error:
            if self._error is not None:
                raise self._error from None
            raise

    def _record_errors(self, batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        try:
            yield from batches
        except OmnigraphError as error:
            self._error = error
            raise
