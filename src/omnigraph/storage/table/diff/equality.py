"""Row-by-row equality of two columns, as a difference of versions defines it.

Null equals null and NaN equals NaN: a row that was merely moved to another file must not look
changed. Otherwise values are compared as the query language does, so 0.0 and -0.0 are equal.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

BoolMask: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"


def equal_rows(left: "pa.Table", right: "pa.Table", columns: Iterable[str] | None = None) -> BoolMask:
    """For two tables of as many rows and the same columns: which rows are equal in all of them."""
    import numpy as np

    same = np.ones(left.num_rows, bool)
    for name in left.column_names if columns is None else columns:
        same &= equal_values(left.column(name), right.column(name))
    return same


def equal_values(left: Any, right: Any) -> BoolMask:
    """For two arrays of the same length and type: which of their values are equal."""
    import numpy as np

    one, other = _flat(left), _flat(right)
    if not one.type.equals(other.type):
        raise TypeError(f"{one.type} is not compared with {other.type}")
    one_valid, other_valid = _valid(one), _valid(other)
    both = one_valid & other_valid
    same: BoolMask = ~one_valid & ~other_valid
    if both.all():
        return _equal_present(one, other)
    places = np.flatnonzero(both)
    same[places] = _equal_present(one.take(_indices(places)), other.take(_indices(places)))
    return same


def _equal_present(one: Any, other: Any) -> BoolMask:
    """As `equal_values`, for arrays without nulls."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_fixed_size_list(one.type):
        width = one.type.list_size
        inside = equal_values(one.flatten(), other.flatten())
        return np.asarray(inside.reshape(len(one), width).all(axis=1), bool)
    if pa.types.is_list(one.type) or pa.types.is_large_list(one.type):
        return _equal_lists(one, other)
    same: BoolMask = np.asarray(pc.equal(one, other).to_numpy(zero_copy_only=False), bool)
    if pa.types.is_floating(one.type):
        same |= np.isnan(one.to_numpy(zero_copy_only=False)) & np.isnan(other.to_numpy(zero_copy_only=False))
    return same


def _equal_lists(one: Any, other: Any) -> BoolMask:
    """Compare lengths first: the flattened items of lists with equal lengths align."""
    import numpy as np
    import pyarrow.compute as pc

    same: BoolMask = np.asarray(pc.list_value_length(one)) == np.asarray(pc.list_value_length(other))
    places = np.flatnonzero(same)
    if not len(places):
        return same
    one, other = one.take(_indices(places)), other.take(_indices(places))
    unequal = ~equal_values(one.flatten(), other.flatten())
    parents = np.asarray(pc.list_parent_indices(one))
    same[places[np.unique(parents[unequal])]] = False
    return same


def _flat(column: Any) -> Any:
    import pyarrow as pa

    if not isinstance(column, pa.ChunkedArray):
        return column
    return (
        column.chunk(0)
        if column.num_chunks == 1
        else pa.concat_arrays(column.chunks)
        if column.num_chunks
        else (pa.array([], column.type))
    )


def _valid(column: Any) -> BoolMask:
    import numpy as np

    if not column.null_count:
        return np.ones(len(column), bool)
    valid: BoolMask = np.asarray(column.is_valid().to_numpy(zero_copy_only=False), bool)
    return valid


def _indices(places: "np.ndarray[Any, np.dtype[np.int64]]") -> Any:
    import pyarrow as pa

    return pa.array(places)
