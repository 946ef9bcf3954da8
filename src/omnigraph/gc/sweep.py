"""Sweep (`fence-before-sweep`, step 3): decides what a cleanup deletes, and deletes it.

A file goes if it was a candidate at the start, no marked table version needs it, it is older than the floor, and no
job that is honoured names its table. A manifest that is neither retained nor marked becomes a stub.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from omnigraph.errors import Damaged
from omnigraph.gc.mark import Marks, Overtaken
from omnigraph.gc.recovery import end_job
from omnigraph.manifest.intent.intent import StoredIntent
from omnigraph.manifest.model.manifest import BranchId, Entry, Manifest, Point
from omnigraph.manifest.repository import Repository
from omnigraph.manifest.store.manifest_store import Manifests
from omnigraph.manifest.store.stub_index import StubIndex
from omnigraph.storage.objects.object_store import ObjectInfo
from omnigraph.storage.table.handles import TableVersion
from omnigraph.storage.table.maintain.table_files import Needed, TableFile, is_needed, needed_by
from omnigraph.threads import gather

T = TypeVar("T")

BATCH = 256  # manifests read, or objects deleted, at once


@dataclass(frozen=True)
class SweepCandidates:
    """What existed when the cleanup began; it deletes nothing else."""

    files: Sequence[TableFile]
    leftovers: Sequence[ObjectInfo]  # objects that bulk jobs put beside their intents
    now: datetime  # by the store's clock


@dataclass(frozen=True)
class JobProtection:
    """What honoured intents protect: the tables they name, and the objects their jobs need to be resumed.

    Protection does not depend on time, because the clock of a store may step back while a job stages.
    """

    tables: frozenset[str] | None = frozenset()  # None: all, for an intent that does not name its tables (format 1)
    prefixes: frozenset[str] = frozenset()

    @staticmethod
    def of(honoured: Iterable[StoredIntent]) -> "JobProtection":
        tables: frozenset[str] | None = frozenset()
        prefixes = set()
        for seen in honoured:
            named = seen.intent.tables
            tables = None if tables is None or named is None else tables | named
            prefixes.add(seen.intent.prefix)
        return JobProtection(tables, frozenset(prefixes))

    def covers_table(self, table_id: str) -> bool:
        return self.tables is None or table_id in self.tables

    def covers_key(self, key: str) -> bool:
        return any(key.startswith(f"{prefix}/") for prefix in self.prefixes)


@dataclass(frozen=True)
class BranchExpiry:
    """How the manifests of one branch below a number expire."""

    branch_id: BranchId
    before: StubIndex
    after: StubIndex
    expired: tuple[int, ...]  # manifests that become stubs

    @property
    def changes_index(self) -> bool:
        return self.after != self.before


@dataclass(frozen=True)
class SweepPlan:
    """What one marking allows to delete."""

    expiries: Sequence[BranchExpiry]
    files: Sequence[TableFile]
    leftovers: Sequence[ObjectInfo]
    young: int  # files that were not judged: younger than the floor, or in a table that a job names

    @property
    def stubs(self) -> int:
        return sum(len(expiry.expired) for expiry in self.expiries)

    @property
    def is_empty(self) -> bool:
        return not (self.files or self.leftovers or self.stubs or any(one.changes_index for one in self.expiries))


class Sweeper:
    """Plans and executes the sweep of one cleanup."""

    def __init__(
        self, repository: Repository, candidates: SweepCandidates, floor: timedelta, heads: Mapping[BranchId, Manifest]
    ) -> None:
        self._repository = repository
        self._candidates = candidates
        self._floor = floor
        self._needed: dict[TableVersion, Needed] = {}  # a version never changes, so it is read once
        # The newest fence at the start, and those of this run.
        self._fences = {branch_id: [head.fenced_at] for branch_id, head in heads.items()}

    def add_fence(self, head: Manifest, number: int) -> None:
        """Record a fence that this run has raised above `head`."""
        self._fences.setdefault(head.branch_id, [head.fenced_at]).append(number)

    def plan(self, ends: Mapping[BranchId, int], marks: Marks, protection: JobProtection) -> SweepPlan:
        """Decide what to delete; `ends` has the oldest retained manifest of each branch."""
        manifests, candidates = self._repository.manifests, self._candidates
        expiries = gather([partial(plan_expiry, manifests, marks, id_, ends[id_]) for id_ in sorted(ends)])
        leftovers = [listed for listed in candidates.leftovers if not protection.covers_key(listed.key)]
        limit = candidates.now - self._floor
        old = [
            file for file in candidates.files if file.modified <= limit and not protection.covers_table(file.table_id)
        ]
        needed = self._needed_files({file.table_id for file in old}, marks)
        files = [file for file in old if not is_needed(needed.get(file.table_id), file.path)]
        return SweepPlan(expiries, files, leftovers, len(candidates.files) - len(old))

    def execute(self, plan: SweepPlan, to_discard: Sequence[StoredIntent]) -> None:
        """Delete what was planned, and discard jobs.

        Stubs come before files, so that what a whole manifest names exists. A job is discarded before its files go.
        One that was taken over before it could be discarded stages again, because the fences did not honour it; it
        keeps what it needs to be resumed.
        """
        for expiry in plan.expiries:
            expire_manifests(self._repository.manifests, expiry)
        resumed = JobProtection.of([seen for seen in to_discard if end_job(self._repository, seen) is None])
        self._delete([listed.key for listed in plan.leftovers if not resumed.covers_key(listed.key)])
        self._delete([file.key for file in plan.files])

    def _needed_files(self, table_ids: set[str], marks: Marks) -> dict[str, Needed]:
        """What the marked versions of these tables need.

        A version that can't be read ends the run: it is damaged, or another cleanup has overtaken this one.
        """
        versions = sorted(
            (at for at in marks.versions if at.table_id in table_ids), key=lambda at: (at.table_id, at.table_version)
        )
        unread = [at for at in versions if at not in self._needed]
        try:
            read = gather([partial(needed_by, self._repository.tables, at) for at in unread])
        except Damaged:
            self._raise_if_overtaken()
            raise
        self._needed.update(zip(unread, read, strict=True))
        needed: dict[str, Needed] = {}
        for at in versions:
            needed[at.table_id] = needed.get(at.table_id, Needed()) | self._needed[at]
        return needed

    def _raise_if_overtaken(self) -> None:
        """Where another cleanup has raised a fence since the start, what was marked may be gone."""
        manifests = self._repository.manifests
        for branch_id, known in self._fences.items():
            entry: Entry | None = manifests.find_head(branch_id)
            number = entry.fenced_at if isinstance(entry, Manifest) else known[0]
            while number != known[0]:
                if number not in known:
                    raise Overtaken(Point(branch_id, number))
                entry = manifests.read(Point(branch_id, number))
                number = entry.fence.previous if isinstance(entry, Manifest) and entry.fence else known[0]

    def _delete(self, keys: Sequence[str]) -> None:
        for batch in _batches(keys):
            gather([partial(self._repository.store.delete, key) for key in batch])


def plan_expiry(manifests: Manifests, marks: Marks, branch_id: BranchId, end: int) -> BranchExpiry:
    """All manifests below `end` that are unmarked, among them those that an earlier cleanup kept for a pin.

    Another cleanup may have gone further meanwhile. What it kept from `end` on is not judged here, because the marks
    cover only what existed when this cleanup began.
    """
    before = manifests.read_stub_index(branch_id)
    marked = sorted(number for number in marks.of_branch(branch_id) if number < end)
    states = [number for number in marked if Point(branch_id, number) in marks.states]
    rows = [number for number in marked if Point(branch_id, number) not in marks.states]
    unmarked = sorted({*(number for number in before.whole if number < end), *range(before.below, end)} - {*marked})
    expired = tuple(entry.manifest_version for entry in _read_whole(manifests, branch_id, unmarked))
    after = StubIndex(
        max(before.below, end),
        tuple(sorted({*states, *(number for number in before.states if number >= end)})),
        tuple(sorted({*rows, *(number for number in before.rows if number >= end)})),
    )
    return BranchExpiry(branch_id, before, after, expired)


def expire_manifests(manifests: Manifests, expiry: BranchExpiry) -> None:
    """Put the stubs first, and the index of stubs after them."""
    for numbers in _batches(expiry.expired):
        whole = _read_whole(manifests, expiry.branch_id, numbers)
        gather([partial(manifests.replace_with_stub, manifest) for manifest in whole])
    if expiry.changes_index:
        manifests.update_stub_index(expiry.branch_id, expiry.after)


def _read_whole(manifests: Manifests, branch_id: BranchId, numbers: Sequence[int]) -> Iterator[Manifest]:
    """Those that are neither stubs nor tombstones."""
    for batch in _batches(numbers):
        entries = gather([partial(manifests.read, Point(branch_id, number), cached=False) for number in batch])
        yield from (entry for entry in entries if isinstance(entry, Manifest) and entry.tombstone is None)


def _batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[start : start + BATCH] for start in range(0, len(items), BATCH))
