"""One maintenance commit: folds, compacts and indexes tables, and commits them together.

The content stays the same, so maintenance conflicts with no other write. After a lost race (`maintenance-rebase`), the
work on a table stays valid if its stored version is still that of the base and the folded commits are the front of its
tail. Otherwise the work is done again on the new version, reusing what was finished; after some losses with less
effort, and in the end not at all. Then the report says why, and the other tables are committed without it.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from omnigraph.errors import OmnigraphError, OutcomeUnknown, RetriesExhausted
from omnigraph.maintenance.policy import GENTLE, THOROUGH, Effort
from omnigraph.maintenance.report import OptimizeResult, TypeReport
from omnigraph.maintenance.table_maintenance import ChooseRunner, FinishedWork, MaintainedTable, maintain_table
from omnigraph.manifest.commit.conflicts import is_tail_prefix
from omnigraph.manifest.commit.plan import (
    ConflictPolicy,
    DataChange,
    Index,
    PublishPlan,
    Rewrite,
    StagedTable,
    TableAction,
)
from omnigraph.manifest.commit.publish import PublishedCommit
from omnigraph.manifest.commit.stale_base import retry_if_base_swept
from omnigraph.manifest.commit.txn import Snapshot, WriteOp, WriteTxn
from omnigraph.manifest.model.manifest import MAIN, Manifest, RowCounts, TableKey, TableRef
from omnigraph.manifest.repository import Repository
from omnigraph.schema.definitions import TypeDef
from omnigraph.schema.indexes import declared_indexes
from omnigraph.storage import meter
from omnigraph.storage.table import fsync
from omnigraph.storage.table.table_content import Tail
from omnigraph.threads import gather

ATTEMPTS_MAX = 8  # for one table
FULL_EFFORT_ATTEMPTS = 2  # attempts with full effort; later ones carry over finished work and do little more
TABLES_AT_ONCE = 4  # tables that are compacted or indexed concurrently in this process
ROUNDS_MAX = 3  # how often the retry time may run out


@dataclass(frozen=True, slots=True)
class Task:
    """What to do to a table; a table that is not in the graph, or needs nothing, is skipped."""

    key: TableKey
    effort: Effort
    fold: bool = True


@dataclass(frozen=True, slots=True)
class StagedWork:
    """A staged table, the state from which it was made, and what was done to it."""

    staged: StagedTable
    report: TypeReport
    action: TableAction

    def is_valid_on(self, ref: TableRef | None) -> bool:
        """`rebase` and `maintenance-rebase`: the stored version was not replaced, nor were the same commits folded."""
        return ref is not None and ref.stored == self.staged.base and is_tail_prefix(self.staged.folded, ref)


@dataclass(frozen=True, slots=True)
class MaintenanceResult:
    commit: PublishedCommit | None
    reports: Mapping[TableKey, TypeReport]


StillDue: TypeAlias = Callable[[WriteTxn, tuple[Task, ...]], tuple[Task, ...]]


class _NothingDue(Exception):
    """Nothing is due on this base."""


@dataclass(eq=False)
class MaintenanceRun(WriteOp):
    """A run on one branch. After a lost race `still_due` filters the tasks: another process may have done them."""

    repository: Repository
    tasks: tuple[Task, ...]
    actor: str | None = None
    choose: ChooseRunner | None = None
    kind: str = "optimize"  # of the commit, if something is folded
    still_due: StillDue | None = None
    _fenced_at: tuple[int, str] | None = None  # the newest fence and the schema under which work was finished
    _finished: dict[TableKey, FinishedWork] = field(default_factory=dict)
    _work: dict[TableKey, StagedWork] = field(default_factory=dict)
    _unchanged: dict[TableKey, TypeReport] = field(default_factory=dict)  # tables for which nothing was due
    _losses: dict[TableKey, int] = field(default_factory=dict)
    _busy: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(TABLES_AT_ONCE))

    def __post_init__(self) -> None:
        self.can_replan = True

    def publish(self, txn: WriteTxn) -> MaintenanceResult:
        """Do what is due on this base and commit it; without a commit if nothing was due."""
        for last in (False,) * (ROUNDS_MAX - 1) + (True,):
            try:
                commit = self._publish(txn)
                return MaintenanceResult(
                    commit, {**self._unchanged, **{key: work.report for key, work in self._work.items()}}
                )
            except OmnigraphError as error:
                again = None if last or isinstance(error, OutcomeUnknown) else self._open_new_base(txn, error)
                if again is None:
                    raise
                txn = again
        raise AssertionError("unreachable")

    def _open_new_base(self, txn: WriteTxn, error: OmnigraphError) -> WriteTxn | None:
        """A new base, if the retry time ran out, or if a cleanup may have swept what was staged long ago."""
        try:
            again = self.repository.open_txn(txn.branch)
        except OmnigraphError:
            return None
        swept = again.base.fenced_at != txn.base.fenced_at
        return again if swept or isinstance(error, RetriesExhausted) else None

    def _publish(self, txn: WriteTxn) -> PublishedCommit | None:
        try:
            return self.repository.publisher.publish(txn, self.plan(txn), self)
        except _NothingDue:
            return None

    def plan(self, txn: WriteTxn) -> PublishPlan:
        """Plan what is due on this base; what earlier attempts finished is not done again."""
        self._forget_if_fenced(txn)
        due = self.tasks if self.still_due is None else self.still_due(txn, self.tasks)
        for key in self._work.keys() - {task.key for task in due}:
            del self._work[key]
        outdated = [task for task in due if not self._is_valid(txn, task.key)]
        results = gather([partial(self._prepare, txn, task) for task in outdated])
        for task, work in zip(outdated, results, strict=True):
            self._work.pop(task.key, None)
            self._unchanged.pop(task.key, None)
            if isinstance(work, StagedWork):
                self._work[task.key] = work
            elif work is not None:
                self._unchanged[task.key] = work
        if not self._work:
            raise _NothingDue
        actions = tuple(work.action for work in self._work.values())
        staged = {key: work.staged for key, work in self._work.items()}
        folds = any(work.report.folded_commits for work in self._work.values())
        change = DataChange(self.kind if folds else "optimize", actions, staged)
        return PublishPlan(self.repository.runtime.ids.txn_id(), ConflictPolicy.MAINTENANCE, change, self.actor)

    def _forget_if_fenced(self, txn: WriteTxn) -> None:
        """After a fence, a cleanup may have swept what was staged; another schema has other columns and indexes."""
        state = (txn.base.fenced_at, txn.base.schema)
        if self._fenced_at not in (None, state):
            self._work.clear()
            self._finished.clear()
        self._fenced_at = state

    def _is_valid(self, txn: WriteTxn, key: TableKey) -> bool:
        work = self._work.get(key)
        return work is not None and work.is_valid_on(txn.base.tables.get(key))

    def _prepare(self, txn: WriteTxn, task: Task) -> StagedWork | TypeReport | None:
        """Stage one table; returns only the report if it stays as it is, and None if the graph has no such table."""
        key = task.key
        ref = txn.base.tables.get(key)
        if ref is None or key not in {definition.table_key for definition in txn.catalog.types}:
            return None
        losses = self._losses[key] = self._losses.get(key, -1) + 1
        if losses >= ATTEMPTS_MAX:
            return TypeReport(key, pending=("it changed in every attempt to maintain it: run optimize again",))
        full_effort = losses < FULL_EFFORT_ATTEMPTS
        effort = task.effort if full_effort else replace(GENTLE, rows_min=task.effort.rows_min)
        return self._stage(txn, ref, replace(task, effort=effort), reduced=not full_effort)

    def _stage(self, txn: WriteTxn, ref: TableRef, task: Task, *, reduced: bool) -> StagedWork | TypeReport:
        from omnigraph.schema.arrow import arrow_schema

        tables, key = self.repository.tables, task.key
        definition = txn.catalog.type_of(key)
        no_commits: Tail = ()
        at, folded, rows, changed = ref.stored, no_commits, ref.rows, 0
        content = txn.content(key)
        with fsync.defer_sync() as unsynced:  # only the last of the versions below will be referred to
            if ref.tail and task.fold and content is not None:
                changed = len(tables.resolve(content)[1].decided_ids)
                fold = tables.fold_tail(content, self.repository.runtime.ids.short_id(), arrow_schema(definition))
                at, folded, rows = fold.at, ref.tail, fold.rows
            elif ref.stored is not None:  # adds the columns that a table of format 1 may lack
                at = tables.fold_tail(ref.stored, "", arrow_schema(definition)).at
            if at is None:
                return TypeReport(key)
            finished = self._finished.setdefault(key, FinishedWork())
            indexes = declared_indexes(definition)
            with self._busy:
                maintained = maintain_table(self.repository.location, at, indexes, task.effort, self.choose, finished)
            unsynced.sync(self.repository.location, maintained.at)
        tables.note_same_rows(at, maintained.at)
        before = 0 if ref.stored is None else len(tables.open(ref.stored).get_fragments())
        report = replace(_report(key, folded, changed, maintained, reduced=reduced), fragments_before=before)
        if maintained.at == ref.stored and not folded:  # inserts and their deletes fold into the existing version
            return report
        action = Rewrite(key) if folded or maintained.rewritten else Index(key)
        files = tables.new_files(ref.stored, maintained.at, request=True)
        staged = StagedTable(maintained.at, rows, RowCounts(), ref.stored, folded, columns=txn.base.schema, files=files)
        return StagedWork(staged, report, action)


def _report(key: TableKey, folded: Tail, rows: int, maintained: MaintainedTable, *, reduced: bool) -> TypeReport:
    pending = maintained.pending
    if reduced:
        pending += ("it changed while it was compacted: little is left to do, run optimize again",)
    return TypeReport(
        key,
        folded_commits=len(folded),
        folded_rows=rows,
        fragments_after=maintained.fragments,
        compacted=maintained.rewritten,
        built=tuple(index.name for index in maintained.indexes if index.built and not index.extended),
        extended=tuple(index.name for index in maintained.indexes if index.built and index.extended),
        pending=pending,
    )


EDGE_BYTES, NODE_BYTES = 24, 40  # about what a row takes in memory


def optimize(
    repository: Repository,
    branch: str = MAIN,
    types: Sequence[str] | None = None,
    *,
    actor: str | None = None,
    choose: ChooseRunner | None = None,
    effort: Effort = THOROUGH,
) -> OptimizeResult:
    """Fold, compact and index the tables of these types, or of all, as if they had just been loaded.

    `choose` returns the runner of tasks over a number of rows. The content does not change, and no other write fails.
    """
    from omnigraph.read.export.export import select_types

    repository.require_writable("Optimizing")
    with meter.operation("optimize") as operation:
        txn = repository.open_txn(branch)
        chosen = [definition.table_key for definition in select_types(Snapshot(txn.base, txn.schema), types)]
        tasks = tuple(Task(key, effort) for key in chosen if key in txn.base.tables)
        result = MaintenanceRun(repository, tasks, actor, choose).publish(txn)
        reports = {key: result.reports.get(key, TypeReport(key)) for key in chosen}
        reports = _with_adjacencies(repository, branch, reports)
    commit = None if result.commit is None else replace(result.commit, cost=operation.cost)
    return OptimizeResult(branch, commit, reports, operation.cost)


def _with_adjacencies(
    repository: Repository, branch: str, reports: Mapping[TableKey, TypeReport]
) -> dict[TableKey, TypeReport]:
    """Save adjacencies of the current versions; one that was replaced meanwhile needs none."""
    bases: list[Manifest] = []

    def build() -> dict[TableKey, TypeReport]:
        snapshot = repository.snapshot(branch)
        bases[:] = (snapshot.manifest,)
        known = {definition.table_key for definition in snapshot.catalog.types}
        reached = {key: report for key, report in reports.items() if key in known}
        made = gather([partial(save_adjacency, repository, snapshot, report) for report in reached.values()])
        return {**reports, **dict(zip(reached, made, strict=True))}

    return retry_if_base_swept(repository, build, lambda: bases)


# Saved adjacency is derived state beside the version of an edge table, for processes that have just started. Only
# `optimize` writes it. A query loads it or builds its own; a cleanup keeps it as long as the table version is marked.


def save_adjacency(repository: Repository, snapshot: Snapshot, report: TypeReport) -> TypeReport:
    """Save the adjacency of an edge type, unless it exists; returns the report, updated."""
    definition = snapshot.catalog.type_of(report.table_key)
    ref = snapshot.manifest.tables.get(report.table_key)
    if definition.kind != "edge" or ref is None or ref.stored is None or not ref.rows:
        return report
    from omnigraph.read.graph.adjacency_file import adjacency_key
    from omnigraph.read.tables.read_cache import BYTES_MAX

    if repository.store.head(adjacency_key(ref.stored)) is not None:
        return report
    ends = [snapshot.manifest.tables.get(key) for key in end_keys(definition)]
    if ref.rows * EDGE_BYTES + sum(end.rows * NODE_BYTES for end in ends if end is not None) > BYTES_MAX // 2:
        too_large = f"adjacency: {ref.rows} edges are more than a query holds in memory, it looks them up"
        return replace(report, pending=(*report.pending, too_large))
    _build_and_save(repository, snapshot, definition)
    return replace(report, adjacency=True)


def end_keys(definition: TypeDef) -> tuple[str, str]:
    return f"node:{definition.source}", f"node:{definition.target}"


def _build_and_save(repository: Repository, snapshot: Snapshot, definition: TypeDef) -> None:
    from omnigraph.read.graph.adjacency import build_adjacency
    from omnigraph.read.graph.adjacency_file import save_adjacency
    from omnigraph.read.reader import SnapshotReader
    from omnigraph.read.tables.read_cache import ReadCache
    from omnigraph.read.tables.resident_table import ResidentTable

    reader = SnapshotReader(repository.tables, snapshot, ReadCache())
    keys = (definition.table_key, *end_keys(definition))
    edges, source, target = (ResidentTable(reader.tables, reader.caches, reader.state(key)) for key in keys)
    save_adjacency(repository.store, build_adjacency(edges, source, target), edges, source, target)
