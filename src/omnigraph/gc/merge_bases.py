"""Which merge bases a cleanup keeps, and which dead branches it may drop from ancestry (`ancestry-positions`).

Any two live branches may be merged, so the newest states that they have in common are kept, for every pair of them; so
are those of states that a branch may still be forked from: tags, unfinished branches, bases of jobs. Where a pair has
several bases, a merge combines them on the bases that they have among themselves, which are kept as well.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import combinations
from typing import TypeAlias

from omnigraph.gc.mark import Holder, Marks, Overtaken
from omnigraph.manifest.branch.merge_base import BasePosition, maximal_positions
from omnigraph.manifest.model.ancestry import all_ancestors, common_ancestors
from omnigraph.manifest.model.manifest import NOTHING, Ancestry, BranchId, Manifest, Point, Position
from omnigraph.manifest.store.manifest_store import Manifests

BRANCHES_TRIED_MAX = 8  # that may have brought a dead branch to all states that have it

_Vector: TypeAlias = frozenset[tuple[BranchId, Position]]


def mark_bases(
    marks: Marks,
    manifests: Manifests,
    states: Iterable[Manifest],
    heads: Mapping[BranchId, Manifest],
    first: Sequence[BranchId] = (),
) -> None:
    """Keep the merge bases of every two of these states; `heads` are from the beginning of the cleanup."""
    todo = list(common_vectors([state.ancestry for state in states]))
    seen = set(todo)
    while todo:
        bases = maximal_positions(manifests, dict(todo.pop()), first)
        for base in bases:
            _mark(marks, manifests, base, heads)
        for vector in _under_virtual_base(bases):
            if vector not in seen:
                seen.add(vector)
                todo.append(vector)


def common_vectors(vectors: Sequence[Ancestry]) -> set[_Vector]:
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


def _under_virtual_base(bases: Sequence[BasePosition]) -> Iterator[_Vector]:
    """Several bases are merged in their order, each with all those before it: on what those two have in common."""
    whole: Ancestry = bases[0].ancestry if bases else {}
    for another in bases[1:]:
        yield frozenset(common_ancestors(whole, another.ancestry).items())
        whole = all_ancestors(whole, another.ancestry)


def _mark(marks: Marks, manifests: Manifests, base: BasePosition, heads: Mapping[BranchId, Manifest]) -> None:
    """A base that had expired before this cleanup is gone, and its merge is refused.

    One that has expired since then was expired by another cleanup.
    """
    for point in base.points:
        entry = manifests.read(point, cached=False)  # this process may know it from before it became a stub
        if isinstance(entry, Manifest):
            if manifests.is_state(entry):
                marks.add(entry, manifests)
            continue
        head = heads.get(point.branch_id)
        if entry is not None and head is not None and head.oldest_retained <= point.manifest_version:
            raise Overtaken(point)


def forgettable(marks: Marks, manifests: Manifests, swept: Iterable[BranchId]) -> frozenset[BranchId]:
    """The dead branches that no merge can ever need: nothing of them is kept, and no base depends on their entries.

    They must be `swept`: an earlier cleanup found them dead. It fenced every other branch afterwards, so no merge of
    them is under way that began before they died.

    Where two states have a dead branch in common, an older base would be found without it, unless they have something
    else in common that contains it. They do if one other branch, which stays, has brought it to all states that have
    it: of two positions on that branch, the lower one is common to both, and contains what both have of the dead one.
    States to come are made of those that are kept, and keep this property. A branch may be merged again and again, so
    each position is looked at that a state has.
    """
    kept = {point.branch_id for point in marks.manifests} | marks.heads_on
    dead = {branch for branch in swept if branch not in kept}
    return frozenset(branch for branch in dead if _is_covered(manifests, branch, marks.holders.get(branch, {}), dead))


def _is_covered(
    manifests: Manifests, dead: BranchId, holders: Mapping[tuple[BranchId, Position], Holder], going: Set[BranchId]
) -> bool:
    """Whether one branch that stays has brought the dead one to all these states."""
    if not holders:
        return True
    known_to_all = set.intersection(*(set(holder.ancestry) for holder in holders.values())) - going
    often = Counter(branch for branch, _ in holders)
    likely = sorted(known_to_all, key=lambda branch: (-often[branch], branch))[:BRANCHES_TRIED_MAX]
    return any(
        all(_contains(manifests, branch, dead, position, holder) for (_, position), holder in holders.items())
        for branch in likely
    )


def _contains(manifests: Manifests, branch: BranchId, dead: BranchId, position: Position, holder: Holder) -> bool:
    """Whether what the state has of `branch` contains all that it has of the dead branch."""
    if branch == holder.point.branch_id:
        return True
    place = holder.ancestry[branch]
    number = place.number if place.is_whole else place.number - 1  # a group may end with the merge that brought it
    entry = manifests.read(Point(branch, number)) if number else None
    return entry is not None and entry.ancestry.get(dead, NOTHING) >= position
