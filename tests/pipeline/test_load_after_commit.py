"""What comes after the commit of a bulk load, or of a completed job, never makes it a failure (`settle-by-reading`)."""

from __future__ import annotations

from pathlib import Path

import pytest

import omnigraph
from omnigraph.errors import Unavailable
from omnigraph.graph.graph import Graph
from omnigraph.manifest.settings import Settings
from omnigraph.pipeline.bulk.load import bulk_load
from omnigraph.pipeline.progress import Progress
from omnigraph.storage.util.runner import LocalRunner
from omnigraph.write.load.load_options import LoadOptions
from support.cleanup import clean

SCHEMA = "node Person { slug: String @key }"
NO_FSYNC = {"fsync": "false"}


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return omnigraph.init(tmp_path / "graph", SCHEMA, NO_FSYNC, settings=Settings(maintenance=0))


@pytest.fixture
def given(tmp_path: Path) -> Path:
    path = tmp_path / "people.jsonl"
    path.write_text('{"type": "Person", "data": {"slug": "ada"}}\n')
    return path


class StopAt(Progress):
    def stage(self, name: str, tasks: int | None = None) -> None:
        super().stage(name, tasks)
        if name == "publishing":
            raise KeyboardInterrupt


def refuse_deletes(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the commit on the store deletes nothing, as if it could no longer be reached."""

    def unavailable(key: str) -> None:
        raise Unavailable(key, "the store does not answer")

    monkeypatch.setattr(graph.repository.store, "delete", unavailable)


def people(graph: Graph) -> list[str]:
    rows = omnigraph.open(graph.uri, NO_FSYNC).snapshot().to_arrow("node:Person")
    return [str(slug) for slug in rows.column("slug").to_pylist()]


@pytest.mark.parametrize("job_id", [None, "nightly"])
def test_a_load_whose_intent_cannot_be_removed_is_a_success(
    graph: Graph, given: Path, monkeypatch: pytest.MonkeyPatch, job_id: str | None
) -> None:
    refuse_deletes(graph, monkeypatch)

    result = bulk_load(graph.repository, LocalRunner(), str(given), LoadOptions(job_id=job_id))

    assert result.commit is not None
    assert people(graph) == ["ada"]
    monkeypatch.undo()
    clean(graph)
    assert graph.recover().jobs == (), "the next cleanup removes what was left"


def test_a_completed_job_whose_intent_cannot_be_removed_is_a_success(
    graph: Graph, given: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyboardInterrupt):
        graph.load(str(given), engine="local", job_id="nightly", progress=StopAt())
    refuse_deletes(graph, monkeypatch)

    (ended,) = graph.recover(complete=["load-nightly"]).ended

    assert ended.outcome == "completed"
    assert people(graph) == ["ada"]
