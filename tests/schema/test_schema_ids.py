"""Identities: a rename keeps ids and columns, a drop and a new declaration do not, nothing is used twice."""

from __future__ import annotations

from dataclasses import replace

from omnigraph.schema.catalog import Catalog, catalog_from_json, catalog_to_json
from omnigraph.schema.definitions import Embed
from omnigraph.schema.lang.compile import compile_schema
from omnigraph.schema.lang.printer import print_schema
from support.catalogs import people


def evolve(*texts: str) -> Catalog:
    """The catalog after these schemas were in force one after another."""
    catalog = None
    for text in texts:
        catalog = compile_schema(text, catalog).catalog
    assert catalog is not None
    return catalog


def properties(catalog: Catalog, type_name: str) -> dict[str, tuple[str, str]]:
    return {prop.name: (prop.id, prop.column) for prop in catalog.by_name[type_name].properties}


def test_ids_are_small_and_depend_on_the_text_alone() -> None:
    text = "node A { x: I32 y: I32 } edge E: A -> A { z: I32 }"

    assert evolve(text) == evolve(text)
    assert [definition.id for definition in evolve(text).types] == ["t1", "t2"]
    assert properties(evolve(text), "A") == {"x": ("p1", "x"), "y": ("p2", "y")}
    assert properties(evolve(text), "E") == {"z": ("p1", "z")}


def test_the_order_of_declarations_may_change() -> None:
    catalog = evolve("node A { x: I32 y: I32 } node B { }", "node B { } node A { y: I32 x: I32 }")

    assert [(entry.name, entry.id) for entry in catalog.types] == [("B", "t2"), ("A", "t1")]
    assert properties(catalog, "A") == {"y": ("p2", "y"), "x": ("p1", "x")}


def test_a_rename_keeps_ids_and_columns() -> None:
    catalog = evolve(
        "node A { x: I32 } edge E: A -> A { z: I32 }",
        'node B @rename_from("A") { y: I32 @rename_from("x") } edge F: B -> B @rename_from("E") { z: I32 }',
    )

    assert {entry.name: entry.id for entry in catalog.types} == {"B": "t1", "F": "t2"}
    assert properties(catalog, "B") == {"y": ("p1", "x")}
    assert properties(catalog, "F") == {"z": ("p1", "z")}


def test_a_rename_that_was_carried_out_may_stay_in_the_text() -> None:
    renamed = 'node B @rename_from("A") { y: I32 @rename_from("x") }'

    assert evolve("node A { x: I32 }", renamed, renamed) == evolve("node A { x: I32 }", renamed)
    assert evolve(renamed).by_name["B"].id == "t1"


def test_names_may_be_swapped_by_two_renames_in_a_row() -> None:
    swapped = evolve(
        "node A { x: I32 y: I32 }",
        'node A { z: I32 @rename_from("x") y: I32 }',
        'node A { z: I32 x: I32 @rename_from("y") }',
        'node A { y: I32 @rename_from("z") x: I32 }',
    )

    assert properties(swapped, "A") == {"y": ("p1", "x"), "x": ("p2", "y")}


def test_a_dropped_property_that_comes_back_is_a_new_one_in_a_new_column() -> None:
    catalog = evolve("node A { x: I32 y: I32 }", "node A { y: I32 }", "node A { x: I32 y: I32 }")

    assert properties(catalog, "A") == {"x": ("p3", "x_p3"), "y": ("p2", "y")}
    assert catalog.by_name["A"].retired_columns == ("x",)


def test_a_column_is_never_reused_however_often_a_property_is_dropped_and_added() -> None:
    texts = ["node A { x: I32 }", "node A { }"] * 4
    catalog = evolve(*texts, "node A { x: I32 }")

    assert properties(catalog, "A") == {"x": ("p5", "x_p5")}
    assert catalog.by_name["A"].retired_columns == ("x", "x_p2", "x_p3", "x_p4")


def test_the_old_name_of_a_renamed_property_can_be_declared_again() -> None:
    catalog = evolve(
        "node A { x: I32 }", 'node A { y: I32 @rename_from("x") }', 'node A { y: I32 @rename_from("x") x: I32 }'
    )

    assert properties(catalog, "A") == {"y": ("p1", "x"), "x": ("p2", "x_p2")}


def test_a_dropped_type_that_comes_back_is_a_new_one() -> None:
    catalog = evolve("node A { x: I32 } node B { }", "node B { }", "node A { x: I32 } node B { }")

    assert {entry.name: entry.id for entry in catalog.types} == {"A": "t3", "B": "t2"}
    assert properties(catalog, "A") == {"x": ("p1", "x")}


def test_a_type_that_changes_its_kind_is_a_new_one() -> None:
    catalog = evolve("node A { } node B { }", "edge A: B -> B node B { }")

    assert {entry.name: entry.id for entry in catalog.types} == {"A": "t3", "B": "t2"}


def test_a_property_keeps_its_id_when_an_interface_takes_it_over() -> None:
    catalog = evolve("node A { x: I32 y: I32 }", "interface I { y: I32 } node A implements I { x: I32 }")

    assert properties(catalog, "A") == {"y": ("p2", "y"), "x": ("p1", "x")}


def test_an_interface_renames_for_all_that_implement_it() -> None:
    catalog = evolve(
        "interface I { x: I32 } node A implements I node B implements I",
        'interface I { y: I32 @rename_from("x") } node A implements I node B implements I node C implements I',
    )

    assert properties(catalog, "A") == properties(catalog, "B") == {"y": ("p1", "x")}
    assert properties(catalog, "C") == {"y": ("p1", "y")}


def test_a_handwritten_catalog_without_counters_can_be_extended() -> None:
    catalog = compile_schema(print_schema(people()) + "node Extra { x: I32 }", people()).catalog

    assert catalog.types[:4] == people().types
    assert catalog.by_name["Extra"].id == "t1"
    taken = catalog_from_json({"types": [{"id": "t1", "kind": "node", "name": "A"}]})
    assert compile_schema("node A node B", taken).catalog.by_name["B"].id == "t2"


def test_the_provider_and_model_of_a_kept_property_stay() -> None:
    text = 'node A { s: String v: Vector(2) @embed("s") }'
    (definition,) = evolve(text).types
    embedded = tuple(
        replace(prop, embed=Embed("s", "offline", "hash-2")) if prop.embed else prop for prop in definition.properties
    )
    filled = Catalog((replace(definition, properties=embedded),), type_ids=1)

    again = compile_schema('node A { t: String @rename_from("s") v: Vector(2) @embed("t") }', filled).catalog

    assert again.by_name["A"].by_name["v"].embed == Embed("t", "offline", "hash-2")
    assert catalog_from_json(catalog_to_json(again)) == again
