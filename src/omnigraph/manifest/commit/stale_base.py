"""Retry of a write whose base was garbage-collected.

Cleanup spares what is no longer referred to for a while, and no longer: a process that was stopped beyond that finds
files of an old base gone, or those that it was just staging. To it that looks like damage, but it is none, and nothing
of its work was committed: every manifest names only what is there (`fence-tokens`). Every cleanup that deletes raises a
fence on each branch first (`fence-before-sweep`), so the heads tell the one from the other.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from omnigraph.errors import ConflictError, Damaged, MergeBaseExpired
from omnigraph.manifest.model.manifest import Manifest
from omnigraph.manifest.repository import Repository

T = TypeVar("T")

RETRIES_MAX = 8
LOOKS_SWEPT = (Damaged, MergeBaseExpired)  # what work on a base that was swept may raise


class SweptBaseRetries:
    """Decides, for one write, whether damage that it has met calls for a retry."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._left = RETRIES_MAX

    def check(self, damage: BaseException, bases: Sequence[Manifest], *, can_replan: bool = True) -> None:
        """Return if a cleanup has passed one of these bases, so that the work can start over; raise otherwise."""
        if not self._left or not any(_was_fenced(self._repository, base) for base in bases):
            raise damage  # the newest there is, and damaged indeed
        if not can_replan:
            raise ConflictError(
                "A cleanup removed the base of this write while it was stalled: nothing was written, run it again."
            ) from damage
        self._left -= 1


def retry_if_base_swept(
    repository: Repository,
    attempt: Callable[[], T],
    bases: Callable[[], Sequence[Manifest]],
    *,
    can_replan: bool = True,
) -> T:
    """What `attempt` returns, which opens its bases itself; run again where a cleanup has passed one of them."""
    retries = SweptBaseRetries(repository)
    while True:
        try:
            return attempt()
        except LOOKS_SWEPT as damage:
            retries.check(damage, bases(), can_replan=can_replan)


def _was_fenced(repository: Repository, base: Manifest) -> bool:
    """Whether a cleanup has fenced the branch since the base was its head; a deleted branch is not found."""
    newest = repository.branches.find(base.branch).head
    return (newest.branch_id, newest.fenced_at) != (base.branch_id, base.fenced_at)
