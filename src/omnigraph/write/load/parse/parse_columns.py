"""Converts columns that a JSON, CSV or Parquet reader gives to the type of a property.

Each function returns the column and a mask of uncertain rows: those for which `arrow_builder.py`, which converts single
values, might give another value or none. Their values in the column are meaningless.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from omnigraph.query.values import EXACT_AS_F64
from omnigraph.schema.regex import matches_whole
from omnigraph.schema.types import INTEGER_BOUNDS, Enumeration, ListOf, PropertyType, Scalar, Vector
from omnigraph.write.load.input.csv_records import parse_field
from omnigraph.write.load.input.table_rows import is_within_python_years, limit_to_python_times
from omnigraph.write.load.parse.arrow_builder import build_column

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Mask = np.ndarray[Any, np.dtype[np.bool_]]

Converted: TypeAlias = "tuple[Any, Mask | None]"

_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
_INTEGER = r"-?[0-9]{1,18}"
_FLOAT = r"-?[0-9]{1,40}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,3})?"
_EXACT_FLOAT_MAX = 1e90  # a larger number may have more digits than Arrow reads


def combine_masks(one: "Mask | None", other: "Mask | None") -> "Mask | None":
    if one is None or other is None:
        return other if one is None else one
    return one | other


# JSON ---------------------------------------------------------------------------------------------------------


def json_type(kind: PropertyType) -> "pa.DataType":
    """The type as which Arrow's JSON reader reads a property; it rejects values of other types."""
    import pyarrow as pa

    from omnigraph.schema.arrow import arrow_type

    match kind:
        case Scalar("F32" | "F64"):
            return pa.float64()  # an F32 is rounded from it
        case Scalar("Date" | "DateTime" | "Blob"):
            return pa.string()
        case ListOf(item):
            return pa.list_(json_type(item))
        case Vector():
            return pa.list_(pa.float64())
        case _:
            return arrow_type(kind)


def convert_json(column: Any, kind: PropertyType) -> Converted:
    """Convert a column that was read as `json_type`."""
    match kind:
        case Scalar("F32" | "F64"):
            return _convert_written_floats(column, kind)
        case Scalar("Date" | "DateTime" | "Blob"):
            return _convert_texts(column, kind)
        case ListOf(item):
            return _convert_lists(column, item, convert_json)
        case Vector(dimension):
            return _convert_vectors(column, dimension, convert_json)
        case _:
            return column, None


def _convert_written_floats(column: Any, kind: PropertyType) -> Converted:
    """Numbers that were text. Uncertain are -0, which is 0 without a point, and numbers with too many digits."""
    import numpy as np

    numbers = column.fill_null(0.0).to_numpy(zero_copy_only=False)
    size = np.abs(numbers)
    bad = (size > (EXACT_AS_F64 if kind == Scalar("F32") else _EXACT_FLOAT_MAX)) | (
        (numbers == 0) & np.signbit(numbers)
    )
    return _check_finite(column, numbers, kind, bad)


def _check_finite(column: Any, numbers: Any, kind: PropertyType, bad: Any) -> Converted:
    import numpy as np
    import pyarrow as pa

    from omnigraph.schema.arrow import arrow_type

    if kind == Scalar("F32"):
        with np.errstate(over="ignore"):
            numbers = numbers.astype(np.float32)
    bad = ~np.isfinite(numbers) | (False if bad is None else bad)
    typed = column.cast(arrow_type(kind), safe=False) if column.null_count else pa.array(numbers, arrow_type(kind))
    return typed, bad if bad.any() else None


def _convert_texts(column: Any, kind: PropertyType) -> Converted:
    """Convert text to dates, times and blobs."""
    import pyarrow as pa

    try:
        quick = (
            _convert_dates(column)
            if kind == Scalar("Date")
            else _convert_times(column)
            if kind == Scalar("DateTime")
            else None
        )
    except pa.ArrowInvalid:
        quick = None
    return (quick, None) if quick is not None else _convert_one_by_one(column.to_pylist(), kind)


def _convert_dates(column: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as compute

    pc: Any = compute
    lengths = pc.min_max(pc.binary_length(column))
    if lengths["min"].as_py() not in (10, None) or lengths["max"].as_py() not in (10, None):
        return None
    dates = column.cast(pa.date32())
    return dates if is_within_python_years(dates) else None


def _convert_times(column: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as compute

    pc: Any = compute
    if pc.all(pc.match_substring_regex(column, f"{_TIME}Z$"), min_count=0).as_py():
        times = column.cast(pa.timestamp("us", "UTC"))
    elif pc.all(pc.match_substring_regex(column, f"{_TIME}$"), min_count=0).as_py():
        times = column.cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC"))
    else:
        return None
    return floor_to_millis(times) if is_within_python_years(times) else None


def floor_to_millis(times: Any) -> Any:
    """Times rounded down to the millisecond."""
    import pyarrow as pa
    import pyarrow.compute as compute

    pc: Any = compute
    held = times.type
    counts = times.cast(pa.int64())
    if held.unit == "s":
        counts = pc.multiply_checked(counts, 1000)
    elif held.unit in ("us", "ns"):
        parts = 1000 if held.unit == "us" else 1_000_000
        whole = pc.divide(counts, parts)
        below = pc.less(counts, pc.multiply(whole, parts))  # division rounds towards zero
        counts = pc.if_else(below, pc.subtract(whole, 1), whole)
    return counts.cast(pa.timestamp("ms", "UTC"))


def _convert_one_by_one(values: list[Any], kind: PropertyType) -> Converted:
    import numpy as np

    column, problems = build_column(values, kind)
    if not problems:
        return column, None
    bad = np.zeros(len(values), np.bool_)
    bad[list(problems)] = True
    return column, bad


# CSV ----------------------------------------------------------------------------------------------------------


def convert_text(column: Any, kind: PropertyType) -> Converted:
    """Convert a column of CSV fields: null is null, and so is empty text if the type is not String."""
    import pyarrow as pa
    import pyarrow.compute as compute

    pc: Any = compute
    if kind == Scalar("String"):
        return column, None
    if pc.any(pc.equal(column, ""), min_count=0).as_py():
        column = pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)
    try:
        match kind:
            case Enumeration() if _all_match(column, "[A-Za-z0-9_-]+"):
                return column, None
            case Scalar("Bool") if _all_match(column, "true|false"):
                return column.cast(pa.bool_()), None
            case Scalar(name) if name in INTEGER_BOUNDS and _all_match(column, _INTEGER):
                return column.cast(_arrow(kind)), None
            case Scalar("F32" | "F64") if _all_match(column, _FLOAT):
                return _convert_written_floats(column.cast(pa.float64()), kind)
            case Scalar("Date" | "DateTime"):
                quick = _convert_dates(column) if kind == Scalar("Date") else _convert_times(column)
                if quick is not None:
                    return quick, None
    except pa.ArrowInvalid:
        pass  # a value is out of range: found below
    return _convert_one_by_one([parse_field(text, kind) for text in column.to_pylist()], kind)


def _all_match(column: Any, pattern: str) -> bool:
    import pyarrow.compute as pc

    return bool(pc.all(matches_whole(column, pattern), min_count=0).as_py())


def nulls(count: int, kind: Any) -> Any:
    import pyarrow as pa

    return pa.nulls(count, kind)


def _arrow(kind: PropertyType) -> "pa.DataType":
    from omnigraph.schema.arrow import arrow_type

    return arrow_type(kind)


# Arrow and Parquet --------------------------------------------------------------------------------------------


def convert_arrow(column: Any, kind: PropertyType) -> Converted:
    """Convert a typed column, of a type that `table_rows.is_convertible` accepts."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_null(column.type):
        return nulls(len(column), _arrow(kind)), None
    if column.type == _arrow(kind) and not isinstance(kind, ListOf | Vector) and kind not in _ALWAYS_CHECKED:
        return column, None
    try:
        quick = _convert_typed(column, kind)
    except pa.ArrowInvalid:
        quick = None
    if quick is not None:
        return quick
    return _convert_one_by_one(limit_to_python_times(pa.table({"v": column})).column(0).to_pylist(), kind)


_ALWAYS_CHECKED = tuple(Scalar(name) for name in ("F32", "F64", "Date", "DateTime"))  # even if the type is the same


def _convert_typed(column: Any, kind: PropertyType) -> "Converted | None":
    """The converted column; None or ArrowInvalid if each value has to be checked."""
    import pyarrow as pa

    is_type: Any = pa.types
    text = is_type.is_string(column.type) or is_type.is_large_string(column.type) or is_type.is_string_view(column.type)
    match kind:
        case Enumeration() | Scalar("String" | "Bool"):
            return column.cast(_arrow(kind)), None
        case Scalar(name) if name in INTEGER_BOUNDS:
            return None if text else (column.cast(_arrow(kind)), None)
        case Scalar("F32" | "F64"):
            return _convert_typed_floats(column, kind)
        case Scalar("Date") if not text:
            return (column.cast(_arrow(kind)), None) if is_within_python_years(column) else None
        case Scalar("DateTime") if not text:
            return (floor_to_millis(column), None) if is_within_python_years(column) else None
        case Scalar("Date" | "DateTime"):
            return _convert_texts(column.cast(pa.string()), kind)
        case Scalar("Blob"):
            return None if text else (column.cast(pa.binary()).cast(pa.large_binary()), None)
        case ListOf(item):
            return _convert_lists(column, item, convert_arrow)
        case Vector(dimension):
            return _convert_vectors(column, dimension, convert_arrow)
    return None


def _convert_typed_floats(column: Any, kind: PropertyType) -> "Converted | None":
    import numpy as np
    import pyarrow as pa

    integers = pa.types.is_integer(column.type)
    wide = column.cast(pa.float64(), safe=False)
    numbers = wide.fill_null(0.0).to_numpy(zero_copy_only=False)
    bad = np.abs(numbers) >= EXACT_AS_F64 if integers and kind == Scalar("F32") else None  # must be rounded only once
    return _check_finite(wide, numbers, kind, bad)


# Lists --------------------------------------------------------------------------------------------------------


def _convert_lists(column: Any, item: Scalar, convert: Callable[[Any, PropertyType], Converted]) -> Converted:
    import numpy as np
    import pyarrow as pa

    lengths, items, parents = _flatten(column)
    typed, bad_items = convert(items, item)
    offsets = np.zeros(len(column) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    nulls = column.is_null() if column.null_count else None
    made = pa.ListArray.from_arrays(pa.array(offsets), typed, mask=nulls, type=pa.list_(_arrow(item)))  # type: ignore[call-overload]
    return made, _mark_lists(len(column), parents, items, bad_items)


def _convert_vectors(column: Any, dimension: int, convert: Callable[[Any, PropertyType], Converted]) -> Converted:
    import numpy as np
    import pyarrow as pa

    lengths, items, parents = _flatten(column)
    typed, bad_items = convert(items, Scalar("F32"))
    bad = _mark_lists(len(column), parents, items, bad_items)
    valid = (
        np.ones(len(column), np.bool_) if not column.null_count else column.is_valid().to_numpy(zero_copy_only=False)
    )
    whole = lengths == dimension
    if not (whole | ~valid).all():
        bad = combine_masks(bad, valid & ~whole)
        typed = typed.filter(pa.array(whole[parents]))
    vectors: Any = pa.FixedSizeListArray.from_arrays(typed, dimension)
    if whole.all():
        return vectors, bad
    places = np.cumsum(whole) - 1
    return vectors.take(pa.array(places, pa.int64(), mask=~whole)), bad


def _flatten(column: Any) -> tuple[Any, Any, Any]:
    """The lengths of the lists (0 for nulls), all items, and the list of each item."""
    import numpy as np
    import pyarrow.compute as compute

    pc: Any = compute
    lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    if column.null_count:  # null lists of a fixed size have items
        lengths = np.where(column.is_valid().to_numpy(zero_copy_only=False), lengths, 0)
    return lengths, pc.list_flatten(column), np.repeat(np.arange(len(column)), lengths)


def _mark_lists(count: int, parents: Any, items: Any, bad_items: "Mask | None") -> "Mask | None":
    """Mark lists with an item that is null or uncertain."""
    import numpy as np

    bad = combine_masks(bad_items, items.is_null().to_numpy(zero_copy_only=False) if items.null_count else None)
    if bad is None:
        return None
    lists = np.zeros(count, np.bool_)
    lists[parents[bad]] = True
    return lists
