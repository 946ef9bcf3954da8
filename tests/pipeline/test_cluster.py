"""A bulk load on a real standalone cluster against S3: a master, two workers, and an executor that is killed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import omnigraph
from support.catalogs import ids_of
from support.s3 import S3Location, keys
from support.spark import SHORT_LIVED, Cluster

pytestmark = [pytest.mark.spark, pytest.mark.s3, pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

SCHEMA = """
node Person { slug: String @key  name: String @unique  age: I32? }
edge Knows: Person -> Person { since: Date?  @unique(src, dst) }
"""
PEOPLE = 3_000
SPLIT_BYTES = 16 * 1024
WAIT_S = 240.0

DRIVER = """
import json, sys
import omnigraph
from omnigraph.pipeline.bulk.load import BulkSettings, bulk_load
from omnigraph.pipeline.spark.session import obtain

uri, options, master, source = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3], sys.argv[4]
config = {"spark.executor.memory": "512m", "spark.speculation": "true", "spark.speculation.minTaskRuntime": "1s"}
config |= {f"spark.{one}.defaultJavaOptions": sys.argv[6] for one in ("driver", "executor")}
graph = omnigraph.open(uri, options)
with obtain(master=master, memory="512m", config=config) as session:
    settings = BulkSettings(split_bytes=int(sys.argv[5]))
    result = bulk_load(graph.repository, session.runner, source, settings=settings)
print(json.dumps(dict(result.counts)))
"""


def write_people(folder: Path) -> int:
    """People who each know the next one; answers how many splits that is."""
    with (folder / "people.jsonl").open("w") as file:
        for n in range(PEOPLE):
            file.write(json.dumps({"type": "Person", "data": {"slug": f"p{n}", "name": f"Person {n}", "age": n % 90}}))
            file.write("\n")
    with (folder / "knows.jsonl").open("w") as file:
        for n in range(PEOPLE):
            file.write(json.dumps({"edge": "Knows", "from": f"p{n}", "to": f"p{(n + 1) % PEOPLE}", "data": {}}) + "\n")
    return sum(-(-path.stat().st_size // SPLIT_BYTES) for path in folder.iterdir())


def wait_until(happened: Callable[[], bool], driver: subprocess.Popen[str]) -> None:
    end = time.monotonic() + WAIT_S
    while not happened():
        assert driver.poll() is None, driver.communicate()
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def test_a_load_survives_the_loss_of_an_executor(s3: S3Location, tmp_path: Path) -> None:
    graph = omnigraph.init(s3.uri, SCHEMA, s3.options)
    source, spark = tmp_path / "source", tmp_path / "spark"
    source.mkdir()
    spark.mkdir()
    splits = write_people(source)

    def staged() -> int:
        found = keys(s3.endpoint, s3.bucket, "graph/__recovery/")
        return sum(1 for key in found if key.count("/") == 5 and key.endswith(".json"))

    with Cluster(spark) as cluster:
        how: list[str | Path] = [s3.uri, json.dumps(s3.options), cluster.master, source, str(SPLIT_BYTES), SHORT_LIVED]
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, *how],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            wait_until(lambda: staged() >= splits // 10 and len(cluster.executors()) == 2, driver)
            cluster.kill_an_executor()
            done_then = staged()
            answer, said = driver.communicate(timeout=WAIT_S)
        finally:
            driver.kill()
            driver.wait()

    assert driver.returncode == 0, said
    assert done_then < splits, "the load was over before the executor was killed"
    assert json.loads(answer) == {"Person": PEOPLE, "Knows": PEOPLE}
    assert said == ""
    snapshot = graph.snapshot()
    assert {one.type_name: one.rows for one in snapshot.types} == {"Person": PEOPLE, "Knows": PEOPLE}
    people = ids_of(snapshot.to_arrow("node:Person", ["id"]))
    assert people == sorted(f"p{n}" for n in range(PEOPLE))
    ends = snapshot.to_arrow("edge:Knows", ["src", "dst"]).to_pylist()
    assert sorted((row["src"], row["dst"]) for row in ends) == sorted(
        (f"p{n}", f"p{(n + 1) % PEOPLE}") for n in range(PEOPLE)
    )
    assert [commit.kind for commit in graph.commits()] == ["load", "init"]
    assert not [key for key in keys(s3.endpoint, s3.bucket, "graph/__recovery/") if not key.endswith("_clock")]
