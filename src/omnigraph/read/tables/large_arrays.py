"""Operations on arrays of any size, in steps of some milliseconds, within the memory budget of the query.

Between the steps is a checkpoint, so that a query stops soon and others get their turn. Arrays of up to `CHUNK_ROWS`
are handled in one step by numpy; the results are the same.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from omnigraph.cancellation import checkpoint
from omnigraph.memory_budget import COUNTED_MIN, current_budget, hold, require_room, reserved
from omnigraph.read.tables.arrow_numpy import ArrowArray, BoolArray, NumArray

CHUNK_ROWS = 1 << 18
_SORTED_AT_ONCE_MAX = 1 << 20
_PACKED_BITS = 63
_SPLITTERS = 255
_TAKEN_FREELY_MAX = 16  # values whose size is not worth finding out
_DENSE = 1 << 20  # of numbers from 0 to n: marks cost less than sorting while n is not much larger than the array


def chunks(count: int, size: int | None = None) -> Iterator[slice]:
    """Ranges of `count` rows, with a checkpoint before each."""
    size = size or CHUNK_ROWS
    for first in range(0, count, size):
        checkpoint()
        yield slice(first, min(first + size, count))


def new_array(count: int, dtype: Any) -> NumArray:
    """An array without values, accounted before it is allocated."""
    size = count * np.dtype(dtype).itemsize
    budget = current_budget()
    if budget is None or size < COUNTED_MIN:
        return np.empty(count, dtype)
    budget.reserve(size, f"{count:,} rows")
    try:
        array = np.empty(count, dtype)
    except BaseException:
        budget.release(size)
        raise
    budget.own(array, size)
    return array


def fill(count: int, dtype: Any, part_values: Callable[[slice], Any]) -> NumArray:
    """An array whose values are computed range by range."""
    if count <= CHUNK_ROWS:
        return hold(np.asarray(part_values(slice(0, count)), dtype))
    result = new_array(count, dtype)
    for part in chunks(count):
        result[part] = part_values(part)
    return result


def full(count: int, value: Any, dtype: Any) -> NumArray:
    result = new_array(count, dtype)
    for part in chunks(count):
        result[part] = value
    return result


def count_up(count: int, dtype: Any = np.int64) -> NumArray:
    """0, 1, 2, ..."""
    if count <= CHUNK_ROWS:
        return hold(np.arange(count, dtype=dtype))
    return fill(count, dtype, lambda part: np.arange(part.start, part.stop, dtype=dtype))


def take(array: NumArray, positions: NumArray) -> NumArray:
    """`array[positions]`"""
    if len(positions) <= CHUNK_ROWS:
        return hold(array[positions])
    return fill(len(positions), array.dtype, lambda part: array[positions[part]])


def true_positions(mask: BoolArray) -> NumArray:
    """`np.flatnonzero`"""
    if len(mask) <= CHUNK_ROWS:
        return np.flatnonzero(mask)
    result, done = new_array(int(np.count_nonzero(mask)), np.int64), 0
    for part in chunks(len(mask)):
        found = np.flatnonzero(mask[part])
        result[done : done + len(found)] = found + part.start
        done += len(found)
    return result


def concat(arrays: Sequence[NumArray]) -> NumArray:
    if len(arrays) == 1:
        return arrays[0]
    result = new_array(sum(map(len, arrays)), np.result_type(*arrays))
    done = 0
    for array in arrays:
        for part in chunks(len(array)):
            result[done + part.start : done + part.stop] = array[part]
        done += len(array)
    return result


def repeat_each(array: NumArray, times: int) -> NumArray:
    """a a a b b b: `np.repeat` with one count."""
    if not times or not len(array):
        return array[:0]
    result = new_array(len(array) * times, array.dtype)
    rows = max(1, CHUNK_ROWS // times)
    for part in chunks(len(array), rows):
        values = array[part]
        for inner in chunks(times) if times > CHUNK_ROWS else (slice(0, times),):
            result.reshape(len(array), times)[part, inner] = values[:, None]
    return result


def tile(array: NumArray, times: int) -> NumArray:
    """a b c a b c: `np.tile`"""
    if not times or not len(array):
        return array[:0]
    result = new_array(len(array) * times, array.dtype)
    rows = max(1, CHUNK_ROWS // len(array))
    for part in chunks(times, rows):
        for inner in chunks(len(array)) if len(array) > CHUNK_ROWS else (slice(0, len(array)),):
            result.reshape(times, len(array))[part, inner] = array[inner]
    return result


def repeat(array: NumArray, counts: NumArray) -> NumArray:
    """`np.repeat` with a count for each value."""
    total = int(counts.sum())
    if total <= CHUNK_ROWS:
        return hold(np.repeat(array, counts))
    result, ends = new_array(total, array.dtype), hold(np.cumsum(counts))
    for part in chunks(total):
        # The rows whose values lie in this part of the result; the first and the last may lie in it partly.
        first = int(np.searchsorted(ends, part.start, "right"))
        last = int(np.searchsorted(ends, part.stop, "left")) + 1
        inside = np.minimum(ends[first:last], part.stop) - np.maximum(ends[first:last] - counts[first:last], part.start)
        result[part] = np.repeat(array[first:last], inside)
    return result


def count_each(numbers: NumArray, size: int) -> NumArray:
    """How often each number below `size` is there: `np.bincount`"""
    if len(numbers) <= CHUNK_ROWS:
        return hold(np.bincount(numbers, minlength=size))
    counts = full(size, 0, np.int64)
    for part in chunks(len(numbers)):
        add_counts(counts, numbers[part])
    return counts


def add_counts(counts: NumArray, numbers: NumArray) -> None:
    if len(counts) <= 4 * len(numbers):
        counts += np.bincount(numbers, minlength=len(counts))
    else:
        np.add.at(counts, numbers, 1)


# Sorting ----------------------------------------------------------------------------------------------------


def sort_order(columns: Sequence[NumArray], count: int) -> NumArray:
    """The stable order by several columns, the most significant first."""
    if not columns or count < 2:
        return count_up(count)
    if count <= _SORTED_AT_ONCE_MAX:
        with reserved(24 * count, "sorting"):
            order = _small_order(columns)
        return hold(order)
    result, done = new_array(count, np.int64), 0
    for bucket in _in_order(columns, None, count):
        result[done : done + len(bucket)] = bucket
        done += len(bucket)
    return result


def _small_order(columns: Sequence[NumArray]) -> NumArray:
    packed = _packed_order(columns)
    if packed is not None:
        return packed
    return np.argsort(columns[0], kind="stable") if len(columns) == 1 else np.lexsort(columns[::-1])


def _packed_order(columns: Sequence[NumArray]) -> NumArray | None:
    """By sorting numbers made of all columns and the position, which is several times faster; None if too wide."""
    count = len(columns[0])
    bits = low_bits = (count - 1).bit_length()
    shifts = []
    for column in reversed(columns):
        if column.dtype.kind not in "biu":
            return None
        low = int(column.min())
        shifts.append((column, low, bits))
        bits += (int(column.max()) - low).bit_length()
        if bits > _PACKED_BITS:
            return None
    keys = np.arange(count)
    for column, low, shift in shifts:
        wide = column if column.dtype == np.uint64 else column.astype(np.int64)
        keys += (wide - wide.dtype.type(low)).astype(np.int64) << shift
    keys.sort()
    keys &= (1 << low_bits) - 1
    return keys


def sorted_distinct(values: NumArray) -> NumArray:
    """The distinct values of a short array, ascending; `np.unique` hashes them, which takes many times as long."""
    ordered = np.sort(values)
    first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def _in_order(columns: Sequence[NumArray], rows: NumArray | None, count: int) -> Iterator[NumArray]:
    """The rows (None: all) in buckets that follow one another, each sorted. Equal rows keep their order.

    Large inputs are split by values of the first column into buckets: those between two splitters, which are much
    smaller, and those equal to one, which are sorted by the other columns.
    """
    checkpoint()
    if not columns:
        assert rows is not None
        yield rows
        return
    if count <= CHUNK_ROWS:
        inside = [column if rows is None else column[rows] for column in columns]
        order = _small_order(inside)
        yield order if rows is None else rows[order]
        return
    for equal, bucket in _buckets(columns[0], rows, count):
        if len(bucket) == count and not equal:  # NaN, which equals nothing
            raise AssertionError("values without an order")
        yield from _in_order(columns[1:] if equal else columns, bucket, len(bucket))


def _buckets(values: NumArray, rows: NumArray | None, count: int) -> Iterator[tuple[bool, NumArray]]:
    sample = np.linspace(0, count - 1, 16 * _SPLITTERS).astype(np.int64)
    sampled = np.sort(values[sample if rows is None else rows[sample]])
    splitters = np.unique(sampled[:: len(sampled) // _SPLITTERS])
    codes = new_array(count, np.uint16)  # odd: equal to a splitter
    sizes = np.zeros(2 * len(splitters) + 1, np.int64)
    for part in chunks(count):
        own = values[part] if rows is None else values[rows[part]]
        places = np.searchsorted(splitters, own, "left")
        equal = splitters[np.minimum(places, len(splitters) - 1)] == own
        codes[part] = 2 * places + equal
        sizes += np.bincount(codes[part], minlength=len(sizes))
    ends = np.cumsum(sizes)
    nexts = ends - sizes
    placed = new_array(count, np.int64)
    for part in chunks(count):
        order = np.argsort(codes[part], kind="stable")  # a radix sort
        counts = np.bincount(codes[part], minlength=len(sizes))
        starts = np.cumsum(counts) - counts
        at = np.arange(len(order)) + np.repeat(nexts - starts, counts)
        placed[at] = order + part.start if rows is None else rows[part][order]
        nexts = nexts + counts
    del codes
    for code in np.flatnonzero(sizes).tolist():
        yield bool(code % 2), placed[ends[code] - sizes[code] : ends[code]]


def distinct(values: NumArray) -> tuple[NumArray, NumArray]:
    """The distinct values, ascending, and the index of each value among them: `np.unique`"""
    count = len(values)
    if count <= CHUNK_ROWS:
        found, inverse = np.unique(values, return_inverse=True)
        return hold(found), hold(inverse)
    if np.issubdtype(values.dtype, np.integer):
        low, high = int(values.min()), int(values.max())
        if high - low < 4 * count + _DENSE:
            present, places = dense_places(values, low, high - low + 1)
            return true_positions(present).astype(values.dtype) + values.dtype.type(low), places
    order = sort_order([values], count)
    starts = full(count, True, np.bool_)
    for part in chunks(count - 1):
        after = slice(part.start + 1, part.stop + 1)
        starts[after] = values[order[after]] != values[order[part]]
    codes, done = new_array(count, np.int64), -1
    for part in chunks(count):
        own = np.cumsum(starts[part]) + done
        codes[order[part]] = own
        done = int(own[-1])
    return take(values, take(order, true_positions(starts))), codes


def dense_places(values: NumArray, low: int, size: int) -> tuple[BoolArray, NumArray]:
    """For integers from `low` to below `low + size`: which are there, and for each value its index among those."""
    present = full(size, False, np.bool_)
    for part in chunks(len(values)):
        present[values[part] - low if low else values[part]] = True
    place_of = new_array(size, np.int64)
    np.cumsum(present, out=place_of)
    place_of -= 1
    return present, fill(len(values), np.int64, lambda part: place_of[values[part] - low if low else values[part]])


# Arrow ------------------------------------------------------------------------------------------------------


def take_values(values: ArrowArray, positions: NumArray) -> ArrowArray:
    """The values at some positions, within the budget: a long text may be there many times."""
    if len(positions) > _TAKEN_FREELY_MAX:
        require_room(taken_bytes(values, positions), f"{len(positions):,} values")
    return values.take(pa.array(positions))


def taken_bytes(values: ArrowArray, positions: NumArray) -> int:
    """The size of the values at some positions."""
    kind, count = values.type, len(positions)
    if pa.types.is_fixed_size_list(kind):
        return int(count * kind.list_size * _item_bytes(values.values))
    if pa.types.is_struct(kind):
        return sum(taken_bytes(values.field(i), positions) for i in range(kind.num_fields))
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    wide = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind) or pa.types.is_large_list(kind)
    if not (is_list or wide or pa.types.is_string(kind) or pa.types.is_binary(kind)):
        return count * max(1, kind.bit_width // 8) if not pa.types.is_null(kind) else 0
    dtype = np.dtype(np.int64 if wide else np.int32)
    buffer = values.buffers()[1]
    if buffer is None or not len(values):
        return 0
    offsets = np.frombuffer(buffer, dtype, len(values) + 1, values.offset * dtype.itemsize)
    items = 0
    for part in chunks(count):
        own = positions[part]
        items += int((offsets[own + 1] - offsets[own]).sum(dtype=np.int64))
    return count * dtype.itemsize + int(items * (_item_bytes(values.values) if is_list else 1))


def _item_bytes(items: ArrowArray) -> float:
    return float(items.nbytes / len(items)) if len(items) else 0.0
