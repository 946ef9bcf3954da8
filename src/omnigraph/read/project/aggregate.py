"""Aggregates over groups of rows. Sums are exact: integers in as many bits as they need, floats rounded once."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from omnigraph.errors import BadRequest
from omnigraph.query.ir import F64, Aggregate, EntityId, Prop
from omnigraph.read.match.bindings import Bindings
from omnigraph.read.match.filters import column_name
from omnigraph.read.project.sort_keys import RowGroups, SortKeys, column_keys
from omnigraph.read.tables.arrow_numpy import ArrowArray, NumArray, raw_values, valid_mask
from omnigraph.read.tables.table_access import TableAccess
from omnigraph.schema.arrow import arrow_type
from omnigraph.schema.types import INTEGER_BOUNDS, Scalar

_EXACT = 1 << 53


def compute_aggregate(access: TableAccess, aggregate: Aggregate, rows: Bindings, groups: RowGroups) -> ArrowArray:
    """The aggregate's value for each group."""
    if aggregate.arg is None:
        return pa.array(_counts(groups.of_row, rows.weight, groups.count))
    arg, row_numbers = aggregate.arg, rows.columns[aggregate.arg.var]
    if aggregate.fn in ("min", "max"):
        return _min_or_max(access, aggregate, arg, row_numbers, groups)
    name = column_name(arg)
    values = access.table(arg.table_key).values([name], row_numbers)[name]
    valid = valid_mask(values)
    inside = slice(None) if valid is None else np.flatnonzero(valid)
    of_row = groups.of_row[inside]
    weight = None if rows.weight is None else rows.weight[inside]
    counts = _counts(of_row, weight, groups.count)
    if aggregate.fn == "count":
        return pa.array(counts)
    present = raw_values(values)[inside]
    sums: list[Any]
    if np.issubdtype(present.dtype, np.floating):
        sums = _float_sums(present, of_row, weight, counts)
    else:
        sums = _integer_sums(present, of_row, weight, groups.count)
    if aggregate.fn == "avg":
        return pa.array([s / c if c else None for s, c in zip(sums, counts.tolist(), strict=True)], pa.float64())
    return _sum_column(sums, counts, aggregate)


def _counts(of_row: NumArray, weight: NumArray | None, groups: int) -> NumArray:
    if weight is None:
        return np.bincount(of_row, minlength=groups)
    if int(weight.max(initial=0)) * len(weight) < _EXACT:
        return np.bincount(of_row, weights=weight, minlength=groups).astype(np.int64)
    totals = np.zeros(groups, np.int64)
    np.add.at(totals, of_row, weight)
    return totals


def _integer_sums(values: NumArray, of_row: NumArray, weight: NumArray | None, groups: int) -> list[int]:
    largest = max(abs(int(values.max(initial=0))), abs(int(values.min(initial=0))))
    heaviest = 1 if weight is None else int(weight.max(initial=1))
    if largest * heaviest * len(values) < _EXACT:
        weighted = values.astype(np.float64) if weight is None else values * weight.astype(np.float64)
        return [int(total) for total in np.bincount(of_row, weights=weighted, minlength=groups).tolist()]
    totals = [0] * groups
    heavy = weight.tolist() if weight is not None else None
    for position, (group, value) in enumerate(zip(of_row.tolist(), values.tolist(), strict=True)):
        totals[group] += value if heavy is None else value * heavy[position]
    return totals


def _float_sums(values: NumArray, of_row: NumArray, weight: NumArray | None, counts: NumArray) -> list[float]:
    """Rounded once, so that the result does not depend on the order of the rows."""
    if weight is not None:
        values, of_row = np.repeat(values, weight), np.repeat(of_row, weight)
    sorted_values = values.astype(np.float64)[np.argsort(of_row, kind="stable")]
    ends = np.cumsum(counts).tolist()
    return [_fsum(sorted_values[start:end].tolist()) for start, end in zip([0, *ends], ends, strict=False)]


def _fsum(values: list[float]) -> float:
    try:
        return math.fsum(values)
    except OverflowError:
        return math.inf


def _sum_column(sums: list[Any], counts: NumArray, aggregate: Aggregate) -> ArrowArray:
    present: list[Any] = [total if count else None for total, count in zip(sums, counts.tolist(), strict=True)]
    assert isinstance(aggregate.type, Scalar)
    if aggregate.type == F64:
        fits: Callable[[Any], bool] = math.isfinite
    else:
        low, high = INTEGER_BOUNDS[aggregate.type.name]
        fits = lambda total: low <= total <= high  # noqa: E731
    wrong = next((total for total in present if total is not None and not fits(total)), None)
    if wrong is not None:
        arg = aggregate.arg
        name = arg.column.name if isinstance(arg, Prop) else "id"
        raise BadRequest(
            f"sum({arg.var if arg else ''}.{name}) is {wrong}, which {aggregate.type} can't hold: use avg."
        )
    return pa.array(present, arrow_type(aggregate.type))


def _min_or_max(
    access: TableAccess, aggregate: Aggregate, arg: Prop | EntityId, row_numbers: NumArray, groups: RowGroups
) -> ArrowArray:
    """The value of the row that sorts first or last in its group; only those rows are read."""
    keys: SortKeys = column_keys(access, arg, row_numbers)
    rows = np.arange(len(row_numbers)) if keys.valid is None else np.flatnonzero(keys.valid)
    of_row, values = groups.of_row[rows], keys.values[rows]
    order = np.lexsort((values, of_row))
    of_sorted = of_row[order]
    edge = np.ones(len(order), np.bool_)
    if aggregate.fn == "min":
        edge[1:] = of_sorted[1:] != of_sorted[:-1]
    else:
        edge[:-1] = of_sorted[1:] != of_sorted[:-1]
    chosen = rows[order[edge]]
    name = column_name(arg)
    found = access.table(arg.table_key).values([name], row_numbers[chosen])[name]
    positions = np.full(groups.count, -1, np.int64)
    positions[of_sorted[edge]] = np.arange(len(chosen))
    return found.take(pa.array(positions, mask=positions < 0))
