"""Directories and errors of the operating system: what a local disk needs beside plain reads and writes."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from omnigraph.errors import AccessDenied, BadRequest, StorageFull
from omnigraph.storage.objects.object_store import TransientError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def sync_directory(path: Path | str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


_locks: set[int] = set()  # descriptors through which this process locks directories, or waits to


@contextmanager
def directory_lock(folder: Path) -> Iterator[None]:
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
            raise translate(self._what, error) from error


def translate(what: str, error: OSError) -> Exception:
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
