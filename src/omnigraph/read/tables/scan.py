"""The rows of one type at one snapshot, as Arrow tables."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from omnigraph.manifest.commit.txn import Snapshot
from omnigraph.manifest.model.manifest import TableKey
from omnigraph.storage.table.tables import Tables

if TYPE_CHECKING:
    import pyarrow as pa


def scan(
    tables: Tables, snapshot: Snapshot, key: TableKey, columns: Sequence[str] | None = None, filter: str | None = None
) -> "pa.Table":
    """All rows of a type that pass the filter; an empty table has its columns as well."""
    from omnigraph.schema.arrow import arrow_schema

    content, schema = snapshot.content(key), arrow_schema(snapshot.catalog.type_of(key))
    if content is None:
        return schema.empty_table().select(list(columns) if columns is not None else schema.names)
    return tables.scan(content, columns if columns is not None else schema.names, filter, schema=schema)


def lookup(
    tables: Tables, snapshot: Snapshot, key: TableKey, ids: Iterable[str], columns: Sequence[str] | None = None
) -> "pa.Table":
    """The rows with these ids."""
    from omnigraph.schema.arrow import arrow_schema

    schema = arrow_schema(snapshot.catalog.type_of(key))
    names = columns if columns is not None else schema.names
    return tables.lookup(snapshot.content(key), ids, names, schema=schema)
