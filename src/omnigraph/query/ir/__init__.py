"""The typed IR: what a checked query means, without names left to resolve and without the AST.

Executors (in-process, Spark, the interpreter of the tests) and the mutation code see nothing else. All values are
frozen and hashable, so a plan may be cached under the query it was made from.

A query goes through two steps after parsing:

    check(ast, catalog) -> ReadQuery | MutationQuery     parameters stand as ParamRef, the time as Now
    bind(query, values, now) -> the same class           no ParamRef, no Now, `params` empty: what executors run

`bind` (bind.py) also drops what an absent or null optional parameter drops: a filter or property match that mentions it
anywhere, and a `not` of which nothing is left. An executor therefore never sees an optional parameter.

Rules that hold everywhere:

- **Null.** A filter passes only if it is true: where either side is null, `Compare`, `ListContains`, `TextContains`,
  `TextStartsWith` and `TextSearch` do not match, `!=` included. `Not` counts rows of the inner pattern, so a null
  inside makes the inner pattern fail and the `Not` pass. A stored list never has null items.
- **Values.** String `str`, Bool `bool`, integers `int`, floats `float` (never NaN; infinite only as the F32 rounding
  of a huge number that an F32 is compared with), Date `datetime.date`, DateTime an aware `datetime.datetime` in UTC
  with whole milliseconds, Blob `bytes`, lists and vectors `tuple`, enums `str`, null `None`.
- **Domains.** Every comparison says how it compares (`Domain`): `number` exactly by value, whatever the two types (no
  detour of 64-bit integers through doubles); `f32` after both sides were rounded to F32 (literals are rounded already);
  `text` by code point (enums are text); `bool` false before true; `date`, `datetime` by time.
- **Variables.** `str` without the `$`. Every `$_`, and what the checker adds, gets its own name that starts with `#`
  (`is_hidden`): it is enumerated like any other variable, but is never projected and breaks no ties. Two variables may
  be the same entity.
- **Rows.** One row for each assignment of a pattern's nodes and edge variables. Parts of a pattern that share no
  variable multiply. Nothing removes duplicates but grouping.
- **Order.** `order` then `tiebreak` is the whole order; both are explicit, with the place of nulls in each key.
"""

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal as OneOf
from typing import TypeAlias

from omnigraph.schema.types import PropertyType, Scalar

Scalarlike: TypeAlias = str | bool | int | float | dt.date | dt.datetime | bytes
Value: TypeAlias = Scalarlike | tuple[Scalarlike, ...] | None
Domain: TypeAlias = OneOf["number", "f32", "text", "bool", "date", "datetime"]
CompareOp: TypeAlias = OneOf["=", "!=", "<", "<=", ">", ">="]
TextSearchKind: TypeAlias = OneOf["search", "fuzzy", "match_text"]
AggregateFn: TypeAlias = OneOf["count", "sum", "avg", "min", "max"]
Metric: TypeAlias = OneOf["cosine", "l2"]
End: TypeAlias = OneOf["src", "dst"]

HIDDEN = "#"  # how the names of variables start that the text does not name
WHERE_ROW = "#row"  # the variable of a mutation's `where`: the row that is looked at

STRING = Scalar("String")
I64 = Scalar("I64")
U64 = Scalar("U64")
F64 = Scalar("F64")
DATETIME = Scalar("DateTime")


def is_hidden(var: str) -> bool:
    """Whether the text has no name for this variable: a `$_`, or an addition of the checker."""
    return var.startswith(HIDDEN)


@dataclass(frozen=True, slots=True)
class PropertyColumn:
    """A property as a table keeps it: `id` is stable, `name` is what the user says, `column` where it is stored."""

    id: str
    name: str
    column: str
    type: PropertyType
    nullable: bool


@dataclass(frozen=True, slots=True)
class Param:
    """A declared parameter. Optional ones may be absent or null."""

    name: str
    type: PropertyType
    optional: bool


# Expressions that have one value for a row ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prop:
    """`$x.prop`, of a node or an edge variable; `table_key` is the variable's table."""

    var: str
    table_key: str
    column: PropertyColumn

    @property
    def type(self) -> PropertyType:
        return self.column.type


@dataclass(frozen=True, slots=True)
class EntityId:
    """`$x.id`, of a node or an edge variable; never null. In a mutation's `where`: `id`."""

    var: str
    table_key: str

    @property
    def type(self) -> PropertyType:
        return STRING


@dataclass(frozen=True, slots=True)
class EdgeEnd:
    """An edge's `from` (`src`) or `to` (`dst`) as the node's id: only in a mutation's `where`, never null."""

    var: str
    table_key: str
    end: End

    @property
    def type(self) -> PropertyType:
        return STRING


@dataclass(frozen=True, slots=True)
class WholeNode:
    """`$x` in `return`: `{"id": …, property: value, …}` with `columns` in declared order. Groups by the node's id."""

    var: str
    table_key: str
    columns: tuple[PropertyColumn, ...]

    @property
    def type(self) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant of a type; after `bind` also what was a parameter or `now()`. Only those can be null."""

    value: Value
    type: PropertyType


@dataclass(frozen=True, slots=True)
class ParamRef:
    """A parameter in the place of a literal. `type` is the type that the place wants, which `bind` converts to.

    `param_type` is the declared type. They differ where an I64 parameter is assigned to an I32 property (`bind` checks
    the range), or where a number meets an F32 (`bind` rounds it).
    """

    name: str
    type: PropertyType
    param_type: PropertyType


@dataclass(frozen=True, slots=True)
class Now:
    """`now()`: one instant for the whole query, given to `bind`."""

    @property
    def type(self) -> PropertyType:
        return DATETIME


Constant: TypeAlias = Literal | ParamRef | Now  # after bind: always Literal
Operand: TypeAlias = Prop | EntityId | EdgeEnd | Literal | ParamRef | Now


# Filters ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Compare:
    op: CompareOp
    left: Operand
    right: Operand
    domain: Domain


@dataclass(frozen=True, slots=True)
class ListContains:
    """`items contains item`, and a property match on a list property: some element equals `item` in `domain`."""

    items: Operand
    item: Operand
    domain: Domain


@dataclass(frozen=True, slots=True)
class TextContains:
    """Exact substring, case heeded; no character is special. The empty string is part of every string."""

    text: Operand
    part: Operand


@dataclass(frozen=True, slots=True)
class TextStartsWith:
    text: Operand
    prefix: Operand


@dataclass(frozen=True, slots=True)
class TextSearch:
    """Full text as a filter: `search` any of the words, `fuzzy` each word within `edits`, `match_text` the phrase."""

    kind: TextSearchKind
    field: Prop
    query: Constant
    edits: Constant | None = None  # only for fuzzy, always there


Filter: TypeAlias = Compare | ListContains | TextContains | TextStartsWith | TextSearch


# Patterns ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeVar:
    """A node variable of a pattern and the one table it ranges over."""

    var: str
    table_key: str

    @property
    def hidden(self) -> bool:
        return is_hidden(self.var)


@dataclass(frozen=True, slots=True)
class Traverse:
    """Edges of one type from `source` to `target`; the two may be one variable (then only self-loops fit, see below).

    - `edge_var` set: one row for each edge, `min_hops == max_hops == 1`. Undirected, an edge fits in both directions, a
      self-loop once.
    - Not set, one hop: each ordered pair (source, target) that some edge connects, once, however many edges do.
    - Hop bounds: breadth first from `source`. A node is expanded once, at its first visit; the source counts as
      visited, so no cycle reports it. At hop h the neighbours of what was first visited at hop h-1 are looked at: an
      unvisited one is reported if `min_hops <= h <= max_hops`; a self-loop of an expanded node reports that node at
      hop h, if it was not reported yet. `max_hops` None is unbounded. Each (source, target) once.
    - An edge whose ends differ in type has only hop 1: the checker caps `max_hops` at 1, and `min_hops > max_hops`
      means that nothing matches.
    - Nodes on the way need not be bound to anything; filters on `source` and `target` do not apply to them.
    """

    edge: str  # table key
    source: str
    target: str
    source_key: str  # table keys of the ends
    target_key: str
    min_hops: int = 1
    max_hops: int | None = 1
    undirected: bool = False
    edge_var: str | None = None

    @property
    def single_hop(self) -> bool:
        return self.min_hops == 1 and self.max_hops == 1

    @property
    def never(self) -> bool:
        return self.max_hops is not None and self.min_hops > self.max_hops


@dataclass(frozen=True, slots=True)
class Pattern:
    """A conjunction. `nodes` are the pattern's own variables, each once; edge variables are in `traversals`.

    `outer` names the variables of enclosing patterns that this one, or a `Not` inside it, uses: empty at the top. A
    property match is a filter like any other. A filter may have no variable at all (two constants).
    """

    nodes: tuple[NodeVar, ...]
    traversals: tuple[Traverse, ...] = ()
    filters: tuple[Filter, ...] = ()
    negations: tuple["Not", ...] = ()
    outer: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        return not (self.nodes or self.traversals or self.filters or self.negations)

    @property
    def variables(self) -> tuple[str, ...]:
        """The pattern's own variables: nodes, then edges."""
        edges = tuple(step.edge_var for step in self.traversals if step.edge_var is not None)
        return tuple(node.var for node in self.nodes) + edges


@dataclass(frozen=True, slots=True)
class Not:
    """Holds for a row if `pattern`, with the row's values for `pattern.outer`, has no match."""

    pattern: Pattern


# What is returned -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Over the rows of a group. `count` without `arg` counts rows, with it those where it is not null.

    The others skip nulls and are null over nothing. `type`: count I64; sum I64 of I32 and I64, U64 of U32 and U64,
    F64 of floats (exact, a sum that leaves its 64 bits is an error); avg F64; min and max that of `arg`, enums as text.
    """

    fn: AggregateFn
    arg: Prop | EntityId | None
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

    @property
    def embeds(self) -> bool:
        return self.query.type == STRING


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
OutputExpr: TypeAlias = Prop | EntityId | WholeNode | Literal | ParamRef | Now | Aggregate | Rank


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

    expr: Prop | EntityId | Aggregate | Rank
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

    What the schema demands of the value (required, enum, range, check) is the validator's to say, so that a mutation
    and a load answer alike: an enum property may here get a text that it does not list.
    """

    column: PropertyColumn
    value: Constant


@dataclass(frozen=True, slots=True)
class InsertRow:
    """`insert Type { … }`; for an edge `source` and `target` are set: after `bind` Literals of type String, node ids.

    A key given instead of an id (`from: 10`) was turned into the id's text by `bind`.
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
    where: Filter


@dataclass(frozen=True, slots=True)
class DeleteRows:
    table_key: str
    where: Filter


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


# Looking at filters -----------------------------------------------------------------------------------------


def operands(condition: Filter) -> tuple[Operand, ...]:
    """The expressions a filter is made of."""
    match condition:
        case Compare(_, left, right, _):
            return (left, right)
        case ListContains(items, item, _):
            return (items, item)
        case TextContains(text, part):
            return (text, part)
        case TextStartsWith(text, prefix):
            return (text, prefix)
        case TextSearch(_, searched, query, edits):
            return (searched, query) if edits is None else (searched, query, edits)


def variables_of(condition: Filter) -> tuple[str, ...]:
    """The variables a filter mentions, each once, in the order they occur."""
    found = [operand.var for operand in operands(condition) if isinstance(operand, Prop | EntityId | EdgeEnd)]
    return tuple(dict.fromkeys(found))


def free_variables(
    nodes: tuple[NodeVar, ...],
    traversals: tuple[Traverse, ...],
    filters: tuple[Filter, ...],
    negations: tuple["Not", ...],
) -> tuple[str, ...]:
    """What a pattern made of these parts would use from outside (`Pattern.outer`), in the order it occurs."""
    own = {node.var for node in nodes} | {step.edge_var for step in traversals}
    used: list[str] = []
    for step in traversals:
        used += (step.source, step.target)
    for condition in filters:
        used += variables_of(condition)
    for negation in negations:
        used += negation.pattern.outer
    return tuple(dict.fromkeys(var for var in used if var not in own))


def patterns_of(pattern: Pattern) -> Iterator[Pattern]:
    """The pattern and every pattern inside its negations, outside first."""
    yield pattern
    for negation in pattern.negations:
        yield from patterns_of(negation.pattern)
