"""What is due, decided from values: tails that are long, fragments that are small, segments that cover too little."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnigraph.maintenance.background import folds_due
from omnigraph.maintenance.policy import FAN, GENTLE, THOROUGH, Effort, groups_to_compact, plan_segments
from omnigraph.manifest.model.manifest import Manifest, Position, TableRef
from omnigraph.manifest.settings import EXIT_LIMIT, HARD_LIMIT, Settings
from omnigraph.storage.table.handles import TableVersion
from omnigraph.storage.table.maintain.layout import FragmentLayout, SegmentLayout, TableLayout
from omnigraph.storage.table.table_content import TailEntry

SETTINGS = Settings()


def manifest(**tails: list[TailEntry]) -> Manifest:
    tables = {
        f"node:{name}": TableRef(TableVersion(name, 1), 100, "b.1", tuple(tail), None) for name, tail in tails.items()
    }
    return Manifest(
        "main", "b", 1_000, "s", "b.1", datetime(2026, 1, 1, tzinfo=UTC), {"b": Position(1_000)}, tables=tables
    )


def entries(numbers: range, size: int = 100, branch: str = "b") -> list[TailEntry]:
    return [TailEntry(branch, number, "node:T", size) for number in numbers]


# Folds


@pytest.mark.parametrize("factor", [1, EXIT_LIMIT, HARD_LIMIT])
def test_a_tail_is_due_above_its_limit_of_manifests(factor: int) -> None:
    at_the_limit = manifest(A=entries(range(32 * factor)), B=entries(range(3)))
    above = manifest(A=entries(range(32 * factor + 1)), B=entries(range(3)))

    assert folds_due(at_the_limit, replace(SETTINGS, tails_manifests=10_000), factor) == ()
    assert folds_due(above, replace(SETTINGS, tails_manifests=10_000), factor) == ("node:A",)


def test_a_tail_is_due_above_its_limit_of_bytes() -> None:
    assert folds_due(manifest(A=entries(range(2), 256 * 1024)), SETTINGS) == ()
    assert folds_due(manifest(A=[*entries(range(2), 256 * 1024), *entries(range(2, 3), 1)]), SETTINGS) == ("node:A",)


def test_while_all_tails_name_too_many_manifests_the_oldest_go_first() -> None:
    tails = {f"T{n:03}": entries(range(n, n + 1)) for n in range(129)}

    due = folds_due(manifest(**tails), SETTINGS)

    assert due == tuple(f"node:T{n:03}" for n in range(65))
    assert folds_due(manifest(**dict(list(tails.items())[1:])), SETTINGS) == ()


def test_tables_that_share_their_manifests_count_them_once() -> None:
    assert folds_due(manifest(**{f"T{n}": entries(range(30)) for n in range(20)}), SETTINGS) == ()


def test_what_a_branch_inherited_is_older_than_its_own() -> None:
    own = {f"T{n:03}": entries(range(n, n + 1)) for n in range(128)}

    due = folds_due(manifest(**own, Inherited=entries(range(900, 901), branch="a")), SETTINGS)

    assert due[0] == "node:Inherited"


def test_nothing_is_due_without_tails() -> None:
    assert folds_due(manifest(A=[]), replace(SETTINGS, tail_manifests=0, tails_manifests=0)) == ()


# Fragments


def shape(*rows: int, deleted: dict[int, int] | None = None, sizes: dict[int, int] | None = None) -> TableLayout:
    fragments = [
        FragmentLayout(n, count, (deleted or {}).get(n, 0), (sizes or {}).get(n, count * 10), str(n))
        for n, count in enumerate(rows)
    ]
    return TableLayout(tuple(fragments), (), frozenset({"id"}), len(rows))


SMALL = Effort(target_rows=100, target_bytes=10_000)


def test_small_fragments_are_put_together_up_to_the_wanted_size() -> None:
    assert groups_to_compact(shape(40, 60, 30, 30), SMALL) == [(0, 1), (2, 3)]
    assert groups_to_compact(shape(100, 40, 100, 50), SMALL) == [(1, 3)]


def test_what_would_not_become_fewer_is_left_alone() -> None:
    assert groups_to_compact(shape(100, 100), SMALL) == []
    assert groups_to_compact(shape(60, 60, 60), SMALL) == []
    assert groups_to_compact(shape(50), SMALL) == []


def test_wide_rows_make_large_fragments_of_few() -> None:
    assert groups_to_compact(shape(3, 3, sizes={0: 9_000, 1: 9_000}), SMALL) == []
    assert groups_to_compact(shape(3, 3, sizes={0: 12_000, 1: 12_000}), SMALL) == []
    assert groups_to_compact(shape(3, 3, sizes={0: 5_000, 1: 5_000}), SMALL) == [(0, 1)]


def test_a_fragment_is_rewritten_for_its_deleted_rows_alone() -> None:
    assert groups_to_compact(shape(100, deleted={0: 11}), SMALL) == []
    assert groups_to_compact(shape(100, deleted={0: 12}), SMALL) == [(0,)]


def test_behind_folds_only_fragments_of_one_size_are_put_together() -> None:
    gentle = replace(GENTLE, target_rows=1_000_000, small_rows=0)

    assert groups_to_compact(shape(500_000, *[3] * (FAN - 1)), gentle) == []
    assert groups_to_compact(shape(500_000, *[3] * FAN), gentle) == [tuple(range(1, FAN + 1))]
    cascade = groups_to_compact(shape(500_000, *[20] * (FAN - 1), *[3] * FAN), gentle)
    assert [sorted(group) for group in cascade] == [list(range(1, 2 * FAN))], "what they become is of that size"


def test_behind_folds_what_is_little_is_kept_in_one_fragment() -> None:
    gentle = replace(GENTLE, small_rows=100, small_bytes=5_000)

    assert groups_to_compact(shape(60, 3), gentle) == [(1, 0)]
    assert groups_to_compact(shape(99, 3), gentle) == []
    assert groups_to_compact(shape(500, 3, 4), gentle) == [(1, 2)]
    assert groups_to_compact(shape(50, 3, sizes={0: 4_990}), gentle) == [], "few rows may be much"
    assert groups_to_compact(shape(50, deleted={0: 40}), gentle) == [(0,)]


@given(st.lists(st.integers(0, 5_000), max_size=60), st.sampled_from([THOROUGH, GENTLE, SMALL]))
def test_no_fragment_is_in_two_groups_and_every_group_is_worth_it(rows: list[int], effort: Effort) -> None:
    groups = groups_to_compact(shape(*rows), effort)

    members = [number for group in groups for number in group]
    assert len(set(members)) == len(members)
    assert all(len(group) > 1 for group in groups), "none of them has deleted rows"


@given(st.lists(st.integers(1, 40), min_size=1, max_size=400))
def test_under_a_stream_of_folds_fragments_stay_few_and_rows_move_seldom(folds: list[int]) -> None:
    fragments: list[int] = []
    moved = 0
    for count in folds:
        fragments.append(count)
        for group in groups_to_compact(shape(*fragments), replace(GENTLE, small_rows=0)):
            together = sum(fragments[number] for number in group)
            moved += together
            fragments = [rows for number, rows in enumerate(fragments) if number not in group] + [together]

    assert len(fragments) <= (FAN - 1) * 6
    assert moved <= 6 * sum(folds)


@given(st.lists(st.integers(1, 512), min_size=1, max_size=300))
def test_a_table_of_few_rows_is_one_fragment_after_every_fold(folds: list[int]) -> None:
    fragments: list[int] = []
    for count in folds:
        fragments.append(count)
        for group in groups_to_compact(shape(*fragments), GENTLE):
            together = sum(fragments[number] for number in group)
            fragments = [rows for number, rows in enumerate(fragments) if number not in group] + [together]
        assert len(fragments) == 1 or sum(fragments) > GENTLE.small_rows
    assert len(fragments) <= FAN + 1


# Indexes


def indexed(base: TableLayout, *segments: tuple[int, ...]) -> TableLayout:
    made = tuple(SegmentLayout(f"u{n}", "id_btree", frozenset(some)) for n, some in enumerate(segments))
    return replace(base, segments=made)


def test_an_index_is_built_over_everything_at_first() -> None:
    assert plan_segments(shape(10, 20), "id_btree", THOROUGH).build == ((0, 1),)


def test_a_table_of_few_rows_gets_its_first_index_from_optimize_alone() -> None:
    assert plan_segments(shape(10, 20), "id_btree", GENTLE).build == ()
    assert plan_segments(indexed(shape(10, 20), (0,)), "id_btree", GENTLE).build == ((1,),)
    assert plan_segments(shape(0), "id_btree", THOROUGH).build == ()


def test_small_segments_are_put_together_and_full_ones_stay() -> None:
    effort = replace(THOROUGH, segment_rows=100)

    due = plan_segments(indexed(shape(60, 10, 10, 5), (0,), (1,), (2,)), "id_btree", effort)

    assert due.build == ((1, 2, 3),)
    assert due.replaced == ("u1", "u2")
    assert plan_segments(indexed(shape(60, 10, 10, 5), (0,), (1, 2, 3)), "id_btree", effort).build == ()


def test_segments_over_rewritten_fragments_go_and_new_ones_are_built() -> None:
    rewritten = replace(indexed(shape(10, 10), (0, 1)), fragments=(FragmentLayout(9, 20, 0, 0, "9"),))

    due = plan_segments(rewritten, "id_btree", GENTLE)

    assert due.build == ((9,),)
    assert due.dead == ("u0",)


def test_what_an_earlier_attempt_has_built_is_not_built_again() -> None:
    due = plan_segments(indexed(shape(10, 20, 5), (0,)), "id_btree", THOROUGH, given=frozenset({0, 1}))

    assert due.build == ((2,),)
    assert due.dead == ("u0",)


def test_behind_a_writer_no_more_is_rewritten_or_indexed_than_can_be_without_notice() -> None:
    effort = replace(GENTLE, rows_max=100, rows_min=1, small_rows=0)

    assert groups_to_compact(shape(*[15] * 8), effort) == []
    assert groups_to_compact(shape(*[12] * 8), effort) == [tuple(range(8))]
    assert plan_segments(shape(90, 20), "id_btree", effort).build == ()
    assert plan_segments(shape(90, 10), "id_btree", effort).build == ((0, 1),)
    mostly_gone = indexed(shape(90, 20), (0, 7, 8, 9))
    assert not plan_segments(mostly_gone, "id_btree", effort), "what there is stays until there is better"


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=12),
    st.lists(st.sets(st.integers(0, 15), min_size=1, max_size=5), max_size=6),
    st.sampled_from([replace(THOROUGH, segment_rows=200), replace(GENTLE, rows_min=1)]),
)
def test_afterwards_every_fragment_is_in_one_segment(rows: list[int], given_: list[set[int]], effort: Effort) -> None:
    base = indexed(shape(*rows), *(tuple(some) for some in given_))

    due = plan_segments(base, "id_btree", effort)

    kept = [one.fragments for one in base.segments if one.uuid not in (*due.dead, *due.replaced)]
    covered = [number for some in (*kept, *due.build) for number in some if number < len(rows)]
    assert sorted(covered) == list(range(len(rows)))
