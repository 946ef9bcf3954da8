"""`spark.read.format("omnigraph")` and `df.write.format("omnigraph")`: a type of a graph as a DataFrame.

    spark.dataSource.register(OmnigraphDataSource)
    spark.read.format("omnigraph").option("store", uri).option("type", "Person").load()

Reading pins a commit when the DataFrame is made: whatever is done with it later, and on whatever executor, reads that
commit. Filters go to Lance where both mean exactly the same for every row; all others stay with Spark. Writing stages
fragments on the executors, as a bulk load does, and publishes once at the end.
"""

import datetime as dt
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceWriter,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from omnigraph.errors import BadRequest
from omnigraph.manifest.model.manifest import MAIN
from omnigraph.manifest.repository import Repository, open_repository
from omnigraph.pipeline.bulk.dataframe_source import first_file_number, partition_name
from omnigraph.pipeline.bulk.load import bulk_load
from omnigraph.pipeline.bulk.staging.spool import (
    Spool,
    SpooledPart,
    begin_spool,
    check_rows,
    combine_parts,
    discard_spool,
    spool_nothing,
    spool_rows,
)
from omnigraph.pipeline.source.scans import PART_ROWS, PinnedType, find_type, fragment_tasks, pin, read_part
from omnigraph.pipeline.spark.types import arrow_for_spark, cast_batch, spark_schema
from omnigraph.query.ir import (
    Compare,
    CompareOp,
    Domain,
    EdgeEnd,
    EntityId,
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
from omnigraph.storage.util.runner import LocalRunner
from omnigraph.write.load.load_options import MODES, LoadOptions

if TYPE_CHECKING:
    import pyarrow as pa


_WHEN = ("at", "commit", "timestamp")
_READ_OPTIONS = frozenset({"store", "path", "type", "branch", "columns", "partitionrows", "pushdown", *_WHEN})
_PUSHDOWN: Mapping[str, bool | None] = {"auto": None, "true": True, "false": False}

STORAGE = "storage."  # how the names of storage options start

WRITE_OPTIONS = frozenset({"store", "path", "type", "branch", "from", "mode", "actor", "ifcommit", "txnid"})


class OmnigraphDataSource(DataSource):
    """The data source. See docs/pipeline.md for its options."""

    _pinned: PinnedType | None = None  # from the moment that Spark asks for the schema

    @classmethod
    def name(cls) -> str:
        return "omnigraph"

    def schema(self) -> StructType:
        pinned = self._pin()
        return spark_schema(pinned.definition, self._columns(pinned))

    def reader(self, schema: StructType) -> DataSourceReader:
        pinned = self._pin()
        wanted = spark_schema(pinned.definition, schema.names)
        for given, known in zip(schema.fields, wanted.fields, strict=True):
            if given.dataType != known.dataType:
                raise BadRequest(
                    f"{pinned.definition.name}.{given.name} is {known.dataType.simpleString()}, "
                    f"not {given.dataType.simpleString()}: read it so, and cast it afterwards."
                )
        rows = row_count_option(self.options, "partitionRows", PART_ROWS)
        kind = FilteringTypeReader if _filters_are_pushed() and self._takes_filters() else TypeReader
        return kind(pinned, schema, rows)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return TypeWriter(parse_destination(self.options, overwrite), schema)

    def _takes_filters(self) -> bool:
        """Whether filters go to Lance.

        Spark 4.3 keeps what a filter chose with the DataFrame, not with the query: used again without that filter, or
        in a join with itself, the DataFrame lacks rows. So this is for DataFrames that are used once, and for those
        who say so, until a Spark that keeps them apart: the one that brought limits.
        """
        text = self.options.get("pushdown", "auto").lower()
        if text not in _PUSHDOWN:
            raise BadRequest(f"The option pushdown is {text!r}: it is {', '.join(_PUSHDOWN)}.")
        chosen = _PUSHDOWN[text]
        return hasattr(DataSourceReader, "pushLimit") if chosen is None else chosen

    def _pin(self) -> PinnedType:
        if self._pinned is None:
            check_names(self.options, _READ_OPTIONS)
            when = [self.options[name] for name in _WHEN if name in self.options]
            if len(when) > 1:
                raise BadRequest("Give one of the options at, commit and timestamp, not several.")
            self._pinned = pin(
                parse_store(self.options),
                required_option(self.options, "type"),
                branch=self.options.get("branch", MAIN),
                at=when[0] if when else None,
                storage_options=parse_storage_options(self.options),
            )
        return self._pinned

    def _columns(self, pinned: PinnedType) -> Sequence[str]:
        text = self.options.get("columns")
        if text is None:
            return pinned.names
        names = [name.strip() for name in text.split(",") if name.strip()]
        if not names or len(set(names)) != len(names):
            raise BadRequest(f"The option columns is {text!r}: name some columns, each once, with commas between.")
        return names


class FragmentGroup(InputPartition):
    """What one task reads."""

    def __init__(self, fragments: tuple[int, ...]) -> None:
        super().__init__(fragments)


class TypeReader(DataSourceReader):
    """Reads a pinned type, a group of fragments a task."""

    def __init__(self, pinned: PinnedType, schema: StructType, rows: int) -> None:
        self._pinned = pinned
        self._schema = schema
        self._rows = rows
        self._filters: list[str] = []

    def partitions(self) -> Sequence[InputPartition]:
        return [FragmentGroup(group) for group in fragment_tasks(self._pinned, self._rows)] or [FragmentGroup(())]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        row_filter = " AND ".join(self._filters) or None
        target = arrow_for_spark(self._schema)
        for batch in read_part(self._pinned, partition.value, self._schema.names, row_filter):
            yield cast_batch(batch, target)


class FilteringTypeReader(TypeReader):
    """A reader that takes filters. Apart, because Spark refuses one where filter pushdown is not enabled."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        for condition in filters:
            text = lance_condition(condition, self._pinned.definition)
            if text is None:
                yield condition
            else:
                self._filters.append(text)


def _filters_are_pushed() -> bool:
    """Whether this process was started to push filters: Spark does that in workers of their own kind."""
    kind = "pyspark.sql.worker.data_source_pushdown_filters"
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return kind in sys.modules or getattr(main, "name", None) == kind


def parse_store(options: Mapping[str, str]) -> str:
    """Where the graph is: `.option("store", uri)`, or `.load(uri)`."""
    return options["path"] if "path" in options and "store" not in options else required_option(options, "store")


def parse_storage_options(options: Mapping[str, str]) -> dict[str, str]:
    return {name[len(STORAGE) :]: value for name, value in options.items() if name.lower().startswith(STORAGE)}


def required_option(options: Mapping[str, str], name: str) -> str:
    value = options.get(name)
    if not value:
        raise BadRequest(f'The data source needs the option {name!r}: .option("{name}", …).')
    return value


def check_names(options: Mapping[str, str], known: frozenset[str]) -> None:
    for name in options:
        if name.lower() not in known and not name.lower().startswith(STORAGE):
            names = ", ".join(sorted(known - {"path"}))
            raise BadRequest(f"The data source has no option {name!r}: it has {names} and {STORAGE}….")


def row_count_option(options: Mapping[str, str], name: str, otherwise: int) -> int:
    text = options.get(name)
    if text is None:
        return otherwise
    if not text.isdecimal() or int(text) < 1:
        raise BadRequest(f"The option {name} is {text!r}: give a number of rows.")
    return int(text)


@dataclass(frozen=True)
class Destination:
    """Where a write goes, as its options say."""

    store: str
    storage_options: Mapping[str, str]
    type_name: str
    options: LoadOptions

    def open(self) -> Repository:
        return open_repository(self.store, self.storage_options)


@dataclass
class StagedPart(WriterCommitMessage):
    """What one task has to say to the driver."""

    answer: SpooledPart


def parse_destination(options: Mapping[str, str], overwrite: bool) -> Destination:
    check_names(options, WRITE_OPTIONS)
    mode = options.get("mode", "overwrite" if overwrite else "append").lower()
    if mode not in MODES:
        raise BadRequest(f"The option mode is {mode!r}: it is {', '.join(MODES)}.")
    if overwrite != (mode == "overwrite"):
        raise BadRequest(
            f'The option mode is {mode!r}, which is not Spark\'s save mode: use .mode("overwrite") to overwrite, and '
            '.mode("append") with the option for a merge.'
        )
    load = LoadOptions(
        mode=next(known for known in MODES if known == mode),
        branch=options.get("branch", MAIN),
        from_=options.get("from"),
        actor=options.get("actor"),
        if_commit=options.get("ifCommit"),
        txn_id=options.get("txnId"),
    )
    return Destination(parse_store(options), parse_storage_options(options), required_option(options, "type"), load)


class TypeWriter(DataSourceArrowWriter):
    """Made by the driver when the write begins; its copies are what tasks call."""

    def __init__(self, destination: Destination, schema: StructType) -> None:
        self._to = destination
        repository = destination.open()
        self._schema = arrow_for_spark(schema)
        self._spool: Spool = begin_spool(repository, destination.options)
        try:
            find_type(self._spool.job.catalog, destination.type_name)
            check_rows(self._spool, destination.type_name, self._schema, "The DataFrame")
        except BaseException:
            discard_spool(repository, self._spool)
            raise

    def write(  # type: ignore[override]  # as its base class documents it, and declares it no better
        self, iterator: "Iterator[pa.RecordBatch]"
    ) -> WriterCommitMessage:
        type_name = self._to.type_name
        shown = partition_name(type_name)
        return StagedPart(spool_rows(self._spool, type_name, iterator, first_number=first_file_number(), shown=shown))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        answers = [message.answer for message in messages if isinstance(message, StagedPart)]
        if not any(answer.splits for answer in answers):
            name = self._to.type_name
            answers.append(spool_nothing(self._spool, name, self._schema, first_number=0, shown=name))
        options = replace(self._to.options, txn_id=self._spool.txn_id)
        bulk_load(self._to.open(), LocalRunner(), combine_parts(self._spool, answers), options)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        discard_spool(self._to.open(), self._spool)


IN_MAX = 1_000  # a longer list is Spark's to compare


def lance_condition(condition: Filter, definition: TypeDef) -> str | None:
    """The filter as Lance's SQL, or None."""
    match condition:
        case Not(EqualTo(path, value)):
            return _compared("!=", path, value, definition)
        case Not(IsNull(path)) | IsNotNull(path):
            return _null_test("IS NOT NULL", path, definition)
        case IsNull(path) | Not(IsNotNull(path)):
            return _null_test("IS NULL", path, definition)
        case EqualTo(path, value) | EqualNullSafe(path, value):  # a null constant is declined
            return _compared("=", path, value, definition)
        case LessThan(path, value):
            return _compared("<", path, value, definition)
        case LessThanOrEqual(path, value):
            return _compared("<=", path, value, definition)
        case GreaterThan(path, value):
            return _compared(">", path, value, definition)
        case GreaterThanOrEqual(path, value):
            return _compared(">=", path, value, definition)
        case In(path, values):
            return _any_of(path, values, definition)
        case StringStartsWith(path, value):
            return _text_condition(TextStartsWith, path, value, definition)
        case StringContains(path, value):
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
    return lance_filter(Compare(op, operand, Literal(exact, operand.type), domain), definition)


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
