"""Mutations: a bound query becomes the delta of one commit, and is planned again on a new head after a lost race.

Statements run one after another on a buffer of each table. Nothing is written before all of them have run and the
constraints of the schema are checked.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from omnigraph.caches import DerivedCache
from omnigraph.cancellation import checkpoint
from omnigraph.errors import BadRequest, Violation
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.model.manifest import TableKey
from omnigraph.manifest.repository import Repository
from omnigraph.query.compile import compile_queries
from omnigraph.query.ir import (
    Assign,
    Compare,
    Constant,
    DeleteRows,
    EntityId,
    Filter,
    InsertRow,
    Literal,
    MutationQuery,
    Prop,
    UpdateRows,
)
from omnigraph.query.values import default_of
from omnigraph.schema.catalog import TypeDef
from omnigraph.schema.constraints import Required, Unique, type_constraints
from omnigraph.schema.identity import canonical_text, id_of
from omnigraph.schema.ipc_row import encode_row
from omnigraph.storage.table.align import align_table
from omnigraph.storage.table.overlay import Overlay, RowChunk, concat_rows, ids_of, with_ids, without_ids
from omnigraph.storage.table.tables import Tables
from omnigraph.threads import gather
from omnigraph.write.commit import Changes, CommitOptions, RowWrite
from omnigraph.write.delta import Delta, TableDelta
from omnigraph.write.validate.graph_checks import PrefetchedRows, UniqueInGraph
from omnigraph.write.validate.row_images import (
    RowImage,
    assign,
    drop_unchanged,
    equal_values,
    select_affected,
    set_null,
    stale_vectors,
)
from omnigraph.write.validate.validate import checks_for, constraints_for, unique_checks

if TYPE_CHECKING:
    import pyarrow as pa


class TableBuffer:
    """A write buffer over the stored rows: later statements see what earlier ones wrote.

    It keeps every stored row that is replaced or removed, so that a row which ends as it was is no change.
    """

    def __init__(self, txn: WriteTxn, tables: Tables, key: TableKey) -> None:
        self.key = key
        self.content = txn.content(key)
        self.definition = txn.schema.catalog.by_key[key]
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
            written = Overlay.of_rows(rows, frozenset(self._unflushed), self.only_fresh_ids)
            self._overlay = self._overlay.compose(written)
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


NODES_PER_LOOKUP = 10_000  # whose edges are looked up at once
PREFETCH_ROWS_MAX = 1_000  # rows whose unique values are looked up together with their ids

_DEFAULTS: DerivedCache[TypeDef, RowImage] = DerivedCache(  # of a new row's properties that are not given, by column
    lambda definition: {prop.column: default_of(prop) for prop in definition.properties}
)


class MutationText(NamedTuple):
    """A mutation as its caller wrote it, to be compiled against the schema of a base."""

    gq: str
    name: str | None
    params: Mapping[str, object]
    now: datetime

    def bind(self, txn: WriteTxn) -> MutationQuery:
        compiled = compile_queries(self.gq, txn.schema.catalog, self.name, schema_hash=txn.base.schema)
        return compiled.bind_mutation(self.params, now=self.now)


class Mutation(RowWrite):
    """A bound mutation, as one atomic commit.

    A text is compiled again when the schema has changed under the write. A query that is given bound belongs to the
    schema it was compiled for.
    """

    def __init__(
        self,
        repository: Repository,
        query: MutationQuery | MutationText,
        options: CommitOptions | None = None,
        *,
        txn: WriteTxn | None = None,
    ) -> None:
        super().__init__(repository, options or CommitOptions(), txn=txn)
        self._query = query
        self._new_ids: dict[int, str] = {}  # by statement; generated once, however often the mutation is planned

    def changes(self, txn: WriteTxn) -> Changes:
        bound = self._query.bind(txn) if isinstance(self._query, MutationText) else self._query
        return _MutationRun(txn, self._repository.tables, self._new_id).changes(bound)

    def _new_id(self, statement: int) -> str:
        return self._new_ids.setdefault(statement, self._repository.runtime.ids.txn_id())


class _InsertValues(NamedTuple):
    """The values of an insert by property and by column, and the id of a keyed row if its key is complete."""

    definition: TypeDef
    given: dict[str, Any]
    values: RowImage
    entity: str | None


class _MutationRun:
    """One execution of a query's statements on one base."""

    def __init__(self, txn: WriteTxn, tables: Tables, fresh_id: Callable[[int], str]) -> None:
        self._txn = txn
        self._tables = tables
        self._fresh_id = fresh_id
        self._buffers: dict[TableKey, TableBuffer] = {}
        self._inserts: dict[int, _InsertValues] = {}  # by the number of their statement
        self._violations: list[Violation] = []
        self._prefetched = PrefetchedRows()

    def changes(self, query: MutationQuery) -> Changes:
        """Run all statements; nothing is written."""
        self._look_up_keys(query)
        for number, statement in enumerate(query.statements):
            checkpoint()
            match statement:
                case InsertRow():
                    self._insert(statement, number)
                case UpdateRows():
                    self._update(statement)
                case DeleteRows():
                    self._delete(statement)
        delta = Delta.of([buffer.delta() for buffer in self._buffers.values()])
        read = {key: buffer.ids_read for key, buffer in self._buffers.items() if buffer.reads_rows}
        by_id = {key: frozenset(ids) for key, ids in read.items() if ids is not None}
        checks = checks_for(self._txn, delta, self._violations, self._prefetched)
        return Changes(delta.actions(), checks, frozenset(read), by_id)

    def _buffer(self, key: TableKey) -> TableBuffer:
        if key not in self._buffers:
            self._buffers[key] = TableBuffer(self._txn, self._tables, key)
        return self._buffers[key]

    # insert

    def _look_up_keys(self, query: MutationQuery) -> None:
        """Look up the stored rows of all keyed inserts at once, together with rows that have their unique values."""
        wanted: dict[TableKey, dict[str, list[RowImage]]] = {}
        for number, statement in enumerate(query.statements):
            if isinstance(statement, InsertRow):
                new = self._inserts[number] = _insert_values(self._buffer(statement.table_key).definition, statement)
                if new.entity is not None:
                    wanted.setdefault(statement.table_key, {}).setdefault(new.entity, []).append(new.values)
        if len(wanted) > 1:
            gather([partial(self._look_up, self._buffers[key], written) for key, written in wanted.items()])
            return
        for key, written in wanted.items():
            self._look_up(self._buffers[key], written)

    def _look_up(self, buffer: TableBuffer, written: dict[str, list[RowImage]]) -> None:
        """Look up rows by id, and in the same scan the rows that validation will look for if the ids are new."""
        to_prefetch = self._unique_checks_to_prefetch(buffer, written)
        if not to_prefetch or buffer.content is None:
            buffer.look_up(written.keys())
            return
        found = buffer.look_up_together(written.keys(), [check.lookup_values for check in to_prefetch])
        for check in to_prefetch:
            self._prefetched.add(buffer.content, check.columns, check.lookup_values, found)

    def _unique_checks_to_prefetch(
        self, buffer: TableBuffer, written: dict[str, list[RowImage]]
    ) -> list[UniqueInGraph]:
        """The unique checks that writing rows with these values will need, if they can be looked up in advance."""
        between_rows = constraints_for(self._txn).between_rows.get(buffer.key)
        if between_rows is None or buffer.content is None or len(written) > PREFETCH_ROWS_MAX:
            return []
        uniques = [one for one in between_rows if isinstance(one, Unique)]
        if not uniques:
            return []
        from omnigraph.schema.arrow import arrow_rows

        rows: list[RowImage] = [{"id": entity, **_DEFAULTS.of(buffer.definition)} for entity in written]
        for row, several in zip(rows, written.values(), strict=True):
            for values in several:
                row |= values
        delta = TableDelta(buffer.key, arrow_rows(buffer.definition, rows))
        checks = [check for constraint in uniques for check in unique_checks(constraint, delta, self._prefetched)]
        return [check for check in checks if check.lookup_values]

    def _insert(self, statement: InsertRow, number: int) -> None:
        buffer, new = self._buffer(statement.table_key), self._inserts[number]
        definition, values, entity = new.definition, new.values, new.entity
        if not definition.key:
            ends = (
                {"src": _literal_value(statement.source), "dst": _literal_value(statement.target)}
                if statement.source
                else {}
            )
            row = {"id": self._fresh_id(number), **ends, **_DEFAULTS.of(definition), **values}
            buffer.put(row, fresh_id=True)
            return
        if entity is None:
            self._violations += _missing_key_violations(definition, new.given)
            return
        stored = buffer.current_row(entity)
        if stored is None:
            buffer.put({"id": entity, **_DEFAULTS.of(definition), **values}, fresh_id=False)
            return
        stale = {
            vector: None for source, vector in stale_vectors(definition, new.given) if stored[source] != values[source]
        }
        buffer.put({**stored, **stale, **values}, fresh_id=False)

    # update

    def _update(self, statement: UpdateRows) -> None:
        buffer = self._buffer(statement.table_key)
        definition, given = buffer.definition, _assigned_values(statement.assignments)
        rows = buffer.select(statement.where)
        if not rows.num_rows:
            return
        values = {definition.column(name): value for name, value in given.items()}
        written = assign(rows, values)
        for source, vector in stale_vectors(definition, given):
            written = set_null(written, vector, _different_values(rows.column(source), written.column(source)))
        buffer.put_all(written)

    # delete

    def _delete(self, statement: DeleteRows) -> None:
        removed = self._buffer(statement.table_key).select_to_remove(statement.where)
        endpoints = constraints_for(self._txn).referring_to(statement.table_key)
        columns: dict[TableKey, list[str]] = {}
        for endpoint in endpoints:
            columns.setdefault(endpoint.table_key, []).append(endpoint.columns[0])
        gather([partial(self._remove_edges, self._buffer(key), names, removed) for key, names in columns.items()])

    def _remove_edges(self, buffer: TableBuffer, columns: list[str], nodes: frozenset[str]) -> None:
        """Remove the edges of removed nodes. The table counts as read in any case: a concurrent commit may add one."""
        buffer.record_full_read()
        every = sorted(nodes) if buffer.content is not None else []
        for start in range(0, len(every), NODES_PER_LOOKUP):
            ends = [{column: every[start : start + NODES_PER_LOOKUP]} for column in columns]
            buffer.remove(self._tables.find_rows(buffer.content, buffer.definition.physical_columns, *ends))


def _insert_values(definition: TypeDef, statement: InsertRow) -> _InsertValues:
    given = _assigned_values(statement.assignments)
    columns = definition.columns
    values = {columns[name]: value for name, value in given.items()}
    return _InsertValues(definition, given, values, _key_id(definition, given) if definition.key else None)


def _assigned_values(assignments: tuple[Assign, ...]) -> dict[str, Any]:
    """The values that a statement assigns, by property."""
    return {assign.column.name: _literal_value(assign.value) for assign in assignments}


def _literal_value(constant: Constant | None) -> Any:
    assert isinstance(constant, Literal), f"{constant} was not bound"
    return constant.value


def _key_id(definition: TypeDef, given: dict[str, Any]) -> str | None:
    """The id of a keyed row; None if a part of the key is missing."""
    values = {}
    for name in definition.key:
        value = given[name] if name in given else default_of(definition.by_name[name])
        if value is None:
            return None
        values[name] = value
    return id_of(definition, values)


def _missing_key_violations(definition: TypeDef, given: dict[str, Any]) -> list[Violation]:
    """The violations of a keyed row without a complete key; it has no id to be reported by."""
    missing = [name for name in definition.key if given.get(name, default_of(definition.by_name[name])) is None]
    return [
        Violation(
            constraint.name, definition.name, name, (), f"has no {name}, a part of its key", f"give {name} a value"
        )
        for constraint in type_constraints(definition)
        if isinstance(constraint, Required) and (name := constraint.properties[0]) in missing
    ]


def _different_values(left: Any, right: Any) -> Any:
    import pyarrow.compute as pc

    return pc.invert(equal_values(left, right))
