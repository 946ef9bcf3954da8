"""The reference for expressions: one value for one row, in plain Python, as language.md says it."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable, Mapping
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from omnigraph.query import ir
from omnigraph.query.values import round_f32
from omnigraph.schema.types import ListOf, PropertyType, Scalar

Entity = Mapping[str, Any]

I64_RANGE = range(-(2**63), 2**63)
NUMBER = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?", re.ASCII)


def value(expr: ir.Expr, row: Mapping[str, Entity]) -> Any:
    """The value of a bound expression; None for null and for unknown."""
    match expr:
        case ir.Literal(found):
            return found
        case ir.Prop(var, _, column):
            return row[var].get(column.column)
        case ir.EntityId(var):
            return row[var]["id"]
        case ir.EdgeEnd(var, _, end):
            return row[var][end]
        case ir.ParamRef() | ir.Now():
            raise AssertionError("bind the query first")
        case ir.Case(branches, otherwise, kind):
            chosen = next((then for when, then in branches if value(when, row) is True), otherwise)
            return _as(kind, value(chosen, row))
        case ir.Apply("and" | "or" as op, args):
            return connected(op, [value(arg, row) for arg in args])
        case ir.Apply("is_null", (arg,)):
            return value(arg, row) is None
        case ir.Apply("coalesce", args, kind):
            return _as(kind, next((found for arg in args if (found := value(arg, row)) is not None), None))
        case ir.ListContains(items, item, domain):
            return contained(value(items, row), value(item, row), domain)
    values = [value(part, row) for part in ir.parts_of(expr)]
    if any(one is None for one in values):
        return None
    match expr:
        case ir.Compare(comparison, _, _, domain):
            return compared(comparison, in_domain(values[0], domain), in_domain(values[1], domain))
        case ir.TextContains():
            return values[1] in values[0]
        case ir.TextStartsWith():
            return values[0].startswith(values[1])
        case ir.Apply(fn, args, kind):
            found = FUNCTIONS[fn](kind, *(_exact(arg.type, one) for arg, one in zip(args, values, strict=True)))
            return _as(kind, found)


def connected(op: str, values: list[bool | None]) -> bool | None:
    decided = op == "or"
    if decided in values:
        return decided
    return None if None in values else not decided


def contained(items: Any, item: Any, domain: ir.Domain) -> bool | None:
    if items is None:
        return None
    if not len(items):
        return False
    if item is None:
        return None
    return any(in_domain(one, domain) == in_domain(item, domain) for one in items)


def in_domain(found: Any, domain: ir.Domain) -> Any:
    """Python compares int with float exactly, str by code point, False before True."""
    return round_f32(found) if domain == "f32" else found


def compared(op: ir.CompareOp, left: Any, right: Any) -> bool:
    match op:
        case "=":
            return bool(left == right)
        case "!=":
            return bool(left != right)
        case "<":
            return bool(left < right)
        case "<=":
            return bool(left <= right)
        case ">":
            return bool(left > right)
        case ">=":
            return bool(left >= right)


def _exact(kind: PropertyType, found: Any) -> Any:
    """An F32 is the number that it stores."""
    return float(np.float32(found)) if kind == Scalar("F32") else found


def _as(kind: PropertyType, found: Any) -> Any:
    """A result in its type: floats are finite and have one zero; lists are tuples."""
    if found is None:
        return None
    if kind == Scalar("F64"):
        number = float(found)
        return number + 0.0 if math.isfinite(number) else None
    if isinstance(kind, ListOf):
        return tuple(found)
    return found


def _integer(found: int) -> int:
    if found not in I64_RANGE:
        raise OverflowError(f"{found} does not fit into I64")
    return found


def _arithmetic(whole: Callable[..., int], real: Callable[..., float]) -> Callable[..., Any]:
    def apply(kind: PropertyType, *values: Any) -> Any:
        if kind == Scalar("I64"):
            return _integer(whole(*values))
        try:
            return real(*(float(one) for one in values))
        except (OverflowError, ZeroDivisionError, ValueError):
            return None

    return apply


def _remainder(kind: PropertyType, one: Any, other: Any) -> Any:
    if other == 0:
        return None
    if kind == Scalar("I64"):
        return int(Fraction(one) - other * int(Fraction(one, other)))
    return math.fmod(one, other)


def _rounding(how: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda kind, one: _integer(one) if kind == Scalar("I64") else float(how(one))


def _half_up(number: float) -> Decimal:
    return Decimal(number).quantize(Decimal(1), rounding=ROUND_HALF_UP) if abs(number) < 2**52 else Decimal(number)


def _real(function: Callable[..., float]) -> Callable[..., float | None]:
    def apply(_: PropertyType, *values: Any) -> float | None:
        try:
            return function(*(float(one) for one in values))
        except (ValueError, OverflowError):
            return None

    return apply


def _cased(change: Callable[[str], str]) -> Callable[..., str]:
    return lambda _, text: "".join(changed if len(changed := change(letter)) == 1 else letter for letter in text)


def _day(moment: dt.date) -> dt.date:
    return moment.date() if isinstance(moment, dt.datetime) else moment


def _instant(moment: dt.date) -> dt.datetime:
    return moment if isinstance(moment, dt.datetime) else dt.datetime.combine(moment, dt.time(), dt.UTC)


def _date(_: PropertyType, found: Any) -> dt.date | None:
    if not isinstance(found, str):
        return _day(found)
    try:
        return dt.date.fromisoformat(found) if re.fullmatch(r"\d{4}-\d\d-\d\d", found, re.ASCII) else None
    except ValueError:
        return None


def _datetime(_: PropertyType, found: Any) -> dt.datetime | None:
    if not isinstance(found, str):
        return _instant(found)
    if not re.fullmatch(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:?\d\d)?", found, re.ASCII):
        return None
    try:
        moment = dt.datetime.fromisoformat(found)
        moment = (moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).astimezone(dt.UTC)
    except (ValueError, OverflowError):
        return None
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def _added(moment: Any, delta: Callable[[], dt.timedelta]) -> Any:
    try:
        found = moment + delta()
    except OverflowError:
        return None
    return found


def _milliseconds(one: Any, other: Any) -> int:
    return (_instant(other) - _instant(one)) // dt.timedelta(milliseconds=1)


def _number(text: str) -> int | float | None:
    if len(text) > 300 or not NUMBER.fullmatch(text):
        return None
    return int(text) if text.lstrip("+-").isdigit() else float(text)


def _int(_: PropertyType, found: Any) -> int | None:
    number = _number(found) if isinstance(found, str) else found
    if number is None or not math.isfinite(number):
        return None
    return int(number) if int(number) in I64_RANGE else None


def _float(_: PropertyType, found: Any) -> float | None:
    return _number(found) if isinstance(found, str) else float(found)


def _item(_: PropertyType, items: Any, index: int) -> Any:
    return items[index] if 0 <= index < len(items) else None


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "not": lambda _, one: not one,
    "+": _arithmetic(lambda a, b: a + b, lambda a, b: a + b),
    "-": _arithmetic(lambda a, b: a - b, lambda a, b: a - b),
    "*": _arithmetic(lambda a, b: a * b, lambda a, b: a * b),
    "/": lambda _, a, b: None if b == 0 else float(a) / float(b),
    "%": _remainder,
    "negate": _arithmetic(lambda a: -a, lambda a: -a),
    "abs": _arithmetic(abs, abs),
    "round": _rounding(_half_up),
    "floor": _rounding(math.floor),
    "ceil": _rounding(math.ceil),
    "sqrt": _real(math.sqrt),
    "ln": _real(math.log),
    "exp": _real(math.exp),
    "pow": _real(math.pow),
    "least": lambda _, *values: min(values),
    "greatest": lambda _, *values: max(values),
    "widen": lambda kind, one: _integer(one) if kind == Scalar("I64") else float(one),
    "lower": _cased(str.lower),
    "upper": _cased(str.upper),
    "trim": lambda _, text: text.strip(),
    "length": lambda _, text: len(text),
    "substring": lambda _, text, start, count: text[start:][:count] if 0 <= start <= len(text) and count >= 0 else None,
    "replace": lambda _, text, old, new: new.join(text.split(old)) if old else text,
    "split": lambda _, text, separator: text.split(separator) if separator else [text],
    "ends_with": lambda _, text, end: text.endswith(end),
    "matches": lambda _, text, pattern: re.fullmatch(pattern, text) is not None,
    "||": lambda kind, one, other: [*one, *other] if isinstance(kind, ListOf) else one + other,
    "size": lambda _, items: len(items),
    "[]": _item,
    "int": _int,
    "float": _float,
    "year": lambda _, moment: moment.year,
    "month": lambda _, moment: moment.month,
    "day": lambda _, moment: moment.day,
    "hour": lambda _, moment: moment.hour,
    "minute": lambda _, moment: moment.minute,
    "second": lambda _, moment: moment.second,
    "date": _date,
    "datetime": _datetime,
    "add_days": lambda _, moment, days: _added(moment, lambda: dt.timedelta(days=days)),
    "add_seconds": lambda _, moment, seconds: _added(moment, lambda: dt.timedelta(milliseconds=round(seconds * 1000))),
    "days_between": lambda _, one, other: int(Fraction(_milliseconds(one, other), 86_400_000)),
    "seconds_between": lambda _, one, other: _milliseconds(one, other) / 1000,
    "string": lambda _, one: string(one),
}


def string(found: Any) -> str:
    if isinstance(found, bool):
        return "true" if found else "false"
    if isinstance(found, dt.datetime):
        return found.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
    return found if isinstance(found, str) else str(found)
