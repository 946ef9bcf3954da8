"""Rows of one state in the columns of another definition of their type.

A property that the state does not have yet gets its default, exactly as `schema apply` would set it; a value that moved
to a wider column is taken along. Where the definitions are equal, nothing is done.
"""

from typing import TYPE_CHECKING, Any

from omnigraph.schema.definitions import TypeDef
from omnigraph.schema.evolve.migration import ColumnFill, column_fills

if TYPE_CHECKING:
    import pyarrow as pa


def align_rows(rows: "pa.Table", own: TypeDef, wanted: TypeDef) -> "pa.Table":
    """Rows of the definition `own`, in any columns, with exactly the columns of the wanted definition."""
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
    """The values of a column that the rows do not have yet."""
    import pyarrow as pa

    from omnigraph.query.values import parse_value
    from omnigraph.schema.arrow import arrow_type

    if entry.source is not None:
        return rows.column(entry.source)
    value = None if entry.default is None else parse_value(entry.default, entry.type)
    plain = list(value) if isinstance(value, tuple) else value
    return pa.array([plain] * rows.num_rows, arrow_type(entry.type))
