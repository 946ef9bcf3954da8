"""Operations on large arrays give what numpy gives, in small steps, and obey a stop between them."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omnigraph.cancellation import Stopped, StopToken, stop_scope
from omnigraph.memory_budget import COUNTED_MIN, MemoryBudget, NoRoom, budget_scope
from omnigraph.read.graph.csr import Csr
from omnigraph.read.tables import large_arrays as large
from omnigraph.read.tables.arrow_numpy import NumArray

ROWS = COUNTED_MIN  # of eight bytes: an array of so many rows counts
integers = st.lists(st.integers(-5, 5), max_size=60).map(lambda numbers: np.array(numbers, np.int64))
numbers_up = st.lists(st.integers(0, 9), min_size=1, max_size=60).map(lambda numbers: np.array(numbers, np.int32))
in_small_steps = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "CHUNK_ROWS", 7)
    monkeypatch.setattr(large, "_SORTED_AT_ONCE_MAX", 7)
    monkeypatch.setattr(large, "_SPLITTERS", 3)


@in_small_steps
@given(st.lists(integers, min_size=1, max_size=3))
def test_the_order_is_that_of_a_stable_sort(columns: list[NumArray]) -> None:
    count = min(map(len, columns))
    columns = [column[:count] for column in columns]

    assert large.sort_order(columns, count).tolist() == np.lexsort(columns[::-1]).tolist()


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint64, np.uint8, np.bool_])
def test_values_at_both_ends_of_their_type_are_sorted(dtype: Any) -> None:
    bounds = (False, True) if dtype is np.bool_ else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    values = np.array([bounds[1], bounds[0], 1, bounds[1], 0, bounds[0]], dtype)

    assert large.sort_order([values], 6).tolist() == np.argsort(values, kind="stable").tolist()
    assert large.sort_order([values, values[::-1]], 6).tolist() == np.lexsort([values[::-1], values]).tolist()
    assert large.sorted_distinct(values).tolist() == np.unique(values).tolist()


@in_small_steps
@given(integers, st.sampled_from([np.int64, np.float64, np.int32]))
def test_distinct_values_and_their_places_are_those_of_numpy(values: NumArray, dtype: Any) -> None:
    expected, places = np.unique(values.astype(dtype), return_inverse=True)

    found, own = large.distinct(values.astype(dtype))

    assert (found.tolist(), own.tolist(), found.dtype) == (expected.tolist(), places.tolist(), expected.dtype)


@in_small_steps
@given(integers, st.integers(0, 20))
def test_arrays_are_repeated_and_tiled(values: NumArray, times: int) -> None:
    assert large.repeat_each(values, times).tolist() == np.repeat(values, times).tolist()
    assert large.tile(values, times).tolist() == np.tile(values, times).tolist()


@in_small_steps
@given(numbers_up)
def test_values_are_repeated_as_often_as_each_is_to_be(counts: NumArray) -> None:
    values = np.arange(len(counts))

    assert large.repeat(values, counts.astype(np.int64)).tolist() == np.repeat(values, counts).tolist()


@in_small_steps
@given(numbers_up)
def test_positions_counts_and_values_are_those_of_numpy(numbers: NumArray) -> None:
    assert large.true_positions(numbers > 4).tolist() == np.flatnonzero(numbers > 4).tolist()
    assert large.count_each(numbers, 12).tolist() == np.bincount(numbers, minlength=12).tolist()
    assert large.take(np.arange(10) * 2, numbers).tolist() == (2 * numbers).tolist()
    assert large.concat([numbers, numbers[:3]]).tolist() == [*numbers.tolist(), *numbers[:3].tolist()]


@in_small_steps
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=60), numbers_up)
def test_an_expansion_has_the_neighbours_of_each_vertex_in_order(pairs: list[tuple[int, int]], near: NumArray) -> None:
    sources, targets = (np.array([pair[side] for pair in pairs], np.int64) for side in (0, 1))
    frontier = near % 6
    csr = Csr.build(sources, targets, np.arange(len(pairs)), 6, 6)

    positions, reached, edges = csr.expand(frontier, with_edges=True)

    assert edges is not None
    found = list(zip(positions.tolist(), reached.tolist(), edges.tolist(), strict=True))
    expected = [
        (position, target, edge)
        for position, vertex in enumerate(frontier.tolist())
        for target, edge in sorted((t, e) for e, (s, t) in enumerate(pairs) if s == vertex)
    ]
    assert found == expected


STEPS: dict[str, Callable[[NumArray], object]] = {
    "sort_order": lambda values: large.sort_order([values], len(values)),
    "distinct": large.distinct,
    "take": lambda values: large.take(values, values),
    "count_each": lambda values: large.count_each(values, ROWS),
    "tile": lambda values: large.tile(values, 2),
    "repeat_each": lambda values: large.repeat_each(values, 2),
    "concat": lambda values: large.concat([values, values]),
    "true_positions": lambda values: large.true_positions(values >= 0),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_stop_ends_every_operation(name: str) -> None:
    stop = StopToken()
    stop.set(Stopped("of the test", "go on"))

    with stop_scope(stop), pytest.raises(Stopped):
        STEPS[name](np.arange(ROWS))


@pytest.mark.parametrize("name", STEPS)
def test_every_operation_is_refused_when_its_result_does_not_fit(name: str) -> None:
    budget = MemoryBudget(ROWS * 8 - 1)

    with budget_scope(budget), pytest.raises(NoRoom, match="add a filter"):
        STEPS[name](np.arange(ROWS))

    assert budget.used == 0


def test_memory_counts_until_its_array_is_freed() -> None:
    budget = MemoryBudget(1 << 30)
    with budget_scope(budget):
        array = large.count_up(ROWS)
        view = array[5:].reshape(-1)
        assert budget.used == ROWS * 8
        del array
        assert budget.used == ROWS * 8
        del view

    assert (budget.used, budget.peak) == (0, ROWS * 8)


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["a" * 1000, "b", None]),
        pa.array([b"a" * 1000, b"b", None], pa.large_binary()),
        pa.array([list(range(300)), [1], None], pa.list_(pa.int64())),
        pa.array([[1.0, 2.0], [3.0, 4.0], None], pa.list_(pa.float32(), 2)),
        pa.array([True, False, None]),
        pa.array([{"a": "x" * 1000, "b": 1}, {"a": "y", "b": 2}, None]),
    ],
    ids=lambda values: str(values.type),
)
def test_the_size_of_values_is_known_before_they_are_taken(values: Any) -> None:
    positions = np.array([0] * 100 + [1, 2])
    taken = values.take(pa.array(positions))

    assert taken.nbytes <= large.taken_bytes(values, positions) + 200 <= 1.2 * taken.nbytes + 800


def test_queries_count_together_until_they_have_ended() -> None:
    whole = MemoryBudget(3 * ROWS * 8)
    one, other = MemoryBudget(1 << 30, whole), MemoryBudget(1 << 30, whole)
    with budget_scope(one):
        first = large.count_up(ROWS)
        one.reserve(ROWS * 8, "rows")
    with budget_scope(other):
        second = large.count_up(ROWS)
        with pytest.raises(NoRoom):
            large.count_up(ROWS)
        assert other.used == ROWS * 8

    del one, first
    gc.collect()
    assert whole.used == ROWS * 8
    del second
    assert whole.used == 0
