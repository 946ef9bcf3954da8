"""Indexes built in parts: segments over groups of fragments, each on any machine, then one detached version.

The segments themselves are those of `indexing.py`. Vectors are partitioned by centroids that are trained once, so that
all segments of a build divide space alike.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from omnigraph.schema.indexes import DeclaredIndex
from omnigraph.storage.location import Location
from omnigraph.storage.table.handles import TableVersion, lance_module
from omnigraph.storage.table.index import segments as indexing
from omnigraph.storage.table.index.metadata import segments
from omnigraph.storage.table.lance_errors import translate_errors
from omnigraph.storage.table.write import detached_commit as staging
from omnigraph.storage.table.write.fragments import handles_of


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """One segment of one index over some fragments; `centroids` are a vector's, 32-bit floats one after the other."""

    location: Location = field(repr=False)
    at: TableVersion
    index: DeclaredIndex
    fragments: tuple[int, ...]
    centroids: bytes | None = field(default=None, repr=False)


def count_stored_vectors(location: Location, at: TableVersion, index: DeclaredIndex, fragments: Sequence[int]) -> int:
    """How many rows of these fragments have a vector."""
    with translate_errors(str(at)):
        return indexing.count_vectors(handles_of(location).open(at), index.column, fragments)


def train_stored_centroids(
    location: Location, at: TableVersion, index: DeclaredIndex, fragments: Sequence[int]
) -> bytes:
    """Centroids for the vectors of these fragments."""
    with translate_errors(str(at)):
        return indexing.train_centroids(handles_of(location).open(at), index, fragments)


def run_segment_task(task: SegmentTask) -> Any | None:
    """Write the files of one segment, and answer its metadata; None where the fragments have nothing to index."""
    dataset = handles_of(task.location).open(task.at)
    with translate_errors(str(task.at)):
        if task.index.kind == "vector":
            if not indexing.count_vectors(dataset, task.index.column, task.fragments):
                return None
            return indexing.build_vector_segment(dataset, task.index, list(task.fragments), task.centroids)
        return indexing.build_segment(dataset, task.index, list(task.fragments))


def commit_segments(
    location: Location, at: TableVersion, built: Sequence[Any | None], leaving: Collection[str] = ()
) -> TableVersion:
    """A version with the segments that were built, and without those named by uuid; `at` itself if there are none."""
    new = [segment for segment in built if segment is not None]
    if not new and not leaving:
        return at
    handles = handles_of(location)
    dataset = handles.open(at)
    with translate_errors(str(at)):
        gone = [segment for segment in (segments(dataset) if leaving else ()) if segment.uuid in leaving]
    return staging.commit(handles, at, dataset, lance_module().LanceOperation.CreateIndex(new, gone)).at
