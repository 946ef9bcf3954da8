"""Filters between variables as Spark expressions: exactly what the in-process engine says, value for value.

A filter over one variable is decided where its table is read (`scan.py`), so both sides are columns here. Text
is compared by its bytes, which is the order of code points; what Spark would compare through doubles is not.
"""

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as sf

from omnigraph.query.ir import (
    Compare,
    CompareOp,
    Domain,
    Filter,
    ListContains,
    Operand,
    TextContains,
    TextSearch,
    TextStartsWith,
)
from omnigraph.schema.types import ListOf, PropertyType, Scalar

_FLOATS = (Scalar("F32"), Scalar("F64"))
_U64 = Scalar("U64")
_U64_CARRIER = "decimal(20,0)"
_TWO_63 = 2.0**63
_FLIPPED: Mapping[CompareOp, CompareOp] = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def lowered(condition: Filter, column: Callable[[Operand], Column]) -> Column:
    """The filter as a condition; null means that it does not hold."""
    match condition:
        case Compare(op, left, right, domain):
            return compared(op, (column(left), _kind(left)), (column(right), _kind(right)), domain)
        case TextContains(text, part):
            return sf.contains(column(text), column(part))
        case TextStartsWith(text, prefix):
            return sf.startswith(column(text), column(prefix))
        case ListContains(items, item, domain):
            listed = _kind(items)
            assert isinstance(listed, ListOf)
            other = (column(item), _kind(item))
            return sf.exists(column(items), lambda each: compared("=", (each, listed.item), other, domain))
        case TextSearch():
            raise AssertionError("a text search has one variable")


def _kind(operand: Operand) -> PropertyType:
    return operand.type


def compared(
    op: CompareOp, left: tuple[Column, PropertyType], right: tuple[Column, PropertyType], domain: Domain
) -> Column:
    """`left op right` in a domain."""
    one, other = left[0], right[0]
    if domain == "f32":
        return _applied(op, one.cast("float"), other.cast("float"))
    floats = (left[1] in _FLOATS, right[1] in _FLOATS)
    if domain != "number" or floats[0] == floats[1]:
        return _applied(op, one, other)  # integers of two widths meet in one that holds both
    if floats[0]:
        return compared(_FLIPPED[op], right, left, domain)
    return _with_float(op, one, other, unsigned=left[1] == _U64)


def _applied(op: CompareOp, left: Column, right: Column) -> Column:
    found: Any = {
        "=": lambda: left == right,
        "!=": lambda: left != right,
        "<": lambda: left < right,
        "<=": lambda: left <= right,
        ">": lambda: left > right,
        ">=": lambda: left >= right,
    }[op]()
    return found  # type: ignore[no-any-return]


def _with_float(op: CompareOp, whole: Column, real: Column, unsigned: bool) -> Column:
    """An integer with a double, without turning the integer into one.

    The double's floor is an integer, exactly, if 64 bits can hold it; where they are equal, the fraction decides.
    """
    if unsigned:
        low, high = 0.0, 2.0 * _TWO_63
        above = (real - sf.lit(_TWO_63)).try_cast("bigint").cast("decimal(20,0)") + sf.lit(Decimal(2**63)).cast(
            "decimal(20,0)"
        )
        floor = sf.when(real < _TWO_63, sf.floor(real).cast("decimal(20,0)")).otherwise(above)
    else:
        low, high = -_TWO_63, _TWO_63
        floor = sf.floor(real).try_cast("bigint")
    fraction = sf.when(sf.abs(real) < 2.0**53, real > sf.floor(real)).otherwise(sf.lit(False))
    sign = (
        sf.when(whole.isNull() | real.isNull(), sf.lit(None).cast("int"))
        .when(real < low, sf.lit(1))
        .when(real >= high, sf.lit(-1))
        .when(whole > floor, sf.lit(1))
        .when(whole < floor, sf.lit(-1))
        .when(fraction, sf.lit(-1))
        .otherwise(sf.lit(0))
    )
    return _applied(op, sign, sf.lit(0))
