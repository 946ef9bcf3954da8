"""Vector search: the distances of rows from a query vector.

Distances are always computed here, from the stored vectors, in double precision. An index only selects the rows to
consider where there are too many for all.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from omnigraph.errors import BadRequest
from omnigraph.query.ir import Nearest
from omnigraph.read.match.filters import to_array
from omnigraph.read.search.fulltext import Hits
from omnigraph.read.search.row_locations import NAMED_IDS_MAX, CandidateRows, positions_in
from omnigraph.read.tables.arrow_numpy import BoolArray, NumArray, raw_values, to_mask
from omnigraph.read.tables.column_store import ID, TAKE_ROWS_MAX, value_bytes
from omnigraph.schema.definitions import Metric
from omnigraph.schema.indexes import DeclaredIndex
from omnigraph.schema.types import Vector

# Up to so many vector components are scanned although there is an index: from the store, or from memory.
SCANNED_VALUES_MAX, SCANNED_IN_MEMORY_MAX = 4_000_000, 32_000_000
REFINE_FACTOR = 10  # rows requested from the index for each wanted row, because its distances are approximate
SHORT_LIST_ROWS_MIN = 10_000
VectorBatch: TypeAlias = (
    "tuple[NumArray, NumArray, BoolArray]"  # positions of candidates, their vectors, and which are not null
)

_CHUNK_ROWS = 65_536
_EXACT_ROWS = 2_048  # as doubles they fit a CPU cache; einsum, because BLAS starts threads and waits for them
_ROUGH_ERROR = 1e-3  # an upper bound of the error of single precision


def vector_distances(candidates: CandidateRows, rank: Nearest, wanted: NumArray, top: int | None) -> "pa.Array[Any]":
    """The distance of each candidate, null where there is none; see `search.rank_scores` for `top`."""
    _check_dimension(rank, wanted)
    if rank.metric == "cosine" and not wanted.any():  # it has no direction
        return pa.nulls(candidates.count, pa.float64())
    values, known = np.zeros(candidates.count, np.float64), np.zeros(candidates.count, np.bool_)
    parts = None
    if top is not None and _is_worth_an_index(candidates, rank):
        parts = _search_index(candidates, rank, wanted, top)
    for positions, matrix, present in parts or _vectors(candidates, rank.field.column.column):
        if top is not None and len(matrix) > SHORT_LIST_ROWS_MIN:
            kept = _short_list(matrix, present, wanted, rank.metric, top)
            positions, matrix, present = positions[kept], matrix[kept], present[kept]
        values[positions], known[positions] = distances(matrix, present, wanted, rank.metric)
    return pa.array(values, mask=~known)


def _check_dimension(rank: Nearest, wanted: NumArray) -> None:
    assert isinstance(rank.field.type, Vector)
    if len(wanted) != rank.field.type.dimension:
        name = rank.field.column.name
        raise BadRequest(f"{name} is {rank.field.type}: give nearest as many numbers, not {len(wanted)}.")


def distances(matrix: NumArray, present: BoolArray, wanted: NumArray, metric: Metric) -> tuple[NumArray, BoolArray]:
    """The distance of each vector, and whether it has one: not if it is null or, for cosine, zero."""
    known = present.copy()
    query = wanted.astype(np.float64)
    result = np.zeros(len(matrix), np.float64)
    for start in range(0, len(matrix), _EXACT_ROWS):
        part = slice(start, start + _EXACT_ROWS)
        chunk = matrix[part].astype(np.float64)
        if metric == "l2":
            chunk -= query
            result[part] = np.sqrt(np.einsum("ij,ij->i", chunk, chunk))
            continue
        lengths = np.sqrt(np.einsum("ij,ij->i", chunk, chunk)) * np.sqrt(query @ query)
        known[part] &= lengths > 0
        with np.errstate(divide="ignore", invalid="ignore"):
            result[part] = 1 - np.einsum("ij,j->i", chunk, query) / lengths
    known &= np.isfinite(result)
    return np.where(known, result, 0.0), known


def _short_list(matrix: NumArray, present: BoolArray, wanted: NumArray, metric: Metric, top: int) -> NumArray:
    """The positions of the nearest with possible ties, in single precision, which is several times faster."""
    known = present.copy()
    with np.errstate(all="ignore"):
        if metric == "l2":
            apart = matrix - wanted
            rough = np.sqrt(np.einsum("ij,ij->i", apart, apart))
        else:
            lengths = np.sqrt(np.einsum("ij,ij->i", matrix, matrix)) * np.sqrt(wanted @ wanted)
            rough = -np.einsum("ij,j->i", matrix, wanted) / lengths
            known &= ~np.isnan(rough)  # a zero vector
    (positions,) = np.nonzero(known)
    rough = rough[positions]
    if len(positions) <= top or not np.isfinite(rough).all():
        return positions
    last = np.partition(rough, top - 1)[top - 1]
    kept: NumArray = positions[rough <= last + _ROUGH_ERROR * max(1.0, abs(float(last)))]
    return kept


def matrix_of(vectors: "pa.Array[Any]") -> tuple[NumArray, BoolArray]:
    """Vectors as the rows of a matrix without a copy, and which of them are not null."""
    items: Any = vectors
    rows, width = len(vectors), int(items.type.list_size)
    return raw_values(items.values.slice(vectors.offset * width, rows * width)).reshape(rows, width), to_mask(
        vectors.is_valid()
    )


def _vectors(candidates: CandidateRows, column: str) -> Iterator[VectorBatch]:
    """All candidates' vectors: from memory, or a bounded part of the table at a time."""
    state, reader = candidates.state, candidates.reader
    if candidates.count <= NAMED_IDS_MAX and not candidates.by_number:
        named: list[Any] = candidates.ids.to_pylist()
        rows = reader.tables.lookup(state.at, named, [ID, column], state.overlay, state.schema)
        yield positions_in(candidates.ids, to_array(rows.column(ID))), *matrix_of(to_array(rows.column(column)))
        return
    in_memory = _matrix_lookup(candidates, column)
    for start in range(0, candidates.count, _CHUNK_ROWS):
        part = candidates.row_numbers[start : start + _CHUNK_ROWS]
        found = in_memory(part) if in_memory is not None else matrix_of(candidates.rows.values([column], part)[column])
        yield np.arange(start, start + len(part)), *found


def _matrix_lookup(candidates: CandidateRows, column: str) -> Callable[[NumArray], tuple[NumArray, BoolArray]] | None:
    """A lookup of vectors by row number in the loaded column; None where it is not loaded and should not be.

    Rows are picked from matrices: Arrow is slow for lists of numbers, and a run of rows need not be copied.
    """
    stored, patch = candidates.stored, candidates.rows.patch
    size = stored.rows * value_bytes(candidates.state.schema.field(column).type)
    if not stored.is_loaded(column) and (candidates.count <= TAKE_ROWS_MAX or not candidates.reader.caches.fits(size)):
        return None
    matrix, present = matrix_of(stored.column(column))
    if patch is None:
        return lambda row_numbers: _pick_rows(matrix, present, row_numbers)
    images, shown = matrix_of(to_array(patch.rows.column(column)))

    def pick(row_numbers: NumArray) -> tuple[NumArray, BoolArray]:
        where = patch.source[row_numbers]
        if int(where.max(initial=-1)) < patch.stored:
            return _pick_rows(matrix, present, where)
        inside = where < patch.stored
        result, has = np.empty((len(where), matrix.shape[1]), np.float32), np.empty(len(where), np.bool_)
        result[inside], has[inside] = matrix[where[inside]], present[where[inside]]
        result[~inside], has[~inside] = images[where[~inside] - patch.stored], shown[where[~inside] - patch.stored]
        return result, has

    return pick


def _pick_rows(matrix: NumArray, present: BoolArray, rows: NumArray) -> tuple[NumArray, BoolArray]:
    if len(rows) and int(rows[-1]) - int(rows[0]) == len(rows) - 1 and bool((np.diff(rows) == 1).all()):
        run = slice(int(rows[0]), int(rows[-1]) + 1)
        return matrix[run], present[run]
    return matrix[rows], present[rows]


def _is_worth_an_index(candidates: CandidateRows, rank: Nearest) -> bool:
    assert isinstance(rank.field.type, Vector)
    at, column = candidates.state.at, rank.field.column.column
    most = SCANNED_IN_MEMORY_MAX if candidates.stored.is_loaded(column) else SCANNED_VALUES_MAX
    if at is None or candidates.count * rank.field.type.dimension <= most:
        return False
    index = DeclaredIndex(column, "vector", rank.metric)
    reader = candidates.reader
    return reader.caches.get((at, index), lambda: reader.tables.has_index(at, index), lambda _: 8)


def _search_index(
    candidates: CandidateRows, rank: Nearest, wanted: NumArray, top: int, *, everything: bool = False
) -> list[VectorBatch] | None:
    """The vectors of approximately the nearest candidates; None if the index finds too few.

    With `everything` the candidates are all rows, and positions are row numbers.
    """
    state, column = candidates.state, rank.field.column.column
    found = candidates.reader.tables.search_nearest(
        state.at,
        column,
        wanted.tolist(),
        rank.metric,
        top * REFINE_FACTOR,
        state.overlay,
        state.schema,
        candidates=None if everything or candidates.is_all_rows else candidates.addresses_of(candidates.row_numbers),
    )
    if len(found.addresses) < min(top, candidates.count):
        return None
    row_numbers = candidates.row_numbers_at(found.addresses)
    positions = row_numbers if everything else candidates.positions_of(row_numbers)
    return [(positions, *matrix_of(candidates.rows.values([column], row_numbers)[column]))]


# All rows -----------------------------------------------------------------------------------------------------


def top_nearest(candidates: CandidateRows, rank: Nearest, wanted: NumArray, top: int) -> Hits | None:
    """The nearest of all rows with ties, or all that have a distance; `candidates` are all rows, by number.

    None where `vector_distances` has to be used.
    """
    _check_dimension(rank, wanted)
    if not wanted.any():
        return None
    if _is_worth_an_index(candidates, rank):
        parts = _search_index(candidates, rank, wanted, top, everything=True)
        if parts is None:
            return None
        ((row_numbers, matrix, present),) = parts
        values, known = distances(matrix, present, wanted, rank.metric)
        return Hits(row_numbers[known], values[known])
    near = rough_distances(candidates, rank, wanted)
    return None if near is None else near.nearest(top)


@dataclass(frozen=True, slots=True)
class _Lengths:
    """The inverse lengths of all vectors of a stored version: NaN for null and for zero vectors."""

    inverse: NumArray
    least: float  # of the nonzero ones
    greatest: float
    vectors: int

    @property
    def nbytes(self) -> int:
        return int(self.inverse.nbytes)


def _vector_lengths(matrix: NumArray, present: BoolArray) -> _Lengths:
    lengths = np.zeros(len(matrix), np.float64)
    with np.errstate(all="ignore"):
        for start in range(0, len(matrix), _EXACT_ROWS):
            chunk = matrix[start : start + _EXACT_ROWS].astype(np.float64)
            lengths[start : start + _EXACT_ROWS] = np.sqrt(np.einsum("ij,ij->i", chunk, chunk))
        there = lengths[present]
        inverse = np.where(present & (lengths > 0), 1 / lengths, np.nan).astype(np.float32)
    greatest = float(there.max(initial=0.0))  # NaN if one is
    return _Lengths(inverse, float(there[there > 0].min(initial=np.inf)), greatest, int(np.count_nonzero(present)))


_LONG, _SHORT = 1e12, 1e-12  # lengths between which products in single precision neither overflow nor vanish


def rough_distances(candidates: CandidateRows, rank: Nearest, wanted: NumArray) -> "RoughDistances | None":
    """Distances of all rows; None where vectors are not in memory or exceed the range of single precision."""
    _check_dimension(rank, wanted)
    column, state = rank.field.column.column, candidates.state
    if candidates.rows.patch is not None or state.at is None or _matrix_lookup(candidates, column) is None:
        return None
    matrix, present = matrix_of(candidates.stored.column(column))
    lengths = candidates.reader.caches.get(
        (state.at, "lengths", column), lambda: _vector_lengths(matrix, present), lambda made: made.nbytes
    )
    own = float(np.sqrt(np.square(wanted, dtype=np.float64).sum()))
    if not (lengths.greatest <= _LONG and own <= _LONG):
        return None
    if rank.metric == "cosine" and not (lengths.least >= _SHORT and own >= _SHORT):
        return None
    return RoughDistances(matrix, present, lengths, wanted, rank.metric)


class RoughDistances:
    """All distances in single precision; those that matter are computed again in double precision.

    The sum of n products is off by at most n u of the sum of their magnitudes, where u is half an epsilon, which by
    Cauchy and Schwarz is at most n u of the product of the lengths. So a cosine is off by at most (n + a few) u, and a
    distance by as large a part of itself, besides what vanishes below the smallest numbers. Four times that is allowed.
    """

    def __init__(
        self, matrix: NumArray, present: BoolArray, lengths: _Lengths, wanted: NumArray, metric: Metric
    ) -> None:
        self._matrix = matrix
        self._present = present
        self._wanted = wanted
        self._metric = metric
        self._vector_lengths = lengths
        self._relative_error = (2 * matrix.shape[1] + 16) * float(np.finfo(np.float32).eps)
        zeros = metric == "cosine"  # zero vectors have no direction
        self.count = int(np.count_nonzero(~np.isnan(lengths.inverse))) if zeros else lengths.vectors

    @cached_property
    def _distances_f32(self) -> NumArray:
        matrix, wanted, lengths = self._matrix, self._wanted, self._vector_lengths
        if self._metric == "cosine":
            own = np.sqrt(np.square(wanted, dtype=np.float64).sum())
            with np.errstate(all="ignore"):  # values under a null
                rough = np.einsum("ij,j->i", matrix, -(wanted / own).astype(np.float32))
                rough *= lengths.inverse
                rough += 1
        else:
            rough = np.empty(len(matrix), np.float32)
            with np.errstate(all="ignore"):
                for start in range(0, len(matrix), _EXACT_ROWS):
                    apart = matrix[start : start + _EXACT_ROWS] - wanted
                    np.einsum("ij,ij->i", apart, apart, out=rough[start : start + _EXACT_ROWS])
                np.sqrt(rough, out=rough)
            if lengths.vectors < len(matrix):
                rough[~self._present] = np.nan
        result: NumArray = rough
        return result

    def _error_bound(self, distance: float) -> float:
        """An upper bound of the error of a distance in single precision."""
        slack: float = self._relative_error if self._metric == "cosine" else 2 * self._relative_error * distance + 1e-17
        return slack

    def nearest(self, count: int) -> Hits:
        """The nearest `count` rows with ties of the last, or all."""
        if self.count <= count:
            return self._exact(np.flatnonzero(~np.isnan(self._distances_f32)))
        last = kth_smallest(self._distances_f32, count)
        found = self._exact(np.flatnonzero(self._distances_f32 <= last + 2 * self._error_bound(last)))
        kept = found.scores <= np.partition(found.scores, count - 1)[count - 1]
        return Hits(found.row_numbers[kept], found.scores[kept])

    def count_nearer(self, number: int) -> tuple[int, NumArray] | None:
        """How many rows are nearer than this one, and which are equally near; None if it has no distance."""
        own = self._exact(np.array([number]))
        if not len(own.scores):
            return None
        distance = float(own.scores[0])
        slack = self._error_bound(distance)
        low = self._distances_f32 < distance - slack
        about = self._exact(np.flatnonzero((self._distances_f32 <= distance + slack) & ~low))
        less = int(np.count_nonzero(low)) + int(np.count_nonzero(about.scores < distance))
        return less, about.row_numbers[about.scores == distance]

    def _exact(self, row_numbers: NumArray) -> Hits:
        values, known = distances(self._matrix[row_numbers], self._present[row_numbers], self._wanted, self._metric)
        return Hits(row_numbers[known], values[known])


def kth_smallest(values: NumArray, count: int) -> float:
    """The `count`-th smallest of more than `count` numbers; NaN sorts last.

    It is at most the `count`-th smallest of a sample, which leaves few values to partition.
    """
    some = values[: max(16 * count, len(values) // 16)]
    bound = np.partition(some, count - 1)[count - 1] if len(some) >= count else np.nan
    inside = values[values <= bound] if len(some) < len(values) and not np.isnan(bound) else values
    return float(np.partition(inside, count - 1)[count - 1])
