"""Schema evolution: adding columns with values, and physically dropping columns.

A new column is one more data file per fragment: nothing else is read, rewritten or renumbered, so indexes and row
addresses stay. Physically dropping a column makes another table, because a fragment's files are immutable.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from omnigraph.storage import meter
from omnigraph.storage.table import fsync
from omnigraph.storage.table.handles import Handles, TableVersion, lance_module
from omnigraph.storage.table.index import segments as index_segments
from omnigraph.storage.table.index.metadata import segments
from omnigraph.storage.table.lance_errors import translate_errors
from omnigraph.storage.table.lance_io_stats import Origin
from omnigraph.storage.table.write import detached_commit
from omnigraph.storage.table.write.detached_commit import DetachedVersion
from omnigraph.threads import gather

if TYPE_CHECKING:
    import pyarrow as pa
    from lance import LanceDataset

    from omnigraph.schema.indexes import DeclaredIndex

FILL_STAGES = 4  # a column's metadata and pages, then a data file
BATCH_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class FilledColumn:
    """A new column of existing rows: another column, cast, or one value for all."""

    field: "pa.Field[Any]"
    source: str | None = None
    value: Any = None

    def of(self, batch: "pa.RecordBatch") -> "pa.Array[Any]":
        import pyarrow as pa

        kind: Any = self.field.type
        if self.source is not None:
            cast: pa.Array[Any] = batch.column(self.source).cast(kind)
            return cast
        value = list(self.value) if isinstance(self.value, tuple) else self.value
        every: pa.Array[Any] = pa.array([value], kind).take(pa.array([0] * batch.num_rows, pa.int64()))
        return every


def fill_columns(handles: Handles, at: TableVersion, columns: Sequence[FilledColumn]) -> DetachedVersion:
    """Add columns with values at the end; fragments in parallel, each in batches."""
    import pyarrow as pa

    dataset = handles.open(at)
    fragments = dataset.get_fragments()
    if not fragments:
        return detached_commit.add_columns(handles, at, [column.field for column in columns])
    schema = pa.schema([column.field for column in columns])
    sources = sorted({column.source for column in columns if column.source is not None}) or ["id"]

    def fill_batch(batch: "pa.RecordBatch") -> "pa.RecordBatch":
        return pa.record_batch([column.of(batch) for column in columns], schema=schema)

    def fill(fragment: Any) -> tuple[Any, Any]:
        with translate_errors(str(at)), handles.measure(lambda requests: min(requests, FILL_STAGES)):
            filled: tuple[Any, Any] = fragment.merge_columns(fill_batch, columns=sources, batch_size=BATCH_ROWS)
            return filled

    results = gather([partial(fill, fragment) for fragment in fragments])
    wide = results[0][1]
    detached_commit.require_same_columns(dataset, wide)
    path = fsync.path_to_sync(handles.location, at.table_id)
    if path is not None:
        fsync.sync_data(path, [str(file.path) for metadata, _ in results for file in metadata.files])
    operation = lance_module().LanceOperation.Merge([metadata for metadata, _ in results], wide)
    return detached_commit.commit(handles, at, dataset, operation)


def copy_columns(handles: Handles, at: TableVersion, table_id: str, columns: Sequence[str]) -> DetachedVersion:
    """Another table with the same rows in only these columns; `table_id` must be unused. Indexes are not copied."""
    dataset = handles.open(at)
    path = fsync.path_to_sync(handles.location, table_id)
    made_above = fsync.missing_parents(path) if path is not None else []

    def make() -> "LanceDataset":
        scanner: Any = dataset.scanner(columns=list(columns), batch_size=BATCH_ROWS)
        copied: LanceDataset = lance_module().write_dataset(
            scanner.to_reader(),
            handles.uri(table_id),
            mode="create",
            storage_options=handles.options,
            session=handles.session,
        )
        return copied

    with translate_errors(f"table {table_id}"), meter.lance_call(detached_commit.CREATE_STAGES):
        copied = handles.open_counted(Origin.CREATED, make)
    made = TableVersion(table_id, int(copied.version))
    if path is not None:
        fsync.sync_created(path, made_above)
    detached_commit.record_created(handles, made, copied)
    return DetachedVersion(made, handles.add(made, copied).count_rows())


def reindex(
    handles: Handles, at: TableVersion, stale: Iterable[str], indexes: "Iterable[DeclaredIndex]"
) -> TableVersion:
    """A version without the indexes named `stale`, and with these over all rows if there are many."""
    dataset = handles.open(at)
    names = frozenset(stale)
    gone = [segment for segment in segments(dataset) if segment.name in names] if names else []
    if gone:
        operation = lance_module().LanceOperation.CreateIndex([], gone)
        at = detached_commit.commit(handles, at, dataset, operation).at
    wanted = tuple(indexes)
    return index_segments.add_segments(handles, at, None, wanted) if wanted else at
