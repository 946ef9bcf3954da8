"""Automatic maintenance: in a background thread, and before a write only at the hard limit.

The maintainer listens to commits of its process. If something is due, its thread does it, one run at a time. Writers
do not wait for it and do not see its failures: a fold that fails is due again. Several processes may find the same fold
due at once. Each waits for a short random time and then checks the head again, so that usually only one of them folds.
"""

import atexit
import logging
import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter

from omnigraph.errors import BranchNotFound
from omnigraph.fork_safety import renew_after_fork
from omnigraph.maintenance.commit import MaintenanceResult, MaintenanceRun, Task
from omnigraph.maintenance.policy import FAN, GENTLE
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.model.manifest import BranchId, Manifest, TableKey, TableRef
from omnigraph.manifest.repository import Repository
from omnigraph.manifest.settings import EXIT_LIMIT, HARD_LIMIT, Settings
from omnigraph.storage import meter
from omnigraph.storage.table.handles import TableVersion
from omnigraph.storage.table.table_content import TailEntry

ACTOR = "omnigraph:maintenance"
WAIT_MAX_S = 0.05  # random wait before a run, so that several processes do not all begin
BACKOFF_MAX_S = 60.0  # after failures
BRANCHES_MAX = 256  # branches in memory; one that was evicted is due again with its next commit
EXIT_WAIT_S = 10.0  # how long the end of the process waits for a run

_size = attrgetter("size")
_log = logging.getLogger("omnigraph.maintain")


def folds_due(manifest: Manifest, settings: Settings, factor: int = 1) -> tuple[TableKey, ...]:
    """The tables whose tails are due to be folded: tails that are too long, and the oldest while there are too many.

    A pure function of the manifest, so that a writer can check it without a request.
    """
    left: dict[TableKey, TableRef] = {}
    due: list[TableKey] = []
    entries = 0
    for key, ref in manifest.tables.items():
        if ref.tail and _is_long(ref, settings, factor):
            due.append(key)
        elif ref.tail:
            left[key] = ref
            entries += len(ref.tail)
    if (
        entries > settings.tails_manifests * factor
        and len(_manifests_in_tails(left.values())) > settings.tails_manifests * factor
    ):
        oldest_first = sorted(left, key=lambda key: _age(manifest, left[key].tail[0]))
        for key in oldest_first:  # half, so that the next commit does not find the limit passed again
            if len(_manifests_in_tails(left.values())) <= settings.tails_manifests * factor // 2:
                break
            due.append(key)
            del left[key]
    return tuple(due)


def _is_long(ref: TableRef, settings: Settings, factor: int) -> bool:
    return len(ref.tail) > settings.tail_manifests * factor or sum(map(_size, ref.tail)) > settings.tail_bytes * factor


def _manifests_in_tails(refs: Iterable[TableRef]) -> set[tuple[str, int]]:
    return {(entry.branch_id, entry.manifest_version) for ref in refs for entry in ref.tail}


def _age(manifest: Manifest, entry: TailEntry) -> tuple[bool, int]:
    """A sort key: entries that a branch inherited are older than its own."""
    return entry.branch_id == manifest.branch_id, entry.manifest_version


def fold_due(
    repository: Repository, branch: str, fragmented: Iterable[TableKey] = (), *, actor: str | None = ACTOR
) -> MaintenanceResult | None:
    """Fold the tables of a branch that are due; None if none is due any more.

    A fold takes the whole tail of a table as of its base (`whole-tail`). Inline rows that are committed meanwhile stay
    on top. If another process folded the same table first, that table is done. Folded tables are also compacted and
    indexed as far as recent folds require, and so are `fragmented` tables, to which many staged writes added fragments.
    """
    txn = repository.open_txn(branch)
    others = tuple(Task(key, GENTLE, fold=False) for key in fragmented)

    def due(base: WriteTxn, _tasks: tuple[Task, ...] = ()) -> tuple[Task, ...]:
        folds = folds_due(base.base, repository.settings)
        return (
            *(Task(key, GENTLE) for key in folds),
            *(task for task in others if task.key not in folds),
        )

    tasks = due(txn)
    if not tasks:
        return None
    return MaintenanceRun(repository, tasks, actor, kind="fold", still_due=due).publish(txn)


@dataclass(slots=True)
class _VersionCount:
    """How many stored versions of a table this process has seen since its last maintenance."""

    at: TableVersion | None = None
    times: int = 0


@dataclass(slots=True, eq=False)
class _BranchActivity:
    """What this process knows of one branch."""

    name: str
    newest: Manifest | None = None
    nothing_due_at: int = 0  # number of a manifest at which nothing was due, so that the next write skips the check
    versions: dict[TableKey, _VersionCount] = field(default_factory=dict)
    failures: int = 0
    backoff_until: float = 0.0
    running: threading.Lock = field(default_factory=threading.Lock)  # one run at a time

    def count_versions(self, manifest: Manifest) -> bool:
        """Count stored versions: large writes have no tail, but many of them add many fragments. True if a table is
        due for that."""
        for commit in manifest.commits:
            for key in commit.touched:
                ref = manifest.tables.get(key)
                if ref is not None and ref.stored is not None:
                    known = self.versions.get(key)
                    if known is None:
                        known = self.versions[key] = _VersionCount()
                    if ref.stored != known.at:
                        known.at, known.times = ref.stored, known.times + 1
        return bool(self.fragmented_tables())

    def fragmented_tables(self) -> list[TableKey]:
        return [key for key, staged in self.versions.items() if staged.times >= FAN]


class Maintainer:
    """The maintenance of one open graph. With `background=False` it has no thread."""

    def __init__(self, repository: Repository, *, background: bool = True) -> None:
        self._repository = repository
        self._disabled = repository.read_only or not repository.settings.maintenance
        self.background = background
        self._exit_hook_registered = False
        renew_after_fork(self, Maintainer._renew)

    def _renew(self) -> None:
        """Start over in a forked child, which has no maintenance thread and has seen no commits."""
        self._branches: dict[BranchId, _BranchActivity] = {}
        self._queue: list[_BranchActivity] = []
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._closing = threading.Event()

    def before_write(self, manifest: Manifest) -> bool:
        """Fold before a write if the hard limit is reached; returns whether there is a newer base now."""
        if self._disabled:
            return False
        known_branch = self._branches.get(manifest.branch_id)
        if known_branch is not None and known_branch.nothing_due_at == manifest.manifest_version:
            return False
        branch = self._activity(manifest)
        if self._is_backing_off(branch):
            return False
        if not folds_due(manifest, self._repository.settings, HARD_LIMIT):
            return False
        with branch.running:
            # Of many waiting writers only the first folds; the others see that in the cached head, without a request.
            known = self._repository.manifests.cached_head(manifest.branch_id)
            if known is not None and not folds_due(known, self._repository.settings, HARD_LIMIT):
                return known.manifest_version > manifest.manifest_version
            return self._run(branch, HARD_LIMIT)

    def on_commit(self, manifest: Manifest) -> None:
        """Called after each commit of this process: schedule a background run if something is due."""
        if self._disabled:
            return
        with self._lock:
            branch = self._activity_locked(manifest)
            fragmented = branch.count_versions(manifest)
        due = bool(folds_due(manifest, self._repository.settings))
        if not due:
            branch.nothing_due_at = manifest.manifest_version
        if self.background and (fragmented or due):
            self._schedule(branch)

    def settle(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing is queued or running; False on a timeout."""
        with self._changed:
            return self._changed.wait_for(self._idle, timeout_s)

    def finish(self) -> None:
        """At the end of a one-shot command, fold branches at twice the limit."""
        if self._disabled:
            return
        for branch in list(self._branches.values()):
            if branch.newest is not None and folds_due(branch.newest, self._repository.settings, EXIT_LIMIT):
                with branch.running:
                    self._run(branch, EXIT_LIMIT)

    def close(self, timeout_s: float | None = EXIT_WAIT_S) -> bool:
        """Start no more runs, and wait for the current one."""
        self._closing.set()
        with self._changed:
            self._queue.clear()
        return self.settle(timeout_s)

    def _activity(self, manifest: Manifest) -> _BranchActivity:
        with self._lock:
            return self._activity_locked(manifest)

    def _activity_locked(self, manifest: Manifest) -> _BranchActivity:
        """The activity of a manifest's branch; the caller holds the lock."""
        known = self._branches.pop(manifest.branch_id, None) or _BranchActivity(manifest.branch)
        self._branches[manifest.branch_id] = known  # the newest last
        if known.newest is None or known.newest.manifest_version < manifest.manifest_version:
            known.newest = manifest
        if len(self._branches) > BRANCHES_MAX:
            del self._branches[next(iter(self._branches))]
        return known

    def _schedule(self, branch: _BranchActivity) -> None:
        with self._changed:
            if self._closing.is_set() or self._is_backing_off(branch) or branch in self._queue:
                return
            self._queue.append(branch)
            if self._idle():
                if not self._exit_hook_registered:
                    atexit.register(_close_at_exit, weakref.ref(self))
                    self._exit_hook_registered = True
                self._thread = threading.Thread(target=self._run_queue, name="omnigraph-maintenance", daemon=True)
                self._thread.start()

    def _idle(self) -> bool:
        """Whether no run is under way."""
        return self._thread is None or not self._thread.is_alive()

    def _is_backing_off(self, branch: _BranchActivity) -> bool:
        """Whether a recent failure makes the branch wait."""
        return self._repository.runtime.clock.monotonic() < branch.backoff_until

    def _run_queue(self) -> None:
        while True:
            self._closing.wait(self._repository.runtime.jitter(WAIT_MAX_S))
            with self._changed:
                if not self._queue:
                    self._thread = None
                    self._changed.notify_all()
                    return
                branch = self._queue.pop(0)
            with branch.running:
                self._run(branch, 1)

    def _run(self, branch: _BranchActivity, limit: int) -> bool:
        """One run; its failures are only logged."""
        with self._changed:
            fragmented = branch.fragmented_tables()
        try:
            with meter.operation("fold"):
                result = fold_due(self._repository, branch.name, fragmented) if self._is_due(branch, limit) else None
        except BranchNotFound:
            return False
        except Exception as error:
            if not threading.main_thread().is_alive():
                return False  # the process is ending; the next one finds the fold due
            branch.failures += 1
            backoff_s = min(BACKOFF_MAX_S, 2.0**branch.failures)
            branch.backoff_until = self._repository.runtime.clock.monotonic() + backoff_s
            _log.warning("maintenance of branch %s failed and will be retried: %s", branch.name, error)
            return False
        with self._changed:
            for key in fragmented:
                branch.versions[key].times = 0
        branch.failures = 0
        return result is not None and result.commit is not None

    def _is_due(self, branch: _BranchActivity, limit: int) -> bool:
        """Before a write, another thread or process may have folded while this one waited."""
        if limit == 1:
            return True
        head = self._repository.branches.find(branch.name).head
        return bool(folds_due(head, self._repository.settings, limit))


def _close_at_exit(maintainer: "weakref.ref[Maintainer]") -> None:
    """Let a run finish that is nearly done: daemon threads are stopped anywhere when the process ends."""
    found = maintainer()
    if found is not None:
        found.close()
