"""Top-k search: the best k of all rows of a table, for a query without filters that orders by a rank with a limit.

Only hits are processed, never an array as long as the table, except for distances. Where a function here returns None,
`search.rank_scores` ranks all candidates instead.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.query.ir import Bm25, Nearest
from omnigraph.read.project import sort_keys
from omnigraph.read.reader import SnapshotReader
from omnigraph.read.search import fulltext, vector
from omnigraph.read.search.fulltext import Hits
from omnigraph.read.search.row_locations import CandidateRows
from omnigraph.read.search.search import positions_by_score, query_vector
from omnigraph.read.tables.arrow_numpy import NumArray
from omnigraph.read.tables.column_store import ID

HEAD_ROWS = 1_000  # of each rank, the rows considered first when two are fused
_UNKNOWN = -1
_FEW_TIES = 100  # more are compared by the cached rank of their ids


def top_rows(reader: SnapshotReader, rank: Nearest | Bm25, everything: NumArray, top: int) -> Hits | None:
    """The best `top` of all rows, with ties of the last, or all rows of the rank."""
    candidates = CandidateRows(reader, reader.state(rank.field.table_key), everything)
    if isinstance(rank, Bm25):
        return fulltext.top_matches(candidates, rank, top)
    wanted = query_vector(reader, rank)
    return None if wanted is None else vector.top_nearest(candidates, rank, wanted, top)


def top_rows_fused(
    reader: SnapshotReader, ranks: Sequence[Nearest | Bm25], k: int, everything: NumArray, top: int
) -> Hits | None:
    """The same by the sum of 1 / (k + position) over the ranks.

    Each rank gives its head: its first rows, in positions 1 to h. Of a row in the head of one rank, its share of that
    rank is known; its share of the other, if it is not in that head too, is at least 0 and at most 1 / (k + h + 1),
    or exactly 0 if the head is all that the other rank has. So each row in a head has a lower and an upper bound, and
    a row in no head has an upper bound that is the sum of those shares. Let L be the `top`-th greatest lower bound:
    `top` rows have at least L, so what has an upper bound below L is neither among the best `top` nor as good as the
    last of them. If that holds for the rows in no head, only the rows whose upper bound is at least L can be in
    the result, and their missing positions are looked up one by one. Sums are rounded, but rounding is monotonic, so
    the bounds hold for the computed sums.
    """
    if 4 * top > HEAD_ROWS or not len(everything):
        return None
    with ThreadPoolExecutor(1) as pool:  # distances are computed while Lance searches
        by_distance_first = sorted(range(len(ranks)), key=lambda i: not isinstance(ranks[i], Nearest))
        made: dict[int, _RankOrder] = {}
        for i in by_distance_first:
            order = _open_order(reader, ranks[i], everything, pool)
            if order is None:
                return None
            made[i] = order
        orders = [made[i] for i in range(len(ranks))]
        heads = [order.head() for order in orders]
    limits = [0.0 if order.complete else 1 / (k + len(head) + 1) for order, head in zip(orders, heads, strict=True)]
    row_numbers = np.unique(np.concatenate(heads))
    found = []
    for order, head in zip(orders, heads, strict=True):
        at = np.full(len(row_numbers), 0 if order.complete else _UNKNOWN, np.int64)
        at[np.searchsorted(row_numbers, head)] = np.arange(1, len(head) + 1)
        found.append(at)
    if len(row_numbers) > top:
        lower = _add_shares([_shares(at, k, 0.0) for at in found])
        upper = _add_shares([_shares(at, k, limit) for at, limit in zip(found, limits, strict=True)])
        bound = np.partition(lower, -top)[-top]
        if sum(limits) >= bound:
            return None
        kept = upper >= bound
        row_numbers, found = row_numbers[kept], [at[kept] for at in found]
    elif not all(order.complete for order in orders):
        return None
    for order, at in zip(orders, found, strict=True):
        (missing,) = np.nonzero(at == _UNKNOWN)
        if len(missing):
            at[missing] = order.places_of(row_numbers[missing])
    return Hits(row_numbers, _add_shares([_shares(at, k, 0.0) for at in found]))


def _add_shares(shares: Sequence[NumArray]) -> NumArray:
    first, second = shares
    return first + second


def _shares(at: NumArray, k: int, unknown: float) -> NumArray:
    """1 / (k + position); 0 where a rank does not have a row."""
    known = at > 0
    return np.where(known, 1 / (k + np.where(known, at, 1)), np.where(at == _UNKNOWN, unknown, 0.0))


class _RankOrder(Protocol):
    """The rows of a rank, best first, ties by id."""

    complete: bool  # whether the head has all rows

    def head(self) -> NumArray:
        """The numbers of about the first `HEAD_ROWS`, in order."""

    def places_of(self, row_numbers: NumArray) -> NumArray:
        """The positions of rows outside the head, counted from 1; 0 where the rank does not have the row."""


def _open_order(
    reader: SnapshotReader, rank: Nearest | Bm25, everything: NumArray, pool: ThreadPoolExecutor
) -> _RankOrder | None:
    candidates = CandidateRows(reader, reader.state(rank.field.table_key), everything)
    if isinstance(rank, Bm25):
        return _TextOrder(candidates, rank)
    wanted = query_vector(reader, rank)
    near = None if wanted is None else vector.rough_distances(candidates, rank, wanted)
    return None if near is None else _DistanceOrder(candidates, near, pool)


def _sort_hits(candidates: CandidateRows, hits: Hits, *, descending: bool) -> NumArray:
    at = positions_by_score(pa.array(hits.scores), lambda: candidates.rows.ids(hits.row_numbers), descending=descending)
    result = np.empty(len(at), np.int64)
    result[at - 1] = hits.row_numbers
    return result


def _count_tied_before(candidates: CandidateRows, number: int, equals: NumArray) -> int:
    """How many of the rows with an equal score come first, by id."""
    if len(equals) < 2:
        return 0
    if len(equals) > _FEW_TIES:
        ranks = sort_keys.column_ranks(candidates.reader.caches, candidates.rows, ID).values
        return int(np.count_nonzero(ranks[equals] < ranks[number]))
    own = candidates.rows.ids(np.array([number]))[0]
    return int(np.count_nonzero(pc.less(candidates.rows.ids(equals), own).to_numpy(zero_copy_only=False)))


class _DistanceOrder:
    def __init__(self, candidates: CandidateRows, near: vector.RoughDistances, pool: ThreadPoolExecutor) -> None:
        self._candidates = candidates
        self._near = near
        self._best = pool.submit(copy_context().run, near.nearest, HEAD_ROWS)
        self.complete = False

    def head(self) -> NumArray:
        found = self._best.result()
        self.complete = len(found.row_numbers) == self._near.count
        return _sort_hits(self._candidates, found, descending=False)

    def places_of(self, row_numbers: NumArray) -> NumArray:
        result = np.zeros(len(row_numbers), np.int64)
        for position, number in enumerate(row_numbers.tolist()):
            nearer = self._near.count_nearer(number)
            if nearer is not None:
                less, equals = nearer
                result[position] = 1 + less + _count_tied_before(self._candidates, number, equals)
        return result


class _TextOrder:
    """All hits are fetched at once; where they are many, they nearly always include some of the nearest rows."""

    def __init__(self, candidates: CandidateRows, rank: Bm25) -> None:
        self._candidates = candidates
        self._found = fulltext.all_matches(candidates, rank)
        self.complete = False

    def head(self) -> NumArray:
        addresses, scores = self._found.addresses, self._found.scores
        self.complete = len(scores) <= HEAD_ROWS
        if not self.complete:
            least = -vector.kth_smallest(-scores, HEAD_ROWS)
            kept = scores > least  # ties of the last one may be very many
            addresses, scores = addresses[kept], scores[kept]
        return _sort_hits(self._candidates, Hits(self._candidates.row_numbers_at(addresses), scores), descending=True)

    def places_of(self, row_numbers: NumArray) -> NumArray:
        result = np.zeros(len(row_numbers), np.int64)
        addresses, scores = self._found.addresses, self._found.scores
        equals: dict[float, NumArray] = {}
        for position, address in enumerate(self._candidates.addresses_of(row_numbers).tolist()):
            (own,) = np.nonzero(addresses == address)
            if len(own):
                score = float(scores[own[0]])
                if score not in equals:
                    equals[score] = self._candidates.row_numbers_at(addresses[scores == score])
                less = int(np.count_nonzero(scores > score))
                result[position] = (
                    1 + less + _count_tied_before(self._candidates, int(row_numbers[position]), equals[score])
                )
        return result
