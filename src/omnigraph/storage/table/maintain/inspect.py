"""Read-only inspection of stored table versions: files, fragments, and indexes compared with scans.

A check uses a session of its own, because another session's cache says nothing about the store.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from omnigraph.errors import Damaged
from omnigraph.schema.indexes import DeclaredIndex
from omnigraph.storage.objects.object_store import ObjectStore
from omnigraph.storage.table.handles import TableVersion, lance_module
from omnigraph.storage.table.index import segments as index_segments
from omnigraph.storage.table.index.metadata import has_indexes, recorded_files
from omnigraph.storage.table.lance_errors import translate_errors

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from lance import LanceDataset

    Addresses = np.ndarray[Any, np.dtype[np.uint64]]

_STAGING = "staging/"  # parts of a full-text index, deleted after they were merged
_DETACHED = 2**63  # versions from here on are detached
_CACHE_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file or folder that a table version refers to; `size` is None if the version does not have it."""

    key: str
    size: int | None
    what: str


@dataclass(frozen=True, slots=True)
class IndexCoverage:
    """An index of a stored version, and the number of rows that it does not cover."""

    index: DeclaredIndex
    unindexed_rows: int


def fresh_session() -> Any:
    """A new Lance session with small, empty caches."""
    return lance_module().Session(index_cache_size_bytes=_CACHE_BYTES_MAX, metadata_cache_size_bytes=_CACHE_BYTES_MAX)


def version_key(at: TableVersion) -> str:
    """The key of a version file: a table's first version is on the mainline, which counts downwards."""
    detached = at.table_version >= _DETACHED
    name = f"d{at.table_version}" if detached else f"{2**64 - 1 - at.table_version:020d}"
    return f"tables/{at.table_id}/_versions/{name}.manifest"


def version_files(at: TableVersion, dataset: "LanceDataset") -> Iterator[NamedFile]:
    """Every file needed to read the version's rows."""
    folder = f"tables/{at.table_id}"
    for fragment in dataset.get_fragments():
        for file in fragment.metadata.files:
            yield NamedFile(f"{folder}/data/{file.path}", file.file_size_bytes or None, "data file")
        deletion: Any = fragment.metadata.deletion_file
        if deletion is not None:
            yield NamedFile(f"{folder}/{deletion.path(fragment.fragment_id)}", None, "deletion file")


def index_files(store: ObjectStore, at: TableVersion, dataset: "LanceDataset") -> Iterator[NamedFile]:
    """Every file needed to search the version's indexes."""
    if not has_indexes(dataset):
        return
    folder = f"tables/{at.table_id}"
    stored = store.get(version_key(at))
    if stored is None:
        raise Damaged(str(at), "its version file is missing")
    for uuid, files in recorded_files(stored.data):
        yield NamedFile(f"{folder}/_indices/{uuid}/", None, "index folder")
        for path, size in files:
            if not path.startswith(_STAGING):
                yield NamedFile(f"{folder}/_indices/{uuid}/{path}", size or None, "index file")


def fragment_names(dataset: "LanceDataset") -> dict[int, tuple[str, ...]]:
    """The files of each fragment, by id: equal files mean equal rows, in whichever version."""
    names: dict[int, tuple[str, ...]] = {}
    for fragment in dataset.get_fragments():
        deletion: Any = fragment.metadata.deletion_file
        own = () if deletion is None else (str(deletion.path(fragment.fragment_id)),)
        names[int(fragment.fragment_id)] = (*(str(file.path) for file in fragment.metadata.files), *own)
    return names


def check_fragment(at: TableVersion, dataset: "LanceDataset", fragment_id: int) -> int:
    """Read all columns of a fragment and return its row count, which must be that of the version."""
    fragment: Any = dataset.get_fragment(fragment_id)
    rows = 0
    with translate_errors(f"fragment {fragment_id} of {at}"):
        scanner: Any = dataset.scanner(fragments=[fragment])
        for batch in scanner.to_batches():
            batch.validate(full=True)
            rows += batch.num_rows
        deletion = fragment.metadata.deletion_file
        promised = fragment.physical_rows - (0 if deletion is None else deletion.num_deleted_rows)
    if rows != promised:
        raise Damaged(f"fragment {fragment_id} of {at}", f"it has {rows:,} rows instead of {promised:,}")
    return rows


def index_coverage(dataset: "LanceDataset", declared: Iterable[DeclaredIndex]) -> list[IndexCoverage]:
    """The declared indexes that the version has."""
    if not has_indexes(dataset):
        return []
    there = {str(description.name) for description in dataset.describe_indices()}
    found = []
    for index in declared:
        if index.name in there and index.column in dataset.schema.names:
            missing: list[Any] = [
                dataset.get_fragment(one) for one in index_segments.unindexed_fragments(dataset, index)
            ]
            found.append(IndexCoverage(index, sum(int(fragment.count_rows()) for fragment in missing)))
    return found


def column_batches(
    at: TableVersion, dataset: "LanceDataset", column: str, fragment_ids: Sequence[int] | None = None
) -> "Iterator[pa.RecordBatch]":
    """A column with row addresses, read without any index."""
    chosen: Any = None if fragment_ids is None else [dataset.get_fragment(one) for one in fragment_ids]
    with translate_errors(str(at)):
        scanner: Any = dataset.scanner(columns=[column], with_row_address=True, fragments=chosen)
        yield from scanner.to_batches()


def matching_addresses(at: TableVersion, dataset: "LanceDataset", condition: str, *, indexed: bool) -> "Addresses":
    """The sorted addresses of the rows that pass, found by indexes or by a scan."""
    import numpy as np

    with translate_errors(str(at)):
        scanner: Any = dataset.scanner(
            columns=[], filter=condition, with_row_address=True, use_scalar_index=indexed, prefilter=True
        )
        found: Addresses = np.sort(scanner.to_table().column("_rowaddr").to_numpy())
    return found


def nearest_addresses(
    at: TableVersion, dataset: "LanceDataset", index: DeclaredIndex, vector: Any, count: int
) -> "tuple[Addresses, np.ndarray[Any, np.dtype[np.float64]]]":
    """The nearest rows with their distances, found by scanning every vector."""
    import numpy as np

    nearest = {"column": index.column, "q": vector, "k": count, "metric": index.metric, "use_index": False}
    with translate_errors(str(at)):
        scanner: Any = dataset.scanner(
            columns=["_distance"], nearest=nearest, with_row_address=True, disable_scoring_autoprojection=True
        )
        table = scanner.to_table()
    return table.column("_rowaddr").to_numpy(), table.column("_distance").to_numpy().astype(np.float64)


def values_at(at: TableVersion, dataset: "LanceDataset", column: str, addresses: "Addresses") -> list[Any]:
    """The values of the rows at these addresses."""
    rows: Any = dataset
    with translate_errors(str(at)):
        taken: pa.Table = rows._take_rows([int(one) for one in addresses], columns=[column])
    return list(taken.column(column).to_pylist())
