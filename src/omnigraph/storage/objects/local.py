"""A local disk as an object store whose acknowledged writes survive a power cut.

An object appears under its name complete and durable or not at all: it is written to an unnamed or temporary file,
synced, linked to its name, and the directory is synced. A general object-store library would make it visible before it
is synced, so this backend is our own.
"""

import errno
import fcntl
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from stat import S_ISREG

from omnigraph.errors import AccessDenied, BadRequest, StorageFull
from omnigraph.storage.objects.dir_pool import DirPool, OpenDirectory
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

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_TEMPORARY = ".tmp-"
_FLUSHES_DATA = hasattr(os, "fdatasync")
_NO_UNNAMED = frozenset(
    {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.EXDEV, errno.ENOSYS, errno.EPERM}
)


def sync_directory(path: Path | str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


_locks: set[int] = set()  # descriptors through which this process locks directories, or waits to


@contextmanager
def _directory_lock(folder: Path) -> Iterator[None]:
    """Lock the directory itself: no lock file is left behind, and the kernel releases it with the process.

    A child forked meanwhile has a copy of the descriptor, and the lock lasts as long as any copy is open. So it is
    unlocked here, not only closed, and the child closes its copy, in case its parent is killed.
    """
    fd, process = os.open(folder, os.O_RDONLY | os.O_DIRECTORY), os.getpid()
    _locks.add(fd)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        if os.getpid() == process:  # a child forked in here does not own the lock, and has closed its copy
            _locks.discard(fd)
            with suppress(OSError):  # locking failed too
                fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)


def _close_copies() -> None:
    """A forked child closes its copies of the parent's descriptors, which does not release the parent's locks."""
    while _locks:
        os.close(_locks.pop())


os.register_at_fork(after_in_child=_close_copies)


class translate_os_errors:  # noqa: N801 - used like a function; a class because it is on the path of every small commit
    """Raise errors of the operating system as ours."""

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError | FileExistsError):
            raise _translate(self._what, error) from error


def _translate(what: str, error: OSError) -> Exception:
    if isinstance(error, NotADirectoryError | IsADirectoryError):
        return FileNotFoundError(*error.args)
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return StorageFull(what, reason)
    if error.errno in _DENIED:
        return AccessDenied(what, reason)
    if error.errno == errno.ENAMETOOLONG:
        return BadRequest(f"{what} is too long a name for this file system: choose a shorter one.")
    return TransientError(reason)


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
            raise _translate(key, error) from error
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
            with translate_os_errors(key), _directory_lock(path.parent):
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
        the root syncs its parent, whoever created it.
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
