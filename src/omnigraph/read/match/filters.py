"""Filters of the IR over columns: pushed down to Lance where that is exactly equivalent, or evaluated in memory.

`lance_filter` only narrows what is read; `filter_table` evaluates what it declines. Queries and the `where` of
mutations use both.
"""

import datetime as dt
from typing import Any, cast

import pyarrow as pa

from omnigraph.errors import BadRequest
from omnigraph.query.ir import (
    Apply,
    Column,
    Compare,
    CompareOp,
    EdgeEnd,
    EntityId,
    Expr,
    Filter,
    Leaf,
    ListContains,
    Literal,
    Prop,
    TextContains,
    TextSearch,
    TextStartsWith,
    Value,
    as_condition,
    columns_in,
)
from omnigraph.read.expressions.evaluate import ColumnOf, evaluate_mask
from omnigraph.read.expressions.text import has_item
from omnigraph.read.tables.arrow_numpy import FLIPPED, ArrowArray, BoolArray, Side, compare_values
from omnigraph.schema.definitions import EDGE_COLUMNS, ID, TypeDef
from omnigraph.schema.types import INTEGER_BOUNDS, Enumeration, ListOf, PropertyType, Scalar

PUSHED_LIST_MAX = 1_000  # items of `in`
PUSHED_TEXT_MAX = 4_096  # a longer constant is compared in memory
_LOWEST = -(2**63)  # Lance's SQL reads this one as a float


def column_name(operand: Column) -> str:
    """The column of a table that has the operand's values."""
    match operand:
        case Prop():
            return operand.column.column
        case EntityId():
            return ID
        case EdgeEnd():
            return operand.end


def columns_of(condition: Filter) -> tuple[str, ...]:
    """The columns a filter over one variable reads."""
    return tuple(dict.fromkeys(column_name(column) for column in columns_in(condition)))


def required_id(condition: Filter) -> str | None:
    """The id in a filter `id = constant`, or None."""
    match condition:
        case Compare("=", EntityId(), Literal(str() as value, _)) | Compare(
            "=", Literal(str() as value, _), EntityId()
        ):
            return value
    return None


def filter_table(condition: Filter, table: pa.Table) -> BoolArray:
    """The rows of a table that pass a filter over its one variable."""
    arrays: dict[str, Any] = {}

    def column(operand: Column) -> ArrowArray:
        name = column_name(operand)
        if name not in arrays:
            arrays[name] = to_array(table.column(name))
        return arrays[name]

    return evaluate_filter(condition, column, table.num_rows)


def to_array(column: ArrowArray) -> ArrowArray:
    """The chunks of a column as one array; texts of more than 2 GiB need wider offsets."""
    if column.num_chunks == 1:
        return column.chunk(0)
    if pa.types.is_string(column.type) and column.nbytes >= 2**31 - 1:
        column = column.cast(pa.large_string())
    combined: Any = column.combine_chunks()
    return combined


def evaluate_filter(condition: Filter, column: ColumnOf, rows: int) -> BoolArray:
    """Which of `rows` rows pass; `column` gives the values of a column, one for each row."""

    def side(leaf: Leaf) -> Side:
        return leaf.value if isinstance(leaf, Literal) else column(cast(Column, leaf))

    match condition:
        case Compare(op, Prop() | EntityId() | EdgeEnd() | Literal() as left, right, domain) if is_leaf(right):
            return compare_values(op, side(left), side(cast(Leaf, right)), domain, rows)
        case ListContains(Prop() | Literal() as items, item, domain) if is_leaf(item):
            return has_item(side(items), side(cast(Leaf, item)), domain, rows)
        case TextSearch(kind):
            raise BadRequest(f"{kind} needs a text index, which is not available here: use contains or starts_with.")
        case _:
            return evaluate_mask(condition, column, rows)


def is_leaf(expr: Expr) -> bool:
    return isinstance(expr, Prop | EntityId | EdgeEnd | Literal)


# What Lance evaluates ---------------------------------------------------------------------------------------


def lance_filter(condition: Filter, table_def: TypeDef) -> str | None:
    """The filter as Lance's SQL if it means exactly the same for every row, otherwise None."""
    match condition:
        case Compare(op, Prop() | EntityId() | EdgeEnd() as left, Literal(value, _), domain):
            return _comparison(op, left, value, domain, table_def)
        case Compare(op, Literal(value, _), Prop() | EntityId() | EdgeEnd() as right, domain):
            return _comparison(FLIPPED[op], right, value, domain, table_def)
        case Apply("and" | "or" | "not" | "is_null"):
            return _connected(condition, table_def)
        case ListContains(Literal(tuple() as values, _), Prop() | EntityId() | EdgeEnd() as item, domain):
            constants = [_constant("=", value, item.type, domain) for value in values[: PUSHED_LIST_MAX + 1]]
            name = _name(item, table_def)
            if name is None or not 0 < len(constants) <= PUSHED_LIST_MAX or None in constants:
                return None
            return f"{name} in ({', '.join(cast(list[str], constants))})"
        case TextContains(Prop() | EntityId() as text, Literal(str() as part, _)):
            return _call("contains", text, part, table_def)
        case TextStartsWith(Prop() | EntityId() as text, Literal(str() as part, _)):
            return _call("starts_with", text, part, table_def)
        case ListContains(Prop() as items, Literal(value, _), "text") if isinstance(value, str):
            return _call("array_has", items, value, table_def)
        case ListContains(Prop(column=column) as items, Literal(value, _), "number") if isinstance(column.type, ListOf):
            exact = _constant("=", value, column.type.item, "number")
            name = _name(items, table_def)
            return f"array_has({name}, {exact})" if exact is not None and name is not None else None
        case _:
            return None


def _connected(condition: Apply, table_def: TypeDef) -> str | None:
    """Lance's SQL has the same three-valued logic."""
    if condition.fn == "is_null":
        (arg,) = condition.args
        name = _name(arg, table_def) if isinstance(arg, Prop | EntityId | EdgeEnd) else None
        return None if name is None else f"({name} is null)"
    parts = [lance_filter(as_condition(arg), table_def) for arg in condition.args]
    if not all(parts):
        return None
    pushed = cast(list[str], parts)
    return f"(not {pushed[0]})" if condition.fn == "not" else f"({f' {condition.fn} '.join(pushed)})"


def quote_text(text: str) -> str:
    """A text as an SQL literal: a quote is the only special character."""
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


def _name(operand: Prop | EntityId | EdgeEnd, table_def: TypeDef) -> str | None:
    name = column_name(operand)
    known = name in EDGE_COLUMNS or any(prop.column == name for prop in table_def.properties)
    return f"`{name}`" if known and "`" not in name else None


def _call(function: str, operand: Prop | EntityId, text: str, table_def: TypeDef) -> str | None:
    name = _name(operand, table_def)
    return f"{function}({name}, {quote_text(text)})" if name is not None and _is_plain(text) else None


def _comparison(op: CompareOp, operand: Any, value: Value, domain: str, table_def: TypeDef) -> str | None:
    name = _name(operand, table_def)
    exact = _constant(op, value, operand.type, domain)
    return None if name is None or exact is None else f"{name} {op} {exact}"


def _constant(op: CompareOp, value: Value, kind: PropertyType, domain: str) -> str | None:
    """The constant in the column's own type; None where that is not possible or might compare differently."""
    name = kind.name if isinstance(kind, Scalar) else "String" if isinstance(kind, Enumeration) else ""
    if value is None:
        return None
    if domain == "text" and isinstance(value, str):
        return quote_text(value) if _is_plain(value) else None
    if domain == "bool" and op in ("=", "!="):
        return "true" if value else "false"
    if domain == "date" and name == "Date" and isinstance(value, dt.date):
        return f"date '{value.isoformat()}'"
    if domain == "number" and name in INTEGER_BOUNDS and isinstance(value, int) and not isinstance(value, bool):
        low, high = INTEGER_BOUNDS[name]
        return str(value) if low <= value <= high and value != _LOWEST else None
    if domain == "datetime" and name == "DateTime" and isinstance(value, dt.datetime):
        return f"timestamp '{value.replace(tzinfo=None).isoformat(sep=' ', timespec='milliseconds')}'"
    return None  # floats: zero has two signs, which Lance distinguishes where it uses an index


def _is_plain(text: str) -> bool:
    return len(text) <= PUSHED_TEXT_MAX and text.isprintable()
