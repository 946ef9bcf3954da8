"""Row access for a query that touches few rows of a large table: rows are fetched on demand and numbered in that order.

A row is fetched with all the columns that the query needs of it, so that a lookup by key in a cold process makes a
handful of requests however large the table is.
"""

import time
from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa

from omnigraph.query.ir import Filter
from omnigraph.read.match.filters import (
    column_name,
    columns_of,
    evaluate_filter,
    filter_table,
    lance_filter,
    required_id,
    to_array,
)
from omnigraph.read.reader import TableState
from omnigraph.read.tables.arrow_numpy import ArrowArray, BoolArray, NumArray
from omnigraph.read.tables.column_store import ID
from omnigraph.read.tables.read_cache import ReadCache
from omnigraph.read.tables.resident_table import NeedsResidentTables, overlay_rows
from omnigraph.storage.table.align import align_table
from omnigraph.storage.table.overlay import without_ids
from omnigraph.storage.table.tables import Tables

LAZY_ROWS_MAX = 4_000


class LazyTable:
    """Rows numbered in the order they were fetched; too many raise `NeedsResidentTables`."""

    def __init__(
        self, tables: Tables, caches: ReadCache, state: TableState, wanted: Collection[str], rows_max: int | None
    ) -> None:
        self.state = state
        self._tables = tables
        self._caches = caches
        self._names = [name for name in state.schema.names if name == ID or name in wanted]
        self._rows_max = rows_max
        self._ids: list[str] = []
        self._numbers: dict[str, int] = {}
        self._rows: pa.Table = pa.schema([state.schema.field(name) for name in self._names]).empty_table()
        self._position_of = np.zeros(
            0, np.int64
        )  # index into _rows by row number, -1 where the row was not fetched yet

    @property
    def total(self) -> int:
        return len(self._ids)

    def all_rows(self) -> NumArray:
        if self._rows_max is not None:
            raise NeedsResidentTables(self.state.key)
        return self.add(self.scan((), self._names))

    def numbers_of(self, ids: ArrowArray) -> NumArray:
        """The numbers of ids that are known to exist: ends of edges, or ids of rows that were read."""
        result = np.empty(len(ids), np.int64)
        for position, id_ in enumerate(ids.to_pylist()):
            number = self._numbers.get(id_)
            if number is None:
                number = self._numbers[id_] = len(self._ids)
                self._ids.append(id_)
            result[position] = number
        if self._rows_max is not None and len(self._ids) > self._rows_max:
            raise NeedsResidentTables(self.state.key)
        return result

    def ids(self, row_numbers: NumArray) -> ArrowArray:
        return pa.array([self._ids[number] for number in row_numbers.tolist()], pa.string())

    def values(self, names: Sequence[str], row_numbers: NumArray) -> dict[str, ArrowArray]:
        if list(names) == [ID]:
            return {ID: self.ids(row_numbers)}
        positions = pa.array(self._fetch(np.unique(row_numbers), row_numbers))
        return {name: to_array(self._rows.column(name)).take(positions) for name in names}

    def select(self, filters: Sequence[Filter]) -> NumArray:
        named = [id_ for condition in filters if (id_ := required_id(condition)) is not None]
        rows = self._lookup(named[:1]) if named else self.scan(filters, self._names)
        for condition in filters:
            rows = rows.filter(pa.array(filter_table(condition, rows)))
        if self._rows_max is not None and rows.num_rows > self._rows_max:
            raise NeedsResidentTables(self.state.key)
        return np.sort(self.add(rows))

    def filter_mask(self, filters: Sequence[Filter], row_numbers: NumArray) -> BoolArray:
        names = dict.fromkeys(name for condition in filters for name in columns_of(condition))
        values = self.values(list(names), row_numbers)
        result = np.ones(len(row_numbers), np.bool_)
        for condition in filters:
            result &= evaluate_filter(condition, lambda operand: values[column_name(operand)], len(row_numbers))
        return result

    def scan(self, filters: Sequence[Filter], names: Sequence[str], more: str | None = None) -> pa.Table:
        """The rows that may pass: Lance's result, and all rows of the overlay instead of those they replace."""
        state = self.state
        parts = [part for f in filters if (part := lance_filter(f, state.definition)) is not None]
        predicate = " AND ".join([*parts, more] if more is not None else parts) or None
        images = overlay_rows(state).select(list(names))
        if state.at is None:
            return images
        start = time.monotonic()
        stored = self._tables.scan(state.at, list(names), predicate, schema=state.schema)
        self._caches.record_cost(("lookups", state.at), time.monotonic() - start)
        if not state.overlay.is_empty:
            stored = without_ids(stored, state.overlay.hidden_ids)
        return pa.concat_tables([images, align_table(stored, images.schema, drop_unknown=True)])

    def columns_with(self, *names: str) -> list[str]:
        """The columns that the query needs of a row, and these."""
        return [name for name in self.state.schema.names if name in names or name in self._names]

    def _lookup(self, ids: Sequence[str]) -> pa.Table:
        start = time.monotonic()
        state = self.state
        rows = self._tables.lookup(state.at, ids, self._names, state.overlay, state.schema)
        self._caches.record_cost(("lookups", state.at), time.monotonic() - start)
        return rows

    def add(self, rows: pa.Table) -> NumArray:
        """Keep rows that were read; their numbers."""
        row_numbers = self.numbers_of(rows.column(ID))
        self._record_positions(row_numbers, self._rows.num_rows)
        self._rows = pa.concat_tables([self._rows, align_table(rows, self._rows.schema, drop_unknown=True)])
        return row_numbers

    def _record_positions(self, row_numbers: NumArray, first: int) -> None:
        if len(self._position_of) < len(self._ids):
            more = np.full(len(self._ids) - len(self._position_of), -1, np.int64)
            self._position_of = np.concatenate([self._position_of, more])
        self._position_of[row_numbers] = first + np.arange(len(row_numbers))

    def _fetch(self, distinct: NumArray, row_numbers: NumArray) -> NumArray:
        self._record_positions(np.zeros(0, np.int64), 0)
        missing = distinct[self._position_of[distinct] < 0]
        if len(missing):
            self.add(self._lookup([self._ids[number] for number in missing.tolist()]))
        positions: NumArray = self._position_of[row_numbers]
        return positions
