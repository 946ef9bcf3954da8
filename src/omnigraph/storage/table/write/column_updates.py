"""Updates of one column of existing rows: one more data file per fragment, and nothing else.

Rows keep their addresses, so indexes of other columns stay valid; those of this column lose the changed fragments. A
million new numbers are eight megabytes, however wide the table is. What a task writes here is garbage until its result
is committed (`commit_updates`).
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from omnigraph.storage.location import Location
from omnigraph.storage.table import fsync
from omnigraph.storage.table.handles import TableVersion, handles_of, lance_module
from omnigraph.storage.table.lance_errors import translate_errors
from omnigraph.storage.table.write import detached_commit
from omnigraph.storage.table.write.detached_commit import DetachedVersion

if TYPE_CHECKING:
    import pyarrow as pa

ID = "id"
FRAGMENT = "fragment"
ROW_ADDRESS = "_rowaddr"
_OFFSET_BITS = 32
_BATCH_ROWS = 131_072


@dataclass(frozen=True, slots=True)
class UpdatedFragment:
    """One fragment with new values in some rows, as JSON; `document` is None if nothing differs."""

    document: str | None
    changed: int
    fields: tuple[int, ...] = ()


def fragment_sizes(location: Location, at: TableVersion) -> dict[int, int]:
    """The fragments of a version with their physical rows, deleted ones included."""
    with translate_errors(str(at)):
        fragments = handles_of(location).open(at).get_fragments()
        return {int(fragment.fragment_id): int(fragment.physical_rows) for fragment in fragments}


def addressed_batches(
    location: Location, at: TableVersion, columns: Sequence[str], fragments: Sequence[int] | None = None
) -> "Iterator[pa.RecordBatch]":
    """Some columns of some fragments, with `_rowaddr` last."""
    dataset: Any = handles_of(location).open(at)
    with translate_errors(str(at)):
        chosen = None if fragments is None else [dataset.get_fragment(number) for number in fragments]
        scanner = dataset.scanner(
            columns=list(columns), fragments=chosen, with_row_address=True, batch_size=_BATCH_ROWS
        )
        batches = iter(scanner.to_batches())
    while True:
        with translate_errors(str(at)):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def ids_by_fragment(location: Location, at: TableVersion) -> "pa.Table":
    """Every row's id, and the number of its fragment."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kinds: Any = [(ID, pa.string()), (ROW_ADDRESS, pa.uint64())]
    rows = pa.Table.from_batches(addressed_batches(location, at, [ID]), schema=pa.schema(kinds))
    shift: Any = pa.scalar(_OFFSET_BITS, pa.uint64())
    numbers: Any = pc.shift_right(rows.column(ROW_ADDRESS), shift)
    return pa.table({ID: rows.column(ID), FRAGMENT: numbers.cast(pa.int64())})


def update_fragment(
    location: Location, at: TableVersion, fragment: int, column: str, values: "pa.Table"
) -> UpdatedFragment:
    """Set the values of `values` (`id` and the column) in one fragment; other rows keep theirs."""
    import pyarrow as pa

    dataset: Any = handles_of(location).open(at)
    part = dataset.get_fragment(fragment)
    with translate_errors(str(at)):
        before: pa.Table = dataset.scanner(columns=[ID, column], fragments=[part]).to_table()
    fields: Any = [pa.field(ID, pa.string()), before.schema.field(column)]
    wanted = _changed_values(before, values.cast(pa.schema(fields)), column)
    if not wanted.num_rows:
        return UpdatedFragment(None, 0)
    with translate_errors(str(at)):
        metadata, modified = part.update_columns(wanted, left_on=ID, right_on=ID)
    document = json.dumps(metadata.to_json())
    path = fsync.path_to_sync(location, at.table_id)
    if path is not None:
        known = {str(file.path) for file in part.metadata.files}
        fsync.sync_data(path, [str(f.path) for f in metadata.files if str(f.path) not in known])
    return UpdatedFragment(document, wanted.num_rows, tuple(int(field) for field in modified))


def commit_updates(location: Location, at: TableVersion, updates: Iterable[UpdatedFragment]) -> DetachedVersion:
    """Commit what the tasks wrote as a new version; `at` itself if they wrote nothing."""
    handles = handles_of(location)
    dataset = handles.open(at)
    written = [update for update in updates if update.document is not None]
    if not written:
        return detached_commit.unchanged(at, dataset)
    from_json = lance_module("lance.fragment").FragmentMetadata.from_json
    operation = lance_module().LanceOperation.Update(
        updated_fragments=[from_json(str(update.document)) for update in written],
        fields_modified=sorted({field for update in written for field in update.fields}),
    )
    return detached_commit.commit(handles, at, dataset, operation)


def _changed_values(before: "pa.Table", values: "pa.Table", column: str) -> "pa.Table":
    """The values that differ from those of existing rows; null is a value."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    position: Any = pc.index_in(values.column(ID), value_set=before.column(ID).combine_chunks())
    found = position.is_valid()
    values, position = values.filter(found), position.filter(found)
    was, now = before.column(column).take(position), values.column(column)
    both_null = pc.and_(was.is_null(), now.is_null())
    compared: Any = pc.equal(was, now)
    equal: Any = pc.fill_null(compared, False)
    same: Any = pc.or_(both_null, equal)
    differs = ~np.asarray(same.to_numpy(zero_copy_only=False) if len(same) else [], np.bool_)
    return values.filter(pa.array(differs))
