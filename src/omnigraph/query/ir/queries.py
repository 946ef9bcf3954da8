"""Queries: what a read returns, ranks, and the statements of a mutation."""

from dataclasses import dataclass, field
from typing import Literal as OneOf
from typing import TypeAlias

from omnigraph.query.ir.expressions import (
    F64,
    Condition,
    Constant,
    Expr,
    Param,
    Prop,
    PropertyColumn,
    WholeNode,
)
from omnigraph.query.ir.patterns import Pattern
from omnigraph.schema.definitions import Metric
from omnigraph.schema.types import PropertyType

AggregateFn: TypeAlias = OneOf["count", "sum", "avg", "min", "max"]


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Over the rows of a group. `count` without `arg` counts rows, with it those where it is not null.

    The others skip nulls and are null over nothing. `type`: count I64; sum I64 of I32 and I64, U64 of U32 and U64,
    F64 of floats (exact, a sum that leaves its 64 bits is an error); avg F64; min and max that of `arg`, enums as text.
    """

    fn: AggregateFn
    arg: Expr | None
    type: PropertyType


@dataclass(frozen=True, slots=True)
class Nearest:
    """The distance of a vector from `query`; null where the vector is null. Smaller is better.

    `cosine`: 1 - cos, null for a zero vector; `l2`: the Euclidean distance. A query of type String is a text that the
    executor embeds with the property's provider; otherwise it is a vector of the property's dimension.
    """

    field: Prop
    query: Constant
    metric: Metric

    @property
    def type(self) -> PropertyType:
        return F64


@dataclass(frozen=True, slots=True)
class Bm25:
    """The score of a text for `query`; null where the search does not find it. Greater is better."""

    field: Prop
    query: Constant

    @property
    def type(self) -> PropertyType:
        return F64


@dataclass(frozen=True, slots=True)
class Rrf:
    """Reciprocal rank fusion: the sum of 1 / (k + place) over the ranks that have the row; null if neither has it.

    A rank's place is counted from 1 over the distinct entities of its variable among the rows that match, best
    first, equal scores by id ascending. `nearest` has those with a distance, `bm25` those it finds. Greater is better.
    """

    ranks: tuple["Nearest | Bm25", "Nearest | Bm25"]
    k: Constant

    @property
    def type(self) -> PropertyType:
        return F64


Rank: TypeAlias = Nearest | Bm25 | Rrf
OutputExpr: TypeAlias = Expr | WholeNode | Aggregate | Rank


@dataclass(frozen=True, slots=True)
class Projection:
    name: str  # the column's name in the result
    expr: OutputExpr

    @property
    def aggregate(self) -> bool:
        return isinstance(self.expr, Aggregate)


@dataclass(frozen=True, slots=True)
class OrderKey:
    """One key of the order, complete: search functions have `descending` and `nulls_first` set so that the best is
    first.

    `column` is the index of the projection that has the same expression, where there is one: it may be sorted by
    instead. In a grouped query every key is an aggregate, a grouping expression, or constant in a group because the
    variable's id or whole node is a grouping expression. Constants are left out, they order nothing.
    """

    expr: Expr | Aggregate | Rank
    descending: bool
    nulls_first: bool
    column: int | None = None


@dataclass(frozen=True, slots=True)
class ReadQuery:
    """A read.

    Not grouped: a row of the pattern is a row of the result. Grouped (some projection aggregates): one row a
    group of equal `group_by` values, null being a value; without `group_by` exactly one row, also over nothing.
    Numbers that are equal by value are one group (-0.0 and 0.0); a WholeNode groups by its id.

    Then: `keeps` drops the rows for which one of these ranks is null; sort by `order`, then `tiebreak`; `limit`.

    `tiebreak`: not grouped, the ids of all named variables, nodes and edges, in alphabetical (code point) order of
    their names; grouped, the grouping values in `return`'s order, nulls first (lists element by element, a node by
    its id).
    """

    name: str
    params: tuple[Param, ...]
    pattern: Pattern
    returns: tuple[Projection, ...]
    grouped: bool
    group_by: tuple[int, ...]  # indexes into `returns`
    order: tuple[OrderKey, ...]
    tiebreak: tuple[OrderKey, ...]
    limit: int | None
    keeps: tuple[Rank, ...] = ()
    uses_now: bool = False
    description: str | None = field(default=None, compare=False)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(projection.name for projection in self.returns)


# Mutations --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Assign:
    """`prop: value`. After `bind` a Literal of the property's own type (range checked, F32 rounded), or null.

    The schema's constraints on the value (required, enum, range, check) are left to the validator, so that mutations
    and loads report the same errors: an enum property may here get a text that is not one of its values.
    """

    column: PropertyColumn
    value: Constant


@dataclass(frozen=True, slots=True)
class InsertRow:
    """`insert Type { … }`; for an edge `source` and `target` are set: after `bind` Literals of type String, node ids.

    `bind` converts a key given instead of an id (`from: 10`) to the id's text.
    """

    table_key: str
    assignments: tuple[Assign, ...]
    source: Constant | None = None
    target: Constant | None = None


@dataclass(frozen=True, slots=True)
class UpdateRows:
    """`where` is a filter over the one variable `WHERE_ROW`, evaluated like any other filter."""

    table_key: str
    assignments: tuple[Assign, ...]
    where: Condition


@dataclass(frozen=True, slots=True)
class DeleteRows:
    table_key: str
    where: Condition


Statement: TypeAlias = InsertRow | UpdateRows | DeleteRows


@dataclass(frozen=True, slots=True)
class MutationQuery:
    """Statements in order: later ones see what earlier ones wrote. Either inserts and updates, or deletes only."""

    name: str
    params: tuple[Param, ...]
    statements: tuple[Statement, ...]
    uses_now: bool = False
    description: str | None = field(default=None, compare=False)

    @property
    def deletes(self) -> bool:
        return isinstance(self.statements[0], DeleteRows)


Query: TypeAlias = ReadQuery | MutationQuery
