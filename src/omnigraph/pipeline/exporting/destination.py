"""Where an export of many files goes, and what is there if it fails: all of it, or nothing new.

On a local disk the files are written into a hidden directory beside the destination, which takes the destination's
name when it is complete. An object store has no rename: there the files go to their places and `_export.json` is put
last; after an error what was written is removed again. Only files that look like those of an export are ever replaced
or removed.
"""

import errno
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Protocol
from urllib.parse import urlsplit

from omnigraph.errors import AlreadyExists, BadRequest, OmnigraphError, StorageFull
from omnigraph.storage.location import Location, parse_location
from omnigraph.storage.objects.object_store import open_store
from omnigraph.storage.objects.posix import sync_directory

SUMMARY = "_export.json"
_PART = re.compile(r"[A-Z][A-Za-z0-9_]*/part-\d{5,}\.(jsonl|csv|parquet)\Z")


class ExportDestination(Protocol):
    def require_free(self, overwrite: bool) -> None:
        """Refuse a destination with files in it, unless an export's are to be overwritten."""

    def writing(self) -> AbstractContextManager[Location]:
        """Where to put the parts. At the end they are at the destination, or after an error nowhere."""

    def expect(self, keys: Sequence[str]) -> None:
        """What is about to be written."""

    def finish(self, summary: Mapping[str, object]) -> None: ...


def destination_at(dest: str, graph: Location, storage_options: Mapping[str, str] | None) -> ExportDestination:
    """A directory, or a prefix of an object store: with the graph's options if that is the same kind of store."""
    if storage_options is None and "://" in dest and not graph.is_local:
        same = urlsplit(dest).scheme.replace("s3a", "s3") == urlsplit(graph.uri).scheme
        storage_options = graph.options if same else None
    location = parse_location(dest, storage_options)
    if f"{location.uri}/".startswith(f"{graph.uri}/"):
        raise BadRequest(f"{dest} is inside the graph's own place: export to another one.")
    return _LocalDirectory(replace(location, fsync=graph.fsync)) if location.is_local else _StorePrefix(location)


def is_part_name(key: str) -> bool:
    """Whether a file is called as those of an export are."""
    return _PART.match(key) is not None


def _require_free(shown: str, keys: Sequence[str], overwrite: bool) -> None:
    foreign = next((key for key in keys if key != SUMMARY and not _PART.match(key)), None)
    if foreign is not None:
        raise BadRequest(f"{shown} holds {foreign}, which no export wrote: choose an empty place.")
    if keys and not overwrite:
        raise AlreadyExists(f"An export in {shown}", "choose another place, or overwrite it")


def _encoded(summary: Mapping[str, object]) -> bytes:
    return json.dumps(summary, indent=1, ensure_ascii=False).encode() + b"\n"


class _LocalDirectory:
    """A local directory."""

    def __init__(self, location: Location) -> None:
        self._path = location.path
        self._staging = self._path.with_name(f".{self._path.name}.partial")
        self._location = Location(os.fspath(self._staging), {}, location.fsync)

    def require_free(self, overwrite: bool) -> None:
        if not self._path.name:
            raise BadRequest(f"{self._path} is no directory to write to: name one, such as {self._path}people.")
        if self._path.exists() and not self._path.is_dir():
            raise BadRequest(f"{self._path} is a file, but the export is a directory: choose another name.")
        keys = [listed.key for listed in open_store(Location(os.fspath(self._path))).list("")]
        _require_free(os.fspath(self._path), keys, overwrite)

    @contextmanager
    def writing(self) -> Iterator[Location]:
        try:
            with self._lock_staging():
                try:
                    yield self._location
                    self._publish()
                finally:
                    shutil.rmtree(self._staging, ignore_errors=True)
        except OSError as error:
            reason = error.strerror or str(error)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageFull(os.fspath(self._path), reason) from error
            raise BadRequest(f"{self._path} can't be written ({reason}): choose another directory.") from error

    def expect(self, keys: Sequence[str]) -> None:
        pass  # whatever is in the directory beside goes with it

    def finish(self, summary: Mapping[str, object]) -> None:
        open_store(self._location).put(SUMMARY, _encoded(summary))

    @contextmanager
    def _lock_staging(self) -> Iterator[None]:
        """One export at a time: the directory is locked, and what a killed one has left in it goes."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._staging.mkdir(exist_ok=True)
        held = os.open(self._staging, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                ours = os.fstat(held).st_ino == self._staging.stat().st_ino
            except (BlockingIOError, FileNotFoundError):
                ours = False
            if not ours:
                raise AlreadyExists(
                    f"An unfinished export into {self._path}", "wait for its end, or choose another place"
                )
            for entry in self._staging.iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            yield
        finally:
            os.close(held)

    def _publish(self) -> None:
        """The names change at once; for a moment an overwritten export is under a hidden name."""
        old = self._path.with_name(f".{self._path.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        if self._path.exists():
            self._path.rename(old)
        self._staging.rename(self._path)
        if self._location.fsync:
            sync_directory(self._path.parent)
        shutil.rmtree(old, ignore_errors=True)


class _StorePrefix:
    """Below a URI of an object store."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._store = open_store(location)
        self._before: set[str] = set()
        self._expected: set[str] = set()

    def require_free(self, overwrite: bool) -> None:
        self._before = {listed.key for listed in self._store.list("")}
        _require_free(self._location.uri, sorted(self._before), overwrite)

    @contextmanager
    def writing(self) -> Iterator[Location]:
        if SUMMARY in self._before:
            self._store.delete(SUMMARY)
        try:
            yield self._location
        except BaseException:
            for key in (*self._expected, SUMMARY):
                with suppress(OmnigraphError):
                    self._store.delete(key)
            raise

    def expect(self, keys: Sequence[str]) -> None:
        self._expected = set(keys)

    def finish(self, summary: Mapping[str, object]) -> None:
        for key in sorted(self._before - self._expected - {SUMMARY}):
            self._store.delete(key)
        self._store.put(SUMMARY, _encoded(summary))
