"""A query on Spark: the IR as DataFrames, for graphs that one machine can't hold. Results equal the in-process ones.

Search runs on the driver, through the functions of the in-process engine: what a text filter finds, and the rank of
each entity that matches, are joined in as DataFrames. The result is collected on the driver as a whole, where its
columns get their own types again and late columns are looked up.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeGuard
from weakref import WeakKeyDictionary

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from omnigraph.cancellation import interruptible
from omnigraph.errors import BadRequest
from omnigraph.memory_budget import budget_scope, current_budget, hold, query_budget
from omnigraph.pipeline.querying.expressions import (
    AggregateArgument,
    Grouping,
    computed_column,
    computed_float_part,
    is_float_sum,
)
from omnigraph.pipeline.querying.match import QueryContext, Uses, VariableColumns, columns_used, match_pattern
from omnigraph.pipeline.querying.scan import FloatPart, Frames, StoredColumn, from_carrier
from omnigraph.pipeline.spark.runner import translate_error
from omnigraph.pipeline.spark.session import create_second_session
from omnigraph.query import ir
from omnigraph.query.ir import (
    Aggregate,
    Apply,
    Bm25,
    Case,
    Compare,
    EntityId,
    ListContains,
    Literal,
    Nearest,
    OrderKey,
    Projection,
    Prop,
    ReadQuery,
    Rrf,
    TextContains,
    TextStartsWith,
    WholeNode,
)
from omnigraph.read.explain import QueryPlan
from omnigraph.read.match.filters import column_name, to_array
from omnigraph.read.project.output import OutputColumn, ResultTable, expression_columns, ranks_of, top_limit
from omnigraph.read.reader import SnapshotReader
from omnigraph.read.result import QueryResult
from omnigraph.read.search import search
from omnigraph.read.tables.arrow_numpy import ArrowArray
from omnigraph.runtime import RandomIds
from omnigraph.schema.arrow import arrow_type
from omnigraph.schema.types import Scalar
from omnigraph.storage.location import Location

LATE_ROWS_MAX = 10_000  # of a result: so few are looked up by id at the end instead of carried along
BROADCAST_BYTES_MAX = 32 * 1024 * 1024
_TOO_LARGE = re.compile(r"sum\([^)]{0,500}\) is [^\n]{0,500}?, which \w{1,50} can't hold: use avg\.")
# What answers depend on is set, not taken over: the session may be the caller's.
_SETTINGS = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "true",
    # Spark knows no table's size beforehand. Small ones are marked, the rest is decided by what comes.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.adaptive.autoBroadcastJoinThreshold": str(BROADCAST_BYTES_MAX),
}


@dataclass
class SparkPlan(QueryPlan):
    """The steps of the query, and Spark's physical plan."""

    physical: str = ""

    def __str__(self) -> str:
        steps = "\n".join(step.text for step in self.steps)
        return f"{steps}\n\n{self.physical}".rstrip()

    def to_json(self) -> list[dict[str, object]]:
        return [*super().to_json(), {"step": "Spark", "estimated_rows": None, "rows": None, "plan": self.physical}]


_sessions: "WeakKeyDictionary[SparkSession, SparkSession]" = WeakKeyDictionary()


def query_session(spark: SparkSession) -> SparkSession:
    """A second session on the same executors, with settings of its own; created once for each session."""
    own = _sessions.get(spark)
    if own is None:
        own = _sessions[spark] = create_second_session(spark)
        for name, value in _SETTINGS.items():
            own.conf.set(name, value)
    return own


def run_on_spark(
    spark: SparkSession, reader: SnapshotReader, location: Location, query: ReadQuery, *, explain: bool = False
) -> QueryResult:
    """The result of a bound query at the reader's snapshot; `spark` is from `query_session`."""
    plan = SparkPlan()
    context = QueryContext(Frames(spark, reader, location), plan)
    budget = current_budget() or query_budget(reader.options.memory_bytes)
    with budget_scope(budget), _cancellable(spark), _drop_held(context):
        lowering = _QueryFrame(context, query)
        result = lowering.result()
        rows = hold(result.toArrow(), "the result of Spark")
        fetched = FetchedRows(rows.slice(0, query.limit), reader)
        if explain:
            plan.physical = _physical_plan(result)
        shaped = ResultTable(fetched.count, output_columns(query, fetched, lowering.names))
    shown = plan if explain else None
    return QueryResult(shaped, reader.commit_id, reader.options.batch_rows, shown, budget)


@contextmanager
def _cancellable(spark: SparkSession) -> Iterator[None]:
    """Ctrl-C, or a stop, cancels the query's jobs and no others; Spark's errors become one sentence."""
    context = spark.sparkContext
    group = f"omnigraph-{RandomIds().short_id()}"
    context.setJobGroup(group, "query", interruptOnCancel=False)
    try:
        with interruptible(partial(context.cancelJobGroup, group)):
            yield
    except (Py4JError, PySparkException) as error:
        overflow = _TOO_LARGE.search(str(error))
        raise (BadRequest(overflow[0]) if overflow else translate_error(error, "query")) from error
    except BaseException:
        context.cancelJobGroup(group)
        raise
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type] # removes it
        context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]


@contextmanager
def _drop_held(context: QueryContext) -> Iterator[None]:
    try:
        yield
    finally:
        context.held.drop()


def _physical_plan(frame: DataFrame) -> str:
    execution: Any = frame._jdf.queryExecution()
    jvm: Any = frame.sparkSession.sparkContext._jvm
    return str(jvm.PythonSQLUtils.explainString(execution, "formatted")).strip()


class _QueryFrame:
    """One query as a DataFrame; `names` tells the column of each expression in it."""

    def __init__(self, context: QueryContext, query: ReadQuery) -> None:
        self.context = context
        self.query = query
        self.reader = context.frames.reader
        self.is_late = not query.grouped and query.limit is not None and query.limit <= LATE_ROWS_MAX
        self.bound: dict[str, VariableColumns] = {}
        self.names: dict[Any, str] = {}  # of expressions; of (variable, stored column)
        self.arguments: dict[Any, str] = {}  # of expressions that aggregates take; of (expression, bucket or part)

    def result(self) -> DataFrame:
        query = self.query
        rows, self.bound = match_pattern(self.context, query.pattern, self._uses())
        rows = self._add_computed(self._add_ranks(rows))
        self._name()
        if query.grouped:
            rows = self._group(rows)
        order = [key for key in (*query.order, *query.tiebreak) if not isinstance(key.expr, Literal)]
        if order:
            rows = rows.orderBy(*(self._sort_column(key) for key in order))
        if query.limit is not None:
            rows = rows.limit(max(query.limit, 1))  # with none Spark would look at nothing, wrong sums neither
        columns = list(self.names.values())
        return rows.select(*dict.fromkeys(columns)) if columns else rows.select(sf.lit(1).alias("one"))

    # What is wanted of the variables

    def _uses(self) -> Uses:
        uses = columns_used(self.query.pattern)
        for expr in self._exprs():
            if isinstance(expr, WholeNode):
                uses.setdefault(expr.var, {}).update({StoredColumn(column.column): None for column in expr.columns})
            elif isinstance(expr, Aggregate) and isinstance(expr.arg, Prop) and is_float_sum(expr):
                column, wanted = column_name(expr.arg), uses.setdefault(expr.arg.var, {})
                wanted.update(dict.fromkeys([FloatPart(column, True), FloatPart(column, False)]))
            elif not isinstance(expr, Nearest | Bm25 | Rrf):
                for leaf in expression_columns(expr):
                    if isinstance(leaf, Prop):
                        uses.setdefault(leaf.var, {})[StoredColumn(column_name(leaf))] = None
        return uses

    def _exprs(self) -> Iterator[Any]:
        """All expressions whose values Spark has to have; a late one is looked up when the rows are here."""
        yield from (
            key.expr for key in (*self.query.order, *self.query.tiebreak) if not isinstance(key.expr, WholeNode)
        )
        returned = (projection.expr for projection in self.query.returns)
        yield from (expr for expr in returned if not self.is_late or _is_computed(expr))

    def _name(self) -> None:
        """The columns of what is returned, before grouping."""
        for projection in self.query.returns:
            expr = projection.expr
            if isinstance(expr, Prop | EntityId | WholeNode):
                bound = self.bound[expr.var]
                self.names[EntityId(expr.var, expr.table_key)] = bound.id
                if isinstance(expr, WholeNode):
                    stored = [column.column for column in expr.columns]
                else:
                    stored = [column_name(expr)] if isinstance(expr, Prop) else []
                for column in stored:
                    if StoredColumn(column) in bound.columns:
                        self.names[expr.var, column] = bound.columns[StoredColumn(column)]

    def _column_of(self, expr: Prop | EntityId | WholeNode) -> str:
        bound = self.bound[expr.var]
        return bound.columns[StoredColumn(column_name(expr))] if isinstance(expr, Prop) else bound.id

    # Search

    def _add_ranks(self, rows: DataFrame) -> DataFrame:
        """With a column for each rank, over the entities of the rows that match; `keeps` drops what has none."""
        ranks = ranks_of(self.query)
        if not ranks:
            return rows
        rows = self.context.held.keep(rows)
        for number, rank in enumerate(ranks):
            name = self.names[rank] = f"r{number}"
            rows = self._fused(rows, rank, name) if isinstance(rank, Rrf) else self._scored(rows, rank, name)
        for rank in self.query.keeps:
            rows = rows.where(sf.col(self.names[rank]).isNotNull())
        return rows

    def _scored(self, rows: DataFrame, rank: Nearest | Bm25, name: str) -> DataFrame:
        ids = self._entities(rows, rank)
        return self._with(
            rows, rank, name, ids, search.rank_scores(self.reader, rank, ids, top_limit(self.query, rank))
        )

    def _fused(self, rows: DataFrame, rank: Rrf, name: str) -> DataFrame:
        assert isinstance(rank.k, Literal)
        parts = [f"{name}p{number}" for number in range(len(rank.ranks))]
        for part, one in zip(parts, rank.ranks, strict=True):
            ids = self._entities(rows, one)
            places: Any = search.rank_positions(self.reader, one, ids)
            shares = pa.array(1 / (rank.k.value + places), mask=places == 0)
            rows = self._with(rows, one, part, ids, shares)
        first, second = (sf.col(part) for part in parts)
        total = sf.coalesce(first, sf.lit(0.0)) + sf.coalesce(second, sf.lit(0.0))
        return rows.withColumn(name, sf.when(first.isNotNull() | second.isNotNull(), total))

    def _entities(self, rows: DataFrame, rank: Nearest | Bm25) -> Any:
        found = rows.select(self.bound[rank.field.var].id).distinct().toArrow()
        return found.column(0).combine_chunks().cast(pa.string())

    def _with(self, rows: DataFrame, rank: Nearest | Bm25, name: str, ids: Any, values: Any) -> DataFrame:
        key = self.bound[rank.field.var].id
        scores = pa.table({key: ids, name: values.cast(pa.float64())})
        return rows.join(self.context.frames.spark.createDataFrame(scores), on=key, how="left")

    # Expressions

    def _add_computed(self, rows: DataFrame) -> DataFrame:
        """With a column for each expression that is more than a column, an aggregate's argument included."""
        for expr in dict.fromkeys(self._exprs()):
            if isinstance(expr, Aggregate) and is_float_sum(expr) and _is_computed(expr.arg):
                for bucket in (True, False):
                    name = self.arguments[expr.arg, bucket] = f"f{len(self.arguments)}"
                    rows = rows.withColumn(name, computed_float_part(expr.arg, self._leaf, bucket=bucket))
                continue
            computed = expr.arg if isinstance(expr, Aggregate) else expr
            if _is_computed(computed):
                names, prefix = (self.arguments, "f") if isinstance(expr, Aggregate) else (self.names, "e")
                name = names[computed] = f"{prefix}{len(names)}"
                rows = rows.withColumn(name, computed_column(computed, self._leaf))
        return rows

    def _leaf(self, leaf: ir.Column) -> Column:
        assert isinstance(leaf, Prop | EntityId)
        return sf.col(self._column_of(leaf))

    # Groups

    def _group(self, rows: DataFrame) -> DataFrame:
        query = self.query
        keys: dict[str, None] = {}
        for place in query.group_by:
            expr = query.returns[place].expr
            if isinstance(expr, Prop | EntityId | WholeNode):
                keys[self._column_of(expr)] = None
            elif isinstance(expr, Nearest | Bm25 | Rrf) or _is_computed(expr):
                keys[self.names[expr]] = None
        if query.group_by and not keys:  # constants only: one group, but none over nothing
            keys["constant"] = None
            rows = rows.withColumn("constant", sf.lit(1))
        carried = [name for name in self._carried() if name not in keys]
        grouping = Grouping(list(keys), carried)
        for aggregate in self._aggregates():
            name = self.names[aggregate] = f"a{len(self.names)}"
            grouping.add(name, aggregate, self._argument(aggregate))
        self.context.plan.add(f"Group by {', '.join(query.returns[i].name for i in query.group_by) or 'nothing'}")
        return grouping.over(rows)

    def _carried(self) -> list[str]:
        """Columns that have one value in a group, because the variable's id is one of its keys."""
        found = [name for key, name in self.names.items() if isinstance(key, tuple | EntityId)]
        for key in (*self.query.order, *self.query.tiebreak):
            if isinstance(key.expr, Prop | EntityId | WholeNode):
                found.append(self._column_of(key.expr))
            elif _is_computed(key.expr):
                found.append(self.names[key.expr])
        return list(dict.fromkeys(found))

    def _aggregates(self) -> list[Aggregate]:
        exprs = [*(p.expr for p in self.query.returns), *(k.expr for k in self.query.order)]
        return list(dict.fromkeys(expr for expr in exprs if isinstance(expr, Aggregate)))

    def _argument(self, aggregate: Aggregate) -> AggregateArgument:
        arg = aggregate.arg
        if arg is None:
            return AggregateArgument()
        if _is_computed(arg):
            if is_float_sum(aggregate):
                return AggregateArgument(None, self.arguments[arg, True], self.arguments[arg, False])
            return AggregateArgument(self.arguments[arg])
        assert isinstance(arg, Prop | EntityId)
        columns = self.bound[arg.var].columns
        if is_float_sum(aggregate):
            column = column_name(arg)
            return AggregateArgument(None, columns[FloatPart(column, True)], columns[FloatPart(column, False)])
        return AggregateArgument(self._column_of(arg))

    # Order

    def _sort_column(self, key: OrderKey) -> Column:
        expr: Any = key.expr
        if isinstance(expr, Aggregate | Nearest | Bm25 | Rrf) or _is_computed(expr):
            column = sf.col(self.names[expr])
        else:
            column = sf.col(self._column_of(expr))
        if expr.type in (Scalar("F32"), Scalar("F64")):
            column = column + sf.lit(0.0)  # one zero
        if key.descending:
            return column.desc_nulls_first() if key.nulls_first else column.desc_nulls_last()
        return column.asc_nulls_first() if key.nulls_first else column.asc_nulls_last()


@dataclass(frozen=True, slots=True)
class FetchedRows:
    """The rows of a result as they came."""

    rows: pa.Table
    reader: SnapshotReader

    @property
    def count(self) -> int:
        return int(self.rows.num_rows)

    def column(self, name: str, kind: pa.DataType) -> ArrowArray:
        return from_carrier(to_array(self.rows.column(name)), kind)

    def look_up(self, table_key: str, ids: ArrowArray, columns: Sequence[str]) -> dict[str, ArrowArray]:
        """Stored columns of the entities with these ids, in their order."""
        state = self.reader.state(table_key)
        distinct: Any = pc.unique(ids)
        found = self.reader.tables.lookup(
            state.at, distinct.to_pylist(), ["id", *columns], state.overlay, schema=state.schema
        ).combine_chunks()
        places = pc.index_in(ids, value_set=to_array(found.column("id")))
        return {name: to_array(found.column(name)).take(places) for name in columns}


def output_columns(query: ReadQuery, fetched: FetchedRows, names: Mapping[Any, str]) -> tuple[OutputColumn, ...]:
    """The result's columns; `names` says where an expression, or a stored column of a variable, came."""
    return tuple(_output(projection, fetched, names) for projection in query.returns)


def _output(projection: Projection, fetched: FetchedRows, names: Mapping[Any, str]) -> OutputColumn:
    name, expr = projection.name, projection.expr
    match expr:
        case Literal(value, kind):
            constant: Any = pa.scalar(list(value) if isinstance(value, tuple) else value, arrow_type(kind))
            return _output_column(name, kind, pa.repeat(constant, fetched.count))
        case Aggregate(type=kind) | Nearest(type=kind) | Bm25(type=kind) | Rrf(type=kind):
            return _output_column(name, kind, fetched.column(names[expr], arrow_type(kind)))
        case EntityId(type=kind):
            return _output_column(name, kind, fetched.column(names[expr], arrow_type(kind)))
        case Prop(var, table_key, column):
            stored = column_name(expr)
            return _output_column(name, column.type, _values(fetched, names, var, table_key, [stored])[stored])
        case WholeNode(var, table_key, columns):
            schema = fetched.reader.state(table_key).schema
            values = _values(fetched, names, var, table_key, [column.column for column in columns])
            fields = [
                pa.field("id", pa.string()),
                *(pa.field(column.name, schema.field(column.column).type) for column in columns),
            ]
            ids = fetched.column(names[EntityId(var, table_key)], pa.string())
            whole = pa.StructArray.from_arrays([ids, *(values[column.column] for column in columns)], fields=fields)
            return OutputColumn(name, None, whole.type, lambda part: whole[part], expr)
        case _:
            return _output_column(name, expr.type, fetched.column(names[expr], arrow_type(expr.type)))


def _is_computed(
    expr: Any,
) -> TypeGuard[Apply | Case | Compare | ListContains | TextContains | TextStartsWith]:
    """Whether an expression is more than a column or a constant."""
    return isinstance(expr, Apply | Case | Compare | ListContains | TextContains | TextStartsWith)


def _values(
    fetched: FetchedRows, names: Mapping[Any, str], var: str, table_key: str, columns: Sequence[str]
) -> dict[str, ArrowArray]:
    """Stored columns of a variable: those in the result, and those that are looked up only now."""
    schema = fetched.reader.state(table_key).schema
    came = {
        column: fetched.column(names[var, column], schema.field(column).type)
        for column in columns
        if (var, column) in names
    }
    late = [column for column in columns if column not in came]
    if not late:
        return came
    ids = fetched.column(names[EntityId(var, table_key)], pa.string())
    return came | fetched.look_up(table_key, ids, late)


def _output_column(name: str, kind: Any, values: ArrowArray) -> OutputColumn:
    return OutputColumn(name, kind, values.type, lambda part: values[part])
