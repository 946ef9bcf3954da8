"""Base + plan -> the next manifest, with no store and no clock."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnigraph.manifest.commit.compose import compose_manifest
from omnigraph.manifest.commit.plan import (
    ConflictPolicy,
    Create,
    CreateBranch,
    DataChange,
    DeleteBranch,
    Drop,
    EmptyBranch,
    PublishPlan,
    RaiseFence,
    StagedTable,
)
from omnigraph.manifest.model.manifest import CommitClass, Fence, Point, Position, RowCounts, TableRef, Tombstone
from omnigraph.storage.table.handles import TableVersion

from .builders import BRANCH_ID, NOON, manifest, plan, ref, staged_on

PERSON, COMPANY = "node:Person", "node:Company"
UNBORN = EmptyBranch("b", "bbbbbbbbbbbbb")
LATER = NOON + timedelta(hours=1)


def test_a_commit_takes_the_next_number_and_the_tables_that_it_staged() -> None:
    base = manifest(4, {PERSON: ref(1), COMPANY: ref(1, table_id="t2")})

    made = compose_manifest(base, plan(ConflictPolicy.CONSTRUCTIVE, base, writes=[PERSON], actor="ada"), LATER)

    assert (made.manifest_version, made.logical_head) == (5, f"{BRANCH_ID}.5")
    assert made.tables[PERSON] == TableRef(TableVersion("t1", 77), 2, f"{BRANCH_ID}.5", columns="sha256:one")
    assert made.tables[COMPANY] == base.tables[COMPANY]
    (commit,) = made.commits
    assert (commit.id, commit.parent, commit.txn_id) == (f"{BRANCH_ID}.5", f"{BRANCH_ID}.4", "txn")
    assert (commit.actor, commit.authored_at, commit.commit_class) == ("ada", LATER, CommitClass.LOGICAL)
    assert commit.touched == {PERSON: RowCounts(inserted=1)}
    assert made.ancestry == {BRANCH_ID: Position(5)}


def test_a_first_table_is_a_change_even_without_rows() -> None:
    base = manifest(4)
    empty = {PERSON: StagedTable(TableVersion("t9", 1), 0, RowCounts(), None)}
    creating = PublishPlan("txn", ConflictPolicy.CONSTRUCTIVE, DataChange("schema", (Create(PERSON, None),), empty))  # type: ignore[arg-type]

    assert not creating.changes_nothing
    created = TableRef(TableVersion("t9", 1), 0, f"{BRANCH_ID}.5", columns="sha256:one")
    assert compose_manifest(base, creating, NOON).tables == {PERSON: created}


def test_a_table_of_which_no_row_changes_stays_as_it_was() -> None:
    base = manifest(4, {PERSON: ref(1)})
    untouched = {PERSON: staged_on(base, PERSON, RowCounts())}
    writing = PublishPlan("txn", ConflictPolicy.CONSTRUCTIVE, DataChange("mutation", (), untouched))

    assert writing.changes_nothing
    assert compose_manifest(base, writing, NOON).tables == base.tables


def test_a_dropped_table_is_gone_and_its_rows_are_counted() -> None:
    base = manifest(4, {PERSON: ref(1, rows=3)})
    dropping = PublishPlan(
        "txn", ConflictPolicy.STRICT, DataChange("schema", (Drop(PERSON), Drop(COMPANY)), schema="sha256:two")
    )

    made = compose_manifest(base, dropping, NOON)

    assert (made.tables, made.schema) == ({}, "sha256:two")
    assert made.commits[0].touched == {PERSON: RowCounts(deleted=3)}


def test_maintenance_changes_where_rows_are_and_nothing_else() -> None:
    base = manifest(4, {PERSON: ref(1, rows=3)}, logical_head=f"{BRANCH_ID}.3")

    made = compose_manifest(base, plan(ConflictPolicy.MAINTENANCE, base, writes=[PERSON]), LATER)

    assert made.tables[PERSON] == TableRef(
        TableVersion("t1", 77), 3, base.tables[PERSON].changed_at, columns="sha256:one"
    )
    assert made.logical_head == base.logical_head
    (commit,) = made.commits
    assert (commit.commit_class, commit.parent) == (CommitClass.MAINTENANCE, base.logical_head)


def test_what_was_derived_from_another_version_is_never_composed() -> None:
    """`rebase` is checked once more where it would do harm."""
    base = manifest(4, {PERSON: ref(1)})
    for other in (manifest(4, {PERSON: ref(2)}), manifest(4, {PERSON: ref(1, table_id="t2")}), manifest(4)):
        with pytest.raises(AssertionError, match="rebase: "):
            compose_manifest(other, plan(ConflictPolicy.CONSTRUCTIVE, base, writes=[PERSON]), NOON)


def test_a_fence_names_the_one_before_and_raises_what_is_retained() -> None:
    base = manifest(8, {PERSON: ref(1)}, fenced_at=3, oldest_retained=2)
    raising = PublishPlan("txn", ConflictPolicy.MAINTENANCE, RaiseFence(6, ("job",)))

    made = compose_manifest(base, raising, NOON)

    assert (made.fenced_at, made.fence, made.oldest_retained) == (9, Fence(3, ("job",)), 6)
    assert (made.tables, made.logical_head) == (base.tables, base.logical_head)
    assert compose_manifest(made, plan(ConflictPolicy.CONSTRUCTIVE, made, writes=[PERSON]), NOON).fence is None


@given(st.integers(1, 50), st.integers(1, 50))
def test_oldest_retained_never_falls(before: int, asked: int) -> None:
    base = manifest(60, oldest_retained=before)
    made = compose_manifest(base, PublishPlan("txn", ConflictPolicy.MAINTENANCE, RaiseFence(asked)), NOON)

    assert made.oldest_retained == max(before, asked)


@given(st.timedeltas(min_value=timedelta(days=-365), max_value=timedelta(days=365)))
def test_authored_at_is_at_least_the_parents(offset: timedelta) -> None:
    """Its own time is kept in milliseconds, as it is shown, so that a shown time finds the commit."""
    base, now = manifest(4), NOON + offset
    shown = now.replace(microsecond=now.microsecond // 1000 * 1000)
    for effect in (DataChange("mutation"), RaiseFence(1), DeleteBranch()):
        made = compose_manifest(base, PublishPlan("txn", ConflictPolicy.MAINTENANCE, effect), now)

        assert made.authored_at == max(NOON, shown)
        assert all(commit.authored_at == made.authored_at for commit in made.commits)


def test_a_fork_is_a_copy_of_the_fork_points_state_and_no_commit() -> None:
    fork = manifest(7, {PERSON: ref(1)}, fenced_at=5, oldest_retained=4, logical_head=f"{BRANCH_ID}.6")

    born = compose_manifest(
        UNBORN, PublishPlan("txn", ConflictPolicy.CONSTRUCTIVE, CreateBranch("b", fork.schema, fork)), LATER
    )

    assert (born.branch, born.branch_id, born.manifest_version) == ("b", UNBORN.branch_id, 1)
    assert (born.tables, born.schema, born.logical_head) == (fork.tables, fork.schema, fork.logical_head)
    assert (born.commits, born.fork, born.authored_at) == ((), Point(BRANCH_ID, 7), fork.authored_at)
    assert (born.fenced_at, born.oldest_retained) == (0, 1), "those are numbers of the other branch"
    assert born.ancestry == {BRANCH_ID: Position(7), UNBORN.branch_id: Position(1)}


def test_a_branch_keeps_the_ancestry_of_its_source_and_counts_its_own() -> None:
    born = compose_manifest(
        UNBORN, PublishPlan("txn", ConflictPolicy.CONSTRUCTIVE, CreateBranch("b", "s", manifest(7))), NOON
    )

    second = compose_manifest(born, plan(ConflictPolicy.CONSTRUCTIVE, born, writes=[PERSON]), NOON)

    assert second.ancestry == {BRANCH_ID: Position(7), UNBORN.branch_id: Position(2)}
    assert second.commits[0].parent == f"{BRANCH_ID}.7"
    assert second.fork == Point(BRANCH_ID, 7)


def test_main_begins_with_a_commit_that_has_no_parent() -> None:
    born = compose_manifest(
        UNBORN, PublishPlan("txn", ConflictPolicy.CONSTRUCTIVE, CreateBranch("main", "sha256:one")), NOON
    )

    (first,) = born.commits
    assert (first.id, first.parent, first.kind) == (f"{UNBORN.branch_id}.1", None, "init")
    assert born.logical_head == first.id


def test_a_tombstone_keeps_the_number_and_lets_go_of_the_tables() -> None:
    base = manifest(4, {PERSON: ref(1)}, oldest_retained=2, fork=Point("ccccccccccccc", 1))

    grave = compose_manifest(base, PublishPlan("txn", ConflictPolicy.MAINTENANCE, DeleteBranch(), actor="ada"), NOON)

    assert (grave.manifest_version, grave.tombstone) == (5, Tombstone("txn", "ada"))
    assert (grave.tables, grave.commits, grave.fork) == ({}, (), base.fork)
    assert (
        compose_manifest(UNBORN, PublishPlan("txn", ConflictPolicy.MAINTENANCE, DeleteBranch()), NOON).manifest_version
        == 1
    )


@pytest.mark.parametrize("effect", [DataChange("mutation"), RaiseFence(1)])
def test_nothing_but_a_birth_or_an_end_comes_first(effect: DataChange | RaiseFence) -> None:
    with pytest.raises(AssertionError, match=rf"^{type(effect).__name__} can't follow EmptyBranch$"):
        compose_manifest(UNBORN, PublishPlan("txn", ConflictPolicy.CONSTRUCTIVE, effect), NOON)
    with pytest.raises(AssertionError, match=r"^CreateBranch can't follow Manifest$"):
        compose_manifest(manifest(1), PublishPlan("txn", ConflictPolicy.CONSTRUCTIVE, CreateBranch("b", "s")), NOON)
