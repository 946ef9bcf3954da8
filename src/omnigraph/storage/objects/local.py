"""A local disk as an object store whose acknowledged writes survive a power cut.

An object appears under its name complete and durable or not at all: it is written to an unnamed or temporary file,
synced, linked to its name, and the directory is synced. A general object-store library would make it visible before it
is synced, so this backend is our own.

A small commit on a local disk waits for the flush and for a new inode: in a directory tree with many inodes, finding a
free one can take longer than the flush. So the directory stays open, and a background thread creates unnamed files
(O_TMPFILE) for the next commits. They are invisible until they get a name, and vanish with the process.

With fsync these files are as long as the last object was, and are on disk already: an object of the same length then
only changes their content, which saves the flush of the inode, half of the cost.
"""

import errno
import os
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from stat import S_ISREG

from omnigraph.caches import LruCache
from omnigraph.errors import BadRequest
from omnigraph.fork_safety import renew_after_fork
from omnigraph.storage.location import PREALLOCATION_BLOCK
from omnigraph.storage.objects.object_store import (
    CREATED,
    EXISTS,
    ETag,
    ObjectInfo,
    PutOutcome,
    PutResult,
    StoredObject,
    TransientError,
    content_etag,
)
from omnigraph.storage.objects.posix import directory_lock, sync_directory, translate, translate_os_errors

DIRS_MAX = 8  # open at once
SPARES_MAX, SPARES_MIN = 16, 2  # per directory; refilled in one go, so that few commits run beside a refill
_BUSY_FROM = 2  # creations in a directory after which another is likely
_PREALLOCATED_BYTES_MAX = 16 * PREALLOCATION_BLOCK  # bytes
_TEMPORARY = ".tmp-"
_FLUSHES_DATA = hasattr(os, "fdatasync")
_NO_UNNAMED = frozenset(
    {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.EXDEV, errno.ENOSYS, errno.EPERM}
)


class OpenDirectory:
    """An open directory. It closes with the last reference, so a descriptor in use is never reused."""

    __slots__ = ("_device", "_flushed", "_inode", "_is_refilling", "_length", "_spares", "_uses", "fd", "path")

    def __init__(self, path: str, flushed: bool = False) -> None:
        self._spares: list[tuple[int, int]] = []  # descriptors and lengths of unnamed files
        self._is_refilling = False  # or waits for it
        self._uses = 0
        self._flushed = flushed
        self._length = 0  # of the last object, if files are preallocated at that length
        self.path = path
        self.fd = -1
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        found = os.fstat(self.fd)
        self._device, self._inode = found.st_dev, found.st_ino

    def __del__(self) -> None:
        for fd in (self.fd, *(spare for spare, _ in self._spares)):
            if fd >= 0:
                os.close(fd)

    def is_current(self) -> bool:
        """Whether its path still leads here: it may have been removed or moved, and another made."""
        try:
            found = os.stat(self.path)
        except OSError:
            return False
        return found.st_ino == self._inode and found.st_dev == self._device

    def take_file(self, length: int) -> tuple[int, int]:
        """The descriptor of an unnamed file, which the caller closes, and the file's length."""
        self._uses += 1
        self._length = (
            length if self._flushed and length % PREALLOCATION_BLOCK == 0 and length <= _PREALLOCATED_BYTES_MAX else 0
        )
        try:
            return self._spares.pop()
        except IndexError:
            return self._create_file(), 0

    def request_refill(self) -> None:
        """Preallocate files in the background, unless this object is likely to be the last."""
        if self._uses >= _BUSY_FROM and len(self._spares) < SPARES_MIN and not self._is_refilling:
            self._is_refilling = True
            try:
                _preallocator().put(self)
            except RuntimeError:  # no thread can be started: files are created on demand
                self._is_refilling = False

    def refill(self) -> None:
        try:
            while len(self._spares) < SPARES_MAX:
                fd, length = self._create_file(), self._length
                try:
                    if length:
                        os.write(fd, b" " * length)
                        os.fsync(fd)
                except OSError:
                    os.close(fd)
                    raise
                self._spares.append((fd, os.fstat(fd).st_size))
        finally:
            self._is_refilling = False

    def _create_file(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_TMPFILE, 0o666)


class DirPool:
    """The most recently used directories of one store."""

    def __init__(self, flushed: bool = False) -> None:
        self._flushed = flushed
        renew_after_fork(self, DirPool._renew)

    def _renew(self) -> None:
        """A forked child has copies of its parent's descriptors, and only the parent may name those files."""
        self._open: LruCache[str, OpenDirectory] = LruCache(DIRS_MAX)
        self._descriptors: OpenDirectory | None = None
        self._lock = threading.Lock()

    @property
    def proc_fd(self) -> int:
        """/proc/self/fd, from which an unnamed file is linked to its name."""
        known = self._descriptors
        if known is None:
            with self._lock:  # a second one would close the first, which another thread may be about to use
                known = self._descriptors = self._descriptors or OpenDirectory("/proc/self/fd")
        return known.fd

    def get(self, path: str) -> OpenDirectory | None:
        """The open directory, if its path still leads to it."""
        with self._lock:
            folder = self._open.get(path)
            if folder is None or folder.is_current():
                return folder
            self._open.pop(path)
            return None

    def open(self, path: str) -> OpenDirectory:
        folder = OpenDirectory(path, self._flushed)
        with self._lock:
            self._open.put(path, folder)
        return folder


class _Preallocator:
    """The one thread of the process that preallocates files."""

    def __init__(self) -> None:
        self._wanted: SimpleQueue[OpenDirectory] = SimpleQueue()
        threading.Thread(target=self._work, name="omnigraph-files", daemon=True).start()

    def put(self, folder: OpenDirectory) -> None:
        self._wanted.put(folder)

    def _work(self) -> None:
        while True:
            folder = self._wanted.get()
            try:
                folder.refill()
            except OSError:
                pass  # the next commit creates the file itself, and reports the error
            del folder


_shared_preallocator: _Preallocator | None = None
_starting = threading.Lock()


def _preallocator() -> _Preallocator:
    global _shared_preallocator
    if _shared_preallocator is None:
        with _starting:
            _shared_preallocator = _shared_preallocator or _Preallocator()
    return _shared_preallocator


def _forget_helper() -> None:
    """A forked child does not have its parent's thread."""
    global _shared_preallocator, _starting
    _shared_preallocator, _starting = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_helper)


class LocalBackend:
    def __init__(self, root: Path, fsync: bool) -> None:
        self._root = root
        self._root_text = os.fspath(root)  # joining it to a key is much faster than with the path
        self._fsync = fsync
        self._unnamed = hasattr(os, "O_TMPFILE")  # whether unnamed files are supported
        self._dirs = DirPool(fsync)
        self._durable_dirs: set[str] = set()  # directories whose own entries are known to be durable
        self._unsynced_dirs: set[str] = set()  # directories with our new names that may not be durable

    def get(self, key: str) -> StoredObject | None:
        path = os.path.join(self._root_text, key)
        try:
            if self._unsynced_dirs:
                self._require_durable(path)
            with translate_os_errors(key), open(path, "rb") as file:
                stat = os.fstat(file.fileno())
                return StoredObject(file.read(), _time(stat))
        except FileNotFoundError:
            return None

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        try:
            with translate_os_errors(key), open(os.path.join(self._root_text, key), "rb", buffering=0) as file:
                file.seek(start)
                return file.read(length)
        except FileNotFoundError:
            return None

    def head(self, key: str) -> ObjectInfo | None:
        try:
            with translate_os_errors(key):
                if self._unsynced_dirs:
                    self._require_durable(f"{self._root_text}/{key}")
                stat = os.stat(self._root / key)
        except FileNotFoundError:
            return None
        if not S_ISREG(stat.st_mode):
            return None
        return ObjectInfo(key, stat.st_size, _time(stat))

    def create(self, key: str, data: bytes) -> PutResult:
        path = f"{self._root_text}/{key}"
        try:
            folder = self._link_unnamed(path, data) if self._unnamed else None
            if folder is None:
                with self._temporary_file(Path(path), data, self._fsync) as temporary:
                    os.link(temporary, path)
        except FileExistsError:
            return EXISTS
        except FileNotFoundError:
            raise
        except OSError as error:
            raise translate(key, error) from error
        if not self._fsync:
            return CREATED
        where = path.rpartition("/")[0]
        try:
            sync_directory(where) if folder is None else os.fsync(folder.fd)
        except OSError as error:  # others can see the object by now, but a power cut may undo it
            self._unsynced_dirs.add(where)
            return PutResult(PutOutcome.UNKNOWN, error.strerror or str(error))
        return CREATED

    def _link_unnamed(self, path: str, data: bytes) -> OpenDirectory | None:
        """Write to an unnamed file and link it to its name; the caller syncs the directory.

        None, and never tried again, where unnamed files are not supported.
        """
        where, _, name = path.rpartition("/")
        folder = self._dirs.get(where)
        if folder is None:
            self._make_directory(Path(where))
            folder = self._dirs.open(where)
        try:
            fd, length = folder.take_file(len(data))
        except OSError as error:
            self._require_no_unnamed(error)
            return None
        try:
            if length > len(data):
                os.ftruncate(fd, len(data))
            _write(fd, data, self._fsync)
            try:
                os.link(str(fd), name, src_dir_fd=self._dirs.proc_fd, dst_dir_fd=folder.fd, follow_symlinks=True)
            except OSError as error:
                self._require_no_unnamed(error)
                return None
        finally:
            _close(fd)
        folder.request_refill()  # in the background, while this commit waits for the disk
        return folder

    def _sync_name(self, folder: Path) -> None:
        """Make a new name durable; a failure leaves the outcome unknown, as in `create`."""
        try:
            sync_directory(folder)
        except OSError as error:
            self._unsynced_dirs.add(os.fspath(folder))
            raise TransientError(error.strerror or str(error)) from error

    def _require_durable(self, path: str) -> None:
        """Do not serve an object whose directory could not be synced: a reader would take its put for successful.

        If the journal could not be written, the next sync fails too, so a sync that succeeds has written everything.
        """
        folder = Path(path).parent
        if os.fspath(folder) in self._unsynced_dirs:
            self._sync_name(folder)
            self._unsynced_dirs.discard(os.fspath(folder))

    def _require_no_unnamed(self, error: OSError) -> None:
        """Re-raise the error unless it says that unnamed files are not supported, which are not tried again then."""
        if isinstance(error, FileExistsError) or error.errno not in _NO_UNNAMED:
            raise error
        self._unnamed = False

    def put(self, key: str, data: bytes, durable: bool) -> None:
        path = self._root / key
        fsync = self._fsync and durable
        with translate_os_errors(key), self._temporary_file(path, data, fsync) as temporary:
            os.replace(temporary, path)
            if fsync:
                self._sync_name(path.parent)

    def replace(self, key: str, data: bytes, seen: ETag) -> bool:
        """Under a directory lock, since file systems have no conditional replace. It excludes other replaces only."""
        path = self._root / key
        try:
            with translate_os_errors(key), directory_lock(path.parent):
                if content_etag(path.read_bytes()) != seen:
                    return False
                with self._temporary_file(path, data, self._fsync) as temporary:
                    os.replace(temporary, path)
                    if self._fsync:
                        self._sync_name(path.parent)
        except FileNotFoundError:
            return False
        return True

    def delete(self, key: str) -> None:
        with suppress(FileNotFoundError), translate_os_errors(key):
            os.unlink(self._root / key)

    def remove_temporaries(self, before: datetime) -> None:
        """Remove temporary files of killed puts that are older than `before`; listings do not show them."""
        for folder, _, names in os.walk(self._root):
            for name in names:
                path = Path(folder, name)
                with suppress(OSError):
                    if name.startswith(_TEMPORARY) and _time(path.stat()) < before:
                        path.unlink()

    def pages(self, prefix: str, *, repeat_pages: bool) -> Iterator[Sequence[ObjectInfo]]:
        """All keys below the prefix as one page. Sorted, so that runs are deterministic."""
        with translate_os_errors(prefix):
            found = sorted(self._walk(prefix), key=lambda listed: listed.key)
        yield found

    def _walk(self, prefix: str) -> Iterator[ObjectInfo]:
        folders = [prefix]
        while folders:
            folder = folders.pop()
            try:
                entries = list(os.scandir(self._root / folder))
            except (FileNotFoundError, NotADirectoryError):
                continue
            for entry in entries:
                key = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_dir():
                    folders.append(key)
                elif not entry.name.startswith(_TEMPORARY):
                    with suppress(FileNotFoundError):
                        stat = entry.stat()
                        yield ObjectInfo(key, stat.st_size, _time(stat))

    @contextmanager
    def _temporary_file(self, path: Path, data: bytes, fsync: bool) -> Iterator[Path]:
        """A temporary file beside `path` with the data, synced if wanted, removed afterwards."""
        self._make_directory(path.parent)
        temporary = path.parent / f"{_TEMPORARY}{os.getpid()}-{secrets.token_hex(8)}"
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                _write(fd, data, fsync)
            finally:
                os.close(fd)
            yield temporary
        finally:
            with suppress(OSError):  # `remove_temporaries` tries again later
                os.unlink(temporary)

    def _make_directory(self, folder: Path) -> None:
        """Create it and its parents; a new directory is durable only once its parent is synced.

        An existing one may be another writer's that has not synced it yet, so the first use of each directory below
        the root syncs its parent, even if another process created it.
        """
        exists = folder.is_dir()
        if exists and (os.fspath(folder) in self._durable_dirs or self._root not in folder.parents):
            return
        self._make_directory(folder.parent)
        if not exists:
            try:
                os.mkdir(folder)
            except FileExistsError:
                if not folder.is_dir():
                    message = f"{folder} is a file: a graph needs a directory, choose another path."
                    raise BadRequest(message) from None
        if self._fsync:
            sync_directory(folder.parent)
        self._durable_dirs.add(os.fspath(folder))


def _write(fd: int, data: bytes, fsync: bool) -> None:
    done = os.pwrite(fd, data, 0)
    while done < len(data):
        done += os.pwrite(fd, memoryview(data)[done:], done)
    if fsync:  # the data and its size; not every system can skip the other metadata
        os.fdatasync(fd) if _FLUSHES_DATA else os.fsync(fd)


def _close(fd: int) -> None:
    """Ignore errors: the data was flushed before, and the file may have its name by now."""
    try:
        os.close(fd)
    except OSError:
        pass


def _time(stat: os.stat_result) -> datetime:
    return datetime.fromtimestamp(stat.st_mtime, UTC)
