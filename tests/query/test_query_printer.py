"""parse(print(query)) == query, for every query that can be written."""

from __future__ import annotations

import datetime as dt
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from omnigraph.query import ast
from omnigraph.query.ast import AGGREGATES, RANKS, TEXT_FILTERS
from omnigraph.query.functions import SIGNATURES
from omnigraph.query.parser import parse
from omnigraph.query.printer import print_file
from omnigraph.schema.types import SCALARS, Enumeration, ListOf, Scalar, Vector

KEYWORDS = [
    "match",
    "return",
    "order",
    "limit",
    "not",
    "contains",
    "as",
    "desc",
    "query",
    "date",
    "true",
    "null",
    "from",
]
names = st.from_regex(r"[a-z][A-Za-z0-9_]{0,6}", fullmatch=True) | st.sampled_from(KEYWORDS)
types_ = st.from_regex(r"[A-Z][A-Za-z0-9_]{0,6}", fullmatch=True)
scalars = st.sampled_from([Scalar(name) for name in SCALARS])
enums = st.lists(st.from_regex(r"[A-Za-z0-9_-]{1,5}", fullmatch=True), min_size=1, max_size=3, unique=True)
param_types = (
    scalars
    | scalars.map(ListOf)
    | st.integers(1, 65_536).map(Vector)
    | enums.map(lambda values: Enumeration(tuple(values)))
)
strings = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
moments = st.datetimes(timezones=st.just(dt.UTC)).map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000))
literals = (
    strings.map(lambda value: ast.LiteralExpr("string", value))
    | st.integers(-(2**63), 2**64 - 1).map(lambda value: ast.LiteralExpr("integer", value))
    | st.floats(allow_nan=False, allow_infinity=False).map(lambda value: ast.LiteralExpr("float", value))
    | st.booleans().map(lambda value: ast.LiteralExpr("bool", value))
    | st.dates().map(lambda value: ast.LiteralExpr("date", value))
    | moments.map(lambda value: ast.LiteralExpr("datetime", value))
)
lists = st.lists(literals, max_size=3).map(lambda items: ast.ListExpr(tuple(items)))
variables = (names | st.just("_")).map(ast.VarRef)  # none of them a parameter: their names start with p_
props = st.builds(ast.PropRef, variables, names)
now = st.just(ast.FunctionCall("now", ()))
null = st.just(ast.LiteralExpr("null", None))
leaves = literals | null | lists | variables | props | now


def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Expressions around others, as the parser makes them: `and` and `or` are flat only where no parentheses are."""
    several = st.lists(inner, min_size=2, max_size=3).map(tuple)
    branches = st.lists(st.tuples(inner, inner), min_size=1, max_size=2).map(tuple)
    return (
        st.builds(ast.FunctionCall, st.sampled_from([*SIGNATURES, *AGGREGATES]), st.lists(inner, max_size=3).map(tuple))
        | st.builds(ast.BinaryExpr, st.sampled_from([*ast.COMPARISONS, "||", "+", "-", "*", "/", "%"]), inner, inner)
        | st.builds(ast.UnaryExpr, st.sampled_from(["not", "-", "is null", "is not null"]), inner)
        | st.builds(ast.ConnectiveExpr, st.sampled_from(["and", "or"]), several)
        | st.builds(ast.CaseExpr, branches, st.none() | inner)
        | st.builds(ast.IndexExpr, inner, inner)
    )


def is_not_a_date(expr: ast.Expr) -> bool:
    """`date("2026-01-31")` is a literal, and a text that is none is refused."""
    if isinstance(expr, ast.FunctionCall) and expr.fn in ("date", "datetime") and len(expr.args) == 1:
        (arg,) = expr.args
        if isinstance(arg, ast.LiteralExpr) and arg.kind == "string":
            return False
    return all(is_not_a_date(part) for part in ast.children(expr))


exprs = st.recursive(leaves, larger, max_leaves=6).filter(is_not_a_date)
matches = st.lists(st.builds(ast.PropertyValue, names, exprs), max_size=3).map(tuple)
calls = st.builds(ast.FunctionCall, st.sampled_from([*AGGREGATES, *RANKS]), st.lists(exprs, max_size=3).map(tuple))
searches = st.builds(ast.FunctionCall, st.sampled_from(TEXT_FILTERS), st.lists(exprs, max_size=3).map(tuple))


@st.composite
def hops(draw: st.DrawFn) -> ast.Hops:
    low = draw(st.integers(1, 9))
    return ast.Hops(low, draw(st.none() | st.integers(low, 12)))


@st.composite
def traversals(draw: st.DrawFn) -> ast.Traversal:
    bound = draw(st.none() | variables)
    edge = draw(names)
    return ast.Traversal(draw(variables), edge, draw(variables), draw(st.none() | hops()), draw(st.booleans()), bound)


def is_condition(expr: ast.Expr) -> bool:
    """`$a contains $b` is a traversal unless `$a` is a parameter: the parser's own rule, tested elsewhere."""
    while ast.children(expr) and not isinstance(expr, ast.FunctionCall | ast.ListExpr | ast.CaseExpr):
        if isinstance(expr, ast.UnaryExpr) and expr.op in ("not", "-"):
            return True
        expr = ast.children(expr)[0]
    return not isinstance(expr, ast.VarRef)


clauses: st.SearchStrategy[Any] = st.recursive(
    st.builds(ast.Binding, variables, types_, matches)
    | traversals()
    | st.builds(ast.FilterClause, exprs.filter(is_condition) | searches),
    lambda inner: st.lists(inner, min_size=1, max_size=3).map(lambda found: ast.NotClause(tuple(found))),
    max_leaves=4,
)
returns = st.lists(st.builds(ast.ReturnItem, exprs, st.none() | names), min_size=1, max_size=3).map(tuple)


def is_no_name(expr: ast.Expr) -> bool:
    """`true` alone in `order` is the column of that name."""
    return not isinstance(expr, ast.LiteralExpr) or expr.kind not in ("bool", "null")


keys = st.builds(
    ast.OrderItem, names.map(ast.AliasRef) | exprs.filter(is_no_name), st.sampled_from([None, "asc", "desc"])
)
reads = st.builds(
    ast.ReadBody,
    st.lists(clauses, min_size=1, max_size=4).map(tuple),
    returns,
    st.lists(keys, max_size=2).map(tuple),
    st.none() | st.integers(0, 2**40),
)
columns = names.filter(lambda name: name not in ("true", "false", "null", "not", "case")).map(ast.AliasRef)
wheres = st.recursive(leaves | columns, larger, max_leaves=6).filter(is_not_a_date)
some_values = st.lists(st.builds(ast.PropertyValue, names, exprs), min_size=1, max_size=3).map(tuple)
writes = st.lists(
    st.builds(ast.InsertStatement, types_, matches) | st.builds(ast.UpdateStatement, types_, some_values, wheres),
    min_size=1,
    max_size=3,
).map(lambda found: ast.MutationBody(tuple(found)))
deletes = st.lists(st.builds(ast.DeleteStatement, types_, wheres), min_size=1, max_size=3).map(
    lambda found: ast.MutationBody(tuple(found))
)
param_names = names.map(lambda name: f"p_{name}")
params = st.lists(st.builds(ast.ParamDecl, param_names, param_types, st.booleans()), max_size=3).map(tuple)
notes = st.lists(
    st.builds(ast.QueryAnnotation, names.filter(lambda name: name != "description"), st.none() | strings)
    | st.builds(ast.QueryAnnotation, st.just("description"), strings),
    max_size=2,
).map(tuple)
queries = st.builds(ast.QueryDecl, names, params, reads | writes | deletes, notes)
files = st.lists(queries, min_size=1, max_size=2, unique_by=lambda query: query.name).map(
    lambda found: ast.QueryFile(tuple(found))
)


@given(files)
@settings(deadline=None, max_examples=300)
def test_parsing_what_was_printed_gives_the_same(file: ast.QueryFile) -> None:
    printed = print_file(file)

    assert parse(printed) == file
    assert print_file(parse(printed)) == printed


def test_one_and_true_are_different_literals() -> None:
    assert ast.LiteralExpr("integer", 1) != ast.LiteralExpr("bool", True) != ast.LiteralExpr("float", 1.0)
