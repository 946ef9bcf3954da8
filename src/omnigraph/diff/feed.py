"""The change feed: all changes of a branch, commit by commit, in order.

A cursor names the branch by its id, the newest manifest that was returned completely, how many commits of the next one
were, and the last change that was returned. Commits and their order are immutable. So a consumer that stores the cursor
of a change together with its own result processes each change exactly once, however often it polls.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from omnigraph.diff.changes import GraphChanges, check_limit, snapshot_of
from omnigraph.diff.cursor import decode_token, encode_token
from omnigraph.diff.entity_changes import ChangePosition, EntityChange, parse_position
from omnigraph.diff.lineage import is_logical
from omnigraph.errors import BadRequest, CommitNotFound, CursorExpired, CursorRefused, Damaged
from omnigraph.manifest.branch.tags import BEGINNING, NOW
from omnigraph.manifest.history.history import commits_up_to, fork_head, partial_state, require_retained
from omnigraph.manifest.history.txn_lookup import READ_AHEAD
from omnigraph.manifest.model.manifest import MAIN, BranchId, Commit, CommitClass, CommitId, Entry, Manifest, Point
from omnigraph.manifest.model.paths import commit_id, parse_branch_id, parse_commit_id
from omnigraph.manifest.repository import Repository
from omnigraph.storage import meter
from omnigraph.storage.meter import Cost
from omnigraph.threads import gather

CURSOR = "cursor"
LIMIT_DEFAULT = 1000
_REMEDY = "begin with `--start now`, `--start beginning` or `--start COMMIT`"


@dataclass(frozen=True, slots=True)
class Cursor:
    """A position in the feed of one branch: after a manifest, some commits of the next one, or a change there."""

    branch: str
    branch_id: BranchId
    point: Point  # returned completely; on the branch itself, or on an ancestor branch
    position: ChangePosition | None = None  # the last change that was returned of the next commit
    commits: int = 0  # of the next manifest that were returned completely

    def encode(self) -> str:
        stored_point = [self.point.branch_id, self.point.manifest_version]
        if self.commits:
            stored_point.append(self.commits)
        return encode_token(
            CURSOR,
            {
                "b": self.branch,
                "i": self.branch_id,
                "n": stored_point,
                "p": None if self.position is None else [*self.position],
            },
        )

    @staticmethod
    def decode(text: str) -> "Cursor":
        """Decode a cursor. Clients may send anything, so all fields are checked."""
        fields = decode_token(CURSOR, text, _REMEDY)
        try:
            position, stored_point = fields["p"], fields["n"]
            return Cursor(
                str(fields["b"]),
                parse_branch_id(fields["i"]),
                Point(parse_branch_id(stored_point[0]), _count(stored_point[1])),
                None if position is None else parse_position(position),
                _count(stored_point[2]) if len(stored_point) > 2 else 0,
            )
        except (IndexError, KeyError, TypeError, ValueError):
            raise BadRequest(f"Invalid {CURSOR}: {_REMEDY}.") from None


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} is not a count")
    return value


@dataclass(frozen=True, slots=True)
class FeedChange:
    """One change, its commit, and the cursor to store once the change is processed."""

    change: EntityChange
    commit: Commit
    cursor: str

    def to_json(self) -> dict[str, Any]:
        return {"commit_id": self.commit.id, **self.change.to_json(), "cursor": self.cursor}


@dataclass(frozen=True, slots=True)
class FeedPage:
    """One page of the feed; `cursor` continues after it, `more` says whether there are more changes already."""

    changes: tuple[FeedChange, ...]
    cursor: str
    more: bool
    cost: Cost = field(default_factory=Cost)

    def __iter__(self) -> Iterator[FeedChange]:
        return iter(self.changes)

    def __len__(self) -> int:
        return len(self.changes)


def poll(
    repository: Repository,
    cursor: str | None = None,
    start: str | None = None,
    limit: int = LIMIT_DEFAULT,
    branch: str | None = None,
) -> FeedPage:
    """At most `limit` changes after the cursor, or from a start: `now`, `beginning`, or after a commit or tag."""
    check_limit(limit)
    with meter.operation("changes_poll") as operation:
        head, at = _open(repository, cursor, start, branch)
        found: list[FeedChange] = []
        more = False
        for item in _read_changes(repository, head, at):
            if isinstance(item, Cursor):
                at = item
            elif len(found) == limit:
                more = True
                break
            else:
                found.append(item)
                at = replace(at, position=item.change.position)
    return FeedPage(tuple(found), at.encode(), more, operation.cost)


def follow(
    repository: Repository, cursor: str | None = None, start: str | None = None, branch: str | None = None
) -> Iterator[FeedChange]:
    """All changes up to the current head, one by one; each has the cursor to continue with."""
    head, at = _open(repository, cursor, start, branch)
    for item in _read_changes(repository, head, at):
        if isinstance(item, FeedChange):
            yield item


def _open(repository: Repository, cursor: str | None, start: str | None, branch: str | None) -> tuple[Manifest, Cursor]:
    """The branch's head, and the position at which to start."""
    if cursor is not None and start is not None:
        raise BadRequest("Give either a cursor or a start, not both.")
    if cursor is not None:
        at = Cursor.decode(cursor)
        if branch is not None and branch != at.branch:
            raise CursorRefused(f"it belongs to the branch {at.branch!r}, not to {branch!r}", _REMEDY)
        head = repository.branches.find(at.branch).head
        if head.branch_id != at.branch_id:
            reason = "is another graph's" if at.branch == MAIN else "was deleted and made again since"
            raise CursorRefused(f"its branch {at.branch!r} {reason}", _REMEDY)
        if at.point.branch_id == head.branch_id and at.point.manifest_version > head.manifest_version:
            # A cursor never points beyond the head, and a branch only grows: manifests were lost.
            reason = f"{at.branch!r} ends at manifest {head.manifest_version}, before the cursor's"
            remedy = "its newest manifests were lost, restore them (see `verify`), or begin again with `--start`"
            raise CursorRefused(f"{reason} {at.point.manifest_version}", remedy)
        return head, at
    head = repository.branches.find(MAIN if branch is None else branch).head
    if start is None or start == NOW:
        return head, Cursor(head.branch, head.branch_id, head.point)
    if start == BEGINNING:
        return head, Cursor(head.branch, head.branch_id, Point(_history_segments(repository, head)[0].branch_id, 0))
    return head, _cursor_after(repository, head, start)


def _cursor_after(repository: Repository, head: Manifest, start: str) -> Cursor:
    """The position after a commit in the branch's history; inside a group, after some of its commits."""
    commit = repository.find_commit_id(start)
    point = parse_commit_id(commit)
    segment = next((one for one in _history_segments(repository, head) if one.has(point)), None)
    entry = None if segment is None else repository.manifests.read(point)
    if segment is None or entry is None:
        raise _not_in_history(head, start)
    known = [one.id for one in segment.commits_of(entry)]
    if commit not in known and len(entry.commits) > 1:
        raise _not_in_history(head, start)
    if not known or commit in (known[-1], commit_id(point)):
        return Cursor(head.branch, head.branch_id, point)
    before = Point(point.branch_id, point.manifest_version - 1)
    return Cursor(head.branch, head.branch_id, before, commits=known.index(commit) + 1)


def _not_in_history(head: Manifest, start: str) -> BadRequest:
    return BadRequest(f"{start} is not in the history of {head.branch!r}: start with one of `commit list`.")


def _read_changes(repository: Repository, head: Manifest, at: Cursor) -> Iterator[FeedChange | Cursor]:
    """The changes after a position, and after each commit the position behind it."""
    previous: Entry | None = None
    for segment, point in _points_after(repository, head, at.point):
        entry = _read_ahead(repository, point, head)
        if is_logical(entry) and point.manifest_version > 1:
            before = Point(point.branch_id, point.manifest_version - 1)
            states = _require_states(repository, head, _states_before(repository, before, previous), entry)
            commits = segment.commits_of(entry)
            for number in range(at.commits, len(commits)):
                at = replace(at, point=before, commits=number)
                yield from _changes_of_commit(repository, *states, number, at)
                at = replace(at, position=None)
                if number + 1 < len(commits):
                    yield replace(at, commits=number + 1)
        at, previous = replace(at, point=point, position=None, commits=0), entry
        yield at


def _changes_of_commit(
    repository: Repository, previous: Manifest, manifest: Manifest, number: int, at: Cursor
) -> Iterator[FeedChange]:
    """The changes of one commit of a manifest, after a position in it."""
    commit = manifest.commits[number]
    if commit.commit_class is not CommitClass.LOGICAL:
        return
    last = number + 1 == len(manifest.commits)
    before = previous if number == 0 else partial_state(previous, manifest, number - 1)
    after = manifest if last else partial_state(previous, manifest, number)
    states = snapshot_of(repository, before), snapshot_of(repository, after)
    for change in GraphChanges(repository, *states, after=at.position):
        yield FeedChange(change, commit, replace(at, position=change.position).encode())


@dataclass(frozen=True, slots=True)
class _BranchSegment:
    """The part of a branch that belongs to another one's history: up to a manifest, and a commit in it."""

    branch_id: BranchId
    last: int
    head: CommitId | None

    def has(self, point: Point) -> bool:
        return point.branch_id == self.branch_id and point.manifest_version <= self.last

    def commits_of(self, entry: Entry) -> tuple[Commit, ...]:
        return commits_up_to(entry, self.head) if entry.manifest_version == self.last else entry.commits


def _points_after(repository: Repository, head: Manifest, behind: Point) -> Iterator[tuple[_BranchSegment, Point]]:
    """The manifests of the branch's history after a point, old to new, through its fork points."""
    reached = False
    for segment in _history_segments(repository, head):
        first = 1
        if segment.branch_id == behind.branch_id:
            reached, first = True, behind.manifest_version + 1
        if reached:
            yield from ((segment, Point(segment.branch_id, number)) for number in range(first, segment.last + 1))
    if not reached:
        raise CursorRefused(f"its position is not in the history of {head.branch!r}", _REMEDY)


def _history_segments(repository: Repository, head: Manifest) -> list[_BranchSegment]:
    """The branches that form a branch's history, the oldest first, each up to its fork point."""
    line = [_BranchSegment(head.branch_id, head.manifest_version, head.logical_head)]
    fork = head.fork
    while fork is not None:
        forked_from = fork_head(repository.manifests, line[-1].branch_id)
        line.append(_BranchSegment(fork.branch_id, fork.manifest_version, forked_from))
        entry = repository.manifests.read(fork)
        if entry is None:
            raise Damaged(f"manifest {fork.manifest_version} of branch id {fork.branch_id}", "it is missing")
        fork = entry.fork
    return line[::-1]


def _read_ahead(repository: Repository, point: Point, head: Manifest) -> Entry:
    """Read one entry, and the next ones concurrently, so that a long history takes few round trips."""
    manifests = repository.manifests
    if point.manifest_version % READ_AHEAD == 1 and point.branch_id == head.branch_id:
        last = min(head.manifest_version, point.manifest_version + READ_AHEAD - 1)
        numbers = range(point.manifest_version, last + 1)
        gather([partial(manifests.read, Point(point.branch_id, number)) for number in numbers])
    entry = manifests.read(point)
    if entry is None:
        raise Damaged(f"manifest {point.manifest_version} of branch id {point.branch_id}", "it is missing")
    return entry


def _states_before(repository: Repository, point: Point, known: Entry | None) -> Iterator[Entry]:
    """The states before a commit, the newest first: those of maintenance commits have the same content."""
    entry = known or repository.manifests.read(point)
    while entry is not None:
        yield entry
        if is_logical(entry) or entry.manifest_version == 1:
            return
        entry = repository.manifests.read(Point(entry.branch_id, entry.manifest_version - 1))


def _require_states(
    repository: Repository, head: Manifest, before: Iterator[Entry], entry: Entry
) -> tuple[Manifest, Manifest]:
    """The state of a commit and one before it, both of which must be retained to find its changes."""
    name = commit_id(Point(entry.branch_id, entry.manifest_version))
    with suppress(CommitNotFound):
        after = require_retained(repository.manifests, entry, name, repository.tags)
        for previous in before:
            with suppress(CommitNotFound):
                return require_retained(repository.manifests, previous, name, repository.tags), after
    raise CursorExpired(head.branch, name, _baseline(repository, head))


def _baseline(repository: Repository, head: Manifest) -> CommitId | None:
    """The oldest commit after which the feed has no gap; perhaps a maintenance commit, whose state can be read."""
    for number in range(head.oldest_retained, head.manifest_version + 1):
        entry = repository.manifests.read(Point(head.branch_id, number))
        if isinstance(entry, Manifest) and entry.commits:
            return entry.commits[-1].id
    return None
