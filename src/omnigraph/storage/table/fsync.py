"""Makes Lance's files on a local disk survive a power cut.

A manifest that names a table version is synced before it is visible; so must be every file that the version newly
refers to, and every directory with a new entry. Lance itself syncs nothing.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

from omnigraph.storage.location import Location
from omnigraph.storage.objects.posix import sync_directory
from omnigraph.storage.table.handles import TableVersion
from omnigraph.storage.table.lance_errors import translate_errors
from omnigraph.threads import gather

SERIAL_SYNCS_MAX = 4  # up to here files or directories are synced one after another
_DELETION_SUFFIX = {"array": "arrow", "bitmap": "bin"}


def path_to_sync(location: Location, table_id: str) -> Path | None:
    """A table's directory, if its files are synced at all."""
    return location.path / "tables" / table_id if location.is_local and location.fsync else None


def missing_parents(table: Path) -> list[Path]:
    """The directories above a new table that do not exist yet."""
    return [folder for folder in table.parents if not folder.exists()]


def sync_created(table: Path, made_above: Iterable[Path]) -> None:
    """Sync everything below a new table's directory, and the directories above it.

    The root is synced even if `tables/` existed: another process may have just created it and not synced it yet.
    """
    files = [Path(folder) / name for folder, _, names in os.walk(table) for name in names]
    folders = {Path(folder) for folder, _, _ in os.walk(table)}
    _sync(files, folders | {table.parent, table.parent.parent} | {folder.parent for folder in made_above})


def sync_committed(location: Location, at: TableVersion, transaction: str, operation: Any, committed: int) -> None:
    """Sync the files that one detached commit on `at` added to a table."""
    table = path_to_sync(location, at.table_id)
    if table is None:
        return
    own = {
        table / "_transactions" / f"{at.table_version}-{transaction}.txn",
        table / "_versions" / f"d{committed}.manifest",
    }
    held = _unsynced.get()
    unsynced = held or UnsyncedFiles()
    unsynced.add(committed, own, _files_added_by(table, operation), _files_dropped_by(table, operation))
    if held is None:
        unsynced.sync(location, TableVersion(at.table_id, committed))


class UnsyncedFiles:
    """The unsynced files of consecutive commits to one table. Only the last version will be named by a manifest, so
    files that it does not refer to need not survive."""

    def __init__(self) -> None:
        self._own: dict[int, set[Path]] = {}
        self._written: set[Path] = set()

    def add(self, committed: int, own: set[Path], written: Iterable[Path], left: Iterable[Path]) -> None:
        self._own[committed] = own
        self._written.update(written)
        self._written.difference_update(left)

    def sync(self, location: Location, at: TableVersion) -> None:
        """Sync everything that this version newly refers to, if it is one of the commits."""
        table = path_to_sync(location, at.table_id)
        if table is None or at.table_version not in self._own:
            return
        files = self._own[at.table_version] | self._written
        folders = {table, *(file.parent for file in files)}
        _sync(files, folders | {folder.parent for folder in folders if folder.parent.name == "_indices"})


_unsynced: ContextVar[UnsyncedFiles | None] = ContextVar("omnigraph_unsynced", default=None)


@contextmanager
def defer_sync() -> Iterator[UnsyncedFiles]:
    """Defer syncing of commits made inside, also by threads of `parallel`, until `UnsyncedFiles.sync`."""
    unsynced = UnsyncedFiles()
    token = _unsynced.set(unsynced)
    try:
        yield unsynced
    finally:
        _unsynced.reset(token)


def sync_data(table: Path, names: Iterable[str]) -> None:
    """Sync data files that a commit is about to refer to."""
    _sync([table / "data" / name for name in names], [table / "data"])


def _files_added_by(table: Path, operation: Any) -> Iterator[Path]:
    """The files that an operation adds. A widened schema (`Merge`) refers to old files, or to synced ones."""
    fragments = list(getattr(operation, "new_fragments", ()))
    if type(operation).__name__ in ("Append", "Overwrite"):
        fragments.extend(operation.fragments)
    for group in getattr(operation, "groups", ()):
        fragments.extend(group.new_fragments)
    for fragment in fragments:
        for file in fragment.files:
            yield table / "data" / str(file.path)
    for fragment in getattr(operation, "updated_fragments", ()):
        if fragment.deletion_file is not None:
            deleted = fragment.deletion_file.asdict()
            suffix = _DELETION_SUFFIX[deleted["file_type"]]
            yield table / "_deletions" / f"{fragment.id}-{deleted['read_version']}-{deleted['id']}.{suffix}"
    for index in getattr(operation, "new_indices", ()):
        for folder, _, names in os.walk(table / "_indices" / index.uuid):
            for name in names:
                yield Path(folder) / name


def _files_dropped_by(table: Path, operation: Any) -> Iterator[Path]:
    """Files that later versions do not refer to: rewritten fragments."""
    for group in getattr(operation, "groups", ()):
        for fragment in group.old_fragments:
            for file in fragment.files:
                yield table / "data" / str(file.path)


def _sync(files: Iterable[Path], folders: Iterable[Path]) -> None:
    """Files first: a name must not survive a crash without its content."""
    with translate_errors("table files"):
        for some in ([partial(_sync_file, file) for file in files], [partial(sync_directory, one) for one in folders]):
            if len(some) > SERIAL_SYNCS_MAX:
                gather(some)
            else:  # takes no longer than starting threads
                for sync in some:
                    sync()


def _sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
