"""`ancestry-positions`: a cleanup keeps what any two live branches have in common, without comparing every pair."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from omnigraph.gc.mark import common_vectors
from omnigraph.manifest.model.ancestry import common_ancestors
from omnigraph.manifest.model.manifest import Ancestry, Position

positions = st.builds(Position, st.integers(1, 4), st.sampled_from([1, 2, 1 << 31]))
vectors = st.lists(st.dictionaries(st.sampled_from("mabc"), positions, max_size=4), max_size=8)


@given(vectors)
def test_the_minima_of_all_pairs_are_those_of_comparing_every_pair(given_vectors: list[Ancestry]) -> None:
    every_pair = {frozenset(common_ancestors(one, other).items()) for one, other in combinations(given_vectors, 2)} - {
        frozenset()
    }

    assert common_vectors(given_vectors) == every_pair


def test_ten_thousand_branches_of_one_branch_are_no_million_pairs() -> None:
    forks: list[Ancestry] = [{"main": Position(n), f"branch-{n}": Position(3)} for n in range(1, 10_001)]

    assert len(common_vectors([*forks, {"main": Position(20_000)}])) == 10_000
