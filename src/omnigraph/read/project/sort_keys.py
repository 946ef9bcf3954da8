"""Sort keys: order-preserving integers that sorting and grouping use instead of values.

A column of a resident table is ranked once and cached; few rows are ranked on their own.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.query.ir import EntityId, Prop
from omnigraph.read.match.filters import column_name
from omnigraph.read.tables.arrow_numpy import ArrowArray, BoolArray, NumArray, is_text, raw_values, valid_mask
from omnigraph.read.tables.read_cache import ReadCache
from omnigraph.read.tables.resident_table import FEW_ROWS, ResidentTable
from omnigraph.read.tables.table_access import TableAccess


@dataclass(frozen=True, slots=True)
class SortKeys:
    """Comparable values of rows; `valid` is None where no value is null. Values under a null are undefined."""

    values: NumArray
    valid: BoolArray | None

    def take(self, positions: NumArray) -> "SortKeys":
        return SortKeys(self.values[positions], None if self.valid is None else self.valid[positions])


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
    return _rank_values([tuple(value) if isinstance(value, list) else value for value in array.to_pylist()])


def _rank_values(items: list[Any]) -> SortKeys:
    """The rank of each item among the items. Python orders texts by code point, as Arrow does."""
    order = {value: position for position, value in enumerate(sorted({value for value in items if value is not None}))}
    values = np.fromiter((order.get(value, -1) for value in items), np.int64, len(items))
    return SortKeys(values, values >= 0 if None in items else None)


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
    values = keys.values
    if direction.descending:
        values = -values if np.issubdtype(values.dtype, np.floating) else ~values
    if keys.valid is None:
        return [values]
    nulls = keys.valid if direction.nulls_first else ~keys.valid
    return [nulls, np.where(keys.valid, values, values.dtype.type(0))]


def sort_order(columns: "list[NumArray]", count: int) -> NumArray:
    if not columns or count < 2:
        return np.arange(count)
    if len(columns) == 1:
        return np.argsort(columns[0], kind="stable")
    return np.lexsort(columns[::-1])


def top_candidates(keys: SortKeys, direction: SortDirection, limit: int) -> NumArray | None:
    """Rows that include the first `limit` by one key, with ties; None where that would be most rows."""
    count = len(keys.values)
    if limit <= 0 or count < 4 * limit + 256:
        return None
    valid = np.arange(count) if keys.valid is None else np.flatnonzero(keys.valid)
    nulls = np.zeros(0, np.int64) if keys.valid is None else np.flatnonzero(~keys.valid)
    if direction.nulls_first and len(nulls) >= limit:
        return nulls
    wanted = limit - (len(nulls) if direction.nulls_first else 0)
    values = sort_columns(SortKeys(keys.values, None), direction)[0]
    if len(valid) > wanted:
        inside = values[valid]
        bound = np.partition(inside, wanted - 1)[wanted - 1]
        kept = valid[inside <= bound]
        return np.concatenate([nulls, kept]) if direction.nulls_first else kept
    return None


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
    codes, size = np.zeros(count, np.int64), 1
    for key in keys:
        more, more_size = _dense_codes(key)
        if size > (1 << 62) // more_size:
            codes, size = _compact_codes(codes, size)
        codes, size = codes * more_size + more, size * more_size
    of_row, groups = _compact_codes(codes, size)
    first = np.zeros(groups, np.int64)
    first[of_row[::-1]] = np.arange(count - 1, -1, -1)
    return RowGroups(of_row, first)


def _dense_codes(keys: SortKeys) -> tuple[NumArray, int]:
    """Codes from 0; null is 0 where there may be one."""
    values = keys.values
    if not len(values):
        return np.zeros(0, np.int64), 1
    valid = keys.valid
    if np.issubdtype(values.dtype, np.integer):
        present = values if valid is None else values[valid]
        low, high = (int(present.min()), int(present.max())) if len(present) else (0, 0)
        if high - low < 4 * len(values) + (1 << 20):
            codes = (values - values.dtype.type(low)).astype(np.int64) + 1
            return (codes if valid is None else np.where(valid, codes, 0)), high - low + 2
    distinct, codes = np.unique(values, return_inverse=True)
    codes = codes + 1
    return (codes if valid is None else np.where(valid, codes, 0)), len(distinct) + 1


def _compact_codes(codes: NumArray, size: int) -> tuple[NumArray, int]:
    """Codes without gaps, in the same order."""
    if size <= 4 * len(codes) + (1 << 20):
        present = np.zeros(size, np.bool_)
        present[codes] = True
        new = np.cumsum(present) - 1
        return new[codes], int(present.sum())
    distinct, codes = np.unique(codes, return_inverse=True)
    return codes, len(distinct)
