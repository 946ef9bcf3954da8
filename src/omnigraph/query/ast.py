"""The syntax tree of a `.gq` text, before names are resolved: frozen values that compare without their positions.

`at` is the token that an error about the value points at. It is ignored in comparisons, so that parsing printed text
gives equal values.
"""

import datetime as dt
from dataclasses import dataclass, field
from typing import Literal as OneOf
from typing import TypeAlias, get_args

from omnigraph.lexer import LanguageError, Token
from omnigraph.schema.types import PropertyType

NOWHERE = Token("end", "", None, 1, 1, 0)
ANONYMOUS = "_"

LiteralKind: TypeAlias = OneOf["string", "integer", "float", "bool", "date", "datetime", "null"]
Comparison: TypeAlias = OneOf[
    "=", "!=", "<", "<=", ">", ">=", "in", "not in", "contains", "starts_with", "ends_with", "matches"
]
Arithmetic: TypeAlias = OneOf["||", "+", "-", "*", "/", "%"]
BinaryOp: TypeAlias = Comparison | Arithmetic
UnaryOp: TypeAlias = OneOf["not", "-", "is null", "is not null"]
Connective: TypeAlias = OneOf["and", "or"]
COMPARISONS: tuple[Comparison, ...] = get_args(Comparison)
AGGREGATES = ("count", "sum", "avg", "min", "max")
RANKS = ("nearest", "bm25", "rrf")
TEXT_FILTERS = ("search", "fuzzy", "match_text")
OrderDirection: TypeAlias = OneOf["asc", "desc"]


# Expressions


@dataclass(frozen=True, slots=True)
class LiteralExpr:
    """`kind` distinguishes 1, 1.0 and true, which are equal in Python; the value of `null` is None."""

    kind: LiteralKind
    value: str | bool | int | float | dt.date | dt.datetime | None
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
    """A bare name: a column of `return` in `order`, the row's own property in a mutation's `where`."""

    name: str
    at: Token = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """`now()`, an aggregate or a search function."""

    fn: str
    args: tuple["Expr", ...]
    at: Token = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class BinaryExpr:
    op: BinaryOp
    left: "Expr"
    right: "Expr"
    at: Token = field(default=NOWHERE, compare=False, repr=False)  # the operator


@dataclass(frozen=True, slots=True)
class UnaryExpr:
    """A prefix operator, or the postfix `is [not] null`."""

    op: UnaryOp
    arg: "Expr"
    at: Token = field(default=NOWHERE, compare=False, repr=False)  # the operator


@dataclass(frozen=True, slots=True)
class ConnectiveExpr:
    """`a and b and …`, `a or b or …`: flat, so that long lists of conditions are not deep trees."""

    op: Connective
    args: tuple["Expr", ...]
    at: Token = field(default=NOWHERE, compare=False, repr=False)  # the first operator


@dataclass(frozen=True, slots=True)
class CaseExpr:
    """`case when condition then value … [else value] end`."""

    branches: tuple[tuple["Expr", "Expr"], ...]
    otherwise: "Expr | None" = None
    at: Token = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class IndexExpr:
    """`list[index]`."""

    items: "Expr"
    index: "Expr"
    at: Token = field(default=NOWHERE, compare=False, repr=False)  # the bracket


Expr: TypeAlias = (
    LiteralExpr
    | ListExpr
    | VarRef
    | PropRef
    | AliasRef
    | FunctionCall
    | BinaryExpr
    | UnaryExpr
    | ConnectiveExpr
    | CaseExpr
    | IndexExpr
)


def children(expr: Expr) -> tuple[Expr, ...]:
    """The expressions directly inside an expression, in the order of the text."""
    match expr:
        case ListExpr(items):
            return items
        case FunctionCall(_, args) | ConnectiveExpr(_, args):
            return args
        case BinaryExpr(_, left, right) | IndexExpr(left, right):
            return (left, right)
        case UnaryExpr(_, arg):
            return (arg,)
        case CaseExpr(branches, otherwise):
            inner = tuple(part for branch in branches for part in branch)
            return inner if otherwise is None else (*inner, otherwise)
        case _:
            return ()


def start_token(expr: Expr) -> Token:
    """Where an expression starts."""
    while True:
        match expr:
            case PropRef(var):
                return var.at
            case BinaryExpr(_, left, _) | IndexExpr(left, _):
                expr = left
            case UnaryExpr("is null" | "is not null", arg):
                expr = arg
            case ConnectiveExpr(_, args):
                expr = args[0]
            case _:
                return expr.at


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
class FilterClause:
    """A boolean expression, or one of `search(field, q)`, `fuzzy(field, q [, edits])`, `match_text(field, q)`."""

    condition: Expr


@dataclass(frozen=True, slots=True)
class NotClause:
    clauses: tuple["Clause", ...]
    at: Token = field(default=NOWHERE, compare=False, repr=False)


Clause: TypeAlias = Binding | Traversal | FilterClause | NotClause


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
class InsertStatement:
    type_name: str
    values: tuple[PropertyValue, ...]
    at: Token = field(default=NOWHERE, compare=False, repr=False)  # the type


@dataclass(frozen=True, slots=True)
class UpdateStatement:
    type_name: str
    values: tuple[PropertyValue, ...]
    where: Expr  # a bare name is a property of the row
    at: Token = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class DeleteStatement:
    type_name: str
    where: Expr
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
class BrokenQuery:
    """A query of a text that does not parse: it can't be used, the others can."""

    name: str
    error: LanguageError


@dataclass(frozen=True, slots=True)
class QueryFile:
    """A parsed text; errors quote `source` and `source_name`."""

    queries: tuple[QueryDecl, ...]
    broken: tuple[BrokenQuery, ...] = field(default=(), compare=False)
    source: str = field(default="", compare=False, repr=False)
    source_name: str = field(default="query", compare=False, repr=False)
