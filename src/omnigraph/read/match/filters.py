"""Filters of the IR over columns: pushed down to Lance where that is exactly equivalent, or evaluated in memory.

`lance_filter` only narrows what is read; `filter_table` evaluates what it declines. Queries and the `where` of
mutations use both.
"""

import datetime as dt
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.cancellation import checkpoint
from omnigraph.errors import BadRequest
from omnigraph.query.ir import (
    Compare,
    CompareOp,
    EdgeEnd,
    EntityId,
    Filter,
    ListContains,
    Literal,
    Now,
    Operand,
    ParamRef,
    Prop,
    TextContains,
    TextSearch,
    TextStartsWith,
    Value,
    operands,
)
from omnigraph.read.tables.arrow_numpy import FLIPPED, ArrowArray, BoolArray, Side, compare_values, to_mask
from omnigraph.schema.definitions import EDGE_COLUMNS, ID, TypeDef
from omnigraph.schema.types import INTEGER_BOUNDS, Enumeration, ListOf, PropertyType, Scalar

ColumnOf: TypeAlias = Callable[[Prop | EntityId | EdgeEnd], ArrowArray]

PUSHED_TEXT_MAX = 4_096  # a longer constant is compared in memory
_LISTED_MAX = 1 << 14  # texts that become Python objects at once
_LOWEST = -(2**63)  # Lance's SQL reads this one as a float


def column_name(operand: Prop | EntityId | EdgeEnd) -> str:
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
    read = [column_name(side) for side in operands(condition) if isinstance(side, Prop | EntityId | EdgeEnd)]
    return tuple(dict.fromkeys(read))


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

    def column(operand: Prop | EntityId | EdgeEnd) -> ArrowArray:
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
    """Which of `rows` rows pass; `column` gives the values of an operand, one for each row."""

    def side(operand: Operand) -> Side:
        match operand:
            case Literal(value, _):
                return value
            case ParamRef() | Now():
                raise AssertionError(f"{operand} was not bound")
            case _:
                return column(operand)

    match condition:
        case Compare(op, left, right, domain):
            return compare_values(op, side(left), side(right), domain, rows)
        case TextContains(text, part):
            return _match_text(side(text), side(part), rows, pc.match_substring, lambda whole, piece: piece in whole)
        case TextStartsWith(text, prefix):
            return _match_text(side(text), side(prefix), rows, pc.starts_with, str.startswith)
        case ListContains(items, item, domain):
            return _list_contains(side(items), side(item), domain, rows)
        case TextSearch(kind):
            raise BadRequest(f"{kind} needs a text index, which is not available here: use contains or starts_with.")


def _match_text(text: Side, part: Side, rows: int, column_with: Any, texts: Callable[[str, str], bool]) -> BoolArray:
    if text is None or part is None:
        return np.zeros(rows, np.bool_)
    if isinstance(text, pa.Array) and isinstance(part, str):
        return to_mask(column_with(text, part))
    result = np.zeros(rows, np.bool_)
    for first in range(0, rows, _LISTED_MAX):
        checkpoint()
        own = slice(first, min(first + _LISTED_MAX, rows))
        count = own.stop - own.start
        wholes = text[own].to_pylist() if isinstance(text, pa.Array) else [text] * count
        parts = part[own].to_pylist() if isinstance(part, pa.Array) else [part] * count
        found = (w is not None and p is not None and texts(w, p) for w, p in zip(wholes, parts, strict=True))
        result[own] = np.fromiter(found, np.bool_, count)
    return result


def _list_contains(items: Side, item: Side, domain: Any, rows: int) -> BoolArray:
    """Some element equals the item: the flattened elements are compared, then mapped back to their rows."""
    found = np.zeros(rows, np.bool_)
    if items is None or item is None:
        return found
    if not isinstance(items, pa.Array):
        for element in items if isinstance(items, tuple) else ():
            found |= compare_values("=", element, item, domain, rows)
        return found
    owners: Any = pc.list_parent_indices(items)
    elements: Any = pc.list_flatten(items)
    other = item.take(owners) if isinstance(item, pa.Array) else item
    hits = compare_values("=", elements, other, domain, len(elements))
    found[owners.to_numpy(zero_copy_only=False)[hits]] = True
    return found


# What Lance evaluates ---------------------------------------------------------------------------------------


def lance_filter(condition: Filter, table_def: TypeDef) -> str | None:
    """The filter as Lance's SQL if it means exactly the same for every row, otherwise None."""
    match condition:
        case Compare(op, left, Literal(value, _), domain) if not isinstance(left, Literal | ParamRef | Now):
            return _comparison(op, left, value, domain, table_def)
        case Compare(op, Literal(value, _), right, domain) if not isinstance(right, Literal | ParamRef | Now):
            return _comparison(FLIPPED[op], right, value, domain, table_def)
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
