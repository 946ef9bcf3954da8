"""The change feed: all that happens on a branch, commit by commit, in order, for a reader that keeps its place.

A cursor names the branch by its id, the newest manifest that was told completely, and within the next one the last
change that was told. Commits are immutable and so is their order, so whoever stores the cursor of a change together
with what it made of the change gets each exactly once, however often it asks again in between.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from omnigraph.branch.changes import GraphChanges, check_limit
from omnigraph.branch.entities import EntityChange, Position, position_of
from omnigraph.branch.lineage import is_logical
from omnigraph.branch.tokens import decode_token, encode_token
from omnigraph.errors import BadRequest, CommitNotFound, CursorExpired, CursorRefused, Damaged
from omnigraph.manifest.history import retained
from omnigraph.manifest.keys import branch_id_of, commit_id, parse_commit_id
from omnigraph.manifest.landed import READ_AHEAD
from omnigraph.manifest.model import MAIN, BranchId, Commit, CommitClass, CommitId, Entry, Manifest, Point
from omnigraph.manifest.repository import Repository
from omnigraph.manifest.tags import BEGINNING, NOW
from omnigraph.manifest.txn import Snapshot
from omnigraph.storage import meter
from omnigraph.storage.meter import Cost
from omnigraph.storage.parallel import gather

CURSOR = "cursor"
LIMIT_DEFAULT = 1000
_REMEDY = "begin with `--start now`, `--start beginning` or `--start COMMIT`"


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in the feed of one branch: behind a manifest, or behind a change of the manifest after that."""

    branch: str
    branch_id: BranchId
    point: Point  # told completely; on the branch itself, or on one that it was forked from
    position: Position | None = None  # the last change that was told of the next manifest

    def encoded(self) -> str:
        place = [self.point.branch_id, self.point.manifest_version]
        return encode_token(
            CURSOR,
            {
                "b": self.branch,
                "i": self.branch_id,
                "n": place,
                "p": None if self.position is None else [*self.position],
            },
        )

    @staticmethod
    def decoded(text: str) -> "Cursor":
        fields = decode_token(CURSOR, text, _REMEDY)
        position = fields["p"]
        return Cursor(
            str(fields["b"]),
            branch_id_of(fields["i"]),
            Point(branch_id_of(fields["n"][0]), int(fields["n"][1])),
            None if position is None else position_of(position),
        )


@dataclass(frozen=True, slots=True)
class FeedChange:
    """One change, the commit that made it, and the cursor to store once it has been dealt with."""

    change: EntityChange
    commit: Commit
    cursor: str

    def to_json(self) -> dict[str, Any]:
        return {"commit_id": self.commit.id, **self.change.to_json(), "cursor": self.cursor}


@dataclass(frozen=True, slots=True)
class FeedPage:
    """What was asked for at once; `cursor` goes on behind it, `more` says whether there was more already."""

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
    """At most `limit` changes behind the cursor, or from a start: `now`, `beginning`, or behind a commit or tag."""
    check_limit(limit)
    with meter.operation("changes_poll") as operation:
        head, place = _begin(repository, cursor, start, branch)
        found: list[FeedChange] = []
        more = False
        for told in _told(repository, head, place):
            if isinstance(told, Cursor):
                place = told
            elif len(found) == limit:
                more = True
                break
            else:
                found.append(told)
                place = replace(place, position=told.change.position)
    return FeedPage(tuple(found), place.encoded(), more, operation.cost)


def follow(
    repository: Repository, cursor: str | None = None, start: str | None = None, branch: str | None = None
) -> Iterator[FeedChange]:
    """All changes up to the head that the branch has now, one by one; each has the cursor to go on with."""
    head, place = _begin(repository, cursor, start, branch)
    for told in _told(repository, head, place):
        if isinstance(told, FeedChange):
            yield told


def _begin(
    repository: Repository, cursor: str | None, start: str | None, branch: str | None
) -> tuple[Manifest, Cursor]:
    """The branch's head, and where to go on."""
    if cursor is not None and start is not None:
        raise BadRequest("Both a cursor and a start are given: a cursor says where to go on by itself.")
    if cursor is not None:
        place = Cursor.decoded(cursor)
        if branch is not None and branch != place.branch:
            raise CursorRefused(f"it belongs to the branch {place.branch!r}, not to {branch!r}", _REMEDY)
        head = repository.branches.find(place.branch).head
        if head.branch_id != place.branch_id:
            reason = "is another graph's" if place.branch == MAIN else "was deleted and made again since"
            raise CursorRefused(f"its branch {place.branch!r} {reason}", _REMEDY)
        return head, place
    head = repository.branches.find(MAIN if branch is None else branch).head
    if start is None or start == NOW:
        point = head.point
    elif start == BEGINNING:
        point = Point(_line(repository, head)[0][0], 0)
    else:
        line = _line(repository, head)
        point = parse_commit_id(repository.commit_named(start))
        if not any(point.branch_id == known and point.manifest_version <= last for known, last in line):
            raise BadRequest(f"{start} is not in the history of {head.branch!r}: start with one of `commit list`.")
    return head, Cursor(head.branch, head.branch_id, point)


def _told(repository: Repository, head: Manifest, place: Cursor) -> Iterator[FeedChange | Cursor]:
    """The changes behind a place, and after each manifest the place behind it."""
    previous: Entry | None = None
    position = place.position
    for point in _points_after(repository, head, place.point):
        entry = _read_ahead(repository, point, head)
        if is_logical(entry) and point.manifest_version > 1:
            previous = previous or repository.manifests.read(Point(point.branch_id, point.manifest_version - 1))
            before, after = _both_retained(repository, head, previous, entry)
            behind = replace(place, point=Point(point.branch_id, point.manifest_version - 1))
            commit = next(c for c in reversed(after.commits) if c.commit_class is CommitClass.LOGICAL)
            changes = GraphChanges(repository, _pinned(repository, before), _pinned(repository, after), after=position)
            for change in changes:
                yield FeedChange(change, commit, replace(behind, position=change.position).encoded())
        place, position, previous = replace(place, point=point, position=None), None, entry
        yield place


def _points_after(repository: Repository, head: Manifest, behind: Point) -> Iterator[Point]:
    """The manifests of the branch's line behind a point, old to new, through its fork points."""
    reached = False
    for branch_id, last in _line(repository, head):
        first = 1
        if branch_id == behind.branch_id:
            reached, first = True, behind.manifest_version + 1
        if reached:
            yield from (Point(branch_id, number) for number in range(first, last + 1))
    if not reached:
        raise CursorRefused(f"its place is not in the history of {head.branch!r}", _REMEDY)


def _line(repository: Repository, head: Manifest) -> list[tuple[BranchId, int]]:
    """The branches that a branch's history runs through, the oldest first, each up to where it was forked."""
    line = [(head.branch_id, head.manifest_version)]
    fork = head.fork
    while fork is not None:
        line.append((fork.branch_id, fork.manifest_version))
        entry = repository.manifests.read(fork)
        if entry is None:
            raise Damaged(f"manifest {fork.manifest_version} of branch id {fork.branch_id}", "it is missing")
        fork = entry.fork
    return line[::-1]


def _read_ahead(repository: Repository, point: Point, head: Manifest) -> Entry:
    """One entry; the next ones are read along with it, so that a long way is not as many round trips."""
    manifests = repository.manifests
    if point.manifest_version % READ_AHEAD == 1 and point.branch_id == head.branch_id:
        last = min(head.manifest_version, point.manifest_version + READ_AHEAD - 1)
        numbers = range(point.manifest_version, last + 1)
        gather([partial(manifests.read, Point(point.branch_id, number)) for number in numbers])
    entry = manifests.read(point)
    if entry is None:
        raise Damaged(f"manifest {point.manifest_version} of branch id {point.branch_id}", "it is missing")
    return entry


def _both_retained(
    repository: Repository, head: Manifest, previous: Entry | None, entry: Entry
) -> tuple[Manifest, Manifest]:
    """A commit's state and the one before it; both are needed to say what it changed."""
    name = commit_id(Point(entry.branch_id, entry.manifest_version))
    try:
        if previous is None:
            raise CommitNotFound(name, "the state before it is missing")
        return (
            retained(repository.manifests, previous, name, repository.tags),
            retained(repository.manifests, entry, name, repository.tags),
        )
    except CommitNotFound:
        raise CursorExpired(head.branch, name, _baseline(repository, head)) from None


def _baseline(repository: Repository, head: Manifest) -> CommitId | None:
    """The oldest commit after which the feed has no gap, a maintenance one perhaps: its state can still be read."""
    for number in range(head.oldest_retained, head.manifest_version + 1):
        entry = repository.manifests.read(Point(head.branch_id, number))
        if isinstance(entry, Manifest) and entry.commits:
            return entry.commits[-1].id
    return None


def _pinned(repository: Repository, manifest: Manifest) -> Snapshot:
    return Snapshot(manifest, repository.schemas.read(manifest.schema))
