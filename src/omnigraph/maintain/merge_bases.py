"""Which merge bases a cleanup keeps, and which dead branches it may drop from ancestry (`ancestry-positions`).

Any two live branches may be merged, so the newest states that they have in common are kept, for every pair of them; so
are those of states that a branch may still be forked from: tags, unfinished branches, bases of jobs. Where a pair has
several bases, a merge combines them on the bases that they have among themselves, which are kept as well.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import TypeAlias

from omnigraph.maintain.marking import Marks, Overtaken
from omnigraph.manifest.ancestry import common_ancestors, united
from omnigraph.manifest.bases import BasePosition, maximal_positions
from omnigraph.manifest.model import NOTHING, Ancestry, BranchId, Manifest, Point, Position
from omnigraph.manifest.store import Manifests

READS_MAX = 8  # of manifests that may show that a dead branch is covered by another common ancestor
PAIRS_MAX = 4096

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
        whole = united(whole, another.ancestry)


def _mark(marks: Marks, manifests: Manifests, base: BasePosition, heads: Mapping[BranchId, Manifest]) -> None:
    """A base that had expired before this cleanup is gone, and its merge is refused.

    One that has expired since then was expired by another cleanup.
    """
    for point in base.points:
        entry = manifests.read(point)
        if isinstance(entry, Manifest):
            if manifests.is_state(entry):
                marks.add(entry, manifests)
            continue
        head = heads.get(point.branch_id)
        if entry is not None and head is not None and head.oldest_retained <= point.manifest_version:
            raise Overtaken(point)


def forgettable(marks: Marks, manifests: Manifests, dead: Iterable[BranchId]) -> frozenset[BranchId]:
    """The dead branches that no merge can ever need: nothing of them is kept, and no base depends on their entries.

    A dead branch may be common to two states that are kept, or that will descend from those. Without it in their
    vectors an older base would be found, unless another common ancestor contains it. What the oldest kept states have
    in common, all later ones have, so those are compared.
    """
    kept = {point.branch_id for point in marks.manifests}
    holders: dict[BranchId, list[Point]] = {branch: [] for branch in dead if branch not in kept}
    for (branch, ancestor), number in marks.oldest_with.items():
        if ancestor in holders:
            holders[ancestor].append(Point(branch, number))
    return frozenset(branch for branch, points in holders.items() if _is_covered(manifests, branch, points))


def _is_covered(manifests: Manifests, dead: BranchId, points: Sequence[Point]) -> bool:
    """Whether every two of these states, which have the dead branch in common, have something newer in common too."""
    if len(points) * (len(points) - 1) // 2 > PAIRS_MAX:
        return False
    vectors: list[tuple[BranchId, Ancestry]] = []
    for point in points:
        entry = manifests.read(point)
        if entry is None:
            return False
        vectors.append((point.branch_id, entry.ancestry))
    return all(_covers(manifests, dead, one, other) for one, other in combinations(vectors, 2))


def _covers(
    manifests: Manifests, dead: BranchId, one: tuple[BranchId, Ancestry], other: tuple[BranchId, Ancestry]
) -> bool:
    common = common_ancestors(one[1], other[1])
    needed = common.pop(dead, NOTHING)
    likely = sorted(common, key=lambda branch: (branch not in (one[0], other[0]), -common[branch].number, branch))
    for branch in likely[:READS_MAX]:
        entry = manifests.read(Point(branch, common[branch].number))
        if entry is not None and entry.ancestry.get(dead, NOTHING) >= needed:
            return True
    return False
