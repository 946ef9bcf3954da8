"""The object store: a few kinds of requests with typed results, counted and retried here.

Reads return `None` for a missing object. A conditional create returns `created`, `exists` or `unknown`, because only
the caller can find out what became of a put whose answer was lost. "Denied", "unavailable" and "full" are errors
(`omnigraph.errors`) and mean that nothing happened.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Protocol, TypeVar, runtime_checkable

from omnigraph.errors import ReadOnly, Unavailable
from omnigraph.runtime import Runtime
from omnigraph.storage import meter
from omnigraph.storage.location import Location
from omnigraph.threads import run_blocking_hook

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ETag:
    """Identifies the content of an object, for a conditional replace. Stores use one of the two fields, or both."""

    etag: str | None
    version: str | None = None


def content_etag(data: bytes) -> ETag:
    """The ETag of an object on a store without ETags: a hash of its content."""
    return ETag(hashlib.sha256(data).hexdigest())


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object's content, and when it was written by the store's clock."""

    data: bytes
    modified: datetime
    store_etag: ETag | None = None

    @property
    def etag(self) -> ETag:
        return self.store_etag or content_etag(self.data)


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    key: str
    size: int
    modified: datetime
    etag: str | None = None  # if the store has ETags


class PutOutcome(Enum):
    CREATED = "created"
    EXISTS = "exists"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class PutResult:
    """The result of a conditional create; an `unknown` one may have been applied, or may still be."""

    outcome: PutOutcome
    reason: str = ""


CREATED, EXISTS = PutResult(PutOutcome.CREATED), PutResult(PutOutcome.EXISTS)


class ReplaceOutcome(Enum):
    """The result of a conditional replace."""

    REPLACED = "replaced"
    CHANGED = "changed"  # the object is not the expected one, or is missing
    UNKNOWN = "unknown"


class TransientError(Exception):
    """A fault that may pass: raised by a backend, retried here, never visible to callers."""


class Backend(Protocol):
    """A store with one request per call; raises `TransientError` or an `OmnigraphError`."""

    def get(self, key: str) -> StoredObject | None: ...

    def get_range(self, key: str, start: int, length: int) -> bytes | None: ...

    def create(self, key: str, data: bytes) -> PutResult: ...

    def put(self, key: str, data: bytes, durable: bool) -> ETag | None: ...

    def replace(self, key: str, data: bytes, seen: ETag) -> bool: ...

    def head(self, key: str) -> ObjectInfo | None: ...

    def pages(self, prefix: str, *, repeat_pages: bool) -> Iterator[Sequence[ObjectInfo]]:
        """Everything below `prefix/`, in any order: each step is one request, and a fault ends the iteration.

        `repeat_pages` asks the backend to retry single pages where it can: see `ObjectStore.list`.
        """
        ...

    def delete(self, key: str) -> None: ...


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, and with which waits, a transient fault is retried."""

    attempts_max: int = 6
    first_wait_s: float = 0.05
    wait_max_s: float = 2.0

    def ceiling_s(self, attempt: int) -> float:
        return min(self.wait_max_s, self.first_wait_s * 2.0**attempt)


@runtime_checkable
class HasTemporaries(Protocol):
    """A backend whose puts are temporary files first."""

    def remove_temporaries(self, before: datetime) -> None: ...


class ObjectStore:
    """The objects below one root, on one backend."""

    def __init__(
        self,
        location: Location,
        backend: Backend,
        runtime: Runtime | None = None,
        retry: RetryPolicy | None = None,
        *,
        read_only: bool = False,
    ) -> None:
        self.location = location
        self.read_only = read_only
        self._backend = backend
        self._runtime = runtime or Runtime()
        self._retry = retry or RetryPolicy()

    def get(self, key: str) -> StoredObject | None:
        return self._with_retries(key, lambda: self._backend.get(key), lambda found: len(found.data) if found else 0)

    def remove_temporaries(self, before: datetime) -> None:
        """Remove temporary files that killed puts left before a moment in the past, on backends that have them."""
        if isinstance(self._backend, HasTemporaries):
            self._backend.remove_temporaries(before)

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        """Part of an object: shorter than `length` where the object ends."""
        return self._with_retries(
            key, lambda: self._backend.get_range(key, start, length), lambda found: len(found) if found else 0
        )

    def create(self, key: str, data: bytes) -> PutResult:
        """Put `data` under `key` if there is no such object. One request, never retried here.

        After a retry "exists" would be ambiguous: it might be our own first attempt.
        """
        self._require_writable()
        run_blocking_hook()
        start = time.monotonic()
        try:
            return self._backend.create(key, data)
        except TransientError as fault:
            return PutResult(PutOutcome.UNKNOWN, str(fault))
        finally:
            meter.record_request(start, time.monotonic(), bytes_moved=len(data))

    def put(self, key: str, data: bytes, *, durable: bool = True) -> ETag | None:
        """Write or replace; `durable=False` for what may be lost in a power cut, such as hints.

        Returns the ETag of what was written, if the store has ETags.
        """
        self._require_writable()
        return self._with_retries(key, lambda: self._backend.put(key, data, durable), lambda _: len(data))

    def replace(self, key: str, data: bytes, expected: ETag) -> ReplaceOutcome:
        """Replace exactly the expected content by `data`. One request, never retried here.

        After a retry "changed" would be ambiguous: our own first attempt might have changed it.
        """
        self._require_writable()
        run_blocking_hook()
        start = time.monotonic()
        try:
            return ReplaceOutcome.REPLACED if self._backend.replace(key, data, expected) else ReplaceOutcome.CHANGED
        except TransientError:
            return ReplaceOutcome.UNKNOWN
        finally:
            meter.record_request(start, time.monotonic(), bytes_moved=len(data))

    def head(self, key: str) -> ObjectInfo | None:
        return self._with_retries(key, lambda: self._backend.head(key), lambda _: 0)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Everything below `prefix/`, each key once, page by page as needed.

        The order is the store's: by name only where `location.lists_in_name_order`. A listing is never resumed "after
        the last key", because that skips keys on an unordered store. A fault between two pages restarts the listing,
        and keys that were yielded before are left out. So every key that exists from the first request to the last is
        listed, whatever is created and deleted meanwhile.
        """
        listed: set[str] = set()
        faults = 0
        while True:
            try:
                for page in self._pages(prefix, repeat_pages=bool(listed)):
                    fresh = [entry for entry in page if entry.key not in listed] if faults else page
                    listed.update(entry.key for entry in fresh)
                    yield from fresh
                return
            except TransientError as fault:
                faults += 1
                self._back_off(prefix, faults, fault)

    def _pages(self, prefix: str, *, repeat_pages: bool) -> Iterator[Sequence[ObjectInfo]]:
        """The pages of one listing, each counted as a request."""
        pages: Iterator[Sequence[ObjectInfo]] | None = None
        while True:
            run_blocking_hook()
            start = time.monotonic()
            try:
                if pages is None:
                    pages = self._backend.pages(prefix, repeat_pages=repeat_pages)
                page = next(pages, None)
            except TransientError:
                meter.record_request(start, time.monotonic(), retries=1)
                raise
            if page is None:
                return
            meter.record_request(start, time.monotonic())
            yield page

    def delete(self, key: str) -> None:
        """Remove an object; a missing one is no error."""
        self._require_writable()
        self._with_retries(key, lambda: self._backend.delete(key), lambda _: 0)

    def _require_writable(self) -> None:
        """Enforces read-only opens, for all writing requests at once."""
        if self.read_only:
            raise ReadOnly("Writing")

    def _with_retries(self, key: str, call: Callable[[], T], size_of: Callable[[T], int]) -> T:
        run_blocking_hook()
        faults = 0
        while True:
            start = time.monotonic()
            try:
                answer = call()
            except TransientError as fault:
                meter.record_request(start, time.monotonic(), retries=1)
                faults += 1
                self._back_off(key, faults, fault)
            else:
                meter.record_request(start, time.monotonic(), bytes_moved=size_of(answer))
                return answer

    def _back_off(self, key: str, faults: int, fault: TransientError) -> None:
        if faults >= self._retry.attempts_max:
            raise Unavailable(key, str(fault)) from fault
        self._runtime.clock.sleep(self._runtime.jitter(self._retry.ceiling_s(faults)))


def open_store(
    location: Location,
    runtime: Runtime | None = None,
    retry: RetryPolicy | None = None,
    *,
    read_only: bool = False,
) -> ObjectStore:
    """The store at a location; a remote one is not contacted yet."""
    backend: Backend
    if location.is_local:
        from omnigraph.storage.objects.local import LocalBackend

        backend = LocalBackend(location.path, location.fsync)
    else:
        from omnigraph.storage.objects.cloud import CloudBackend

        backend = CloudBackend(location)
    return ObjectStore(location, backend, runtime, retry, read_only=read_only)
