"""What a load does to the graph: append, merge or overwrite, as a delta on one base."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from omnigraph.errors import Violation
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.model.manifest import TableKey
from omnigraph.schema.catalog import TypeDef
from omnigraph.schema.constraints import Unique
from omnigraph.storage.table.overlay import without_ids
from omnigraph.storage.table.tables import Tables
from omnigraph.storage.util.parallel import gather
from omnigraph.write.delta import Delta, TableDelta, texts
from omnigraph.write.load.input.load_input import Place
from omnigraph.write.load.load_options import Mode
from omnigraph.write.load.load_rows import Incoming, TypeRows, each_id_once, match_constraint
from omnigraph.write.validate.lookups import stored_at
from omnigraph.write.validate.row_checks import unique_values
from omnigraph.write.validate.row_images import (
    drop_unchanged,
    fill_missing,
    select_affected,
    set_null,
    stale_vector_mask,
)

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class Lowered:
    """A load on one base: its delta, the tables whose rows went into it, and what there is to tell about it."""

    delta: Delta
    taken: dict[TableKey, TypeRows]
    read_rows: frozenset[TableKey] = frozenset()
    refused: list[tuple[Place, Violation]] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)


def lower(mode: Mode, txn: WriteTxn, tables: Tables, incoming: Incoming) -> Lowered:
    match mode:
        case "append":
            return _appended(incoming)
        case "overwrite":
            return _overwritten(txn, incoming)
        case "merge":
            return _merged(txn, tables, incoming)


def _appended(incoming: Incoming) -> Lowered:
    deltas = [
        TableDelta(key, one.rows, fresh_ids=bool(one.minted.all()), ids_must_be_new=True)
        for key, one in incoming.types.items()
    ]
    return Lowered(Delta.of(deltas), dict(incoming.types))


def _overwritten(txn: WriteTxn, incoming: Incoming) -> Lowered:
    """All rows of every type that the input names; a type whose every row was rejected is not emptied for that."""
    from omnigraph.schema.arrow import arrow_schema

    deltas, reports = [], []
    for key, seen in sorted(incoming.seen.items()):
        rows = incoming.types.get(key)
        if rows is not None and rows.rows.num_rows:
            deltas.append(TableDelta(key, rows.rows, replaces_all=True))
        elif seen:
            reports.append(left_as_it_is(key, seen))
        else:
            empty = arrow_schema(txn.catalog.type_of(key)).empty_table()
            deltas.append(TableDelta(key, empty, replaces_all=True))
    return Lowered(Delta.of(deltas), dict(incoming.types), reports=reports)


def _merged(txn: WriteTxn, tables: Tables, incoming: Incoming) -> Lowered:
    """Every type by itself, their lookups side by side."""
    parts = gather([partial(_merge_type, txn, tables, key, rows) for key, rows in incoming.types.items()])
    lowered = Lowered(Delta.of(part.delta for part in parts), {})
    for part in parts:
        lowered.taken[part.delta.table] = part.rows
        lowered.refused += part.refused
        lowered.reports += part.reports
    lowered.read_rows = frozenset(part.delta.table for part in parts if part.reads)
    return lowered


@dataclass
class _MergedType:
    delta: TableDelta
    rows: TypeRows
    reads: bool
    refused: list[tuple[Place, Violation]]
    reports: list[str]


def _merge_type(txn: WriteTxn, tables: Tables, key: TableKey, incoming: TypeRows) -> _MergedType:
    """Upsert: absent properties keep their stored value; what is as it was is no change."""
    import pyarrow as pa

    at, definition = stored_at(txn, key), incoming.definition
    refused: list[tuple[Place, Violation]] = []
    known = match_constraint(definition) if definition.kind == "edge" else None
    reads = known is not None or not bool(incoming.minted.all())
    stored: list[pa.Table] = []
    if at is not None and known is not None and incoming.minted.any():
        found = _rows_alike(tables, at, known, incoming)
        stored.append(found)
        incoming = each_id_once(_matched(incoming, known, found), refused)
    if at is not None and not incoming.minted.all():
        explicit = without_ids(incoming.rows, [i for part in stored for i in texts(part, "id")])
        minted = _some(incoming.rows, incoming.minted)
        wanted = frozenset(texts(explicit, "id")) - frozenset(texts(minted, "id"))
        stored.append(tables.lookup(at, wanted, incoming.rows.schema.names, schema=incoming.rows.schema))
    before = pa.concat_tables(stored) if stored else None
    rows = incoming.rows
    if before is not None and before.num_rows:
        rows = fill_missing(rows, incoming.given, before)
        for prop in definition.properties:
            if prop.embed is not None:
                source = definition.column(prop.embed.source)
                rows = set_null(rows, prop.column, stale_vector_mask(rows, incoming.given, before, source, prop.column))
        rows = drop_unchanged(rows, before)
    fresh = bool(incoming.minted.all())
    delta = TableDelta(key, rows, before=select_affected(before, rows, frozenset()), fresh_ids=fresh)
    return _MergedType(delta, incoming, reads, refused, new_each_time(definition, int(incoming.minted.sum())))


def _rows_alike(tables: Tables, at: Any, known: Unique, incoming: TypeRows) -> "pa.Table":
    """Stored edges that may be the ones meant, whole."""
    values = [values for _, values in unique_values(known, _some(incoming.rows, incoming.minted))]
    if not values:
        return incoming.rows.schema.empty_table()
    by_column = zip(known.columns, zip(*values, strict=True), strict=True)
    columns = {name: list(dict.fromkeys(column)) for name, column in by_column}
    schema = incoming.rows.schema  # rows in manifests may be older than some of its columns
    rows = tables.find_rows(at, schema.names, columns, schema=schema)
    wanted = set(values)
    return _by_ids(rows, [entity for entity, found in unique_values(known, rows) if found in wanted])


def _matched(incoming: TypeRows, known: Unique, stored: "pa.Table") -> TypeRows:
    """Edges without an id under the id of the stored edge that agrees in the constraint's values."""
    import numpy as np
    import pyarrow as pa

    there = {values: entity for entity, values in unique_values(known, stored)}
    wanted = dict(unique_values(known, incoming.rows))
    ids = texts(incoming.rows, "id")
    known_as = [there.get(wanted.get(i, ())) if mint else None for i, mint in zip(ids, incoming.minted, strict=True)]
    minted = incoming.minted & np.array([entity is None for entity in known_as], np.bool_)
    final = [own if other is None else other for own, other in zip(ids, known_as, strict=True)]
    return incoming.with_ids(pa.array(final, pa.string()), minted)


def left_as_it_is(key: TableKey, seen: int) -> str:
    """What an overwrite says of a type that it does not empty only because all its rows were rejected."""
    return f"{key.partition(':')[2]} was left as it is: none of its {seen} rows could be taken."


def new_each_time(definition: TypeDef, count: int) -> list[str]:
    """What loading the same input again would add again: so many rows without an id."""
    if not count or (definition.kind == "edge" and match_constraint(definition) is not None):
        return []
    remedy = "@unique(src, dst)" if definition.kind == "edge" else "@key"
    what = "edges" if definition.kind == "edge" else "nodes"
    return [f"{count} {definition.name} {what} without id are new: with {remedy} they would be matched."]


def _some(rows: "pa.Table", mask: Any) -> "pa.Table":
    import pyarrow as pa

    return rows.filter(pa.array(mask))


def _by_ids(rows: "pa.Table", ids: Sequence[str]) -> "pa.Table":
    from omnigraph.storage.table.overlay import with_ids

    return with_ids(rows, ids)
