"""Changes to a table, each as a new detached version that nothing refers to yet.

Lance's own write methods move a table's head; none is used here. A change is data files, then deletion files, then one
detached commit of an operation that names them. Detached commits detect no conflicts: publishing the version decides
whether its base is still valid.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from omnigraph.errors import BadRequest
from omnigraph.storage import meter
from omnigraph.storage.table import fsync
from omnigraph.storage.table.align import align_table, widen_schema
from omnigraph.storage.table.file_records import WrittenFiles, files_written_by, fragment_files
from omnigraph.storage.table.handles import Handles, TableVersion, lance_module
from omnigraph.storage.table.index.metadata import has_indexes
from omnigraph.storage.table.lance_errors import translate_errors
from omnigraph.storage.table.lance_io_stats import Origin
from omnigraph.storage.table.overlay import Overlay, unique_ids
from omnigraph.storage.table.read.row_addresses import cached_row_addresses, row_addresses
from omnigraph.threads import gather

if TYPE_CHECKING:
    import pyarrow as pa
    from lance import LanceDataset

CREATE_STAGES = 5  # LIST, data file, LIST, transaction, version
COMMIT_STAGES = 2  # transaction, version
SINGLE_PUT_BYTES_MAX = 5 * 1024 * 1024  # a larger data file is uploaded in parts
MULTIPART_STAGES = 3  # begin, parts, end


@dataclass(frozen=True, slots=True)
class AppendedFragments:
    """Appended fragments that can be added to another version of the same table as they are.

    The data files are written already. This is only allowed if no other writer has written these ids meanwhile: Lance
    would not notice a second row with the same id.
    """

    table_id: str
    fragments: tuple[Any, ...]  # lance.fragment.FragmentMetadata
    columns: frozenset[tuple[int, str, str]]  # field id, name and type that the files were written with
    ids: frozenset[str]


@dataclass(frozen=True, slots=True)
class DetachedVersion:
    """A committed table version and its number of live rows."""

    at: TableVersion
    rows: int
    appended: AppendedFragments | None = None


def create(handles: Handles, table_id: str, rows: "pa.Table") -> DetachedVersion:
    """Create the table. Its first version, 1, is the only one on its mainline."""
    unique_ids(rows)
    at = TableVersion(table_id, 1)
    path = fsync.path_to_sync(handles.location, table_id)
    made_above = fsync.missing_parents(path) if path is not None else []

    def make() -> "LanceDataset":
        dataset: LanceDataset = lance_module().write_dataset(
            rows,
            handles.uri(table_id),
            mode="create",
            storage_options=handles.options,
            session=handles.session,
        )
        return dataset

    with translate_errors(f"table {table_id}"), meter.lance_call(CREATE_STAGES):
        dataset = handles.open_counted(Origin.CREATED, make)
    if dataset.version != at.table_version:
        raise AssertionError(f"a new table has version {dataset.version}, expected {at.table_version}")
    if path is not None:
        fsync.sync_created(path, made_above)
    record_created(handles, at, dataset)
    handles.add(at, dataset)
    return DetachedVersion(at, rows.num_rows)


def record_created(handles: Handles, at: TableVersion, dataset: "LanceDataset") -> None:
    """Record the files of a new table. In an object store that is deferred to a later commit, if there is one."""
    paths = (path for fragment in dataset.get_fragments() for path in fragment_files(fragment.metadata))
    written = WrittenFiles(frozenset(paths))
    if handles.files.needs_requests(at.table_id, written):
        handles.files.defer(at.table_id, written.paths)
    else:
        handles.files.record(at.table_id, written)
    handles.files.add_version(at.table_id, None, at.table_version, written)


def append(handles: Handles, at: TableVersion, rows: "pa.Table") -> DetachedVersion:
    """Append rows whose ids the caller knows to be new."""
    ids = unique_ids(rows)
    dataset = handles.open(at)
    if not ids:
        return unchanged(at, dataset)
    aligned = align_table(rows, dataset.schema)
    return _commit_append(handles, at, dataset, _write_beside_indexes(handles, at, dataset, aligned), ids)


def upsert(handles: Handles, at: TableVersion, rows: "pa.Table") -> DetachedVersion:
    """Replace whole rows by id; add those that do not exist."""
    ids = unique_ids(rows)
    dataset = handles.open(at)
    if not ids:
        return unchanged(at, dataset)
    with translate_errors(str(at)):
        replaced = row_addresses(handles, dataset, ids)
    aligned = align_table(rows, dataset.schema)
    if not replaced:
        return _commit_append(handles, at, dataset, _write(handles, at, dataset, aligned), ids)
    return _commit_replacement(handles, at, dataset, replaced, aligned)


def delete(handles: Handles, at: TableVersion, ids: Iterable[str]) -> DetachedVersion:
    """Remove the rows with these ids; `at` itself if there are none."""
    dataset = handles.open(at)
    with translate_errors(str(at)):
        found = row_addresses(handles, dataset, sorted(set(ids)))
    return _commit_deletion(handles, at, dataset, found)


def fold(
    handles: Handles, at: TableVersion | None, overlay: Overlay, table_id: str, schema: "pa.Schema | None"
) -> DetachedVersion:
    """Fold an overlay into the stored version: one commit, or a new table if nothing is stored.

    Columns that only the overlay's rows or `schema` have are added first, as a version that is never published.
    """
    if at is None:
        columns = overlay.columns(schema)
        return create(
            handles, table_id, columns.empty_table() if overlay.rows is None else align_table(overlay.rows, columns)
        )
    rows = overlay.rows if overlay.rows is not None and overlay.rows.num_rows else None
    known = handles.open(at).schema
    wide = widen_schema(known if rows is None else overlay.widen(known), schema)
    at = add_columns(handles, at, list(wide)[len(known) :]).at
    dataset = handles.open(at)
    if overlay.is_empty:
        return unchanged(at, dataset)
    with translate_errors(str(at)):
        replaced = cached_row_addresses(handles, at, overlay.hidden_ids)
    if rows is None:
        return _commit_deletion(handles, at, dataset, replaced)
    aligned = align_table(rows, dataset.schema)
    if not replaced:
        return _commit_append(handles, at, dataset, _write_beside_indexes(handles, at, dataset, aligned), overlay.ids)
    return _commit_replacement(handles, at, dataset, replaced, aligned)


def overwrite(handles: Handles, at: TableVersion, rows: "pa.Table") -> DetachedVersion:
    """Replace all rows, and the schema by that of `rows`. Indexes are dropped."""
    unique_ids(rows)
    dataset = handles.open(at)
    fragments = _write(handles, at, dataset, rows, mode="overwrite") if rows.num_rows else []
    return commit(handles, at, dataset, lance_module().LanceOperation.Overwrite(rows.schema, fragments))


def add_columns(handles: Handles, at: TableVersion, fields: Sequence["pa.Field[Any]"]) -> DetachedVersion:
    """Add nullable columns at the end; all rows have null there. No data file is touched."""
    dataset = handles.open(at)
    schema = dataset.schema
    for column in fields:
        if not column.nullable:
            raise BadRequest(f"column {column.name!r} must be nullable: the rows that are there have no value for it.")
        if column.name in schema.names:
            raise BadRequest(f"the table already has a column {column.name!r}.")
        schema = schema.append(column)
    if not fields:
        return unchanged(at, dataset)
    fragments = [fragment.metadata for fragment in dataset.get_fragments()]
    operation = lance_module().LanceOperation.Merge(fragments, widen_lance_schema(dataset, schema))
    return commit(handles, at, dataset, operation)


def append_fragments(handles: Handles, at: TableVersion, appended: AppendedFragments) -> DetachedVersion:
    """Add fragments that were appended to another version of this table: a commit without writing data."""
    if appended.table_id != at.table_id:
        raise BadRequest(f"rows written for table {appended.table_id} can't be carried to {at}: stage them again.")
    dataset = handles.open(at)
    if not appended.columns <= _column_types(dataset):
        raise BadRequest(f"rows written with other columns than those of {at} can't be carried: stage them again.")
    operation = lance_module().LanceOperation.Append(list(appended.fragments))
    staged = commit(handles, at, dataset, operation)
    return DetachedVersion(staged.at, staged.rows, appended)


def commit(handles: Handles, at: TableVersion, dataset: "LanceDataset", operation: Any) -> DetachedVersion:
    """One detached commit of `operation` on `at`, durable when this returns unless syncing is deferred."""
    transaction = lance_module("lance.dataset").Transaction(read_version=at.table_version, operation=operation)
    written = files_written_by(operation, dataset)

    def make() -> "LanceDataset":
        metered = handles.measure(_commit_stages) if has_indexes(dataset) else meter.lance_call(COMMIT_STAGES)
        with translate_errors(str(at)), metered:
            made: LanceDataset = lance_module().LanceDataset.commit(
                dataset, transaction, storage_options=handles.options, detached=True
            )
            return made

    committed, inside = _commit_and_record(handles, at, written, make)
    fsync.sync_committed(handles.location, at, transaction.uuid, operation, committed.version)
    staged = TableVersion(at.table_id, committed.version)
    handles.files.add_version(at.table_id, at.table_version, committed.version, written, inside)
    return DetachedVersion(staged, handles.add(staged, committed).count_rows())


def _upload(handles: Handles, at: TableVersion, rows: "pa.Table", storage_version: str) -> list[Any]:
    """Write a small data file on scratch disk and upload it.

    The response to our own put has the ETag; after a put by Lance that would be one more request. Columns get the field
    ids of a new table.
    """
    with TemporaryDirectory(prefix="omnigraph-upload-") as scratch:
        with translate_errors(str(at)):
            fragments: list[Any] = lance_module("lance.fragment").write_fragments(
                rows, scratch, mode="create", data_storage_version=storage_version
            )
        files = [f"data/{file.path}" for fragment in fragments for file in fragment.files]
        uploads = [partial(_put_file, handles, at.table_id, path, Path(scratch) / path) for path in files]
        gather(uploads)
    return fragments


def _put_file(handles: Handles, table_id: str, path: str, file: Path) -> None:
    handles.files.put(table_id, path, file.read_bytes())


def _commit_and_record(
    handles: Handles, at: TableVersion, written: WrittenFiles, make: "Callable[[], LanceDataset]"
) -> "tuple[LanceDataset, frozenset[str]]":
    """Commit and record the new files; requests for the records run concurrently with the commit."""
    files, table_id = handles.files, at.table_id
    if not files.needs_requests(table_id, written):
        return make(), files.record(table_id, written)
    answers: list[Any] = gather([make, partial(files.record, table_id, written, beside=True)])
    return answers[0], answers[1]


def _commit_stages(made: int) -> int:
    """A commit carries over the indexes of its base, and reads the index section unless it is cached."""
    return COMMIT_STAGES if made <= COMMIT_STAGES else COMMIT_STAGES + 1


def unchanged(at: TableVersion, dataset: "LanceDataset") -> DetachedVersion:
    return DetachedVersion(at, dataset.count_rows())


def write_deletion_files(
    at: TableVersion, dataset: "LanceDataset", found: dict[int, list[int]], stages: int = 1
) -> tuple[list[Any], list[int]]:
    """Write deletion files; returns the fragments that have new ones, and the ids of those left empty."""

    def delete_in(fragment_id: int, offsets: list[int]) -> Any:
        with translate_errors(str(at)), meter.lance_call(stages):
            fragment: Any = dataset.get_fragment(fragment_id)
            return fragment.delete_rows(offsets)

    order = sorted(found)
    after = gather([partial(delete_in, fragment_id, found[fragment_id]) for fragment_id in order])
    removed = [fragment_id for fragment_id, left in zip(order, after, strict=True) if left is None]
    return [left for left in after if left is not None], removed


def widen_lance_schema(dataset: "LanceDataset", schema: "pa.Schema") -> Any:
    """A Lance schema for `schema`, which adds columns at the end of the dataset's.

    Files refer to columns by field id. Ids are assigned in order, so adding columns at the end keeps them; otherwise
    every old file would be misread, so this is checked.
    """
    wide = lance_module("lance.schema").LanceSchema.from_pyarrow(schema)
    require_same_columns(dataset, wide)
    return wide


def require_same_columns(dataset: "LanceDataset", wide: Any) -> None:
    """Check that a wider Lance schema starts with the dataset's columns, under their ids."""
    before = _field_ids(dataset.lance_schema.fields())
    if _field_ids(wide.fields()[: len(before)]) != before:
        raise AssertionError(f"widening would renumber the columns of {dataset.uri}")


def _field_ids(fields: Iterable[Any]) -> list[Any]:
    return [(field.id(), field.name(), _field_ids(field.children())) for field in fields]


def _column_types(dataset: "LanceDataset") -> frozenset[tuple[int, str, str]]:
    types = dataset.schema
    return frozenset((f.id(), f.name(), str(types.field(f.name()).type)) for f in dataset.lance_schema.fields())


def _commit_append(
    handles: Handles, at: TableVersion, dataset: "LanceDataset", fragments: list[Any], ids: Iterable[str]
) -> DetachedVersion:
    staged = commit(handles, at, dataset, lance_module().LanceOperation.Append(fragments))
    return DetachedVersion(
        staged.at,
        staged.rows,
        AppendedFragments(at.table_id, tuple(fragments), _column_types(dataset), frozenset(ids)),
    )


def _commit_replacement(
    handles: Handles, at: TableVersion, dataset: "LanceDataset", gone: dict[int, list[int]], rows: "pa.Table"
) -> DetachedVersion:
    """Replace rows by others in one commit."""
    fragments, (updated, removed) = gather(
        [lambda: _write(handles, at, dataset, rows), lambda: write_deletion_files(at, dataset, gone)]
    )
    operation = lance_module().LanceOperation.Update(
        removed_fragment_ids=removed, updated_fragments=updated, new_fragments=fragments
    )
    return commit(handles, at, dataset, operation)


def _commit_deletion(
    handles: Handles, at: TableVersion, dataset: "LanceDataset", gone: dict[int, list[int]]
) -> DetachedVersion:
    if not gone:
        return unchanged(at, dataset)
    updated, removed = write_deletion_files(at, dataset, gone)
    return commit(handles, at, dataset, lance_module().LanceOperation.Delete(updated, removed, ""))


def _write_beside_indexes(handles: Handles, at: TableVersion, dataset: "LanceDataset", rows: "pa.Table") -> list[Any]:
    """Write rows aligned to the dataset while its index section is read.

    Lance needs that section to commit, and would read it before writing a file for an existing table. Written as if for
    a new table, the file is the same if the columns get the same ids.
    """
    if not has_indexes(dataset) or not _has_default_field_ids(dataset):
        return _write(handles, at, dataset, rows)

    def learn_indexes() -> list[Any]:
        with translate_errors(str(at)), handles.measure(lambda made: min(made, 1)):
            return list(dataset.describe_indices())

    written, _ = gather([lambda: _write(handles, at, dataset, rows, mode="overwrite"), learn_indexes])
    return written


def _has_default_field_ids(dataset: "LanceDataset") -> bool:
    """Whether the columns have the field ids that a new table would give them."""
    numbered = lance_module("lance.schema").LanceSchema.from_pyarrow(dataset.schema)
    return _field_ids(numbered.fields()) == _field_ids(dataset.lance_schema.fields())


def _write(
    handles: Handles, at: TableVersion, dataset: "LanceDataset", rows: "pa.Table", mode: str = "append"
) -> list[Any]:
    stages = 1 if rows.nbytes < SINGLE_PUT_BYTES_MAX else MULTIPART_STAGES
    if stages == 1:
        rows = rows.combine_chunks()  # rows of small commits are chunks of one row, and Lance encodes chunk by chunk
        if handles.files.can_put and (mode == "overwrite" or _has_default_field_ids(dataset)):
            return _upload(handles, at, rows, dataset.data_storage_version)
    with translate_errors(str(at)), meter.lance_call(stages):
        fragments: list[Any] = lance_module("lance.fragment").write_fragments(
            rows, dataset, mode=mode, data_storage_version=dataset.data_storage_version
        )
        return fragments
