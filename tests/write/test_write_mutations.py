"""The rules of language.md on mutations, each as a test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omnigraph.errors import BadRequest, ConflictError, ExpectedVersionMismatch, PreconditionFailed
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.query.ir import MutationQuery
from omnigraph.write.commit import Changes
from omnigraph.write.mutate import mutate as mutations
from write.world import NOW, World, make_world, person, touched


def test_a_keyed_insert_of_a_new_row_takes_its_id_from_the_key_and_defaults_from_the_schema(world: World) -> None:
    commit = world.mutate('insert Person { slug: "ada", name: "Ada" }')

    assert touched(commit) == {"Person": {"inserted": 1}}
    assert world.rows("Person") == [
        {"id": "ada", "slug": "ada", "name": "Ada", "age": None, "role": "ops", "tags": None, "bio": None, "face": None}
    ]


def test_a_keyed_insert_of_a_stored_row_keeps_what_it_does_not_name_and_counts_as_an_update(people: World) -> None:
    commit = people.mutate('insert Person { slug: "ada", tags: ["x"] }')

    assert touched(commit) == {"Person": {"updated": 1}}
    ada = people.row("Person", "ada")
    assert (ada["name"], ada["age"], ada["tags"], ada["face"]) == ("Ada", 36, ["x"], [1.0, 2.0])


def test_inserts_of_new_and_stored_rows_in_one_query_are_counted_apart(people: World) -> None:
    commit = people.mutate('insert Person { slug: "ada", age: 37 } insert Person { slug: "zed", name: "Zed" }')

    assert touched(commit) == {"Person": {"inserted": 1, "updated": 1}}


def test_a_default_is_not_for_rows_that_are_there(people: World) -> None:
    people.mutate('insert Person { slug: "eve", age: 1 }')

    assert people.row("Person", "eve")["role"] == "lead"


def test_an_optional_parameter_that_is_absent_writes_null(people: World) -> None:
    people.mutate('insert Person { slug: "ada", age: $age }', params={"age": ("I32?", None)})

    assert people.row("Person", "ada")["age"] is None


def test_a_key_of_several_properties_is_a_json_array_in_its_order(tmp_path: Path) -> None:
    world = make_world(tmp_path / "g", "node Cell { row: I32  name: String  @key(name, row) } edge Next: Cell -> Cell")
    world.mutate('insert Cell { row: 10, name: "north" } insert Cell { row: 2, name: "a\\"b" }')

    assert world.ids("Cell") == ['["a\\"b","2"]', '["north","10"]']

    world.mutate('insert Next { from: ["north", 10], to: ["a\\"b", 2] }')
    assert world.pairs("Next") == [('["north","10"]', '["a\\"b","2"]')]


def test_an_unkeyed_insert_gets_a_fresh_id_each_time(world: World) -> None:
    world.mutate('insert Note { text: "a" }')
    world.mutate('insert Note { text: "a" }')

    first, second = world.ids("Note")
    assert first != second
    assert len(first) == len(second) == 26


def test_fresh_ids_are_minted_once_however_often_a_mutation_is_planned(world: World) -> None:
    from write.world import prepared

    query = prepared('query q() { insert Note { text: "a" } }', {})
    mutation = mutations.Mutation(world.repository, query)
    txn = world.repository.open_txn()

    first, second = mutation.changes(txn), mutation.changes(txn)

    assert [action.rows["id"].to_pylist() for action in first.actions] == [  # type: ignore[union-attr]
        action.rows["id"].to_pylist()  # type: ignore[union-attr]
        for action in second.actions
    ]
    assert first.actions[0].fresh_ids  # type: ignore[union-attr]
    assert first.read_rows == frozenset()


def test_an_edge_insert_is_always_a_new_edge(people: World) -> None:
    for _ in range(2):
        people.mutate('insert Likes { from: "ada", to: "bob", much: 1.5 }')

    assert people.pairs("Likes") == [("ada", "bob")] * 2


def test_an_edge_may_come_with_its_nodes_in_one_query_in_any_order(world: World) -> None:
    commit = world.mutate(
        """
        insert Knows { from: "ada", to: "bob" }
        insert Person { slug: "ada", name: "Ada" }
        insert Person { slug: "bob", name: "Bob" }
        """
    )

    assert touched(commit) == {"Person": {"inserted": 2}, "Knows": {"inserted": 1}}


def test_update_sets_values_of_all_rows_that_match(people: World) -> None:
    commit = people.mutate('update Person set { age: 5, tags: ["t"] } where role = "ops"')

    assert touched(commit) == {"Person": {"updated": 2}}
    assert [(row["age"], row["tags"]) for row in people.rows("Person")] == [(5, ["t"]), (5, ["t"]), (None, None)]


WHERES: dict[str, list[str]] = {
    'slug = "ada"': ["ada"],
    'id = "ada"': ["ada"],
    'slug != "ada"': ["bob", "eve"],
    "age = 36": ["ada"],
    "age >= 36": ["ada"],
    "age != 1": ["ada"],
    'name starts_with "E"': ["eve"],
    'name contains "o"': ["bob"],
    'role = "lead"': ["eve"],
    'tags contains "x"': [],
    'bio = "first"': ["ada"],
}


@pytest.mark.parametrize("where", WHERES)
def test_update_selects_like_a_query(people: World, where: str) -> None:
    people.mutate(f"update Person set {{ age: 77 }} where {where}")

    assert [row["id"] for row in people.rows("Person") if row["age"] == 77] == WHERES[where]


def test_edges_are_updated_and_deleted_by_their_ends(people: World) -> None:
    people.mutate('update Knows set { since: date("2026-01-01") } where from = "ada"')
    assert str(people.rows("Knows")[0]["since"]) == "2026-01-01"

    assert touched(people.mutate('delete Knows where to = "bob"')) == {"Knows": {"deleted": 1}}


def test_later_statements_see_what_earlier_ones_wrote(people: World) -> None:
    commit = people.mutate(
        """
        insert Person { slug: "zed", name: "Zed", age: 1 }
        update Person set { age: 2 } where age = 1
        insert Person { slug: "zed", bio: "new" }
        update Person set { tags: ["seen"] } where bio = "new"
        insert Person { slug: "ada", age: 2 }
        update Person set { name: "Two" } where slug = "ada"
        update Person set { role: "lead" } where age = 2
        """
    )

    assert touched(commit) == {"Person": {"inserted": 1, "updated": 1}}
    zed, ada = people.row("Person", "zed"), people.row("Person", "ada")
    assert (zed["age"], zed["bio"], zed["tags"], zed["role"]) == (2, "new", ["seen"], "lead")
    assert (ada["age"], ada["name"], ada["role"]) == (2, "Two", "lead")


def test_a_statement_that_fails_leaves_nothing_of_those_before_it(people: World) -> None:
    people.refused(
        lambda: people.mutate(
            """
            insert Person { slug: "zed", name: "Zed" }
            update Person set { age: 5 } where slug = "ada"
            insert Knows { from: "zed", to: "nobody" }
            """
        ),
        "Knows.dst in Person",
    )


def test_deleting_a_node_deletes_its_edges_in_the_same_commit(people: World) -> None:
    people.mutate('insert Knows { from: "bob", to: "bob" } insert Likes { from: "eve", to: "bob" }')
    people.mutate('insert Likes { from: "ada", to: "eve" }')

    commit = people.mutate('delete Person where slug = "bob"')

    assert touched(commit) == {"Person": {"deleted": 1}, "Knows": {"deleted": 2}, "Likes": {"deleted": 1}}
    assert people.pairs("Knows") == []
    assert people.pairs("Likes") == [("ada", "eve")]


def test_later_deletes_see_earlier_ones(people: World) -> None:
    commit = people.mutate(
        'delete Knows where from = "ada" delete Person where slug = "bob" delete Knows where to = "bob"'
    )

    assert touched(commit) == {"Person": {"deleted": 1}, "Knows": {"deleted": 1}}


NO_CHANGE = {
    "an insert of what is there": 'insert Person { slug: "ada", age: 36, face: [1.0, 2.0] }',
    "an update of nothing": 'update Person set { age: 1 } where slug = "nobody"',
    "an update to the same": 'update Person set { age: 36, bio: "first" } where slug = "ada"',
    "there and back again": """
        update Person set { age: 1 } where slug = "ada"
        update Person set { age: 36 } where age = 1
    """,
    "a delete of nothing": 'delete Person where name = "Nobody"',
    "a delete from a type without rows": 'delete Note where text = "x"',
}


@pytest.mark.parametrize("body", NO_CHANGE.values(), ids=NO_CHANGE)
def test_a_mutation_that_changes_nothing_makes_no_commit(people: World, body: str) -> None:
    before = people.head

    assert people.mutate(body) is None
    assert people.head == before


def test_changing_a_source_text_without_its_vector_sets_the_vector_to_null(people: World) -> None:
    people.mutate('update Person set { bio: "first", age: 1 } where slug = "ada"')
    assert people.row("Person", "ada")["face"] == [1.0, 2.0], "the text is the same"

    people.mutate('update Person set { bio: "second" } where slug = "ada"')
    assert people.row("Person", "ada")["face"] is None

    people.mutate('update Person set { bio: "third", face: [3.0, 4.0] } where slug = "ada"')
    assert people.row("Person", "ada")["face"] == [3.0, 4.0]

    people.mutate('insert Person { slug: "ada", bio: "fourth" }')
    assert people.row("Person", "ada")["face"] is None


def test_a_mutation_can_be_conditional_on_the_head(people: World) -> None:
    old = people.head
    people.mutate('insert Note { text: "x" }', if_commit=old)

    with pytest.raises(PreconditionFailed):
        people.mutate('insert Note { text: "y" }', if_commit=old)


def test_the_same_txn_id_applies_a_mutation_once(people: World) -> None:
    first = people.mutate('insert Note { text: "x" }', txn_id="once")
    second = people.mutate('insert Note { text: "x" }', txn_id="once")

    assert first.id == second.id
    assert len(people.rows("Note")) == 1


def test_on_a_branch_a_mutation_leaves_main_alone(people: World) -> None:
    repository = people.repository
    repository.branches.create("agent", repository.branches.find("main").head)

    people.mutate('delete Person where slug = "bob"', branch="agent")

    assert people.ids("Person") == ["ada", "bob", "eve"]


def between(world: World, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Let a mutation of another process land, after the next one here was planned and before its put."""
    create = world.repository.manifests.create

    def late(manifest: Any) -> Any:
        monkeypatch.setattr(world.repository.manifests, "create", create)
        world.elsewhere.mutate(body)
        return create(manifest)

    monkeypatch.setattr(world.repository.manifests, "create", late)


def test_an_update_that_lost_a_race_is_planned_again_from_the_new_head(
    people: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    between(people, monkeypatch, 'insert Person { slug: "zed", name: "Zed", age: 36 }')

    commit = people.mutate('update Person set { name: "Same", role: "lead", bio: "b" } where slug = "ada"')
    assert commit.cost.retries == 1

    between(people, monkeypatch, 'update Person set { tags: ["t"] } where slug = "ada"')
    people.mutate('update Person set { age: 37 } where slug = "ada"')

    ada = people.row("Person", "ada")
    assert (ada["age"], ada["tags"], ada["bio"]) == (37, ["t"], "b"), "`replan-reads`: nothing old comes back"


def test_a_partial_upsert_that_lost_a_race_does_not_bring_back_old_values(
    people: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    between(people, monkeypatch, 'update Person set { tags: ["t"] } where slug = "ada"')

    people.mutate('insert Person { slug: "ada", age: 40 }')

    ada = people.row("Person", "ada")
    assert (ada["age"], ada["tags"]) == (40, ["t"])


def test_a_row_that_was_committed_concurrently_makes_the_insert_an_update(
    people: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    between(people, monkeypatch, 'insert Person { slug: "zed", name: "Zed", age: 9 }')

    commit = people.mutate('insert Person { slug: "zed", name: "Zed", bio: "b" }')

    assert touched(commit) == {"Person": {"updated": 1}}
    assert people.row("Person", "zed")["age"] == 9


def test_a_cascade_that_lost_a_race_takes_the_new_edge_too(people: World, monkeypatch: pytest.MonkeyPatch) -> None:
    between(people, monkeypatch, 'insert Likes { from: "eve", to: "bob" }')

    commit = people.mutate('delete Person where slug = "bob"')

    assert touched(commit) == {"Person": {"deleted": 1}, "Knows": {"deleted": 1}, "Likes": {"deleted": 1}}


def test_on_conflict_fail_raises_after_a_lost_race(people: World, monkeypatch: pytest.MonkeyPatch) -> None:
    between(people, monkeypatch, 'update Person set { age: 1 } where slug = "eve"')

    with pytest.raises(ExpectedVersionMismatch):
        people.mutate('update Person set { age: 37 } where slug = "ada"', on_conflict="fail")

    assert people.row("Person", "ada")["age"] == 36


def test_a_held_base_is_strict(people: World) -> None:
    txn = people.repository.open_txn()
    people.mutate('update Person set { age: 1 } where slug = "eve"')

    with pytest.raises(ConflictError):
        people.mutate('update Person set { age: 37 } where slug = "ada"', txn=txn)


def test_many_inserts_are_looked_up_at_once(people: World, monkeypatch: pytest.MonkeyPatch) -> None:
    inserts = " ".join(f'insert Person {{ slug: "p{number}", name: "P{number}" }}' for number in range(200))
    calls: list[object] = []
    tables = people.repository.tables

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            calls.append(args)
            return method(*args, **options)

        return call

    for name in ("lookup", "scan", "exists", "find_rows"):
        monkeypatch.setattr(tables, name, counted(getattr(tables, name)))

    assert touched(people.mutate(inserts)) == {"Person": {"inserted": 200}}
    assert len(calls) == 1


def test_a_query_for_another_schema_is_prepared_again(people: World) -> None:
    prepared_for: list[str] = []

    class Recorded(mutations.MutationText):
        def bind(self, txn: WriteTxn) -> MutationQuery:
            prepared_for.append(txn.base.schema)
            return super().bind(txn)

    text = Recorded('query q() { insert Note { text: "x" } }', None, {}, NOW)
    mutations.Mutation(people.repository, text).commit()

    assert prepared_for == [people.repository.open_txn().base.schema]


def test_a_wrong_parameter_leaves_nothing(people: World) -> None:
    before = people.head

    with pytest.raises(BadRequest):
        people.mutate('insert Person { slug: "zed", name: $name }', params={"name": ("String", 7)})

    assert people.head == before


def test_a_load_and_a_mutation_give_the_same_rows(world: World, tmp_path: Path) -> None:
    other = make_world(tmp_path / "other")
    world.mutate('insert Person { slug: "ada", name: "Ada", age: 3, tags: ["a"], face: [0.1, 2.0] }')
    other.load([person("ada", age=3, tags=["a"], face=[0.1, 2])])

    assert world.export() == other.export()


def test_the_planner_says_what_it_read(people: World) -> None:
    from write.world import prepared

    def reads(body: str) -> Changes:
        query = prepared(f"query q() {{ {body} }}", {})
        return mutations.Mutation(people.repository, query).changes(people.repository.open_txn())

    assert reads('insert Person { slug: "zed", name: "Z" }').read_rows == {"node:Person"}
    assert reads('insert Likes { from: "ada", to: "bob" }').read_rows == set()
    assert reads('update Knows set { since: date("2026-01-01") } where from = "ada"').read_rows == {"edge:Knows"}
    edges = {"edge:Knows", "edge:Likes", "edge:WorksAt", "edge:Needs"}
    assert reads('delete Person where slug = "bob"').read_rows == {"node:Person", *edges}
