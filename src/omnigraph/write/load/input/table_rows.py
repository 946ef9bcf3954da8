"""Rows of tables and files of one type (Arrow, Parquet, CSV) as entities, and checks of their columns."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from omnigraph.errors import BadRequest
from omnigraph.schema.catalog import TypeDef
from omnigraph.schema.types import INTEGER_BOUNDS, Enumeration, ListOf, PropertyType, Scalar, Vector

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 10_000
_TEXT = Scalar("String")


def edge_end_columns(definition: TypeDef) -> dict[str, str]:
    """Columns of the ends of an edge: only `src` and `dst` if the type has a property `from` or `to`."""
    if definition.kind == "node":
        return {}
    own = definition.by_name.keys() & {"from", "to"}
    return {"src": "from", "dst": "to"} | ({} if own else {"from": "from", "to": "to"})


def check_columns(shown: str, definition: TypeDef, names: Iterable[str], hint: str = "") -> None:
    """BadRequest if a file has an unknown or repeated column, or lacks an end of its edges."""
    ends = edge_end_columns(definition)
    seen: set[str] = set()
    for name in names:
        if name != "id" and name not in ends and name not in definition.by_name:
            raise BadRequest(
                f"{shown} has a column {name!r}, which is unknown in {definition.name}: its columns are "
                f"{', '.join(allowed_columns(definition))}{hint}."
            )
        meant = f"{ends[name]}=" if name in ends else name
        if meant in seen:
            raise BadRequest(f"{shown} has the column {name!r} twice, as one name or two: keep one of them.")
        seen.add(meant)
    for end in ("from", "to") if ends else ():
        if f"{end}=" not in seen:
            column = next(name for name, meant in ends.items() if meant == end)
            raise BadRequest(
                f"{shown} has no column {end if end in ends else column!r}, but {definition.name} is an edge type: its "
                f"columns are {', '.join(allowed_columns(definition))}{hint}."
            )


def allowed_columns(definition: TypeDef) -> list[str]:
    """The columns that a file of this type may have."""
    ends = edge_end_columns(definition)
    shown = [] if not ends else ["from", "to"] if "from" in ends else ["src", "dst"]
    return ["id", *shown, *definition.by_name]


def check_types(shown: str, definition: TypeDef, schema: "pa.Schema") -> None:
    """BadRequest if the type of a column can't be converted to that of its property, whatever the values are."""
    ends = edge_end_columns(definition)
    for column in schema:
        kind = _TEXT if column.name == "id" or column.name in ends else definition.by_name[column.name].type
        if not is_convertible(column.type, kind):
            wanted = "text" if kind is _TEXT else str(kind)
            raise BadRequest(
                f"{shown} has {column.type} in the column {column.name!r}, but {definition.name}.{column.name} is "
                f"{wanted}: cast the column, or change the schema."
            )


def is_convertible(held: Any, kind: PropertyType) -> bool:
    """Whether a column of this Arrow type may have values of a property's type."""
    import pyarrow as pa

    is_type: Any = pa.types
    if is_type.is_dictionary(held):
        held = held.value_type
    if is_type.is_null(held):
        return True
    text = bool(is_type.is_string(held) or is_type.is_large_string(held) or is_type.is_string_view(held))
    match kind:
        case Enumeration() | Scalar("String"):
            return text
        case Scalar("Bool"):
            return bool(is_type.is_boolean(held))
        case Scalar("I64" | "U64"):
            return bool(is_type.is_integer(held)) or text
        case Scalar(name) if name in INTEGER_BOUNDS:
            return bool(is_type.is_integer(held))
        case Scalar("F32" | "F64"):
            return bool(is_type.is_integer(held) or is_type.is_floating(held))
        case Scalar("Date"):
            return bool(is_type.is_date(held)) or text
        case Scalar("DateTime"):
            return bool(is_type.is_timestamp(held)) or text
        case Scalar():
            return text or any(
                check(held)
                for check in (
                    is_type.is_binary,
                    is_type.is_large_binary,
                    is_type.is_binary_view,
                    is_type.is_fixed_size_binary,
                )
            )
        case ListOf(item):
            return _is_list(held) and is_convertible(held.value_type, item)
        case Vector():
            return _is_list(held) and is_convertible(held.value_type, Scalar("F32"))


def _is_list(held: Any) -> bool:
    import pyarrow as pa

    is_type: Any = pa.types
    checks = (is_type.is_list, is_type.is_large_list, is_type.is_fixed_size_list, is_type.is_list_view)
    return any(check(held) for check in checks) or bool(is_type.is_large_list_view(held))


def read_table_entities(
    rows: "pa.Table", name: str, ends: Mapping[str, str], *, is_edge: bool
) -> Iterator[dict[str, Any]]:
    """Each row as an entity. The property of a missing column is not given, nor is an id that is null."""
    for batch in limit_to_python_times(rows).to_batches(max_chunksize=BATCH_ROWS):
        for row in batch.to_pylist():
            given = {ends[column]: row.pop(column) for column in list(row) if column in ends} if is_edge else {}
            if row.get("id", "") is None:
                del row["id"]
            yield {"edge" if is_edge else "type": name, **given, "data": row}


def limit_to_python_times(rows: "pa.Table") -> "pa.Table":
    """The table with times that Python can represent: cut to microseconds, and as text beyond the years 1 to 9999."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for index, column in enumerate(rows.schema):
        values: Any = rows.column(index)
        if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
            floored: Any = pc.floor_temporal(values, unit="microsecond")
            values = floored.cast(pa.timestamp("us", column.type.tz))
            rows = rows.set_column(index, column.name, values)
        if (pa.types.is_date(column.type) or pa.types.is_timestamp(column.type)) and not is_within_python_years(values):
            rows = rows.set_column(index, column.name, values.cast(pa.string()))
    return rows


def is_within_python_years(values: Any) -> bool:
    """Whether all dates or times are in the years 1 to 9999, the range of Python's types."""
    import pyarrow.compute as pc

    years = pc.min_max(pc.year(values))
    low, high = years["min"].as_py(), years["max"].as_py()
    return low is None or (low >= 1 and high <= 9999)
