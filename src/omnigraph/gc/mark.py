"""Mark (`fence-before-sweep`, step 2): the manifests that a cleanup must keep, and the table versions that they name.

Any two live branches may be merged, so the merge bases of every pair are kept (`ancestry-positions`); so are those of
states from which a branch may still be forked: tags, unfinished branches, bases of jobs. Where a pair has several
bases, a merge combines them on the bases that they have among themselves, which are kept as well.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import combinations
from typing import TypeAlias

from omnigraph.errors import ConflictError, Damaged
from omnigraph.manifest.branch.merge_base import BasePosition, find_maximal_positions
from omnigraph.manifest.history.txn_lookup import read_entries_back
from omnigraph.manifest.model.ancestry import all_ancestors, common_ancestors
from omnigraph.manifest.model.manifest import NOTHING, Ancestry, BranchId, Entry, Manifest, Point, Position, Stub
from omnigraph.manifest.model.paths import commit_position
from omnigraph.manifest.store.manifest_store import Manifests
from omnigraph.storage.table.handles import TableVersion

CARRIERS_TRIED_MAX = 8  # branches that may have brought a dead branch to all states that have it

_PositionSet: TypeAlias = frozenset[tuple[BranchId, Position]]


class Overtaken(ConflictError):
    """Another cleanup has gone further than this one, which therefore can't know any more what may be deleted."""

    def __init__(self, point: Point) -> None:
        super().__init__(
            f"Another cleanup has passed manifest {point.manifest_version} of branch id {point.branch_id} meanwhile: "
            "this one has stopped and deleted nothing, run it again."
        )


@dataclass(frozen=True, slots=True)
class Descendant:
    """The oldest marked state of a branch that contains a certain position of another branch."""

    point: Point
    ancestry: Ancestry


@dataclass
class Marks:
    """What must stay."""

    manifests: set[Point] = field(default_factory=set)
    versions: set[TableVersion] = field(default_factory=set)
    states: set[Point] = field(default_factory=set)  # those manifests whose tables are marked too
    descendants: dict[BranchId, dict[tuple[BranchId, Position], Descendant]] = field(
        default_factory=dict
    )  # by ancestor
    logical_head_branches: set[BranchId] = field(
        default_factory=set
    )  # with the newest logical commit of a marked state

    def add(self, manifest: Manifest, manifests: Manifests) -> None:
        """Mark a state and all that reading it takes: its tables, and the manifests whose rows are in their tails.

        Of a manifest that only a tail names, the rows are needed but not the tables.
        """
        if manifest.point in self.states:
            return
        self.states.add(manifest.point)
        self.manifests.add(manifest.point)
        self.logical_head_branches.add(commit_position(manifest.logical_head)[0])
        self._add_descendant(manifest)
        for ref in manifest.tables.values():
            if ref.stored is not None:
                self.versions.add(ref.stored)
            for entry in ref.tail:
                point = Point(entry.branch_id, entry.manifest_version)
                if point not in self.manifests:
                    _require_whole(manifests, point)
                    self.manifests.add(point)

    def _add_descendant(self, manifest: Manifest) -> None:
        descendant = Descendant(manifest.point, manifest.ancestry)
        for ancestor, position in manifest.ancestry.items():
            known = self.descendants.setdefault(ancestor, {}).setdefault((manifest.branch_id, position), descendant)
            if known.point.manifest_version > manifest.manifest_version:
                self.descendants[ancestor][manifest.branch_id, position] = descendant

    def of_branch(self, branch_id: BranchId) -> frozenset[int]:
        return frozenset(point.manifest_version for point in self.manifests if point.branch_id == branch_id)


def _require_whole(manifests: Manifests, point: Point) -> None:
    """A stub in place of a manifest that must be whole means that another cleanup was faster."""
    entry = manifests.read(point)
    if isinstance(entry, Stub):
        raise Overtaken(point)
    if entry is None:
        raise Damaged(f"manifest {point.manifest_version} of branch id {point.branch_id}", "it is missing")


def mark_branch(marks: Marks, manifests: Manifests, head: Manifest, oldest: int) -> None:
    """Mark all retained states of a branch, up to a head; a tombstone has none."""
    expected = head.manifest_version
    for entry in read_entries_back(manifests, head.manifest_version, oldest, head.branch_id):
        if entry.manifest_version != expected:
            break
        expected -= 1
        if isinstance(entry, Stub):
            if entry.tombstone is None:
                raise Overtaken(Point(entry.branch_id, entry.manifest_version))
        elif entry.tombstone is None:
            marks.add(entry, manifests)
    if expected >= oldest:
        raise Damaged(f"manifest {expected} of branch id {head.branch_id}", "it is missing")


def mark_pinned(
    marks: Marks, manifests: Manifests, points: Iterable[Point], heads: Mapping[BranchId, Manifest]
) -> None:
    """Mark states that something outside their branch needs: a tag, an unfinished ref, a job.

    `heads` are from the start of this cleanup. A state that had expired before then is not marked: its tag or ref lost
    its race.
    """
    for point in sorted(set(points), key=lambda point: (point.branch_id, point.manifest_version)):
        if point in marks.states:
            continue
        entry = manifests.read(point)
        if not isinstance(entry, Manifest):
            _require_expired_before(heads, point, entry)
            continue
        if entry.tombstone is None:
            marks.add(entry, manifests)
        if len(entry.commits) > 1:  # a commit in the middle of a group is read from the manifest before
            before = manifests.read(Point(point.branch_id, point.manifest_version - 1))
            if isinstance(before, Manifest):
                marks.add(before, manifests)


def _require_expired_before(heads: Mapping[BranchId, Manifest], point: Point, entry: Entry | None) -> None:
    """A manifest that was retained at the start and is a stub now was expired by another cleanup."""
    head = heads.get(point.branch_id)
    if entry is not None and head is not None and head.oldest_retained <= point.manifest_version:
        raise Overtaken(point)


# Merge bases.


def mark_merge_bases(
    marks: Marks,
    manifests: Manifests,
    states: Iterable[Manifest],
    heads: Mapping[BranchId, Manifest],
    first: Sequence[BranchId] = (),
) -> None:
    """Mark the merge bases of every two of these states; `heads` are from the start of the cleanup.

    A base that had expired before the start is gone, and its merge is refused.
    """
    todo = sorted(common_vectors([state.ancestry for state in states]), key=sorted)
    seen = set(todo)
    while todo:
        bases = find_maximal_positions(manifests, dict(todo.pop()), first)
        for point in [point for base in bases for point in base.points]:
            entry = manifests.read(point, cached=False)  # this process may know it from before it became a stub
            if not isinstance(entry, Manifest):
                _require_expired_before(heads, point, entry)
            elif manifests.is_state(entry):
                marks.add(entry, manifests)
        for vector in _pairs_under_virtual_base(bases):
            if vector not in seen:
                seen.add(vector)
                todo.append(vector)


def common_vectors(vectors: Sequence[Ancestry]) -> set[_PositionSet]:
    """The element-wise minimum of every two vectors.

    There may be thousands of branches, most of them forked from one branch and merged with no other. An entry that only
    one vector has can't be in common; without those, most vectors have one element, and the minima are the lower ones.
    """
    known = Counter(branch for vector in vectors for branch in vector)
    shared = Counter(
        frozenset((branch, position) for branch, position in vector.items() if known[branch] > 1) for vector in vectors
    )
    found = {vector for vector, times in shared.items() if times > 1}
    single: dict[BranchId, list[Position]] = {}
    several = [dict(vector) for vector in shared if len(vector) > 1]
    for vector in shared:
        if len(vector) == 1:
            ((branch, position),) = vector
            single.setdefault(branch, []).append(position)
    for branch, positions in single.items():
        others = [vector[branch] for vector in several if branch in vector]
        highest = max(positions)
        found |= {frozenset({(branch, position)}) for position in (*positions, *others) if position < highest}
        if any(position >= highest for position in others):
            found.add(frozenset({(branch, highest)}))
    found |= {frozenset(common_ancestors(one, other).items()) for one, other in combinations(several, 2)}
    return found - {frozenset()}


def _pairs_under_virtual_base(bases: Sequence[BasePosition]) -> Iterator[_PositionSet]:
    """Several bases are merged in order, each with all those before it, on what these two have in common."""
    whole: Ancestry = bases[0].ancestry if bases else {}
    for another in bases[1:]:
        yield frozenset(common_ancestors(whole, another.ancestry).items())
        whole = all_ancestors(whole, another.ancestry)


# Dead branches in ancestry vectors.


def find_prunable_branches(marks: Marks, manifests: Manifests, swept: Iterable[BranchId]) -> frozenset[BranchId]:
    """The dead branches that ancestry vectors may forget: nothing of them is kept, and no merge base depends on them.

    They must be `swept`: an earlier cleanup found them dead. It fenced every other branch afterwards, so no merge of
    them is under way that began before they died.

    Where two states have a dead branch in common, an older base would be found without it, unless they have something
    else in common that contains it. They do if one other branch, which stays, has brought it to all states that have
    it: of two positions on that branch, the lower one is common to both, and contains what both have of the dead one.
    Future states are made of those that are kept, and keep this property. A branch may be merged again and again, so
    every position that a state has is checked.
    """
    kept = {point.branch_id for point in marks.manifests} | marks.logical_head_branches
    dead = {branch for branch in swept if branch not in kept}
    return frozenset(
        branch for branch in sorted(dead) if _is_covered(manifests, branch, marks.descendants.get(branch, {}), dead)
    )


def _is_covered(
    manifests: Manifests,
    dead: BranchId,
    descendants: Mapping[tuple[BranchId, Position], Descendant],
    pruned: Set[BranchId],
) -> bool:
    """Whether one branch that stays has brought the dead one to all these states."""
    if not descendants:
        return True
    known_to_all = set.intersection(*(set(state.ancestry) for state in descendants.values())) - pruned
    often = Counter(branch for branch, _ in descendants)
    carriers = sorted(known_to_all, key=lambda branch: (-often[branch], branch))[:CARRIERS_TRIED_MAX]
    return any(
        all(_contains(manifests, branch, dead, position, state) for (_, position), state in descendants.items())
        for branch in carriers
    )


def _contains(
    manifests: Manifests, branch: BranchId, dead: BranchId, position: Position, descendant: Descendant
) -> bool:
    """Whether what the state has of `branch` contains all that it has of the dead branch."""
    if branch == descendant.point.branch_id:
        return True
    place = descendant.ancestry[branch]
    number = place.number if place.is_whole else place.number - 1  # a group may end with the merge that brought it
    entry = manifests.read(Point(branch, number)) if number else None
    return entry is not None and entry.ancestry.get(dead, NOTHING) >= position
