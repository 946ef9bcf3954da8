"""Schemas of two branches: the one that contains the other, or a refusal that says what differs."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnigraph.errors import SchemasDiverged
from omnigraph.schema.catalog import Schema, catalog_to_json
from omnigraph.schema.definitions import Property
from omnigraph.schema.evolve.schema_merge import merge_schemas, renamed_tables
from omnigraph.schema.lang.compile import compile_schema

BASE = "node A { x: I32 y: I32? e: enum(a, b) } node B { } edge E: A -> B"


def grown(*texts: str, base: Schema | None = None) -> Schema:
    """The schema after these texts were applied one after another."""
    schema = base
    for text in texts:
        schema = compile_schema(text, schema.catalog if schema else None)
    assert schema is not None
    return schema


ROOT = grown(BASE)


def since(*texts: str) -> Schema:
    return grown(*texts, base=ROOT)


def merged_both_ways(ours: Schema, theirs: Schema) -> Schema:
    result = merge_schemas(ROOT, ours, theirs)
    assert merge_schemas(ROOT, theirs, ours) == result
    return result


def refused(ours: Schema, theirs: Schema) -> SchemasDiverged:
    with pytest.raises(SchemasDiverged) as caught:
        merge_schemas(ROOT, ours, theirs)
    with pytest.raises(SchemasDiverged) as mirrored:
        merge_schemas(ROOT, theirs, ours)
    assert caught.value.ours
    assert caught.value.theirs
    assert (mirrored.value.theirs, mirrored.value.ours) == (caught.value.ours, caught.value.theirs)
    return caught.value


def test_what_one_side_alone_changed_is_taken() -> None:
    changed = since(BASE.replace("y: I32?", "y: I32? z: String?"))

    assert merged_both_ways(ROOT, changed) == changed


def test_a_drop_on_one_side_is_taken_when_the_other_left_the_schema_alone() -> None:
    dropped = since(BASE.replace("y: I32?", ""))

    assert merged_both_ways(ROOT, dropped) == dropped


def test_the_same_change_on_both_sides_agrees() -> None:
    changed = BASE.replace("x: I32", "x: I32 @index")

    assert merged_both_ways(since(changed), since(changed)) == since(changed)


def test_a_side_that_has_all_of_the_other_and_more_is_taken() -> None:
    less = since(BASE.replace("y: I32?", "y: I32? z: String?"))
    more = since(BASE.replace("y: I32?", "y: I32? z: String? w: String? @index") + " node C { }")

    assert merged_both_ways(less, more) == more


def test_the_same_property_added_in_another_order_is_the_same_if_its_column_is() -> None:
    less = since(BASE.replace("y: I32?", "y: I32? z: String?"))
    more = since(
        BASE.replace("y: I32?", "y: I32? w: String?"), BASE.replace("y: I32?", "y: I32? w: String? z: String?")
    )

    before, after = (side.catalog.by_name["A"].by_name for side in (less, more))
    assert before["z"].id == after["w"].id
    result = merged_both_ways(less, more).catalog.by_name["A"].by_name
    assert {name: prop.column for name, prop in result.items()} == {name: prop.column for name, prop in after.items()}
    assert result["w"].id not in {prop.id for prop in before.values()}
    assert len({prop.id for prop in result.values()}) == len(result)


def test_a_property_that_both_sides_added_with_different_types_is_refused() -> None:
    error = refused(
        since(BASE.replace("y: I32?", "y: I32? z: String?")), since(BASE.replace("y: I32?", "y: I32? z: I64?"))
    )

    assert error.ours == ("adds A.z with another type",)


def test_a_property_in_another_column_is_another_one() -> None:
    came_back = since(
        BASE.replace("y: I32?", "y: I32? z: String?"), BASE, BASE.replace("y: I32?", "y: I32? z: String?")
    )
    once = since(BASE.replace("y: I32?", "y: I32? z: String?"))

    assert came_back.catalog.by_name["A"].by_name["z"].column == "z_p5"
    refused(once, came_back)


def test_neither_contains_the_other() -> None:
    error = refused(
        since(BASE.replace("y: I32?", "y: I32? z: String?")), since(BASE.replace("x: I32", "x: I32 @index"))
    )

    assert error.ours == ("adds A.z",)
    assert error.theirs == ("changes the @index of A.x",)
    assert "this branch adds A.z, the other one changes the @index of A.x" in str(error)
    assert error.exit_code == 3
    assert error.details == {"schema_conflict": {"ours": ["adds A.z"], "theirs": ["changes the @index of A.x"]}}


def test_a_new_type_is_reported_as_a_whole() -> None:
    error = refused(since(BASE + " node C { p: I32 q: I32 }"), since("node A { x: I32 y: I32? e: enum(a, b) } node B"))

    assert error.ours == ("adds node type C",)
    assert error.theirs == ("drops edge type E",)


def test_what_one_side_dropped_does_not_come_back_because_the_other_added_something() -> None:
    error = refused(since(BASE.replace("y: I32?", "")), since(BASE.replace("y: I32?", "y: I32? z: String?")))

    assert error.ours == ("drops A.y",)


def test_an_enum_that_both_widened_merges_if_one_has_all_values() -> None:
    less, more = since(BASE.replace("a, b", "a, b, c")), since(BASE.replace("a, b", "d, c, a, b"))

    assert merged_both_ways(less, more) == more
    refused(less, since(BASE.replace("a, b", "a, b, d")))


def test_a_rename_on_one_side_is_no_superset_of_a_change_on_the_other() -> None:
    renamed = since(BASE.replace("y: I32?", 'z: I32? @rename_from("y")'))

    assert merged_both_ways(ROOT, renamed) == renamed
    error = refused(renamed, since(BASE.replace("y: I32?", "y: I32? @index")))
    assert error.ours == ("changes the name of A.z", "changes the name of A.y")


def test_two_sides_that_say_the_same_in_other_words_agree() -> None:
    commented = since(BASE + " // a comment")

    assert merged_both_ways(ROOT, commented) == commented
    merged_both_ways(since(BASE + " // one"), since(BASE + " // other"))


def test_the_result_remembers_what_either_side_gave_out() -> None:
    came_and_went = since(BASE.replace("y: I32?", "y: I32? z: String?") + " node C { }", BASE)
    other = since(BASE.replace("y: I32?", "y: I32? w: String?"))

    result = merged_both_ways(came_and_went, other).catalog

    assert result.type_ids == came_and_went.catalog.type_ids
    assert result.by_name["A"].retired_columns == ("z",)
    assert result.by_name["A"].property_ids == 4


def test_a_column_that_the_other_side_used_and_dropped_is_not_read_as_another_property() -> None:
    came_and_went = since(BASE.replace("y: I32?", "y: I32? z: String?"), BASE)
    other = since(BASE.replace("y: I32?", "y: I32? z: String?"))

    error = refused(other, came_and_went)

    assert error.ours == ("has A.z",)
    assert error.theirs == ("added and dropped another property where A.z is kept",)


def test_a_type_with_another_id_on_each_side_is_refused() -> None:
    error = refused(since(BASE + " node C"), since(BASE + " node D node C"))

    assert error.ours == ("adds node type C with another id",)


def test_interfaces_are_compared_too() -> None:
    more = "interface I { n: String? } " + BASE.replace("node B {", "node B implements I {")

    assert merged_both_ways(since(more), ROOT) == since(more)
    error = refused(since(more), since("interface I { n: I32? } " + BASE.replace("node B {", "node B implements I {")))
    assert "adds I.n with another type" in error.ours


def test_tables_are_followed_through_renames_by_the_ids_of_types() -> None:
    renamed = since('node C @rename_from("A") { x: I32 y: I32? e: enum(a, b) } node B edge F: C -> B @rename_from("E")')

    assert renamed_tables(ROOT.catalog, renamed.catalog) == {"node:A": "node:C", "edge:E": "edge:F"}
    assert renamed_tables(ROOT.catalog, since(BASE + " node D").catalog) == {}


EDITS = [
    (" y: I32?", ""),
    (" y: I32?", ' z: I32? @rename_from("y")'),
    (" y: I32?", " y: I32? @index"),
    ("x: I32", "x: I32 @default(7)"),
    ("a, b", "a, b, c"),
    ("e: enum", "n: I32? e: enum"),
    ("e: enum", "m: String? @unique e: enum"),
    ("node B { }", "node B { } node C { q: I32 }"),
    ("node B { }", "node B { k: String? } node D { q: I32 }"),
    (" edge E: A -> B", ""),
    ("edge E:", "edge F: B -> A edge E:"),
    ("node A {", 'node A @description("first") {'),
]


def edited(edits: list[int]) -> Schema:
    """The base after some edits, each applied as a schema of its own; one that no longer applies is left out."""
    text, schema = BASE, ROOT
    for number in dict.fromkeys(edits):
        old, new = EDITS[number]
        if old in text:
            text = text.replace(old, new, 1)
            schema = compile_schema(text, schema.catalog)
            text = text.replace('@rename_from("y")', "")
    return schema


SIDES = st.lists(st.integers(0, len(EDITS) - 1), max_size=4)


@settings(max_examples=150, deadline=None)
@given(SIDES, SIDES)
def test_merging_is_symmetric_and_idempotent_and_loses_nothing(left: list[int], right: list[int]) -> None:
    ours, theirs = edited(left), edited(right)
    try:
        result = merge_schemas(ROOT, ours, theirs)
    except SchemasDiverged:
        refused(ours, theirs)
        return
    assert merge_schemas(ROOT, theirs, ours) == result
    for side in (ours, theirs):
        assert catalog_to_json(merge_schemas(ROOT, result, side).catalog) == catalog_to_json(result.catalog)
        assert merge_schemas(side, side, result) == result  # it goes on from either side
    assert said(result) in (said(ours), said(theirs))
    for side in (ours, theirs):
        for entry in side.catalog.types:
            if entry.name in result.catalog.by_name:
                after = result.catalog.by_name[entry.name]
                assert set(entry.retired_columns) <= set(after.retired_columns)
                assert entry.property_ids <= after.property_ids


def said(schema: Schema) -> dict[str, dict[str, Property]]:
    """The properties by type and name, whatever their ids."""
    return {
        entry.name: {prop.name: replace(prop, id="") for prop in entry.properties} for entry in schema.catalog.types
    }


def test_every_single_edit_merges_with_an_unchanged_side_and_with_itself() -> None:
    for number, other in itertools.product(range(len(EDITS)), repeat=2):
        side = edited([number])
        assert merge_schemas(ROOT, side, ROOT) == side
        if number == other:
            assert merge_schemas(ROOT, side, edited([other])) == side
