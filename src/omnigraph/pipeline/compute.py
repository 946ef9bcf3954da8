"""Where an operation runs: the caller's choice as one value, and the Spark session of that operation.

Nothing here imports pyspark before a session is needed.
"""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING

from omnigraph.engine import Engine, require_engine
from omnigraph.errors import SparkNotReady
from omnigraph.pipeline.progress import Progress
from omnigraph.storage.util.runner import LocalRunner, Runner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from omnigraph.pipeline.spark.session import SparkSessionHandle

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
