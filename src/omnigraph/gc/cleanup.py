"""Cleanup (`fence-before-sweep` in docs/protocol.md): the only code that deletes what was ever part of a graph.

    0. list what may be deleted; list refs, read the heads
    1. fence every branch
    2. list tags, refs and intents again, and mark
    3. turn expired manifests into stubs, delete the candidates that are unmarked and old enough

It may stall or be killed anywhere, and run beside every other operation: whoever staged before a fence learns of it
from `fenced_at`, whoever begins after it uses nothing that was a candidate. Where there is nothing to do, nothing is
written, not even a fence.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial

from omnigraph.errors import BranchNotFound, Damaged
from omnigraph.gc.inventory import Census, Jobs, Spared, list_jobs, take_census
from omnigraph.gc.mark import Marks, Overtaken, mark_branch, mark_pinned
from omnigraph.gc.merge_bases import forgettable, mark_bases
from omnigraph.gc.recovery import end_job
from omnigraph.gc.retention import Retention, oldest_retained
from omnigraph.gc.sweep import Expiry, carry_out, plan_expiry
from omnigraph.manifest.commit.plan import PublishPlan, RaiseFence, Stance
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.intent.intent_store import SeenIntent
from omnigraph.manifest.model.manifest import BranchId, Entry, Manifest, Point, Token, TxnId
from omnigraph.manifest.model.paths import RECOVERY
from omnigraph.manifest.repository import Repository
from omnigraph.storage import meter
from omnigraph.storage.meter import Cost
from omnigraph.storage.objects.object_store import ObjectInfo
from omnigraph.storage.table.handles import TableVersion
from omnigraph.storage.table.maintain.orphans import Needed, TableFile, is_needed, needed_by, table_files
from omnigraph.storage.util.parallel import gather

FLOOR = timedelta(hours=1)  # a kindness to running readers: correctness does not rest on it
INTENT_TTL = timedelta(days=7)
AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What a cleanup did, or would do."""

    dry_run: bool
    branches: Mapping[str, int]  # name → the oldest manifest that stays
    manifests: int = 0  # made stubs
    files: int = 0
    bytes: int = 0
    kept_files: int = 0
    kept_bytes: int = 0
    young_files: int = 0  # of those kept, not looked at: younger than the floor, or in a table that a job names
    jobs: tuple[TxnId, ...] = ()  # whose staged work is kept
    discarded: tuple[TxnId, ...] = ()
    cost: Cost = field(default_factory=Cost)


@dataclass(frozen=True)
class _Found:
    """Step 0: what may be deleted, and the heads from which on everything is kept by this run."""

    files: Sequence[TableFile]
    leftovers: Sequence[ObjectInfo]  # what bulk jobs put beside their intents
    census: Census
    now: datetime  # by the store's clock


@dataclass(frozen=True)
class _Verdict:
    """What goes, by one marking."""

    expiries: Sequence[Expiry]
    files: Sequence[TableFile]
    leftovers: Sequence[ObjectInfo]
    young: int

    @property
    def stubs(self) -> int:
        return sum(len(expiry.doomed) for expiry in self.expiries)

    @property
    def is_empty(self) -> bool:
        return not (self.files or self.leftovers or self.stubs or any(expiry.is_news for expiry in self.expiries))


def cleanup(
    repository: Repository,
    retention: Retention | None = None,
    *,
    dry_run: bool = True,
    intent_ttl: timedelta = INTENT_TTL,
    actor: str | None = None,
    floor: timedelta = FLOOR,
) -> Cleaned:
    """Expire history and delete what nothing refers to; a dry run writes nothing and counts what would go."""
    if not dry_run:
        repository.require_writable("Cleaning up")
    with meter.operation("cleanup") as operation:
        cleaned = _Cleanup(repository, retention or Retention(), intent_ttl, actor, floor).run(dry_run)
    return replace(cleaned, cost=operation.cost)


class _Cleanup:
    def __init__(
        self, repository: Repository, retention: Retention, intent_ttl: timedelta, actor: str | None, floor: timedelta
    ) -> None:
        self._repository = repository
        # A state that was the newest a moment ago may be read by somebody: its manifests get the floor too.
        self._retention = replace(retention, older_than=max(retention.older_than, floor))
        self._intent_ttl = intent_ttl
        self._actor = actor
        self._floor = floor
        self._needed: dict[TableVersion, Needed] = {}  # a version never changes, so it is read once
        self._fences: dict[BranchId, list[int]] = {}  # the newest at step 0, and those of this run

    def run(self, dry_run: bool) -> Cleaned:
        found = self._find()
        jobs = list_jobs(self._repository, self._intent_ttl)
        oldest = self._oldest(found, jobs)
        marks = Marks()
        self._mark(marks, found, oldest, found.census, self._repository.tags.pins(), jobs.honoured)
        verdict = self._judge(found, oldest, marks, Spared.by(jobs.honoured))
        if not dry_run:
            self._repository.store.remove_temporaries(found.now - max(self._floor, FLOOR))  # a put takes seconds
            gather([partial(self._repository.intents.delete_ended, seen) for seen in jobs.ended])
        if not dry_run and not (verdict.is_empty and not jobs.to_end):
            forgotten = forgettable(marks, self._repository.manifests, _swept(verdict.expiries, found.census.graves))
            self._fence(found.census.heads, oldest, jobs, forgotten)
            honoured = self._mark_again(marks, found, oldest, jobs)
            verdict = self._judge(found, oldest, marks, Spared.by(honoured))
            self._sweep(verdict, jobs)
        return self._told(dry_run, found, oldest, verdict, jobs)

    # Step 0.

    def _find(self) -> _Found:
        """Candidates first: what is written from here on is no candidate, whatever this run believes of it."""
        repository = self._repository
        now = repository.intents.store_now()
        files = list(table_files(repository.store))
        leftovers = [listed for listed in repository.store.list(RECOVERY) if _is_leftover(listed.key)]
        census = take_census(repository)
        self._fences = {branch_id: [head.fenced_at] for branch_id, head in census.heads.items()}
        return _Found(files, leftovers, census, now)

    def _oldest(self, found: _Found, jobs: Jobs) -> dict[BranchId, int]:
        """The oldest manifest that stays on each branch: never above the head, nor above the base of a job."""
        repository = self._repository
        oldest: dict[BranchId, int] = {}
        for branch_id, head in found.census.heads.items():
            wanted = oldest_retained(repository.manifests, head, self._retention, found.now)
            bases = [seen.intent.base for seen in jobs.honoured]
            first = min([wanted, *(base.manifest_version for base in bases if base.branch_id == branch_id)])
            oldest[branch_id] = max(first, head.oldest_retained)
        return oldest

    # Step 1.

    def _fence(
        self,
        heads: Mapping[BranchId, Manifest],
        oldest: Mapping[BranchId, int],
        jobs: Jobs,
        forgotten: frozenset[BranchId],
    ) -> None:
        gather([partial(self._fence_one, heads[id_], oldest[id_], jobs.tokens, forgotten) for id_ in sorted(heads)])

    def _fence_one(
        self, head: Manifest, oldest: int, honoured: tuple[Token, ...], forgotten: frozenset[BranchId]
    ) -> None:
        repository = self._repository
        fence = RaiseFence(oldest, honoured, forgotten)
        plan = PublishPlan(repository.runtime.ids.txn_id(), Stance.MAINTENANCE, fence, self._actor)
        try:
            raised = repository.publisher.publish(WriteTxn(head, repository.schemas.read(head.schema)), plan)
            if raised is not None:
                self._fences.setdefault(head.branch_id, [head.fenced_at]).append(raised.manifest_version)
        except BranchNotFound:
            pass  # it was deleted meanwhile: what it had at step 0 is kept by this run all the same

    # Step 2.

    def _mark_again(
        self, marks: Marks, found: _Found, oldest: Mapping[BranchId, int], jobs: Jobs
    ) -> Sequence[SeenIntent]:
        """After the fences, in addition to the first marks: what had to stay before stays. Returns all intents
        whose work stays: those that the fences honour, and those found now.

        Jobs are listed before the heads are read: one that has ended in between has its commit there. Branches found
        only now are fenced too, since a load may have staged its rows before it forked its branch.
        """
        now = list_jobs(self._repository, self._intent_ttl)
        pins = self._repository.tags.pins()  # before the refs: a branch may be forked from a tag that goes meanwhile
        census = take_census(self._repository)
        new = {branch_id: head for branch_id, head in census.heads.items() if branch_id not in found.census.heads}
        if new:
            self._fence(new, {branch_id: head.oldest_retained for branch_id, head in new.items()}, jobs, frozenset())
        heads = {branch_id: self._repository.manifests.refresh_head(head) for branch_id, head in new.items()}
        census = replace(census, heads={**census.heads, **heads})
        honoured = (*jobs.honoured, *now.honoured)
        self._mark(marks, found, oldest, census, pins, honoured)
        return honoured

    def _mark(
        self,
        marks: Marks,
        found: _Found,
        oldest: Mapping[BranchId, int],
        census: Census,
        tagged: Sequence[Point],
        honoured: Iterable[SeenIntent],
    ) -> None:
        manifests = self._repository.manifests
        pins = [*tagged, *census.unfinished, *(seen.intent.base for seen in honoured)]
        for branch_id in {**found.census.heads, **census.heads}:
            head = census.heads.get(branch_id) or census.graves[branch_id]
            first = found.census.heads.get(branch_id)
            mark_branch(marks, manifests, head, head.oldest_retained if first is None else oldest[branch_id])
        mark_pinned(marks, manifests, pins, found.census.heads)
        pinned = [entry for pin in set(pins) if isinstance(entry := manifests.read(pin), Manifest)]
        states = [*census.heads.values(), *(entry for entry in pinned if entry.tombstone is None)]
        mark_bases(marks, manifests, states, found.census.heads, (self._repository.stamp.main_id,))

    # Step 3.

    def _judge(self, found: _Found, oldest: Mapping[BranchId, int], marks: Marks, spared: Spared) -> _Verdict:
        manifests = self._repository.manifests
        ends = {**{id_: grave.manifest_version for id_, grave in found.census.graves.items()}, **oldest}
        expiries = gather([partial(plan_expiry, manifests, marks, id_, ends[id_]) for id_ in sorted(ends)])
        leftovers = [listed for listed in found.leftovers if not spared.has_key(listed.key)]
        limit = found.now - self._floor
        old = [file for file in found.files if file.modified <= limit and not spared.has_table(file.table_id)]
        needed = self._needed_in({file.table_id for file in old}, marks)
        files = [file for file in old if not is_needed(needed.get(file.table_id), file.path)]
        return _Verdict(expiries, files, leftovers, len(found.files) - len(old))

    def _needed_in(self, table_ids: set[str], marks: Marks) -> dict[str, Needed]:
        """What the marked versions of these tables need; one that can't be read ends the run, damaged or overtaken."""
        versions = sorted(
            (at for at in marks.versions if at.table_id in table_ids), key=lambda at: (at.table_id, at.table_version)
        )
        unread = [at for at in versions if at not in self._needed]
        try:
            read = gather([partial(needed_by, self._repository.tables, at) for at in unread])
        except Damaged:
            self._refuse_overtaken()
            raise
        self._needed.update(zip(unread, read, strict=True))
        found: dict[str, Needed] = {}
        for at in versions:
            found[at.table_id] = found.get(at.table_id, Needed()) | self._needed[at]
        return found

    def _refuse_overtaken(self) -> None:
        """What was marked may be gone where another cleanup has raised a fence since."""
        manifests = self._repository.manifests
        for branch_id, known in self._fences.items():
            entry: Entry | None = manifests.find_head(branch_id)
            number = entry.fenced_at if isinstance(entry, Manifest) else known[0]
            while number != known[0]:
                if number not in known:
                    raise Overtaken(Point(branch_id, number))
                entry = manifests.read(Point(branch_id, number))
                number = entry.fence.previous if isinstance(entry, Manifest) and entry.fence else known[0]

    def _sweep(self, verdict: _Verdict, jobs: Jobs) -> None:
        """Stubs before files, so that what a whole manifest names is there. What a job left goes before its files.

        A job that was taken over before it could be discarded stages again, as the fences did not honour it; it keeps
        what it needs to be resumed.
        """
        for expiry in verdict.expiries:
            carry_out(self._repository.manifests, expiry)
        resumed = Spared.by([seen for seen in jobs.to_end if end_job(self._repository, seen) is None])
        self._delete([listed.key for listed in verdict.leftovers if not resumed.has_key(listed.key)])
        self._delete([file.key for file in verdict.files])

    def _delete(self, keys: Sequence[str]) -> None:
        store = self._repository.store
        for start in range(0, len(keys), AT_ONCE):
            gather([partial(store.delete, key) for key in keys[start : start + AT_ONCE]])

    def _told(
        self, dry_run: bool, found: _Found, oldest: Mapping[BranchId, int], verdict: _Verdict, jobs: Jobs
    ) -> Cleaned:
        going = sum(file.size for file in verdict.files)
        return Cleaned(
            dry_run=dry_run,
            branches={head.branch: oldest[id_] for id_, head in found.census.heads.items()},
            manifests=verdict.stubs,
            files=len(verdict.files) + len(verdict.leftovers),
            bytes=going + sum(listed.size for listed in verdict.leftovers),
            kept_files=len(found.files) - len(verdict.files),
            kept_bytes=sum(file.size for file in found.files) - going,
            young_files=verdict.young,
            jobs=tuple(sorted(seen.intent.txn_id for seen in jobs.honoured)),
            discarded=tuple(sorted(seen.intent.txn_id for seen in jobs.expired)),
        )


def _swept(expiries: Sequence[Expiry], graves: Mapping[BranchId, Manifest]) -> list[BranchId]:
    """The dead branches that an earlier cleanup has found dead, and noted so after its fences."""
    known = {expiry.branch_id: expiry.known.below for expiry in expiries}
    return [id_ for id_, grave in graves.items() if known.get(id_, 0) >= grave.manifest_version]


def _is_leftover(key: str) -> bool:
    """Whether an object among the intents is none, but belongs to what a job needs to be resumed."""
    return "/" in key.removeprefix(f"{RECOVERY}/")
