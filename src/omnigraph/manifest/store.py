"""Reading and writing single manifests, and finding the newest one.

A manifest's number is never freed, so numbers are contiguous: one that is missing has nothing above
it. Manifests are immutable until cleanup makes them stubs, so what was read once may be kept.
"""

import threading
from collections import OrderedDict
from contextlib import suppress

from omnigraph.errors import Damaged, OmnigraphError
from omnigraph.manifest.codec import decode_entry, encode_entry
from omnigraph.manifest.keys import hint_key, manifest_folder, manifest_key, manifest_number, stubs_key
from omnigraph.manifest.model import BranchId, Entry, Manifest, Point, Stub, stub_of
from omnigraph.manifest.stubbed import Stubbed, decode_stubbed, encode_stubbed
from omnigraph.storage.folders import BLOCK
from omnigraph.storage.objects import ObjectStore, Outcome, PutAnswer

CACHE_BYTES_MAX = 32 * 2**20
_OBJECT_BYTES = 2048  # about what the parts of a manifest take in memory beside what it is written as
STEPS_BEFORE_LISTING = 4  # a reader that is further behind asks for a listing instead of the next number
LISTINGS_MAX = 8
HINT_EVERY = 32
HEADS_MAX = 4096  # branches whose head this process remembers


class Manifests:
    def __init__(self, store: ObjectStore, cache_bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._store = store
        self._fills_blocks = store.location.fills_blocks
        self._cache_bytes_max = cache_bytes_max
        self._cache: OrderedDict[Point, tuple[Manifest, int]] = OrderedDict()
        self._cache_bytes = 0
        self._heads: OrderedDict[BranchId, Manifest] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, point: Point, *, cached: bool = True) -> Entry | None:
        """The object at this number: a manifest, a stub, or nothing yet."""
        if cached and (kept := self._kept(point)):
            return kept
        stored = self._store.get(manifest_key(point))
        if stored is None:
            return None
        entry = decode_entry(stored.data, _name(point), point)
        if isinstance(entry, Manifest):
            self._keep(entry, len(stored.data))
        return entry

    def create(self, manifest: Manifest) -> PutAnswer:
        """Put a manifest under its own number if that is free. Only `publish` may call this.

        An answer other than "created" says nothing about whose object is there now: read it.
        """
        data = encode_entry(manifest)
        if self._fills_blocks:
            data += b" " * (-len(data) % BLOCK)
        answer = self._store.create(manifest_key(manifest.point), data)
        if answer.outcome is Outcome.CREATED:
            self.landed(manifest, len(data))
        return answer

    def landed(self, manifest: Manifest, size: int | None = None) -> None:
        """Remember a manifest of ours that is known to be there, and help cold readers to find it."""
        self._keep(manifest, len(encode_entry(manifest)) if size is None else size)
        if manifest.manifest_version % HINT_EVERY == 0 and not self._store.location.lists_in_name_order:
            with suppress(OmnigraphError):  # only a hint: without it a reader takes a few more steps
                number = str(manifest.manifest_version).encode()
                self._store.put(hint_key(manifest.branch_id), number, durable=False)

    def retire(self, manifest: Manifest) -> None:
        """Cleanup's last act on an expired manifest: its stub takes its place, its number stays taken."""
        self._store.put(manifest_key(manifest.point), encode_entry(stub_of(manifest)))
        with self._lock:
            _, size = self._cache.pop(manifest.point, (None, 0))
            self._cache_bytes -= size

    def stubbed(self, branch_id: BranchId) -> Stubbed:
        """What cleanup noted of this branch: nothing, if none has passed."""
        stored = self._store.get(stubs_key(branch_id))
        return Stubbed() if stored is None else decode_stubbed(stored.data, f"the note on stubs of {branch_id}")

    def note_stubbed(self, branch_id: BranchId, stubbed: Stubbed) -> None:
        """To be written after the stubs, and before files are deleted that the manifests left for their rows name."""
        self._store.put(stubs_key(branch_id), encode_stubbed(stubbed))

    def is_state(self, manifest: Manifest) -> bool:
        """Whether a whole manifest can be read as a state; cleanup may have left it for its inline rows alone.

        Free for what its branch, alive, retains.
        """
        head = self.known_head(manifest.branch_id)
        if head is not None and head.tombstone is None and head.oldest_retained <= manifest.manifest_version:
            return True
        return manifest.manifest_version not in self.stubbed(manifest.branch_id).rows

    def known_head(self, branch_id: BranchId) -> Manifest | None:
        """The newest manifest that this process has seen; it may be behind."""
        return self._heads.get(branch_id)

    def head(self, branch_id: BranchId) -> Manifest | None:
        """The newest manifest, confirmed in this call; None for a branch id that was never born.

        Warm this is one request, for a number that is expected to be missing.
        """
        known = self.known_head(branch_id)
        return self.newest(branch_id) if known is None else self.confirm(known)

    def confirm(self, known: Manifest) -> Manifest:
        """Rule 6: follow the branch from a manifest that was its head once to the one that is."""
        current = known
        for _ in range(STEPS_BEFORE_LISTING):
            if current.tombstone is not None:
                return current
            entry = self.read(Point(current.branch_id, current.manifest_version + 1), cached=False)
            if entry is None:
                return current
            if isinstance(entry, Stub):
                break  # rule 1: a stub where the successor was expected, so list again
            current = entry
        newest = self.newest(known.branch_id)
        if newest is None:
            raise Damaged(_name(known.point), "it was there before and is gone")
        return newest

    def newest(self, branch_id: BranchId) -> Manifest | None:
        """The head, without knowing anything: a listing and a read, or a hint and a gallop."""
        for _ in range(LISTINGS_MAX):
            number = self._highest_number(branch_id)
            if number is None:
                return None
            entry = self.read(Point(branch_id, number), cached=False)
            if isinstance(entry, Manifest):
                return entry
            if isinstance(entry, Stub) and entry.tombstone is not None:
                return _grave(entry)
            # The branch moved on and a cleanup made a stub of it between the two requests.
        raise Damaged(f"branch id {branch_id}", "its newest manifest is a stub")

    def _highest_number(self, branch_id: BranchId) -> int | None:
        if self._store.location.lists_in_name_order:
            for listed in self._store.list(manifest_folder(branch_id)):
                number = manifest_number(listed.key)
                if number is not None:
                    return number
            return None
        return self._gallop(branch_id)

    def _gallop(self, branch_id: BranchId) -> int | None:
        """Steps that double from the hint on, then halving: some requests whatever the depth."""
        low = self._hint(branch_id)
        if low is None or not self._exists(branch_id, low):
            low = 1
            if not self._exists(branch_id, low):
                return None
        step = 1
        while self._exists(branch_id, low + step):
            low, step = low + step, step * 2
        high = low + step  # missing
        while high - low > 1:
            middle = (low + high) // 2
            if self._exists(branch_id, middle):
                low = middle
            else:
                high = middle
        return low

    def _hint(self, branch_id: BranchId) -> int | None:
        stored = self._store.get(hint_key(branch_id))
        text = b"" if stored is None else stored.data
        return int(text) if text.isdigit() and len(text) < 20 and int(text) > 0 else None

    def _exists(self, branch_id: BranchId, number: int) -> bool:
        return self._store.head(manifest_key(Point(branch_id, number))) is not None

    def _kept(self, point: Point) -> Manifest | None:
        with self._lock:
            found = self._cache.get(point)
            if found is None:
                return None
            self._cache.move_to_end(point)
            return found[0]

    def _keep(self, manifest: Manifest, size: int) -> None:
        point = manifest.point
        with self._lock:
            head = self._heads.get(manifest.branch_id)
            if head is None or head.manifest_version < manifest.manifest_version:
                self._heads[manifest.branch_id] = manifest
                self._heads.move_to_end(manifest.branch_id)
                while len(self._heads) > HEADS_MAX:
                    self._heads.popitem(last=False)
            _, old = self._cache.pop(point, (None, 0))
            held = size + _OBJECT_BYTES
            self._cache[point] = (manifest, held)
            self._cache_bytes += held - old
            while self._cache_bytes > self._cache_bytes_max and len(self._cache) > 1:
                _, (_, freed) = self._cache.popitem(last=False)
                self._cache_bytes -= freed


def _name(point: Point) -> str:
    return f"manifest {point.manifest_version} of branch id {point.branch_id}"


def _grave(stub: Stub) -> Manifest:
    """A swept tombstone still says that the branch is dead; nothing else is asked of it."""
    return Manifest(
        branch=stub.branch,
        branch_id=stub.branch_id,
        manifest_version=stub.manifest_version,
        schema="",
        logical_head="",
        authored_at=stub.authored_at,
        ancestry=stub.ancestry,
        oldest_retained=stub.manifest_version,
        fork=stub.fork,
        tombstone=stub.tombstone,
    )
