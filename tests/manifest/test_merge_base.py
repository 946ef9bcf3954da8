"""`ancestry-positions`: common ancestors are the element-wise minimum of two vectors; the bases are its newest members.

The histories here have groups of commits in one manifest, and branches that were forked in the middle of one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnigraph.errors import MergeBaseExpired
from omnigraph.manifest.branch.merge_base import find_base_positions, find_bases
from omnigraph.manifest.model.ancestry import all_ancestors, common_ancestors, contains_commit
from omnigraph.manifest.model.manifest import Ancestry, Commit, CommitClass, Entry, Manifest, Point, Position, stub_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Place(NamedTuple):
    """A commit, as the plain sets know it: the manifest, and which of its commits."""

    branch: str
    number: int
    ordinal: int


@dataclass
class History:
    """Manifests with vectors as `compose` makes them, and beside them their ancestors as plain sets of commits."""

    entries: dict[Point, Entry] = field(default_factory=dict)
    ancestors: dict[Place, frozenset[Place]] = field(default_factory=dict)
    heads: dict[str, int] = field(default_factory=dict)
    reads: int = 0

    def put(self, branch: str, *parents: Place, commits: int = 1) -> None:
        number = self.heads.get(branch, 0) + 1
        vector: Ancestry = {}
        for parent in parents:
            vector = all_ancestors(vector, self.vector(parent))
        made = tuple(_commit(f"{branch}.{number}.{index}") for index in range(commits))
        own = {**vector, branch: Position(number)}
        self.entries[Point(branch, number)] = Manifest(branch, branch, number, "", "", NOON, own, commits=made)
        before: frozenset[Place] = frozenset().union(*(self.ancestors[parent] for parent in parents))
        for index in range(commits):
            before |= {Place(branch, number, index)}
            self.ancestors[Place(branch, number, index)] = before
        self.heads[branch] = number

    def vector(self, place: Place) -> Ancestry:
        entry = self.entries[Point(place.branch, place.number)]
        inside = place.ordinal + 1 < len(entry.commits)
        position = Position(place.number, place.ordinal + 1) if inside else Position(place.number)
        return {**entry.ancestry, place.branch: position}

    def head(self, branch: str) -> Place:
        return self.place(branch, self.heads[branch])

    def place(self, branch: str, number: int) -> Place:
        return Place(branch, number, len(self.entries[Point(branch, number)].commits) - 1)

    def read(self, point: Point, *, cached: bool = True) -> Entry | None:
        self.reads += 1
        return self.entries.get(point)

    def is_state(self, manifest: Manifest, confirmed: object = None) -> bool:
        return True

    def retire(self, branch: str, number: int) -> None:
        entry = self.entries[Point(branch, number)]
        assert isinstance(entry, Manifest)
        self.entries[Point(branch, number)] = stub_of(entry)

    def bases(self, one: str, other: str) -> list[Place]:
        reader: Any = self
        vectors = self.vector(self.head(one)), self.vector(self.head(other))
        found = find_base_positions(reader, *vectors, (one, other))
        return [_last(base.point, base.position, base.entry) for base in found]

    def newest_common(self, one: str, other: str) -> list[Place]:
        common = self.ancestors[self.head(one)] & self.ancestors[self.head(other)]
        below = {place for newer in common for place in self.ancestors[newer] - {newer}}
        return sorted(common - below)


def _commit(name: str) -> Commit:
    return Commit(name, name, None, None, None, NOON, "mutation", CommitClass.LOGICAL)


def _last(point: Point, position: Position, entry: Entry) -> Place:
    count = len(entry.commits) if position.is_whole else position.commits
    return Place(point.branch_id, point.manifest_version, count - 1)


class Step(NamedTuple):
    branch: int
    other: int
    merges: bool
    commits: int
    inside: int  # of the manifest that a new branch is forked from, how many commits are left out


STEPS = st.lists(
    st.builds(
        Step, st.integers(0, 4), st.integers(0, 4), st.booleans(), st.integers(1, 3), st.sampled_from([0, 0, 1, 2])
    ),
    max_size=40,
)


def history_of(steps: list[Step]) -> History:
    """Commits, groups and merges on up to five branches, each forked from another when first needed."""
    history = History()
    history.put("a")
    for step in steps:
        branch, other = "abcde"[step.branch], "abcde"[step.other]
        if branch not in history.heads:
            source = history.head(other if other in history.heads else "a")
            history.put(branch, source._replace(ordinal=max(0, source.ordinal - step.inside)))
        elif step.merges and other in history.heads and other != branch:
            history.put(branch, history.head(branch), history.head(other))
        else:
            history.put(branch, history.head(branch), commits=step.commits)
    return history


def fork(branch: int, other: int, inside: int = 0) -> Step:
    return Step(branch, other, False, 1, inside)


def commit(branch: int, commits: int = 1) -> Step:
    return Step(branch, branch, False, commits, 0)


@given(STEPS)
def test_the_minimum_of_two_vectors_is_what_both_have_as_ancestors(steps: list[Step]) -> None:
    history = history_of(steps)
    heads = [history.head(branch) for branch in history.heads]
    for one in heads:
        for other in heads:
            vector = common_ancestors(history.vector(one), history.vector(other))
            described = {
                place for place in history.ancestors if (place.number, place.ordinal + 1) <= _at(vector, place)
            }
            assert described == history.ancestors[one] & history.ancestors[other]


def _at(vector: Ancestry, place: Place) -> Position:
    return vector.get(place.branch, Position(0))


@given(STEPS)
def test_the_bases_are_the_newest_common_ancestors_from_either_side(steps: list[Step]) -> None:
    history = history_of(steps)
    for one in history.heads:
        for other in history.heads:
            assert history.bases(one, other) == history.bases(other, one) == history.newest_common(one, other)


def test_two_branches_forked_inside_one_group_meet_at_the_earlier_of_the_two_commits() -> None:
    history = history_of([commit(0, commits=3), fork(1, 0, inside=1), fork(2, 0, inside=2)])

    assert history.bases("b", "a") == [Place("a", 2, 1)]
    assert history.bases("b", "c") == [Place("a", 2, 0)]


def test_a_criss_cross_has_two() -> None:
    history = history_of([fork(1, 0), commit(0)])
    ours, theirs = history.head("a"), history.head("b")
    history.put("a", ours, theirs)
    history.put("b", theirs, ours)

    assert history.bases("a", "b") == [ours, theirs]


def test_a_base_among_a_thousand_dead_branches_takes_few_reads() -> None:
    history = History()
    history.put("main")
    for number in range(1000):
        name = f"branch-{number:04d}"
        history.put(name, history.head("main"))
        history.put("main", history.head("main"), history.head(name))
    history.put("b", history.head("main"))
    forked_from = history.head("main")
    history.put("main", forked_from)
    history.reads = 0

    assert history.bases("main", "b") == [forked_from]
    assert history.reads <= 2


def test_a_base_that_has_expired_refuses_the_merge_and_no_older_state_is_used() -> None:
    history = history_of([commit(0), commit(0), fork(1, 0), commit(0)])
    reader: Any = history
    vectors = history.vector(history.head("a")), history.vector(history.head("b"))
    assert [state.manifest_version for state in find_bases(reader, *vectors)] == [3]

    history.retire("a", 3)
    with pytest.raises(MergeBaseExpired) as refused:
        find_bases(reader, *vectors)
    assert refused.value.base == "a.3"


def test_a_base_inside_a_group_needs_the_manifest_before_it() -> None:
    history = history_of([commit(0, commits=2), fork(1, 0, inside=1), commit(0)])
    reader: Any = history
    vectors = history.vector(history.head("a")), history.vector(history.head("b"))
    history.retire("a", 1)

    with pytest.raises(MergeBaseExpired) as refused:
        find_bases(reader, *vectors)
    assert refused.value.base == "a.2.0"


def test_branches_without_a_common_state_are_not_merged() -> None:
    reader: Any = History()
    with pytest.raises(MergeBaseExpired, match="no state in common"):
        find_bases(reader, {"a": Position(1)}, {"b": Position(1)})


def test_a_commit_is_an_ancestor_if_the_vector_reaches_it() -> None:
    branch = "a" * 13

    assert contains_commit({branch: Position(3)}, f"{branch}.3")
    assert contains_commit({branch: Position(3)}, f"{branch}.2.1")
    assert contains_commit({branch: Position(3, 2)}, f"{branch}.3.1")
    assert not contains_commit({branch: Position(3, 2)}, f"{branch}.3.2")
    assert not contains_commit({branch: Position(3)}, f"{branch}.4")
    assert not contains_commit({}, f"{branch}.1")
