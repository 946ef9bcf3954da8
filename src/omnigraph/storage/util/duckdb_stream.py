"""Streams of record batches into DuckDB that keep the original errors.

DuckDB turns an error of the stream it reads into text inside an error of its own. Here the original is kept and raised
instead, so that a damaged file or a cancelled query is reported as such.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from omnigraph.errors import OmnigraphError

if TYPE_CHECKING:
    import pyarrow as pa


class BatchStreams:
    """The streams of one query, or of several on one connection."""

    def __init__(self) -> None:
        self._error: OmnigraphError | None = None

    def reader(self, schema: "pa.Schema", batches: "Iterable[pa.RecordBatch]") -> "pa.RecordBatchReader":
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(schema, self._record_errors(batches))

    @contextmanager
    def original_errors(self) -> Iterator[None]:
        """Run the query inside: an error of a stream is raised as it was."""
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
