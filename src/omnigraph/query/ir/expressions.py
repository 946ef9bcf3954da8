"""Expressions with one value for each row, and filters: the expressions whose value is a Bool."""

import datetime as dt
from dataclasses import dataclass
from typing import Literal as OneOf
from typing import TypeAlias

from omnigraph.schema.types import PropertyType, Scalar

Scalarlike: TypeAlias = str | bool | int | float | dt.date | dt.datetime | bytes
Value: TypeAlias = Scalarlike | tuple[Scalarlike, ...] | None
Domain: TypeAlias = OneOf["number", "f32", "text", "bool", "date", "datetime"]
CompareOp: TypeAlias = OneOf["=", "!=", "<", "<=", ">", ">="]
TextSearchKind: TypeAlias = OneOf["search", "fuzzy", "match_text"]
End: TypeAlias = OneOf["src", "dst"]

HIDDEN = "#"  # the prefix of variables without a name in the text
WHERE_ROW = "#row"  # the variable of a mutation's `where`: the row to test

BOOL = Scalar("Bool")
STRING = Scalar("String")
I64 = Scalar("I64")
U64 = Scalar("U64")
F64 = Scalar("F64")
DATETIME = Scalar("DateTime")


def is_hidden(var: str) -> bool:
    """Whether the variable has no name in the text: a `$_`, or one that the checker added."""
    return var.startswith(HIDDEN)


@dataclass(frozen=True, slots=True)
class PropertyColumn:
    """A property of a table: `id` is stable, `name` is that of the schema, `column` where it is stored."""

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
    """A parameter in place of a literal. `type` is the type that is needed there, to which `bind` converts.

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
Column: TypeAlias = Prop | EntityId | EdgeEnd
Leaf: TypeAlias = Column | Constant
_COLUMNS = (Prop, EntityId, EdgeEnd)  # every lookup asks; making a union of types takes longer than the question
_LEAVES = (Prop, EntityId, EdgeEnd, Literal, ParamRef, Now)


@dataclass(frozen=True, slots=True)
class Apply:
    """A function or operator, by the name that `query/functions.py` gives it. Null where an argument is null, unless
    the function's own rule says otherwise (`and`, `or`, `is null`, `coalesce`).
    """

    fn: str
    args: tuple["Expr", ...]
    type: PropertyType


@dataclass(frozen=True, slots=True)
class Case:
    """The value of the first branch whose condition is true; null where there is none."""

    branches: tuple[tuple["Expr", "Expr"], ...]
    otherwise: "Expr"
    type: PropertyType


# Filters ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Compare:
    op: CompareOp
    left: "Expr"
    right: "Expr"
    domain: Domain

    @property
    def type(self) -> PropertyType:
        return BOOL


@dataclass(frozen=True, slots=True)
class ListContains:
    """`items contains item`, `item in items`, and a property match on a list property: some element equals `item` in
    `domain`. False for an empty list, also where the item is null.
    """

    items: "Expr"
    item: "Expr"
    domain: Domain

    @property
    def type(self) -> PropertyType:
        return BOOL


@dataclass(frozen=True, slots=True)
class TextContains:
    """Exact, case-sensitive substring; no character is special. The empty string is part of every string."""

    text: "Expr"
    part: "Expr"

    @property
    def type(self) -> PropertyType:
        return BOOL


@dataclass(frozen=True, slots=True)
class TextStartsWith:
    text: "Expr"
    prefix: "Expr"

    @property
    def type(self) -> PropertyType:
        return BOOL


@dataclass(frozen=True, slots=True)
class TextSearch:
    """Full text as a filter: `search` any of the words, `fuzzy` each word within `edits`, `match_text` the phrase."""

    kind: TextSearchKind
    field: Prop
    query: Constant
    edits: Constant | None = None  # only for fuzzy, always there


Expr: TypeAlias = Leaf | Apply | Case | Compare | ListContains | TextContains | TextStartsWith
Condition: TypeAlias = Apply | Compare | ListContains | TextContains | TextStartsWith  # a Bool
Filter: TypeAlias = Condition | TextSearch


def parts_of(expr: Expr | TextSearch) -> tuple[Expr, ...]:
    """The expressions directly inside an expression."""
    match expr:
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
        case Apply(_, args):
            return args
        case Case(branches, otherwise):
            return (*(part for branch in branches for part in branch), otherwise)
        case _:
            return ()


def leaves(expr: Expr | TextSearch) -> list[Leaf]:
    """The columns and constants of an expression, in the order of the text."""
    found: list[Leaf] = []
    pending: list[Expr | TextSearch] = [expr]
    while pending:
        part = pending.pop()
        if isinstance(part, _LEAVES):
            found.append(part)
        else:
            pending += reversed(parts_of(part))
    return found


def columns_in(expr: Expr | TextSearch) -> list[Column]:
    """The columns that an expression reads."""
    return [leaf for leaf in leaves(expr) if isinstance(leaf, _COLUMNS)]


def variables_of(condition: Expr | TextSearch) -> tuple[str, ...]:
    """The variables an expression mentions, each once, in the order they occur."""
    return tuple(dict.fromkeys([column.var for column in columns_in(condition)]))


def conjuncts(condition: Filter) -> tuple[Filter, ...]:
    """The filters that all must hold for the condition to hold."""
    if isinstance(condition, Apply) and condition.fn == "and":
        return tuple(part for arg in condition.args for part in conjuncts(as_condition(arg)))
    return (condition,)


def as_condition(expr: Expr) -> Condition:
    """A Bool as a filter."""
    if isinstance(expr, Compare | ListContains | TextContains | TextStartsWith | Apply):
        return expr
    return Compare("=", expr, Literal(True, BOOL), "bool")
