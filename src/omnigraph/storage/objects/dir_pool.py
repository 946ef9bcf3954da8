"""Directories that objects are created in again and again, kept open, each with the next files at hand.

A small commit on a local disk waits for the disk, and then for the inode: where many are taken, finding a free one can
take longer than a flush. So the directory stays open, and files without a name are made behind the commits for those
that follow. They belong to nobody until they get a name, and go with the process.

Where objects are flushed, these files are as long as the last object was, and lie on the disk already: an object of the
same length then changes their content alone, and half of a flush, that of the inode, is spared.
"""

import os
import threading
from contextlib import suppress
from queue import SimpleQueue

from omnigraph.fork_safety import renew_after_fork
from omnigraph.lru_cache import LruCache

DIRS_MAX = 8  # that stay open
SPARES_MAX, SPARES_MIN = (
    16,
    2,
)  # files at hand in each of them: made together, so that few commits have work beside them
_BUSY_FROM = 2  # creations in a directory that make a further one likely
BLOCK = 4096  # what files are measured in; an object that fills whole blocks is likely to be as long as the last one
_PREALLOCATED_BYTES_MAX = 16 * BLOCK  # bytes


class OpenDirectory:
    """An open directory. It closes with the last reference, so no descriptor is reused under somebody's hands."""

    __slots__ = ("_device", "_flushed", "_inode", "_length", "_spares", "_uses", "fd", "path")

    def __init__(self, path: str, flushed: bool = False) -> None:
        self._spares: list[tuple[int, int]] = []  # descriptors, and how long their files are
        self._uses = 0
        self._flushed = flushed
        self._length = 0  # of the last object, if files are to be laid out like it
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
        """Whether its path leads to it: somebody may have removed or moved it, and made another."""
        try:
            found = os.stat(self.path)
        except OSError:
            return False
        return found.st_ino == self._inode and found.st_dev == self._device

    def take_file(self, length: int) -> tuple[int, int]:
        """A file without a name, which is the caller's to close, and how long it is, wherever it came from."""
        self._uses += 1
        self._length = length if self._flushed and length % BLOCK == 0 and length <= _PREALLOCATED_BYTES_MAX else 0
        try:
            return self._spares.pop()
        except IndexError:
            return self._create_file(), 0

    def request_refill(self) -> None:
        """Have the next file ready before it is wanted, unless this is likely to have been the last."""
        if self._uses >= _BUSY_FROM and len(self._spares) < SPARES_MIN:
            with suppress(RuntimeError):  # no thread can be started: files are made when they are wanted
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
    """The directories of one store that were written to last."""

    def __init__(self, flushed: bool = False) -> None:
        self._flushed = flushed
        renew_after_fork(self, DirPool._renew)

    def _renew(self) -> None:
        """A forked child has copies of its parent's descriptors, whose files are the parent's to name."""
        self._open: LruCache[str, OpenDirectory] = LruCache(DIRS_MAX)
        self._descriptors: OpenDirectory | None = None
        self._lock = threading.Lock()

    @property
    def proc_fd(self) -> int:
        """Where the system shows the open files of this process, which is how one without a name gets one."""
        known = self._descriptors
        if known is None:
            with self._lock:  # a second one in its place would close the first, which somebody may be about to use
                known = self._descriptors = self._descriptors or OpenDirectory("/proc/self/fd")
        return known.fd

    def get(self, path: str) -> OpenDirectory | None:
        """The directory, if it was kept and is the one that its path leads to."""
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
    """One thread of the process that makes files ahead."""

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
                pass  # whoever wants the file makes it, and tells why it can't be made
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
    """A forked child has not got its parent's thread."""
    global _shared_preallocator, _starting
    _shared_preallocator, _starting = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_helper)
