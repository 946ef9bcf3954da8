"""The result of a query: rows, Arrow or pandas, all at once or in batches."""

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from omnigraph.cancellation import checkpoint
from omnigraph.manifest.model.manifest import CommitId
from omnigraph.read.explain import QueryPlan
from omnigraph.read.project.output import OutputColumn, ResultTable
from omnigraph.read.project.render import json_rows
from omnigraph.read.tables.arrow_numpy import ArrowArray
from omnigraph.read.tables.resident_table import FEW_ROWS
from omnigraph.storage.meter import Cost


class QueryResult:
    """Rows in the query's order. It holds only row numbers until values are read.

    `rows` has Python values: dates, aware datetimes, bytes, lists; `json_batches` has them as JSON output prints them.
    """

    def __init__(self, table: ResultTable, commit_id: CommitId, batch_rows: int, plan: QueryPlan | None) -> None:
        self._table = table
        self._batch_rows = batch_rows
        self.commit_id = commit_id
        self.branch = ""  # the façade sets these three
        self.query = ""
        self.cost = Cost()
        self.plan = plan
        self._rows: list[dict[str, Any]] | None = None

    def __len__(self) -> int:
        return self._table.count

    @property
    def columns(self) -> list[str]:
        return [column.name for column in self._table.columns]

    @property
    def outputs(self) -> tuple[OutputColumn, ...]:
        """The columns with their types."""
        return self._table.columns

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(column.name, column.arrow) for column in self._table.columns])

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows, each a dict with every column in the order of `return`; read once."""
        if self._rows is None:
            self._rows = self._fetch_few() or [row for batch in self.batches() for row in to_rows(batch)]
        return self._rows

    def _fetch_few(self) -> list[dict[str, Any]] | None:
        """A handful of rows without converting through Arrow; None where that is not possible."""
        if self._table.count > FEW_ROWS:
            return None
        values = [column.python_values() for column in self._table.columns]
        if None in values:
            return None
        names = self.columns
        return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]

    def batches(self, batch_rows: int | None = None) -> Iterator[pa.RecordBatch]:
        """The rows in batches, each read on demand: for results that do not fit into memory as objects."""
        size = batch_rows or self._batch_rows
        schema = self.schema
        for first in range(0, self._table.count, size):
            checkpoint()
            part = slice(first, min(first + size, self._table.count))
            yield pa.record_batch([_fetch(column, part) for column in self._table.columns], schema=schema)

    def json_batches(self, batch_rows: int | None = None) -> Iterator[list[dict[str, Any]]]:
        """The rows in batches of JSON values."""
        for batch in self.batches(batch_rows):
            yield json_rows(to_rows(batch), self._table.columns)

    def to_arrow(self) -> pa.Table:
        return pa.Table.from_batches(list(self.batches()), schema=self.schema)

    def to_pandas(self) -> Any:
        """As a data frame; needs pandas, which is not required otherwise."""
        return self.to_arrow().to_pandas()

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for batch in self.batches():
            yield from to_rows(batch)


def to_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = batch.to_pylist()
    return rows


def _fetch(column: OutputColumn, part: slice) -> ArrowArray:
    values = column.fetch(part)
    return values if values.type == column.arrow else values.cast(column.arrow)
