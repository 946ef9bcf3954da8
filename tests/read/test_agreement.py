"""All ways of running a query agree with the plain interpreter, however the rows are spread over store and overlay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnigraph.errors import BadRequest
from omnigraph.lexer import LanguageError
from omnigraph.query.ir import ReadQuery
from omnigraph.read.execute import run_query
from omnigraph.read.match import bindings, expand
from omnigraph.read.project import aggregate
from omnigraph.read.reader import SnapshotReader
from omnigraph.read.tables import large_arrays
from omnigraph.storage.table.overlay import Overlay

from . import random_cases
from .graphs import MODES, Data, Row, bound, graph_of, interpreted, reader_of, split

QUERIES = 8  # of each graph: making a graph takes longer than asking it


def queries(rng: Random) -> list[tuple[str, ReadQuery]]:
    found: list[tuple[str, ReadQuery]] = []
    while len(found) < QUERIES:
        text = random_cases.query(rng)
        try:
            found.append((text, bound(text)))
        except LanguageError:
            continue  # the generator is not careful about types
    return found


def check(readers: Mapping[str, SnapshotReader], data: Data, text: str, query: ReadQuery) -> None:
    expected: Any
    try:
        interpreted(replace(query, limit=None), data)  # a sum may overflow in a group that the limit leaves out
        expected = interpreted(query, data)
    except OverflowError:
        expected = BadRequest
    for mode, reader in readers.items():
        try:
            found: Any = run_query(reader, query).rows
        except BadRequest:
            found = BadRequest
        assert found == expected, f"{mode}: {text}"


SMALL_STEPS = [
    (large_arrays, "CHUNK_ROWS", 3),
    (large_arrays, "_SORTED_AT_ONCE_MAX", 4),
    (large_arrays, "_SPLITTERS", 2),
    (aggregate, "_LISTED_MAX", 2),
    (aggregate, "_REPEATED_MAX", 4),
    (bindings, "BLOCK_ROWS", 5),
    (expand, "_MARKS_MAX", 40),
]
SEEDS = st.integers(0, 2**32)


def check_stored(seed: int) -> None:
    rng = Random(seed)
    data = random_cases.graph(rng)
    with graph_of(data, stored=True) as graph:
        readers = {mode: reader_of(graph, **options) for mode, options in MODES.items()}
        for text, query in queries(rng):
            check(readers, data, text, query)


def overlaid(rng: Random) -> tuple[Data, Data, dict[str, Overlay]]:
    """A graph, what of it is stored (some of it stale or to be deleted), and the overlays that make up for it."""
    data, other = random_cases.graph(rng), random_cases.graph(rng)
    stored: dict[str, list[Row]] = {}
    overlays: dict[str, Overlay] = {}
    for key, rows in data.items():
        share = rng.choice([0.0, 0.5, 0.8, 1.0])
        ids = {row["id"] for row in rows if rng.random() < share}
        stale = [row for row in other[key] if rng.random() < 0.5]
        deleted = other[key] if rng.random() < 0.5 else []
        stored[key], overlay = split(rows, ids, stale if rng.random() < 0.5 else [], deleted, key)
        if not overlay.is_empty:
            overlays[key] = overlay
    return data, stored, overlays


def check_anywhere(seed: int) -> None:
    rng = Random(seed)
    data, stored, overlays = overlaid(rng)
    with graph_of(stored, stored=True) as graph:
        readers = {mode: reader_of(graph, overlays, **options) for mode, options in MODES.items()}
        for text, query in queries(rng):
            check(readers, data, text, query)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=SEEDS)
def test_adjacency_lookups_and_the_interpreter_agree(seed: int) -> None:
    check_stored(seed)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=SEEDS)
def test_rows_may_be_anywhere(seed: int) -> None:
    check_anywhere(seed)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(seed=SEEDS)
def test_the_steps_in_which_large_arrays_are_handled_do_not_show(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        for module, name, value in SMALL_STEPS:
            patched.setattr(module, name, value)
        check_anywhere(seed)


@pytest.mark.soak
@settings(max_examples=500, deadline=None)
@given(seed=SEEDS)
def test_hundreds_of_other_graphs_agree(seed: int) -> None:
    check_stored(seed)
    check_anywhere(seed)
