"""Which tables of a query are in memory and which are read row by row: chosen by cost when the query starts.

A table is resident if it is in memory already, if it is small, or if lookups in it have cost about as much as loading
it would. A query that needs too many lookups restarts with the table resident (`NeedsResidentTables`).
"""

from collections.abc import Callable, Collection

from omnigraph.query.ir import Traverse
from omnigraph.read.graph import adjacency as adjacency_module
from omnigraph.read.graph.adjacency import BUILD_S_PER_EDGE, Adjacency
from omnigraph.read.graph.adjacency_file import load_adjacency
from omnigraph.read.reader import SnapshotReader, TableState
from omnigraph.read.tables.column_store import ID, ColumnStore
from omnigraph.read.tables.lazy_table import LAZY_ROWS_MAX, LazyTable
from omnigraph.read.tables.resident_table import ResidentTable, RowSet

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
