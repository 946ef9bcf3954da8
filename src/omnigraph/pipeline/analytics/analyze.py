"""`analyze`: PageRank, components, degrees and triangles of a graph, returned, or written back as one commit.

A graph that fits in this process is analysed here, with numpy; a larger one on Spark. Both give the same result, but
for the last bits of a rank, which on Spark depend on the order of additions.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING

from omnigraph.errors import BadRequest, PreconditionFailed
from omnigraph.manifest.commit.plan import Bulk, ConflictPolicy, DataChange, PublishPlan
from omnigraph.manifest.commit.publish import PublishedCommit
from omnigraph.manifest.commit.stale_base import retry_if_base_swept
from omnigraph.manifest.commit.txn import Snapshot, WriteOp, WriteTxn
from omnigraph.manifest.model.manifest import MAIN, CommitId, TxnId
from omnigraph.manifest.repository import Repository
from omnigraph.pipeline.analytics.spec import AnalysisSpec, resolve_spec
from omnigraph.pipeline.compute import ComputeOptions, SparkProvider
from omnigraph.storage import meter
from omnigraph.storage.meter import Cost
from omnigraph.write.commit import CommitOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from omnigraph.pipeline.analytics.write import AnalysisResult

BYTES_A_VERTEX, BYTES_AN_EDGE = 300, 200  # that an analysis takes in memory, ids included
MEMORY_SHARE = 0.5  # of what is free
LIMIT = 20


@dataclass(frozen=True, slots=True)
class Analysis:
    """The result of an analysis: `table` has type, id and value of the first rows, the largest values first."""

    algorithm: str
    engine: str
    commit_id: CommitId  # of the state that was analysed
    vertices: int
    edges: int
    table: "pa.Table"
    iterations: int | None = None
    converged: bool | None = None
    commit: PublishedCommit | None = None  # of the values, if they were written and changed something
    cost: Cost = field(default_factory=Cost)


@dataclass(frozen=True, slots=True)
class _Backend:
    """Where an analysis runs."""

    engine: str
    spark: "SparkSession | None" = None

    def answer(self, repository: Repository, snapshot: Snapshot, spec: AnalysisSpec) -> "AnalysisResult":
        if self.spark is None:
            from omnigraph.pipeline.analytics import local as analytics_local

            return analytics_local.answer(repository.tables, snapshot, spec)
        from omnigraph.pipeline.analytics import spark as analytics_spark

        return analytics_spark.answer(self.spark, repository, snapshot, spec)


def analyze(
    repository: Repository,
    algorithm: str,
    *,
    edges: Sequence[str] | None = None,
    write: str | None = None,
    direction: str | None = None,
    damping: float = 0.85,
    tolerance: float = 1e-6,
    iterations: int = 100,
    branch: str = MAIN,
    at: str | datetime | None = None,
    limit: int | None = LIMIT,
    compute: ComputeOptions | None = None,
    actor: str | None = None,
    if_commit: CommitId | None = None,
    txn_id: TxnId | None = None,
) -> Analysis:
    """Analyse a state of the graph; with `write`, such as `Person.rank`, every row of that type gets its value."""
    if limit is not None and limit < 0:
        raise BadRequest(f"A limit of {limit} is invalid: give 0 or more.")

    def spec_for(snapshot: Snapshot | WriteTxn) -> AnalysisSpec:
        return resolve_spec(
            snapshot.catalog,
            algorithm,
            edges=edges,
            direction=direction,
            damping=damping,
            tolerance=tolerance,
            iterations=iterations,
            write=write,
        )

    with meter.operation("analyze") as operation:
        if write is not None:
            repository.require_writable("Writing")
        pinned = repository.snapshot(branch, at)
        with _choose_backend(pinned, spec_for(pinned), compute or ComputeOptions()) as backend:
            if write is None:
                found = _run_analysis(repository, pinned, spec_for(pinned), backend, limit)[0]
            else:
                options = CommitOptions(branch, actor, if_commit, txn_id)
                job = _AnalysisWrite(repository, spec_for, backend, limit, pinned if at is not None else None, options)
                found = job.commit()
    return replace(found, cost=operation.cost)


class _AnalysisWrite(WriteOp):
    """The commit of an analysis, which is run again if what it read has changed."""

    can_replan = True

    def __init__(
        self,
        repository: Repository,
        spec_for: Callable[[Snapshot | WriteTxn], AnalysisSpec],
        backend: _Backend,
        limit: int | None,
        pinned: Snapshot | None,
        options: CommitOptions,
    ) -> None:
        self._repository = repository
        self._spec_for = spec_for
        self._backend = backend
        self._limit = limit
        self._pinned = pinned  # an older state that was named: then no row of the head was read
        self._options = options
        self._txn_id = options.txn_id or repository.runtime.ids.txn_id()
        self._found: tuple[Analysis, AnalysisResult] | None = None

    def commit(self) -> Analysis:
        return retry_if_base_swept(self._repository, self._attempt, self.bases_in_use)

    def _attempt(self) -> Analysis:
        options, publisher = self._options, self._repository.publisher
        txn = self._repository.open_txn(options.branch)
        self.base = txn.base
        commit = publisher.find_earlier_commit(txn, self._txn_id) if options.txn_id is not None else None
        if commit is None:
            if options.if_commit not in (None, txn.commit_id):
                raise PreconditionFailed(str(options.if_commit), txn.commit_id)
            commit = publisher.publish(txn, self.plan(txn), self)
        found = self._found or self._answer(txn)
        return replace(found[0], commit=commit)

    def plan(self, txn: WriteTxn) -> PublishPlan:
        from omnigraph.pipeline.analytics.write import stage

        spec = self._spec_for(txn)
        assert spec.target is not None
        self._found = self._answer(txn)
        key = spec.target.definition.table_key
        staged = stage(self._repository, txn, spec.target, self._found[1])
        return PublishPlan(
            self._txn_id,
            ConflictPolicy.CONSTRUCTIVE,
            DataChange("analyze", (Bulk(key),), {} if staged is None else {key: staged}),
            actor=self._options.actor,
            read_rows=spec.tables if self._pinned is None else frozenset(),
            if_commit=self._options.if_commit,
            idempotent=self._options.txn_id is not None,
        )

    def restage(self, txn: WriteTxn, plan: PublishPlan, tables: frozenset[str], from_scratch: bool) -> PublishPlan:
        """The same values on another version of the table, for example after a compaction."""
        del tables, from_scratch  # there is one, and nothing of it is carried over
        from omnigraph.pipeline.analytics.write import stage

        target = self._spec_for(txn).target
        assert target is not None
        assert self._found is not None
        staged = stage(self._repository, txn, target, self._found[1])
        return plan.with_staged({} if staged is None else {target.definition.table_key: staged})

    def _answer(self, txn: WriteTxn) -> "tuple[Analysis, AnalysisResult]":
        if self._pinned is not None and self._found is not None:
            return self._found
        state = self._pinned or Snapshot(txn.base, txn.schema)
        return _run_analysis(self._repository, state, self._spec_for(state), self._backend, self._limit)


def _run_analysis(
    repository: Repository, snapshot: Snapshot, spec: AnalysisSpec, backend: _Backend, limit: int | None
) -> "tuple[Analysis, AnalysisResult]":
    answer = backend.answer(repository, snapshot, spec)
    found = Analysis(
        spec.algorithm,
        backend.engine,
        snapshot.commit_id,
        answer.vertices,
        answer.edges,
        answer.rows(limit, spec),
        answer.iterations,
        answer.converged,
    )
    return found, answer


@contextmanager
def _choose_backend(snapshot: Snapshot, spec: AnalysisSpec, compute: ComputeOptions) -> Iterator[_Backend]:
    """With `auto`, this process if the graph's ids and numbers fit into half of its memory, otherwise Spark."""
    engine = compute.engine
    if engine == "local" or (engine == "auto" and not compute.names_spark and _fits(snapshot, spec)):
        yield _Backend("local")
        return
    from omnigraph.pipeline.spark.session import restore_active_session

    with SparkProvider(compute) as provider, restore_active_session(provider.session.spark):
        yield _Backend("spark", provider.session.spark)


def _fits(snapshot: Snapshot, spec: AnalysisSpec) -> bool:
    from omnigraph.pipeline.spark.sizing import free_memory

    refs = {key: snapshot.table(key) for key in spec.tables}
    rows = {key: 0 if ref is None else ref.rows for key, ref in refs.items()}
    nodes = sum(rows[definition.table_key] for definition in spec.vertices)
    edges = sum(rows[definition.table_key] for definition in spec.edges)
    return nodes * BYTES_A_VERTEX + edges * BYTES_AN_EDGE < free_memory() * MEMORY_SHARE
