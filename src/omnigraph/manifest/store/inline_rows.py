"""The rows of small commits, decoded from manifests and cached: what lies on top of a stored table version.

Manifests are immutable while a tail names them, so a decoded overlay stays valid. A reader that has read a tail fetches
only the manifests of later commits.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TypeAlias

from omnigraph.caches import SingleFlightCache
from omnigraph.errors import BadRequest, Damaged
from omnigraph.manifest.model.manifest import InlineChange, Manifest, Point, TableKey
from omnigraph.manifest.model.paths import commit_id
from omnigraph.manifest.store.manifest_store import Manifests
from omnigraph.schema.ipc_row import END
from omnigraph.storage.table.overlay import Overlay
from omnigraph.storage.table.table_content import Tail, TailEntry
from omnigraph.storage.util.schema_cache import SchemaCache
from omnigraph.threads import gather

OVERLAYS_MAX = 1024


_TailKey: TypeAlias = tuple[int, str, int, str, int]


def _key(tail: Tail) -> _TailKey:
    """The ends of a tail and its length: to hash every entry would take longer than the rest of a lookup."""
    last = tail[-1]
    return tail[0].manifest_version, last.branch_id, last.manifest_version, last.table_key, len(tail)


class InlineRows:
    def __init__(self, manifests: Manifests) -> None:
        self._manifests = manifests
        self._overlays: SingleFlightCache[_TailKey, tuple[Tail, Overlay]] = SingleFlightCache(OVERLAYS_MAX)

    def overlay(self, tail: Tail) -> Overlay:
        """All entries of a tail, the later on top of the earlier."""
        if not tail:
            return Overlay.EMPTY
        known = self._cached(tail)
        if known is not None:
            return known
        return self._make_once(tail, self._compose if len(tail) > 1 else self._decode)

    def _cached(self, tail: Tail) -> Overlay | None:
        found = self._overlays.get(_key(tail))
        return found[1] if found is not None and found[0] == tail else None

    def _make_once(self, tail: Tail, make: Callable[[Tail], Overlay]) -> Overlay:
        found = self._overlays.get_or_create(_key(tail), lambda: (tail, make(tail)))
        return found[1] if found[0] == tail else make(tail)

    def written_ids(self, entries: Iterable[TailEntry]) -> frozenset[str]:
        """Which rows these commits wrote or removed."""
        return frozenset().union(*(overlay.decided_ids for overlay in self._read_entries(tuple(entries))))

    def cache_put(self, manifest: Manifest, overlays: Mapping[TableKey, Overlay]) -> None:
        """Rows of a manifest that this process has just put: nobody need decode them, nor add them up anew."""
        for key, overlay in overlays.items():
            tail = manifest.tables[key].tail
            entry = tail[-1:]
            self._overlays.put(_key(entry), (entry, overlay))
            if len(tail) > 1 and (before := self._cached(tail[:-1])) is not None:
                self._overlays.put(_key(tail), (tail, before.compose(overlay)))

    def _compose(self, tail: Tail) -> Overlay:
        """On top of the longest part that is known already, usually all but the last commit."""
        known = next((n for n in range(len(tail) - 1, 0, -1) if _key(tail[:n]) in self._overlays), 0)
        total = self.overlay(tail[:known])
        for overlay in self._read_entries(tail[known:]):
            total = total.compose(overlay)
        return total

    def _read_entries(self, entries: Tail) -> list[Overlay]:
        """Those that are not known yet all at once; after a fold all usually are."""
        known = {entry: self._cached((entry,)) for entry in entries}
        missing = [entry for entry, overlay in known.items() if overlay is None]
        read = gather([partial(self.overlay, (entry,)) for entry in missing])
        found = dict(zip(missing, read, strict=True))
        return [found[entry] if (overlay := known[entry]) is None else overlay for entry in entries]

    def _decode(self, tail: Tail) -> Overlay:
        """The rows of a tail with one entry."""
        (entry,) = tail
        point = Point(entry.branch_id, entry.manifest_version)
        manifest = self._manifests.read(point)
        if not isinstance(manifest, Manifest):
            raise Damaged(f"manifest {commit_id(point)}", f"rows of {entry.table_key} are in it, and it is gone")
        groups = manifest.inline if entry.commits is None else manifest.inline[: entry.commits]
        total = Overlay.EMPTY
        for group in groups:
            change = group.get(entry.table_key)
            if change is not None:
                total = total.compose(decode_change(change, f"manifest {commit_id(point)}"))
        return total


def encode_change(overlay: Overlay, deletes: Collection[str], *, new: bool) -> InlineChange:
    """What a manifest stores of a change: its rows as an Arrow stream, made of parts of which the first is kept."""
    gone = tuple(sorted(deletes)) if deletes else ()
    if (made := overlay.single_row) is not None:
        return InlineChange(made.stream, gone, new)
    rows = overlay.rows
    if rows is None or not rows.num_rows:
        return InlineChange(None, gone)
    batches = [batch.serialize().to_pybytes() for batch in rows.to_batches()]
    return InlineChange(b"".join([_HEADS.get(rows.schema), *batches, END]), gone, new)


_HEADS = SchemaCache(lambda schema: schema.serialize().to_pybytes())  # what a stream of such rows begins with


def decode_change(change: InlineChange, what: str) -> Overlay:
    """A change as rows. `whole-tail`: they bring the columns of the schema that they were written by."""
    import pyarrow as pa

    if change.upserts is None:
        return Overlay.of(None, change.deletes)
    try:
        rows = pa.ipc.open_stream(change.upserts).read_all()
        rows.validate(full=True)  # Arrow believes what it reads: wrong offsets would end the process later on
        return Overlay.of(rows, change.deletes, new=change.new)
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, MemoryError, BadRequest) as error:
        raise Damaged(what, f"its inline rows can't be read: {error}") from error


def change_size(change: InlineChange) -> int:
    rows = 0 if change.upserts is None else len(change.upserts)
    return rows + sum([len(entity) + 3 for entity in change.deletes]) if change.deletes else rows
