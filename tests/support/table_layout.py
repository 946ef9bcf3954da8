"""How the tables of a graph are stored, for tests of maintenance."""

from __future__ import annotations

from dataclasses import dataclass

from omnigraph.graph.graph import Graph
from omnigraph.manifest.model.manifest import MAIN, Manifest, TableKey
from omnigraph.storage.table.maintain.layout import TableLayout, read_layout


@dataclass(frozen=True)
class Stored:
    """What a lookup meets: fragments, the most segments that an index has, and rows that none covers."""

    fragments: int
    segments: int
    unindexed: int
    deleted: int


def head_of(graph: Graph, branch: str = MAIN) -> Manifest:
    return graph.repository.branches.find(branch).head


def shape(graph: Graph, key: TableKey, branch: str = MAIN) -> TableLayout:
    stored = head_of(graph, branch).tables[key].stored
    assert stored is not None
    return read_layout(graph.repository.location, stored)


def stored(graph: Graph, key: TableKey, branch: str = MAIN) -> Stored:
    found = shape(graph, key, branch)
    names = {segment.index for segment in found.segments}
    covered = {name: set[int]() for name in names}
    for segment in found.segments:
        covered[segment.index] |= segment.fragments
    unindexed = max(
        (sum(one.rows for one in found.fragments if one.number not in numbers) for numbers in covered.values()),
        default=found.rows,
    )
    counts = [sum(segment.index == name for segment in found.segments) for name in names]
    deleted = sum(one.deleted for one in found.fragments)
    return Stored(len(found.fragments), max(counts, default=0), unindexed, deleted)


def tails(graph: Graph, branch: str = MAIN) -> dict[TableKey, int]:
    """How many small commits lie on each table."""
    return {key: len(ref.tail) for key, ref in head_of(graph, branch).tables.items()}


def content(graph: Graph, branch: str = MAIN) -> dict[TableKey, object]:
    """Everything that a maintenance commit must leave as it is."""
    snapshot = graph.snapshot(branch)
    return {
        key: (ref.rows, ref.changed_at, ref.removed_at, snapshot.to_arrow(key).sort_by("id").to_pylist())
        for key, ref in snapshot.pinned.manifest.tables.items()
    }
