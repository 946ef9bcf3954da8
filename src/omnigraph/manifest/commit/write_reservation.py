"""Turns: how a writer that keeps losing gets through.

Whoever has just won knows the head and needs fewer round trips to the next put than whoever lost and has to stage
again, so on a store with latency one busy writer would starve all others for ever, whatever they back off. A manifest
without content, however, needs but one put: so after some losses a writer puts one that asks for a turn. Whoever meets
it waits for as long as it asks, once. It is a courtesy between writers and nothing rests on it: a writer that does
not wait, or one that dies in its turn, costs time and no more.
"""

import threading

from omnigraph.fork_safety import renew_after_fork
from omnigraph.lru_cache import LruCache
from omnigraph.manifest.commit.commit_queue import CommitQueue
from omnigraph.manifest.commit.plan import ConflictPolicy, PublishPlan, Reserve
from omnigraph.manifest.model.manifest import Manifest, Point, TxnId
from omnigraph.runtime import Runtime

RESERVE_AFTER_LOSSES = 4
RESERVATION_PUTS_MAX = 4  # at one loss, each lost to somebody else
RESERVATION_MAX_S = 5.0
RESERVATION_ATTEMPTS = 2.0  # a turn is this many times as long as the asking writer's last attempt was
POLL_S = 0.02
_SEEN_MAX = 64


class Reservations:
    """What one process knows of the turns that others asked for."""

    def __init__(self, runtime: Runtime, lines: CommitQueue) -> None:
        self._runtime = runtime
        self._lines = lines
        renew_after_fork(self, Reservations._renew)

    def _renew(self) -> None:
        self._first_seen: LruCache[Point, float] = LruCache(_SEEN_MAX)
        self._lock = threading.Lock()

    def remaining_s(self, head: Manifest, txn_id: TxnId) -> float:
        """How long to leave this head to somebody else; counted from when it was first met here, so no clock but
        ours matters."""
        turn = head.reservation
        if turn is None or turn.txn_id == txn_id:
            return 0.0
        now = self._runtime.clock.monotonic()
        with self._lock:
            since = self._first_seen.get(head.point)
            if since is None:
                since = now
                self._first_seen.put(head.point, now)
        return max(0.0, since + min(turn.wait_ms / 1000, RESERVATION_MAX_S) - now)

    def yield_to(self, head: Manifest, wait_s: float) -> None:
        """Wait for as long, or until the write that has asked was tried, if it is one of this process."""
        clock = self._runtime.clock
        until = clock.monotonic() + wait_s
        assert head.reservation is not None
        with self._lines.reserve_for(head.branch_id, head.reservation.txn_id) as is_to_come:
            while is_to_come() and (left_s := until - clock.monotonic()) > 0:
                clock.sleep(min(left_s, POLL_S))


def should_reserve(losses: int) -> bool:
    """Whether a plan has lost often enough to ask; from then on it does at every loss. Folds may, and fences: behind
    a busy writer they would never land, and writers would stop at the hard limit."""
    return losses >= RESERVE_AFTER_LOSSES


def reservation_plan(plan: PublishPlan, attempt_s: float, txn_id: TxnId) -> PublishPlan:
    """A plan of its own that asks for a turn on behalf of another, which takes `attempt_s` to try again."""
    wait_ms = int(1000 * min(RESERVATION_MAX_S, RESERVATION_ATTEMPTS * attempt_s))
    return PublishPlan(txn_id, ConflictPolicy.MAINTENANCE, Reserve(plan.txn_id, wait_ms))
