"""Tables in the columns of a schema: rows that were written with other columns are aligned to it."""

from typing import TYPE_CHECKING

from omnigraph.errors import BadRequest

if TYPE_CHECKING:
    import pyarrow as pa


def align_table(
    rows: "pa.Table", schema: "pa.Schema", *, drop_unknown: bool = False, name: str = "the table"
) -> "pa.Table":
    """`rows` with exactly the columns of `schema`, in its order and types; missing ones are null. Errors say `name`.

    A column that the schema does not have is refused, because dropping it would lose what was written, unless the
    caller wants it dropped: rows may have been written before a column was removed.
    """
    import pyarrow as pa

    if rows.schema.equals(schema):
        return rows
    present = set(rows.column_names)
    unknown = [] if drop_unknown else [name for name in rows.column_names if name not in schema.names]
    if unknown:
        raise BadRequest(f"{name} has no column {unknown[0]!r}: its columns are {', '.join(schema.names)}.")
    columns = []
    for target in schema:
        if target.name not in present:
            if not target.nullable:
                raise BadRequest(f"column {target.name!r} is required: give it a value in every row.")
            columns.append(pa.nulls(rows.num_rows, target.type))
            continue
        column = rows[target.name]
        try:
            columns.append(column if column.type.equals(target.type) else column.cast(target.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise BadRequest(f"{name}: column {target.name!r} is {target.type}, not {column.type}: {error}") from error
    return pa.table(columns, schema=schema)


def widen_schema(schema: "pa.Schema", other: "pa.Schema | None") -> "pa.Schema":
    """`schema`, then the columns that only `other` has, nullable: rows written without them have null there."""
    if other is None or other.equals(schema):
        return schema
    names = set(schema.names)
    for column in other:
        if column.name not in names:
            schema = schema.append(column.with_nullable(True))
    return schema
