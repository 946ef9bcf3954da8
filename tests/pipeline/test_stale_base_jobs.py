"""Embedding and analysing go on where a cleanup takes away the state that they began with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

import omnigraph
from omnigraph.errors import Damaged
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import Append, Upsert
from omnigraph.manifest.settings import Settings
from omnigraph.read.search.embedding import OfflineEmbedder
from support.cleanup import assert_sound, clean
from support.stall import stalled

SCHEMA = """
node Doc { slug: String @key  body: String?  rank: F64?  vec: Vector(8)? @embed("body") }
edge Cites: Doc -> Doc
"""
DOC, CITES = "node:Doc", "edge:Cites"
STAGED = Settings(inline_rows=0, maintenance=0)
NO_FSYNC = {"fsync": "false"}


@pytest.fixture
def other(tmp_path: Path) -> Graph:
    graph = omnigraph.init(tmp_path / "graph", SCHEMA, NO_FSYNC, settings=STAGED)
    graph.write([Append(DOC, docs(*(f"d{n}" for n in range(6))))])
    graph.write([Append(CITES, pa.table({"id": ["e"], "src": ["d0"], "dst": ["d1"]}))])
    return graph


@pytest.fixture
def graph(tmp_path: Path, other: Graph) -> Graph:
    return omnigraph.open(tmp_path / "graph", NO_FSYNC, settings=STAGED)


def docs(*slugs: str) -> pa.Table:
    return pa.table({"id": slugs, "slug": slugs, "body": [f"the text of {slug}" for slug in slugs]})


def taken_away(other: Graph, number: int) -> None:
    """The documents are rewritten, and what they were is cleaned up."""
    other.write([Upsert(DOC, docs("d5", f"later-{number}"))])
    other.optimize()
    other.write([Append(DOC, docs(f"last-{number}"))])
    clean(other)


def column(graph: Graph, name: str) -> dict[str, object]:
    rows = omnigraph.open(graph.uri, NO_FSYNC).snapshot().to_arrow(DOC, ["id", name])
    return dict(zip(map(str, rows.column("id").to_pylist()), rows.column(name).to_pylist(), strict=True))


class Recording:
    model, provider = "recording", "test"

    def __init__(self) -> None:
        self.texts: list[str] = []

    def embed(self, texts: Sequence[str], dimension: int) -> list[list[float]]:
        self.texts += texts
        return OfflineEmbedder().embed(texts, dimension)


@pytest.mark.parametrize("times", [1, 3])
def test_vectors_are_committed_on_the_newest_and_nothing_is_asked_twice(
    graph: Graph, other: Graph, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    happened = stalled(monkeypatch, graph.repository, "open_txn", times, lambda n: taken_away(other, n))
    asked = Recording()

    graph.embed(embedder=asked)

    assert len(happened) == times
    there = column(graph, "vec")
    assert None not in [there[f"d{n}"] for n in range(6)]
    assert sorted(asked.texts) == [f"the text of d{n}" for n in range(6)], "what came later is left to the next run"
    assert_sound(other)


def test_what_lacks_a_vector_is_looked_for_again_where_the_state_that_was_being_read_is_gone(
    graph: Graph, other: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimated: list[int] = []
    snapshot = graph.repository.snapshot

    def slow(branch: str) -> object:
        found = snapshot(branch)
        estimated.append(1)
        if len(estimated) == 2:  # the first is for the estimate
            taken_away(other, 1)
        return found

    monkeypatch.setattr(graph.repository, "snapshot", slow)

    graph.embed(embedder=OfflineEmbedder())

    assert len(estimated) > 2
    assert None not in column(graph, "vec").values()


@pytest.mark.parametrize("times", [1, 3])
def test_an_analysis_is_written_to_the_newest(
    graph: Graph, other: Graph, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    happened = stalled(monkeypatch, graph.repository, "open_txn", times, lambda n: taken_away(other, n))

    found = graph.analyze("pagerank", ["Cites"], "Doc.rank", engine="local")

    assert len(happened) == times
    assert found.commit is not None
    assert found.vertices == 6 + 2 * times
    assert None not in column(graph, "rank").values()
    assert [commit.kind for commit in other.commits(limit=None)].count("analyze") == 1
    assert_sound(other)


def test_a_damaged_state_is_reported_as_such(graph: Graph, tmp_path: Path) -> None:
    for path in (tmp_path / "graph" / "tables").rglob("data/*"):
        path.unlink()

    with pytest.raises(Damaged, match="missing"):
        graph.embed(embedder=OfflineEmbedder())
    with pytest.raises(Damaged, match="missing"):
        graph.analyze("pagerank", ["Cites"], "Doc.rank", engine="local")
