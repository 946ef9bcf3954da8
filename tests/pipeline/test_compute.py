"""Which runner an operation gets: what a caller named must be there, what it left open may be replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from omnigraph.errors import BadRequest, SparkNotReady
from omnigraph.pipeline.compute import OPTIMIZE_LOCAL_ROWS_MAX, ComputeOptions, SparkProvider
from omnigraph.pipeline.spark import launch, session


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """pyspark is installed, and there is no Java that it could start; no session runs in this process either."""
    from pyspark import SparkContext

    def none() -> Path:
        raise SparkNotReady("Spark needs Java.")

    monkeypatch.setattr(launch, "find_java_home", none)
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(session, "_shared", None)


@pytest.mark.usefixtures("no_java")
def test_auto_without_java_runs_in_this_process() -> None:
    with SparkProvider(ComputeOptions("auto")) as provider:
        assert provider.runner().name == "local"


@pytest.mark.usefixtures("no_java")
@pytest.mark.parametrize("compute", [ComputeOptions("spark"), ComputeOptions("auto", master="local[1]")])
def test_spark_that_was_named_and_is_missing_is_an_error(compute: ComputeOptions) -> None:
    with SparkProvider(compute) as provider, pytest.raises(SparkNotReady):
        provider.runner().run(str, [1], stage="test")


def test_local_and_few_rows_need_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("a session was obtained")

    monkeypatch.setattr(session, "obtain", never)
    with SparkProvider(ComputeOptions("local")) as provider:
        assert provider.runner().name == "local"
        assert provider.runner_for_optimize(OPTIMIZE_LOCAL_ROWS_MAX + 1).name == "local"
    with SparkProvider(ComputeOptions("auto")) as provider:
        assert provider.runner_for_optimize(OPTIMIZE_LOCAL_ROWS_MAX).name == "local"


def test_an_unknown_engine_is_refused_at_once() -> None:
    with pytest.raises(BadRequest, match=r"Unknown engine 'duck': use auto, local or spark\."):
        ComputeOptions("duck")  # type: ignore[arg-type]
