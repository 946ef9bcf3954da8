"""What differs between two states: entity by entity, in order, paged, and what finding it out reads."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import omnigraph
from omnigraph.diff.changes import GraphChanges
from omnigraph.errors import BadRequest, BranchNotFound, CommitNotFound, MergeConflicts
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import Append, Upsert
from omnigraph.storage import meter
from support.history import Entities, compact, content, delete, expire, make_graph, person, run, update, write_people


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return make_graph(tmp_path / "graph")


def brief(changes: GraphChanges) -> list[str]:
    return [f"{change.operation} {change.type_name} {change.id}" for change in changes]


def net(older: Entities, newer: Entities) -> dict[tuple[str, str], tuple[Any, Any]]:
    return {
        key: (older.get(key), newer.get(key)) for key in older.keys() | newer.keys() if older.get(key) != newer.get(key)
    }


def images(changes: GraphChanges) -> dict[tuple[str, str], tuple[Any, Any]]:
    found = list(changes)
    assert len({(change.type_name, change.id) for change in found}) == len(found), "an entity came twice"
    return {(change.type_name, change.id): (change.before, change.after) for change in found}


# One commit


def test_a_commit_tells_what_it_inserted_updated_and_deleted(graph: Graph) -> None:
    run(graph, person("ada", age=36) + person("bob"))
    commit = write_people(graph, {"ada": {"age": 37}, "cy": {"name": "Cy"}}, gone=["bob"])

    ada, bob, cy = graph.commit_changes(commit)

    assert (ada.operation, ada.kind, ada.type_name, ada.id) == ("update", "node", "Person", "ada")
    assert ada.changed == ("age",)
    assert ada.before is not None
    assert ada.after is not None
    assert (ada.before["age"], ada.after["age"]) == (36, 37)
    assert (bob.operation, bob.after) == ("delete", None)
    assert (cy.operation, cy.before) == ("insert", None)
    assert cy.after == {"id": "cy", "slug": "cy", "name": "Cy", "age": None, "tags": None, "score": None}


def test_edges_have_their_ends(graph: Graph) -> None:
    run(graph, person("ada") + person("bob"))
    commit = run(graph, 'insert Knows { from: "ada", to: "bob", since: 1840 }')

    (knows,) = graph.commit_changes(commit)

    assert (knows.kind, knows.type_name) == ("edge", "Knows")
    assert knows.after == {"id": knows.id, "src": "ada", "dst": "bob", "since": 1840}


def test_maintenance_changes_nothing(graph: Graph) -> None:
    run(graph, person("ada"))
    compaction = compact(graph)

    assert list(graph.commit_changes(compaction)) == []


def test_the_first_commit_changes_nothing(graph: Graph) -> None:
    assert list(graph.commit_changes(graph.commits()[-1].id)) == []


def test_a_merge_tells_what_it_brought_to_its_branch(graph: Graph) -> None:
    run(graph, person("ada"))
    graph.branches.create("dev")
    run(graph, person("bob"), "dev")
    run(graph, person("cy"))
    graph.branches.merge("dev")

    assert brief(graph.commit_changes(graph.commits(limit=1)[0].id)) == ["insert Person bob"]


def test_the_changes_of_a_commit_whose_previous_state_is_gone_can_no_longer_be_read(graph: Graph) -> None:
    run(graph, person("ada"))
    second = run(graph, person("bob"))
    expire(graph, 3)

    with pytest.raises(CommitNotFound, match="expired the state before it"):
        graph.commit_changes(second)


# Two states


def test_what_was_undone_in_between_is_no_change(graph: Graph) -> None:
    start = run(graph, person("ada", age=36))
    run(graph, person("bob") + update("ada", age=40))
    write_people(graph, {"ada": {"age": 36}}, gone=["bob"])

    assert list(graph.changes(start, "main")) == []


def test_several_commits_are_one_net_change(graph: Graph) -> None:
    start = run(graph, person("ada", age=1, name="Ada"))
    run(graph, update("ada", age=2))
    compact(graph)
    run(graph, update("ada", name="A."))

    (change,) = graph.changes(start, "main")

    assert change.changed == ("name", "age")
    assert change.before is not None
    assert change.before["age"] == 1


def test_backwards_inserts_are_deletes(graph: Graph) -> None:
    start = run(graph, person("ada"))
    run(graph, person("bob") + update("ada", age=1))

    assert brief(graph.changes("main", start)) == ["update Person ada", "delete Person bob"]


def test_branches_are_compared_where_neither_is_an_ancestor_of_the_other(graph: Graph) -> None:
    run(graph, person("ada", age=1))
    graph.branches.create("dev")
    run(graph, person("bob") + update("ada", age=2), "dev")
    run(graph, person("cy"))

    changes = graph.changes("main", "dev")

    assert brief(changes) == ["update Person ada", "insert Person bob", "delete Person cy"]
    assert changes.explained.method == "direct"
    assert "is no ancestor of" in changes.explained.reason


def test_a_state_that_was_merged_is_an_ancestor(graph: Graph) -> None:
    run(graph, person("ada"))
    graph.branches.create("dev")
    merged = run(graph, person("bob"), "dev")
    run(graph, person("cy"))
    graph.branches.merge("dev")
    run(graph, person("dan"))

    changes = graph.changes(merged, "main")

    assert brief(changes) == ["insert Person cy", "insert Person dan"]
    assert changes.explained.method == "composed"


def test_commits_on_both_sides_of_a_fork_point_add_up(graph: Graph) -> None:
    start = run(graph, person("ada"))
    run(graph, person("bob"))
    graph.branches.create("dev")
    run(graph, person("cy"), "dev")

    changes = graph.changes(start, "dev")

    assert brief(changes) == ["insert Person bob", "insert Person cy"]
    assert (changes.explained.method, changes.explained.commits) == ("composed", 2)


def test_a_branch_without_commits_of_its_own_is_the_state_that_it_was_forked_from(graph: Graph) -> None:
    run(graph, person("ada") + person("bob"))
    graph.branches.create("dev")
    graph.branches.create("deeper", "dev")
    compact(graph)
    run(graph, person("cy"))

    for changes, verb in (
        (graph.changes("dev", "main"), "insert"),
        (graph.changes("deeper", "main"), "insert"),
        (graph.changes("main", "dev"), "delete"),
        (graph.changes("main", "deeper"), "delete"),
    ):
        assert brief(changes) == [f"{verb} Person cy"]
        assert (changes.explained.method, changes.explained.commits) == ("composed", 1)
    assert brief(graph.changes("dev", "deeper")) == []


def test_a_name_that_is_neither_branch_tag_commit_nor_time_is_not_found(graph: Graph) -> None:
    with pytest.raises(BranchNotFound, match="no branch 'nowhere'"):
        graph.changes("main", "nowhere")


def test_a_time_is_a_state_of_the_branch(graph: Graph) -> None:
    first = graph.commit(run(graph, person("ada")))
    time.sleep(0.002)  # times are of whole milliseconds, and two commits can share one
    run(graph, person("bob"))

    assert brief(graph.changes(first.authored_at.isoformat(), "main")) == ["insert Person bob"]


# Maintenance and cleanup in between


def test_what_a_compaction_rewrote_is_not_read(graph: Graph) -> None:
    start = run(graph, person("bob"))
    compaction = compact(graph)
    run(graph, person("ada"))

    changes = graph.changes(start, "main")

    assert brief(changes) == ["insert Person ada"]
    (read,) = changes.explained.reads
    rewritten = graph.snapshot(at=compaction).pinned.manifest.tables["node:Person"]
    ((older, _),) = read.comparisons
    assert older == str(rewritten.stored)


def test_a_stub_in_between_makes_it_compare_the_tables_and_say_so(graph: Graph) -> None:
    run(graph, person("ada"))
    kept = run(graph, person("bob"))
    graph.tags.create("kept", kept)
    run(graph, person("cy"))
    run(graph, delete("ada"))
    expire(graph, 5, keep=(3,))

    changes = graph.changes("kept", "main")

    assert brief(changes) == ["delete Person ada", "insert Person cy"]
    assert changes.explained.method == "direct"
    assert "cleanup has expired" in changes.explained.reason


# Choosing among them


def test_changes_are_filtered_by_kind_type_and_operation(graph: Graph) -> None:
    start = run(graph, person("ada") + person("bob"))
    run(
        graph,
        person("cy") + update("ada", age=1) + 'insert Company { name: "acme" } insert Knows { from: "ada", to: "bob" }',
    )

    assert [change.kind for change in graph.changes(start, "main", kinds=["edge"])] == ["edge"]
    assert brief(graph.changes(start, "main", types=["Company"])) == ["insert Company acme"]
    assert brief(graph.changes(start, "main", operations=["update"])) == ["update Person ada"]
    assert brief(graph.changes(start, "main", ["node"], ["Person"], ["insert"])) == ["insert Person cy"]


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"kinds": ["vertex"]}, "Unknown kind 'vertex': use a list of node, edge"),
        ({"operations": ["upsert"]}, "use a list of insert, update, delete"),
        ({"types": ["Persn"]}, "no type 'Persn'"),
        ({"types": "Person"}, "must be a list of names"),
        ({"kinds": "node"}, "Unknown kind 'node': use a list of node, edge"),
        ({"limit": 0}, "limit of 0"),
    ],
)
def test_a_slip_in_a_filter_is_reported(graph: Graph, filters: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        list(graph.changes("main", "main", **filters))


def test_the_order_is_nodes_before_edges_then_type_then_id(graph: Graph) -> None:
    start = graph.commits()[-1].id
    run(
        graph,
        person("b") + person("ä") + person("a") + 'insert Company { name: "z" } insert Knows { from: "a", to: "b" }',
    )

    found = [(change.type_name, change.id) for change in graph.changes(start, "main")]

    assert found[:4] == [("Company", "z"), ("Person", "a"), ("Person", "b"), ("Person", "ä")]
    assert found[4][0] == "Knows"


def test_pages_cover_everything_once_though_the_branch_moves_on(graph: Graph) -> None:
    start = graph.commits()[-1].id
    run(graph, " ".join(person(f"p{n}") for n in range(7)) + 'insert Company { name: "acme" }')
    whole = brief(graph.changes(start, "main"))

    found, page = [], None
    for _ in range(10):
        changes = graph.changes(start, "main", limit=3, page=page)
        found += brief(changes)
        run(graph, person(f"later{len(found)}"))
        page = changes.next_page
        if page is None:
            break

    assert found == whole
    assert len(found) == 8


def test_a_page_token_is_good_for_its_own_states_and_filters_only(graph: Graph) -> None:
    start = graph.commits()[-1].id
    run(graph, person("a") + person("b"))
    changes = graph.changes(start, "main", limit=1)
    list(changes)

    with pytest.raises(BadRequest, match="other states or filters"):
        graph.changes(start, "main", types=["Person"], page=changes.next_page)
    with pytest.raises(BadRequest, match="other states or filters"):
        graph.changes("main", start, page=changes.next_page)
    with pytest.raises(BadRequest, match="other states or filters"):
        graph.commit_changes(start, page=changes.next_page)
    with pytest.raises(BadRequest, match="Invalid page token"):
        graph.changes(start, "main", page="bm9uZQ")
    with pytest.raises(BadRequest, match="Invalid page token"):
        graph.changes(start, "main", page=str(changes.next_page)[:-4] + "AAAA")


def test_a_change_prints_as_an_export_does(tmp_path: Path) -> None:
    graph = make_graph(
        tmp_path / "graph", "node T { k: String @key  d: Date?  t: DateTime?  b: Blob?  v: Vector(2)?  f: F32? }"
    )
    graph.load(
        [
            {
                "type": "T",
                "data": {
                    "k": "a",
                    "d": "2026-01-31",
                    "t": "2026-01-31T12:00:00Z",
                    "b": "base64:AAE=",
                    "v": [0.1, 2],
                    "f": 0.1,
                },
            }
        ]
    )

    (change,) = graph.commit_changes(graph.commits(limit=1)[0].id)

    assert json.loads(json.dumps(change.to_json()))["after"] == {
        "id": "a",
        "k": "a",
        "d": "2026-01-31",
        "t": "2026-01-31T12:00:00.000Z",
        "b": "base64:AAE=",
        "v": [0.1, 2.0],
        "f": 0.1,
    }


# Schemas that changed in between


def test_a_renamed_type_is_the_same_type(graph: Graph) -> None:
    start = run(graph, person("ada", age=1) + person("bob"))
    graph.schema.apply(
        """
        node Human @rename_from("Person") {
            slug: String @key  name: String?  years: I32? @rename_from("age")  tags: [String]?  score: F64?
        }
        node Company { name: String @key }
        edge Knows: Human -> Human { since: I32? }
        """
    )
    renamed = graph.commits(limit=1)[0].id
    graph.mutate('query q() { update Human set { years: 2 } where slug = "ada" }')

    assert list(graph.commit_changes(renamed)) == []
    changes = graph.changes(start, "main")
    (change,) = changes
    assert (change.operation, change.type_name, change.id, change.changed) == ("update", "Human", "ada", ("years",))
    assert changes.schema_changed
    assert brief(graph.changes(start, "main", types=["Person"])) == ["update Human ada"]


def test_a_property_that_was_added_with_a_default_changes_no_entity_by_itself(graph: Graph) -> None:
    start = run(graph, person("ada") + person("bob"))
    text = graph.schema.show()
    graph.schema.apply(text.replace("score: F64?", 'score: F64?  mood: String @default("calm")'))
    run(graph, 'update Person set { mood: "glad" } where slug = "bob"')

    (change,) = graph.changes(start, "main")

    assert change.changed == ("mood",)
    assert change.before is not None
    assert (change.before["mood"], change.id) == ("calm", "bob")


def test_a_property_that_was_widened_keeps_its_values(graph: Graph) -> None:
    start = run(graph, person("ada", age=1) + person("bob", age=2))
    graph.schema.apply(graph.schema.show().replace("age: I32?", "age: I64?"))
    compact(graph)
    run(graph, update("ada", age=2**40))

    (change,) = graph.changes(start, "main")

    assert change.before is not None
    assert change.after is not None
    assert (change.id, change.before["age"], change.after["age"]) == ("ada", 1, 2**40)


def test_a_way_of_too_many_steps_is_not_walked(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omnigraph.diff.lineage.STEPS_MAX", 2)
    start = run(graph, person("a"))
    for name in "bcd":
        run(graph, person(name))

    changes = graph.changes(start, "main")

    assert brief(changes) == ["insert Person b", "insert Person c", "insert Person d"]
    assert (changes.explained.method, "steps are between" in changes.explained.reason) == ("direct", True)


def test_a_type_that_was_dropped_is_named_by_its_last_name(graph: Graph) -> None:
    start = run(graph, 'insert Company { name: "acme" }')
    graph.schema.apply(graph.schema.show().replace("node Company { name: String @key }", ""), allow_data_loss=True)

    assert brief(graph.changes(start, "main")) == ["delete Company acme"]


def test_types_that_two_branches_added_apart_are_not_taken_for_one(graph: Graph) -> None:
    text = graph.schema.show()
    graph.branches.create("dev")
    graph.schema.apply(text + "node Left { k: String @key }")
    graph.schema.apply(text + "node Right { k: String @key }", branch="dev")
    run(graph, 'insert Left { k: "x" }')
    run(graph, 'insert Right { k: "x" }', "dev")

    assert brief(graph.changes("main", "dev")) == ["delete Left x", "insert Right x"]


# Against a model

SLUGS = st.sampled_from(["a", "b", "c", "d"])
STEPS = st.one_of(
    st.tuples(st.just("insert"), SLUGS, st.integers(0, 2)),
    st.tuples(st.just("update"), SLUGS, st.integers(0, 2)),
    st.tuples(st.just("delete"), SLUGS, st.none()),
    st.tuples(st.just("compact"), st.none(), st.none()),
    st.tuples(st.just("fork"), st.none(), st.none()),
    st.tuples(st.just("switch"), st.none(), st.none()),
    st.tuples(st.just("merge"), st.none(), st.none()),
)


@settings(max_examples=25, deadline=None)
@given(
    steps=st.lists(STEPS, min_size=3, max_size=12),
    pairs=st.lists(st.tuples(st.integers(0), st.integers(0)), min_size=3, max_size=3),
)
def test_any_two_states_differ_as_their_contents_do(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any], pairs: list[tuple[int, int]]
) -> None:
    graph = make_graph(tmp_path_factory.mktemp("store") / "graph")
    branches, branch = ["main"], "main"
    known = {graph.commits()[-1].id: content(graph)}
    for verb, slug, age in steps:
        people = {key[1] for key in content(graph, branch)}
        if verb == "fork" and len(branches) < 3:
            branches.append(f"b{len(branches)}")
            graph.branches.create(branches[-1], branch)
        elif verb == "switch":
            branch = branches[(branches.index(branch) + 1) % len(branches)]
        elif verb == "merge" and len(branches) > 1:
            with suppress(MergeConflicts):
                graph.branches.merge(branches[branches.index(branch) - 1], branch)
        elif verb == "compact" and people:
            compact(graph, branch=branch)
        elif verb == "insert" and slug not in people:
            run(graph, person(slug, age=age), branch)
        elif verb in ("update", "delete") and slug in people:
            graph.mutate(
                f"query q() {{ {update(slug, age=age) if verb == 'update' else delete(slug)} }}", branch=branch
            )
        state = graph.snapshot(branch)
        known[state.commit_id] = content(graph, branch)
    commits = list(known)
    for one, other in pairs:
        older, newer = commits[one % len(commits)], commits[other % len(commits)]

        assert images(graph.changes(older, newer)) == net(known[older], known[newer])


# Cost


@pytest.mark.parametrize("rows", [100_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_the_changes_of_a_one_row_commit_cost_the_same_however_large_the_table_is(tmp_path: Path, rows: int) -> None:
    graph = make_graph(tmp_path / "graph", "node Word { text: String }")
    ids = [f"w{n:07}" for n in range(rows)]
    words = pa.table({"id": ids, "text": [f"the text of word {i}, which is not short" for i in ids]})
    graph.write([Append("node:Word", words)])
    commit = graph.write([Upsert("node:Word", pa.table({"id": [ids[rows // 2]], "text": ["new"]}))])
    assert commit is not None

    cold = omnigraph.open(graph.uri, read_only=True)
    with meter.operation("test") as cost:
        changes = list(cold.commit_changes(commit.id))

    assert [change.operation for change in changes] == ["update"]
    assert cost.cost.requests <= 40
    assert cost.cost.bytes < 400_000


# Types that share a name


def redeclared(graph: Graph) -> tuple[str, str]:
    """A commit that drops a type with rows a, b, c and brings another one of that name with rows _, b."""
    graph.schema.apply("node Tag { name: String @key }")
    graph.load([{"type": "Tag", "data": {"name": name}} for name in "abc"])
    before = graph.snapshot().commit_id
    graph.branches.create("b")
    graph.schema.apply("node Other { name: String @key }", branch="b")
    graph.schema.apply("node Other { name: String @key }  node Tag { name: String @key  size: I32? }", branch="b")
    graph.load([{"type": "Tag", "data": {"name": name}} for name in "_b"], branch="b")
    commit = graph.branches.merge("b").commit
    assert commit is not None
    return before, commit.id


@pytest.mark.parametrize("limit", [None, 1, 2, 4])
def test_of_two_types_with_one_name_the_dropped_one_comes_first_and_no_page_loses_any(
    graph: Graph, limit: int | None
) -> None:
    before, after = redeclared(graph)

    def paged(a: str, b: str) -> list[str]:
        page, found = None, []
        while True:
            changes = graph.changes(a, b, limit=limit, page=page)
            found += brief(changes)
            page = changes.next_page
            if page is None:
                return found

    there, back = ["_", "b"], ["a", "b", "c"]
    assert paged(before, after) == [f"delete Tag {one}" for one in back] + [f"insert Tag {one}" for one in there]
    assert paged(after, before) == [f"delete Tag {one}" for one in there] + [f"insert Tag {one}" for one in back]


def test_a_type_of_another_branch_that_has_the_number_of_a_dropped_one_is_another_type(graph: Graph) -> None:
    """Each branch numbers its new types for itself: what came by a merge is not what was dropped before it."""
    schema = graph.schema.show()
    graph.branches.create("b")
    graph.schema.apply(schema + "node Mine { name: String @key }", branch="b")
    graph.load([{"type": "Mine", "data": {"name": "x"}}], branch="b")
    older = graph.snapshot("b").commit_id
    graph.schema.apply(schema, branch="b")
    graph.schema.apply(schema + "node Yours { title: String @key  size: I32? }")
    graph.load([{"type": "Yours", "data": {"title": "x", "size": 1}}])
    graph.branches.merge("b")

    assert brief(graph.changes(older, "main")) == ["delete Mine x", "insert Yours x"]
