"""Every constraint of the schema, fulfilled and violated, by mutations and loads: both use one validator."""

from __future__ import annotations

import datetime as dt
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from omnigraph.errors import ConstraintViolation, Violation
from omnigraph.manifest.commit.plan import Append, Delete
from omnigraph.write.delta import Delta, TableDelta
from omnigraph.write.validate.checks import run_checks
from omnigraph.write.validate.validate import checks_for
from omnigraph.write.validate.violations import combine_violations
from write.world import World, edge, make_world, person

KEPT_AND_BROKEN = {
    "Person.name required": (person("zed"), {"type": "Person", "data": {"slug": "zed"}}),
    "Person.age type I32": (person("zed", age=7), person("zed", age="seven")),
    "Person.role enum": (person("zed", role="lead"), person("zed", role="boss")),
    "Person.age range 0..150": (person("zed", age=150), person("zed", age=151)),
    "Person.slug check [a-z0-9-]+": (person("z-1"), person("z 1")),
    "Person key (slug)": (person("zed", id="zed"), person("zed", id="ada")),
    "Person unique (name, role)": (person("zed", name="Ada", role="lead"), person("zed", name="Ada")),
    "Knows.src in Person": (edge("Knows", "bob", "ada"), edge("Knows", "nobody", "ada")),
    "Knows.dst in Person": (edge("Knows", "bob", "ada"), edge("Knows", "ada", "nobody")),
    "Knows unique (src, dst)": (edge("Knows", "bob", "ada"), edge("Knows", "ada", "bob")),
    "Needs card 1..2": (edge("Needs", "acme", "bob"), [edge("Needs", "acme", "bob"), edge("Needs", "acme", "eve")]),
}


@pytest.mark.parametrize("constraint", KEPT_AND_BROKEN)
def test_a_load_that_keeps_a_constraint_is_committed_and_one_that_breaks_it_leaves_nothing(
    people: World, constraint: str
) -> None:
    kept, broken = KEPT_AND_BROKEN[constraint]

    people.refused(lambda: people.load(broken if isinstance(broken, list) else [broken]), constraint)

    assert people.load([kept]).commit is not None


MUTATIONS = {
    "Person.name required": 'insert Person { slug: "zed" }',
    "Person.slug required": 'insert Person { name: "Zed" }',
    "Person.role enum": 'update Person set { role: "boss" } where slug = "ada"',
    "Person.age range 0..150": "update Person set { age: -1 } where age = 36",
    "Person.slug check [a-z0-9-]+": 'insert Person { slug: "Z", name: "Zed" }',
    "Person unique (name, role)": 'update Person set { name: "Ada" } where slug = "bob"',
    "Note unique (rank)": 'insert Note { text: "a", rank: 1 } insert Note { text: "b", rank: 1 }',
    "Knows.src in Person": 'insert Knows { from: "nobody", to: "ada" }',
    "Knows.dst in Person": 'insert Knows { from: "ada", to: "nobody" }',
    "Knows unique (src, dst)": 'insert Knows { from: "ada", to: "bob" }',
    "WorksAt card 0..1": 'insert WorksAt { from: "ada", to: "acme" } insert WorksAt { from: "ada", to: "acme" }',
    "Needs card 1..2": 'delete Needs where from = "acme"',
}


@pytest.mark.parametrize("constraint", MUTATIONS)
def test_a_mutation_that_breaks_a_constraint_leaves_nothing(people: World, constraint: str) -> None:
    people.refused(lambda: people.mutate(MUTATIONS[constraint]), constraint)


def test_every_kind_of_constraint_has_a_case() -> None:
    import typing

    from omnigraph.schema.constraints import Constraint, constraints_of
    from omnigraph.schema.lang.compile import compile_schema
    from write.world import PEOPLE

    kinds = {type(one) for own in constraints_of(compile_schema(PEOPLE).catalog).by_table.values() for one in own}
    named = {
        type(one)
        for own in constraints_of(compile_schema(PEOPLE).catalog).by_table.values()
        for one in own
        if one.name in KEPT_AND_BROKEN
    }
    assert kinds == named == set(typing.get_args(Constraint))


def test_a_minimum_counts_what_a_cascade_takes_away(people: World) -> None:
    error = people.refused(lambda: people.mutate('delete Person where slug = "ada"'), "Needs card 1..2")

    assert error.entity_ids == ("acme",)
    assert error.type_name == "Company"


def test_a_minimum_does_not_apply_to_a_source_that_is_removed_too(people: World) -> None:
    assert people.mutate('delete Company where name = "acme"') is not None
    assert people.rows("Needs") == []


def test_a_minimum_does_not_apply_to_a_node_without_any_edge(people: World) -> None:
    assert people.mutate('insert Company { name: "zeta" }') is not None


def test_nulls_never_collide_in_unique(people: World) -> None:
    people.mutate('insert Note { text: "a" } insert Note { text: "b" }')

    assert len(people.rows("Note")) == 2


def test_a_unique_value_may_move_from_one_row_to_another_in_one_write(people: World) -> None:
    people.load([person("ada", name="Bob"), person("bob", name="Ada")], mode="merge")

    assert [row["name"] for row in people.rows("Person")] == ["Bob", "Ada", "Eve"]


def test_an_update_that_leaves_unique_values_alone_is_not_stopped_by_them(people: World) -> None:
    assert people.mutate('update Person set { age: 1 } where slug = "ada"') is not None


UNIQUES = {
    "I64": ("-9223372036854775808", -(2**63)),
    "U64": ("18446744073709551615", 2**64 - 1),
    "F32": ("0.1", 0.1),
    "F64": ("-0.0", 0.0),
    "Bool": ("true", True),
    "Date": ('date("2026-01-31")', dt.date(2026, 1, 31)),
    "DateTime": ('datetime("2026-01-31T12:00:00.250Z")', "2026-01-31T13:00:00.250+01:00"),
    "String": ('"it\'s \\n \\" \\\\ ü"', "it's \n \" \\ ü"),
    "enum(a, b)": ('"a"', "a"),
}


@pytest.mark.parametrize("kind", UNIQUES)
def test_unique_values_of_every_type_are_found_in_the_graph(tmp_path: Path, kind: str) -> None:
    world = make_world(tmp_path / "graph", f"node T {{ v: {kind} @unique }}")
    written, value = UNIQUES[kind]
    world.mutate(f"insert T {{ v: {written} }}")

    world.refused(lambda: world.load([{"type": "T", "data": {"v": value}}]), "T unique (v)")


def test_a_range_of_dates_includes_both_ends(tmp_path: Path) -> None:
    schema = (
        'node T { d: Date?  t: DateTime?  f: F32?  @range(d, date("2026-01-01")..date("2026-12-31")) @range(f, ..0.1) }'
    )
    world = make_world(tmp_path / "graph", schema)
    world.load([{"type": "T", "data": {"d": day, "f": 0.1}} for day in ("2026-01-01", "2026-12-31", None)])

    world.refused(lambda: world.load([{"type": "T", "data": {"d": "2027-01-01"}}]), "T.d range 2026-01-01..2026-12-31")
    world.refused(lambda: world.load([{"type": "T", "data": {"f": 0.1001}}]), "T.f range ..0.1")


def test_tables_may_bring_what_json_can_not(tmp_path: Path) -> None:
    world = make_world(tmp_path / "graph", "node T { f: F64?  v: Vector(2)?  l: [I32]? }")
    nan = float("nan")

    world.refused(lambda: world.load({"T": pa.table({"f": [1.0, nan]})}), "T.f type F64")
    world.refused(lambda: world.load({"T": pa.table({"v": [[1.0, nan]]})}), "T.v type Vector(2)")
    world.refused(lambda: world.load({"T": pa.table({"l": [[1, None]]})}), "T.l type [I32]")


def delta_of(world: World, *tables: TableDelta) -> Any:
    """Run the validator on a delta as a merge would make it."""
    txn = world.repository.open_txn()
    run_checks(checks_for(txn, Delta.of(tables)), txn, world.repository.tables)


def empty(world: World, key: str) -> pa.Table:
    from omnigraph.schema.arrow import arrow_schema

    return arrow_schema(world.repository.open_txn().catalog.type_of(key)).empty_table()


def test_removing_a_node_that_edges_still_reference_is_refused_unless_the_edges_go_too(people: World) -> None:
    gone = TableDelta("node:Person", empty(people, "node:Person"), frozenset({"bob"}))
    knows = frozenset(people.ids("Knows"))
    edges = TableDelta("edge:Knows", empty(people, "edge:Knows"), knows)

    with pytest.raises(ConstraintViolation, match=r"bob.*Knows edges still have it as to") as raised:
        delta_of(people, gone)
    delta_of(people, gone, edges)

    assert raised.value.constraint == "Knows.dst in Person"
    assert raised.value.entity_ids == ("bob",)


def test_an_edge_to_a_node_that_the_same_write_removes_is_refused(people: World) -> None:
    gone = TableDelta("node:Person", empty(people, "node:Person"), frozenset({"eve"}))
    row = pa.Table.from_pylist([{"id": "e", "src": "ada", "dst": "eve"}], schema=empty(people, "edge:Knows").schema)

    with pytest.raises(ConstraintViolation, match="Person 'eve' does not exist"):
        delta_of(people, gone, TableDelta("edge:Knows", row))


def test_an_edge_that_is_changed_while_its_node_goes_is_refused(people: World) -> None:
    stored = people.repository.tables
    txn = people.repository.open_txn()
    ref = txn.table("edge:Knows")
    assert ref is not None

    before = stored.scan(txn.content("edge:Knows"))
    gone = TableDelta("node:Person", empty(people, "node:Person"), frozenset({"bob"}))

    with pytest.raises(ConstraintViolation, match="Person 'bob' does not exist"):
        delta_of(people, gone, TableDelta("edge:Knows", before, before=before))


def test_checks_read_exactly_the_tables_that_can_break_them(people: World) -> None:
    txn = people.repository.open_txn()
    row = pa.Table.from_pylist([{"id": "e", "src": "ada", "dst": "acme"}], schema=empty(people, "edge:WorksAt").schema)
    gone = TableDelta("node:Person", empty(people, "node:Person"), frozenset({"bob"}))

    def reads(*tables: TableDelta) -> list[set[str]]:
        return sorted((set(check.reads) for check in checks_for(txn, Delta.of(tables))), key=sorted)

    assert reads(TableDelta("edge:WorksAt", row)) == [{"edge:WorksAt"}, {"node:Company"}, {"node:Person"}]
    referring = [{"edge:Knows"}, {"edge:Knows"}, {"edge:Likes"}, {"edge:Likes"}, {"edge:Needs"}, {"edge:WorksAt"}]
    assert reads(gone) == referring


def test_violations_are_reported_together_with_counts_and_the_first_ids(people: World) -> None:
    many = [person(f"p{number}", age=200 + number, role="boss") for number in range(30)]

    error = people.refused(lambda: people.load(many), "Person.age range 0..150")

    details = error.to_json()["details"]
    assert details["constraint"] == "Person.role enum"
    assert details["property"] == "role"
    assert details["total"] == 60
    assert [(one["constraint"], one["count"], len(one["entity_ids"])) for one in details["violations"]] == [
        ("Person.role enum", 30, 20),
        ("Person.age range 0..150", 30, 20),
    ]
    assert str(error).startswith("entity 1: Person 'p0', 'p1', 'p2' and 27 more has role \"boss\"")
    assert "(and 1 more broken: Person.age range 0..150: 30)" in str(error)
    assert error.exit_code == 5


def test_the_error_survives_pickling() -> None:
    error = combine_violations([Violation("T id", "T", None, ("a",), "is odd", "even it", "node:T")])

    again = pickle.loads(pickle.dumps(error))

    assert (str(again), again.details) == (str(error), error.details)  # type: ignore[union-attr]


def test_the_raw_write_api_is_checked_by_the_same_run(people: World) -> None:
    from omnigraph.write.commit import Changes, PlannedWrite
    from omnigraph.write.validate.checks import IdsAbsent, Unreferenced

    checks = (
        IdsAbsent("node:Person", frozenset({"ada"})),
        Unreferenced("node:Person", frozenset({"bob"}), "edge:Knows", "dst"),
    )
    actions = (Append("node:Note", empty(people, "node:Note")), Delete("node:Person", ("bob",)))

    with pytest.raises(ConstraintViolation) as raised:
        PlannedWrite(people.repository, Changes(actions, checks)).commit()

    assert [violation.constraint for violation in raised.value.violations] == ["key", "endpoint"]
