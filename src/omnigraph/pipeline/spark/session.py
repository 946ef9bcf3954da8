"""A Spark session: the caller's own, one on a cluster, or a local one sized to the machine.

    with obtain(master="spark://host:7077") as session:
        session.runner.run(task, items, stage="load")

Nothing is started before something runs, for a start takes seconds and a gigabyte. What was started here is stopped
here; a session of the caller is left as it is. Java's messages go to a file in the scratch directory, not to the
terminal.
"""

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from omnigraph.errors import BadRequest, SparkNotReady
from omnigraph.pipeline.spark import sizing as machine
from omnigraph.pipeline.spark.launch import _Started
from omnigraph.pipeline.spark.runner import SparkRunner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


__all__ = ["Session", "SparkRunner", "obtain"]
_MASTER = re.compile(r"local(\[(\d+|\*)(,\s*\d+)?\])?|yarn|spark://.+|k8s://.+")

OnStart: TypeAlias = Callable[[str], None] | None
Supply: TypeAlias = Callable[[OnStart], "SparkSession"]
_warm: Supply | None = None


def share(supply: Supply | None) -> Supply | None:
    """From now on whoever would start a local session gets this one, and leaves it running; returns what was before."""
    global _warm
    before, _warm = _warm, supply
    return before


def obtain(
    spark: "SparkSession | None" = None,
    master: str | None = None,
    *,
    quiet: bool = True,
    cores: int | None = None,
    memory: str | None = None,
    config: Mapping[str, str] | None = None,
    on_start: Callable[[str], None] | None = None,
) -> "Session":
    """A session that is started when it is first used, and stopped by `close` if it was started here.

    `spark` is the caller's own and wins; else one that runs in this process already; else `master` (`local[4]`,
    `spark://host:7077`, …); else a local one. `cores`, `memory` (`2g`) and `config` are for a session that is
    started. `quiet=False` lets Java's warnings through to stderr. `on_start` hears what is being started.
    """
    require_pyspark()
    if spark is not None:
        _require_classic(spark)
        if master is not None and spark.sparkContext.master != master:
            raise BadRequest(f"Give a session or master {master!r}, not both: the session has a master already.")
    if master is not None and not _MASTER.fullmatch(master):
        raise BadRequest(
            f"{master!r} is no Spark master: give local[4], spark://host:7077, yarn or k8s://…, or leave it out."
        )
    warm = _warm if spark is None and master is None else None
    return Session(
        spark, master, quiet=quiet, cores=cores, memory=memory, config=config or {}, on_start=on_start, warm=warm
    )


class Session:
    """A handle on one Spark session, from `obtain`."""

    def __init__(
        self,
        spark: "SparkSession | None",
        master: str | None,
        *,
        quiet: bool,
        cores: int | None,
        memory: str | None,
        config: Mapping[str, str],
        on_start: Callable[[str], None] | None,
        warm: Supply | None = None,
    ) -> None:
        self._warm = warm
        self._spark = spark if spark is not None or warm is not None else _running(master)
        self._master = master
        self._quiet = quiet
        self._cores = cores
        self._memory = memory
        self._config = config
        self._on_start = on_start
        self._started: _Started | None = None
        self._lock = threading.Lock()
        self.runner = SparkRunner(self)

    @property
    def is_started(self) -> bool:
        return self._spark is not None

    @property
    def is_ours(self) -> bool:
        """Whether it was started here, and so is stopped here."""
        return self._started is not None

    @property
    def parallelism(self) -> int:
        """How many tasks run at once; known of a local session before it is started."""
        if self._spark is None and self._master is None:
            return self._cores or machine.shares(machine.usable_cores(), machine.free_memory())[1]
        return max(1, int(self.spark.sparkContext.defaultParallelism))

    @property
    def spark(self) -> "SparkSession":
        """The session itself, started now if it was not."""
        with self._lock:
            if self._spark is None and self._warm is not None:
                self._spark = self._warm(self._on_start)
            if self._spark is None:
                if self._on_start is not None:
                    self._on_start(f"starting Spark on {self._master}" if self._master else "starting Spark")
                self._started = _Started(self._master, self._quiet, self._cores, self._memory, self._config)
                self._spark = self._started.spark
            return self._spark

    @property
    def is_alive(self) -> bool:
        """Whether the Java that was started here still runs."""
        from pyspark import SparkContext

        process = getattr(SparkContext._gateway, "proc", None)
        return self._started is None or (process is not None and process.poll() is None)

    def close(self) -> None:
        """Stop what was started here. A handle that is used again starts again."""
        with self._lock:
            if self._started is not None:
                self._spark = None
                started, self._started = self._started, None
                started.stop()

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _running(master: str | None) -> "SparkSession | None":
    """The session that runs in this process: there can't be two."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context = SparkContext._active_spark_context
    if context is None:
        return None
    if master is not None and context.master != master:
        raise BadRequest(
            f"A Spark session on {context.master} runs in this process already: stop it to use {master}, "
            "or leave the master out to use it."
        )
    return SparkSession.getActiveSession() or SparkSession(context)


def require_pyspark() -> None:
    try:
        import pyspark  # noqa: F401
    except ImportError as error:
        raise SparkNotReady("Spark is not installed: pip install 'omnigraph[spark]', or use engine local.") from error


def _require_classic(spark: Any) -> None:
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise BadRequest("A Spark Connect session can't run tasks: give a classic session, or --master.")
    if not hasattr(spark, "sparkContext"):
        raise BadRequest(f"spark= takes a SparkSession, not {type(spark).__name__}.")
    if spark.sparkContext._jsc is None:
        raise BadRequest("The given Spark session was stopped: give one that runs, or none.")


class Warm:
    """Whoever would start a session shares it, and nobody's end stops it.

    Started by the first who needs it, kept until `close`, and started anew should its Java have died.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._keeps = False

    def keep(self) -> None:
        """From now on, for the whole process, unless it has one already."""
        before = share(self.spark)
        self._keeps = before is None
        if before is not None:
            share(before)

    def spark(self, on_start: OnStart = None) -> "SparkSession":
        with self._lock:
            if self._session is not None and not self._session.is_alive:
                _end_dead(self._session)
                self._session = None
            if self._session is None:
                self._session = Session(None, None, quiet=True, cores=None, memory=None, config={}, on_start=on_start)
            return self._session.spark

    def close(self) -> None:
        if self._keeps:
            share(None)
            self._keeps = False
        with self._lock:
            if self._session is not None:
                self._session.close()
                self._session = None


def _end_dead(session: Session) -> None:
    """Clear away a session whose Java is gone: it can't be told, and pyspark would believe that it runs."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    with suppress(Exception):  # whatever the remains say
        session.close()
    SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = None


def session_beside(spark: "SparkSession") -> "SparkSession":
    """A new session. Spark binds `rdd.toDF` to whichever session was made last: it stays the caller's."""
    from pyspark import RDD

    bound = RDD.toDF
    try:
        return spark.newSession()
    finally:
        type.__setattr__(RDD, "toDF", bound)


@contextmanager
def given_back(spark: "SparkSession") -> Iterator[None]:
    """Whoever makes a frame becomes the thread's active session, by which data sources are found: the caller again."""
    try:
        yield
    finally:
        spark.createDataFrame([], "nothing int")
