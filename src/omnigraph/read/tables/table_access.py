"""Which tables of a query are in memory and which are read row by row: chosen by cost when the query starts.

A table is resident if it is in memory already, if it is small, or if lookups in it have cost about as much as loading
it would. A query that needs too many lookups restarts with the table resident (`NeedsResidentTables`).

Rows of a table that is not resident are fetched on demand and numbered in that order. A row is fetched with all the
columns that the query needs of it, so that a lookup by key in a cold process makes a handful of requests however large
the table is.
"""

import time
from collections.abc import Callable, Collection, Sequence

import numpy as np
import pyarrow as pa

from omnigraph.query.ir import Filter, Traverse
from omnigraph.read.graph import adjacency as adjacency_module
from omnigraph.read.graph.adjacency import BUILD_S_PER_EDGE, Adjacency
from omnigraph.read.graph.adjacency_file import load_adjacency
from omnigraph.read.match.filters import (
    filter_table,
    lance_filter,
    required_id,
    to_array,
)
from omnigraph.read.reader import SnapshotReader, TableState
from omnigraph.read.tables.arrow_numpy import ArrowArray, BoolArray, NumArray
from omnigraph.read.tables.column_store import ID, ColumnStore
from omnigraph.read.tables.large_arrays import sorted_distinct, take_values
from omnigraph.read.tables.read_cache import ReadCache
from omnigraph.read.tables.resident_table import (
    NeedsResidentTables,
    ResidentTable,
    RowSet,
    filter_rows,
    overlay_rows,
)
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
        positions = self._fetch(sorted_distinct(row_numbers), row_numbers)
        return {name: take_values(to_array(self._rows.column(name)), positions) for name in names}

    def select(self, filters: Sequence[Filter]) -> NumArray:
        named = [id_ for condition in filters if (id_ := required_id(condition)) is not None]
        rows = self._lookup(named[:1]) if named else self.scan(filters, self._names)
        for condition in filters:
            rows = rows.filter(pa.array(filter_table(condition, rows)))
        if self._rows_max is not None and rows.num_rows > self._rows_max:
            raise NeedsResidentTables(self.state.key)
        return np.sort(self.add(rows))

    def filter_mask(self, filters: Sequence[Filter], row_numbers: NumArray) -> BoolArray:
        return filter_rows(self, filters, row_numbers)

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


_NODE_BYTES, _EDGE_BYTES = 40, 24  # estimates of a row in memory: an id with its hash, an edge in two directions


class TableAccess:
    """The tables of one run of one query, by table key; `wanted` gives the columns it needs of a table."""

    def __init__(
        self,
        reader: SnapshotReader,
        wanted: Callable[[str], Collection[str]],
        traversals: Collection[Traverse],
        resident: frozenset[str],
    ) -> None:
        self.reader = reader
        self._columns_of = wanted
        self._resident_keys = set(resident)
        self._tables: dict[str, RowSet] = {}
        self._adjacencies: dict[str, Adjacency | None] = {}
        for step in traversals:
            if self._uses_adjacency(step):
                self._resident_keys |= {step.edge, step.source_key, step.target_key}

    def table(self, table_key: str) -> RowSet:
        found = self._tables.get(table_key)
        if found is None:
            found = self._tables[table_key] = self._open_table(self.reader.state(table_key))
        return found

    def resident_table(self, table_key: str) -> ResidentTable | None:
        table = self.table(table_key)
        return table if isinstance(table, ResidentTable) else None

    def lazy_table(self, table_key: str) -> LazyTable:
        table = self.table(table_key)
        assert isinstance(table, LazyTable)
        return table

    def adjacency(self, step: Traverse) -> Adjacency | None:
        """The adjacency of a traversal; None where it uses lookups in the edge table."""
        if step.edge not in self._adjacencies:
            edges = self.resident_table(step.edge)
            self._adjacencies[step.edge] = None if edges is None else self._adjacency(edges, step)
        return self._adjacencies[step.edge]

    def _adjacency(self, edges: ResidentTable, step: Traverse) -> Adjacency:
        source, target = self.resident_table(step.source_key), self.resident_table(step.target_key)
        assert source is not None
        assert target is not None
        return get_adjacency(self.reader, edges, source, target)

    def _open_table(self, state: TableState) -> RowSet:
        options = self.reader.options
        if options.expand != "index" and (options.expand == "csr" or self._is_resident(state)):
            return ResidentTable(self.reader.tables, self.reader.caches, state)
        limit = None if options.expand == "index" else LAZY_ROWS_MAX
        return LazyTable(self.reader.tables, self.reader.caches, state, self._columns_of(state.key), limit)

    def _is_resident(self, state: TableState) -> bool:
        if state.key in self._resident_keys or state.at is None:
            return True
        if state.key.startswith("edge:"):
            return False  # decided with its adjacency
        caches = self.reader.caches
        stored = ColumnStore(self.reader.tables, caches, state.at, state.schema)
        if state.rows <= self.reader.options.resident_rows or stored.is_loaded(ID):
            return True
        return caches.fits(state.rows * _NODE_BYTES) and caches.recorded_cost_s(
            ("lookups", state.at)
        ) >= 2 * stored.load_cost_s(ID)

    def _uses_adjacency(self, step: Traverse) -> bool:
        reader = self.reader
        if reader.options.expand != "auto":
            return reader.options.expand == "csr"
        edges = reader.state(step.edge)
        if step.edge in self._resident_keys or edges.at is None or edges.rows <= reader.options.resident_rows:
            return True
        states = [edges, reader.state(step.source_key), reader.state(step.target_key)]
        if reader.caches.has(_cache_key(states)):
            return True
        fits = reader.caches.fits(edges.rows * _EDGE_BYTES)
        return fits and reader.caches.recorded_cost_s(("lookups", edges.at)) >= edges.rows * BUILD_S_PER_EDGE


def get_adjacency(
    reader: SnapshotReader, edges: ResidentTable, source: ResidentTable, target: ResidentTable
) -> Adjacency:
    """The adjacency of three table states: that of their stored versions, with the overlays applied."""
    caches = reader.caches
    base = caches.get(
        _cache_key([edges.state, source.state, target.state]),
        lambda: (
            (load_adjacency(reader.store, edges, source, target) if reader.store is not None else None)
            or adjacency_module.build_adjacency(edges, source, target)
        ),
        lambda made: made.nbytes,
    )
    if edges.patch is None and source.patch is None and target.patch is None:
        return base
    key = ("adjacency", *(table.state.fingerprint for table in (edges, source, target)))
    return caches.get(
        key,
        lambda: adjacency_module.apply_overlays(base, edges, source, target),
        lambda made: 0 if made is base else made.nbytes,
    )


def _cache_key(states: Collection[TableState]) -> tuple[object, ...]:
    return ("adjacency", *(state.at for state in states))
