"""The input files of a load, on a local disk or in an object store, read by ranges.

A graph has one root, but the files of a load may be anywhere, so a store is opened here for each bucket or directory.
"""

import hashlib
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from omnigraph.errors import BadRequest
from omnigraph.storage.location import FSYNC_OPTION, REMOTE_SCHEMES, Location, parse_location
from omnigraph.storage.objects.object_store import ObjectInfo, ObjectStore, open_store
from omnigraph.threads import gather

CHECKSUM_BLOCK = 16 * 1024 * 1024
_READ_BYTES = 1024 * 1024
_FAMILIES: Mapping[str, tuple[str, ...]] = {"s3": ("aws_",), "s3a": ("aws_",), "gs": ("google_",), "az": ("azure_",)}
_PREFIXES = ("aws_", "google_", "azure_")


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file, with its size when it was found."""

    store: ObjectStore
    key: str
    name: str  # as the caller wrote it
    size: int

    def read(self, offset: int, length: int) -> bytes:
        """Part of the file, or less where it ends; BadRequest if it has changed since it was found."""
        length = min(length, self.size - offset)
        if length <= 0:
            return b""
        data = self.store.get_range(self.key, offset, length)
        if data is None or len(data) != length:
            what = "is gone" if data is None else "has become shorter"
            raise BadRequest(f"{self.name} {what} while it was read: nothing was written, load it again.")
        return data

    def open(self) -> io.BufferedReader:
        """The file as a seekable stream."""
        return io.BufferedReader(_Raw(self), 1024 * 1024)


class _Raw(io.RawIOBase):
    def __init__(self, file: InputFile) -> None:
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(self._at, len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def is_remote(place: str) -> bool:
    return "://" in place and not place.startswith("file://")


def bucket_and_key(uri: str) -> tuple[str, str]:
    """`s3://bucket` and the key; BadRequest for an unknown scheme."""
    scheme, _, rest = uri.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme not in REMOTE_SCHEMES:
        raise BadRequest(f"{uri} has the unknown scheme {scheme!r}: use a path, file://, s3://, gs:// or az://.")
    if not bucket:
        raise BadRequest(f"{uri} names no bucket: write {scheme}://bucket/path.")
    return f"{scheme}://{bucket}", key


def options_for(uri: str, options: Mapping[str, str] | None) -> dict[str, str]:
    """The graph's options if they fit this kind of store; the rest comes from the environment."""
    given = {key: value for key, value in (options or {}).items() if key.lower() != FSYNC_OPTION}
    own = _FAMILIES.get(uri.partition("://")[0], ())
    foreign = any(key.lower().startswith(_PREFIXES) and not key.lower().startswith(own) for key in given)
    return {} if foreign or not own else given


def find_file(place: str, options: Mapping[str, str] | None = None) -> InputFile | None:
    """The file at an absolute path or URI, or None."""
    store, key = _store_and_key(place, options)
    listed = store.head(key)
    return None if listed is None else InputFile(store, key, place, listed.size)


def content_version(place: str, size: int, options: Mapping[str, str] | None = None) -> str:
    """Identifies the content of a file: its ETag in an object store, otherwise a checksum."""
    store, key = _store_and_key(place, options)
    if not is_remote(place):
        return f"sha256:{_checksum(InputFile(store, key, place, size))}"
    listed = store.head(key)
    if listed is None:
        raise BadRequest(f"{place} is gone since it was found: nothing was written, load it again.")
    return f"etag:{listed.etag}" if listed.etag is not None else f"modified:{listed.modified.isoformat()}"


def _checksum(file: InputFile) -> str:
    """The SHA-256 of block checksums, which are computed in parallel: one hash is slower than a disk."""
    starts = range(0, file.size, CHECKSUM_BLOCK)
    blocks = gather([partial(_block_checksum, file, start) for start in starts])
    return hashlib.sha256(b"".join(blocks)).hexdigest()[:32]


def _block_checksum(file: InputFile, start: int) -> bytes:
    found = hashlib.sha256()
    end = min(start + CHECKSUM_BLOCK, file.size)
    for offset in range(start, end, _READ_BYTES):
        found.update(file.read(offset, min(_READ_BYTES, end - offset)))
    return found.digest()


def known_file(place: str, size: int, options: Mapping[str, str] | None = None) -> InputFile:
    """A file that was found before, without another request."""
    store, key = _store_and_key(place, options)
    return InputFile(store, key, place, size)


def list_files(uri: str, options: Mapping[str, str] | None = None) -> Iterator[ObjectInfo]:
    """Everything below a prefix of a remote store, by name; keys are relative to the bucket."""
    root, key = bucket_and_key(uri)
    return _store_at(root, options_for(uri, options)).list(key.rstrip("/"))


def _store_and_key(place: str, options: Mapping[str, str] | None) -> tuple[ObjectStore, str]:
    if is_remote(place):
        root, key = bucket_and_key(place)
        return _store_at(root, options_for(place, options)), key
    path = Path(place)
    return _store_at(str(path.parent), {}), path.name


def _store_at(root: str, options: Mapping[str, str]) -> ObjectStore:
    location = parse_location(root, options)
    return _store(location.uri, frozenset(location.options.items()))


@lru_cache(maxsize=64)
def _store(root: str, options: frozenset[tuple[str, str]]) -> ObjectStore:
    """One store per root and options: a remote client has connections worth reusing."""
    return open_store(Location(root, dict(options)), read_only=True)
