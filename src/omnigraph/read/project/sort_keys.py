"""Sort keys: order-preserving integers that sorting and grouping use instead of values.

A column of a resident table is ranked once and cached; few rows are ranked on their own.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.cancellation import checkpoint
from omnigraph.memory_budget import reserved
from omnigraph.query.ir import EntityId, Prop
from omnigraph.read.match.filters import column_name
from omnigraph.read.tables.arrow_numpy import ArrowArray, BoolArray, NumArray, is_text, raw_values, valid_mask
from omnigraph.read.tables.large_arrays import chunks, concat, dense_places, distinct, fill, full, take, true_positions
from omnigraph.read.tables.read_cache import ReadCache
from omnigraph.read.tables.resident_table import FEW_ROWS, ResidentTable
from omnigraph.read.tables.table_access import TableAccess

_LISTED_MAX = 1 << 14  # values that become Python objects at once
_OBJECT_BYTES = 100
_TOP_MAX = 1 << 18  # a higher limit is found by sorting


@dataclass(frozen=True, slots=True)
class SortKeys:
    """Comparable values of rows; `valid` is None where no value is null. Values under a null are undefined."""

    values: NumArray
    valid: BoolArray | None

    def take(self, positions: NumArray) -> "SortKeys":
        return SortKeys(take(self.values, positions), None if self.valid is None else take(self.valid, positions))


def array_keys(array: ArrowArray) -> SortKeys:
    """Fixed-width values unchanged, floats with a single zero; texts, bytes and lists by their rank in the array."""
    kind = array.type
    if pa.types.is_primitive(kind) or pa.types.is_boolean(kind):
        values = raw_values(array)
        if np.issubdtype(values.dtype, np.floating):
            values = values + values.dtype.type(0)
        return SortKeys(values, valid_mask(array))
    valid = valid_mask(array)
    if is_text(kind):
        ranked: Any = pc.rank(array, sort_keys="ascending", tiebreaker="dense")
        return SortKeys(ranked.to_numpy().astype(np.int32), valid)
    with reserved(int(array.nbytes) * 4 + len(array) * _OBJECT_BYTES, "sorting"):
        items: list[Any] = []
        for part in chunks(len(array), _LISTED_MAX):
            items += (tuple(value) if isinstance(value, list) else value for value in array[part].to_pylist())
        return _rank_values(items)


def _rank_values(items: list[Any]) -> SortKeys:
    """The rank of each item among the items. Python orders texts by code point, as Arrow does."""
    order = {value: position for position, value in enumerate(_sorted({value for value in items if value is not None}))}
    values = np.fromiter((order.get(value, -1) for value in items), np.int64, len(items))
    return SortKeys(values, values >= 0 if None in items else None)


def _sorted(items: Iterable[Any]) -> Iterator[Any]:
    """Many items in parts that are merged, with checkpoints."""
    unsorted = list(items)
    if len(unsorted) <= _LISTED_MAX:
        yield from sorted(unsorted)
        return
    parts = [sorted(unsorted[part]) for part in chunks(len(unsorted), _LISTED_MAX)]
    for number, item in enumerate(heapq.merge(*parts)):
        if number % 1024 == 0:
            checkpoint()
        yield item


def column_keys(access: TableAccess, expr: Prop | EntityId, row_numbers: NumArray) -> SortKeys:
    """The keys of a property or id for some rows."""
    name = column_name(expr)
    table = access.table(expr.table_key)
    if isinstance(table, ResidentTable):
        kind = table.state.schema.field(name).type
        if 4 * len(row_numbers) >= table.total or access.reader.caches.has(_cache_key(table, name)):
            if is_text(kind):
                return column_ranks(access.reader.caches, table, name).take(row_numbers)
            if pa.types.is_primitive(kind) or pa.types.is_boolean(kind):
                return array_keys(table.column(name)).take(row_numbers)
        if (
            len(row_numbers) <= FEW_ROWS
            and is_text(kind)
            and (few := table.python_values(name, kind, row_numbers)) is not None
        ):
            return _rank_values(few)
    if len(row_numbers) > max(table.total, FEW_ROWS):  # some rows are repeated
        numbers, positions = distinct(row_numbers)
        return column_keys(access, expr, numbers).take(positions)
    return array_keys(table.values([name], row_numbers)[name])


def column_ranks(caches: ReadCache, table: ResidentTable, name: str) -> SortKeys:
    """The keys of a whole column, cached."""
    return caches.get(
        _cache_key(table, name),
        lambda: array_keys(table.column(name)),
        lambda keys: int(keys.values.nbytes + (0 if keys.valid is None else keys.valid.nbytes)),
    )


def _cache_key(table: ResidentTable, name: str) -> tuple[object, ...]:
    return ("ranks", table.state.fingerprint, name)


# Order ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SortDirection:
    descending: bool
    nulls_first: bool


def sort_columns(keys: SortKeys, direction: SortDirection) -> list[NumArray]:
    """Arrays that sort ascending in the wanted order, the most significant first."""
    values, valid = keys.values, keys.valid
    if direction.descending:
        values = fill(len(values), values.dtype, lambda part: _negated(keys.values[part]))
    if valid is None:
        return [values]
    nulls = valid if direction.nulls_first else ~valid
    zero = values.dtype.type(0)
    return [nulls, fill(len(values), values.dtype, lambda part: np.where(valid[part], values[part], zero))]


def _negated(values: NumArray) -> NumArray:
    result: NumArray = -values if np.issubdtype(values.dtype, np.floating) else ~values
    return result


def top_candidates(keys: SortKeys, direction: SortDirection, limit: int) -> NumArray | None:
    """Rows that include the first `limit` by one key, with ties; None where that would be most rows."""
    count = len(keys.values)
    if limit <= 0 or count < 4 * limit + 256 or limit > _TOP_MAX:
        return None
    valid = keys.valid
    nulls = np.zeros(0, np.int64) if valid is None else true_positions(~valid)
    if direction.nulls_first and len(nulls) >= limit:
        return nulls
    wanted = limit - (len(nulls) if direction.nulls_first else 0)
    if count - len(nulls) <= wanted:
        return None

    def inside(part: slice) -> NumArray:
        values = _negated(keys.values[part]) if direction.descending else keys.values[part]
        return values if valid is None else values[valid[part]]

    best = keys.values[:0]
    for part in chunks(count):
        best = np.concatenate([best, inside(part)])
        best = np.partition(best, wanted - 1)[:wanted] if len(best) > wanted else best
    bound = best.max()

    def within(part: slice) -> BoolArray:
        values = _negated(keys.values[part]) if direction.descending else keys.values[part]
        kept: BoolArray = values <= bound
        return kept if valid is None else kept & valid[part]

    kept = true_positions(fill(count, np.bool_, within))
    return concat([nulls, kept]) if direction.nulls_first else kept


# Groups -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RowGroups:
    """The group of each row, and the first row of each group."""

    of_row: NumArray
    first: NumArray

    @property
    def count(self) -> int:
        return len(self.first)


def group_rows(keys: "list[SortKeys]", count: int) -> RowGroups:
    """Group rows with equal keys; null is a value of its own."""
    codes, size = full(count, 0, np.int64), 1
    for key in keys:
        more, more_size = _dense_codes(key)
        if size > (1 << 62) // more_size:
            codes, size = _compact_codes(codes, size)
        for part in chunks(count):
            codes[part] = codes[part] * more_size + more(part)
        size *= more_size
    of_row, groups = _compact_codes(codes, size)
    first = full(groups, 0, np.int64)
    for part in reversed(list(chunks(count))):
        first[of_row[part][::-1]] = np.arange(part.stop - 1, part.start - 1, -1)
    return RowGroups(of_row, first)


def _dense_codes(keys: SortKeys) -> tuple[Callable[[slice], NumArray], int]:
    """Codes from 0, by ranges of rows, and their number; null is 0 where there may be one."""
    values, valid = keys.values, keys.valid
    if not len(values):
        return lambda part: values[part].astype(np.int64), 1
    if np.issubdtype(values.dtype, np.integer):
        present = values if valid is None else take(values, true_positions(valid))
        low, high = (int(present.min()), int(present.max())) if len(present) else (0, 0)
        if high - low < 4 * len(values) + (1 << 20):
            least = values.dtype.type(low)
            return lambda part: _null_as_0((values[part] - least).astype(np.int64) + 1, valid, part), high - low + 2
    found, codes = distinct(values)
    return lambda part: _null_as_0(codes[part] + 1, valid, part), len(found) + 1


def _null_as_0(codes: NumArray, valid: BoolArray | None, part: slice) -> NumArray:
    return codes if valid is None else np.where(valid[part], codes, 0)


def _compact_codes(codes: NumArray, size: int) -> tuple[NumArray, int]:
    """Codes without gaps, in the same order."""
    if size <= 4 * len(codes) + (1 << 20):
        present, places = dense_places(codes, 0, size)
        return places, int(np.count_nonzero(present))
    found, places = distinct(codes)
    return places, len(found)
