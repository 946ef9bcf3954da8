"""The bulk load on Spark: the same tasks on executors, and Spark SQL for keys that have outgrown one machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from omnigraph.pipeline.bulk.load import BulkSettings
from omnigraph.pipeline.bulk.verification.sql_engine import DuckDbEngine, SparkSqlEngine
from omnigraph.pipeline.spark.session import SparkSessionHandle
from omnigraph.storage.util.runner import LocalRunner
from pipeline.bulk import SMALL_SPLITS, BulkWorld, agree, edge, node, person, write_lines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

TYPES = """
node Thing {
    name: String @key
    small: U32?
    large: U64?
    part: F64?
    half: F32?
    day: Date?
    at: DateTime?
    yes: Bool?
    sort: enum(a, b)?
    @unique(small, large, part, half, day, at, yes, sort)
}
"""
ON_SPARK = BulkSettings(split_bytes=4000, spark_keys_min=0)
PEOPLE = [person(f"p{number:02}") for number in range(30)]
STORED = [
    *(person(f"s{number}", age=number) for number in range(6)),
    node("Company", name="old"),
    node("Company", name="lone"),
    edge("Knows", "s0", "s1", id="k1"),
    edge("WorksAt", "s0", "old", id="w1"),
    edge("Needs", "old", "s1", id="d1"),
    edge("Needs", "lone", "s1", id="d2"),
]
EVERYTHING_WRONG: dict[str, list[Any]] = {
    "append": [
        *PEOPLE,
        *(person(f"x{number}", age=200 + number) for number in range(3)),
        *(person("p03", name=f"again {number}") for number in range(2)),
        *(person(slug) for slug in ("s1", "s0")),
        *(person(slug, name="P05") for slug in ("u", "v")),
        person("w", name="S1"),
        *(edge("Likes", "p01", ghost, id=f"l{ghost}") for ghost in ("g1", "g2")),
        *(edge("WorksAt", source, "old", id=f"w{source}") for source in ("s0", "p01", "p02")),
        edge("WorksAt", "p01", "lone", id="w9"),
        *(edge("Needs", "old", f"p{number:02}", id=f"n{number}") for number in range(4)),
    ],
    "merge": [
        person("s1", age=1),
        person("s1", age=5),
        person("s2", name="S3"),
        person("new", name="S4", age=999),
        edge("Knows", "s0", "s1"),
        edge("Knows", "s0", "s1", since="2021-01-01"),
        edge("WorksAt", "s0", "lone", id="w2"),
        edge("WorksAt", "s3", "ghost", id="w1"),
        edge("Needs", "lone", "s2", id="d1"),
    ],
    "overwrite": [person("s0"), person("s1"), edge("Needs", "old", "s1", id="q")],
}


class TasksHere(LocalRunner):
    """Tasks run in this process, and only the keys are Spark's: what is tested is its SQL."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark


@pytest.fixture
def runner(spark: SparkSession) -> Iterator[TasksHere]:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    assert before is not None
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    yield TasksHere(spark)
    spark.conf.set("spark.sql.shuffle.partitions", before)


@pytest.mark.parametrize(
    ("mode", "on_error"),
    [
        pytest.param("append", "fail", marks=pytest.mark.soak),
        pytest.param("merge", "fail", marks=pytest.mark.soak),
        ("merge", "quarantine"),
        ("overwrite", "fail"),
    ],
)
def test_spark_sql_finds_what_a_load_in_one_process_finds(
    tmp_path: Path, runner: TasksHere, mode: str, on_error: str
) -> None:
    entities = EVERYTHING_WRONG[mode]

    outcome = agree(tmp_path, entities, STORED, mode=mode, on_error=on_error, runner=runner, settings=ON_SPARK)

    assert outcome.error is not None or outcome.rejected


def test_spark_sql_takes_values_of_every_type_as_duckdb_does(tmp_path: Path, runner: TasksHere) -> None:
    values: dict[str, Any] = {
        "small": 2**32 - 1,
        "large": 2**64 - 1,
        "part": 0.0,
        "half": 0.5,
        "day": "2026-01-31",
        "at": "2026-01-31T12:00:00.250Z",
        "yes": True,
        "sort": "a",
    }
    others = [node("Thing", name=f"o{name}", **(values | {name: None})) for name in values]
    met = [node("Thing", name="met", **(values | {"part": -0.0}))]
    twice = [
        node("Thing", name=name, **(values | {"small": 7, "part": zero})) for name, zero in (("y", 0.0), ("z", -0.0))
    ]
    stored = [node("Thing", name="one", **values)]

    outcome = agree(tmp_path, [*others, *met, *twice], stored, schema=TYPES, runner=runner, settings=ON_SPARK)

    assert outcome.error is not None
    assert [one["entity_ids"] for one in outcome.error["violations"]] == [["z"], ["met"]]


def test_a_load_on_executors_is_one_commit(tmp_path: Path, spark_session: SparkSessionHandle) -> None:
    world = BulkWorld.make(tmp_path / "graph", runner=spark_session.runner)
    people = [person(f"p{number:04}") for number in range(2000)]
    knows = [edge("Knows", f"p{number:04}", f"p{number + 1:04}") for number in range(1999)]
    given = write_lines(tmp_path / "given.jsonl", [*people, *knows])

    result = world.bulk(str(given), settings=replace(SMALL_SPLITS, split_bytes=40_000))

    assert result.commit is not None
    assert result.commit.touched == {"node:Person": {"inserted": 2000}, "edge:Knows": {"inserted": 1999}}
    assert (world.count("Person"), world.count("Knows")) == (2000, 1999)


def test_keys_are_spark_s_only_above_a_size(tmp_path: Path, runner: TasksHere) -> None:
    from omnigraph.pipeline.bulk import load as module

    asked: list[str] = []

    class Noted(DuckDbEngine):
        def rows(self, sql: str, inputs: Any) -> Any:
            asked.append("duckdb")
            return super().rows(sql, inputs)

    class NotedSpark(SparkSqlEngine):
        def rows(self, sql: str, inputs: Any) -> Any:
            asked.append("spark")
            return super().rows(sql, inputs)

    given = write_lines(tmp_path / "given.jsonl", PEOPLE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "DuckDbEngine", Noted)
        patch.setattr(module, "SparkSqlEngine", NotedSpark)
        for number, (least, name) in enumerate(((31, "duckdb"), (30, "spark"))):
            world = BulkWorld.make(tmp_path / f"graph{number}", runner=runner)
            world.bulk(str(given), settings=BulkSettings(spark_keys_min=least))
            assert set(asked) == {name}
            asked.clear()
