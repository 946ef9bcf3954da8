"""What differs between two states of a table, each a stored version with an overlay on top.

Overlays are small and in memory; `differences.py` knows where the stored versions differ. A row of which neither says
anything is the same in both states, and so is one of which the start that both overlays share has the last word: an
overlay says what is, whatever is stored. So what is to be compared, on either side, is: rows in differing parts of the
stored versions that the side's overlay leaves visible, its overlay's rows, and the stored rows that only the other
side's overlay speaks of, which are looked up by id.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from omnigraph.storage.table.diff import fragment_diff as differences
from omnigraph.storage.table.diff.row_diff import Difference, diff_by_join, diff_in_memory
from omnigraph.storage.table.handles import Handles, TableVersion
from omnigraph.storage.table.overlay import ID, Overlay, align_table, without_ids
from omnigraph.storage.table.read.point_lookup import exists, lookup
from omnigraph.storage.util.parallel import gather

if TYPE_CHECKING:
    import pyarrow as pa

IN_MEMORY_ROWS_MAX = 500_000  # of both sides together; more are compared by a join that may spill


@dataclass(frozen=True, slots=True)
class DiffInput:
    """A stored version with an overlay on top. `recent` is the end of it that the other state does not share."""

    at: TableVersion | None
    overlay: Overlay
    recent: Overlay


@dataclass(frozen=True, slots=True, eq=False)
class DifferingIds:
    """The ids of rows in differing parts, unread otherwise: one that is in both may be updated, or only moved."""

    before: "pa.ChunkedArray[Any]"
    after: "pa.ChunkedArray[Any]"


Pair: TypeAlias = "tuple[_DiffSide, _DiffSide]"


def difference(handles: Handles, older: DiffInput, newer: DiffInput, schema: "pa.Schema | None" = None) -> Difference:
    """The rows that differ, in memory; `schema` says which columns count, by default those of both states."""
    shape = schema if schema is not None else differences.unify_schemas(_schemas(handles, older, newer))
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
    """How many rows of either state lie in differing parts; at most, where there are overlays."""
    before, after = _diff_sides(handles, older, newer)
    return before.rows_max, after.rows_max


def differing_batches(
    handles: Handles, older: DiffInput, newer: DiffInput, schema: "pa.Schema"
) -> "tuple[Iterator[pa.RecordBatch], Iterator[pa.RecordBatch]]":
    """The rows in differing parts of either state as they come."""
    before, after = _diff_sides(handles, older, newer)
    return before.batches(schema), after.batches(schema)


@dataclass(frozen=True, slots=True, eq=False)
class _DiffSide:
    """What is to be compared of one state."""

    handles: Handles
    at: TableVersion | None
    part: differences.DifferingRows | None
    overlay: Overlay
    changed_ids: frozenset[str]  # ids of which the end of either overlay says something that the other's may not

    @property
    def rows_max(self) -> int:
        return (0 if self.part is None else self.part.rows) + len(self.changed_ids)

    def batches(self, shape: "pa.Schema") -> "Iterator[pa.RecordBatch]":
        """All rows with exactly the columns of `shape`, each once; the id must be among them."""
        missing = set(self.changed_ids)
        for batch in differences.row_batches(self.handles, self.part, shape):
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
        return align_table(rows.select([name for name in shape.names if name in rows.column_names]), shape)


def _diff_sides(handles: Handles, older: DiffInput, newer: DiffInput) -> Pair:
    before, after = differences.differing_parts(handles, older.at, newer.at)
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
