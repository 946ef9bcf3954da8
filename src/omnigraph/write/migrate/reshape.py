"""A table in the columns of another definition of its type: added columns, removed columns, indexes.

Only columns that a new one is filled from are read, and only new columns and the unfolded tail are written. Only
`physical`, which removes the values of dropped properties from the newest version, copies the table.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from omnigraph.query.values import parse_value
from omnigraph.runtime import IdSource
from omnigraph.schema.definitions import TypeDef
from omnigraph.schema.evolve.migration import ColumnFill, TypeChange, column_fills
from omnigraph.schema.indexes import DeclaredIndex, declared_indexes
from omnigraph.storage.table.table_content import TableContent
from omnigraph.storage.table.tables import Tables, TableVersion
from omnigraph.storage.table.write.schema_evolution import FilledColumn

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class AlignedTable:
    """A version with all columns of a definition, and whether its rows have values that they did not have before."""

    at: TableVersion
    has_new_values: bool


def add_missing_columns(tables: Tables, at: TableVersion, before: TypeDef, after: TypeDef) -> AlignedTable:
    """Add the columns of `after` that the table lacks: null, a default, or the values of the former column."""
    missing = column_fills(before, after)
    valued = [filled_column(entry) for entry in missing if not entry.is_null]
    empty = [column_field(entry) for entry in missing if entry.is_null]
    if valued:
        at = tables.fill_columns(at, valued).at
    if empty:
        at = tables.add_columns(at, empty).at
    return AlignedTable(at, any(entry.default is not None for entry in missing))


def needs_reshape(stored: TableVersion | None, change: TypeChange, physical: bool) -> bool:
    """Whether a change needs more than reading the table by the new definition.

    Rows that are only in manifests are null in a new column without default, and need no index.
    """
    missing = column_fills(change.before, change.after)
    if physical and change.drops_properties:
        return True
    if stored is None:
        return any(not entry.is_null for entry in missing)
    return bool(missing or _new_indexes(change))


def reshape(tables: Tables, ids: IdSource, content: TableContent, change: TypeChange, physical: bool) -> TableVersion:
    """Write a version in the columns and with the indexes of the changed type, with the tail folded in."""
    from omnigraph.schema.arrow import arrow_schema

    before, after = change.before, change.after
    at = tables.fold_tail(content, ids.short_id(), arrow_schema(before)).at
    made = add_missing_columns(tables, at, before, after).at
    if physical and change.drops_properties:
        columns = [*after.physical_columns, *(prop.column for prop in after.properties)]
        return tables.reindex(tables.copy_columns(made, ids.short_id(), columns).at, (), declared_indexes(after))
    known = {(index.column, index.kind) for index in declared_indexes(before)}
    wanted = _new_indexes(change)
    stale = [index.name for index in wanted if (index.column, index.kind) in known]
    return tables.reindex(made, stale, wanted) if wanted else made


def _new_indexes(change: TypeChange) -> list[DeclaredIndex]:
    """Declared indexes that the table lacks; a column without values needs none."""
    old = declared_indexes(change.before)
    nulls = {entry.column for entry in column_fills(change.before, change.after) if entry.is_null}
    return [index for index in declared_indexes(change.after) if index not in old and index.column not in nulls]


def filled_column(entry: ColumnFill) -> FilledColumn:
    value = None if entry.default is None else parse_value(entry.default, entry.type)
    return FilledColumn(column_field(entry), entry.source, value)


def column_field(entry: ColumnFill) -> "pa.Field[Any]":
    import pyarrow as pa

    from omnigraph.schema.arrow import arrow_type

    return pa.field(entry.column, arrow_type(entry.type))
