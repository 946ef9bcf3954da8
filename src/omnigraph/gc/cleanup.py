"""Cleanup (`fence-before-sweep` in docs/protocol.md): the only code that deletes what was ever part of a graph.

    0. list what may be deleted; list refs, read the heads
    1. fence every branch
    2. list tags, refs and intents again, and mark (`mark.py`)
    3. sweep (`sweep.py`): expired manifests become stubs, candidates that are unmarked and old enough are deleted

A cleanup may stall or be killed anywhere, and runs beside every other operation: a writer that staged before a fence
sees it in `fenced_at`, and a writer that begins after it uses nothing that was a candidate. Where there is nothing to
do, nothing is written, not even a fence.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial

from omnigraph.errors import BranchNotFound
from omnigraph.gc.mark import Marks, find_prunable_branches, mark_branch, mark_merge_bases, mark_pinned
from omnigraph.gc.retention import Retention, oldest_retained
from omnigraph.gc.sweep import BranchExpiry, JobProtection, SweepCandidates, Sweeper, SweepPlan
from omnigraph.manifest.branch.refs import Ref
from omnigraph.manifest.commit.plan import ConflictPolicy, PublishPlan, RaiseFence
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.intent.intent import StoredIntent
from omnigraph.manifest.model.manifest import BranchId, Manifest, Point, Token, TxnId
from omnigraph.manifest.model.paths import RECOVERY
from omnigraph.manifest.repository import Repository
from omnigraph.storage import meter
from omnigraph.storage.meter import Cost
from omnigraph.storage.table.maintain.table_files import table_files
from omnigraph.threads import gather

FLOOR = timedelta(hours=1)  # a courtesy to running readers: correctness does not depend on it
INTENT_TTL = timedelta(days=7)


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
    young_files: int = 0  # of those kept, not judged: younger than the floor, or in a table that a job names
    jobs: tuple[TxnId, ...] = ()  # whose staged work is kept
    discarded: tuple[TxnId, ...] = ()
    cost: Cost = field(default_factory=Cost)


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
        candidates = list_candidates(repository)  # first: what is written from here on is no candidate
        start = list_branches(repository)
        run = _Cleanup(repository, retention or Retention(), intent_ttl, actor, floor, candidates, start)
        cleaned = run.run(dry_run)
    return replace(cleaned, cost=operation.cost)


# What exists: branches and intents are listed twice, before the fences and after them.


def list_candidates(repository: Repository) -> SweepCandidates:
    now = repository.intents.store_now()
    files = list(table_files(repository.store))
    leftovers = [listed for listed in repository.store.list(RECOVERY) if _is_leftover(listed.key)]
    return SweepCandidates(files, leftovers, now)


def _is_leftover(key: str) -> bool:
    """Whether an object beside the intents is none, but belongs to what a job needs to be resumed."""
    return "/" in key.removeprefix(f"{RECOVERY}/")


@dataclass(frozen=True)
class BranchInventory:
    """All lives of all branch names, by their newest manifest, confirmed."""

    heads: Mapping[BranchId, Manifest] = field(default_factory=dict)  # of living branches
    tombstones: Mapping[BranchId, Manifest] = field(default_factory=dict)  # of dead branches
    pending_forks: tuple[Point, ...] = ()  # fork points of refs that have no manifest 1 yet: pins


def list_branches(repository: Repository) -> BranchInventory:
    """From a fresh listing of refs. A head that can't be read ends the run, because what it needs is unknown."""
    refs, manifests = repository.refs, repository.manifests
    lives = [(name, life) for name, newest in refs.all_names().items() for life in range(1, newest.life + 1)]
    found: list[Ref] = gather([partial(refs.read, name, life) for name, life in lives])
    heads: dict[BranchId, Manifest] = {}
    tombstones: dict[BranchId, Manifest] = {}
    pending_forks: list[Point] = []
    for ref, head in zip(found, gather([partial(manifests.read_head, ref.branch_id) for ref in found]), strict=True):
        if head is None:
            pending_forks.extend([] if ref.fork is None else [ref.fork])
        else:
            (heads if head.tombstone is None else tombstones)[ref.branch_id] = head
    return BranchInventory(heads, tombstones, tuple(pending_forks))


@dataclass(frozen=True)
class IntentInventory:
    """The intents, by what becomes of them."""

    honoured: tuple[StoredIntent, ...] = ()
    expired: tuple[StoredIntent, ...] = ()  # dead for longer than the ttl: to be discarded
    closed: tuple[StoredIntent, ...] = ()  # whose discard has begun and not ended
    ended: tuple[StoredIntent, ...] = ()  # of which only the object is left, for longer than the ttl

    @property
    def to_discard(self) -> tuple[StoredIntent, ...]:
        return (*self.expired, *self.closed)

    @property
    def tokens(self) -> tuple[Token, ...]:
        """What a fence honours: every start of every job that is honoured."""
        return tuple(sorted({token for seen in self.honoured for token in seen.intent.tokens}))


def list_intents(repository: Repository, ttl: timedelta) -> IntentInventory:
    """A dead intent is honoured until it has been dead for `ttl`; a live one, or one that may be, always."""
    seen = repository.intents.list()
    open_ = [one for one in seen if not one.closed]
    expired = [one for one in open_ if one.age >= ttl and repository.intents.is_abandoned(one)]
    honoured = [one for one in open_ if one not in expired]
    return IntentInventory(
        tuple(honoured),
        tuple(expired),
        tuple(one for one in seen if one.closed and not one.ended),
        tuple(one for one in seen if one.ended and one.age >= ttl),
    )


class _Cleanup:
    def __init__(
        self,
        repository: Repository,
        retention: Retention,
        intent_ttl: timedelta,
        actor: str | None,
        floor: timedelta,
        candidates: SweepCandidates,
        start: BranchInventory,
    ) -> None:
        self._repository = repository
        # A state that was the newest a moment ago may have readers: its manifests get the floor too.
        self._retention = replace(retention, older_than=max(retention.older_than, floor))
        self._intent_ttl = intent_ttl
        self._actor = actor
        self._floor = floor
        self._candidates = candidates
        self._start = start  # everything from these heads on is kept by this run
        self._sweeper = Sweeper(repository, candidates, floor, start.heads)

    def run(self, dry_run: bool) -> Cleaned:
        repository = self._repository
        intents = list_intents(repository, self._intent_ttl)
        oldest = self._oldest_retained(intents)
        marks = Marks()
        self._mark(marks, oldest, self._start, repository.tags.pins(), intents.honoured)
        plan = self._plan_sweep(oldest, marks, intents.honoured)
        if not dry_run:
            repository.store.remove_temporaries(self._candidates.now - max(self._floor, FLOOR))  # a put takes seconds
            gather([partial(repository.intents.delete_ended, seen) for seen in intents.ended])
        if not dry_run and not (plan.is_empty and not intents.to_discard):
            swept = _swept_before(plan.expiries, self._start.tombstones)
            forgotten = find_prunable_branches(marks, repository.manifests, swept)
            self._fence(self._start.heads, oldest, intents, forgotten)
            honoured = self._mark_after_fences(marks, oldest, intents)
            plan = self._plan_sweep(oldest, marks, honoured)
            self._sweeper.execute(plan, intents.to_discard)
        return self._result(dry_run, oldest, plan, intents)

    def _oldest_retained(self, intents: IntentInventory) -> dict[BranchId, int]:
        """The oldest manifest that stays on each branch: never above the head, nor above the base of a job."""
        oldest: dict[BranchId, int] = {}
        for branch_id, head in self._start.heads.items():
            wanted = oldest_retained(self._repository.manifests, head, self._retention, self._candidates.now)
            bases = [seen.intent.base for seen in intents.honoured]
            first = min([wanted, *(base.manifest_version for base in bases if base.branch_id == branch_id)])
            oldest[branch_id] = max(first, head.oldest_retained)
        return oldest

    # Step 1.

    def _fence(
        self,
        heads: Mapping[BranchId, Manifest],
        oldest: Mapping[BranchId, int],
        intents: IntentInventory,
        forgotten: frozenset[BranchId],
    ) -> None:
        tokens = intents.tokens
        gather([partial(self._fence_branch, heads[id_], oldest[id_], tokens, forgotten) for id_ in sorted(heads)])

    def _fence_branch(
        self, head: Manifest, oldest: int, honoured: tuple[Token, ...], forgotten: frozenset[BranchId]
    ) -> None:
        repository = self._repository
        fence = RaiseFence(oldest, honoured, forgotten)
        plan = PublishPlan(repository.runtime.ids.txn_id(), ConflictPolicy.MAINTENANCE, fence, self._actor)
        try:
            raised = repository.publisher.publish(WriteTxn(head, repository.schemas.read(head.schema)), plan)
            if raised is not None:
                self._sweeper.add_fence(head, raised.manifest_version)
        except BranchNotFound:
            pass  # it was deleted meanwhile: what it had at step 0 is kept by this run all the same

    # Step 2.

    def _mark_after_fences(
        self, marks: Marks, oldest: Mapping[BranchId, int], intents: IntentInventory
    ) -> Sequence[StoredIntent]:
        """Add to the first marks what exists now. Returns all intents whose work stays: those that the fences honour,
        and those found now.

        Intents are listed before the heads are read: a job that ended in between has its commit there. Branches found
        only now are fenced too, since a load may have staged its rows before it forked its branch.
        """
        repository, start = self._repository, self._start
        now = list_intents(repository, self._intent_ttl)
        pins = repository.tags.pins()  # before the refs: a branch may be forked from a tag that is deleted meanwhile
        branches = list_branches(repository)
        new = {branch_id: head for branch_id, head in branches.heads.items() if branch_id not in start.heads}
        if new:
            self._fence(new, {branch_id: head.oldest_retained for branch_id, head in new.items()}, intents, frozenset())
        heads = {branch_id: repository.manifests.refresh_head(head) for branch_id, head in new.items()}
        branches = replace(branches, heads={**branches.heads, **heads})
        honoured = (*intents.honoured, *now.honoured)
        self._mark(marks, oldest, branches, pins, honoured)
        return honoured

    def _mark(
        self,
        marks: Marks,
        oldest: Mapping[BranchId, int],
        branches: BranchInventory,
        tagged: Sequence[Point],
        honoured: Iterable[StoredIntent],
    ) -> None:
        """Mark what is retained: history of branches, pins, and merge bases of all these."""
        manifests, start = self._repository.manifests, self._start
        pins = [*tagged, *branches.pending_forks, *(seen.intent.base for seen in honoured)]
        for branch_id in {**start.heads, **branches.heads}:
            head = branches.heads.get(branch_id) or branches.tombstones[branch_id]
            is_new = branch_id not in start.heads
            mark_branch(marks, manifests, head, head.oldest_retained if is_new else oldest[branch_id])
        mark_pinned(marks, manifests, pins, start.heads)
        pinned = [entry for pin in dict.fromkeys(pins) if isinstance(entry := manifests.read(pin), Manifest)]
        states = [*branches.heads.values(), *(entry for entry in pinned if entry.tombstone is None)]
        mark_merge_bases(marks, manifests, states, start.heads, (self._repository.stamp.main_id,))

    # Step 3.

    def _plan_sweep(self, oldest: Mapping[BranchId, int], marks: Marks, honoured: Iterable[StoredIntent]) -> SweepPlan:
        dead = {branch_id: tombstone.manifest_version for branch_id, tombstone in self._start.tombstones.items()}
        return self._sweeper.plan({**dead, **oldest}, marks, JobProtection.of(honoured))

    def _result(
        self, dry_run: bool, oldest: Mapping[BranchId, int], plan: SweepPlan, intents: IntentInventory
    ) -> Cleaned:
        files, deleted = self._candidates.files, sum(file.size for file in plan.files)
        return Cleaned(
            dry_run=dry_run,
            branches={head.branch: oldest[id_] for id_, head in self._start.heads.items()},
            manifests=plan.stubs,
            files=len(plan.files) + len(plan.leftovers),
            bytes=deleted + sum(listed.size for listed in plan.leftovers),
            kept_files=len(files) - len(plan.files),
            kept_bytes=sum(file.size for file in files) - deleted,
            young_files=plan.young,
            jobs=tuple(sorted(seen.intent.txn_id for seen in intents.honoured)),
            discarded=tuple(sorted(seen.intent.txn_id for seen in intents.expired)),
        )


def _swept_before(expiries: Sequence[BranchExpiry], tombstones: Mapping[BranchId, Manifest]) -> list[BranchId]:
    """The dead branches that an earlier cleanup has found dead, and noted so after its fences."""
    known = {expiry.branch_id: expiry.before.below for expiry in expiries}
    return [id_ for id_, tombstone in tombstones.items() if known.get(id_, 0) >= tombstone.manifest_version]
