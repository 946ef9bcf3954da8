"""Predicates over values, as Lance filters and for rows in memory."""

from collections.abc import Collection, Iterable, Mapping
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import pyarrow as pa

LOWEST = -(2**63)  # Lance's SQL would parse the plain number as a float

ColumnValues: TypeAlias = Mapping[
    str, Collection[object]
]  # by column; a row matches if it has one of the values in every column


def sql_in(column: str, values: Iterable[object]) -> str:
    """A predicate for rows that have one of these values in the column."""
    return f"`{column}` IN ({', '.join(dict.fromkeys(text for value in values for text in sql_literals(value)))})"


def sql_literals(value: object) -> tuple[str, ...]:
    """The literals of a value: an index distinguishes the two zeros, a unique value does not."""
    if isinstance(value, float) and value == 0:
        return "0.0", "-0.0"
    return (sql_literal(value),)


def sql_literal(value: object) -> str:
    """A value in a Lance filter; a quote is the only special character in a text."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            doubled = value.replace("'", "''")
            return f"'{doubled}'"
        case int() if value == LOWEST:
            return f"CAST('{value}' AS BIGINT)"
        case int() | float():
            return repr(value)
        case datetime():
            return f"timestamp '{value.isoformat(timespec='milliseconds')}'"
        case date():
            return f"date '{value.isoformat()}'"
        case bytes():
            return f"X'{value.hex()}'"
    raise TypeError(f"{type(value).__name__} has no place in a filter")


def value_set(values: Collection[object], kind: "pa.DataType") -> "pa.Array[Any]":
    """The values as an array of that type, with both zeros if one is among them."""
    import pyarrow as pa

    zeros = [-0.0, 0.0] if pa.types.is_floating(kind) and 0.0 in values else []
    return pa.array([*values, *zeros], kind)


def filter_rows(rows: "pa.Table", either: Iterable[ColumnValues]) -> "pa.Table":
    """The rows that match one of these: one of its values in each of its columns."""
    import pyarrow as pa
    import pyarrow.compute as pc

    chosen: Any = pa.array([False] * rows.num_rows, pa.bool_())
    for values in either:
        if all(name in rows.column_names for name in values):
            every: Any = pa.array([True] * rows.num_rows, pa.bool_())
            for name, some in values.items():
                column = rows[name]
                every = pc.and_(every, pc.is_in(column, value_set=value_set(some, column.type), skip_nulls=True))
            chosen = pc.or_(chosen, every)
    return rows.filter(chosen)
