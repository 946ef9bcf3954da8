"""One table while a mutation runs: its stored rows, the rows written so far, and what was read."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from omnigraph.errors import BadRequest
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.model.manifest import TableKey
from omnigraph.query.ir import Compare, EntityId, Filter, Literal, Prop
from omnigraph.schema.catalog import TypeDef
from omnigraph.schema.identity import canonical_text
from omnigraph.schema.ipc_row import encode_row
from omnigraph.storage.table.align import align_table
from omnigraph.storage.table.overlay import Overlay, RowChunk, concat_rows, ids_of, with_ids, without_ids
from omnigraph.storage.table.tables import Tables
from omnigraph.write.delta import TableDelta
from omnigraph.write.validate.row_images import RowImage, drop_unchanged, select_affected

if TYPE_CHECKING:
    import pyarrow as pa


class TableBuffer:
    """A write buffer over the stored rows: later statements see what earlier ones wrote.

    It keeps every stored row that is replaced or removed, so that a row which ends as it was is no change.
    """

    def __init__(self, txn: WriteTxn, tables: Tables, key: TableKey) -> None:
        self.key = key
        self.definition = txn.catalog.type_of(key)
        self.content = txn.content(key)
        self.removed: set[str] = set()
        self.reads_rows = False
        self.ids_read: set[str] | None = set()  # None if rows were read by anything but id
        self.only_fresh_ids = True
        self._tables = tables
        self._overlay = Overlay.EMPTY
        self._unflushed: dict[str, RowImage] = {}
        self._stored: list[pa.Table] = []
        self._looked_up: dict[str, RowImage] = {}

    @property
    def schema(self) -> "pa.Schema":
        from omnigraph.schema.arrow import arrow_schema

        return arrow_schema(self.definition)

    def look_up(self, ids: Collection[str]) -> None:
        """Read the stored rows with these ids, for `current_row`."""
        self._record_read(ids)
        if self.content is not None and not self._tables.known_absent(self.content, ids):
            self._remember(self._tables.lookup(self.content, ids, self.schema.names, schema=self.schema))

    def look_up_together(
        self, ids: Collection[str], or_having: Sequence[Mapping[str, Collection[object]]]
    ) -> "pa.Table":
        """The same, in one scan with another lookup: also returns rows that have the values of one of `or_having`."""
        self._record_read(ids)
        own = {"id": sorted(ids)}
        found = self._tables.find_rows(self.content, self.schema.names, own, *or_having, schema=self.schema)
        self._remember(with_ids(found, ids) if found.num_rows else found)
        return found

    def _record_read(self, ids: Collection[str]) -> None:
        self.reads_rows = True
        if self.ids_read is not None:
            self.ids_read.update(ids)

    def _remember(self, rows: "pa.Table") -> None:
        self._stored.append(rows)
        if rows.num_rows:
            self._looked_up.update((row["id"], row) for row in rows.to_pylist())

    def record_full_read(self) -> None:
        """Record that any row which a concurrent commit inserts or removes may matter."""
        self.reads_rows, self.ids_read = True, None

    def current_row(self, entity: str) -> RowImage | None:
        """The row with an id that was looked up, as the statements so far have left it."""
        if entity in self._unflushed:
            return self._unflushed[entity]
        written = self._overlay.rows_of([entity]) if self._overlay.parts else None
        if written is not None and written.num_rows:
            return dict(written.to_pylist()[0])
        return self._looked_up.get(entity)

    def put(self, row: RowImage, *, fresh_id: bool) -> None:
        """Write one row."""
        self.only_fresh_ids = self.only_fresh_ids and fresh_id
        self._unflushed[row["id"]] = row

    def put_all(self, rows: "pa.Table") -> None:
        """Write rows that replace others."""
        self.only_fresh_ids = False
        self._overlay = self.overlay.compose(Overlay.of(rows))

    @property
    def overlay(self) -> Overlay:
        """All rows written so far."""
        if self._unflushed:
            rows = _to_chunk(self.definition, list(self._unflushed.values()))
            self._overlay = self._overlay.compose(Overlay.of_rows(rows, frozenset(self._unflushed)))
            self._unflushed = {}
        return self._overlay

    def select(self, condition: Filter) -> "pa.Table":
        """The rows that pass a `where`, as the statements so far have left them."""
        self.record_full_read()
        rows = self._read(condition, self.overlay, self.schema.names)
        self._stored.append(without_ids(rows, self.overlay.decided_ids))
        return rows

    def select_to_remove(self, condition: Filter) -> frozenset[str]:
        """Remove the rows that pass a `where`; returns their ids, without those removed before."""
        self.record_full_read()
        return self.remove(self._read(condition, Overlay.EMPTY, self.definition.physical_columns))

    def remove(self, rows: "pa.Table") -> frozenset[str]:
        self.record_full_read()
        left = without_ids(rows.select(list(self.definition.physical_columns)), self.removed)
        self._stored.append(left)
        ids = frozenset(ids_of(left))
        self.removed |= ids
        return ids

    def _read(self, condition: Filter, overlay: Overlay, columns: Sequence[str]) -> "pa.Table":
        """The rows of the table under an overlay that pass a `where`."""
        if self.content is None and overlay.rows is None:
            return self.schema.empty_table().select(list(columns))
        entity = _id_in_filter(self.definition, condition)
        if entity is not None:
            return self._tables.lookup(self.content, [entity], columns, overlay, self.schema)
        return self._filter(condition, overlay, list(columns))

    def _filter(self, condition: Filter, overlay: Overlay, columns: list[str]) -> "pa.Table":
        """Lance filters stored rows where it does so exactly; otherwise batches are read and filtered here."""
        import pyarrow as pa

        from omnigraph.read.match.filters import columns_of, filter_table, lance_filter

        def apply_filter(rows: "pa.Table") -> "pa.Table":
            return rows.filter(pa.array(filter_table(condition, rows))).select(columns)

        predicate, parts = lance_filter(condition, self.definition), [self.schema.empty_table().select(columns)]
        if predicate is None:
            read = list(dict.fromkeys([*columns, *columns_of(condition)]))
            batches = self._tables.batches(self.content, read, None, overlay, self.schema)
            return pa.concat_tables([*parts, *(apply_filter(pa.table(batch)) for batch in batches)])
        at, tail = self._tables.resolve(self.content)
        unfolded = tail.compose(overlay)
        if unfolded.rows is not None:
            parts.append(apply_filter(align_table(unfolded.rows, self.schema, drop_unknown=True)))
        if at is not None:
            stored = self._tables.scan(at, list(dict.fromkeys([*columns, "id"])), predicate)
            parts.append((without_ids(stored, unfolded.hidden_ids) if unfolded.hidden_ids else stored).select(columns))
        return pa.concat_tables(parts)

    def delta(self) -> TableDelta:
        """The change of the table by all statements together."""
        before, overlay = _deduplicate(self._stored), self.overlay
        if overlay.ids and not self.removed and (before is None or not before.num_rows):
            return TableDelta(self.key, overlay, before=before, fresh_ids=self.only_fresh_ids)
        written = overlay.rows
        rows = self.schema.empty_table() if written is None else drop_unchanged(written, before)
        removed = frozenset(self.removed)
        return TableDelta(
            self.key,
            overlay if rows is written and overlay.ids else rows,
            removed,
            select_affected(before, rows, removed),
            fresh_ids=self.only_fresh_ids,
            removes_edges=bool(self.removed),
        )


def _to_chunk(definition: TypeDef, rows: list[RowImage]) -> RowChunk:
    made = encode_row(definition, rows[0]) if len(rows) == 1 else None
    if made is not None:
        return made
    from omnigraph.schema.arrow import arrow_rows

    return arrow_rows(definition, rows)


def _deduplicate(parts: "list[pa.Table]") -> "pa.Table | None":
    """The stored rows, each once, however many statements have read it."""
    if len(parts) == 1:
        return parts[0]
    seen: set[str] = set()
    kept = []
    for part in parts:
        new = without_ids(part, seen) if seen else part
        seen.update(ids_of(new))
        kept.append(new)
    return concat_rows(kept) if kept else None


def _id_in_filter(definition: TypeDef, condition: Filter) -> str | None:
    """The only id that can pass, if the filter compares the id, or a key of one property, for equality."""
    if not isinstance(condition, Compare) or condition.op != "=" or not isinstance(condition.right, Literal):
        return None
    value = condition.right.value
    match condition.left:
        case EntityId():
            return value if isinstance(value, str) else None
        case Prop(column=column) if definition.key == (column.name,):
            try:
                named = canonical_text(value, column.type)
            except (ValueError, BadRequest):
                return None  # a number of another type, which compares by value
            return named if condition.domain == "text" or isinstance(value, int) else None
    return None
