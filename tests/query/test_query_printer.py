"""parse(print(query)) == query, for every query that can be written."""

from __future__ import annotations

import datetime as dt
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from omnigraph.query import ast
from omnigraph.query.ast import AGGREGATES, RANKS, TEXT_FILTERS
from omnigraph.query.parser import parse
from omnigraph.schema.types import SCALARS, Enumeration, ListOf, Scalar, Vector
from support.query_printer import print_file

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
variables = (names | st.just("_")).map(ast.VarRef)
props = st.builds(ast.PropRef, variables, names)
now = st.just(ast.FunctionCall("now", ()))
values = literals | lists | variables | now
matches = st.lists(st.builds(ast.PropertyValue, names, values), max_size=3).map(tuple)
flat = values | props
calls = st.builds(ast.FunctionCall, st.sampled_from([*AGGREGATES, *RANKS]), st.lists(flat, max_size=3).map(tuple))
exprs = flat | calls
searches = st.builds(ast.FunctionCall, st.sampled_from(TEXT_FILTERS), st.lists(flat, max_size=3).map(tuple))
operators = st.sampled_from(ast.OPERATORS)


@st.composite
def hops(draw: st.DrawFn) -> ast.Hops:
    low = draw(st.integers(1, 9))
    return ast.Hops(low, draw(st.none() | st.integers(low, 12)))


@st.composite
def traversals(draw: st.DrawFn) -> ast.Traversal:
    bound = draw(st.none() | variables)
    edge = draw(names.filter(lambda name: name not in ("contains", "starts_with")))
    return ast.Traversal(draw(variables), edge, draw(variables), draw(st.none() | hops()), draw(st.booleans()), bound)


def is_clear(clause: ast.ComparisonClause) -> bool:
    """`$a contains $b` is a traversal unless `$a` is a parameter: the parser's own rule, tested elsewhere."""
    return not (isinstance(clause.left, ast.VarRef) and clause.op in ("contains", "starts_with"))


clauses: st.SearchStrategy[Any] = st.recursive(
    st.builds(ast.Binding, variables, types_, matches)
    | traversals()
    | st.builds(ast.ComparisonClause, exprs, operators, exprs).filter(is_clear)
    | st.builds(ast.SearchFilter, searches),
    lambda inner: st.lists(inner, min_size=1, max_size=3).map(lambda found: ast.NotClause(tuple(found))),
    max_leaves=4,
)
returns = st.lists(st.builds(ast.ReturnItem, exprs, st.none() | names), min_size=1, max_size=3).map(tuple)
keys = st.builds(
    ast.OrderItem, names.map(ast.AliasRef) | props | variables | calls, st.sampled_from([None, "asc", "desc"])
)
reads = st.builds(
    ast.ReadBody,
    st.lists(clauses, min_size=1, max_size=4).map(tuple),
    returns,
    st.lists(keys, max_size=2).map(tuple),
    st.none() | st.integers(0, 2**40),
)
wheres = st.builds(ast.Where, names, operators, values)
some_values = st.lists(st.builds(ast.PropertyValue, names, values), min_size=1, max_size=3).map(tuple)
writes = st.lists(
    st.builds(ast.InsertStatement, types_, matches) | st.builds(ast.UpdateStatement, types_, some_values, wheres),
    min_size=1,
    max_size=3,
).map(lambda found: ast.MutationBody(tuple(found)))
deletes = st.lists(st.builds(ast.DeleteStatement, types_, wheres), min_size=1, max_size=3).map(
    lambda found: ast.MutationBody(tuple(found))
)
params = st.lists(st.builds(ast.ParamDecl, names, param_types, st.booleans()), max_size=3).map(tuple)
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
