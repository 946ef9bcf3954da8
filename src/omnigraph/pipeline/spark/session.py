"""A Spark session: the caller's own, one on a cluster, or a local one sized to the machine.

    with obtain(master="spark://host:7077") as session:
        session.runner.run(task, items, stage="load")

Nothing is started before something runs, for a start takes seconds and a gigabyte. What was started here is stopped
here; a session of the caller is left as it is. Java's messages go to a file in the scratch directory, not to the
terminal.
"""

import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from omnigraph.errors import BadRequest, SparkNotReady
from omnigraph.pipeline.spark import sizing as machine
from omnigraph.pipeline.spark.java import java_home
from omnigraph.pipeline.spark.runner import SparkRunner, message_of, one_line, reason_of

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

__all__ = ["Session", "SparkRunner", "obtain"]

TASK_FAILURES_MAX = 4  # in a local session too, where Spark's own default is one
STOP_S = 20
_CONNECT_S = 5
_MASTER = re.compile(r"local(\[(\d+|\*)(,\s*\d+)?\])?|yarn|spark://.+|k8s://.+")
_LOG4J = """\
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: %m%n%ex
"""
_SETTINGS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",  # we draw our own
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",  # the data source takes filters
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.python.worker.reuse": "true",
}

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


class _Started:
    """A session that was started here, and all that has to go when it is stopped."""

    def __init__(
        self, master: str | None, quiet: bool, cores: int | None, memory: str | None, config: Mapping[str, str]
    ) -> None:
        home = java_home()
        if master is not None:
            _require_reachable(master)
        size = machine.measured()
        self._handler = _sigint()
        self._owns_java = False
        self._scratch = Path(tempfile.mkdtemp(prefix="omnigraph-spark-", dir=size.scratch))
        try:
            (self._scratch / "log4j2.properties").write_text(_LOG4J.format(level="error" if quiet else "warn"))
            settings = self._settings(master, size, cores, memory) | dict(config)
            with _environment(JAVA_HOME=str(home), PYSPARK_PYTHON=_python(master), SPARK_LOCAL_DIRS=None):
                self.spark = self._start(settings, quiet)
        except BaseException:
            self._remove()
            raise

    def _settings(
        self, master: str | None, size: machine.Size, cores: int | None, memory: str | None
    ) -> dict[str, str]:
        log = f"-Dlog4j2.configurationFile=file:{self._scratch}/log4j2.properties"
        settings = dict(_SETTINGS) | {
            "spark.app.name": "omnigraph",
            "spark.master": master or f"local[{cores or size.cores},{TASK_FAILURES_MAX}]",
            "spark.driver.memory": memory or size.heap,
            "spark.driver.extraJavaOptions": log,
            "spark.local.dir": str(self._scratch),
            "spark.sql.warehouse.dir": str(self._scratch / "warehouse"),
        }
        if master is None or re.match(r"local|spark://(127\.0\.0\.1|localhost)\b", master):
            settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        if master is None:
            settings["spark.sql.shuffle.partitions"] = str(max(8, 2 * (cores or size.cores)))
        return settings

    def _start(self, settings: Mapping[str, str], quiet: bool) -> "SparkSession":
        from py4j.protocol import Py4JError
        from pyspark import SparkConf, SparkContext
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession

        log = self._scratch / "spark.log"
        try:
            gateway = None
            conf = SparkConf(loadDefaults=SparkContext._gateway is not None)
            for name, value in settings.items():
                conf.set(name, value)
            if SparkContext._gateway is None:
                self._owns_java = True
                with log.open("wb") as out, warnings.catch_warnings():
                    warnings.simplefilter("ignore", UserWarning)  # Lance's, that a fork is near: it ends in an exec
                    streams = {"stdout": out, "stderr": out} if quiet else {"stdout": sys.stderr}
                    gateway = import_module("pyspark.java_gateway").launch_gateway(conf, streams)
            return SparkSession(SparkContext(conf=conf, gateway=gateway))
        except (Py4JError, PySparkException, OSError) as error:
            raise SparkNotReady(
                f"Spark could not be started ({_why(error, log)}): check its settings, or use engine local."
            ) from error

    def stop(self) -> None:
        try:
            self.spark.stop()
        finally:
            self._remove()

    def _remove(self) -> None:
        """Java goes too, with its heap, unless it ran before; then the scratch files, and Ctrl-C is as it was."""
        from pyspark import SparkContext

        if self._owns_java and SparkContext._active_spark_context is None:
            _end_java(SparkContext)
        shutil.rmtree(self._scratch, ignore_errors=True)
        if self._handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._handler)


def _end_java(context: "type[SparkContext]") -> None:
    import subprocess

    with context._lock:
        gateway: Any = context._gateway
        context._gateway = context._jvm = None
    if gateway is None:
        return
    gateway.shutdown()
    process = getattr(gateway, "proc", None)
    if process is not None:
        process.stdin.close()  # Java ends when its input does
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


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


def _require_reachable(master: str) -> None:
    """Spark itself would try for a minute."""
    found = re.fullmatch(r"spark://(.+)", master)
    problems = []
    for address in found[1].split(",") if found else ():
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise BadRequest(f"{master!r} is no Spark master: give spark://host:7077.")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
            return
        except OSError as error:
            problems.append(f"{error.strerror or error}")
    if problems:
        raise SparkNotReady(f"There is no Spark master at {master} ({problems[0]}): check the address.")


def _python(master: str | None) -> str:
    """The interpreter of the workers: this one, unless a cluster's was named."""
    named = os.environ.get("PYSPARK_PYTHON")
    return named if named and master is not None and not master.startswith("local") else sys.executable


def _why(error: Exception, log: Path) -> str:
    """One line: of the log, if Java ended before it could answer."""
    if log.is_file():
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
        while lines and not re.search(r"Exception|Error|error|Could not|Invalid|Unrecognized", lines[0]):
            lines.pop(0)
        told = [line for line in lines if not re.match(r"Error occurred during initialization|\tat |at ", line)]
        if told:
            return one_line(re.sub(r'^Exception in thread "main" [\w.$]+: ', "", told[0])).rstrip(".")
    return reason_of(message_of(error) if hasattr(error, "java_exception") else str(error))


def _sigint() -> Any:
    return signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None


@contextmanager
def _environment(**variables: str | None) -> Iterator[None]:
    """Spark takes some settings from the environment only: set while it starts, then as they were."""
    before = {name: os.environ.get(name) for name in variables}
    _set(variables)
    try:
        yield
    finally:
        _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
