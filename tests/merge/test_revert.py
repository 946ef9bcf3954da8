"""Revert: a new commit that undoes one, and never what came later."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manifest.schedules import World, a_put_of_manifest
from omnigraph.errors import (
    BadRequest,
    CommitNotFound,
    ConstraintViolation,
    PreconditionFailed,
    ReadOnly,
    RevertConflicts,
)
from omnigraph.graph.graph import Graph
from omnigraph.graph.graph import open as open_graph
from omnigraph.manifest.commit.plan import Upsert
from support.catalogs import PERSON, person_rows
from support.history import compact, content, delete, expire, make_graph, person, run, update, write_people


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return make_graph(tmp_path / "graph")


def ages(graph: Graph) -> dict[str, int | None]:
    return {key[1]: image["age"] for key, image in content(graph).items() if key[0] == "Person"}


# What is undone


def test_an_insert_is_taken_back(graph: Graph) -> None:
    run(graph, person("ada"))
    commit = run(graph, person("bob") + 'insert Knows { from: "ada", to: "bob" }')
    run(graph, person("cy"))

    reverted = graph.revert(commit, actor="ada")

    assert reverted is not None
    assert (reverted.commit.kind, reverted.commit.actor) == ("revert", "ada")
    assert set(content(graph)) == {("Person", "ada"), ("Person", "cy")}


def test_a_delete_is_reverted_with_the_edges_that_it_removed(graph: Graph) -> None:
    run(graph, person("ada") + person("bob") + 'insert Knows { from: "ada", to: "bob" }')
    before = content(graph)
    commit = run(graph, delete("bob"))

    graph.revert(commit)

    assert content(graph) == before


def test_only_the_properties_that_the_commit_changed_are_set_back(graph: Graph) -> None:
    run(graph, person("ada", age=1, name="Ada"))
    commit = run(graph, update("ada", age=2))
    run(graph, update("ada", name="Countess"))

    graph.revert(commit)

    ada = content(graph)["Person", "ada"]
    assert (ada["age"], ada["name"]) == (1, "Countess")


def test_a_revert_can_be_reverted(graph: Graph) -> None:
    commit = run(graph, person("ada", age=1))
    after = content(graph)
    undone = graph.revert(commit)
    assert undone is not None
    assert content(graph) == {}

    graph.revert(undone.id)

    assert content(graph) == after


def test_maintenance_since_is_no_obstacle(graph: Graph) -> None:
    run(graph, person("ada", age=1) + person("bob"))
    commit = run(graph, update("ada", age=2))
    compact(graph)

    graph.revert(commit)

    assert ages(graph) == {"ada": 1, "bob": None}


def test_a_merge_is_reverted_as_what_it_brought_to_its_branch(graph: Graph) -> None:
    run(graph, person("ada"))
    graph.branches.create("dev")
    run(graph, person("bob"), "dev")
    run(graph, person("cy"))
    graph.branches.merge("dev")

    graph.revert(graph.commits(limit=1)[0].id)

    assert set(ages(graph)) == {"ada", "cy"}
    assert graph.branches.merge("dev").commit is None


def test_what_was_undone_already_is_no_commit(graph: Graph) -> None:
    run(graph, person("ada", age=1))
    commit = run(graph, update("ada", age=2))
    run(graph, update("ada", age=1))

    assert graph.revert(commit) is None


def test_a_tag_names_what_to_revert(graph: Graph) -> None:
    graph.tags.create("slip", run(graph, person("ada")))

    graph.revert("slip")

    assert content(graph) == {}


def test_a_commit_is_reverted_on_the_branch_that_is_named(graph: Graph) -> None:
    commit = run(graph, person("ada"))
    graph.branches.create("dev")

    graph.revert(commit, "dev")

    assert content(graph, "dev") == {}
    assert set(ages(graph)) == {"ada"}


def test_properties_are_known_by_identity_after_a_rename(graph: Graph) -> None:
    run(graph, person("ada", age=1))
    commit = run(graph, update("ada", age=2))
    graph.schema.apply(graph.schema.show().replace("age: I32?", 'years: I32? @rename_from("age")'))

    graph.revert(commit)

    assert content(graph)["Person", "ada"]["years"] == 1


# What can't be


@pytest.mark.parametrize(
    ("undone", "later", "kind"),
    [
        (update("ada", age=2), update("ada", age=3), "DivergentUpdate"),
        (update("ada", age=2), delete("ada"), "DeleteVsUpdate"),
        (person("bob", age=1), update("bob", age=2), "DeleteVsUpdate"),
        (delete("ada"), person("ada", age=9), "DivergentInsert"),
    ],
)
def test_what_a_later_commit_changed_is_a_conflict_and_nothing_is_written(
    graph: Graph, undone: str, later: str, kind: str
) -> None:
    run(graph, person("ada", age=1))
    commit = run(graph, undone)
    head = run(graph, later)
    before = content(graph)

    with pytest.raises(RevertConflicts, match=f"{commit} can't be reverted on 'main' because Person") as raised:
        graph.revert(commit)

    assert [conflict.kind for conflict in raised.value.conflicts] == [kind]
    assert raised.value.exit_code == 3
    assert (content(graph), graph.snapshot().commit_id) == (before, head)


def test_all_conflicts_come_together(graph: Graph) -> None:
    run(graph, person("ada", age=1) + person("bob", age=1))
    commit = run(graph, update("ada", age=2) + update("bob", age=2))
    run(graph, update("ada", age=3) + update("bob", age=3))

    with pytest.raises(RevertConflicts, match="and one more conflict") as raised:
        graph.revert(commit)

    assert [conflict.entity_id for conflict in raised.value.conflicts] == ["ada", "bob"]


def test_the_result_must_be_valid_as_any_other_write(graph: Graph) -> None:
    commit = run(graph, person("ada"))
    run(graph, person("bob") + 'insert Knows { from: "bob", to: "ada" }')

    with pytest.raises(ConstraintViolation, match="Knows"):
        graph.revert(commit)


def test_the_first_commit_a_schema_change_and_maintenance_are_refused(graph: Graph) -> None:
    run(graph, person("ada"))
    compaction = compact(graph)
    graph.schema.apply(graph.schema.show() + "node Pet { name: String @key }")

    with pytest.raises(BadRequest, match="created the graph"):
        graph.revert(graph.commits()[-1].id)
    with pytest.raises(BadRequest, match=r"\(schema_apply\) changed the schema.*`schema apply`"):
        graph.revert(graph.commits(limit=1)[0].id)
    with pytest.raises(BadRequest, match=r"is a maintenance commit \(optimize\)"):
        graph.revert(compaction)


def test_a_commit_of_another_branch_is_refused(graph: Graph) -> None:
    graph.branches.create("dev")
    commit = run(graph, person("ada"), "dev")

    with pytest.raises(BadRequest, match="is not in the history of 'main'"):
        graph.revert(commit)


def test_a_commit_whose_previous_state_is_gone_is_refused(graph: Graph) -> None:
    run(graph, person("ada"))
    commit = run(graph, person("bob"))
    expire(graph, 3)

    with pytest.raises(CommitNotFound, match="expired the state before it"):
        graph.revert(commit)


def test_a_revert_obeys_if_commit_txn_id_and_read_only(graph: Graph) -> None:
    commit = run(graph, person("ada"))

    with pytest.raises(PreconditionFailed):
        graph.revert(commit, if_commit=graph.commits()[-1].id)
    with pytest.raises(ReadOnly):
        open_graph(graph.uri, read_only=True).revert(commit)
    first = graph.revert(commit, txn_id="once")
    again = graph.revert(commit, txn_id="once")
    assert first is not None
    assert again is not None
    assert first.id == again.id


# Somebody else was first


def test_a_revert_that_loses_its_race_is_planned_again(tmp_path: Path) -> None:
    world = World(tmp_path / "graph")
    writer, other = world.client("writer"), world.client("other")
    commit = writer.insert("ada")

    with writer.start(lambda: writer.graph.revert(commit.id)) as stalled:
        stalled.run_until(a_put_of_manifest(3))
        other.insert("bob")
        stalled.run_to_end()
        assert stalled.result() is not None

    assert writer.people() == other.people() == ["bob"]


def test_what_is_changed_while_a_revert_is_under_way_is_a_conflict_too(tmp_path: Path) -> None:
    world = World(tmp_path / "graph")
    writer, other = world.client("writer"), world.client("other")
    commit = writer.insert("ada")

    with writer.start(lambda: writer.graph.revert(commit.id)) as stalled:
        stalled.run_until(a_put_of_manifest(3))
        other.graph.write([Upsert(PERSON, person_rows("ada", age=5))])
        stalled.run_to_end()
        with pytest.raises(RevertConflicts):
            stalled.result()

    assert writer.people() == ["ada"]


# Against a model


@settings(max_examples=20, deadline=None)
@given(
    writes=st.lists(
        st.dictionaries(st.sampled_from("abc"), st.one_of(st.none(), st.integers(0, 2)), min_size=1),
        min_size=2,
        max_size=5,
    ),
    which=st.integers(0),
)
def test_a_revert_matches_the_three_way_rule_for_each_person(
    tmp_path_factory: pytest.TempPathFactory, writes: list[dict[str, int | None]], which: int
) -> None:
    """None deletes. A person that is as the commit left it becomes what it was; what differs since is a conflict."""
    graph = make_graph(tmp_path_factory.mktemp("store") / "graph")
    run(graph, 'insert Company { name: "acme" }')
    history: list[tuple[dict[str, int], str]] = [({}, "")]
    for write in writes:
        state = dict(history[-1][0])
        put = {slug: {"age": age} for slug, age in write.items() if age is not None and state.get(slug) != age}
        gone = [slug for slug, age in write.items() if age is None and slug in state]
        if put or gone:
            commit = write_people(graph, put, gone)
            state = {slug: age for slug, age in (state | write).items() if age is not None}
            history.append((state, commit))
    if len(history) == 1:
        return
    place = 1 + which % (len(history) - 1)
    before, (after, commit), now = history[place - 1][0], history[place], history[-1][0]
    touched = {slug for slug in before.keys() | after.keys() if before.get(slug) != after.get(slug)}
    disputed = {s for s in touched if now.get(s) not in (after.get(s), before.get(s))}

    if disputed:
        with pytest.raises(RevertConflicts) as raised:
            graph.revert(commit)
        assert {conflict.entity_id for conflict in raised.value.conflicts} == disputed
        assert ages(graph) == now
    else:
        graph.revert(commit)
        wanted: dict[str, int | None] = {**now, **{slug: before.get(slug) for slug in touched}}
        assert ages(graph) == {slug: age for slug, age in wanted.items() if age is not None}
