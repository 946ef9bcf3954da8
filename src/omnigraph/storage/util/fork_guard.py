"""Guards for libraries with threads of their own: a fork loses those, so a forked child would hang or crash."""

import os

from omnigraph.errors import BadRequest


class ForkGuard:
    """Refuses a library in a forked child whose parent has used it."""

    def __init__(self, library: str) -> None:
        self._library = library
        self._used = False
        self._inherited = False
        os.register_at_fork(after_in_child=self._note_fork)

    def check(self) -> None:
        """Call this before each use."""
        if self._inherited:
            raise BadRequest(
                f"This process was forked from one that had used {self._library}, which can't be used after a fork: "
                "start it with the method 'spawn' or 'forkserver', or fork before the first graph is opened."
            )
        self._used = True

    def _note_fork(self) -> None:
        self._inherited = self._inherited or self._used


OBJECT_STORES = ForkGuard("an object store")
LANCE = ForkGuard("Lance tables")
