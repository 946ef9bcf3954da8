"""Compressed sparse rows (CSR): for each vertex the sorted list of its neighbours, and the edges to them.

Plain arrays and functions over them; adjacency.py builds them from tables.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from omnigraph.cancellation import checkpoint
from omnigraph.read.tables import large_arrays
from omnigraph.read.tables.arrow_numpy import BoolArray, NumArray
from omnigraph.read.tables.large_arrays import (
    chunks,
    count_each,
    fill,
    full,
    new_array,
    sort_order,
    take,
    true_positions,
)
from omnigraph.read.tables.read_cache import shared_work

_SPLICES_MAX = 4_096
MANY_ROWS = 2_048  # vertices or pairs; fewer are handled one by one
_SLOTS_PER_EDGE = 16

Expanded: TypeAlias = tuple[NumArray, NumArray, NumArray | None]  # position in the frontier, neighbour, edge


@dataclass(slots=True)
class Csr:
    """The neighbours of vertex v are `targets[starts[v]:starts[v + 1]]`, ascending; `edges` are in the same order.

    `vertices` and `target_vertices` are the numbers of vertices on the two sides.
    """

    starts: NumArray
    targets: NumArray
    edges: NumArray
    target_vertices: int
    _simple: "list[Csr]" = field(default_factory=list, repr=False)

    @property
    def vertices(self) -> int:
        return len(self.starts) - 1

    @property
    def nbytes(self) -> int:
        return int(self.starts.nbytes + self.targets.nbytes + self.edges.nbytes)

    @staticmethod
    def build(sources: NumArray, targets: NumArray, edges: NumArray, vertices: int, others: int) -> "Csr":
        width = max(others, 1)
        keys = fill(len(sources), np.int64, lambda part: sources[part].astype(np.int64) * width + targets[part])
        order = sort_order([keys], len(keys))
        del keys
        counts = count_each(sources, vertices)
        return Csr(_to_starts(counts), _take_int32(targets, order), _take_int32(edges, order), others)

    def degrees(self, vertices: NumArray) -> NumArray:
        return fill(len(vertices), np.int64, lambda part: self.starts[vertices[part] + 1] - self.starts[vertices[part]])

    def total_degree(self, vertices: NumArray) -> int:
        """How many entries an expansion of these vertices has."""
        return sum(
            int((self.starts[vertices[part] + 1] - self.starts[vertices[part]]).sum()) for part in chunks(len(vertices))
        )

    def count_passing(self, passing: BoolArray) -> NumArray:
        """For each vertex how many of its neighbours pass, in one pass over all lists without an expansion."""
        before = np.zeros(len(self.targets) + 1, np.int32)
        np.cumsum(passing[self.targets], out=before[1:])
        return np.diff(before[self.starts])

    def owners(self) -> NumArray:
        """The vertex that each entry belongs to."""
        return np.repeat(np.arange(self.vertices, dtype=np.int32), np.diff(self.starts))

    def without_parallels(self) -> "Csr":
        """Each neighbour once; parallel edges are merged. Cached."""
        if not self._simple:
            with shared_work():
                self._simple.append(self._drop_parallels())
        return self._simple[0]

    def expand_once(self, frontier: NumArray) -> Expanded:
        """As `expand`, each neighbour of a position once; a few parallel edges are dropped on the fly."""
        if self._is_worth_simplifying(frontier):
            return self.without_parallels().expand(frontier)
        positions, reached, _ = self.expand(frontier)
        if len(reached) < 2:
            return positions, reached, None
        first = np.ones(len(reached), np.bool_)
        first[1:] = (reached[1:] != reached[:-1]) | (positions[1:] != positions[:-1])
        return (positions, reached, None) if first.all() else (positions[first], reached[first], None)

    def degrees_once(self, frontier: NumArray) -> NumArray:
        """The number of distinct neighbours of each vertex of a frontier."""
        if self._is_worth_simplifying(frontier):
            return self.without_parallels().degrees(frontier)
        return count_each(self.expand_once(frontier)[0], len(frontier))

    def _is_worth_simplifying(self, frontier: NumArray) -> bool:
        if self._simple or len(frontier) == 1:
            return bool(self._simple)
        return 8 * self.total_degree(frontier) > len(self.targets)

    def reverse(self) -> "Csr":
        return Csr.build(self.targets, self.owners(), self.edges, self.target_vertices, self.vertices)

    def expand(self, frontier: NumArray, with_edges: bool = False) -> Expanded:
        """All neighbours of all vertices of a frontier, in its order."""
        if len(frontier) == 1:
            own = slice(self.starts[frontier[0]], self.starts[frontier[0] + 1])
            reached = self.targets[own].copy()
            return np.zeros(len(reached), np.int32), reached, self.edges[own].copy() if with_edges else None
        if len(frontier) <= large_arrays.CHUNK_ROWS:
            starts = self.starts[frontier]
            counts = self.starts[frontier + 1] - starts
            if int(counts.sum()) <= large_arrays.CHUNK_ROWS:
                entries, positions = _few_entries(starts, counts)
                return positions, self.targets[entries], self.edges[entries] if with_edges else None
        return self._expand_in_parts(frontier, with_edges)

    def _expand_in_parts(self, frontier: NumArray, with_edges: bool) -> Expanded:
        total = self.total_degree(frontier)
        positions, reached = new_array(total, np.int32), new_array(total, np.int32)
        edges = new_array(total, np.int32) if with_edges else None
        done = 0
        for entries, own in self._entry_parts(frontier):
            part = slice(done, done + len(entries))
            positions[part], reached[part] = own, self.targets[entries]
            if edges is not None:
                edges[part] = self.edges[entries]
            done = part.stop
        return positions, reached, edges

    def entries(self, frontier: NumArray) -> tuple[NumArray, NumArray]:
        """The entries of a frontier's vertices, and the position in the frontier of each."""
        total = self.total_degree(frontier)
        found, positions, done = new_array(total, np.int64), new_array(total, np.int32), 0
        for entries, own in self._entry_parts(frontier):
            part = slice(done, done + len(entries))
            found[part], positions[part] = entries, own
            done = part.stop
        return found, positions

    def parts(self, frontier: NumArray) -> Iterator[slice]:
        """Ranges of a frontier with about `CHUNK_ROWS` entries each, or with one vertex."""
        for near in chunks(len(frontier)):
            ends = np.cumsum(self.starts[frontier[near] + 1] - self.starts[frontier[near]])
            first = 0
            while first < len(ends):
                checkpoint()
                before = int(ends[first - 1]) if first else 0
                last = max(first + 1, int(np.searchsorted(ends, before + large_arrays.CHUNK_ROWS, "right")))
                yield slice(near.start + first, near.start + last)
                first = last

    def _entry_parts(self, frontier: NumArray) -> Iterator[tuple[NumArray, NumArray]]:
        """The same in parts, in order."""
        for near in chunks(len(frontier)):
            starts = self.starts[frontier[near]]
            counts = self.starts[frontier[near] + 1] - starts
            ends = np.cumsum(counts)
            shifts = starts - (ends - counts)
            for part in chunks(int(counts.sum())):
                first = int(np.searchsorted(ends, part.start, "right"))
                last = int(np.searchsorted(ends, part.stop, "left")) + 1
                own = slice(first, last)
                inside = np.minimum(ends[own], part.stop) - np.maximum(ends[own] - counts[own], part.start)
                positions = np.repeat(np.arange(near.start + first, near.start + last, dtype=np.int32), inside)
                yield np.arange(part.start, part.stop) + np.repeat(shifts[own], inside), positions

    def connects(self, sources: NumArray, targets: NumArray) -> BoolArray:
        """Which pairs some edge connects. For many pairs, a hash of the edges rules out most of them."""
        likely = self._likely(sources, targets)
        if likely is None:
            return fill(len(sources), np.bool_, lambda part: self._connects(sources[part], targets[part]))
        found = full(len(sources), False, np.bool_)
        for part in chunks(len(likely)):
            own = likely[part]
            found[own] = self._connects(sources[own], targets[own])
        return found

    def restrict(self, vertices: NumArray, passing: Callable[[NumArray], BoolArray]) -> "Csr":
        """The neighbours of some vertices that pass, once each, by position in `vertices`; without edges."""
        positions, reached, _ = self.expand_once(vertices)
        kept = passing(reached)
        own = true_positions(kept)
        counts = count_each(take(positions, own), len(vertices))
        return Csr(_to_starts(counts), take(reached, own), np.zeros(0, np.int32), self.target_vertices)

    def distinct_if_repeated(self, frontier: NumArray) -> NumArray | None:
        """The distinct vertices of a frontier if it repeats them enough, otherwise None.

        Enough means that their entries are at most half of those that expanding the frontier would produce.
        """
        if len(frontier) < MANY_ROWS or 64 * len(frontier) < self.vertices:
            return None
        marks = np.zeros(self.vertices, np.bool_)
        marks[frontier] = True
        distinct = np.flatnonzero(marks)
        return distinct if 2 * self.total_degree(distinct) <= self.total_degree(frontier) else None

    def _likely(self, sources: NumArray, targets: NumArray) -> NumArray | None:
        """The positions of pairs whose hash some edge between these vertices has; None where hashing does not pay."""
        if len(sources) < MANY_ROWS or 64 * len(sources) < self.vertices + self.target_vertices:
            return None
        asked = np.zeros(self.vertices, np.bool_)
        asked[sources] = True
        distinct = np.flatnonzero(asked)
        if self.total_degree(distinct) > 4 * len(sources):
            return None
        wanted = np.zeros(self.target_vertices, np.bool_)
        wanted[targets] = True
        entries, positions = self.entries(distinct)
        reached = take(self.targets, entries)
        between = true_positions(take(wanted, reached))
        bits = min(max(len(between) * _SLOTS_PER_EDGE, 1 << 16), 1 << 26).bit_length()
        slots = full(1 << bits, False, np.bool_)
        for part in chunks(len(between)):
            slots[_hash_pairs(distinct[positions[between[part]]], reached[between[part]], bits)] = True
        return true_positions(
            fill(len(sources), np.bool_, lambda part: slots[_hash_pairs(sources[part], targets[part], bits)])
        )

    def _connects(self, sources: NumArray, targets: NumArray) -> BoolArray:
        """By binary search in each source's list, all lists at once."""
        low, high = self.starts[sources], self.starts[sources + 1]
        end = high
        while True:
            searching = low < high
            if not searching.any():
                break
            middle = (low + high) >> 1
            below = np.zeros(len(low), np.bool_)
            below[searching] = self.targets[middle[searching]] < targets[searching]
            low, high = np.where(below, middle + 1, low), np.where(searching & ~below, middle, high)
        found: BoolArray = low < end
        found[found] = self.targets[low[found]] == targets[found]
        return found

    def patch(
        self, gone: NumArray, sources: NumArray, targets: NumArray, edges: NumArray, vertices: int, others: int
    ) -> "Csr":
        """A copy without the entries at positions `gone` and with more edges; only the new ones are sorted."""
        counts = np.zeros(vertices, np.int64)
        counts[: self.vertices] = np.diff(self.starts)
        np.subtract.at(counts, np.searchsorted(self.starts, gone, "right") - 1, 1)
        starts = _to_starts(counts)
        old_targets, old_edges = _remove(self.targets, gone), _remove(self.edges, gone)
        if not len(sources):
            return Csr(starts, old_targets, old_edges, others)
        order = np.lexsort((targets, sources))
        sources, targets, edges = sources[order], targets[order], edges[order]
        positions: list[int] = [
            int(starts[s]) + int(np.searchsorted(old_targets[starts[s] : starts[s + 1]], t))
            for s, t in zip(sources.tolist(), targets.tolist(), strict=True)
        ]
        return Csr(
            _to_starts(counts + np.bincount(sources, minlength=vertices)),
            _insert(old_targets, positions, targets),
            _insert(old_edges, positions, edges),
            others,
        )

    def with_lists(self, changed: NumArray, lists: "Csr", vertices: int, others: int) -> "Csr":
        """With the lists of `lists` in place of those of some vertices, ascending; for a `Csr` without edges."""
        counts = np.zeros(vertices, np.int64)
        counts[: self.vertices] = np.diff(self.starts)
        counts[changed] = np.diff(lists.starts)
        parts: list[NumArray] = []
        done = 0  # own entries copied so far
        for position, vertex in enumerate(changed.tolist()):
            inside = vertex < self.vertices
            start = int(self.starts[vertex]) if inside else len(self.targets)
            parts += [self.targets[done:start], lists.targets[lists.starts[position] : lists.starts[position + 1]]]
            done = int(self.starts[vertex + 1]) if inside else start
        parts.append(self.targets[done:])
        return Csr(_to_starts(counts), np.concatenate(parts), self.edges, others)

    def _drop_parallels(self) -> "Csr":
        if len(self.targets) < 2:
            return self
        first = np.ones(len(self.targets), np.bool_)
        first[1:] = self.targets[1:] != self.targets[:-1]
        inner = self.starts[1:-1]
        first[inner[inner < len(first)]] = True  # where another vertex's list starts
        if first.all():
            return self
        before = np.zeros(len(first) + 1, np.int32)
        np.cumsum(first, out=before[1:])
        return Csr(before[self.starts].astype(np.int64), self.targets[first], self.edges[first], self.target_vertices)


def _few_entries(starts: NumArray, counts: NumArray) -> tuple[NumArray, NumArray]:
    """The entries of vertices whose lists start there and have so many, and the position of the vertex of each."""
    positions = np.repeat(np.arange(len(starts), dtype=np.int32), counts)
    shifts = starts - (np.cumsum(counts) - counts)
    return np.arange(len(positions)) + np.repeat(shifts, counts), positions


def _take_int32(array: NumArray, positions: NumArray) -> NumArray:
    return fill(len(positions), np.int32, lambda part: array[positions[part]])


def _hash_pairs(sources: NumArray, targets: NumArray, bits: int) -> NumArray:
    """A hash of `bits` bits for each pair."""
    return (sources.astype(np.int64) * 0x9E3779B1 + targets) & ((1 << bits) - 1)


def _remove(array: NumArray, positions: NumArray) -> NumArray:
    """`array` without some positions, ascending; for few of them, copying the slices is much faster than a mask."""
    if len(positions) > _SPLICES_MAX:
        return np.delete(array, positions)
    ends = [*positions.tolist(), len(array)]
    starts = [0, *(position + 1 for position in ends[:-1])]
    return np.concatenate([array[start:end] for start, end in zip(starts, ends, strict=True)])


def _insert(array: NumArray, positions: list[int], values: NumArray) -> NumArray:
    """`array` with a value inserted before each of the positions, ascending."""
    if len(positions) > _SPLICES_MAX:
        return np.insert(array, positions, values)
    fitting = values.astype(array.dtype)
    parts: list[NumArray] = []
    for number, (start, end) in enumerate(zip([0, *positions], [*positions, len(array)], strict=True)):
        parts += [array[start:end], fitting[number : number + 1]]
    return np.concatenate(parts)


def _to_starts(counts: NumArray) -> NumArray:
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts
