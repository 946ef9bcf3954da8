"""Records of table files, made when they are written, so that `verify` can compare them later.

On a local disk a record is the file's size and the SHA-256 of its content, read back while it is in the page cache. On
an object store it is the size and the ETag, from the response to our own put if there is one, otherwise requested while
the commit that names the file is under way.

The ledger of a store has the files that each new table version of this process added. A file without a record is left
out: records are evidence, and nothing depends on them.
"""

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

from omnigraph.caches import LruCache
from omnigraph.errors import OmnigraphError
from omnigraph.fork_safety import renew_after_fork
from omnigraph.storage.location import Location
from omnigraph.storage.objects.object_store import ObjectInfo, ObjectStore, open_store
from omnigraph.threads import gather, run_blocking_hook

SHA256, ETAG = "sha256:", "etag:"
HASHED_AT_ONCE_BYTES = 1024 * 1024
VERSIONS_MAX = 8_192
RECORDS_MAX = 100_000
SINGLE_HEADS_MAX = 16  # for more new files of one folder, the folder is listed
SERIAL_HASH_BYTES_MAX = 1024 * 1024  # hashing less takes no longer than starting threads
_DELETION_SUFFIX = {"array": "arrow", "bitmap": "bin"}
_INDICES = "_indices"


@dataclass(frozen=True, slots=True)
class FileRecord:
    """The size and checksum of a file when it was written."""

    size: int
    checksum: str  # "sha256:…" of the content, or "etag:…" from the store


@dataclass(frozen=True, slots=True)
class WrittenFiles:
    """The files that one operation adds to a table or removes, by path below the table's directory."""

    paths: frozenset[str] = frozenset()
    folders: frozenset[str] = frozenset()  # of index segments, with everything in them
    removed: frozenset[str] = frozenset()
    removed_folders: frozenset[str] = frozenset()
    replaces_all: bool = False


def files_written_by(operation: Any, base: Any) -> WrittenFiles:
    """The files that a `LanceOperation` adds to the dataset `base`."""
    kind = type(operation).__name__
    fragments = list(getattr(operation, "new_fragments", ()))
    if kind in ("Append", "Overwrite", "Merge"):
        fragments.extend(operation.fragments)
    old: list[Any] = []
    for group in getattr(operation, "groups", ()):
        fragments.extend(group.new_fragments)
        old.extend(group.old_fragments)
    paths = {path for fragment in fragments for path in fragment_files(fragment)}
    updated = list(getattr(operation, "updated_fragments", ()))
    if kind == "Merge" or getattr(operation, "fields_modified", None):  # a new column is a file beside older ones
        paths.update(path for fragment in updated for path in fragment_files(fragment))
        for known in base.get_fragments():
            paths.difference_update(fragment_files(known.metadata))
    else:
        paths.update(path for one in updated if (path := _deletion_file(one)) is not None)
    return WrittenFiles(
        frozenset(paths),
        frozenset(f"{_INDICES}/{index.uuid}" for index in getattr(operation, "new_indices", ())),
        frozenset(path for fragment in old for path in fragment_files(fragment)),
        frozenset(f"{_INDICES}/{index.uuid}/" for index in getattr(operation, "removed_indices", ())),
        kind == "Overwrite",
    )


def fragment_files(fragment: Any) -> Iterator[str]:
    """The data files of a fragment's metadata, and its deletion file."""
    for file in fragment.files:
        yield f"data/{file.path}"
    deletion = _deletion_file(fragment)
    if deletion is not None:
        yield deletion


def _deletion_file(fragment: Any) -> str | None:
    if fragment.deletion_file is None:
        return None
    deleted = fragment.deletion_file.asdict()
    suffix = _DELETION_SUFFIX[deleted["file_type"]]
    return f"_deletions/{fragment.id}-{deleted['read_version']}-{deleted['id']}.{suffix}"


def hash_file(path: Path) -> FileRecord:
    """The size and SHA-256 of a file on a local disk."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as file:
        while data := file.read(HASHED_AT_ONCE_BYTES):
            digest.update(data)
            size += len(data)
    return FileRecord(size, SHA256 + digest.hexdigest())


def hash_files(table: Path, paths: Iterable[str]) -> dict[str, FileRecord]:
    """Records of several just written files of a table; unreadable ones are left out."""

    def one(path: str) -> FileRecord | None:
        try:
            return hash_file(table / path)
        except OSError:
            return None

    wanted = sorted(paths)
    calls = [partial(one, path) for path in wanted]
    small = len(wanted) < 2 or sum(map(_size_of, (table / path for path in wanted))) < SERIAL_HASH_BYTES_MAX
    found = [call() for call in calls] if small else gather(calls)
    return {path: record for path, record in zip(wanted, found, strict=True) if record is not None}


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def etag_record(size: int, etag: str | None) -> FileRecord | None:
    """The record of an object; quotes around an ETag belong to the protocol, and some responses lack them."""
    return None if etag is None else FileRecord(size, ETAG + etag.strip('"'))


@dataclass(frozen=True, slots=True)
class _Step:
    """One commit to a table: its base version, and the files that it added."""

    base: int | None
    written: WrittenFiles
    paths: frozenset[str]  # including those that were found in its folders


class FileLedger:
    """The files that this process has added to tables of one store."""

    def __init__(self, location: Location) -> None:
        self._location = location
        renew_after_fork(self, FileLedger._renew)

    def _renew(self) -> None:
        """A forked child starts empty: another thread may have been changing these."""
        self._steps: LruCache[tuple[str, int], _Step] = LruCache(VERSIONS_MAX)
        self._records: LruCache[tuple[str, str], FileRecord] = LruCache(RECORDS_MAX)
        self._deferred: LruCache[str, set[str]] = LruCache(VERSIONS_MAX)
        self._lock = threading.Lock()

    def add_records(self, table_id: str, records: Mapping[str, FileRecord]) -> None:
        """Add records that the writer of the files has made."""
        with self._lock:
            for path, record in records.items():
                self._records.put((table_id, path), record)

    def record_of(self, table_id: str, path: str) -> FileRecord | None:
        return self._records.peek((table_id, path))

    def add_version(
        self, table_id: str, base: int | None, made: int, written: WrittenFiles, found: frozenset[str] = frozenset()
    ) -> None:
        """Note that version `made` of a table added these files; `found` are those in its folders."""
        step = _Step(None if written.replaces_all else base, written, written.paths | found)
        with self._lock:
            self._steps.put((table_id, made), step)

    def new_files(self, table_id: str, base: int | None, at: int) -> dict[str, FileRecord]:
        """The records of files that a version has added since `base`, as far as there are any.

        `base` is None where all files of the version are new, or its base is another table.
        """
        records: dict[str, FileRecord] = {}
        for path in sorted(self._new_paths(table_id, base, at)):
            if (record := self.record_of(table_id, path)) is not None:
                records[path] = record
        return records

    def request_missing(self, table_id: str, base: int | None, at: int) -> None:
        """Request the records that could not be made when the files were written: one more round trip."""
        missing = [path for path in self._new_paths(table_id, base, at) if self.record_of(table_id, path) is None]
        if missing:
            self.add_records(table_id, self.make_records(table_id, missing))

    def _new_paths(self, table_id: str, base: int | None, at: int) -> Iterator[str]:
        removed: set[str] = set()
        folders: tuple[str, ...] = ()
        version: int | None = at
        while version is not None and version != base:
            step = self._steps.peek((table_id, version))
            if step is None:
                return
            yield from (path for path in step.paths if path not in removed and not path.startswith(folders or ("\0",)))
            removed |= step.written.removed
            folders += tuple(step.written.removed_folders)
            version = step.base

    # How records are made.

    def record(self, table_id: str, written: WrittenFiles, *, beside: bool = False) -> frozenset[str]:
        """Make the records of new files that have none yet.

        Returns the other files recorded along with them: those in new folders and, where this runs `beside` another
        request, the deferred ones.
        """
        try:
            inside = frozenset(path for folder in written.folders for path in self._list_folder(table_id, folder))
            postponed = self._take_deferred(table_id) - written.removed if beside else frozenset[str]()
            paths = written.paths | inside | postponed
            missing = [path for path in paths if self.record_of(table_id, path) is None]
            self.add_records(table_id, self.make_records(table_id, missing))
        except (OSError, OmnigraphError):
            return frozenset()
        return inside | postponed

    def defer(self, table_id: str, paths: Iterable[str]) -> None:
        """Request the records of these files along with a later request, to save a round trip now."""
        with self._lock:
            self._deferred.put(table_id, (self._deferred.peek(table_id) or set()).union(paths))

    def _take_deferred(self, table_id: str) -> frozenset[str]:
        if not self._deferred:
            return frozenset()
        with self._lock:
            return frozenset(self._deferred.pop(table_id) or ())

    def needs_requests(self, table_id: str, written: WrittenFiles) -> bool:
        """Whether some of these records have to be requested from the store."""
        if self._location.is_local:
            return False
        return bool(written.folders) or any(self.record_of(table_id, path) is None for path in written.paths)

    def make_records(self, table_id: str, paths: Iterable[str]) -> dict[str, FileRecord]:
        """Records of files that exist: read back on a local disk, requested from an object store."""
        if self._location.is_local:
            return hash_files(self._location.path / "tables" / table_id, paths)
        try:
            return self._request_records(table_id, sorted(paths))
        except (OSError, OmnigraphError):
            return {}

    def put(self, table_id: str, path: str, data: bytes) -> None:
        """Upload a file of a table; its record is in the response."""
        tag = self._store.put(_key(table_id, path), data)
        record = etag_record(len(data), None if tag is None else tag.etag)
        if record is not None:
            self.add_records(table_id, {path: record})

    def _list_folder(self, table_id: str, folder: str) -> Iterator[str]:
        if self._location.is_local:
            table = self._location.path / "tables" / table_id
            for place, _, names in os.walk(table / folder):
                for name in names:
                    yield (Path(place) / name).relative_to(table).as_posix()
            return
        listed = list(self._store.list(_key(table_id, folder)))
        prefix = _key(table_id, "")
        records = {one.key.removeprefix(prefix): etag_record(one.size, one.etag) for one in listed}
        self.add_records(table_id, {path: record for path, record in records.items() if record is not None})
        yield from records

    def _request_records(self, table_id: str, paths: list[str]) -> dict[str, FileRecord]:
        """One request per file or, for many in one folder, one listing."""
        by_folder: dict[str, list[str]] = {}
        for path in paths:
            by_folder.setdefault(path.rpartition("/")[0], []).append(path)
        calls: list[Callable[[], list[ObjectInfo | None]]] = []
        for folder, inside in by_folder.items():
            if len(inside) > SINGLE_HEADS_MAX:
                calls.append(partial(_listing, self._store, _key(table_id, folder)))
            else:
                calls.extend(partial(_one, self._store, _key(table_id, path)) for path in inside)
        run_blocking_hook()
        wanted = {_key(table_id, path): path for path in paths}
        found: dict[str, FileRecord] = {}
        for listed in (one for answer in gather(calls) for one in answer if one is not None):
            record = etag_record(listed.size, listed.etag)
            if listed.key in wanted and record is not None:
                found[wanted[listed.key]] = record
        return found

    @cached_property
    def can_put(self) -> bool:
        """Whether our client can write to the store; Lance accepts options that it refuses."""
        if self._location.is_local:
            return False
        try:
            return bool(self._store)
        except OmnigraphError:
            return False

    @cached_property
    def _store(self) -> ObjectStore:
        return open_store(self._location)


def _listing(store: ObjectStore, folder: str) -> list[ObjectInfo | None]:
    return list(store.list(folder))


def _one(store: ObjectStore, key: str) -> list[ObjectInfo | None]:
    return [store.head(key)]


def _key(table_id: str, path: str) -> str:
    return f"tables/{table_id}/{path}"


def ledger_of(location: Location) -> FileLedger:
    """The ledger of a store, one instance per process."""
    return _ledger(location.uri, tuple(sorted(location.options.items())))


@lru_cache(maxsize=64)
def _ledger(uri: str, options: tuple[tuple[str, str], ...]) -> FileLedger:
    return FileLedger(Location(uri, dict(options)))
