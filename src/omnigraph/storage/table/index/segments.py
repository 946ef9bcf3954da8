"""Index segments over the fragments that a write added, and over those of a view that have none.

An index is a set of segments, each over some fragments. A large write adds its own; fragments without a segment are
scanned, so an index never changes the result of a search. Segments contain row addresses: they belong to the version
whose fragments they cover and to versions derived from it, never to rows copied elsewhere.
"""

import copy
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from omnigraph.schema.indexes import DeclaredIndex
from omnigraph.storage.location import Location
from omnigraph.storage.table.handles import Handles, TableVersion, handles_of, lance_module
from omnigraph.storage.table.index.metadata import has_indexes, segments
from omnigraph.storage.table.lance_errors import translate_errors
from omnigraph.storage.table.write import detached_commit
from omnigraph.threads import gather

if TYPE_CHECKING:
    from lance import LanceDataset

INDEXED_ROWS_MIN = 10_000  # a write of fewer rows adds no segments: scanning them is cheaper
VECTORS_MIN = 10_000  # for fewer vectors a scan is exact, and as fast
PARTITIONS_MAX = 4_096
SAMPLE_RATE = 256  # training vectors per partition
BUILD_STAGES_MAX = 4  # a column's metadata and pages, then the segment's files

# Settings of the tokenizer. Stop words and long words are indexed too: a phrase consists of all its words, and "any of
# the words" means any. `search.words` splits queries with the same settings.
TOKENIZER: dict[str, Any] = {
    "base_tokenizer": "simple",
    "language": "English",
    "lower_case": True,
    "stem": True,
    "ascii_folding": True,
    "remove_stop_words": False,
    "max_token_length": None,
}


def add_segments(
    handles: Handles, at: TableVersion, since: TableVersion | None, indexes: Iterable[DeclaredIndex]
) -> TableVersion:
    """A version with segments over the rows that `since` lacks; `at` itself if they are too few."""
    dataset = handles.open(at)
    new = _new_fragments(handles, dataset, since)
    if sum(int(fragment.physical_rows) for fragment in new) < INDEXED_ROWS_MIN:
        return at
    ids = [int(fragment.fragment_id) for fragment in new]
    wanted = [index for index in indexes if index.column in dataset.schema.names]
    with translate_errors(str(at)), handles.measure(lambda made: min(made, BUILD_STAGES_MAX)):
        built = gather([partial(build_segment, dataset, index, ids) for index in wanted])
    made = [one for one in built if one is not None]
    if not made:
        return at
    return detached_commit.commit(handles, at, dataset, lance_module().LanceOperation.CreateIndex(made, [])).at


def build_full_text_segment(dataset: "LanceDataset", column: str, fragment_ids: Sequence[int]) -> Any:
    """One uncommitted full-text segment over these fragments."""
    own = copy.copy(dataset)  # building locks the handle, which may be shared
    segment: Any = own.create_index_uncommitted(
        column,
        "INVERTED",
        name=DeclaredIndex(column, "full_text").name,
        fragment_ids=list(fragment_ids),
        replace=True,
        with_position=True,
        **TOKENIZER,
    )
    own.merge_index_metadata(segment.uuid, "INVERTED")
    return segment


def unindexed_fragments(dataset: "LanceDataset", index: DeclaredIndex) -> list[int]:
    """The fragments that no segment of this index covers."""
    present = [int(fragment.fragment_id) for fragment in dataset.get_fragments()]
    covered = {
        fragment
        for description in (dataset.describe_indices() if has_indexes(dataset) else ())
        if description.name == index.name
        for segment in description.segments
        for fragment in segment.fragment_ids
    }
    return [fragment for fragment in present if fragment not in covered]


def has_segments(handles: Handles, at: TableVersion, index: DeclaredIndex) -> bool:
    dataset = handles.open(at)
    if not has_indexes(dataset):
        return False
    with translate_errors(str(at)), handles.measure(lambda made: min(made, 1)):
        return any(description.name == index.name for description in dataset.describe_indices())


def _new_fragments(handles: Handles, dataset: "LanceDataset", since: TableVersion | None) -> list[Any]:
    """Fragments whose files the older version lacks: after a rebase an id alone may mean other rows."""
    before: set[str] = set()
    if since is not None:
        before = {str(f.path) for fragment in handles.open(since).get_fragments() for f in fragment.metadata.files}
    return [
        fragment
        for fragment in dataset.get_fragments()
        if not any(str(file.path) in before for file in fragment.metadata.files)
    ]


def build_segment(dataset: "LanceDataset", index: DeclaredIndex, fragment_ids: list[int]) -> Any | None:
    """One uncommitted segment over these fragments; None if they are too few."""
    match index.kind:
        case "full_text":
            return build_full_text_segment(dataset, index.column, fragment_ids)
        case "vector":
            few = count_vectors(dataset, index.column, fragment_ids) < VECTORS_MIN
            return None if few else build_vector_segment(dataset, index, fragment_ids)
        case "btree":
            return copy.copy(dataset).create_index_uncommitted(
                index.column, "BTREE", name=index.name, fragment_ids=fragment_ids, replace=True
            )


def count_vectors(dataset: "LanceDataset", column: str, fragment_ids: Sequence[int]) -> int:
    """How many rows of these fragments have a vector."""
    fragments: list[Any] = [dataset.get_fragment(fragment_id) for fragment_id in fragment_ids]
    scanner: Any = dataset.scanner(columns=[], filter=f"`{column}` IS NOT NULL", fragments=fragments)
    return int(scanner.count_rows())


def build_vector_segment(
    dataset: "LanceDataset", index: DeclaredIndex, fragment_ids: list[int], centroids: bytes | None = None
) -> Any:
    """An IVF segment with scalar quantization, one byte per dimension; exact distances come from the vectors.

    Each segment has its own partitions unless `centroids` are given; Lance searches all segments.
    """
    assert index.metric is not None
    shared: Any = None if centroids is None else _centroids(dataset, index.column, centroids)
    count = partition_count(count_vectors(dataset, index.column, fragment_ids)) if shared is None else len(shared)
    return copy.copy(dataset).create_index_uncommitted(
        index.column,
        "IVF_SQ",
        name=index.name,
        metric=index.metric,
        num_partitions=count,
        ivf_centroids=shared,
        fragment_ids=fragment_ids,
        replace=True,
    )


def train_centroids(dataset: "LanceDataset", index: DeclaredIndex, fragment_ids: Sequence[int]) -> bytes:
    """The centroids of the partitions for these fragments, trained on a sample."""
    import numpy as np

    builder = lance_module("lance.indices").IndicesBuilder(dataset, index.column)
    vectors = count_vectors(dataset, index.column, fragment_ids)
    count = partition_count(vectors)
    rate = max(2, min(SAMPLE_RATE, vectors // count))
    model = builder.train_ivf(count, distance_type=index.metric, sample_rate=rate, fragment_ids=list(fragment_ids))
    return np.asarray(model.centroids.flatten(), np.float32).tobytes()


def partition_count(vectors: int) -> int:
    return max(1, min(math.isqrt(vectors), PARTITIONS_MAX))


def _centroids(dataset: "LanceDataset", column: str, data: bytes) -> Any:
    import numpy as np
    import pyarrow as pa

    kind: Any = dataset.schema.field(column).type
    flat: Any = pa.array(np.frombuffer(data, np.float32))
    return pa.FixedSizeListArray.from_arrays(flat.cast(kind.value_type), kind.list_size)


# Segments built by tasks: over groups of fragments, each on any machine, then one detached version. Centroids are
# trained once, so that all segments of a build partition the vectors alike.


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """One segment of one index over some fragments; `centroids` are consecutive 32-bit floats."""

    location: Location = field(repr=False)
    at: TableVersion
    index: DeclaredIndex
    fragments: tuple[int, ...]
    centroids: bytes | None = field(default=None, repr=False)


def count_stored_vectors(location: Location, at: TableVersion, index: DeclaredIndex, fragments: Sequence[int]) -> int:
    """How many rows of these fragments have a vector."""
    with translate_errors(str(at)):
        return count_vectors(handles_of(location).open(at), index.column, fragments)


def train_stored_centroids(
    location: Location, at: TableVersion, index: DeclaredIndex, fragments: Sequence[int]
) -> bytes:
    """Centroids for the vectors of these fragments of a stored version."""
    with translate_errors(str(at)):
        return train_centroids(handles_of(location).open(at), index, fragments)


def run_segment_task(task: SegmentTask) -> Any | None:
    """Write the files of one segment and return its metadata; None if there is nothing to index."""
    dataset = handles_of(task.location).open(task.at)
    with translate_errors(str(task.at)):
        if task.index.kind == "vector":
            if not count_vectors(dataset, task.index.column, task.fragments):
                return None
            return build_vector_segment(dataset, task.index, list(task.fragments), task.centroids)
        return build_segment(dataset, task.index, list(task.fragments))


def commit_segments(
    location: Location, at: TableVersion, built: Sequence[Any | None], leaving: Collection[str] = ()
) -> TableVersion:
    """Commit the built segments, and drop those named by uuid; `at` itself if there are none."""
    new = [segment for segment in built if segment is not None]
    if not new and not leaving:
        return at
    handles = handles_of(location)
    dataset = handles.open(at)
    with translate_errors(str(at)):
        gone = [segment for segment in (segments(dataset) if leaving else ()) if segment.uuid in leaving]
    return detached_commit.commit(handles, at, dataset, lance_module().LanceOperation.CreateIndex(new, gone)).at
