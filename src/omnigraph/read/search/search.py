"""Search over the entities of one table: which of them a text filter finds, and the rank of each candidate.

Candidates are the entities that pass every other filter. A rank is over them; it is never cut off before filtering.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from omnigraph.query.ir import Bm25, Literal, Nearest
from omnigraph.read.reader import SnapshotReader
from omnigraph.read.search import embedding
from omnigraph.read.search.fulltext import text_matches, text_scores
from omnigraph.read.search.row_locations import CandidateRows, Candidates
from omnigraph.read.search.vector import vector_distances
from omnigraph.read.tables.arrow_numpy import NumArray, to_mask

__all__ = ["positions_by_score", "query_vector", "rank_positions", "rank_scores", "text_matches"]


def rank_scores(
    reader: SnapshotReader, rank: Nearest | Bm25, candidates: Candidates, top: int | None = None
) -> "pa.Array[Any]":
    """The score of each candidate, in their order; null for those without a score.

    `candidates` are distinct rows of the rank's table: ids, or numbers in the `ResidentTable` space of its state, which
    saves looking ids up. With `top` only the best so many are needed: others may be null, but never one that is as
    good as the last of them, so that ties can still be broken.
    """
    return _scores(reader, rank, CandidateRows(reader, reader.state(rank.field.table_key), candidates), top)


def rank_positions(reader: SnapshotReader, rank: Nearest | Bm25, candidates: Candidates) -> NumArray:
    """The position of each candidate in a rank, counted from 1, best first, ties by id; 0 for those without a score.

    `rrf` is the sum of 1 / (k + position) over the ranks that have the entity.
    """
    rows = CandidateRows(reader, reader.state(rank.field.table_key), candidates)
    scores = _scores(reader, rank, rows, None)
    return positions_by_score(scores, lambda: rows.ids, descending=isinstance(rank, Bm25))


def _scores(reader: SnapshotReader, rank: Nearest | Bm25, rows: CandidateRows, top: int | None) -> "pa.Array[Any]":
    if isinstance(rank, Bm25):
        return text_scores(rows, rank, top)
    wanted = query_vector(reader, rank)
    return pa.nulls(rows.count, pa.float64()) if wanted is None else vector_distances(rows, rank, wanted, top)


def positions_by_score(scores: "pa.Array[Any]", ids: "Callable[[], pa.Array[Any]]", *, descending: bool) -> NumArray:
    """As `rank_positions`, for known scores. `ids` is called only if some scores are equal."""
    known = np.flatnonzero(to_mask(scores.is_valid()))
    values = scores.drop_null().to_numpy()
    order = np.argsort(-values if descending else values)
    ordered = values[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if len(order) else order
    ends = np.append(starts[1:], len(order))
    for run in np.flatnonzero(ends - starts > 1).tolist() if len(order) else ():
        tied = order[starts[run] : ends[run]]
        names: list[Any] = ids().take(pa.array(known[tied], pa.int64())).to_pylist()
        order[starts[run] : ends[run]] = tied[sorted(range(len(names)), key=lambda position: names[position])]
    result = np.zeros(len(scores), np.int64)
    result[known[order]] = np.arange(1, len(order) + 1)
    return result


def query_vector(reader: SnapshotReader, rank: Nearest) -> NumArray | None:
    """The query vector: as given, or embedded from a text; None for null."""
    assert isinstance(rank.query, Literal)
    value = rank.query.value
    if isinstance(value, str):
        definition = reader.state(rank.field.table_key).definition
        prop = next(prop for prop in definition.properties if prop.id == rank.field.column.id)
        return np.asarray(embedding.embed_query(value, prop, definition.name), np.float32)
    return None if value is None else np.asarray(value, np.float32)
