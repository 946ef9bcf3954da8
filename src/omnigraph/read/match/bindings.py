"""The binding table of a pattern while it is matched, and joins of binding tables.

A binding table has a column of row numbers for each variable, and how often each row counts. Parts of a pattern that
no edge connects are joined here. Equal values are joined by sorting codes; other comparisons between large parts by
DuckDB, which is imported only for that; what neither can do exactly is compared pair by pair, in blocks.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from omnigraph.cancellation import checkpoint, interruptible
from omnigraph.errors import BadRequest
from omnigraph.query.ir import Compare, EdgeEnd, EntityId, Filter, Prop, variables_of
from omnigraph.read.graph.csr import Csr, require_fits
from omnigraph.read.match.filters import column_name, evaluate_filter
from omnigraph.read.tables.arrow_numpy import ArrowArray, BoolArray, NumArray, is_text
from omnigraph.read.tables.table_access import TableAccess

_ROWS_COUNTED_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Bindings:
    """`weight` counts rows that differ only in variables that are not needed; None where each counts once."""

    count: int
    columns: dict[str, NumArray]
    weight: NumArray | None = None

    def take(self, positions: NumArray) -> "Bindings":
        require_fits(len(positions), len(self.columns))
        return Bindings(
            len(positions),
            {var: column[positions] for var, column in self.columns.items()},
            None if self.weight is None else self.weight[positions],
        )

    def filter(self, mask: BoolArray) -> "Bindings":
        return self if mask.all() else self.take(np.flatnonzero(mask))

    def with_columns(self, more: dict[str, NumArray]) -> "Bindings":
        return Bindings(self.count, {**self.columns, **more}, self.weight)

    def keep(self, wanted: Collection[str]) -> "Bindings":
        if all(var in wanted for var in self.columns):
            return self
        return Bindings(self.count, {var: column for var, column in self.columns.items() if var in wanted}, self.weight)

    def multiply(self, counts: NumArray) -> "Bindings":
        """Each row `counts` times; rows with a count of 0 are removed."""
        kept = counts > 0
        weight = counts if self.weight is None else multiply_weights(self.weight, counts)
        if bool(kept.all()):
            once = self.weight is None and bool((counts == 1).all())
            return self if once else Bindings(self.count, self.columns, weight)
        positions = np.flatnonzero(kept)
        taken = Bindings(self.count, self.columns, weight).take(positions)
        assert taken.weight is not None
        return Bindings(taken.count, taken.columns) if bool((taken.weight == 1).all()) else taken

    def expand_weights(self) -> "Bindings":
        """Without weights, a row for each match: what results without grouping are built from."""
        if self.weight is None:
            return self
        require_fits(int(self.weight.sum()), len(self.columns))
        return Bindings(self.count, self.columns).take(np.repeat(np.arange(self.count), self.weight))


def multiply_weights(one: NumArray, other: NumArray) -> NumArray:
    """The product of two weights; refused where the total might exceed 64 bits."""
    most = int(one.max(initial=0)) * int(other.max(initial=0)) * len(one)
    if most > _ROWS_COUNTED_MAX:
        raise BadRequest("The match has more rows than can be counted: add a filter to it, or leave a variable out.")
    return one * other


ONE_ROW = Bindings(1, {})  # the empty pattern has one match


def cross_join(left: Bindings, right: Bindings) -> Bindings:
    """Every row of one side with every row of the other."""
    if left.count == 1 and not left.columns and left.weight is None:
        return right
    require_fits(left.count * right.count, len(left.columns) + len(right.columns))
    first = left.take(np.repeat(np.arange(left.count), right.count))
    second = right.take(np.tile(np.arange(right.count), left.count))
    if first.weight is not None and second.weight is not None:
        weight: NumArray | None = multiply_weights(first.weight, second.weight)
    else:
        weight = first.weight if first.weight is not None else second.weight
    return Bindings(first.count, {**first.columns, **second.columns}, weight)


BLOCK_ROWS = 1 << 20
DUCKDB_PAIRS_MIN = 1 << 22
_SQL = {"=": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}


def operand_values(access: TableAccess, operand: Prop | EntityId | EdgeEnd, row_numbers: NumArray) -> ArrowArray:
    name = column_name(operand)
    return access.table(operand.table_key).values([name], row_numbers)[name]


def filter_mask(access: TableAccess, condition: Filter, rows: Bindings) -> BoolArray:
    """The rows for which a filter is true."""
    return evaluate_filter(
        condition, lambda operand: operand_values(access, operand, rows.columns[operand.var]), rows.count
    )


def distinct_rows(rows: Bindings, variables: Sequence[str]) -> tuple[Bindings, NumArray | None]:
    """The distinct combinations of some variables, and the index of each row's combination; None if each row is one."""
    columns = {var: rows.columns[var] for var in variables}
    if rows.count < 64 or not columns:
        return Bindings(rows.count, columns), None
    codes = np.zeros(rows.count, np.int64)
    for column in columns.values():
        size = int(column.max()) + 1
        if int(codes.max()) >= (1 << 62) // size:
            _, codes = np.unique(codes, return_inverse=True)
        codes = codes * size + column
    _, first, positions = np.unique(codes, return_index=True, return_inverse=True)
    return Bindings(rows.count, columns).take(first), positions


def join(access: TableAccess, left: Bindings, right: Bindings, conditions: Sequence[Filter]) -> Bindings:
    """The pairs of rows for which all conditions hold."""
    if left is ONE_ROW:
        return right
    rest = list(conditions)
    for condition in conditions:
        keys = _equal_keys(access, condition, left, right)
        if keys is not None:
            rest.remove(condition)
            return _apply_filters(access, _pair(left, right, *_equal_positions(*keys)), rest)
    if left.count * right.count >= DUCKDB_PAIRS_MIN and (sides := _comparable_sides(access, rest, left, right)):
        return _apply_filters(access, _pair(left, right, *_duckdb_join(sides)), [f for f in rest if f not in sides])
    if left.count * right.count <= BLOCK_ROWS or not rest:
        return _apply_filters(access, cross_join(left, right), rest)
    size = max(1, BLOCK_ROWS // max(1, right.count))
    blocks = [np.arange(first, min(first + size, left.count)) for first in range(0, left.count, size)]
    return _concat([_apply_filters(access, cross_join(left.take(block), right), rest) for block in blocks])


def _apply_filters(access: TableAccess, rows: Bindings, conditions: Sequence[Filter]) -> Bindings:
    for condition in conditions:
        checkpoint()
        rows = rows.filter(filter_mask(access, condition, rows))
    return rows


def _pair(left: Bindings, right: Bindings, left_places: NumArray, right_places: NumArray) -> Bindings:
    first, second = left.take(left_places), right.take(right_places)
    weights = [part.weight for part in (first, second) if part.weight is not None]
    weight = multiply_weights(*weights) if len(weights) == 2 else weights[0] if weights else None
    return Bindings(first.count, {**first.columns, **second.columns}, weight)


def _concat(parts: Sequence[Bindings]) -> Bindings:
    columns = {var: np.concatenate([part.columns[var] for part in parts]) for var in parts[0].columns}
    weight = None
    if parts[0].weight is not None:
        weight = np.concatenate([part.weight for part in parts if part.weight is not None])
    return Bindings(sum(part.count for part in parts), columns, weight)


def _orient(condition: Filter, left: Bindings, right: Bindings) -> tuple[Any, Any, str] | None:
    """A comparison of a variable on the left with one on the right, flipped if needed."""
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


def _equal_keys(access: TableAccess, condition: Filter, left: Bindings, right: Bindings) -> tuple[Any, Any] | None:
    """The values that must be equal, if both sides have one type that Arrow's dictionary encoding compares as we do."""
    sides = _orient(condition, left, right)
    if sides is None or sides[2] != "=":
        return None
    one = operand_values(access, sides[0], left.columns[sides[0].var])
    other = operand_values(access, sides[1], right.columns[sides[1].var])
    return (one, other) if _same_type(one, other) else None


def _same_type(one: ArrowArray, other: ArrowArray) -> bool:
    plain = is_text(one.type) or pa.types.is_integer(one.type) or pa.types.is_temporal(one.type)
    return bool(one.type == other.type and plain)


def _equal_positions(one: ArrowArray, other: ArrowArray) -> tuple[NumArray, NumArray]:
    """The positions of equal values; null equals nothing."""
    encoded: Any = pa.concat_arrays([one, other]).dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy()
    left, right = codes[: len(one)], codes[len(one) :]
    positions = np.flatnonzero(right >= 0)
    by_code = Csr.build(
        right[positions], positions, np.zeros(len(positions), np.int32), len(encoded.dictionary), len(right) or 1
    )
    present = np.flatnonzero(left >= 0)
    owners, found, _ = by_code.expand(left[present].astype(np.int64))
    return present[owners], found


def _comparable_sides(
    access: TableAccess, conditions: Sequence[Filter], left: Bindings, right: Bindings
) -> dict[Filter, Any]:
    found: dict[Filter, Any] = {}
    for condition in conditions:
        sides = _orient(condition, left, right)
        if sides is not None:
            one = operand_values(access, sides[0], left.columns[sides[0].var])
            other = operand_values(access, sides[1], right.columns[sides[1].var])
            if _same_type(one, other):
                found[condition] = (one, other, sides[2])
    return found


def _duckdb_join(sides: dict[Filter, Any]) -> tuple[NumArray, NumArray]:
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
