"""What the tests of the query language share: a schema, a small graph, and short ways to parse, check and run."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from omnigraph.lexer import LanguageError
from omnigraph.query import ast, ir
from omnigraph.query.check.checker import check
from omnigraph.query.compile import bind, choose_query
from omnigraph.query.parser import parse
from omnigraph.schema.lang.compile import compile_schema
from support.interpreter import Graph, run

NOW = dt.datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=dt.UTC)
MARK = "¦"  # stands before the token that an error must point at

SCHEMA = """
interface Named { name: String @index }

node Person implements Named {
    slug: String @key
    age:  I32?
    role: enum(engineer, lead, ops)?
    tags: [String]?
    marks: [F32]?
    bio:  String? @index
    face: Vector(2)? @index @embed("bio")
    spot: Vector(2)? @index(metric="l2")
    height: F32?
    score: F64?
    big: I64?
    natural: U64?
    happy: Bool?
    born: Date?
    seen: DateTime?
    photo: Blob?
    note: String?
}

node Company { name: String @key }
node Slot { row: String  number: I32  @key(row, number) }
node Room { number: I32 @key }
node Event { title: String  order: I32?  from: String? }

edge Knows: Person -> Person { since: Date? @index  weight: F64?  note: String? }
edge WorksAt: Person -> Company @card(0..1)
edge Contains: Room -> Slot
edge Sits: Person -> Room { until: DateTime? }
"""
CATALOG = compile_schema(SCHEMA).catalog


def read_text(match: str, rest: str = "return { $p.slug }", params: str = "") -> str:
    return f"query q({params}) {{ match {{ {match} }} {rest} }}"


def checked(text: str, name: str | None = None) -> ir.Query:
    file = parse(text)
    return check(choose_query(file, name), file, CATALOG)


def read(text: str) -> ir.ReadQuery:
    query = checked(text)
    assert isinstance(query, ir.ReadQuery)
    return query


def mutation(text: str) -> ir.MutationQuery:
    query = checked(text)
    assert isinstance(query, ir.MutationQuery)
    return query


def body(text: str) -> ast.ReadBody:
    found = parse(text).queries[0].body
    assert isinstance(found, ast.ReadBody)
    return found


def rows(text: str, graph: Graph, **params: object) -> list[dict[str, Any]]:
    return run(bind(read(text), params, now=NOW), graph)


def values(text: str, graph: Graph, **params: object) -> list[Any]:
    """The rows as tuples, or as bare values where there is one column."""
    found = [tuple(row.values()) for row in rows(text, graph, **params)]
    return [row[0] if len(row) == 1 else row for row in found]


def refused(marked: str, code: str) -> LanguageError:
    """The error of a text whose offending token has MARK before it; the text must be refused just there."""
    before, mark, after = marked.partition(MARK)
    assert mark, "mark the place"
    with pytest.raises(LanguageError) as caught:
        checked(before + after)
    error = caught.value
    line, column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
    assert (error.language_code, error.line, error.column) == (code, line, column), str(error)
    assert error.excerpt.splitlines()[1].endswith("^")
    assert error.expected
    return error


def person(id_: str, **columns: object) -> dict[str, object]:
    return {"id": id_, "slug": id_, "name": id_.capitalize(), **columns}


def edge(id_: str, src: str, dst: str, **columns: object) -> dict[str, object]:
    return {"id": id_, "src": src, "dst": dst, **columns}


def people(*ids: str, knows: str = "") -> Graph:
    """Persons, and edges written as "ab bc": one letter each end; ids of the edges count from k0."""
    edges = [edge(f"k{i}", pair[0], pair[1]) for i, pair in enumerate(knows.split())]
    return {"node:Person": [person(id_) for id_ in ids], "edge:Knows": edges}
