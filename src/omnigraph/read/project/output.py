"""The projection of a query: groups, order and limit of the rows of its pattern, and columns that are read last.

Until then a result consists of row numbers. A column's values are fetched when a batch of the result is read, and only
for the rows in it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from omnigraph.errors import BadRequest
from omnigraph.query.ir import (
    F64,
    Aggregate,
    Bm25,
    EntityId,
    Literal,
    Nearest,
    OrderKey,
    OutputExpr,
    Prop,
    Rank,
    ReadQuery,
    Rrf,
    WholeNode,
)
from omnigraph.read.explain import QueryPlan
from omnigraph.read.match.bindings import Bindings
from omnigraph.read.match.filters import column_name
from omnigraph.read.project import sort_keys
from omnigraph.read.project.sort_keys import RowGroups, SortDirection, SortKeys, array_keys, column_keys
from omnigraph.read.search import ranking
from omnigraph.read.tables.arrow_numpy import ArrowArray, NumArray, raw_values, valid_mask
from omnigraph.read.tables.table_access import TableAccess
from omnigraph.schema.arrow import arrow_type
from omnigraph.schema.types import INTEGER_BOUNDS, PropertyType, Scalar

Fetch: TypeAlias = Callable[[slice], ArrowArray]
Few: TypeAlias = Callable[[], list[Any] | None]


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """A column of the result. `type` is None for a whole node, whose properties have their own types.

    `python_values` gives all values as Python objects, which is faster for a handful; None where that is not possible.
    """

    name: str
    type: PropertyType | None
    arrow: pa.DataType
    fetch: Fetch
    node: WholeNode | None = None
    python_values: Few = lambda: None


@dataclass(frozen=True, slots=True)
class ResultTable:
    count: int
    columns: tuple[OutputColumn, ...]


def project(access: TableAccess, query: ReadQuery, rows: Bindings, plan: QueryPlan) -> ResultTable:
    """The rows of the result in order, with columns that fetch their values on demand."""
    return _Projection(access, query, plan).result(rows)


class _Projection:
    def __init__(self, access: TableAccess, query: ReadQuery, plan: QueryPlan) -> None:
        self.access = access
        self.query = query
        self.plan = plan
        self.scores: dict[Rank, ranking.RankValues] = {}
        self.computed: dict[Aggregate, ArrowArray] = {}  # by group

    def result(self, rows: Bindings) -> ResultTable:
        query = self.query
        if not query.grouped or self._ranks():
            rows = rows.expand_weights()
        best = self._top_rows(rows)
        if best is not None:
            return self._build_result(best, None)
        for rank in self._ranks():
            self.scores[rank] = ranking.rank_rows(self.access, rank, rows, self._top_limit(rank))
        kept = [self.scores[rank].found for rank in query.keeps]
        if kept:
            positions = np.flatnonzero(np.logical_and.reduce(kept))
            rows = rows.take(positions)
            self.scores = {
                rank: ranking.RankValues(score.values[positions], score.found[positions])
                for rank, score in self.scores.items()
            }
        if query.grouped:
            return self._build_result(rows, self._groups(rows))
        return self._build_result(rows, None)

    def _ranks(self) -> list[Rank]:
        return ranks_of(self.query)

    def _top_limit(self, rank: Rank) -> int | None:
        return top_limit(self.query, rank)

    def _top_rows(self, rows: Bindings) -> Bindings | None:
        """The top rows by one rank where all rows of a table match; None where all rows must be ranked."""
        ranks = self._ranks()
        top = self._top_limit(ranks[0]) if len(ranks) == 1 else None
        found = None if top is None else ranking.top_rows(self.access, ranks[0], rows, top)
        if top is None or found is None:
            return None
        best, scores = found
        if best.count < top and ranks[0] not in self.query.keeps and best.count < rows.count:
            return None  # rows without a value follow
        self.scores[ranks[0]] = scores
        return best

    def _groups(self, rows: Bindings) -> RowGroups:
        if not self.query.group_by:
            one = RowGroups(np.zeros(rows.count, np.int64), np.zeros(1, np.int64))
            self._aggregate(rows, one)
            return one
        keys = [self._group_keys(self.query.returns[i].expr, rows) for i in self.query.group_by]
        groups = sort_keys.group_rows([key for key in keys if key is not None], rows.count)
        self._aggregate(rows, groups)
        step = self.plan.add(f"Group by {', '.join(self.query.returns[i].name for i in self.query.group_by)}")
        step.rows = groups.count
        return groups

    def _aggregate(self, rows: Bindings, groups: RowGroups) -> None:
        exprs = [*(p.expr for p in self.query.returns), *(k.expr for k in self.query.order)]
        for expr in exprs:
            if isinstance(expr, Aggregate) and expr not in self.computed:
                self.computed[expr] = compute_aggregate(self.access, expr, rows, groups)

    def _group_keys(self, expr: OutputExpr, rows: Bindings) -> SortKeys | None:
        match expr:
            case WholeNode(var) | EntityId(var):
                return SortKeys(rows.columns[var], None)
            case Prop(var):
                return column_keys(self.access, expr, rows.columns[var])
            case Nearest() | Bm25() | Rrf():
                return SortKeys(self.scores[expr].values + 0.0, self.scores[expr].found)
            case _:
                return None  # a constant is the same for every row

    # Order and limit

    def _build_result(self, rows: Bindings, groups: RowGroups | None) -> ResultTable:
        count = rows.count if groups is None else groups.count
        positions = self._order(rows, groups, count)
        if self.query.order or self.query.limit is not None:
            limit = "" if self.query.limit is None else f" limit {self.query.limit}"
            keys = len(self.query.order)
            by = f"Order by {keys} key{'s' if keys != 1 else ''}" if keys else "Order by ids"
            self.plan.add(f"{by}{limit}").rows = len(positions)
        columns = [
            self._column(projection.name, projection.expr, rows, groups, positions) for projection in self.query.returns
        ]
        return ResultTable(len(positions), tuple(columns))

    def _order(self, rows: Bindings, groups: RowGroups | None, count: int) -> NumArray:
        order = [key for key in (*self.query.order, *self.query.tiebreak) if not isinstance(key.expr, Literal)]
        positions = np.arange(count)
        limit = self.query.limit
        if limit is not None and order:
            first = self._keys(order[0], rows, groups, None)
            narrowed = sort_keys.top_candidates(first, _direction(order[0]), limit)
            if narrowed is not None:
                positions = narrowed
        if len(positions) > 1:
            columns = [
                column
                for key in order
                if not self._is_constant(key, rows, groups, positions)
                for column in sort_keys.sort_columns(self._keys(key, rows, groups, positions), _direction(key))
            ]
            positions = positions[sort_keys.sort_order(columns, len(positions))]
        return positions if limit is None else positions[:limit]

    def _is_constant(self, key: OrderKey, rows: Bindings, groups: RowGroups | None, positions: NumArray) -> bool:
        """Whether the key is one entity's value at all positions, so that it need not be read."""
        if not isinstance(key.expr, Prop | EntityId | WholeNode):
            return False
        row_numbers = rows.columns[key.expr.var][_rows_at(groups, positions)]
        return bool(row_numbers[0] == row_numbers[-1]) and bool((row_numbers == row_numbers[0]).all())

    def _keys(self, key: OrderKey, rows: Bindings, groups: RowGroups | None, positions: NumArray | None) -> SortKeys:
        """The key's values at some positions of the result, or at all."""
        expr = key.expr
        if isinstance(expr, Aggregate):
            found = self.computed[expr]
            return array_keys(found if positions is None else found.take(pa.array(positions)))
        at = _rows_at(groups, positions)
        if isinstance(expr, Nearest | Bm25 | Rrf):
            keys = SortKeys(self.scores[expr].values + 0.0, self.scores[expr].found)
            return keys if at is None else keys.take(at)
        id_or_prop = EntityId(expr.var, expr.table_key) if isinstance(expr, WholeNode) else expr
        assert isinstance(id_or_prop, Prop | EntityId)
        row_numbers = rows.columns[id_or_prop.var]
        return column_keys(self.access, id_or_prop, row_numbers if at is None else row_numbers[at])

    # Columns

    def _column(
        self, name: str, expr: OutputExpr, rows: Bindings, groups: RowGroups | None, positions: NumArray
    ) -> OutputColumn:
        match expr:
            case Aggregate(type=kind):
                found = self.computed[expr]
                return OutputColumn(
                    name,
                    kind,
                    found.type,
                    lambda part: found.take(pa.array(positions[part])),
                    python_values=lambda: [found[position].as_py() for position in positions.tolist()],
                )
            case Literal(value, kind):
                constant: Any = pa.scalar(list(value) if isinstance(value, tuple) else value, arrow_type(kind))
                return OutputColumn(name, kind, constant.type, lambda part: pa.repeat(constant, len(positions[part])))
            case Nearest() | Bm25() | Rrf():
                score = self.scores[expr].to_arrow()
                at = _rows_at(groups, positions)
                chosen = score if at is None else score.take(pa.array(at))
                return OutputColumn(name, expr.type, pa.float64(), lambda part: chosen[part])
            case WholeNode(var, table_key, properties):
                row_numbers = _row_numbers_of(rows, var, groups, positions)
                names = ["id", *(column.column for column in properties)]
                schema = self.access.reader.state(table_key).schema
                fields = [
                    pa.field("id", pa.string()),
                    *(pa.field(column.name, schema.field(column.column).type) for column in properties),
                ]

                def node(part: slice) -> ArrowArray:
                    values = self.access.table(table_key).values(names, row_numbers[part])
                    return pa.StructArray.from_arrays([values[name] for name in names], fields=fields)

                return OutputColumn(name, None, pa.struct(fields), node, expr)
            case Prop() | EntityId():
                row_numbers = _row_numbers_of(rows, expr.var, groups, positions)
                column, key = column_name(expr), expr.table_key

                def values(part: slice) -> ArrowArray:
                    return self.access.table(key).values([column], row_numbers[part])[column]

                output_type = arrow_type(expr.type)

                def few() -> list[Any] | None:
                    table = self.access.resident_table(key)
                    return None if table is None else table.python_values(column, output_type, row_numbers)

                return OutputColumn(name, expr.type, output_type, values, python_values=few)
            case _:
                raise AssertionError(f"{expr} was not bound")


def ranks_of(query: ReadQuery) -> list[Rank]:
    """The distinct ranks that the result depends on."""
    exprs = [*(p.expr for p in query.returns), *(k.expr for k in query.order), *query.keeps]
    return list(dict.fromkeys(expr for expr in exprs if isinstance(expr, Nearest | Bm25 | Rrf)))


def top_limit(query: ReadQuery, rank: Rank) -> int | None:
    """How many of a rank's best rows suffice: the limit if the query orders by it, best first; else None."""
    if query.grouped or query.limit is None or not query.order or query.order[0].expr != rank:
        return None
    first = query.order[0]
    best_first = first.descending == isinstance(rank, Bm25 | Rrf) and not first.nulls_first
    return query.limit if best_first else None


def _rows_at(groups: RowGroups | None, positions: NumArray | None) -> NumArray | None:
    """The rows at positions of the result: themselves, or one of each group."""
    if groups is None:
        return positions
    return groups.first if positions is None else groups.first[positions]


def _row_numbers_of(rows: Bindings, var: str, groups: RowGroups | None, positions: NumArray) -> NumArray:
    at = _rows_at(groups, positions)
    assert at is not None
    return rows.columns[var][at]


def _direction(key: OrderKey) -> SortDirection:
    return SortDirection(key.descending, key.nulls_first)


def output_variables(query: ReadQuery) -> Sequence[str]:
    """The variables that the projection uses."""
    found: list[str] = []
    for expr in (
        *(projection.expr for projection in query.returns),
        *(key.expr for key in (*query.order, *query.tiebreak)),
        *query.keeps,
    ):
        for part in expr.ranks if isinstance(expr, Rrf) else (expr,):
            operand = (
                part.arg if isinstance(part, Aggregate) else part.field if isinstance(part, Nearest | Bm25) else part
            )
            if isinstance(operand, Prop | EntityId | WholeNode):
                found.append(operand.var)
    return list(dict.fromkeys(found))


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
