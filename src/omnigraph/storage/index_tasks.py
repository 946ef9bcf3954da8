"""Indexes built in parts: segments over groups of fragments, each on any machine, then one detached version.

The segments themselves are those of `indexing.py`. Vectors are partitioned by centroids that are trained once, so that
all segments of a build divide space alike.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from omnigraph.schema.indexes import DeclaredIndex
from omnigraph.storage import indexing, staging
from omnigraph.storage.fragments import handles_of
from omnigraph.storage.handles import TableVersion, lance_module
from omnigraph.storage.index_section import segments
from omnigraph.storage.lance_errors import explained
from omnigraph.storage.location import Location

if TYPE_CHECKING:
    from lance import LanceDataset

SEGMENT_ROWS = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """One segment of one index over some fragments; `centroids` are a vector's, 32-bit floats one after the other."""

    location: Location = field(repr=False)
    at: TableVersion
    index: DeclaredIndex
    fragments: tuple[int, ...]
    centroids: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class IndexWork:
    """What is to be built, and the segments that go: they name fragments that are no more."""

    tasks: tuple[SegmentTask, ...]
    stale: tuple[Any, ...]

    def __bool__(self) -> bool:
        return bool(self.tasks or self.stale)


def plan_indexes(
    location: Location,
    at: TableVersion,
    indexes: Iterable[DeclaredIndex],
    segment_rows: int = SEGMENT_ROWS,
    rows_min: int = indexing.INDEXED_ROWS_MIN,
    vectors_min: int = indexing.VECTORS_MIN,
) -> IndexWork:
    """Segments for all fragments that no living segment covers, if they are many enough to be worth it."""
    dataset = handles_of(location).open(at)
    with explained(str(at)):
        rows = {int(fragment.fragment_id): int(fragment.count_rows()) for fragment in dataset.get_fragments()}
        living, stale = _living(dataset, frozenset(rows))
        tasks: list[SegmentTask] = []
        for index in indexes:
            if index.column not in dataset.schema.names:
                continue
            left = [number for number in rows if number not in living.get(index.name, frozenset())]
            lost = any(segment.name == index.name for segment in stale)
            if not left or (sum(rows[number] for number in left) < rows_min and not lost):
                continue
            centroids = None
            if index.kind == "vector":
                if indexing.vectors_in(dataset, index.column, left) < vectors_min:
                    continue
                centroids = indexing.trained_centroids(dataset, index, left)
            groups = _grouped(left, rows, segment_rows)
            tasks += [SegmentTask(location, at, index, group, centroids) for group in groups]
    return IndexWork(tuple(tasks), tuple(stale))


def build_segment(task: SegmentTask) -> Any | None:
    """Write the files of one segment, and answer its metadata; None where the fragments have nothing to index."""
    dataset = handles_of(task.location).open(task.at)
    with explained(str(task.at)):
        if task.index.kind == "vector":
            if not indexing.vectors_in(dataset, task.index.column, task.fragments):
                return None
            return indexing.vector_segment(dataset, task.index, list(task.fragments), task.centroids)
        return indexing.segment(dataset, task.index, list(task.fragments))


def with_segments(location: Location, at: TableVersion, built: Sequence[Any | None], work: IndexWork) -> TableVersion:
    """A version with the segments that were built, and without those that went stale."""
    new = [segment for segment in built if segment is not None]
    if not new and not work.stale:
        return at
    handles = handles_of(location)
    operation = lance_module().LanceOperation.CreateIndex(new, list(work.stale))
    return staging.commit(handles, at, handles.open(at), operation).at


def _living(dataset: "LanceDataset", present: frozenset[int]) -> tuple[dict[str, frozenset[int]], list[Any]]:
    """The fragments that each index covers for good, and the segments that name others, or none at all."""
    living: dict[str, frozenset[int]] = {}
    stale: list[Any] = []
    for segment in segments(dataset):
        covered = frozenset(int(number) for number in segment.fragment_ids)
        if covered and covered <= present:
            living[segment.name] = living.get(segment.name, frozenset()) | covered
        else:
            stale.append(segment)
    return living, stale


def _grouped(fragments: Sequence[int], rows: dict[int, int], segment_rows: int) -> list[tuple[int, ...]]:
    groups: list[list[int]] = [[]]
    held = 0
    for number in fragments:
        if groups[-1] and held + rows[number] > segment_rows:
            groups.append([])
            held = 0
        groups[-1].append(number)
        held += rows[number]
    return [tuple(group) for group in groups if group]
