"""Sessions: obtained, started late, quiet, stopped; tasks on them; errors that arrive as themselves."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from omnigraph.errors import (
    BadRequest,
    BranchNotFound,
    ConstraintViolation,
    JobFailed,
    SparkNotReady,
    StorageFull,
    Unavailable,
    Violation,
)
from omnigraph.pipeline.spark import launch as java
from omnigraph.pipeline.spark import sizing as machine
from omnigraph.pipeline.spark.session import SparkSessionHandle, obtain

on_spark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]
GIB = machine.GIB


def in_a_process_of_its_own(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | environment,
        check=False,
    )


class TestTasks:
    pytestmark = on_spark

    def test_answers_come_in_the_order_of_the_items(self, spark_session: SparkSessionHandle) -> None:
        items = list(range(20))

        assert spark_session.runner.run(lambda n: n * n, items, stage="squares") == [n * n for n in items]

    def test_each_result_arrives_once_before_the_job_ends(
        self, spark_session: SparkSessionHandle, tmp_path: Path
    ) -> None:
        gate = tmp_path / "gate"

        def task(number: int) -> int:
            while number == 1 and not gate.exists():
                time.sleep(0.05)
            return number

        heard: list[int] = []

        def on_done(number: int) -> None:
            heard.append(number)
            gate.touch()  # without hearing of task 0, task 1 would never end

        spark_session.runner.run(task, [0, 1], stage="gated", on_done=on_done)

        assert heard == [0, 1]

    def test_no_items_are_no_job(self, spark_session: SparkSessionHandle) -> None:
        assert spark_session.runner.run(lambda n: n, [], stage="nothing") == []

    def test_an_error_of_ours_arrives_with_its_class_and_fields(self, spark_session: SparkSessionHandle) -> None:
        violation = Violation("Person.age range", "Person", "age", ("ada",), "has age 200", "give less")
        sent = ConstraintViolation("Person.age range", "Person", ("ada",), "too old", "age", (violation,))

        def task(_: int) -> int:
            raise sent

        with pytest.raises(ConstraintViolation) as caught:
            spark_session.runner.run(task, [1], stage="checks")

        assert caught.value.details == sent.details
        assert str(caught.value) == "too old"

    def test_an_error_of_ours_ends_the_job_without_waiting_for_other_tasks(
        self, spark_session: SparkSessionHandle
    ) -> None:
        def task(number: int) -> None:
            if number == 0:
                raise BranchNotFound("nowhere")
            time.sleep(120)

        start = time.monotonic()
        with pytest.raises(BranchNotFound):
            spark_session.runner.run(task, range(8), stage="checks")

        assert time.monotonic() - start < 60

    def test_a_store_that_does_not_serve_is_asked_again(
        self, spark_session: SparkSessionHandle, tmp_path: Path
    ) -> None:
        def task(_: int) -> int:
            attempts = len(list(tmp_path.iterdir()))
            (tmp_path / str(attempts)).touch()
            if attempts < 2:
                raise Unavailable("the table", "503")
            return attempts

        assert spark_session.runner.run(task, [1], stage="flaky") == [2]

    def test_a_store_that_never_serves_is_the_error(self, spark_session: SparkSessionHandle) -> None:
        def task(_: int) -> None:
            raise Unavailable("the table", "503")

        with pytest.raises(Unavailable, match="did not serve the table"):
            spark_session.runner.run(task, [1], stage="flaky")

    def test_an_unknown_failure_is_one_sentence(self, spark_session: SparkSessionHandle) -> None:
        def task(_: int) -> object:
            empty: dict[str, object] = {}
            return empty["nothing"]

        with pytest.raises(JobFailed) as caught:
            spark_session.runner.run(task, [1], stage="reading")

        assert str(caught.value).startswith("Spark failed in the stage 'reading' (KeyError: 'nothing'): nothing was")
        assert "\n" not in str(caught.value)
        assert "in task" in caught.value.__notes__[0]  # the traceback is kept for --debug

    def test_a_worker_that_dies_is_named(self, spark_session: SparkSessionHandle) -> None:
        with pytest.raises(JobFailed, match="a Python worker died, most often for want of memory"):
            spark_session.runner.run(lambda _: os._exit(9), [1], stage="reading")

    def test_an_error_of_the_listener_cancels_the_job(self, spark_session: SparkSessionHandle) -> None:
        def task(number: int) -> int:
            time.sleep(0 if number == 0 else 120)
            return number

        def on_done(_: int) -> None:
            raise BadRequest("enough")

        start = time.monotonic()
        with pytest.raises(BadRequest, match="enough"):
            spark_session.runner.run(task, [0, 1], stage="cancelled", on_done=on_done)

        assert time.monotonic() - start < 60
        assert not spark_session.spark.sparkContext.statusTracker().getActiveJobsIds()

    def test_ctrl_c_cancels_the_job(self, spark_session: SparkSessionHandle, tmp_path: Path) -> None:
        def task(number: int) -> None:
            (tmp_path / str(number)).touch()
            time.sleep(120)

        def interrupt() -> None:
            while not list(tmp_path.iterdir()):
                time.sleep(0.05)
            signal.raise_signal(signal.SIGINT)

        inherited = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
        try:
            threading.Thread(target=interrupt).start()
            with pytest.raises(KeyboardInterrupt):
                spark_session.runner.run(task, [0, 1], stage="cancelled")
        finally:
            signal.signal(signal.SIGINT, inherited)

        assert not spark_session.spark.sparkContext.statusTracker().getActiveJobsIds()
        assert spark_session.runner.run(lambda n: n, [7], stage="after") == [7]


class TestObtaining:
    pytestmark = on_spark

    def test_a_given_session_is_used_and_left_alone(self, spark_session: SparkSessionHandle) -> None:
        with obtain(spark_session.spark) as session:
            assert session.spark is spark_session.spark

        assert spark_session.runner.run(lambda n: n, [1], stage="after") == [1]

    def test_a_session_that_runs_already_is_used(self, spark_session: SparkSessionHandle) -> None:
        with obtain() as session:
            assert session.spark.sparkContext is spark_session.spark.sparkContext

        assert spark_session.runner.run(lambda n: n, [1], stage="after") == [1]

    def test_another_master_is_refused_while_a_session_runs(self, spark_session: SparkSessionHandle) -> None:
        with pytest.raises(BadRequest, match="runs in this process already: stop it to use local"):
            obtain(master="local[1]")

    def test_a_session_and_another_master_are_refused(self, spark_session: SparkSessionHandle) -> None:
        with pytest.raises(BadRequest, match="not both"):
            obtain(spark_session.spark, "local[1]")

    def test_it_reads_times_as_utc(self, spark_session: SparkSessionHandle) -> None:
        assert spark_session.spark.conf.get("spark.sql.session.timeZone") == "UTC"


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_a_session_starts_late_and_quietly_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = in_a_process_of_its_own(
        """
        import os, signal, sys
        from omnigraph.pipeline.spark.session import obtain

        before = signal.getsignal(signal.SIGINT)
        def processes():
            with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children") as children:
                return children.read()

        session = obtain(cores=1, memory="512m")
        assert session.parallelism == 1 and not processes()
        with session:
            assert session.runner.run(lambda n: (n, sys.executable), [1], stage="a") == [(1, sys.executable)]
            assert processes() and os.listdir(os.environ["TMPDIR"])
        assert signal.getsignal(signal.SIGINT) is before
        print("left:", processes(), os.listdir(os.environ["TMPDIR"]))
        """,
        TMPDIR=str(tmp_path),
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == "left:  []"


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_a_session_that_can_not_start_says_why_in_a_sentence() -> None:
    done = in_a_process_of_its_own(
        """
        from omnigraph.errors import SparkNotReady
        from omnigraph.pipeline.spark.session import obtain

        try:
            obtain(memory="1x").spark
        except SparkNotReady as error:
            print(error)
        """
    )

    assert done.stderr == ""
    assert done.stdout.startswith("Spark could not be started (")
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize("master", ["elsewhere", "http://host", "local[x]", "spark://"])
def test_a_master_that_is_none_is_refused(master: str) -> None:
    with pytest.raises(BadRequest, match="is not a Spark master"):
        obtain(master=master)


def test_a_master_that_does_not_answer_is_named_at_once() -> None:
    done = in_a_process_of_its_own(
        """
        from omnigraph.errors import SparkNotReady
        from omnigraph.pipeline.spark.session import obtain

        try:
            obtain(master="spark://127.0.0.1:9").spark
        except SparkNotReady as error:
            print(error)
        """
    )

    assert done.stdout == ("There is no Spark master at spark://127.0.0.1:9 (Connection refused): check the address.\n")


def test_without_pyspark_there_is_a_sentence() -> None:
    done = in_a_process_of_its_own(
        """
        import sys
        sys.modules["pyspark"] = None  # as if it were not installed
        import omnigraph.pipeline
        from omnigraph.errors import SparkNotReady

        for use in (lambda: __import__("omnigraph.pipeline.spark.session", fromlist=["obtain"]).obtain(),
                    lambda: omnigraph.pipeline.OmnigraphDataSource):
            try:
                use()
            except SparkNotReady as error:
                print(error)
        """
    )

    sentence = "Spark is not installed: pip install 'omnigraph[spark]', or use engine local.\n"
    assert done.stdout == sentence * 2, done.stderr


class TestJava:
    @pytest.fixture
    def nowhere(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
        """A machine without Java."""
        monkeypatch.delenv("JAVA_HOME", raising=False)
        monkeypatch.setattr(sys, "prefix", str(tmp_path))
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(java, "SYSTEM_HOMES", tmp_path / "jvm")
        return tmp_path

    def fake(self, home: Path, version: str) -> Path:
        binary = home / "bin" / "java"
        binary.parent.mkdir(parents=True)
        binary.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\n")
        binary.chmod(0o755)
        return home

    def test_none_is_refused_with_the_remedy(self, nowhere: Path) -> None:
        with pytest.raises(SparkNotReady, match=r"no Java was found: install one .* or set JAVA_HOME"):
            java.find_java_home()

    def test_an_old_one_is_refused_by_its_version(self, nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("JAVA_HOME", str(self.fake(nowhere / "eight", "1.8.0_402")))

        with pytest.raises(SparkNotReady, match="needs Java 17 or newer and only Java 8 was found"):
            java.find_java_home()

    def test_the_one_that_make_found_is_used(self, nowhere: Path) -> None:
        home = self.fake(nowhere / "kept", "17.0.15")
        (nowhere / ".java").write_text(f"{home}\n")

        assert java.find_java_home() == home

    def test_one_that_will_do_is_found_behind_one_that_will_not(
        self, nowhere: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("JAVA_HOME", str(self.fake(nowhere / "eight", "1.8.0_402")))
        newer = self.fake(nowhere / "jvm" / "java-21", "21.0.2")

        assert java.find_java_home() == newer


class TestSizes:
    @pytest.mark.parametrize(
        ("cores", "memory", "expected"),
        [
            (2, 8 * GIB, (2 * GIB, 2)),
            (64, 256 * GIB, (8 * GIB, 64)),  # more heap would not help: rows are in the workers
            (16, 4 * GIB, (GIB, 3)),  # a worker needs its gigabyte
            (4, GIB, (GIB // 2, 1)),
            (1, 0, (GIB // 2, 1)),
        ],
    )
    def test_heap_and_workers_follow_from_what_is_free(
        self, cores: int, memory: int, expected: tuple[int, int]
    ) -> None:
        assert machine.divide_memory(cores, memory) == expected

    def test_scratch_goes_to_the_first_place_with_ample_room(self, monkeypatch: pytest.MonkeyPatch) -> None:
        free = {Path("/a"): 2 * GIB, Path("/b"): 30 * GIB, Path("/c"): 90 * GIB}
        monkeypatch.setattr(shutil, "disk_usage", lambda place: _Usage(free[place]))

        assert machine.choose_scratch(list(free)) == Path("/b")
        assert machine.choose_scratch([Path("/a")]) == Path("/a")

    def test_a_full_disk_is_refused_before_anything_starts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda place: _Usage(GIB // 10))

        with pytest.raises(StorageFull, match=r"0\.1 GiB are free in /a"):
            machine.choose_scratch([Path("/a")])


class _Usage:
    def __init__(self, free: int) -> None:
        self.free: Any = free
