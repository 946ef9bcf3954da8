"""Python values of load data as Arrow columns: a whole column at once if possible, otherwise value by value.

Checking every value in Python takes seconds at the size of a load. A column whose values all have the Python type
that JSON gives them is handed to Arrow as it is. Only if that fails, or values have to be parsed (dates, blobs), each
value is checked, which also finds the ones to report.
"""

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from omnigraph.query.values import EXACT_AS_F64, BadValue, parse_value
from omnigraph.schema.types import INTEGER_BOUNDS, Enumeration, ListOf, PropertyType, Scalar, Vector

if TYPE_CHECKING:
    import pyarrow as pa

_NONE = type(None)
_NUMBERS = frozenset({int, float, _NONE})


def build_column(values: Sequence[Any], kind: PropertyType) -> "tuple[pa.Array[Any], dict[int, str]]":
    """The column, and the problems of bad values by position; those are null in the column."""
    import pyarrow as pa

    try:
        quick = _build_fast(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError, ValueError):
        quick = None
    return (quick, {}) if quick is not None else _build_value_by_value(values, kind)


def _build_value_by_value(values: Sequence[Any], kind: PropertyType) -> "tuple[pa.Array[Any], dict[int, str]]":
    import pyarrow as pa

    from omnigraph.schema.arrow import arrow_type

    typed: list[Any] = []
    problems: dict[int, str] = {}
    loose = Scalar("String") if isinstance(kind, Enumeration) else kind  # a constraint checks the values of an enum
    for number, value in enumerate(values):
        try:
            typed.append(None if value is None else parse_value(value, loose))
        except BadValue as error:
            problems[number] = str(error).removesuffix(".")
            typed.append(None)
    return pa.array(typed, arrow_type(kind)), problems


def _build_fast(values: Sequence[Any], kind: PropertyType) -> "pa.Array[Any] | None":
    """The column if all values certainly have the right type; None or an error if each has to be checked."""
    match kind:
        case Enumeration() | Scalar("String"):
            return _build_plain(values, Scalar("String"), {str, _NONE})
        case Scalar("Bool"):
            return _build_plain(values, kind, {bool, _NONE})
        case Scalar(name) if name in INTEGER_BOUNDS:
            return _build_plain(values, kind, {int, _NONE})  # Arrow rejects what is out of range
        case Scalar("F32" | "F64"):
            return _build_floats(values, kind)
        case ListOf(Scalar("String" | "Bool" | "I32" | "I64" | "U32" | "U64" as item)):
            return _build_lists(values, kind, {"String": str, "Bool": bool}.get(item, int))
        case Vector(dimension):
            return _build_vectors(values, dimension)
        case _:
            return None


def _build_plain(values: Sequence[Any], kind: PropertyType, types: "set[type]") -> "pa.Array[Any] | None":
    import pyarrow as pa

    from omnigraph.schema.arrow import arrow_type

    return pa.array(values, arrow_type(kind)) if set(map(type, values)) <= types else None


def _build_floats(values: Sequence[Any], kind: PropertyType) -> "pa.Array[Any] | None":
    import pyarrow as pa
    import pyarrow.compute as pc

    from omnigraph.schema.arrow import arrow_type

    if not _are_exact_numbers(values):
        return None
    column: Any = pa.array(values, pa.float64()).cast(arrow_type(kind), safe=False)
    return column if pc.all(pc.is_finite(column), min_count=0).as_py() else None


def _are_exact_numbers(values: Sequence[Any]) -> bool:
    """Whether all are numbers that an F64 represents exactly: a larger integer must be rounded only once."""
    types = set(map(type, values))
    return types <= _NUMBERS and (int not in types or _are_small(values))


def _are_small(values: Sequence[Any]) -> bool:
    return all(-EXACT_AS_F64 <= value <= EXACT_AS_F64 for value in values if type(value) is int)


def _build_lists(values: Sequence[Any], kind: PropertyType, item: type) -> "pa.Array[Any] | None":
    import pyarrow as pa

    from omnigraph.schema.arrow import arrow_type

    given = [value for value in values if value is not None]
    if not set(map(type, given)) <= {list} or not set(map(type, chain.from_iterable(given))) <= {item}:
        return None
    return pa.array(values, arrow_type(kind))


def _build_vectors(values: Sequence[Any], dimension: int) -> "pa.Array[Any] | None":
    import numpy as np
    import pyarrow as pa

    given = [value for value in values if value is not None]
    if not set(map(type, given)) <= {list, tuple} or not set(map(len, given)) <= {dimension}:
        return None
    items = list(chain.from_iterable(given))
    if not _are_exact_numbers(items) or None in items:
        return None
    with np.errstate(over="ignore"):
        numbers = np.array(items, np.float64).astype(np.float32)
    if not np.isfinite(numbers).all():
        return None
    whole: Any = pa.FixedSizeListArray.from_arrays(pa.array(numbers, pa.float32()), dimension)
    if len(given) == len(values):
        return whole  # type: ignore[no-any-return]
    places = iter(range(len(given)))
    taken: Any = pa.array([None if value is None else next(places) for value in values], pa.int64())
    return whole.take(taken)  # type: ignore[no-any-return]
