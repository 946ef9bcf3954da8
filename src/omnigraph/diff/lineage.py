"""The way through history from a state to a later one that has it among its ancestors.

Each step is one manifest and the one it was made from, so along the way nothing is lost and nothing counts twice. The
ends may stand in the middle of a group of commits that share a manifest.
Maintenance lies on it like commits do; whoever compares neighbours can tell the two apart by `changed_at`.
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

STEPS_MAX = 1_000  # beyond it, reading what lies between would cost more than comparing the ends
_TOO_LONG = f"more than {STEPS_MAX:,} steps lie between the two"


@dataclass(frozen=True, slots=True)
class Lineage:
    """The states from the older one to the newer, both included; or why there is no such way."""

    states: tuple[Manifest, ...] = ()
    obstacle: str | None = None

    @property
    def commits(self) -> int:
        """How many logical commits lie on the way."""
        ids = {commit.id for state in self.states[1:] for commit in state.commits if _is_logical(commit)}
        return len(ids - {commit.id for state in self.states[:1] for commit in state.commits})


def is_logical(entry: Entry) -> bool:
    return any(_is_logical(commit) for commit in entry.commits)


def _is_logical(commit: Commit) -> bool:
    return commit.commit_class is CommitClass.LOGICAL


def same_state(one: Manifest, other: Manifest) -> bool:
    """Whether both are the same place in history: the same manifest, and as many of its commits."""
    return one.point == other.point and len(one.commits) == len(other.commits)


def find_lineage(manifests: Manifests, older: Manifest, newer: Manifest) -> Lineage:
    """The way down from `newer` to `older`, through a merge where it came that way; told from old to new."""
    older = _fork_origin(manifests, older)
    if older.point == newer.point and len(older.commits) <= len(newer.commits):
        return Lineage((newer,) if same_state(older, newer) else (older, newer))
    place = older.ancestry[older.branch_id]
    if not _contains(newer, older.branch_id, place):
        return Lineage(obstacle=f"{older.logical_head} is no ancestor of {newer.logical_head}")
    if older.branch_id == newer.branch_id and newer.manifest_version - older.manifest_version > STEPS_MAX:
        return Lineage(obstacle=_TOO_LONG)
    way = [newer]
    while way[-1].point != older.point:
        known = len(way)
        for entry in _steps_down(manifests, way[-1], older.branch_id, place):
            if not isinstance(entry, Manifest) or not manifests.is_state(entry):
                expired = f"{entry.branch_id}.{entry.manifest_version}"
                return Lineage(obstacle=f"cleanup has expired {expired}, which lies between the two")
            way.append(entry)
            if len(way) > STEPS_MAX + 1:
                return Lineage(obstacle=_TOO_LONG)
        if len(way) == known:
            return Lineage(obstacle="history no longer says how the two are connected")
    if not same_state(way[-1], older):
        way.append(older)
    return Lineage(tuple(reversed(way)))


def _fork_origin(manifests: Manifests, state: Manifest) -> Manifest:
    """Of a branch that has only just begun the state that it is a copy of, which others may have come from too."""
    while state.fork is not None and state.manifest_version == 1:
        entry = fork_state(manifests, state)
        if not isinstance(entry, Manifest) or not manifests.is_state(entry):
            break
        state = entry
    return state


def _contains(entry: Entry, branch_id: BranchId, place: Position) -> bool:
    return entry.ancestry.get(branch_id, NOTHING) >= place


def _steps_down(manifests: Manifests, start: Manifest, branch_id: BranchId, place: Position) -> Iterator[Entry]:
    """Down the first parents for as long as they contain the place; else one step to what was merged here."""
    stayed = False
    for entry in _line_below(manifests, start, branch_id, place):
        if not _contains(entry, branch_id, place):
            break
        stayed = True
        yield entry
    if not stayed:
        merged = [commit.merged_parent for commit in start.commits if commit.merged_parent is not None]
        entries = (_merged_state(manifests, commit) for commit in merged)
        yield from [entry for entry in entries if entry is not None and _contains(entry, branch_id, place)][:1]


def _merged_state(manifests: Manifests, commit: CommitId) -> Entry | None:
    """The state of a merged commit, which may be in the middle of a group; a stub where it has expired."""
    entry = manifests.read(parse_commit_id(commit))
    if not isinstance(entry, Manifest):
        return entry
    try:
        return state_within(manifests, entry, commit)
    except CommitNotFound:
        return stub_of(entry)


def _line_below(manifests: Manifests, start: Manifest, branch_id: BranchId, place: Position) -> Iterator[Entry]:
    """The manifests below one on its own branch, then its fork point."""
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
