"""A table as another definition of its type wants it: columns that come, columns that go for good, indexes.

Nothing is read but the columns that a new one is made from, and nothing is written but new columns and what still lay
on top: only `physical`, which takes the values of dropped properties out of the newest version, copies the table.
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
    """The version that fits, and whether its rows got values that they never had."""

    at: TableVersion
    has_new_values: bool


def add_missing_columns(tables: Tables, at: TableVersion, before: TypeDef, after: TypeDef) -> AlignedTable:
    """The table with all columns of `after`: null, a default, or the values of the column they were in before."""
    missing = column_fills(before, after)
    valued = [filled_column(entry) for entry in missing if not entry.is_null]
    empty = [column_field(entry) for entry in missing if entry.is_null]
    if valued:
        at = tables.fill_columns(at, valued).at
    if empty:
        at = tables.add_columns(at, empty).at
    return AlignedTable(at, any(entry.default is not None for entry in missing))


def needs_reshape(stored: TableVersion | None, change: TypeChange, physical: bool) -> bool:
    """Whether a change takes more than reading the table by the new definition.

    Rows that were never stored are null in a column that comes empty, and need no index.
    """
    missing = column_fills(change.before, change.after)
    if physical and change.drops_properties:
        return True
    if stored is None:
        return any(not entry.is_null for entry in missing)
    return bool(missing or _new_indexes(change))


def reshape(tables: Tables, ids: IdSource, content: TableContent, change: TypeChange, physical: bool) -> TableVersion:
    """A stored version as the changed type wants it, with all rows in it."""
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
    """Indexes that the rows lack; a column without values needs none."""
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
