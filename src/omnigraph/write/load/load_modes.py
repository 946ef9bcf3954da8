"""The modes of a load (append, merge, overwrite): each turns rows into a delta on one base."""

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
from omnigraph.threads import gather
from omnigraph.write.delta import Delta, TableDelta, texts
from omnigraph.write.load.input.load_input import InputPlace
from omnigraph.write.load.load_options import Mode
from omnigraph.write.load.load_rows import LoadRows, TypeRows, match_constraint, reject_repeated_ids
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
class LoadPlan:
    """A load on one base: its delta, the tables that it has read, rejected rows and notes for the user."""

    delta: Delta
    taken: dict[TableKey, TypeRows]
    read_rows: frozenset[TableKey] = frozenset()
    refused: list[tuple[InputPlace, Violation]] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)


def plan_load(mode: Mode, txn: WriteTxn, tables: Tables, incoming: LoadRows) -> LoadPlan:
    match mode:
        case "append":
            return _plan_append(incoming)
        case "overwrite":
            return _plan_overwrite(txn, incoming)
        case "merge":
            return _plan_merge(txn, tables, incoming)


def _plan_append(incoming: LoadRows) -> LoadPlan:
    deltas = [
        TableDelta(key, one.rows, fresh_ids=bool(one.minted.all()), ids_must_be_new=True)
        for key, one in incoming.types.items()
    ]
    return LoadPlan(Delta.of(deltas), dict(incoming.types))


def _plan_overwrite(txn: WriteTxn, incoming: LoadRows) -> LoadPlan:
    """Replace all rows of every type in the input; a type is not emptied only because all its rows were rejected."""
    from omnigraph.schema.arrow import arrow_schema

    deltas, reports = [], []
    for key, seen in sorted(incoming.seen.items()):
        rows = incoming.types.get(key)
        if rows is not None and rows.rows.num_rows:
            deltas.append(TableDelta(key, rows.rows, replaces_all=True))
        elif seen:
            reports.append(unchanged_type_note(key, seen))
        else:
            empty = arrow_schema(txn.catalog.type_of(key)).empty_table()
            deltas.append(TableDelta(key, empty, replaces_all=True))
    return LoadPlan(Delta.of(deltas), dict(incoming.types), reports=reports)


def _plan_merge(txn: WriteTxn, tables: Tables, incoming: LoadRows) -> LoadPlan:
    """Plan the types independently, with their lookups in parallel."""
    parts = gather([partial(_plan_type_merge, txn, tables, key, rows) for key, rows in incoming.types.items()])
    planned = LoadPlan(Delta.of(part.delta for part in parts), {})
    for part in parts:
        planned.taken[part.delta.table] = part.rows
        planned.refused += part.refused
        planned.reports += part.reports
    planned.read_rows = frozenset(part.delta.table for part in parts if part.reads)
    return planned


@dataclass
class _TypePlan:
    delta: TableDelta
    rows: TypeRows
    reads: bool
    refused: list[tuple[InputPlace, Violation]]
    reports: list[str]


def _plan_type_merge(txn: WriteTxn, tables: Tables, key: TableKey, incoming: TypeRows) -> _TypePlan:
    """An upsert: properties that are not given keep their stored value, unchanged rows are left out."""
    import pyarrow as pa

    at, definition = txn.content(key), incoming.definition
    refused: list[tuple[InputPlace, Violation]] = []
    known = match_constraint(definition) if definition.kind == "edge" else None
    reads = known is not None or not bool(incoming.minted.all())
    stored: list[pa.Table] = []
    if at is not None and known is not None and incoming.minted.any():
        found = _find_matching_edges(tables, at, known, incoming)
        stored.append(found)
        incoming = reject_repeated_ids(_take_stored_ids(incoming, known, found), refused)
    if at is not None and not incoming.minted.all():
        explicit = without_ids(incoming.rows, [i for part in stored for i in texts(part, "id")])
        minted = _filter_rows(incoming.rows, incoming.minted)
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
    return _TypePlan(delta, incoming, reads, refused, unmatched_rows_notes(definition, int(incoming.minted.sum())))


def _find_matching_edges(tables: Tables, at: Any, known: Unique, incoming: TypeRows) -> "pa.Table":
    """Stored edges that agree with edges without id in the values of the match constraint."""
    values = [values for _, values in unique_values(known, _filter_rows(incoming.rows, incoming.minted))]
    if not values:
        return incoming.rows.schema.empty_table()
    by_column = zip(known.columns, zip(*values, strict=True), strict=True)
    columns = {name: list(dict.fromkeys(column)) for name, column in by_column}
    schema = incoming.rows.schema  # rows in manifests may be older than some of its columns
    rows = tables.find_rows(at, schema.names, columns, schema=schema)
    wanted = set(values)
    return _by_ids(rows, [entity for entity, found in unique_values(known, rows) if found in wanted])


def _take_stored_ids(incoming: TypeRows, known: Unique, stored: "pa.Table") -> TypeRows:
    """Give edges without id the id of the stored edge with the same values of the match constraint."""
    import numpy as np
    import pyarrow as pa

    there = {values: entity for entity, values in unique_values(known, stored)}
    wanted = dict(unique_values(known, incoming.rows))
    ids = texts(incoming.rows, "id")
    known_as = [there.get(wanted.get(i, ())) if mint else None for i, mint in zip(ids, incoming.minted, strict=True)]
    minted = incoming.minted & np.array([entity is None for entity in known_as], np.bool_)
    final = [own if other is None else other for own, other in zip(ids, known_as, strict=True)]
    return incoming.with_ids(pa.array(final, pa.string()), minted)


def unchanged_type_note(key: TableKey, seen: int) -> str:
    """The note of an overwrite about a type whose rows were all rejected."""
    return f"{key.partition(':')[2]} was left unchanged: all of its {seen} rows were rejected."


def unmatched_rows_notes(definition: TypeDef, count: int) -> list[str]:
    """A note about rows without id: loading the same input again would add them again."""
    if not count or (definition.kind == "edge" and match_constraint(definition) is not None):
        return []
    remedy = "@unique(src, dst)" if definition.kind == "edge" else "@key"
    what = "edges" if definition.kind == "edge" else "nodes"
    return [f"{count} {definition.name} {what} without id are new: with {remedy} they would be matched."]


def _filter_rows(rows: "pa.Table", mask: Any) -> "pa.Table":
    import pyarrow as pa

    return rows.filter(pa.array(mask))


def _by_ids(rows: "pa.Table", ids: Sequence[str]) -> "pa.Table":
    from omnigraph.storage.table.overlay import with_ids

    return with_ids(rows, ids)
