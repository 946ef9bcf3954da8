"""The tables of one graph: immutable Lance versions, made and read.

The only way to Lance for the rest of the code. A version is written, kept and named by number;
there is no function that asks for the newest. After its creation nothing is ever committed to a
table's mainline: every change is a detached version, invisible to all who were not told its
number. See `staging.py` for how each change is made, `views.py` for how inline rows are read.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omnigraph.schema.indexes import DeclaredIndex
from omnigraph.storage import differences, indexing, reading, reshaping, searching, staging
from omnigraph.storage.comparing import Difference
from omnigraph.storage.differences import DifferingIds
from omnigraph.storage.handles import HANDLES_MAX, Handles, TableVersion
from omnigraph.storage.lance_errors import explained
from omnigraph.storage.location import Location
from omnigraph.storage.overlay import Overlay
from omnigraph.storage.reshaping import FilledColumn
from omnigraph.storage.rows import reading as reading_rows
from omnigraph.storage.searching import Found
from omnigraph.storage.staging import Carryable, Staged
from omnigraph.storage.views import VIEWS_MAX, Views

if TYPE_CHECKING:
    import pyarrow as pa
    from lance import LanceDataset

    from omnigraph.storage.reading import Filter
    from omnigraph.storage.searching import Addresses, Among, TextKind

__all__ = ["Carryable", "Difference", "DifferingIds", "Found", "Overlay", "Staged", "TableVersion", "Tables"]


class Tables:
    """Make, change and read table versions below one location.

    `at=None` in a read means a type that has no table yet: its rows are the overlay's, and `schema`
    says what columns they have.
    """

    def __init__(
        self,
        location: Location,
        session: Any = None,
        handles_max: int = HANDLES_MAX,
        scratch: Path | None = None,
        views_max: int = VIEWS_MAX,
    ) -> None:
        self._handles = Handles(location, session, handles_max)
        self._views = Views(self._handles, scratch, views_max)
        self._texts = searching.Texts(self._handles, self._views)

    # Changes: each makes a new version, durable when the call returns, and tells nobody.

    def create(self, table_id: str, rows: "pa.Table") -> Staged:
        """Make a table; `table_id` must be fresh. Rows may be empty: their schema is the table's."""
        return staging.create(self._handles, table_id, rows)

    def append(self, at: TableVersion, rows: "pa.Table") -> Staged:
        """Add rows whose ids the caller knows to be new."""
        return staging.append(self._handles, at, rows)

    def upsert(self, at: TableVersion, rows: "pa.Table") -> Staged:
        """Replace whole rows by id; add those that are not there."""
        return staging.upsert(self._handles, at, rows)

    def delete(self, at: TableVersion, ids: Iterable[str]) -> Staged:
        """Remove rows by id; answers `at` itself where there is nothing to remove."""
        return staging.delete(self._handles, at, ids)

    def overwrite(self, at: TableVersion, rows: "pa.Table") -> Staged:
        """Replace all rows, and the schema by that of `rows`."""
        return staging.overwrite(self._handles, at, rows)

    def add_columns(self, at: TableVersion, fields: "Sequence[pa.Field[Any]]") -> Staged:
        """Add nullable columns; writes no data."""
        return staging.add_columns(self._handles, at, fields)

    def fill_columns(self, at: TableVersion, columns: Sequence[FilledColumn]) -> Staged:
        """Add columns with values; writes those alone."""
        return reshaping.fill_columns(self._handles, at, columns)

    def copy_columns(self, at: TableVersion, table_id: str, columns: Sequence[str]) -> Staged:
        """The same rows in these columns alone, as another table without indexes; `table_id` must be fresh."""
        return reshaping.copy_columns(self._handles, at, table_id, columns)

    def reindex(self, at: TableVersion, stale: Iterable[str], indexes: Iterable[DeclaredIndex]) -> TableVersion:
        """Without the indexes named `stale`, with these over all rows; `at` itself if there is nothing to do."""
        return reshaping.reindex(self._handles, at, stale, indexes)

    def carry(self, at: TableVersion, appended: Carryable) -> Staged:
        """Take rows appended to another version of this table; the caller knows that no id is in `at`."""
        return staging.carry(self._handles, at, appended)

    def index_new_rows(
        self, at: TableVersion, since: TableVersion | None, indexes: Iterable[DeclaredIndex]
    ) -> TableVersion:
        """Add index segments over the rows that `since` lacks, as one more version; `at` itself if they are few."""
        return indexing.add_segments(self._handles, at, since, indexes)

    def commit_operation(self, at: TableVersion, operation: Any) -> Staged:
        """Commit a `LanceOperation` whose files are written, such as a rewrite or a new index."""
        return staging.commit(self._handles, at, self.open(at), operation)

    # Reads.

    def open(self, at: TableVersion) -> "LanceDataset":
        """The stored version as Lance has it, without any overlay."""
        return self._handles.open(at)

    def dataset(
        self, at: TableVersion | None, overlay: Overlay = Overlay.EMPTY, schema: "pa.Schema | None" = None
    ) -> "LanceDataset":
        """A dataset with all rows. Keep it while anything reads from it: a view's files go with it."""
        return reading.dataset(self._handles, self._views, at, overlay, schema)

    def scan(
        self,
        at: TableVersion | None,
        columns: Sequence[str] | None = None,
        filter: "Filter | None" = None,
        overlay: Overlay = Overlay.EMPTY,
        schema: "pa.Schema | None" = None,
    ) -> "pa.Table":
        """All rows that pass the filter, in no particular order."""
        of = self.dataset(at, overlay, schema)
        return reading.scan(self._handles, of, _name(at), columns, filter)

    def batches(
        self,
        at: TableVersion | None,
        columns: Sequence[str] | None = None,
        filter: "Filter | None" = None,
        overlay: Overlay = Overlay.EMPTY,
        schema: "pa.Schema | None" = None,
    ) -> "Iterator[pa.RecordBatch]":
        """As `scan`, for tables that memory can't hold."""
        of = self.dataset(at, overlay, schema)
        return reading.batches(self._handles, of, _name(at), columns, filter)

    def lookup(
        self,
        at: TableVersion | None,
        ids: Iterable[str],
        columns: Sequence[str] | None = None,
        overlay: Overlay = Overlay.EMPTY,
        schema: "pa.Schema | None" = None,
    ) -> "pa.Table":
        """The rows with these ids; makes no request for ids that the overlay answers, if `schema` is given."""
        return reading.lookup(self._handles, at, ids, columns, overlay, schema)

    def exists(self, at: TableVersion | None, ids: Iterable[str], overlay: Overlay = Overlay.EMPTY) -> frozenset[str]:
        """Which of these ids have a row."""
        return reading.exists(self._handles, at, ids, overlay)

    def came_with(self, at: TableVersion, since: TableVersion, ids: Iterable[str]) -> frozenset[str]:
        """Which of these ids are in rows written between `since` and `at`, or moved there by a compaction."""
        return reading.came_with(self._handles, at, since, ids)

    def matching(
        self, at: TableVersion | None, column: str, values: Iterable[str], overlay: Overlay = Overlay.EMPTY
    ) -> frozenset[str]:
        """Which of these values some row has in that column, such as the ends of edges."""
        if at is None:
            rows = overlay.rows
            return frozenset(values).intersection(rows.column(column).to_pylist() if rows is not None else ())
        return reading.matching(self._handles, self.dataset(at, overlay), _name(at), column, values)

    def count(
        self,
        at: TableVersion | None,
        filter: "Filter | None" = None,
        overlay: Overlay = Overlay.EMPTY,
        schema: "pa.Schema | None" = None,
    ) -> int:
        """How many rows there are, or how many pass the filter."""
        if at is None and filter is None:
            return 0 if overlay.rows is None else int(overlay.rows.num_rows)
        of = self.dataset(at, overlay, schema)
        with explained(_name(at)), reading_rows(self._handles, of, filtered=filter is not None):
            return int(of.count_rows(filter=filter))

    # Differences between two versions; None is a type that had no table yet.

    def difference(
        self, older: TableVersion | None, newer: TableVersion | None, schema: "pa.Schema | None" = None
    ) -> Difference:
        """The rows that one version alone has as they are; reads as much as has changed, if the table is the same.

        `schema` names the columns that count and are given, null where a version has none; by default those of both.
        """
        return differences.difference(self._handles, older, newer, schema)

    def differing_ids(self, older: TableVersion | None, newer: TableVersion | None) -> DifferingIds:
        """The ids of rows in differing parts, without reading anything else: those in both may just have moved."""
        return differences.differing_ids(self._handles, older, newer)

    def differing_rows(self, older: TableVersion | None, newer: TableVersion | None) -> tuple[int, int]:
        """How many rows of either version lie in differing parts: known from metadata and deletion files."""
        before, after = differences.parts(self._handles, older, newer)
        return (0 if before is None else before.rows), (0 if after is None else after.rows)

    def differing_batches(
        self, older: TableVersion | None, newer: TableVersion | None, schema: "pa.Schema"
    ) -> "tuple[Iterator[pa.RecordBatch], Iterator[pa.RecordBatch]]":
        """The rows in differing parts of either version as they come, moved ones included; for a join elsewhere."""
        before, after = differences.parts(self._handles, older, newer)
        return differences.batches(self._handles, before, schema), differences.batches(self._handles, after, schema)

    # Searches: rows are named by their address in the dataset that `dataset` gives.

    def search_text(
        self,
        at: TableVersion | None,
        column: str,
        kind: "TextKind",
        text: str,
        edits: int = 0,
        overlay: Overlay = Overlay.EMPTY,
        schema: "pa.Schema | None" = None,
        *,
        limit: int | None = None,
        among: "Among" = None,
        with_ids: bool = False,
    ) -> Found:
        """The rows whose text is found, with their BM25 scores, whatever part of them is indexed."""
        index = self._texts.index(at, overlay, schema, column)
        if index is None:
            return searching.nothing(with_ids)
        return searching.find_text(self._handles, index, kind, text, edits, limit=limit, among=among, with_ids=with_ids)

    def search_nearest(
        self,
        at: TableVersion | None,
        column: str,
        vector: Sequence[float],
        metric: str,
        count: int,
        overlay: Overlay = Overlay.EMPTY,
        schema: "pa.Schema | None" = None,
        *,
        among: "Addresses | None" = None,
    ) -> Found:
        """About the `count` nearest rows, through the vector index; see `has_index`."""
        of = self.dataset(at, overlay, schema)
        return searching.find_nearest(self._handles, of, column, vector, metric, count, among)

    def has_index(self, at: TableVersion, index: DeclaredIndex) -> bool:
        """Whether some rows of the stored version are in this index."""
        return indexing.has_segments(self._handles, at, index)

    def addresses(self, at: TableVersion) -> "Addresses":
        """The address of every row of the stored version, in row order, which is ascending."""
        return searching.addresses(self._handles, self.open(at))

    def overlay_addresses(self, at: TableVersion | None, overlay: Overlay, schema: "pa.Schema") -> "Addresses":
        """The address of every row of the overlay in the combination, in the overlay's order."""
        stored = () if at is None else [int(fragment.fragment_id) for fragment in self.open(at).get_fragments()]
        return searching.addresses(self._handles, self.dataset(at, overlay, schema), frozenset(stored))


def _name(at: TableVersion | None) -> str:
    return str(at) if at is not None else "inline rows"
