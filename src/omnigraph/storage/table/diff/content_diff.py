"""What differs between two contents of a table, each a stored version with an overlay on top.

Stored versions are compared by what they are made of. Data files are immutable and never gain rows, so fragments with
the same files differ at most in which of their rows are deleted: that is read from the deletion files, and the rows
themselves by address. Only fragments that one side alone has are read whole, so the cost is that of the change, not of
the table. A row that a compaction or a rebase merely moved is in files of both sides; it is recognised by its content.
Versions of different tables share no files and are compared whole.

Overlays are small and in memory. A row that neither overlay decides is the same on both sides, and so is one that only
the shared start of both overlays decides, because an overlay hides what is stored. So each side compares: rows in its
differing fragments that its overlay leaves visible, its overlay's rows, and the stored rows that only the other side's
overlay decides, which are looked up by id.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from omnigraph.storage.table.align import align_table
from omnigraph.storage.table.diff.row_diff import Difference, diff_by_join, diff_in_memory
from omnigraph.storage.table.handles import Handles, TableVersion
from omnigraph.storage.table.lance_errors import translate_errors
from omnigraph.storage.table.overlay import ID, Overlay, without_ids
from omnigraph.storage.table.read.point_lookup import exists, lookup
from omnigraph.storage.table.read.row_addresses import measure_read
from omnigraph.threads import gather

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from lance import LanceDataset

    Addresses: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]
    Offsets: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

TAKE_ROWS_MAX = 65_536  # rows that are taken by address in one call
_OFFSET_BITS = 32  # a row address: the fragment's id, then the row's offset in the fragment
IN_MEMORY_ROWS_MAX = 500_000  # of both sides together; more are compared by a join that may spill


@dataclass(frozen=True, slots=True)
class DiffInput:
    """A stored version with an overlay. `recent` is the part of the overlay that the other side does not share."""

    at: TableVersion | None
    overlay: Overlay
    recent: Overlay


@dataclass(frozen=True, slots=True, eq=False)
class DifferingIds:
    """The ids of rows in differing fragments: one on both sides may be updated, or only moved."""

    before: "pa.ChunkedArray[Any]"
    after: "pa.ChunkedArray[Any]"


Pair: TypeAlias = "tuple[_DiffSide, _DiffSide]"


def difference(handles: Handles, older: DiffInput, newer: DiffInput, schema: "pa.Schema | None" = None) -> Difference:
    """The rows that differ, in memory; `schema` selects the compared columns, by default those of both sides."""
    shape = schema if schema is not None else _unify_schemas(_schemas(handles, older, newer))
    halves = _diff_sides(handles, older, newer)
    rows = [half.rows_max for half in halves]
    if all(rows) and sum(rows) > IN_MEMORY_ROWS_MAX:
        before, after = (partial(half.batches, shape) for half in halves)
        return diff_by_join(before, after, shape)
    return diff_in_memory(*gather([partial(half.table, shape) for half in halves]))


def differing_ids(handles: Handles, older: DiffInput, newer: DiffInput) -> DifferingIds:
    """The ids alone: reads no other column."""
    import pyarrow as pa

    shape = pa.schema([pa.field(ID, pa.string())])
    before, after = gather([partial(half.table, shape) for half in _diff_sides(handles, older, newer)])
    return DifferingIds(before[ID], after[ID])


def differing_rows(handles: Handles, older: DiffInput, newer: DiffInput) -> tuple[int, int]:
    """How many rows of each side lie in differing fragments; an upper bound if there are overlays."""
    before, after = _diff_sides(handles, older, newer)
    return before.rows_max, after.rows_max


def differing_batches(
    handles: Handles, older: DiffInput, newer: DiffInput, schema: "pa.Schema"
) -> "tuple[Iterator[pa.RecordBatch], Iterator[pa.RecordBatch]]":
    """The rows in differing fragments of each side, as batches."""
    before, after = _diff_sides(handles, older, newer)
    return before.batches(schema), after.batches(schema)


@dataclass(frozen=True, slots=True, eq=False)
class DifferingRows:
    """The differing rows of one version: whole fragments, and single rows of shared ones."""

    at: TableVersion
    dataset: "LanceDataset"
    fragments: tuple[Any, ...]
    addresses: "Addresses"

    @property
    def rows(self) -> int:
        """How many there are; needs no read."""
        return sum(_live_rows(fragment.metadata) for fragment in self.fragments) + len(self.addresses)


@dataclass(frozen=True, slots=True, eq=False)
class _DiffSide:
    """The rows of one side that are to be compared."""

    handles: Handles
    at: TableVersion | None
    part: DifferingRows | None
    overlay: Overlay
    changed_ids: frozenset[str]  # ids decided by the unshared part of either overlay

    @property
    def rows_max(self) -> int:
        return (0 if self.part is None else self.part.rows) + len(self.changed_ids)

    def batches(self, shape: "pa.Schema") -> "Iterator[pa.RecordBatch]":
        """All rows with exactly the columns of `shape`, each once; the id must be among them."""
        missing = set(self.changed_ids)
        for batch in _row_batches(self.handles, self.part, shape):
            missing.difference_update(batch.column(ID).to_pylist() if missing else ())
            yield from (batch,) if self.overlay.is_empty else self._visible(batch)
        missing |= self.overlay.ids & self.changed_ids
        if missing:
            yield from self._look_up(missing, shape).to_batches()

    def table(self, shape: "pa.Schema") -> "pa.Table":
        import pyarrow as pa

        return pa.Table.from_batches(list(self.batches(shape)), schema=shape)

    def _visible(self, batch: "pa.RecordBatch") -> "list[pa.RecordBatch]":
        import pyarrow as pa

        return without_ids(pa.table(batch), self.overlay.decided_ids).to_batches()

    def _look_up(self, ids: Collection[str], shape: "pa.Schema") -> "pa.Table":
        import pyarrow as pa

        if shape.names == [ID]:  # then an index alone has the answer
            there = exists(self.handles, self.at, ids, self.overlay)
            return pa.table([pa.array(sorted(there), shape.field(ID).type)], schema=shape)
        rows = lookup(self.handles, self.at, ids, None, self.overlay, shape if self.at is None else None)
        return align_table(rows, shape, drop_unknown=True)


def _diff_sides(handles: Handles, older: DiffInput, newer: DiffInput) -> Pair:
    before, after = _differing_parts(handles, older.at, newer.at)
    spoken_of = older.recent.decided_ids | newer.recent.decided_ids
    return (
        _DiffSide(handles, older.at, before, older.overlay, spoken_of),
        _DiffSide(handles, newer.at, after, newer.overlay, spoken_of),
    )


def _schemas(handles: Handles, *states: DiffInput) -> "Iterator[pa.Schema]":
    for state in states:
        if state.at is not None:
            yield handles.open(state.at).schema
        if state.overlay.rows is not None:
            yield state.overlay.rows.schema


# Differences of two stored versions.


def _differing_parts(
    handles: Handles, older: TableVersion | None, newer: TableVersion | None
) -> tuple[DifferingRows | None, DifferingRows | None]:
    """Where two versions differ. Reads version files, and deletion files that the sides do not share."""
    old, new = (None if at is None else _Fragments(handles, at) for at in (older, newer))
    if old is None or new is None or old.at.table_id != new.at.table_id:
        return None if old is None else old.whole(), None if new is None else new.whole()
    if older == newer:
        return old.part(()), new.part(())
    shared = [key for key in old.fragments if key in new.fragments]
    gone, come = _changed_addresses(old, new, [key for key in shared if old.deletions(key) != new.deletions(key)])
    only_old = [key for key in old.fragments if key not in new.fragments]
    only_new = [key for key in new.fragments if key not in old.fragments]
    return old.part(only_old, gone), new.part(only_new, come)


def _row_batches(handles: Handles, part: DifferingRows | None, shape: "pa.Schema") -> "Iterator[pa.RecordBatch]":
    """The rows as batches with exactly the columns of `shape`; they may exceed memory."""
    if part is not None:
        inside = [name for name in shape.names if name in part.dataset.schema.names]
        for piece in _read_rows(handles, part, inside):
            yield from align_table(piece, shape).to_batches()


def _unify_schemas(schemas: "Iterable[pa.Schema]") -> "pa.Schema":
    """The columns of all schemas, each once, in order of appearance."""
    import pyarrow as pa

    known = list(schemas)
    if not known:
        raise ValueError("a type without a table on either side needs a schema to be compared by")
    return pa.unify_schemas(known, promote_options="permissive").remove_metadata()


def _read_rows(handles: Handles, part: DifferingRows, columns: Sequence[str]) -> "Iterator[pa.Table]":
    import pyarrow as pa

    if part.fragments:
        with translate_errors(str(part.at)), measure_read(handles, part.dataset, filtered=False):
            scanner: Any = part.dataset.scanner(columns=list(columns), fragments=list(part.fragments))
            reader = iter(scanner.to_batches())
            batch = next(reader, None)
        while batch is not None:
            yield pa.Table.from_batches([batch])
            with translate_errors(str(part.at)):
                batch = next(reader, None)
    for start in range(0, len(part.addresses), TAKE_ROWS_MAX):
        wanted = pa.array(part.addresses[start : start + TAKE_ROWS_MAX])
        with translate_errors(str(part.at)), measure_read(handles, part.dataset, filtered=False):
            taken: Any = part.dataset._take_rows(wanted, columns=list(columns))
        if taken.num_rows != len(wanted):
            raise AssertionError(f"{part.at}: {taken.num_rows} of {len(wanted)} rows were found at their addresses")
        yield taken


class _Fragments:
    """One version's fragments by their files: ids may differ after a rebase."""

    def __init__(self, handles: Handles, at: TableVersion) -> None:
        self.at = at
        self._handles = handles
        self._dataset = handles.open(at)
        self.fragments: dict[Any, Any] = {_files(f.metadata): f for f in self._dataset.get_fragments()}

    def deletions(self, key: Any) -> Any:
        """Identifies a fragment's deletion file."""
        deletion = self.fragments[key].metadata.deletion_file
        return None if deletion is None else deletion.json()

    def alive(self, key: Any) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        """For every row of a fragment, whether it is live; reads the deletion file, and no data."""
        import numpy as np

        fragment = self.fragments[key]
        rows = int(fragment.metadata.physical_rows)
        if fragment.metadata.deletion_file is None:
            return np.ones(rows, bool)
        with translate_errors(str(self.at)), self._handles.measure(lambda made: min(made, 1)):
            scanner: Any = self._dataset.scanner(columns=[], with_row_address=True, fragments=[fragment])
            addresses = scanner.to_table().column("_rowaddr").to_numpy()
        alive = np.zeros(rows, bool)
        alive[(addresses & ((1 << _OFFSET_BITS) - 1)).astype(np.int64)] = True
        return alive

    def addresses(self, key: Any, offsets: "Offsets") -> "Addresses":
        import numpy as np

        return np.uint64(self.fragments[key].fragment_id << _OFFSET_BITS) + offsets.astype(np.uint64)

    def whole(self) -> DifferingRows:
        return self.part(self.fragments)

    def part(self, whole: Iterable[Any], addresses: "Sequence[Addresses]" = ()) -> DifferingRows:
        import numpy as np

        rows = np.sort(np.concatenate([np.zeros(0, np.uint64), *addresses]))
        return DifferingRows(self.at, self._dataset, tuple(self.fragments[key] for key in whole), rows)


def _changed_addresses(
    old: _Fragments, new: _Fragments, keys: Sequence[Any]
) -> "tuple[list[Addresses], list[Addresses]]":
    """The rows of shared fragments that only one side has, by their addresses there.

    Usually the newer side has deleted more; a sibling may also have deleted less.
    """
    import numpy as np

    alive = gather([partial(side.alive, key) for key in keys for side in (old, new)])
    gone, new_rows = [], []
    for number, key in enumerate(keys):
        was, now = alive[2 * number], alive[2 * number + 1]
        gone.append(old.addresses(key, np.flatnonzero(was & ~now)))
        new_rows.append(new.addresses(key, np.flatnonzero(now & ~was)))
    return gone, new_rows


def _files(fragment: Any) -> Any:
    """Identifies what a fragment's rows are read from, regardless of deletions."""
    files = tuple((f.path, tuple(f.fields), tuple(f.column_indices), f.base_id) for f in fragment.files)
    return files, repr(fragment.overlays)


def _live_rows(fragment: Any) -> int:
    deletion = fragment.deletion_file
    return int(fragment.physical_rows) - (int(deletion.num_deleted_rows) if deletion is not None else 0)
