"""Search in queries: text filters as row numbers, ranks as values of rows, and fusion of ranks.

`search.py` works on the entities of one table. Here its results are spread over the rows of a binding table.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from omnigraph.query.ir import Bm25, EdgeEnd, EntityId, Literal, Nearest, Prop, Rank, Rrf, TextSearch
from omnigraph.read.match.bindings import Bindings
from omnigraph.read.project import topk
from omnigraph.read.reader import SnapshotReader
from omnigraph.read.search import search
from omnigraph.read.tables.arrow_numpy import ArrowArray, BoolArray, NumArray, to_mask
from omnigraph.read.tables.large_arrays import distinct, fill, sorted_distinct, take
from omnigraph.read.tables.resident_table import ResidentTable, RowSet
from omnigraph.read.tables.table_access import TableAccess


@dataclass(frozen=True, slots=True)
class RankValues:
    """A rank's value for each row; `found` is false where the rank does not have the row."""

    values: NumArray
    found: BoolArray

    def take(self, positions: NumArray) -> "RankValues":
        return RankValues(take(self.values, positions), take(self.found, positions))

    def to_arrow(self) -> ArrowArray:
        return pa.array(self.values, mask=~self.found)


def no_column(operand: Prop | EntityId | EdgeEnd) -> ArrowArray:
    raise AssertionError(f"{operand} in a filter without variables")


def text_numbers(reader: SnapshotReader, table: RowSet, condition: TextSearch) -> NumArray:
    """The numbers of the rows that a text search finds, ascending."""
    found = search.text_matches(reader, condition, table.state)
    row_numbers = table.numbers_of(found if isinstance(found, pa.Array) else pa.array(sorted(found), pa.string()))
    return sorted_distinct(row_numbers[row_numbers >= 0])


def rank_rows(access: TableAccess, rank: Rank, rows: Bindings, top: int | None) -> RankValues:
    """A rank's values for the rows that match; a fused rank depends on all of them.

    With `top` only so many of the best entities are needed, with ties of the last.
    """
    if not isinstance(rank, Rrf):
        numbers, positions = distinct(rows.columns[rank.field.var])
        return _entity_scores(access, rank, numbers, top).take(positions)
    assert isinstance(rank.k, Literal)
    assert isinstance(rank.k.value, int)
    parts = []
    for one in rank.ranks:
        numbers, positions = distinct(rows.columns[one.field.var])
        parts.append(_reciprocal(access, one, numbers, rank.k.value).take(positions))
    first, second = parts

    def total(part: slice) -> NumArray:
        shares = (np.where(one.found[part], one.values[part], 0.0) for one in parts)
        return next(shares) + next(shares)

    return RankValues(fill(rows.count, np.float64, total), first.found | second.found)


def top_rows(access: TableAccess, rank: Rank, rows: Bindings, top: int) -> tuple[Bindings, RankValues] | None:
    """The rows among which a rank's best `top` are, ties included, with their values.

    Only where all rows of one table match; None where `rank_rows` has to rank all of them.
    """
    ranks = rank.ranks if isinstance(rank, Rrf) else (rank,)
    var, key = ranks[0].field.var, ranks[0].field.table_key
    table = access.resident_table(key)
    if table is None or any(one.field.var != var for one in ranks) or rows.weight is not None:
        return None
    everything = table.all_rows()
    if list(rows.columns) != [var] or rows.columns[var] is not everything or top < 1:
        return None
    if isinstance(rank, Rrf):
        assert isinstance(rank.k, Literal)
        assert isinstance(rank.k.value, int)
        found = topk.top_rows_fused(access.reader, rank.ranks, rank.k.value, everything, top)
    else:
        found = topk.top_rows(access.reader, rank, everything, top)
    if found is None:
        return None
    return Bindings(len(found.row_numbers), {var: found.row_numbers}), RankValues(
        found.scores, np.ones(len(found.row_numbers), np.bool_)
    )


def _reciprocal(access: TableAccess, rank: Nearest | Bm25, numbers: NumArray, k: int) -> RankValues:
    """1 / (k + position), counted from 1 over the entities that have a score: best first, ties by id."""
    positions = np.asarray(search.rank_positions(access.reader, rank, _candidates(access, rank, numbers)))
    return RankValues(1 / (k + positions), positions > 0)


def _candidates(access: TableAccess, rank: Nearest | Bm25, numbers: NumArray) -> "NumArray | pa.Array[Any]":
    """The entities to rank: by number where the table is in memory, which avoids reading their ids."""
    table = access.table(rank.field.table_key)
    return numbers if isinstance(table, ResidentTable) else table.ids(numbers)


def _entity_scores(access: TableAccess, rank: Nearest | Bm25, numbers: NumArray, top: int | None) -> RankValues:
    found = search.rank_scores(access.reader, rank, _candidates(access, rank, numbers), top)
    valid = to_mask(found.is_valid())
    return RankValues(np.asarray(found.fill_null(0.0)).astype(np.float64), valid)
