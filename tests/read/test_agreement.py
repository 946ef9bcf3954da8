"""All ways of running a query agree with the plain interpreter, however the rows are spread over store and overlay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from omnigraph.errors import BadRequest
from omnigraph.lexing import LanguageError
from omnigraph.query.ir import ReadQuery
from omnigraph.read.run import run_query
from omnigraph.read.state import Reader
from omnigraph.storage.overlay import Overlay

from . import generated
from .graphs import MODES, Data, Row, bound, graph_of, interpreted, reader_of, split

QUERIES = 8  # of each graph: making a graph takes longer than asking it


def queries(rng: Random) -> list[tuple[str, ReadQuery]]:
    found = []
    while len(found) < QUERIES:
        text = generated.query(rng)
        try:
            found.append((text, bound(text)))
        except LanguageError:
            continue  # the generator is not careful about types
    return found


def check(readers: Mapping[str, Reader], data: Data, text: str, query: ReadQuery) -> None:
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


@settings(max_examples=70, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_adjacency_lookups_and_the_interpreter_agree(seed: int) -> None:
    rng = Random(seed)
    data = generated.graph(rng)
    with graph_of(data) as graph:
        readers = {mode: reader_of(graph, **options) for mode, options in MODES.items()}
        for text, query in queries(rng):
            check(readers, data, text, query)


def overlaid(rng: Random) -> tuple[Data, Data, dict[str, Overlay]]:
    """A graph, what of it is stored (some of it stale or to be deleted), and the overlays that make up for it."""
    data, other = generated.graph(rng), generated.graph(rng)
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


@settings(max_examples=70, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_rows_may_be_anywhere(seed: int) -> None:
    rng = Random(seed)
    data, stored, overlays = overlaid(rng)
    with graph_of(stored) as graph:
        readers = {mode: reader_of(graph, overlays, **options) for mode, options in MODES.items()}
        for text, query in queries(rng):
            check(readers, data, text, query)
