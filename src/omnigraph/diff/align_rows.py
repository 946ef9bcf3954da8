"""Rows of one side, read as the merged schema has them.

A side that does not know a property yet has its default there, exactly as `schema apply` would have given it; one
whose values moved to a wider column brings them along. Where the definitions are the same nothing is done.
"""

from typing import TYPE_CHECKING, Any

from omnigraph.schema.definitions import TypeDef
from omnigraph.schema.evolve.migration import ColumnFill, column_fills

if TYPE_CHECKING:
    import pyarrow as pa


def align_rows(rows: "pa.Table", own: TypeDef, wanted: TypeDef) -> "pa.Table":
    """Rows of a side, in any columns that it has, with exactly the columns of the wanted definition."""
    import pyarrow as pa

    from omnigraph.schema.arrow import arrow_schema

    shape = arrow_schema(wanted)
    missing = {entry.column: entry for entry in column_fills(own, wanted)}
    columns: list[Any] = []
    for field in shape:
        entry = missing.get(field.name)
        column = rows.column(field.name) if entry is None else _added_column(rows, entry)
        columns.append(column if column.type.equals(field.type) else column.cast(field.type))
    return pa.table(columns, schema=shape)


def _added_column(rows: "pa.Table", entry: ColumnFill) -> Any:
    """What the rows have in a column that their side does not know."""
    import pyarrow as pa

    from omnigraph.query.values import parse_value
    from omnigraph.schema.arrow import arrow_type

    if entry.source is not None:
        return rows.column(entry.source)
    value = None if entry.default is None else parse_value(entry.default, entry.type)
    plain = list(value) if isinstance(value, tuple) else value
    return pa.array([plain] * rows.num_rows, arrow_type(entry.type))
