"""The steps between two schemas: every row of the language's table, and what is no change at all."""

from __future__ import annotations

import pytest

from omnigraph.lexer import LanguageError
from omnigraph.schema.catalog import Schema, decode_schema
from omnigraph.schema.evolve.migration import MigrationPlan, column_fills, plan_migration
from omnigraph.schema.evolve.migration_step import ConstraintHolds, NoNulls, NoRows, Step
from omnigraph.schema.lang.compile import compile_schema

BASE = """
interface Named { name: String? }
node Person implements Named {
    slug: String @key
    age: I32?
    role: enum(a, b)
    bio: String?
    face: Vector(2)? @embed("bio")
    @range(age, 0..150)
    @unique(name, role)
}
node City { n: String @key }
edge Knows: Person -> Person @card(0..3) { since: Date? }
edge Lives: Person -> City
"""


def accepted(*texts: str) -> Schema:
    """The schema after these texts were in force, as it would be read from the store."""
    schema = None
    for text in texts:
        schema = compile_schema(text, schema)
    assert schema is not None
    return decode_schema(schema.encoded, schema.hash)


def planned(*changes: tuple[str, str], base: str = BASE) -> MigrationPlan:
    text = base
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return plan_migration(accepted(base), text)


def step_of(*changes: tuple[str, str], base: str = BASE) -> Step:
    (step,) = planned(*changes, base=base).steps
    return step


def step_keys(plan: MigrationPlan) -> list[tuple[str, str, str | None]]:
    return [(step.kind, step.type_name, step.property_name) for step in plan.steps]


# What is no change


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("node City { n: String @key }", "\n\n// a comment\nnode City {\n\tn: String @key\n}"),
        ("    slug: String @key\n    age: I32?\n", "    age: I32?\n    slug: String @key\n"),
        ("enum(a, b)", "enum(b, a)"),
        ("@unique(name, role)", "@unique(role, name)"),
        ("slug: String @key\n", "slug: String\n @key(slug)\n"),
    ],
)
def test_order_layout_and_comments_are_no_change(old: str, new: str) -> None:
    plan = planned((old, new))

    assert plan.steps == ()
    assert plan.supported


def test_the_same_schema_has_no_steps_however_it_came_about() -> None:
    renamed = BASE.replace("since: Date?", 'met: Date? @rename_from("since")')
    schema = accepted(BASE, renamed)

    assert plan_migration(schema, renamed).steps == ()


# Types


def test_a_new_type_is_added() -> None:
    step = step_of(("node City", "node Town { t: String }\nnode City"))

    assert (step.kind, step.type_name, step.supported, step.code) == ("add_type", "Town", True, None)


def test_a_dropped_node_type_has_a_code() -> None:
    plan = planned(("node City { n: String @key }", ""), ("edge Lives: Person -> City", ""))

    assert [(step.kind, step.type_name, step.code) for step in plan.steps] == [
        ("drop_type", "Lives", "OG-DS-103"),
        ("drop_type", "City", "OG-DS-102"),
    ]
    assert plan.supported


def test_a_node_type_that_edges_still_use_can_not_be_dropped() -> None:
    with pytest.raises(LanguageError, match=r"Lives.*City.*OG-PG-120"):
        planned(("node City { n: String @key }", ""))


def test_a_type_is_renamed_with_all_that_refers_to_it() -> None:
    step = step_of(("node City", 'node Town @rename_from("City")'), ("-> City", "-> Town"))

    assert (step.kind, step.type_name, step.before, step.after) == ("rename_type", "Town", "City", "Town")
    assert step.supported


def test_a_type_that_changes_its_kind_is_dropped_and_added() -> None:
    plan = planned(("edge Lives: Person -> City", "node Lives { x: I32? }"))

    assert step_keys(plan) == [("drop_type", "Lives", None), ("add_type", "Lives", None)]


def test_a_rename_from_something_that_never_was_is_refused() -> None:
    with pytest.raises(LanguageError, match="OG-PG-190"):
        planned(("node City", 'node City\nnode Town @rename_from("Village")'))


def test_a_rename_from_something_that_is_still_declared_is_refused() -> None:
    with pytest.raises(LanguageError, match="OG-PG-192"):
        planned(("node City", 'node Town @rename_from("City") { t: String }\nnode City'))


# Properties


def test_a_nullable_property_is_added() -> None:
    step = step_of(("bio: String?", "bio: String?\n    height: F32?"))

    assert (step.kind, step.property_name, step.supported, step.requirement) == ("add_property", "height", True, None)


def test_a_property_with_a_default_is_added() -> None:
    step = step_of(("bio: String?", "bio: String?\n    height: F32 @default(1.5)"))

    assert (step.kind, step.supported, step.requirement) == ("add_property", True, None)
    assert step.message == "1.5 in existing rows"


def test_a_required_property_without_a_default_depends_on_rows() -> None:
    assert step_of(("bio: String?", "bio: String?\n    height: F32")).requirement == NoRows("OG-MF-103")


def test_a_dropped_property_has_a_code() -> None:
    step = step_of(("{ since: Date? }", ""))

    assert (step.kind, step.property_name, step.code, step.supported) == ("drop_property", "since", "OG-DS-104", True)


def test_a_renamed_property_takes_its_rules_along() -> None:
    plan = planned(("age: I32?", 'years: I32? @rename_from("age")'), ("@range(age", "@range(years"))

    assert step_keys(plan) == [("rename_property", "Person", "years")]
    (change,) = [one for one in plan.kept_types if one.before != one.after]
    assert change.after.by_name["years"].column == "age"
    assert column_fills(change.before, change.after) == ()


def test_an_interface_renames_in_every_type_that_implements_it() -> None:
    plan = planned(("name: String?", 'label: String? @rename_from("name")'), ("@unique(name", "@unique(label"))

    assert step_keys(plan) == [("rename_property", "Person", "label")]


def test_a_rename_and_a_change_at_once_are_two_steps() -> None:
    plan = planned(("age: I32?", 'years: I64? @rename_from("age")'), ("@range(age", "@range(years"))

    assert step_keys(plan) == [("rename_property", "Person", "years"), ("change_property", "Person", "years")]
    assert plan.supported
    (change,) = [one for one in plan.kept_types if one.before != one.after]
    (filling,) = column_fills(change.before, change.after)
    assert (filling.column, filling.source, filling.default) == ("years", "age", None)
    assert "age" in change.after.retired_columns


@pytest.mark.parametrize(("old", "new"), [("I32", "I64"), ("U32", "U64"), ("U32", "I64"), ("F32", "F64")])
def test_a_number_is_widened_into_another_column(old: str, new: str) -> None:
    base = f"node A {{ x: {old} }}"
    step = step_of((old, new), base=base)

    assert (step.kind, step.supported, step.code) == ("change_property", True, None)
    after = plan_migration(accepted(base), base.replace(old, new)).wanted.catalog.by_name["A"]
    assert after.by_name["x"].column == "x_p1"
    assert after.retired_columns == ("x",)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("I64", "I32"),
        ("F64", "F32"),
        ("I32", "F64"),
        ("I32", "U32"),
        ("U64", "I64"),
        ("I32", "String"),
        ("String", "Bool"),
        ("Date", "DateTime"),
        ("String", "[String]"),
        ("Vector(2)", "Vector(3)"),
        ("enum(a, b)", "String"),
        ("String", "enum(a, b)"),
        ("[I32]", "[I64]"),
    ],
)
def test_any_other_change_of_type_is_refused(old: str, new: str) -> None:
    step = step_of((f"x: {old}", f"x: {new}"), base=f"node A {{ x: {old} }}")

    assert (step.kind, step.supported, step.code) == ("change_property", False, "OG-MF-106")
    assert (step.before, step.after) == (old, new)


def test_a_floating_key_is_widened_only_without_rows() -> None:
    assert step_of(("F32", "F64"), base="node A { x: F32 @key }").requirement == NoRows("OG-MF-107")
    assert step_of(("I32", "I64"), base="node A { x: I32 @key }").requirement is None


def test_an_enum_is_widened() -> None:
    step = step_of(("enum(a, b)", "enum(a, c, b)"))

    assert (step.kind, step.supported, step.message) == ("extend_enum", True, "also takes c")


@pytest.mark.parametrize("narrow", ["enum(a)", "enum(a, c)"])
def test_an_enum_is_not_narrowed(narrow: str) -> None:
    step = step_of(("enum(a, b)", narrow))

    assert (step.kind, step.supported, step.code) == ("change_property", False, "OG-MF-106")
    assert "keep b" in step.message


def test_a_property_becomes_nullable() -> None:
    step = step_of(("enum(a, b)", "enum(a, b)?"))

    assert (step.kind, step.supported, step.requirement) == ("change_property", True, None)


def test_a_property_becomes_required_if_no_row_has_null() -> None:
    assert step_of(("bio: String?", "bio: String")).requirement == NoNulls("bio", "OG-MF-104")


def test_a_default_is_added_changed_and_dropped() -> None:
    base = "node A { x: I32? @default(1) y: I32? }"

    for old, new, before, after in [
        ("@default(1)", "@default(2)", "@default(1)", "@default(2)"),
        ("@default(1)", "", "@default(1)", None),
        ("y: I32?", "y: I32? @default(0)", None, "@default(0)"),
    ]:
        step = step_of((old, new), base=base)
        assert (step.kind, step.supported, step.before, step.after) == ("change_property", True, before, after)


def test_an_embedding_comes_from_another_text() -> None:
    step = step_of(('@embed("bio")', '@embed("slug")'))

    assert (step.kind, step.property_name, step.supported) == ("change_property", "face", True)


# Constraints


@pytest.mark.parametrize(
    ("old", "new", "text", "name"),
    [
        ("n: String @key", "n: String @key\n pop: I32?\n @range(pop, 0..)", "@range(pop, 0..)", "pop"),
        ("@range(age, 0..150)", "@range(age, 0..150)\n @unique(bio)", "@unique(bio)", "bio"),
        ("@range(age, 0..150)", "@range(age, 0..150)\n @unique(bio, age)", "@unique(bio, age)", None),
        ("@range(age, 0..150)", '@range(age, 0..150)\n @check(bio, "[a-z]*")', '@check(bio, "[a-z]*")', "bio"),
    ],
)
def test_an_added_constraint_is_checked_against_rows(old: str, new: str, text: str, name: str | None) -> None:
    step = planned((old, new)).steps[-1]

    assert (step.kind, step.after, step.property_name) == ("add_constraint", text, name)
    assert isinstance(step.requirement, ConstraintHolds)


def test_an_index_is_added_and_dropped_without_reading_rows() -> None:
    added = step_of(("age: I32?", "age: I32? @index"))
    dropped = step_of((" @index", ""), base="node A { x: I32 @index }")
    other = planned(("l2", "cosine"), base='node A { v: Vector(2)? @index(metric="l2") }')

    assert (added.kind, added.property_name, added.requirement) == ("add_constraint", "age", None)
    assert (dropped.kind, dropped.property_name, dropped.requirement) == ("drop_constraint", "x", None)
    assert [step.kind for step in other.steps] == ["drop_constraint", "add_constraint"]


def test_constraints_are_dropped() -> None:
    plan = planned(("@range(age, 0..150)", ""), ("@unique(name, role)", ""))

    assert [(step.kind, step.before, step.property_name) for step in plan.steps] == [
        ("drop_constraint", "@unique(name, role)", None),
        ("drop_constraint", "@range(age, 0..150)", "age"),
    ]
    assert plan.supported


def test_a_changed_range_is_checked_against_rows() -> None:
    plan = planned(("0..150", "0..99"))

    assert [step.kind for step in plan.steps] == ["drop_constraint", "add_constraint"]
    assert isinstance(plan.steps[1].requirement, ConstraintHolds)


def test_a_key_changes_only_without_rows() -> None:
    changed = planned(("slug: String @key", "slug: String @unique\n code: I32? "), ("bio: String?", "bio: String? "))
    other = planned(("n: String @key", "n: String\n zip: I32\n @key(n, zip)"))

    assert [(s.kind, s.requirement) for s in changed.steps if isinstance(s.requirement, NoRows)] == [
        ("drop_constraint", NoRows("OG-MF-107"))
    ]
    assert [(s.kind, s.after) for s in other.steps if s.requirement == NoRows("OG-MF-107")] == [
        ("drop_constraint", None),
        ("add_constraint", "@key(n, zip)"),
    ]


def test_the_ends_of_an_edge_type_change_only_without_rows() -> None:
    step = step_of(("edge Lives: Person -> City", "edge Lives: Person -> Person"))

    assert (step.kind, step.property_name, step.requirement) == ("change_property", "dst", NoRows("OG-MF-108"))


@pytest.mark.parametrize(("card", "looks"), [("0..5", False), ("0..", False), ("0..2", True), ("1..3", True)])
def test_a_cardinality_is_widened_at_once_and_narrowed_with_a_look_at_rows(card: str, looks: bool) -> None:
    step = step_of(("0..3", card))

    assert (step.kind, step.supported) == ("change_card", True)
    assert isinstance(step.requirement, ConstraintHolds) == looks


def test_a_cardinality_is_added_and_dropped() -> None:
    assert isinstance(
        step_of(("edge Lives: Person -> City", "edge Lives: Person -> City @card(0..1)")).requirement, ConstraintHolds
    )
    assert step_of((" @card(0..3)", "")).requirement is None


# Metadata


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("node City", 'node City @description("a place")', None),
        ("age: I32?", 'age: I32? @description("in years")', "age"),
        ("age: I32?", "age: I32? @owner(7)", "age"),
        ("node City", "interface Empty { }\nnode City implements Empty", None),
    ],
)
def test_a_change_of_words_is_metadata(old: str, new: str, name: str | None) -> None:
    step = step_of((old, new))

    assert (step.kind, step.property_name, step.supported) == ("update_metadata", name, True)


def test_an_interface_without_implementations_is_metadata() -> None:
    step = step_of(("interface Named", "interface Extra { x: I32 }\ninterface Named"))

    assert (step.kind, step.type_name) == ("update_metadata", "Extra")


def test_a_property_of_an_interface_is_added_to_every_type() -> None:
    plan = planned(("name: String?", "name: String?\n nick: String?"))

    assert step_keys(plan) == [("add_property", "Person", "nick")]


# Renames that meet


def names(schema: Schema, type_name: str = "A") -> dict[str, str]:
    return {prop.name: prop.column for prop in schema.catalog.by_name[type_name].properties}


def test_two_properties_swap_their_names_at_once_and_only_once() -> None:
    swap = 'node A { x: I32? @rename_from("y") y: I32? @rename_from("x") }'
    plan = plan_migration(accepted("node A { x: I32? y: I32? }"), swap)

    assert step_keys(plan) == [("rename_property", "A", "x"), ("rename_property", "A", "y")]
    assert names(plan.wanted) == {"x": "y", "y": "x"}
    assert plan_migration(accepted("node A { x: I32? y: I32? }", swap), swap).steps == ()


def test_names_move_along_a_chain() -> None:
    chain = 'node A { y: I32? @rename_from("x") z: I32? @rename_from("y") }'
    plan = plan_migration(accepted("node A { x: I32? y: I32? }"), chain)

    assert names(plan.wanted) == {"y": "x", "z": "y"}
    assert plan_migration(accepted("node A { x: I32? y: I32? }", chain), chain).steps == ()


def test_types_swap_their_names() -> None:
    swap = 'node B @rename_from("A") { x: I32? } node A @rename_from("B") { y: I32? } edge E: B -> A'
    plan = plan_migration(accepted("node A { x: I32? } node B { y: I32? } edge E: A -> B"), swap)

    assert step_keys(plan) == [("rename_type", "B", None), ("rename_type", "A", None)]
    assert names(plan.wanted, "B") == {"x": "x"}


def test_a_rename_left_over_in_the_text_is_not_taken_for_another_one() -> None:
    once = 'node A { y: I32? @rename_from("x") }'

    with pytest.raises(LanguageError, match="OG-PG-192"):
        plan_migration(accepted("node A { x: I32? }", once), f'{once[:-1]} z: I32? @rename_from("y") }}')


def test_a_plan_is_plain_data() -> None:
    document = planned(("age: I32?", "age: String?"), ("@range(age, 0..150)", "")).to_json()

    assert (document["supported"], document["step_count"]) == (False, 2)
    assert document["steps"] == [
        {
            "kind": "change_property",
            "type_name": "Person",
            "property_name": "age",
            "supported": False,
            "code": "OG-MF-106",
            "message": "I32 does not become String: add another property, fill it, and drop this one",
            "before": "I32",
            "after": "String",
            "count": None,
        },
        {
            "kind": "drop_constraint",
            "type_name": "Person",
            "property_name": "age",
            "supported": True,
            "code": None,
            "message": "no longer required of rows",
            "before": "@range(age, 0..150)",
            "after": None,
            "count": None,
        },
    ]
