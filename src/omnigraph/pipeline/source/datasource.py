"""`spark.read.format("omnigraph")` and `df.write.format("omnigraph")`: a type of a graph as a DataFrame.

    spark.dataSource.register(OmnigraphDataSource)
    spark.read.format("omnigraph").option("store", uri).option("type", "Person").load()

Reading pins a commit when the DataFrame is made: whatever is done with it later, and on whatever executor, reads that
commit. Writing stages fragments on the executors, as a bulk load does, and publishes once at the end.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter, Filter, InputPartition
from pyspark.sql.types import StructType

from omnigraph.errors import BadRequest
from omnigraph.manifest.model.manifest import MAIN
from omnigraph.pipeline.source.options import positive, refuse_unknown, required, storage_options_of, store_of
from omnigraph.pipeline.source.pushdown import pushed
from omnigraph.pipeline.source.scans import PART_ROWS, Pinned, divided, pin, read_part
from omnigraph.pipeline.spark.types import arrow_for_spark, for_spark, spark_schema

if TYPE_CHECKING:
    import pyarrow as pa

_WHEN = ("at", "commit", "timestamp")
_READ_OPTIONS = frozenset({"store", "path", "type", "branch", "columns", "partitionrows", "pushdown", *_WHEN})
_PUSHDOWN: Mapping[str, bool | None] = {"auto": None, "true": True, "false": False}


class OmnigraphDataSource(DataSource):
    """The data source. See docs/pipeline.md for its options."""

    _pinned: Pinned | None = None  # from the moment that Spark asks for the schema

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
        rows = positive(self.options, "partitionRows", PART_ROWS)
        kind = FilteringReader if _filters_are_pushed() and self._takes_filters() else Reader
        return kind(pinned, schema, rows)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from omnigraph.pipeline.source.datasink import Writer, destination_of

        return Writer(destination_of(self.options, overwrite), schema)

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

    def _pin(self) -> Pinned:
        if self._pinned is None:
            refuse_unknown(self.options, _READ_OPTIONS)
            when = [self.options[name] for name in _WHEN if name in self.options]
            if len(when) > 1:
                raise BadRequest("Give one of the options at, commit and timestamp, not several.")
            self._pinned = pin(
                store_of(self.options),
                required(self.options, "type"),
                branch=self.options.get("branch", MAIN),
                at=when[0] if when else None,
                storage_options=storage_options_of(self.options),
            )
        return self._pinned

    def _columns(self, pinned: Pinned) -> Sequence[str]:
        text = self.options.get("columns")
        if text is None:
            return pinned.names
        names = [name.strip() for name in text.split(",") if name.strip()]
        if not names or len(set(names)) != len(names):
            raise BadRequest(f"The option columns is {text!r}: name some columns, each once, with commas between.")
        return names


class Fragments(InputPartition):
    """What one task reads."""

    def __init__(self, fragments: tuple[int, ...]) -> None:
        super().__init__(fragments)


class Reader(DataSourceReader):
    """Reads a pinned type, a group of fragments a task."""

    def __init__(self, pinned: Pinned, schema: StructType, rows: int) -> None:
        self._pinned = pinned
        self._schema = schema
        self._rows = rows
        self._filters: list[str] = []

    def partitions(self) -> Sequence[InputPartition]:
        return [Fragments(group) for group in divided(self._pinned, self._rows)] or [Fragments(())]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        row_filter = " AND ".join(self._filters) or None
        target = arrow_for_spark(self._schema)
        for batch in read_part(self._pinned, partition.value, self._schema.names, row_filter):
            yield for_spark(batch, target)


class FilteringReader(Reader):
    """A reader that takes filters. Apart, because Spark refuses one where filter pushdown is not enabled."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        for condition in filters:
            text = pushed(condition, self._pinned.definition)
            if text is None:
                yield condition
            else:
                self._filters.append(text)


def _filters_are_pushed() -> bool:
    """Whether this process was started to push filters: Spark does that in workers of their own kind."""
    kind = "pyspark.sql.worker.data_source_pushdown_filters"
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return kind in sys.modules or getattr(main, "name", None) == kind
