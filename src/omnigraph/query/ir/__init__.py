"""The typed IR: what a checked query means, without names left to resolve and without the AST.

expressions.py  values, expressions and filters
patterns.py     node variables, traversals, negations
queries.py      reads with their ranks and order, and mutations

Executors (in-process, Spark, the interpreter of the tests) and the mutation code see nothing else. All values are
frozen and hashable, so a plan may be cached under its query.

A query goes through two steps after parsing:

    check(ast, catalog) -> ReadQuery | MutationQuery     parameters are ParamRef, the current time is Now
    bind(query, values, now) -> the same class           no ParamRef, no Now, `params` empty: what executors run

`bind` (compile.py) also removes what an absent or null optional parameter disables: each filter or property match that
mentions it, and a `not` that has nothing left. An executor therefore never sees an optional parameter.

Rules that hold everywhere:

- **Null.** Expressions have three-valued logic, as in SQL: a comparison with null is unknown, `!=` included, and a
  filter passes only if it is true. `Not` counts rows of the inner pattern, so a null inside makes the inner pattern
  fail and the `Not` pass. A stored list never has null items.
- **Values.** String `str`, Bool `bool`, integers `int`, floats `float` (never NaN; infinite only as the F32 rounding
  of a huge number that an F32 is compared with), Date `datetime.date`, DateTime an aware `datetime.datetime` in UTC
  with whole milliseconds, Blob `bytes`, lists and vectors `tuple`, enums `str`, null `None`.
- **Domains.** Every comparison names how it compares (`Domain`): `number` exactly by value, whatever the two types
  (64-bit integers are never converted to doubles); `f32` after rounding both sides to F32 (literals are rounded
  already); `text` by code point (enums are text); `bool` false before true; `date`, `datetime` by time.
- **Variables.** `str` without the `$`. Every `$_`, and every variable the checker adds, has a name of its own that
  starts with `#` (`is_hidden`). It is enumerated like any other variable, but it is never projected and does not break
  ties. Two variables may be the same entity.
- **Rows.** One row for each assignment of a pattern's nodes and edge variables. Parts of a pattern without a common
  variable form a cross product. Only grouping removes duplicates.
- **Order.** `order` then `tiebreak` is the whole order; both are explicit, with the position of nulls in each key.
"""

from omnigraph.query.ir.expressions import (
    BOOL,
    DATETIME,
    F64,
    HIDDEN,
    I64,
    STRING,
    U64,
    WHERE_ROW,
    Apply,
    Case,
    Column,
    Compare,
    CompareOp,
    Condition,
    Constant,
    Domain,
    EdgeEnd,
    End,
    EntityId,
    Expr,
    Filter,
    Leaf,
    ListContains,
    Literal,
    Now,
    Param,
    ParamRef,
    Prop,
    PropertyColumn,
    Scalarlike,
    TextContains,
    TextSearch,
    TextSearchKind,
    TextStartsWith,
    Value,
    WholeNode,
    as_condition,
    columns_in,
    conjuncts,
    is_hidden,
    leaves,
    parts_of,
    variables_of,
)
from omnigraph.query.ir.patterns import NodeVar, Not, Pattern, Traverse, free_variables, patterns_of
from omnigraph.query.ir.queries import (
    Aggregate,
    AggregateFn,
    Assign,
    Bm25,
    DeleteRows,
    InsertRow,
    MutationQuery,
    Nearest,
    OrderKey,
    OutputExpr,
    Projection,
    Query,
    Rank,
    ReadQuery,
    Rrf,
    Statement,
    UpdateRows,
)

__all__ = [
    "BOOL",
    "DATETIME",
    "F64",
    "HIDDEN",
    "I64",
    "STRING",
    "U64",
    "WHERE_ROW",
    "Aggregate",
    "AggregateFn",
    "Apply",
    "Assign",
    "Bm25",
    "Case",
    "Column",
    "Compare",
    "CompareOp",
    "Condition",
    "Constant",
    "DeleteRows",
    "Domain",
    "EdgeEnd",
    "End",
    "EntityId",
    "Expr",
    "Filter",
    "InsertRow",
    "Leaf",
    "ListContains",
    "Literal",
    "MutationQuery",
    "Nearest",
    "NodeVar",
    "Not",
    "Now",
    "OrderKey",
    "OutputExpr",
    "Param",
    "ParamRef",
    "Pattern",
    "Projection",
    "Prop",
    "PropertyColumn",
    "Query",
    "Rank",
    "ReadQuery",
    "Rrf",
    "Scalarlike",
    "Statement",
    "TextContains",
    "TextSearch",
    "TextSearchKind",
    "TextStartsWith",
    "Traverse",
    "UpdateRows",
    "Value",
    "WholeNode",
    "as_condition",
    "columns_in",
    "conjuncts",
    "free_variables",
    "is_hidden",
    "leaves",
    "parts_of",
    "patterns_of",
    "variables_of",
]
