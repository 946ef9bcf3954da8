"""Where an operation runs: the caller's choice as one value, its Spark session, and the engine of a query.

Importing this loads no engine: nothing here imports pyspark before a session is needed.
"""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING

from omnigraph.cancellation import checkpoint
from omnigraph.engine import Engine, require_engine
from omnigraph.errors import SparkNotReady
from omnigraph.pipeline.progress import Progress
from omnigraph.query.ir import ReadQuery
from omnigraph.storage.location import Location
from omnigraph.storage.util.runner import LocalRunner, Runner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from omnigraph.pipeline.spark.session import SparkSessionHandle
    from omnigraph.read.reader import SnapshotReader
    from omnigraph.read.result import QueryResult


OPTIMIZE_LOCAL_ROWS_MAX = 5_000_000  # that `auto` compacts or indexes in this process


@dataclass(frozen=True, slots=True)
class ComputeOptions:
    """What a caller says about where an operation runs. `spark` is a session of the caller's own."""

    engine: Engine = "auto"
    spark: "SparkSession | None" = None
    master: str | None = None
    progress: Progress = field(default_factory=Progress)
    on_start: Callable[[str], None] | None = None  # called before Spark is started; by default a stage of `progress`

    def __post_init__(self) -> None:
        require_engine(self.engine)

    @property
    def names_spark(self) -> bool:
        """Whether the caller named a session or a master."""
        return self.spark is not None or self.master is not None

    @property
    def requires_spark(self) -> bool:
        """Whether an operation that goes to Spark must not run in this process instead."""
        return self.engine == "spark" or self.names_spark


class SparkProvider:
    """The Spark session of one operation: obtained when first needed, closed at the end if it was started here."""

    def __init__(self, compute: ComputeOptions) -> None:
        self._compute = compute
        self._lock = threading.Lock()  # several tables are worked on at once
        self._session: SparkSessionHandle | None = None
        self._open = ExitStack()

    @property
    def session(self) -> "SparkSessionHandle":
        with self._lock:
            if self._session is None:
                from omnigraph.pipeline.spark.session import obtain

                compute = self._compute
                on_start = compute.on_start or compute.progress.stage
                self._session = self._open.enter_context(obtain(compute.spark, compute.master, on_start=on_start))
            return self._session

    def runner(self) -> Runner:
        """Spark's executors; this process if the engine is local, or if it is auto and there is no Spark."""
        if self._compute.engine == "local":
            return LocalRunner()
        try:
            if not self._compute.requires_spark:
                self.session.spark  # noqa: B018  # start it while there is an alternative
            return self.session.runner
        except SparkNotReady:
            if self._compute.requires_spark:
                raise
            return LocalRunner()

    def runner_for_optimize(self, rows: int) -> Runner:
        """Where `optimize` goes through so many rows. Spark is not started for few."""
        compute = self._compute
        if compute.engine == "auto" and compute.spark is None and rows <= OPTIMIZE_LOCAL_ROWS_MAX:
            return LocalRunner()
        return self.runner()

    def __enter__(self) -> "SparkProvider":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()


def run_query_with(
    compute: ComputeOptions, reader: "SnapshotReader", location: Location, query: ReadQuery, *, explain: bool = False
) -> "QueryResult":
    """The result of a bound query: of this process, or of Spark's executors. It is the same.

    `auto` starts Spark only for what has outgrown this process; a result is wholly here before Spark is stopped.
    """
    from omnigraph.memory_budget import NoRoom
    from omnigraph.read.execute import run_query

    if compute.engine != "spark":
        try:
            return run_query(reader, query, explain=explain)
        except NoRoom as error:
            if compute.engine == "local":
                raise
            refusal = NoRoom(str(error))  # without the frames, and what they hold
        try:
            return _on_spark(compute, reader, location, query, explain)
        except SparkNotReady:
            raise refusal from None
    return _on_spark(compute, reader, location, query, explain)


def _on_spark(
    compute: ComputeOptions, reader: "SnapshotReader", location: Location, query: ReadQuery, explain: bool
) -> "QueryResult":
    checkpoint()  # starting Spark takes a while
    with SparkProvider(compute) as provider:
        spark = provider.session.spark  # the next imports need pyspark, of which this says that it is missing
        from omnigraph.pipeline.querying.query import query_session, run_on_spark
        from omnigraph.pipeline.spark.session import restore_active_session

        checkpoint()
        with restore_active_session(spark):
            return run_on_spark(query_session(spark), reader, location, query, explain=explain)
