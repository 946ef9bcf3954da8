"""What is declared frozen is frozen, whoever tries to change it."""

import copy
import pickle
from dataclasses import FrozenInstanceError, replace

import pytest

from omnigraph.manifest.model.manifest import Point, RowCounts


def test_a_value_can_not_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        RowCounts(1).inserted = 2  # type: ignore[misc]


def test_equal_values_are_one_in_a_set_and_survive_copies_and_pickles() -> None:
    point = Point("b", 1)

    assert {point, Point("b", 1), copy.copy(point), pickle.loads(pickle.dumps(point))} == {point}
    assert replace(RowCounts(1), updated=2) == RowCounts(1, 2)
