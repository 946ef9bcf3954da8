"""Rows in DuckDB, which sorts and groups them in bounded memory with a scratch directory."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

MEMORY_MAX = "512MB"


class StreamedRows:
    """Rows for DuckDB. An error while they are read is stored, because DuckDB would report it as its own."""

    def __init__(
        self,
        schema: "pa.Schema",
        batches: "Callable[[], Iterator[pa.RecordBatch]]",
        seen: "Callable[[pa.RecordBatch], None] | None" = None,
    ) -> None:
        self._schema = schema
        self._batches = batches
        self._seen = seen
        self.error: Exception | None = None

    def reader(self) -> "pa.RecordBatchReader":
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(self._schema, self._read())

    def _read(self) -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        try:
            for batch in self._batches():
                if self._seen is not None:
                    self._seen(batch)
                yield pa.record_batch([batch.column(name) for name in self._schema.names], schema=self._schema)
        except Exception as error:
            self.error = error
            raise


class ScratchDatabase:
    """A DuckDB connection with temporary tables."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __call__(self, sql: str, inputs: Mapping[str, StreamedRows] | None = None) -> list[tuple[Any, ...]]:
        """Query streams of rows; each is read once."""
        import duckdb

        given = inputs or {}
        for name, rows in given.items():
            self._connection.register(name, rows.reader())
        try:
            result: list[tuple[Any, ...]] = self._connection.execute(sql).fetchall()
        except duckdb.Error:
            for rows in given.values():
                if rows.error is not None:
                    raise rows.error from None
            raise
        finally:
            for name in given:
                self._connection.unregister(name)
        return result

    def batches(self, sql: str, rows: int) -> "Iterator[pa.RecordBatch]":
        """A large result in batches; no other query may run until its end."""
        yield from self._connection.sql(sql).to_arrow_reader(rows)


@contextmanager
def open_scratch() -> Iterator[ScratchDatabase]:
    """Open one for a whole verification: opening takes longer than most queries."""
    import duckdb

    with tempfile.TemporaryDirectory(prefix="omnigraph-verify-") as folder:
        settings: dict[str, Any] = {"memory_limit": MEMORY_MAX, "temp_directory": folder}
        connection: Any = duckdb.connect(config=settings)
        try:
            yield ScratchDatabase(connection)
        finally:
            connection.close()


def quote_identifier(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'
