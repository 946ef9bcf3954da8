"""One table while a mutation runs: what is stored, what the statements so far have made of it, and what was read."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.model.manifest import TableKey
from omnigraph.query.ir import Filter
from omnigraph.schema.catalog import TypeDef
from omnigraph.schema.ipc_row import encode_row
from omnigraph.storage.table.overlay import Overlay, RowChunk, concat_rows, ids_of, with_ids, without_ids
from omnigraph.storage.table.tables import Tables
from omnigraph.write.delta import TableDelta
from omnigraph.write.mutate.select import select
from omnigraph.write.validate.lookups import stored_at
from omnigraph.write.validate.row_images import RowImage, drop_unchanged, select_affected

if TYPE_CHECKING:
    import pyarrow as pa


class Draft:
    """Rows that are written lie on top of the stored ones, so that later statements see them.

    `before` grows by every stored row that is replaced or removed: in the end a row that is as it was is no change.
    """

    def __init__(self, txn: WriteTxn, tables: Tables, key: TableKey) -> None:
        self.key = key
        self.definition = txn.catalog.type_of(key)
        self.content = stored_at(txn, key)
        self.removed: set[str] = set()
        self.rows_were_read = False
        self.ids_read: set[str] | None = set()  # None where rows were read by anything else
        self.only_fresh_ids = True
        self._tables = tables
        self._overlay = Overlay.EMPTY
        self._unflushed: dict[str, RowImage] = {}
        self._before: list[pa.Table] = []
        self._looked_up: dict[str, RowImage] = {}

    @property
    def schema(self) -> "pa.Schema":
        from omnigraph.schema.arrow import arrow_schema

        return arrow_schema(self.definition)

    def look_up(self, ids: Collection[str]) -> None:
        """Read the stored rows with these ids; `row` then knows them."""
        self._reads(ids)
        if self.content is not None and not self._tables.known_absent(self.content, ids):
            self._knows(self._tables.lookup(self.content, ids, self.schema.names, schema=self.schema))

    def look_up_with(self, ids: Collection[str], or_having: Sequence[Mapping[str, Collection[object]]]) -> "pa.Table":
        """The same in one question with another: answers also with rows that have all values of one of `or_having`."""
        self._reads(ids)
        own = {"id": sorted(ids)}
        found = self._tables.find_rows(self.content, self.schema.names, own, *or_having, schema=self.schema)
        self._knows(with_ids(found, ids) if found.num_rows else found)
        return found

    def _reads(self, ids: Collection[str]) -> None:
        self.rows_were_read = True
        if self.ids_read is not None:
            self.ids_read.update(ids)

    def _knows(self, rows: "pa.Table") -> None:
        self._before.append(rows)
        if rows.num_rows:
            self._looked_up.update((row["id"], row) for row in rows.to_pylist())

    def reads_all(self) -> None:
        """Any row that comes or goes meanwhile may matter."""
        self.rows_were_read, self.ids_read = True, None

    def row(self, entity: str) -> RowImage | None:
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
            rows = _written(self.definition, list(self._unflushed.values()))
            self._overlay = self._overlay.compose(Overlay.of_rows(rows, frozenset(self._unflushed)))
            self._unflushed = {}
        return self._overlay

    def select(self, condition: Filter) -> "pa.Table":
        """The rows that pass, as they are now."""
        self.reads_all()
        rows = select(self._tables, self.content, self.overlay, self.definition, condition)
        self._before.append(without_ids(rows, self.overlay.decided_ids))
        return rows

    def select_to_remove(self, condition: Filter) -> frozenset[str]:
        """The ids of rows that pass and are still there; from now on they are gone."""
        self.reads_all()
        columns = self.definition.physical_columns
        return self.remove(select(self._tables, self.content, Overlay.EMPTY, self.definition, condition, columns))

    def remove(self, rows: "pa.Table") -> frozenset[str]:
        self.reads_all()
        left = without_ids(rows.select(list(self.definition.physical_columns)), self.removed)
        self._before.append(left)
        ids = frozenset(ids_of(left))
        self.removed |= ids
        return ids

    def delta(self) -> TableDelta:
        """What is left of it all in the end."""
        before, overlay = _first_of_each(self._before), self.overlay
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


def _written(definition: TypeDef, rows: list[RowImage]) -> RowChunk:
    made = encode_row(definition, rows[0]) if len(rows) == 1 else None
    if made is not None:
        return made
    from omnigraph.schema.arrow import arrow_rows

    return arrow_rows(definition, rows)


def _first_of_each(parts: "list[pa.Table]") -> "pa.Table | None":
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
