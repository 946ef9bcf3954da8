"""The syntax tree of a `.gq` text, before names are resolved: frozen values that compare without their positions.

`at` is the token that an error about the value points at. It is ignored in comparisons, so that parsing printed text
gives equal values.
"""

import datetime as dt
from dataclasses import dataclass, field
from typing import Literal as OneOf
from typing import TypeAlias

from omnigraph.lexer import Token
from omnigraph.schema.types import PropertyType

NOWHERE = Token("end", "", None, 1, 1, 0)
ANONYMOUS = "_"

LiteralKind: TypeAlias = OneOf["string", "integer", "float", "bool", "date", "datetime"]
Operator: TypeAlias = OneOf["=", "!=", "<", "<=", ">", ">=", "contains", "starts_with"]
OPERATORS: tuple[Operator, ...] = ("=", "!=", "<", "<=", ">", ">=", "contains", "starts_with")
AGGREGATES = ("count", "sum", "avg", "min", "max")
RANKS = ("nearest", "bm25", "rrf")
TEXT_FILTERS = ("search", "fuzzy", "match_text")
OrderDirection: TypeAlias = OneOf["asc", "desc"]


# Expressions


@dataclass(frozen=True, slots=True)
class LiteralExpr:
    """`kind` distinguishes 1, 1.0 and true, which are equal in Python."""

    kind: LiteralKind
    value: str | bool | int | float | dt.date | dt.datetime
    at: Token = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ListExpr:
    items: tuple[LiteralExpr, ...]
    at: Token = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class VarRef:
    """`$x`: a variable or a parameter; the checker resolves which."""

    name: str
    at: Token = field(default=NOWHERE, compare=False, repr=False)

    @property
    def anonymous(self) -> bool:
        return self.name == ANONYMOUS


@dataclass(frozen=True, slots=True)
class PropRef:
    """`$x.prop`; `at` is the property, the variable has its own position."""

    var: VarRef
    prop: str
    at: Token = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class AliasRef:
    """A bare name in `order`: a column of `return`."""

    name: str
    at: Token = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """`now()`, an aggregate or a search function."""

    fn: str
    args: tuple["Expr", ...]
    at: Token = field(default=NOWHERE, compare=False, repr=False)


Expr: TypeAlias = LiteralExpr | ListExpr | VarRef | PropRef | AliasRef | FunctionCall


# match


@dataclass(frozen=True, slots=True)
class PropertyValue:
    """`prop: value`, in a binding and in a mutation."""

    prop: str
    value: Expr
    at: Token = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Binding:
    var: VarRef
    type_name: str
    matches: tuple[PropertyValue, ...] = ()
    at: Token = field(default=NOWHERE, compare=False, repr=False)  # the type


@dataclass(frozen=True, slots=True)
class Hops:
    """`{minimum,maximum}`; the maximum is None where there is none."""

    minimum: int
    maximum: int | None
    at: Token = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Traversal:
    source: VarRef
    edge: str  # as written: the type's name with its first letter lower-cased
    target: VarRef
    hops: Hops | None = None
    undirected: bool = False
    edge_var: VarRef | None = None
    at: Token = field(default=NOWHERE, compare=False, repr=False)  # the edge


@dataclass(frozen=True, slots=True)
class ComparisonClause:
    left: Expr
    op: Operator
    right: Expr
    at: Token = field(default=NOWHERE, compare=False, repr=False)  # the operator


@dataclass(frozen=True, slots=True)
class SearchFilter:
    """`search(field, q)`, `fuzzy(field, q [, edits])`, `match_text(field, q)`."""

    call: FunctionCall

    @property
    def at(self) -> Token:
        return self.call.at


@dataclass(frozen=True, slots=True)
class NotClause:
    clauses: tuple["Clause", ...]
    at: Token = field(default=NOWHERE, compare=False, repr=False)


Clause: TypeAlias = Binding | Traversal | ComparisonClause | SearchFilter | NotClause


# return, order, mutations


@dataclass(frozen=True, slots=True)
class ReturnItem:
    expr: Expr
    alias: str | None = None
    at: Token = field(default=NOWHERE, compare=False, repr=False)  # the alias, or the start of the expression


@dataclass(frozen=True, slots=True)
class OrderItem:
    expr: Expr
    direction: OrderDirection | None = None
    at: Token = field(default=NOWHERE, compare=False, repr=False)  # the direction, or the start of the expression


@dataclass(frozen=True, slots=True)
class ReadBody:
    match: tuple[Clause, ...]
    returns: tuple[ReturnItem, ...]
    order: tuple[OrderItem, ...] = ()
    limit: int | None = None
    limit_at: Token = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Where:
    prop: str
    op: Operator
    value: Expr
    at: Token = field(default=NOWHERE, compare=False, repr=False)  # the property
    op_at: Token = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class InsertStatement:
    type_name: str
    values: tuple[PropertyValue, ...]
    at: Token = field(default=NOWHERE, compare=False, repr=False)  # the type


@dataclass(frozen=True, slots=True)
class UpdateStatement:
    type_name: str
    values: tuple[PropertyValue, ...]
    where: Where
    at: Token = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class DeleteStatement:
    type_name: str
    where: Where
    at: Token = field(default=NOWHERE, compare=False, repr=False)


MutationStatement: TypeAlias = InsertStatement | UpdateStatement | DeleteStatement


@dataclass(frozen=True, slots=True)
class MutationBody:
    statements: tuple[MutationStatement, ...]


# The file


@dataclass(frozen=True, slots=True)
class ParamDecl:
    name: str
    type: PropertyType
    optional: bool = False
    at: Token = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class QueryAnnotation:
    """`@description("…")`; others are kept as metadata."""

    name: str
    value: str | None = None
    at: Token = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class QueryDecl:
    name: str
    params: tuple[ParamDecl, ...]
    body: ReadBody | MutationBody
    annotations: tuple[QueryAnnotation, ...] = ()
    at: Token = field(default=NOWHERE, compare=False, repr=False)

    @property
    def description(self) -> str | None:
        return next((note.value for note in self.annotations if note.name == "description"), None)


@dataclass(frozen=True, slots=True)
class QueryFile:
    """A parsed text; errors quote `source` and `source_name`."""

    queries: tuple[QueryDecl, ...]
    source: str = field(default="", compare=False, repr=False)
    source_name: str = field(default="query", compare=False, repr=False)
