"""Arrow columns as numpy arrays, and exact comparison between all types that a query may compare.

Arrays are views of a column's values and validity, without a copy. The value under a null is never used.
"""

import datetime as dt
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.query.ir import CompareOp, Domain, Value

BoolArray: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]
NumArray: TypeAlias = np.ndarray[Any, np.dtype[Any]]
ArrowArray: TypeAlias = Any  # an Arrow array: the type stubs lack much of its interface
Side: TypeAlias = Any  # a column, or a constant (ir.Value)

FLIPPED: Mapping[CompareOp, CompareOp] = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_PYTHON: Mapping[CompareOp, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_ARROW: Mapping[CompareOp, Any] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_EPOCH = dt.date(1970, 1, 1)
_EPOCH_TIME = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_WIDTHS = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
_DTYPES: Mapping[str, Any] = {
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "uint8": np.uint8,
    "uint16": np.uint16,
    "uint32": np.uint32,
    "uint64": np.uint64,
    "float": np.float32,
    "double": np.float64,
}


def valid_mask(array: ArrowArray) -> BoolArray | None:
    """Where the array is not null; None if it has no nulls."""
    if not array.null_count:
        return None
    return to_mask(pc.is_valid(array))


def to_mask(array: Any) -> BoolArray:
    """A boolean array as numpy; null becomes false."""
    if array.null_count:
        array = pc.fill_null(array, False)
    mask: BoolArray = array.to_numpy(zero_copy_only=False)
    return mask


def raw_values(array: ArrowArray) -> NumArray:
    """The values of a fixed-width column: numbers unchanged, dates in days, times in ms, bools as 0 or 1."""
    kind = array.type
    if pa.types.is_boolean(kind):
        flags: NumArray = np.asarray(pc.fill_null(array, False).to_numpy(zero_copy_only=False)).view(np.uint8)
        return flags
    dtype = _DTYPES.get(str(kind)) or _WIDTHS[kind.bit_width]
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.zeros(len(array), dtype)
    return np.frombuffer(buffer, dtype, len(array), array.offset * np.dtype(dtype).itemsize)


def is_text(kind: "pa.DataType") -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def to_raw_value(value: Value) -> Any:
    """A constant in the representation of `raw_values`."""
    if isinstance(value, dt.datetime):
        since = value - _EPOCH_TIME
        return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
    if isinstance(value, dt.date):
        return (value - _EPOCH).days
    return int(value) if isinstance(value, bool) else value


def compare_values(op: CompareOp, left: Side, right: Side, domain: Domain, rows: int) -> BoolArray:
    """`left op right` for each row; false where either is null."""
    if left is None or right is None:
        return np.zeros(rows, np.bool_)
    if not isinstance(left, pa.Array):
        if not isinstance(right, pa.Array):
            return np.full(
                rows, bool(_PYTHON[op](_round_constant(left, domain), _round_constant(right, domain))), np.bool_
            )
        return compare_values(FLIPPED[op], right, left, domain, rows)
    if domain == "text":
        return _compare_texts(op, left, right)
    if isinstance(right, pa.Array):
        result = _compare_arrays(op, raw_values(left), raw_values(right), domain)
        return _mask_nulls(_mask_nulls(result, left), right)
    constant = _round_constant(right, domain)
    values = _to_f32(raw_values(left)) if domain == "f32" else raw_values(left)
    return _mask_nulls(_compare_with_constant(op, values, to_raw_value(constant)), left)


def _to_f32(values: NumArray) -> NumArray:
    """Rounded once, from integers too; values beyond the largest F32 become infinite."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def _round_constant(value: Value, domain: Domain) -> Any:
    if domain == "f32" and isinstance(value, int | float):
        with np.errstate(over="ignore"):
            return float(np.float32(value))
    return value


def _mask_nulls(result: BoolArray, array: ArrowArray) -> BoolArray:
    valid = valid_mask(array)
    return result if valid is None else result & valid


def _compare_texts(op: CompareOp, left: ArrowArray, right: Side) -> BoolArray:
    """Arrow compares the UTF-8 bytes, which is the order of code points."""
    other: Any = right
    if isinstance(right, pa.Array):
        if right.type != left.type:
            other = right.cast(left.type)
    else:
        other = pa.scalar(right, left.type)
    return to_mask(_ARROW[op](left, other))


def _compare_with_constant(op: CompareOp, values: NumArray, constant: Any) -> BoolArray:
    """Compare numbers with one number exactly: the constant is converted to the column's type, not vice versa."""
    if np.issubdtype(values.dtype, np.floating):
        return _compare_floats_with_constant(op, values, constant)
    if isinstance(constant, float):
        if math.isinf(constant):
            return _uniform_mask(values, _PYTHON[op](0, constant))
        if not constant.is_integer():
            if op in ("=", "!="):
                return _uniform_mask(values, op == "!=")
            constant = math.ceil(constant) if op in ("<", ">=") else math.floor(constant)
        constant = int(constant)
    bounds = np.iinfo(values.dtype)
    if not bounds.min <= constant <= bounds.max:
        return _uniform_mask(values, _PYTHON[op](0, constant))
    result: BoolArray = _PYTHON[op](values, values.dtype.type(constant))
    return result


def _compare_floats_with_constant(op: CompareOp, values: NumArray, constant: Any) -> BoolArray:
    near = float(constant)
    if near != constant:  # a large integer between two floats
        if op in ("=", "!="):
            return _uniform_mask(values, op == "!=")
        below = near < constant
        op = {"<": "<=" if below else "<", "<=": "<=" if below else "<"}.get(op, ">" if below else ">=")  # type: ignore[assignment]
    with np.errstate(over="ignore"):
        own = values.dtype.type(near)
    result: BoolArray = _PYTHON[op](values, own if float(own) == near else np.float64(near))
    return result


def _compare_arrays(op: CompareOp, left: NumArray, right: NumArray, domain: Domain) -> BoolArray:
    if domain == "f32":
        result: BoolArray = _PYTHON[op](_to_f32(left), _to_f32(right))
        return result
    floats = [np.issubdtype(side.dtype, np.floating) for side in (left, right)]
    if all(floats) or (not any(floats) and (left.dtype == right.dtype or np.uint64 not in (left.dtype, right.dtype))):
        result = _PYTHON[op](left, right)
        return result
    if floats[0]:
        return _compare_arrays(FLIPPED[op], right, left, domain)
    result = _PYTHON[op](_signs(left, right), 0)
    return result


def _signs(left: NumArray, right: NumArray) -> NumArray:
    """-1, 0 or 1 for each pair of an integer and a number of another kind, without converting integers to doubles."""
    if np.issubdtype(right.dtype, np.integer):
        if left.dtype != np.uint64:
            return -_signs(right, left)
        negative = right < 0
        other = np.where(negative, 0, right).astype(np.uint64)
        signs = (left > other).astype(np.int8) - (left < other).astype(np.int8)
        return np.where(negative, np.int8(1), signs)
    wide = left.astype(np.uint64) if left.dtype == np.uint64 else left.astype(np.int64)
    bounds = np.iinfo(wide.dtype)
    whole = np.floor(right.astype(np.float64))
    low, high = whole < float(bounds.min), whole >= float(bounds.max)
    usable = ~(low | high | np.isnan(whole))  # a value under a null may be anything
    other = np.where(usable, whole, 0.0).astype(wide.dtype)
    signs = (wide > other).astype(np.int8) - (wide < other).astype(np.int8)
    signs = np.where((signs == 0) & (right > whole), np.int8(-1), signs)
    return np.where(low, np.int8(1), np.where(high, np.int8(-1), signs))


def _uniform_mask(values: NumArray, verdict: object) -> BoolArray:
    return np.full(len(values), bool(verdict), np.bool_)
