"""One maintenance run: tables are folded, compacted and indexed, and committed together.

The content stays the same, so this conflicts with no other write. After a lost race (`maintenance-rebase`) the work on
a table is kept if its stored version is still that of the base, with the folded commits in front of the tail. Otherwise
it is derived again on the new version from what was finished; after some losses with less ambition, and in the end
not at all: then the report says why, and the rest is committed without it.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from omnigraph.errors import OmnigraphError, OutcomeUnknown, RetriesExhausted
from omnigraph.maintenance.policy import GENTLE, Effort
from omnigraph.maintenance.report import TypeReport
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
from omnigraph.manifest.commit.publish import PublishedCommit, Recourse
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.model.manifest import RowCounts, TableKey, TableRef
from omnigraph.manifest.repository import Repository
from omnigraph.schema.indexes import declared_indexes
from omnigraph.storage.table import fsync
from omnigraph.storage.table.table_content import Tail
from omnigraph.storage.util.parallel import gather

ATTEMPTS_MAX = 8  # on one table
AMBITIOUS_ATTEMPTS = 2  # after so many, only what is finished is carried over
TABLES_AT_ONCE = 4  # that are compacted or indexed in this process
ROUNDS_MAX = 3  # times that the retry time may be spent


@dataclass(frozen=True, slots=True)
class Task:
    """What to do to a table; one that is not in the graph, or needs nothing, is left alone."""

    key: TableKey
    effort: Effort
    fold: bool = True


@dataclass(frozen=True, slots=True)
class StagedWork:
    """A table as it was staged, the state that it was made of, and what was done to it."""

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
    """Planned again, nothing is due any more."""


@dataclass(slots=True)
class MaintenanceRun:
    """A run on one branch. `still_due` is asked again after a lost race: somebody else may have done it."""

    repository: Repository
    tasks: tuple[Task, ...]
    actor: str | None = None
    choose: ChooseRunner | None = None
    kind: str = "optimize"  # of the commit, if something is folded
    still_due: StillDue | None = None
    _fenced_at: tuple[int, str] | None = None  # the newest fence that what is finished knows of, and its schema
    _finished: dict[TableKey, FinishedWork] = field(default_factory=dict)
    _work: dict[TableKey, StagedWork] = field(default_factory=dict)
    _unchanged: dict[TableKey, TypeReport] = field(default_factory=dict)  # looked at, and nothing was to be done
    _losses: dict[TableKey, int] = field(default_factory=dict)
    _busy: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(TABLES_AT_ONCE))

    def publish(self, txn: WriteTxn) -> MaintenanceResult:
        """Do what is due on this base, and make it the branch's next commit; none where nothing was."""
        for last in (False,) * (ROUNDS_MAX - 1) + (True,):
            try:
                commit = self._publish(txn)
                return MaintenanceResult(
                    commit, {**self._unchanged, **{key: made.report for key, made in self._work.items()}}
                )
            except OmnigraphError as error:
                again = None if last or isinstance(error, OutcomeUnknown) else self._open_new_base(txn, error)
                if again is None:
                    raise
                txn = again
        raise AssertionError("unreachable")

    def _open_new_base(self, txn: WriteTxn, error: OmnigraphError) -> WriteTxn | None:
        """Another base, if the time was spent on races, or if a cleanup may have swept what was staged for hours."""
        try:
            again = self.repository.open_txn(txn.branch)
        except OmnigraphError:
            return None
        swept = again.base.fenced_at != txn.base.fenced_at
        return again if swept or isinstance(error, RetriesExhausted) else None

    def _publish(self, txn: WriteTxn) -> PublishedCommit | None:
        try:
            plan = self._plan(txn)
            return self.repository.publisher.publish(txn, plan, Recourse(plan_again=self._plan))
        except _NothingDue:
            return None

    def _plan(self, txn: WriteTxn) -> PublishPlan:
        """What is due on this base; what earlier attempts have finished is not done again."""
        self._forget_if_fenced(txn)
        due = self.tasks if self.still_due is None else self.still_due(txn, self.tasks)
        for key in self._work.keys() - {task.key for task in due}:
            del self._work[key]
        moved = [task for task in due if not self._is_valid(txn, task.key)]
        results = gather([partial(self._prepare, txn, task) for task in moved])
        for task, made in zip(moved, results, strict=True):
            self._work.pop(task.key, None)
            self._unchanged.pop(task.key, None)
            if isinstance(made, StagedWork):
                self._work[task.key] = made
            elif made is not None:
                self._unchanged[task.key] = made
        if not self._work:
            raise _NothingDue
        actions = tuple(made.action for made in self._work.values())
        staged = {key: made.staged for key, made in self._work.items()}
        folds = any(made.report.folded_commits for made in self._work.values())
        change = DataChange(self.kind if folds else "optimize", actions, staged)
        return PublishPlan(self.repository.runtime.ids.txn_id(), ConflictPolicy.MAINTENANCE, change, self.actor)

    def _forget_if_fenced(self, txn: WriteTxn) -> None:
        """A cleanup may have swept what was staged before it; another schema has other columns and indexes."""
        state = (txn.base.fenced_at, txn.base.schema)
        if self._fenced_at not in (None, state):
            self._work.clear()
            self._finished.clear()
        self._fenced_at = state

    def _is_valid(self, txn: WriteTxn, key: TableKey) -> bool:
        made = self._work.get(key)
        return made is not None and made.is_valid_on(txn.base.tables.get(key))

    def _prepare(self, txn: WriteTxn, task: Task) -> StagedWork | TypeReport | None:
        """One table, staged; the report alone where it stays as it is; None where there is none."""
        key = task.key
        ref = txn.base.tables.get(key)
        if ref is None or key not in {definition.table_key for definition in txn.catalog.types}:
            return None
        losses = self._losses[key] = self._losses.get(key, -1) + 1
        if losses >= ATTEMPTS_MAX:
            return TypeReport(key, pending=("it moved each time while it was maintained: run optimize again",))
        ambitious = losses < AMBITIOUS_ATTEMPTS
        effort = task.effort if ambitious else replace(GENTLE, rows_min=task.effort.rows_min)
        return self._stage(txn, ref, replace(task, effort=effort), hurried=not ambitious)

    def _stage(self, txn: WriteTxn, ref: TableRef, task: Task, *, hurried: bool) -> StagedWork | TypeReport:
        from omnigraph.schema.arrow import arrow_schema

        tables, key = self.repository.tables, task.key
        definition = txn.catalog.type_of(key)
        no_commits: Tail = ()
        at, folded, rows, changed = ref.stored, no_commits, ref.rows, 0
        content = txn.content(key)
        with fsync.defer_sync() as unsynced:  # of the versions that follow, the last alone will be named
            if ref.tail and task.fold and content is not None:
                changed = len(tables.resolve(content)[1].decided_ids)
                settled = tables.fold_tail(content, self.repository.runtime.ids.short_id(), arrow_schema(definition))
                at, folded, rows = settled.at, ref.tail, settled.rows
            elif ref.stored is not None:  # the columns that a table of format 1 may lack
                at = tables.fold_tail(ref.stored, "", arrow_schema(definition)).at
            if at is None:
                return TypeReport(key)
            finished = self._finished.setdefault(key, FinishedWork())
            indexes = declared_indexes(definition)
            with self._busy:
                upkept = maintain_table(self.repository.location, at, indexes, task.effort, self.choose, finished)
            unsynced.sync(self.repository.location, upkept.at)
        tables.note_same_rows(at, upkept.at)
        before = 0 if ref.stored is None else len(tables.open(ref.stored).get_fragments())
        report = replace(_report(key, folded, changed, upkept, hurried=hurried), fragments_before=before)
        if upkept.at == ref.stored and not folded:  # what cancels itself out folds into the version that is there
            return report
        action = Rewrite(key) if folded or upkept.rewritten else Index(key)
        files = tables.new_files(ref.stored, upkept.at, request=True)
        staged = StagedTable(upkept.at, rows, RowCounts(), ref.stored, folded, columns=txn.base.schema, files=files)
        return StagedWork(staged, report, action)


def _report(key: TableKey, folded: Tail, rows: int, upkept: MaintainedTable, *, hurried: bool) -> TypeReport:
    pending = upkept.pending
    if hurried:
        pending += ("it moved while it was compacted: what is left to do is small, run optimize again",)
    return TypeReport(
        key,
        folded_commits=len(folded),
        folded_rows=rows,
        fragments_after=upkept.fragments,
        compacted=upkept.rewritten,
        built=tuple(index.name for index in upkept.indexes if index.built and not index.extended),
        extended=tuple(index.name for index in upkept.indexes if index.built and index.extended),
        pending=pending,
    )
