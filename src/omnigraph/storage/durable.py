"""Make what Lance wrote on a local disk survive a power cut.

A manifest that names a table version is synced before it is visible; so must be every file that
the version newly refers to, and every directory that got a new name. Lance syncs nothing itself.
"""

import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from omnigraph.storage.lance_errors import explained
from omnigraph.storage.local import sync_directory
from omnigraph.storage.location import Location
from omnigraph.storage.parallel import gather

_DELETION_SUFFIX = {"array": "arrow", "bitmap": "bin"}


def table_path(location: Location, table_id: str) -> Path | None:
    """A table's directory, if its files are to be synced at all."""
    return location.path / "tables" / table_id if location.is_local and location.fsync else None


def missing_above(table: Path) -> list[Path]:
    """The directories above a new table that are not there yet."""
    return [folder for folder in table.parents if not folder.exists()]


def sync_created(table: Path, made_above: Iterable[Path]) -> None:
    """Everything below a new table's directory, and the names that lead to it.

    That `tables/` was there before is no reason to leave the root out: another process may have
    made it a moment ago and not have synced it yet.
    """
    files = [Path(folder) / name for folder, _, names in os.walk(table) for name in names]
    folders = {Path(folder) for folder, _, _ in os.walk(table)}
    _sync(files, folders | {table.parent, table.parent.parent} | {folder.parent for folder in made_above})


def sync_committed(table: Path, read_version: int, transaction: str, operation: Any, committed: int) -> None:
    """The files that one detached commit added to a table."""
    files = {
        table / "_transactions" / f"{read_version}-{transaction}.txn",
        table / "_versions" / f"d{committed}.manifest",
        *_written_for(table, operation),
    }
    folders = {table, *(file.parent for file in files)}
    if getattr(operation, "new_indices", ()):
        folders.add(table / "_indices")
    _sync(files, folders)


def sync_data(table: Path, names: Iterable[str]) -> None:
    """Data files that a commit is about to refer to."""
    _sync([table / "data" / name for name in names], [table / "data"])


def _written_for(table: Path, operation: Any) -> Iterator[Path]:
    """What an operation refers to. A widened schema (`Merge`) refers to old files, or to synced ones."""
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


def _sync(files: Iterable[Path], folders: Iterable[Path]) -> None:
    """Files first: a name must not outlive a crash that its content did not."""
    with explained("table files"):
        gather([partial(_sync_file, file) for file in files])
        gather([partial(sync_directory, folder) for folder in folders])


def _sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
