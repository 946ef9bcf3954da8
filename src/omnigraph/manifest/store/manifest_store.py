"""Reading and writing single manifests and the schemas that they name, and finding the newest manifest.

A manifest's number is never freed, so numbers are contiguous: one that is missing has nothing above
it. Manifests are immutable until cleanup makes them stubs, so what was read once may be kept.

A store may lose its newest manifests all the same, when an old copy is restored or a lifecycle rule deletes them. A
process that knows of a number above the head that it finds neither serves that head nor uses the number again
(`HeadLost`). It knows what it has read or written, and what manifests and tags that it has read name. A hint above
the head stops writers only. This takes no request, except that a head in memory that was not seen for a minute is
looked up before it is relied on (`HEAD_UNSEEN_MAX_S`).
"""

import threading
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from omnigraph.caches import LruCache
from omnigraph.errors import Damaged, HeadLost, OmnigraphError, Unavailable
from omnigraph.fork_safety import renew_after_fork
from omnigraph.manifest.model.ancestry import all_ancestors
from omnigraph.manifest.model.codec import NO_TEXTS, TableTexts, decode_entry, encode_after, encode_entry
from omnigraph.manifest.model.document import is_format_1
from omnigraph.manifest.model.manifest import BranchId, CommitClass, Entry, Manifest, Point, Stub, stub_of
from omnigraph.manifest.model.paths import commit_position, hint_key, manifest_key, schema_key, stubs_key
from omnigraph.manifest.store.clock_check import ClockCheck
from omnigraph.manifest.store.head_search import HeadSearch, encode_hint
from omnigraph.manifest.store.stub_index import StubIndex, decode_stub_index, encode_stub_index
from omnigraph.runtime import Clock, SystemClock
from omnigraph.schema.catalog import Schema, decode_schema
from omnigraph.storage.location import PREALLOCATION_BLOCK
from omnigraph.storage.objects.object_store import EXISTS, ObjectStore, PutOutcome, PutResult, ReplaceOutcome

CACHE_BYTES_MAX = 32 * 2**20
_OBJECT_BYTES = 2048  # about what the parts of a manifest take in memory beside what it is written as
STEPS_BEFORE_LISTING = 4  # a reader that is further behind asks for a listing instead of the next number
LISTINGS_MAX = 8
NOTES_MAX = 16  # tries to note what cleanup has made stubs of
HINT_EVERY = 32
HEADS_MAX = 4096  # branches whose head this process remembers
TEXTS_MAX = 64  # branches whose tables this process remembers as they were encoded last
USED_BRANCHES_MAX = 16_384  # for which this process remembers the highest number that was used
HEAD_UNSEEN_MAX_S = 60.0  # a head in memory that was not seen for longer is looked for before it is relied on


class UsedNumber(NamedTuple):
    """A number that was used (`unique-numbers`), and how that is known: a clause that follows "because"."""

    number: int
    evidence: str


class UsedNumbers:
    """For each branch, the highest number that other objects were seen to name. Thread-safe, and bounded.

    Everything that names a manifest was written after that manifest: a newer manifest, a branch that was forked from it
    or has merged it, a tag. So a number that is named and not there, with nothing above it, was lost, and must not be
    used a second time.
    """

    def __init__(self) -> None:
        self._highest: LruCache[BranchId, UsedNumber] = LruCache(USED_BRANCHES_MAX)
        self._lock = threading.Lock()

    def highest(self, branch_id: BranchId) -> UsedNumber | None:
        return self._highest.peek(branch_id)

    def items(self) -> list[tuple[BranchId, UsedNumber]]:
        with self._lock:
            return self._highest.items()

    def record(self, branch_id: BranchId, number: int, evidence: str) -> None:
        with self._lock:
            self._record(branch_id, number, evidence)

    def record_lineage(self, entry: Entry) -> None:
        """All branches that a stored manifest, or its stub, has among its ancestors."""
        with self._lock:
            for branch_id, position in entry.ancestry.items():
                known = self._highest.peek(branch_id)
                if branch_id != entry.branch_id and (known is None or known.number < position.number):
                    name = f"manifest {entry.manifest_version} of branch {entry.branch!r} descends from it"
                    self._record(branch_id, position.number, name)

    def _record(self, branch_id: BranchId, number: int, evidence: str) -> None:
        known = self._highest.peek(branch_id)
        if number < 1 or (known is not None and known.number >= number):
            return
        self._highest.put(branch_id, UsedNumber(number, evidence))


class Manifests:
    def __init__(
        self,
        store: ObjectStore,
        cache_bytes_max: int = CACHE_BYTES_MAX,
        clock: Clock | None = None,
        clock_check: ClockCheck | None = None,
    ) -> None:
        self._store = store
        self._clock = clock or SystemClock()
        self._clock_check = clock_check
        self._fills_blocks = store.location.preallocates_files
        self._lists_in_name_order = store.location.lists_in_name_order
        self._cache_bytes_max = cache_bytes_max
        self._heads: LruCache[BranchId, Manifest] = LruCache(HEADS_MAX)
        renew_after_fork(self, Manifests._renew)

    def _renew(self) -> None:
        """A forked child keeps the heads, each of which is whole, but not a cache that may be half changed."""
        self._cache: LruCache[Point, Manifest] = LruCache(size_max=self._cache_bytes_max)
        self._texts: LruCache[BranchId, TableTexts] = LruCache(TEXTS_MAX)  # of the newest manifest put on each branch
        self._seen_at: dict[BranchId, float] = {}  # when the head of `_heads` was last known to be there
        self._referenced = UsedNumbers()
        self._search = HeadSearch(self._store)
        self._lock = threading.Lock()

    def read(self, point: Point, *, cached: bool = True) -> Entry | None:
        """The object at this number: a manifest, a stub, or nothing yet."""
        if cached and (kept := self._cached(point)):
            return kept
        stored = self._store.get(manifest_key(point))
        if stored is None:
            return None
        entry = self._with_fork_position(decode_entry(stored.data, _name(point), point))
        if entry.fork is not None and is_format_1(stored.data):
            entry = self._with_positions_of_source(entry, entry.fork)
        self._referenced.record_lineage(entry)
        if isinstance(entry, Manifest):
            self._cache_put(entry, len(stored.data))
        return entry

    def _with_fork_position(self, entry: Entry) -> Entry:
        """Format 1 named whole manifests only: of a branch that was forked inside manifest N it said N-1.

        Which commits of N the branch has is what its first manifest says; where that is a stub, its second one.
        """
        fork = entry.fork
        known = None if fork is None else entry.ancestry.get(fork.branch_id)
        if fork is None or known is None or known.number >= fork.manifest_version or entry.manifest_version == 1:
            return entry
        first = self.read(Point(entry.branch_id, 1))
        if isinstance(first, Manifest):
            position = first.ancestry[fork.branch_id]
        else:
            second = entry if entry.manifest_version == 2 else self.read(Point(entry.branch_id, 2))
            parent = None if second is None or not second.commits else second.commits[0].parent
            if parent is None:
                return entry
            branch_id, position = commit_position(parent)
            if branch_id != fork.branch_id:
                return entry
        return replace(entry, ancestry={**entry.ancestry, fork.branch_id: max(known, position)})

    def _with_positions_of_source(self, entry: Entry, fork: Point) -> Entry:
        """A branch has all that the manifest had from which it was forked: also what format 1 could not say of that."""
        source = self.read(fork)
        if source is None:
            return entry
        others = {branch: position for branch, position in source.ancestry.items() if branch != fork.branch_id}
        known = {branch: position for branch, position in others.items() if branch in entry.ancestry}
        return replace(entry, ancestry=all_ancestors(entry.ancestry, known))

    def create(self, manifest: Manifest) -> PutResult:
        """Put a manifest under its own number if that is free. Only `publish` may call this.

        An answer other than "created" says nothing about whose object is there now: read it. A number that is known
        to have been used is not put but looked up: if it is missing, it was lost.
        """
        used = self._highest_use(manifest.branch_id, hints=True)
        if used is not None and used.number >= manifest.manifest_version:
            if self._search.exists(manifest.branch_id, manifest.manifest_version):
                return EXISTS
            raise self._head_lost(manifest.branch_id, used, manifest.branch)
        began = None if self._clock_check is None else self._clock_check.before_put()
        data, texts = encode_after(manifest, self._texts.peek(manifest.branch_id) or NO_TEXTS)
        if self._fills_blocks:
            data += b" " * (-len(data) % PREALLOCATION_BLOCK)
        answer = self._store.create(manifest_key(manifest.point), data)
        if answer.outcome is PutOutcome.CREATED:
            self.record_put(manifest, len(data), texts)
            if began is not None and self._clock_check is not None:
                self._clock_check.after_put(manifest_key(manifest.point), began)
        return answer

    def record_put(self, manifest: Manifest, size: int | None = None, texts: TableTexts | None = None) -> None:
        """Remember a manifest of ours that is known to be there, and help cold readers to find it."""
        self._cache_put(manifest, len(encode_entry(manifest)) if size is None else size, texts)
        if self._is_worth_a_hint(manifest):
            with suppress(OmnigraphError):  # only a hint: without it a reader takes a few more steps
                hint = encode_hint(manifest.branch_id, manifest.manifest_version)
                self._store.put(hint_key(manifest.branch_id), hint, durable=False)

    def _is_worth_a_hint(self, manifest: Manifest) -> bool:
        """Where a listing shows the head, a hint only proves what was there: then maintenance alone pays for it.

        Not the manifest that asks for a turn: the turn would be spent on the hint.
        """
        if self._lists_in_name_order:
            return manifest.reservation is None and any(
                commit.commit_class is CommitClass.MAINTENANCE for commit in manifest.commits
            )
        return manifest.manifest_version % HINT_EVERY == 0

    def replace_with_stub(self, manifest: Manifest) -> None:
        """Cleanup's last act on an expired manifest: its stub takes its place, its number stays taken."""
        self._store.put(manifest_key(manifest.point), encode_entry(stub_of(manifest)))
        with self._lock:
            self._cache.pop(manifest.point)

    def read_stub_index(self, branch_id: BranchId) -> StubIndex:
        """What cleanup noted of this branch: nothing, if none has passed."""
        stored = self._store.get(stubs_key(branch_id))
        return StubIndex() if stored is None else decode_stub_index(stored.data, f"the note on stubs of {branch_id}")

    def update_stub_index(self, branch_id: BranchId, stubbed: StubIndex) -> None:
        """To be written after the stubs, and before files are deleted that the manifests left for their rows name.

        On top of what is noted by then, on the condition that it is unchanged: the note never takes anything back.
        """
        key, what = stubs_key(branch_id), f"the note on stubs of {branch_id}"
        for _ in range(NOTES_MAX):
            stored = self._store.get(key)
            noted = StubIndex() if stored is None else decode_stub_index(stored.data, what)
            merged = noted.merge(stubbed)
            if stored is not None and merged == noted:
                return
            data = encode_stub_index(merged)
            if stored is None and self._store.create(key, data).outcome is PutOutcome.CREATED:
                return
            if stored is not None and self._store.replace(key, data, stored.etag) is ReplaceOutcome.REPLACED:
                return
        raise Unavailable(what, "other cleanups kept changing it, or no answer to its put arrived")

    def is_state(self, manifest: Manifest, confirmed: Collection[BranchId] | None = None) -> bool:
        """Whether a whole manifest can be read as a state; cleanup may have left it for its inline rows alone.

        Free for what its branch, alive, retains: as its head says, if that was confirmed in this call, or, where
        nobody says which heads were, if it was seen lately. A manifest that this process has read before may be a stub
        by now; the note says that too.
        """
        number, head = manifest.manifest_version, self.cached_head(manifest.branch_id)
        if head is not None and head.tombstone is None and head.oldest_retained <= number:
            is_fresh = self.was_seen_lately(head) if confirmed is None else head.branch_id in confirmed
            if is_fresh:
                return True
        noted = self.read_stub_index(manifest.branch_id)
        return number >= noted.below or number in noted.states

    def cached_head(self, branch_id: BranchId) -> Manifest | None:
        """The newest manifest that this process has seen; it may be behind."""
        return self._heads.peek(branch_id)

    def was_seen_lately(self, head: Manifest) -> bool:
        """Whether a head in memory may be relied on without a request."""
        seen_at = self._seen_at.get(head.branch_id)
        return seen_at is not None and self._clock.monotonic() - seen_at <= HEAD_UNSEEN_MAX_S

    def record_reference(self, point: Point, evidence: str) -> None:
        """Something that was read names this manifest, so its number was used; `evidence` follows "because"."""
        self._referenced.record(point.branch_id, point.manifest_version, evidence)

    def used_numbers(self) -> dict[BranchId, UsedNumber]:
        """For each branch that this process knows of, the highest number that it knows to have been used."""
        with self._lock:
            branches = {*self._heads, *(branch_id for branch_id, _ in self._referenced.items())}
        uses = {branch_id: self._highest_use(branch_id) for branch_id in sorted(branches)}
        return {branch_id: used for branch_id, used in uses.items() if used is not None}

    def read_head(self, branch_id: BranchId) -> Manifest | None:
        """The newest manifest, confirmed in this call; None for a branch id that was never born.

        Warm this is one request, for a number that is expected to be missing.
        """
        known = self.cached_head(branch_id)
        return self.find_head(branch_id) if known is None else self.refresh_head(known)

    def refresh_head(self, known: Manifest) -> Manifest:
        """`confirmed-head`: follow the branch from a manifest that was its head once to the one that is."""
        used = self._highest_use(known.branch_id)  # taken before anything is read, so that it is never ahead of that
        highest = 0 if used is None else used.number
        if self._must_look_up(known) and self._is_still_head(known) and highest <= known.manifest_version:
            return known
        current = known
        for _ in range(STEPS_BEFORE_LISTING):
            if current.tombstone is not None:
                return current
            entry = self.read(Point(current.branch_id, current.manifest_version + 1), cached=False)
            if entry is None:
                if used is not None and current.manifest_version < highest:
                    raise self._head_lost(current.branch_id, used, current.branch)
                return current
            if isinstance(entry, Stub):
                break  # `unique-numbers`: a stub where the successor was expected, so list again
            current = entry
        newest = self.find_head(known.branch_id)
        if newest is None:
            raise Damaged(_name(known.point), "it was there before and is gone")
        return newest

    def _must_look_up(self, known: Manifest) -> bool:
        """Whether the newest manifest in memory has to be looked up."""
        head = self.cached_head(known.branch_id)
        if head is None or head.manifest_version > known.manifest_version or known.tombstone is not None:
            return False
        return not self.was_seen_lately(head)

    def _is_still_head(self, known: Manifest) -> bool:
        """Look up the head in memory, in one request; True if the response also shows that nothing follows it."""
        branch_id, number = known.branch_id, known.manifest_version
        lists = self._lists_in_name_order
        newest = self._search.highest_number(branch_id) if lists else None
        if (newest is None or newest < number) and not self._search.exists(branch_id, number):
            raise self._head_lost(branch_id, UsedNumber(number, _SEEN_HERE), known.branch)
        with self._lock:
            if branch_id in self._heads:
                self._seen_at[branch_id] = self._clock.monotonic()
        return newest == number

    def find_head(self, branch_id: BranchId) -> Manifest | None:
        """The head, without relying on memory: a listing and a read, or a hint and a gallop."""
        return self._find_head(branch_id, self._highest_use(branch_id))

    def find_remaining_head(self, branch_id: BranchId) -> Manifest | None:
        """The newest manifest that is there, though this process may know of newer ones that were lost."""
        return self._find_head(branch_id, None)

    def _find_head(self, branch_id: BranchId, used: UsedNumber | None) -> Manifest | None:
        entry: Entry | None = None
        for _ in range(LISTINGS_MAX):
            number = self._search.find_highest(branch_id, None if used is None else used.number)
            if used is not None and (number or 0) < used.number:
                if not self._search.exists(branch_id, used.number):
                    raise self._head_lost(branch_id, used)
                continue  # the listing was older than what is known
            if number is None:
                return None
            entry = self.read(Point(branch_id, number), cached=False)
            if isinstance(entry, Manifest):
                return entry
            if isinstance(entry, Stub) and entry.tombstone is not None:
                return _tombstone_from_stub(entry)
            # The branch moved on and a cleanup made a stub of it between the two requests.
        raise _stub_is_newest(entry)

    def _highest_use(self, branch_id: BranchId, *, hints: bool = False) -> UsedNumber | None:
        """The highest number that this process knows to have been used."""
        highest = self._referenced.highest(branch_id)
        head = self._heads.peek(branch_id)
        if head is not None and (highest is None or head.manifest_version >= highest.number):
            highest = UsedNumber(head.manifest_version, _SEEN_HERE)
        hint = self._search.hints_above.get(branch_id) if hints else None
        if hint is not None and (highest is None or hint > highest.number):
            return UsedNumber(hint, "the hint beside its manifests names it")
        return highest

    def _head_lost(self, branch_id: BranchId, used: UsedNumber, branch: str | None = None) -> HeadLost:
        name, head = branch, 0
        try:
            left = self.find_remaining_head(branch_id)
            if left is not None:
                name, head = left.branch, left.manifest_version
        except HeadLost as lost:
            name, head = lost.branch, lost.head
        return HeadLost(name or f"id {branch_id}", head, used.number, used.evidence)

    def _cached(self, point: Point) -> Manifest | None:
        with self._lock:
            return self._cache.get(point)

    def _cache_put(self, manifest: Manifest, size: int, texts: TableTexts | None = None) -> None:
        branch_id = manifest.branch_id
        with self._lock:
            if texts is not None:
                self._texts.put(branch_id, texts)
            head = self._heads.peek(branch_id)
            if head is None or head.manifest_version < manifest.manifest_version:
                for evicted in self._heads.put(branch_id, manifest):
                    self._seen_at.pop(evicted, None)
            if head is None or head.manifest_version <= manifest.manifest_version:
                self._seen_at[branch_id] = self._clock.monotonic()
            # Counted as no more than the whole cache, so that even a larger manifest is cached, by itself.
            self._cache.put(manifest.point, manifest, min(size + _OBJECT_BYTES, self._cache_bytes_max))


class Schemas:
    """Schemas are content-addressed, so a stored one never changes. They are small and few: those read are cached."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._known: dict[str, Schema] = {}

    def read(self, schema_hash: str) -> Schema:
        known = self._known.get(schema_hash)
        if known is None:
            stored = self._store.get(schema_key(schema_hash))
            if stored is None:
                raise Damaged(f"schema {schema_hash}", "it is missing")
            known = self._known[schema_hash] = decode_schema(stored.data, schema_hash)
        return known

    def write(self, schema: Schema) -> str:
        self._store.put(schema_key(schema.hash), schema.encoded)
        self._known[schema.hash] = schema
        return schema.hash


_SEEN_HERE = "this process has read or written it"


def _name(point: Point) -> str:
    return f"manifest {point.manifest_version} of branch id {point.branch_id}"


def _stub_is_newest(entry: Entry | None) -> Damaged:
    """Cleanup makes stubs of what is below a head that it has read, so a stub without one has lost it."""
    if entry is None:
        return Damaged("a branch", "the numbers of its manifests change faster than they can be read")
    reason = "its newest manifest is a stub, and cleanup leaves stubs below the head only"
    return HeadLost(entry.branch, entry.manifest_version, entry.manifest_version + 1, reason)


def _tombstone_from_stub(stub: Stub) -> Manifest:
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
