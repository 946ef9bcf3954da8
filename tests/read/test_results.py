"""What a result is: rows, Arrow, pandas, batches, JSON, and the plan that made it."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass

from omnigraph.read.project.render import json_rows
from omnigraph.read.reader import SnapshotReader
from omnigraph.schema.types import ListOf, PropertyType, Scalar, Vector

from .graphs import KNOWS, PERSON, Data, edge, graph_of, person, reader_of, run

F32_TENTH = 0.10000000149011612
SEEN = dt.datetime(2026, 1, 31, 12, 0, 0, 250000, tzinfo=dt.UTC)
DATA: Data = {
    PERSON: [
        person(
            "ada",
            name="Ada",
            age=36,
            big=2**63 - 1,
            weight=F32_TENTH,
            score=0.1,
            born=dt.date(2026, 1, 31),
            seen=SEEN,
            tags=["x"],
            face=[F32_TENTH, 1.0],
            data=b"\x00hi",
        ),
        person("bob"),
    ],
    KNOWS: [edge("ada", "bob")],
}
ALL = "$a.name, $a.age, $a.weight, $a.score, $a.born, $a.seen, $a.tags, $a.face, $a.data, $a.big"


def test_rows_have_python_values_and_columns_in_the_order_of_return() -> None:
    with graph_of(DATA) as graph:
        result = run(reader_of(graph), f"match {{ $a: Person }} return {{ {ALL} }}")
        assert result.columns == [name.strip()[1:] for name in ALL.split(",")]
        first, second = result.rows
        assert list(first) == result.columns
        assert first["a.born"] == dt.date(2026, 1, 31)
        assert first["a.seen"] == SEEN
        assert first["a.data"] == b"\x00hi"
        assert set(second.values()) == {None}
        assert len(result) == 2
        assert result.commit_id == graph.snapshot().commit_id


def test_json_has_the_formats_of_the_surface() -> None:
    with graph_of(DATA) as graph:
        result = run(reader_of(graph), f"match {{ $a: Person }} return {{ {ALL}, $a }}")
        ((first, second),) = result.json_batches()
        assert json.loads(json.dumps(first)) == first
        assert first["a.weight"] == 0.1
        assert first["a.born"] == "2026-01-31"
        assert first["a.seen"] == "2026-01-31T12:00:00.250Z"
        assert first["a.face"] == [0.1, 1.0]
        assert first["a.data"] == "base64:AGhp"
        assert first["a.big"] == 2**63 - 1
        assert first["a"]["id"] == "ada"
        assert first["a"]["seen"] == "2026-01-31T12:00:00.250Z"
        assert second["a"]["seen"] is None


@dataclass(frozen=True)
class Column:
    name: str
    type: PropertyType
    node: None = None


def test_times_always_have_milliseconds_and_lists_are_converted() -> None:
    def rendered(value: object, kind: PropertyType) -> object:
        return json_rows([{"v": value}], [Column("v", kind)])[0]["v"]

    assert rendered(dt.datetime(2026, 1, 1, tzinfo=dt.UTC), Scalar("DateTime")) == "2026-01-01T00:00:00.000Z"
    assert rendered([dt.date(2026, 1, 1)], ListOf(Scalar("Date"))) == ["2026-01-01"]
    assert rendered([F32_TENTH], Vector(1)) == [0.1]
    assert rendered(None, Scalar("Date")) is None
    assert rendered(16777216.0, Scalar("F32")) == 16777216.0


def test_arrow_and_pandas_have_the_same_rows() -> None:
    with graph_of(DATA) as graph:
        result = run(reader_of(graph), "match { $a: Person } return { $a.id as id, $a.age as age, count($a) as n }")
        assert result.to_arrow().to_pylist() == result.rows
        assert list(result.to_pandas()["id"]) == ["ada", "bob"]
        empty = run(reader_of(graph), "match { $a: Person { age: 1 } } return { $a.id as id, $a }")
        assert empty.to_arrow().num_rows == 0
        assert empty.to_arrow().column_names == ["id", "a"]


def test_batches_are_read_on_demand() -> None:
    data: Data = {PERSON: [person(f"p{i:04}") for i in range(1000)]}
    with graph_of(data) as graph:
        result = run(reader_of(graph), "match { $a: Person  $b: Person } return { $a.id as a, $b.name as b }")
        assert len(result) == 1_000_000
        batches = result.batches(100)
        assert next(batches).num_rows == 100
        assert next(batches).column("a").to_pylist() == ["p0000"] * 100


def test_a_plan_has_estimated_and_actual_rows() -> None:
    with graph_of(DATA) as graph:
        result = run(
            reader_of(graph),
            'match { $a: Person { slug: "ada" }  $a knows $b  not { $b knows $_ } } return { $b.id as b }',
        )
        assert result.plan is not None
        text = str(result.plan)
        assert 'Scan node:Person a where a.id = "ada"  (estimated 1, rows 1)' in text
        assert "Expand edge:Knows a -> b by adjacency" in text
        assert "Not  (rows 1)" in text
        assert json.dumps(result.plan.to_json())


def test_the_search_starts_where_fewest_rows_are_expected() -> None:
    with graph_of(DATA) as graph:
        plan = run(reader_of(graph), 'match { $a: Person  $a knows $b  $b.slug = "bob" } return { $a.id as a }').plan
        assert plan is not None
        assert plan.steps[0].text.startswith("Scan node:Person b")


def test_a_result_outlives_its_reader() -> None:
    with graph_of(DATA) as graph:

        def made() -> object:
            reader: SnapshotReader = reader_of(graph, expand="index")
            return run(reader, "match { $a: Person } return { $a.id as a, $a.name as n }")

        assert [row["a"] for row in made().rows] == ["ada", "bob"]  # type: ignore[attr-defined]
