"""Every way to get a schema wrong: the code, the place, and what to write instead.

`¦` stands before the place that the error must point at; it is not part of the text.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from omnigraph.errors import BadRequest
from omnigraph.lexer import LanguageError
from omnigraph.schema.catalog import Catalog, InvalidCatalog, Property, Rules, TypeDef, catalog_from_json
from omnigraph.schema.lang.compile import compile_schema
from omnigraph.schema.types import parse_type

ROOT = Path(__file__).resolve().parents[2]
A = "node A { n: I32 } "
INT = parse_type("I32")

SYNTAX = [
    ("OG-LX-200", "¦nodes Person { }"),
    ("OG-LX-200", "node ¦{ }"),
    ("OG-LX-200", 'node ¦"Person" { }'),
    ("OG-LX-200", "node Person ¦: { }"),
    ("OG-LX-200", "node Person ¦Company { }"),
    ("OG-LX-200", "node Person implements ¦{ }"),
    ("OG-LX-200", "node Person implements A,¦"),
    ("OG-LX-200", "edge Knows ¦{ }"),
    ("OG-LX-200", "edge Knows: ¦-> Person"),
    ("OG-LX-200", "edge Knows: Person ¦Person"),
    ("OG-LX-200", "edge Knows: Person -> ¦"),
    ("OG-LX-200", "edge Knows: Person ¦- Person"),
    ("OG-LX-200", "interface Named ¦implements A { }"),
    ("OG-LX-200", "edge E: A -> A ¦implements B"),
    ("OG-LX-200", "node T { name ¦String }"),
    ("OG-LX-200", "node T { name: ¦}"),
    ("OG-LX-200", "node T { name: String¦, age: I32 }"),
    ("OG-LX-200", "node T { ¦7: String }"),
    ("OG-LX-200", "node T { ¦24h: String }"),
    ("OG-LX-200", "node T { x: String? ¦? }"),
    ("OG-LX-200", "node T { x: [String¦?] }"),
    ("OG-LX-200", "node T { x: Vector ¦}"),
    ("OG-LX-200", "node T { x: Vector(¦a) }"),
    ("OG-LX-200", "node T { x: Vector(¦2.5) }"),
    ("OG-LX-200", "node T { x: Vector(2¦, 3) }"),
    ("OG-LX-200", "node T { x: enum ¦}"),
    ("OG-LX-200", "node T { x: enum(a ¦b) }"),
    ("OG-LX-200", "node T { x: String @default(1 ¦2) }"),
    ("OG-LX-200", "node T { x: I32 @default(¦$p) }"),
    ("OG-LX-200", "node T { x: I32 @range(x, 1..¦..) }"),
    ("OG-LX-200", "node T { x: [I32] @default([1 ¦2]) }"),
    ("OG-LX-200", "node T { x: [String] @default([¦a]) }"),
    ("OG-LX-200", "node T { x: Date @default(date(¦7)) }"),
    ("OG-LX-202", "node T ¦}"),
    ("OG-LX-202", "node T { x: enum(a, b ¦}"),
    ("OG-LX-203", "\n node T ¦{\n x: String"),
    ("OG-LX-102", "node T { x: String¦; }"),
    ("OG-LX-102", "node T { x: String @default(¦'a') }"),
    ("OG-LX-102", "node T { gr¦öße: I32 }"),
    ("OG-LX-102", "¦# a comment"),
    ("OG-LX-102", "node T { x: I32 ¦@ }"),
    ("OG-LX-103", 'node T { x: String @default(¦"a\n") }'),
    ("OG-LX-104", "node T ¦/* {"),
    ("OG-LX-105", "node T { x: F64 @default(¦1e400) }"),
    ("OG-LX-106", r'node T { x: String @default("a¦\x") }'),
    ("OG-LX-106", r'node T { x: String @default("¦\u12g4") }'),
    ("OG-LX-106", r'node T { x: String @default("¦\udc00") }'),
    ("OG-LX-106", r'node T { x: String @default("¦\ud800\u0041") }'),
    ("OG-LX-106", 'node T { x: String @default("¦\t") }'),
]

NAMES = [
    ("OG-PG-101", "node ¦person { }"),
    ("OG-PG-101", "edge ¦_E: A -> A " + A),
    ("OG-PG-101", "interface ¦named { }"),
    ("OG-PG-102", "node T { ¦Name: String }"),
    ("OG-PG-102", "interface I { ¦Name: String }"),
    ("OG-PG-103", "node T { ¦id: String }"),
    ("OG-PG-103", "node T { ¦src: String }"),
    ("OG-PG-103", A + "edge E: A -> A { ¦dst: String }"),
    ("OG-PG-103", "node T { ¦_row: I32 }"),
    ("OG-PG-103", "interface I { ¦_rowid: I32 }"),
    ("OG-PG-104", "node T { } node ¦T { }"),
    ("OG-PG-104", A + "edge ¦A: A -> A"),
    ("OG-PG-104", "interface I { } interface ¦I { }"),
    ("OG-PG-104", "interface T { } node ¦T { }"),
    ("OG-PG-105", "node T { x: I32 y: I32 ¦x: String }"),
    ("OG-PG-105", "interface I { x: I32 } node T implements I { ¦x: I32 }"),
]

TYPES = [
    ("OG-PG-106", "node T { x: ¦Strng }"),
    ("OG-PG-106", "node T { x: ¦Int }"),
    ("OG-PG-106", "node T { x: ¦string }"),
    ("OG-PG-106", "node T { x: [¦enum(a)] }"),
    ("OG-PG-106", "node T { x: [¦[String]] }"),
    ("OG-PG-106", "node T { x: [¦Vector(3)] }"),
    ("OG-PG-107", "node T { x: Vector(¦0) }"),
    ("OG-PG-107", "node T { x: Vector(¦-3) }"),
    ("OG-PG-107", "node T { x: Vector(¦65537) }"),
    ("OG-PG-108", "node T { x: enum(¦) }"),
    ("OG-PG-108", "node T { x: enum(a, ¦) }"),
    ("OG-PG-108", "node T { x: enum(a, b, ¦a) }"),
    ("OG-PG-108", 'node T { x: enum(¦"a b") }'),
    ("OG-PG-108", "node T { x: enum(¦a.b) }"),
]

TYPE_RELATIONS = [
    ("OG-PG-110", "node T implements ¦Named { }"),
    ("OG-PG-110", A + "node T implements ¦A { }"),
    ("OG-PG-111", "interface I { x: I32 } interface J { x: I64 } node T implements I, ¦J"),
    ("OG-PG-111", "interface I { x: I32 } interface J { x: I32? } node T implements I, ¦J"),
    ("OG-PG-112", "interface I { x: I32 } node T implements I, ¦I"),
    ("OG-PG-120", A + "edge E: A -> ¦B"),
    ("OG-PG-120", A + "edge E: ¦B -> A"),
    ("OG-PG-120", A + "edge E: A -> A edge F: A -> ¦E"),
    ("OG-PG-120", "interface I { } edge E: ¦I -> I"),
    ("OG-PG-121", A + "edge E: A -> A ¦@card(3..2)"),
    ("OG-PG-121", A + "edge E: A -> A ¦@card(-1..2)"),
    ("OG-PG-121", A + "edge E: A -> A ¦@card(0..0)"),
]

ANNOTATIONS = [
    ("OG-PG-130", "node T ¦@card(0..1) { }"),
    ("OG-PG-130", "node T ¦@key { }"),
    ("OG-PG-130", "node T ¦@key(x) { x: I32 }"),
    ("OG-PG-130", "node T { ¦@key x: I32 }"),
    ("OG-PG-130", 'node T { ¦@description("t") x: I32 }'),
    ("OG-PG-130", 'node T { x: I32 @range(x, 0..1) ¦@description("t") }'),
    ("OG-PG-130", A + "edge E: A -> A { x: I32 ¦@card(0..1) }"),
    ("OG-PG-131", "node T { x: I32 ¦@key() }"),
    ("OG-PG-131", "node T { x: I32 ¦@index() }"),
    ("OG-PG-131", "node T { x: I32 ¦@default }"),
    ("OG-PG-131", "node T { x: I32 ¦@default() }"),
    ("OG-PG-131", "node T { x: I32 ¦@default(1, 2) }"),
    ("OG-PG-131", "node T { x: enum(a) ¦@default(a) }"),
    ("OG-PG-131", "node T { x: I32 ¦@description }"),
    ("OG-PG-131", "node T { x: I32 @description(¦7) }"),
    ("OG-PG-131", "node T ¦@rename_from(Old) { }"),
    ("OG-PG-131", "node T { s: String v: Vector(2) ¦@embed(s) }"),
    ("OG-PG-131", "node T { x: I32 @unique(¦7) }"),
    ("OG-PG-131", 'node T { x: I32 @unique(¦"x") }'),
    ("OG-PG-131", "node T { x: I32 ¦@range(x) }"),
    ("OG-PG-131", "node T { x: I32 ¦@range(x, 5) }"),
    ("OG-PG-131", "node T { x: I32 ¦@range(0..5) }"),
    ("OG-PG-131", "node T { x: I32 @range(x, ¦true..) }"),
    ("OG-PG-131", "node T { x: String ¦@check(x) }"),
    ("OG-PG-131", "node T { x: String ¦@check(x, 7) }"),
    ("OG-PG-131", "node T { v: Vector(2) ¦@index(metric=l2) }"),
    ("OG-PG-131", 'node T { v: Vector(2) ¦@index(kind="l2") }'),
    ("OG-PG-131", A + "edge E: A -> A ¦@card"),
    ("OG-PG-131", A + "edge E: A -> A ¦@card(1)"),
    ("OG-PG-131", A + "edge E: A -> A ¦@card(..1)"),
    ("OG-PG-131", A + "edge E: A -> A ¦@card(0..1.5)"),
    ("OG-PG-131", "node T { x: I32 @custom(¦0..1) }"),
    ("OG-PG-132", "node T { x: I32 @index ¦@index }"),
    ("OG-PG-132", 'node T @description("a") ¦@description("b") { }'),
    ("OG-PG-132", "node T { x: I32 @custom(1) ¦@custom(2) }"),
    ("OG-PG-133", 'node T { x: Date @default(date(¦"2026-02-30")) }'),
    ("OG-PG-133", 'node T { x: DateTime @default(datetime(¦"noon")) }'),
]

RULES = [
    ("OG-PG-140", "node T { x: I32 @key(¦y) }"),
    ("OG-PG-140", "node T { x: I32 @unique(x, ¦y) }"),
    ("OG-PG-140", "node T { x: I32 @index(¦y) }"),
    ("OG-PG-140", "node T { x: I32 @range(¦y, 0..1) }"),
    ("OG-PG-140", 'node T { x: I32 @check(¦y, "a") }'),
    ("OG-PG-140", "node T { x: I32 @unique(¦src) }"),
    ("OG-PG-140", A + "edge E: A -> A { @unique(¦id) }"),
    ("OG-PG-140", "interface I { x: I32 @unique(x, ¦own) } node T implements I { own: I32 }"),
    ("OG-PG-141", "node T { x: I32 y: I32 @unique(x, y, ¦x) }"),
    ("OG-PG-141", "node T { x: I32 @key(x, ¦x) }"),
    ("OG-PG-141", "node T { x: I32 @index(x, ¦x) }"),
    ("OG-PG-142", "node T { x: I32? ¦@key }"),
    ("OG-PG-142", "node T { x: I32 y: I32? ¦@key(x, y) }"),
    ("OG-PG-143", "node T { x: Blob ¦@key }"),
    ("OG-PG-143", "node T { x: Vector(2) ¦@key }"),
    ("OG-PG-143", "node T { x: Blob? ¦@unique }"),
    ("OG-PG-143", "node T { x: Vector(2)? ¦@unique }"),
    ("OG-PG-143", "node T { x: I32 y: Blob @unique(x, ¦y) }"),
    ("OG-PG-143", "node T { x: [String] ¦@key }"),
    ("OG-PG-143", "node T { x: [String] @unique(¦x) }"),
    ("OG-PG-144", "node T { x: I32 @key y: I32 ¦@key }"),
    ("OG-PG-144", "node T { x: I32 @key ¦@key(x) }"),
    ("OG-PG-144", "interface I { x: I32 @key } node T implements I { y: I32 ¦@key }"),
    ("OG-PG-144", "interface I { x: I32 @key } interface J { y: I32 @key } node T implements I, ¦J"),
    ("OG-PG-145", A + "edge E: A -> A { x: I32 ¦@key }"),
    ("OG-PG-145", A + "edge E: A -> A { x: I32 ¦@key(x) }"),
    ("OG-PG-145", A + "edge E: A -> A { x: I32 @range(x, ¦0..1) }"),
    ("OG-PG-145", A + 'edge E: A -> A { x: String @check(x, ¦"a") }'),
    ("OG-PG-146", "node T { x: I32 @unique ¦@unique(x) }"),
    ("OG-PG-146", "node T { x: I32 y: I32 @unique(x, y) ¦@unique(y, x) }"),
    ("OG-PG-146", "node T { x: I32 @range(x, 0..1) @range(x, ¦0..2) }"),
    ("OG-PG-146", 'node T { x: String @check(x, "a") @check(x, ¦"a") }'),
    ("OG-PG-150", "node T { x: String @range(x, ¦0..1) }"),
    ("OG-PG-150", "node T { x: Bool @range(x, ¦0..1) }"),
    ("OG-PG-150", "node T { x: [I32] @range(x, ¦0..1) }"),
    ("OG-PG-150", "node T { x: enum(a) @range(x, ¦0..1) }"),
    ("OG-PG-151", "node T { x: I32 @range(x, 0..¦2147483648) }"),
    ("OG-PG-151", "node T { x: U32 @range(x, ¦-1..5) }"),
    ("OG-PG-151", "node T { x: I32 @range(x, ¦0.5..5) }"),
    ("OG-PG-151", 'node T { x: I32 @range(x, ¦"a"..) }'),
    ("OG-PG-151", "node T { x: F32 @range(x, 0..¦1e39) }"),
    ("OG-PG-151", "node T { x: Date @range(x, ¦1..) }"),
    ("OG-PG-152", "node T { x: I32 @range(x, ¦5..4) }"),
    ("OG-PG-152", "node T { x: I32 @range(x, ¦..) }"),
    ("OG-PG-160", 'node T { x: I32 @check(x, ¦"a") }'),
    ("OG-PG-160", 'node T { x: enum(a) @check(x, ¦"a") }'),
    ("OG-PG-161", 'node T { x: String @check(x, ¦"[a") }'),
    ("OG-PG-161", 'node T { x: String @check(x, ¦"(?=a)b") }'),
    ("OG-PG-161", r'node T { x: String @check(x, ¦"(a)\\1") }'),
    ("OG-PG-161", 'node T { x: String @check(x, ¦"a++") }'),
    ("OG-PG-161", 'node T { x: String @check(x, ¦"a{2000}") }'),
    ("OG-PG-161", 'node T { x: String @check(x, ¦"[[a]") }'),
    ("OG-PG-161", 'node T { x: String @check(x, ¦"[a[b]") }'),
    ("OG-PG-161", f'node T {{ x: String @check(x, ¦"{"a" * 1001}") }}'),
    ("OG-PG-161", f'node T {{ x: String @check(x, ¦"{"(" * 500 + ")" * 499}") }}'),
]

PROPERTIES = [
    ("OG-PG-170", "node T { x: Blob ¦@index }"),
    ("OG-PG-170", "node T { x: [String] @index(¦x) }"),
    ("OG-PG-171", 'node T { x: I32 ¦@index(metric="l2") }'),
    ("OG-PG-171", 'node T { x: Vector(2) ¦@index(metric="dot") }'),
    ("OG-PG-172", 'node T { s: String x: String ¦@embed("s") }'),
    ("OG-PG-173", 'node T { x: Vector(2) ¦@embed("s") }'),
    ("OG-PG-173", 'node T { s: I32 x: Vector(2) ¦@embed("s") }'),
    ("OG-PG-173", 'node T { s: [String] x: Vector(2) ¦@embed("s") }'),
    ("OG-PG-180", 'node T { x: I32 @default(¦"7") }'),
    ("OG-PG-180", "node T { x: I32 @default(¦7.5) }"),
    ("OG-PG-180", "node T { x: I32 @default(¦true) }"),
    ("OG-PG-180", "node T { x: U32 @default(¦-1) }"),
    ("OG-PG-180", "node T { x: I32 @default(¦2147483648) }"),
    ("OG-PG-180", "node T { x: F32 @default(¦1e39) }"),
    ("OG-PG-180", "node T { x: Bool @default(¦1) }"),
    ("OG-PG-180", "node T { x: String @default(¦7) }"),
    ("OG-PG-180", 'node T { x: String @default(¦date("2026-01-31")) }'),
    ("OG-PG-180", 'node T { x: Date @default(¦"31.1.2026") }'),
    ("OG-PG-180", 'node T { x: Date @default(¦datetime("2026-01-31T00:00:00Z")) }'),
    ("OG-PG-180", "node T { n: I32 @default(¦50) @range(n, 0..10) }"),
    ("OG-PG-180", 'node T { s: String @default(¦"A") @check(s, "[a-z]+") }'),
    ("OG-PG-180", 'node T { x: DateTime @default(¦"today") }'),
    ("OG-PG-180", 'node T { x: Blob @default(¦"abc") }'),
    ("OG-PG-180", 'node T { x: enum(a, b) @default(¦"c") }'),
    ("OG-PG-180", "node T { x: [I32] @default(¦7) }"),
    ("OG-PG-180", 'node T { x: [I32] @default(¦[1, "2"]) }'),
    ("OG-PG-180", "node T { x: Vector(3) @default(¦[1, 2]) }"),
]

RENAMES = [
    ("OG-PG-190", 'node A { n: I32 } node B ¦@rename_from("C") { }'),
    ("OG-PG-190", 'node A { m: I32 ¦@rename_from("k") }'),
    ("OG-PG-190", 'node B { } edge A: B -> B ¦@rename_from("Gone")'),
    ("OG-PG-191", 'node A { o: I32 ¦@rename_from("n") }'),
    ("OG-PG-192", 'node A { n: I32 m: I32 ¦@rename_from("n") }'),
    ("OG-PG-192", 'node A { m: I32 @rename_from("n") k: I32 ¦@rename_from("n") }'),
    ("OG-PG-192", 'node B @rename_from("A") { } node C ¦@rename_from("A") { }'),
    ("OG-PG-192", 'node A { n: I32 } node B ¦@rename_from("A") { }'),
]
PREVIOUS = compile_schema("node A { n: I32 o: I32 }").catalog

CASES = [*SYNTAX, *NAMES, *TYPES, *TYPE_RELATIONS, *ANNOTATIONS, *RULES, *PROPERTIES]


def refused(marked: str, previous: Catalog | None = None) -> LanguageError:
    """The error for a text, after a look at whether it points at the mark."""
    before, mark, after = marked.partition("¦")
    assert mark
    with pytest.raises(LanguageError) as caught:
        compile_schema(before + after, previous, "people.pg")
    error = caught.value
    assert (error.line, error.column) == (before.count("\n") + 1, len(before) - before.rfind("\n")), str(error)
    assert error.excerpt.splitlines()[1].endswith("^")
    return error


@pytest.mark.parametrize(("code", "marked"), CASES, ids=[f"{code} {text[:60]}" for code, text in CASES])
def test_what_is_wrong_is_refused_with_its_code_at_its_place(code: str, marked: str) -> None:
    error = refused(marked)

    assert error.language_code == code, str(error)
    assert error.expected
    assert str(error).startswith(f"people.pg:{error.line}:{error.column}: ")


@pytest.mark.parametrize(("code", "marked"), RENAMES)
def test_renames_that_can_not_be_carried_out_are_refused(code: str, marked: str) -> None:
    assert refused(marked, PREVIOUS).language_code == code


def test_an_error_is_one_sentence_with_an_excerpt_and_plain_details() -> None:
    error = refused("node T {\n\tage: I32  @range(age, 0..¦3000000000)\n}")

    assert str(error) == (
        "people.pg:2:27: The bound 3000000000 of T.age does not fit I32: "
        "write an integer from -2147483648 to 2147483647. [OG-PG-151]"
    )
    assert error.excerpt == "2 | \tage: I32  @range(age, 0..3000000000)\n  | \t" + " " * 25 + "^"
    assert (error.code, error.http_status, error.exit_code) == ("bad_request", 400, 1)
    assert error.details["language_code"] == "OG-PG-151"
    assert error.details["line"] == 2


def test_a_mistyped_type_is_recognized() -> None:
    assert "did you mean DateTime?" in str(refused("node T { x: ¦Datetime }"))


def test_interfaces_do_not_multiply_without_bound() -> None:
    properties = " ".join(f"p{i}: I32" for i in range(20_000))
    nodes = " ".join(f"node T{i} implements I" for i in range(20_000))
    with pytest.raises(LanguageError) as caught:
        compile_schema(f"interface I {{ {properties} }} {nodes}")

    assert caught.value.language_code == "OG-PG-113"


@pytest.mark.parametrize(
    "types",
    [
        (TypeDef("a", "node", "T"), TypeDef("a", "node", "U")),
        (TypeDef("a", "thing", "T"),),  # type: ignore[arg-type]
        (TypeDef("a", "node", "T", source="T"),),
        (TypeDef("a", "node", "T"), TypeDef("b", "edge", "E", (), "T", "T", implements=("I",))),
        (TypeDef("a", "node", "T", (Property("p", "x", "x", INT), Property("p", "y", "y", INT))),),
        (TypeDef("a", "node", "T", (Property("p", "x", "x", INT), Property("q", "y", "x", INT))),),
    ],
)
def test_slips_that_only_a_hand_written_catalog_can_have_are_refused(types: tuple[TypeDef, ...]) -> None:
    with pytest.raises(InvalidCatalog) as caught:
        Catalog(types)

    assert caught.value.language_code == "OG-PG-199"


def test_a_hand_written_catalog_is_held_to_the_same_rules() -> None:
    nullable_key = TypeDef("a", "node", "T", (Property("p", "x", "x", INT, True),), rules=Rules(key=("x",)))

    with pytest.raises(InvalidCatalog, match=r"T\.x is nullable"):
        Catalog((nullable_key,))


@pytest.mark.parametrize("document", [{}, {"types": [{}]}, {"types": 7}, {"types": [{"id": 1, "kind": "node"}]}])
def test_a_document_that_is_no_catalog_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(BadRequest):
        catalog_from_json(document)


def test_every_code_is_documented_and_every_documented_code_has_a_test() -> None:
    code = re.compile(r"OG-(?:LX|PG)-\d{3}")
    sources = [ROOT / "src/omnigraph/lexer.py", *(ROOT / "src/omnigraph/schema").rglob("*.py")]
    used = {found for source in sources for found in code.findall(source.read_text())}
    documented = set(code.findall((ROOT / "docs/language-errors.md").read_text()))
    tested = {found for test in Path(__file__).parent.glob("*.py") for found in code.findall(test.read_text())}

    assert used == documented
    assert documented <= tested
