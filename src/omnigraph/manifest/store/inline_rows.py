"""The rows of small commits, decoded from manifests and cached: what lies on top of a stored table version.

Manifests are immutable while a tail names them, so a decoded overlay stays valid. A reader that has read a tail fetches
only the manifests of later commits.
"""

from collections.abc import Collection, Iterable, Mapping

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


class _TailKey:
    """A tail as a cache key. It is looked up often, so its hash covers only the ends of the tail."""

    __slots__ = ("_hash", "_tail")

    def __init__(self, tail: Tail) -> None:
        self._tail = tail
        last = tail[-1]
        self._hash = hash((tail[0].manifest_version, last.branch_id, last.manifest_version, last.table_key, len(tail)))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _TailKey) and self._tail == other._tail


class InlineRows:
    def __init__(self, manifests: Manifests) -> None:
        self._manifests = manifests
        self._overlays: SingleFlightCache[_TailKey, Overlay] = SingleFlightCache(OVERLAYS_MAX)

    def overlay(self, tail: Tail) -> Overlay:
        """All entries of a tail, the later on top of the earlier."""
        if len(tail) < 2:
            return self._read_entry(tail[0]) if tail else Overlay.EMPTY
        key = _TailKey(tail)
        known = self._overlays.get(key)
        return self._overlays.get_or_create(key, lambda: self._compose(tail)) if known is None else known

    def written_ids(self, entries: Iterable[TailEntry]) -> frozenset[str]:
        """Which rows these commits wrote or removed."""
        return frozenset().union(*(overlay.decided_ids for overlay in self._read_entries(tuple(entries))))

    def cache_put(self, manifest: Manifest, overlays: Mapping[TableKey, Overlay]) -> None:
        """Rows of a manifest that this process has just put: nobody need decode them, nor add them up anew."""
        for key, overlay in overlays.items():
            tail = manifest.tables[key].tail
            self._overlays.put(_TailKey(tail[-1:]), overlay)
            if len(tail) > 1 and (before := self._overlays.get(_TailKey(tail[:-1]))) is not None:
                self._overlays.put(_TailKey(tail), before.compose(overlay))

    def _compose(self, tail: Tail) -> Overlay:
        """On top of the longest part that is known already, usually all but the last commit."""
        known = next((n for n in range(len(tail) - 1, 0, -1) if _TailKey(tail[:n]) in self._overlays), 0)
        total = self.overlay(tail[:known])
        for overlay in self._read_entries(tail[known:]):
            total = total.compose(overlay)
        return total

    def _read_entries(self, entries: Tail) -> list[Overlay]:
        """Those that are not known yet all at once; after a fold all usually are."""
        known = {entry: self._overlays.get(_TailKey((entry,))) for entry in entries}
        missing = [entry for entry, overlay in known.items() if overlay is None]
        read = gather([lambda entry=entry: self._read_entry(entry) for entry in missing])  # type: ignore[misc]
        found = dict(zip(missing, read, strict=True))
        return [found[entry] if (overlay := known[entry]) is None else overlay for entry in entries]

    def _read_entry(self, entry: TailEntry) -> Overlay:
        return self._overlays.get_or_create(_TailKey((entry,)), lambda: self._decode_entry(entry))

    def _decode_entry(self, entry: TailEntry) -> Overlay:
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
