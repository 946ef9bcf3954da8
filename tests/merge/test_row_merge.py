"""How a row is decided, and how a table's rows are: pure functions, and the same in any number of parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnigraph.errors import BadRequest
from omnigraph.merge import table_merge
from omnigraph.merge.merge import choose_runner, merge
from omnigraph.merge.plan import CHANGED_ROWS_LOCAL_MAX, MergeOutcome
from omnigraph.merge.row_merge import MergedRows, merge_rows
from omnigraph.merge.table_merge import IdPartition
from omnigraph.schema.arrow import arrow_schema
from omnigraph.schema.lang.compile import compile_schema
from omnigraph.storage.util.runner import LocalRunner
from support.merge import Merging, make_merging

NOTE = compile_schema("""
node Note { k: String @key  text: String?  mark: Vector(2)? @embed("text")  tags: [String]?  size: F64? }
""").catalog.by_name["Note"]
Image = dict[str, Any]


def table(rows: dict[str, Image]) -> pa.Table:
    listed = [{"id": entity, "k": entity, **row} for entity, row in rows.items()]
    return pa.Table.from_pylist(listed, arrow_schema(NOTE))


def decided(base: dict[str, Image], ours: dict[str, Image], theirs: dict[str, Image]) -> MergedRows:
    return merge_rows(table(base), table(ours), table(theirs), NOTE)


def written(found: MergedRows) -> dict[str, Image]:
    return {row.pop("id"): row for row in found.rows.to_pylist()}


def kinds(found: MergedRows) -> dict[str, str]:
    return {conflict.entity_id: conflict.kind for conflict in found.conflicts}


def test_lists_and_vectors_are_compared_as_a_whole() -> None:
    base = {"x": {"tags": ["a"], "mark": [1.0, 2.0]}}

    found = decided(base, {"x": {"tags": ["a", "b"], "mark": [1.0, 2.0]}}, {"x": {"tags": ["a"], "mark": [3.0, 4.0]}})

    assert written(found)["x"]["tags"] == ["a", "b"]
    assert written(found)["x"]["mark"] == [3.0, 4.0]
    both = decided(base, {"x": {"tags": ["b"], "mark": [1.0, 2.0]}}, {"x": {"tags": ["c"], "mark": [1.0, 2.0]}})
    assert kinds(both) == {"x": "DivergentUpdate"}


def test_a_value_that_became_null_is_a_change_like_others() -> None:
    found = decided({"x": {"size": 1.0}}, {"x": {"size": None}}, {"x": {"size": 2.0}})

    assert kinds(found) == {"x": "DivergentUpdate"}
    assert "size (null and 2.0)" in found.conflicts[0].message
    assert written(decided({"x": {"size": 1.0}}, {"x": {"size": 1.0}}, {"x": {"size": None}}))["x"]["size"] is None


def test_a_vector_is_taken_from_the_side_of_the_text_it_was_computed_from() -> None:
    """One side changed the text, so its vector is null until it is embedded again; the other embedded the old text."""
    base = {"x": {"text": "old", "mark": None}}
    edited, embedded = {"x": {"text": "new", "mark": None}}, {"x": {"text": "old", "mark": [1.0, 2.0]}}

    assert written(decided(base, edited, embedded)) == {}
    found = written(decided(base, embedded, edited))

    assert (found["x"]["text"], found["x"]["mark"]) == ("new", None)


def test_vectors_of_one_text_are_properties_like_others() -> None:
    base = {"x": {"text": "t", "mark": [0.0, 0.0]}}

    found = decided(base, {"x": {"text": "t", "mark": [1.0, 0.0]}}, {"x": {"text": "t", "mark": [2.0, 0.0]}})

    assert kinds(found) == {"x": "DivergentUpdate"}


def test_what_is_written_over_or_removed_is_given_as_it_was() -> None:
    base = {"x": {"size": 1.0}, "y": {"size": 1.0}}

    found = decided(base, base, {"x": {"size": 2.0}, "z": {}})

    assert (sorted(written(found)), found.removed) == (["x", "z"], ("y",))
    assert set(found.before.column("id").to_pylist()) == {"x", "y"}


VALUES = st.fixed_dictionaries({"text": st.sampled_from(["a", "b", None]), "size": st.sampled_from([0.0, 1.0, None])})
ROWS = st.dictionaries(st.sampled_from("xyz"), VALUES, max_size=3)


def expected(base: Image | None, ours: Image | None, theirs: Image | None) -> Image | str | None:
    """For one row, what the columns decide for many at once."""
    if ours == theirs or theirs == base:
        return ours
    if ours == base:
        return theirs
    if base is None:
        return "DivergentInsert"
    if ours is None or theirs is None:
        return "DeleteVsUpdate"
    merged = {}
    for name in base:
        mine, other = ours[name] != base[name], theirs[name] != base[name]
        if mine and other and ours[name] != theirs[name]:
            return "DivergentUpdate"
        merged[name] = theirs[name] if other else ours[name]
    return merged


@settings(max_examples=150, deadline=None)
@given(ROWS, ROWS, ROWS)
def test_columns_decide_as_single_rows_would(
    base: dict[str, Image], ours: dict[str, Image], theirs: dict[str, Image]
) -> None:
    found = decided(base, ours, theirs)

    after: dict[str, Any] = {**ours, **{k: {n: v[n] for n in ("text", "size")} for k, v in written(found).items()}}
    after = {entity: row for entity, row in after.items() if entity not in found.removed} | kinds(found)
    wanted = {entity: expected(base.get(entity), ours.get(entity), theirs.get(entity)) for entity in "xyz"}
    assert after == {entity: row for entity, row in wanted.items() if row is not None}


# In parts


@settings(max_examples=30, deadline=None)
@given(st.sets(st.text(max_size=4), max_size=20), st.integers(1, 5))
def test_every_id_is_in_exactly_one_part(ids: set[str], parts: int) -> None:
    rows = pa.table({"id": pa.array(sorted(ids), pa.string())})

    found = [
        str(entity)
        for part in range(parts)
        for entity in IdPartition(part, parts).select(rows).column("id").to_pylist()
    ]

    assert sorted(found) == sorted(ids)


@pytest.fixture
def graph(tmp_path: Path) -> Merging:
    """Both sides changed every third of 60 persons: alone, both alike, and both differently."""
    merging = make_merging(tmp_path / "graph")
    names = [f"p{number:02d}" for number in range(60)]
    merging.change(Person={name: {"age": 1} for name in names})
    merging.fork("b")
    merging.change("b", Person={name: {"age": 2} for name in names[::3]} | {names[1]: None, "new": {}})
    merging.change("main", Person={name: {"name": "N"} for name in names[::2]} | {names[3]: None})
    return merging


def test_a_merge_in_parts_does_what_one_in_one_piece_does(graph: Merging, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_merge, "ROWS_PER_TASK", 10)
    for name in ("whole", "parts"):
        graph.fork(name)

    whole = merge(graph.graph.repository, "b", "whole", engine="local", dry_run=True)
    parts = merge(graph.graph.repository, "b", "parts", engine="spark", runner=LocalRunner, dry_run=True)

    assert [(one.kind, one.entity_id) for one in whole.conflicts] == [("DeleteVsUpdate", "p03")]
    assert parts.conflicts == whole.conflicts
    assert parts.types == whole.types


def test_a_merge_in_partitions_is_committed(graph: Merging, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_merge, "ROWS_PER_TASK", 10)
    graph.change("main", Person={"p03": {"age": 2}})

    result = merge(graph.graph.repository, "b", engine="spark", runner=LocalRunner)

    assert result.outcome is MergeOutcome.MERGED
    assert [row["age"] for row in graph.rows("Person")].count(2) == 20
    assert graph.row("Person", "p01") is None
    assert [row["name"] for row in graph.rows("Person")].count("N") == 30


def test_large_contests_go_to_the_runner_and_small_ones_do_not() -> None:
    runner = LocalRunner()

    assert choose_runner("auto", lambda: runner)(CHANGED_ROWS_LOCAL_MAX) is None
    assert choose_runner("auto", lambda: runner)(CHANGED_ROWS_LOCAL_MAX + 1) is runner
    assert choose_runner("spark", lambda: runner)(1) is runner
    assert choose_runner("local", lambda: runner)(CHANGED_ROWS_LOCAL_MAX + 1) is None
    with pytest.raises(BadRequest, match="Spark"):
        choose_runner("spark", None)(1)
