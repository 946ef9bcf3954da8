"""Property types, written as in a schema file: `I32`, `[String]`, `Vector(64)`, `enum(a, b)`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from omnigraph.errors import BadRequest

SCALARS = ("String", "Bool", "I32", "I64", "U32", "U64", "F32", "F64", "Date", "DateTime", "Blob")
INTEGER_BOUNDS: Mapping[str, tuple[int, int]] = {
    "I32": (-(2**31), 2**31 - 1),
    "I64": (-(2**63), 2**63 - 1),
    "U32": (0, 2**32 - 1),
    "U64": (0, 2**64 - 1),
}
FLOAT_MAX: Mapping[str, float] = {"F32": 3.4028234663852886e38, "F64": 1.7976931348623157e308}
VECTOR_DIMENSION_MAX = 65_536
TYPES_EXPECTED = f"one of {', '.join(SCALARS)}, [T], Vector(n), enum(a, …)"
ENUM_VALUE = re.compile(r"[A-Za-z0-9_-]+\Z")
_VECTOR = re.compile(r"Vector\((\d{1,6})\)\Z")
_ENUM = re.compile(r"enum\(([A-Za-z0-9_,\s-]+)\)\Z")


@dataclass(frozen=True, slots=True)
class Scalar:
    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class ListOf:
    item: Scalar

    def __str__(self) -> str:
        return f"[{self.item}]"


@dataclass(frozen=True, slots=True)
class Vector:
    dimension: int

    def __str__(self) -> str:
        return f"Vector({self.dimension})"


@dataclass(frozen=True, slots=True)
class Enumeration:
    values: tuple[str, ...]

    def __str__(self) -> str:
        return f"enum({', '.join(self.values)})"


PropertyType: TypeAlias = Scalar | ListOf | Vector | Enumeration


def parse_type(text: str) -> PropertyType:
    """The type that `str` printed."""
    if text in SCALARS:
        return Scalar(text)
    if text.startswith("[") and text.endswith("]") and text[1:-1] in SCALARS:
        return ListOf(Scalar(text[1:-1]))
    if (vector := _VECTOR.match(text)) and 1 <= int(vector[1]) <= VECTOR_DIMENSION_MAX:
        return Vector(int(vector[1]))
    if enum := _ENUM.match(text):
        values = tuple(value.strip() for value in enum[1].split(","))
        if all(ENUM_VALUE.match(value) for value in values) and len(set(values)) == len(values):
            return Enumeration(values)
    raise BadRequest(f"{text!r} is not a property type: use {TYPES_EXPECTED}.")


def stored_as(kind: PropertyType) -> PropertyType:
    """The type of the column: an enum's values are text, so that the enum can be extended without touching data."""
    return Scalar("String") if isinstance(kind, Enumeration) else kind
