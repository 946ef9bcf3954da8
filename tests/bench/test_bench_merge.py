"""The comparison of a merge with a join measures what it says: both see the same changes."""

import sys
from pathlib import Path

ROOT = str(Path(__file__).parents[2])
sys.path.insert(0, ROOT)

from bench.merge import KEY, compare, join_in_duckdb, make, merge  # noqa: E402


def test_both_are_measured_in_one_run() -> None:
    found = compare(2_000, 0.05, with_spark=False)

    assert found.keys() == {"merge", "join"}
    assert all(seconds > 0 for seconds in found.values())


def test_the_join_finds_the_rows_that_the_merge_brings(tmp_path: Path) -> None:
    graph, changed = make(tmp_path / "graph", 2_000, 0.05)

    assert join_in_duckdb(graph) == 2 * changed
    merge(graph, "local")
    result = graph.branches.merge("b")

    assert result.types[KEY].updated == changed
