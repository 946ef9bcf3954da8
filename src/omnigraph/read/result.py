"""The result of a query: rows, Arrow or pandas, all at once or in batches."""

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from omnigraph.cancellation import checkpoint
from omnigraph.manifest.model.manifest import CommitId
from omnigraph.memory_budget import MemoryBudget, NoRoom, budget_scope
from omnigraph.read.explain import QueryPlan
from omnigraph.read.project.output import OutputColumn, ResultTable
from omnigraph.read.project.render import json_rows
from omnigraph.read.tables.arrow_numpy import ArrowArray
from omnigraph.read.tables.large_arrays import chunks
from omnigraph.read.tables.resident_table import FEW_ROWS
from omnigraph.storage.meter import Cost

BATCH_BYTES_MAX = 64 << 20  # of a batch that has the default number of rows
OBJECT_ROWS = 4_096
_ROW_BYTES, _VALUE_BYTES = 200, 60  # of a dict, and of a value besides its own bytes


class QueryResult:
    """Rows in the query's order. It holds only row numbers until values are read.

    `rows` has Python values: dates, aware datetimes, bytes, lists; `json_batches` has them as JSON output prints them.
    """

    def __init__(
        self,
        table: ResultTable,
        commit_id: CommitId,
        batch_rows: int,
        plan: QueryPlan | None,
        budget: MemoryBudget | None = None,
    ) -> None:
        self._table = table
        self._budget = budget
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
            self._rows = self._fetch_few() or self._fetch_rows()
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

    def _fetch_rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for batch in self.batches():
            for part in _small_parts(batch):
                if self._budget is not None:
                    self._budget.reserve(_python_bytes(part), f"{self._table.count:,} rows as Python values")
                rows += to_rows(part)
        return rows

    def batches(self, batch_rows: int | None = None) -> Iterator[pa.RecordBatch]:
        """The rows in batches, each read on demand: for results that do not fit into memory as objects.

        Batches of wide values have fewer rows.
        """
        size = batch_rows or self._batch_rows
        for first in range(0, self._table.count, size):
            last = min(first + size, self._table.count)
            while first < last:
                checkpoint()
                batch = self._fetch_batch(slice(first, last))
                yield batch
                first += batch.num_rows

    def _fetch_batch(self, part: slice) -> pa.RecordBatch:
        """The rows of a range, or as many of its first ones as fit."""
        while True:
            one = part.stop - part.start == 1
            room = (
                None if self._budget is None else self._budget.left if one else min(self._budget.left, BATCH_BYTES_MAX)
            )
            try:
                with budget_scope(None if room is None else MemoryBudget(room, self._budget)):
                    columns = [_fetch(column, part) for column in self._table.columns]
                return pa.record_batch(columns, schema=self.schema)
            except NoRoom:
                if one:
                    raise
            part = slice(part.start, part.start + (part.stop - part.start) // 2)

    def json_batches(self, batch_rows: int | None = None) -> Iterator[list[dict[str, Any]]]:
        """The rows in batches of JSON values."""
        for batch in self.batches(batch_rows):
            for part in _small_parts(batch):
                yield json_rows(to_rows(part), self._table.columns)

    def to_arrow(self) -> pa.Table:
        batches = []
        for batch in self.batches():
            if self._budget is not None:
                self._budget.reserve(batch.nbytes, f"{self._table.count:,} rows as a table")
            batches.append(batch)
        return pa.Table.from_batches(batches, schema=self.schema)

    def to_pandas(self) -> Any:
        """As a data frame; needs pandas, which is not required otherwise."""
        return self.to_arrow().to_pandas()

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for batch in self.batches():
            for part in _small_parts(batch):
                yield from to_rows(part)


def _small_parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Parts that are converted to Python in some milliseconds, for no other thread runs meanwhile."""
    for part in chunks(batch.num_rows, OBJECT_ROWS):
        yield batch.slice(part.start, part.stop - part.start)


def _python_bytes(batch: pa.RecordBatch) -> int:
    """About what the rows take as Python objects."""
    return int(batch.nbytes) + batch.num_rows * (_ROW_BYTES + _VALUE_BYTES * batch.num_columns)


def to_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = batch.to_pylist()
    return rows


def _fetch(column: OutputColumn, part: slice) -> ArrowArray:
    values = column.fetch(part)
    return values if values.type == column.arrow else values.cast(column.arrow)
