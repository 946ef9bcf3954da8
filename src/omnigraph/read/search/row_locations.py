"""Row addresses, row numbers and ids for searches: Lance's hits are row addresses, queries use row numbers or ids.

Where the ids are in memory, addresses are mapped to row numbers; otherwise Lance returns the ids of its hits, or is
given the ids to search among.
"""

from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.read.reader import SnapshotReader, TableState
from omnigraph.read.tables.arrow_numpy import NumArray
from omnigraph.read.tables.column_store import ID, ColumnStore
from omnigraph.read.tables.resident_table import ResidentTable

NO_NUMBERS: NumArray = np.zeros(0, np.int64)
NAMED_IDS_MAX = 2_000  # up to here the ids are passed to Lance as a filter; for more its hits are filtered


Candidates: TypeAlias = "pa.Array[Any] | NumArray"


class CandidateRows:
    """Candidates of one table state by number, id and address in `Tables.dataset` of that state.

    They are given as ids, or as row numbers of the state's `ResidentTable`; distinct, and of rows that exist.
    """

    def __init__(self, reader: SnapshotReader, state: TableState, candidates: Candidates = NO_NUMBERS) -> None:
        self.reader = reader
        self.state = state
        self.stored = ColumnStore(reader.tables, reader.caches, state.at, state.schema)
        self.count = len(candidates)
        self._candidates = candidates

    @cached_property
    def rows(self) -> ResidentTable:
        """The rows by number; loads all ids if they are not in memory."""
        return ResidentTable(self.reader.tables, self.reader.caches, self.state)

    @property
    def by_number(self) -> bool:
        """Whether row numbers are known: they were given, or the ids are in memory."""
        return isinstance(self._candidates, np.ndarray) or self.stored.is_loaded(ID)

    @cached_property
    def ids(self) -> "pa.Array[Any]":
        return self.rows.ids(self._candidates) if isinstance(self._candidates, np.ndarray) else self._candidates

    @cached_property
    def row_numbers(self) -> NumArray:
        """The candidates' row numbers. All ids in row order, from a search without a filter, are recognised."""
        if isinstance(self._candidates, np.ndarray):
            return self._candidates
        rows = self.rows
        if rows.patch is None and self.count == rows.total and self._candidates.equals(rows.column(ID)):
            return np.arange(self.count)
        return rows.numbers_of(self._candidates)

    @cached_property
    def is_all_rows(self) -> bool:
        """Whether the candidates are all rows; may be false where finding out would be expensive."""
        if self.state.overlay.is_empty:
            return self.count == self.stored.rows
        return self.by_number and self.count == len(self.rows.all_rows())

    def positions_of(self, row_numbers: NumArray) -> NumArray:
        """The position of each row among the candidates, -1 where it is not one of them."""
        own = self.row_numbers
        in_order = self.count == self.rows.total and bool(self.count) and own[0] == 0
        if in_order and self.rows.patch is None and bool((np.diff(own) == 1).all()):
            return row_numbers
        place_of = np.full(self.rows.total, -1, np.int64)
        place_of[own] = np.arange(self.count)
        return place_of[row_numbers]

    def addresses_of(self, row_numbers: NumArray) -> "np.ndarray[Any, np.dtype[np.uint64]]":
        patch = self.rows.patch
        if patch is None:
            return self._stored_addresses[row_numbers]
        where = patch.source[row_numbers]
        return np.concatenate([self._stored_addresses, self._overlay_addresses])[where]

    def row_numbers_at(self, addresses: NumArray) -> NumArray:
        """The number of the row at each address."""
        stored = self._stored_addresses
        patch = self.rows.patch
        if patch is None and len(stored) and int(stored[-1]) - int(stored[0]) == len(stored) - 1:  # without gaps
            row_numbers: NumArray = (addresses - stored[0]).astype(np.int64)
            return row_numbers
        positions = np.searchsorted(stored, addresses)
        if patch is None:
            return positions
        inside = positions < len(stored)
        inside[inside] = stored[positions[inside]] == addresses[inside]
        if not inside.all():
            order = np.argsort(self._overlay_addresses)
            found = order[np.searchsorted(self._overlay_addresses[order], addresses[~inside])]
            positions[~inside] = patch.row_numbers[found]
        return positions

    @property
    def _stored_addresses(self) -> NumArray:
        at = self.state.at
        if at is None:
            return np.zeros(0, np.uint64)
        tables = self.reader.tables
        return self.reader.caches.get((at, "addresses"), lambda: tables.addresses(at), lambda array: array.nbytes)

    @property
    def _overlay_addresses(self) -> NumArray:
        state, tables = self.state, self.reader.tables
        return self.reader.caches.get(
            ("overlay addresses", state.fingerprint),
            lambda: tables.overlay_addresses(state.at, state.overlay, state.schema),
            lambda array: array.nbytes,
        )


def positions_in(ids: "pa.Array[Any]", wanted: "pa.Array[Any]") -> NumArray:
    """The position in `ids` of each wanted id, -1 where it is missing; both have distinct ids."""
    if len(wanted) > len(ids):
        positions = np.full(len(wanted), -1, np.int64)
        back = positions_in(wanted, ids)
        positions[back[back >= 0]] = np.flatnonzero(back >= 0)
        return positions
    positions = np.full(len(wanted), -1, np.int64)
    matched = pc.index_in(ids, value_set=wanted)
    valid = np.flatnonzero(pc.is_valid(matched).to_numpy(zero_copy_only=False))
    positions[matched.drop_null().to_numpy()] = valid
    return positions
