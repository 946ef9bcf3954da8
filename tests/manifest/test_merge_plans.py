"""A merge as a plan: what it makes of its base, what losing a race means for it, and what tells of removed rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from omnigraph.manifest.commit.compose import compose_manifest
from omnigraph.manifest.commit.conflicts import Proceed, Refuse, Replan, decide, may_have_removed
from omnigraph.manifest.commit.plan import Adopted, ConflictPolicy, DataChange, Drop, Merged, PublishPlan, StagedTable
from omnigraph.manifest.model.codec import decode_entry, encode_entry
from omnigraph.manifest.model.manifest import Position, RowCounts, TableRef
from omnigraph.storage.table.handles import TableVersion

from .builders import BRANCH_ID, NOON, fence, manifest, plan, ref, staged_on

PERSON, COMPANY, KNOWS = "node:Person", "node:Company", "edge:Knows"
OTHER = "bbbbbbbbbbbbb"
THEIRS = TableRef(TableVersion("t7", 9), 5, f"{OTHER}.3", removed_at=f"{OTHER}.2", columns="sha256:one")


def merging(*, adopted: bool = True, **more: object) -> PublishPlan:
    merged = Merged({BRANCH_ID: Position(2), OTHER: Position(3)}, {PERSON: Adopted(THEIRS)} if adopted else {})
    change = DataChange("merge", merged_parent=f"{OTHER}.3", merged=merged)
    return PublishPlan("txn", ConflictPolicy.STRICT, replace(change, **more))  # type: ignore[arg-type]


def test_a_merge_has_the_ancestors_of_both_sides_and_adopts_references_as_they_are() -> None:
    base = manifest(
        4,
        {PERSON: ref(1), COMPANY: ref(1, table_id="t2")},
        ancestry={BRANCH_ID: Position(4), "ccccccccccccc": Position(8)},
    )

    made = compose_manifest(base, merging(), NOON)

    assert made.ancestry == {BRANCH_ID: Position(5), OTHER: Position(3), "ccccccccccccc": Position(8)}
    assert made.tables == {PERSON: THEIRS, COMPANY: base.tables[COMPANY]}
    (commit,) = made.commits
    assert (commit.parent, commit.merged_parent, commit.kind) == (f"{BRANCH_ID}.4", f"{OTHER}.3", "merge")
    assert commit.touched == {PERSON: RowCounts(inserted=4)}
    assert decode_entry(encode_entry(made), "it") == made


def test_a_table_that_was_converted_on_the_way_is_new_with_the_merge() -> None:
    merged = Merged({OTHER: Position(3)}, {PERSON: Adopted(THEIRS, converted=True)})

    made = compose_manifest(manifest(4), merging(merged=merged), NOON)

    assert made.tables[PERSON].changed_at == made.tables[PERSON].removed_at == f"{BRANCH_ID}.5"


def test_a_merge_that_brings_no_rows_is_a_commit_all_the_same() -> None:
    assert not merging(adopted=False).changes_nothing
    assert PublishPlan("txn", ConflictPolicy.STRICT, DataChange("merge")).changes_nothing


def test_a_merge_plans_again_after_every_fence_though_it_staged_nothing() -> None:
    base = manifest(4)
    fenced = manifest(5, fenced_at=5, fence=fence())

    assert isinstance(decide(merging(), base, fenced), Replan)
    assert decide(plan(ConflictPolicy.STRICT, base), base, fenced) == Proceed()


def test_a_merge_is_strict_in_what_it_adopts() -> None:
    base = manifest(4, {PERSON: ref(1)})
    head = manifest(5, {PERSON: ref(2, f"{BRANCH_ID}.5")})

    assert decide(merging(), base, head) == Refuse(PERSON, base.tables[PERSON].changed_at, f"{BRANCH_ID}.5")
    assert decide(merging(), base, manifest(5, {PERSON: ref(1), COMPANY: ref(1, f"{BRANCH_ID}.5")})) == Proceed()


# What tells of removed rows


@pytest.mark.parametrize(("deleted", "told"), [(0, False), (1, True)])
def test_a_commit_that_removes_rows_leaves_its_stamp(deleted: int, told: bool) -> None:
    base = manifest(4, {PERSON: ref(1)})
    touch = RowCounts(inserted=2, deleted=deleted)
    writing = PublishPlan(
        "txn", ConflictPolicy.STRICT, DataChange("mutation", (), {PERSON: staged_on(base, PERSON, touch)})
    )

    after = compose_manifest(base, writing, NOON).tables[PERSON]

    assert after.removed_at == (f"{BRANCH_ID}.5" if told else None)
    assert may_have_removed(base.tables[PERSON], after) is told


def test_maintenance_copies_the_stamp() -> None:
    base = manifest(4, {PERSON: replace(ref(1), removed_at="x.1")})

    after = compose_manifest(base, plan(ConflictPolicy.MAINTENANCE, base, writes=[PERSON]), NOON).tables[PERSON]

    assert (after.removed_at, after.changed_at) == ("x.1", base.tables[PERSON].changed_at)
    assert not may_have_removed(base.tables[PERSON], after)


def test_a_table_that_is_gone_or_another_may_have_lost_rows_and_a_new_one_has_none() -> None:
    one = ref(1)

    assert may_have_removed(one, None)
    assert may_have_removed(one, ref(1, "x.2", table_id="t9"))
    assert not may_have_removed(None, one)
    assert not may_have_removed(None, None)


def test_a_dropped_table_is_not_kept_by_its_stamp() -> None:
    base = manifest(4, {KNOWS: ref(1)})
    made = compose_manifest(base, merging(actions=(Drop(KNOWS),)), NOON)

    assert made.tables == {PERSON: THEIRS}


def test_a_staged_table_beside_an_adopted_one_is_new_with_the_merge() -> None:
    base = manifest(4, {COMPANY: ref(1)})
    staged = {COMPANY: StagedTable(TableVersion("t1", 8), 3, RowCounts(updated=1), TableVersion("t1", 1))}

    made = compose_manifest(base, merging(staged=staged), NOON)

    assert made.tables[COMPANY] == TableRef(TableVersion("t1", 8), 3, f"{BRANCH_ID}.5", columns="sha256:one")
