"""Ancestry vectors (`ancestry-positions` in docs/protocol.md): what each branch has contributed to a state.

Each branch is linear, so a vector of positions *is* a set of commits: its elements are compared and combined one by
one, and no history is walked. A position counts commits and not only manifests, since a branch may be forked from the
middle of a group of commits that share a manifest.
"""

from omnigraph.manifest.model.manifest import NOTHING, Ancestry, BranchId, CommitId, Position
from omnigraph.manifest.model.paths import commit_position


def contains_commit(ancestry: Ancestry, commit: CommitId) -> bool:
    """Whether a commit is among the ancestors that a vector describes."""
    branch_id, position = commit_position(commit)
    return position <= ancestry.get(branch_id, NOTHING)


def common_ancestors(one: Ancestry, other: Ancestry) -> dict[BranchId, Position]:
    """What both contain: the element-wise minimum. A branch that only one of them knows has nothing in common."""
    if len(other) < len(one):
        one, other = other, one
    return {branch: min(position, other[branch]) for branch, position in one.items() if branch in other}


def all_ancestors(one: Ancestry, other: Ancestry) -> dict[BranchId, Position]:
    """What either contains: the element-wise maximum."""
    return {branch: max(one.get(branch, NOTHING), other.get(branch, NOTHING)) for branch in {**one, **other}}
