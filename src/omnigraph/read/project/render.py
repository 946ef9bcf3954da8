"""Values as JSON output has them, in results and exports: JSON's own types, and text for the others."""

import base64
import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from omnigraph.query.ir import WholeNode
from omnigraph.schema.literals import BLOB_PREFIX, print_datetime
from omnigraph.schema.types import Enumeration, ListOf, PropertyType, Scalar, Vector

Convert = Callable[[Any], Any]


class Rendered(Protocol):
    """A column of a result: its type, or its node."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> PropertyType | None: ...
    @property
    def node(self) -> WholeNode | None: ...


def json_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[Rendered]) -> list[dict[str, Any]]:
    """Rows with JSON values."""
    converters = [(column.name, _column_converter(column)) for column in columns]
    if all(convert is None for _, convert in converters):
        return [dict(row) for row in rows]
    return [
        {name: row[name] if convert is None else _or_null(convert, row[name]) for name, convert in converters}
        for row in rows
    ]


def converter(kind: PropertyType) -> Convert | None:
    """The conversion of a type's values to JSON; None where they need none."""
    match kind:
        case Scalar(name):
            return _SCALARS.get(name)
        case ListOf(Scalar(name)):
            convert = _SCALARS.get(name)
            return list if convert is None else lambda items: [convert(item) for item in items]
        case Vector():
            return lambda items: [f32(item) for item in items]
        case Enumeration():
            return None


def f32(value: float) -> float:
    """The double whose shortest text reads back as this F32."""
    return float(str(np.float32(value)))


def blob_text(data: bytes) -> str:
    return BLOB_PREFIX + base64.b64encode(data).decode()


_SCALARS: Mapping[str, Convert] = {
    "F32": f32,
    "Date": dt.date.isoformat,
    "DateTime": print_datetime,
    "Blob": blob_text,
}


def _column_converter(column: Rendered) -> Convert | None:
    if column.node is None:
        return None if column.type is None else converter(column.type)
    inside = {entry.name: converter(entry.type) for entry in column.node.columns}
    changing = {name: convert for name, convert in inside.items() if convert is not None}
    return lambda node: node | {name: _or_null(convert, node[name]) for name, convert in changing.items()}


def _or_null(convert: Convert, value: Any) -> Any:
    return None if value is None else convert(value)
