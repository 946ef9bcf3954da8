"""The effect of a schema change on tables: how little it writes, indexes, and S3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import omnigraph
from omnigraph.errors import ConstraintViolation
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import Append
from omnigraph.schema.indexes import DeclaredIndex
from omnigraph.storage.table.tables import TableVersion
from omnigraph.write.migrate.migrate import IDS_REPORTED_MAX
from support.s3 import S3Location

ROWS = 12_000  # enough for index segments
WIDE = "node P { k: String @key  x: I32?  name: String?  code: String?  v: Vector(4)? @index }"
NEAREST = "query q() { match { $p: P } return { $p.k } order { nearest($p.v, [1.0, 2.0, 3.0, 4.0]) } limit 3 }"


def vectors() -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(1).standard_normal((ROWS, 4)).astype(np.float32)


def many() -> pa.Table:
    ids = [f"k{i}" for i in range(ROWS)]
    return pa.table(
        {
            "id": ids,
            "k": ids,
            "x": pa.array(range(ROWS), pa.int32()),
            "name": [f"word{i % 1000}" for i in range(ROWS)],
            "code": [f"c{i}" for i in range(ROWS)],
            "v": pa.FixedSizeListArray.from_arrays(pa.array(vectors().ravel()), 4),
        }
    )


@pytest.fixture
def large(tmp_path: Path) -> Graph:
    graph = omnigraph.init(tmp_path / "graph", WIDE)
    graph.write([Append("node:P", many())])
    return graph


def at(graph: Graph, key: str = "node:P") -> TableVersion:
    ref = graph.repository.snapshot().manifest.tables[key]
    assert ref.stored is not None
    return ref.stored


def indexed(graph: Graph, column: str, kind: Any) -> bool:
    return graph.repository.tables.has_index(at(graph), DeclaredIndex(column, kind))


def data_files(graph: Graph) -> set[str]:
    fragments = graph.repository.tables.open(at(graph)).get_fragments()
    return {str(file.path) for fragment in fragments for file in fragment.metadata.files}


def test_a_nullable_property_writes_no_data_file(large: Graph) -> None:
    before = data_files(large)
    large.schema.apply(WIDE.replace("x: I32?", "x: I32? y: [String]? @unique(x)"))

    assert data_files(large) == before
    assert indexed(large, "k", "btree")


def test_a_default_and_a_widening_write_their_columns_alone(large: Graph) -> None:
    before = data_files(large)
    applied = large.schema.apply(WIDE.replace("x: I32?", "x: I64? y: I64 @default(3)"))

    assert before < data_files(large)
    assert applied.cost.bytes < 1_000_000
    assert indexed(large, "k", "btree")
    found = large.query('query q() { match { $p: P $p.k = "k77" } return { $p.x, $p.y } }')
    assert found.rows == [{"p.x": 77, "p.y": 3}]
    assert large.query("query q() { match { $p: P } return { sum($p.x) as x, sum($p.y) as y } }").rows == [
        {"x": ROWS * (ROWS - 1) // 2, "y": 3 * ROWS}
    ]


def test_new_indexes_are_built_over_the_rows_that_are_there(large: Graph) -> None:
    text = WIDE.replace("x: I32?", "x: I64? @index").replace("name: String?", "name: String? @index")
    large.schema.apply(text.replace("code: String?", "code: String? @unique"))

    assert indexed(large, "x_p2", "btree")
    assert indexed(large, "name", "full_text")
    assert indexed(large, "code", "btree")
    found = large.query('query q() { match { $p: P search($p.name, "word7") $p.x < 2000 } return { count($p) as n } }')
    assert found.rows == [{"n": 2}]


def test_another_metric_makes_another_index(large: Graph) -> None:
    wanted = np.array([1.0, 2.0, 3.0, 4.0])
    near = np.argsort(((vectors() - wanted) ** 2).sum(1))[:3]
    assert indexed(large, "v", "vector")

    large.schema.apply(WIDE.replace("@index", '@index(metric="l2")'))

    assert indexed(large, "v", "vector")
    assert [row["p.k"] for row in large.query(NEAREST).rows] == [f"k{i}" for i in near]


def test_a_physical_drop_builds_the_indexes_again(large: Graph) -> None:
    before = large.query(NEAREST).rows
    large.schema.apply(WIDE.replace("x: I32?", ""), allow_data_loss=True)

    assert "x" not in large.repository.tables.open(at(large)).schema.names
    assert indexed(large, "k", "btree")
    assert indexed(large, "v", "vector")
    assert large.query(NEAREST).rows == before


def test_more_offending_rows_than_are_reported_are_counted(large: Graph) -> None:
    text = WIDE.replace("x: I32?", "x: I32? y: I32 @default(1) @unique @range(x, 100000..)")

    with pytest.raises(ConstraintViolation, match=r"\(12,000 rows in all\)") as caught:
        large.schema.apply(text)
    assert [len(one.entity_ids) for one in caught.value.violations] == [IDS_REPORTED_MAX, IDS_REPORTED_MAX]
    assert [step.count for step in large.schema.plan(text).steps] == [ROWS, ROWS, ROWS]


@pytest.mark.s3
def test_every_kind_of_step_on_s3(s3: S3Location) -> None:
    base = "node A { k: String @key x: I32? gone: String? } node B { k: String @key } edge E: A -> B"
    graph = omnigraph.init(s3.uri, base, s3.options)
    graph.load(
        [{"type": "A", "data": {"k": f"a{i}", "x": i, "gone": "old"}} for i in range(3)]
        + [{"type": "B", "data": {"k": "b"}}, {"edge": "E", "from": "a1", "to": "b"}]
    )
    first = graph.snapshot().commit_id
    text = (
        'node Z @rename_from("A") { k: String @key y: I64? @rename_from("x") @index d: [String] @default(["u"]) '
        "n: F64? @unique(y) @range(y, 0..) } node B { k: String @key } edge E: Z -> B @card(0..1)"
    )

    applied = graph.schema.apply(text)
    graph.schema.apply(text.replace("d: [String]", "").replace('@default(["u"])', ""), allow_data_loss=True)

    assert applied.commit is not None
    other = omnigraph.open(s3.uri, s3.options)
    other.mutate('query q() { insert Z { k: "new", y: 5000000000 } }')
    rows = other.query("query q() { match { $z: Z } return { $z } order { $z.k } }").rows
    assert [row["z"] for row in rows] == [
        {"id": "a0", "k": "a0", "y": 0, "n": None},
        {"id": "a1", "k": "a1", "y": 1, "n": None},
        {"id": "a2", "k": "a2", "y": 2, "n": None},
        {"id": "new", "k": "new", "y": 5000000000, "n": None},
    ]
    between = other.query("query q() { match { $z: Z } return { $z.d } limit 1 }", at=applied.commit.id)
    assert between.rows == [{"z.d": ["u"]}]
    old = other.query("query q() { match { $a: A $a e $b } return { $a.x, $a.gone } }", at=first)
    assert old.rows == [{"a.x": 1, "a.gone": "old"}]
