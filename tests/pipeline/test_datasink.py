"""Writing DataFrames: through the data source, and as the source of a load. One commit, every row once, or nothing."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import omnigraph
from omnigraph.errors import BadRequest, ConstraintViolation, PreconditionFailed
from omnigraph.graph.graph import Graph
from omnigraph.pipeline.bulk.dataframe_source import load_tables
from omnigraph.pipeline.bulk.load import bulk_load
from omnigraph.pipeline.bulk.staging import spool as spooling
from omnigraph.pipeline.bulk.staging.spool import begin_spool, check_rows, combine_parts, discard_spool, spool_rows
from omnigraph.pipeline.spark.dataframes import has_frames, is_frame
from omnigraph.pipeline.spark.session import SparkSessionHandle, obtain
from omnigraph.storage.util.runner import LocalRunner
from omnigraph.write.load.load import LoadResult
from omnigraph.write.load.load_options import LoadOptions
from support.arrow import schema_of
from support.catalogs import ids_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

on_spark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

SCHEMA = """
node Person {
    slug: String @key
    name: String?
    age: I32?
    small: U32?
    vast: U64?
    wide: [U64]?
    score: F64?
    weight: F32?
    ok: Bool?
    role: enum(ops, lead)?
    born: Date?
    seen: DateTime?
    tags: [String]?
    face: Vector(2)?
    data: Blob?
}
node City { name: String @key }
edge Knows: Person -> Person { since: Date? }
edge LivesIn: Person -> City @card(0..1)
"""
FULL = {
    "slug": "ada",
    "name": "Ada",
    "age": 36,
    "small": 2**32 - 1,
    "vast": 2**64 - 1,
    "wide": [0, 2**64 - 1],
    "score": 0.1,
    "weight": 0.1,
    "ok": True,
    "role": "lead",
    "born": "1815-12-10",
    "seen": "2026-01-31T12:00:00.250Z",
    "tags": ["math", ""],
    "face": [1.0, 0.5],
    "data": "base64:AAE=",
}


def person(slug: str, **values: Any) -> dict[str, Any]:
    return {"type": "Person", "data": {"slug": slug, **values}}


def load_frames(graph: Graph, source: dict[str, Any], options: LoadOptions | None = None) -> LoadResult:
    """A load on the session that the first of the DataFrames belongs to."""
    frame = next(value for value in source.values() if is_frame(value))
    return load_tables(graph.repository, obtain(frame.sparkSession).runner, source, options)


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return omnigraph.init(tmp_path / "graph", SCHEMA)


def save(frame: DataFrame, graph: Graph, type_name: str, mode: str = "append", **options: str) -> None:
    writer = frame.write.format("omnigraph").option("store", graph.uri).option("type", type_name)
    writer.options(**{name.rstrip("_"): text for name, text in options.items()}).mode(mode).save()


def ids(graph: Graph, key: str = "node:Person", branch: str = "main") -> list[str]:
    return ids_of(graph.snapshot(branch).to_arrow(key, ["id"]))


def exported(graph: Graph) -> bytes:
    out = io.BytesIO()
    graph.export(out)
    return out.getvalue()


def left_over(graph: Graph) -> list[str]:
    """What unfinished loads keep on the store."""
    return [listed.key for listed in graph.repository.store.list("__recovery") if not listed.key.endswith("_clock")]


def tables(graph: Graph) -> dict[str, int]:
    return {one.type_name: one.rows for one in graph.snapshot().types if one.rows}


class TestSaving:
    pytestmark = on_spark

    def test_what_is_read_and_saved_elsewhere_is_the_same(
        self, spark: SparkSession, graph: Graph, tmp_path: Path
    ) -> None:
        graph.load([{"type": "Person", "data": FULL}, person("none")])
        other = omnigraph.init(tmp_path / "other", SCHEMA)
        frame = spark.read.format("omnigraph").option("store", graph.uri).option("type", "Person").load()

        save(frame.repartition(2), other, "Person")

        assert exported(other) == exported(graph)
        assert [commit.kind for commit in other.commits()] == ["load", "init"]
        assert left_over(other) == []

    def test_a_merge_changes_the_given_columns_only(self, spark: SparkSession, graph: Graph) -> None:
        graph.load([person("ada", name="Ada", age=36)])

        save(spark.createDataFrame([("ada", 37), ("bob", 20)], "slug string, age int"), graph, "Person", mode_="merge")

        rows = graph.snapshot().to_arrow("node:Person", ["id", "name", "age"]).to_pylist()
        assert sorted(map(tuple, (row.values() for row in rows))) == [("ada", "Ada", 37), ("bob", None, 20)]

    def test_an_overwrite_leaves_what_was_written(self, spark: SparkSession, graph: Graph) -> None:
        graph.load([person("ada"), person("bob")])

        save(spark.createDataFrame([("grace",)], "slug string"), graph, "Person", mode="overwrite")
        assert ids(graph) == ["grace"]

        save(spark.createDataFrame([], "slug string"), graph, "Person", mode="overwrite")
        assert ids(graph) == []

    def test_edges_take_src_and_dst_or_from_and_to(self, spark: SparkSession, graph: Graph) -> None:
        graph.load([person("ada"), person("bob")])

        save(spark.createDataFrame([("ada", "bob")], "src string, dst string"), graph, "Knows")
        save(spark.createDataFrame([("bob", "ada")], "`from` string, `to` string"), graph, "Knows")

        rows = graph.snapshot().to_arrow("edge:Knows", ["src", "dst"]).to_pylist()
        assert sorted((row["src"], row["dst"]) for row in rows) == [("ada", "bob"), ("bob", "ada")]

    def test_a_broken_constraint_writes_nothing_and_leaves_nothing(self, spark: SparkSession, graph: Graph) -> None:
        from pyspark.errors import PySparkException

        graph.load([person("ada")])
        head = graph.commits()[0].id

        with pytest.raises(PySparkException, match="Person 'ada' already exists: nothing was written"):
            save(spark.createDataFrame([("ada",), ("bob",)], "slug string"), graph, "Person")

        assert graph.commits()[0].id == head
        assert left_over(graph) == []

    def test_a_task_that_fails_leaves_nothing(self, spark: SparkSession, graph: Graph) -> None:
        from pyspark.errors import PySparkException

        frame = spark.createDataFrame([("ada",), ("bob",)], "slug string").repartition(2)
        with pytest.raises(PySparkException):
            save(frame.selectExpr("if(slug = 'bob', raise_error('no'), slug) AS slug"), graph, "Person")

        assert tables(graph) == {}
        assert left_over(graph) == []

    @pytest.mark.parametrize(
        ("columns", "options", "sentence"),
        [
            ("slug string, shoe int", {}, "has a column 'shoe', which is unknown in Person"),
            ("slug string, age string", {}, "in the column 'age', but Person.age is I32"),
            ("slug string", {"mode_": "upsert"}, "The option mode is 'upsert': it is append, merge, overwrite"),
            ("slug string", {"type_name": "Robot"}, "The schema has no type 'Robot'"),
            ("slug string", {"columns": "slug"}, "The data source has no option 'columns'"),
        ],
    )
    def test_a_slip_is_named_before_anything_is_written(
        self, spark: SparkSession, graph: Graph, columns: str, options: dict[str, str], sentence: str
    ) -> None:
        from pyspark.errors import PySparkException

        frame = spark.createDataFrame([], columns)
        with pytest.raises(PySparkException, match=sentence):
            save(frame, graph, **({"type_name": "Person"} | options))

        assert left_over(graph) == []


class TestLoading:
    pytestmark = on_spark

    def test_frames_of_several_types_are_one_commit(self, spark: SparkSession, graph: Graph) -> None:
        people = spark.createDataFrame([(f"p{n}", n) for n in range(50)], "slug string, age int").repartition(3)
        knows = spark.createDataFrame([(f"p{n}", f"p{n + 1}") for n in range(49)], "src string, dst string")
        cities = pa.table({"name": ["rome"]})

        result = load_frames(graph, {"Person": people, "Knows": knows, "City": cities})

        assert result.counts == {"Person": 50, "City": 1, "Knows": 49}
        assert tables(graph) == {"Person": 50, "City": 1, "Knows": 49}
        assert [commit.kind for commit in graph.commits()] == ["load", "init"]
        assert left_over(graph) == []

    def test_an_error_has_its_class_and_names_the_row(self, spark: SparkSession, graph: Graph) -> None:
        frame = spark.createDataFrame([("ada", "nobody")], "src string, dst string").coalesce(1)

        with pytest.raises(ConstraintViolation) as caught:
            load_frames(graph, {"Knows": frame})

        assert caught.value.details["violations"][0]["places"] == ["Knows partition 0 row 1"]
        assert (tables(graph), left_over(graph)) == ({}, [])

    def test_rejected_rows_go_to_a_quarantine(self, spark: SparkSession, graph: Graph, tmp_path: Path) -> None:
        frame = spark.createDataFrame([("ada", "ops"), ("bob", "boss")], "slug string, role string").coalesce(1)

        result = load_frames(
            graph, {"Person": frame}, LoadOptions(on_error="quarantine", quarantine=tmp_path / "rejected.json")
        )

        assert (ids(graph), result.rejected) == (["ada"], 1)
        assert '"boss"' in (tmp_path / "rejected.json").read_text()

    def test_the_same_txn_id_loads_once(self, spark: SparkSession, graph: Graph, tmp_path: Path) -> None:
        frame = spark.createDataFrame([("ada",)], "slug string")
        first = load_frames(graph, {"Person": frame}, LoadOptions(txn_id="once")).commit

        again = load_frames(graph, {"Person": frame}, LoadOptions(txn_id="once")).commit

        assert first is not None
        assert again is not None
        assert again.id == first.id
        assert tables(graph) == {"Person": 1}

    def test_what_is_no_frame_is_recognised(self, spark_session: SparkSessionHandle) -> None:
        assert is_frame(spark_session.spark.range(1))
        assert has_frames({"Person": spark_session.spark.range(1)})
        assert not has_frames({"Person": pa.table({"slug": ["ada"]})})
        assert not has_frames([{"type": "Person"}])


class TestSpool:
    """What tasks do, without Spark: attempts that Spark does not take, races, and a load that is given up."""

    def rows(self, *slugs: str) -> list[pa.RecordBatch]:
        return pa.table({"slug": list(slugs)}).to_batches()

    def test_only_the_attempts_that_were_taken_count(self, graph: Graph) -> None:
        """Two attempts of one task, of which the first was lost; a DataFrame may have given it other rows."""
        spool = begin_spool(graph.repository, LoadOptions())
        spool_rows(spool, "Person", self.rows("ada", "lost"), first_number=10_000, shown="Person partition 0")
        taken = spool_rows(spool, "Person", self.rows("ada", "bob"), first_number=20_000, shown="Person partition 0")

        bulk_load(graph.repository, LocalRunner(), combine_parts(spool, [taken]), LoadOptions(txn_id=spool.txn_id))

        assert ids(graph) == ["ada", "bob"]
        assert left_over(graph) == []

    def test_rows_in_many_files_are_all_there(self, graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spooling, "FILE_BYTES", 1)
        spool = begin_spool(graph.repository, LoadOptions())
        batches = [batch for n in range(5) for batch in self.rows(f"p{n}")]

        answer = spool_rows(spool, "Person", batches, first_number=0, shown="Person")
        bulk_load(graph.repository, LocalRunner(), combine_parts(spool, [answer]), LoadOptions(txn_id=spool.txn_id))

        assert [split.first_row for split in answer.splits] == [0, 1, 2, 3, 4]
        assert ids(graph) == ["p0", "p1", "p2", "p3", "p4"]

    def test_a_merge_that_lost_a_race_is_staged_again_from_the_files(self, graph: Graph) -> None:
        graph.load([person("ada", name="Ada", age=1)])
        spool = begin_spool(graph.repository, LoadOptions(mode="merge"))
        rows = pa.table({"slug": ["ada", "bob"], "age": pa.array([2, 3], pa.int32())}).to_batches()
        answer = spool_rows(spool, "Person", rows, first_number=0, shown="Person")
        graph.load([person("ada", name="Countess")], mode="merge")

        bulk_load(
            graph.repository,
            LocalRunner(),
            combine_parts(spool, [answer]),
            LoadOptions(mode="merge", txn_id=spool.txn_id),
        )

        found = graph.snapshot().to_arrow("node:Person", ["id", "name", "age"]).to_pylist()
        assert sorted(map(tuple, (row.values() for row in found))) == [("ada", "Countess", 2), ("bob", None, 3)]

    def test_a_load_that_is_given_up_leaves_nothing(self, graph: Graph) -> None:
        spool = begin_spool(graph.repository, LoadOptions())
        spool_rows(spool, "Person", self.rows("ada"), first_number=0, shown="Person")

        discard_spool(graph.repository, spool)
        discard_spool(graph.repository, spool)  # as often as it is said

        assert (left_over(graph), tables(graph)) == ([], {})

    def test_a_precondition_is_checked_before_rows_come(self, graph: Graph) -> None:
        with pytest.raises(PreconditionFailed):
            begin_spool(graph.repository, LoadOptions(if_commit="elsewhere.1"))

        assert left_over(graph) == []

    def test_a_decimal_that_is_no_integer_is_named(self, graph: Graph) -> None:
        spool = begin_spool(graph.repository, LoadOptions())
        vast = pa.array([2**64], pa.decimal128(20, 0))
        rows = pa.table({"slug": ["ada"], "vast": vast}).to_batches()
        answer = spool_rows(spool, "Person", rows, first_number=0, shown="Person")

        with pytest.raises(ConstraintViolation, match="vast"):
            bulk_load(graph.repository, LocalRunner(), combine_parts(spool, [answer]), LoadOptions(txn_id=spool.txn_id))

    def test_columns_are_checked_without_rows(self, graph: Graph) -> None:
        spool = begin_spool(graph.repository, LoadOptions())

        with pytest.raises(BadRequest, match="The frame has a column 'shoe'"):
            check_rows(spool, "Person", schema_of(slug=pa.string(), shoe=pa.int32()), "The frame")
