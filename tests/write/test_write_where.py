"""The `where` of a mutation is an expression: it selects exactly the rows for which the reference says it is true."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import omnigraph
from omnigraph import Graph
from omnigraph.lexer import LanguageError
from omnigraph.query.compile import ParameterError, bind, compile_queries
from omnigraph.query.ir import UpdateRows
from omnigraph.schema.lang.compile import compile_schema
from query.gq import NOW
from query.random_expressions import Expressions, rows
from support import expressions

SCHEMA = """
node Person {
    slug: String @key
    name: String
    note: String?
    role: enum(engineer, lead, ops)?
    age: I32?
    big: I64?
    natural: U64?
    height: F32?
    score: F64?
    happy: Bool?
    born: Date?
    seen: DateTime?
    tags: [String]?
    marked: I64?
}
"""
CATALOG = compile_schema(SCHEMA).catalog


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return omnigraph.init(tmp_path / "g", schema=SCHEMA, storage_options={"fsync": "false"})


def marked(graph: Graph, number: int) -> list[str]:
    query = f"match {{ $p: Person {{ marked: {number} }} }} return {{ $p.slug as slug }} order {{ slug }}"
    return [row["slug"] for row in graph.query(query).rows]


@pytest.mark.parametrize("seed", range(3))
def test_random_conditions_select_the_rows_for_which_they_are_true(graph: Graph, seed: int) -> None:
    dice = random.Random(seed)
    people = [{**row, "id": row["slug"]} for row in rows(dice, 30)]
    entities = [
        {"type": "Person", "data": {name: value for name, value in row.items() if name not in ("id", "marks")}}
        for row in people
    ]
    graph.load(entities[:20])
    graph.optimize()
    graph.load(entities[20:])  # these lie over the stored rows
    draw = Expressions(dice, [""], small=True)
    for number in range(12):
        text = f"query q() {{ update Person set {{ marked: {number} }} where {draw.boolean(3)} }}"
        (statement,) = bind(compile_queries(text, CATALOG).mutation(), {}, now=NOW).statements
        assert isinstance(statement, UpdateRows)

        graph.mutate(text)

        wanted = [row["slug"] for row in people if expressions.value(statement.where, {"#row": row}) is True]
        assert marked(graph, number) == sorted(wanted), text


def test_null_is_a_value_of_an_assignment(graph: Graph) -> None:
    graph.mutate('insert Person { slug: "a", name: "Ada", age: 36 }')
    graph.mutate('update Person set { age: null } where slug = "a"')

    assert graph.query("match { $p: Person } return { $p.age as age }").rows == [{"age": None}]
    with pytest.raises(omnigraph.OmnigraphError, match="name"):
        graph.mutate('update Person set { name: null } where slug = "a"')


def test_an_absent_parameter_selects_nothing_unless_the_condition_says_what_it_means(graph: Graph) -> None:
    graph.mutate('insert Person { slug: "a", name: "Ada" } insert Person { slug: "b", name: "Bob" }')

    with pytest.raises(ParameterError, match="every row would be selected"):
        graph.mutate('query q($n: String?) { delete Person where slug = "a" or name = $n }')
    graph.mutate('query q($n: String?) { delete Person where slug = "a" and ($n is null or name = $n) }')

    assert graph.query("match { $p: Person } return { $p.slug as slug }").rows == [{"slug": "b"}]


def test_a_condition_has_the_row_s_own_properties_only(graph: Graph) -> None:
    with pytest.raises(LanguageError, match="no property nme"):
        graph.mutate('query q() { delete Person where lower(nme) = "a" }')
