"""On Spark, too, everything sees the rows that small commits left in manifests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import omnigraph
from omnigraph.pipeline.bulk.load import BulkSettings, bulk_load
from omnigraph.pipeline.exporting import export as exporting
from omnigraph.pipeline.progress import Progress
from omnigraph.pipeline.spark.session import SparkSessionHandle
from omnigraph.write.load.load_options import LoadOptions
from pipeline.bulk import write_lines
from pipeline.test_inline_rows import LOADS
from support.twins import INLINE, PERSON, Twins, counted, everything, make_twins, rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from omnigraph.graph.graph import Graph

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


@pytest.fixture
def twins(tmp_path: Path) -> Twins:
    return make_twins(tmp_path)


def frame(spark: SparkSession, graph: Graph, type_name: str, **options: str) -> DataFrame:
    reader = spark.read.format("omnigraph").option("store", graph.uri).option("type", type_name)
    return reader.options(**options).load()


def test_a_data_frame_has_exactly_the_rows_of_the_type(twins: Twins, spark: SparkSession) -> None:
    read: dict[str, list[Any]] = {}
    for name, graph in (("staged", twins.staged), ("tailed", twins.tailed)):
        people = frame(spark, graph, "Person", pushdown="true", partitionRows="8").select("slug", "age", "bio")
        cities = frame(spark, graph, "City").select("name", "size")
        chosen = people.where("age >= 3 AND bio IS NOT NULL")
        read[name] = [sorted(map(tuple, one.collect()), key=repr) for one in (people, chosen, cities)]

    assert read["tailed"] == read["staged"]
    assert [len(one) for one in read["tailed"]] == [21, 17, 2]


QUERIES = [
    "match { $p: Person  $p.age >= 3 } return { $p.slug, $p.age } order { $p.slug asc }",
    "match { $p: Person  $p knows $q } return { $p.slug, $q.slug } order { $p.slug asc, $q.slug asc }",
    "match { $c: City  $p livesIn $c } return { $c.name, $c.size, count($p) as n } order { $c.name asc }",
    "match { $p: Person  not { $p knows $_ } } return { count($p) as n }",
]


@pytest.mark.parametrize("text", QUERIES)
def test_a_query_gives_the_rows_of_this_process(twins: Twins, spark: SparkSession, text: str) -> None:
    asked = f"query q() {{ {text} }}"
    here = twins.staged.query(asked).rows
    there = twins.tailed.query(asked, engine="spark", spark=spark).rows

    assert there == here
    assert there


def test_an_export_by_executors_is_the_graph(
    twins: Twins, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "PART_ROWS_MAX", 6)
    monkeypatch.setattr(exporting, "ORDERED_PARTS_MAX", 0)

    twins.tailed.export(tmp_path / "out", format="parquet", engine="spark", spark=spark)
    there = make_twins(tmp_path / "others").staged
    there.load(tmp_path / "out", mode="overwrite")

    assert everything(there) == everything(twins.staged)


def test_an_analysis_is_computed_and_written_by_executors(twins: Twins, spark: SparkSession) -> None:
    here = twins.staged.analyze("degrees", ["Knows"], "Person.degree", limit=None)
    there = twins.tailed.analyze("degrees", ["Knows"], "Person.degree", engine="spark", spark=spark, limit=None)

    assert there.table.to_pylist() == here.table.to_pylist()
    assert everything(twins.tailed) == everything(twins.staged)
    assert counted(twins.tailed)[PERSON] == (21, 21)


class Meddling(Progress):
    """Somebody writes a little when the load is about to publish, once."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self._graph = graph
        self.stages: list[str] = []

    def stage(self, name: str, tasks: int | None = None) -> None:
        super().stage(name, tasks)
        if name == "publishing" and name not in self.stages:
            self._graph.mutate('query q() { insert Person { slug: "between", bio: "x" } }')
        self.stages.append(name)


def test_a_bulk_load_verified_by_spark_stands_beside_small_commits(
    twins: Twins, tmp_path: Path, spark_session: SparkSessionHandle
) -> None:
    given = write_lines(tmp_path / "given.jsonl", LOADS["merge"])
    settings = BulkSettings(split_bytes=4_000, spark_keys_min=0)
    progress = Meddling(omnigraph.open(twins.tailed.uri, settings=INLINE))

    twins.staged.load(given, mode="merge")
    twins.staged.mutate('query q() { insert Person { slug: "between", bio: "x" } }')
    source, runner = str(given), spark_session.runner
    bulk_load(twins.tailed.repository, runner, source, LoadOptions(mode="merge"), settings=settings, progress=progress)

    assert progress.stages.count("verifying") == 1
    assert everything(twins.tailed) == everything(twins.staged)
    assert all(one == other for one, other in counted(twins.tailed).values())


def test_a_data_frame_is_merged_into_a_table_with_small_commits_on_top(twins: Twins, spark: SparkSession) -> None:
    given = spark.createDataFrame([("p03", 1), ("q1", 2), ("n1", 3), ("p07", 4)], "slug string, age int")

    twins.tailed.load({"Person": given}, mode="merge", spark=spark)

    ages = {row["id"]: (row["age"], row["bio"]) for row in rows(twins.tailed, PERSON)}
    assert ages["p03"] == (1, "about p03")
    assert (ages["q1"], ages["n1"], ages["p07"]) == ((2, "about q1"), (3, None), (4, None))
    assert counted(twins.tailed)[PERSON] == (23, 23)
