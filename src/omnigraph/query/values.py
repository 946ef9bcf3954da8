"""Conversion of user values, in the form of load data, to the typed values of the IR.

Dates are ISO text, times ISO text with a zone (without one: UTC) to the millisecond, blobs `base64:…`, and 64-bit
integers may be strings, because JSON in other languages can't represent them. Python's `date`, aware or naive
`datetime` and `bytes`, and numpy numbers and arrays, are accepted too. NaN and infinities are refused everywhere.
"""

import base64
import binascii
import ctypes
import datetime as dt
import math
import numbers
import re
from typing import Any

from omnigraph.errors import BadRequest
from omnigraph.query.ir import Scalarlike, Value
from omnigraph.schema.definitions import Property
from omnigraph.schema.literals import BLOB_PREFIX, canonical_date, canonical_datetime
from omnigraph.schema.types import INTEGER_BOUNDS, Enumeration, ListOf, PropertyType, Scalar, Vector

_INTEGER_TEXT = re.compile(r"-?[0-9]{1,20}\Z", re.ASCII)
_SHOWN_LENGTH_MAX = 40
EXACT_AS_F64 = 2**53


class BadValue(BadRequest):
    """A value that does not fit its type: the problem, and what to pass instead."""

    fields = ("problem", "remedy")

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)
        self.problem, self.remedy = problem, remedy

    def __str__(self) -> str:
        return f"{self.problem}: {self.remedy}."


def parse_value(value: object, kind: PropertyType) -> Value:
    """The typed value; raises BadValue. Null is not a value of a type: the caller handles it."""
    match kind:
        case Scalar(name):
            return _scalar(value, name)
        case Enumeration(values):
            if isinstance(value, str) and value in values:
                return value
            raise BadValue(f"{format_value(value)} is not one of the enum's values", f"give one of {', '.join(values)}")
        case ListOf(item):
            value = _plain_list(value)
            if not isinstance(value, list | tuple):
                raise BadValue(f"{format_value(value)} is not a list", f"give a list of {item}")
            return tuple(_scalar(entry, item.name) for entry in value)
        case Vector(dimension):
            value = _plain_list(value)
            if not isinstance(value, list | tuple):
                raise BadValue(f"{format_value(value)} is not a vector", f"give a list of {dimension} numbers")
            if len(value) != dimension:
                raise BadValue(f"The vector has {len(value)} dimensions", f"give a list of {dimension} numbers")
            return tuple(_scalar(entry, "F32") for entry in value)


def default_of(prop: Property) -> Value:
    """The value of a property that is not given: its declared default, or null."""
    return None if prop.default is None else parse_value(prop.default, prop.type)


def parse_date(text: str) -> dt.date:
    try:
        return dt.date.fromisoformat(canonical_date(text))
    except ValueError:
        raise BadValue(f"{format_value(text)} is not a date", "write it as 2026-01-31") from None


def parse_datetime(text: str) -> dt.datetime:
    """The instant in UTC, truncated to the millisecond."""
    try:
        return dt.datetime.fromisoformat(canonical_datetime(text))
    except ValueError:
        raise BadValue(f"{format_value(text)} is not a time", "write it as 2026-01-31T12:00:00Z") from None


def to_instant(moment: dt.datetime) -> dt.datetime:
    """A time in UTC, truncated to the millisecond; without a zone it is taken as UTC."""
    try:
        aware = moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
        utc = aware.astimezone(dt.UTC)
    except (OverflowError, ValueError):
        raise BadValue(f"{moment} is out of range", "give a time between the years 1 and 9999 UTC") from None
    return utc.replace(microsecond=utc.microsecond // 1000 * 1000)


def round_f32(value: float) -> float:
    """The nearest F32; infinite beyond the largest. An integer is rounded once, not through an F64."""
    if isinstance(value, int) and abs(value) > EXACT_AS_F64:
        shift = abs(value).bit_length() - 24
        whole, rest = abs(value) >> shift, abs(value) & ((1 << shift) - 1)
        half = 1 << (shift - 1)
        if rest > half or (rest == half and whole & 1):
            whole += 1
        return math.copysign(ctypes.c_float(math.ldexp(whole, shift)).value, value)
    return ctypes.c_float(value).value


def format_value(value: object) -> str:
    """A value for a message: shortened, and texts in quotes."""
    text = f'"{value}"' if isinstance(value, str) else str(value)
    if isinstance(value, bool):
        text = text.lower()
    elif value is None:
        text = "null"
    elif isinstance(value, bytes | list | tuple | dict):
        text = f"a {type(value).__name__} of {len(value)}"
    return text if len(text) <= _SHOWN_LENGTH_MAX else text[: _SHOWN_LENGTH_MAX - 1] + "…"


def _plain_list(value: object) -> object:
    """An array of numpy or Arrow as a list; anything else unchanged."""
    convert = getattr(value, "tolist", None)
    return value if convert is None or isinstance(value, list | tuple) else convert()


def _scalar(value: object, name: str) -> Scalarlike:
    if name == "String":
        return _text(value)
    if name in INTEGER_BOUNDS:
        return _integer(value, name)
    if name in ("F32", "F64"):
        return _float(value, name)
    if name == "Bool":
        if isinstance(value, bool):
            return value
        raise BadValue(f"{format_value(value)} is not a Bool", "give true or false")
    if name == "Date":
        if isinstance(value, str):
            return parse_date(value)
        if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
            return value
        raise BadValue(f"{format_value(value)} is not a date", "give it as 2026-01-31")
    if name == "DateTime":
        if isinstance(value, str):
            return parse_datetime(value)
        if isinstance(value, dt.datetime):
            return to_instant(value)
        raise BadValue(f"{format_value(value)} is not a time", "give it as 2026-01-31T12:00:00Z")
    return _blob(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise BadValue(f"{format_value(value)} is not a String", "give a text")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise BadValue("The text has half a surrogate pair", "give whole characters") from None
    return value


def _integer(value: object, name: str) -> int:
    low, high = INTEGER_BOUNDS[name]
    if isinstance(value, str) and name in ("I64", "U64") and _INTEGER_TEXT.match(value):
        value = int(value)
    elif isinstance(value, numbers.Integral):  # of numpy as well
        value = value if isinstance(value, bool) else int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadValue(f"{format_value(value)} is not an integer", f"give a number from {low} to {high}")
    if not low <= value <= high:
        raise BadValue(f"{format_value(value)} does not fit into {name}", f"give a number from {low} to {high}")
    return value


def _float(value: Any, name: str) -> float:
    if not isinstance(value, int | float) and isinstance(value, numbers.Real):
        value = float(value)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise BadValue(f"{format_value(value)} is not a number", f"give a number that {name} can hold")
    if isinstance(value, float) and not math.isfinite(value):
        raise BadValue(f"{value} is not a finite number", f"give a number that {name} can hold")
    try:
        result = round_f32(value) if name == "F32" else float(value)
    except OverflowError:
        result = math.inf
    if not math.isfinite(result):
        raise BadValue(f"{format_value(value)} is too large for {name}", f"give a number that {name} can hold")
    return result


def _blob(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str) and value.startswith(BLOB_PREFIX):
        try:
            return base64.b64decode(value[len(BLOB_PREFIX) :], validate=True)
        except (binascii.Error, ValueError):
            pass
    raise BadValue(f"{format_value(value)} is not a Blob", 'give its bytes as "base64:…"')
