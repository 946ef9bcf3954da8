"""Numbers, dates and times.

Integers are computed exactly, and overflow is an error; floats have no infinite results, null instead. Dates and times
are days and milliseconds since 1970 in UTC, within the years 1 to 9999; null beyond them.
"""

import datetime as dt
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.errors import BadRequest
from omnigraph.query.values import BadValue, parse_date, parse_datetime
from omnigraph.read.tables.arrow_numpy import ArrowArray, NumArray, raw_values, to_raw_value, valid_mask
from omnigraph.schema.arrow import arrow_type
from omnigraph.schema.types import INTEGER_BOUNDS, PropertyType, Scalar

Function = Callable[[PropertyType, Any], Any]

_DAY_MS = 86_400_000
_FIRST_DAY, _LAST_DAY = (to_raw_value(day) for day in (dt.date.min, dt.date.max))
_DATETIME = pa.timestamp("ms", tz="UTC")
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


def _rounded(how: Callable[[NumArray], NumArray]) -> Function:
    def function(kind: PropertyType, args: Any) -> Any:
        if kind == Scalar("I64"):
            return _integers("+", (args[0], pa.repeat(pa.scalar(0, pa.int64()), len(args[0]))))
        values, valid = _as_floats(args)
        return finite(how(values[0]), valid)

    return function


def _half_away_from_zero(values: NumArray) -> NumArray:
    whole = np.trunc(values)
    return whole + np.where(np.abs(values - whole) >= 0.5, np.copysign(1.0, values), 0.0)


def _by_math(function: Callable[..., float]) -> Function:
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


def _extreme(function: Any) -> Function:
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


def _operator(op: str) -> Function:
    return lambda kind, args: compute(op, kind, args)


ARITHMETIC: Mapping[str, Function] = {
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


# Dates and times --------------------------------------------------------------------------------------------


def _dates(days: NumArray, valid: NumArray) -> Any:
    valid = valid & (days >= _FIRST_DAY) & (days <= _LAST_DAY)
    return pa.array(np.where(valid, days, 0).astype(np.int32), mask=~valid).cast(pa.date32())


def _times(milliseconds: NumArray, valid: NumArray) -> Any:
    valid = valid & (milliseconds >= _FIRST_DAY * _DAY_MS) & (milliseconds < (_LAST_DAY + 1) * _DAY_MS)
    return pa.array(np.where(valid, milliseconds, 0).astype(np.int64), mask=~valid).cast(_DATETIME)


def _milliseconds(array: Any) -> NumArray:
    values = raw_values(array).astype(np.int64)
    return values * _DAY_MS if pa.types.is_date32(array.type) else values


def _part(extract: Any) -> Function:
    return lambda _, args: extract(args[0]).cast(pa.int64())


def _parsed(parse: Callable[[str], Any], kind: pa.DataType) -> Callable[[Any], Any]:
    def value(text: str | None) -> Any:
        try:
            return None if text is None else parse(text)
        except BadValue:
            return None

    return lambda array: pa.array([value(text) for text in array.to_pylist()], kind)


def _date(_: PropertyType, args: Any) -> Any:
    (values,) = args
    if pa.types.is_date32(values.type):
        return values
    if pa.types.is_timestamp(values.type):
        return _dates(_milliseconds(values) // _DAY_MS, _all_valid(args, len(args[0])))
    return _parsed(parse_date, pa.date32())(values)


def _datetime(_: PropertyType, args: Any) -> Any:
    (values,) = args
    if pa.types.is_timestamp(values.type):
        return values
    if pa.types.is_date32(values.type):
        return _times(_milliseconds(values), _all_valid(args, len(args[0])))
    return _parsed(parse_datetime, _DATETIME)(values)


def _add_days(kind: PropertyType, args: Any) -> Any:
    days = np.minimum(raw_values(args[1]), 10_000_000).astype(np.int64)  # so many lead beyond all dates
    days = np.maximum(days, -10_000_000)
    if kind == Scalar("Date"):
        return _dates(raw_values(args[0]).astype(np.int64) + days, _all_valid(args, len(args[0])))
    return _times(_milliseconds(args[0]) + days * _DAY_MS, _all_valid(args, len(args[0])))


def _add_seconds(_: PropertyType, args: Any) -> Any:
    """To the nearest millisecond."""
    seconds = raw_values(args[1])
    if np.issubdtype(seconds.dtype, np.integer):
        most = 1 << 40
        added = np.clip(seconds, 0 if seconds.dtype == np.uint64 else -most, most).astype(np.int64) * 1000
    else:
        added = np.rint(np.clip(seconds.astype(np.float64), -1e12, 1e12) * 1000).astype(np.int64)
    return _times(_milliseconds(args[0]) + added, _all_valid(args, len(args[0])))


def _days_between(_: PropertyType, args: Any) -> Any:
    """Whole days, towards zero."""
    one, other = args
    apart = _milliseconds(other) - _milliseconds(one)
    return pa.array(np.sign(apart) * (np.abs(apart) // _DAY_MS), mask=~_all_valid(args, len(args[0])))


def _seconds_between(_: PropertyType, args: Any) -> Any:
    one, other = args
    return pa.array((_milliseconds(other) - _milliseconds(one)) / 1000, mask=~_all_valid(args, len(args[0])))


TIMES: Mapping[str, Function] = {
    "year": _part(pc.year),
    "month": _part(pc.month),
    "day": _part(pc.day),
    "hour": _part(pc.hour),
    "minute": _part(pc.minute),
    "second": _part(pc.second),
    "date": _date,
    "datetime": _datetime,
    "add_days": _add_days,
    "add_seconds": _add_seconds,
    "days_between": _days_between,
    "seconds_between": _seconds_between,
}
