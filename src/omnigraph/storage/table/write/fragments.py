"""Fragments that the tasks of a bulk job write and read, and the versions that its driver makes of them.

A task knows a location, a table id and a pinned version, all of which can be pickled, and nothing else. What it writes
belongs to no version until the driver commits it as a detached one (`detached_commit.commit`), and is visible to nobody
until that version is published.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from omnigraph.errors import AlreadyExists, BadRequest
from omnigraph.storage.location import Location
from omnigraph.storage.table.align import align_table
from omnigraph.storage.table.file_records import FileRecord
from omnigraph.storage.table.file_records import fragment_files as fragment_files_of
from omnigraph.storage.table.handles import Handles, TableVersion, handles_of, lance_module
from omnigraph.storage.table.index.metadata import has_indexes
from omnigraph.storage.table.lance_errors import translate_errors
from omnigraph.storage.table.read.row_addresses import FILTER_IDS_MAX, id_batches, row_addresses
from omnigraph.storage.table.write import detached_commit

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from lance import LanceDataset

    Addresses = np.ndarray[Any, np.dtype[np.int64]]

ROW_ADDRESS = "rowaddr"
FIRST_VERSION = 1  # of a table that `ensure_table` made
# By default Lance reads ahead by up to 2 GiB; this bounds the driver's memory for tables of any size.
READ_AHEAD_BYTES, BATCHES_AHEAD, FRAGMENTS_AHEAD = 32 * 2**20, 2, 1
ROWS_A_BATCH = 131_072  # of key columns
TAKE_ROWS_MAX = 65_536  # rows that are taken by address in one call
ROWS_AN_ID_MIN = 50  # with more ids than one filter takes, filters pay off from this many rows per id
ROWS_MAX = 1024 * 1024  # of a fragment
BYTES_MAX = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class TargetTable:
    """The table that rows are written to: an existing version, or the id of a table to be created."""

    table_id: str
    base: int | None = None

    @property
    def at(self) -> TableVersion | None:
        return None if self.base is None else TableVersion(self.table_id, self.base)


@dataclass(frozen=True, slots=True)
class WrittenFragment:
    """The result of a task: a written fragment, as JSON, that belongs to no version yet."""

    document: str
    rows: int
    records: tuple[tuple[str, FileRecord], ...] = ()  # of its files, by path below the table's directory

    @property
    def paths(self) -> frozenset[str]:
        return frozenset(file["path"] for file in json.loads(self.document)["files"])


# Called by tasks.


def write_rows(
    location: Location, target: TargetTable, rows: "pa.Table", *, replaces_all: bool = False
) -> list[WrittenFragment]:
    """Write rows, in order, to be added to the target or to replace all its rows."""
    handles, at = handles_of(location), target.at
    if at is None:
        try:
            options = {"mode": "create", "storage_options": handles.options, "session": handles.session}
            return _write(handles, target.table_id, handles.uri(target.table_id), rows, options)
        except AlreadyExists:  # another start of the same job has made the table meanwhile, empty: see `ensure_table`
            return write_rows(location, TargetTable(target.table_id, FIRST_VERSION), rows)
    dataset = handles.open(at)
    mode = "overwrite" if replaces_all else "append"
    rows = rows if replaces_all else align_table(rows, dataset.schema)
    options = {"mode": mode, "data_storage_version": dataset.data_storage_version}
    return _write(handles, at.table_id, dataset, rows, options)


def _write(
    handles: Handles, table_id: str, where: "str | LanceDataset", rows: "pa.Table", options: Mapping[str, Any]
) -> list[WrittenFragment]:
    with translate_errors(f"table {table_id}"):
        written = lance_module("lance.fragment").write_fragments(
            rows, where, schema=rows.schema, max_rows_per_file=ROWS_MAX, max_bytes_per_file=BYTES_MAX, **options
        )
    return [_describe(handles, table_id, one) for one in written]


def _describe(handles: Handles, table_id: str, fragment: Any) -> WrittenFragment:
    """The fragment, on a local disk with checksums, so that the driver need not read the files.

    In an object store the driver requests them while it commits.
    """
    records: dict[str, FileRecord] = {}
    if handles.location.is_local:
        records = handles.files.make_records(table_id, fragment_files_of(fragment))
    return WrittenFragment(json.dumps(fragment.to_json()), int(fragment.physical_rows), tuple(records.items()))


def write_deletions(location: Location, at: TableVersion, fragment_id: int, offsets: Sequence[int]) -> str | None:
    """Write a deletion file for some rows of one fragment; returns the fragment, None if no row is left."""
    dataset = handles_of(location).open(at)
    with translate_errors(str(at)):
        fragment: Any = dataset.get_fragment(fragment_id)
        left = fragment.delete_rows(list(offsets))
    return None if left is None else json.dumps(left.to_json())


def copy_fragment(location: Location, at: TableVersion, fragment_id: int, target: TargetTable) -> list[WrittenFragment]:
    """Copy one fragment, with deleted rows, to fragments of another table: offsets stay the same."""
    dataset: Any = handles_of(location).open(at)
    with translate_errors(str(at)):
        scanner = dataset.scanner(fragments=[dataset.get_fragment(fragment_id)], scan_in_order=True)
        rows = scanner.to_table()
    return write_rows(location, target, rows)


def key_batches(
    location: Location, at: TableVersion, columns: Mapping[str, str], fragments: Sequence[int] | None = None
) -> "Iterator[pa.RecordBatch]":
    """Some columns, renamed, with the address of each row as `rowaddr`; of these fragments, or of all.

    The two zeros are one value, as for every constraint.
    """
    import pyarrow as pa

    dataset = handles_of(location).open(at)
    chosen: Any = None
    if fragments is not None:  # a fragment without rows is dropped
        chosen = [part for number in fragments if (part := dataset.get_fragment(number)) is not None]
        if not chosen:
            return
    scanner: Any = dataset.scanner(
        columns=list(columns),
        with_row_address=True,
        batch_size=ROWS_A_BATCH,
        fragments=chosen,
        scan_in_order=False,
        io_buffer_size=READ_AHEAD_BYTES,
        batch_readahead=BATCHES_AHEAD,
        fragment_readahead=FRAGMENTS_AHEAD,
    )
    with translate_errors(str(at)):
        for batch in scanner.to_batches():
            arrays = [normalize_zeros(batch.column(name)) for name in columns]
            address = batch.column("_rowaddr").view(pa.int64())
            yield pa.RecordBatch.from_arrays([address, *arrays], names=[ROW_ADDRESS, *columns.values()])


def key_schema(location: Location, at: TableVersion, columns: Mapping[str, str]) -> "pa.Schema":
    """The schema of `key_batches`."""
    import pyarrow as pa

    stored = handles_of(location).open(at).schema
    fields = [pa.field(alias, stored.field(name).type) for name, alias in columns.items()]
    return pa.schema([pa.field(ROW_ADDRESS, pa.int64()), *fields])


def rows_at(
    location: Location, at: TableVersion, addresses: "Addresses | Sequence[int]", columns: Sequence[str]
) -> "pa.Table":
    """The rows at these addresses, in their order."""
    import pyarrow as pa

    dataset: Any = handles_of(location).open(at)
    parts = [pa.schema([dataset.schema.field(name) for name in columns]).empty_table()]
    with translate_errors(str(at)):
        for start in range(0, len(addresses), TAKE_ROWS_MAX):
            wanted = [int(one) for one in addresses[start : start + TAKE_ROWS_MAX]]
            taken = dataset._take_rows(wanted, columns=list(columns))
            if taken.num_rows != len(wanted):
                raise AssertionError(f"{at}: {taken.num_rows} of {len(wanted)} rows were found at their addresses")
            parts.append(taken)
    return pa.concat_tables(parts)


def find_addresses(location: Location, at: TableVersion, ids: Sequence[str]) -> "Addresses | None":
    """The addresses of these ids, found by filters; None if one pass over the id column is cheaper."""
    import numpy as np

    handles = handles_of(location)
    dataset = handles.open(at)
    few = len(ids) <= FILTER_IDS_MAX
    if not few and not (has_indexes(dataset) and dataset.count_rows() > ROWS_AN_ID_MIN * len(ids)):
        return None
    found: list[int] = []
    for chunk in id_batches(ids):
        with translate_errors(str(at)):
            by_fragment = row_addresses(handles, dataset, chunk)
        found += [(fragment << 32) | offset for fragment, offsets in by_fragment.items() for offset in offsets]
    return np.array(found, np.int64)


# Called by the driver.


def fragment_rows(location: Location, at: TableVersion) -> dict[int, int]:
    """The physical rows of each fragment, deleted ones included, in order."""
    dataset = handles_of(location).open(at)
    return {int(one.fragment_id): int(one.physical_rows) for one in dataset.get_fragments()}


def fragment_paths(location: Location, at: TableVersion) -> dict[int, frozenset[str]]:
    """The data files of each fragment: equal files have equal rows."""
    dataset = handles_of(location).open(at)
    return {
        int(one.fragment_id): frozenset(file.path for file in one.metadata.files) for one in dataset.get_fragments()
    }


def ensure_table(location: Location, table_id: str, schema: "pa.Schema") -> TableVersion:
    """Create the empty first version of a table, unless an earlier run of the job has."""
    handles = handles_of(location)
    with suppress(AlreadyExists):
        detached_commit.create(handles, table_id, schema.empty_table())
    return TableVersion(table_id, FIRST_VERSION)


def commit_append(
    location: Location, at: TableVersion, fragments: Sequence[WrittenFragment]
) -> tuple[TableVersion, list[int]]:
    """Append fragments to `at` in a new version; also returns their ids in it, in order."""
    handles = handles_of(location)
    dataset = handles.open(at)
    _require_known_columns(dataset, at, fragments)
    _add_records(handles, at, fragments)
    operation = lance_module().LanceOperation.Append(_metadata(fragments))
    made = detached_commit.commit(handles, at, dataset, operation).at
    return made, _ids_of(handles.open(made), fragments)


def commit_overwrite(
    location: Location, at: TableVersion, schema: "pa.Schema", fragments: Sequence[WrittenFragment]
) -> tuple[TableVersion, list[int]]:
    """Replace all fragments of `at`, and its schema, in a new version."""
    handles = handles_of(location)
    _add_records(handles, at, fragments)
    operation = lance_module().LanceOperation.Overwrite(schema, _metadata(fragments))
    made = detached_commit.commit(handles, at, handles.open(at), operation).at
    return made, _ids_of(handles.open(made), fragments)


def commit_deletions(
    location: Location, at: TableVersion, updated: Iterable[str], removed: Sequence[int]
) -> tuple[TableVersion, int]:
    """Commit deletion files that tasks wrote, without empty fragments; also returns the row count."""
    handles = handles_of(location)
    from_json = lance_module("lance.fragment").FragmentMetadata.from_json
    operation = lance_module().LanceOperation.Delete([from_json(one) for one in updated], list(removed), "")
    made = detached_commit.commit(handles, at, handles.open(at), operation)
    return made.at, made.rows


def row_count(location: Location, at: TableVersion) -> int:
    return int(handles_of(location).open(at).count_rows())


def new_files(location: Location, base: TableVersion | None, at: TableVersion) -> dict[str, FileRecord]:
    """The records of files that a version has and its base lacks."""
    since = base.table_version if base is not None and base.table_id == at.table_id else None
    return handles_of(location).files.new_files(at.table_id, since, at.table_version)


def _add_records(handles: Handles, at: TableVersion, fragments: Sequence[WrittenFragment]) -> None:
    for one in fragments:
        handles.files.add_records(at.table_id, dict(one.records))


def _metadata(fragments: Sequence[WrittenFragment]) -> list[Any]:
    from_json = lance_module("lance.fragment").FragmentMetadata.from_json
    return [from_json(one.document) for one in fragments]


def _ids_of(dataset: "LanceDataset", fragments: Sequence[WrittenFragment]) -> list[int]:
    """The ids that Lance assigned at commit; rows are addressed by them, so their order is checked."""
    by_path = {file.path: one.fragment_id for one in dataset.get_fragments() for file in one.metadata.files}
    found = [int(by_path[next(iter(one.paths))]) for one in fragments]
    if found != sorted(found):
        raise AssertionError(f"{dataset.uri}: fragments were numbered out of order")
    return found


def _require_known_columns(dataset: "LanceDataset", at: TableVersion, fragments: Sequence[WrittenFragment]) -> None:
    """Refuse files written with other columns: a file refers to columns by field id, so it would be misread."""
    known = {number for field in dataset.lance_schema.fields() for number in _field_ids(field)}
    for one in fragments:
        for file in json.loads(one.document)["files"]:
            if not known >= {number for number in file["fields"] if number >= 0}:
                raise BadRequest(
                    f"rows written with other columns than those of {at} can't be added: stage them again."
                )


def _field_ids(field: Any) -> Iterator[int]:
    yield int(field.id())
    for child in field.children():
        yield from _field_ids(child)


def normalize_zeros(column: Any) -> Any:
    """Map -0.0 to 0.0."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_floating(column.type):
        zero: Any = pa.scalar(0.0, column.type)
        return pc.add(column, zero)
    return column
