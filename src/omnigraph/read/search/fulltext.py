"""Full-text search: the rows that a text filter finds, and the BM25 scores of rows.

Lance's index covers all rows (`storage/table/read/search.py` ensures that), so there is one tokenizer and one scoring.
Scores are BM25 with the statistics of the index, in which a replaced or deleted row still counts until maintenance
rewrites it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from omnigraph.query.ir import Bm25, Literal, TextSearch
from omnigraph.read.reader import SnapshotReader, TableState
from omnigraph.read.search.row_locations import NAMED_IDS_MAX, CandidateRows, positions_in
from omnigraph.read.tables.arrow_numpy import NumArray
from omnigraph.read.tables.column_store import ID
from omnigraph.storage.table.read.search import no_hits
from omnigraph.storage.table.tables import SearchHits

_TIES = 16  # hits fetched at first beyond the requested ones, to see whether there are ties of the last


@dataclass(frozen=True, slots=True)
class Hits:
    """Distinct rows by number, and their scores, distances, or sums of shares."""

    row_numbers: NumArray
    scores: NumArray


def text_matches(reader: SnapshotReader, condition: TextSearch, state: TableState) -> "pa.Array[Any]":
    """The ids of all rows that a text filter finds, each once."""
    assert isinstance(condition.query, Literal)
    edits = condition.edits.value if isinstance(condition.edits, Literal) else 0
    assert isinstance(edits, int)
    if not isinstance(condition.query.value, str):  # null finds nothing
        return pa.array([], pa.string())
    candidates = CandidateRows(reader, state)
    found = reader.tables.search_text(
        state.at,
        condition.field.column.column,
        condition.kind,
        condition.query.value,
        edits,
        state.overlay,
        state.schema,
        with_ids=not candidates.stored.is_loaded(ID),
    )
    if found.ids is not None:
        return found.ids
    return candidates.rows.ids(candidates.row_numbers_at(found.addresses))


def text_scores(candidates: CandidateRows, rank: Bm25, top: int | None) -> "pa.Array[Any]":
    """The score of each candidate, null where the text is not found; see `search.rank_scores` for `top`."""
    assert isinstance(rank.query, Literal)
    values, known = np.zeros(candidates.count, np.float64), np.zeros(candidates.count, np.bool_)
    if isinstance(rank.query.value, str) and candidates.count:
        found = _Search(candidates, rank.field.column.column, rank.query.value).best(top)
        if found.ids is not None:
            positions = positions_in(candidates.ids, found.ids)
        else:
            positions = candidates.positions_of(candidates.row_numbers_at(found.addresses))
        inside = positions >= 0
        values[positions[inside]] = found.scores[inside]
        known[positions[inside]] = True
    return pa.array(values, mask=~known)


def top_matches(candidates: CandidateRows, rank: Bm25, top: int) -> Hits:
    """The best of all rows with ties, or all hits; `candidates` are all rows, by number."""
    assert isinstance(rank.query, Literal)
    if not isinstance(rank.query.value, str):
        return Hits(np.zeros(0, np.int64), np.zeros(0))
    found = _Search(candidates, rank.field.column.column, rank.query.value, everything=True).best(top)
    return Hits(candidates.row_numbers_at(found.addresses), found.scores)


def all_matches(candidates: CandidateRows, rank: Bm25) -> SearchHits:
    """All hits among all rows."""
    assert isinstance(rank.query, Literal)
    if not isinstance(rank.query.value, str):
        return no_hits(with_ids=False)
    return _Search(candidates, rank.field.column.column, rank.query.value, everything=True).best(None)


class _Search:
    """A search among the candidates: few are passed to Lance as a filter; for many its hits are filtered."""

    def __init__(self, candidates: CandidateRows, column: str, text: str, *, everything: bool = False) -> None:
        self._candidates = candidates
        self._column = column
        self._text = text
        self._allowed: Any = None
        self._everything = everything or candidates.is_all_rows
        if not self._everything and candidates.count <= NAMED_IDS_MAX:
            self._allowed = (
                candidates.addresses_of(candidates.row_numbers) if candidates.by_number else candidates.ids.to_pylist()
            )

    def best(self, top: int | None) -> SearchHits:
        """All hits, or at least the best with ties."""
        if top is None or (self._allowed is None and not self._everything):
            return self._found(None)
        limit = top + _TIES
        while True:
            found = self._found(limit)
            complete = len(found.scores) < limit
            if complete or np.partition(found.scores, -top)[-top] > found.scores.min():
                return found
            limit *= 16

    def _found(self, limit: int | None) -> SearchHits:
        state = self._candidates.state
        return self._candidates.reader.tables.search_text(
            state.at,
            self._column,
            "search",
            self._text,
            0,
            state.overlay,
            state.schema,
            limit=limit,
            candidates=self._allowed,
            with_ids=not self._candidates.by_number,
        )
