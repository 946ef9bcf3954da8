"""Merging branches whose schemas differ: the one that contains the other is the result, for the rows of both."""

from __future__ import annotations

from pathlib import Path

import pytest

from omnigraph.errors import SchemasDiverged
from omnigraph.merge.plan import MergeOutcome
from support.merge import Merging, knows, make_merging

BEFORE = """
node Person { slug: String @key  name: String?  age: I32? }
node Company { name: String @key }
edge Knows: Person -> Person
"""
WIDER = BEFORE.replace("age: I32?", "age: I32?  city: String?")


@pytest.fixture
def graph(tmp_path: Path) -> Merging:
    merging = make_merging(tmp_path / "graph", BEFORE)
    merging.change(Person={"ada": {"age": 1}, "bob": {"age": 2}}, Knows={"e": knows("ada", "bob")})
    merging.fork("b")
    return merging


def both_ways(graph: Merging, wide: str) -> str:
    """The branch that has the narrower schema."""
    return "b" if wide == "main" else "main"


either_side = pytest.mark.parametrize("wide", ["main", "b"])


def test_a_fast_forward_takes_the_schema_along(graph: Merging) -> None:
    graph.graph.schema.apply(WIDER, branch="b")
    graph.change("b", Person={"ada": {"city": "Rome"}})

    assert graph.merge().outcome is MergeOutcome.FAST_FORWARD
    assert [row["city"] for row in graph.rows("Person")] == ["Rome", None]
    assert "city" in graph.graph.schema.show()


@either_side
def test_rows_of_the_side_with_fewer_properties_have_none_of_the_others(graph: Merging, wide: str) -> None:
    narrow = both_ways(graph, wide)
    graph.graph.schema.apply(WIDER, branch=wide)
    graph.change(narrow, Person={"eve": {"age": 3}})

    assert graph.merge().outcome is MergeOutcome.MERGED

    assert [(row["id"], row["age"], row["city"]) for row in graph.rows("Person")] == [
        ("ada", 1, None),
        ("bob", 2, None),
        ("eve", 3, None),
    ]
    graph.change("main", Person={"eve": {"city": "Rome"}})


@either_side
def test_rows_that_both_changed_are_merged_in_the_wider_columns(graph: Merging, wide: str) -> None:
    narrow = both_ways(graph, wide)
    graph.graph.schema.apply(WIDER, branch=wide)
    graph.change(wide, Person={"ada": {"city": "Rome"}, "bob": None}, Knows={"e": None})
    graph.change(narrow, Person={"ada": {"age": 10}, "eve": {"age": 3}})

    assert graph.merge().outcome is MergeOutcome.MERGED

    assert [(row["id"], row["age"], row["city"]) for row in graph.rows("Person")] == [
        ("ada", 10, "Rome"),
        ("eve", 3, None),
    ]


@either_side
def test_rows_that_never_had_a_default_get_it(graph: Merging, wide: str) -> None:
    narrow = both_ways(graph, wide)
    graph.graph.schema.apply(BEFORE.replace("age: I32?", 'age: I32?  role: String @default("ops")'), branch=wide)
    graph.change(wide, Person={"ada": {"role": "lead"}})
    graph.change(narrow, Person={"eve": {"age": 3}, "bob": {"age": 20}})

    assert graph.merge().outcome is MergeOutcome.MERGED

    assert [(row["id"], row["age"], row["role"]) for row in graph.rows("Person")] == [
        ("ada", 1, "lead"),
        ("bob", 20, "ops"),
        ("eve", 3, "ops"),
    ]


@either_side
def test_values_of_a_widened_type_are_brought_along(graph: Merging, wide: str) -> None:
    narrow = both_ways(graph, wide)
    graph.graph.schema.apply(BEFORE.replace("age: I32?", "age: I64?"), branch=wide)
    graph.change(narrow, Person={"eve": {"age": 3}, "bob": {"age": 20}})

    assert graph.merge().outcome is MergeOutcome.MERGED

    ages = graph.graph.query("query q() { match { $p: Person } return { $p.slug, $p.age } order { $p.slug } }").rows
    assert [row["p.age"] for row in ages] == [1, 20, 3]


@either_side
def test_a_constraint_that_one_side_added_holds_for_the_rows_of_the_other(graph: Merging, wide: str) -> None:
    narrow = both_ways(graph, wide)
    graph.graph.schema.apply(BEFORE.replace("age: I32? }", "age: I32?  @range(age, 0..100) }"), branch=wide)
    graph.change(narrow, Person={"eve": {"age": 300}})

    assert graph.conflicts() == [("ValueConstraintViolation", "Person", "eve")]
    graph.change(narrow, Person={"eve": {"age": 3}})
    assert graph.merge().outcome is MergeOutcome.MERGED


@either_side
def test_a_unique_value_that_the_other_side_gave_twice_is_refused(graph: Merging, wide: str) -> None:
    narrow = both_ways(graph, wide)
    graph.graph.schema.apply(BEFORE.replace("name: String?", "name: String? @unique"), branch=wide)
    graph.change(narrow, Person={"ada": {"name": "A"}, "bob": {"name": "A"}})

    assert {kind for kind, _, _ in graph.conflicts()} == {"UniqueViolation"}


@either_side
def test_a_type_that_one_side_added_comes_with_its_rows(graph: Merging, wide: str) -> None:
    narrow = both_ways(graph, wide)
    graph.graph.schema.apply(BEFORE + "node Place { name: String @key }", branch=wide)
    graph.change(wide, Place={"rome": {}})
    graph.change(narrow, Person={"eve": {}})

    assert graph.merge().outcome is MergeOutcome.MERGED

    assert (graph.ids("Place"), graph.ids("Person")) == (["rome"], ["ada", "bob", "eve"])


@either_side
def test_a_type_that_one_side_renamed_is_merged_with_what_the_other_wrote_under_the_old_name(
    graph: Merging, wide: str
) -> None:
    narrow = both_ways(graph, wide)
    renamed = """
    node Human @rename_from("Person") { slug: String @key  name: String?  age: I32? }
    node Company { name: String @key }
    edge Knows: Human -> Human
    """
    graph.graph.schema.apply(renamed, branch=wide)
    graph.change(wide, Human={"ada": {"name": "Ada"}})
    graph.change(narrow, Person={"ada": {"age": 5}, "eve": {}})

    assert graph.merge().outcome is MergeOutcome.MERGED

    assert [(row["id"], row["name"], row["age"]) for row in graph.rows("Human")] == [
        ("ada", "Ada", 5),
        ("bob", None, 2),
        ("eve", None, None),
    ]
    assert "node:Person" not in graph.head().tables
    touched = graph.head().commits[0].touched
    assert sum(touch.inserted + touch.deleted for touch in touched.values()) <= 1


@either_side
def test_a_type_that_one_side_dropped_and_the_other_wrote_to_is_a_conflict(graph: Merging, wide: str) -> None:
    narrow = both_ways(graph, wide)
    graph.graph.schema.apply(BEFORE.replace("edge Knows: Person -> Person", ""), branch=wide)
    graph.change(narrow, Knows={"f": knows("bob", "ada")})

    assert graph.conflicts() == [("DeleteVsUpdate", "Knows", "")]


@either_side
def test_a_type_that_one_side_dropped_is_dropped(graph: Merging, wide: str) -> None:
    narrow = both_ways(graph, wide)
    graph.graph.schema.apply(BEFORE.replace("edge Knows: Person -> Person", ""), branch=wide)
    graph.change(narrow, Person={"eve": {}})

    assert graph.merge().outcome is MergeOutcome.MERGED

    assert "Knows" not in graph.graph.schema.show()
    assert "edge:Knows" not in graph.head().tables
    assert graph.ids("Person") == ["ada", "bob", "eve"]


def test_schemas_of_which_neither_contains_the_other_are_refused_and_nothing_changes(graph: Merging) -> None:
    graph.graph.schema.apply(WIDER, branch="b")
    graph.graph.schema.apply(BEFORE.replace("age: I32?", "age: I32?  town: String?"))
    head = graph.head()

    with pytest.raises(SchemasDiverged):
        graph.merge()

    assert graph.head() == head


@either_side
def test_merging_again_after_schemas_were_merged_has_nothing_left_to_do(graph: Merging, wide: str) -> None:
    narrow = both_ways(graph, wide)
    graph.graph.schema.apply(WIDER, branch=wide)
    graph.change(narrow, Person={"eve": {}})
    graph.merge()

    assert graph.merge().outcome is MergeOutcome.UP_TO_DATE
    assert graph.merge("main", "b").outcome in (MergeOutcome.FAST_FORWARD, MergeOutcome.UP_TO_DATE)
    assert graph.rows("Person", "b") == graph.rows("Person")


def test_a_dry_run_does_not_count_rows_that_differ_only_in_a_dropped_property(graph: Merging) -> None:
    graph.change("b", Person={"ada": {"name": "Ada"}})
    graph.graph.schema.apply(BEFORE.replace("name: String?", ""), branch="b")
    graph.change("b", Person={"bob": {"age": 9}})

    rehearsed = graph.merge(dry_run=True)

    assert rehearsed.outcome is MergeOutcome.FAST_FORWARD
    assert {key: touch.updated for key, touch in rehearsed.types.items()} == {"node:Person": 1}


@either_side
@pytest.mark.parametrize("rows", [{}, {"new": {"city": "Rome"}}])
def test_a_type_that_one_side_dropped_and_declared_again_has_none_of_the_old_rows(
    graph: Merging, wide: str, rows: dict[str, dict[str, str]]
) -> None:
    graph.change("main", Company={"acme": {}})
    graph.merge("main", "b")
    redeclared = BEFORE.replace(
        "node Company { name: String @key }", "node Company { name: String @key  city: String? }"
    )
    graph.graph.schema.apply(BEFORE.replace("node Company { name: String @key }", ""), branch=wide)
    graph.graph.schema.apply(redeclared, branch=wide)
    if rows:
        graph.change(wide, Company=rows)
    graph.change(both_ways(graph, wide), Person={"eve": {"age": 3}})

    rehearsed = graph.merge(dry_run=True)
    assert graph.merge().outcome is MergeOutcome.MERGED

    assert [(row["id"], row["city"]) for row in graph.rows("Company")] == [(name, "Rome") for name in rows]
    if wide == "b":
        touch = rehearsed.types["node:Company"]
        assert (touch.inserted, touch.deleted) == (len(rows), 1)
    graph.change("main", Company={"later": {"city": "Oslo"}})
    assert graph.ids("Company") == ["later", *rows]


def test_a_dry_run_counts_a_type_that_took_the_name_of_a_renamed_one_by_itself(graph: Merging) -> None:
    renamed = BEFORE.replace("node Company", 'node Firm @rename_from("Company")')
    graph.change("main", Company={"acme": {}, "apex": {}})
    graph.merge("main", "b")
    graph.graph.schema.apply(renamed, branch="b")
    graph.graph.schema.apply(renamed + "node Company { name: String @key }", branch="b")
    graph.change("b", Company={"new": {}})
    graph.change("main", Person={"eve": {"age": 3}})

    touch = graph.merge(dry_run=True).types["node:Company"]

    assert (touch.inserted, touch.updated, touch.deleted) == (1, 0, 0)


@either_side
def test_rows_of_a_dropped_type_that_the_other_side_only_removed_or_left_as_they_were_are_no_conflict(
    graph: Merging, wide: str
) -> None:
    narrow = both_ways(graph, wide)
    graph.change("main", Company={"acme": {}})
    graph.merge("main", "b")
    without = BEFORE.replace("node Company { name: String @key }", "").replace("edge Knows: Person -> Person", "")
    graph.graph.schema.apply(without, branch=wide)
    graph.change(narrow, Company={"passing": {}})
    graph.change(narrow, Company={"passing": None}, Knows={"e": None})

    assert graph.merge().outcome is MergeOutcome.MERGED
    assert [entry.type_name for entry in graph.graph.snapshot().types] == ["Person"]


def test_a_property_that_replaced_another_one_has_none_of_its_values_though_both_have_one_id(graph: Merging) -> None:
    """Branches number new properties independently, and a merge numbers some anew: here both city and rank are p6."""

    def schema(properties: str) -> str:
        return BEFORE.replace("age: I32?", f"age: I32?  {properties}")

    graph.graph.schema.apply(schema("email: String?"))
    graph.graph.schema.apply(schema("city: I32?  email: String?"), branch="b")
    graph.merge()
    graph.graph.schema.apply(schema("email: String?  rank: I32?"), branch="b", allow_data_loss=True)
    ids = {
        prop.name: prop.id
        for branch in ("main", "b")
        for prop in graph.graph.repository.open_txn(branch).catalog.by_name["Person"].properties
    }
    assert ids["city"] == ids["rank"]
    graph.change("main", Person={"ada": {"city": 5}})

    assert graph.merge().outcome is MergeOutcome.MERGED

    assert [(row["id"], row["rank"]) for row in graph.rows("Person")] == [("ada", None), ("bob", None)]
