"""The projection of a query: groups, order and limit of the rows of its pattern, and columns that are read last.

Until then a result consists of row numbers. A column's values are fetched when a batch of the result is read, and only
for the rows in it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from omnigraph.query.ir import (
    Aggregate,
    Bm25,
    Column,
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
    columns_in,
)
from omnigraph.read.explain import QueryPlan
from omnigraph.read.match.bindings import Bindings, evaluate_rows
from omnigraph.read.match.filters import column_name
from omnigraph.read.project import sort_keys
from omnigraph.read.project.aggregate import compute_aggregate
from omnigraph.read.project.sort_keys import RowGroups, SortDirection, SortKeys, array_keys, column_keys
from omnigraph.read.search import ranking
from omnigraph.read.tables.arrow_numpy import ArrowArray, NumArray
from omnigraph.read.tables.large_arrays import chunks, count_up, full, sort_order, take, true_positions
from omnigraph.read.tables.table_access import TableAccess
from omnigraph.schema.arrow import arrow_type
from omnigraph.schema.types import PropertyType

_ENTITY_EXPRS = (WholeNode, Prop, EntityId)  # tuples: every lookup asks, and making a union of types takes longer
_RANKS = (Nearest, Bm25, Rrf)
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
        self.group_keys: dict[Aggregate, SortKeys] = {}

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
            positions = true_positions(np.logical_and.reduce(kept))
            rows = rows.take(positions)
            self.scores = {rank: score.take(positions) for rank, score in self.scores.items()}
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
            one = RowGroups(full(rows.count, 0, np.int64), np.zeros(1, np.int64))
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
            case Aggregate():
                raise AssertionError("an aggregate is no grouping expression")
            case _ if not columns_in(expr):
                return None  # a constant is the same for every row
            case _:
                return array_keys(evaluate_rows(self.access, expr, rows))

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
        limit = self.query.limit
        if not order or count < 2 or limit == 0:
            return count_up(count if limit is None else min(limit, count))
        positions: NumArray | None = None  # None: all
        if limit is not None:
            first = self._keys(order[0], rows, groups, None)
            positions = sort_keys.top_candidates(first, _direction(order[0]), limit)
            del first
        columns = [
            column
            for key in order
            if not self._is_constant(key, rows, groups, positions)
            for column in sort_keys.sort_columns(self._keys(key, rows, groups, positions), _direction(key))
        ]
        found = sort_order(columns, count if positions is None else len(positions))
        found = found if limit is None else found[:limit]
        return found if positions is None else take(positions, found)

    def _is_constant(self, key: OrderKey, rows: Bindings, groups: RowGroups | None, positions: NumArray | None) -> bool:
        """Whether the key is one entity's value at all positions, so that it need not be read."""
        if not isinstance(key.expr, _ENTITY_EXPRS):
            return False
        row_numbers, at = rows.columns[key.expr.var], _rows_at(groups, positions)
        count = len(row_numbers) if at is None else len(at)
        first = row_numbers[0 if at is None else at[0]] if count else 0
        return all(bool((row_numbers[part if at is None else at[part]] == first).all()) for part in chunks(count))

    def _keys(self, key: OrderKey, rows: Bindings, groups: RowGroups | None, positions: NumArray | None) -> SortKeys:
        """The key's values at some positions of the result, or at all."""
        expr = key.expr
        if isinstance(expr, Aggregate):
            found = self.computed[expr]
            keys = self.group_keys.setdefault(expr, array_keys(found))
            return keys if positions is None else keys.take(positions)
        at = _rows_at(groups, positions)
        if isinstance(expr, Nearest | Bm25 | Rrf):
            keys = SortKeys(self.scores[expr].values + 0.0, self.scores[expr].found)
            return keys if at is None else keys.take(at)
        id_or_prop = EntityId(expr.var, expr.table_key) if isinstance(expr, WholeNode) else expr
        if not isinstance(id_or_prop, Prop | EntityId):
            return array_keys(evaluate_rows(self.access, id_or_prop, rows, at))
        row_numbers = rows.columns[id_or_prop.var]
        return column_keys(self.access, id_or_prop, row_numbers if at is None else take(row_numbers, at))

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
                # At once, so that an error comes before the first row of the result.
                computed = evaluate_rows(self.access, expr, rows, _rows_at(groups, positions))
                return OutputColumn(name, expr.type, arrow_type(expr.type), lambda part: computed[part])


def ranks_of(query: ReadQuery) -> list[Rank]:
    """The distinct ranks that the result depends on."""
    exprs = [*(p.expr for p in query.returns), *(k.expr for k in query.order), *query.keeps]
    return list(dict.fromkeys([expr for expr in exprs if isinstance(expr, _RANKS)]))


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
    return groups.first if positions is None else take(groups.first, positions)


def _row_numbers_of(rows: Bindings, var: str, groups: RowGroups | None, positions: NumArray) -> NumArray:
    at = _rows_at(groups, positions)
    assert at is not None
    return take(rows.columns[var], at)


def _direction(key: OrderKey) -> SortDirection:
    return SortDirection(key.descending, key.nulls_first)


def output_variables(query: ReadQuery) -> Sequence[str]:
    """The variables that the projection uses."""
    exprs = [
        *[projection.expr for projection in query.returns],
        *[key.expr for key in (*query.order, *query.tiebreak)],
        *query.keeps,
    ]
    found: dict[str, None] = {}
    for expr in exprs:
        if isinstance(expr, _ENTITY_EXPRS):
            found[expr.var] = None
        else:
            found.update(dict.fromkeys([column.var for column in expression_columns(expr)]))
    return list(found)


def expression_columns(expr: OutputExpr) -> Sequence[Column]:
    """The columns that an expression of the projection reads, other than those of a whole node."""
    match expr:
        case Prop() | EntityId():
            return (expr,)
        case WholeNode() | Aggregate(arg=None):
            return ()
        case Aggregate(arg=arg):
            assert arg is not None
            return columns_in(arg)
        case Rrf(ranks):
            return [rank.field for rank in ranks]
        case Nearest(field) | Bm25(field):
            return (field,)
        case _:
            return columns_in(expr)
