"""Expand a frontier along edges, by the adjacency or by lookups in the edge table; both give the same result.

The rules are those of `ir.Traverse`. Reachability is breadth first from either end: the pair (source, target) is
reported if their distance is within the bounds, or, for a target with an edge to itself, one below the lower bound.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.cancellation import checkpoint
from omnigraph.memory_budget import hold
from omnigraph.query.ir import Traverse
from omnigraph.read.graph.adjacency import DST, SRC, Adjacency
from omnigraph.read.graph.csr import Csr, Expanded
from omnigraph.read.tables.arrow_numpy import NumArray
from omnigraph.read.tables.column_store import ID
from omnigraph.read.tables.large_arrays import concat, distinct, fill, full, sorted_distinct, take, true_positions
from omnigraph.read.tables.resident_table import NeedsResidentTables
from omnigraph.read.tables.table_access import TableAccess
from omnigraph.storage.table.read.row_addresses import id_batches, id_filter

Neighbours: TypeAlias = Callable[[NumArray], tuple[NumArray, NumArray]]

_MARKS_MAX = 1 << 24  # bytes of the visited marks of all sources of a batch


def expand(access: TableAccess, step: Traverse, frontier: NumArray, backward: bool) -> Expanded:
    """For each position of the frontier, all vertices the step reaches; with edges only where the step binds them."""
    if step.never or not len(frontier):
        return _EMPTY
    with_edges = step.edge_var is not None
    adjacency = access.adjacency(step)
    if step.single_hop:
        if adjacency is not None:
            return _hop(adjacency, step, frontier, backward, with_edges)
        starts, positions = distinct(frontier)
        return _lookup_hop(access, step, starts, backward, with_edges).expand(positions, with_edges)
    starts, positions = distinct(frontier)
    if adjacency is not None:
        csr = step_csr(adjacency, step, backward)
        owners, reached = _reach_in_batches(csr, starts, step, backward)
    else:

        def neighbours(numbers: NumArray) -> tuple[NumArray, NumArray]:
            unique_vertices, positions = np.unique(numbers, return_inverse=True)  # sources may meet
            return _lookup_hop(access, step, unique_vertices, backward, with_edges=False).expand(positions)[:2]

        owners, reached = _reach(neighbours, starts, step, backward, _SeenPairs(starts), _PAIR)
    if len(starts) == 1 and len(frontier) == 1:
        return owners, reached, None
    found = Csr.build(owners, reached, full(len(owners), 0, np.int32), len(starts), _vertex_count(reached))
    return found.expand(positions)


def step_csr(adjacency: Adjacency, step: Traverse, backward: bool) -> Csr:
    """The adjacency of one hop of the step; parallel edges repeat a neighbour."""
    if step.undirected:
        return adjacency.both
    return adjacency.backward if backward else adjacency.forward


def _hop(adjacency: Adjacency, step: Traverse, frontier: NumArray, backward: bool, with_edges: bool) -> Expanded:
    if not with_edges:
        return step_csr(adjacency, step, backward).expand_once(frontier)
    if not step.undirected:
        return step_csr(adjacency, step, backward).expand(frontier, with_edges=True)
    out, back = adjacency.forward.expand(frontier, True), adjacency.backward.expand(frontier, True)
    return _both_directions(out, back, frontier)


def _both_directions(out: Expanded, back: Expanded, frontier: NumArray) -> Expanded:
    """Both directions of undirected edges that are bound; a self-loop matches once."""
    positions, reached, edges = back
    once = true_positions(fill(len(reached), np.bool_, lambda part: reached[part] != frontier[positions[part]]))
    assert out[2] is not None
    assert edges is not None
    return (
        concat([out[0], take(positions, once)]),
        concat([out[1], take(reached, once)]),
        concat([out[2], take(edges, once)]),
    )


# By lookups -------------------------------------------------------------------------------------------------


def _lookup_hop(access: TableAccess, step: Traverse, distinct: NumArray, backward: bool, with_edges: bool) -> Csr:
    """One hop from each of these vertices, as a small adjacency over positions in `distinct`."""
    options = access.reader.options
    if options.expand == "auto" and len(distinct) > options.frontier_max:
        raise NeedsResidentTables(step.edge, step.source_key, step.target_key)
    ways = [_lookup_one_way(access, step, distinct, backward, with_edges)]
    if step.undirected:
        owners, reached, edges = _lookup_one_way(access, step, distinct, not backward, with_edges)
        once = reached != distinct[owners]
        ways.append((owners[once], reached[once], edges[once]))
    owners, reached, edges = (np.concatenate(parts) for parts in zip(*ways, strict=True))
    found = Csr.build(owners, reached, edges, len(distinct), _vertex_count(reached))
    return found if with_edges else found.without_parallels()


def _lookup_one_way(
    access: TableAccess, step: Traverse, distinct: NumArray, backward: bool, with_edges: bool
) -> tuple[NumArray, NumArray, NumArray]:
    near_end, far_end = (DST, SRC) if backward else (SRC, DST)
    keys = (step.target_key, step.source_key) if backward else (step.source_key, step.target_key)
    near, far = access.table(keys[0]), access.table(keys[1])
    edges = access.lazy_table(step.edge)
    ids: Any = near.ids(distinct)
    names = edges.columns_with(SRC, DST) if with_edges else [SRC, DST, ID]
    parts = []
    for chunk in id_batches(ids.to_pylist()):
        checkpoint()
        parts.append(edges.scan((), names, id_filter(chunk, near_end)))
    rows = pa.concat_tables(parts)
    owners: Any = pc.index_in(rows.column(near_end), value_set=ids)
    rows = rows.filter(pc.is_valid(owners))
    rows = _distinct_edges(rows) if len(parts) > 1 else rows
    positions: Any = pc.index_in(rows.column(near_end), value_set=ids)
    reached = far.numbers_of(_flat(rows.column(far_end)))
    inside = reached >= 0
    numbers = edges.add(rows) if with_edges else np.zeros(rows.num_rows, np.int64)
    return positions.to_numpy().astype(np.int64)[inside], reached[inside], numbers[inside]


def _distinct_edges(rows: pa.Table) -> pa.Table:
    """Each edge once: every chunk of a lookup returns all overlay rows."""
    ids: Any = _flat(rows.column(ID))
    encoded = ids.dictionary_encode().indices.to_numpy()
    _, first = np.unique(encoded, return_index=True)
    return rows.take(np.sort(first))


def _flat(column: Any) -> Any:
    return column.combine_chunks()


def _vertex_count(reached: NumArray) -> int:
    return int(reached.max()) + 1 if len(reached) else 1


# Reachability -----------------------------------------------------------------------------------------------

_PAIR = 1 << 32
_NONE = np.zeros(0, np.int64)
_EMPTY: Expanded = (_NONE, _NONE, _NONE)


class _SeenPairs:
    """The visited (source, vertex) pairs as a sorted array, for few of them."""

    def __init__(self, starts: NumArray) -> None:
        self._seen = np.arange(len(starts)) * _PAIR + starts

    def add_new(self, keys: NumArray) -> NumArray:
        distinct_keys = sorted_distinct(keys)
        places = np.searchsorted(self._seen, distinct_keys)
        known = self._seen[np.minimum(places, len(self._seen) - 1)] == distinct_keys
        new: NumArray = distinct_keys[~known]
        self._seen = np.insert(self._seen, places[~known], new)
        return new


class _SeenMarks:
    """The visited pairs as a byte for each source and vertex, for many."""

    def __init__(self, size: int) -> None:
        self._marks = full(size, False, np.bool_)
        self._touched: list[NumArray] = []

    def start(self, keys: NumArray) -> None:
        for touched in self._touched:
            self._marks[touched] = False
        self._marks[keys] = True
        self._touched = [keys]

    def add_new(self, keys: NumArray) -> NumArray:
        new: NumArray = keys[~self._marks[keys]]
        if len(new) * 16 > len(self._marks):
            marks = np.zeros(len(self._marks), np.bool_)
            marks[new] = True
            new = np.flatnonzero(marks)
        else:
            new = sorted_distinct(new)
        self._marks[new] = True
        self._touched.append(new)
        return hold(new)


def _reach_in_batches(csr: Csr, starts: NumArray, step: Traverse, backward: bool) -> tuple[NumArray, NumArray]:
    """Reachability in batches of as many sources as fit into the marks."""
    size = max(1, min(len(starts), _MARKS_MAX // max(1, csr.vertices)))
    seen = _SeenMarks(size * csr.vertices)
    owners, reached = [_NONE], [_NONE]
    for first in range(0, len(starts), size):
        batch = starts[first : first + size].astype(np.int64)
        seen.start(np.arange(len(batch)) * csr.vertices + batch)
        own, found = _reach(lambda f: csr.expand(f)[:2], batch, step, backward, seen, csr.vertices, csr.parts)
        owners.append(_as_int32(own, first))
        reached.append(_as_int32(found, 0))
    return concat(owners[1:]), concat(reached[1:])


def _as_int32(numbers: NumArray, offset: int) -> NumArray:
    return fill(len(numbers), np.int32, lambda part: numbers[part] + offset)


def _whole(frontier: NumArray) -> Iterator[slice]:
    yield slice(0, len(frontier))


def _reach(
    neighbours: Neighbours,
    starts: NumArray,
    step: Traverse,
    backward: bool,
    seen: Any,
    width: int,
    parts: Callable[[NumArray], Iterable[slice]] = _whole,
) -> tuple[NumArray, NumArray]:
    """Breadth first from each start: (position of the start, vertex) for all that is reported."""
    owners, vertices = np.arange(len(starts)), starts.astype(np.int64)
    reported: list[tuple[NumArray, NumArray]] = [(_NONE, _NONE)]
    looped = np.zeros(len(starts), np.bool_)  # starts with an edge to themselves
    depth = 0
    while True:
        checkpoint()
        if depth >= step.min_hops:
            reported.append((owners, vertices))
        if depth == step.max_hops or not len(vertices):
            break
        with_loops = depth == 0 if backward else depth == step.min_hops - 1
        loops = np.zeros(len(vertices) if with_loops else 0, np.bool_)  # of the frontier
        found = [_NONE]
        for part in parts(vertices):
            near, own = vertices[part], owners[part]
            positions, reached = neighbours(near)
            if with_loops:
                loops[part.start + positions[reached == near[positions]]] = True
            keys = reached.astype(np.int64) if len(starts) == 1 else own[positions] * width + reached
            found.append(seen.add_new(keys))
        if with_loops and backward:
            looped[owners[loops]] = True
        if depth == step.min_hops - 1:
            loops = looped[owners] if backward else loops
            reported.append((hold(owners[loops]), hold(vertices[loops])))
        keys = concat(found[1:])
        owners, vertices = _split_keys(keys, width) if len(starts) > 1 else (np.zeros(len(keys), np.int64), keys)
        depth += 1
    return concat([owners for owners, _ in reported]), concat([found for _, found in reported])


def _split_keys(keys: NumArray, width: int) -> tuple[NumArray, NumArray]:
    return (
        fill(len(keys), np.int64, lambda part: keys[part] // width),
        fill(len(keys), np.int64, lambda part: keys[part] % width),
    )
