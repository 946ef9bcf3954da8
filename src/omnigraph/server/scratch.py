"""Temporary files that end with their server, however it ends.

A server has a directory of its own, and beside it a file that it keeps locked. The lock goes with the process, also
with one that was killed: so the next server can tell leftovers, which it removes, from directories in use.
"""

import fcntl
import hashlib
import os
import re
import shutil
import tarfile
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio.to_thread

from omnigraph.cancellation import checkpoint
from omnigraph.errors import AlreadyExists, BadRequest, StorageFull, Unavailable
from omnigraph.runtime import Runtime

SERVER = "omnigraph-server-"
JOB = "omnigraph-job-"
LOCK = ".lock"
POLL_S = 0.05


class Claim:
    """A directory that is this process's for as long as the lock beside it is held."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def release(self) -> None:
        """Remove the directory; its lock last, so that what could not be removed is found again."""
        shutil.rmtree(self.path, ignore_errors=True)
        if not self.path.exists():
            _lock_of(self.path).unlink(missing_ok=True)
        os.close(self._descriptor)


def claim(path: Path) -> Claim | None:
    """Take a directory, which need not exist, unless somebody has it. What is in it is what a dead owner left."""
    while True:
        lock = _lock_of(path)
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        if os.fstat(descriptor).st_nlink:
            return Claim(path, descriptor)
        os.close(descriptor)  # its last owner removed the file after it was opened here


def sweep(base: Path) -> None:
    """Remove what servers have left that are no more."""
    for prefix in (SERVER, JOB):
        for lock in base.glob(f"{prefix}*{LOCK}"):
            try:
                if lock.is_symlink() or lock.stat().st_uid != os.getuid():
                    continue  # the temporary directory is everybody's
                left = claim(lock.with_suffix(""))
            except OSError:
                continue
            if left is not None:
                left.release()


class Scratch:
    """The temporary files of one server."""

    def __init__(self, base: Path | None, runtime: Runtime) -> None:
        self._runtime = runtime
        self.base = Path(tempfile.gettempdir()) if base is None else base
        self._own: Claim | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """At the start of a server: what dead ones have left goes."""
        sweep(self.base)

    @property
    def path(self) -> Path:
        """The server's own directory, made when it is first asked for."""
        with self._lock:
            while self._own is None:
                self._own = claim(self.base / f"{SERVER}{self._runtime.ids.short_id()}")
            self._own.path.mkdir(mode=0o700, exist_ok=True)
            return self._own.path

    def new_folder(self) -> Path:
        """A directory for one request or job."""
        return Path(tempfile.mkdtemp(prefix="omnigraph-", dir=self.path))

    @contextmanager
    def claim_name(self, folder: Path, name: str, wait_s: float = 0.0) -> Iterator[Path]:
        """While inside, the folder has a name that is the same each time that a load of this name comes.

        A bulk load knows its files by path, size and time, so that it can tell whether it may resume an earlier
        run, perhaps of a server that was killed. The path says whose they are, the times what is in them.
        """
        for path in (path for path in folder.rglob("*") if path.is_file()):
            with path.open("rb") as file:
                digest = int.from_bytes(hashlib.file_digest(file, "sha256").digest()[:4])
            os.utime(path, (digest, digest))
        try:
            named = self._claim_named(name, wait_s)
            shutil.rmtree(named.path, ignore_errors=True)
            folder.rename(named.path)
        except OSError as error:  # the place is everybody's, and the name can be guessed
            raise Unavailable("a place for the files of the load", error.strerror or "it is taken") from error
        try:
            yield named.path
        finally:
            if named.path.exists():
                named.path.rename(folder)
            named.release()

    def _claim_named(self, name: str, wait_s: float) -> Claim:
        path = self.base / f"{JOB}{hashlib.sha256(name.encode()).hexdigest()[:32]}"
        clock = self._runtime.clock
        end = clock.monotonic() + wait_s
        while (found := claim(path)) is None:
            if clock.monotonic() >= end:
                raise AlreadyExists("A load with this id that is under way", "wait for it, or give another id")
            checkpoint()
            clock.sleep(POLL_S)
        return found

    def close(self) -> None:
        with self._lock:
            if self._own is not None:
                self._own.release()
                self._own = None


def _lock_of(path: Path) -> Path:
    return path.with_name(f"{path.name}{LOCK}")


BODY = "body"
WRITE_BYTES = 1024 * 1024
MEMBERS_MAX = 10_000
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._ -]{0,199}\.(jsonl|ndjson|csv|parquet)\Z")
_ENDINGS = {"text/csv": ".csv", "application/vnd.apache.parquet": ".parquet", "application/x-tar": ".tar"}


def remove_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def ending_for(content_type: str) -> str:
    """What a content type calls a file; everything that is not known is NDJSON."""
    return _ENDINGS.get(content_type.partition(";")[0].strip().lower(), ".jsonl")


async def spool(pieces: AsyncIterator[bytes], folder: Path, ending: str) -> Path:
    """A body as a file. The next piece is asked for when the last was written: a fast sender has to wait."""
    path = folder / f"{BODY}{ending}"
    held: list[bytes] = []
    size = 0
    try:
        with path.open("wb") as file:
            async for piece in pieces:
                held.append(piece)
                size += len(piece)
                if size >= WRITE_BYTES:
                    await anyio.to_thread.run_sync(file.write, b"".join(held))
                    held, size = [], 0
            await anyio.to_thread.run_sync(file.write, b"".join(held))
    except OSError as error:
        raise StorageFull("the body", error.strerror or type(error).__name__) from error
    return path


def sources_of(path: Path) -> list[str]:
    """The files that a spooled body stands for."""
    if path.suffix != ".tar":
        return [str(path)]
    folder = path.parent / "files"
    folder.mkdir()
    try:
        with tarfile.open(path, "r:") as archive:
            sources = [str(_extract(archive, member, folder)) for member in _members(archive)]
    except OSError as error:
        raise StorageFull("the files of the body", error.strerror or type(error).__name__) from error
    except tarfile.TarError as error:
        raise BadRequest("The body is no tar file: send one, or another content type.") from error
    path.unlink()
    if not sources:
        raise BadRequest("The tar file holds no file: send at least one.")
    return sources


def _members(archive: tarfile.TarFile) -> list[tarfile.TarInfo]:
    members: list[tarfile.TarInfo] = []
    for member in archive:
        if len(members) == MEMBERS_MAX:
            raise BadRequest(f"The tar file holds more than {MEMBERS_MAX:,} files: send it in parts.")
        members.append(member)
    return members


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> Path:
    name = member.name.rsplit("/", 1)[-1]
    content = archive.extractfile(member) if member.isreg() else None
    if content is None or not _NAME.match(name):
        raise BadRequest(f"{member.name[:100]!r} can't be loaded: a tar file holds .jsonl, .csv and .parquet files.")
    target = folder / name
    if target.exists():
        raise BadRequest(f"The tar file holds {name!r} twice: name every file differently.")
    with content, target.open("wb") as file:
        shutil.copyfileobj(content, file)
    return target
