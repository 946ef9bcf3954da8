"""Maintenance of one table by many workers: compaction, and index builds. Nothing is published here.

Both answer a version of the table that nobody was told of, with the same rows: whoever calls makes it the plan of a
maintenance commit (`Rewrite`, `Index`), so that the rules for losing a race are in one place. A task that runs twice,
or whose answer is never used, leaves garbage.
"""

from collections.abc import Iterable

from omnigraph.pipeline.runner import Runner
from omnigraph.schema.indexes import DeclaredIndex
from omnigraph.storage import compaction, index_tasks
from omnigraph.storage.compaction import DELETED_SHARE_MIN, TARGET_ROWS
from omnigraph.storage.handles import TableVersion
from omnigraph.storage.index_tasks import SEGMENT_ROWS
from omnigraph.storage.indexing import INDEXED_ROWS_MIN, VECTORS_MIN
from omnigraph.storage.location import Location

__all__ = ["build_indexes", "compact"]


def compact(
    location: Location,
    at: TableVersion,
    indexes: Iterable[DeclaredIndex],
    runner: Runner,
    *,
    target_rows: int = TARGET_ROWS,
    deleted_share: float = DELETED_SHARE_MIN,
    segment_rows: int = SEGMENT_ROWS,
    rows_min: int = INDEXED_ROWS_MIN,
    vectors_min: int = VECTORS_MIN,
) -> TableVersion:
    """The table in fewer, larger fragments without deleted rows, its indexes over them; `at` if there is nothing to do.

    Two versions, one on the other: fragments get their numbers from the first, segments name them in the second.
    """
    tasks = compaction.plan_compaction(location, at, target_rows, deleted_share)
    if not tasks:
        return at
    results = runner.run(compaction.run_compaction, tasks, stage="compact")
    made = compaction.with_compaction(location, at, results)
    return build_indexes(
        location, made, indexes, runner, segment_rows=segment_rows, rows_min=rows_min, vectors_min=vectors_min
    )


def build_indexes(
    location: Location,
    at: TableVersion,
    indexes: Iterable[DeclaredIndex],
    runner: Runner,
    *,
    segment_rows: int = SEGMENT_ROWS,
    rows_min: int = INDEXED_ROWS_MIN,
    vectors_min: int = VECTORS_MIN,
) -> TableVersion:
    """The table with segments over all rows that no index covers yet, and without segments of rows that are gone."""
    work = index_tasks.plan_indexes(location, at, indexes, segment_rows, rows_min, vectors_min)
    if not work:
        return at
    built = runner.run(index_tasks.build_segment, work.tasks, stage="index")
    return index_tasks.with_segments(location, at, built, work)
