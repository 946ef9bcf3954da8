"""Fork safety: a forked child must not inherit locks, queues and caches that other threads of its parent were using.

A child has one thread. A lock that another thread held at the fork is held forever, a queue that another thread served
is no longer served, and what that thread was changing may be half changed. So everything that threads share is created
again in the child:

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
    _renewals[owner] = renew  # type: ignore[assignment]  # each is called with its own owner only


def keep_inherited(*objects: object) -> None:
    """Never destroy inherited objects of libraries with threads: a destructor may wait for a thread that is gone."""
    _inherited.extend(one for one in objects if one is not None)


def _renew_all() -> None:
    for owner, renew in list(_renewals.items()):
        renew(owner)


os.register_at_fork(after_in_child=_renew_all)
