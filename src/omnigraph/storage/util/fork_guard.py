"""Libraries with threads of their own, which a fork leaves behind: a forked child would hang or crash in them."""

import os

from omnigraph.errors import BadRequest


class ForkGuard:
    """Refuses a library in a forked child whose parent had used it before."""

    def __init__(self, library: str) -> None:
        self._library = library
        self._used = False
        self._inherited = False
        os.register_at_fork(after_in_child=self._note_fork)

    def check(self) -> None:
        """To be called before each use."""
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
