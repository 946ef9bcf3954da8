"""Scans of one type in parts, which may run on different machines and all read the same pinned state.

A `PinnedType` names the table version that is read and carries the inline rows of manifests, so that executors read
stored rows only, and all of them the same ones. It is small and can be pickled; nothing here depends on Spark.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from omnigraph.errors import BadRequest
from omnigraph.manifest.commit.txn import Snapshot
from omnigraph.manifest.model.manifest import MAIN, CommitId
from omnigraph.manifest.repository import Repository, open_repository
from omnigraph.schema.catalog import Catalog, TypeDef
from omnigraph.storage.location import Location
from omnigraph.storage.table.align import align_table
from omnigraph.storage.table.overlay import Overlay
from omnigraph.storage.table.read.partitions import fragment_batches, fragment_groups
from omnigraph.storage.table.tables import Tables, TableVersion

if TYPE_CHECKING:
    import pyarrow as pa

PART_ROWS = 1_000_000  # of one task; a fragment is never divided
TABLES_MAX = 16
OVERLAY = -1  # stands for the rows that ride in manifests where fragments are named: no fragment has this number


@dataclass(frozen=True, slots=True)
class PinnedType:
    """One type at one commit. `at` is None for a type that has no table; `overlay` lies on top of it."""

    location: Location = field(repr=False)
    definition: TypeDef
    commit_id: CommitId
    at: TableVersion | None
    overlay: Overlay = field(default=Overlay.EMPTY, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns as a caller names them: `id`, an edge's `src` and `dst`, then the properties."""
        return (*self.definition.physical_columns, *self.definition.by_name)


def pin(
    store: str,
    type_name: str,
    *,
    branch: str = MAIN,
    at: str | datetime | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> PinnedType:
    """A type as it is now at the head of a branch, or was `at` a commit or a time."""
    return pin_head(open_repository(store, storage_options, read_only=True), type_name, branch=branch, at=at)


def pin_head(
    repository: Repository, type_name: str, *, branch: str = MAIN, at: str | datetime | None = None
) -> PinnedType:
    return pin_type(repository, repository.snapshot(branch, at), type_name)


def pin_type(repository: Repository, snapshot: Snapshot, type_name: str) -> PinnedType:
    """A type in a state that is pinned already. Tails are read here, by the driver, and by nobody after it."""
    definition = find_type(snapshot.catalog, type_name)
    at, overlay = repository.tables.resolve(snapshot.content(definition.table_key))
    return PinnedType(repository.location, definition, snapshot.commit_id, at, overlay)


def find_type(catalog: Catalog, name: str) -> TypeDef:
    found = catalog.by_name.get(name)
    if found is None:
        known = ", ".join(sorted(catalog.by_name)) or "none"
        raise BadRequest(f"The schema has no type {name!r}: its types are {known}.")
    return found


def fragment_tasks(pinned: PinnedType, rows: int = PART_ROWS) -> list[tuple[int, ...]]:
    """Groups of fragments, each about the work of one task; none for a type without rows."""
    groups = [] if pinned.at is None else fragment_groups(tables_at(pinned.location), pinned.at, rows)
    return [*groups, (OVERLAY,)] if pinned.overlay.ids else groups


def read_part(
    pinned: PinnedType, fragments: Sequence[int], names: Sequence[str], row_filter: str | None = None
) -> "Iterator[pa.RecordBatch]":
    """The rows of some fragments under the names and with the types of the schema; older rows lack new columns."""
    import pyarrow as pa

    columns = [pinned.definition.column(name) for name in names]
    for rows in read_columns(pinned, fragments, columns, row_filter):
        yield pa.RecordBatch.from_arrays([rows.column(column) for column in columns], names=list(names))


def read_columns(
    pinned: PinnedType, fragments: Sequence[int], columns: Sequence[str], row_filter: str | None = None
) -> "Iterator[pa.RecordBatch]":
    """As `read_part`, by the names of the table's columns, each of them once."""
    import pyarrow as pa

    from omnigraph.schema.arrow import arrow_schema

    tables, whole = tables_at(pinned.location), arrow_schema(pinned.definition)
    wanted = list(dict.fromkeys(columns)) or ["id"]
    shape = pa.schema([whole.field(name) for name in wanted])
    stored = [number for number in fragments if number != OVERLAY]
    if pinned.at is not None and stored:
        inside = [name for name in wanted if name in tables.open(pinned.at).schema.names]
        hidden = pa.array(sorted(pinned.overlay.hidden_ids), pa.string())
        asked = list(dict.fromkeys([*inside, *(["id"] if len(hidden) else [])])) or ["id"]
        for batch in fragment_batches(tables, pinned.at, stored, asked, row_filter, whole):
            yield from align_table(pa.table(_without_hidden(batch, hidden)), shape, drop_unknown=True).to_batches()
    if len(stored) < len(fragments):
        for batch in _overlay_batch(tables, pinned, whole, row_filter).select(wanted).to_batches():
            yield batch


def _without_hidden(batch: "pa.RecordBatch", hidden: "pa.Array[Any]") -> "pa.RecordBatch":
    """Without the stored rows that rows in manifests replace or remove."""
    import pyarrow.compute as pc

    if not len(hidden):
        return batch
    ids: Any = batch.column("id")
    return batch.filter(pc.invert(pc.is_in(ids, value_set=hidden.cast(ids.type))))


def _overlay_batch(tables: Tables, pinned: PinnedType, whole: "pa.Schema", row_filter: str | None) -> "pa.Table":
    """The rows that ride in manifests; the filter is Lance's here too, over a table of them alone."""
    rows = overlay_rows(pinned)
    if row_filter is None or not rows.num_rows:
        return rows
    return align_table(tables.scan(None, None, row_filter, Overlay.of(rows), whole), whole)


def overlay_rows(pinned: PinnedType) -> "pa.Table":
    """The rows that ride in manifests, in the columns of the schema: those written earlier may have others."""
    from omnigraph.schema.arrow import arrow_schema

    whole, rows = arrow_schema(pinned.definition), pinned.overlay.rows
    if rows is None:
        return whole.empty_table()
    return align_table(rows, whole, drop_unknown=True)


def tables_at(location: Location) -> Tables:
    """Kept for the tasks that a worker runs one after the other: they share handles and the store's client."""
    return _cached_tables(location.uri, tuple(sorted(location.options.items())), location.fsync)


@lru_cache(maxsize=TABLES_MAX)
def _cached_tables(uri: str, options: tuple[tuple[str, str], ...], fsync: bool) -> Tables:
    return Tables(Location(uri, dict(options), fsync))
