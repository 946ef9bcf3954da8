"""History through both parents: every commit once, and none before a commit that came from it.

Each branch is a line, walked downwards by its own manifests; a merge adds the line of what was merged. Among the lines'
newest commits only those are next that no other of them came from, which their ancestry vectors say, whatever the
clocks of their writers said; of several the newest goes first.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from omnigraph.errors import CommitNotFound
from omnigraph.manifest.history import entry_point, find_commit, log
from omnigraph.manifest.model import Commit, CommitId, Entry, Manifest
from omnigraph.manifest.store import Manifests


@dataclass(frozen=True, slots=True)
class LoggedCommit:
    """A commit, and the shown ones that it came from: the one before it, then what it merged."""

    commit: Commit
    branch: str
    parents: tuple[CommitId, ...]


@dataclass(slots=True)
class _Line:
    """A line of history with its newest commit that has not been told; the rest of it comes when asked for."""

    entry: Entry
    commit: Commit
    below: Iterator[tuple[Entry, Commit]] = field(repr=False)


def graph_log(manifests: Manifests, heads: Iterable[Manifest], *, maintenance: bool = False) -> Iterator[LoggedCommit]:
    """The commits that the heads came from, through both parents, newest first."""
    frontier: dict[CommitId, _Line] = {}

    def meet(line: _Line | None) -> CommitId | None:
        """Lines that run together go on as one."""
        if line is None:
            return None
        frontier.setdefault(line.commit.id, line)
        return line.commit.id

    for head in heads:
        meet(_next(log(manifests, head, maintenance=maintenance)))
    while frontier:
        line = frontier.pop(_newest(frontier))
        parents = [meet(_next(line.below))]
        if line.commit.merged_parent is not None:
            parents.append(meet(_line_from(manifests, line.commit.merged_parent, maintenance)))
        known = tuple(dict.fromkeys(parent for parent in parents if parent is not None))
        yield LoggedCommit(line.commit, line.entry.branch, known)


def _newest(frontier: dict[CommitId, _Line]) -> CommitId:
    lines = list(frontier.values())
    tops = [line for line in lines if not any(_came_from(other, line) for other in lines if other is not line)]
    return max(tops, key=lambda line: (line.commit.authored_at, line.commit.id)).commit.id


def _came_from(newer: _Line, older: _Line) -> bool:
    if newer.entry.branch_id == older.entry.branch_id and newer.entry.manifest_version == older.entry.manifest_version:
        places = [commit.id for commit in newer.entry.commits]
        return places.index(newer.commit.id) > places.index(older.commit.id)
    if newer.entry.fork == entry_point(older.entry):
        return True  # in the middle of a group perhaps, which is then told after the branch as a whole
    return newer.entry.ancestry.get(older.entry.branch_id, 0) >= older.entry.manifest_version


def _next(below: Iterator[tuple[Entry, Commit]]) -> _Line | None:
    found = next(below, None)
    return None if found is None else _Line(*found, below)


def _line_from(manifests: Manifests, commit_id: CommitId, maintenance: bool) -> _Line | None:
    """The line of a merged commit, from that commit on; None where even its stub is gone."""
    try:
        entry, _ = find_commit(manifests, commit_id)
    except CommitNotFound:
        return None
    below = log(manifests, entry, maintenance=maintenance)
    for found, commit in below:
        if commit.id == commit_id:
            return _Line(found, commit, below)
    return None
