"""Files of tables: which exist, which a version references, and so which are orphans that a sweep deletes.

Lance's own cleanup does not know which detached versions are live and is never called. A version needs its version
file, the data and deletion files of its fragments, its indexes and its adjacency; the table's first, mainline version
is needed while any other is. Transaction files are never read after their commit.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from omnigraph.storage.objects.object_store import ObjectStore
from omnigraph.storage.table.handles import TableVersion
from omnigraph.storage.table.lance_errors import translate_errors
from omnigraph.storage.table.tables import Tables

TABLES = "tables"
_DELETION_SUFFIX = {"array": "arrow", "bitmap": "bin"}
_VERSIONS, _INDICES, _ADJACENCY = "_versions", "_indices", "_adjacency"


@dataclass(frozen=True, slots=True)
class TableFile:
    """One object below a table's directory; `path` is relative to it."""

    table_id: str
    path: str
    size: int
    modified: datetime

    @property
    def key(self) -> str:
        return f"{TABLES}/{self.table_id}/{self.path}"


def table_files(store: ObjectStore) -> Iterator[TableFile]:
    """Everything below `tables/`, in the order of the listing."""
    for listed in store.list(TABLES):
        table_id, _, path = listed.key.removeprefix(f"{TABLES}/").partition("/")
        if path:
            yield TableFile(table_id, path, listed.size, listed.modified)


@dataclass(frozen=True, slots=True)
class Needed:
    """The files that some versions of one table reference: paths, and folders with everything in them."""

    paths: frozenset[str] = frozenset()
    folders: frozenset[str] = frozenset()

    def __or__(self, other: "Needed") -> "Needed":
        return Needed(self.paths | other.paths, self.folders | other.folders)

    def covers(self, path: str) -> bool:
        if path in self.paths:
            return True
        parts = path.split("/")
        return len(parts) > 2 and "/".join(parts[:2]) in self.folders


def needed_by(tables: Tables, at: TableVersion) -> Needed:
    """The files of one version. It is opened: an unreadable version must stop a cleanup, not lose a table."""
    dataset = tables.open(at)
    with translate_errors(str(at)):
        paths = {f"{_ADJACENCY}/{at.table_version}.arrow"}
        for fragment in dataset.get_fragments():
            paths.update(_fragment_files(fragment.metadata))
        segments = [segment for index in dataset.describe_indices() for segment in index.segments]
    paths.add(f"{_VERSIONS}/{version_file(at.table_version)}")
    return Needed(frozenset(paths), frozenset(f"{_INDICES}/{segment.uuid}" for segment in segments))


def version_file(version: int) -> str:
    """Detached versions are named by their number; mainline ones count downwards."""
    return f"d{version}.manifest" if version > MAINLINE_MAX else f"{2**64 - 1 - version:020d}.manifest"


MAINLINE_MAX = 2**63 - 1  # Lance marks a detached version by the highest bit


def is_needed(needed: Needed | None, path: str) -> bool:
    """Whether a file of a table must stay; `needed` is None for a table without live versions.

    The mainline of a table with a live version is needed: opening any version looks for it.
    """
    if needed is None:
        return False
    folder, _, name = path.partition("/")
    return (folder == _VERSIONS and not name.startswith("d")) or needed.covers(path)


def _fragment_files(fragment: Any) -> Iterable[str]:
    for file in fragment.files:
        yield f"data/{file.path}"
    if fragment.deletion_file is not None:
        deleted = fragment.deletion_file.asdict()
        suffix = _DELETION_SUFFIX[deleted["file_type"]]
        yield f"_deletions/{fragment.id}-{deleted['read_version']}-{deleted['id']}.{suffix}"
