"""Merging at scale: the rows of one stretch of input beside the stored rows they may replace.

The meaning is that of `write/load/load_modes.py`, by the same functions; only the stored rows are found another way,
because a task has more of them than filters can name.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from omnigraph.schema.catalog import TypeDef
from omnigraph.storage.location import Location
from omnigraph.storage.table.handles import TableVersion
from omnigraph.storage.table.write.fragments import TargetTable, find_addresses, key_batches, key_schema, rows_at
from omnigraph.write.delta import texts
from omnigraph.write.load.load_rows import match_constraint
from omnigraph.write.load.parse.parsed import ParsedRows
from omnigraph.write.validate.row_images import compare_rows, fill_missing, set_null, stale_vector_mask

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Mask = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, eq=False)
class Upserts:
    """Rows as they will be stored, in the order of the input, and how each relates to the stored ones."""

    rows: "pa.Table"
    stored: "Mask"  # an id that is there
    unchanged: "Mask"  # and the row is exactly so already
    minted: "Mask"


def merge_with_stored(location: Location, target: TargetTable, incoming: ParsedRows) -> Upserts:
    """Complete rows from the stored ones: what is not given keeps its value, an edge without id may be a stored one."""
    import numpy as np

    nothing = np.zeros(incoming.rows.num_rows, np.bool_)
    at, definition, rows = target.at, incoming.definition, incoming.rows
    if at is None or not rows.num_rows:
        return Upserts(rows, nothing, nothing, incoming.minted)
    minted = incoming.minted
    known = match_constraint(definition) if definition.kind == "edge" else None
    addresses: list[Any] = []
    if known is not None and minted.any():
        rows, minted, found = _match_edges(location, at, rows, minted, known.columns)
        addresses.append(found)
    if not minted.all():
        addresses.append(_addresses_of_ids(location, at, rows, ~minted))
    where = np.unique(np.concatenate(addresses)) if addresses else np.zeros(0, np.int64)
    if not len(where):
        return Upserts(rows, nothing, nothing, minted)
    before = rows_at(location, at, where, rows.schema.names)
    rows = _complete(definition, incoming, rows, before)
    stored, unchanged = compare_rows(rows, before)
    return Upserts(rows, stored, unchanged, minted)


def _complete(definition: TypeDef, incoming: ParsedRows, rows: "pa.Table", before: "pa.Table") -> "pa.Table":
    given = {prop.column: incoming.given_in(prop.column) for prop in definition.properties}
    if incoming.given is not None:
        rows = fill_missing(rows, given, before)
    for prop in definition.properties:
        if prop.embed is not None:
            source = definition.column(prop.embed.source)
            rows = set_null(rows, prop.column, stale_vector_mask(rows, given, before, source, prop.column))
    return rows


def _addresses_of_ids(location: Location, at: TableVersion, rows: "pa.Table", some: "Mask") -> Any:
    import pyarrow as pa

    found = find_addresses(location, at, texts(rows.filter(pa.array(some)), "id"))
    return _join_stored(location, at, rows, some, ("id",))[1] if found is None else found


def _match_edges(
    location: Location, at: TableVersion, rows: "pa.Table", minted: "Mask", columns: Sequence[str]
) -> "tuple[pa.Table, Mask, Any]":
    """Edges without an id under the id of the stored edge that agrees in these values."""
    import numpy as np
    import pyarrow as pa

    numbers, addresses = _join_stored(location, at, rows, minted, columns)
    if not len(numbers):
        return rows, minted, addresses
    ids = rows_at(location, at, addresses, ["id"]).column("id")
    place = np.arange(rows.num_rows)
    place[numbers] = rows.num_rows + np.arange(len(numbers))
    own = rows.column("id")
    index = rows.schema.get_field_index("id")
    both = pa.chunked_array([*own.chunks, *ids.chunks], own.type).take(place)
    left = minted.copy()
    left[numbers] = False
    return rows.set_column(index, rows.schema.field(index), both), left, addresses


def _join_stored(
    location: Location, at: TableVersion, rows: "pa.Table", some: "Mask", columns: Sequence[str]
) -> "tuple[Any, Any]":
    """Rows (by number) that agree with a stored row in these columns, and the addresses of those; each row once."""
    import numpy as np
    import pyarrow as pa

    from omnigraph.pipeline.bulk.verification.sql_engine import connect_duckdb
    from omnigraph.storage.table.write.fragments import ROW_ADDRESS, normalize_zeros

    aliases = {name: f"k{number}" for number, name in enumerate(columns)}
    chosen = np.flatnonzero(some)
    incoming = {alias: normalize_zeros(rows.column(name).take(chosen)) for name, alias in aliases.items()}
    stored = pa.RecordBatchReader.from_batches(key_schema(location, at, aliases), key_batches(location, at, aliases))
    agree = " AND ".join(f"i.{alias} = o.{alias}" for alias in aliases.values())
    with connect_duckdb() as connection:
        connection.register("i", pa.table({"number": chosen, **incoming}))
        connection.register("o", stored)
        found = connection.sql(
            f"SELECT i.number, max(o.{ROW_ADDRESS}) AS {ROW_ADDRESS} FROM o JOIN i ON {agree} GROUP BY i.number"
        ).to_arrow_table()
    return found.column(0).to_numpy(), found.column(1).to_numpy()
