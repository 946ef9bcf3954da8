"""Tables in memory. A row set numbers the rows of one table state; patterns are matched on the row numbers alone.

`ResidentTable` numbers all rows by their position in the stored version and has columns in memory. `LazyTable`
(lazy_table.py) numbers the few rows that a query has fetched. Expansion, filters and projection use either.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

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
from omnigraph.read.tables.column_store import ID, ColumnStore
from omnigraph.read.tables.large_arrays import fill, take
from omnigraph.read.tables.read_cache import ReadCache
from omnigraph.storage.table.align import align_table
from omnigraph.storage.table.tables import Tables

FEW_ROWS = 16  # up to here, reading rows one by one is cheaper than a call of Arrow


class RowSet(Protocol):
    state: TableState

    @property
    def total(self) -> int:
        """An upper bound of the row numbers so far."""

    def all_rows(self) -> NumArray:
        """The numbers of all rows, ascending."""

    def numbers_of(self, ids: ArrowArray) -> NumArray:
        """The number of each id, -1 where there is no such row."""

    def ids(self, row_numbers: NumArray) -> ArrowArray: ...

    def values(self, names: Sequence[str], row_numbers: NumArray) -> dict[str, ArrowArray]:
        """The values of some rows, in the order of the numbers."""

    def select(self, filters: Sequence[Filter]) -> NumArray:
        """The numbers of the rows that pass filters over this table alone, ascending."""

    def filter_mask(self, filters: Sequence[Filter], row_numbers: NumArray) -> BoolArray:
        """For each of these rows, whether it passes."""


def filter_rows(table: RowSet, filters: Sequence[Filter], row_numbers: NumArray) -> BoolArray:
    """For each of these rows, whether it passes, by its own values."""
    names = list(dict.fromkeys(name for condition in filters for name in columns_of(condition)))

    def mask(part: slice) -> BoolArray:
        values = table.values(names, row_numbers[part])
        result = np.ones(part.stop - part.start, np.bool_)
        for condition in filters:
            result &= evaluate_filter(condition, lambda operand: values[column_name(operand)], len(result))
        return result

    return fill(len(row_numbers), np.bool_, mask)


def _filter_part(condition: Filter, columns: Mapping[str, ArrowArray], part: slice) -> BoolArray:
    count = part.stop - part.start
    return evaluate_filter(condition, lambda operand: columns[column_name(operand)].slice(part.start, count), count)


class NeedsResidentTables(Exception):
    """A query needs too many lookups in these tables: it restarts with them in memory. Never leaves `read/`."""

    def __init__(self, *table_keys: str) -> None:
        super().__init__(*table_keys)
        self.table_keys = frozenset(table_keys)


def overlay_rows(state: TableState) -> pa.Table:
    """The overlay's row images in the table's own columns."""
    rows = state.overlay.rows
    if rows is None:
        return state.schema.empty_table()
    return align_table(rows, state.schema, drop_unknown=True)


@dataclass(frozen=True, slots=True)
class Patch:
    """How an overlay changes the row numbers of a stored version.

    A replaced row keeps its number and new rows have numbers after the stored ones, so that everything derived from the
    stored version, adjacency above all, stays valid. `source` says where a row's values are: in the stored row of that
    number, or, from `stored` on, in the overlay's rows.
    """

    stored: int
    source: NumArray
    alive: BoolArray
    new: dict[str, int]
    rows: pa.Table
    row_numbers: NumArray  # of the overlay's rows
    replaced: NumArray  # stored rows that were deleted or replaced

    @property
    def nbytes(self) -> int:
        return int(self.source.nbytes + self.alive.nbytes + self.rows.nbytes + 100 * len(self.new))


def build_patch(state: TableState, stored: ColumnStore) -> Patch:
    rows = overlay_rows(state)
    images: dict[Any, int] = {id_: position for position, id_ in enumerate(rows.column(ID).to_pylist())}
    count = stored.rows
    shadowed = np.sort(stored.row_numbers_of(sorted(state.overlay.hidden_ids)))
    shadowed_ids = stored.fetch([ID], shadowed)[ID].to_pylist()
    source, alive = np.arange(count, dtype=np.int32), np.ones(count, np.bool_)
    row_numbers = np.full(rows.num_rows, -1, np.int64)
    for number, id_ in zip(shadowed.tolist(), shadowed_ids, strict=True):
        position = images.get(id_)
        if position is None:
            alive[number] = False
            source[number] = -1
        else:
            row_numbers[position] = number
            source[number] = count + position
    positions = np.flatnonzero(row_numbers < 0)
    row_numbers[positions] = count + np.arange(len(positions))
    new = {id_: int(row_numbers[position]) for id_, position in images.items() if row_numbers[position] >= count}
    return Patch(
        count,
        np.concatenate([source, (count + positions).astype(np.int32)]),
        np.concatenate([alive, np.ones(len(positions), np.bool_)]),
        new,
        rows,
        row_numbers,
        shadowed,
    )


class ResidentTable:
    """Rows numbered by their position in the stored version, the overlay's new rows after them."""

    def __init__(self, tables: Tables, caches: ReadCache, state: TableState) -> None:
        self.state = state
        self.stored = ColumnStore(tables, caches, state.at, state.schema)
        self._caches = caches
        self.patch: Patch | None = None
        if not state.overlay.is_empty:
            self.patch = caches.get(
                ("patch", state.fingerprint, *state.schema.names),  # columns may be added to an unchanged table
                lambda: build_patch(state, self.stored),
                lambda patch: patch.nbytes,
            )

    @property
    def total(self) -> int:
        return self.stored.rows if self.patch is None else len(self.patch.source)

    def all_rows(self) -> NumArray:
        """The same array each time, so that callers can recognise it by identity."""
        return self._all_rows

    @cached_property
    def _all_rows(self) -> NumArray:
        if self.patch is None:
            return np.arange(self.stored.rows, dtype=np.int32)
        return np.flatnonzero(self.patch.alive)

    def alive(self, row_numbers: NumArray) -> BoolArray | None:
        """Which of the numbers have a live row; None where all have."""
        return None if self.patch is None else self.patch.alive[row_numbers]

    def numbers_of(self, ids: ArrowArray) -> NumArray:
        found = self.stored.index.find(ids)
        if self.patch is not None:
            found[(found >= 0) & ~self.patch.alive[found]] = -1
            for position in np.flatnonzero(found < 0).tolist() if self.patch.new else ():
                found[position] = self.patch.new.get(ids[position].as_py(), -1)
        return found

    def _number_of(self, id_: str) -> NumArray:
        """The number of one id in an array, which is empty where there is no such row."""
        found = self.stored.index.find_one(id_)
        if self.patch is not None:
            found = self.patch.new.get(id_, -1) if found < 0 or not self.patch.alive[found] else found
        return np.array([found] if found >= 0 else [], np.int64)

    def ids(self, row_numbers: NumArray) -> "pa.Array[Any]":
        found: pa.Array[Any] = self.values([ID], row_numbers)[ID]
        return found

    def values(self, names: Sequence[str], row_numbers: NumArray) -> dict[str, ArrowArray]:
        if self.patch is None:
            return self.stored.fetch(names, row_numbers)
        where = self.patch.source[row_numbers]
        inside = where < self.patch.stored
        stored = self.stored.fetch(names, where[inside])
        order = np.empty(len(where), np.int64)
        order[inside] = np.arange(int(inside.sum()))
        order[~inside] = len(where[inside]) + np.arange(int((~inside).sum()))
        images = pa.array(where[~inside] - self.patch.stored)
        rows = self.patch.rows
        return {
            name: pa.concat_arrays([stored[name], to_array(rows.column(name)).take(images)]).take(pa.array(order))
            for name in names
        }

    def python_values(self, name: str, kind: pa.DataType, row_numbers: NumArray) -> list[Any] | None:
        """The values of a few rows as Python objects; None where they are not in memory as that type."""
        column = self.stored.loaded_column(name) if self.patch is None else None
        if column is None or column.type != kind:
            return None
        return [column[number].as_py() for number in row_numbers.tolist()]

    def column(self, name: str) -> ArrowArray:
        """All values of a column by row number; the value of a deleted row is undefined."""
        patch = self.patch
        if patch is None:
            return self.stored.column(name)

        def make() -> ArrowArray:
            both = pa.concat_arrays([self.stored.column(name), to_array(patch.rows.column(name))])
            return both.take(pa.array(np.maximum(patch.source, 0)))

        key = ("patched", self.state.fingerprint, name, self.state.schema.field(name).type)
        return self._caches.get(key, make, lambda array: array.nbytes)

    def select(self, filters: Sequence[Filter]) -> NumArray:
        named = next((id_ for condition in filters if (id_ := required_id(condition)) is not None), None)
        if named is not None:
            row_numbers = self._number_of(named)
            rest = [condition for condition in filters if required_id(condition) != named]
            return row_numbers[self.filter_mask(rest, row_numbers)] if rest and len(row_numbers) else row_numbers
        predicate = self._push_down(filters)
        if predicate is None:
            return np.flatnonzero(self.whole_mask(filters))
        row_numbers = self.stored.select(predicate)
        if self.patch is None:
            return row_numbers
        kept = row_numbers[self.patch.source[row_numbers] == row_numbers]
        images = np.ones(self.patch.rows.num_rows, np.bool_)
        for condition in filters:
            images &= filter_table(condition, self.patch.rows)
        return np.sort(np.concatenate([kept, self.patch.row_numbers[images]]))

    def whole_mask(self, filters: Sequence[Filter]) -> BoolArray:
        """For each row number, whether there is a row and it passes."""
        result = np.ones(self.total, np.bool_) if self.patch is None else self.patch.alive.copy()
        for condition in filters:
            columns = {name: self.column(name) for name in columns_of(condition)}
            result &= fill(self.total, np.bool_, partial(_filter_part, condition, columns))
        return result

    def filter_mask(self, filters: Sequence[Filter], row_numbers: NumArray) -> BoolArray:
        """By the mask of the whole table where that reads fewer values, otherwise by the rows themselves."""
        if 2 * len(row_numbers) >= self.total and all(self.stored.is_loaded(n) for f in filters for n in columns_of(f)):
            return take(self.whole_mask(filters), row_numbers)
        return filter_rows(self, filters, row_numbers)

    def _push_down(self, filters: Sequence[Filter]) -> str | None:
        """The filters as a Lance predicate, as long as that is cheaper than loading their columns."""
        missing = [name for f in filters for name in columns_of(f) if not self.stored.is_loaded(name)]
        parts = [lance_filter(condition, self.state.definition) for condition in filters]
        if not missing or not all(parts):
            return None
        key = ("select", self.state.at, *sorted(set(missing)))
        cost = sum(self.stored.load_cost_s(name) for name in missing)
        if self._caches.recorded_cost_s(key) >= cost:
            return None
        self._caches.record_cost(key, cost / 4)
        return " AND ".join(part for part in parts if part)
