"""Spark's filters as Lance's, where both mean exactly the same for every row; all others stay with Spark."""

import datetime as dt
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from omnigraph.query.ir import (
    Compare,
    CompareOp,
    Domain,
    EdgeEnd,
    EntityId,
    Filter,
    Literal,
    Prop,
    PropertyColumn,
    TextContains,
    TextStartsWith,
)
from omnigraph.read.match.filters import lance_filter
from omnigraph.schema.catalog import TypeDef
from omnigraph.schema.definitions import ID
from omnigraph.schema.types import INTEGER_BOUNDS, Enumeration, PropertyType, Scalar

if TYPE_CHECKING:
    from pyspark.sql import datasource as spark

IN_MAX = 1_000  # a longer list is Spark's to compare


def lance_condition(condition: "spark.Filter", definition: TypeDef) -> str | None:
    """The filter as Lance's SQL, or None."""
    from pyspark.sql import datasource as spark

    match condition:
        case spark.Not(spark.EqualTo(path, value)):
            return _compared("!=", path, value, definition)
        case spark.Not(spark.IsNull(path)) | spark.IsNotNull(path):
            return _null_test("IS NOT NULL", path, definition)
        case spark.IsNull(path) | spark.Not(spark.IsNotNull(path)):
            return _null_test("IS NULL", path, definition)
        case spark.EqualTo(path, value) | spark.EqualNullSafe(path, value):  # a null constant is declined
            return _compared("=", path, value, definition)
        case spark.LessThan(path, value):
            return _compared("<", path, value, definition)
        case spark.LessThanOrEqual(path, value):
            return _compared("<=", path, value, definition)
        case spark.GreaterThan(path, value):
            return _compared(">", path, value, definition)
        case spark.GreaterThanOrEqual(path, value):
            return _compared(">=", path, value, definition)
        case spark.In(path, values):
            return _any_of(path, values, definition)
        case spark.StringStartsWith(path, value):
            return _text_condition(TextStartsWith, path, value, definition)
        case spark.StringContains(path, value):
            return _text_condition(TextContains, path, value, definition)
        case _:
            return None


def _compared(op: CompareOp, path: Sequence[str], value: Any, definition: TypeDef) -> str | None:
    operand = _operand(path, definition)
    if operand is None:
        return None
    domain, exact = _constant(value, operand.type)
    if domain is None:
        return None
    condition: Filter = Compare(op, operand, Literal(exact, operand.type), domain)
    return lance_filter(condition, definition)


def _any_of(path: Sequence[str], values: Sequence[Any], definition: TypeDef) -> str | None:
    if not values or len(values) > IN_MAX:
        return None
    each = [_compared("=", path, value, definition) for value in values]
    known = [text for text in each if text is not None]
    return f"({' OR '.join(known)})" if len(known) == len(each) else None


def _null_test(test: str, path: Sequence[str], definition: TypeDef) -> str | None:
    operand = _operand(path, definition)
    return f"`{definition.column(path[0])}` {test}" if operand is not None and "`" not in path[0] else None


def _text_condition(
    kind: type[TextStartsWith] | type[TextContains], path: Sequence[str], value: str, definition: TypeDef
) -> str | None:
    operand = _operand(path, definition)
    if operand is None or isinstance(operand, EdgeEnd) or operand.type != Scalar("String"):
        return None
    return lance_filter(kind(operand, Literal(value, Scalar("String"))), definition)


def _operand(path: Sequence[str], definition: TypeDef) -> Prop | EntityId | EdgeEnd | None:
    if len(path) != 1:
        return None
    name = path[0]
    if name == ID:
        return EntityId("", definition.table_key)
    if name in definition.physical_columns:
        return EdgeEnd("", definition.table_key, "src" if name == "src" else "dst")
    prop = definition.by_name.get(name)
    if prop is None:
        return None
    return Prop("", definition.table_key, PropertyColumn(prop.id, prop.name, prop.column, prop.type, prop.nullable))


def _constant(value: Any, kind: PropertyType) -> tuple[Domain | None, Any]:
    """How the constant compares with a column of this type, and its value in our terms; no domain: not exactly."""
    name = "String" if isinstance(kind, Enumeration) else kind.name if isinstance(kind, Scalar) else ""
    match value:
        case str() if name == "String":
            return "text", value
        case bool() if name == "Bool":
            return "bool", value
        case bool():
            return None, None
        case int() if name in INTEGER_BOUNDS:
            return "number", value
        case dt.datetime() if name == "DateTime" and value.tzinfo is not None and value.microsecond % 1000 == 0:
            return "datetime", value.astimezone(dt.UTC)
        case dt.date() if name == "Date" and not isinstance(value, dt.datetime):
            return "date", value
        case _:
            return None, None
