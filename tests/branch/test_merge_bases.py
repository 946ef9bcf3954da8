"""Rule 17: common ancestors are the element-wise minimum of two vectors, and the bases are its newest members."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnigraph.errors import ConflictError
from omnigraph.manifest.bases import common_ancestors, contains, find_bases, united
from omnigraph.manifest.model import Entry, Manifest, Point, Stub, stub_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@dataclass
class History:
    """Manifests with vectors as `compose` makes them, and beside them their ancestors as plain sets."""

    entries: dict[Point, Entry] = field(default_factory=dict)
    ancestors: dict[Point, frozenset[Point]] = field(default_factory=dict)
    heads: dict[str, Point] = field(default_factory=dict)
    reads: int = 0

    def put(self, branch: str, *parents: Point) -> None:
        number = self.heads[branch].manifest_version + 1 if branch in self.heads else 1
        point = Point(branch, number)
        vector: dict[str, int] = {}
        for parent in parents:
            vector = united(vector, self.entries[parent].ancestry)
        self.entries[point] = Manifest(branch, branch, number, "", "", NOON, {**vector, branch: number})
        self.ancestors[point] = frozenset({point}).union(*(self.ancestors[parent] for parent in parents))
        self.heads[branch] = point

    def read(self, point: Point, *, cached: bool = True) -> Entry | None:
        self.reads += 1
        return self.entries.get(point)

    def is_state(self, manifest: Manifest) -> bool:
        return True

    def retire(self, point: Point) -> None:
        entry = self.entries[point]
        assert isinstance(entry, Manifest)
        self.entries[point] = stub_of(entry)

    def bases(self, one: str, other: str) -> list[Point]:
        vectors = [self.entries[self.heads[branch]].ancestry for branch in (one, other)]
        reader: Any = self
        return [manifest.point for manifest in find_bases(reader, vectors[0], vectors[1], (one, other))]

    def newest_common(self, one: str, other: str) -> list[Point]:
        common = self.ancestors[self.heads[one]] & self.ancestors[self.heads[other]]
        below = {point for newer in common for point in self.ancestors[newer] - {newer}}
        return sorted(common - below, key=lambda point: (point.branch_id, point.manifest_version))


STEPS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.booleans()), max_size=40)


def history_of(steps: list[tuple[int, int, bool]]) -> History:
    """Commits and merges on up to five branches, each forked from another when first needed."""
    history = History()
    history.put("a")
    for first, second, merges in steps:
        branch, other = "abcde"[first], "abcde"[second]
        if branch not in history.heads:
            history.put(branch, history.heads[other if other in history.heads else "a"])
        elif merges and other in history.heads and other != branch:
            history.put(branch, history.heads[branch], history.heads[other])
        else:
            history.put(branch, history.heads[branch])
    return history


@given(STEPS)
def test_the_minimum_of_two_vectors_is_what_both_have_as_ancestors(steps: list[tuple[int, int, bool]]) -> None:
    history = history_of(steps)
    for one in history.heads.values():
        for other in history.heads.values():
            vector = common_ancestors(history.entries[one].ancestry, history.entries[other].ancestry)
            described = {Point(branch, n) for branch, newest in vector.items() for n in range(1, newest + 1)}
            assert described == history.ancestors[one] & history.ancestors[other]


@given(STEPS)
def test_the_bases_are_the_newest_common_ancestors_whoever_asks(steps: list[tuple[int, int, bool]]) -> None:
    history = history_of(steps)
    for one in history.heads:
        for other in history.heads:
            assert history.bases(one, other) == history.bases(other, one) == history.newest_common(one, other)


def test_a_criss_cross_has_two() -> None:
    history = history_of([(1, 0, False), (0, 0, False)])
    ours, theirs = history.heads["a"], history.heads["b"]
    history.put("a", ours, theirs)
    history.put("b", theirs, ours)

    assert history.bases("a", "b") == [ours, theirs]


def test_a_base_among_a_thousand_dead_branches_takes_few_reads() -> None:
    history = History()
    history.put("main")
    for number in range(1000):
        name = f"branch-{number:04d}"
        history.put(name, history.heads["main"])
        history.put("main", history.heads["main"], history.heads[name])
    history.put("b", history.heads["main"])
    fork = history.heads["main"]
    history.put("main", fork)
    history.reads = 0

    assert history.bases("main", "b") == [fork]
    assert history.reads <= 2


def test_a_stub_is_replaced_by_an_older_state_of_its_branch() -> None:
    history = history_of([(0, 0, False), (0, 0, False), (1, 0, False), (0, 0, False)])
    for number in (2, 3):
        history.retire(Point("a", number))

    assert history.bases("a", "b") == [Point("a", 1)]
    history.retire(Point("a", 1))
    with pytest.raises(ConflictError):
        history.bases("a", "b")


def test_where_one_branch_kept_nothing_another_common_one_serves() -> None:
    history = history_of([(1, 0, False), (1, 1, False), (2, 1, False), (1, 1, False)])
    history.retire(Point("b", 2))
    assert isinstance(history.entries[Point("b", 2)], Stub)

    assert history.bases("b", "c") == [Point("b", 1)]
    history.retire(Point("b", 1))
    assert history.bases("b", "c") == [Point("a", 1)]


def test_a_commit_is_an_ancestor_if_the_vector_reaches_it() -> None:
    branch = "a" * 13

    assert contains({branch: 3}, f"{branch}.3")
    assert contains({branch: 3}, f"{branch}.2.1")
    assert not contains({branch: 3}, f"{branch}.4")
    assert not contains({}, f"{branch}.1")
