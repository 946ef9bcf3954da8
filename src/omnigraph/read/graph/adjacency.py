"""The adjacency of one edge table between two node tables, over the row numbers of their resident tables.

Built from the stored versions alone and cached under them; overlays are applied on top (`Csr.patch`), so that a small
commit costs a copy of the arrays and not a new build, which spends most of its time on looking up ids.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.read.graph.csr import Csr
from omnigraph.read.tables.arrow_numpy import ArrowArray, BoolArray, NumArray, to_mask
from omnigraph.read.tables.column_store import ID
from omnigraph.read.tables.large_arrays import sorted_distinct
from omnigraph.read.tables.read_cache import shared_work
from omnigraph.read.tables.resident_table import ResidentTable
from omnigraph.threads import gather

SRC, DST = "src", "dst"
BUILD_S_PER_EDGE = 0.6e-6


@dataclass(slots=True)
class Adjacency:
    """Both directions, each made on first use, and for one type at both ends also both together.

    `loose` are the row numbers of stored edges with an end that is not a stored node; it may be in an overlay.
    """

    forward: Csr
    loose: NumArray
    _backward: Csr | None = None
    _both: Csr | None = None
    _make_backward: Callable[[], Csr] | None = None  # makes the other direction without sorting
    _make_both: "Callable[[Adjacency], Csr] | None" = None  # the same for both together

    @property
    def nbytes(self) -> int:
        """As if the other direction, and between nodes of one type both together, were made already."""
        parts = 3 if self.forward.vertices == self.forward.target_vertices else 2
        return parts * self.forward.nbytes + int(self.loose.nbytes)

    @property
    def backward(self) -> Csr:
        if self._backward is None:
            with shared_work():
                self._backward = self.forward.reverse() if self._make_backward is None else self._make_backward()
        return self._backward

    @property
    def both(self) -> Csr:
        """Every neighbour once, in either direction; without edges."""
        if self._both is None:
            one, other = self.forward, self.backward
            with shared_work():
                ways = (one.owners(), one.targets), (other.owners(), other.targets)
                self._both = (
                    _merge_directions(*ways, one.vertices, one.target_vertices)
                    if self._make_both is None
                    else self._make_both(self)
                )
        return self._both

    def near(self, vertices: NumArray) -> Csr:
        """Every neighbour of these vertices once, in either direction, by position in `vertices`."""
        ways = [csr.expand(vertices)[:2] for csr in (self.forward, self.backward)]
        return _merge_directions(ways[0], ways[1], len(vertices), self.forward.target_vertices)


def _merge_directions(
    one: tuple[NumArray, NumArray], other: tuple[NumArray, NumArray], vertices: int, others: int
) -> Csr:
    """The pairs of two directions, each neighbour once; without edges."""
    sources, targets = np.concatenate([one[0], other[0]]), np.concatenate([one[1], other[1]])
    numbers = np.zeros(len(sources), np.int32)
    both = Csr.build(sources, targets, numbers, vertices, others).without_parallels()
    return Csr(both.starts, both.targets, numbers[:0], both.target_vertices)


def build_adjacency(edges: ResidentTable, source: ResidentTable, target: ResidentTable) -> Adjacency:
    """From the stored edges; the expensive step is looking up the number of each end."""
    sources, targets = gather(
        [
            lambda: _find_vertices(edges.stored.column(SRC), source),
            lambda: _find_vertices(edges.stored.column(DST), target),
        ]
    )
    inside = (sources >= 0) & (targets >= 0)
    numbers = np.arange(len(sources), dtype=np.int32)
    loose = numbers[~inside]
    if len(loose):
        sources, targets, numbers = sources[inside], targets[inside], numbers[inside]
    return Adjacency(Csr.build(sources, targets, numbers, source.stored.rows, target.stored.rows), loose)


def _find_vertices(ids: ArrowArray, nodes: ResidentTable) -> NumArray:
    """The stored row number of each id, -1 where there is none. Runs of one id are looked up once."""
    if len(ids) < 1_000:
        return nodes.stored.index.find(ids)
    changes = np.flatnonzero(to_mask(pc.not_equal(ids[1:], ids[:-1]))) + 1
    together = 4 * len(changes) < len(ids)
    firsts = np.concatenate([np.zeros(1, np.int64), changes])
    wanted = ids.take(pa.array(firsts)) if together else ids
    positions: Any = pc.index_in(wanted, value_set=nodes.stored.column(ID))
    numbers: NumArray = pc.fill_null(positions, -1).to_numpy()
    return np.repeat(numbers, np.diff(firsts, append=len(ids))) if together else numbers


@dataclass(frozen=True, slots=True)
class _EdgeChanges:
    """What overlays change: stored edges that were deleted or replaced, deleted nodes, and edges to add."""

    replaced: BoolArray | None
    dead_sources: NumArray
    dead_targets: NumArray
    sources: NumArray
    targets: NumArray
    edges: NumArray

    @property
    def is_empty(self) -> bool:
        return self.replaced is None and not (len(self.dead_sources) or len(self.dead_targets) or len(self.sources))

    def reverse(self) -> "_EdgeChanges":
        return _EdgeChanges(self.replaced, self.dead_targets, self.dead_sources, self.targets, self.sources, self.edges)

    def apply(self, csr: Csr, vertices: int, others: int) -> Csr:
        gone = [csr.entries(self.dead_sources)[0]] if len(self.dead_sources) else []
        if self.replaced is not None:
            gone.append(np.flatnonzero(self.replaced[csr.edges]))
        if len(self.dead_targets):
            gone.append(np.flatnonzero(np.isin(csr.targets, self.dead_targets)))
        positions = sorted_distinct(np.concatenate(gone)) if gone else np.zeros(0, np.int64)
        return csr.patch(positions, self.sources, self.targets, self.edges, vertices, others)

    def near(self, base: "Adjacency") -> NumArray:
        """The vertices, of one type at both ends, whose neighbours may have changed."""
        dead = np.union1d(self.dead_sources, self.dead_targets)
        found = [self.sources, self.targets, dead]
        if len(dead):
            found += [csr.expand(dead)[1] for csr in (base.forward, base.backward)]
        if self.replaced is not None:
            entries = np.flatnonzero(self.replaced[base.forward.edges])
            found += [np.searchsorted(base.forward.starts, entries, "right") - 1, base.forward.targets[entries]]
        return sorted_distinct(np.concatenate(found).astype(np.int64))


def apply_overlays(base: Adjacency, edges: ResidentTable, source: ResidentTable, target: ResidentTable) -> Adjacency:
    """The adjacency with all overlays applied; `base` itself where they do not change it."""
    changes = _changes(base, edges, source, target)
    sizes = (source.total, target.total)
    if changes.is_empty and sizes == (base.forward.vertices, base.forward.target_vertices):
        return base

    def make_both(made: Adjacency) -> Csr:
        """Rebuild only the lists of vertices near a change."""
        near = changes.near(base)
        return base.both.with_lists(near, made.near(near), *sizes)

    return Adjacency(
        changes.apply(base.forward, *sizes),
        np.zeros(0, np.int32),
        _make_backward=lambda: changes.reverse().apply(base.backward, sizes[1], sizes[0]),
        _make_both=make_both,
    )


def _changes(base: Adjacency, edges: ResidentTable, source: ResidentTable, target: ResidentTable) -> _EdgeChanges:
    patch, replaced, numbers = edges.patch, None, base.loose
    if patch is not None:
        replaced = np.zeros(edges.stored.rows, np.bool_)
        replaced[patch.replaced] = True
        numbers = np.concatenate([numbers[~replaced[numbers]], patch.row_numbers])
        replaced = replaced if len(patch.replaced) else None
    sources = targets = np.zeros(0, np.int64)
    if len(numbers):
        ends = edges.values([SRC, DST], numbers)
        sources, targets = source.numbers_of(ends[SRC]), target.numbers_of(ends[DST])
    inside = (sources >= 0) & (targets >= 0)
    dead = [np.zeros(0, np.int64) if p is None else np.flatnonzero(~p.alive) for p in (source.patch, target.patch)]
    return _EdgeChanges(replaced, dead[0], dead[1], sources[inside], targets[inside], numbers[inside])
