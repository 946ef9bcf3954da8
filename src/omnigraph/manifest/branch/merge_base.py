"""Merge bases (`ancestry-positions` in docs/protocol.md): the newest states that two branches both come from.

The element-wise minimum of two ancestry vectors is exactly what both contain. Its maximal members are the bases:
usually one; after a criss-cross several, of which none is an ancestor of another. A base that cleanup has expired
refuses the merge: with an older common state in its place, rows that one side has removed since would come back.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from omnigraph.errors import Damaged, MergeBaseExpired
from omnigraph.manifest.history.history import partial_state
from omnigraph.manifest.model.ancestry import common_ancestors
from omnigraph.manifest.model.manifest import NOTHING, Ancestry, BranchId, Entry, Manifest, Point, Position
from omnigraph.manifest.model.paths import commit_id
from omnigraph.manifest.store.manifest_store import Manifests


@dataclass(frozen=True, slots=True)
class BasePosition:
    """A place that two branches both come from; `entry` is its manifest, or what cleanup has left of it."""

    entry: Entry
    position: Position

    @property
    def point(self) -> Point:
        return Point(self.entry.branch_id, self.entry.manifest_version)

    @property
    def ancestry(self) -> Ancestry:
        return {**self.entry.ancestry, self.entry.branch_id: self.position}

    @property
    def points(self) -> tuple[Point, ...]:
        """The manifests that its state is read from: inside a group, also the one before."""
        point = self.point
        if self.position.is_whole:
            return (point,)
        return point, Point(point.branch_id, point.manifest_version - 1)

    @property
    def name(self) -> str:
        index = None if self.position.is_whole else self.position.commits - 1
        return commit_id(self.point, index)


def find_bases(
    manifests: Manifests, one: Ancestry, other: Ancestry, first: Sequence[BranchId] = ()
) -> tuple[Manifest, ...]:
    """The states of the maximal common ancestors, in a fixed order; refused where one has expired.

    `first` are branches whose heads were confirmed in this call, where bases are looked for before others.
    """
    found = find_base_positions(manifests, one, other, first)
    if not found:
        raise MergeBaseExpired(None)
    return tuple(read_base_state(manifests, base, first) for base in found)


def find_base_positions(
    manifests: Manifests, one: Ancestry, other: Ancestry, first: Sequence[BranchId] = ()
) -> tuple[BasePosition, ...]:
    """The maximal common ancestors, expired or not.

    One of them usually has all others among its ancestors, so a few reads do, however many branches the graph has had;
    `first` are the branches to look at before others.
    """
    return find_maximal_positions(manifests, common_ancestors(one, other), first)


def find_maximal_positions(
    manifests: Manifests, common: Ancestry, first: Sequence[BranchId] = ()
) -> tuple[BasePosition, ...]:
    """The places of a vector that none of its other places has among its ancestors."""
    wanted = dict(common)
    open_ends = sorted(wanted, key=lambda branch: (first.index(branch) if branch in first else len(first), branch))
    found: list[BasePosition] = []
    while open_ends:
        branch = open_ends.pop(0)
        base = _read_position(manifests, branch, wanted[branch])
        if base is None:
            continue
        found.append(base)
        wanted[branch] = base.position
        open_ends = [end for end in open_ends if base.ancestry.get(end, NOTHING) < wanted[end]]
    maximal = [base for base in found if not any(_is_below(base, another) for another in found)]
    return tuple(sorted(maximal, key=lambda base: (base.entry.branch_id, base.position)))


def read_base_state(manifests: Manifests, base: BasePosition, confirmed: Sequence[BranchId] = ()) -> Manifest:
    entry = base.entry
    if not isinstance(entry, Manifest) or not manifests.is_state(entry, confirmed):
        raise MergeBaseExpired(base.name)
    if base.position.is_whole:
        return entry
    before = manifests.read(base.points[1])
    if not isinstance(before, Manifest) or not manifests.is_state(before, confirmed):
        raise MergeBaseExpired(base.name)
    return partial_state(before, entry, base.position.commits - 1)


def _read_position(manifests: Manifests, branch_id: BranchId, position: Position) -> BasePosition | None:
    """The manifest at a position; a tombstone has no state, so the one before it; None before a branch's first."""
    if position.number == 0:
        return None
    point = Point(branch_id, position.number)
    entry = manifests.read(point)
    if entry is None:
        raise Damaged(f"manifest {point.manifest_version} of branch id {branch_id}", "it is missing")
    if entry.tombstone is not None:
        return _read_position(manifests, branch_id, Position(position.number - 1))
    if position.commits >= len(entry.commits):
        position = Position(position.number)
    return BasePosition(entry, position)


def _is_below(base: BasePosition, another: BasePosition) -> bool:
    if base is another:
        return False
    return another.ancestry.get(base.entry.branch_id, NOTHING) >= base.position
