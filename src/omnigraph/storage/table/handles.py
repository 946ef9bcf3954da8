"""A cache of open Lance datasets: the handle that a commit returns serves the next write without a request.

Lance is imported here, when first used (it takes most of a second), and nowhere at import time.
"""

import hashlib
import importlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from omnigraph.caches import SingleFlightCache
from omnigraph.fork_safety import keep_inherited, renew_after_fork
from omnigraph.storage import meter
from omnigraph.storage.location import Location
from omnigraph.storage.table.file_records import FileLedger, ledger_of
from omnigraph.storage.table.lance_errors import translate_errors
from omnigraph.storage.table.lance_io_stats import Origin, StoreCounter, counter_of, drop_counter
from omnigraph.storage.table.read.lookup_cache import LookupCache
from omnigraph.storage.util.fork_guard import LANCE
from omnigraph.threads import run_blocking_hook

if TYPE_CHECKING:
    from lance import LanceDataset

INDEX_CACHE_BYTES_MAX = 512 * 1024 * 1024
METADATA_CACHE_BYTES_MAX = 256 * 1024 * 1024
HANDLES_MAX = 256
OPEN_STAGES = 2  # HEAD, then GET of the version file
# A fault that lasts longer than this is raised; by default Lance would retry for minutes.
_RETRY_OPTIONS = {"client_max_retries": "6", "client_retry_timeout": "30"}

_session_lock = threading.Lock()
_default_session: Any = None
_default_number = 0
_sessions = count(1)  # numbered, because the address of a deleted object is soon reused


@dataclass(frozen=True, slots=True)
class TableVersion:
    """One immutable version of one table, as manifests name it."""

    table_id: str
    table_version: int

    def __str__(self) -> str:
        return f"table {self.table_id} version {self.table_version}"


def lance_module(name: str = "lance") -> Any:
    """Lance, loaded when first used."""
    LANCE.check()
    return importlib.import_module(name)


def default_session() -> Any:
    """The process's one Lance session: its bounded caches are shared by all graphs."""
    global _default_session, _default_number
    with _session_lock:
        if _default_session is None:
            _default_number = next(_sessions)
            _default_session = lance_module().Session(
                index_cache_size_bytes=INDEX_CACHE_BYTES_MAX, metadata_cache_size_bytes=METADATA_CACHE_BYTES_MAX
            )
        return _default_session


def _renew_session() -> None:
    """A forked child makes its own session: threads of its parent may have held locks in the inherited one."""
    global _default_session, _session_lock
    keep_inherited(_default_session)
    _default_session, _session_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_renew_session)


class Handles:
    """The open datasets of one graph, in an LRU cache."""

    def __init__(self, location: Location, session: Any = None, handles_max: int = HANDLES_MAX) -> None:
        self.location = location
        self.lookup_cache = LookupCache()
        self._given_session = session
        self._open: SingleFlightCache[TableVersion, LanceDataset] = SingleFlightCache(handles_max)
        self._used: set[str] = set()
        renew_after_fork(self, Handles._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    @property
    def session(self) -> Any:
        return self._given_session if self._given_session is not None else default_session()

    @property
    def options(self) -> dict[str, str]:
        """The storage options as Lance takes them."""
        return {} if self.location.is_local else {**_RETRY_OPTIONS, **self.location.options}

    @cached_property
    def files(self) -> FileLedger:
        """The records of files that new table versions added."""
        return ledger_of(self.location)

    def uri(self, table_id: str) -> str:
        return self.location.child_uri(f"tables/{table_id}")

    def open(self, at: TableVersion) -> "LanceDataset":
        """The dataset of that version; all callers share one handle."""
        meter.track_lance()
        return self._open.get_or_create(at, lambda: self._open_dataset(at))

    def add(self, at: TableVersion, dataset: "LanceDataset") -> "LanceDataset":
        """Cache the handle that a commit returned: it counts its requests where its base does."""
        return self._open.put(at, dataset)

    @cached_property
    def counter(self) -> StoreCounter:
        """Lance's requests to this store, made visible to the meter."""
        counter = counter_of(self._store_key)
        meter.set_probe(self._store_key, counter.read)
        return counter

    def open_counted(self, origin: Origin, make: "Callable[[], LanceDataset]") -> "LanceDataset":
        """Make a handle whose requests are counted."""
        first = not self.counter.is_followed(origin)
        meter.track_lance()
        dataset = make()
        if first:
            self.counter.follow(origin, dataset)
        return dataset

    @contextmanager
    def measure(self, stages_of: Callable[[int], int]) -> Iterator[None]:
        """Record the stages of a call as a function of its number of requests, which depends on what is cached."""
        meter.track_lance()
        run_blocking_hook()
        start, before = time.monotonic(), self.counter.read().requests
        try:
            yield
        finally:
            span = meter.Span(start, time.monotonic(), stages_of(self.counter.read().requests - before))
            for operation in meter.open_accounts():
                operation.add(span, 0, 0, 0)

    def first_use(self, uri: str) -> bool:
        """True once for each dataset: later reads find its index open."""
        with self._lock:
            first = uri not in self._used
            self._used.add(uri)
            return first

    def _open_dataset(self, at: TableVersion) -> "LanceDataset":
        def make() -> "LanceDataset":
            dataset: LanceDataset = lance_module().dataset(
                self.uri(at.table_id), version=at.table_version, storage_options=self.options, session=self.session
            )
            return dataset

        with translate_errors(str(at)), meter.lance_call(OPEN_STAGES):
            return self.open_counted(Origin.OPENED, make)

    def close(self) -> None:
        """Release a private session, with everything it has cached."""
        if self._given_session is not None:
            meter.drop_probe(self._store_key)
            drop_counter(self._store_key)

    @cached_property
    def _store_key(self) -> str:
        """Equal where Lance may share a client: never for a private session."""
        default = self.session is not self._given_session
        session = _default_number if default else next(_sessions)
        if self.location.is_local:
            return f"{session} file"
        parts = urlsplit(self.location.uri)
        options = hashlib.sha256(repr(sorted(self.options.items())).encode()).hexdigest()[:16]
        return f"{session} {parts.scheme}://{parts.netloc} {options}"


def handles_of(location: Location) -> Handles:
    """The handles of a store, one instance per process: the tasks of a job share them."""
    return _handles(location.uri, tuple(sorted(location.options.items())), location.fsync)


@lru_cache(maxsize=16)
def _handles(uri: str, options: tuple[tuple[str, str], ...], fsync: bool) -> Handles:
    return Handles(Location(uri, dict(options), fsync))
