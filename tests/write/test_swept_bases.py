"""A write that is held up until a cleanup has taken its base away begins anew on the newest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.errors import ConflictError, Damaged
from omnigraph.graph import Graph
from omnigraph.manifest.plan import Append, Upsert
from omnigraph.manifest.settings import Settings
from support.catalogs import PERSON, ids_of, people, person_rows
from support.cleaning import assert_sound, clean

STAGED = Settings(inline_rows=0, maintenance=0)
NO_FSYNC = {"fsync": "false"}


@pytest.fixture
def other(tmp_path: Path) -> Graph:
    graph = omnigraph.init(tmp_path / "graph", people(), NO_FSYNC, settings=STAGED)
    graph.write([Append(PERSON, person_rows("first", "second"))])
    return graph


def taken_away(other: Graph, number: int) -> None:
    """The table of the base is rewritten, and what it was is cleaned up."""
    other.write([Upsert(PERSON, person_rows("first", f"of-another-{number}"))])
    other.optimize()
    other.write([Append(PERSON, person_rows(f"again-{number}"))])
    clean(other)


def stalled(monkeypatch: pytest.MonkeyPatch, graph: Graph, other: Graph, times: int) -> list[int]:
    """Every base that is opened is taken away before anything is read of it, so often."""
    open_txn, happened = graph.repository.open_txn, []

    def slow(*args: Any, **how: Any) -> Any:
        txn = open_txn(*args, **how)
        if len(happened) < times:
            happened.append(len(happened))
            taken_away(other, len(happened))
        return txn

    monkeypatch.setattr(graph.repository, "open_txn", slow)
    return happened


@pytest.mark.parametrize("times", [1, 2, 4])
def test_it_lands_once_however_often_that_happens(
    tmp_path: Path, other: Graph, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    graph = omnigraph.open(tmp_path / "graph", NO_FSYNC, settings=STAGED)
    happened = stalled(monkeypatch, graph, other, times)

    commit = graph.write([Upsert(PERSON, person_rows("second", "mine"))])

    assert commit is not None
    assert len(happened) == times
    there = ids_of(omnigraph.open(tmp_path / "graph", NO_FSYNC).snapshot().to_arrow(PERSON))
    assert there.count("mine") == there.count("second") == 1
    assert_sound(other)


def test_a_write_that_is_not_to_be_planned_again_does_not_begin_anew(
    tmp_path: Path, other: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = omnigraph.open(tmp_path / "graph", NO_FSYNC, settings=STAGED)
    stalled(monkeypatch, graph, other, 1)

    with pytest.raises((Damaged, ConflictError)):
        graph.write([Upsert(PERSON, person_rows("second", "mine"))], on_conflict="fail")

    assert "mine" not in ids_of(omnigraph.open(tmp_path / "graph", NO_FSYNC).snapshot().to_arrow(PERSON))


def test_a_newest_state_that_is_damaged_is_told_as_such(tmp_path: Path, other: Graph) -> None:
    for path in (tmp_path / "graph" / "tables").rglob("data/*"):
        path.unlink()
    graph = omnigraph.open(tmp_path / "graph", NO_FSYNC, settings=STAGED)

    with pytest.raises(Damaged, match="missing"):
        graph.write([Upsert(PERSON, person_rows("second"))])
