"""Work that was held up until a cleanup took its base away begins anew.

Cleanup spares what is no longer referred to for a while, and no longer: whoever was stopped beyond that finds files of
an old base gone, or those that it was just staging. To it that looks like damage, but it is none, and nothing of its
work has landed: every manifest names only what is there (`fence-tokens`). Every cleanup that deletes raises a fence on
each branch first (`fence-before-sweep`), so the heads tell the one from the other.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from omnigraph.errors import ConflictError, Damaged, MergeBaseExpired
from omnigraph.manifest.model.manifest import Manifest
from omnigraph.manifest.repository import Repository

T = TypeVar("T")

STALLS_MAX = 8  # how often in a row that may happen


def retry_if_base_swept(
    repository: Repository, once: Callable[[], T], stood_on: Sequence[Manifest], *, can_plan_again: bool = True
) -> T:
    """What `once` answers, which opens its bases itself; begun anew where a cleanup has passed one of them.

    `once` keeps in `stood_on` what it works on at the moment. What can't be planned again is refused as a conflict.
    """
    for _ in range(STALLS_MAX):
        try:
            return once()
        except (Damaged, MergeBaseExpired) as damage:
            if not any(_passed(repository, base) for base in stood_on):
                raise  # the newest there is, and damaged indeed
            if not can_plan_again:
                raise ConflictError(
                    "A cleanup passed while the write was held up, and took its base away: nothing was written, run it "
                    "again."
                ) from damage
    return once()


def _passed(repository: Repository, base: Manifest) -> bool:
    """Whether a cleanup has fenced the branch since the base was its newest; one that was deleted is not found."""
    newest = repository.branches.find(base.branch).head
    return (newest.branch_id, newest.fenced_at) != (base.branch_id, base.fenced_at)
