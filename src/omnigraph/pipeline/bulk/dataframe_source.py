"""Spark DataFrames, and Arrow or pandas tables beside them, as one bulk load: `Graph.load({"Person": frame, …})`.

Rows cross from the JVM to Python once, in the task that writes and stages them (`spool.py`); nothing is cached.
"""

import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from omnigraph.errors import BadRequest
from omnigraph.manifest.model.manifest import TxnId
from omnigraph.manifest.repository import Repository
from omnigraph.pipeline.bulk.load import BulkSettings, bulk_load
from omnigraph.pipeline.bulk.staging.spool import (
    FILES_A_TASK,
    Spool,
    SpooledPart,
    SpooledRows,
    check_rows,
    combine_parts,
    hold_spool,
    spool_nothing,
    spool_rows,
)
from omnigraph.pipeline.progress import Progress
from omnigraph.pipeline.source.scans import find_type
from omnigraph.pipeline.spark.dataframes import is_frame
from omnigraph.pipeline.spark.runner import TaskOutcome, run_job, run_task
from omnigraph.storage.util.runner import Runner
from omnigraph.write.load.input.load_input import to_arrow_table
from omnigraph.write.load.load import LoadResult
from omnigraph.write.load.load_options import LoadOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame


def load_tables(
    repository: Repository,
    runner: Runner,
    source: Mapping[str, Any],
    options: LoadOptions | None = None,
    *,
    progress: Progress | None = None,
    settings: BulkSettings | None = None,
) -> LoadResult:
    """Load tables by type, of which some may be DataFrames, as one commit. Those are evaluated once."""
    options = options or LoadOptions()
    options.check()
    repository.require_writable("Loading")
    progress = progress or Progress()
    if options.txn_id is not None and _is_committed(repository, options.branch, options.txn_id):
        counted = SpooledRows(None, rows={name: _count_rows(name, value) for name, value in source.items()})
        return bulk_load(repository, runner, counted, options)
    with hold_spool(repository, options) as spool:
        spooled = combine_parts(spool, list(_TableSpooler(spool, progress).spool_all(source)))
    options = replace(options, txn_id=spool.txn_id)
    return bulk_load(repository, runner, spooled, options, progress=progress, settings=settings)


class _TableSpooler:
    """The rows of all tables of one load, on their way to the store."""

    def __init__(self, spool: Spool, progress: Progress) -> None:
        self._spool = spool
        self._progress = progress
        self._numbers_used = 0  # numbers that were used in this process; those of tasks come after

    def spool_all(self, source: Mapping[str, Any]) -> Iterator[SpooledPart]:
        checked = [self._check(name, value) for name, value in source.items()]
        for name, value, schema in checked:
            self._progress.stage(f"writing {name}")
            answers = self._spool_dataframe(name, value) if is_frame(value) else [self._spool_table(name, value)]
            yield from answers
            if not any(answer.splits for answer in answers):
                yield spool_nothing(self._spool, name, schema, first_number=self._next_number(), shown=name)

    def _check(self, name: str, value: Any) -> "tuple[str, Any, pa.Schema]":
        find_type(self._spool.job.catalog, name)
        if is_frame(value):
            from omnigraph.pipeline.spark.types import arrow_for_spark

            schema = arrow_for_spark(value.schema)
        else:
            value = to_arrow_table(name, value)
            schema = value.schema
        check_rows(self._spool, name, schema, name)
        return name, value, schema

    def _spool_table(self, name: str, rows: "pa.Table") -> SpooledPart:
        answer = spool_rows(self._spool, name, rows.to_batches(), first_number=self._next_number(), shown=name)
        self._numbers_used += max(0, len(answer.splits) - 1)
        return answer

    def _spool_dataframe(self, name: str, frame: "DataFrame") -> list[SpooledPart]:
        def collect(outcomes: "Accumulator[list[TaskOutcome]]") -> list[TaskOutcome]:
            rows = frame.mapInArrow(SpoolTask(self._spool, name, outcomes), "outcome binary").collect()
            return [pickle.loads(row.outcome) for row in rows]

        def done(answer: SpooledPart) -> None:
            self._progress.done(rows=answer.rows)

        return run_job(frame.sparkSession.sparkContext, collect, stage=f"writing {name}", on_done=done)

    def _next_number(self) -> int:
        self._numbers_used += 1
        if self._numbers_used > FILES_A_TASK:
            raise BadRequest(f"More than {FILES_A_TASK} tables in one load: give the large ones as DataFrames.")
        return self._numbers_used - 1


class SpoolTask:
    """What Spark runs in a partition of a DataFrame."""

    def __init__(self, spool: Spool, type_name: str, outcomes: "Accumulator[list[TaskOutcome]]") -> None:
        self._spool = spool
        self._type_name = type_name
        self._outcomes = outcomes

    def __call__(self, batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        outcome = run_task(first_file_number(), self._spool_rows, batches)
        self._outcomes.add([outcome])
        yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(outcome)], pa.binary())], names=["outcome"])

    def _spool_rows(self, batches: "Iterable[pa.RecordBatch]") -> SpooledPart:
        return spool_rows(
            self._spool,
            self._type_name,
            batches,
            first_number=first_file_number(),
            shown=partition_name(self._type_name),
        )


def first_file_number() -> int:
    """The first of the numbers that belong to this attempt of this task, in this application."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "this runs in a task of Spark"
    return (context.taskAttemptId() + 1) * FILES_A_TASK


def partition_name(type_name: str) -> str:
    """How messages name the part of a DataFrame that this task has."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return f"{type_name} partition {context.partitionId() if context is not None else 0}"


def _is_committed(repository: Repository, branch: str, txn_id: TxnId) -> bool:
    """Whether a load of this id is committed: then its rows are only counted, to compare them with that load's."""
    from omnigraph.errors import BranchNotFound

    try:
        return repository.publisher.find_earlier_commit(repository.open_txn(branch), txn_id) is not None
    except BranchNotFound:
        return False


def _count_rows(name: str, value: Any) -> int:
    return int(value.count()) if is_frame(value) else int(to_arrow_table(name, value).num_rows)
