"""Merges one table that both sides changed: reads the changes of both sides and merges their rows.

A large table is partitioned by a hash of the id. Each partition is a task that reads its part of the changes and merges
it with the same function. The caller provides the `Runner` that executes the tasks.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from omnigraph.diff.align_rows import align_rows
from omnigraph.diff.graph_state import TypeState, without_tail
from omnigraph.errors import MergeConflict
from omnigraph.merge.row_merge import MergedRows, merge_rows
from omnigraph.schema.definitions import ID, TypeDef
from omnigraph.storage.location import Location
from omnigraph.storage.table.diff.row_diff import Difference, diff_in_memory
from omnigraph.storage.table.overlay import without_ids
from omnigraph.storage.table.tables import Tables
from omnigraph.storage.util.runner import Runner
from omnigraph.threads import gather

if TYPE_CHECKING:
    import pyarrow as pa

    Batches: TypeAlias = Iterable[pa.RecordBatch]

ROWS_PER_TASK = 250_000  # changed rows; a task holds those of both sides in memory
ROWS_HASHED_AT_ONCE = 131_072  # rows whose partition is computed together


@dataclass(frozen=True, slots=True, eq=False)
class ContestedTable:
    """A table that both sides changed: its three states, and the type's definition in the merged graph."""

    wanted: TypeDef
    base: TypeState | None
    ours: TypeState
    theirs: TypeState

    def without_tails(self, tables: Tables) -> "ContestedTable":
        """The same for tasks on other machines: inline rows are sent along."""
        base, ours, theirs = (without_tail(tables, state) for state in (self.base, self.ours, self.theirs))
        assert ours is not None
        assert theirs is not None
        return ContestedTable(self.wanted, base, ours, theirs)


@dataclass(frozen=True, slots=True)
class IdPartition:
    """The part of the ids that a task merges."""

    part: int
    parts: int

    def select(self, rows: "pa.Table") -> "pa.Table":
        """The rows whose ids are in this partition: the same on every machine with the same version of DuckDB."""
        import duckdb
        import pyarrow as pa

        if self.parts == 1 or not rows.num_rows:
            return rows
        ids = rows.select([ID])
        with duckdb.connect() as connection:
            connection.register("ids", ids)
            connection.execute(f"SELECT hash({ID}) % {self.parts} = {self.part} AS mine FROM ids")
            found: Any = connection.fetchnumpy()["mine"]
        return rows.filter(pa.array(found))


ALL = IdPartition(0, 1)


def merge_table(tables: Tables, table: ContestedTable, partition: IdPartition = ALL) -> MergedRows:
    """Merge one table, or one partition of it."""
    ours, theirs = gather(
        [
            partial(read_changes, tables, table.base, side, table.wanted, partition)
            for side in (table.ours, table.theirs)
        ]
    )
    return merge_changes(ours, theirs, table.wanted)


def merge_changes(ours: Difference, theirs: Difference, wanted: TypeDef) -> MergedRows:
    """Merge the changes of the other side into ours. A row that we did not change is as it was in the base."""
    import pyarrow as pa
    import pyarrow.compute as pc

    changed = ours.after.filter(_is_changed(ours.after, theirs))
    untouched = theirs.before.filter(pc.invert(_is_changed(theirs.before, ours)))
    return merge_rows(theirs.before, pa.concat_tables([changed, untouched]), theirs.after, wanted)


def read_changes(
    tables: Tables, base: TypeState | None, side: TypeState | None, wanted: TypeDef, partition: IdPartition = ALL
) -> Difference:
    """What one side changed since the base, in the columns of the merged schema."""
    import pyarrow as pa

    from omnigraph.schema.arrow import arrow_schema

    known = [state.definition for state in (base, side) if state is not None]
    shape = pa.unify_schemas([arrow_schema(one) for one in known or [wanted]], promote_options="permissive")
    stored = _read_stored_changes(tables, base, side, shape, partition)
    before, after = stored.before, stored.after
    above = frozenset(entity for state in (base, side) if state is not None for entity in state.overlay.decided_ids)
    if above:
        before, after = (
            pa.concat_tables([without_ids(rows, above), partition.select(_read_rows(tables, state, above, shape))])
            for rows, state in ((before, base), (after, side))
        )
    if not above and all(one == wanted for one in known):
        return Difference(before, after)
    return diff_in_memory(
        align_rows(before, wanted if base is None else base.definition, wanted),
        align_rows(after, wanted if side is None else side.definition, wanted),
    )


def _read_stored_changes(
    tables: Tables, base: TypeState | None, side: TypeState | None, shape: "pa.Schema", partition: IdPartition
) -> Difference:
    """The changes between the tables, without the overlay of a virtual base."""
    older, newer = (None if state is None else state.content for state in (base, side))
    if partition.parts == 1:
        return tables.difference(older, newer, shape)
    before, after = (_collect(batches, shape, partition) for batches in tables.differing_batches(older, newer, shape))
    return diff_in_memory(before, after)


def _collect(batches: "Batches", shape: "pa.Schema", partition: IdPartition) -> "pa.Table":
    """The rows of a partition. Batches are joined, so that partitions are computed for many rows at once."""
    import pyarrow as pa

    selected, waiting, count = [shape.empty_table()], list[Any](), 0
    for batch in batches:
        waiting.append(batch)
        count += batch.num_rows
        if count >= ROWS_HASHED_AT_ONCE:
            selected.append(partition.select(pa.Table.from_batches(waiting, shape)))
            waiting, count = [], 0
    return pa.concat_tables([*selected, partition.select(pa.Table.from_batches(waiting, shape))])


def _read_rows(tables: Tables, state: TypeState | None, ids: Iterable[str], shape: "pa.Schema") -> "pa.Table":
    if state is None:
        return shape.empty_table()
    return tables.lookup(state.content, ids, shape.names, state.overlay, shape)


def _is_changed(rows: "pa.Table", changes: Difference) -> Any:
    """Which of the rows have ids that a side changed."""
    import pyarrow as pa
    import pyarrow.compute as pc

    ids = pa.chunked_array([*changes.before.column(ID).chunks, *changes.after.column(ID).chunks], pa.string())
    return pc.is_in(rows.column(ID), value_set=ids.combine_chunks())


# The same in partitions, as tasks.


@dataclass(frozen=True, slots=True)
class _Task:
    location: Location
    table: ContestedTable
    partition: IdPartition


@dataclass(frozen=True, slots=True)
class _TaskResult:
    """What a task merged, as compressed columns."""

    rows: bytes
    before: bytes
    removed: tuple[str, ...]
    conflicts: tuple[MergeConflict, ...]


def merge_table_on(runner: Runner, location: Location, table: ContestedTable, changed: int) -> MergedRows:
    """As `merge_table`, by as many tasks as `changed` rows require."""
    import pyarrow as pa

    parts = max(runner.parallelism, -(-changed // ROWS_PER_TASK), 1)
    tasks = [_Task(location, table, IdPartition(part, parts)) for part in range(parts)]
    results = runner.run(_run_task, tasks, stage=f"merge {table.wanted.name}")
    conflicts = sorted((c for result in results for c in result.conflicts), key=lambda c: c.entity_id)
    return MergedRows(
        pa.concat_tables([_decode(result.rows) for result in results]),
        tuple(entity for result in results for entity in result.removed),
        pa.concat_tables([_decode(result.before) for result in results]),
        tuple(conflicts),
    )


def _run_task(task: _Task) -> _TaskResult:
    merged = merge_table(Tables(task.location), task.table, task.partition)
    return _TaskResult(_encode(merged.rows), _encode(merged.before), merged.removed, merged.conflicts)


def _encode(rows: "pa.Table") -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def _decode(data: bytes) -> "pa.Table":
    import pyarrow as pa

    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()
