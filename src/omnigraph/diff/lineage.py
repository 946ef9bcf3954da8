"""The path through history from a state to one of its descendants.

Each step is a manifest and the one it was made from, so no change is lost or counted twice. The ends may be inside a
group of commits that share a manifest. Maintenance manifests are on the path too; `changed_at` tells them apart.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from omnigraph.errors import CommitNotFound
from omnigraph.manifest.history.history import fork_state, state_within
from omnigraph.manifest.history.txn_lookup import read_entries_back
from omnigraph.manifest.model.manifest import (
    NOTHING,
    BranchId,
    Commit,
    CommitClass,
    CommitId,
    Entry,
    Manifest,
    Position,
    stub_of,
)
from omnigraph.manifest.model.paths import parse_commit_id
from omnigraph.manifest.store.manifest_store import Manifests

STEPS_MAX = 1_000  # beyond it, reading the steps would cost more than comparing the ends
_TOO_LONG = f"more than {STEPS_MAX:,} steps are between the two"


@dataclass(frozen=True, slots=True)
class Lineage:
    """The states from the older one to the newer, both included; or why there is no path."""

    states: tuple[Manifest, ...] = ()
    obstacle: str | None = None

    @property
    def commits(self) -> int:
        """The number of logical commits on the path."""
        ids = {commit.id for state in self.states[1:] for commit in state.commits if _is_logical(commit)}
        return len(ids - {commit.id for state in self.states[:1] for commit in state.commits})


def is_logical(entry: Entry) -> bool:
    return any(_is_logical(commit) for commit in entry.commits)


def _is_logical(commit: Commit) -> bool:
    return commit.commit_class is CommitClass.LOGICAL


def same_state(one: Manifest, other: Manifest) -> bool:
    """Whether both are the same point in history: the same manifest and as many of its commits."""
    return one.point == other.point and len(one.commits) == len(other.commits)


def find_lineage(manifests: Manifests, older: Manifest, newer: Manifest) -> Lineage:
    """The path from `newer` down to `older`, through merges where necessary; returned from old to new."""
    older = _fork_origin(manifests, older)
    if older.point == newer.point and len(older.commits) <= len(newer.commits):
        return Lineage((newer,) if same_state(older, newer) else (older, newer))
    place = older.ancestry[older.branch_id]
    if not _contains(newer, older.branch_id, place):
        return Lineage(obstacle=f"{older.logical_head} is no ancestor of {newer.logical_head}")
    if older.branch_id == newer.branch_id and newer.manifest_version - older.manifest_version > STEPS_MAX:
        return Lineage(obstacle=_TOO_LONG)
    path = [newer]
    while path[-1].point != older.point:
        known = len(path)
        for entry in _steps_down(manifests, path[-1], older.branch_id, place):
            if not isinstance(entry, Manifest) or not manifests.is_state(entry):
                expired = f"{entry.branch_id}.{entry.manifest_version}"
                return Lineage(obstacle=f"cleanup has expired {expired}, which is between the two")
            path.append(entry)
            if len(path) > STEPS_MAX + 1:
                return Lineage(obstacle=_TOO_LONG)
        if len(path) == known:
            return Lineage(obstacle="history no longer shows how the two are connected")
    if not same_state(path[-1], older):
        path.append(older)
    return Lineage(tuple(reversed(path)))


def _fork_origin(manifests: Manifests, state: Manifest) -> Manifest:
    """For the first state of a branch, the state of which it is a copy, since others may descend from that."""
    while state.fork is not None and state.manifest_version == 1:
        entry = fork_state(manifests, state)
        if not isinstance(entry, Manifest) or not manifests.is_state(entry):
            break
        state = entry
    return state


def _contains(entry: Entry, branch_id: BranchId, place: Position) -> bool:
    return entry.ancestry.get(branch_id, NOTHING) >= place


def _steps_down(manifests: Manifests, start: Manifest, branch_id: BranchId, place: Position) -> Iterator[Entry]:
    """Down the first parents while they contain the position; else one step to what was merged here."""
    found = False
    for entry in _older_entries(manifests, start, branch_id, place):
        if not _contains(entry, branch_id, place):
            break
        found = True
        yield entry
    if not found:
        merged = [commit.merged_parent for commit in start.commits if commit.merged_parent is not None]
        entries = (_merged_state(manifests, commit) for commit in merged)
        yield from [entry for entry in entries if entry is not None and _contains(entry, branch_id, place)][:1]


def _merged_state(manifests: Manifests, commit: CommitId) -> Entry | None:
    """The state of a merged commit, which may be inside a group; a stub if it has expired."""
    entry = manifests.read(parse_commit_id(commit))
    if not isinstance(entry, Manifest):
        return entry
    try:
        return state_within(manifests, entry, commit)
    except CommitNotFound:
        return stub_of(entry)


def _older_entries(manifests: Manifests, start: Manifest, branch_id: BranchId, place: Position) -> Iterator[Entry]:
    """The older manifests of the same branch, then its fork point."""
    on_its_branch = start.branch_id == branch_id
    oldest = place.number if on_its_branch else 1
    lowest: Entry = start
    for entry in read_entries_back(manifests, start.manifest_version - 1, oldest, start.branch_id):
        lowest = entry
        yield entry
    if not on_its_branch and isinstance(lowest, Manifest) and lowest.fork is not None:
        forked_from = fork_state(manifests, lowest)
        if forked_from is not None:
            yield forked_from
