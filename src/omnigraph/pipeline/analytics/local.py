"""Analyses in this process: numpy over vertex numbers, which are in the order of types and ids; edges are sorted too.

The order in which rows are stored never shows in an answer, not even in its last bit. What each function computes is
what networkx calls by the same name (`tests/pipeline/test_analytics.py` compares whole results).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.cancellation import checkpoint
from omnigraph.manifest.commit.txn import Snapshot
from omnigraph.pipeline.analytics.spec import VALUE_NAMES, AnalysisSpec
from omnigraph.read.graph.csr import Csr
from omnigraph.read.tables import scan as read_table
from omnigraph.storage.table.tables import Tables

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Ranks = NDArray[np.float64]

PAIRS_MAX = 4_000_000  # of neighbours that are looked at together when triangles are counted


@dataclass(frozen=True, slots=True)
class LocalGraph:
    """`ids` are sorted within each type; a vertex's number is its place in all of them."""

    types: tuple[str, ...]
    ids: "tuple[pa.Array[Any], ...]"
    sources: "Numbers"
    targets: "Numbers"

    @property
    def vertices(self) -> int:
        return sum(map(len, self.ids))

    def start_of(self, type_name: str) -> int:
        return sum(len(ids) for ids in self.ids[: self.types.index(type_name)])


@dataclass(frozen=True, slots=True)
class LocalResult:
    """A value for every vertex, in the order of their numbers."""

    graph: LocalGraph
    values: "pa.Array[Any]"
    iterations: int | None = None
    converged: bool | None = None

    @property
    def vertices(self) -> int:
        return self.graph.vertices

    @property
    def edges(self) -> int:
        return len(self.graph.sources)

    def rows(self, limit: int | None, spec: AnalysisSpec) -> "pa.Table":
        """Type, id and value; the largest values first, components one after the other."""
        table = pa.table(
            {
                "type": pa.chunked_array(
                    [pa.array([name] * len(ids), pa.string()) for name, ids in self._by_type()], pa.string()
                ),
                "id": pa.chunked_array([ids.cast(pa.string()) for _, ids in self._by_type()], pa.string()),
                VALUE_NAMES[spec.algorithm]: self.values,
            }
        )
        order = "ascending" if spec.algorithm == "components" else "descending"
        keys: Any = [(VALUE_NAMES[spec.algorithm], order), ("type", "ascending"), ("id", "ascending")]
        ordered: Any = pc.sort_indices(table, sort_keys=keys)
        return table.take(ordered if limit is None else ordered[:limit])

    def of_type(self, type_name: str) -> "tuple[pa.Array[Any], pa.Array[Any]]":
        """The ids of a type, and their values."""
        ids = self.graph.ids[self.graph.types.index(type_name)]
        return ids.cast(pa.string()), self.values.slice(self.graph.start_of(type_name), len(ids))

    def _by_type(self) -> "zip[tuple[str, pa.Array[Any]]]":
        return zip(self.graph.types, self.graph.ids, strict=True)


def answer(tables: Tables, snapshot: Snapshot, spec: AnalysisSpec) -> LocalResult:
    graph = read_graph(tables, snapshot, spec)
    count, sources, targets = graph.vertices, graph.sources, graph.targets
    if spec.direction == "in":
        sources, targets = targets, sources
    match spec.algorithm:
        case "pagerank":
            if spec.direction == "both":
                loops = sources == targets  # the same either way
                turned, back = targets[~loops], sources[~loops]
                sources, targets = np.concatenate([sources, turned]), np.concatenate([targets, back])
            ranks, rounds, converged = pagerank(count, sources, targets, spec.damping, spec.tolerance, spec.iterations)
            return LocalResult(graph, pa.array(ranks), rounds, converged)
        case "components":
            return LocalResult(graph, _named(graph, components(count, sources, targets), spec.numbered))
        case "degrees":
            ends = np.concatenate([sources, targets]) if spec.direction == "both" else sources
            return LocalResult(graph, pa.array(np.bincount(ends, minlength=count).astype(np.int64)))
        case "triangles":
            return LocalResult(graph, pa.array(triangles(count, sources, targets)))


def read_graph(tables: Tables, snapshot: Snapshot, spec: AnalysisSpec) -> LocalGraph:
    ids = [_sorted_ids(tables, snapshot, definition.table_key) for definition in spec.vertices]
    names = tuple(definition.name for definition in spec.vertices)
    starts = dict(zip(names, np.cumsum([0, *map(len, ids)])[:-1].tolist(), strict=True))
    numbered = dict(zip(names, ids, strict=True))
    sources, targets = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for edge in spec.edges:
        assert edge.source is not None
        assert edge.target is not None
        rows = read_table.scan(tables, snapshot, edge.table_key, ["src", "dst"])
        sources.append(_numbers(rows.column("src"), numbered[edge.source]) + starts[edge.source])
        targets.append(_numbers(rows.column("dst"), numbered[edge.target]) + starts[edge.target])
    one, other = np.concatenate(sources), np.concatenate(targets)
    order = np.lexsort((other, one))
    return LocalGraph(names, tuple(ids), one[order], other[order])


def pagerank(
    count: int, sources: "Numbers", targets: "Numbers", damping: float, tolerance: float, iterations: int
) -> "tuple[Ranks, int, bool]":
    """The share of time that a walk spends at each vertex; parallel edges count, dead ends jump anywhere.

    It has settled when all ranks together change by less than the tolerance, however many they are.
    """
    if not count:
        return np.zeros(0), 0, True
    leaving = np.bincount(sources, minlength=count).astype(np.float64)
    dead_ends = leaving == 0
    shares = 1.0 / np.where(dead_ends, 1.0, leaving)
    ranks = np.full(count, 1.0 / count)
    for number in range(1, iterations + 1):
        checkpoint()
        before = ranks
        arriving = np.bincount(targets, weights=(before * shares)[sources], minlength=count)
        ranks = damping * (arriving + before[dead_ends].sum() / count) + (1.0 - damping) / count
        if np.abs(ranks - before).sum() < tolerance:
            return ranks, number, True
    return ranks, iterations, False


def components(count: int, sources: "Numbers", targets: "Numbers") -> "Numbers":
    """For each vertex the smallest one that it is connected with, whichever way edges point.

    Every vertex points at a smaller one of its component; roots are hooked to smaller ones that neighbours know, and
    ways are cut short, until nothing changes: about as often as the logarithm of the longest way.
    """
    parents = np.arange(count)
    one, other = np.concatenate([sources, targets]), np.concatenate([targets, sources])
    while True:
        checkpoint()
        above = parents[parents]
        hooked = np.minimum(parents, above)
        np.minimum.at(hooked, parents[one], above[other])
        np.minimum.at(hooked, one, above[other])
        if np.array_equal(hooked, parents):
            return parents
        parents = hooked


def triangles(count: int, sources: "Numbers", targets: "Numbers") -> "Numbers":
    """How many triangles each vertex is in; loops and parallel edges make none."""
    low, high = np.minimum(sources, targets), np.maximum(sources, targets)
    pairs = np.unique(np.stack([low, high], axis=1)[low != high], axis=0).reshape(-1, 2)
    degrees = np.bincount(pairs.ravel(), minlength=count)
    # Each edge from the end with fewer neighbours: then no vertex has many edges that leave it.
    turned = _is_reversed(degrees, pairs)
    first, second = np.where(turned, pairs[:, 1], pairs[:, 0]), np.where(turned, pairs[:, 0], pairs[:, 1])
    csr = Csr.build(first, second, np.zeros(len(first), np.int64), count, count)
    owners, found = csr.owners(), np.zeros(count, np.int64)
    ends = np.cumsum(csr.degrees(csr.targets))
    start = 0
    while start < len(csr.targets):
        checkpoint()
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + PAIRS_MAX, "right")))
        places, reached, _ = csr.expand(csr.targets[start:stop])
        origins = owners[start:stop][places]
        closed = csr.connects(origins, reached)
        for corner in (origins, csr.targets[start:stop][places], reached):
            found += np.bincount(corner[closed], minlength=count)
        start = stop
    return found


def _is_reversed(degrees: "Numbers", pairs: "Numbers") -> Any:
    one, other = degrees[pairs[:, 0]], degrees[pairs[:, 1]]
    return (one > other) | ((one == other) & (pairs[:, 0] > pairs[:, 1]))


def _named(graph: LocalGraph, roots: "Numbers", numbered: bool) -> "pa.Array[Any]":
    """Components by the smallest id in them, or by the place of that among those of all components.

    Where vertices are of several types, ids may agree: then the smallest by id, then type, with its type before it.
    """
    ids: Any = pa.concat_arrays([ids.cast(pa.large_string()) for ids in graph.ids])
    kinds = np.repeat(np.arange(len(graph.ids)), [len(ids) for ids in graph.ids])
    keys: Any = [("id", "ascending"), ("kind", "ascending")]
    order = np.asarray(pc.sort_indices(pa.table({"id": ids, "kind": pa.array(kinds)}), sort_keys=keys))
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    smallest = np.full(len(roots), len(roots), np.int64)
    np.minimum.at(smallest, roots, places)
    own = smallest[roots]  # the place, in the order of ids, of the smallest in each vertex's component
    if numbered:
        return pa.array(np.unique(own, return_inverse=True)[1].astype(np.int64))
    best = order[own] if len(own) else own
    names: Any = ids.take(pa.array(best))
    if len(graph.types) > 1:
        types: Any = pa.array(graph.types, pa.large_string()).take(kinds[best])
        names = pc.binary_join_element_wise(types, names, pa.scalar(":", pa.large_string()))
    text: pa.Array[Any] = names.cast(pa.string())
    return text


def _sorted_ids(tables: Tables, snapshot: Snapshot, key: str) -> "pa.Array[Any]":
    column = read_table.scan(tables, snapshot, key, ["id"]).column("id").cast(pa.large_string())
    ids: Any = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], pa.large_string())
    sort: Any = pc.sort_indices
    ordered: pa.Array[Any] = ids.take(sort(ids))
    return ordered


def _numbers(ends: "pa.ChunkedArray[Any]", ids: "pa.Array[Any]") -> "Numbers":
    found: Sequence[Any] = pc.index_in(ends.cast(pa.large_string()), value_set=ids)  # type: ignore[assignment]
    return np.asarray(found, np.int64)
