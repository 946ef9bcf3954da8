"""`schema apply`: one commit; stored rows keep their values, and older commits are unchanged."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.errors import (
    ConstraintViolation,
    ExpectedVersionMismatch,
    PreconditionFailed,
    ReadOnly,
    SchemaChangeRefused,
)
from omnigraph.graph.graph import Graph
from omnigraph.lexer import LanguageError
from support.catalogs import people

PEOPLE = """
node Person {
    slug: String @key
    age: I32?
    name: String?
    bio: String? @index
    height: F32?
    role: enum(a, b) @default("a")
    face: Vector(2)? @index
}
node City { n: String @key }
edge Knows: Person -> Person { since: Date? }
edge Lives: Person -> City
"""
ROWS: list[dict[str, Any]] = [
    {"type": "Person", "data": {"slug": "ada", "age": 36, "name": "Ada", "bio": "first of all", "height": 1.5,
                                "face": [1.0, 0.0]}},
    {"type": "Person", "data": {"slug": "bob", "age": 7, "name": "Bob", "role": "b", "face": [0.0, 1.0]}},
    {"type": "Person", "data": {"slug": "eve"}},
    {"type": "City", "data": {"n": "rome"}},
    {"edge": "Knows", "from": "ada", "to": "bob", "data": {"since": "2026-01-01"}},
    {"edge": "Knows", "from": "ada", "to": "eve"},
    {"edge": "Lives", "from": "ada", "to": "rome"},
]  # fmt: skip


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    graph = omnigraph.init(tmp_path / "graph", PEOPLE)
    graph.load(ROWS)
    return graph


def changed(*edits: tuple[str, str], text: str = PEOPLE) -> str:
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    return text


def exported(graph: Graph, **options: Any) -> dict[str, list[dict[str, Any]]]:
    """All entities by type, ids and edges' ends among the data."""
    file = io.BytesIO()
    graph.export(file, **options)
    found: dict[str, list[dict[str, Any]]] = {}
    for line in file.getvalue().splitlines():
        entity = json.loads(line)
        ends = {name: entity[name] for name in ("from", "to") if name in entity}
        found.setdefault(entity.get("type") or entity["edge"], []).append(ends | entity["data"])
    return found


def column(graph: Graph, name: str, type_name: str = "Person", **options: Any) -> list[Any]:
    return [row[name] for row in exported(graph, types=[type_name], **options).get(type_name, [])]


def refused(graph: Graph, text: str, code: str, **options: Any) -> SchemaChangeRefused:
    before = graph.snapshot().commit_id
    with pytest.raises(SchemaChangeRefused) as caught:
        graph.schema.apply(text, **options)
    assert graph.snapshot().commit_id == before
    assert code in [step[2] for step in caught.value.refused]
    assert f"[{code}]" in str(caught.value)
    return caught.value


def physical_columns(graph: Graph, key: str = "node:Person") -> list[str]:
    """The columns that the table has, or its rows while they were never stored."""
    return list(graph.repository.tables.dataset(graph.repository.snapshot().content(key)).schema.names)


# The commit


def test_an_applied_schema_is_one_commit_of_its_kind(graph: Graph) -> None:
    parent = graph.snapshot().commit_id
    text = changed(("age: I32?", "age: I32? weight: F64?"), ("node City", "node Town { t: String }\nnode City"))

    applied = graph.schema.apply(text, actor="ada")

    assert applied.commit is not None
    commit = graph.commits(limit=1)[0]
    assert (commit.id, commit.kind, commit.parent, commit.actor) == (applied.commit.id, "schema_apply", parent, "ada")
    assert graph.schema.show() == text
    assert graph.schema.show(at=parent) == PEOPLE
    assert graph.load([{"type": "Town", "data": {"t": "x"}}]).commit is not None


def test_nothing_to_change_makes_no_commit(graph: Graph) -> None:
    before = graph.snapshot().commit_id

    applied = graph.schema.apply(PEOPLE + "// a comment")

    assert applied.commit is None
    assert applied.plan.steps == ()
    assert graph.snapshot().commit_id == before


def test_a_plan_changes_nothing(graph: Graph) -> None:
    before = graph.snapshot().commit_id

    plan = graph.schema.plan(changed(("age: I32?", "age: I64?"), ("bio: String? @index", "")))

    assert plan.supported
    assert graph.snapshot().commit_id == before
    assert graph.schema.show() == PEOPLE


def test_a_schema_changes_on_its_branch_alone(graph: Graph) -> None:
    graph.branches.create("b")
    text = changed(("age: I32?", "age: I32? weight: F64 @default(1.5)"))

    graph.schema.apply(text, branch="b")

    assert graph.schema.show("main") == PEOPLE
    assert column(graph, "weight", branch="b") == [1.5, 1.5, 1.5]
    assert "weight" not in exported(graph)["Person"][0]
    graph.mutate('query q() { insert Person { slug: "fay" } }')
    graph.mutate('query q() { insert Person { slug: "gus" } }', branch="b")
    assert column(graph, "weight", branch="b") == [1.5] * 4


def test_a_condition_on_the_head_holds(graph: Graph) -> None:
    old = graph.commits()[-1].id
    text = changed(("age: I32?", ""))

    with pytest.raises(PreconditionFailed):
        graph.schema.apply(text, if_commit=old)

    assert graph.schema.apply(text, if_commit=graph.snapshot().commit_id).commit is not None


def test_the_same_txn_id_applies_once(graph: Graph) -> None:
    text = changed(("age: I32?", "age: I32? weight: F64?"))
    first = graph.schema.apply(text, txn_id="once").commit
    graph.mutate('query q() { insert Person { slug: "fay" } }')
    second = graph.schema.apply(text, txn_id="once").commit

    assert first is not None
    assert second is not None
    assert second.id == first.id


def test_a_graph_opened_for_reading_plans_and_does_not_apply(graph: Graph) -> None:
    reader = omnigraph.open(graph.uri, read_only=True)
    text = changed(("age: I32?", "age: I32 "))

    assert reader.schema.plan(text).steps[0].code == "OG-MF-104"
    with pytest.raises(ReadOnly):
        reader.schema.apply(text)


def test_another_process_sees_the_new_schema(graph: Graph) -> None:
    other = omnigraph.open(graph.uri)
    graph.schema.apply(changed(("name: String?", 'title: String? @rename_from("name")')))

    assert other.query('query q() { match { $p: Person { slug: "ada" } } return { $p.title } }').rows == [
        {"p.title": "Ada"}
    ]


# Additions


def test_an_added_nullable_property_is_null_and_touches_no_data(graph: Graph) -> None:
    before = graph.repository.snapshot().manifest.tables["node:Person"]
    commit = graph.schema.apply(changed(("age: I32?", "age: I32? weight: F64?"))).commit

    assert commit is not None
    assert commit.touched == {}
    after = graph.repository.snapshot().manifest.tables["node:Person"]
    assert (after.stored == before.stored, after.rows, after.changed_at) == (True, before.rows, before.changed_at)
    assert column(graph, "weight") == [None, None, None]
    graph.mutate('query q() { update Person set { weight: 2.5 } where slug = "bob" }')
    assert column(graph, "weight") == [None, 2.5, None]
    assert graph.query("query q() { match { $p: Person $p.weight > 1.0 } return { $p.slug } }").rows == [
        {"p.slug": "bob"}
    ]


@pytest.mark.parametrize(
    ("declared", "value", "condition"),
    [
        ("I32 @default(7)", 7, "= 7"),
        ("I64 @default(-9007199254740993)", -9007199254740993, "< 0"),
        ("U64 @default(18446744073709551615)", 18446744073709551615, "> 5"),
        ("F32 @default(0.1)", 0.1, "< 1.0"),
        ("Bool @default(false)", False, "= false"),
        ('String @default("it\'s")', "it's", '= "it\'s"'),
        ('String? @default("")', "", '= ""'),
        ('enum(x, y) @default("y")', "y", '= "y"'),
        ('Date @default(date("2026-01-31"))', "2026-01-31", '= date("2026-01-31")'),
        (
            'DateTime @default(datetime("2026-01-31T12:00:00.250Z"))',
            "2026-01-31T12:00:00.250Z",
            '= datetime("2026-01-31T12:00:00.250Z")',
        ),
        ('[String] @default(["u", "v"])', ["u", "v"], 'contains "v"'),
        ('Blob @default("base64:aGk=")', "base64:aGk=", None),
        ("Vector(2) @default([0.5, 1.0])", [0.5, 1.0], None),
    ],
)
def test_rows_that_are_there_get_the_default(graph: Graph, declared: str, value: Any, condition: str | None) -> None:
    commit = graph.schema.apply(changed(("age: I32?", f"age: I32? extra: {declared}"))).commit

    assert commit is not None
    assert commit.touched == {}
    assert column(graph, "extra") == [value] * 3
    if condition is not None:
        found = graph.query(f"query q() {{ match {{ $p: Person $p.extra {condition} }} return {{ count($p) as n }} }}")
        assert found.rows == [{"n": 3}]
    graph.mutate('query q() { insert Person { slug: "fay" } }')
    assert column(graph, "extra") == [value] * 4
    assert graph.snapshot().to_arrow("node:Person", ["id"], "extra IS NULL").num_rows == 0


def test_a_required_property_without_a_default_needs_a_type_without_rows(graph: Graph) -> None:
    text = changed(("age: I32?", "age: I32? weight: F64"))

    error = refused(graph, text, "OG-MF-103")
    assert "Person has 3 rows" in str(error)
    (step,) = graph.schema.plan(text).steps
    assert (step.supported, step.code, step.count) == (False, "OG-MF-103", 3)

    graph.mutate('query q() { delete Person where slug != "" }')
    assert graph.schema.apply(text).commit is not None


def test_a_type_that_never_had_rows_may_change_as_it_likes(tmp_path: Path) -> None:
    graph = omnigraph.init(tmp_path / "graph", "node A { x: String @key y: I32? } node B { } edge E: A -> A")
    graph.schema.apply("node A { x: String y: I32 z: I64 @key(y) } node B { } edge E: A -> B @card(1..1)")

    graph.load([{"type": "A", "data": {"x": "u", "y": 1, "z": 2}}])
    assert column(graph, "id", "A") == ["1"]


def test_a_new_index_finds_rows_that_were_there(graph: Graph) -> None:
    graph.schema.apply(changed(("name: String?", "name: String? @index"), ("age: I32?", "age: I32? @index")))

    found = graph.query('query q() { match { $p: Person search($p.name, "bob") } return { $p.slug } }')
    assert found.rows == [{"p.slug": "bob"}]
    assert graph.query("query q() { match { $p: Person { age: 7 } } return { $p.slug } }").rows == [{"p.slug": "bob"}]


# Constraints


@pytest.mark.parametrize(
    ("edit", "constraint", "ids"),
    [
        ("@unique(name)", "Person unique (name)", ("bob", "fay")),
        ("@range(age, 10..)", "Person.age range 10..", ("bob",)),
        ('@check(name, "[A-Z][a-z]+")', "Person.name check [A-Z][a-z]+", ("gus",)),
    ],
)
def test_rows_are_judged_before_a_constraint_is_added(
    graph: Graph, edit: str, constraint: str, ids: tuple[str, ...]
) -> None:
    graph.mutate('query q() { insert Person { slug: "fay", name: "Bob" } insert Person { slug: "gus", name: "gus" } }')
    text = changed(('role: enum(a, b) @default("a")', f'role: enum(a, b) @default("a") {edit}'))
    before = graph.snapshot().commit_id

    with pytest.raises(ConstraintViolation) as caught:
        graph.schema.apply(text)

    assert (caught.value.constraint, caught.value.entity_ids) == (constraint, ids)
    assert graph.snapshot().commit_id == before
    (step,) = graph.schema.plan(text).steps
    assert (step.supported, step.code, step.count) == (False, "OG-MF-109", len(ids))
    for slug in ids[-1:]:
        graph.mutate(f'query q() {{ delete Person where slug = "{slug}" }}')
    assert graph.schema.apply(text).commit is not None
    with pytest.raises(ConstraintViolation):
        graph.mutate(
            'query q() { insert Person { slug: "hal", name: "Bob", age: 1 } '
            'insert Person { slug: "ivy", name: "bob" } insert Person { slug: "joe", name: "Bob" } }'
        )


def test_nulls_never_collide_in_an_added_unique(graph: Graph) -> None:
    assert graph.schema.apply(changed(("height: F32?", "height: F32? @unique"))).commit is not None


def test_constraints_are_added_to_a_type_whose_rows_are_all_gone(graph: Graph) -> None:
    graph.mutate('query q() { delete Person where slug != "" }')
    text = changed(
        ("age: I32?", "age: I64 code: String? @unique @range(age, 0..9)"),
        ("edge Knows: Person -> Person", "edge Knows: Person -> Person @card(1..1)"),
    )

    assert graph.schema.apply(text).commit is not None


def test_the_two_zeros_are_one_unique_value(graph: Graph) -> None:
    graph.load([{"type": "Person", "data": {"slug": s, "height": h}} for s, h in (("fay", 0.0), ("gus", -0.0))])

    with pytest.raises(ConstraintViolation) as caught:
        graph.schema.apply(changed(("height: F32?", "height: F32? @unique")))
    assert caught.value.entity_ids == ("fay", "gus")


def test_a_default_is_not_unique_in_several_rows(graph: Graph) -> None:
    with pytest.raises(ConstraintViolation) as caught:
        graph.schema.apply(changed(("age: I32?", "age: I32? code: I32 @default(1) @unique")))

    assert caught.value.entity_ids == ("ada", "bob", "eve")


def test_a_range_is_judged_by_the_widened_type(graph: Graph) -> None:
    text = changed(("age: I32?", "age: I64? @range(age, 7..5000000000)"))

    assert graph.schema.apply(text).commit is not None
    graph.mutate('query q() { update Person set { age: 4000000000 } where slug = "ada" }')
    assert column(graph, "age") == [4000000000, 7, None]


def test_a_property_becomes_required_when_no_row_has_null(graph: Graph) -> None:
    text = changed(("name: String?", "name: String"))

    assert "1 row of Person has null" in str(refused(graph, text, "OG-MF-104"))
    (step,) = graph.schema.plan(text).steps
    assert (step.code, step.count) == ("OG-MF-104", 1)
    graph.mutate('query q() { update Person set { name: "Eve" } where slug = "eve" }')
    assert graph.schema.apply(text).commit is not None
    with pytest.raises(ConstraintViolation):
        graph.mutate('query q() { insert Person { slug: "fay" } }')


def test_a_property_becomes_nullable_without_reading_rows(graph: Graph) -> None:
    graph.schema.apply(changed(("enum(a, b)", "enum(a, b)?")))
    graph.load([{"type": "Person", "data": {"slug": "fay", "role": None}}])

    assert column(graph, "role") == ["a", "b", "a", None]


def test_an_enum_is_widened(graph: Graph) -> None:
    graph.schema.apply(changed(("enum(a, b)", "enum(a, b, c)")))
    graph.load([{"type": "Person", "data": {"slug": "fay", "role": "c"}}])

    assert column(graph, "role") == ["a", "b", "a", "c"]
    refused(graph, changed(("enum(a, b)", "enum(a, b)")), "OG-MF-106")


@pytest.mark.parametrize(("card", "source"), [("0..1", "ada"), ("3..", "ada")])
def test_a_cardinality_is_narrowed_if_the_edges_allow_it(graph: Graph, card: str, source: str) -> None:
    text = changed(("edge Knows: Person -> Person", f"edge Knows: Person -> Person @card({card})"))

    with pytest.raises(ConstraintViolation) as caught:
        graph.schema.apply(text)
    assert (caught.value.type_name, caught.value.entity_ids) == ("Person", (source,))
    assert graph.schema.apply(text.replace(card, "1..2")).commit is not None
    assert graph.schema.apply(PEOPLE).commit is not None


def test_a_key_does_not_change_under_rows(graph: Graph) -> None:
    refused(graph, changed(("slug: String @key", "slug: String")), "OG-MF-107")
    refused(graph, changed(("n: String @key", "n: String zip: I32 @default(1) @key(n, zip)")), "OG-MF-107")


def test_the_ends_of_edges_do_not_change_under_rows(graph: Graph) -> None:
    refused(graph, changed(("Lives: Person -> City", "Lives: Person -> Person")), "OG-MF-108")


def test_a_type_of_values_does_not_change(graph: Graph) -> None:
    refused(graph, changed(("age: I32?", "age: String?")), "OG-MF-106")


def test_a_refused_step_leaves_the_others_undone_and_is_reported_with_them(graph: Graph) -> None:
    text = changed(("age: I32?", "age: String? weight: F64?"))

    error = refused(graph, text, "OG-MF-106")

    assert [step["kind"] for step in error.details["steps"]] == ["add_property", "change_property"]
    assert error.exit_code == 1


# Widening


def test_widened_numbers_keep_their_values_and_take_larger_ones(graph: Graph) -> None:
    old = graph.snapshot().commit_id
    commit = graph.schema.apply(changed(("age: I32?", "age: I64?"), ("height: F32?", "height: F64?"))).commit

    assert commit is not None
    assert commit.touched == {}
    assert column(graph, "age") == [36, 7, None]
    graph.mutate('query q() { update Person set { age: 5000000000, height: 0.1 } where slug = "ada" }')
    assert column(graph, "age") == [5000000000, 7, None]
    assert column(graph, "height") == [0.1, None, None]
    assert column(graph, "age", at=old) == [36, 7, None]
    assert graph.query("query q() { match { $p: Person $p.age > 4000000000 } return { $p.slug } }").rows == [
        {"p.slug": "ada"}
    ]


def test_a_widened_key_keeps_its_ids(tmp_path: Path) -> None:
    graph = omnigraph.init(tmp_path / "graph", "node A { x: I32 @key y: I32? }")
    graph.load([{"type": "A", "data": {"x": 5}}])
    graph.schema.apply("node A { x: I64 @key y: I32? }")
    graph.load([{"type": "A", "data": {"x": 5, "y": 1}}], mode="merge")

    assert exported(graph)["A"] == [{"id": "5", "x": 5, "y": 1}]


# Drops


def test_a_dropped_property_is_hidden_and_stays_readable_at_older_commits(graph: Graph) -> None:
    old = graph.snapshot().commit_id
    commit = graph.schema.apply(changed(("age: I32?", ""))).commit

    assert commit is not None
    assert commit.touched == {}
    assert "age" not in exported(graph)["Person"][0]
    with pytest.raises(LanguageError):
        graph.query("query q() { match { $p: Person } return { $p.age } }")
    assert column(graph, "age", at=old) == [36, 7, None]
    graph.mutate('query q() { update Person set { name: "A" } where slug = "ada" insert Person { slug: "fay" } }')
    assert column(graph, "name") == ["A", "Bob", None, None]
    assert column(graph, "age", at=old) == [36, 7, None]


def test_a_property_that_is_added_again_has_none_of_its_old_values(graph: Graph) -> None:
    graph.schema.apply(changed(("age: I32?", "")))
    graph.schema.apply(PEOPLE)
    assert column(graph, "age") == [None, None, None]
    graph.schema.apply(changed(("age: I32?", "")))
    graph.schema.apply(changed(("age: I32?", 'age: String @default("?")')))

    assert column(graph, "age") == ["?"] * 3


def test_a_dropped_type_is_gone_and_stays_readable_at_older_commits(graph: Graph) -> None:
    old = graph.snapshot().commit_id
    text = changed(("node City { n: String @key }", ""), ("edge Lives: Person -> City", ""))
    (lives, city) = graph.schema.plan(text).steps
    assert (lives.code, lives.count, city.code, city.count) == ("OG-DS-103", 1, "OG-DS-102", 1)

    commit = graph.schema.apply(text).commit

    assert commit is not None
    assert commit.touched == {"edge:Lives": {"deleted": 1}, "node:City": {"deleted": 1}}
    assert set(exported(graph)) == {"Person", "Knows"}
    assert exported(graph, at=old)["City"] == [{"id": "rome", "n": "rome"}]
    graph.schema.apply(PEOPLE)
    assert "City" not in exported(graph)
    graph.load([{"type": "City", "data": {"n": "oslo"}}])
    assert column(graph, "n", "City") == ["oslo"]


def test_a_node_type_that_edges_use_stays(graph: Graph) -> None:
    with pytest.raises(LanguageError, match="Lives"):
        graph.schema.apply(changed(("node City { n: String @key }", "")))


def test_data_loss_takes_dropped_values_out_of_the_newest_version(graph: Graph) -> None:
    old = graph.snapshot().commit_id
    graph.schema.apply(changed(("height: F32?", "")))
    assert "height" in physical_columns(graph)
    text = changed(("height: F32?", ""), ("age: I32?", "weight: F64 @default(2.5)"))

    graph.schema.apply(text, allow_data_loss=True)

    assert set(physical_columns(graph)) == {"id", "slug", "name", "bio", "role", "face", "weight"}
    assert column(graph, "weight") == [2.5] * 3
    assert column(graph, "age", at=old) == [36, 7, None]
    graph.mutate('query q() { insert Person { slug: "fay" } update Person set { name: "A" } where slug = "ada" }')
    assert column(graph, "name") == ["A", "Bob", None, None]
    graph.schema.apply(changed(("role: enum", "more: [String]? role: enum"), text=text))
    assert column(graph, "more") == [None] * 4
    assert graph.query('query q() { match { $p: Person search($p.bio, "first") } return { $p.slug } }').rows == [
        {"p.slug": "ada"}
    ]


# Renames


def test_a_renamed_type_keeps_rows_edges_and_history(graph: Graph) -> None:
    old = graph.snapshot().commit_id
    before = exported(graph)
    text = changed(
        ("node Person {", 'node Human @rename_from("Person") {'),
        ("Person ->", "Human ->"),
        ("-> Person", "-> Human"),
        ("edge Knows", "edge Met"),
        ("{ since: Date? }", '@rename_from("Knows") { since: Date? }'),
    )

    commit = graph.schema.apply(text).commit

    assert commit is not None
    assert commit.touched == {}
    after = exported(graph)
    assert (after["Human"], after["Met"], after["Lives"]) == (before["Person"], before["Knows"], before["Lives"])
    assert exported(graph, at=old) == before
    met = graph.query(
        'query q() { match { $a: Human { slug: "ada" } $a met $b } return { $b.slug } order { $b.slug } }'
    )
    assert met.rows == [{"b.slug": "bob"}, {"b.slug": "eve"}]
    knew = graph.query("query q() { match { $a: Person $a knows $b } return { count($b) as n } }", at=old)
    assert knew.rows == [{"n": 2}]
    graph.mutate('query q() { delete Human where slug = "bob" }')
    assert len(exported(graph)["Met"]) == 1


def test_types_swap_their_names_with_their_rows(tmp_path: Path) -> None:
    graph = omnigraph.init(tmp_path / "graph", "node A { x: I32 @key } node B { y: I32 @key }")
    graph.load([{"type": "A", "data": {"x": 1}}, {"type": "B", "data": {"y": 2}}])
    swap = 'node B @rename_from("A") { x: I32 @key } node A @rename_from("B") { y: I32 @key z: I32 @default(3) }'

    graph.schema.apply(swap)

    assert exported(graph) == {"A": [{"id": "2", "y": 2, "z": 3}], "B": [{"id": "1", "x": 1}]}
    assert graph.schema.apply(swap).commit is None


def test_a_renamed_type_without_rows_takes_its_first_row_under_the_new_name(tmp_path: Path) -> None:
    graph = omnigraph.init(tmp_path / "graph", "node A { x: I32 @key }")
    graph.schema.apply('node B @rename_from("A") { x: I32 @key }')
    graph.load([{"type": "B", "data": {"x": 1}}])

    assert exported(graph) == {"B": [{"id": "1", "x": 1}]}


def test_a_renamed_property_keeps_its_values_and_searches(graph: Graph) -> None:
    old = graph.snapshot().commit_id
    graph.schema.apply(
        changed(
            ("bio: String? @index", 'about: String? @index @rename_from("bio")'),
            ("name: String?", 'title: String? @rename_from("name")'),
            ("face: Vector(2)?", 'look: Vector(2)? @rename_from("face")'),
        )
    )

    assert column(graph, "title") == ["Ada", "Bob", None]
    assert column(graph, "name", at=old) == ["Ada", "Bob", None]
    find = 'query q() { match { $p: Person search($p.about, "first") } return { $p.slug } }'
    near = "query q() { match { $p: Person } return { $p.slug } order { nearest($p.look, [0.0, 1.0]) } limit 1 }"
    assert graph.query(find).rows == [{"p.slug": "ada"}]
    assert graph.query(near).rows == [{"p.slug": "bob"}]
    assert graph.query(find.replace("about", "bio"), at=old).rows == [{"p.slug": "ada"}]
    graph.schema.apply(
        changed(("name: String?", "title: String?"), ("bio", "about"), ("face", "look")).replace(
            "title: String?", "title: String?\n    name: I32?"
        )
    )
    assert column(graph, "name") == [None, None, None]


def test_properties_swap_their_names_with_their_values(graph: Graph) -> None:
    swap = changed(
        ("name: String?", 'name: String? @rename_from("bio")'),
        ("bio: String? @index", 'bio: String? @index @rename_from("name")'),
    )
    graph.schema.apply(swap)

    assert column(graph, "bio") == ["Ada", "Bob", None]
    assert column(graph, "name") == ["first of all", None, None]
    assert graph.schema.apply(swap).commit is None


def test_what_is_new_is_searched_by_text_and_vector(graph: Graph) -> None:
    graph.schema.apply(
        changed(
            (
                "name: String?",
                'name: String? note: String @index @default("hello world") '
                "v: Vector(2)? @index w: Vector(2) @index @default([1.0, 0.0])",
            )
        )
    )

    find = 'query q() { match { $p: Person search($p.note, "world") } return { count($p) as n } }'
    assert graph.query(find).rows == [{"n": 3}]
    near = "query q() { match { $p: Person } return { $p.slug } order { nearest($p.w, [1.0, 0.0]) } limit 2 }"
    assert graph.query(near).rows == [{"p.slug": "ada"}, {"p.slug": "bob"}]
    graph.mutate('query q() { update Person set { v: [0.0, 1.0] } where slug = "eve" }')
    near = "query q() { match { $p: Person } return { $p.slug } order { nearest($p.v, [0.0, 1.0]) } limit 1 }"
    assert graph.query(near).rows == [{"p.slug": "eve"}]


def test_a_held_base_is_refused_after_the_schema_changed(graph: Graph) -> None:
    txn = graph.begin()
    graph.schema.apply(changed(("age: I32?", "")))

    with pytest.raises(ExpectedVersionMismatch) as caught:
        graph.write([], txn=txn)
    assert caught.value.table_key == "schema"


def test_statements_see_each_other_s_rows_over_dropped_and_added_columns(graph: Graph) -> None:
    text = changed(("age: I32?", 'age: I64? note: String @default("n")'), ("height: F32?", ""))
    graph.schema.apply(text)
    graph.mutate(
        'query q() { insert Person { slug: "fay", age: 5000000000 } insert Knows { from: "fay", to: "ada" } '
        'update Person set { note: "old" } where age > 30 update Person set { name: "F" } where note = "old" }'
    )

    assert column(graph, "note") == ["old", "n", "n", "old"]
    assert column(graph, "name") == ["F", "Bob", None, "F"]
    graph.mutate('query q() { delete Person where note = "old" }')
    assert column(graph, "slug") == ["bob", "eve"]
    assert exported(graph)["Person"][0]["age"] == 7


def test_a_graph_that_was_made_from_a_catalog_goes_on_from_its_printed_schema(tmp_path: Path) -> None:
    graph = omnigraph.init(tmp_path / "graph", people())
    printed = graph.schema.show()

    assert graph.schema.plan(printed).steps == ()
    assert graph.schema.apply(printed + "node Extra { x: I32? }").commit is not None


@pytest.mark.parametrize("types", [5, 300])
def test_a_change_costs_the_same_however_many_types_there_are(tmp_path: Path, types: int) -> None:
    text = "\n".join(f"node T{i} {{ k: String @key }}" for i in range(types))
    graph = omnigraph.init(tmp_path / "graph", text)
    graph.load([{"type": "T0", "data": {"k": "x"}}, {"type": "T1", "data": {"k": "x"}}])

    metadata = graph.schema.apply(text.replace("node T1 {", 'node T1 @description("one") {')).cost
    nullable = graph.schema.apply(text.replace("T0 { k: String @key", "T0 { k: String @key y: I32?")).cost

    assert metadata.requests <= 4
    assert nullable.requests <= 8


def test_a_reader_at_work_is_not_disturbed(graph: Graph) -> None:
    pinned = graph.snapshot()
    graph.schema.apply(
        changed(("age: I32?", ""), ("node City { n: String @key }", ""), ("edge Lives: Person -> City", ""))
    )

    assert sorted(pinned.to_arrow("node:Person", ["age"]).column("age").to_pylist(), key=str) == [36, 7, None]
    assert pinned.to_arrow("node:City").num_rows == 1
