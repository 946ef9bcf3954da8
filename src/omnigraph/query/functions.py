"""The functions and operators of expressions: their arguments and results. The engines implement them, see
read/expressions.

An argument is described by a word: `text`, `integer`, `number`, `time` (Date or DateTime), `datetime`, `list`, `value`
(anything with an order), `any`. A result is a type, or a rule: `same` as the first argument, `numeric` (I64 for
integers, F64 for floats), `item` of the list, `common` to all arguments.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from omnigraph.query.ast import AGGREGATES, RANKS, TEXT_FILTERS


@dataclass(frozen=True, slots=True)
class Signature:
    args: tuple[str, ...]
    result: str
    usage: str
    variadic: bool = False  # the last argument may be repeated


def _signature(usage: str, args: str, result: str, *, variadic: bool = False) -> Signature:
    return Signature(tuple(args.split()), result, usage, variadic)


SIGNATURES: Mapping[str, Signature] = {
    "coalesce": _signature("coalesce(a, b, …)", "any", "common", variadic=True),
    "lower": _signature("lower(text)", "text", "String"),
    "upper": _signature("upper(text)", "text", "String"),
    "trim": _signature("trim(text)", "text", "String"),
    "length": _signature("length(text)", "text", "I64"),
    "substring": _signature("substring(text, from, count)", "text integer integer", "String"),
    "replace": _signature("replace(text, old, new)", "text text text", "String"),
    "split": _signature("split(text, separator)", "text text", "[String]"),
    "abs": _signature("abs(number)", "number", "numeric"),
    "round": _signature("round(number)", "number", "numeric"),
    "floor": _signature("floor(number)", "number", "numeric"),
    "ceil": _signature("ceil(number)", "number", "numeric"),
    "sqrt": _signature("sqrt(number)", "number", "F64"),
    "ln": _signature("ln(number)", "number", "F64"),
    "exp": _signature("exp(number)", "number", "F64"),
    "pow": _signature("pow(base, exponent)", "number number", "F64"),
    "least": _signature("least(a, b, …)", "value", "common", variadic=True),
    "greatest": _signature("greatest(a, b, …)", "value", "common", variadic=True),
    "year": _signature("year(time)", "time", "I64"),
    "month": _signature("month(time)", "time", "I64"),
    "day": _signature("day(time)", "time", "I64"),
    "hour": _signature("hour(datetime)", "datetime", "I64"),
    "minute": _signature("minute(datetime)", "datetime", "I64"),
    "second": _signature("second(datetime)", "datetime", "I64"),
    "date": _signature("date(text or time)", "text|time", "Date"),
    "datetime": _signature("datetime(text or time)", "text|time", "DateTime"),
    "add_days": _signature("add_days(time, days)", "time integer", "same"),
    "add_seconds": _signature("add_seconds(datetime, seconds)", "datetime number", "DateTime"),
    "days_between": _signature("days_between(a, b)", "time time", "I64"),
    "seconds_between": _signature("seconds_between(a, b)", "datetime datetime", "F64"),
    "size": _signature("size(list)", "list", "I64"),
    "int": _signature("int(number or text)", "number|text", "I64"),
    "float": _signature("float(number or text)", "number|text", "F64"),
    "string": _signature("string(value)", "scalar", "String"),
}
ENTITY_FUNCTIONS = ("id", "type")  # of a variable
FUNCTION_NAMES = ("now", *AGGREGATES, *RANKS, *TEXT_FILTERS, *SIGNATURES, *ENTITY_FUNCTIONS)
