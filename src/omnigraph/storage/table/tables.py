"""The tables of one graph: immutable Lance versions, written and read.

The only way to Lance for the rest of the code. A version is named by its number; there is no function that returns the
newest. After a table's creation nothing is ever committed to its mainline: every change is a detached version, found
only by those who know its number. See `detached_commit.py` for how changes are made, `view.py` for how inline rows are
read.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omnigraph.schema.indexes import DeclaredIndex
from omnigraph.storage.location import Location
from omnigraph.storage.table.diff import content_diff
from omnigraph.storage.table.diff.content_diff import DifferingIds, DiffInput
from omnigraph.storage.table.diff.row_diff import Difference
from omnigraph.storage.table.file_records import FileRecord
from omnigraph.storage.table.handles import HANDLES_MAX, Handles, TableVersion
from omnigraph.storage.table.index import segments as index_segments
from omnigraph.storage.table.lance_errors import translate_errors
from omnigraph.storage.table.overlay import Overlay
from omnigraph.storage.table.read import point_lookup, search
from omnigraph.storage.table.read import scan as table_scan
from omnigraph.storage.table.read.predicates import ColumnValues
from omnigraph.storage.table.read.row_addresses import measure_read as reading_rows
from omnigraph.storage.table.read.search import SearchHits
from omnigraph.storage.table.table_content import TableContent, Tail, TailReader, VersionWithTail
from omnigraph.storage.table.view import VIEWS_MAX, ViewCache
from omnigraph.storage.table.write import detached_commit, schema_evolution
from omnigraph.storage.table.write.detached_commit import AppendedFragments, DetachedVersion
from omnigraph.storage.table.write.schema_evolution import FilledColumn

if TYPE_CHECKING:
    import pyarrow as pa
    from lance import LanceDataset

    from omnigraph.storage.table.read.scan import Filter
    from omnigraph.storage.table.read.search import Addresses, Allowlist, TextKind

__all__ = [
    "AppendedFragments",
    "DetachedVersion",
    "Difference",
    "DifferingIds",
    "Overlay",
    "SearchHits",
    "TableVersion",
    "Tables",
]


class Tables:
    """Creates, changes and reads table versions below one location.

    Reads take a content: a stored version, perhaps with a tail on top, or None for a type that has neither. A given
    `overlay` lies on top of it. Where nothing is stored, `schema` says which columns there are; by default those of the
    rows on top. `read_tail` reads the rows that a tail names; it may be set later.
    """

    def __init__(
        self,
        location: Location,
        session: Any = None,
        handles_max: int = HANDLES_MAX,
        scratch: Path | None = None,
        views_max: int = VIEWS_MAX,
        read_tail: TailReader | None = None,
    ) -> None:
        self.read_tail = read_tail
        self._handles = Handles(location, session, handles_max)
        self._views = ViewCache(self._handles, scratch, views_max)
        self._text_indexes = search.TextIndexes(self._handles, self._views)

    # Changes: each creates a new version, durable when the call returns, which nothing refers to yet.

    def create(self, table_id: str, rows: "pa.Table") -> DetachedVersion:
        """Create a table; `table_id` must be unused. Rows may be empty: their schema is the table's."""
        return detached_commit.create(self._handles, table_id, rows)

    def append(self, at: TableVersion, rows: "pa.Table") -> DetachedVersion:
        """Append rows whose ids the caller knows to be new."""
        return detached_commit.append(self._handles, at, rows)

    def upsert(self, at: TableVersion, rows: "pa.Table") -> DetachedVersion:
        """Replace whole rows by id; add those that are not there."""
        return detached_commit.upsert(self._handles, at, rows)

    def delete(self, at: TableVersion, ids: Iterable[str]) -> DetachedVersion:
        """Remove rows by id; returns `at` itself if there is nothing to remove."""
        return detached_commit.delete(self._handles, at, ids)

    def overwrite(self, at: TableVersion, rows: "pa.Table") -> DetachedVersion:
        """Replace all rows, and the schema by that of `rows`."""
        return detached_commit.overwrite(self._handles, at, rows)

    def add_columns(self, at: TableVersion, fields: "Sequence[pa.Field[Any]]") -> DetachedVersion:
        """Add nullable columns; writes no data."""
        return detached_commit.add_columns(self._handles, at, fields)

    def fill_columns(self, at: TableVersion, columns: Sequence[FilledColumn]) -> DetachedVersion:
        """Add columns with values; writes only these."""
        return schema_evolution.fill_columns(self._handles, at, columns)

    def copy_columns(self, at: TableVersion, table_id: str, columns: Sequence[str]) -> DetachedVersion:
        """Another table with the same rows in only these columns, without indexes; `table_id` must be unused."""
        return schema_evolution.copy_columns(self._handles, at, table_id, columns)

    def reindex(self, at: TableVersion, stale: Iterable[str], indexes: Iterable[DeclaredIndex]) -> TableVersion:
        """Drop the indexes named `stale` and build these over all rows; `at` itself if there is nothing to do."""
        return schema_evolution.reindex(self._handles, at, stale, indexes)

    def append_fragments(self, at: TableVersion, appended: AppendedFragments) -> DetachedVersion:
        """Add fragments that were appended to another version of this table; their ids must not be in `at`."""
        return detached_commit.append_fragments(self._handles, at, appended)

    def index_new_rows(
        self, at: TableVersion, since: TableVersion | None, indexes: Iterable[DeclaredIndex]
    ) -> TableVersion:
        """A version with index segments over the rows that `since` lacks; `at` itself if they are few."""
        return index_segments.add_segments(self._handles, at, since, indexes)

    def commit_operation(self, at: TableVersion, operation: Any) -> DetachedVersion:
        """Commit a `LanceOperation` whose files are written, such as a rewrite or a new index."""
        return detached_commit.commit(self._handles, at, self.open(at), operation)

    def fold(
        self,
        content: TableContent | None,
        changes: Overlay,
        new_table_id: str,
        schema: "pa.Schema | None" = None,
    ) -> DetachedVersion:
        """A stored version with all rows of the content and these changes: one more detached commit.

        The version itself if there is nothing to do; a new table `new_table_id` if nothing is stored.
        """
        at, overlay = self.resolve(content, changes)
        staged = detached_commit.fold(self._handles, at, overlay, new_table_id, schema)
        if staged.at != at:
            self._handles.lookup_cache.add_change(at, overlay, staged.at, staged.rows)
        return staged

    def note_same_rows(self, at: TableVersion, other: TableVersion) -> None:
        """Note that `other` was made from `at` with the same rows, in other fragments or with other indexes."""
        self._handles.lookup_cache.add_same(at, other)

    def fold_tail(self, content: TableContent, new_table_id: str, schema: "pa.Schema | None" = None) -> DetachedVersion:
        """A stored version with all rows of the content; see `fold`."""
        return self.fold(content, Overlay.EMPTY, new_table_id, schema)

    def new_files(self, base: TableVersion | None, at: TableVersion, *, request: bool = False) -> dict[str, FileRecord]:
        """The records of files added after `base`, for the manifest that names `at`.

        With `request`, an object store is asked for those that could not be recorded along with another request.
        """
        since = base.table_version if base is not None and base.table_id == at.table_id else None
        files = self._handles.files
        if request:
            files.request_missing(at.table_id, since, at.table_version)
        return files.new_files(at.table_id, since, at.table_version)

    # Reads.

    def resolve(
        self, content: TableContent | None, overlay: Overlay = Overlay.EMPTY
    ) -> tuple[TableVersion | None, Overlay]:
        """The stored version of a content, and everything on top of it as one overlay, `overlay` last."""
        if content is None or isinstance(content, TableVersion):
            return content, overlay
        on_top = self._overlay(content.tail)
        if content.pending is not Overlay.EMPTY:
            on_top = on_top.compose(content.pending)
        return content.stored, on_top if overlay is Overlay.EMPTY else on_top.compose(overlay)

    def _overlay(self, tail: Tail) -> Overlay:
        if not tail:
            return Overlay.EMPTY
        if self.read_tail is None:
            raise AssertionError("a table with a tail can't be read without `read_tail`")
        return self.read_tail(tail)

    def close(self) -> None:
        """Release a private Lance session, with everything it has cached."""
        self._handles.close()

    def open(self, at: TableVersion) -> "LanceDataset":
        """The stored version as a Lance dataset, without any overlay."""
        return self._handles.open(at)

    def dataset(
        self, at: TableContent | None, overlay: Overlay = Overlay.EMPTY, schema: "pa.Schema | None" = None
    ) -> "LanceDataset":
        """A dataset with all rows. Keep it while anything reads from it: a view's files go with it."""
        stored, on_top = self.resolve(at, overlay)
        return table_scan.dataset(self._handles, self._views, stored, on_top, schema)

    def scan(
        self,
        at: TableContent | None,
        columns: Sequence[str] | None = None,
        filter: "Filter | None" = None,
        overlay: Overlay = Overlay.EMPTY,
        schema: "pa.Schema | None" = None,
    ) -> "pa.Table":
        """All rows that pass the filter, in no particular order."""
        of = self.dataset(at, overlay, schema)
        return table_scan.scan(self._handles, of, _describe(at), columns, filter)

    def batches(
        self,
        at: TableContent | None,
        columns: Sequence[str] | None = None,
        filter: "Filter | None" = None,
        overlay: Overlay = Overlay.EMPTY,
        schema: "pa.Schema | None" = None,
    ) -> "Iterator[pa.RecordBatch]":
        """As `scan`, for tables larger than memory."""
        of = self.dataset(at, overlay, schema)
        return table_scan.batches(self._handles, of, _describe(at), columns, filter)

    def count(
        self,
        at: TableContent | None,
        filter: "Filter | None" = None,
        overlay: Overlay = Overlay.EMPTY,
        schema: "pa.Schema | None" = None,
    ) -> int:
        """The number of rows, or of those that pass the filter."""
        stored, on_top = self.resolve(at, overlay)
        if filter is None and (stored is None or not on_top.is_empty):
            return point_lookup.count(self._handles, stored, on_top)
        of = table_scan.dataset(self._handles, self._views, stored, on_top, schema)
        with translate_errors(_describe(at)), reading_rows(self._handles, of, filtered=filter is not None):
            return int(of.count_rows(filter=filter))

    # Point lookups: none of them builds a view.

    def lookup(
        self,
        at: TableContent | None,
        ids: Iterable[str],
        columns: Sequence[str] | None = None,
        overlay: Overlay = Overlay.EMPTY,
        schema: "pa.Schema | None" = None,
    ) -> "pa.Table":
        """The rows with these ids; with `schema`, ids that the overlay decides need no request."""
        stored, on_top = self.resolve(at, overlay)
        return point_lookup.lookup(self._handles, stored, ids, columns, on_top, schema)

    def known_absent(self, at: TableContent | None, ids: Collection[str]) -> bool:
        """Whether it is known, without a request, that none of these ids has a row."""
        stored, on_top = self.resolve(at)
        if not on_top.ids.isdisjoint(ids):
            return False
        if stored is None:
            return True
        return not self._handles.lookup_cache.possibly_present(stored, [i for i in ids if i not in on_top.hidden_ids])

    def exists(self, at: TableContent | None, ids: Iterable[str], overlay: Overlay = Overlay.EMPTY) -> frozenset[str]:
        """Which of these ids have a row."""
        stored, on_top = self.resolve(at, overlay)
        return point_lookup.exists(self._handles, stored, ids, on_top)

    def present_values(
        self, at: TableContent | None, column: str, values: Iterable[str], overlay: Overlay = Overlay.EMPTY
    ) -> frozenset[str]:
        """Which of these values occur in that column, such as the ends of edges."""
        stored, on_top = self.resolve(at, overlay)
        return point_lookup.present_values(self._handles, stored, column, values, on_top)

    def find_rows(
        self,
        at: TableContent | None,
        columns: Sequence[str],
        *either: ColumnValues,
        overlay: Overlay = Overlay.EMPTY,
        schema: "pa.Schema | None" = None,
    ) -> "pa.Table":
        """The rows that match one of `either`: one of its values in each of its columns; perhaps a few more.

        A column that is not there is null in the result, and matches no value.
        """
        stored, on_top = self.resolve(at, overlay)
        return point_lookup.find_rows(self._handles, stored, columns, either, on_top, schema)

    def written_since(self, at: TableContent, since: TableContent, ids: Iterable[str]) -> frozenset[str]:
        """Which of these ids are in rows written between `since` and `at`, or moved by a compaction meanwhile.

        Both are contents of one stored table. Rows that lie on top of `at` alone count too.
        """
        wanted = frozenset(ids)
        newer, older = self._diff_inputs(at, since)
        written = wanted & newer.recent.ids
        if newer.at is None or older.at is None or newer.at == older.at:
            return written
        return written | point_lookup.written_since(self._handles, newer.at, older.at, wanted)

    # Differences between two contents; None is a type that had no table yet.

    def difference(
        self, older: TableContent | None, newer: TableContent | None, schema: "pa.Schema | None" = None
    ) -> Difference:
        """The rows that differ; if both are versions of one table, reads as much as has changed.

        `schema` names the columns that are compared and returned, null where a content lacks one; by default those of
        both.
        """
        return content_diff.difference(self._handles, *self._diff_inputs(older, newer), schema)

    def differing_ids(self, older: TableContent | None, newer: TableContent | None) -> DifferingIds:
        """The ids of rows in differing fragments, reading nothing else: an id on both sides may just have moved."""
        return content_diff.differing_ids(self._handles, *self._diff_inputs(older, newer))

    def differing_rows(self, older: TableContent | None, newer: TableContent | None) -> tuple[int, int]:
        """How many rows of each lie in differing fragments: known from metadata and deletion files.

        Ids decided by an overlay count on both sides, even where one side has no row for them.
        """
        return content_diff.differing_rows(self._handles, *self._diff_inputs(older, newer))

    def differing_batches(
        self, older: TableContent | None, newer: TableContent | None, schema: "pa.Schema"
    ) -> "tuple[Iterator[pa.RecordBatch], Iterator[pa.RecordBatch]]":
        """The rows in differing fragments of either, as batches, moved rows included; for a join elsewhere."""
        return content_diff.differing_batches(self._handles, *self._diff_inputs(older, newer), schema)

    def _diff_inputs(self, one: TableContent | None, other: TableContent | None) -> tuple[DiffInput, DiffInput]:
        """The two, and what the end of their tails that they don't share says."""
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(_tail(one), _tail(other), strict=False)))
        return self._state(one, shared), self._state(other, shared)

    def _state(self, content: TableContent | None, shared: int) -> DiffInput:
        at, overlay = self.resolve(content)
        if not isinstance(content, VersionWithTail) or not shared:
            return DiffInput(at, overlay, overlay)
        return DiffInput(at, overlay, self._overlay(content.tail[shared:]).compose(content.pending))

    # Searches: rows are identified by their address in the dataset that `dataset` returns.

    def search_text(
        self,
        at: TableContent | None,
        column: str,
        kind: "TextKind",
        text: str,
        edits: int = 0,
        overlay: Overlay = Overlay.EMPTY,
        schema: "pa.Schema | None" = None,
        *,
        limit: int | None = None,
        candidates: "Allowlist" = None,
        with_ids: bool = False,
    ) -> SearchHits:
        """The rows whose text matches, with their BM25 scores, however many of them are indexed."""
        stored, on_top = self.resolve(at, overlay)
        index = self._text_indexes.index(stored, on_top, schema, column)
        if index is None:
            return search.no_hits(with_ids)
        return search.find_text(
            self._handles, index, kind, text, edits, limit=limit, candidates=candidates, with_ids=with_ids
        )

    def search_nearest(
        self,
        at: TableContent | None,
        column: str,
        vector: Sequence[float],
        metric: str,
        count: int,
        overlay: Overlay = Overlay.EMPTY,
        schema: "pa.Schema | None" = None,
        *,
        candidates: "Addresses | None" = None,
    ) -> SearchHits:
        """About the `count` nearest rows, through the vector index; see `has_index`."""
        of = self.dataset(at, overlay, schema)
        return search.find_nearest(self._handles, of, column, vector, metric, count, candidates)

    def has_index(self, at: TableVersion, index: DeclaredIndex) -> bool:
        """Whether the stored version has segments of this index."""
        return index_segments.has_segments(self._handles, at, index)

    def addresses(self, at: TableVersion) -> "Addresses":
        """The address of every row of the stored version, in row order, which is ascending."""
        return search.addresses(self._handles, self.open(at))

    def overlay_addresses(
        self, at: TableContent | None, overlay: Overlay = Overlay.EMPTY, schema: "pa.Schema | None" = None
    ) -> "Addresses":
        """The address in the view of every overlay row, in the overlay's order."""
        stored, on_top = self.resolve(at, overlay)
        fragments = () if stored is None else [int(one.fragment_id) for one in self.open(stored).get_fragments()]
        of = table_scan.dataset(self._handles, self._views, stored, on_top, schema)
        return search.addresses(self._handles, of, frozenset(fragments))


def _tail(content: TableContent | None) -> Tail:
    return content.tail if isinstance(content, VersionWithTail) else ()


def _describe(at: TableContent | None) -> str:
    stored = at.stored if isinstance(at, VersionWithTail) else at
    return str(stored) if stored is not None else "inline rows"
