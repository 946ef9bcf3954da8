"""Starting a Spark session: Java, settings, scratch space; and removing all of that when it is stopped.

Java 17 or newer is looked for where `scripts/java.sh` looks; nothing is installed. Java's messages go to a file in the
scratch directory, not to the terminal.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omnigraph.errors import BadRequest, SparkNotReady
from omnigraph.pipeline.spark import sizing as machine
from omnigraph.pipeline.spark.runner import failure_reason, java_message, one_line

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

MAJOR_MIN = 17
SYSTEM_HOMES = Path("/usr/lib/jvm")
_JAVA_VERSION_S = 30
_JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
TASK_FAILURES_MAX = 4  # in a local session too, where Spark's own default is one
STOP_S = 20
_CONNECT_S = 5
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
    "spark.ui.showConsoleProgress": "false",  # `pipeline/progress.py` is shown instead
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",  # the data source takes filters
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.python.worker.reuse": "true",
}


class LaunchedSpark:
    """A session that was started here, and everything to remove when it is stopped."""

    def __init__(
        self, master: str | None, quiet: bool, cores: int | None, memory: str | None, config: Mapping[str, str]
    ) -> None:
        home = find_java_home()
        if master is not None:
            _require_reachable(master)
        size = machine.measure_machine()
        self._handler = _sigint_handler()
        self._owns_java = False
        self._scratch = Path(tempfile.mkdtemp(prefix="omnigraph-spark-", dir=size.scratch))
        try:
            (self._scratch / "log4j2.properties").write_text(_LOG4J.format(level="error" if quiet else "warn"))
            settings = self._settings(master, size, cores, memory) | dict(config)
            with _environment(JAVA_HOME=str(home), PYSPARK_PYTHON=_worker_python(master), SPARK_LOCAL_DIRS=None):
                self.spark = self._start(settings, quiet)
        except BaseException:
            self._remove()
            raise

    def _settings(
        self, master: str | None, size: machine.LocalSize, cores: int | None, memory: str | None
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
                f"Spark could not be started ({_launch_failure(error, log)}): check its settings, or use engine local."
            ) from error

    def stop(self) -> None:
        try:
            self.spark.stop()
        finally:
            self._remove()

    def _remove(self) -> None:
        """End Java, unless it ran before; delete the scratch files; restore the handler of Ctrl-C."""
        from pyspark import SparkContext

        if self._owns_java and SparkContext._active_spark_context is None:
            _end_java(SparkContext)
        shutil.rmtree(self._scratch, ignore_errors=True)
        if self._handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._handler)


def _end_java(context: "type[SparkContext]") -> None:
    with context._lock:
        gateway: Any = context._gateway
        context._gateway = context._jvm = None
    if gateway is None:
        return
    gateway.shutdown()
    process = getattr(gateway, "proc", None)
    if process is not None:
        process.stdin.close()  # Java ends when its stdin is closed
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _require_reachable(master: str) -> None:
    """Fail at once where nothing answers: Spark itself would try for a minute."""
    found = re.fullmatch(r"spark://(.+)", master)
    problems = []
    for address in found[1].split(",") if found else ():
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise BadRequest(f"{master!r} is not a Spark master: give spark://host:7077.")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
            return
        except OSError as error:
            problems.append(f"{error.strerror or error}")
    if problems:
        raise SparkNotReady(f"There is no Spark master at {master} ({problems[0]}): check the address.")


def _worker_python(master: str | None) -> str:
    """The interpreter of the workers: this one, unless `PYSPARK_PYTHON` names a cluster's."""
    named = os.environ.get("PYSPARK_PYTHON")
    return named if named and master is not None and not master.startswith("local") else sys.executable


def _launch_failure(error: Exception, log: Path) -> str:
    """The cause in one line: from the log, if Java ended before it answered."""
    if log.is_file():
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
        while lines and not re.search(r"Exception|Error|error|Could not|Invalid|Unrecognized", lines[0]):
            lines.pop(0)
        causes = [line for line in lines if not re.match(r"Error occurred during initialization|\tat |at ", line)]
        if causes:
            return one_line(re.sub(r'^Exception in thread "main" [\w.$]+: ', "", causes[0])).rstrip(".")
    return failure_reason(java_message(error) if hasattr(error, "java_exception") else str(error))


def _sigint_handler() -> Any:
    return signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None


@contextmanager
def _environment(**variables: str | None) -> Iterator[None]:
    """Set environment variables while Spark starts: it takes some settings from there only."""
    before = {name: os.environ.get(name) for name in variables}
    _set_environment(variables)
    try:
        yield
    finally:
        _set_environment(before)


def _set_environment(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def find_java_home() -> Path:
    """The home of a Java that is new enough; SparkNotReady, with the remedy, if there is none."""
    too_old = []
    for binary in _java_candidates():
        major = _java_major(binary)
        if major is not None and major >= MAJOR_MIN:
            return binary.resolve().parent.parent
        if major is not None:
            too_old.append(major)
    found = f"only Java {max(too_old)}" if too_old else "no Java"
    raise SparkNotReady(
        f"Spark needs Java {MAJOR_MIN} or newer and {found} was found: install one (Debian and Ubuntu: "
        f"apt-get install openjdk-{MAJOR_MIN}-jre-headless) or set JAVA_HOME to one, or use engine local."
    )


def _java_candidates() -> Iterator[Path]:
    named = os.environ.get("JAVA_HOME")
    if named:
        yield Path(named, "bin", "java")
    recorded = Path(sys.prefix, ".java")  # where `make` writes what it found
    if recorded.is_file():
        home = recorded.read_text(encoding="utf-8", errors="replace").strip()
        if home:
            yield Path(home, "bin", "java")
    on_path = shutil.which("java")
    if on_path is not None:
        yield Path(on_path)
    yield from sorted(SYSTEM_HOMES.glob("*/bin/java"))


@cache
def _java_major(binary: Path) -> int | None:
    """The major version of a java binary: 17 for "17.0.15", 8 for "1.8.0_402"; None if it is not one."""
    if not os.access(binary, os.X_OK):
        return None
    try:
        answer = subprocess.run(
            [binary, "-version"], capture_output=True, text=True, errors="replace", timeout=_JAVA_VERSION_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _JAVA_VERSION.search(answer.stderr + answer.stdout)
    return int(found[1]) if found else None
