"""The difference of two sets of rows, by id and content.

Small sets are compared in memory. Larger ones are joined in DuckDB, which spills to disk: the join only finds the ids
that differ, so that no value passes through DuckDB's types, and the rows are then read once more.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from omnigraph.cancellation import interruptible
from omnigraph.storage.table.diff.equality import equal_rows
from omnigraph.storage.table.overlay import ID
from omnigraph.storage.util.duckdb_stream import BatchStreams

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Places: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

BatchReader: TypeAlias = "Callable[[], Iterator[pa.RecordBatch]]"


@dataclass(frozen=True, slots=True, eq=False)
class Difference:
    """The rows that differ, as they were before and as they are after.

    An id in both tables was updated, one in `before` alone deleted, one in `after` alone inserted. Both tables have the
    same columns; a column that a side lacks is null there.
    """

    before: "pa.Table"
    after: "pa.Table"


def diff_in_memory(before: "pa.Table", after: "pa.Table") -> Difference:
    """Drop the rows that are equal on both sides."""
    import numpy as np
    import pyarrow.compute as pc

    if not before.num_rows or not after.num_rows:
        return Difference(before, after)
    counterpart = pc.index_in(before[ID], value_set=after[ID].combine_chunks())
    here = np.flatnonzero(counterpart.is_valid().to_numpy())
    there: Places = counterpart.drop_null().to_numpy().astype(np.int64)
    same = equal_rows(before.take(here), after.take(there))
    return Difference(_without(before, here[same]), _without(after, there[same]))


def diff_by_join(older: BatchReader, newer: BatchReader, shape: "pa.Schema") -> Difference:
    """The same for batches with the columns of `shape`, which are read twice."""
    ids = _differing_ids(older, newer, shape)
    return Difference(_rows_of(older, ids, shape), _rows_of(newer, ids, shape))


def _differing_ids(older: BatchReader, newer: BatchReader, shape: "pa.Schema") -> Any:
    import duckdb

    streams = BatchStreams()
    with duckdb.connect() as connection, streams.original_errors():
        for name, read in (("older", older), ("newer", newer)):
            connection.register(name, streams.reader(shape, read()))
        distinct = [f"older.{column} IS DISTINCT FROM newer.{column}" for column in map(_quoted, shape.names)]
        with interruptible(connection.interrupt):
            found: Any = connection.sql(
                f"SELECT coalesce(older.{ID}, newer.{ID}) AS {ID} FROM older FULL OUTER JOIN newer"
                f" ON older.{ID} = newer.{ID} WHERE {' OR '.join(distinct)}"
            ).to_arrow_table()
    return found[ID].combine_chunks().cast(shape.field(ID).type)


def _rows_of(read: BatchReader, ids: Any, shape: "pa.Schema") -> "pa.Table":
    import pyarrow as pa
    import pyarrow.compute as pc

    if not len(ids):
        return shape.empty_table()
    kept = [batch.filter(pc.is_in(batch.column(ID), value_set=ids)) for batch in read()]
    return pa.Table.from_batches(kept, schema=shape)


def _without(rows: "pa.Table", places: "Places") -> "pa.Table":
    import numpy as np
    import pyarrow as pa

    kept = np.ones(rows.num_rows, bool)
    kept[places] = False
    return rows.filter(pa.array(kept))


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'
