"""A pool of open directories in which objects are created often, each with preallocated files.

A small commit on a local disk waits for the flush and for a new inode: in a directory tree with many inodes, finding a
free one can take longer than the flush. So the directory stays open, and a background thread creates unnamed files
(O_TMPFILE) for the next commits. They are invisible until they get a name, and vanish with the process.

With fsync these files are as long as the last object was, and are on disk already: an object of the same length then
only changes their content, which saves the flush of the inode, half of the cost.
"""

import os
import threading
from contextlib import suppress
from queue import SimpleQueue

from omnigraph.caches import LruCache
from omnigraph.fork_safety import renew_after_fork

DIRS_MAX = 8  # open at once
SPARES_MAX, SPARES_MIN = 16, 2  # per directory; refilled in one go, so that few commits run beside a refill
_BUSY_FROM = 2  # creations in a directory after which another is likely
BLOCK = 4096  # bytes; an object of whole blocks is likely to be as long as the last one
_PREALLOCATED_BYTES_MAX = 16 * BLOCK  # bytes


class OpenDirectory:
    """An open directory. It closes with the last reference, so a descriptor in use is never reused."""

    __slots__ = ("_device", "_flushed", "_inode", "_length", "_spares", "_uses", "fd", "path")

    def __init__(self, path: str, flushed: bool = False) -> None:
        self._spares: list[tuple[int, int]] = []  # descriptors and lengths of unnamed files
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
        self._length = length if self._flushed and length % BLOCK == 0 and length <= _PREALLOCATED_BYTES_MAX else 0
        try:
            return self._spares.pop()
        except IndexError:
            return self._create_file(), 0

    def request_refill(self) -> None:
        """Preallocate files in the background, unless this object is likely to be the last."""
        if self._uses >= _BUSY_FROM and len(self._spares) < SPARES_MIN:
            with suppress(RuntimeError):  # no thread can be started: files are created on demand
                _preallocator().put(self)

    def refill(self) -> None:
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
