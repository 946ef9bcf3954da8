"""The binding table of a pattern while it is matched, and joins of binding tables.

A binding table has a column of row numbers for each variable, and how often each row counts. Parts of a pattern that
no edge connects are joined here. Equal values are joined by sorting codes; other comparisons between large parts by
DuckDB, which is imported only for that; what neither can do exactly is compared pair by pair, in blocks. DuckDB works
within a part of the query's memory budget and spills to disk beyond it; its result is read in parts.
"""

import os
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from omnigraph.cancellation import checkpoint, interruptible
from omnigraph.errors import BadRequest
from omnigraph.memory_budget import NoRoom, current_budget, hold, require_room, reserved
from omnigraph.query.ir import Compare, EdgeEnd, EntityId, Expr, Filter, Prop, variables_of
from omnigraph.read.expressions.evaluate import evaluate
from omnigraph.read.graph.csr import Csr
from omnigraph.read.match.filters import column_name, evaluate_filter
from omnigraph.read.tables.arrow_numpy import ArrowArray, BoolArray, NumArray, is_text
from omnigraph.read.tables.large_arrays import (
    CHUNK_ROWS,
    chunks,
    concat,
    count_up,
    distinct,
    fill,
    full,
    repeat,
    repeat_each,
    take,
    take_values,
    tile,
    true_positions,
)
from omnigraph.read.tables.table_access import TableAccess

DEFAULT_BYTES = 1 << 30
MEMORY_MIN = 64 << 20  # DuckDB does little with less
_SQL = {"=": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of the values of all rows on one side with those of all rows on the other."""

    left: ArrowArray
    right: ArrowArray
    op: str


def duckdb_join(comparisons: Sequence[Comparison]) -> Iterator[tuple[NumArray, NumArray]]:
    """The positions of the pairs for which all comparisons hold, in parts.

    DuckDB compares text by its bytes, as we do.
    """
    import duckdb

    left = {f"k{i}": comparison.left for i, comparison in enumerate(comparisons)}
    right = {f"k{i}": comparison.right for i, comparison in enumerate(comparisons)}
    on = " AND ".join(f"one.k{i} {_SQL[comparison.op]} other.k{i}" for i, comparison in enumerate(comparisons))
    budget = current_budget()
    memory = max(MEMORY_MIN, (DEFAULT_BYTES if budget is None else budget.left) // 2)
    with reserved(memory, "a join"), tempfile.TemporaryDirectory(prefix="omnigraph-query-") as folder:
        settings: dict[str, Any] = {
            "memory_limit": f"{memory}B",
            "temp_directory": folder,
            "threads": max(1, (os.cpu_count() or 1) // 2),
            "preserve_insertion_order": False,
        }
        with duckdb.connect(config=settings) as connection:
            for name, keys in (("one", left), ("other", right)):
                connection.register(name, pa.table({"place": count_up(len(keys["k0"])), **keys}))
            sql = f"SELECT one.place AS l, other.place AS r FROM one JOIN other ON {on}"
            try:
                for batch in _batches(connection, sql):
                    yield batch.column("l").to_numpy(), batch.column("r").to_numpy()
            except duckdb.OutOfMemoryException as error:
                raise NoRoom(
                    f"A join of the query needs more than {memory >> 20} MiB of memory and the free disk space: "
                    "add a filter to it, or run it on Spark."
                ) from error


def _batches(connection: Any, sql: str) -> Iterator[pa.RecordBatch]:
    with interruptible(connection.interrupt):
        reader = connection.sql(sql).to_arrow_reader(CHUNK_ROWS)
    while True:
        with interruptible(connection.interrupt):
            batch = next(reader, None)
        if batch is None:
            return
        for part in chunks(batch.num_rows):  # with a checkpoint
            yield batch.slice(part.start, part.stop - part.start)


_ROWS_COUNTED_MAX = 2**63 - 1
_NO_ROWS = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Bindings:
    """`weight` counts rows that differ only in variables that are not needed; None where each counts once."""

    count: int
    columns: dict[str, NumArray]
    weight: NumArray | None = None

    def take(self, positions: NumArray) -> "Bindings":
        self._require_room(len(positions))
        return Bindings(
            len(positions),
            {var: take(column, positions) for var, column in self.columns.items()},
            None if self.weight is None else take(self.weight, positions),
        )

    def part(self, rows: slice) -> "Bindings":
        """A range of the rows, without a copy."""
        return Bindings(
            rows.stop - rows.start,
            {var: column[rows] for var, column in self.columns.items()},
            None if self.weight is None else self.weight[rows],
        )

    def filter(self, mask: BoolArray) -> "Bindings":
        return self if mask.all() else self.take(true_positions(mask))

    def _require_room(self, count: int) -> None:
        require_room(count * self.row_bytes, f"{count:,} rows of the match")

    @property
    def row_bytes(self) -> int:
        arrays = [*self.columns.values(), *([] if self.weight is None else [self.weight])]
        return sum(array.dtype.itemsize for array in arrays)

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
        positions = true_positions(kept)
        taken = Bindings(self.count, self.columns, weight).take(positions)
        assert taken.weight is not None
        return Bindings(taken.count, taken.columns) if bool((taken.weight == 1).all()) else taken

    def expand_weights(self) -> "Bindings":
        """Without weights, a row for each match: what results without grouping are built from."""
        if self.weight is None:
            return self
        total = int(self.weight.sum())
        unweighted = Bindings(self.count, self.columns)
        unweighted._require_room(total)
        return Bindings(total, {var: repeat(column, self.weight) for var, column in self.columns.items()})


def multiply_weights(one: NumArray, other: NumArray) -> NumArray:
    """The product of two weights; refused where the total might exceed 64 bits."""
    most = int(one.max(initial=0)) * int(other.max(initial=0)) * len(one)
    if most > _ROWS_COUNTED_MAX:
        raise BadRequest("The match has more rows than can be counted: add a filter to it, or leave a variable out.")
    return fill(len(one), np.int64, lambda part: one[part] * other[part])


ONE_ROW = Bindings(1, {})  # the empty pattern has one match


def cross_join(left: Bindings, right: Bindings) -> Bindings:
    """Every row of one side with every row of the other."""
    if left.count == 1 and not left.columns and left.weight is None:
        return right
    count = left.count * right.count
    require_room(count * (left.row_bytes + right.row_bytes), f"{count:,} rows of a product")
    columns = {var: repeat_each(column, right.count) for var, column in left.columns.items()}
    columns |= {var: tile(column, left.count) for var, column in right.columns.items()}
    weights = [
        *([] if left.weight is None else [repeat_each(left.weight, right.count)]),
        *([] if right.weight is None else [tile(right.weight, left.count)]),
    ]
    weight = multiply_weights(*weights) if len(weights) == 2 else weights[0] if weights else None
    return Bindings(count, columns, weight)


BLOCK_ROWS = 1 << 20
EVALUATED_ROWS = 1 << 14  # of an expression between two checkpoints
DUCKDB_PAIRS_MIN = 1 << 22


def operand_values(access: TableAccess, operand: Prop | EntityId | EdgeEnd, row_numbers: NumArray) -> ArrowArray:
    name = column_name(operand)
    return access.table(operand.table_key).values([name], row_numbers)[name]


def filter_mask(access: TableAccess, condition: Filter, rows: Bindings) -> BoolArray:
    """The rows for which a filter is true."""

    def mask(part: slice) -> BoolArray:
        return evaluate_filter(
            condition,
            lambda operand: operand_values(access, operand, rows.columns[operand.var][part]),
            part.stop - part.start,
        )

    return fill(rows.count, np.bool_, mask)


def evaluate_rows(access: TableAccess, expr: Expr, rows: Bindings, at: NumArray | None = None) -> ArrowArray:
    """The values of an expression over the variables of a match, for all rows or those `at` some positions."""
    count = rows.count if at is None else len(at)

    def values(part: slice) -> ArrowArray:
        where: Any = part if at is None else at[part]
        return evaluate(
            expr, lambda leaf: operand_values(access, leaf, rows.columns[leaf.var][where]), part.stop - part.start
        )

    parts = [hold(values(part)) for part in chunks(count, EVALUATED_ROWS)] or [values(slice(0, 0))]
    if len(parts) == 1:
        return parts[0]
    require_room(sum(part.nbytes for part in parts), f"the values of an expression for {count:,} rows")
    return hold(pa.concat_arrays(parts))


def distinct_rows(rows: Bindings, variables: Sequence[str]) -> tuple[Bindings, NumArray | None]:
    """The distinct combinations of some variables, and the index of each row's combination; None if each row is one."""
    columns = {var: rows.columns[var] for var in variables}
    if rows.count < 64 or not columns:
        return Bindings(rows.count, columns), None
    codes = full(rows.count, 0, np.int64)
    for column in columns.values():
        size = int(column.max()) + 1
        if int(codes.max()) >= (1 << 62) // size:
            _, codes = distinct(codes)
        for part in chunks(rows.count):
            codes[part] = codes[part] * size + column[part]
    found, positions = distinct(codes)
    first = full(len(found), 0, np.int64)
    for part in chunks(rows.count):
        first[positions[part]] = np.arange(part.start, part.stop)
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
    if not rest or left.count * right.count <= BLOCK_ROWS:
        return _apply_filters(access, cross_join(left, right), rest)
    if left.count * right.count >= DUCKDB_PAIRS_MIN and (sides := _comparable_sides(access, rest, left, right)):
        others = [condition for condition in rest if condition not in sides]
        pairs = (_pair(left, right, *places) for places in duckdb_join(list(sides.values())))
        return _concat(left, right, [_apply_filters(access, block, others) for block in pairs])
    return _concat(left, right, [_apply_filters(access, block, rest) for block in _blocks(left, right)])


def _blocks(left: Bindings, right: Bindings) -> Iterator[Bindings]:
    """All pairs of rows, block by block."""
    for first in chunks(left.count, max(1, BLOCK_ROWS // max(1, right.count))):
        for second in chunks(right.count, BLOCK_ROWS):
            yield cross_join(left.part(first), right.part(second))


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


def _concat(left: Bindings, right: Bindings, blocks: list[Bindings]) -> Bindings:
    """The rows of all blocks of a join of these two."""
    blocks = [block for block in blocks if block.count] or [_pair(left, right, _NO_ROWS, _NO_ROWS)]
    count, weighted = sum(block.count for block in blocks), blocks[0].weight is not None
    arrays = {var: [block.columns[var] for block in blocks] for var in blocks[0].columns}
    weights = [block.weight for block in blocks if block.weight is not None]
    blocks.clear()  # so that each column is freed when it was copied
    columns = {var: concat(arrays.pop(var)) for var in list(arrays)}
    return Bindings(count, columns, concat(weights) if weighted else None)


def _orient(condition: Filter, left: Bindings, right: Bindings) -> tuple[Any, Any, str] | None:
    """A comparison of a variable on the left with one on the right, flipped if needed."""
    if not isinstance(condition, Compare) or len(variables_of(condition)) != 2:
        return None
    one, other, op = condition.left, condition.right, condition.op
    if not isinstance(one, Prop | EntityId | EdgeEnd) or not isinstance(other, Prop | EntityId | EdgeEnd):
        return None
    if one.var in left.columns and other.var in right.columns:
        return one, other, op
    if other.var in left.columns and one.var in right.columns:
        return other, one, {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(op, op)
    return None


@dataclass(frozen=True, slots=True)
class _Operand:
    """The values of one side of a comparison; `positions` has the value of each row, None where each has its own."""

    values: ArrowArray
    positions: NumArray | None

    @staticmethod
    def of(access: TableAccess, operand: Any, rows: Bindings) -> "_Operand":
        """Of a table with fewer rows than there are, each value is read once."""
        numbers, positions = rows.columns[operand.var], None
        if rows.count > access.table(operand.table_key).total:
            numbers, positions = distinct(numbers)
        return _Operand(hold(operand_values(access, operand, numbers), "values to join by"), positions)

    @property
    def by_row(self) -> ArrowArray:
        return self.values if self.positions is None else hold(take_values(self.values, self.positions))


def _equal_keys(
    access: TableAccess, condition: Filter, left: Bindings, right: Bindings
) -> tuple[_Operand, _Operand] | None:
    """The values that must be equal, if both sides have one type that Arrow's dictionary encoding compares as we do."""
    sides = _orient(condition, left, right)
    if sides is None or sides[2] != "=":
        return None
    one, other = _Operand.of(access, sides[0], left), _Operand.of(access, sides[1], right)
    return (one, other) if _same_type(one.values, other.values) else None


def _same_type(one: ArrowArray, other: ArrowArray) -> bool:
    plain = is_text(one.type) or pa.types.is_integer(one.type) or pa.types.is_temporal(one.type)
    return bool(one.type == other.type and plain)


def _equal_positions(one: _Operand, other: _Operand) -> tuple[NumArray, NumArray]:
    """The positions of equal values; null equals nothing."""
    with reserved(one.values.nbytes + other.values.nbytes, "values to join by"):
        encoded: Any = pa.concat_arrays([one.values, other.values]).dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy()
    left, right = codes[: len(one.values)], codes[len(one.values) :]
    left = left if one.positions is None else take(left, one.positions)
    right = right if other.positions is None else take(right, other.positions)
    positions = true_positions(right >= 0)
    by_code = Csr.build(
        take(right, positions),
        positions,
        np.zeros(len(positions), np.int32),
        len(encoded.dictionary),
        len(right) or 1,
    )
    present = true_positions(left >= 0)
    owners, found, _ = by_code.expand(take(left, present).astype(np.int64))
    return take(present, owners), found


def _comparable_sides(
    access: TableAccess, conditions: Sequence[Filter], left: Bindings, right: Bindings
) -> dict[Filter, Comparison]:
    found: dict[Filter, Comparison] = {}
    for condition in conditions:
        sides = _orient(condition, left, right)
        if sides is not None:
            one, other = _Operand.of(access, sides[0], left), _Operand.of(access, sides[1], right)
            if _same_type(one.values, other.values):
                found[condition] = Comparison(one.by_row, other.by_row, sides[2])
    return found
