"""Dates and times: days and milliseconds since 1970 in UTC, within the years 1 to 9999; null beyond them."""

import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.query.values import BadValue, parse_date, parse_datetime
from omnigraph.read.tables.arrow_numpy import NumArray, raw_values, to_raw_value, valid_mask
from omnigraph.schema.types import PropertyType, Scalar

Function = Callable[[PropertyType, Any], Any]

_DAY_MS = 86_400_000
_FIRST_DAY, _LAST_DAY = (to_raw_value(day) for day in (dt.date.min, dt.date.max))
_DATETIME = pa.timestamp("ms", tz="UTC")


def _valid(args: Any) -> NumArray:
    found = np.ones(len(args[0]), np.bool_)
    for arg in args:
        mask = valid_mask(arg)
        if mask is not None:
            found &= mask
    return found


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
        return _dates(_milliseconds(values) // _DAY_MS, _valid(args))
    return _parsed(parse_date, pa.date32())(values)


def _datetime(_: PropertyType, args: Any) -> Any:
    (values,) = args
    if pa.types.is_timestamp(values.type):
        return values
    if pa.types.is_date32(values.type):
        return _times(_milliseconds(values), _valid(args))
    return _parsed(parse_datetime, _DATETIME)(values)


def _add_days(kind: PropertyType, args: Any) -> Any:
    days = np.minimum(raw_values(args[1]), 10_000_000).astype(np.int64)  # so many lead beyond all dates
    days = np.maximum(days, -10_000_000)
    if kind == Scalar("Date"):
        return _dates(raw_values(args[0]).astype(np.int64) + days, _valid(args))
    return _times(_milliseconds(args[0]) + days * _DAY_MS, _valid(args))


def _add_seconds(_: PropertyType, args: Any) -> Any:
    """To the nearest millisecond."""
    seconds = raw_values(args[1])
    if np.issubdtype(seconds.dtype, np.integer):
        most = 1 << 40
        added = np.clip(seconds, 0 if seconds.dtype == np.uint64 else -most, most).astype(np.int64) * 1000
    else:
        added = np.rint(np.clip(seconds.astype(np.float64), -1e12, 1e12) * 1000).astype(np.int64)
    return _times(_milliseconds(args[0]) + added, _valid(args))


def _days_between(_: PropertyType, args: Any) -> Any:
    """Whole days, towards zero."""
    one, other = args
    apart = _milliseconds(other) - _milliseconds(one)
    return pa.array(np.sign(apart) * (np.abs(apart) // _DAY_MS), mask=~_valid(args))


def _seconds_between(_: PropertyType, args: Any) -> Any:
    one, other = args
    return pa.array((_milliseconds(other) - _milliseconds(one)) / 1000, mask=~_valid(args))


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
