"""History without an index: a commit's id says where it is, and a branch's manifests are its log."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Protocol

from omnigraph.errors import BadRequest, CommitNotFound, Damaged, UnsupportedFormat
from omnigraph.manifest.keys import parse_commit_id
from omnigraph.manifest.landed import entries_back
from omnigraph.manifest.model import Commit, CommitClass, CommitId, Entry, Manifest, Point, Stub
from omnigraph.manifest.store import Manifests


class Protection(Protocol):
    """What keeps single manifests from cleanup."""

    def protect(self, point: Point) -> bool: ...


def find_commit(manifests: Manifests, commit: CommitId) -> tuple[Entry, Commit]:
    """One read, on whatever branch it is, dead ones included. Stubs still know their commits."""
    entry = manifests.read(parse_commit_id(commit))
    found = None if entry is None else next((c for c in entry.commits if c.id == commit), None)
    if entry is None or found is None:
        raise CommitNotFound(commit, "there is no such commit, see `commit list`")
    return entry, found


def log(manifests: Manifests, head: Entry, *, maintenance: bool = False) -> Iterator[tuple[Entry, Commit]]:
    """The commits of a branch, newest first, on through its fork points to `init`."""
    newest, branch_id = head.manifest_version, head.branch_id
    while True:
        fork: Point | None = None
        for entry in entries_back(manifests, newest, 1, branch_id):
            for commit in reversed(entry.commits):
                if maintenance or commit.commit_class is CommitClass.LOGICAL:
                    yield entry, commit
            fork = entry.fork
        if fork is None:
            return
        newest, branch_id = fork.manifest_version, fork.branch_id


def parse_moment(reference: str | datetime) -> datetime:
    """A time in UTC; one without a zone is meant so."""
    try:
        moment = datetime.fromisoformat(reference) if isinstance(reference, str) else reference
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        text = str(reference)
        raise BadRequest(f"{text!r} is neither a commit id, a tag nor a time such as 2026-01-31T12:00:00Z.") from None


def state_at_commit(manifests: Manifests, commit: CommitId, tags: Protection | None = None) -> Manifest:
    """The manifest to read for a commit, on whatever branch it is."""
    entry, _ = find_commit(manifests, commit)
    return retained(manifests, entry, commit, tags)


def state_at_time(
    manifests: Manifests, head: Manifest, reference: str | datetime, tags: Protection | None = None
) -> Manifest:
    """The newest state of this branch by a time.

    `authored_at` never falls along a branch, so the place is found by halving, fork by fork.
    """
    moment = parse_moment(reference)
    newest = head
    while True:
        entry = _newest_by(manifests, newest, moment)
        if entry is not None:
            return retained(manifests, entry, moment.isoformat(), tags)
        first = manifests.read(Point(newest.branch_id, 1))
        if first is None:
            raise Damaged(f"branch id {newest.branch_id}", "its first manifest is missing")
        if first.fork is None:
            raise CommitNotFound(moment.isoformat(), "the graph did not exist yet")
        forked_from = manifests.read(first.fork)
        if not isinstance(forked_from, Manifest):
            raise CommitNotFound(moment.isoformat(), "cleanup has expired that part of the history")
        newest = forked_from


def _newest_by(manifests: Manifests, newest: Manifest, moment: datetime) -> Entry | None:
    """The newest entry of one branch, up to `newest`, that was authored by `moment`."""
    if newest.authored_at <= moment:
        return newest
    low, high = 0, newest.manifest_version  # `high` is too new; 0 stands for before the branch
    found: Entry | None = None
    while high - low > 1:
        middle = (low + high) // 2
        entry = manifests.read(Point(newest.branch_id, middle))
        if entry is None:
            raise Damaged(f"manifest {middle} of branch id {newest.branch_id}", "it is missing")
        if entry.authored_at <= moment:
            low, found = middle, entry
        else:
            high = middle
    return found


def retained(manifests: Manifests, entry: Entry, reference: str, tags: Protection | None = None) -> Manifest:
    """Time travel is decided by `oldest_retained`, not by whether an object still exists; a tag keeps its commit.

    Where the head can't be read, what is there is better than nothing.
    """
    try:
        head = manifests.head(entry.branch_id)
        expired = head is None or head.oldest_retained > entry.manifest_version
    except (Damaged, UnsupportedFormat):
        expired = False
    if isinstance(entry, Stub) or (expired and not (tags is not None and tags.protect(entry_point(entry)))):
        raise CommitNotFound(reference, "cleanup has expired it")
    return entry


def entry_point(entry: Entry) -> Point:
    return Point(entry.branch_id, entry.manifest_version)
