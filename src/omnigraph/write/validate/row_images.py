"""Row images: the rows of one table before and after a write, compared and merged column by column."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from omnigraph.schema.catalog import TypeDef
from omnigraph.storage.table.overlay import with_ids
from omnigraph.write.delta import texts

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Mask = np.ndarray[Any, np.dtype[np.bool_]]

RowImage: TypeAlias = dict[str, Any]  # by column


def stale_vectors(definition: TypeDef, given: Iterable[str]) -> list[tuple[str, str]]:
    """Columns (source, vector) of embeddings whose source text is given, but not the vector itself.

    No write calls an embedding provider: a vector whose text changes is null until `embed` fills it.
    """
    named = frozenset(given)
    return [
        (definition.column(prop.embed.source), prop.column)
        for prop in definition.properties
        if prop.embed is not None and prop.embed.source in named and prop.name not in named
    ]


def drop_unchanged(rows: "pa.Table", before: "pa.Table | None") -> "pa.Table":
    """The changed rows, then the new ones; rows that are exactly as they were before are left out."""
    import pyarrow as pa

    if before is None or not before.num_rows or not rows.num_rows:
        return rows
    there, same = compare_rows(rows, before)
    return pa.concat_tables([rows.filter(pa.array(there & ~same)), rows.filter(pa.array(~there))])


def compare_rows(rows: "pa.Table", before: "pa.Table") -> "tuple[Mask, Mask]":
    """Masks of the rows whose ids existed before, and of those among them that are exactly as they were."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    place = positions_in(rows, before)
    there = place >= 0
    old, was = rows.filter(pa.array(there)), before.take(place[there])
    same: Any = pa.array(np.ones(old.num_rows, np.bool_))
    for name in old.column_names:
        same = pc.and_(same, equal_values(old.column(name), was.column(name)))
    unchanged = np.zeros(rows.num_rows, np.bool_)
    unchanged[there] = np.asarray(same.to_numpy(zero_copy_only=False), np.bool_) if old.num_rows else same
    return there, unchanged


def positions_in(rows: "pa.Table", before: "pa.Table") -> "np.ndarray[Any, np.dtype[np.int64]]":
    """The position in `before` of the row with each row's id; -1 if there is none."""
    import numpy as np
    import pyarrow.compute as pc

    found: Any = pc.index_in(rows.column("id"), value_set=before.column("id").combine_chunks())
    place: np.ndarray[Any, np.dtype[np.int64]] = np.asarray(pc.fill_null(found, -1).to_numpy(), np.int64)
    return place


def select_affected(before: "pa.Table | None", rows: "pa.Table", removed: frozenset[str]) -> "pa.Table | None":
    """The stored rows that the write replaces or removes."""
    if before is None or not before.num_rows:
        return before
    return with_ids(before, removed.union(texts(rows, "id")))


def fill_missing(rows: "pa.Table", given: "Mapping[str, Any]", before: "pa.Table") -> "pa.Table":
    """The rows, with values that were not given taken from the stored rows of the same ids.

    `given` are masks by column.
    """
    import numpy as np
    import pyarrow as pa

    stored = positions_in(rows, before)
    own = np.arange(rows.num_rows)
    for name, mask in given.items():
        keeps = (stored >= 0) & ~mask
        if keeps.any():
            index = rows.schema.get_field_index(name)
            both = pa.chunked_array([*rows.column(index).chunks, *before.column(name).chunks], rows.column(index).type)
            taken: Any = pa.array(np.where(keeps, rows.num_rows + stored, own))
            rows = rows.set_column(index, rows.schema.field(index), both.take(taken))
    return rows


def stale_vector_mask(
    rows: "pa.Table", given: "Mapping[str, Any]", before: "pa.Table", source: str, vector: str
) -> Any:
    """A mask of rows with a given text that differs from the stored one, and without a given vector."""
    import numpy as np
    import pyarrow as pa

    place = positions_in(rows, before)
    there = place >= 0
    was = before.column(source).take(place[there])
    same: Any = equal_values(rows.column(source).filter(pa.array(there)), was)
    differs = np.zeros(rows.num_rows, np.bool_)
    differs[there] = ~np.asarray(same.to_numpy(zero_copy_only=False), np.bool_)
    return differs & given[source] & ~given[vector]


def equal_values(left: Any, right: Any) -> Any:
    """A mask of equal values, where null equals null; lists are compared as a whole."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_nested(left.type):
        pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
        return pa.array([one == other for one, other in pairs], pa.bool_())
    both_null = pc.and_(left.is_null(), right.is_null())
    return pc.or_(both_null, pc.fill_null(pc.equal(left, right), False))


def assign(rows: "pa.Table", values: Mapping[str, Any]) -> "pa.Table":
    """The rows with these columns set to one value each."""
    import pyarrow as pa

    for name, value in values.items():
        index = rows.schema.get_field_index(name)
        field = rows.schema.field(index)
        plain = list(value) if isinstance(value, tuple) else value
        rows = rows.set_column(index, field, pa.array([plain] * rows.num_rows, field.type))
    return rows


def set_null(rows: "pa.Table", column: str, where: Any) -> "pa.Table":
    """The rows with null in a column where the mask is true."""
    import numpy as np
    import pyarrow as pa

    index = rows.schema.get_field_index(column)
    flags = np.asarray(where.to_numpy(zero_copy_only=False) if hasattr(where, "to_numpy") else where, dtype=bool)
    kept: Any = pa.array(np.arange(rows.num_rows), mask=flags)
    return rows.set_column(index, rows.schema.field(index), rows.column(index).take(kept))
