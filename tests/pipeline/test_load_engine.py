"""Which engine a load takes: what is small stays here, what is large goes to Spark, what was asked for is done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import omnigraph
from omnigraph.errors import BadRequest, SparkNotReady
from omnigraph.graph.graph import Graph
from omnigraph.pipeline.progress import Progress
from omnigraph.pipeline.spark.session import SparkSessionHandle
from omnigraph.write.load.input import load_input as ndjson

on_spark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]
SCHEMA = "node Person { slug: String @key  age: I32? }"


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return omnigraph.init(tmp_path / "graph", SCHEMA)


@pytest.fixture
def people(tmp_path: Path) -> Path:
    path = tmp_path / "people.jsonl"
    path.write_text("".join(json.dumps({"type": "Person", "data": {"slug": f"p{n}"}}) + "\n" for n in range(20)))
    return path


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that should not load more than ten rows."""
    monkeypatch.setattr(ndjson.LoadLimits, "check", _check)


def _check(_: Any, rows: int, __: int) -> None:
    if rows > 10:
        raise ndjson.TooLargeForProcess("too large")


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without Java; no session runs in this process either."""
    from pyspark import SparkContext

    def none() -> Path:
        raise SparkNotReady("Spark needs Java.")

    monkeypatch.setattr("omnigraph.pipeline.spark.launch.find_java_home", none)
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr("omnigraph.pipeline.spark.session._shared", None)


def rows(graph: Graph) -> int:
    return graph.snapshot().types[0].rows


def test_what_is_small_stays_in_this_process(graph: Graph, people: Path, no_spark: None) -> None:
    progress = Progress()

    graph.load(people, progress=progress)

    assert (rows(graph), progress.state.stage) == (20, "")


@pytest.mark.usefixtures("small_limits", "no_spark")
def test_what_is_large_is_loaded_here_in_bulk_where_there_is_no_spark(graph: Graph, people: Path) -> None:
    progress = Progress()

    graph.load(people, progress=progress)

    assert (rows(graph), progress.state.stage) == (20, "publishing")


@pytest.mark.usefixtures("small_limits", "no_spark")
def test_large_tables_are_loaded_in_bulk_too(graph: Graph) -> None:
    graph.load({"Person": pa.table({"slug": [f"p{n}" for n in range(20)]})})

    assert rows(graph) == 20


@pytest.mark.usefixtures("small_limits")
def test_what_was_read_of_an_iterator_can_not_be_handed_over(graph: Graph) -> None:
    with pytest.raises(ndjson.TooLargeForProcess):
        graph.load({"type": "Person", "data": {"slug": f"p{n}"}} for n in range(20))

    assert rows(graph) == 0


@pytest.mark.usefixtures("no_spark")
def test_spark_that_was_asked_for_and_is_not_there_is_an_error(graph: Graph, people: Path) -> None:
    with pytest.raises(SparkNotReady):
        graph.load(people, engine="spark")

    assert rows(graph) == 0


@pytest.mark.usefixtures("no_spark")
def test_a_job_id_makes_a_small_load_one_that_can_be_gone_on_with(graph: Graph, people: Path) -> None:
    first = graph.load(people, engine="local", job_id="monday").commit
    again = graph.load(people, engine="local", job_id="monday").commit

    assert first is not None
    assert again is not None
    assert again.id == first.id


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"engine": "duck"}, "Unknown engine 'duck': use auto, local or spark"),
        ({"engine": "spark"}, "write the entities to a .jsonl file first"),
        ({"job_id": "monday"}, "A job id is for loads of files"),
        ({"engine": "local", "master": "local[2]"}, "The engine is local, but a Spark session or master was given"),
    ],
)
def test_what_does_not_go_together_is_refused(graph: Graph, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadRequest, match=sentence):
        graph.load([{"type": "Person", "data": {"slug": "ada"}}], **options)

    assert rows(graph) == 0


def test_what_was_left_out_is_summed_up_by_type_and_reason(graph: Graph, tmp_path: Path) -> None:
    data = tmp_path / "people.jsonl"
    rows = [{"slug": "ada", "age": 1}, {"slug": "bob", "age": "old"}, {"slug": "ada"}]
    data.write_text("".join(json.dumps({"type": "Person", "data": row}) + "\n" for row in rows) + "nonsense\n")
    command = [sys.executable, "-m", "omnigraph", "load", "--data", str(data), "--store", graph.uri]
    command += ["--engine", "local"]

    done = subprocess.run(
        [*command, "--job-id", "monday", "--on-error", "quarantine"], capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 0, done.stderr
    assert [line.split() for line in done.stderr.splitlines()[1:]] == [
        ["type", "reason", "rows"],
        ["no", "readable", "entity", "1"],
        ["Person", "Person.age", "type", "I32", "1"],
        ["Person", "id", "given", "twice", "1"],
    ]


class TestOnSpark:
    pytestmark = on_spark

    @pytest.mark.usefixtures("small_limits")
    def test_what_is_large_goes_to_spark(self, graph: Graph, people: Path, spark_session: SparkSessionHandle) -> None:
        progress = Progress()

        graph.load(people, progress=progress, spark=spark_session.spark)

        assert (rows(graph), progress.state.stage) == (20, "publishing")

    def test_frames_need_no_engine(self, graph: Graph, spark_session: SparkSessionHandle) -> None:
        frame = spark_session.spark.createDataFrame([("ada", 36)], "slug string, age int")

        assert graph.load({"Person": frame}).counts == {"Person": 1}
        with pytest.raises(BadRequest, match="A Spark DataFrame is loaded by Spark"):
            graph.load({"Person": frame}, engine="local")

    def test_the_command_line_starts_and_stops_its_own_session(
        self, graph: Graph, people: Path, tmp_path: Path
    ) -> None:
        scratch = tmp_path / "scratch"
        scratch.mkdir()

        done = subprocess.run(
            [sys.executable, "-m", "omnigraph", "load", "--data", people, "--engine", "spark", "--master", "local[1]",
             "--store", graph.uri, "--json"],
            capture_output=True, text=True, timeout=200, env=os.environ | {"TMPDIR": str(scratch)},
        )  # fmt: skip

        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["counts"] == {"Person": 20}
        assert rows(graph) == 20
        assert list(scratch.iterdir()) == []
