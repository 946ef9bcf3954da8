"""Merging branches: outcomes, what is taken from where, conflicts, and the sequences that broke other systems."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

from omnigraph.api.models import MergeAnswer
from omnigraph.errors import BadRequest, BranchNotFound, MergeConflicts, PreconditionFailed, ReadOnly
from omnigraph.manifest.commit.plan import ConflictPolicy, PublishPlan, RaiseFence
from omnigraph.manifest.model.manifest import Position
from omnigraph.merge import plan as merge_plan
from omnigraph.merge.plan import MergeOutcome
from omnigraph.storage.table.tables import Tables
from support.merge import Merging, knows, make_merging


@pytest.fixture
def graph(tmp_path: Path) -> Merging:
    """Ada knows Bob, and there is Acme; a branch `b` of it."""
    merging = make_merging(tmp_path / "graph")
    people = {"ada": {"age": 1}, "bob": {"age": 2}}
    merging.change(Person=people, Company={"acme": {}}, Knows={"e": knows("ada", "bob")})
    merging.fork("b")
    return merging


@contextmanager
def no_table_is_read() -> Iterator[None]:
    """Within it every way to the rows of a table is closed."""
    names = ("open", "dataset", "scan", "batches", "lookup", "exists", "present_values", "difference", "differing_ids")
    with mock.patch.multiple(Tables, **{name: mock.Mock(side_effect=AssertionError(name)) for name in names}):
        yield


# Outcomes


def test_what_is_there_already_makes_no_commit(graph: Merging) -> None:
    head = graph.head()

    result = graph.merge()

    assert (result.outcome, result.commit, graph.head()) == (MergeOutcome.UP_TO_DATE, None, head)


def test_a_target_that_changed_nothing_is_fast_forwarded_by_one_commit_with_both_parents(graph: Merging) -> None:
    graph.change("b", Person={"eve": {}})
    ours, theirs = graph.head(), graph.head("b")

    with no_table_is_read():
        result = graph.merge(actor="ada")

    assert result.outcome is MergeOutcome.FAST_FORWARD
    assert result.commit is not None
    commit = result.commit.commit
    assert (commit.kind, commit.actor) == ("merge", "ada")
    assert (commit.parent, commit.merged_parent) == (ours.logical_head, theirs.logical_head)
    assert graph.head().tables == theirs.tables
    assert graph.head().ancestry == {
        **ours.ancestry,
        **theirs.ancestry,
        ours.branch_id: Position(ours.manifest_version + 1),
    }
    assert result.commit.touched == {"node:Person": {"inserted": 1}}


def test_two_sides_that_changed_different_rows_are_merged_by_one_commit_with_both_parents(graph: Merging) -> None:
    graph.change("b", Person={"ada": {"age": 10}})
    graph.change("main", Person={"bob": {"age": 20}})
    ours, theirs = graph.head(), graph.head("b")

    result = graph.merge()

    assert result.outcome is MergeOutcome.MERGED
    assert result.commit is not None
    assert (result.commit.commit.parent, result.commit.commit.merged_parent) == (ours.logical_head, theirs.logical_head)
    assert [row["age"] for row in graph.rows("Person")] == [10, 20]
    assert result.commit.touched == {"node:Person": {"updated": 1}}
    assert graph.head("b") == theirs


def test_maintenance_on_the_target_does_not_count_as_a_change(graph: Merging) -> None:
    graph.change("b", Person={"eve": {}})
    repository = graph.graph.repository
    fence = PublishPlan(repository.runtime.ids.txn_id(), ConflictPolicy.MAINTENANCE, RaiseFence(1))
    repository.publisher.publish(repository.open_txn(), fence)

    assert graph.merge().outcome is MergeOutcome.FAST_FORWARD


def test_merging_back_the_same_changes_makes_no_commit(graph: Merging) -> None:
    graph.change("b", Person={"eve": {}})
    graph.merge()

    assert graph.merge("main", "b").outcome is MergeOutcome.UP_TO_DATE
    assert graph.merge("b", "main").outcome is MergeOutcome.UP_TO_DATE


def test_a_table_that_only_one_side_changed_is_adopted_by_its_reference(graph: Merging) -> None:
    graph.change("b", Company={"beta": {}})
    graph.change("main", Person={"bob": {"age": 20}})
    ours, theirs = graph.head().tables, graph.head("b").tables

    with no_table_is_read():
        assert graph.merge().outcome is MergeOutcome.MERGED

    after = graph.head().tables
    assert after["node:Company"] == theirs["node:Company"]
    assert after["node:Person"] == ours["node:Person"]


def test_a_property_changed_on_one_side_merges_with_another_property_changed_on_the_other(graph: Merging) -> None:
    graph.change("b", Person={"ada": {"name": "Ada"}})
    graph.change("main", Person={"ada": {"age": 30}})

    graph.merge()

    assert graph.row("Person", "ada") == {"id": "ada", "slug": "ada", "name": "Ada", "age": 30, "email": None}


# Conflicts


def test_all_conflicts_are_reported_at_once_with_their_entities(graph: Merging) -> None:
    graph.change("b", Person={"ada": {"age": 10}, "new": {"age": 1}}, Knows={"e": None})
    graph.change("main", Person={"ada": {"age": 20}, "new": {"age": 2}}, Knows={"e": knows("ada", "bob", since=3)})

    assert graph.conflicts() == [
        ("DeleteVsUpdate", "Knows", "e"),
        ("DivergentInsert", "Person", "new"),
        ("DivergentUpdate", "Person", "ada"),
    ]
    with pytest.raises(MergeConflicts) as refusal:
        graph.merge()
    assert refusal.value.exit_code == 3
    assert refusal.value.http_status == 409
    listed = refusal.value.details["merge_conflicts"]
    assert {tuple(sorted(one)) for one in listed} == {("entity_id", "entity_kind", "kind", "message", "type_name")}
    assert "age (20 and 10)" in next(one["message"] for one in listed if one["entity_id"] == "ada")
    assert {one["entity_kind"] for one in listed} == {"node", "edge"}


@pytest.mark.parametrize("deleter", ["main", "b"])
@pytest.mark.parametrize("both_changed", ["neither", "nodes", "edges", "both"])
def test_an_edge_to_a_node_that_the_other_side_deleted_is_an_orphan(
    graph: Merging, deleter: str, both_changed: str
) -> None:
    linker = "b" if deleter == "main" else "main"
    graph.change("main", Person={"lone": {}})
    graph.merge("main", "b")
    if both_changed in ("nodes", "both"):
        graph.change(linker, Person={"another": {}})
    if both_changed in ("edges", "both"):
        graph.change(deleter, Knows={"other": knows("ada", "bob")})
    graph.change(deleter, Person={"lone": None})
    graph.change(linker, Knows={"new": knows("ada", "lone")})

    assert graph.conflicts() == [("OrphanEdge", "Knows", "new")]


def test_an_edge_beside_a_node_that_the_other_side_deleted_is_none(graph: Merging) -> None:
    graph.change("main", Person={"lone": {}})
    graph.merge("main", "b")
    graph.change("main", Person={"lone": None})
    graph.change("b", Knows={"new": knows("bob", "ada")})

    graph.merge()

    assert (graph.ids("Person"), graph.ids("Knows")) == (["ada", "bob"], ["e", "new"])


def test_a_value_that_each_side_gave_to_another_row_is_a_unique_violation(graph: Merging) -> None:
    graph.change("b", Person={"ada": {"email": "a@b"}})
    graph.change("main", Person={"bob": {"email": "a@b"}})

    assert graph.conflicts() == [("UniqueViolation", "Person", "ada")]


def test_edges_that_are_too_many_together_are_a_cardinality_violation(graph: Merging) -> None:
    graph.change("main", Company={"beta": {}})
    graph.merge("main", "b")
    graph.change("b", WorksAt={"one": knows("ada", "acme")})
    graph.change("main", WorksAt={"two": knows("ada", "beta")})

    assert graph.conflicts() == [("CardinalityViolation", "Person", "ada")]


def test_a_failed_merge_leaves_the_next_write_unhindered(graph: Merging) -> None:
    graph.change("b", Person={"ada": {"age": 10}})
    graph.change("main", Person={"ada": {"age": 20}})
    graph.conflicts()

    graph.change("main", Person={"eve": {}})
    graph.change("b", Person={"ada": {"age": 20}})

    assert graph.merge().outcome is MergeOutcome.MERGED
    assert graph.ids("Person") == ["ada", "bob", "eve"]


# Dry runs, conditions, deleting the source


def test_a_dry_run_shows_outcome_counts_and_conflicts_and_changes_nothing(graph: Merging) -> None:
    graph.change("b", Person={"ada": {"age": 10}, "eve": {}, "bob": {"age": 3}}, Company={"acme": {"city": "Rome"}})
    graph.change("main", Person={"ada": {"age": 20}})
    head = graph.head()

    result = graph.merge(dry_run=True, delete_branch=True)

    assert (result.outcome, result.dry_run, result.commit) == (MergeOutcome.MERGED, True, None)
    assert MergeAnswer.encode(result)["types"] == {
        "node:Person": {"inserted": 1, "updated": 1},
        "node:Company": {"updated": 1},
    }
    assert [(one.kind, one.entity_id) for one in result.conflicts] == [("DivergentUpdate", "ada")]
    assert graph.head() == head
    assert graph.graph.branches.list() == ["b", "main"]


def test_a_dry_run_of_a_fast_forward_counts_exactly(graph: Merging) -> None:
    graph.change("b", Person={"ada": {"age": 10}, "eve": {}}, Knows={"e": None})

    result = graph.merge(dry_run=True)

    assert result.outcome is MergeOutcome.FAST_FORWARD
    assert MergeAnswer.encode(result)["types"] == {
        "node:Person": {"inserted": 1, "updated": 1},
        "edge:Knows": {"deleted": 1},
    }


def test_the_source_is_deleted_on_request(graph: Merging) -> None:
    graph.change("b", Person={"eve": {}})

    result = graph.merge(delete_branch=True)

    assert (result.deleted, result.not_deleted) == (True, None)
    assert graph.graph.branches.list() == ["main"]
    assert graph.ids("Person") == ["ada", "bob", "eve"]


def test_a_merge_can_depend_on_the_targets_head(graph: Merging) -> None:
    graph.change("b", Person={"eve": {}})
    known = graph.head().logical_head
    graph.change("main", Company={"beta": {}})
    head = graph.head()

    with pytest.raises(PreconditionFailed):
        graph.merge(if_commit=known)

    assert graph.head() == head
    assert graph.merge(if_commit=head.logical_head).commit is not None


def test_a_merge_that_is_repeated_with_its_txn_id_happens_once(graph: Merging) -> None:
    graph.change("b", Person={"eve": {}})

    first = graph.merge(txn_id="mine")
    graph.change("b", Person={"eve": {"age": 3}})
    second = graph.merge(txn_id="mine")

    assert first.commit is not None
    assert second.commit is not None
    assert first.commit.id == second.commit.id == graph.head().logical_head


def test_what_makes_no_sense_is_refused(graph: Merging) -> None:
    for source, into, options in (
        ("b", "b", {}),
        ("main", "b", {"delete_branch": True}),
        ("b", "main", {"engine": "x"}),
    ):
        with pytest.raises(BadRequest):
            graph.graph.branches.merge(source, into, **options)
    with pytest.raises(BranchNotFound):
        graph.merge("nobody")
    with pytest.raises(BranchNotFound):
        graph.merge("b", "nobody")


def test_a_graph_opened_to_read_can_rehearse_a_merge_and_not_do_it(graph: Merging) -> None:
    import omnigraph

    graph.change("b", Person={"eve": {}})
    reader = omnigraph.open(graph.graph.uri, read_only=True)

    assert reader.branches.merge("b", dry_run=True).outcome is MergeOutcome.FAST_FORWARD
    with pytest.raises(ReadOnly):
        reader.branches.merge("b")


# Sequences that broke other systems


def test_a_child_branch_stays_readable_after_its_parent_fast_forwards_and_writes_on(graph: Merging) -> None:
    graph.change("b", Person={"eve": {}})
    graph.fork("child", "b")
    graph.change("main", Company={"beta": {}})
    graph.merge("main", "b")
    graph.change("b", Person={"ada": {"age": 99}})

    assert [row["age"] for row in graph.rows("Person", "child")] == [1, 2, None]
    graph.change("child", Person={"eve": {"age": 7}})
    assert graph.row("Person", "eve", "child") is not None
    assert graph.ids("Company", "child") == ["acme"]


def test_merging_main_into_a_branch_editing_one_node_and_merging_back_loses_nothing(graph: Merging) -> None:
    graph.change("main", Person={"m1": {}, "bob": {"age": 20}}, Company={"beta": {}})
    graph.change("b", Person={"b1": {}})
    graph.merge("main", "b")
    graph.change("b", Person={"ada": {"age": 33}})
    graph.change("main", Person={"m2": {}})

    graph.merge("b", "main")

    assert {row["id"]: row["age"] for row in graph.rows("Person")} == {
        "ada": 33,
        "bob": 20,
        "m1": None,
        "b1": None,
        "m2": None,
    }
    assert graph.ids("Company") == ["acme", "beta"]


@pytest.mark.parametrize("target_moved", [False, True])
def test_a_branch_with_net_zero_edits_merges(graph: Merging, target_moved: bool) -> None:
    graph.change("b", Person={"ada": {"age": 50}, "eve": {}})
    graph.change("b", Person={"ada": {"age": 1}, "eve": None})
    if target_moved:
        graph.change("main", Person={"ada": {"age": 60}})

    assert graph.merge().outcome is (MergeOutcome.MERGED if target_moved else MergeOutcome.FAST_FORWARD)

    assert [(row["id"], row["age"]) for row in graph.rows("Person")] == [("ada", 60 if target_moved else 1), ("bob", 2)]


def test_two_branches_that_both_merged_a_third_do_not_conflict_on_disjoint_edits(graph: Merging) -> None:
    for name in ("c", "third"):
        graph.fork(name)
    graph.change("third", Person={"ada": {"age": 77}, "eve": {}})
    graph.merge("third", "b")
    graph.merge("third", "c")
    graph.change("b", Person={"ada": {"name": "Ada"}})
    graph.change("c", Person={"eve": {"age": 5}})

    graph.merge("c", "b")

    assert [(row["id"], row["name"], row["age"]) for row in graph.rows("Person", "b")] == [
        ("ada", "Ada", 77),
        ("bob", None, 2),
        ("eve", None, 5),
    ]
    assert graph.merge("b", "main").outcome is MergeOutcome.FAST_FORWARD


def test_updating_the_same_row_many_times_through_merges(graph: Merging) -> None:
    for age in range(10, 22):
        writer, other = ("b", "main") if age % 2 else ("main", "b")
        graph.change(writer, Person={"ada": {"age": age}})
        graph.change(other, Person={"bob": {"age": age}})
        assert graph.merge(writer, other).outcome is MergeOutcome.MERGED
        graph.merge(other, writer)
        for branch in ("main", "b"):
            assert [row["age"] for row in graph.rows("Person", branch)] == [age, age]


def test_two_sources_merged_one_after_the_other_into_an_untouched_target(graph: Merging) -> None:
    graph.fork("c")
    graph.change("b", Person={"b1": {}})
    graph.change("c", Person={"c1": {}})

    assert [graph.merge(name).outcome for name in ("b", "c")] == [MergeOutcome.FAST_FORWARD, MergeOutcome.MERGED]
    assert graph.ids("Person") == ["ada", "b1", "bob", "c1"]


def test_merging_again_after_more_work_uses_the_new_base(graph: Merging) -> None:
    graph.change("b", Person={"ada": {"age": 10}})
    graph.change("main", Person={"bob": {"age": 20}})
    graph.merge()
    graph.change("main", Person={"ada": {"age": 11}})
    graph.change("b", Person={"bob": {"name": "Bob"}})

    graph.merge()

    assert [(row["age"], row["name"]) for row in graph.rows("Person")] == [(11, None), (20, "Bob")]


# Criss-cross


def crossed(graph: Merging) -> None:
    """Each branch merges the other as it was before: two newest common ancestors, of which neither knows the other."""
    graph.fork("main-before")
    graph.fork("b-before", "b")
    graph.change("main-before", Person={"ada": {"age": 10}})
    graph.change("b-before", Person={"bob": {"age": 20}})
    for target in ("main", "b"):
        graph.change(target, Company={f"own of {target}": {}})
        for source in ("main-before", "b-before"):
            graph.merge(source, target)


def test_a_criss_cross_has_its_bases_merged_first(graph: Merging) -> None:
    crossed(graph)
    graph.change("main", Person={"ada": {"age": 11}})
    graph.change("b", Person={"bob": {"age": 21}})

    with mock.patch.object(merge_plan, "_merge_states", wraps=merge_plan._merge_states) as merged:
        assert graph.merge().outcome is MergeOutcome.MERGED

    assert merged.called
    assert [row["age"] for row in graph.rows("Person")] == [11, 21]
    assert graph.merge("main", "b").outcome is MergeOutcome.FAST_FORWARD


def test_a_criss_cross_whose_sides_really_disagree_is_refused(graph: Merging) -> None:
    crossed(graph)
    graph.change("main", Person={"ada": {"age": 11}})
    graph.change("b", Person={"ada": {"age": 12}})

    assert graph.conflicts() == [("DivergentUpdate", "Person", "ada")]


def merged_both(graph: Merging, **ages: int) -> None:
    """Two common ancestors that conflict with each other; each branch agreed with one at a time, then decided."""
    for name, age in (("x", 10), ("y", 20)):
        graph.fork(name)
        graph.change(name, Person={"ada": {"age": age}})
    for target, first, second in (("main", "x", "y"), ("b", "y", "x")):
        graph.merge(first, target)
        agreed = graph.row("Person", "ada", second)
        assert agreed is not None
        graph.change(target, Person={"ada": {"age": agreed["age"]}})
        graph.merge(second, target)
        graph.change(target, Person={"ada": {"age": ages[target]}})


def test_bases_that_disagree_leave_what_both_sides_agree_about_by_now(graph: Merging) -> None:
    merged_both(graph, main=30, b=30)
    graph.change("b", Person={"bob": {"age": 9}})

    graph.merge()

    assert [row["age"] for row in graph.rows("Person")] == [30, 9]


def test_sides_that_kept_what_their_bases_disagreed_about_disagree_still(graph: Merging) -> None:
    merged_both(graph, main=10, b=20)

    assert graph.conflicts() == [("DivergentUpdate", "Person", "ada")]


def test_the_virtual_base_is_never_published(graph: Merging) -> None:
    crossed(graph)
    graph.change("main", Person={"ada": {"age": 11}})
    tables = Path(graph.graph.uri) / "tables"

    def versions() -> int:
        return sum(1 for path in tables.rglob("*.manifest"))

    before = versions()
    result = graph.merge(dry_run=True)

    assert (result.outcome, result.conflicts) == (MergeOutcome.MERGED, ())
    assert versions() == before
