"""What is pushed into Lance passes exactly the rows that pass in memory."""

from __future__ import annotations

import datetime as dt
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from omnigraph.lexer import LanguageError
from omnigraph.query.compile import compile_queries
from omnigraph.query.ir import WHERE_ROW, Filter, UpdateRows
from omnigraph.read.match.filters import filter_table, lance_filter
from omnigraph.read.tables.arrow_numpy import compare_values
from support import expressions, interpreter
from support.catalogs import ids_of

from . import random_cases
from .graphs import CATALOG, KNOWS, NOW, PERSON, Data, Row, bound, edge, graph_of, person, stored_row, table

DEFINITION = CATALOG.type_of(PERSON)


def everyone() -> list[Row]:
    rng = Random(1)
    return [
        {**random_cases._person(rng, f"p{i:03}"), "name": rng.choice([*random_cases.TEXTS, None])} for i in range(150)
    ]


def test_pushed_filters_pass_what_passes_in_memory() -> None:
    rows = everyone()
    data: Data = {PERSON: rows}
    rng = Random(2)
    pushed = 0
    with graph_of(data) as graph:
        snapshot = graph.snapshot()
        whole = snapshot.to_arrow(PERSON)
        for _ in range(400):
            try:
                pattern = bound(
                    f"match {{ $a: Person  {random_cases._filter(rng, 'a', ['a'])} }} return {{ $a.id as x }}"
                ).pattern
            except LanguageError:
                continue
            for condition in pattern.filters:
                kept = ids_of(whole.filter(pa.array(filter_table(condition, whole))))
                expected = [row["id"] for row in rows if interpreter.holds(condition, {"a": stored_row(PERSON, row)})]
                assert kept == sorted(expected), condition
                predicate = lance_filter(condition, DEFINITION)
                if predicate is not None:
                    pushed += 1
                    found = ids_of(snapshot.to_arrow(PERSON, ["id"], predicate))
                    assert found == sorted(expected), predicate
    assert pushed > 100


def where(text: str) -> Filter:
    (statement,) = compile_queries(f"query q() {{ {text} }}", CATALOG).bind_mutation({}, now=NOW).statements
    assert isinstance(statement, UpdateRows)
    return statement.where


def test_the_where_of_a_mutation_is_a_filter_like_any_other() -> None:
    condition = where('update Knows set { weight: 1.0 } where from = "it\'s"')
    rows = table(KNOWS, [edge("it's", "b"), edge("b", "it's")])
    assert filter_table(condition, rows).tolist() == [True, False]
    assert lance_filter(condition, CATALOG.type_of(KNOWS)) == "`src` = 'it''s'"
    assert WHERE_ROW == "#row"


@pytest.mark.parametrize(
    ("clause", "predicate"),
    [
        ("$a.age > 3", "`age` > 3"),
        ("3 > $a.age", "`age` < 3"),
        ("$a.age > 3000000000", None),  # beyond the column's type, which Lance refuses
        ("$a.age > 2.5", None),
        ("$a.score > 1.5", None),  # floats: zero has two signs
        ("$a.big > -9223372036854775808", None),
        ('$a.name contains "%_\'"', "contains(`name`, '%_''')"),
        ('$a.name starts_with "x"', "starts_with(`name`, 'x')"),
        ('$a.name = "a\\nb"', None),
        ('$a.tags contains "x"', "array_has(`tags`, 'x')"),
        ("$a.nums contains 3", "array_has(`nums`, 3)"),
        ('$a.born < date("2026-01-01")', "`born` < date '2026-01-01'"),
        ('$a.seen = datetime("2026-01-01T00:00:00Z")', "`seen` = timestamp '2026-01-01 00:00:00.000'"),
        ("$a.ok = true", "`ok` = true"),
        ("$a.ok < true", None),
        ("$a.age = $a.big", None),
    ],
)
def test_only_what_lance_says_alike_is_pushed(clause: str, predicate: str | None) -> None:
    (condition,) = bound(f"match {{ $a: Person  {clause} }} return {{ $a.id as x }}").pattern.filters
    columns = {prop.name: prop.column for prop in DEFINITION.properties}
    expected = predicate
    for name, column in columns.items():
        expected = None if expected is None else expected.replace(f"`{name}`", f"`{column}`")
    assert lance_filter(condition, DEFINITION) == expected


NUMBERS: list[Any] = [
    0,
    1,
    -1,
    2**53,
    2**53 + 1,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
    0.5,
    -0.5,
    2.0**53,
    2.0**63,
    2.0**64,
    1e300,
]


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64(), pa.uint32(), pa.uint64(), pa.float64()])
@pytest.mark.parametrize("other", [pa.int32(), pa.int64(), pa.uint32(), pa.uint64(), pa.float64()])
def test_numbers_of_all_types_compare_as_python_compares_them(kind: Any, other: Any) -> None:
    left, right = _fitting(kind), _fitting(other)
    one = pa.array([a for a in left for _ in right], kind)
    two = pa.array([b for _ in left for b in right], other)
    for op in ("=", "!=", "<", "<=", ">", ">="):
        expected = [expressions.compared(op, a, b) for a in left for b in right]
        assert compare_values(op, one, two, "number", len(one)).tolist() == expected
        for constant in NUMBERS:
            expected = [expressions.compared(op, a, constant) for a in left]
            found = compare_values(op, pa.array(left, kind), constant, "number", len(left))
            assert found.tolist() == expected, (op, constant)


def _fitting(kind: Any) -> list[Any]:
    if pa.types.is_floating(kind):
        return [float(value) for value in NUMBERS]
    bounds = np.iinfo(kind.to_pandas_dtype())
    return [value for value in NUMBERS if isinstance(value, int) and bounds.min <= value <= bounds.max]


def test_years_of_fewer_digits_are_written_with_four() -> None:
    moment = dt.datetime(33, 4, 3, tzinfo=dt.UTC)
    data: Data = {PERSON: [person("a", seen=moment, born=dt.date(33, 4, 3))]}
    for clause in ('$a.seen = datetime("0033-04-03T00:00:00Z")', '$a.born = date("0033-04-03")'):
        (condition,) = bound(f"match {{ $a: Person  {clause} }} return {{ $a.id as x }}").pattern.filters
        predicate = lance_filter(condition, DEFINITION)
        with graph_of(data) as graph:
            assert graph.snapshot().to_arrow(PERSON, ["id"], predicate).num_rows == 1
