"""`analyze`: PageRank, components, degrees and triangles of a graph, returned, or written back as one commit.

A graph that fits in this process is analysed here, with numpy; a larger one on Spark. Both give the same result, but
for the last bits of a rank, which on Spark depend on the order of additions.

Values that are written are staged as a new column beside the table's files. They belong to rows by id: on another
version of the table, for example after a compaction, they are matched again; if the rows have changed, the analysis is
run again (`replan-reads`), unless an older state was named.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from omnigraph.errors import BadRequest, OmnigraphError, PreconditionFailed
from omnigraph.manifest.commit.plan import Bulk, ConflictPolicy, DataChange, PublishPlan, StagedTable
from omnigraph.manifest.commit.publish import PublishedCommit
from omnigraph.manifest.commit.stale_base import retry_if_base_swept
from omnigraph.manifest.commit.txn import Snapshot, WriteOp, WriteTxn
from omnigraph.manifest.model.manifest import MAIN, CommitId, RowCounts, TxnId
from omnigraph.manifest.repository import Repository
from omnigraph.pipeline.analytics.local import LocalResult
from omnigraph.pipeline.analytics.spark import SparkResult, translate_errors
from omnigraph.pipeline.analytics.spec import AnalysisSpec, TargetProperty, cast_values, resolve_spec
from omnigraph.pipeline.compute import ComputeOptions, SparkProvider
from omnigraph.pipeline.spark.runner import TaskFailure
from omnigraph.schema.constraints import Constraint
from omnigraph.schema.indexes import declared_indexes
from omnigraph.storage import meter
from omnigraph.storage.location import Location
from omnigraph.storage.meter import Cost
from omnigraph.storage.table.tables import TableVersion
from omnigraph.storage.table.write.column_updates import (
    FRAGMENT,
    ID,
    UpdatedFragment,
    addressed_batches,
    commit_updates,
    fragment_sizes,
    ids_by_fragment,
    update_fragment,
)
from omnigraph.write.commit import CommitOptions
from omnigraph.write.validate.row_checks import value_violations
from omnigraph.write.validate.validate import constraints_for
from omnigraph.write.validate.violations import raise_violations

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


BYTES_A_VERTEX, BYTES_AN_EDGE = 300, 200  # that an analysis takes in memory, ids included
MEMORY_SHARE = 0.5  # of what is free
LIMIT = 20

AnalysisResult: TypeAlias = LocalResult | SparkResult


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

        spec = self._spec_for(txn)
        assert spec.target is not None
        self._found = self._answer(txn)
        key = spec.target.definition.table_key
        staged = stage_values(self._repository, txn, spec.target, self._found[1])
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

        target = self._spec_for(txn).target
        assert target is not None
        assert self._found is not None
        staged = stage_values(self._repository, txn, target, self._found[1])
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


@dataclass(frozen=True, slots=True)
class ColumnWrite:
    """What a task needs to know of the column that it writes."""

    location: Location
    at: TableVersion
    target: TargetProperty
    constraints: tuple[Constraint, ...]

    @property
    def name(self) -> str:
        return self.target.prop.column

    def checked(self, values: "pa.Table") -> "pa.Table":
        """The values as the property has them, if the schema allows them."""
        import pyarrow as pa

        rows = pa.table({ID: values.column(ID), self.name: cast_values(values.column("value"), self.target)})
        raise_violations(value_violations(self.constraints, self.target.definition, rows))
        return rows


def stage_values(
    repository: Repository, txn: WriteTxn, target: TargetProperty, answer: AnalysisResult
) -> StagedTable | None:
    """A version of the target's table with the answer in it; None for a type without rows.

    Columns are written beside stored rows, so those that ride in manifests are stored first (`whole-tail`).
    """
    from omnigraph.schema.arrow import arrow_schema

    key, tables, location = target.definition.table_key, repository.tables, repository.location
    ref, content = txn.table(key), txn.content(key)
    if ref is None or content is None:
        return None
    at = tables.fold_tail(content, repository.runtime.ids.short_id(), arrow_schema(target.definition)).at
    own = tuple(
        constraint
        for constraint in constraints_for(txn).of(key)
        if constraint.columns == (target.prop.column,) and constraint.table_key == key
    )
    column = ColumnWrite(location, at, target, own)
    updates = _on_spark(column, answer) if isinstance(answer, SparkResult) else list(_here(column, answer))
    changed = sum(update.changed for update in updates)
    made = commit_updates(location, at, updates).at
    if changed:
        indexes = [index for index in declared_indexes(target.definition) if index.column == column.name]
        made = tables.reindex(made, [index.name for index in indexes], indexes) if indexes else made
    files = tables.new_files(ref.stored, made)
    touch = RowCounts(updated=changed)
    return StagedTable(made, ref.rows, touch, ref.stored, ref.tail, columns=txn.base.schema, files=files)


def _here(column: ColumnWrite, answer: LocalResult) -> Iterator[UpdatedFragment]:
    """Fragment by fragment in this process; ids are matched once."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    ids, values = answer.of_type(column.target.definition.name)
    rows = column.checked(pa.table({ID: ids, "value": values}))
    stored = ids_by_fragment(column.location, column.at)
    place: Any = pc.index_in(stored.column(ID), value_set=ids)
    there = place.is_valid()
    places: Any = place.filter(there)
    wanted, owners = rows.take(places), np.asarray(stored.column(FRAGMENT).filter(there))
    order = np.argsort(owners, kind="stable")
    wanted, owners = wanted.take(order), owners[order]
    for fragment in np.unique(owners).tolist():
        first, last = np.searchsorted(owners, [fragment, fragment + 1])
        yield update_fragment(column.location, column.at, fragment, column.name, wanted.slice(first, last - first))


def _on_spark(column: ColumnWrite, answer: SparkResult) -> list[UpdatedFragment]:
    """Each fragment by a task that gets the values of its rows: none passes through the driver."""
    spark = answer.frame.sparkSession
    numbers = list(fragment_sizes(column.location, column.at))
    if not numbers:
        return []
    with translate_errors("write"):
        listed = spark.createDataFrame([(number,) for number in numbers], f"{FRAGMENT} int")
        stored = listed.repartition(len(numbers)).mapInArrow(partial(_read_ids, column), f"id string, {FRAGMENT} int")
        joined = stored.join(answer.of_type(column.target.definition.name), "id")
        written = joined.groupBy(FRAGMENT).applyInArrow(
            _writing(column), "document string, changed long, fields array<int>"
        )
        return [UpdatedFragment(row.document, int(row.changed), tuple(row.fields)) for row in written.collect()]


def _read_ids(column: ColumnWrite, batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa

    for batch in batches:
        for number in batch.column(0).to_pylist():
            assert number is not None
            for rows in addressed_batches(column.location, column.at, [ID], [number]):
                same = pa.array([number] * rows.num_rows, pa.int32())
                yield pa.RecordBatch.from_arrays([rows.column(ID).cast(pa.string()), same], names=[ID, FRAGMENT])


def _writing(column: ColumnWrite) -> Any:
    """A function whose hints are types, not their names: Spark looks at them."""
    import pyarrow as pa

    def write(rows: pa.Table) -> pa.Table:
        return _write_group(column, rows)

    return write


def _write_group(column: ColumnWrite, rows: "pa.Table") -> "pa.Table":
    import pyarrow as pa

    try:
        fragment: Any = rows.column(FRAGMENT)[0].as_py()
        made = update_fragment(column.location, column.at, fragment, column.name, column.checked(rows))
    except OmnigraphError as error:
        raise TaskFailure(error) from None
    kinds: Any = [("document", pa.string()), ("changed", pa.int64()), ("fields", pa.list_(pa.int32()))]
    answered = {"document": made.document, "changed": made.changed, "fields": list(made.fields)}
    return pa.Table.from_pylist([answered], schema=pa.schema(kinds))
