"""Bodies that are files: spooled to disk as they come, so that memory does not grow with them.

A body is NDJSON, or CSV or Parquet of one type, or a tar of such files. Names inside a tar come from anybody: only the
last part of a plain name is used, and nothing is unpacked but ordinary files.
"""

import re
import shutil
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import anyio.to_thread

from omnigraph.errors import BadRequest, StorageFull

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


async def spooled(pieces: AsyncIterator[bytes], folder: Path, ending: str) -> Path:
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
            sources = [str(_extracted(archive, member, folder)) for member in _members(archive)]
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


def _extracted(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> Path:
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
