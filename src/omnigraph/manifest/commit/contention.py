"""Contention between processes that write to one branch: pacing, backoff and reservations.

The process that has just committed knows the head a round trip before all others, so its next put comes first, and so
does the one after that: two equal processes in a tight loop were seen to make 450 commits and none. Nothing that the
others do changes it, so the winner has to make room:

- *Contended*, which is until it has won so many numbers in a row since it last lost to another process, a process
  leaves a gap of some round trips after each of its commits. A write that has lost backs off for less the more often
  it has, so the oldest goes first; what "less" starts from grows with the losses that the writes before it saw.
- *Uncontended*, nothing waits, except after some numbers that every process can tell, for about a round trip. A writer
  that finds the head moving faster than it can follow tries no other number but the next of these.

A writer that has to stage again needs more round trips than the winner needs for its next put, so on a store with
latency it could still starve. A manifest without content needs only one put, so after some losses a writer puts one
that *reserves* the next number for it. A process that meets a reservation leaves that number for as long as it says,
once. All of this is courtesy, and correctness does not depend on it: a process that does not wait takes more than its
share, and one that dies with a reservation costs the others some time.
"""

import threading
from dataclasses import dataclass

from omnigraph.caches import LruCache
from omnigraph.fork_safety import renew_after_fork
from omnigraph.manifest.commit.commit_queue import CommitQueue
from omnigraph.manifest.commit.plan import ConflictPolicy, PublishPlan, Reserve
from omnigraph.manifest.model.manifest import BranchId, Entry, Manifest, Point, TxnId, txn_ids
from omnigraph.manifest.store.manifest_store import Manifests
from omnigraph.runtime import Runtime

GAP_EVERY = 16  # numbers after which an uncontended writer leaves a gap
GAP_EVERY_LONG = 64  # and one that has been uncontended for long; a multiple
LONG_STREAK = 64
UNCONTENDED_STREAK = 16  # commits in a row
GAP_PUTS = 1.75  # how long the gap is, in times that a put takes, or a commit if that is more
PACE_MAX_PUTS = 4.0
CONTENDED_GAP_PUTS = 3.0  # the contended gap where no write lost lately; one more for each loss that writes see
SENIOR_LOSSES = 4  # from which on a write does not back off
STEPS_MAX = 8  # that a writer follows the head before it calls it too fast
POLLS = 4  # for the next number with a gap, while a fast head makes at least half as many numbers
_SMOOTHING = 0.2  # weight of the newest in the moving averages of latency and losses
_BRANCHES_MAX = 256
_OWN_PUTS_MAX = 64

RESERVE_AFTER_LOSSES = 4
RESERVATION_PUTS_MAX = 4  # at one loss, each lost to another writer
RESERVATION_MAX_S = 5.0
RESERVATION_ATTEMPTS = 2.0  # a reservation is this many times as long as its writer's last attempt was
POLL_S = 0.02
_SEEN_MAX = 64


@dataclass(frozen=True, slots=True)
class PublishPolicy:
    """How long a write that loses races is retried, and how it makes room for others meanwhile."""

    time_limit_s: float = 60.0
    first_wait_s: float = 0.01  # the unit of waits until the latency of a put is known
    wait_max_s: float = 1.0

    def ceiling_s(self, attempts: int) -> float:
        return min(self.wait_max_s, self.first_wait_s * 2.0 ** min(attempts, 16))


@dataclass(slots=True)
class _BranchTraffic:
    streak: int = 2 * UNCONTENDED_STREAK  # own commits since another process was met; none yet, so uncontended
    losses: float = 0.0  # of a write, lately
    committed_at: float = float("-inf")
    pace_s: float = 0.0  # from one own commit to the next: where the processors are busy, more than a put takes


class ContentionControl:
    """What one process knows of others that write to the same branches: when to pace, and when to back off."""

    def __init__(self, runtime: Runtime, first_put_s: float, wait_max_s: float) -> None:
        self._runtime = runtime
        self._wait_max_s = wait_max_s
        self._put_s = first_put_s  # until one was measured
        self._measured = False
        renew_after_fork(self, ContentionControl._renew)

    def _renew(self) -> None:
        """To a forked child its parent is another process."""
        self._branches: LruCache[BranchId, _BranchTraffic] = LruCache(_BRANCHES_MAX)
        self._own_puts: dict[TxnId, None] = {}  # one txn id of each of the last manifests put here, the newest last
        self._lock = threading.Lock()

    def on_put(self, manifest: Manifest) -> None:
        """A put is about to be sent: a write that loses to it has lost to its own process."""
        txn_id = _first_txn(manifest)
        with self._lock:
            own_puts = self._own_puts
            own_puts.pop(txn_id, None)
            own_puts[txn_id] = None
            if len(own_puts) > _OWN_PUTS_MAX:
                del own_puts[next(iter(own_puts))]

    def on_latency(self, put_s: float) -> None:
        """A put was answered: its latency is the unit of gaps."""
        with self._lock:
            self._put_s += (_SMOOTHING if self._measured else 1.0) * (put_s - self._put_s)
            self._measured = True

    def on_conflict(self, winner: Entry) -> None:
        with self._lock:
            if txn_ids(winner).isdisjoint(self._own_puts):
                self._branch(winner.branch_id).streak = 0

    def on_commit(self, manifest: Entry, losses: int) -> None:
        with self._lock:
            branch = self._branch(manifest.branch_id)
            branch.streak += 1
            branch.losses += _SMOOTHING * (losses - branch.losses)
            now = self._runtime.clock.monotonic()
            pace_s = min(now - branch.committed_at, PACE_MAX_PUTS * self._put_s)  # more is the caller's own pause
            branch.pace_s += _SMOOTHING * (pace_s - branch.pace_s)
            branch.committed_at = now

    def pace_s(self, base: Manifest) -> float:
        """How long a new write leaves the number after `base` to others; time that has passed anyway counts."""
        with self._lock:
            branch = self._branches.get(base.branch_id)
            if branch is None:
                return 0.0
            if branch.streak < UNCONTENDED_STREAK:
                gap_s = self._runtime.jitter(self._contended_gap_s(branch))
            elif base.manifest_version % (GAP_EVERY if branch.streak < LONG_STREAK else GAP_EVERY_LONG) == 0:
                gap_s = min(self._wait_max_s, GAP_PUTS * max(self._put_s, branch.pace_s))
            else:
                return 0.0
            return max(0.0, branch.committed_at + gap_s - self._runtime.clock.monotonic())

    def backoff_s(self, branch_id: BranchId, losses: int) -> float:
        """How long a write that has lost waits for those that have lost more often."""
        if losses >= SENIOR_LOSSES:
            return 0.0
        with self._lock:
            return self._runtime.rng.random() * self._contended_gap_s(self._branch(branch_id)) * 0.5**losses

    def _contended_gap_s(self, branch: _BranchTraffic) -> float:
        return min(self._wait_max_s, (CONTENDED_GAP_PUTS + branch.losses) * self._put_s)

    def _branch(self, branch_id: BranchId) -> _BranchTraffic:
        found = self._branches.get(branch_id)
        if found is None:
            found = _BranchTraffic()
            self._branches.put(branch_id, found)
        return found


def _first_txn(manifest: Manifest) -> TxnId:
    if manifest.commits:
        return manifest.commits[0].txn_id
    return "" if manifest.tombstone is None else manifest.tombstone.txn_id


def find_stable_head(manifests: Manifests, head: Manifest) -> Manifest:
    """A head that is worth a put: with nothing after it, or with a gap after it, so that there is time for one."""
    for _ in range(STEPS_MAX):
        if head.tombstone is not None:
            return head
        entry = manifests.read(Point(head.branch_id, head.manifest_version + 1), cached=False)
        if entry is None:
            return head
        if not isinstance(entry, Manifest):
            return manifests.refresh_head(head)
        head = entry
        if head.manifest_version % GAP_EVERY == 0:
            return head
    return _await_gap(manifests, head)


def _await_gap(manifests: Manifests, head: Manifest) -> Manifest:
    """Another process commits as fast as one can read: poll for the next number after which it leaves a gap."""
    gap = (head.manifest_version // GAP_EVERY + 1) * GAP_EVERY
    for number in range(head.manifest_version, gap, POLLS // 2):
        for _ in range(POLLS):
            found = manifests.read(Point(head.branch_id, gap), cached=False)
            if isinstance(found, Manifest):
                return found
        if number > head.manifest_version and manifests.read(Point(head.branch_id, number), cached=False) is None:
            break  # it is not that fast any more
    return manifests.refresh_head(head)


class Reservations:
    """The reservations that this process has met."""

    def __init__(self, runtime: Runtime, queue: CommitQueue) -> None:
        self._runtime = runtime
        self._queue = queue
        renew_after_fork(self, Reservations._renew)

    def _renew(self) -> None:
        self._first_seen: LruCache[Point, float] = LruCache(_SEEN_MAX)
        self._lock = threading.Lock()

    def remaining_s(self, head: Manifest, txn_id: TxnId) -> float:
        """How long to leave the number after this head to another write; counted from when the reservation was first
        met here, so that no other clock matters."""
        reservation = head.reservation
        if reservation is None or reservation.txn_id == txn_id:
            return 0.0
        now = self._runtime.clock.monotonic()
        with self._lock:
            since = self._first_seen.get(head.point)
            if since is None:
                since = now
                self._first_seen.put(head.point, now)
        return max(0.0, since + min(reservation.wait_ms / 1000, RESERVATION_MAX_S) - now)

    def yield_to(self, head: Manifest, wait_s: float) -> None:
        """Wait that long, or until the write with the reservation was tried, if it is one of this process."""
        clock = self._runtime.clock
        until = clock.monotonic() + wait_s
        assert head.reservation is not None
        with self._queue.reserve_for(head.branch_id, head.reservation.txn_id) as is_outstanding:
            while is_outstanding() and (left_s := until - clock.monotonic()) > 0:
                clock.sleep(min(left_s, POLL_S))


def should_reserve(losses: int) -> bool:
    """Whether a plan has lost often enough for a reservation; from then on it makes one at every loss. Folds and fences
    may too: behind a busy writer they would never get through, and writers would stop at the hard limit."""
    return losses >= RESERVE_AFTER_LOSSES


def reservation_plan(plan: PublishPlan, attempt_s: float, txn_id: TxnId) -> PublishPlan:
    """A plan of its own that reserves the next number for another, whose attempts take `attempt_s`."""
    wait_ms = int(1000 * min(RESERVATION_MAX_S, RESERVATION_ATTEMPTS * attempt_s))
    return PublishPlan(txn_id, ConflictPolicy.MAINTENANCE, Reserve(plan.txn_id, wait_ms))
