"""A merge or a revert that is held up until a cleanup has taken away what it stands on is made of the newest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

import omnigraph
from omnigraph.errors import BranchNotFound, CommitNotFound, Damaged, PreconditionFailed
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import Append, Delete, Upsert
from omnigraph.manifest.settings import Settings
from omnigraph.merge.plan import MergeOutcome
from support.catalogs import PERSON, ids_of, people, person_rows
from support.cleanup import assert_sound, clean
from support.stall import stalled, taken_away

STAGED = Settings(inline_rows=0, maintenance=0)
NO_FSYNC = {"fsync": "false"}
Loss: TypeAlias = Callable[[pytest.MonkeyPatch, Graph, Graph, int], list[int]]


@pytest.fixture
def other(tmp_path: Path) -> Graph:
    """Two branches that both changed Person since they parted."""
    graph = omnigraph.init(tmp_path / "graph", people(), NO_FSYNC, settings=STAGED)
    graph.write([Append(PERSON, person_rows("first", "second", "third"))])
    graph.branches.create("side", "main")
    graph.write([Upsert(PERSON, person_rows("second", "theirs", age=7)), Delete(PERSON, ("third",))], branch="side")
    graph.write([Append(PERSON, person_rows("ours"))])
    return graph


@pytest.fixture
def graph(tmp_path: Path, other: Graph) -> Graph:
    return omnigraph.open(tmp_path / "graph", NO_FSYNC, settings=STAGED)


def base_lost(monkeypatch: pytest.MonkeyPatch, graph: Graph, other: Graph, times: int) -> list[int]:
    return stalled(monkeypatch, graph.repository, "open_txn", times, lambda n: taken_away(other, n))


def source_lost(monkeypatch: pytest.MonkeyPatch, graph: Graph, other: Graph, times: int) -> list[int]:
    branches = graph.repository.branches
    return stalled(monkeypatch, branches, "find", times, lambda n: taken_away(other, n, "side"), "side")


def staged_lost(monkeypatch: pytest.MonkeyPatch, graph: Graph, other: Graph, times: int) -> list[int]:
    """What was staged first is swept before more is staged on top of it."""
    return stalled(monkeypatch, graph.repository.tables, "delete", times, lambda _: sweep(other))


def sweep(other: Graph) -> None:
    assert clean(other).files > 0


def people_of(graph: Graph) -> list[str]:
    fresh = omnigraph.open(graph.uri, NO_FSYNC)
    return sorted(ids_of(fresh.snapshot().to_arrow(PERSON)))


def kinds(graph: Graph) -> list[str]:
    return [commit.kind for commit in graph.commits(limit=None)]


# Merges


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize(
    ("lost", "added"),
    [(base_lost, "of-another-main"), (source_lost, "of-another-side"), (staged_lost, None)],
    ids=["base", "source", "staged"],
)
def test_a_merge_is_committed_once_however_often_that_happens(
    graph: Graph, other: Graph, monkeypatch: pytest.MonkeyPatch, lost: Loss, added: str | None, times: int
) -> None:
    happened = lost(monkeypatch, graph, other, times)

    result = graph.branches.merge("side", delete_branch=True)

    assert len(happened) == times
    assert result.outcome is MergeOutcome.MERGED
    assert result.deleted, result.not_deleted
    there = people_of(graph)
    assert {"first", "second", "theirs", "ours"} <= set(there)
    assert {f"{added}-{number}" for number in range(1, times + 1) if added} <= set(there), "what came is merged too"
    assert "third" not in there
    assert len(there) == len(set(there))
    assert kinds(other).count("merge") == 1
    with pytest.raises(BranchNotFound):
        other.snapshot("side")
    assert_sound(other)


@pytest.mark.parametrize("lost", [base_lost, source_lost])
def test_a_dry_run_is_planned_again(graph: Graph, other: Graph, monkeypatch: pytest.MonkeyPatch, lost: Loss) -> None:
    happened = lost(monkeypatch, graph, other, 2)

    result = graph.branches.merge("side", dry_run=True)

    assert len(happened) == 2
    assert (result.outcome, result.conflicts) == (MergeOutcome.MERGED, ())
    assert "theirs" not in people_of(graph)


def test_a_merge_on_condition_is_refused_where_the_condition_no_longer_holds(
    graph: Graph, other: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = other.snapshot().commit_id
    base_lost(monkeypatch, graph, other, 1)

    with pytest.raises(PreconditionFailed):
        graph.branches.merge("side", if_commit=wanted)

    assert "theirs" not in people_of(graph)


def test_a_conditional_merge_is_retried_if_only_a_cleanup_intervened(
    graph: Graph, other: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = other.snapshot().commit_id
    happened = staged_lost(monkeypatch, graph, other, 1)

    assert graph.branches.merge("side", if_commit=wanted).outcome is MergeOutcome.MERGED
    assert happened


def test_a_merge_whose_common_base_was_swept_is_made_of_what_the_branches_have_in_common_now(
    graph: Graph, other: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    def merged_by_another(_: int) -> None:
        other.branches.merge("side")
        other.branches.merge("main", "side")
        clean(other)

    stalled(monkeypatch, graph.repository.branches, "find", 1, merged_by_another, "side")

    assert graph.branches.merge("side").outcome is MergeOutcome.UP_TO_DATE


def test_a_source_that_was_deleted_and_swept_meanwhile_is_not_found(
    graph: Graph, other: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deleted(_: int) -> None:
        other.branches.delete("side")
        clean(other)

    stalled(monkeypatch, graph.repository.branches, "find", 1, deleted, "side")

    with pytest.raises(BranchNotFound, match="side"):
        graph.branches.merge("side")


@pytest.mark.parametrize("dry_run", [False, True])
def test_newest_states_that_are_damaged_are_reported_as_such(graph: Graph, tmp_path: Path, dry_run: bool) -> None:
    clean(graph)
    for path in (tmp_path / "graph" / "tables").rglob("data/*"):
        path.unlink()

    with pytest.raises(Damaged, match="missing"):
        graph.branches.merge("side", dry_run=dry_run)


# Reverts


def test_a_revert_whose_base_was_swept_is_planned_on_the_newest(
    graph: Graph, other: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = other.write([Append(PERSON, person_rows("mistaken"))])
    assert commit is not None
    other.tags.create("kept", commit.id)
    other.tags.create("kept-before", commit.commit.parent)
    happened = base_lost(monkeypatch, graph, other, 2)

    assert graph.revert(commit.id) is not None

    assert len(happened) == 2
    there = people_of(graph)
    assert "mistaken" not in there
    assert {"of-another-main-1", "of-another-main-2", "ours"} <= set(there)
    assert kinds(other).count("revert") == 1
    assert_sound(other)


def test_a_commit_that_was_swept_while_it_was_being_reverted_is_reported_as_expired(
    graph: Graph, other: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = other.write([Append(PERSON, person_rows("mistaken"))])
    assert commit is not None
    base_lost(monkeypatch, graph, other, 1)

    with pytest.raises(CommitNotFound, match="expired"):
        graph.revert(commit.id)

    assert "mistaken" in people_of(graph)
