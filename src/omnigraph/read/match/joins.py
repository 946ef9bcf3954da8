"""Joining parts of a pattern that no edge connects, and filters that look at several variables at once.

Equal values are joined by sorting codes; other comparisons between large parts are DuckDB's, which is loaded only for
that; what neither can do exactly is tried pair by pair, in blocks.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from omnigraph.cancellation import checkpoint, interruptible
from omnigraph.query.ir import Compare, EdgeEnd, EntityId, Filter, Prop, variables_of
from omnigraph.read.graph.csr import Csr
from omnigraph.read.match.bindings import ONE_ROW, Bindings, cross_join, multiply_weights
from omnigraph.read.match.filters import column_name, evaluate_filter
from omnigraph.read.tables.arrow_numpy import ArrowArray, BoolArray, NumArray, is_text
from omnigraph.read.tables.table_access import TableAccess

BLOCK_ROWS = 1 << 20
DUCKDB_PAIRS_MIN = 1 << 22
_SQL = {"=": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}


def operand_values(spaces: TableAccess, operand: Prop | EntityId | EdgeEnd, numbers: NumArray) -> ArrowArray:
    name = column_name(operand)
    return spaces.table(operand.table_key).values([name], numbers)[name]


def filter_mask(spaces: TableAccess, condition: Filter, rows: Bindings) -> BoolArray:
    """For which rows a filter is true."""
    return evaluate_filter(
        condition, lambda operand: operand_values(spaces, operand, rows.columns[operand.var]), rows.count
    )


def distinct_rows(rows: Bindings, variables: Sequence[str]) -> tuple[Bindings, NumArray | None]:
    """The distinct combinations of some variables, and which of them each row has; None if they are the rows."""
    columns = {var: rows.columns[var] for var in variables}
    if rows.count < 64 or not columns:
        return Bindings(rows.count, columns), None
    codes = np.zeros(rows.count, np.int64)
    for column in columns.values():
        size = int(column.max()) + 1
        if int(codes.max()) >= (1 << 62) // size:
            _, codes = np.unique(codes, return_inverse=True)
        codes = codes * size + column
    _, first, places = np.unique(codes, return_index=True, return_inverse=True)
    return Bindings(rows.count, columns).take(first), places


def join(spaces: TableAccess, left: Bindings, right: Bindings, conditions: Sequence[Filter]) -> Bindings:
    """The pairs of rows for which all conditions hold."""
    if left is ONE_ROW:
        return right
    rest = list(conditions)
    for condition in conditions:
        keys = _equal_keys(spaces, condition, left, right)
        if keys is not None:
            rest.remove(condition)
            return _passing(spaces, _paired(left, right, *_matching(*keys)), rest)
    if left.count * right.count >= DUCKDB_PAIRS_MIN and (sides := _comparable(spaces, rest, left, right)):
        return _passing(spaces, _paired(left, right, *_joined_by_duckdb(sides)), [f for f in rest if f not in sides])
    if left.count * right.count <= BLOCK_ROWS or not rest:
        return _passing(spaces, cross_join(left, right), rest)
    size = max(1, BLOCK_ROWS // max(1, right.count))
    blocks = [np.arange(first, min(first + size, left.count)) for first in range(0, left.count, size)]
    return _stacked([_passing(spaces, cross_join(left.take(block), right), rest) for block in blocks])


def _passing(spaces: TableAccess, rows: Bindings, conditions: Sequence[Filter]) -> Bindings:
    for condition in conditions:
        checkpoint()
        rows = rows.filter(filter_mask(spaces, condition, rows))
    return rows


def _paired(left: Bindings, right: Bindings, left_places: NumArray, right_places: NumArray) -> Bindings:
    first, second = left.take(left_places), right.take(right_places)
    weights = [part.weight for part in (first, second) if part.weight is not None]
    weight = multiply_weights(*weights) if len(weights) == 2 else weights[0] if weights else None
    return Bindings(first.count, {**first.columns, **second.columns}, weight)


def _stacked(parts: Sequence[Bindings]) -> Bindings:
    columns = {var: np.concatenate([part.columns[var] for part in parts]) for var in parts[0].columns}
    weight = None
    if parts[0].weight is not None:
        weight = np.concatenate([part.weight for part in parts if part.weight is not None])
    return Bindings(sum(part.count for part in parts), columns, weight)


def _sides(condition: Filter, left: Bindings, right: Bindings) -> tuple[Any, Any, str] | None:
    """A comparison of one variable on the left with one on the right, turned that way round."""
    if not isinstance(condition, Compare) or len(variables_of(condition)) != 2:
        return None
    one, other, op = condition.left, condition.right, condition.op
    assert isinstance(one, Prop | EntityId | EdgeEnd)
    assert isinstance(other, Prop | EntityId | EdgeEnd)
    if one.var in left.columns and other.var in right.columns:
        return one, other, op
    if other.var in left.columns and one.var in right.columns:
        return other, one, {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(op, op)
    return None


def _equal_keys(spaces: TableAccess, condition: Filter, left: Bindings, right: Bindings) -> tuple[Any, Any] | None:
    """The values to be equal, if both sides have one type whose equality Arrow's dictionaries share with ours."""
    sides = _sides(condition, left, right)
    if sides is None or sides[2] != "=":
        return None
    one = operand_values(spaces, sides[0], left.columns[sides[0].var])
    other = operand_values(spaces, sides[1], right.columns[sides[1].var])
    return (one, other) if _alike(one, other) else None


def _alike(one: ArrowArray, other: ArrowArray) -> bool:
    plain = is_text(one.type) or pa.types.is_integer(one.type) or pa.types.is_temporal(one.type)
    return bool(one.type == other.type and plain)


def _matching(one: ArrowArray, other: ArrowArray) -> tuple[NumArray, NumArray]:
    """The places of equal values; null equals nothing."""
    encoded: Any = pa.concat_arrays([one, other]).dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy()
    left, right = codes[: len(one)], codes[len(one) :]
    places = np.flatnonzero(right >= 0)
    by_code = Csr.build(
        right[places], places, np.zeros(len(places), np.int32), len(encoded.dictionary), len(right) or 1
    )
    present = np.flatnonzero(left >= 0)
    owners, found, _ = by_code.expand(left[present].astype(np.int64))
    return present[owners], found


def _comparable(
    spaces: TableAccess, conditions: Sequence[Filter], left: Bindings, right: Bindings
) -> dict[Filter, Any]:
    found: dict[Filter, Any] = {}
    for condition in conditions:
        sides = _sides(condition, left, right)
        if sides is not None:
            one = operand_values(spaces, sides[0], left.columns[sides[0].var])
            other = operand_values(spaces, sides[1], right.columns[sides[1].var])
            if _alike(one, other):
                found[condition] = (one, other, sides[2])
    return found


def _joined_by_duckdb(sides: dict[Filter, Any]) -> tuple[NumArray, NumArray]:
    """DuckDB compares text by its bytes, as we do, and has joins for ranges."""
    import duckdb

    pairs = list(sides.values())
    one = pa.table({"place": np.arange(len(pairs[0][0])), **{f"k{i}": pair[0] for i, pair in enumerate(pairs)}})
    other = pa.table({"place": np.arange(len(pairs[0][1])), **{f"k{i}": pair[1] for i, pair in enumerate(pairs)}})
    on = " AND ".join(f"one.k{i} {_SQL[pair[2]]} other.k{i}" for i, pair in enumerate(pairs))
    with duckdb.connect() as connection:
        connection.register("one", one)
        connection.register("other", other)
        with interruptible(connection.interrupt):
            found = connection.execute(f"SELECT one.place, other.place FROM one JOIN other ON {on}").fetchnumpy()
    left, right = found.values()
    return np.asarray(left), np.asarray(right)
