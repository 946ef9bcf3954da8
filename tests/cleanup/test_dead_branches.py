"""`ancestry-positions`: a cleanup forgets a dead branch only where no merge can ever need to know of it.

Without its entry in the ancestry vectors an older merge base would be found, and rows that one side has removed since
would come back.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import omnigraph
from omnigraph.errors import CommitNotFound, MergeBaseExpired, MergeConflicts
from omnigraph.gc import cleanup as cleanup_module
from omnigraph.gc.mark import find_prunable_branches
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import Append, Delete
from omnigraph.manifest.model.manifest import Point
from omnigraph.manifest.settings import Settings
from omnigraph.merge.plan import MergeOutcome
from support.catalogs import PERSON, ids_of, person_rows
from support.catalogs import people as people_catalog
from support.cleanup import assert_sound, clean
from support.soak import SoakReport

STAGED = Settings(inline_rows=0, maintenance=0)  # a tail would keep manifests of the dead branch


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    graph = omnigraph.init(tmp_path / "graph", people_catalog(), {"fsync": "false"}, settings=STAGED)
    add(graph, "ada")
    return graph


def reopened(graph: Graph) -> Graph:
    return omnigraph.open(graph.uri, {"fsync": "false"}, settings=STAGED)


def add(graph: Graph, row: str, branch: str = "main") -> None:
    graph.write([Append(PERSON, person_rows(row))], branch=branch)


def remove(graph: Graph, row: str, branch: str = "main") -> None:
    graph.write([Delete(PERSON, (row,))], branch=branch)


def rows(graph: Graph, branch: str = "main") -> list[str]:
    return ids_of(reopened(graph).snapshot(branch).to_arrow(PERSON))


def branch_id(graph: Graph, branch: str) -> str:
    return graph.repository.branches.find(branch).head.branch_id


def knows(graph: Graph, branch: str, ancestor: str) -> bool:
    return ancestor in reopened(graph).snapshot(branch).pinned.manifest.ancestry


def test_a_branch_that_was_merged_to_the_only_other_one_is_forgotten_by_the_second_cleanup(graph: Graph) -> None:
    graph.branches.create("d")
    add(graph, "al", "d")
    dead = branch_id(graph, "d")
    graph.branches.merge("d", delete_branch=True)

    clean(graph)
    assert knows(graph, "main", dead), "a merge of it may be under way"
    add(graph, "bob")
    clean(graph)

    assert not knows(graph, "main", dead)
    assert_sound(graph)


def test_a_branch_that_others_merged_twice_by_themselves_is_not_forgotten(graph: Graph) -> None:
    """What the oldest states have of it is on main as well; what later ones have of it is not."""
    graph.branches.create("d")
    add(graph, "al", "d")
    graph.branches.merge("d")
    graph.branches.create("s")
    graph.branches.create("u")
    add(graph, "bob", "d")
    graph.branches.merge("d", "s")
    graph.branches.merge("d", "u")
    merged = graph.snapshot("s").commit_id
    remove(graph, "bob", "u")
    graph.branches.merge("u", "s")
    graph.branches.delete("d")
    for number in range(2):
        clean(graph, keep=100)
        add(graph, f"another {number}")

    again = reopened(graph)
    again.branches.create("f", merged)
    add(again, "eve", "f")
    with pytest.raises(MergeBaseExpired):
        again.branches.merge("f", "u")


def test_a_branch_whose_merge_was_under_way_when_it_died_is_not_forgotten(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph.branches.create("d")
    graph.branches.create("t")
    add(graph, "bob", "d")
    graph.branches.create("v", "d")
    planned, judged, finished = threading.Event(), threading.Event(), threading.Event()
    merging = reopened(graph)
    publish = merging.repository.publisher.publish

    def stalled(*arguments: object, **options: object) -> object:
        planned.set()
        assert judged.wait(20)
        try:
            return publish(*arguments, **options)  # type: ignore[arg-type]
        finally:
            finished.set()

    def judge_first(*arguments: object) -> frozenset[str]:
        found = find_prunable_branches(*arguments)  # type: ignore[arg-type]
        judged.set()
        assert finished.wait(20)
        return found

    monkeypatch.setattr(merging.repository.publisher, "publish", stalled)
    monkeypatch.setattr(cleanup_module, "find_prunable_branches", judge_first)
    thread = threading.Thread(target=merging.branches.merge, args=("d", "t"))
    thread.start()
    assert planned.wait(20)
    graph.branches.delete("d")
    clean(graph)
    thread.join()
    assert rows(graph, "t") == ["ada", "bob"], "the merge got through"

    again = reopened(graph)
    remove(again, "bob", "t")
    add(again, "eve", "v")
    assert again.branches.merge("v", "t").outcome is MergeOutcome.MERGED
    assert rows(graph, "t") == ["ada", "eve"]


def test_a_fork_without_commits_of_its_own_is_merged_once_after_its_source_has_died(graph: Graph) -> None:
    graph.branches.create("d")
    add(graph, "bob", "d")
    graph.branches.create("s", "d")
    graph.branches.delete("d")
    clean(graph)
    add(graph, "carl")
    clean(graph)

    outcomes = []
    for number in range(2):
        outcomes.append(graph.branches.merge("s").outcome)
        add(graph, f"another {number}")

    assert outcomes == [MergeOutcome.MERGED, MergeOutcome.UP_TO_DATE]
    assert_sound(graph)


@pytest.fixture
def swept_by_another(graph: Graph) -> Graph:
    """A process that has read a dead branch's state, which is the base of a merge, before another one swept it."""
    for branch in ("d", "s", "u"):
        graph.branches.create(branch)
    add(graph, "bob", "d")
    for branch in ("s", "u"):
        add(graph, f"{branch}1", branch)
        graph.branches.merge("d", branch)
    merged = graph.snapshot("s").commit_id
    add(graph, "zoe", "s")
    remove(graph, "bob", "u")
    graph.branches.merge("u", "s")
    dead = branch_id(graph, "d")
    graph.branches.delete("d")
    warm = reopened(graph)
    warm.repository.manifests.read(Point(dead, 2))
    add(warm, "una", "u")
    assert clean(reopened(graph), keep=100).manifests > 0
    warm.branches.create("f", merged)
    add(warm, "eve", "f")
    return warm


def test_a_merge_whose_base_another_process_has_swept_is_refused_however_warm_this_one_is(
    swept_by_another: Graph,
) -> None:
    with pytest.raises(MergeBaseExpired):
        swept_by_another.branches.merge("f", "u")


def test_a_cleanup_is_not_stopped_by_a_base_that_another_process_has_swept(swept_by_another: Graph) -> None:
    clean(swept_by_another)
    assert_sound(swept_by_another)


@dataclass
class Twins:
    """One random history on two graphs, of which one is cleaned: merges have the same result, or are refused there."""

    cleaned: Graph
    whole: Graph
    dice: random.Random
    branches: list[str] = field(default_factory=lambda: ["main"])
    heads: dict[str, list[tuple[str, str]]] = field(default_factory=dict)  # by branch: commits of either, in order
    count: int = 0
    merges: int = 0
    refused: int = 0

    def step(self) -> None:
        often: list[Callable[[], None]] = [self.write, self.write, self.fork, self.merge, self.merge, self.merge]
        self.dice.choice([*often, self.fork, self.delete, self.clean, self.clean])()

    def write(self) -> None:
        branch = self.dice.choice(self.branches)
        there = rows(self.whole, branch)
        if there and self.dice.random() < 0.5:
            victim = self.dice.choice(there)
            self.both(lambda graph: remove(graph, victim, branch))
        else:
            self.count += 1
            self.both(lambda graph: add(graph, f"r{self.count:03d}", branch))
        self.note(branch)

    def fork(self) -> None:
        if len(self.branches) > 5:
            return
        name, source = f"b{self.count}-{len(self.heads)}", self.dice.choice(self.branches)
        commits = self.heads.get(source)
        place = self.dice.choice(commits) if commits and self.dice.random() < 0.5 else (source, source)
        try:
            self.cleaned.branches.create(name, place[0])
        except CommitNotFound:
            return
        self.whole.branches.create(name, place[1])
        self.branches.append(name)
        self.note(name)

    def merge(self) -> None:
        if len(self.branches) < 2:
            return
        source, target = self.dice.sample(self.branches, 2)
        self.merges += 1
        try:
            done = self.cleaned.branches.merge(source, target).outcome
        except MergeBaseExpired:
            self.refused += 1
            return
        except MergeConflicts:
            with pytest.raises(MergeConflicts):
                self.whole.branches.merge(source, target)
            return
        assert self.whole.branches.merge(source, target).outcome is done
        assert rows(self.cleaned, target) == rows(self.whole, target)
        self.note(target)

    def delete(self) -> None:
        if len(self.branches) > 1:
            branch = self.dice.choice(self.branches[1:])
            self.both(lambda graph: graph.branches.delete(branch))
            self.branches.remove(branch)

    def clean(self) -> None:
        clean(self.cleaned, keep=self.dice.choice([2, 100, 100, 100]))

    def both(self, change: Callable[[Graph], object]) -> None:
        change(self.cleaned)
        change(self.whole)

    def note(self, branch: str) -> None:
        commits = (self.cleaned.snapshot(branch).commit_id, self.whole.snapshot(branch).commit_id)
        self.heads.setdefault(branch, []).append(commits)


def twins(root: Path, seed: int) -> Twins:
    made = [
        omnigraph.init(root / f"{name}-{seed}", people_catalog(), {"fsync": "false"}, settings=STAGED)
        for name in ("cleaned", "whole")
    ]
    return Twins(made[0], made[1], random.Random(seed))


@pytest.mark.parametrize("seed", range(6))
def test_merges_have_the_same_results_whatever_cleanups_have_forgotten(tmp_path: Path, seed: int) -> None:
    both = twins(tmp_path, seed)
    for _ in range(50):
        both.step()
    assert both.merges > both.refused


@pytest.mark.soak
def test_hundreds_of_histories_merge_the_same_whatever_cleanups_have_forgotten(
    tmp_path: Path, soak_report: SoakReport
) -> None:
    merges = refused = 0
    for seed in range(100, 300):
        both = twins(tmp_path, seed)
        for _ in range(60):
            both.step()
        merges, refused = merges + both.merges, refused + both.refused
    soak_report.line(
        f"200 histories with {merges} merges: {refused} were refused because cleanup had expired the base."
    )
