"""Automatic maintenance: behind the writers of a process, and in front of one only at the hard limit.

Whoever commits tells the maintainer; if something is due, a thread of its own does it, one run at a time. A writer
never waits for it and never hears of its failures: a fold that fails is due again. Several processes that notice at
once wait a little, each for another while, and look at the head again before they begin: whoever finds it done is done.
"""

import atexit
import logging
import threading
import weakref
from dataclasses import dataclass, field

from omnigraph.errors import BranchNotFound
from omnigraph.fork_safety import renew_after_fork
from omnigraph.maintenance.fold import fold_due
from omnigraph.maintenance.policy import FAN, folds_due
from omnigraph.manifest.model.manifest import BranchId, Manifest, TableKey
from omnigraph.manifest.repository import Repository
from omnigraph.manifest.settings import EXIT_LIMIT, HARD_LIMIT
from omnigraph.storage import meter
from omnigraph.storage.table.handles import TableVersion

WAIT_MAX_S = 0.05  # before a run, so that processes which notice together do not all begin
BACKOFF_MAX_S = 60.0  # after failures
BRANCHES_MAX = 256  # that are remembered; one that was forgotten is due again with its next commit
EXIT_WAIT_S = 10.0  # for a run that is under way when the process ends

_log = logging.getLogger("omnigraph.maintain")


@dataclass(slots=True)
class _VersionCount:
    """How often a table got another stored version, as this process has seen it."""

    at: TableVersion | None = None
    times: int = 0


@dataclass(slots=True, eq=False)
class _BranchActivity:
    """What is known of one branch."""

    name: str
    newest: Manifest | None = None
    nothing_due_at: int = 0  # a manifest with which nothing was due, so that its next writer need not look again
    versions: dict[TableKey, _VersionCount] = field(default_factory=dict)
    failures: int = 0
    backoff_until: float = 0.0
    running: threading.Lock = field(default_factory=threading.Lock)  # one run at a time, behind or in front

    def count_versions(self, manifest: Manifest) -> None:
        """Large writes leave no tail; so many of them leave fragments."""
        for commit in manifest.commits:
            for key in commit.touched:
                ref = manifest.tables.get(key)
                if ref is not None and ref.stored is not None:
                    known = self.versions.get(key)
                    if known is None:
                        known = self.versions[key] = _VersionCount()
                    if ref.stored != known.at:
                        known.at, known.times = ref.stored, known.times + 1

    def fragmented_tables(self) -> list[TableKey]:
        return [key for key, staged in self.versions.items() if staged.times >= FAN]


class Maintainer:
    """The maintenance of one open graph. With `background=False` nothing runs unless it is asked for."""

    def __init__(self, repository: Repository, *, background: bool = True) -> None:
        self._repository = repository
        self.background = background
        self._exit_hook_registered = False
        renew_after_fork(self, Maintainer._renew)

    def _renew(self) -> None:
        """A forked child has no thread of maintenance, and has seen no commit of its own."""
        self._branches: dict[BranchId, _BranchActivity] = {}
        self._queue: list[_BranchActivity] = []
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._closing = threading.Event()

    @property
    def _disabled(self) -> bool:
        return self._repository.read_only or not self._repository.settings.maintenance

    def before_write(self, manifest: Manifest) -> bool:
        """At the hard limit, fold in front of the write that is about to begin; whether there is a newer base now."""
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
            # Many wait here together: for all but the first it is done by now, and none need ask the store for that.
            known = self._repository.manifests.cached_head(manifest.branch_id)
            if known is not None and not folds_due(known, self._repository.settings, HARD_LIMIT):
                return known.manifest_version > manifest.manifest_version
            return self._run(branch, HARD_LIMIT)

    def on_commit(self, manifest: Manifest) -> None:
        """A commit of this process has landed: see whether something is due, and have it done behind its back."""
        if self._disabled:
            return
        with self._lock:
            branch = self._activity_locked(manifest)
            branch.count_versions(manifest)
            restless = bool(branch.fragmented_tables())
        due = bool(folds_due(manifest, self._repository.settings))
        if not due:
            branch.nothing_due_at = manifest.manifest_version
        if self.background and (restless or due):
            self._schedule(branch)

    def settle(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing is wanted or under way; False if that took longer."""
        with self._changed:
            return self._changed.wait_for(self._idle, timeout_s)

    def finish(self) -> None:
        """The end of a one-shot command: fold where twice the limit is due."""
        if self._disabled:
            return
        for branch in list(self._branches.values()):
            if branch.newest is not None and folds_due(branch.newest, self._repository.settings, EXIT_LIMIT):
                with branch.running:
                    self._run(branch, EXIT_LIMIT)

    def close(self, timeout_s: float | None = EXIT_WAIT_S) -> bool:
        """Begin nothing more, and wait for what is under way."""
        self._closing.set()
        with self._changed:
            self._queue.clear()
        return self.settle(timeout_s)

    def _activity(self, manifest: Manifest) -> _BranchActivity:
        with self._lock:
            return self._activity_locked(manifest)

    def _activity_locked(self, manifest: Manifest) -> _BranchActivity:
        """The branch of a manifest; the lock is held."""
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
        """Nothing is under way."""
        return self._thread is None or not self._thread.is_alive()

    def _is_backing_off(self, branch: _BranchActivity) -> bool:
        """After a failure, for a while."""
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
        """One run; what goes wrong in it is told to the log and to nobody else."""
        with self._changed:
            restless = branch.fragmented_tables()
        try:
            with meter.operation("fold"):
                landed = fold_due(self._repository, branch.name, restless) if self._is_due(branch, limit) else None
        except BranchNotFound:
            return False
        except Exception as error:
            if not threading.main_thread().is_alive():
                return False  # the process ends and takes its threads with it; the next one finds the fold due
            branch.failures += 1
            rest_s = min(BACKOFF_MAX_S, 2.0**branch.failures)
            branch.backoff_until = self._repository.runtime.clock.monotonic() + rest_s
            _log.warning("maintenance of branch %s failed, it is tried again later: %s", branch.name, error)
            return False
        with self._changed:
            for key in restless:
                branch.versions[key].times = 0
        branch.failures = 0
        return landed is not None and landed.commit is not None

    def _is_due(self, branch: _BranchActivity, limit: int) -> bool:
        """In front of a writer somebody else may have done it while this one waited for its turn."""
        if limit == 1:
            return True
        head = self._repository.branches.find(branch.name).head
        return bool(folds_due(head, self._repository.settings, limit))


def _close_at_exit(maintainer: "weakref.ref[Maintainer]") -> None:
    """Threads of a process that ends are stopped wherever they are; a run that is nearly done may end itself."""
    found = maintainer()
    if found is not None:
        found.close()
