"""Numbers: integers are computed exactly and overflow is an error; floats have no infinite results, null instead."""

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.errors import BadRequest
from omnigraph.read.tables.arrow_numpy import ArrowArray, NumArray, raw_values, valid_mask
from omnigraph.schema.arrow import arrow_type
from omnigraph.schema.types import INTEGER_BOUNDS, PropertyType, Scalar

_I64 = INTEGER_BOUNDS["I64"]
_CHECKED: Mapping[str, Any] = {
    "+": pc.add_checked,
    "-": pc.subtract_checked,
    "*": pc.multiply_checked,
}
_EXACT: Mapping[str, Callable[..., int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "%": lambda one, other: int(math.copysign(1, one)) * (abs(one) % abs(other)),
    "negate": operator.neg,
    "abs": abs,
}
_FLOATS: Mapping[str, Callable[..., Any]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.fmod,
    "negate": np.negative,
    "abs": np.abs,
}


def compute(op: str, kind: PropertyType, args: Any) -> Any:
    """`+ - * / %`, negation and absolute value."""
    if kind == Scalar("I64"):
        return _integers(op, args)
    values, valid = _as_floats(args)
    with np.errstate(all="ignore"):
        return finite(_FLOATS[op](*values), valid)


def _integers(op: str, args: Any) -> Any:
    narrow: list[Any] = [_as_i64(arg) for arg in args]
    try:
        if all(arg is not None for arg in narrow):
            if op in _CHECKED:
                return _CHECKED[op](*narrow)
            if op in ("negate", "abs"):
                return (pc.negate_checked if op == "negate" else pc.abs_checked)(narrow[0])
            return _remainder(*narrow)
    except pa.ArrowInvalid:
        raise _overflow(op) from None
    return _exact_integers(op, args)


def _as_i64(array: ArrowArray) -> ArrowArray | None:
    """The integers as I64; None where some are too large."""
    if not pa.types.is_uint64(array.type):
        return array.cast(pa.int64())
    largest: Any = pc.max(array)
    most: int | None = largest.as_py()
    return array.cast(pa.int64()) if most is None or most <= _I64[1] else None


def _remainder(one: ArrowArray, other: ArrowArray) -> Any:
    """With the sign of the dividend; null where the divisor is 0."""
    valid = _all_valid((one, other), len(one))
    values, divisors = raw_values(one), raw_values(other)
    usable = divisors != 0
    plain = usable & (divisors != -1)
    found = np.zeros(len(values), np.int64)
    np.fmod(values, divisors, out=found, where=plain)
    return pa.array(found, mask=~(valid & usable))


def _exact_integers(op: str, args: Any) -> Any:
    found: list[int | None] = []
    for values in zip(*(arg.to_pylist() for arg in args), strict=True):
        if None in values or (op == "%" and values[1] == 0):
            found.append(None)
            continue
        result = _EXACT[op](*values)
        if not _I64[0] <= result <= _I64[1]:
            raise _overflow(op)
        found.append(result)
    return pa.array(found, pa.int64())


def _overflow(op: str) -> BadRequest:
    shown = {"negate": "-"}.get(op, op)
    return BadRequest(f"A result of {shown} does not fit into I64: compute with float(…) instead.")


def _as_floats(args: Any) -> tuple[list[NumArray], NumArray]:
    values = [raw_values(arg).astype(np.float64) for arg in args]
    return values, _all_valid(args, len(values[0]))


def _all_valid(args: Any, rows: int) -> NumArray:
    valid = np.ones(rows, np.bool_)
    for arg in args:
        mask = valid_mask(arg)
        if mask is not None:
            valid &= mask
    return valid


def finite(values: NumArray, valid: NumArray) -> Any:
    """An F64 column, null where a value is not valid or not finite; there is one zero."""
    present = valid & np.isfinite(values)
    return pa.array(np.where(present, values, 0.0) + 0.0, mask=~present)


def _rounded(how: Callable[[NumArray], NumArray]) -> Callable[[PropertyType, Any], Any]:
    def function(kind: PropertyType, args: Any) -> Any:
        if kind == Scalar("I64"):
            return _integers("+", (args[0], pa.repeat(pa.scalar(0, pa.int64()), len(args[0]))))
        values, valid = _as_floats(args)
        return finite(how(values[0]), valid)

    return function


def _half_away_from_zero(values: NumArray) -> NumArray:
    whole = np.trunc(values)
    return whole + np.where(np.abs(values - whole) >= 0.5, np.copysign(1.0, values), 0.0)


def _by_math(function: Callable[..., float]) -> Callable[[PropertyType, Any], Any]:
    """A function of the C library, which gives the same result on every machine, unlike vectorised ones."""

    def compute_each(_: PropertyType, args: Any) -> Any:
        values, valid = _as_floats(args)
        found = np.full(len(valid), np.nan)
        columns = [column.tolist() for column in values]
        for row in np.flatnonzero(valid).tolist():
            try:
                found[row] = function(*(column[row] for column in columns))
            except (ValueError, OverflowError):
                continue  # stays null
        return finite(found, valid)

    return compute_each


def _extreme(function: Any) -> Callable[[PropertyType, Any], Any]:
    def choose(kind: PropertyType, args: Any) -> Any:
        wanted = arrow_type(kind)
        if pa.types.is_boolean(wanted):
            return function(*(arg.cast(pa.uint8()) for arg in args), skip_nulls=False).cast(pa.bool_())
        return function(*(arg.cast(wanted) for arg in args), skip_nulls=False)

    return choose


def _widen(kind: PropertyType, args: Any) -> Any:
    if kind == Scalar("F64"):
        return args[0].cast(pa.float64(), safe=False)
    try:
        return args[0].cast(arrow_type(kind))
    except pa.ArrowInvalid:
        raise BadRequest(f"A value does not fit into {kind}: convert it with float(…) first.") from None


def _operator(op: str) -> Callable[[PropertyType, Any], Any]:
    return lambda kind, args: compute(op, kind, args)


ARITHMETIC: Mapping[str, Callable[[PropertyType, Any], Any]] = {
    **{op: _operator(op) for op in ("+", "-", "*", "/", "%", "negate", "abs")},
    "round": _rounded(_half_away_from_zero),
    "floor": _rounded(np.floor),
    "ceil": _rounded(np.ceil),
    "sqrt": _by_math(math.sqrt),
    "ln": _by_math(math.log),
    "exp": _by_math(math.exp),
    "pow": _by_math(math.pow),
    "least": _extreme(pc.min_element_wise),
    "greatest": _extreme(pc.max_element_wise),
    "widen": _widen,
}
