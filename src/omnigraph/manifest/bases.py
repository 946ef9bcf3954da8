"""Merge bases from ancestry vectors (rule 17 of the protocol).

Each branch is linear, so a version vector is a set of ancestors, and the element-wise minimum of two vectors is
exactly what both have. Its maximal members are the bases: usually one; after a criss-cross several, of which none is an
ancestor of another.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from omnigraph.errors import ConflictError
from omnigraph.manifest.keys import parse_commit_id
from omnigraph.manifest.landed import entries_back
from omnigraph.manifest.model import BranchId, CommitId, Manifest, Point
from omnigraph.manifest.store import Manifests

Vector: TypeAlias = Mapping[BranchId, int]

STUBS_PASSED_MAX = 4096  # below a base that cleanup expired


class NothingInCommon(ConflictError):
    """Cleanup has kept no state that both branches come from."""


def contains(ancestry: Vector, commit: CommitId) -> bool:
    """Whether a commit is among the ancestors that a vector describes."""
    point = parse_commit_id(commit)
    return point.manifest_version <= ancestry.get(point.branch_id, 0)


def common_ancestors(one: Vector, other: Vector) -> dict[BranchId, int]:
    """The element-wise minimum; a branch that only one of them knows has nothing in common."""
    return {branch: min(number, other[branch]) for branch, number in one.items() if branch in other}


def united(one: Vector, other: Vector) -> dict[BranchId, int]:
    """The element-wise maximum: the ancestors of either."""
    return {branch: max(one.get(branch, 0), other.get(branch, 0)) for branch in {**one, **other}}


def find_bases(
    manifests: Manifests, one: Vector, other: Vector, first: Sequence[BranchId] = ()
) -> tuple[Manifest, ...]:
    """The maximal common ancestors, in the same order whoever asks.

    One manifest usually has all others among its ancestors, so a few reads do, however many branches the graph has had;
    `first` are the branches to look at before others. Where cleanup has made a stub of one, an older one of its branch
    serves, and what that one does not cover is looked for elsewhere.
    """
    wanted = common_ancestors(one, other)
    open_ends = sorted(wanted, key=lambda branch: (first.index(branch) if branch in first else len(first), branch))
    found: list[Manifest] = []
    while open_ends:
        branch = open_ends.pop(0)
        manifest = _newest_kept(manifests, Point(branch, wanted[branch]))
        if manifest is None:
            continue
        found.append(manifest)
        wanted[branch] = manifest.manifest_version
        open_ends = [end for end in open_ends if manifest.ancestry.get(end, 0) < wanted[end]]
    maximal = [manifest for manifest in found if not any(_below(manifest, another) for another in found)]
    if not maximal:
        raise NothingInCommon(
            "The two branches have no common state left that cleanup has kept: nothing was written, export the changes "
            "of one branch and load them into the other."
        )
    return tuple(sorted(maximal, key=lambda manifest: (manifest.branch_id, manifest.manifest_version)))


def _newest_kept(manifests: Manifests, point: Point) -> Manifest | None:
    """The state at a point, or the newest one before it on the same branch that is not a stub."""
    entry = manifests.read(point)
    if isinstance(entry, Manifest) and entry.tombstone is not None:
        return _newest_kept(manifests, _before(point))
    if isinstance(entry, Manifest) and manifests.is_state(entry):
        return entry
    oldest = max(1, point.manifest_version - STUBS_PASSED_MAX)
    older = entries_back(manifests, point.manifest_version - 1, oldest, point.branch_id)
    return next((entry for entry in older if isinstance(entry, Manifest) and manifests.is_state(entry)), None)


def _before(point: Point) -> Point:
    return Point(point.branch_id, point.manifest_version - 1)


def _below(manifest: Manifest, another: Manifest) -> bool:
    return manifest is not another and another.ancestry.get(manifest.branch_id, 0) >= manifest.manifest_version
