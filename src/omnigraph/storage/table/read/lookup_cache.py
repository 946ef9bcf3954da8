"""What immutable table versions answered to small questions, remembered.

A stored version never changes, so neither do its answers: that it has no row with some id as little as the row that
it has. A write that is validated again on the next head, or many writes in a row, then ask the store nothing twice.
"""

import threading
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from omnigraph.fork_safety import renew_after_fork
from omnigraph.lru_cache import LruCache
from omnigraph.storage.table.overlay import ID, ids_of

if TYPE_CHECKING:
    import pyarrow as pa

    from omnigraph.storage.table.handles import TableVersion
    from omnigraph.storage.table.overlay import Overlay

CACHE_BYTES_MAX = 32 * 1024 * 1024
LOOKUP_VALUES_MAX = 512  # ids or values of a question that is remembered: larger ones are seldom asked twice
ADDRESS_IDS_MAX = 10_000  # ids of a tail, which grows: what was found is of use for the next
RESULT_BYTES_MAX = 1024 * 1024
COMPLETE_IDS_MAX = 20_000  # ids of a version of which all are known
_ENTRY_BYTES = 256  # about what a key and its place take
_ID_BYTES = 128  # about what one id of many takes, and its place among them
_COMPLETE = "ids"


class LookupCache:
    """Answers by question, the least recently used forgotten first; a bounded number of bytes."""

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        renew_after_fork(self, LookupCache._renew)

    def _renew(self) -> None:
        self._entries: LruCache[Hashable, Any] = LruCache(size_max=self._bytes_max)
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """About how many bytes are held."""
        return self._entries.size

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()

    # All ids of a version: of a small table that this process has seen grow, it need not be asked what it put there.

    def add_change(self, before: "TableVersion | None", change: "Overlay", after: "TableVersion", rows: int) -> None:
        """A version, of so many rows, is another one, or no table, with an overlay put into it."""
        with self._lock:
            ids = frozenset[str]() if before is None else self._entries.get((_COMPLETE, before))
            if ids is not None and rows <= COMPLETE_IDS_MAX:
                self._keep_whole(after, (ids - change.hidden_ids) | change.ids, rows)

    def add_same(self, before: "TableVersion", after: "TableVersion") -> None:
        """A version has exactly the rows of another one."""
        with self._lock:
            ids = self._entries.get((_COMPLETE, before))
            if ids is not None:
                self._keep_whole(after, ids, len(ids))

    def _keep_whole(self, at: "TableVersion", ids: frozenset[str], rows: int) -> None:
        if len(ids) == rows:  # otherwise somebody has an id twice, and nothing is certain
            self._entries.put((_COMPLETE, at), ids, _ENTRY_BYTES + _ID_BYTES * rows)

    def _is_absent(self, at: "TableVersion", i: str) -> bool:
        """Whether it is known that an id has no row."""
        whole = self._entries.get((_COMPLETE, at))
        return self._entries.get((at, i)) is False if whole is None else i not in whole

    def possibly_present(self, at: "TableVersion", ids: Sequence[str]) -> list[str]:
        """The ids of which it is not known that they have no row."""
        with self._lock:
            return [i for i in ids if not self._is_absent(at, i)]

    # Whether ids have a row.

    def get_ids(self, at: "TableVersion", ids: Iterable[str]) -> dict[str, bool]:
        """Those of these ids of which it is known whether they have a row."""
        with self._lock:
            whole = self._entries.get((_COMPLETE, at))
            if whole is not None:
                return {i: i in whole for i in ids}
            answers = ((i, self._entries.get((at, i))) for i in ids)
            return {i: there for i, there in answers if there is not None}

    def add_ids(self, at: "TableVersion", asked: Collection[str], there: Collection[str]) -> None:
        """Of the ids that were asked for, these have a row."""
        if len(asked) <= LOOKUP_VALUES_MAX:
            with self._lock:
                for i in asked:
                    self._entries.put((at, i), i in there, _ENTRY_BYTES + len(i))

    # Where rows are.

    def get_addresses(self, at: "TableVersion", ids: frozenset[str]) -> tuple[list[str], list[int]]:
        """The ids that are still to be looked for, and the addresses of the others' rows.

        An answer names the rows of several ids, not which is whose: it is of use to whoever asks for all of them. Those
        who ask again, with what was written since, do.
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
        """The rows of the ids that were asked for are at these addresses."""
        if len(asked) <= ADDRESS_IDS_MAX:
            answer = (frozenset(asked), tuple(places))
            with self._lock:
                for i in asked:
                    self._entries.put((at, i, "places"), answer, 2 * _ENTRY_BYTES + len(i))

    # Rows by id.

    def get_rows(
        self, at: "TableVersion", columns: Sequence[str], ids: Sequence[str]
    ) -> tuple[list[str], "list[pa.Table]"]:
        """The ids that are still to be looked for, and the rows of the others."""
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
        """The rows that the version has for these ids, with these columns; they can be kept if an id is among them."""
        if len(asked) > LOOKUP_VALUES_MAX or rows.nbytes > RESULT_BYTES_MAX or ID not in rows.column_names:
            return
        names, found = tuple(columns), ids_of(rows)
        self.add_ids(at, asked, frozenset(found))
        with self._lock:
            for place, i in enumerate(found):
                self._entries.put((at, names, i), (rows, place), _ENTRY_BYTES + rows.nbytes // len(found))

    # Rows by other values.

    def get(self, question: Hashable) -> "pa.Table | None":
        with self._lock:
            return self._entries.get(question)

    def add(self, question: Hashable, size: int, answer: "pa.Table") -> None:
        """The answer to a question that names `size` values."""
        if size <= LOOKUP_VALUES_MAX and answer.nbytes <= RESULT_BYTES_MAX:
            with self._lock:
                self._entries.put(question, answer, _ENTRY_BYTES + 64 * size + answer.nbytes)
