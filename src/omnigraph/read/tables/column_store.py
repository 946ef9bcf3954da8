"""One stored table version, read in row order: whole columns that stay in memory, or a few rows.

A row's number is its position in an ordered scan of this version. The version is immutable, so the number means the
same row forever, in every process; each version numbers its own rows.
"""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from omnigraph.cancellation import checkpoint
from omnigraph.memory_budget import MemoryBudget, NoRoom, current_budget, hold
from omnigraph.read.match.filters import to_array
from omnigraph.read.tables.arrow_numpy import ArrowArray, NumArray
from omnigraph.read.tables.id_index import IdIndex
from omnigraph.read.tables.large_arrays import chunks, take_values
from omnigraph.read.tables.read_cache import ReadCache
from omnigraph.storage import meter
from omnigraph.storage.table.lance_errors import translate_errors
from omnigraph.storage.table.read.row_addresses import FILTER_IDS_MAX, LOOKUP_STAGES_MAX, SCAN_STAGES_MAX, id_filter
from omnigraph.storage.table.tables import Tables, TableVersion

ID = "id"
TAKE_ROWS_MAX = 2_000  # for more rows the whole column is loaded, if it fits
_LOAD_BYTES_PER_S = 150e6
_LOAD_LATENCY_S = 0.004


class ColumnStore:
    """A stored version, or nothing for a type that was never stored."""

    def __init__(self, tables: Tables, caches: ReadCache, at: TableVersion | None, schema: pa.Schema) -> None:
        self._tables = tables
        self._caches = caches
        self._at = at
        self._schema = schema

    @property
    def rows(self) -> int:
        """The number of live rows."""
        if self._at is None:
            return 0
        return self._caches.get((self._at, "rows"), self._count, lambda _: 8)

    def is_loaded(self, name: str) -> bool:
        """Whether the column is in memory."""
        return self._at is None or self._caches.has(self._key(name))

    def loaded_column(self, name: str) -> ArrowArray | None:
        """All values of a column if they are in memory."""
        return None if self._at is None else self._caches.peek(self._key(name))

    def column(self, name: str) -> ArrowArray:
        """All values of a column, in row order; cached."""
        if self._at is None:
            return pa.nulls(0, self._schema.field(name).type)
        budget = current_budget()  # of the query, which has to pay for what the cache does not keep
        array = self._caches.get(self._key(name), lambda: self._load(name, budget), lambda array: array.nbytes)
        return array if array.nbytes <= self._caches.bytes_max else hold(array, f"the column {name}")

    @property
    def index(self) -> IdIndex:
        """The hash index from id to row number."""
        if self._at is None:
            return IdIndex.of(self.column(ID))
        return self._caches.get((self._at, "index"), lambda: IdIndex.of(self.column(ID)), lambda index: index.nbytes)

    def fetch(self, names: Sequence[str], rows: NumArray) -> dict[str, ArrowArray]:
        """The values of some rows: from memory, from the store, or from memory after loading the column.

        A column is loaded once single reads of it have cost about as much; until then few rows are read from the store.
        """
        result: dict[str, ArrowArray] = {}
        for name in names:
            column = self.loaded_column(name)
            if column is None and self._is_worth_loading(name, len(rows)):
                column = self._column_if_it_fits(name)
            if column is not None:
                result[name] = take_values(column, rows)
        missing = [name for name in names if name not in result]
        if missing:
            result |= self._take(missing, rows)
        return result

    def _column_if_it_fits(self, name: str) -> ArrowArray | None:
        """The column, or None if its values are too long to be in memory, which is known only when they are read."""
        try:
            return self.column(name)
        except NoRoom:
            self._caches.get(("too long", *self._key(name)), lambda: True, lambda _: 8)
            return None

    def row_numbers_of(self, ids: Sequence[str]) -> NumArray:
        """The rows that have one of these ids, without loading the ids of a large table."""
        if self._at is None or not ids:
            return np.zeros(0, np.int64)
        if self.is_loaded(ID) or len(ids) > FILTER_IDS_MAX:
            found = self.index.find(pa.array(list(ids), pa.string()))
            return found[found >= 0]
        return self.select(id_filter(ids))

    def select(self, predicate: str) -> NumArray:
        """The rows that pass a Lance filter, ascending."""
        if self._at is None:
            return np.zeros(0, np.int64)
        with translate_errors(str(self._at)), meter.lance_call(LOOKUP_STAGES_MAX):
            # The filter may use a column that no stored row has: a view with that column has the same row addresses.
            dataset: Any = self._tables.dataset(self._at, schema=self._schema)
            table = dataset.scanner(columns=[], filter=predicate, with_row_address=True).to_table()
        addresses = np.sort(table.column("_rowaddr").to_numpy())
        starts, firsts = self._layout
        runs = np.searchsorted(starts, addresses, "right") - 1
        row_numbers: NumArray = (firsts[runs] + (addresses - starts[runs])).astype(np.int64)
        return row_numbers

    @property
    def _layout(self) -> tuple[NumArray, NumArray]:
        """Runs of consecutive row addresses, and the number of each run's first row."""

        def make() -> tuple[NumArray, NumArray]:
            with translate_errors(str(self._at)), meter.lance_call(1):
                scanner: Any = self._dataset.scanner(columns=[], with_row_address=True)
                addresses = scanner.to_table().column("_rowaddr").to_numpy()
            breaks = np.flatnonzero(np.diff(addresses) != 1) + 1
            firsts = np.concatenate([np.zeros(min(1, len(addresses)), np.int64), breaks])
            return addresses[firsts], firsts.astype(np.uint64)

        return self._caches.get((self._at, "layout"), make, lambda runs: int(runs[0].nbytes + runs[1].nbytes))

    @property
    def _dataset(self) -> Any:  # a LanceDataset, only ever read
        assert self._at is not None
        return self._tables.open(self._at)

    def _key(self, name: str) -> tuple[TableVersion | None, str, pa.DataType]:
        return (self._at, name, self._schema.field(name).type)

    def load_cost_s(self, name: str) -> float:
        """The estimated seconds to load a column."""
        return _LOAD_LATENCY_S + self.rows * value_bytes(self._schema.field(name).type) / _LOAD_BYTES_PER_S

    def _is_worth_loading(self, name: str, rows: int) -> bool:
        if self.is_loaded(name):
            return True
        if self._caches.has(("too long", *self._key(name))):
            return False
        if not self._caches.fits(int(self.rows * value_bytes(self._schema.field(name).type))):
            return False
        return rows > TAKE_ROWS_MAX or self._caches.recorded_cost_s(
            ("single reads", *self._key(name))
        ) >= self.load_cost_s(name)

    def _count(self) -> int:
        with translate_errors(str(self._at)):
            return int(self._dataset.count_rows())

    def _load(self, name: str, budget: MemoryBudget | None) -> ArrowArray:
        wanted = self._schema.field(name).type
        if name not in self._dataset.schema.names:
            return pa.nulls(self.rows, wanted)
        with translate_errors(str(self._at)), meter.lance_call(SCAN_STAGES_MAX):
            scanner: Any = self._dataset.scanner(columns=[name])
            batches, size = [], 0
            for batch in scanner.to_batches():
                checkpoint()
                size += batch.nbytes
                if budget is not None and size > max(self._caches.bytes_max, budget.left):
                    raise NoRoom(f"The values of a column ({name}) do not fit into memory: add a filter to the query.")
                batches.append(batch)
            column = pa.Table.from_batches(batches, scanner.projected_schema).column(name)
        return to_array(column if column.type == wanted else column.cast(wanted))

    def _take(self, names: Sequence[str], rows: NumArray) -> dict[str, ArrowArray]:
        start = time.monotonic()
        distinct, positions = np.unique(rows, return_inverse=True)
        inside = [name for name in names if self._at is not None and name in self._dataset.schema.names]
        result: dict[str, ArrowArray] = {}
        if inside and len(distinct):
            with translate_errors(str(self._at)), meter.lance_call(SCAN_STAGES_MAX):
                table = self._take_distinct(inside, distinct)
            for name in inside:
                column = take_values(to_array(table.column(name)), positions)
                wanted = self._schema.field(name).type
                result[name] = column if column.type == wanted else column.cast(wanted)
        for name in names:
            if name not in result:
                result[name] = pa.nulls(len(rows), self._schema.field(name).type)
            self._caches.record_cost(("single reads", *self._key(name)), time.monotonic() - start)
        return result

    def _take_distinct(self, names: list[str], rows: NumArray) -> pa.Table:
        """Long values are counted while they are read."""
        parts = []
        wide = any(is_wide(self._schema.field(name).type) for name in names)
        for part in chunks(len(rows), TAKE_ROWS_MAX if wide else len(rows)):
            parts.append(hold(self._dataset.take(pa.array(rows[part], pa.uint64()), columns=names), "stored values"))
        return pa.concat_tables(parts)


def is_wide(kind: pa.DataType) -> bool:
    """Whether values may be of any length."""
    return not (pa.types.is_primitive(kind) or pa.types.is_boolean(kind) or pa.types.is_fixed_size_list(kind))


def value_bytes(kind: pa.DataType) -> int:
    """The estimated bytes of a value."""
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * 4
    if pa.types.is_list(kind):
        return 64
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return 4_096
    return 24 if pa.types.is_string(kind) else 8
