"""Fixes that can be taken back one at a time, to show that the simulation finds the bug that each of them removed.

    with taken_back("columns"):
        judge(scheduled(5))

Each entry puts back what the code did before the fix, as narrowly as it can: the rest, and the format of what is
stored, stay as they are. `python -m simulation.run --without columns --seeds 1..2000 --stop-at-first` counts the seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any
from unittest import mock

from omnigraph.diff import changes
from omnigraph.diff.graph_state import GraphState, state_of
from omnigraph.errors import ConflictError, MergeBaseExpired
from omnigraph.gc import cleanup
from omnigraph.gc.cleanup import BranchInventory, IntentInventory
from omnigraph.gc.mark import Marks, mark_branch, mark_pinned
from omnigraph.gc.sweep import JobProtection, Sweeper, SweepPlan
from omnigraph.manifest.branch import branches, tags
from omnigraph.manifest.commit import conflicts, publish
from omnigraph.manifest.commit.commit_queue import CommitBatch
from omnigraph.manifest.commit.plan import PublishPlan
from omnigraph.manifest.commit.publish import Publisher
from omnigraph.manifest.commit.rebase import Rebaser
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.history.history import commits_up_to, fork_head, partial_state
from omnigraph.manifest.history.txn_lookup import fences_honour, read_entries_back
from omnigraph.manifest.intent.guard import JobGuard
from omnigraph.manifest.intent.intent import StoredIntent
from omnigraph.manifest.model.manifest import Ancestry, BranchId, Commit, CommitId, Entry, Manifest, Point
from omnigraph.manifest.model.paths import parse_commit_id
from omnigraph.manifest.repository import Repository
from omnigraph.manifest.store.manifest_store import Manifests
from omnigraph.merge import plan as merge_plan
from omnigraph.pipeline.bulk.load import BulkLoad
from omnigraph.storage.objects import object_store as objects
from omnigraph.storage.objects.object_store import ObjectInfo, ObjectStore
from omnigraph.verify import lineage

# As the code has them, so that a fix can be taken back twice without harm.
_PUBLISH, _PLAN_SWEEP = Publisher.publish, Sweeper.plan


@dataclass(frozen=True, slots=True)
class Revert:
    """One fix: the bug without it, and the patches that take it back."""

    bug: str
    patches: Callable[[], Iterable[Any]]


@contextmanager
def taken_back(name: str | None) -> Iterator[None]:
    """Run without a fix; None leaves everything as it is."""
    with ExitStack() as stack:
        for patch in () if name is None else REVERTS[name].patches():
            stack.enter_context(patch)
        yield


# Jobs: fences honour the job and not one start of it, and nothing but the job's own commit is looked for before a put.


def _txn_ids(intents: IntentInventory) -> tuple[str, ...]:
    return tuple(sorted(seen.intent.txn_id for seen in intents.honoured))


def _publish_under_txn_id(self: Publisher, txn: WriteTxn, plan: PublishPlan, *more: Any, **options: Any) -> Any:
    return _PUBLISH(self, txn, plan if plan.intent is None else replace(plan, intent=plan.txn_id), *more, **options)


def _survived_under_txn_id(self: BulkLoad, before: Manifest, now: Manifest) -> bool:
    assert self._intent is not None
    manifests = self.repository.manifests
    if before.branch_id != now.branch_id:
        source = manifests.refresh_head(before)
        survived = partial(_survived_under_txn_id, self)
        return survived(before, source) and survived(replace(now, fenced_at=0), now)
    return before.fenced_at == now.fenced_at or fences_honour(manifests, before, now, self._intent.txn_id)


def _search_for_commit(self: JobGuard, head: Manifest) -> Entry | None:
    return self._log.search_up_to(head).committed


def _jobs() -> Iterable[Any]:
    yield mock.patch.object(IntentInventory, "tokens", property(_txn_ids))
    yield mock.patch.object(Publisher, "publish", _publish_under_txn_id)
    yield mock.patch.object(BulkLoad, "_is_unswept", _survived_under_txn_id)
    yield mock.patch.object(JobGuard, "search", _search_for_commit)
    yield mock.patch.object(JobGuard, "check", _search_for_commit)


# Positions: merge bases are whole manifests, and an older one serves where cleanup has expired the right one. What the
# manifests say stays as it is, so that not the vectors but the merges have to show it.


def _number(ancestry: Ancestry, branch_id: BranchId) -> int:
    """Of the middle of a group, the manifest before it."""
    position = ancestry.get(branch_id)
    if position is None:
        return 0
    return position.number if position.is_whole else position.number - 1


def _find_older_bases(
    manifests: Manifests, one: Ancestry, other: Ancestry, first: Sequence[BranchId] = ()
) -> tuple[Manifest, ...]:
    wanted = {branch: min(_number(one, branch), _number(other, branch)) for branch in one if branch in other}
    open_ends = sorted(wanted, key=lambda branch: (first.index(branch) if branch in first else len(first), branch))
    found: list[Manifest] = []
    while open_ends:
        branch = open_ends.pop(0)
        manifest = _newest_kept(manifests, Point(branch, wanted[branch]))
        if manifest is None:
            continue
        found.append(manifest)
        wanted[branch] = manifest.manifest_version
        open_ends = [end for end in open_ends if _number(manifest.ancestry, end) < wanted[end]]
    maximal = [one for one in found if not any(_is_below(one, another) for another in found)]
    if not maximal:
        raise MergeBaseExpired(None)
    return tuple(sorted(maximal, key=lambda manifest: (manifest.branch_id, manifest.manifest_version)))


def _newest_kept(manifests: Manifests, point: Point) -> Manifest | None:
    for entry in read_entries_back(manifests, point.manifest_version, 1, point.branch_id):
        if isinstance(entry, Manifest) and entry.tombstone is None and manifests.is_state(entry):
            return entry
    return None


def _is_below(manifest: Manifest, another: Manifest) -> bool:
    return manifest is not another and _number(another.ancestry, manifest.branch_id) >= manifest.manifest_version


def _base_state(repository: Repository, ours: Manifest, theirs: Manifest) -> GraphState:
    """With the repair for forks from the middle of a group, which needs the group's manifest."""
    manifests = repository.manifests

    def load(manifest: Manifest) -> GraphState:
        return state_of(manifest, repository.schemas.read(manifest.schema))

    def between(one: GraphState, other: GraphState) -> GraphState:
        return united_state(load(base) for base in _find_older_bases(manifests, one.ancestry, other.ancestry))

    def united_state(bases: Iterable[GraphState]) -> GraphState:
        whole, *others = bases
        for another in others:
            whole = merge_plan._merge_states(repository.tables, between(whole, another), whole, another)
        return whole

    bases = _find_older_bases(manifests, ours.ancestry, theirs.ancestry, (ours.branch_id, theirs.branch_id))
    return united_state(load(_further(manifests, base, (ours, theirs))) for base in bases)


def _further(manifests: Manifests, base: Manifest, sides: Sequence[Manifest]) -> Manifest:
    point = Point(base.branch_id, base.manifest_version + 1)
    without = [side for side in sides if _number(side.ancestry, point.branch_id) < point.manifest_version]
    forked = [_forked_within(manifests, side, point) for side in without]
    group = manifests.read(point) if forked and all(forked) else None
    if not isinstance(group, Manifest) or not manifests.is_state(group):
        return base
    return partial_state(base, group, min(map(len, forked)) - 1)


def _forked_within(manifests: Manifests, head: Manifest, point: Point) -> tuple[Commit, ...]:
    fork, branch_id = head.fork, head.branch_id
    while fork is not None:
        entry = None if fork.branch_id == point.branch_id and fork != point else manifests.read(fork)
        if entry is None:
            return ()
        if fork == point:
            return commits_up_to(entry, fork_head(manifests, branch_id))
        branch_id, fork = fork.branch_id, entry.fork
    return ()


def _mark_related(
    self: Any,
    marks: Marks,
    oldest: Mapping[BranchId, int],
    branches: BranchInventory,
    tagged: Sequence[Point],
    honoured: Iterable[StoredIntent],
) -> None:
    """Keep the bases of each branch with those that it was forked from or has merged, and of no other pair."""
    manifests, start = self._repository.manifests, self._start
    pins = [*tagged, *branches.pending_forks, *(seen.intent.base for seen in honoured)]
    for branch_id in {**start.heads, **branches.heads}:
        head = branches.heads.get(branch_id) or branches.tombstones[branch_id]
        first = start.heads.get(branch_id)
        mark_branch(marks, manifests, head, head.oldest_retained if first is None else oldest[branch_id])
        if head.fork is not None and head.fork.branch_id in branches.tombstones:
            pins.append(head.fork)
    mark_pinned(marks, manifests, pins, start.heads)
    for head in branches.heads.values():
        for other in (branches.heads.get(branch_id) for branch_id in head.ancestry if branch_id != head.branch_id):
            if other is not None:
                try:
                    bases = _find_older_bases(
                        manifests, head.ancestry, other.ancestry, (head.branch_id, other.branch_id)
                    )
                except ConflictError:
                    continue
                for base in bases:
                    marks.add(base, manifests)


def _positions() -> Iterable[Any]:
    yield mock.patch.object(merge_plan, "find_base_state", _base_state)
    yield mock.patch.object(changes, "find_bases", _find_older_bases)
    yield mock.patch.object(cleanup._Cleanup, "_mark", _mark_related)


# Columns: that nothing is staged for a table is not derived again, and no manifest is checked before its put.


def _columns() -> Iterable[Any]:
    yield mock.patch.object(conflicts, "_undecided", return_value=set())
    yield mock.patch.object(Rebaser, "require_columns", return_value=None)


# Listings: each page is asked for "after the last key" of the one before.


@dataclass(frozen=True, slots=True)
class _Page:
    listed: tuple[ObjectInfo, ...]
    after: str | None = None


def _list_after_last_key(self: ObjectStore, prefix: str) -> Iterator[ObjectInfo]:
    backend: Any = self._backend
    after: str | None = None
    while True:
        page = self._with_retries(prefix, partial(backend.page, prefix, after), lambda _: 0)
        yield from page.listed
        after = page.after
        if after is None:
            return


def _listings() -> Iterable[Any]:
    yield mock.patch.object(objects, "Page", _Page, create=True)
    yield mock.patch.object(ObjectStore, "list", _list_after_last_key)


# Clocks: cleanup spares the files that are newer than the oldest intent it honours.


@dataclass(frozen=True)
class _SparedSince(JobProtection):
    since: datetime | None = None


def _spared_by_time(honoured: Iterable[StoredIntent]) -> JobProtection:
    seen = list(honoured)
    prefixes = frozenset(one.intent.prefix for one in seen)
    return _SparedSince(frozenset(), prefixes, min((one.first_put for one in seen), default=None))


def _plan_sweep_by_time(self: Any, ends: Mapping[BranchId, int], marks: Marks, protection: JobProtection) -> SweepPlan:
    since = protection.since if isinstance(protection, _SparedSince) else None
    candidates = self._candidates
    self._candidates = replace(
        candidates, files=[file for file in candidates.files if since is None or file.modified < since]
    )
    try:
        return _PLAN_SWEEP(self, ends, marks, protection)
    finally:
        self._candidates = candidates


def _clocks() -> Iterable[Any]:
    yield mock.patch.object(JobProtection, "of", staticmethod(_spared_by_time))
    yield mock.patch.object(Sweeper, "plan", _plan_sweep_by_time)


# Merges: of a position in the middle of a group, only the manifests before it count as merged.


def _contains_manifest_of(ancestry: Ancestry, commit: CommitId) -> bool:
    point = parse_commit_id(commit)
    return point.manifest_version <= _number(ancestry, point.branch_id)


def _merges() -> Iterable[Any]:
    yield mock.patch.object(merge_plan, "contains_commit", _contains_manifest_of)
    yield mock.patch.object(lineage, "contains_commit", _contains_manifest_of)


# Ids: a refusal names the id that a commit had while its group was put together.


def _ids() -> Iterable[Any]:
    yield mock.patch.object(CommitBatch, "_final_ids", return_value={})


# Keys: whoever finds a key takes what it made for its own.


def _keys() -> Iterable[Any]:
    for module in (publish, branches, tags):
        yield mock.patch.object(module, "require_same_request", return_value=None)


REVERTS: Mapping[str, Revert] = {
    "jobs": Revert("a discarded bulk job still publishes, even files that were swept", _jobs),
    "positions": Revert("a merge brings deleted rows back after a fork from the middle of a group", _positions),
    "columns": Revert("a schema change beside a fold leaves a table without the new column", _columns),
    "listings": Revert("unordered listings skip branches, and cleanup sweeps their tables", _listings),
    "clocks": Revert("a clock that steps back makes the files of a running load candidates for deletion", _clocks),
    "merges": Revert("every repeated merge of a branch from the middle of a group commits again", _merges),
    "keys": Revert("a key of another actor or request is answered with the commit that it made", _keys),
    "ids": Revert("`ExpectedVersionMismatch.actual` names a commit that does not exist", _ids),
}
