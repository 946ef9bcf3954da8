"""The Spark data source: what it reads is what the graph holds, pinned, in parts, filtered by Lance where exact."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import omnigraph
from omnigraph.errors import BadRequest
from omnigraph.graph.graph import Graph
from omnigraph.manifest.settings import Settings
from omnigraph.pipeline import graph_frames
from omnigraph.pipeline.source.datasource import lance_condition
from omnigraph.pipeline.source.scans import fragment_tasks, pin, read_part, read_type
from omnigraph.schema.lang.compile import compile_schema
from support.arrow import values_of
from support.s3 import S3Location

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

on_spark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

SCHEMA = """
node Person {
    slug: String @key
    name: String?
    age: I32?
    big: I64?
    small: U32?
    vast: U64?
    score: F64?
    weight: F32?
    ok: Bool?
    role: enum(ops, lead)?
    born: Date?
    seen: DateTime?
    tags: [String]?
    face: Vector(2)?
    data: Blob?
    label: String?
}
node City { name: String @key  size: I64?  label: I64? }
edge Knows: Person -> Person { since: Date? }
edge LivesIn: Person -> City
"""
SEEN = dt.datetime(2026, 1, 31, 12, 0, 0, 250_000)


def person(slug: str, **values: Any) -> dict[str, Any]:
    return {"type": "Person", "data": {"slug": slug, **values}}


def knows(source: str, target: str, **values: Any) -> dict[str, Any]:
    return {"edge": "Knows", "from": source, "to": target, "data": values}


ADA = person(
    "ada",
    name="Ada",
    age=36,
    big=-(2**40),
    small=2**32 - 1,
    vast=2**64 - 1,
    score=0.1,
    weight=0.1,
    ok=True,
    role="lead",
    born="1815-12-10",
    seen="2026-01-31T12:00:00.250Z",
    tags=["math", ""],
    face=[1.0, 0.5],
    data="base64:AAE=",
)


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    """Three fragments of persons, of which one row was deleted, and edges between them."""
    graph = omnigraph.init(tmp_path / "graph", SCHEMA, settings=Settings(inline_rows=0))
    graph.load([ADA, person("bob", age=20)])
    graph.load([person("grace", name="Grace", age=45, role="ops"), person("gone")])
    graph.load([person("null"), {"type": "City", "data": {"name": "ada", "size": 1}}])
    graph.load([knows("ada", "grace", since="1840-01-01"), knows("grace", "bob")])
    graph.load([{"edge": "LivesIn", "from": "bob", "to": "ada", "data": {}}])
    graph.mutate('query q() { delete Person where slug = "gone" }')
    return graph


def read(spark: SparkSession, graph: Graph, type_name: str = "Person", **options: str) -> DataFrame:
    reader = spark.read.format("omnigraph").option("store", graph.uri).option("type", type_name)
    return reader.options(**options).load()


def ids(frame: DataFrame) -> list[str]:
    return sorted(row.id for row in frame.select("id").collect())


class TestReading:
    pytestmark = on_spark

    def test_a_node_type_has_its_id_and_its_properties(self, spark: SparkSession, graph: Graph) -> None:
        frame = read(spark, graph)

        assert ids(frame) == ["ada", "bob", "grace", "null"]
        assert frame.where("id = 'ada'").collect()[0].asDict() == {
            "id": "ada",
            "slug": "ada",
            "name": "Ada",
            "age": 36,
            "big": -(2**40),
            "small": 2**32 - 1,
            "vast": Decimal(2**64 - 1),
            "score": 0.1,
            "weight": pytest.approx(0.1),
            "ok": True,
            "role": "lead",
            "born": dt.date(1815, 12, 10),
            "seen": pytest.approx(SEEN, abs=dt.timedelta(days=1)),  # Spark gives it in the local zone: see below
            "tags": ["math", ""],
            "face": [1.0, 0.5],
            "data": b"\x00\x01",
            "label": None,
        }
        assert frame.where("id = 'ada'").selectExpr("unix_millis(seen)").collect()[0][0] == 1769860800250

    def test_types_that_spark_lacks_are_the_next_larger(self, spark: SparkSession, graph: Graph) -> None:
        types = dict(read(spark, graph).dtypes)

        assert (types["small"], types["vast"]) == ("bigint", "decimal(20,0)")
        assert (types["seen"], types["face"], types["data"]) == ("timestamp", "array<float>", "binary")

    def test_an_edge_type_has_src_and_dst(self, spark: SparkSession, graph: Graph) -> None:
        frame = read(spark, graph, "Knows")

        assert frame.columns == ["id", "src", "dst", "since"]
        assert sorted((row.src, row.dst, row.since) for row in frame.collect()) == [
            ("ada", "grace", dt.date(1840, 1, 1)),
            ("grace", "bob", None),
        ]

    def test_a_type_without_rows_is_an_empty_frame(self, spark: SparkSession, tmp_path: Path) -> None:
        empty = omnigraph.init(tmp_path / "graph", SCHEMA)

        assert read(spark, empty, "City").collect() == []

    def test_the_columns_option_reads_no_others(self, spark: SparkSession, graph: Graph) -> None:
        frame = read(spark, graph, columns="age, id")

        assert frame.columns == ["age", "id"]
        assert sorted(row.id for row in frame.collect()) == ["ada", "bob", "grace", "null"]

    def test_a_given_schema_chooses_columns_too(self, spark: SparkSession, graph: Graph) -> None:
        reader = spark.read.format("omnigraph").schema("id string, age int")

        rows = reader.option("store", graph.uri).option("type", "Person").load().collect()

        assert ("ada", 36) in [tuple(row) for row in rows]

    def test_a_frame_stays_at_the_commit_it_was_made_at(self, spark: SparkSession, graph: Graph) -> None:
        frame = read(spark, graph)

        graph.load([person("late")])

        assert "late" not in ids(frame)
        assert "late" in ids(read(spark, graph))

    @pytest.mark.parametrize("option", ["at", "commit"])
    def test_an_older_commit_can_be_read(self, spark: SparkSession, graph: Graph, option: str) -> None:
        first = graph.commits(limit=None)[-2].id

        assert ids(read(spark, graph, **{option: first})) == ["ada", "bob"]

    def test_an_older_time_can_be_read(self, spark: SparkSession, graph: Graph) -> None:
        first = graph.commits(limit=None)[-2]

        assert ids(read(spark, graph, timestamp=first.authored_at.isoformat())) == ["ada", "bob"]

    def test_a_branch_can_be_read(self, spark: SparkSession, graph: Graph) -> None:
        graph.branches.create("draft")
        graph.load([person("drafted")], branch="draft")

        assert "drafted" in ids(read(spark, graph, branch="draft"))
        assert "drafted" not in ids(read(spark, graph))

    def test_partitions_are_groups_of_fragments(self, spark: SparkSession, graph: Graph) -> None:
        assert read(spark, graph).rdd.getNumPartitions() == 1
        assert read(spark, graph, partitionRows="1").rdd.getNumPartitions() == 3
        assert ids(read(spark, graph, partitionRows="1")) == ["ada", "bob", "grace", "null"]

    @pytest.mark.s3
    def test_a_graph_on_s3_is_read_with_storage_options(self, spark: SparkSession, s3: S3Location) -> None:
        graph = omnigraph.init(s3.uri, SCHEMA, s3.options)
        graph.load([ADA])
        options = {f"storage.{name}": value for name, value in s3.options.items()}

        assert ids(read(spark, graph, **options)) == ["ada"]

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({"type": "Robot"}, "The schema has no type 'Robot': its types are City, Knows, LivesIn, Person."),
            ({"columns": "id,shoe"}, "Person has no column 'shoe': its columns are id, slug"),
            ({"columns": " "}, "name some columns"),
            ({"branch": "nowhere"}, "There is no branch 'nowhere'"),
            ({"at": "x", "commit": "y"}, "Give one of the options at, commit and timestamp"),
            ({"colums": "id"}, "The data source has no option 'colums'"),
            ({"store": "/nowhere/at/all"}, "/nowhere/at/all holds no graph"),
        ],
    )
    def test_a_slip_is_named_in_spark_s_error(
        self, spark: SparkSession, graph: Graph, options: Mapping[str, str], sentence: str
    ) -> None:
        from pyspark.errors import AnalysisException

        with pytest.raises(AnalysisException) as caught:
            read(spark, graph, **({"type_name": options["type"]} if "type" in options else options))

        assert sentence in str(caught.value)


class TestFilters:
    pytestmark = on_spark

    def test_a_frame_can_be_used_with_and_without_filters(self, spark: SparkSession, graph: Graph) -> None:
        """Spark 4.3 itself gets this wrong for a source that takes filters."""
        frame = read(spark, graph)

        assert ids(frame.where("age > 30")) == ["ada", "grace"]
        assert ids(frame) == ["ada", "bob", "grace", "null"]
        assert ids(frame.where("age > 30").union(frame.where("age <= 30"))) == ["ada", "bob", "grace"]

    def test_filters_reach_lance(self, spark: SparkSession, graph: Graph) -> None:
        frame = read(spark, graph, pushdown="true").where("age > 30 AND role = 'lead' AND score < 1")
        plan = frame._jdf.queryExecution().executedPlan().toString()

        assert ids(frame) == ["ada"]
        assert "age" not in _spark_filter(plan), plan  # Lance has done it
        assert "role" not in _spark_filter(plan), plan
        assert "score" in _spark_filter(plan), plan  # a float is compared by Spark

    def test_without_pushdown_spark_filters(self, spark: SparkSession, graph: Graph) -> None:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
        try:
            assert ids(read(spark, graph, pushdown="true").where("age > 30")) == ["ada", "grace"]
        finally:
            spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")

    CONDITIONS: tuple[Callable[[Any], Column], ...] = (
        lambda c: c.age == 36,
        lambda c: c.age != 36,
        lambda c: c.age <= 20,
        lambda c: c.age.isin(20, 45),
        lambda c: ~c.age.isin(20, 45),
        lambda c: c.age.isNull(),
        lambda c: c.age.isNotNull(),
        lambda c: c.age.eqNullSafe(36),
        lambda c: ~c.age.eqNullSafe(36),
        lambda c: c.age.eqNullSafe(None),
        lambda c: c.small == 2**32 - 1,
        lambda c: c.small > 2**40,
        lambda c: c.big < 0,
        lambda c: c.vast > 1,
        lambda c: c.ok,
        lambda c: ~c.ok,
        lambda c: c.role == "ops",
        lambda c: c.name.startswith("G"),
        lambda c: c.name.contains("d"),
        lambda c: c.name.endswith("e"),
        lambda c: c.name == "it's",
        lambda c: c.born >= dt.date(1800, 1, 1),
        lambda c: c.weight == 0.1,
        lambda c: c.id > "b",
        lambda c: (c.age > 30) | (c.role == "ops"),
    )

    def test_every_condition_means_what_it_means_to_spark(self, spark: SparkSession, graph: Graph) -> None:
        """The same rows as a frame that Spark holds itself."""
        from pyspark.sql import functions as sf

        whole = read(spark, graph)
        held = spark.createDataFrame(whole.collect(), whole.schema)
        columns = [condition(held).alias(str(number)) for number, condition in enumerate(self.CONDITIONS)]
        expected = {(number, row.id) for row in held.select("id", *columns).collect() for number in _true(row)}

        frames = [read(spark, graph, pushdown="true", partitionRows="2") for _ in self.CONDITIONS]
        found = [
            frame.where(condition(frame)).select(sf.lit(number).alias("number"), "id")
            for number, (condition, frame) in enumerate(zip(self.CONDITIONS, frames, strict=True))
        ]

        assert {(row.number, row.id) for row in reduce(type(whole).union, found).collect()} == expected

    def test_times_are_compared_as_instants(self, spark: SparkSession, graph: Graph) -> None:
        for condition, expected in (
            ("= '12:00:00.250'", ["ada"]),
            ("> '12:00:00.249999'", ["ada"]),
            ("> '12:00:00.250'", []),
        ):
            text = "seen " + condition.replace("'", "timestamp '2026-01-31 ", 1)
            assert ids(read(spark, graph, pushdown="true").where(text)) == expected, text


def _true(row: Any) -> list[int]:
    """The conditions that hold."""
    return [int(name) for name, value in row.asDict().items() if name != "id" and value]


def _spark_filter(plan: str) -> str:
    """The conditions that Spark checks itself."""
    return " ".join(line for line in plan.splitlines() if line.lstrip("+- *()0123456789").startswith("Filter"))


PERSON = compile_schema(SCHEMA).catalog.by_name["Person"]


class TestPushing:
    """What is handed to Lance, without Spark."""

    @staticmethod
    def filters() -> Any:
        from pyspark.sql import datasource

        return datasource

    @pytest.mark.parametrize("value", [0.5, None, b"x", Decimal(1), dt.datetime(2026, 1, 1), True, "36"])
    def test_a_constant_of_another_type_is_left_to_spark(self, value: Any) -> None:
        assert lance_condition(self.filters().EqualTo(("age",), value), PERSON) is None

    @pytest.mark.parametrize("column", ["weight", "score", "tags", "face", "data"])
    def test_columns_that_lance_compares_otherwise_are_left_to_spark(self, column: str) -> None:
        assert lance_condition(self.filters().EqualTo((column,), 1.0), PERSON) is None

    def test_a_list_with_one_strange_value_is_left_to_spark(self) -> None:
        assert lance_condition(self.filters().In(("age",), (1, 0.5)), PERSON) is None

    def test_a_fraction_of_a_millisecond_is_left_to_spark(self) -> None:
        moment = dt.datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC)

        assert lance_condition(self.filters().LessThan(("seen",), moment), PERSON) is None
        assert lance_condition(self.filters().LessThan(("seen",), moment.replace(microsecond=1000)), PERSON) is not None

    def test_a_negation_is_pushed_only_where_null_stays_out(self) -> None:
        f = self.filters()

        assert lance_condition(f.Not(f.EqualTo(("age",), 1)), PERSON) == "`age` != 1"
        assert lance_condition(f.Not(f.EqualNullSafe(("age",), 1)), PERSON) is None
        assert lance_condition(f.Not(f.In(("age",), (1, 2))), PERSON) is None

    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        names=st.lists(st.one_of(st.none(), st.text(max_size=4)), min_size=1, max_size=6),
        wanted=st.text(max_size=4),
        kind=st.sampled_from(["EqualTo", "GreaterThan", "LessThanOrEqual", "StringStartsWith", "StringContains"]),
    )
    def test_what_lance_answers_is_what_python_says(
        self, tmp_path: Path, names: list[str | None], wanted: str, kind: str
    ) -> None:
        import tempfile

        text = lance_condition(getattr(self.filters(), kind)(("name",), wanted), PERSON)
        if text is None:
            return
        with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
            graph = omnigraph.init(folder + "/graph", SCHEMA)
            graph.load([person(str(number), name=name) for number, name in enumerate(names)])
            pinned = pin(folder + "/graph", "Person")
            found = [row for group in fragment_tasks(pinned) for batch in read_part(pinned, group, ["id"], text)
                     for row in values_of(batch.column(0))]  # fmt: skip
        passes: dict[str, Callable[[str], bool]] = {
            "EqualTo": lambda name: name == wanted,
            "GreaterThan": lambda name: name.encode() > wanted.encode(),
            "LessThanOrEqual": lambda name: name.encode() <= wanted.encode(),
            "StringStartsWith": lambda name: name.startswith(wanted),
            "StringContains": lambda name: wanted in name,
        }
        expected = [str(number) for number, name in enumerate(names) if name is not None and passes[kind](name)]
        assert sorted(found) == sorted(expected)


class TestParts:
    """What a task reads, without Spark."""

    def test_rows_written_before_a_property_came_have_null(self, graph: Graph) -> None:
        pinned = pin(graph.uri, "Person")
        definition = compile_schema(SCHEMA.replace("slug: String @key", "slug: String @key  nick: String?", 1))
        wider = type(pinned)(pinned.location, definition.catalog.by_name["Person"], pinned.commit_id, pinned.at)

        rows = pa.Table.from_batches(read_part(wider, fragment_tasks(wider)[0], ["id", "nick"]))

        assert rows.column("nick").to_pylist() == [None] * 4

    def test_a_part_reads_its_own_fragments_only(self, graph: Graph) -> None:
        pinned = pin(graph.uri, "Person")
        groups = fragment_tasks(pinned, rows=1)

        parts = [pa.Table.from_batches(read_part(pinned, group, ["id"])).column("id").to_pylist() for group in groups]

        assert parts == [["ada", "bob"], ["grace"], ["null"]]


class TestGraphFrames:
    pytestmark = on_spark

    def test_vertices_and_edges_of_all_types(self, spark: SparkSession, graph: Graph) -> None:
        vertices, edges = graph_frames(spark, graph)

        assert sorted(map(tuple, vertices.select("id", "type").collect())) == [
            ("ada", "City"),
            ("ada", "Person"),
            ("bob", "Person"),
            ("grace", "Person"),
            ("null", "Person"),
        ]
        assert sorted(map(tuple, edges.select("src", "dst", "type").collect())) == [
            ("ada", "grace", "Knows"),
            ("bob", "ada", "LivesIn"),
            ("grace", "bob", "Knows"),
        ]

    def test_ids_that_types_share_can_be_told_apart(self, spark: SparkSession, graph: Graph) -> None:
        vertices, edges = graph_frames(spark, graph, qualified=True)

        assert {"Person:ada", "City:ada"} <= set(ids(vertices))
        assert ("Person:bob", "City:ada") in [(row.src, row.dst) for row in edges.collect()]

    def test_chosen_types_with_properties(self, spark: SparkSession, graph: Graph) -> None:
        vertices, edges = graph_frames(spark, graph, node_types=["Person"], properties=["age", "since"])

        assert ("ada", "Person", 36) in [tuple(row) for row in vertices.collect()]
        assert sorted({row.type for row in edges.collect()}) == ["Knows"]  # LivesIn ends at a type that is not there

    def test_all_frames_are_of_one_commit(self, spark: SparkSession, graph: Graph) -> None:
        vertices, edges = graph_frames(spark, graph)

        graph.load([person("late"), knows("late", "ada")])

        assert "late" not in ids(vertices)
        assert "late" not in [row.src for row in edges.collect()]

    def test_what_can_not_be_one_frame_is_refused(self, spark: SparkSession, graph: Graph) -> None:
        with pytest.raises(BadRequest, match="No chosen type has a property 'shoe'"):
            graph_frames(spark, graph, properties=["shoe"])
        with pytest.raises(BadRequest, match="Knows is no node type"):
            graph_frames(spark, graph, node_types=["Knows"])
        with pytest.raises(BadRequest, match="LivesIn goes from Person to City: choose these node types too"):
            graph_frames(spark, graph, node_types=["Person"], edge_types=["LivesIn"])
        with pytest.raises(BadRequest, match=r"'label' has several types \(Person string, City bigint\)"):
            graph_frames(spark, graph, properties=["label"])

    def test_one_type_with_columns(self, spark: SparkSession, graph: Graph) -> None:
        assert read_type(spark, graph, "Person", columns=["age"]).columns == ["age"]
