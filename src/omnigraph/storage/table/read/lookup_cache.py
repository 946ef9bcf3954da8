"""The cache of point lookups of immutable table versions.

A stored version never changes, so results never go stale, neither rows nor the absence of a row. A write that is
validated again on the next head, or many writes in a row, never repeat a request.
"""

import threading
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from omnigraph.caches import LruCache
from omnigraph.fork_safety import renew_after_fork
from omnigraph.storage.table.overlay import ID, ids_of

if TYPE_CHECKING:
    import pyarrow as pa

    from omnigraph.storage.table.handles import TableVersion
    from omnigraph.storage.table.overlay import Overlay

CACHE_BYTES_MAX = 32 * 1024 * 1024
LOOKUP_VALUES_MAX = 512  # ids or values of a cached lookup: larger ones are seldom repeated
ADDRESS_IDS_MAX = 10_000  # ids of a tail, which grows: the result is reused for the next one
RESULT_BYTES_MAX = 1024 * 1024
COMPLETE_IDS_MAX = 20_000  # ids of a version whose complete id set is cached
_ENTRY_BYTES = 256  # approximate size of an entry without its value
_ID_BYTES = 128  # approximate size of one id in a set
_COMPLETE = "ids"


class LookupCache:
    """Lookup results in a thread-safe LRU cache, bounded in bytes."""

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        renew_after_fork(self, LookupCache._renew)

    def _renew(self) -> None:
        self._entries: LruCache[Hashable, Any] = LruCache(size_max=self._bytes_max)
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """The approximate number of bytes in the cache."""
        return self._entries.size

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()

    # Complete id sets: known for small tables of which this process wrote every version.

    def add_change(self, before: "TableVersion | None", change: "Overlay", after: "TableVersion", rows: int) -> None:
        """Version `after`, with `rows` rows, is `before` (or no table) with an overlay folded in."""
        with self._lock:
            ids = frozenset[str]() if before is None else self._entries.get((_COMPLETE, before))
            if ids is not None and rows <= COMPLETE_IDS_MAX:
                self._put_complete(after, (ids - change.hidden_ids) | change.ids, rows)

    def add_same(self, before: "TableVersion", after: "TableVersion") -> None:
        """Version `after` has exactly the rows of `before`."""
        with self._lock:
            ids = self._entries.get((_COMPLETE, before))
            if ids is not None:
                self._put_complete(after, ids, len(ids))

    def _put_complete(self, at: "TableVersion", ids: frozenset[str], rows: int) -> None:
        if len(ids) == rows:  # otherwise an id occurs twice, and the set is unreliable
            self._entries.put((_COMPLETE, at), ids, _ENTRY_BYTES + _ID_BYTES * rows)

    def _is_absent(self, at: "TableVersion", i: str) -> bool:
        """Whether an id is known to have no row."""
        whole = self._entries.get((_COMPLETE, at))
        return self._entries.get((at, i)) is False if whole is None else i not in whole

    def possibly_present(self, at: "TableVersion", ids: Sequence[str]) -> list[str]:
        """The ids that are not known to have no row."""
        with self._lock:
            return [i for i in ids if not self._is_absent(at, i)]

    # Whether ids have a row.

    def get_ids(self, at: "TableVersion", ids: Iterable[str]) -> dict[str, bool]:
        """For each of these ids, if known, whether it has a row."""
        with self._lock:
            whole = self._entries.get((_COMPLETE, at))
            if whole is not None:
                return {i: i in whole for i in ids}
            found = ((i, self._entries.get((at, i))) for i in ids)
            return {i: there for i, there in found if there is not None}

    def add_ids(self, at: "TableVersion", asked: Collection[str], there: Collection[str]) -> None:
        """Of the looked-up ids, these have a row."""
        if len(asked) <= LOOKUP_VALUES_MAX:
            with self._lock:
                for i in asked:
                    self._entries.put((at, i), i in there, _ENTRY_BYTES + len(i))

    # Where rows are.

    def get_addresses(self, at: "TableVersion", ids: frozenset[str]) -> tuple[list[str], list[int]]:
        """The ids that must still be looked up, and the row addresses of the others.

        A cached result has the addresses of several ids together, so it is only used when all of them are looked up
        again. A growing tail does that.
        """
        open_ids: list[str] = []
        places: dict[int, tuple[int, ...]] = {}
        with self._lock:
            for i in ids:
                held = self._entries.get((at, i, "places"))
                if held is not None and held[0] <= ids:
                    places[id(held)] = held[1]
                elif not self._is_absent(at, i):
                    open_ids.append(i)
        return sorted(open_ids), [address for some in places.values() for address in some]

    def add_addresses(self, at: "TableVersion", asked: Collection[str], places: Iterable[int]) -> None:
        """The rows of the looked-up ids are at these addresses."""
        if len(asked) <= ADDRESS_IDS_MAX:
            answer = (frozenset(asked), tuple(places))
            with self._lock:
                for i in asked:
                    self._entries.put((at, i, "places"), answer, 2 * _ENTRY_BYTES + len(i))

    # Rows by id.

    def get_rows(
        self, at: "TableVersion", columns: Sequence[str], ids: Sequence[str]
    ) -> tuple[list[str], "list[pa.Table]"]:
        """The ids that must still be looked up, and the rows of the others."""
        names, open_ids = tuple(columns), []
        places: dict[int, tuple[pa.Table, list[int]]] = {}
        with self._lock:
            for i in ids:
                held = self._entries.get((at, names, i))
                if held is not None:
                    places.setdefault(id(held[0]), (held[0], []))[1].append(held[1])
                elif not self._is_absent(at, i):
                    open_ids.append(i)
        return open_ids, [table.take(rows) for table, rows in places.values()]

    def add_rows(self, at: "TableVersion", columns: Sequence[str], asked: Sequence[str], rows: "pa.Table") -> None:
        """The rows of these ids with these columns; cached if the id column is among them."""
        if len(asked) > LOOKUP_VALUES_MAX or rows.nbytes > RESULT_BYTES_MAX or ID not in rows.column_names:
            return
        names, found = tuple(columns), ids_of(rows)
        self.add_ids(at, asked, frozenset(found))
        with self._lock:
            for place, i in enumerate(found):
                self._entries.put((at, names, i), (rows, place), _ENTRY_BYTES + rows.nbytes // len(found))

    # Rows by other values.

    def get(self, lookup: Hashable) -> "pa.Table | None":
        with self._lock:
            return self._entries.get(lookup)

    def add(self, lookup: Hashable, size: int, result: "pa.Table") -> None:
        """The result of a lookup with `size` values."""
        if size <= LOOKUP_VALUES_MAX and result.nbytes <= RESULT_BYTES_MAX:
            with self._lock:
                self._entries.put(lookup, result, _ENTRY_BYTES + 64 * size + result.nbytes)
