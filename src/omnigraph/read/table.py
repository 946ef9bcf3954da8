"""The rows of one type at one snapshot, as Arrow tables."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from omnigraph.manifest.model import TableKey
from omnigraph.manifest.txn import Snapshot
from omnigraph.storage.tables import Tables, TableVersion

if TYPE_CHECKING:
    import pyarrow as pa


def scan(
    tables: Tables, snapshot: Snapshot, key: TableKey, columns: Sequence[str] | None = None, filter: str | None = None
) -> "pa.Table":
    """All rows of a type that pass the filter; a type without rows has its columns all the same."""
    from omnigraph.schema.arrow import arrow_schema

    at, schema = _at(snapshot, key), arrow_schema(snapshot.catalog.type_of(key))
    if at is None:
        return schema.empty_table().select(list(columns) if columns is not None else schema.names)
    return tables.scan(at, columns if columns is not None else schema.names, filter)


def lookup(
    tables: Tables, snapshot: Snapshot, key: TableKey, ids: Iterable[str], columns: Sequence[str] | None = None
) -> "pa.Table":
    """The rows with these ids."""
    from omnigraph.schema.arrow import arrow_schema

    schema = arrow_schema(snapshot.catalog.type_of(key))
    return tables.lookup(_at(snapshot, key), ids, columns if columns is not None else schema.names, schema=schema)


def _at(snapshot: Snapshot, key: TableKey) -> TableVersion | None:
    ref = snapshot.table(key)
    return None if ref is None else TableVersion(ref.table_id, ref.table_version)
