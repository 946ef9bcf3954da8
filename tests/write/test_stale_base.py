"""A write whose base snapshot was garbage-collected is retried on the newest one."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import omnigraph
from omnigraph.errors import ConflictError, Damaged
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import Append, Upsert
from omnigraph.manifest.settings import Settings
from support.catalogs import COMPANY, KNOWS, PERSON, company_rows, ids_of, knows_rows, people, person_rows
from support.cleanup import assert_sound, clean
from support.stall import stalled, taken_away

STAGED = Settings(inline_rows=0, maintenance=0)
NO_FSYNC = {"fsync": "false"}


@pytest.fixture
def other(tmp_path: Path) -> Graph:
    graph = omnigraph.init(tmp_path / "graph", people(), NO_FSYNC, settings=STAGED)
    graph.write([Append(PERSON, person_rows("first", "second"))])
    return graph


def base_lost(monkeypatch: pytest.MonkeyPatch, graph: Graph, other: Graph, times: int) -> list[int]:
    """Every base that is opened is taken away before anything is read of it, so often."""
    return stalled(monkeypatch, graph.repository, "open_txn", times, lambda n: taken_away(other, n))


@pytest.mark.parametrize("times", [1, 2, 4])
def test_it_is_committed_once_however_often_that_happens(
    tmp_path: Path, other: Graph, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    graph = omnigraph.open(tmp_path / "graph", NO_FSYNC, settings=STAGED)
    happened = base_lost(monkeypatch, graph, other, times)

    commit = graph.write([Upsert(PERSON, person_rows("second", "mine"))])

    assert commit is not None
    assert len(happened) == times
    there = ids_of(omnigraph.open(tmp_path / "graph", NO_FSYNC).snapshot().to_arrow(PERSON))
    assert there.count("mine") == there.count("second") == 1
    assert_sound(other)


def test_a_write_that_is_not_to_be_planned_again_is_refused(
    tmp_path: Path, other: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = omnigraph.open(tmp_path / "graph", NO_FSYNC, settings=STAGED)
    base_lost(monkeypatch, graph, other, 1)

    with pytest.raises(ConflictError, match="nothing was written, run it again"):
        graph.write([Upsert(PERSON, person_rows("second", "mine"))], on_conflict="fail")

    assert "mine" not in ids_of(omnigraph.open(tmp_path / "graph", NO_FSYNC).snapshot().to_arrow(PERSON))


def test_a_damaged_head_is_reported_as_damaged(tmp_path: Path, other: Graph) -> None:
    for path in (tmp_path / "graph" / "tables").rglob("data/*"):
        path.unlink()
    graph = omnigraph.open(tmp_path / "graph", NO_FSYNC, settings=STAGED)

    with pytest.raises(Damaged, match="missing"):
        graph.write([Upsert(PERSON, person_rows("second"))])


def test_a_damaged_state_is_reported_as_damaged_while_others_write(
    tmp_path: Path, other: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (tmp_path / "graph" / "tables").rglob("data/*"):
        path.unlink()
    graph = omnigraph.open(tmp_path / "graph", NO_FSYNC, settings=STAGED)
    happened = stalled(
        monkeypatch, graph.repository, "open_txn", 9, lambda n: other.write([Append(COMPANY, company_rows(f"c{n}"))])
    )

    with pytest.raises(Damaged, match="missing"):
        graph.write([Upsert(PERSON, person_rows("second"))])

    assert len(happened) <= 3


# Changes of the schema


NARROW = "node Person { slug: String @key  score: I32? }"
WIDE = "node Person { slug: String @key  score: I64? }"
UNIQUE = "node Person { slug: String @key  score: I32? @unique }"


@pytest.mark.parametrize("wanted", [WIDE, UNIQUE], ids=["written", "looked at"])
def test_a_change_of_the_schema_whose_base_was_swept_is_refused_and_can_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    other = omnigraph.init(tmp_path / "graph", NARROW, NO_FSYNC, settings=STAGED)
    rows = pa.table({"id": ["first", "second"], "slug": ["first", "second"], "score": [1, 2]})
    other.write([Append(PERSON, rows)])
    graph = omnigraph.open(tmp_path / "graph", NO_FSYNC, settings=STAGED)

    def rewritten(_: int) -> None:
        other.write([Upsert(PERSON, rows)])
        other.optimize()
        clean(other)

    stalled(monkeypatch, graph.repository, "open_txn", 1, rewritten)

    with pytest.raises(ConflictError, match="nothing was written, run it again"):
        graph.schema.apply(wanted)

    assert other.schema.show() == NARROW
    assert graph.schema.apply(wanted).applied
    assert_sound(other)


# Optimize


def test_an_optimize_whose_base_was_swept_is_made_of_the_newest(
    tmp_path: Path, other: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = omnigraph.open(tmp_path / "graph", NO_FSYNC, settings=STAGED)
    happened = base_lost(monkeypatch, graph, other, 1)

    assert graph.optimize().commit is not None

    assert happened
    assert_sound(other)


def test_the_adjacency_that_an_optimize_saves_is_of_the_newest_where_its_own_version_was_swept(
    tmp_path: Path, other: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    other.write([Append(KNOWS, knows_rows(("first", "second")))])
    graph = omnigraph.open(tmp_path / "graph", NO_FSYNC, settings=STAGED)

    def rewritten(number: int) -> None:
        taken_away(other, number)
        other.write([Append(KNOWS, knows_rows(("second", f"of-another-main-{number}")))])
        clean(other)

    happened = stalled(monkeypatch, graph.repository, "snapshot", 1, rewritten)

    report = graph.optimize().types[KNOWS]

    assert happened
    assert report.adjacency
