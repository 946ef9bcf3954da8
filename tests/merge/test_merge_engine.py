"""Where the rows of a merge are decided: here, or by tasks where there are many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from omnigraph.errors import SparkNotReady
from omnigraph.merge import merge as merge_module
from omnigraph.merge import plan as plan_module
from omnigraph.merge.merge import merge
from omnigraph.merge.plan import MergeOutcome
from omnigraph.pipeline.spark import session
from omnigraph.storage.util.runner import LocalRunner
from support.merge import Merging, make_merging


class Watched(LocalRunner):
    """Runs tasks here, and remembers what they were for."""

    def __init__(self) -> None:
        self.stages: list[str] = []

    def run(
        self,
        task: Callable[[Any], Any],
        items: Sequence[Any],
        *,
        stage: str,
        on_done: Callable[[Any], None] | None = None,
    ) -> list[Any]:
        self.stages.append(stage)
        return super().run(task, items, stage=stage, on_done=on_done)


@pytest.fixture
def graph(tmp_path: Path) -> Merging:
    """30 persons, of whom each side changed 6, and 30 companies, of which each side changed one."""
    merging = make_merging(tmp_path / "graph")
    names = [f"n{number:02d}" for number in range(30)]
    merging.change(Person={name: {} for name in names}, Company={name: {} for name in names})
    merging.fork("b")
    merging.change("b", Person={name: {"age": 1} for name in names[:6]}, Company={names[0]: {"city": "Rome"}})
    merging.change("main", Person={name: {"age": 2} for name in names[6:12]}, Company={names[1]: {"city": "Oslo"}})
    return merging


def test_only_a_type_of_which_many_rows_changed_is_decided_by_tasks(
    graph: Merging, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (plan_module, merge_module):
        monkeypatch.setattr(module, "CHANGED_ROWS_LOCAL_MAX", 10)
    runner = Watched()

    result = merge(graph.graph.repository, "b", runner=lambda: runner)

    assert (result.outcome, runner.stages) == (MergeOutcome.MERGED, ["merge Person"])
    assert [row["age"] for row in graph.rows("Person")] == [1] * 6 + [2] * 6 + [None] * 18
    assert [row["city"] for row in graph.rows("Company")][:2] == ["Rome", "Oslo"]


def test_no_runner_is_requested_where_few_rows_changed(graph: Merging) -> None:
    def never() -> LocalRunner:
        raise AssertionError("no runner was requested")

    assert merge(graph.graph.repository, "b", runner=never).outcome is MergeOutcome.MERGED


def test_without_spark_the_same_tasks_run_here_unless_it_was_asked_for(
    graph: Merging, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object, **__: object) -> None:
        raise SparkNotReady("There is no Spark.")

    monkeypatch.setattr(session, "obtain", missing)
    for module in (plan_module, merge_module):
        monkeypatch.setattr(module, "CHANGED_ROWS_LOCAL_MAX", 10)

    with pytest.raises(SparkNotReady):
        graph.merge(engine="spark")
    assert graph.merge().outcome is MergeOutcome.MERGED
