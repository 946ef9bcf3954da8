"""Which numbers of each branch are known to have been used (`unique-numbers` in docs/protocol.md).

Everything that names a manifest was written after that manifest: a newer manifest, a branch that was forked from it
or has merged it, a tag. So a number that is named and not there, with nothing above it, was lost, and must not be
used a second time.
"""

import threading
from typing import NamedTuple

from omnigraph.caches import LruCache
from omnigraph.manifest.model.manifest import BranchId, Entry

BRANCHES_MAX = 16_384


class UsedNumber(NamedTuple):
    """A number that was used, and how that is known: a clause that follows "because"."""

    number: int
    evidence: str


class UsedNumbers:
    """For each branch, the highest number that other objects were seen to name. Thread-safe, and bounded."""

    def __init__(self) -> None:
        self._highest: LruCache[BranchId, UsedNumber] = LruCache(BRANCHES_MAX)
        self._lock = threading.Lock()

    def highest(self, branch_id: BranchId) -> UsedNumber | None:
        return self._highest.peek(branch_id)

    def items(self) -> list[tuple[BranchId, UsedNumber]]:
        with self._lock:
            return self._highest.items()

    def record(self, branch_id: BranchId, number: int, evidence: str) -> None:
        with self._lock:
            self._record(branch_id, number, evidence)

    def record_lineage(self, entry: Entry) -> None:
        """All branches that a stored manifest, or its stub, has among its ancestors."""
        with self._lock:
            for branch_id, position in entry.ancestry.items():
                known = self._highest.peek(branch_id)
                if branch_id != entry.branch_id and (known is None or known.number < position.number):
                    name = f"manifest {entry.manifest_version} of branch {entry.branch!r} descends from it"
                    self._record(branch_id, position.number, name)

    def _record(self, branch_id: BranchId, number: int, evidence: str) -> None:
        known = self._highest.peek(branch_id)
        if number < 1 or (known is not None and known.number >= number):
            return
        self._highest.put(branch_id, UsedNumber(number, evidence))
