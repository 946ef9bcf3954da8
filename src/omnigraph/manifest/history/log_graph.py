"""History through both parents: every commit once, and none before a commit that came from it.

Each branch is a line, walked downwards by its own manifests; a merge adds the line of what was merged. Among the lines'
newest commits only those are next that no other of them came from, which their ancestry vectors say, whatever the
clocks of their writers said; of several the newest goes first. Commits of one clock tick are in the order of their
lines: those of the heads as they were given, then each merged line in the order in which its merge is shown.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count

from omnigraph.errors import CommitNotFound
from omnigraph.manifest.history.history import find_commit, read_log
from omnigraph.manifest.model.ancestry import contains_commit
from omnigraph.manifest.model.manifest import Commit, CommitId, Entry, Manifest
from omnigraph.manifest.store.manifest_store import Manifests


@dataclass(frozen=True, slots=True)
class LoggedCommit:
    """A commit, and the shown ones that it came from: the one before it, then what it merged."""

    commit: Commit
    branch: str
    parents: tuple[CommitId, ...]


@dataclass(slots=True)
class _Line:
    """A line of history: its newest commit that was not yielded yet, and an iterator over the rest."""

    entry: Entry
    commit: Commit
    below: Iterator[tuple[Entry, Commit]] = field(repr=False)
    rank: int = 0


def read_log_graph(
    manifests: Manifests, heads: Iterable[Manifest], *, maintenance: bool = False
) -> Iterator[LoggedCommit]:
    """The commits that the heads came from, through both parents, newest first."""
    frontier: dict[CommitId, _Line] = {}
    ranks = count()

    def add(line: _Line | None, rank: int) -> CommitId | None:
        """Add a line to the frontier; lines that reach the same commit become one."""
        if line is None:
            return None
        known = frontier.setdefault(line.commit.id, line)
        known.rank = rank if known is line else min(known.rank, rank)
        return line.commit.id

    for head in heads:
        add(_next(read_log(manifests, head, maintenance=maintenance)), next(ranks))
    while frontier:
        line = frontier.pop(_pick_newest(frontier))
        parents = [add(_next(line.below), line.rank)]
        if line.commit.merged_parent is not None:
            parents.append(add(_line_from(manifests, line.commit.merged_parent, maintenance), next(ranks)))
        known = tuple(dict.fromkeys(parent for parent in parents if parent is not None))
        yield LoggedCommit(line.commit, line.entry.branch, known)


def _pick_newest(frontier: dict[CommitId, _Line]) -> CommitId:
    lines = list(frontier.values())
    tops = [line for line in lines if not any(_descends_from(other, line) for other in lines if other is not line)]
    return max(tops, key=lambda line: (line.commit.authored_at, -line.rank)).commit.id


def _descends_from(newer: _Line, older: _Line) -> bool:
    if newer.entry.branch_id == older.entry.branch_id and newer.entry.manifest_version == older.entry.manifest_version:
        places = [commit.id for commit in newer.entry.commits]
        return places.index(newer.commit.id) > places.index(older.commit.id)
    return contains_commit(newer.entry.ancestry, older.commit.id)


def _next(below: Iterator[tuple[Entry, Commit]]) -> _Line | None:
    found = next(below, None)
    return None if found is None else _Line(*found, below)


def _line_from(manifests: Manifests, commit_id: CommitId, maintenance: bool) -> _Line | None:
    """The line of a merged commit, from that commit on; None where even its stub is gone."""
    try:
        entry, _ = find_commit(manifests, commit_id)
    except CommitNotFound:
        return None
    below = read_log(manifests, entry, maintenance=maintenance)
    for found, commit in below:
        if commit.id == commit_id:
            return _Line(found, commit, below)
    return None
