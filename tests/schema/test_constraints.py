"""Constraints as values: what the example's catalog demands of its rows, by name."""

from __future__ import annotations

from omnigraph.schema.constraints import Cardinality, Endpoint, Key, Range, Unique, constraints_of
from omnigraph.schema.indexes import DeclaredIndex, declared_indexes
from omnigraph.schema.lang.compile import compile_schema

CATALOG = compile_schema(
    """
    node Person {
        slug: String @key
        name: String @index
        age:  I32?
        role: enum(lead, ops)?
        bio:  String? @index
        face: Vector(64)? @embed("bio")
        eyes: Vector(8)? @index(metric="l2")
        hair: Vector(8)?
        born: Date? @index
        tags: [String]?
        @range(age, 0..150)
        @range(born, date("1900-01-01")..)
        @check(slug, "[a-z]+")
        @unique(name, role)
    }
    node Company { name: String region: I32 @key(region, name) }
    edge Knows: Person -> Person { since: Date? @index @unique(src, dst) }
    edge WorksAt: Person -> Company @card(0..1)
    edge Employs: Company -> Person @card(1..)
    """
).catalog
CONSTRAINTS = constraints_of(CATALOG)


def names(table_key: str) -> list[str]:
    return [constraint.name for constraint in CONSTRAINTS.of(table_key)]


def test_every_constraint_of_a_node_type_has_its_name() -> None:
    assert names("node:Person") == [
        "Person.slug type String",
        "Person.slug required",
        "Person.name type String",
        "Person.name required",
        "Person.age type I32",
        "Person.role type enum(lead, ops)",
        "Person.role enum",
        "Person.bio type String",
        "Person.face type Vector(64)",
        "Person.eyes type Vector(8)",
        "Person.hair type Vector(8)",
        "Person.born type Date",
        "Person.tags type [String]",
        "Person.age range 0..150",
        "Person.born range 1900-01-01..",
        "Person.slug check [a-z]+",
        "Person key (slug)",
        "Person unique (name, role)",
    ]


def test_every_constraint_of_an_edge_type_has_its_name() -> None:
    assert names("edge:Knows") == [
        "Knows.since type Date",
        "Knows unique (src, dst)",
        "Knows.src in Person",
        "Knows.dst in Person",
    ]
    assert names("edge:WorksAt") == ["WorksAt.src in Person", "WorksAt.dst in Company", "WorksAt card 0..1"]
    assert names("edge:Employs")[-1] == "Employs card 1.."


def test_constraints_say_which_columns_they_are_about() -> None:
    renamed = compile_schema(
        'node A { y: I32 @rename_from("x") @range(y, 0..) }', compile_schema("node A { x: I32 }").catalog
    )

    (found,) = [entry for entry in constraints_of(renamed.catalog).of("node:A") if isinstance(entry, Range)]
    assert (found.properties, found.columns) == (("y",), ("x",))
    assert Key("node:Company", "Company", ("region", "name"), ("region", "name")) in CONSTRAINTS.of("node:Company")
    assert Unique("edge:Knows", "Knows", ("src", "dst"), ("src", "dst")) in CONSTRAINTS.of("edge:Knows")


def test_cardinality_knows_whose_edges_it_counts() -> None:
    found = Cardinality("edge:Employs", "Employs", ("src",), ("src",), "node:Company", 1, None)

    assert found in CONSTRAINTS.of("edge:Employs")


def test_where_edges_may_point_at_a_node_type() -> None:
    def columns(node_table: str) -> list[tuple[str, str]]:
        return [(entry.table_key, entry.columns[0]) for entry in CONSTRAINTS.referring_to(node_table)]

    assert columns("node:Person") == [
        ("edge:Knows", "src"),
        ("edge:Knows", "dst"),
        ("edge:WorksAt", "src"),
        ("edge:Employs", "dst"),
    ]
    assert columns("node:Company") == [("edge:WorksAt", "dst"), ("edge:Employs", "src")]
    assert all(isinstance(entry, Endpoint) for entry in CONSTRAINTS.referring_to("node:Person"))
    assert CONSTRAINTS.referring_to("edge:Knows") == ()


def test_names_are_unique() -> None:
    all_names = [name for definition in CATALOG.types for name in names(definition.table_key)]

    assert len(set(all_names)) == len(all_names)


def test_declared_indexes() -> None:
    assert declared_indexes(CATALOG.by_name["Person"]) == (
        DeclaredIndex("id", "btree"),
        DeclaredIndex("slug", "btree"),
        DeclaredIndex("name", "btree"),
        DeclaredIndex("name", "full_text"),
        DeclaredIndex("role", "btree"),
        DeclaredIndex("bio", "btree"),
        DeclaredIndex("bio", "full_text"),
        DeclaredIndex("face", "vector", "cosine"),
        DeclaredIndex("eyes", "vector", "l2"),
        DeclaredIndex("born", "btree"),
    )
    assert declared_indexes(CATALOG.by_name["Knows"]) == (
        DeclaredIndex("id", "btree"),
        DeclaredIndex("src", "btree"),
        DeclaredIndex("dst", "btree"),
        DeclaredIndex("since", "btree"),
    )
