"""One table while a mutation runs: what is stored, what the statements so far have made of it, and what was read."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from omnigraph.errors import BadRequest
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.model.manifest import TableKey
from omnigraph.query.ir import Compare, EntityId, Filter, Literal, Prop
from omnigraph.schema.catalog import TypeDef
from omnigraph.schema.identity import canonical_text
from omnigraph.schema.ipc_row import encode_row
from omnigraph.storage.table.overlay import Overlay, RowChunk, align_table, concat_rows, ids_of, with_ids, without_ids
from omnigraph.storage.table.table_content import TableContent
from omnigraph.storage.table.tables import Tables
from omnigraph.write.delta import TableDelta
from omnigraph.write.validate.row_images import RowImage, drop_unchanged, select_affected

if TYPE_CHECKING:
    import pyarrow as pa


class TableBuffer:
    """Rows that are written lie on top of the stored ones, so that later statements see them.

    `before` grows by every stored row that is replaced or removed: in the end a row that is as it was is no change.
    """

    def __init__(self, txn: WriteTxn, tables: Tables, key: TableKey) -> None:
        self.key = key
        self.definition = txn.catalog.type_of(key)
        self.content = txn.content(key)
        self.removed: set[str] = set()
        self.reads_rows = False
        self.ids_read: set[str] | None = set()  # None where rows were read by anything else
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
        """Read the stored rows with these ids; `row` then knows them."""
        self._record_read(ids)
        if self.content is not None and not self._tables.known_absent(self.content, ids):
            self._remember(self._tables.lookup(self.content, ids, self.schema.names, schema=self.schema))

    def look_up_together(
        self, ids: Collection[str], or_having: Sequence[Mapping[str, Collection[object]]]
    ) -> "pa.Table":
        """The same in one question with another: answers also with rows that have all values of one of `or_having`."""
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
        """Any row that comes or goes meanwhile may matter."""
        self.reads_rows, self.ids_read = True, None

    def current_row(self, entity: str) -> RowImage | None:
        """The row as it is now, of an id that was looked up."""
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
        """All that was written so far."""
        if self._unflushed:
            rows = _to_chunk(self.definition, list(self._unflushed.values()))
            self._overlay = self._overlay.compose(Overlay.of_rows(rows, frozenset(self._unflushed)))
            self._unflushed = {}
        return self._overlay

    def select(self, condition: Filter) -> "pa.Table":
        """The rows that pass, as they are now."""
        self.record_full_read()
        rows = _select(self._tables, self.content, self.overlay, self.definition, condition)
        self._stored.append(without_ids(rows, self.overlay.decided_ids))
        return rows

    def select_to_remove(self, condition: Filter) -> frozenset[str]:
        """The ids of rows that pass and are still there; from now on they are gone."""
        self.record_full_read()
        columns = self.definition.physical_columns
        return self.remove(_select(self._tables, self.content, Overlay.EMPTY, self.definition, condition, columns))

    def remove(self, rows: "pa.Table") -> frozenset[str]:
        self.record_full_read()
        left = without_ids(rows.select(list(self.definition.physical_columns)), self.removed)
        self._stored.append(left)
        ids = frozenset(ids_of(left))
        self.removed |= ids
        return ids

    def delta(self) -> TableDelta:
        """What is left of it all in the end."""
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
    """The stored rows, each once, though several statements may have read it."""
    if len(parts) == 1:
        return parts[0]
    seen: set[str] = set()
    kept = []
    for part in parts:
        new = without_ids(part, seen) if seen else part
        seen.update(ids_of(new))
        kept.append(new)
    return concat_rows(kept) if kept else None


# The rows of a `where`


def _select(
    tables: Tables,
    content: TableContent | None,
    overlay: Overlay,
    definition: TypeDef,
    condition: Filter,
    columns: Sequence[str] | None = None,
) -> "pa.Table":
    """All rows that pass, with these columns or all."""
    from omnigraph.schema.arrow import arrow_schema

    schema = arrow_schema(definition)
    wanted = list(schema.names if columns is None else columns)
    if content is None and overlay.rows is None:
        return schema.empty_table().select(wanted)
    entity = _id_in_filter(definition, condition)
    if entity is not None:
        return tables.lookup(content, [entity], wanted, overlay, schema)
    return _select_by_filter(tables, content, overlay, definition, condition, wanted, schema)


def _select_by_filter(
    tables: Tables,
    content: TableContent | None,
    overlay: Overlay,
    definition: TypeDef,
    condition: Filter,
    wanted: list[str],
    schema: "pa.Schema",
) -> "pa.Table":
    """Lance filters where it does so exactly; otherwise rows come in batches and are judged here."""
    import pyarrow as pa

    from omnigraph.read.match.filters import columns_of, filter_table, lance_filter

    def apply_filter(rows: "pa.Table") -> "pa.Table":
        return rows.filter(pa.array(filter_table(condition, rows))).select(wanted)

    pushed = lance_filter(condition, definition)
    if pushed is not None:
        return _select_by_predicate(tables, content, overlay, schema, wanted, pushed, apply_filter)
    read = list(dict.fromkeys([*wanted, *columns_of(condition)]))
    shape = pa.schema([schema.field(name) for name in wanted])
    parts = [shape.empty_table()]
    for batch in tables.batches(content, read, None, overlay, schema):
        table = pa.table(batch)
        parts.append(apply_filter(table))
    return pa.concat_tables(parts)


def _select_by_predicate(
    tables: Tables,
    content: TableContent | None,
    overlay: Overlay,
    schema: "pa.Schema",
    wanted: list[str],
    predicate: str,
    apply_filter: "Callable[[pa.Table], pa.Table]",
) -> "pa.Table":
    """Without a view: stored rows by the predicate, through whatever index there is, those on top by `apply_filter`."""
    import pyarrow as pa

    at, own = tables.resolve(content)
    above = own.compose(overlay)
    shape = pa.schema([schema.field(name) for name in wanted])
    parts = [shape.empty_table()]
    if above.rows is not None:
        known = [name for name in schema.names if name in above.rows.column_names]
        parts.append(apply_filter(align_table(above.rows.select(known), schema)))
    if at is not None:
        stored = tables.scan(at, list(dict.fromkeys([*wanted, "id"])), predicate)
        parts.append((without_ids(stored, above.hidden_ids) if above.hidden_ids else stored).select(wanted))
    return pa.concat_tables(parts)


def _id_in_filter(definition: TypeDef, condition: Filter) -> str | None:
    """The one id that can pass, where the filter says it: by the id itself, or by a key of one property."""
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
