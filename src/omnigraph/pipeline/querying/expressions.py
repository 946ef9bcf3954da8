"""Filters and aggregates as Spark expressions whose results equal those of the in-process engine, value for value.

A filter over one variable is evaluated where its table is read (`scan.py`), so a condition here has columns of several
variables. Expressions other than plain comparisons of columns are computed in Arrow tasks. Text is compared by its
bytes, which is the order of code points. Numbers are not compared through doubles where that would lose digits.

Sums and averages are rounded once, whatever the order in which Spark adds. Integers are added as decimals. Floats are
added in parts (`scan.FloatPart`): a sum for each bucket of exponents, by group and bucket first, then by group. A few
integers of each group are left for the end.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.pandas.functions import arrow_udf

from omnigraph.errors import OmnigraphError
from omnigraph.pipeline.querying.scan import carried, float_part, from_carrier, spark_type
from omnigraph.pipeline.spark.runner import TaskFailure
from omnigraph.query import ir
from omnigraph.query.ir import (
    F64,
    Aggregate,
    Compare,
    CompareOp,
    Domain,
    EntityId,
    Expr,
    Filter,
    Prop,
    TextContains,
    TextSearch,
    TextStartsWith,
    columns_in,
)
from omnigraph.read.explain import describe_expression
from omnigraph.read.expressions.evaluate import evaluate
from omnigraph.schema.arrow import arrow_type
from omnigraph.schema.types import INTEGER_BOUNDS, PropertyType, Scalar

if TYPE_CHECKING:
    Values: TypeAlias = pa.Array[Any]
else:
    Values = pa.Array  # Spark reads it from the signatures below


_FLOATS = (Scalar("F32"), Scalar("F64"))
_BUCKET_BITS = 8
_WHOLE = "decimal(38,0)"
_U64 = Scalar("U64")
_TWO_63 = 2.0**63
_FLIPPED: Mapping[CompareOp, CompareOp] = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def is_float_sum(aggregate: Aggregate) -> bool:
    """Whether it needs the parts of floats."""
    return aggregate.fn in ("sum", "avg") and aggregate.arg is not None and aggregate.arg.type in _FLOATS


@dataclass(frozen=True, slots=True)
class AggregateArgument:
    """The columns of an aggregate's argument: its value, or where floats are added bucket and part."""

    value: str | None = None
    bucket: str | None = None
    part: str | None = None


@dataclass
class Grouping:
    """The aggregates of a query over groups of equal `keys`; `carried` are columns that are equal in a group."""

    keys: Sequence[str]
    carried: Sequence[str] = ()
    first: list[Column] = field(default_factory=list)  # over rows
    second: list[Column] = field(default_factory=list)  # over what the first round made
    last: list[Column] = field(default_factory=list)  # of each group
    checks: list[Column] = field(default_factory=list)
    buckets: dict[str, None] = field(default_factory=dict)

    def add(self, name: str, aggregate: Aggregate, argument: AggregateArgument) -> None:
        """An aggregate, whose values are to be in the column `name`."""
        if is_float_sum(aggregate):
            self._add_float(name, aggregate, argument)
            return
        value = sf.col(argument.value) if argument.value is not None else sf.lit(1)
        match aggregate.fn:
            case "count":
                self._count(name, value)
                self.last.append(sf.col(name))
            case "min" | "max":
                extreme = sf.min if aggregate.fn == "min" else sf.max
                self._both(name, extreme(value), extreme(name))
                self.last.append(sf.col(name))
            case "sum" | "avg":
                self._both(
                    f"{name}s", sf.sum(value.cast("decimal(20,0)")).cast(_WHOLE), sf.sum(f"{name}s").cast(_WHOLE)
                )
                if aggregate.fn == "sum":
                    self.last.append(sf.col(f"{name}s").alias(name))
                    self._check(name, aggregate)
                else:
                    self._count(f"{name}n", value)
                    self.last.append(_finish(whole_means)(f"{name}s", f"{name}n").alias(name))

    def _add_float(self, name: str, aggregate: Aggregate, argument: AggregateArgument) -> None:
        assert argument.bucket is not None
        assert argument.part is not None
        self.buckets[argument.bucket] = None
        self.first.append(sf.sum(sf.col(argument.part).cast("decimal(20,0)")).cast(_WHOLE).alias(f"{name}s"))
        pair = sf.struct(sf.col(argument.bucket).alias("bucket"), sf.col(f"{name}s").alias("part"))
        self.second.append(sf.collect_list(pair).alias(f"{name}s"))
        self._count(f"{name}n", sf.col(argument.part))
        finish = _finish(float_sums if aggregate.fn == "sum" else float_means)
        self.last.append(finish(f"{name}s", f"{name}n").alias(name))
        if aggregate.fn == "sum":
            self._check(name, aggregate)

    def _count(self, name: str, value: Column) -> None:
        self._both(name, sf.count(value), sf.coalesce(sf.sum(name), sf.lit(0)).cast("bigint"))

    def _both(self, name: str, first: Column, second: Column) -> None:
        self.first.append(first.alias(name))
        self.second.append(second.alias(name))

    def _check(self, name: str, aggregate: Aggregate) -> None:
        """A sum that its type can't hold is an error, also of a group that a limit leaves out."""
        assert isinstance(aggregate.type, Scalar)
        total = sf.col(name)
        if aggregate.type == F64:
            fits = total.isNull() | (sf.abs(total) < sf.lit(math.inf))
        else:
            low, high = (sf.lit(Decimal(bound)).cast(_WHOLE) for bound in INTEGER_BOUNDS[aggregate.type.name])
            fits = total.isNull() | ((total >= low) & (total <= high))
        assert aggregate.arg is not None
        what = f"sum({describe_expression(aggregate.arg)})"
        shown = total.cast("string") if aggregate.type != F64 else sf.lit("inf")
        said = sf.concat(sf.lit(f"{what} is "), shown, sf.lit(f", which {aggregate.type} can't hold: use avg."))
        self.checks.append(sf.when(fits, sf.lit(True)).otherwise(sf.raise_error(said).cast("boolean")))

    def over(self, rows: DataFrame) -> DataFrame:
        """The groups: their keys, what is carried, and the aggregates."""
        carried = [sf.first(name).alias(name) for name in self.carried]
        groups = rows.groupBy(*self.keys, *self.buckets).agg(*self.first, *carried)
        if self.buckets:
            groups = groups.groupBy(*self.keys).agg(*self.second, *carried)
        groups = groups.select(*self.keys, *self.carried, *self.last)
        for check in self.checks:
            groups = groups.where(check)
        return groups


def _finish(function: Callable[[Values, Values], Values]) -> Callable[[str, str], Column]:
    """A function of two Arrow arrays as one of two columns."""
    made: Any = arrow_udf
    return made(function, "double")  # type: ignore[no-any-return]


# What a group's integers come to. Run on executors, an array of groups at a time.


def whole_means(sums: Values, counts: Values) -> Values:
    pairs: Any = zip(sums.to_pylist(), counts.to_pylist(), strict=True)
    return pa.array([int(total) / count if count else None for total, count in pairs], pa.float64())


def float_sums(parts: Values, counts: Values) -> Values:
    pairs: Any = zip(parts.to_pylist(), counts.to_pylist(), strict=True)
    return pa.array([exact_sum(found) if count else None for found, count in pairs], pa.float64())


def float_means(parts: Values, counts: Values) -> Values:
    pairs: Any = zip(parts.to_pylist(), counts.to_pylist(), strict=True)
    return pa.array([exact_sum(found) / count if count else None for found, count in pairs], pa.float64())


def exact_sum(parts: list[dict[str, Any]]) -> float:
    """The sum of `part * 2^(8 * bucket)`, rounded once; infinite where no double is as large."""
    known = [(entry["bucket"], int(entry["part"])) for entry in parts if entry["bucket"] is not None]
    lowest = min(bucket for bucket, _ in known)
    total = sum(part << (_BUCKET_BITS * (bucket - lowest)) for bucket, part in known)
    shift = _BUCKET_BITS * lowest
    try:
        return float(total << shift) if shift >= 0 else total / (1 << -shift)
    except OverflowError:
        return math.inf


def filter_expression(condition: Filter, column: Callable[[ir.Column], Column]) -> Column:
    """The filter as a condition; null means that it does not hold."""
    match condition:
        case Compare(op, Prop() | EntityId() as left, Prop() | EntityId() as right, domain):
            return comparison(op, (column(left), left.type), (column(right), right.type), domain)
        case TextContains(Prop() | EntityId() as text, Prop() | EntityId() as part):
            return sf.contains(column(text), column(part))
        case TextStartsWith(Prop() | EntityId() as text, Prop() | EntityId() as prefix):
            return sf.startswith(column(text), column(prefix))
        case TextSearch():
            raise AssertionError("a text search has one variable")
        case _:
            return computed_column(condition, column)


def computed_column(expr: Expr, column: Callable[[ir.Column], Column]) -> Column:
    """The carrier of an expression's values, computed by the in-process engine's own functions in Arrow tasks."""
    return _compute(expr, column, spark_type(expr.type), carried)


def computed_float_part(expr: Expr, column: Callable[[ir.Column], Column], *, bucket: bool) -> Column:
    """The bucket or part of a float expression, see `FloatPart`."""
    return _compute(expr, column, "int" if bucket else "bigint", partial(float_part, bucket=bucket))


def _compute(expr: Expr, column: Callable[[ir.Column], Column], kind: str, finish: Callable[[Any], Any]) -> Column:
    leaves = list(dict.fromkeys(columns_in(expr)))
    kinds = [arrow_type(leaf.type) for leaf in leaves]

    def compute(rows: Values) -> Values:
        arrays: Any = rows
        values = {
            leaf: from_carrier(arrays.field(place), stored)
            for place, (leaf, stored) in enumerate(zip(leaves, kinds, strict=True))
        }
        try:
            finished: Values = finish(evaluate(expr, values.__getitem__, len(rows)))
            return finished
        except OmnigraphError as error:
            raise TaskFailure(error) from None

    made: Any = arrow_udf
    inputs = [column(leaf) for leaf in leaves] or [sf.lit(0)]  # a task learns from it how many rows there are
    return made(compute, kind)(sf.struct(*inputs))  # type: ignore[no-any-return]


def comparison(
    op: CompareOp, left: tuple[Column, PropertyType], right: tuple[Column, PropertyType], domain: Domain
) -> Column:
    """`left op right` in a domain."""
    one, other = left[0], right[0]
    if domain == "f32":
        return _compare(op, one.cast("float"), other.cast("float"))
    floats = (left[1] in _FLOATS, right[1] in _FLOATS)
    if domain != "number" or floats[0] == floats[1]:
        return _compare(op, one, other)  # integers of two widths meet in one that holds both
    if floats[0]:
        return comparison(_FLIPPED[op], right, left, domain)
    return _with_float(op, one, other, unsigned=left[1] == _U64)


def _compare(op: CompareOp, left: Column, right: Column) -> Column:
    found: Any = {
        "=": lambda: left == right,
        "!=": lambda: left != right,
        "<": lambda: left < right,
        "<=": lambda: left <= right,
        ">": lambda: left > right,
        ">=": lambda: left >= right,
    }[op]()
    return found  # type: ignore[no-any-return]


def _with_float(op: CompareOp, whole: Column, real: Column, unsigned: bool) -> Column:
    """An integer with a double, without turning the integer into one.

    The double's floor is an integer, exactly, if 64 bits can hold it; where they are equal, the fraction decides.
    """
    if unsigned:
        low, high = 0.0, 2.0 * _TWO_63
        above = (real - sf.lit(_TWO_63)).try_cast("bigint").cast("decimal(20,0)") + sf.lit(Decimal(2**63)).cast(
            "decimal(20,0)"
        )
        floor = sf.when(real < _TWO_63, sf.floor(real).cast("decimal(20,0)")).otherwise(above)
    else:
        low, high = -_TWO_63, _TWO_63
        floor = sf.floor(real).try_cast("bigint")
    fraction = sf.when(sf.abs(real) < 2.0**53, real > sf.floor(real)).otherwise(sf.lit(False))
    sign = (
        sf.when(whole.isNull() | real.isNull(), sf.lit(None).cast("int"))
        .when(real < low, sf.lit(1))
        .when(real >= high, sf.lit(-1))
        .when(whole > floor, sf.lit(1))
        .when(whole < floor, sf.lit(-1))
        .when(fraction, sf.lit(-1))
        .otherwise(sf.lit(0))
    )
    return _compare(op, sign, sf.lit(0))
