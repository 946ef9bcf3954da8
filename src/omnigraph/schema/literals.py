"""Literals of a schema, such as defaults and the bounds of ranges, checked against a property's type.

Values are as in load data: dates and times are ISO text, a blob is `base64:…`.
"""

import base64
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime

from omnigraph.schema.definitions import SchemaValue
from omnigraph.schema.types import FLOAT_MAX, INTEGER_BOUNDS, Enumeration, ListOf, PropertyType, Scalar, Vector

BLOB_PREFIX = "base64:"
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}\Z", re.ASCII)
_DATETIME = re.compile(
    r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?(Z|[+-]\d{2}:?\d{2})?\Z",
    re.ASCII,
)


def canonical_date(text: str) -> str:
    """The canonical text of a date; ValueError where it is invalid."""
    if not _DATE.match(text):
        raise ValueError(f"{text!r} is not a date")
    return date.fromisoformat(text).isoformat()


def canonical_datetime(text: str) -> str:
    """The canonical text of a time, UTC without a zone; ValueError where it is invalid."""
    if not _DATETIME.match(text):
        raise ValueError(f"{text!r} is not a time")
    moment = datetime.fromisoformat(text)
    try:
        return print_datetime(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    except OverflowError as error:
        raise ValueError(f"{text!r} is out of range") from error


def print_datetime(moment: datetime) -> str:
    """`2026-01-31T12:00:00.250Z`: in UTC, always to the millisecond, so that equal times are equal texts."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def canonical_value(value: SchemaValue, kind: PropertyType) -> SchemaValue:
    """The value in canonical form; ValueError, with what was expected, where it does not fit."""
    match kind:
        case Scalar(name):
            return _canonical_scalar(value, name)
        case Enumeration(values):
            if value not in values:
                raise ValueError(f"one of {', '.join(values)}, in double quotes")
            return value
        case ListOf(item):
            if not isinstance(value, tuple):
                raise ValueError(f"a list of {item}, such as [ … ]")
            return tuple(_canonical_scalar(entry, item.name) for entry in value)
        case Vector(dimension):
            if not isinstance(value, tuple) or len(value) != dimension:
                raise ValueError(f"a list of {dimension} numbers")
            return tuple(_canonical_scalar(entry, "F32") for entry in value)


def has_range(kind: PropertyType) -> bool:
    """Whether values of this type can be bounded by `@range`."""
    return isinstance(kind, Scalar) and kind.name not in ("String", "Bool", "Blob")


def _canonical_scalar(value: SchemaValue, name: str) -> SchemaValue:
    if name in INTEGER_BOUNDS:
        low, high = INTEGER_BOUNDS[name]
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        raise ValueError(f"an integer from {low} to {high}")
    if name in FLOAT_MAX:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and -FLOAT_MAX[name] <= value <= FLOAT_MAX[name]:  # type: ignore[operator]
            return value
        raise ValueError(f"a finite number that {name} can hold")
    canonical, expected = _OTHERS[name]
    try:
        return canonical(value)
    except (ValueError, TypeError) as error:
        raise ValueError(expected) from error


def _bool(value: SchemaValue) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _string(value: SchemaValue) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _blob(value: SchemaValue) -> str:
    text = _string(value)
    if not text.startswith(BLOB_PREFIX):
        raise ValueError
    data = base64.b64decode(text.removeprefix(BLOB_PREFIX), validate=True)
    return BLOB_PREFIX + base64.b64encode(data).decode()


_OTHERS: Mapping[str, tuple[Callable[[SchemaValue], SchemaValue], str]] = {
    "Bool": (_bool, "true or false"),
    "String": (_string, 'text in double quotes: "…"'),
    "Date": (lambda value: canonical_date(_string(value)), 'a date such as date("2026-01-31")'),
    "DateTime": (
        lambda value: canonical_datetime(_string(value)),
        'a time such as datetime("2026-01-31T12:00:00Z")',
    ),
    "Blob": (_blob, 'text such as "base64:aGk="'),
}
