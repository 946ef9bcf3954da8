"""The value of an expression for each row.

Conditions have three-valued logic: null is unknown. A large number of rows is evaluated in blocks, between which a
query can be stopped.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.cancellation import checkpoint
from omnigraph.memory_budget import reserved
from omnigraph.query.ir import (
    Apply,
    Case,
    Column,
    Compare,
    Expr,
    ListContains,
    Literal,
    Now,
    ParamRef,
    TextContains,
    TextStartsWith,
)
from omnigraph.read.expressions.scalars import ARITHMETIC, TIMES
from omnigraph.read.expressions.text import TEXT, contains_item, contains_text, starts_with
from omnigraph.read.tables.arrow_numpy import ArrowArray, BoolArray, Side, compare_values, to_mask
from omnigraph.schema.arrow import arrow_type
from omnigraph.schema.types import PropertyType

ColumnOf: TypeAlias = Callable[[Column], ArrowArray]
Function: TypeAlias = Callable[[PropertyType, Any], Any]  # of the result's type and the arguments' Arrow arrays

BLOCK_ROWS = 1 << 14


def evaluate(expr: Expr, column: ColumnOf, rows: int) -> ArrowArray:
    """The values of `rows` rows; `column` gives those of a column, one for each row."""
    if rows <= BLOCK_ROWS:
        return _array(_value(expr, column, rows), expr.type, rows)
    read: dict[Column, ArrowArray] = {}

    def whole(leaf: Column) -> ArrowArray:
        if leaf not in read:
            read[leaf] = column(leaf)
        return read[leaf]

    parts: list[Any] = []
    for first in range(0, rows, BLOCK_ROWS):
        checkpoint()
        count = min(BLOCK_ROWS, rows - first)
        found = _value(expr, lambda leaf, at=first, size=count: whole(leaf).slice(at, size), count)  # type: ignore[misc]
        parts.append(_array(found, expr.type, count))
    return pa.concat_arrays(parts)


def evaluate_mask(expr: Expr, column: ColumnOf, rows: int) -> BoolArray:
    """The rows for which a condition is true."""
    return to_mask(evaluate(expr, column, rows))


def _array(side: Side, kind: PropertyType, rows: int) -> ArrowArray:
    """A column or a constant as an array of the type's own Arrow type."""
    wanted = arrow_type(kind)
    if isinstance(side, pa.Array):
        return side if side.type == wanted else side.cast(wanted)
    if not rows:
        return pa.array([], wanted)
    value = list(side) if isinstance(side, tuple) else side
    constant: Any = pa.scalar(value, wanted)
    return pa.repeat(constant, rows)


def _value(expr: Expr, column: ColumnOf, rows: int) -> Side:
    """An array of the values, or one Python value that all rows have."""
    match expr:
        case Literal(value, _):
            return value
        case ParamRef() | Now():
            raise AssertionError(f"{expr} was not bound")
        case Compare(comparison, left, right, domain):
            sides = (_value(left, column, rows), _value(right, column, rows))
            return _unknown_where_null(lambda: compare_values(comparison, *sides, domain, rows), *sides)
        case TextContains(text, part):
            sides = (_value(text, column, rows), _value(part, column, rows))
            return _unknown_where_null(lambda: contains_text(*sides, rows), *sides)
        case TextStartsWith(text, prefix):
            sides = (_value(text, column, rows), _value(prefix, column, rows))
            return _unknown_where_null(lambda: starts_with(*sides, rows), *sides)
        case ListContains(items, item, domain):
            return contains_item(_value(items, column, rows), _value(item, column, rows), domain, rows)
        case Case():
            return _case(expr, column, rows)
        case Apply("and" | "or" as op, args):
            return _connect(op, args, column, rows)
        case Apply(fn, args, kind):
            sides = tuple(_value(arg, column, rows) for arg in args)
            if not any(isinstance(side, pa.Array) for side in sides):
                arrays = [_array(side, arg.type, 1) for side, arg in zip(sides, args, strict=True)]
                return _python_value(_FUNCTIONS[fn](kind, arrays))
            arrays = [_array(side, arg.type, rows) for side, arg in zip(sides, args, strict=True)]
            with reserved(2 * sum(array.nbytes for array in arrays), f"the results of {fn}"):
                return _FUNCTIONS[fn](kind, arrays)
        case _:
            return column(expr)


def _python_value(array: ArrowArray) -> Any:
    value = array[0].as_py()
    return tuple(value) if isinstance(value, list) else value


def _unknown_where_null(compare: Callable[[], BoolArray], *sides: Side) -> Side:
    """A comparison's result, null where a side is null."""
    if any(side is None for side in sides):
        return None
    nulls = [pc.is_null(side) for side in sides if isinstance(side, pa.Array) and side.null_count]
    if not nulls:
        return pa.array(compare())
    unknown: Any = nulls[0] if len(nulls) == 1 else pc.or_(*nulls)
    return pa.array(compare(), mask=unknown.to_numpy(zero_copy_only=False))


def _connect(op: str, args: tuple[Expr, ...], column: ColumnOf, rows: int) -> Side:
    decided = op == "or"  # by one such argument, whatever the others are
    kleene = pc.and_kleene if op == "and" else pc.or_kleene
    found: Any = pa.scalar(not decided, pa.bool_())
    for arg in args:
        side = _value(arg, column, rows)
        other: Any = side if isinstance(side, pa.Array) else pa.scalar(side, pa.bool_())
        found = kleene(found, other)
        if isinstance(found, pa.Scalar) and found.as_py() is decided:
            return decided
    return found if isinstance(found, pa.Array) else found.as_py()


def _case(expr: Case, column: ColumnOf, rows: int) -> Side:
    """Every branch is evaluated; the first whose condition is true counts."""
    found: Any = _array(_value(expr.otherwise, column, rows), expr.type, rows)
    for condition, value in reversed(expr.branches):
        chosen: Any = _array(_value(condition, column, rows), condition.type, rows)
        then: Any = _array(_value(value, column, rows), expr.type, rows)
        found = pc.if_else(pc.fill_null(chosen, False), then, found)
    return found


def _is_null(_: PropertyType, args: Any) -> Any:
    return pc.is_null(args[0])


def _not(_: PropertyType, args: Any) -> Any:
    return pc.invert(args[0])


def _coalesce(kind: PropertyType, args: Any) -> Any:
    return pc.coalesce(*(arg.cast(arrow_type(kind)) for arg in args))


_FUNCTIONS: Mapping[str, Function] = {
    "is_null": _is_null,
    "not": _not,
    "coalesce": _coalesce,
    **ARITHMETIC,
    **TEXT,
    **TIMES,
}
