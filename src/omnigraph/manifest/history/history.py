"""History without an index: a commit's id says where it is, and a branch's manifests are its log."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Protocol

from omnigraph.errors import BadRequest, CommitNotFound, Damaged, UnsupportedFormat
from omnigraph.manifest.history.txn_lookup import read_entries_back
from omnigraph.manifest.model.manifest import (
    BranchId,
    Commit,
    CommitClass,
    CommitId,
    Entry,
    Manifest,
    Point,
    Position,
    Stub,
    TableKey,
    TableRef,
    stub_of,
)
from omnigraph.manifest.model.paths import parse_commit_id
from omnigraph.manifest.store.manifest_store import Manifests
from omnigraph.storage.table.table_content import TailEntry

NO_SUCH_COMMIT = "there is no such commit, see `commit list`"


class Pins(Protocol):
    """Tells which single manifests cleanup must keep, besides those that their branch retains."""

    def protect(self, point: Point) -> bool: ...


def find_commit(manifests: Manifests, commit: CommitId) -> tuple[Entry, Commit]:
    """One read, on whatever branch it is, dead ones included. Stubs still know their commits."""
    entry = manifests.read(parse_commit_id(commit))
    found = None if entry is None else next((c for c in entry.commits if c.id == commit), None)
    if entry is None or found is None:
        raise CommitNotFound(commit, NO_SUCH_COMMIT)
    return entry, found


def read_log(manifests: Manifests, head: Entry, *, maintenance: bool = False) -> Iterator[tuple[Entry, Commit]]:
    """The commits of a branch, newest first, on through its fork points to `init`.

    Of a group that the head or a fork stands in the middle of, the commits up to there.
    """
    entries: Iterator[Entry] = _read_entries_from(manifests, head)
    last = head.logical_head if isinstance(head, Manifest) else None  # of those to come, the newest
    while True:
        fork: Point | None = None
        for entry in entries:
            for commit in reversed(commits_up_to(entry, last)):
                if maintenance or commit.commit_class is CommitClass.LOGICAL:
                    yield entry, commit
                last = commit.parent
            fork = entry.fork
            if isinstance(entry, Manifest):
                last = entry.logical_head if not entry.commits else last
        if fork is None:
            return
        entries = read_entries_back(manifests, fork.manifest_version, 1, fork.branch_id)


def _read_entries_from(manifests: Manifests, head: Entry) -> Iterator[Entry]:
    yield head
    yield from read_entries_back(manifests, head.manifest_version - 1, 1, head.branch_id)


def commits_up_to(entry: Entry, last: CommitId | None) -> tuple[Commit, ...]:
    """The commits of an entry up to one of them; all, if that one is not there."""
    place = next((n for n, commit in enumerate(entry.commits) if commit.id == last), None)
    return entry.commits if place is None else entry.commits[: place + 1]


def is_partial(manifest: Manifest) -> bool:
    """Whether it is the state in the middle of a group: then it does not contain all of its own number."""
    return not manifest.ancestry[manifest.branch_id].is_whole


def partial_state(previous: Manifest, manifest: Manifest, n: int) -> Manifest:
    """The state at commit `b.N.n`: manifest N-1 plus the first commits of N, n among them."""
    tables: dict[TableKey, TableRef] = dict(previous.tables)
    point = manifest.point
    for commit, changes in zip(manifest.commits[: n + 1], manifest.inline, strict=False):
        for key in changes:
            ref = tables.get(key, TableRef(None, 0, commit.id))
            touch = commit.touched[key]
            sizes = [entry.size for entry in manifest.tables[key].tail if _is_of(entry, point)]
            entry = TailEntry(point.branch_id, point.manifest_version, key, sum(sizes), n + 1)
            tables[key] = replace(
                ref,
                rows=ref.rows + touch.inserted - touch.deleted,
                changed_at=commit.id,
                removed_at=commit.id if touch.deleted else ref.removed_at,
                tail=(*(one for one in ref.tail if not _is_of(one, point)), entry),
            )
    newest = manifest.commits[n]
    return replace(
        manifest,
        logical_head=newest.id,
        authored_at=newest.authored_at,
        ancestry={**manifest.ancestry, manifest.branch_id: Position(manifest.manifest_version, n + 1)},
        commits=manifest.commits[: n + 1],
        tables=tables,
        inline=manifest.inline[: n + 1],
    )


def _is_of(entry: TailEntry, point: Point) -> bool:
    return (entry.branch_id, entry.manifest_version) == (point.branch_id, point.manifest_version)


def parse_time(reference: str | datetime) -> datetime:
    """A time in UTC; one without a zone is meant so."""
    try:
        moment = datetime.fromisoformat(reference) if isinstance(reference, str) else reference
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        text = str(reference)
        raise BadRequest(f"{text!r} is neither a commit id, a tag nor a time such as 2026-01-31T12:00:00Z.") from None


def state_at_commit(manifests: Manifests, commit: CommitId, tags: Pins | None = None) -> Manifest:
    """The manifest to read for a commit, on whatever branch it is; in the middle of a group one that is made up."""
    entry, found = find_commit(manifests, commit)
    manifest = require_retained(manifests, entry, commit, tags)
    if found is manifest.commits[-1]:
        return manifest
    return _within(manifests, manifest, manifest.commits.index(found), commit, tags)


def state_before(manifests: Manifests, commit: CommitId, tags: Pins | None = None) -> Manifest | None:
    """The state that a commit was made on; None for `init`."""
    entry, found = find_commit(manifests, commit)
    manifest = require_retained(manifests, entry, commit, tags)
    place = manifest.commits.index(found)
    if manifest.manifest_version == 1:
        return None
    if place == 0:
        return _previous(manifests, manifest, commit, tags)
    return _within(manifests, manifest, place - 1, commit, tags)


def state_within(manifests: Manifests, manifest: Manifest, last: CommitId, tags: Pins | None = None) -> Manifest:
    """The state at a commit of a manifest that is at hand; the manifest itself if it is not in the middle of it."""
    ids = [commit.id for commit in manifest.commits]
    if last not in ids[:-1]:
        return manifest
    return _within(manifests, manifest, ids.index(last), last, tags)


def fork_state(manifests: Manifests, first: Manifest) -> Entry | None:
    """The state that a branch is a copy of, told by the first manifest of the branch; a stub where it has expired."""
    assert first.fork is not None
    entry = manifests.read(first.fork)
    if not isinstance(entry, Manifest):
        return entry
    try:
        return state_within(manifests, entry, first.logical_head)
    except CommitNotFound:
        return stub_of(entry)


def fork_head(manifests: Manifests, branch_id: BranchId) -> CommitId | None:
    """The commit that a branch was forked from; None where cleanup has left nothing that says it."""
    first = manifests.read(Point(branch_id, 1))
    if isinstance(first, Manifest):
        return first.logical_head
    second = manifests.read(Point(branch_id, 2))
    return None if second is None else next((commit.parent for commit in second.commits), None)


def _within(manifests: Manifests, manifest: Manifest, n: int, commit: CommitId, tags: Pins | None = None) -> Manifest:
    try:
        previous: Entry | None = _previous(manifests, manifest, commit, tags)
    except CommitNotFound:
        # Whatever keeps a manifest keeps the one before it too, if it has several commits.
        previous = manifests.read(Point(manifest.branch_id, manifest.manifest_version - 1))
        if tags is None or not isinstance(previous, Manifest) or not tags.protect(manifest.point):
            raise
    assert isinstance(previous, Manifest)
    return partial_state(previous, manifest, n)


def _previous(manifests: Manifests, manifest: Manifest, commit: CommitId, tags: Pins | None) -> Manifest:
    entry = manifests.read(Point(manifest.branch_id, manifest.manifest_version - 1))
    if entry is None:
        raise CommitNotFound(commit, "the state before it is missing")
    try:
        return require_retained(manifests, entry, commit, tags)
    except CommitNotFound:
        raise CommitNotFound(
            commit, "cleanup has expired the state before it, so what it changed is no longer known"
        ) from None


def state_at_time(
    manifests: Manifests, head: Manifest, reference: str | datetime, tags: Pins | None = None
) -> Manifest:
    """The newest state of this branch by a time.

    `authored_at` never falls along a branch, so the place is found by halving, fork by fork.
    """
    moment = parse_time(reference)
    newest = head
    while True:
        entry = _find_newest_by(manifests, newest, moment)
        if entry is not None:
            return require_retained(manifests, entry, moment.isoformat(), tags)
        first = manifests.read(Point(newest.branch_id, 1))
        if first is None:
            raise Damaged(f"branch id {newest.branch_id}", "its first manifest is missing")
        if first.fork is None:
            raise CommitNotFound(moment.isoformat(), "the graph did not exist yet")
        forked_from = fork_state(manifests, first) if isinstance(first, Manifest) else manifests.read(first.fork)
        if not isinstance(forked_from, Manifest):
            raise CommitNotFound(moment.isoformat(), "cleanup has expired that part of the history")
        newest = forked_from


def _find_newest_by(manifests: Manifests, newest: Manifest, moment: datetime) -> Entry | None:
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


def require_retained(manifests: Manifests, entry: Entry, reference: str, tags: Pins | None = None) -> Manifest:
    """Time travel is decided by `oldest_retained`, not by whether an object still exists; a tag keeps its commit.

    Where the head can't be read, what is there is better than nothing.
    """
    try:
        head = manifests.read_head(entry.branch_id)
        expired = head is None or head.oldest_retained > entry.manifest_version
        if head is not None and head.tombstone is not None and isinstance(entry, Manifest):
            expired = expired or not manifests.is_state(entry)  # no number says how far cleanup is on a dead branch
    except (Damaged, UnsupportedFormat):
        expired = False
    if isinstance(entry, Stub) or (expired and not (tags is not None and tags.protect(entry_point(entry)))):
        raise CommitNotFound(reference, "cleanup has expired it")
    return entry


def entry_point(entry: Entry) -> Point:
    return Point(entry.branch_id, entry.manifest_version)
