"""One Spark session for all tests of a process, and a standalone cluster of separate processes.

A session takes seconds to start and a gigabyte: tests share one, and mark themselves

    pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

so that one worker of pytest runs them all.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from omnigraph.pipeline.spark.launch import find_java_home
from omnigraph.pipeline.spark.session import SparkSessionHandle, obtain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_S = 120.0
CORES = 2
MEMORY = "1g"

# Tables here have some dozens of rows: what Spark does to be fast over millions (compile every plan, and that twice
# over, in many partitions) is most of what a test waits for. Sessions that tests start for themselves have it all.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # for Java
FEW_ROWS = {
    "spark.driver.defaultJavaOptions": SHORT_LIVED,
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
}


@pytest.fixture(scope="session")
def spark_session() -> Iterator[SparkSessionHandle]:
    """The session of this process, with the data source registered; `.spark` is Spark's, `.runner` runs tasks."""
    from omnigraph.pipeline import OmnigraphDataSource

    with obtain(cores=CORES, memory=MEMORY, config=FEW_ROWS) as session:
        session.spark.dataSource.register(OmnigraphDataSource)
        yield session


@pytest.fixture
def spark(spark_session: SparkSessionHandle) -> SparkSession:
    return spark_session.spark


class Cluster:
    """A master and some workers, each a process of its own, started through Spark's own launcher."""

    def __init__(self, folder: Path, workers: int = 2, environment: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._workers = workers
        self._environment = dict(environment or {})
        self._processes: list[subprocess.Popen[bytes]] = []
        self.master = ""

    def __enter__(self) -> Cluster:
        try:
            log = self._launch("master", "org.apache.spark.deploy.master.Master", "--port", "0", "--webui-port", "0")
            self.master = self._said(log, r"Starting Spark master at (spark://\S+)")
            logs = [
                self._launch(
                    f"worker-{number}",
                    "org.apache.spark.deploy.worker.Worker",
                    *("--cores", "1", "--memory", "1g", "--webui-port", "0"),
                    *("--work-dir", str(self._folder / f"work-{number}")),
                    self.master,
                )
                for number in range(self._workers)
            ]
            for one in logs:
                self._said(one, r"(Successfully registered with master)")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.executors():
            _kill(pid)
        for process in reversed(self._processes):
            process.kill()
            process.wait()

    def executors(self) -> list[int]:
        """The process ids of the executors that run now: children of the workers, by what Linux tells of them."""
        ours = {process.pid for process in self._processes}
        return sorted(
            pid
            for pid, parent, command in _running()
            if parent in ours and "org.apache.spark.executor.CoarseGrainedExecutorBackend" in command
        )

    def kill_an_executor(self) -> int:
        """Kill one executor as a machine that fails would: it gets no chance to say goodbye."""
        victim = self.executors()[0]
        _kill(victim)
        return victim

    def _launch(self, name: str, main: str, *arguments: str) -> Path:
        import pyspark

        home = Path(pyspark.__file__).parent
        log = self._folder / f"{name}.log"
        environment = os.environ | {
            "JAVA_HOME": str(find_java_home()),
            "SPARK_HOME": str(home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self._folder),
            "PYSPARK_PYTHON": sys.executable,
            **self._environment,
        }
        with log.open("wb") as out:
            process = subprocess.Popen(
                [str(home / "bin" / "spark-class"), main, "--host", "127.0.0.1", *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=self._folder,
                start_new_session=True,
            )
        self._processes.append(process)
        return log

    def _said(self, log: Path, pattern: str) -> str:
        """What a log says, once it does."""
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            found = re.search(pattern, log.read_text(errors="replace"))
            if found:
                return found[1]
            time.sleep(0.1)
        raise RuntimeError(f"{log.name} did not say {pattern!r} within {START_S:.0f} s:\n{log.read_text()[-2000:]}")


def _running() -> Iterator[tuple[int, int, str]]:
    """Process id, parent and command line of all processes."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                status = (entry / "stat").read_text()
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue  # it has ended
            yield int(entry.name), int(status.rpartition(")")[2].split()[1]), command


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
