"""The formats of an export: rows of one type as NDJSON, CSV or Parquet, such that a load reads the same rows back.

A CSV or Parquet file has the columns `id`, for an edge `from` and `to`, then the properties by name. Where an edge
has a property named `from` or `to`, its ends are `src` and `dst`, which are reserved names. In CSV, null is an empty
field and empty text is `""`; lists and vectors are JSON, blobs `base64:…`.
"""

import base64
import datetime as dt
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from omnigraph.schema.catalog import TypeDef
from omnigraph.schema.literals import BLOB_PREFIX, print_datetime
from omnigraph.schema.types import Enumeration, ListOf, PropertyType, Scalar, Vector

if TYPE_CHECKING:
    import pyarrow as pa

Format: TypeAlias = Literal["jsonl", "csv", "parquet"]
FORMATS: tuple[Format, ...] = ("jsonl", "csv", "parquet")
ROW_GROUP_ROWS = 65_536

_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


@dataclass(frozen=True, slots=True)
class FileColumn:
    """A column of a CSV or Parquet file: the table's column, the name in the file, and the type."""

    column: str
    name: str
    type: PropertyType


def file_columns(definition: TypeDef) -> list[FileColumn]:
    """The columns of a type's files, in order."""
    text = Scalar("String")
    names = ("from", "to") if not definition.by_name.keys() & {"from", "to"} else ("src", "dst")
    ends = [FileColumn("src", names[0], text), FileColumn("dst", names[1], text)] if definition.kind == "edge" else []
    return [
        FileColumn("id", "id", text),
        *ends,
        *(FileColumn(prop.column, prop.name, prop.type) for prop in definition.properties),
    ]


def write_rows(file: Any, definition: TypeDef, format: Format, batches: "Iterable[pa.Table]") -> int:
    """Write the rows of a type into a binary file, with a header even without rows; the number of rows."""
    if format == "parquet":
        return _write_parquet(file, definition, batches)
    if format == "csv":
        return _write_csv(file, definition, batches)
    rows = 0
    lines = line_encoder(definition)
    for batch in batches:
        file.writelines(lines(batch))
        rows += batch.num_rows
    return rows


def _write_parquet(file: Any, definition: TypeDef, batches: "Iterable[pa.Table]") -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from omnigraph.schema.arrow import arrow_type

    columns = file_columns(definition)
    schema = pa.schema([pa.field(column.name, arrow_type(column.type)) for column in columns])
    rows = 0
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for batch in batches:
            table = batch.select([column.column for column in columns]).rename_columns(schema.names).cast(schema)
            writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
            rows += table.num_rows
    return rows


def _write_csv(file: Any, definition: TypeDef, batches: "Iterable[pa.Table]") -> int:
    """Without Arrow's CSV writer, which does not quote empty text and prints -0.0 as the integer -0."""
    import pyarrow as pa
    import pyarrow.compute as compute

    pc: Any = compute
    columns = file_columns(definition)
    fields = [_csv_formatter(column.type) for column in columns]
    file.write(",".join(column.name for column in columns).encode() + b"\n")
    rows = 0
    for batch in batches:
        printed = [field(batch.column(column.column)) for column, field in zip(columns, fields, strict=True)]
        ended = [*printed[:-1], pc.binary_join_element_wise(printed[-1], pa.scalar("\n"), "", **_NULL_IS_NOTHING)]
        lines = pc.binary_join_element_wise(*ended, ",", **_NULL_IS_NOTHING)
        for chunk in lines.chunks if isinstance(lines, pa.ChunkedArray) else [lines]:
            file.write(_utf8_of(chunk))
        rows += batch.num_rows
    return rows


_NULL_IS_NOTHING = {"null_handling": "replace", "null_replacement": ""}


def _utf8_of(lines: Any) -> bytes:
    """The concatenated UTF-8 of an array of texts."""
    import numpy as np

    _, offsets, data = lines.buffers()
    if not len(lines):
        return b""
    ends = np.frombuffer(offsets, np.int32)[lines.offset : lines.offset + len(lines) + 1]
    return bytes(data[int(ends[0]) : int(ends[-1])])


def _csv_formatter(kind: PropertyType) -> "Callable[[Any], Any]":
    """The formatter of a column: text that may be empty or have a comma is quoted, null stays null."""
    import pyarrow as pa
    import pyarrow.compute as compute

    pc: Any = compute

    def quoted(texts: Any) -> Any:
        doubled = pc.replace_substring(texts, '"', '""')
        return pc.binary_join_element_wise('"', doubled, '"', "")

    match kind:
        case ListOf() | Vector():
            listed = value_printer(kind)
            return lambda column: quoted(
                pa.array([None if v is None else _dumps(v) for v in listed(column.to_pylist())], pa.string())
            )
        case Scalar("Blob"):
            coded = value_printer(kind)
            return lambda column: pa.array(coded(column.to_pylist()), pa.string())
        case Scalar("DateTime"):
            return lambda column: pc.replace_substring(column.cast(pa.string()), " ", "T")
        case Scalar("F32" | "F64"):
            return lambda column: pc.replace_substring_regex(column.cast(pa.string()), "^-0$", "-0.0")
        case Scalar("String") | Enumeration():
            return quoted
        case _:
            return lambda column: column.cast(pa.string())


# NDJSON -----------------------------------------------------------------------------------------------------


def line_encoder(definition: TypeDef) -> "Callable[[pa.Table], Iterator[bytes]]":
    """An encoder of a type's rows as lines. Every property is written: a missing one would get its default on load."""
    writers = [(prop.name, prop.column, value_printer(prop.type)) for prop in definition.properties]
    is_edge = definition.kind == "edge"

    def lines(rows: "pa.Table") -> Iterator[bytes]:
        columns = [(name, print_column(rows.column(column).to_pylist())) for name, column, print_column in writers]
        names = ["id", *(name for name, _ in columns)]
        values = zip(rows.column("id").to_pylist(), *(column for _, column in columns), strict=True)
        entries = (dict(zip(names, row, strict=True)) for row in values)
        if is_edge:
            ends = zip(rows.column("src").to_pylist(), rows.column("dst").to_pylist(), strict=True)
            for (source, target), data in zip(ends, entries, strict=True):
                yield _line({"edge": definition.name, "from": source, "to": target, "data": data})
        else:
            for data in entries:
                yield _line({"type": definition.name, "data": data})

    return lines


def _line(entity: dict[str, Any]) -> bytes:
    return _dumps(entity).encode() + b"\n"


def value_printer(kind: PropertyType) -> Callable[[list[Any]], list[Any]]:
    """The conversion of a column's values for output; floats in the shortest form of their width."""
    match kind:
        case Scalar("F32"):
            return _shortest_f32
        case Vector() | ListOf(Scalar("F32")):
            return lambda values: [None if value is None else _shortest_f32(value) for value in values]
        case ListOf(item):
            one = _scalar_converter(item)
            if one is None:
                return lambda values: values
            return lambda values: [None if value is None else [one(entry) for entry in value] for value in values]
        case _:
            plain = _scalar_converter(kind)
            if plain is None:
                return lambda values: values
            return lambda values: [None if value is None else plain(value) for value in values]


def _scalar_converter(kind: PropertyType) -> Callable[[Any], Any] | None:
    match kind:
        case Scalar("Date"):
            return dt.date.isoformat
        case Scalar("DateTime"):
            return print_datetime
        case Scalar("Blob"):
            return lambda value: BLOB_PREFIX + base64.b64encode(value).decode()
        case _:
            return None


def _shortest_f32(values: list[Any]) -> list[Any]:
    """F32s as the shortest numbers that read back as the same F32."""
    import numpy as np

    given = [value for value in values if value is not None]
    short = iter(np.array(given, np.float32).astype(str).astype(np.float64).tolist())
    return [None if value is None else next(short) for value in values]
