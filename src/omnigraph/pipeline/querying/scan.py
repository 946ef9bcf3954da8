"""Tables as Spark DataFrames for a query: each task reads its fragments, filters them, and hands over a few columns.

What concerns one variable alone is decided here, in the Python task, by the functions that the in-process engine
uses: so a filter means the same, and rows that do not pass never reach the JVM. A filter that is asked later (inside a
`not`) comes along as a column of its own.

Spark has no unsigned 64 bits, no milliseconds and no exact sum of floats, so columns travel as *carriers*: U64 as
DECIMAL(20, 0), U32 as BIGINT, dates as days and times as milliseconds, and a float that is to be summed also as a
pair of integers (`FloatPart`). `from_carrier` undoes it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from omnigraph.errors import OmnigraphError
from omnigraph.pipeline.source.scans import PinnedType, fragment_tasks, read_part
from omnigraph.pipeline.spark.runner import TaskFailure
from omnigraph.query.ir import Filter
from omnigraph.read.match.filters import columns_of, filter_table, lance_filter, to_array
from omnigraph.read.reader import SnapshotReader, TableState
from omnigraph.read.tables.arrow_numpy import raw_values, valid_mask
from omnigraph.schema.arrow import arrow_schema
from omnigraph.schema.types import Enumeration, ListOf, PropertyType, Scalar, Vector
from omnigraph.storage.location import Location
from omnigraph.storage.table.align import align_table
from omnigraph.storage.table.overlay import Overlay, without_ids

TASK_ROWS = 250_000
SMALL_ROWS = 20_000  # a table that every executor may have whole
_SPARK = {
    "String": "string",
    "Bool": "boolean",
    "I32": "int",
    "I64": "bigint",
    "U32": "bigint",
    "U64": "decimal(20,0)",
    "F32": "float",
    "F64": "double",
    "Date": "int",
    "DateTime": "bigint",
    "Blob": "binary",
}


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """A column as the table keeps it."""

    column: str


@dataclass(frozen=True, slots=True)
class FilterResult:
    """Whether the row passes a filter over it alone; never null."""

    condition: Filter


@dataclass(frozen=True, slots=True)
class FloatPart:
    """A float as `part * 2^(8 * bucket)`: integers, whose sums are exact whatever the order. Null where it is null."""

    column: str
    bucket: bool  # or the part


ColumnSpec: TypeAlias = StoredColumn | FilterResult | FloatPart


def spark_type(kind: PropertyType) -> str:
    """The type a property's values travel as."""
    match kind:
        case Scalar(name):
            return _SPARK[name]
        case ListOf(item):
            return f"array<{_SPARK[item.name]}>"
        case Vector():
            return "array<float>"
        case Enumeration():
            return "string"


def carrier_type(kind: pa.DataType) -> pa.DataType:
    """The Arrow type that Spark takes for a stored one."""
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(carrier_type(kind.value_type))
    changed: dict[pa.DataType, pa.DataType] = {
        pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0),
        pa.date32(): pa.int32(),
        pa.timestamp("ms", tz="UTC"): pa.int64(),
        pa.large_binary(): pa.binary(),
    }
    return changed.get(kind, kind)


def from_carrier(column: Any, kind: pa.DataType) -> Any:
    """A column of a result in its own type again."""
    if column.type == kind:
        return column
    if pa.types.is_fixed_size_list(kind):
        return _fixed_size_list(column, from_carrier(column.flatten(), kind.value_type), kind)
    if pa.types.is_list(kind):
        return _replace_values(column, from_carrier(column.flatten(), kind.value_type))
    return column.cast(kind)


def _replace_values(column: Any, values: Any) -> Any:
    """The lists of a column with other elements, as many of them."""
    lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    offsets: Any = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, values, mask=column.is_null())


def _fixed_size_list(column: Any, values: Any, kind: Any) -> Any:
    """A list in place of nulls too, because each takes its room in an array of fixed width."""
    places = np.full(len(column) * kind.list_size, -1, np.int64)
    present = np.repeat(column.is_valid().to_numpy(zero_copy_only=False), kind.list_size)
    places[present] = np.arange(len(values))
    taken = values.take(pa.array(places, mask=places < 0))
    return pa.FixedSizeListArray.from_arrays(taken, type=kind, mask=column.is_null())


class Frames:
    """The tables of one snapshot as DataFrames."""

    def __init__(self, spark: SparkSession, reader: SnapshotReader, location: Location) -> None:
        self.spark = spark
        self.reader = reader
        self._location = location

    def of(
        self, table_key: str, columns: Sequence[tuple[ColumnSpec, str]], filters: Sequence[Filter] = ()
    ) -> DataFrame:
        """The rows that pass, with these columns under these names. A text search is the driver's to run."""
        state = self.reader.state(table_key)
        pinned = PinnedType(self._location, state.definition, self.reader.commit_id, state.at)
        groups = tuple(fragment_tasks(pinned, TASK_ROWS))
        tasks = len(groups) + (state.overlay.rows is not None)
        if not tasks:
            return self.empty(state, columns)
        pushed = [self._pushed(condition, state) for condition in filters]
        task = ScanTask(
            pinned,
            groups,
            tuple(columns),
            " AND ".join(f"({text})" for text in pushed if text is not None) or None,
            tuple(condition for condition, text in zip(filters, pushed, strict=True) if text is None),
            state.overlay,
            tuple(filters),
        )
        frame = self.spark.range(0, tasks, 1, tasks).mapInArrow(task, _schema(state, columns))
        return sf.broadcast(frame) if state.rows <= SMALL_ROWS else frame

    def _pushed(self, condition: Filter, state: TableState) -> str | None:
        """The filter for Lance, where the stored columns are those of the schema: older versions may lack some."""
        if state.at is None:
            return None
        stored: pa.Schema = self.reader.tables.open(state.at).schema
        for name in columns_of(condition):
            if name not in stored.names or stored.field(name).type != state.schema.field(name).type:
                return None
        return lance_filter(condition, state.definition)

    def empty(self, state: TableState, columns: Sequence[tuple[ColumnSpec, str]]) -> DataFrame:
        return self.spark.createDataFrame([], _schema(state, columns))

    def ids(self, name: str, ids: Any) -> DataFrame:
        """Ids that the driver has found, as a frame of one column."""

        return self.spark.createDataFrame(pa.table({name: ids.cast(pa.string())}))


class HeldFrames:
    """Frames that executors hold while a query runs, because they are used more than once."""

    def __init__(self) -> None:
        self._kept: list[DataFrame] = []
        self._apply_waiting: list[DataFrame] = []

    def keep(self, frame: DataFrame) -> DataFrame:
        """Made once, when it is first used, and again where an executor is lost."""
        kept = frame.persist()
        self._kept.append(kept)
        return kept

    def checkpoint(self, frame: DataFrame) -> DataFrame:
        """Made now, and from now on without a past: a plan that grows with every round would soon be endless."""
        settled = frame.localCheckpoint()
        self._apply_waiting.append(settled)
        return settled

    def drop(self) -> None:
        for frame in self._kept:
            frame.unpersist()
        for frame in self._apply_waiting:
            plan: Any = frame._jdf.queryExecution().logical()
            plan.rdd().unpersist(False)  # Spark itself would wait for Java's garbage collector


def _schema(state: TableState, columns: Sequence[tuple[ColumnSpec, str]]) -> str:
    return ", ".join(f"{name} {_column_type(state, wanted)}" for wanted, name in columns)


def _column_type(state: TableState, wanted: ColumnSpec) -> str:
    match wanted:
        case FilterResult():
            return "boolean"
        case FloatPart(_, bucket):
            return "int" if bucket else "bigint"
        case StoredColumn(column):
            types = {prop.column: prop.type for prop in state.definition.properties}
            return spark_type(types.get(column, Scalar("String")))


@dataclass(frozen=True)
class ScanTask:
    """What a task does: read the fragments of its group; the last one has the rows that lie over them."""

    pinned: PinnedType
    groups: tuple[tuple[int, ...], ...]
    columns: tuple[tuple[ColumnSpec, str], ...]
    pushed: str | None  # what Lance filters
    others: tuple[Filter, ...]  # what is left to filter
    overlay: Overlay
    filters: tuple[Filter, ...]  # all of them, for rows that Lance does not have

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            stored = self._fields()
            for batch in batches:
                for number in batch.column(0).to_numpy().tolist():
                    if number == len(self.groups):
                        yield from self._select(self._overlay_rows(stored), self.filters)
                        continue
                    for read in read_part(self.pinned, self.groups[number], list(stored), self.pushed):
                        yield from self._select(self._cast(read, stored), self.others)
        except OmnigraphError as error:
            raise TaskFailure(error) from None

    def _fields(self) -> "dict[str, pa.Field[pa.DataType]]":
        """What to read: the fields of the table, by the names that the schema has for them."""
        found: list[str] = ["id"] if self.overlay.hidden_ids else []
        for wanted, _ in self.columns:
            found += columns_of(wanted.condition) if isinstance(wanted, FilterResult) else [wanted.column]
        for condition in self.filters:
            found += columns_of(condition)
        definition = self.pinned.definition
        names = {prop.column: prop.name for prop in definition.properties}
        fields = arrow_schema(definition)
        return {names.get(column, column): fields.field(column) for column in dict.fromkeys(found)}

    def _cast(self, batch: pa.RecordBatch, stored: Mapping[str, Any]) -> pa.Table:
        """Stored rows in the types of the schema, without those that the overlay replaces or removes."""
        schema = pa.schema(list(stored.values()))
        rows = align_table(pa.table(batch).select(list(stored)).rename_columns(schema.names), schema)
        return without_ids(rows, self.overlay.hidden_ids) if self.overlay.hidden_ids else rows

    def _overlay_rows(self, stored: Mapping[str, Any]) -> pa.Table:
        rows, schema = self.overlay.rows, arrow_schema(self.pinned.definition)
        assert rows is not None
        return align_table(rows, schema, drop_unknown=True).select([field.name for field in stored.values()])

    def _select(self, rows: pa.Table, filters: Sequence[Filter]) -> Iterator[pa.RecordBatch]:
        for condition in filters:
            if rows.num_rows:
                rows = rows.filter(pa.array(filter_table(condition, rows)))
        if rows.num_rows:
            arrays = [_column(rows, wanted) for wanted, _ in self.columns]
            yield pa.record_batch(arrays, names=[name for _, name in self.columns])


def _column(rows: pa.Table, wanted: ColumnSpec) -> Any:
    match wanted:
        case FilterResult(condition):
            return pa.array(filter_table(condition, rows))
        case FloatPart(column, bucket):
            return float_part(to_array(rows.column(column)), bucket)
        case StoredColumn(column):
            return carried(to_array(rows.column(column)))


def carried(values: Any) -> Any:

    kind = carrier_type(values.type)
    if kind == values.type:
        return values
    if pa.types.is_fixed_size_list(values.type):
        return values.cast(kind)
    if pa.types.is_list(values.type):
        return _replace_values(values, carried(values.flatten()))
    return values.cast(kind)


def float_part(values: Any, bucket: bool) -> Any:
    """The bucket or the part of each float: 53 bits of mantissa and up to 7 of shift fit into 64."""
    valid = valid_mask(values)
    fractions, exponents = np.frexp(
        np.where(valid, raw_values(values), 0) if valid is not None else raw_values(values).astype(float)
    )
    fractions, exponents = fractions.astype(np.float64), exponents.astype(np.int64) - 53
    mask = None if valid is None else ~valid
    if bucket:
        return pa.array((exponents >> 3).astype(np.int32), mask=mask)
    return pa.array(np.ldexp(fractions, 53).astype(np.int64) << (exponents & 7), mask=mask)
