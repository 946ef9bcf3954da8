"""Identity: the id of a keyed row is a function of its complete key tuple, so equal keys are one row.

Every writer, in process or on Spark, derives ids by the rules here: the id of a single property is its canonical text,
that of several a compact JSON array of their texts in the order of `@key`.
"""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

from omnigraph.errors import BadRequest
from omnigraph.schema.definitions import TypeDef
from omnigraph.schema.literals import canonical_date, canonical_datetime, print_datetime
from omnigraph.schema.types import Enumeration, PropertyType, Scalar

_STRING = Scalar("String")


def id_of(definition: TypeDef, values: Mapping[str, Any]) -> str:
    """The id of a row with these values by property name; the type must have a key."""
    texts = []
    for name in definition.key:
        try:
            texts.append(canonical_text(values.get(name), definition.by_name[name].type))
        except ValueError as error:
            raise BadRequest(f"The key {definition.name}.{name} is {error}: give a value that fits.") from error
    return id_from_texts(texts)


def id_from_texts(texts: Sequence[str]) -> str:
    """The id for the canonical texts of a complete key."""
    if len(texts) == 1:
        return texts[0]
    return json.dumps(list(texts), ensure_ascii=False, separators=(",", ":"))


def canonical_text(value: Any, kind: PropertyType) -> str:
    """The canonical text of a key value: 1 and 1.0 are both `1.0` in an F64. ValueError where it has none."""
    if value is None:
        raise ValueError("null, which is no part of a key")
    if isinstance(kind, Enumeration) or kind == _STRING:
        return _text(value)
    match kind:
        case Scalar("Bool") if isinstance(value, bool):
            return "true" if value else "false"
        case Scalar("I32" | "I64" | "U32" | "U64") if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        case Scalar("F32" | "F64") if isinstance(value, int | float) and not isinstance(value, bool):
            return _float(value, kind)
        case Scalar("Date") if isinstance(value, date) and not isinstance(value, datetime):
            return value.isoformat()
        case Scalar("Date") if isinstance(value, str):
            return canonical_date(value)
        case Scalar("DateTime") if isinstance(value, datetime):
            return print_datetime(value if value.tzinfo else value.replace(tzinfo=UTC))
        case Scalar("DateTime") if isinstance(value, str):
            return canonical_datetime(value)
    raise ValueError(f"{value!r}, which does not fit {kind}")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r}, which is no text")
    return value


def _float(value: int | float, kind: PropertyType) -> str:
    """The shortest text that reads back as the same number; -0.0 is 0.0."""
    stored = _stored_float(value, kind)
    if not math.isfinite(stored):
        raise ValueError(f"{value}, which has no place in a key of {kind}")
    if kind == Scalar("F64"):
        return repr(stored)
    shorter = (float(f"{stored:.{digits}g}") for digits in range(1, 10))  # 9 digits always suffice
    return next(repr(number) for number in shorter if _stored_float(number, kind) == stored)


def _stored_float(value: int | float, kind: PropertyType) -> float:
    """The value as a column of this type stores it; infinite where it is too large."""
    try:
        if kind == Scalar("F64"):
            return float(value) + 0.0  # not -0.0
        single: float = struct.unpack("<f", struct.pack("<f", value))[0]
        return single + 0.0
    except OverflowError:
        return math.inf
