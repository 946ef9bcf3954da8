"""What a forked child must not inherit: locks, queues and caches that other threads of its parent were using.

A child has one thread. A lock that another thread held at the fork is held for ever, a queue that another thread
served is no longer served, and what that thread was changing may be half changed. So whatever threads share is created
anew in the child:

    def __init__(self) -> None:
        renew_after_fork(self, Queue._renew)

    def _renew(self) -> None:
        self._waiting = deque()
        self._lock = threading.Lock()
"""

import os
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

_renewals: "WeakKeyDictionary[object, Callable[[object], None]]" = WeakKeyDictionary()
_inherited: list[object] = []


def renew_after_fork(owner: T, renew: Callable[[T], None]) -> None:
    """Call `renew(owner)` now, and again in every forked child for as long as the owner lives."""
    renew(owner)
    _renewals[owner] = renew  # type: ignore[assignment]  # it is called with its own owner only


def keep_inherited(*things: object) -> None:
    """Never destroy what a child has inherited from libraries with threads: a destructor may wait for one of them."""
    _inherited.extend(thing for thing in things if thing is not None)


def _renew_all() -> None:
    for owner, renew in list(_renewals.items()):
        renew(owner)


os.register_at_fork(after_in_child=_renew_all)
