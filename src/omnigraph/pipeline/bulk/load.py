"""Bulk load: any amount of input as one atomic commit, by tasks that run here or on Spark.

    stage     tasks parse their split, write Lance fragments and return a small JSON document
    assemble  the driver makes detached versions of the fragments
    verify    SQL over key columns of those versions and of the base
    publish   one put; after a conflict, if the concurrent commits affect the load, it is verified again on the new
              head, and a merge staged again

Nothing is visible before the put. An intent protects the files from cleanup until then, and records for a later run
with the same job id what is done.

A load whose process is gone after everything was staged can be committed without its input (`COMPLETER`). That is one
more start of the same load, with a token of its own, under the same transaction id and from the first base of its
intent on; it honours fences, handles conflicts and detects an earlier commit or discard as the writer would. If what
was staged can't be used any more, completing is refused.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from omnigraph.errors import (
    AlreadyExists,
    BadRequest,
    BranchNotFound,
    ConflictError,
    Damaged,
    JobInputDiffers,
    PreconditionFailed,
)
from omnigraph.gc.recovery import ACTOR, KIND, Completer
from omnigraph.manifest.commit.plan import Bulk, ConflictPolicy, DataChange, PublishPlan
from omnigraph.manifest.commit.publish import PublishedCommit
from omnigraph.manifest.commit.txn import WriteOp, WriteTxn
from omnigraph.manifest.history.txn_lookup import fences_honour
from omnigraph.manifest.intent.guard import JobGuard
from omnigraph.manifest.intent.intent import StoredIntent
from omnigraph.manifest.intent.intent_store import OwnedIntent
from omnigraph.manifest.model.manifest import Manifest, Point, Recovered, TableKey
from omnigraph.manifest.model.request_key import RequestKey, request_of, require_same_request
from omnigraph.manifest.repository import Repository
from omnigraph.pipeline.bulk.fold_base import FoldedBases
from omnigraph.pipeline.bulk.job import SplitResult
from omnigraph.pipeline.bulk.load_intent import hold_intent, remove_leftovers
from omnigraph.pipeline.bulk.plan import LoadPlanner, PlannedLoad, StagedPass
from omnigraph.pipeline.bulk.resume import (
    JOB_PREFIX,
    LoadDetails,
    StagedLoad,
    create_job,
    fingerprint_of,
    fingerprint_of_rows,
    is_complete,
    note_complete,
    read_finished_splits,
    read_staged_base,
    read_staged_load,
    stored_tables,
    txn_id_of_job,
    with_staged_base,
    writable_tables,
)
from omnigraph.pipeline.bulk.staging.spool import SpooledRows
from omnigraph.pipeline.bulk.staging.stage import CpuClock, stage_split
from omnigraph.pipeline.bulk.verification.sql_engine import DuckDbEngine, SparkSqlEngine, SqlEngine
from omnigraph.pipeline.progress import Progress, ProgressRunner
from omnigraph.storage import meter
from omnigraph.storage.objects.input_files import is_remote
from omnigraph.storage.util.runner import LocalRunner, Runner
from omnigraph.write.load.input.input_splits import Split, plan_splits, split_size
from omnigraph.write.load.input.sources import SourceFile, file_versions, resolve_files
from omnigraph.write.load.load import LoadResult
from omnigraph.write.load.load_options import LoadOptions
from omnigraph.write.load.quarantine import default_quarantine_path


@dataclass(frozen=True, slots=True)
class BulkSettings:
    """Settings of a bulk load that are rarely changed."""

    split_bytes: int | None = None  # None: by the size of the input
    spark_keys_min: int = 100_000_000  # rows whose keys are verified by Spark SQL, where there is Spark
    memory_mb: int | None = None  # of DuckDB's verification; None: a share of what is free
    publish_s: float = 3600.0  # how long to retry after conflicts; each costs a verification


def bulk_load(
    repository: Repository,
    runner: Runner,
    source: Any,
    options: LoadOptions | None = None,
    *,
    progress: Progress | None = None,
    settings: BulkSettings | None = None,
) -> LoadResult:
    """Load files of any size as one commit; everything or nothing, or with a quarantine everything that can be taken.

    With a job id the load can be started again after a crash: it resumes, and if it is committed already its commit is
    returned.
    """
    options = options or LoadOptions()
    options.check()
    repository.require_writable("Loading")
    if options.job_id is not None:
        options = replace(options, txn_id=txn_id_of_job(options.job_id))
    with meter.operation("load") as operation:
        result = BulkLoad(repository, runner, options, settings or BulkSettings(), progress or Progress()).run(source)
    commit = None if result.commit is None else replace(result.commit, cost=operation.cost)
    return replace(result, commit=commit, cost=operation.cost)


@dataclass(eq=False)
class BulkLoad(WriteOp):
    """One load, from its source to its commit."""

    repository: Repository
    runner: Runner
    options: LoadOptions
    settings: BulkSettings = field(default_factory=BulkSettings)
    progress: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        self.can_replan = self.options.mode != "overwrite"
        self._clock = CpuClock()
        self._files: list[SourceFile] = []
        self._spooled: SpooledRows | None = None
        self._splits: list[Split] = []
        self._pass: StagedPass | None = None
        self._planner: LoadPlanner | None = None
        self._planned: PlannedLoad | None = None
        self._verified_base: WriteTxn | None = None
        self._folded_bases = FoldedBases(self.repository)
        self._is_new_branch = False
        self._intent: OwnedIntent | None = None
        self._details: LoadDetails | None = None
        self._input: str | None = None  # for its commit; None where the load can't be started again
        self._content: object = None  # the same, for the digest of the request

    def run(self, source: Any) -> LoadResult:
        base, options = self._base(), self.options
        if isinstance(source, SpooledRows):
            self._spooled, self._files = source, source.files
        else:
            self._files = resolve_files(source, base.catalog, options.type_name, self.repository.location.options)
        fingerprint = self._fingerprint()
        self.options = options = options.with_request(lambda: self._content)
        if options.txn_id is not None and not self._is_new_branch:
            # Whenever the job is started again: a bulk load can afford to look through the whole branch.
            everything = Point(base.base.branch_id, 0)
            earlier = self.repository.publisher.find_earlier_commit(base, options.txn_id, since=everything)
            if earlier is not None:
                remove_leftovers(self.repository, options.txn_id, options.branch, base.base.branch_id)
                return self._earlier_result(earlier)
        if options.if_commit not in (None, base.commit_id):
            raise PreconditionFailed(str(options.if_commit), base.commit_id)
        if options.quarantines and options.quarantine is None:
            named = [] if self._spooled is not None else self._files
            local = [Path(file.path) for file in named if not is_remote(file.path)]
            path = default_quarantine_path(local, self.repository.runtime.ids.short_id())
            self.options = options = replace(options, quarantine=path)
        begun = None if self._spooled is None else self._spooled.intent
        split_bytes = self.settings.split_bytes or split_size(self._files)
        with hold_intent(self.repository, options, base, fingerprint, split_bytes, begun) as (held, details):
            self._intent, self._details = held, details
            self._splits = self._plan_splits(details.split_bytes)
            commit = self._find_earlier_commit(base, held) or self._publish(base, held)
        if commit is not None and commit.commit.token != held.token:
            return self._earlier_result(commit)
        return self._result(commit)

    # The base, and the branch that may have to be made.

    def _base(self) -> WriteTxn:
        """The branch's head; for a branch that is not there yet, that of the branch it is to be forked from."""
        try:
            return self.repository.open_txn(self.options.branch)
        except BranchNotFound:
            if self.options.from_ is None:
                raise
            self._is_new_branch = True
            return self.repository.open_txn(self.options.from_)

    def _fork(self, txn: WriteTxn, plan: PublishPlan) -> tuple[WriteTxn, PublishPlan]:
        """Create the branch, once it is known that the input can be loaded there, unless this start has ended."""
        self._guard(txn).check(self.repository.manifests.refresh_head(txn.base))
        with suppress(AlreadyExists):  # another process has just created it
            self.repository.branches.create(self.options.branch, txn.base, self.options.actor)
        there = self.repository.open_txn(self.options.branch)
        same = there.base.tables == txn.base.tables and there.base.schema == txn.base.schema
        same = same and self._is_unswept(txn.base, there.base)
        return there, replace(plan, guard=self._guard(there)) if same else self.plan(there)

    def _guard(self, txn: WriteTxn) -> JobGuard:
        assert self._intent is not None
        return JobGuard(self.repository.manifests, self._intent, self._since(txn))

    def _since(self, txn: WriteTxn) -> Point:
        """Behind which point this job may be committed. On a branch that is not its own it is refused by its guard."""
        assert self._intent is not None
        return self._intent.intent.search_start(txn.base.branch_id) or self._intent.base

    def _plan_splits(self, split_bytes: int) -> list[Split]:
        if self._spooled is not None:
            return list(self._spooled.splits)
        return plan_splits(self._files, split_bytes, self.repository.location.options)

    def _fingerprint(self) -> str:
        """The fingerprint of the input, for the intent. Needed only if the same job may be started again."""
        if self._spooled is not None:
            self._content = sorted(self._spooled.rows.items())
            self._input = fingerprint_of_rows(self._spooled.rows, self.options.mode, self.options.branch)
            return self._spooled.fingerprint
        if self.options.txn_id is None:
            return ""
        files = file_versions(self._files, self.repository.location.options)
        self._content = files
        self._input = fingerprint_of(files, self.options.mode, self.options.branch, self.options.type_name)
        return self._input

    def _find_earlier_commit(self, base: WriteTxn, held: OwnedIntent) -> PublishedCommit | None:
        """The commit of an earlier start; raises if this one was discarded or taken over meanwhile."""
        if not held.resumed:
            return None
        entry = self._guard(base).check(self.repository.manifests.refresh_head(base.base))
        if entry is None or self._is_new_branch:  # on the source of its branch the id is another's
            return None
        return self.repository.publisher.find_earlier_commit(base, held.txn_id, since=self._since(base))

    # Publishing.

    def _publish(self, base: WriteTxn, held: OwnedIntent) -> PublishedCommit | None:
        txn, plan = base, self.plan(base)
        if self._is_new_branch:
            txn, plan = self._fork(txn, plan)
        held.check()
        self.progress.stage("publishing")
        with self._clock.on("publish"):
            return self.repository.publisher.publish(txn, plan, self, time_limit_s=self.settings.publish_s)

    def plan(self, txn: WriteTxn) -> PublishPlan:
        """The load on this base: with an earlier verification if that still holds, otherwise verified now."""
        assert self._intent is not None
        self._intent.add_tables(stored_tables(txn))
        planned = self._keep_verified(txn) or self._verify(txn)
        self._planned, self._verified_base = planned, txn
        return PublishPlan(
            txn_id=self.options.txn_id or self._intent.txn_id,
            policy=ConflictPolicy.STRICT if self.options.mode == "overwrite" else ConflictPolicy.CONSTRUCTIVE,
            change=DataChange("load", tuple(Bulk(key) for key in planned.staged), planned.staged),
            actor=self.options.actor,
            read_rows=planned.read_rows,
            if_commit=self.options.if_commit,
            idempotent=self.options.txn_id is not None,
            intent=self._intent.intent.tokens[0],
            guard=self._guard(txn),
            token=self._intent.token,
            input=self._input,
        )

    def _keep_verified(self, txn: WriteTxn) -> PlannedLoad | None:
        """The plan of an earlier base, unless commits since then affect its verification."""
        before, planned = self._verified_base, self._planned
        if (
            self._planner is None
            or self._pass is None
            or before is None
            or planned is None
            or self.options.mode == "overwrite"
        ):
            return None
        staged_at = self._pass.txn.base
        if staged_at.schema != txn.base.schema or not self._is_unswept(staged_at, txn.base):
            return None
        with self._clock.on("verify"):
            staged = self._planner.rebase_verified(before, txn, planned)
        return None if staged is None else replace(planned, staged=staged)

    def _verify(self, txn: WriteTxn) -> PlannedLoad:
        """Stage, unless what was staged before can be used here, and verify."""
        staged = self._stage(txn)
        watched = ProgressRunner(self.runner, self.progress)
        self._planner = LoadPlanner(
            watched, self._engine(staged), self.repository, self._folded_bases, staged, self.options
        )
        self.progress.stage("verifying")
        with self._clock.on("verify"):
            return self._planner.plan(txn)

    def restage(self, txn: WriteTxn, plan: PublishPlan, tables: frozenset[TableKey], from_scratch: bool) -> PublishPlan:
        if from_scratch:  # a cleanup passed that did not honour the intent
            self._pass = None
            return plan.with_staged(self.plan(txn).staged)
        assert self._intent is not None
        assert self._planner is not None
        assert self._planned is not None
        self._intent.add_tables(stored_tables(txn))
        staged = {**plan.staged, **self._planner.rebase(txn, self._planned, tables)}
        self._planned = replace(self._planned, staged=staged)
        return plan.with_staged(staged)

    def _engine(self, staged: StagedPass) -> SqlEngine:
        """DuckDB up to a size; above it, and where there is Spark, Spark SQL."""
        keys = sum(result.rows for result in staged.results) + sum(ref.rows for ref in staged.txn.base.tables.values())
        spark = getattr(self.runner, "spark", None) if keys >= self.settings.spark_keys_min else None
        return DuckDbEngine(self.settings.memory_mb) if spark is None else SparkSqlEngine(spark)

    # Staging.

    def _stage(self, txn: WriteTxn) -> StagedPass:
        """The input staged on this base, or on an older one whose fragments are usable here."""
        assert self._intent is not None
        assert self._details is not None
        if self._pass is None and self._intent.resumed:
            earlier = read_staged_base(self.repository, self._details)
            if earlier is not None:
                self._pass = self._begin_pass(earlier)
        if self._pass is None or not self._is_usable_on(self._pass, txn):
            if self._details.staged_on != txn.base.point:
                self._details = with_staged_base(self._details, txn)
                self._intent.refresh(self._details.to_json(), tables=writable_tables(self._details, txn))
            self._pass = self._begin_pass(txn)
        done = {result.split for result in self._pass.results}
        todo = [split for split in self._splits if split.number not in done]
        watched = ProgressRunner(self.runner, self.progress)
        with self._clock.on("stage"):
            made = watched.run(partial(stage_split, self._pass.job), todo, stage="loading", on_done=self._check_intent)
        self._pass = replace(self._pass, results=sorted([*self._pass.results, *made], key=lambda one: one.split))
        if todo or self._intent.resumed:
            note_complete(
                self.repository.store,
                self._pass.job,
                StagedLoad(self.options, tuple(self._splits), self._input, request_of(self.options.txn_id or "")),
            )
        return self._pass

    def _begin_pass(self, txn: WriteTxn) -> StagedPass:
        assert self._intent is not None
        assert self._details is not None
        of, options = self.repository, self.repository.location.options
        job = create_job(of, self._intent, self._details, txn, self.options.mode, options, self._folded_bases)
        found = read_finished_splits(self.repository.store, job, self._splits)
        return StagedPass(txn, job, self._splits, list(found.values()))

    def _is_usable_on(self, staged: StagedPass, txn: WriteTxn) -> bool:
        """Whether fragments staged on one base can be used on another."""
        before, now = staged.txn.base, txn.base
        if before.schema != now.schema or not self._is_unswept(before, now):
            return False
        if self.options.mode != "merge":
            return True
        complete = len(staged.results) == len(self._splits)
        keys = (
            {key for result in staged.results for key in result.tables} if complete else {*before.tables, *now.tables}
        )
        return all(before.changed_at(key) == now.changed_at(key) for key in keys)

    def _is_unswept(self, before: Manifest, now: Manifest) -> bool:
        """No cleanup passed that may have swept what was staged; of a branch that was forked since, on either.

        What an earlier start of the job staged counts as this one's: a fence honours the tokens of all starts of an
        intent or of none, and the intent has named their tables before they wrote there.
        """
        assert self._intent is not None
        manifests = self.repository.manifests
        if before.branch_id != now.branch_id:
            source = manifests.refresh_head(before)
            return self._is_unswept(before, source) and self._is_unswept(replace(now, fenced_at=0), now)
        return before.fenced_at == now.fenced_at or fences_honour(manifests, before, now, self._intent.intent.tokens[0])

    def _check_intent(self, _: SplitResult) -> None:
        assert self._intent is not None
        self._intent.check()

    # Results.

    def _earlier_result(self, commit: PublishedCommit) -> LoadResult:
        """The result of an earlier start that committed; JobInputDiffers if its input was another."""
        if self.options.txn_id is not None:
            require_same_request(self.options.txn_id, commit.commit)
        job, loaded = self.options.job_id or str(self.options.txn_id), commit.commit.input
        if None not in (loaded, self._input) and loaded != self._input:
            raise JobInputDiffers(job, commit.id, str(loaded), str(self._input))
        counts = {
            key.partition(":")[2]: touch.get("inserted", 0) + touch.get("updated", 0)
            for key, touch in commit.touched.items()
        }
        if self.options.txn_id is None:  # found through its own intent, so the input is the same
            note = (
                f"Another process has completed the load {commit.commit.txn_id} meanwhile: its input is loaded, once."
            )
            return LoadResult(commit, counts, reports=(note,))
        what = f"The load {self.options.txn_id}" if self.options.job_id is None else f"The job {self.options.job_id}"
        note = f"{what} was committed before: nothing was loaded now, another input needs another id."
        if loaded is None:
            note = f"{note} Its commit does not record its input, which was therefore not compared with this one."
        return LoadResult(commit, counts, reports=(note,), job_id=self.options.job_id)

    def _result(self, commit: PublishedCommit | None) -> LoadResult:
        planned = self._planned or PlannedLoad()
        rejects = planned.rejects
        count = 0 if rejects is None else len(rejects)
        return LoadResult(
            commit,
            planned.counts,
            count,
            self.options.quarantine if count else None,
            tuple(planned.reports),
            job_id=self.options.job_id,
            summary=planned.summary,
            phases=self._phases(),
        )

    def _phases(self) -> Mapping[str, float]:
        """CPU seconds by phase; those of tasks are measured where they ran."""
        spent = dict(self._clock.spent)
        spent.pop("stage", None)
        for result in self._pass.results if self._pass is not None else ():
            for phase, seconds in result.cpu_s.items():
                spent[phase] = spent.get(phase, 0.0) + seconds
        return {phase: round(seconds, 3) for phase, seconds in spent.items()}


def can_complete(repository: Repository, seen: StoredIntent) -> bool:
    try:
        details = LoadDetails.from_json(seen.intent.details, f"the intent of {seen.intent.txn_id}")
    except Damaged:
        return False
    return is_complete(repository.store, seen.intent, details.staged_on)


def complete(repository: Repository, held: OwnedIntent, whose: Recovered) -> PublishedCommit | None:
    """Commit a load that another process staged; None if it changes nothing."""
    details = LoadDetails.from_json(held.intent.details, f"the intent of {held.txn_id}")
    staged = read_staged_load(repository.store, held.intent, details.staged_on)
    if staged is None:
        raise BadRequest(f"The job {held.txn_id} had not staged everything: start it again, or discard it.")
    return _StagedLoad(repository, held, details, staged, whose).commit()


class _StagedLoad(BulkLoad):
    """A load that another process staged: everything but its input is as that process left it."""

    def __init__(
        self, repository: Repository, held: OwnedIntent, details: LoadDetails, staged: StagedLoad, whose: Recovered
    ) -> None:
        super().__init__(repository, LocalRunner(), _recovered_options(staged, held, whose))
        self._intent, self._details = held, details
        self._splits = list(staged.splits)
        self._whose = whose
        self._input = staged.input

    def commit(self) -> PublishedCommit | None:
        assert self._intent is not None
        base = self._base()
        return self._find_earlier_commit(base, self._intent) or self._publish(base, self._intent)

    def plan(self, txn: WriteTxn) -> PublishPlan:
        plan = super().plan(txn)
        assert isinstance(plan.change, DataChange)
        return replace(plan, change=replace(plan.change, kind=KIND), recovered=self._whose)

    def _stage(self, txn: WriteTxn) -> StagedPass:
        assert self._details is not None
        if self._pass is None and (earlier := read_staged_base(self.repository, self._details)) is not None:
            self._pass = self._begin_pass(earlier)
        staged = self._pass
        if staged is None or len(staged.results) < len(self._splits) or not self._is_usable_on(staged, txn):
            assert self._intent is not None
            raise ConflictError(
                f"What the job {self._intent.txn_id} staged can't be used any more, because the graph has changed "
                "since or a cleanup has passed: start it again with the same job id, or discard it."
            )
        return staged


def _recovered_options(staged: StagedLoad, held: OwnedIntent, whose: Recovered) -> LoadOptions:
    """The load's key stays that of its actor and request."""
    own_id = held.txn_id
    if staged.request is not None:
        own_id = RequestKey(own_id, whose.actor, staged.request, anyone=own_id.startswith(JOB_PREFIX))
    return replace(staged.options, actor=ACTOR, txn_id=own_id)


COMPLETER = Completer(can_complete, complete)
