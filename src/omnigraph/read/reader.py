"""What a query reads: one pinned snapshot, each table as a stored version with an overlay on top."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from omnigraph.manifest.commit.txn import Snapshot
from omnigraph.manifest.model.manifest import CommitId, TableKey
from omnigraph.read.tables.read_cache import ReadCache
from omnigraph.schema.catalog import TypeDef
from omnigraph.storage.objects.object_store import ObjectStore
from omnigraph.storage.table.overlay import Overlay
from omnigraph.storage.table.tables import Tables, TableVersion

if TYPE_CHECKING:
    import pyarrow as pa

Expansion: TypeAlias = Literal["auto", "csr", "index"]
Fingerprint: TypeAlias = tuple[str, int, str]  # table id, table version, overlay


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read; the results do not depend on it.

    `expand`: chosen by cost, always by the adjacency with tables in memory, or always by lookups in the store. A table
    of at most `resident_rows` rows is read at once; a frontier of more than `frontier_max` vertices justifies an
    adjacency. A query may use `memory_bytes` of memory; 0: a quarter of the machine's.
    """

    expand: Expansion = "auto"
    resident_rows: int = 5_000
    frontier_max: int = 400
    batch_rows: int = 65_536
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TableState:
    """One table of the snapshot. `at` is None for a type that was never stored; `rows` is for estimates."""

    key: TableKey
    definition: TypeDef
    at: TableVersion | None
    overlay: Overlay
    schema: "pa.Schema"
    rows: int

    @property
    def fingerprint(self) -> Fingerprint:
        """Equal only for equal content: the cache key of everything derived from this state."""
        overlay = "" if self.overlay.is_empty else self.overlay.fingerprint
        return (self.at.table_id, self.at.table_version, overlay) if self.at else (self.key, 0, overlay)


@dataclass(frozen=True, slots=True)
class SnapshotReader:
    """Everything a query may read. Nothing newer than the snapshot can be reached from here.

    `overlays` are rows on top of the snapshot, such as what a running mutation has written so far. Saved adjacencies
    are looked up in `store`; without a store there are none.
    """

    tables: Tables
    snapshot: Snapshot
    caches: ReadCache
    overlays: Mapping[TableKey, Overlay] = field(default_factory=dict)
    store: ObjectStore | None = None
    options: ReadOptions = ReadOptions()
    _states: dict[TableKey, TableState] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def commit_id(self) -> CommitId:
        return self.snapshot.commit_id

    def state(self, table_key: TableKey) -> TableState:
        found = self._states.get(table_key)
        if found is None:
            found = self._states[table_key] = self._state(table_key)
        return found

    def _state(self, table_key: TableKey) -> TableState:
        from omnigraph.schema.arrow import arrow_schema

        ref = self.snapshot.table(table_key)
        definition = self.snapshot.catalog.type_of(table_key)
        at, own = self.tables.resolve(self.snapshot.content(table_key))
        pending = self.overlays.get(table_key, Overlay.EMPTY)
        rows = (0 if ref is None else ref.rows) + (0 if pending.rows is None else pending.rows.num_rows)
        return TableState(table_key, definition, at, own.compose(pending), arrow_schema(definition), rows)
