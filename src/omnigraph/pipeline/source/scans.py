"""One type of a graph as something to scan in parts: pinned once, then read by whoever holds the value.

A `Pinned` says which table version is read, so that executors ask the store for rows and nothing else, and all of
them for the same rows. It is small and can be pickled; nothing here knows Spark.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING

from omnigraph.errors import BadRequest
from omnigraph.manifest.model import MAIN, CommitId
from omnigraph.manifest.repository import Repository, open_repository
from omnigraph.manifest.txn import Snapshot
from omnigraph.schema.catalog import Catalog, TypeDef
from omnigraph.storage.location import Location
from omnigraph.storage.partitions import fragment_batches, fragment_groups
from omnigraph.storage.tables import Tables, TableVersion

if TYPE_CHECKING:
    import pyarrow as pa

PART_ROWS = 1_000_000  # of one task; a fragment is never divided
TABLES_MAX = 16


@dataclass(frozen=True, slots=True)
class Pinned:
    """One type at one commit. `at` is None for a type that has no rows."""

    location: Location = field(repr=False)
    definition: TypeDef
    commit_id: CommitId
    at: TableVersion | None

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
) -> Pinned:
    """A type as it is now at the head of a branch, or was `at` a commit or a time."""
    return pinned_type(open_repository(store, storage_options, read_only=True), type_name, branch=branch, at=at)


def pinned_type(
    repository: Repository, type_name: str, *, branch: str = MAIN, at: str | datetime | None = None
) -> Pinned:
    return pinned_in(repository, repository.snapshot(branch, at), type_name)


def pinned_in(repository: Repository, snapshot: Snapshot, type_name: str) -> Pinned:
    """A type in a state that is pinned already.

    Rows that still ride in manifests will have to come along here, once there are any.
    """
    definition = type_named(snapshot.catalog, type_name)
    ref = snapshot.table(definition.table_key)
    at = None if ref is None else TableVersion(ref.table_id, ref.table_version)
    return Pinned(repository.location, definition, snapshot.commit_id, at)


def type_named(catalog: Catalog, name: str) -> TypeDef:
    found = catalog.by_name.get(name)
    if found is None:
        known = ", ".join(sorted(catalog.by_name)) or "none"
        raise BadRequest(f"The schema has no type {name!r}: its types are {known}.")
    return found


def divided(pinned: Pinned, rows: int = PART_ROWS) -> list[tuple[int, ...]]:
    """Groups of fragments, each about the work of one task; none for a type without rows."""
    return [] if pinned.at is None else fragment_groups(tables_at(pinned.location), pinned.at, rows)


def read_part(
    pinned: Pinned, fragments: Sequence[int], names: Sequence[str], row_filter: str | None = None
) -> "Iterator[pa.RecordBatch]":
    """The rows of some fragments under the names and with the types of the schema; older rows lack new columns."""
    import pyarrow as pa

    from omnigraph.schema.arrow import arrow_schema

    if pinned.at is None or not fragments:
        return
    tables = tables_at(pinned.location)
    whole = arrow_schema(pinned.definition)
    columns = [pinned.definition.column(name) for name in names]
    inside = set(tables.open(pinned.at).schema.names)
    wanted = [name for name in dict.fromkeys(columns) if name in inside] or ["id"]
    for batch in fragment_batches(tables, pinned.at, fragments, wanted, row_filter):
        arrays = [
            batch.column(column) if column in inside else pa.nulls(batch.num_rows, whole.field(column).type)
            for column in columns
        ]
        yield pa.RecordBatch.from_arrays(arrays, names=list(names))


def tables_at(location: Location) -> Tables:
    """Kept for the tasks that a worker runs one after the other: they share handles and the store's client."""
    return _kept(location.uri, tuple(sorted(location.options.items())), location.fsync)


@lru_cache(maxsize=TABLES_MAX)
def _kept(uri: str, options: tuple[tuple[str, str], ...], fsync: bool) -> Tables:
    return Tables(Location(uri, dict(options), fsync))
