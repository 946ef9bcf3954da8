"""A schema change has the same effect on rows in tables, in small commits on top of them, or in both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.errors import ConstraintViolation, SchemaChangeRefused
from omnigraph.graph.graph import Graph
from omnigraph.manifest.model.manifest import TableRef
from omnigraph.manifest.settings import Settings

BASE = "node A { k: String @key  x: I32?  s: String? }"
OPTIONS = {"fsync": "false"}


def insert(graph: Graph, **values: Any) -> None:
    given = ", ".join(f"{name}: {value!r}".replace("'", '"') for name, value in values.items())
    graph.mutate(f"query q() {{ insert A {{ {given} }} }}")


def tailed(place: Path, *, stored: bool, tail: bool) -> Graph:
    """Rows a, b and c: a and b are stored, and c, with a change of b, rides in manifests; or all in one place."""
    graph = omnigraph.init(place, BASE, OPTIONS, settings=Settings(inline_rows=512 if tail and not stored else 0))
    insert(graph, k="a", x=1)
    insert(graph, k="b", x=1)
    graph = omnigraph.open(place, OPTIONS, settings=Settings(inline_rows=512 if tail else 0, maintenance=0))
    insert(graph, k="b", x=2)
    insert(graph, k="c", x=3, s="c")
    ref = ref_of(graph)
    assert ((ref.stored is not None), bool(ref.tail)) == (stored, tail)
    return graph


@pytest.fixture(params=["stored", "tail", "both"])
def graph(request: pytest.FixtureRequest, tmp_path: Path) -> Graph:
    return tailed(tmp_path / "graph", stored=request.param != "tail", tail=request.param != "stored")


@pytest.fixture
def both(tmp_path: Path) -> Graph:
    return tailed(tmp_path / "graph", stored=True, tail=True)


@pytest.fixture
def only_tail(tmp_path: Path) -> Graph:
    return tailed(tmp_path / "graph", stored=False, tail=True)


def ref_of(graph: Graph, name: str = "A") -> TableRef:
    return graph.repository.snapshot().manifest.tables[f"node:{name}"]


def column(graph: Graph, name: str, of: str = "A") -> list[Any]:
    text = f"query q() {{ match {{ $a: {of} }} return {{ $a.{name} as v }} order {{ $a.k }} }}"
    return [row["v"] for row in graph.query(text).rows]


def exported(graph: Graph, place: Path) -> str:
    graph.export(place)
    return place.read_text()


def test_an_empty_column_comes(graph: Graph, tmp_path: Path) -> None:
    graph.schema.apply(BASE.replace("s: String?", "s: String?  y: F64?"))

    assert column(graph, "y") == [None, None, None]
    assert column(graph, "x") == [1, 2, 3]
    insert(graph, k="a", y=0.5)
    assert column(graph, "y") == [0.5, None, None]
    assert graph.query("query q() { match { $a: A  $a.y > 0.0 } return { $a.k as k } }").rows == [{"k": "a"}]
    assert exported(graph, tmp_path / "g.jsonl").count('"x"') == 3


def test_a_column_with_a_default_comes(graph: Graph) -> None:
    graph.schema.apply(BASE.replace("s: String?", "s: String?  y: I32 @default(7)"))

    assert column(graph, "y") == [7, 7, 7]
    assert column(graph, "x") == [1, 2, 3]
    assert ref_of(graph).tail == ()
    assert ref_of(graph).rows == 3


def test_a_column_is_widened(graph: Graph) -> None:
    graph.schema.apply(BASE.replace("x: I32?", "x: I64?"))

    assert column(graph, "x") == [1, 2, 3]
    insert(graph, k="b", x=2**40)
    assert column(graph, "x") == [1, 2**40, 3]


def test_a_type_is_renamed(graph: Graph) -> None:
    before = ref_of(graph)
    graph.schema.apply(BASE.replace("node A", 'node Z @rename_from("A")'))

    assert ref_of(graph, "Z") == before
    assert column(graph, "x", "Z") == [1, 2, 3]
    graph.mutate('query q() { insert Z { k: "d", x: 4 } update Z set { x: 5 } where k = "a" }')
    assert column(graph, "x", "Z") == [5, 2, 3, 4]


def test_dropped_values_go_for_good(graph: Graph) -> None:
    graph.schema.apply(BASE.replace("  s: String?", ""), allow_data_loss=True)

    assert column(graph, "x") == [1, 2, 3]
    content = graph.repository.snapshot().content("node:A")
    assert graph.repository.tables.dataset(content).schema.names == ["id", "k", "x"]


def test_a_property_that_is_dropped_and_added_again_is_empty(graph: Graph) -> None:
    graph.schema.apply(BASE.replace("  s: String?", ""))
    graph.schema.apply(BASE)

    assert column(graph, "s") == [None, None, None]


def test_nulls_are_found_wherever_they_are(graph: Graph) -> None:
    with pytest.raises(SchemaChangeRefused) as refused:
        graph.schema.apply(BASE.replace("s: String?", "s: String"))
    assert "2 rows" in str(refused.value)
    graph.schema.apply(BASE.replace("x: I32?", "x: I32"))


def test_what_a_new_constraint_forbids_is_found_wherever_it_is(graph: Graph) -> None:
    with pytest.raises(ConstraintViolation, match="'c'"):
        graph.schema.apply(BASE.replace("s: String?", "s: String? @range(x, 0..2)"))
    insert(graph, k="d", x=1)
    with pytest.raises(ConstraintViolation) as refused:
        graph.schema.apply(BASE.replace("x: I32?", "x: I32? @unique"))
    (violation,) = refused.value.violations
    assert violation.entity_ids == ("a", "d")


LOGICAL: dict[str, Callable[[str], str]] = {
    "a property goes": lambda text: text.replace("  s: String?", ""),
    "a property is renamed": lambda text: text.replace("s: String?", 't: String? @rename_from("s")'),
    "a constraint comes": lambda text: text.replace("s: String?", "s: String? @range(x, 0..9)"),
}


@pytest.mark.parametrize("change", LOGICAL)
def test_what_changes_no_column_leaves_the_tail_alone(both: Graph, change: str) -> None:
    before = ref_of(both)
    assert both.schema.apply(LOGICAL[change](BASE)).applied

    assert ref_of(both) == before


def test_an_empty_column_makes_no_table_of_rows_that_were_never_stored(only_tail: Graph) -> None:
    before = ref_of(only_tail)
    only_tail.schema.apply(BASE.replace("s: String?", "s: String?  y: F64?"))

    assert ref_of(only_tail) == before


def test_an_edge_that_rides_in_a_manifest_is_merged_after_its_type_got_a_property(tmp_path: Path) -> None:
    """It is found by its ends, without the column that it is older than."""
    edge = "edge E: A -> A { w: I32?  @unique(src, dst) }"
    graph = omnigraph.init(tmp_path / "graph", f"{BASE} {edge}", OPTIONS, settings=Settings(maintenance=0))
    insert(graph, k="a")
    graph.load([{"edge": "E", "from": "a", "to": "a", "data": {"id": "e", "w": 1}}])
    graph.schema.apply(f"{BASE} {edge.replace('w: I32?', 'w: I32?  v: I32?')}")

    loops: list[dict[str, Any]] = [
        {"edge": "E", "from": "a", "to": "a", "data": {"v": 2}},
        {"edge": "E", "from": "a", "to": "a", "data": {"id": "other"}},
    ]
    graph.load(loops[:1], mode="merge")
    with pytest.raises(ConstraintViolation):
        graph.load(loops, mode="merge")

    (found,) = graph.query("query q() { match { $a $e:e $b } return { $e.w, $e.v } }").rows
    assert found == {"e.w": 1, "e.v": 2}
