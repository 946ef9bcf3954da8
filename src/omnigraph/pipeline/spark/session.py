"""A Spark session: the caller's own, one on a cluster, or a local one sized to the machine.

    with obtain(master="spark://host:7077") as session:
        session.runner.run(task, items, stage="load")

Nothing is started before a task runs, because a start takes seconds and a gigabyte. What was started here is stopped
here; a session of the caller is left as it is.
"""

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from omnigraph.errors import BadRequest, SparkNotReady
from omnigraph.pipeline.spark import sizing as machine
from omnigraph.pipeline.spark.launch import LaunchedSpark
from omnigraph.pipeline.spark.runner import SparkRunner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


__all__ = ["SparkRunner", "SparkSessionHandle", "obtain"]
_MASTER = re.compile(r"local(\[(\d+|\*)(,\s*\d+)?\])?|yarn|spark://.+|k8s://.+")

OnStart: TypeAlias = Callable[[str], None] | None
SessionFactory: TypeAlias = Callable[[OnStart], "SparkSession"]
_shared: SessionFactory | None = None


def set_shared_session(supply: SessionFactory | None) -> SessionFactory | None:
    """Let operations that would start a local session use this one, and leave it running; returns the one before."""
    global _shared
    before, _shared = _shared, supply
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
) -> "SparkSessionHandle":
    """A session that is started when it is first used, and stopped by `close` if it was started here.

    The caller's own `spark` is preferred; then one that runs in this process already; then `master` (`local[4]`,
    `spark://host:7077`, …); then a local one. `cores`, `memory` (`2g`) and `config` are for a session that is
    started. `quiet=False` lets Java's warnings through to stderr. `on_start` is called with what is being started.
    """
    require_pyspark()
    if spark is not None:
        _require_classic(spark)
        if master is not None and spark.sparkContext.master != master:
            raise BadRequest(f"Give a session or master {master!r}, not both: the session has a master already.")
    if master is not None and not _MASTER.fullmatch(master):
        raise BadRequest(
            f"{master!r} is not a Spark master: give local[4], spark://host:7077, yarn or k8s://…, or leave it out."
        )
    factory = _shared if spark is None and master is None else None
    return SparkSessionHandle(
        spark, master, quiet=quiet, cores=cores, memory=memory, config=config or {}, on_start=on_start, factory=factory
    )


class SparkSessionHandle:
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
        factory: SessionFactory | None = None,
    ) -> None:
        self._factory = factory
        self._spark = spark if spark is not None or factory is not None else _running_session(master)
        self._master = master
        self._quiet = quiet
        self._cores = cores
        self._memory = memory
        self._config = config
        self._on_start = on_start
        self._launched: LaunchedSpark | None = None
        self._lock = threading.Lock()
        self.runner = SparkRunner(self)

    @property
    def parallelism(self) -> int:
        """How many tasks run at once. A local session need not be started for that."""
        if self._spark is None and self._master is None:
            return self._cores or machine.divide_memory(machine.usable_cores(), machine.free_memory())[1]
        return max(1, int(self.spark.sparkContext.defaultParallelism))

    @property
    def spark(self) -> "SparkSession":
        """The session, started now if it was not."""
        with self._lock:
            if self._spark is None and self._factory is not None:
                self._spark = self._factory(self._on_start)
            if self._spark is None:
                if self._on_start is not None:
                    self._on_start(f"starting Spark on {self._master}" if self._master else "starting Spark")
                self._launched = LaunchedSpark(self._master, self._quiet, self._cores, self._memory, self._config)
                self._spark = self._launched.spark
            return self._spark

    @property
    def is_alive(self) -> bool:
        """Whether the Java that was started here still runs."""
        from pyspark import SparkContext

        process = getattr(SparkContext._gateway, "proc", None)
        return self._launched is None or (process is not None and process.poll() is None)

    def close(self) -> None:
        """Stop what was started here. Using the handle again starts it again."""
        with self._lock:
            if self._launched is not None:
                self._spark = None
                started, self._launched = self._launched, None
                started.stop()

    def __enter__(self) -> "SparkSessionHandle":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _running_session(master: str | None) -> "SparkSession | None":
    """The session that runs in this process already: there can't be two."""
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


class SharedSession:
    """One local session for all operations of a long-running process, such as a server.

    Started by the first operation that needs it, stopped by `close`, and started again if its Java has died.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._session: SparkSessionHandle | None = None
        self._installed = False

    def install(self) -> None:
        """Share it with the whole process, unless another one is shared already."""
        before = set_shared_session(self.spark)
        self._installed = before is None
        if before is not None:
            set_shared_session(before)

    def spark(self, on_start: OnStart = None) -> "SparkSession":
        with self._lock:
            if self._session is not None and not self._session.is_alive:
                _end_dead(self._session)
                self._session = None
            if self._session is None:
                self._session = SparkSessionHandle(
                    None, None, quiet=True, cores=None, memory=None, config={}, on_start=on_start
                )
            return self._session.spark

    def close(self) -> None:
        if self._installed:
            set_shared_session(None)
            self._installed = False
        with self._lock:
            if self._session is not None:
                self._session.close()
                self._session = None


def _end_dead(session: SparkSessionHandle) -> None:
    """Remove a session whose Java is gone: it can't be stopped, and pyspark would believe that it runs."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    with suppress(Exception):  # whatever is left of it raises
        session.close()
    SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = None


def create_second_session(spark: "SparkSession") -> "SparkSession":
    """A session on the caller's executors with settings of its own, which leaves no trace in the caller's.

    Spark binds `rdd.toDF` to the session that was made last: it is bound to the caller's again.
    """
    from pyspark import RDD

    bound = RDD.toDF
    try:
        return spark.newSession()
    finally:
        type.__setattr__(RDD, "toDF", bound)


@contextmanager
def restore_active_session(spark: "SparkSession") -> Iterator[None]:
    """Make the caller's session the thread's active one again: making a DataFrame in another session changes it,
    and data sources are found through it."""
    try:
        yield
    finally:
        spark.createDataFrame([], "nothing int")
