"""Queries on Spark give the rows of the in-process engine and of the plain interpreter, in the same order."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import omnigraph
from omnigraph import memory_budget
from omnigraph.errors import BadRequest, SparkNotReady
from omnigraph.graph.graph import Graph
from omnigraph.lexer import LanguageError
from omnigraph.manifest.settings import Settings
from omnigraph.pipeline.querying import scan as query_scan
from omnigraph.pipeline.querying.expressions import exact_sum
from omnigraph.pipeline.querying.query import query_session, run_on_spark
from omnigraph.pipeline.spark.session import restore_active_session
from omnigraph.query.ir import ReadQuery
from omnigraph.read.execute import run_query
from read import random_cases
from read.graphs import CITY, KNOWS, LIVES_IN, PERSON, bound, city, edge, graph_of, interpreted, person, reader_of
from read.test_agreement import overlaid

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

GRAPHS, QUERIES = 6, 5
RARE = 2**53 + 1


@pytest.fixture(scope="module")
def own(spark_session: Any) -> Iterator[Any]:
    """The session that queries run in, with as few tasks as tables this small need."""
    session = query_session(spark_session.spark)
    session.conf.set("spark.sql.shuffle.partitions", "1")
    session.conf.set("spark.sql.codegen.wholeStage", "false")  # to compile takes longer than to run
    with restore_active_session(spark_session.spark):
        yield session


def outcome(run: Any) -> Any:
    try:
        return run()
    except (BadRequest, OverflowError):
        return BadRequest


def checked(own: Any, graph: Graph, text: str, query: ReadQuery, data: Any = None, overlays: Any = None) -> Any:
    """What Spark answers is what this process answers: rows, order and types."""
    reader = reader_of(graph, overlays)
    here = outcome(lambda: run_query(reader, query))
    there = outcome(lambda: run_on_spark(own, reader, graph.repository.location, query))
    if data is not None:
        expected = outcome(lambda: (interpreted(replace(query, limit=None), data), interpreted(query, data))[1])
        assert (there if there is BadRequest else there.rows) == expected, text
    if here is BadRequest:
        assert there is BadRequest, text
        return BadRequest
    assert there.rows == here.rows, text
    assert there.schema == here.schema, text
    assert [list(rows) for rows in there.json_batches()] == [list(rows) for rows in here.json_batches()], text
    assert (len(there), there.columns, there.commit_id) == (len(here), here.columns, here.commit_id), text
    return there.rows


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.soak) for n in range(2, GRAPHS))])
def test_generated_queries_over_generated_graphs_agree(own: Any, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = Random(7_000 + seed)
    monkeypatch.setattr(query_scan, "SMALL_ROWS", rng.choice([-1, 20_000]))
    own.conf.set("spark.sql.codegen.wholeStage", "true" if seed % 4 == 0 else "false")
    data = random_cases.graph(rng)
    with graph_of(data) as graph:
        asked = 0
        while asked < QUERIES:
            text = random_cases.query(rng)
            try:
                query = bound(text)
            except LanguageError:
                continue  # the generator is not careful about types
            checked(own, graph, text, query, data)
            asked += 1


def test_rows_that_lie_over_the_stored_ones_count(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = Random(11)
    data, stored, overlays = overlaid(rng)
    while len(overlays) < 3 or not data[PERSON]:
        data, stored, overlays = overlaid(rng)
    with graph_of(stored) as graph:
        for text in (
            "match { $a: Person } return { $a } order { $a.score asc }",
            "match { $a: Person  $a.age >= 0 } return { $a.name, $a.big } limit 3",
            "match { $a knows $b } return { $a.id as a, $b.id as b }",
            "match { $a: Person  not { $a knows{1,2} $_ } } return { $a.id as a, sum($a.score) as s }",
            "match { $a $k:<knows> $b  $k.weight > 0.5 } return { $k.since, $a.id as a }",
        ):
            checked(own, graph, text, bound(text), data, overlays)


@pytest.mark.parametrize("seed", range(4))
def test_expressions_over_several_variables_have_the_values_of_the_in_process_engine(own: Any, seed: int) -> None:
    rng = Random(500 + seed)
    data = random_cases.graph(rng)
    draw = random_cases.expressions(rng, ["a", "b"])
    with graph_of(data) as graph:
        for _ in range(2):
            kind, shown = draw.any(2)
            number, real = draw.of("int", 2), draw.of("float", 2)
            sums = f"sum($a.age % 9 + {number}) as s, sum($a.score + {real}) as r, max($a.age / {number}) as m"
            for text in (
                f"return {{ {shown} as x, {draw.of('bool', 2)} as y }} order {{ coalesce({number}, $a.age) desc }}",
                f"return {{ {draw.of('text', 2)} as x, {sums} }}",
            ):
                query = bound(f"match {{ $a: Person  $b: Person  ({draw.boolean(2)}) }} {text}")
                checked(own, graph, f"{kind}: {text}", query, data)


# One graph, by hand: loops, circles, parallel edges, extreme values, in several fragments.

PEOPLE = [
    person("a", name="Ada", age=1, big=2**63 - 1, vast=2**64 - 1, score=0.1, weight=0.10000000149011612, ok=True),
    person("b", name="", age=None, big=-(2**63), vast=RARE, score=9007199254740992.0, weight=16777216.0, ok=False),
    person("c", name="é", age=2, big=RARE, vast=2**63, score=9.3e18, tags=["x", ""], nums=[1, 2], role="ops"),
    person("d", name="\U00010000", age=3, big=0, vast=0, score=-0.0, weight=-0.0, tags=[], role="lead"),
    person("e", name="\uffff", age=2, score=0.0, weight=0.0, tags=["x"], face=[1.0, 2.0], data=b"\0\xff"),
    person("f", name="it's"),
]
ROADS = ["ab", "bc", "ca", "cc", "cd", "de", "ed", "ab", "ee", "fa"]
DATA: Any = {
    PERSON: PEOPLE,
    CITY: [city("x", size=1), city("y", size=None)],
    KNOWS: [edge(s, t, f"k{i}", weight=float(i)) for i, (s, t) in enumerate(map(tuple, ROADS))],
    LIVES_IN: [edge("a", "x", "l0"), edge("b", "x", "l1"), edge("e", "y", "l2")],
}


@pytest.fixture(scope="module")
def graph() -> Iterator[Graph]:
    with tempfile.TemporaryDirectory() as folder, graph_of({}, f"{folder}/g") as made:
        from read.graphs import write

        write(made, {key: rows[:3] for key, rows in DATA.items()})
        write(made, {key: rows[3:] for key, rows in DATA.items()})
        yield made


@pytest.mark.parametrize(
    "pattern",
    [
        "$a: Person  $a knows{1,} $b",
        "$a: Person  $a knows{2,3} $b",
        "$a: Person  $a <knows>{2,2} $b",
        '$b: Person { slug: "d" }  $a knows{1,3} $b',
        '$b: Person { slug: "e" }  $a knows{2,} $b',
        "$a knows{1,2} $a",
        "$a <knows> $a",
        "$a $k:<knows> $b",
        "$a knows $b  $b knows $c  $c knows $a",
        "$a: Person  not { $a knows $_ }",
        "$a: Person  not { $_ knows{1,} $a }",
        "$a: Person  not { $a knows $n  not { $n livesIn $_ } }",
        "$a: Person  not { $a.age > 1 }",
        "$a: Person  $b: Person  not { $a knows $b }  $a.age = $b.age",
        "$a: Person  $t: City  $a.name != $t.name",
        '$a: Person  not { $a livesIn $t  $t.name = "x" }  not { $a livesIn $t  $t.size = 1 }',
        "$a knows $_  $a knows $_",
        "$a: Person  1 = 2",
        "$a livesIn $t  $b livesIn $t",
    ],
)
def test_traversals_negations_and_products_agree(own: Any, graph: Graph, pattern: str) -> None:
    outer = pattern.split("not {")[0]
    named = [var for var in ("a", "b", "c", "t") if f"${var}" in outer]
    shown = ", ".join(f"${var}.id as {var}" for var in named)
    text = f"match {{ {pattern} }} return {{ {shown} }} order {{ $a.name desc }}"
    checked(own, graph, text, bound(text), DATA)


@pytest.mark.parametrize(
    "condition",
    [
        *(
            f"$a.{one} {op} $b.{other}"
            for one, other in (("big", "score"), ("vast", "score"))
            for op in ("<=", "=", ">")
        ),
        "$a.score < $b.vast",
        "$a.big != $b.vast",
        "$a.weight = $b.score",
        "$a.weight >= $b.big",
        "$a.name < $b.name",
        "$a.name contains $b.name",
        "$a.name starts_with $b.name",
        "$a.tags contains $b.name",
        "$a.nums contains $b.age",
        "$a.ok < $b.ok",
        "$a.role != $b.role",
    ],
)
def test_values_of_two_variables_compare_exactly(own: Any, graph: Graph, condition: str) -> None:
    text = f"match {{ $a: Person  $b: Person  {condition} }} return {{ $a.id as a, $b.id as b }}"
    assert checked(own, graph, text, bound(text), DATA) is not BadRequest


@pytest.mark.parametrize(
    "ending",
    [
        "return { $a } order { $a.score asc, $a.name desc }",
        "return { $a, 7 as seven, $a.face, $a.data, $a.vast, $a.nums } order { $a.vast desc } limit 3",
        "return { $a.data, $a.tags } limit 0",
        "return { sum($a.score), avg($a.score), sum($a.weight), avg($a.big), avg($a.vast), count($a.tags) }",
        "return { $a.ok, sum($a.score) as s, min($a.name), max($a.vast), max($a.weight), avg($a.age) as m } "
        "order { m desc }",
        "return { sum($a.big) }",
        "return { $a.role, sum($a.vast) as s } order { s desc } limit 1",
        "return { sum($a.vast) } limit 0",
        "return { $a.tags, count($a) }",
        "return { $a.weight, $a.score, count($a) }",
        "return { $a, count($a) } order { $a.age desc }",
        "return { 1 as one, count($a) }",
        "return { $a.age, $a.age as again, max($a.age) }",
    ],
)
def test_results_are_shaped_alike(own: Any, graph: Graph, ending: str) -> None:
    text = f"match {{ $a: Person }} {ending}"
    checked(own, graph, text, bound(text), DATA)


def test_groups_over_nothing_are_none_and_aggregates_alone_one_row(own: Any, graph: Graph) -> None:
    for ending, rows in (
        ("$a.role, 1 as one, sum($a.score) as s", 0),
        ("1 as one, count($a)", 0),
        ("sum($a.score) as s", 1),
    ):
        text = f'match {{ $a: Person {{ slug: "nobody" }} }} return {{ {ending} }}'
        assert len(checked(own, graph, text, bound(text), DATA)) == rows


def test_a_negation_of_which_only_its_own_part_is_left_holds_for_all_rows_or_none(own: Any, graph: Graph) -> None:
    head = "query q($n: String?) { match { $a: Person  not { "
    for inner, left in (('$t: City  $t.name = "x"', 0), ('$t: City  $t.name = "no"', 6), ("1 = 1", 0)):
        text = f"{head}$a.name = $n  {inner} }} }} return {{ $a.id }} }}"
        assert len(checked(own, graph, text, bound(text), DATA)) == left


def test_the_sum_of_floats_is_rounded_once(own: Any) -> None:
    values = [1e16, 1.0, -1e16, 1e-300, 0.1] * 7 + [1.7976931348623157e308, -1.7976931348623157e308]
    rng = Random(3)
    rng.shuffle(values)
    data = {PERSON: [person(f"p{i:03}", score=value, age=i % 3) for i, value in enumerate(values)]}
    text = "match { $a: Person } return { $a.age, sum($a.score) as s, avg($a.score) as m }"
    with graph_of(data) as graph:
        assert checked(own, graph, text, bound(text))

    assert exact_sum([{"bucket": 0, "part": 1}, {"bucket": -1, "part": 1}, {"bucket": None, "part": None}]) == 1 + 2**-8
    assert exact_sum([{"bucket": 200, "part": 1}]) == float("inf")


# Search, on the driver

LIBRARY = """
node Book { title: String @key  text: String? @index  kind: I32?  face: Vector(2)? @index }
edge Cites: Book -> Book
"""
BOOKS = [
    ("a", "the quick brown fox", 1, [1.0, 0.0]),
    ("b", "a quick dog and a quick fox", 1, [0.9, 0.1]),
    ("c", "slow turtles", 2, [0.0, 1.0]),
    ("d", "brown dogs sleep", 2, None),
    ("e", None, 1, [0.9, 0.1]),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    graph = omnigraph.init(tmp_path_factory.mktemp("library") / "g", LIBRARY, {"fsync": "false"})
    graph.load(
        [
            {"type": "Book", "data": {"title": title, "text": text, "kind": kind, "face": face}}
            for title, text, kind, face in BOOKS
        ]
    )
    graph.load([{"edge": "Cites", "from": s, "to": t} for s, t in ("ab", "bc", "cd", "de", "ea", "ad")])
    return graph


@pytest.mark.parametrize(
    "body",
    [
        'match { $b: Book  search($b.text, "quick dogs") } return { $b.title }',
        'match { $b: Book  fuzzy($b.text, "quik", 1)  $b.kind = 1 } return { $b.title }',
        'match { $b: Book  match_text($b.text, "quick brown") } return { $b.title }',
        'match { $b: Book  not { $b cites $c  search($c.text, "fox") } } return { $b.title }',
        'match { $b: Book  $c: Book  not { search($b.text, "fox") } } return { $b.title, count($c) }',
        'match { $a cites $b } return { $b.title, bm25($b.text, "brown dog") as s } '
        'order { bm25($b.text, "brown dog") }',
        "match { $b: Book } return { $b.title } order { nearest($b.face, [1.0, 0.0]) } limit 4",
        "match { $b: Book { kind: 1 } } return { $b.title, nearest($b.face, [0.0, 1.0]) as d } order { d asc } limit 2",
        "match { $a cites $b } return { $a.title, $b } "
        'order { rrf(nearest($b.face, [1.0, 0.0]), bm25($a.text, "fox")) } limit 3',
        'match { $b: Book } return { $b.title, rrf(nearest($b.face, [1.0, 0.0]), bm25($b.text, "quick"), 3) as r } '
        "order { r desc } limit 9",
    ],
)
def test_search_runs_on_the_driver_and_joins_in(spark: Any, library: Graph, body: str) -> None:
    text = f"query q() {{ {body} }}"
    here = library.query(text, engine="local")
    there = library.query(text, engine="spark", spark=spark)

    assert there.rows == here.rows
    assert there.schema == here.schema


# The façade


TEXT = (
    "query q() { match { $a: Person  $a knows{1,2} $b  not { $b livesIn $_ } } return { $a.id, $b.id as b } limit 5 }"
)


def test_a_result_says_where_it_comes_from_and_a_plan_how(spark: Any, graph: Graph) -> None:
    result = graph.query(TEXT, engine="spark", spark=spark, explain=True)

    assert (result.query, result.branch, result.commit_id) == ("q", "main", graph.snapshot().commit_id)
    told = str(result.plan)
    assert "Scan node:Person" in told
    assert "edge:Knows{1,2}" in told
    assert "Physical Plan" in told
    assert "MapInArrow" in told
    assert result.plan is not None
    assert "Physical Plan" in str(result.plan.to_json()[-1]["plan"])


def test_older_states_and_branches_are_read_as_they_were(spark: Any, tmp_path: Path) -> None:
    graph = omnigraph.init(tmp_path / "g", "node A { k: String @key  n: I64? }", {"fsync": "false"})
    graph.load([{"type": "A", "data": {"k": "old", "n": 1}}])
    before = graph.snapshot().commit_id
    graph.branches.create("try")
    graph.mutate('query q() { insert A { k: "new", n: 2 } }', branch="try")
    graph.mutate('query q() { delete A where k = "old" }')
    text = "query q() { match { $a: A } return { $a.k } }"

    def asked(**options: Any) -> list[Any]:
        return [row["a.k"] for row in graph.query(text, engine="spark", spark=spark, **options).rows]

    assert (asked(), asked(at=before), asked(branch="try")) == ([], ["old"], ["new", "old"])


def test_a_column_that_older_rows_lack_is_null(spark: Any, tmp_path: Path) -> None:
    graph = omnigraph.init(tmp_path / "g", "node A { k: String @key }", {"fsync": "false"})
    graph.load([{"type": "A", "data": {"k": "old"}}])
    graph.schema.apply("node A { k: String @key  n: I64? }")
    graph.load([{"type": "A", "data": {"k": "new", "n": 5}}])
    for text in ("match { $a: A } return { $a }", "match { $a: A  $a.n > 1 } return { $a.k, $a.n }"):
        query = f"query q() {{ {text} }}"
        assert graph.query(query, engine="spark", spark=spark).rows == graph.query(query).rows != []


def test_auto_stays_here_until_a_query_outgrows_the_process(
    spark: Any, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    people = "$a: Person  $b: Person  $c: Person  $d: Person"
    text = f"query q() {{ match {{ {people} }} return {{ $a.id, $d.id as d }} order {{ $a.id, $d.id }} limit 1 }}"
    rows = graph.query(text).rows
    monkeypatch.setattr(memory_budget, "COUNTED_MIN", 1)
    monkeypatch.setattr(graph.repository, "settings", Settings(query_bytes=2_000))
    with pytest.raises(BadRequest, match="Spark"):
        graph.query(text, engine="local")

    assert graph.query(text, spark=spark).rows == rows


def test_without_spark_the_error_is_the_reason_to_use_it(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> Any:
        raise SparkNotReady("Spark is not installed.")

    monkeypatch.setattr("omnigraph.pipeline.spark.session.obtain", missing)
    monkeypatch.setattr(memory_budget, "COUNTED_MIN", 1)
    monkeypatch.setattr(graph.repository, "settings", Settings(query_bytes=160))
    with pytest.raises(BadRequest, match="are free: add a filter"):
        graph.query("query q() { match { $a: Person  $b: Person } return { $a.id } }")


def test_an_unknown_engine_and_a_sum_that_overflows_are_sentences(spark: Any, graph: Graph) -> None:
    with pytest.raises(BadRequest, match="Unknown engine"):
        graph.query(TEXT, engine="duck")  # type: ignore[arg-type]
    text = "query q() { match { $a: Person } return { sum($a.vast) } }"
    said = []
    for engine in ("local", "spark"):
        with pytest.raises(BadRequest) as raised:
            graph.query(text, engine=engine, spark=spark)
        said.append(str(raised.value))
    assert said[0] == said[1]


def test_the_session_of_the_caller_is_left_as_it_was(spark: Any, graph: Graph) -> None:
    names = ("spark.sql.ansi.enabled", "spark.sql.caseSensitive", "spark.sql.autoBroadcastJoinThreshold")
    spark.conf.set("spark.sql.ansi.enabled", "false")
    before = [spark.conf.get(name) for name in names]
    persistent = spark.sparkContext._jsc.sc().getPersistentRDDs().size()
    try:
        rows = graph.query(TEXT, engine="spark", spark=spark).rows
        assert [spark.conf.get(name) for name in names] == before
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
    assert rows == graph.query(TEXT).rows
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") is None
    assert spark.sparkContext._jsc.sc().getPersistentRDDs().size() <= persistent
    assert type(spark).getActiveSession()._jsparkSession.equals(spark._jsparkSession)
    assert spark.sparkContext.parallelize([(1,)]).toDF("one int").sparkSession is spark


def test_importing_the_facade_does_not_import_spark() -> None:
    script = "import sys, omnigraph.graph.graph, omnigraph.pipeline.compute; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == 0


def test_carriers_bring_every_type_back() -> None:
    for kind, values in (
        (pa.uint64(), [0, 2**64 - 1, None]),
        (pa.list_(pa.uint64()), [[2**64 - 1], None, []]),
        (pa.list_(pa.float32(), 2), [[1.0, 2.0], None, [3.0, 4.0]]),
        (pa.large_binary(), [b"\0", None, b""]),
        (pa.list_(pa.date32()), [None, [], None]),
    ):
        array: Any = pa.array(values, kind)
        carried = query_scan.carried(array[1:])
        assert carried.type == query_scan.carrier_type(kind)
        back = query_scan.from_carrier(carried, kind)
        assert (back.type, back.to_pylist()) == (kind, values[1:])
