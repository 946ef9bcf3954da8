"""Fast checks of single rows: a row that passes them violates nothing when it is checked by column."""

from __future__ import annotations

import datetime as dt
import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnigraph.schema.arrow import arrow_rows
from omnigraph.schema.catalog import TypeDef
from omnigraph.schema.constraints import Constraint, type_constraints
from omnigraph.schema.identity import id_of
from omnigraph.schema.ipc_row import encode_row
from omnigraph.schema.lang.compile import compile_schema
from omnigraph.schema.types import Enumeration, ListOf, Scalar, Vector
from omnigraph.write.validate.row_checks import passes_fast_checks, value_violations

Row = dict[str, Any]

SCHEMA = """
node Person {
    slug: String @key
    name: String
    age:  I32?
    role: enum(engineer, lead, ops)
    mood: enum(glad, sad)?
    size: F32?
    wage: F64
    born: Date?
    seen: DateTime?
    ok:   Bool
    rank: U32? @unique
    @range(age, 0..150)
    @range(wage, 0.5..9.5)
    @range(born, date("1900-01-01")..date("2026-12-31"))
    @range(seen, datetime("1900-01-01T00:00:00Z")..)
    @check(name, "[a-z]+")
    @unique(name, role)
}
node Plain { text: String  size: F32  wage: F64?  big: U64?  mood: enum(glad, sad)?  @unique(text, big) }
node Listed { text: String  tags: [String]?  sums: [F64]?  face: Vector(2)? }
node OfText { k: String @key }
node OfInt { k: I64 @key }
node OfReal { k: F64 @key }
node OfSingle { k: F32 @key }
node OfBool { k: Bool @key }
node OfDate { k: Date @key }
node OfInstant { k: DateTime @key }
node OfEnum { k: enum(a, b) @key }
node OfSeveral { a: String  b: I32  c: Date?  d: F64  text: String?  @key(d, a, b) }
edge Knows: Person -> Person { since: Date?  weight: F64  @unique(src, dst) }
"""


def in_other_columns(definition: TypeDef) -> TypeDef:
    """The type as renames leave it: its columns are not its names."""
    return replace(
        definition, properties=tuple(replace(prop, column=f"{prop.name}_1") for prop in definition.properties)
    )


TYPES = {definition.name: in_other_columns(definition) for definition in compile_schema(SCHEMA).catalog.types}
CONSTRAINTS: dict[str, tuple[Constraint, ...]] = {name: type_constraints(one) for name, one in TYPES.items()}

TEXTS = st.one_of(st.sampled_from(["", "a", "ada", "Ada", 'say "hi"', "new\nline", "\\", "ä€😀"]), st.text(max_size=9))
DAYS = st.one_of(st.dates(), st.sampled_from([dt.date.min, dt.date.max, dt.date(1900, 1, 1), dt.date(1899, 12, 31)]))
MOMENTS = st.datetimes(min_value=dt.datetime(1, 1, 2), max_value=dt.datetime(9999, 12, 30)).map(
    lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000, tzinfo=dt.UTC)
)
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "String": TEXTS,
    "Bool": st.booleans(),
    "I32": st.one_of(st.integers(-3, 153), st.sampled_from([-(2**31), 2**31 - 1])),
    "I64": st.one_of(st.integers(-3, 3), st.sampled_from([-(2**63), 2**63 - 1])),
    "U32": st.integers(0, 2**32 - 1),
    "U64": st.integers(0, 2**64 - 1),
    "F32": st.one_of(st.floats(), st.floats(width=32), st.sampled_from([0.0, -0.0, 0.1, 1e39])),
    "F64": st.one_of(st.floats(), st.sampled_from([0.0, -0.0, 0.5, 9.5, 1e22])),
    "Date": DAYS,
    "DateTime": MOMENTS,
}
FINITE = {
    "F32": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "F64": st.floats(allow_nan=False, allow_infinity=False),
}


def values(kind: Any, scalars: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    match kind:
        case Enumeration(values=declared):
            return st.sampled_from([*declared, "other", ""]) if scalars is SCALARS else st.sampled_from(declared)
        case ListOf(item):
            return st.lists(st.one_of(scalars[item.name], st.none()), max_size=3)
        case Vector(dimension):
            return st.lists(scalars["F32"], min_size=dimension, max_size=dimension)
        case Scalar(name):
            return scalars[name]
    raise AssertionError(kind)


def id_by_key(definition: TypeDef, row: Row) -> str:
    try:
        return id_of(definition, {name: row[definition.column(name)] for name in definition.key})
    except Exception:
        return "no key"


@st.composite
def any_rows(draw: st.DrawFn, definition: TypeDef) -> Row:
    """A row with values of the right class, fine or not; the id is the key's, or another."""
    row: Row = {"id": "fresh"} if definition.kind == "node" else {"id": "fresh", "src": "ada", "dst": "bob"}
    for prop in definition.properties:
        row[prop.column] = draw(st.one_of(values(prop.type, SCALARS), values(prop.type, SCALARS), st.none()))
    keyed = draw(st.integers(0, 4)) > 0
    if definition.key and keyed:
        row["id"] = id_by_key(definition, row)
    return row


@st.composite
def good_rows(draw: st.DrawFn, definition: TypeDef) -> Row:
    """A row that breaks nothing, as far as no rule is about ranges or patterns: those are for columns to judge."""
    rules = definition.rules
    ruled = [*(entry.property for entry in rules.ranges), *(entry.property for entry in rules.checks)]
    row: Row = {"id": "fresh"} if definition.kind == "node" else {"id": "fresh", "src": "ada", "dst": "bob"}
    for prop in definition.properties:
        null = prop.nullable and (prop.name in ruled or isinstance(prop.type, ListOf | Vector) or draw(st.booleans()))
        row[prop.column] = None if null else draw(values(prop.type, SCALARS | FINITE))
    if definition.key:
        row["id"] = id_by_key(definition, row)
    return row


@pytest.mark.parametrize("name", TYPES)
def test_a_row_that_passes_fast_checks_breaks_nothing_as_columns(name: str) -> None:
    definition, constraints = TYPES[name], CONSTRAINTS[name]
    listed = any(isinstance(prop.type, ListOf | Vector) for prop in definition.properties)

    @settings(deadline=None, max_examples=150)
    @given(any_rows(definition))
    def holds(row: Row) -> None:
        if listed or encode_row(definition, row) is not None:  # nobody asks about others: they are columns already
            fine = passes_fast_checks(definition, row)
            assert not fine or value_violations(constraints, definition, arrow_rows(definition, [row])) == []

    holds()


@pytest.mark.parametrize("name", [name for name in TYPES if name != "Person"])
def test_an_ordinary_row_passes_fast_checks(name: str) -> None:
    definition = TYPES[name]

    @settings(deadline=None, max_examples=50)
    @given(good_rows(definition))
    def holds(row: Row) -> None:
        assert passes_fast_checks(definition, row)

    holds()


PERSON: Row = {
    "id": "ada",
    "slug_1": "ada",
    "name_1": "ada",
    "age_1": None,
    "role_1": "lead",
    "size_1": 1.5,
    "wage_1": 1.0,
    "ok_1": True,
    "rank_1": 7,
}
UNRULED = replace(TYPES["Person"], rules=replace(TYPES["Person"].rules, checks=(), ranges=()))


def test_a_range_and_a_pattern_are_left_to_the_columns_where_there_is_a_value() -> None:
    whole = TYPES["Person"]
    only_checked, only_ranged = (
        replace(whole, rules=rules) for rules in (replace(whole.rules, ranges=()), replace(whole.rules, checks=()))
    )

    assert passes_fast_checks(UNRULED, PERSON)
    assert not passes_fast_checks(only_checked, PERSON)
    assert not passes_fast_checks(only_ranged, PERSON)
    assert value_violations(CONSTRAINTS["Person"], whole, arrow_rows(whole, [PERSON])) == []


@pytest.mark.parametrize(
    ("column", "value", "broken"),
    [
        ("name_1", None, "Person.name required"),
        ("ok_1", None, "Person.ok required"),
        ("role_1", "boss", "Person.role enum"),
        ("mood_1", "odd", "Person.mood enum"),
        ("size_1", float("nan"), "Person.size type F32"),
        ("wage_1", float("inf"), "Person.wage type F64"),
        ("age_1", 151, "Person.age range 0..150"),
        ("born_1", dt.date(1899, 12, 31), "Person.born range 1900-01-01..2026-12-31"),
        ("slug_1", "other", "Person key (slug)"),
        ("id", "other", "Person key (slug)"),
    ],
)
def test_a_row_that_breaks_something_does_not_pass_fast_checks(column: str, value: Any, broken: str) -> None:
    row = PERSON | {column: value}

    rules = TYPES["Person"].rules
    ranged = replace(
        UNRULED, rules=replace(rules, checks=(), ranges=tuple(r for r in rules.ranges if r.property != "wage"))
    )
    assert passes_fast_checks(ranged, PERSON)
    assert not passes_fast_checks(ranged, row)
    found = value_violations(CONSTRAINTS["Person"], TYPES["Person"], arrow_rows(TYPES["Person"], [row]))
    assert broken in [violation.constraint for violation in found]


@pytest.mark.parametrize(
    ("column", "value"), [("tags_1", []), ("tags_1", ["a"]), ("sums_1", [float("nan")]), ("face_1", [1.0, 2.0])]
)
def test_lists_and_vectors_are_left_to_the_columns(column: str, value: Any) -> None:
    assert passes_fast_checks(TYPES["Listed"], {"id": "a", "text_1": "b"})
    assert not passes_fast_checks(TYPES["Listed"], {"id": "a", "text_1": "b", column: value})


def test_cached_values_of_a_type_are_not_those_of_a_copy_of_it() -> None:
    """A schema change makes a type from the one before: its rules are its own."""
    before = compile_schema("node T { name: String? }").catalog.by_name["T"]
    assert passes_fast_checks(before, {"id": "a"})
    after = replace(before, properties=tuple(replace(prop, nullable=False) for prop in before.properties))

    assert not passes_fast_checks(after, {"id": "a"})
    assert passes_fast_checks(before, {"id": "a"})


def test_a_type_whose_rows_were_tested_can_be_sent_elsewhere() -> None:
    assert passes_fast_checks(TYPES["OfText"], {"id": "a", "k_1": "a"})

    again = pickle.loads(pickle.dumps(TYPES["OfText"]))

    assert again == TYPES["OfText"]
    assert not passes_fast_checks(again, {"id": "a", "k_1": "b"})
