"""The schema of the language's specification, and what each sentence about it promises."""

from __future__ import annotations

from textwrap import dedent

import pytest

from omnigraph.schema.catalog import Catalog, Property, TypeDef, decode_schema
from omnigraph.schema.definitions import EdgeCount, Embed, PatternCheck, ValueRange
from omnigraph.schema.lang.compile import compile_schema
from omnigraph.schema.types import SCALARS, Enumeration, ListOf, Scalar, Vector, parse_type

EXAMPLE = """
interface Named { name: String @index }

node Person implements Named {
    slug: String @key
    age:  I32?
    role: enum(engineer, lead, ops)
    tags: [String]?
    bio:  String? @index
    face: Vector(64)? @embed("bio")
    @range(age, 0..150)
    @check(slug, "[a-z0-9-]+")
    @unique(name, role)
}

node Company { name: String @key }

edge Knows: Person -> Person { since: Date? @index }
edge WorksAt: Person -> Company @card(0..1)
"""


def compiled(text: str) -> Catalog:
    return compile_schema(text).catalog


def only_type(text: str) -> TypeDef:
    return compiled(text).types[0]


def only_property(text: str) -> Property:
    """The one property of a node that this text declares."""
    (prop,) = only_type(f"node T {{ {text} }}").properties
    return prop


def test_the_example_declares_its_types_in_order() -> None:
    catalog = compiled(EXAMPLE)

    assert [definition.table_key for definition in catalog.types] == [
        "node:Person",
        "node:Company",
        "edge:Knows",
        "edge:WorksAt",
    ]
    assert [interface.name for interface in catalog.interfaces] == ["Named"]
    assert [definition.id for definition in catalog.types] == ["t1", "t2", "t3", "t4"]


def test_the_example_declares_its_properties_those_of_the_interface_first() -> None:
    person = compiled(EXAMPLE).by_name["Person"]

    assert [(prop.id, prop.name, str(prop.type), prop.nullable) for prop in person.properties] == [
        ("p1", "name", "String", False),
        ("p2", "slug", "String", False),
        ("p3", "age", "I32", True),
        ("p4", "role", "enum(engineer, lead, ops)", False),
        ("p5", "tags", "[String]", True),
        ("p6", "bio", "String", True),
        ("p7", "face", "Vector(64)", True),
    ]
    assert [prop.name for prop in person.properties if prop.indexed] == ["name", "bio"]
    assert person.by_name["face"].embed == Embed("bio")


def test_the_example_declares_its_rules() -> None:
    person = compiled(EXAMPLE).by_name["Person"]

    assert person.key == ("slug",)
    assert person.rules.unique == (("name", "role"),)
    assert person.rules.ranges == (ValueRange("age", 0, 150),)
    assert person.rules.checks == (PatternCheck("slug", "[a-z0-9-]+"),)


def test_the_example_declares_its_edges() -> None:
    catalog = compiled(EXAMPLE)

    knows, works_at = catalog.by_traversal["knows"], catalog.by_traversal["worksAt"]
    assert (knows.source, knows.target, knows.cardinality) == ("Person", "Person", None)
    assert (works_at.source, works_at.target, works_at.cardinality) == ("Person", "Company", EdgeCount(0, 1))
    assert works_at.properties == ()


def test_a_schema_keeps_its_text_and_is_stored_and_read_back() -> None:
    schema = compile_schema(EXAMPLE)

    assert schema.source == EXAMPLE
    assert decode_schema(schema.encoded, schema.hash) == schema


@pytest.mark.parametrize("scalar", SCALARS)
def test_every_scalar_alone_in_a_list_and_nullable(scalar: str) -> None:
    assert only_property(f"x: {scalar}").type == Scalar(scalar)
    assert only_property(f"x: [{scalar}]").type == ListOf(Scalar(scalar))
    assert only_property(f"x: {scalar}?").nullable
    assert only_property(f"x: [{scalar}]?").nullable


def test_enums_hold_letters_digits_underscores_and_hyphens() -> None:
    prop = only_property("x: enum(a, b-c, 24h, 2026-01-31, -x, Z_9, true, 1e5)?")

    assert prop.type == Enumeration(("a", "b-c", "24h", "2026-01-31", "-x", "Z_9", "true", "1e5"))
    assert parse_type(str(prop.type)) == prop.type


def test_a_vector_has_its_dimension() -> None:
    assert only_property("x: Vector(1536)?").type == Vector(1536)


@pytest.mark.parametrize("word", ["date", "order", "from", "node", "edge", "interface", "implements", "enum", "true"])
def test_no_word_is_reserved(word: str) -> None:
    definition = only_type(f"node T {{ {word}: String  other: I32  @unique({word}, other)  @index({word}) }}")

    assert definition.rules.unique == ((word, "other"),)
    assert definition.by_name[word].indexed


def test_comments_and_line_ends_of_any_kind_separate() -> None:
    text = "// a\r\nnode/* b\n * c */T{a:String/**/b:I32//d\n}/* e */"

    assert [prop.name for prop in only_type(text).properties] == ["a", "b"]


def test_white_space_alone_separates_properties() -> None:
    definition = only_type("node T { a: String? @unique b: I32 @key c: Bool @range(b, 0..9) @unique(c) d: F32 }")

    assert [prop.name for prop in definition.properties] == ["a", "b", "c", "d"]
    assert definition.key == ("b",)
    assert definition.rules.unique == (("a",), ("c",))


def test_a_body_may_be_empty_or_absent() -> None:
    assert [entry.properties for entry in compiled("node A node B {} edge E: A -> B interface I").types] == [(), (), ()]


def test_strings_take_the_escapes_of_json() -> None:
    prop = only_property(r'x: String @description("\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00 ü")')

    assert prop.description == '"\\/\b\f\n\r\té😀 ü'


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        ('String @default("a")', "a"),
        ("Bool @default(false)", False),
        ("I32 @default(-7)", -7),
        ("U64 @default(18446744073709551615)", 18446744073709551615),
        ("F64 @default(-2.5e3)", -2500.0),
        ("F64 @default(2)", 2),
        ('Date @default(date("2026-01-31"))', "2026-01-31"),
        ('Date @default("2026-01-31")', "2026-01-31"),
        ('DateTime @default(datetime("2026-01-31T13:00:00.5+01:00"))', "2026-01-31T12:00:00.500Z"),
        ('DateTime @default("2026-01-31T12:00")', "2026-01-31T12:00:00.000Z"),
        ('Blob @default("base64:aGk=")', "base64:aGk="),
        ('enum(a, b-c) @default("b-c")', "b-c"),
        ("[I32] @default([1, -2])", (1, -2)),
        ('[Date] @default([date("2026-01-31"), "2026-02-01"])', ("2026-01-31", "2026-02-01")),
        ("[String] @default([])", ()),
        ("Vector(2) @default([0.5, 1])", (0.5, 1)),
        ("I32? @default(0)", 0),
    ],
)
def test_defaults_are_kept_as_in_load_data(declared: str, value: object) -> None:
    assert only_property(f"x: {declared}").default == value


@pytest.mark.parametrize(
    ("declared", "written", "low", "high"),
    [
        ("I32", "0..150", 0, 150),
        ("I32", "-5..-1", -5, -1),
        ("U32", "3..", 3, None),
        ("I64", "..3", None, 3),
        ("F64", "0.5..1e3", 0.5, 1000.0),
        ("F32", "0..1", 0, 1),
        ("I32", "4..4", 4, 4),
        ("Date", 'date("2000-01-01")..', "2000-01-01", None),
        ("DateTime", '"2000-01-01T00:00:00+02:00"..datetime("2001-01-01T00:00:00Z")', "1999-12-31T22:00:00.000Z",
         "2001-01-01T00:00:00.000Z"),
    ],
)  # fmt: skip
def test_ranges_with_both_ends_or_one(declared: str, written: str, low: object, high: object) -> None:
    definition = only_type(f"node T {{ x: {declared}  @range(x, {written}) }}")

    assert definition.rules.ranges == (ValueRange("x", low, high),)  # type: ignore[arg-type]


def test_a_vector_says_its_metric() -> None:
    assert only_property('v: Vector(3) @index(metric="l2")').metric == "l2"
    assert only_property('v: Vector(3) @index(metric="cosine")').metric == "cosine"
    assert only_property("v: Vector(3) @index").metric is None


def test_index_in_the_body_is_index_behind_each_property() -> None:
    behind = compiled("node T { a: String @index b: I32 @index } edge E: T -> T { c: I32 @index }")
    body = compiled("node T { a: String b: I32 @index(a, b) } edge E: T -> T { c: I32 @index(src, c) }")

    assert behind == body


def test_an_edge_may_name_its_ends_in_unique() -> None:
    edge = compiled("node A edge E: A -> A { n: I32 @unique(src, dst) @unique(n, src) }").by_name["E"]

    assert edge.rules.unique == (("src", "dst"), ("n", "src"))


def test_a_key_of_several_properties_keeps_its_order() -> None:
    assert only_type("node T { b: I32 a: String @key(a, b) }").key == ("a", "b")


def test_card_without_maximum() -> None:
    assert compiled("node A edge E: A -> A @card(2..)").by_name["E"].cardinality == EdgeCount(2, None)


def test_unknown_annotations_are_kept_as_metadata() -> None:
    definition = only_type(
        dedent("""
        node T @owner("ada", 3) @audited @description("A T.") {
            x: String @ui(label="X", wide=true, order=[1, "b"]) @pii @since(date("2026-01-31"), -2.5, team)
        }""")
    )

    assert definition.description == "A T."
    assert definition.annotations == {"owner": ("ada", 3), "audited": ()}
    assert definition.by_name["x"].annotations == {
        "ui": ({"label": "X", "wide": True, "order": (1, "b")},),
        "pii": (),
        "since": ("2026-01-31", -2.5, "team"),
    }


def test_implements_copies_properties_with_their_constraints() -> None:
    catalog = compiled(
        """
        node T implements Keyed, Aged { own: I32 @unique @index(note) }
        interface Keyed { slug: String @key @check(slug, "[a-z]+") }
        interface Aged { age: I32 @unique @range(age, 0..) note: String }
        node U implements Keyed
        """
    )

    t, u = catalog.by_name["T"], catalog.by_name["U"]
    assert [prop.name for prop in t.properties] == ["slug", "age", "note", "own"]
    assert t.key == u.key == ("slug",)
    assert t.rules.unique == (("age",), ("own",))
    assert t.rules.ranges == (ValueRange("age", 0, None),)
    assert t.rules.checks == u.rules.checks == (PatternCheck("slug", "[a-z]+"),)
    assert t.by_name["note"].indexed
    assert [prop.id for prop in t.properties] == ["p1", "p2", "p3", "p4"]


def test_what_two_interfaces_declare_alike_counts_once() -> None:
    t = compiled(
        """
        interface A { x: I32 @key @range(x, 0..9) }
        interface B { x: I32 @key @range(x, 0..9) y: I32 }
        node T implements A, B
        """
    ).by_name["T"]

    assert [prop.name for prop in t.properties] == ["x", "y"]
    assert (t.key, len(t.rules.ranges)) == (("x",), 1)


def test_a_type_of_500_declarations_compiles() -> None:
    text = "\n".join(f"node T{i} {{ name: String @key  n: I64? @index }}" for i in range(500))

    assert len(compiled(text).types) == 500
