"""Large tables are merged on Spark: by the same rules, because by the same code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from omnigraph.errors import MergeConflicts
from omnigraph.merge.plan import MergeOutcome
from support.merge import make_merging

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


def test_a_merge_on_spark_does_what_one_in_this_process_does(tmp_path: Path, spark: SparkSession) -> None:
    graph = make_merging(tmp_path / "graph")
    names = [f"p{number:02d}" for number in range(40)]
    graph.change(Person={name: {"age": 1} for name in names})
    graph.fork("b")
    graph.change("b", Person={name: {"age": 2} for name in names[::3]} | {names[1]: None, "new": {"age": 3}})
    graph.change("main", Person={name: {"name": "N"} for name in names[::2]})
    graph.fork("local")

    on_spark = graph.merge("b", "main", engine="spark", spark=spark)
    here = graph.merge("b", "local", engine="local")

    assert on_spark.outcome is here.outcome is MergeOutcome.MERGED
    assert on_spark.types == here.types
    assert graph.rows("Person") == graph.rows("Person", "local")
    assert len(graph.rows("Person")) == 40


def test_conflicts_that_spark_finds_are_the_same(tmp_path: Path, spark: SparkSession) -> None:
    graph = make_merging(tmp_path / "graph")
    graph.change(Person={"ada": {"age": 1}, "bob": {"age": 1}})
    graph.fork("b")
    graph.change("b", Person={"ada": {"age": 2}, "bob": None})
    graph.change("main", Person={"ada": {"age": 3}, "bob": {"age": 4}})

    with pytest.raises(MergeConflicts) as refusal:
        graph.merge(engine="spark", spark=spark)

    assert refusal.value.conflicts == graph.merge(dry_run=True, engine="local").conflicts
    assert {(one.kind, one.entity_id) for one in refusal.value.conflicts} == {
        ("DivergentUpdate", "ada"),
        ("DeleteVsUpdate", "bob"),
    }
