"""Aggregates over groups, computed range by range of the rows. Sums are exact and rounded once."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from omnigraph.cancellation import checkpoint
from omnigraph.errors import BadRequest
from omnigraph.memory_budget import hold, reserved
from omnigraph.query.ir import F64, Aggregate, EntityId, Expr, Prop
from omnigraph.read.explain import describe_expression
from omnigraph.read.match.bindings import Bindings, evaluate_rows
from omnigraph.read.match.filters import column_name
from omnigraph.read.project.sort_keys import RowGroups, SortKeys, array_keys, column_keys
from omnigraph.read.tables.arrow_numpy import ArrowArray, BoolArray, NumArray, raw_values, valid_mask
from omnigraph.read.tables.large_arrays import (
    add_counts,
    chunks,
    fill,
    full,
    sort_order,
    take,
    true_positions,
)
from omnigraph.read.tables.table_access import TableAccess
from omnigraph.schema.arrow import arrow_type
from omnigraph.schema.types import INTEGER_BOUNDS, Scalar

_EXACT = 1 << 53  # a double holds all integers up to here
_LISTED_MAX = 1 << 16  # numbers that become a list of Python objects at once
_REPEATED_MAX = 1 << 20  # rows that a weight may stand for before they are summed one by one
_SCALE = 1126  # every double is a multiple of 2**-1126 as a 53-bit integer with its exponent
_OBJECT_BYTES = 64  # of a number in a list


def compute_aggregate(access: TableAccess, aggregate: Aggregate, rows: Bindings, groups: RowGroups) -> ArrowArray:
    """The aggregate's value for each group."""
    if aggregate.arg is None:
        return pa.array(_counts(groups.of_row, rows.weight, groups.count))
    arg = aggregate.arg
    if aggregate.fn in ("min", "max"):
        return _min_or_max(access, aggregate, arg, rows, groups)
    if aggregate.fn == "count":
        valid = _valid_rows(access, arg, rows)
        inside = _Inside(groups.of_row, rows.weight, valid)
        return pa.array(_counts(inside.of_row, inside.weight, groups.count))
    values, valid = _numbers(access, arg, rows)
    inside = _Inside(groups.of_row, rows.weight, valid)
    counts = _counts(inside.of_row, inside.weight, groups.count)
    present = values if inside.positions is None else take(values, inside.positions)
    with reserved(groups.count * _OBJECT_BYTES, f"the sums of {groups.count:,} groups"):
        if np.issubdtype(present.dtype, np.floating):
            sums: list[Any] = _float_sums(present, inside.of_row, inside.weight, counts)
        else:
            sums = _integer_sums(present, inside.of_row, inside.weight, groups.count)
        if aggregate.fn == "avg":
            averages = (s / c if c else None for s, c in _zip_lists(sums, counts))
            return pa.array(averages, pa.float64(), size=groups.count)
        return _sum_column(sums, counts, aggregate)


class _Inside:
    """The rows that have a value: their positions, None for all, and groups and weights of those."""

    def __init__(self, of_row: NumArray, weight: NumArray | None, valid: BoolArray | None) -> None:
        self.positions = None if valid is None else true_positions(valid)
        self.of_row = of_row if self.positions is None else take(of_row, self.positions)
        self.weight = weight if weight is None or self.positions is None else take(weight, self.positions)


def _valid_rows(access: TableAccess, arg: Expr, rows: Bindings) -> BoolArray | None:
    """The rows that have a value, None for all; each long value is read once for many rows."""
    if not isinstance(arg, Prop | EntityId):
        return valid_mask(evaluate_rows(access, arg, rows))
    row_numbers = rows.columns[arg.var]
    name, table = column_name(arg), access.table(arg.table_key)

    def valid(part: slice) -> Any:
        numbers, places = np.unique(row_numbers[part], return_inverse=True)
        mask = valid_mask(table.values([name], numbers)[name])
        return True if mask is None else mask[places]

    found = full(len(row_numbers), True, np.bool_)
    for part in chunks(len(row_numbers)):
        found[part] = valid(part)
    return None if found.all() else found


def _numbers(access: TableAccess, arg: Expr, rows: Bindings) -> tuple[NumArray, BoolArray | None]:
    """The numbers of the rows, and which have one; None for all."""
    if not isinstance(arg, Prop | EntityId):
        computed = evaluate_rows(access, arg, rows)
        return raw_values(computed), valid_mask(computed)
    row_numbers = rows.columns[arg.var]
    name, table = column_name(arg), access.table(arg.table_key)
    dtype = raw_values(table.values([name], row_numbers[:0])[name]).dtype
    valid: BoolArray | None = None

    def part_values(part: slice) -> NumArray:
        nonlocal valid
        values = table.values([name], row_numbers[part])[name]
        mask = valid_mask(values)
        if mask is not None:
            if valid is None:
                valid = full(len(row_numbers), True, np.bool_)
            valid[part] = mask
        return raw_values(values)

    return fill(len(row_numbers), dtype, part_values), valid


def _counts(of_row: NumArray, weight: NumArray | None, groups: int) -> NumArray:
    counts = full(groups, 0, np.int64)
    for part in chunks(len(of_row)):
        if weight is None:
            add_counts(counts, of_row[part])
        else:
            _add_weights(counts, of_row[part], weight[part])
    return counts


def _add_weights(counts: NumArray, of_row: NumArray, weight: NumArray) -> None:
    if len(counts) <= 4 * len(of_row) and int(weight.max(initial=0)) * len(weight) < _EXACT:
        counts += np.bincount(of_row, weights=weight, minlength=len(counts)).astype(np.int64)
    else:
        np.add.at(counts, of_row, weight)


def _integer_sums(values: NumArray, of_row: NumArray, weight: NumArray | None, groups: int) -> list[int]:
    """Each number in two halves, whose sums fit: of at most 2**20 rows into a double, of all into 64 bits."""
    high, low = full(groups, 0, np.int64), full(groups, 0, np.int64)
    beyond: dict[int, int] = {}
    for part in chunks(len(values)):
        own, group = values[part], of_row[part]
        if weight is None:
            wide = own if own.dtype == np.uint64 else own.astype(np.int64)
            _add_sums(high, group, (wide >> wide.dtype.type(32)).astype(np.float64))
            _add_sums(low, group, (wide & wide.dtype.type(0xFFFFFFFF)).astype(np.float64))
            continue
        heavy = weight[part]
        largest = max(abs(int(own.max(initial=0))), abs(int(own.min(initial=0))))
        if largest * int(heavy.max(initial=1)) * len(own) < _EXACT:
            _add_sums(low, group, own * heavy.astype(np.float64))
            continue
        for at in chunks(len(own), _LISTED_MAX):
            for number, value, times in zip(group[at].tolist(), own[at].tolist(), heavy[at].tolist(), strict=True):
                beyond[number] = beyond.get(number, 0) + value * times
    sums = [
        (upper << 32) + lower
        for part in chunks(groups, _LISTED_MAX)
        for upper, lower in zip(high[part].tolist(), low[part].tolist(), strict=True)
    ]
    for number, total in beyond.items():
        sums[number] += total
    return sums


def _add_sums(totals: NumArray, of_row: NumArray, values: NumArray) -> None:
    """Add integers that doubles hold, as their sums do."""
    if len(totals) <= 4 * len(of_row):
        totals += np.bincount(of_row, weights=values, minlength=len(totals)).astype(np.int64)
    else:
        np.add.at(totals, of_row, values.astype(np.int64))


def _float_sums(values: NumArray, of_row: NumArray, weight: NumArray | None, counts: NumArray) -> list[float]:
    """Rounded once, so that the result does not depend on the order of the rows."""
    if weight is not None:
        if int(weight.sum(dtype=np.float64)) > _REPEATED_MAX:
            return _weighted_float_sums(values, of_row, weight, len(counts))
        values, of_row = np.repeat(values, weight), np.repeat(of_row, weight)
    if len(counts) > 1:
        few = len(counts) <= 1 << 16  # then it is a radix sort
        order = sort_order([of_row.astype(np.uint16) if few else of_row], len(of_row))
        values = take(values, order)
        del order
    sums, end = [], 0
    for part in chunks(len(counts), 1024):
        for count in counts[part].tolist():
            start, end = end, end + count
            sums.append(_sum(values[start:end]))
    return sums


def _sum(values: NumArray) -> float:
    """The exact sum, rounded; infinite where it is too large."""
    try:
        if len(values) <= _LISTED_MAX or not np.isfinite(values).all():
            return math.fsum(values.tolist()) if len(values) <= _LISTED_MAX else float(values.sum(dtype=np.float64))
        return _unscale(sum(_scaled_sum(values[part]) for part in chunks(len(values))))
    except OverflowError:
        return math.inf


def _scaled_sum(values: NumArray) -> int:
    """The exact sum in units of 2**-_SCALE."""
    mantissas, exponents = _split_floats(values)
    total = 0
    for exponent in np.unique(exponents).tolist():
        own = mantissas[exponents == exponent]
        # Two halves: the sums of at most 2**20 of them fit into 64 bits.
        both = (int((own >> 27).sum()) << 27) + int((own & ((1 << 27) - 1)).sum())
        total += both << (exponent - 53 + _SCALE)
    return total


def _split_floats(values: NumArray) -> tuple[NumArray, NumArray]:
    fractions, exponents = np.frexp(values.astype(np.float64))
    return (fractions * float(_EXACT)).astype(np.int64), exponents


def _unscale(total: int) -> float:
    return total / (1 << _SCALE)


def _weighted_float_sums(values: NumArray, of_row: NumArray, weight: NumArray, groups: int) -> list[float]:
    totals = [0] * groups
    for part in chunks(len(values), _LISTED_MAX):
        mantissas, exponents = _split_floats(values[part])
        numbers = (of_row[part].tolist(), mantissas.tolist(), exponents.tolist(), weight[part].tolist())
        for group, mantissa, exponent, times in zip(*numbers, strict=True):
            totals[group] += (mantissa * times) << (exponent - 53 + _SCALE)
    try:
        return [_unscale(total) for total in totals]
    except OverflowError:
        return [math.inf] * groups


def _zip_lists(sums: Sequence[Any], counts: NumArray) -> Iterator[tuple[Any, int]]:
    for part in chunks(len(counts), _LISTED_MAX):
        yield from zip(sums[part], counts[part].tolist(), strict=True)


def _sum_column(sums: list[Any], counts: NumArray, aggregate: Aggregate) -> ArrowArray:
    present: list[Any] = [total if count else None for total, count in _zip_lists(sums, counts)]
    assert isinstance(aggregate.type, Scalar)
    if aggregate.type == F64:
        fits: Callable[[Any], bool] = math.isfinite
    else:
        low, high = INTEGER_BOUNDS[aggregate.type.name]
        fits = lambda total: low <= total <= high  # noqa: E731
    wrong = next((total for total in present if total is not None and not fits(total)), None)
    if wrong is not None:
        assert aggregate.arg is not None
        shown = describe_expression(aggregate.arg)
        raise BadRequest(f"sum({shown}) is {wrong}, which {aggregate.type} can't hold: use avg.")
    return pa.array(present, arrow_type(aggregate.type))


def _min_or_max(access: TableAccess, aggregate: Aggregate, arg: Expr, rows: Bindings, groups: RowGroups) -> ArrowArray:
    """The value of the row that sorts first or last in its group; only those rows of a column are read."""
    if not isinstance(arg, Prop | EntityId):
        computed = evaluate_rows(access, arg, rows)
        return _extremes(array_keys(computed), aggregate, groups, lambda chosen: computed.take(pa.array(chosen)))
    row_numbers, name = rows.columns[arg.var], column_name(arg)
    table = access.table(arg.table_key)
    return _extremes(
        column_keys(access, arg, row_numbers),
        aggregate,
        groups,
        lambda chosen: table.values([name], take(row_numbers, chosen))[name],
    )


def _extremes(
    keys: SortKeys, aggregate: Aggregate, groups: RowGroups, values_at: Callable[[NumArray], ArrowArray]
) -> ArrowArray:
    """For each group the value of the row whose key is the least or the greatest; null where no key is valid."""
    least = aggregate.fn == "min"
    best = full(groups.count, -1, np.int64)  # the row of each group so far
    for part in chunks(len(keys.values)):
        rows = np.arange(part.start, part.stop)
        rows = rows if keys.valid is None else rows[keys.valid[part]]
        rows = _edges(groups.of_row[rows], keys.values[rows], rows, least)
        group = groups.of_row[rows]
        before = best[group]
        own, other = keys.values[rows], keys.values[before]
        better = (before < 0) | ((own < other) if least else (own >= other))
        best[group[better]] = rows[better]
    present = true_positions(best >= 0)
    found = values_at(best[present])
    positions = full(groups.count, -1, np.int64)
    positions[present] = np.arange(len(present))
    checkpoint()
    return hold(found.take(pa.array(positions, mask=positions < 0)))


def _edges(of_row: NumArray, values: NumArray, rows: NumArray, first: bool) -> NumArray:
    """The row of each group with the least value, the first of equal ones; or the last of those with the greatest."""
    order = np.lexsort((values, of_row))
    of_sorted = of_row[order]
    edge = np.ones(len(order), np.bool_)
    if first:
        edge[1:] = of_sorted[1:] != of_sorted[:-1]
    else:
        edge[:-1] = of_sorted[1:] != of_sorted[:-1]
    return rows[order[edge]]
