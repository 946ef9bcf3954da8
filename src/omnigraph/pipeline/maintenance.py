"""Where tasks of `optimize` run: in this process or on executors. What they do: `maintenance/table_maintenance.py`."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from omnigraph.engine import Engine, require_engine
from omnigraph.errors import SparkNotReady
from omnigraph.maintenance.table_maintenance import ChooseRunner
from omnigraph.storage.util.runner import LocalRunner, Runner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_ROWS_MAX = 5_000_000  # that `auto` rewrites or indexes here


@contextmanager
def workers(engine: Engine, spark: "SparkSession | None" = None, master: str | None = None) -> Iterator[ChooseRunner]:
    """Who runs tasks over so many rows. Nothing is started unless there are any for Spark.

    `auto` takes Spark for many rows; where that is not there, the same tasks run here one after another.
    """
    require_engine(engine)
    with ExitStack() as sessions:
        known: list[Runner] = []
        starting = threading.Lock()

        def choose(rows: int) -> Runner:
            if engine == "local" or (engine == "auto" and spark is None and rows <= LOCAL_ROWS_MAX):
                return LocalRunner()
            with starting:  # several tables are worked on at once
                if not known:
                    known.append(_start(sessions, engine, spark, master))
            return known[0]

        yield choose


def _start(sessions: ExitStack, engine: Engine, spark: "SparkSession | None", master: str | None) -> Runner:
    from omnigraph.pipeline.spark.session import obtain

    try:
        return sessions.enter_context(obtain(spark, master)).runner
    except SparkNotReady:
        if engine == "spark":
            raise
        return LocalRunner()
