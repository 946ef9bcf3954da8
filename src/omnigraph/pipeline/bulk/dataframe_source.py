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
    Answer,
    Spool,
    Spooled,
    check_rows,
    spool_nothing,
    spool_rows,
    spooling,
    together,
)
from omnigraph.pipeline.progress import Progress
from omnigraph.pipeline.source.scans import type_named
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
    if options.txn_id is not None and _landed(repository, options.branch, options.txn_id):
        counted = Spooled(None, rows={name: _count(name, value) for name, value in source.items()})
        return bulk_load(repository, runner, counted, options)
    with spooling(repository, options) as spool:
        spooled = together(spool, list(_Spooling(spool, progress).answers(source)))
    options = replace(options, txn_id=spool.txn_id)
    return bulk_load(repository, runner, spooled, options, progress=progress, settings=settings)


class _Spooling:
    """The rows of all tables of one load, on their way to the store."""

    def __init__(self, spool: Spool, progress: Progress) -> None:
        self._spool = spool
        self._progress = progress
        self._here = 0  # numbers that were used in this process; those of tasks come after

    def answers(self, source: Mapping[str, Any]) -> Iterator[Answer]:
        checked = [self._checked(name, value) for name, value in source.items()]
        for name, value, schema in checked:
            self._progress.stage(f"writing {name}")
            answers = self._of_frame(name, value) if is_frame(value) else [self._of_table(name, value)]
            yield from answers
            if not any(answer.splits for answer in answers):
                yield spool_nothing(self._spool, name, schema, first_number=self._number(), shown=name)

    def _checked(self, name: str, value: Any) -> "tuple[str, Any, pa.Schema]":
        type_named(self._spool.job.catalog, name)
        if is_frame(value):
            from omnigraph.pipeline.spark.types import arrow_for_spark

            schema = arrow_for_spark(value.schema)
        else:
            value = to_arrow_table(name, value)
            schema = value.schema
        check_rows(self._spool, name, schema, name)
        return name, value, schema

    def _of_table(self, name: str, rows: "pa.Table") -> Answer:
        answer = spool_rows(self._spool, name, rows.to_batches(), first_number=self._number(), shown=name)
        self._here += max(0, len(answer.splits) - 1)
        return answer

    def _of_frame(self, name: str, frame: "DataFrame") -> list[Answer]:
        def collect(heard: "Accumulator[list[TaskOutcome]]") -> list[TaskOutcome]:
            told = frame.mapInArrow(SpoolTask(self._spool, name, heard), "outcome binary").collect()
            return [pickle.loads(row.outcome) for row in told]

        def done(answer: Answer) -> None:
            self._progress.done(rows=answer.rows)

        return run_job(frame.sparkSession.sparkContext, collect, stage=f"writing {name}", on_done=done)

    def _number(self) -> int:
        self._here += 1
        if self._here > FILES_A_TASK:
            raise BadRequest(f"More than {FILES_A_TASK} tables in one load: give the large ones as DataFrames.")
        return self._here - 1


class SpoolTask:
    """What Spark runs in a partition of a DataFrame."""

    def __init__(self, spool: Spool, type_name: str, heard: "Accumulator[list[TaskOutcome]]") -> None:
        self._spool = spool
        self._type_name = type_name
        self._heard = heard

    def __call__(self, batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        outcome = run_task(task_number(), self._spooled, batches)
        self._heard.add([outcome])
        yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(outcome)], pa.binary())], names=["outcome"])

    def _spooled(self, batches: "Iterable[pa.RecordBatch]") -> Answer:
        return spool_rows(
            self._spool, self._type_name, batches, first_number=task_number(), shown=shown_partition(self._type_name)
        )


def task_number() -> int:
    """The first of the numbers that belong to this attempt of this task, in this application."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "this runs in a task of Spark"
    return (context.taskAttemptId() + 1) * FILES_A_TASK


def shown_partition(type_name: str) -> str:
    """How messages name the part of a DataFrame that this task has."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return f"{type_name} partition {context.partitionId() if context is not None else 0}"


def _landed(repository: Repository, branch: str, txn_id: TxnId) -> bool:
    """Whether a load of this id is committed: then its rows are only counted, to compare them with that load's."""
    from omnigraph.errors import BranchNotFound

    try:
        return repository.publisher.find_earlier_commit(repository.open_txn(branch), txn_id) is not None
    except BranchNotFound:
        return False


def _count(name: str, value: Any) -> int:
    return int(value.count()) if is_frame(value) else int(to_arrow_table(name, value).num_rows)
