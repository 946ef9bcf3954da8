"""What becomes of a row that two sides may have changed: the one place where that is decided.

Pure, and whole columns at a time: a merge in this process, one on Spark and that of several bases into one all come
through here. A row is compared by its id with what it was in the base. What one side alone changed is taken, property
by property; where both changed the same thing to different values, they disagree. What ends up equal is no conflict,
whatever way it went: a row that was deleted and inserted again is an updated one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from omnigraph.errors import MergeConflict
from omnigraph.query.values import format_value
from omnigraph.schema.definitions import ID, TypeDef
from omnigraph.storage.table.diff.equality import equal_values

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Mask: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]
    RowNumbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

DIVERGENT_INSERT, DIVERGENT_UPDATE, DELETE_VS_UPDATE = "DivergentInsert", "DivergentUpdate", "DeleteVsUpdate"
PROPERTIES_SHOWN_MAX = 3


@dataclass(frozen=True, slots=True, eq=False)
class MergedRows:
    """What a merge does to our rows: those to write, those to remove, and those it can't decide about."""

    rows: "pa.Table"
    removed: tuple[str, ...]
    before: "pa.Table"  # our images of the rows that are written over or removed
    conflicts: tuple[MergeConflict, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class _Sides:
    """The three images of the same ids side by side; a place of -1 is a side without that row."""

    base: "pa.Table"
    ours: "pa.Table"
    theirs: "pa.Table"
    base_at: "RowNumbers"
    ours_at: "RowNumbers"
    theirs_at: "RowNumbers"

    def equal(self, column: str, one: "tuple[pa.Table, RowNumbers]", other: "tuple[pa.Table, RowNumbers]") -> "Mask":
        """Where both sides have the row, and the same value in it."""
        import numpy as np

        (left, at_left), (right, at_right) = one, other
        both = np.flatnonzero((at_left >= 0) & (at_right >= 0))
        same = np.zeros(len(self.base_at), bool)
        values = (
            left.column(column).take(at_left[both]),
            right.column(column).take(at_right[both]),
        )
        same[both] = equal_values(*values)
        return same

    def base_ours(self, column: str) -> "Mask":
        return self.equal(column, (self.base, self.base_at), (self.ours, self.ours_at))

    def base_theirs(self, column: str) -> "Mask":
        return self.equal(column, (self.base, self.base_at), (self.theirs, self.theirs_at))

    def ours_theirs(self, column: str) -> "Mask":
        return self.equal(column, (self.ours, self.ours_at), (self.theirs, self.theirs_at))


@dataclass(frozen=True, slots=True, eq=False)
class _ColumnComparison:
    name: str
    ours_unchanged: "Mask"  # as in the base
    theirs_unchanged: "Mask"
    sides_equal: "Mask"

    @property
    def conflicting(self) -> "Mask":
        return ~(self.ours_unchanged | self.theirs_unchanged | self.sides_equal)


def merge_rows(base: "pa.Table", ours: "pa.Table", theirs: "pa.Table", definition: TypeDef) -> MergedRows:
    """Decide about all ids of the three tables, which have the same columns; an id is at most once in each.

    A row that a side left as it was may be missing from `base` and from that side alike only if all three lack it.
    """
    import numpy as np
    import pyarrow as pa

    ids = _all_ids(base, ours, theirs)
    sides = _Sides(base, ours, theirs, *(_row_numbers(ids, rows) for rows in (base, ours, theirs)))
    has_b, has_o, has_t = sides.base_at >= 0, sides.ours_at >= 0, sides.theirs_at >= 0
    columns = [_compare_column(sides, name) for name in theirs.column_names if name != ID]
    following = _vector_sources(definition, {column.name: column for column in columns})
    ours_kept = _all([column.ours_unchanged for column in columns], has_b & has_o)
    theirs_kept = _all([column.theirs_unchanged for column in columns], has_b & has_t)
    agree = _all([column.sides_equal for column in columns], has_o & has_t)
    everywhere = has_b & has_o & has_t
    disputes = {column.name: everywhere & column.conflicting for column in columns}
    for name, (ours_leads, theirs_leads) in following.items():
        disputes[name] &= ~(ours_leads | theirs_leads)
    disputed = ~_all([~mask for mask in disputes.values()], np.ones(len(ids), bool))

    inserted = ~has_b & ~has_o & has_t
    divergent_insert = ~has_b & has_o & has_t & ~agree
    removed = has_b & has_o & ~has_t & ours_kept
    delete_vs_update = (has_b & has_o & ~has_t & ~ours_kept) | (has_b & ~has_o & has_t & ~theirs_kept)
    updated = everywhere & ~theirs_kept & ~agree & ~disputed

    rows = _combine(sides, columns, following, inserted, updated)
    changed = _really_updated(sides, rows, np.flatnonzero(updated), int(inserted.sum()))
    gone = np.flatnonzero(removed)
    before = ours.take(np.concatenate([sides.ours_at[changed], sides.ours_at[gone]]))
    rows = rows.filter(pa.array(_written_mask(np.flatnonzero(updated), changed, int(inserted.sum()))))
    unlike = {column.name: ~column.sides_equal for column in columns}
    conflicts = [
        *_divergence_conflicts(DIVERGENT_INSERT, np.flatnonzero(divergent_insert), sides, unlike, definition, ids),
        *_divergence_conflicts(DIVERGENT_UPDATE, np.flatnonzero(disputed), sides, disputes, definition, ids),
        *_deletion_conflicts(np.flatnonzero(delete_vs_update), sides, definition, ids),
    ]
    conflicts.sort(key=lambda conflict: conflict.entity_id)
    return MergedRows(rows, tuple(ids.take(pa.array(gone)).to_pylist()), before, tuple(conflicts))


def _all_ids(*tables: "pa.Table") -> Any:
    import pyarrow as pa

    return pa.chunked_array([chunk for rows in tables for chunk in rows.column(ID).chunks], pa.string()).unique()


def _row_numbers(ids: Any, rows: "pa.Table") -> "RowNumbers":
    import numpy as np
    import pyarrow.compute as pc

    found = pc.fill_null(pc.index_in(ids, value_set=rows.column(ID).combine_chunks()), -1)
    return np.asarray(found).astype(np.int64)


def _compare_column(sides: _Sides, name: str) -> _ColumnComparison:
    return _ColumnComparison(name, sides.base_ours(name), sides.base_theirs(name), sides.ours_theirs(name))


def _all(masks: "Sequence[Mask]", where: "Mask") -> "Mask":
    """Where all are true; of a type without columns besides the id, `where` both sides have the row."""
    same = where.copy()
    for mask in masks:
        same &= mask
    return same


def _vector_sources(definition: TypeDef, columns: "dict[str, _ColumnComparison]") -> "dict[str, tuple[Mask, Mask]]":
    """Vectors that are made from a text go with it: a vector of the one text beside the other would be found wrongly.

    For each, where exactly one side changed the text: (ours did, theirs did). Elsewhere it is a property like others.
    """
    found = {}
    for prop in definition.properties:
        if prop.embed is not None:
            text = columns[definition.column(prop.embed.source)]
            found[prop.column] = (
                ~text.ours_unchanged & text.theirs_unchanged,
                text.ours_unchanged & ~text.theirs_unchanged,
            )
    return found


def _combine(
    sides: _Sides,
    columns: Sequence[_ColumnComparison],
    following: "dict[str, tuple[Mask, Mask]]",
    inserted: "Mask",
    updated: "Mask",
) -> "pa.Table":
    """Updated rows, put together property by property, then those that only they inserted."""
    import numpy as np
    import pyarrow as pa

    count = sides.ours.num_rows
    both = np.flatnonzero(updated)
    new = count + sides.theirs_at[np.flatnonzero(inserted)]
    arrays = []
    by_name = {column.name: column for column in columns}
    for field in sides.theirs.schema:
        takes_theirs = np.zeros(len(both), bool)
        if field.name != ID:
            takes_theirs = ~by_name[field.name].theirs_unchanged[both]
        if field.name in following:
            ours_leads, theirs_leads = (mask[both] for mask in following[field.name])
            takes_theirs = (takes_theirs & ~ours_leads) | theirs_leads
        places = np.concatenate([np.where(takes_theirs, count + sides.theirs_at[both], sides.ours_at[both]), new])
        values = pa.chunked_array(
            [*sides.ours.column(field.name).chunks, *sides.theirs.column(field.name).chunks], field.type
        )
        arrays.append(values.take(pa.array(places)))
    return pa.table(arrays, schema=sides.theirs.schema)


def _really_updated(sides: _Sides, rows: "pa.Table", updated: "RowNumbers", inserted: int) -> "RowNumbers":
    """Of the updated rows those that are another than ours: what only repeats it need not be written."""
    import numpy as np

    same = np.ones(len(updated), bool)
    was = sides.ours.take(sides.ours_at[updated])
    for name in rows.column_names:
        same &= equal_values(rows.column(name).slice(0, rows.num_rows - inserted), was.column(name))
    return updated[~same]


def _written_mask(updated: "RowNumbers", changed: "RowNumbers", inserted: int) -> "Mask":
    import numpy as np

    return np.concatenate([np.isin(updated, changed), np.ones(inserted, bool)])


def _divergence_conflicts(
    kind: str, places: "RowNumbers", sides: _Sides, blamed: "Mapping[str, Mask]", definition: TypeDef, ids: Any
) -> list[MergeConflict]:
    """Rows that both sides have with different values, with the properties that are to blame."""
    names = {definition.column(name): name for name in (*definition.physical_columns, *definition.by_name)}
    verb = "inserted it with a different" if kind == DIVERGENT_INSERT else "changed its"
    found = []
    for place in places.tolist():
        unlike = [name for name, mask in blamed.items() if mask[place]]
        told = [
            f"{names[name]} ({' and '.join(_values(sides, name, place))})" for name in unlike[:PROPERTIES_SHOWN_MAX]
        ]
        more = f" and {len(unlike) - len(told)} more" if len(unlike) > len(told) else ""
        message = f"both sides {verb} {', '.join(told)}{more}"
        found.append(_conflict(definition, str(ids[place].as_py()), kind, message))
    return found


def _deletion_conflicts(places: "RowNumbers", sides: _Sides, definition: TypeDef, ids: Any) -> list[MergeConflict]:
    found = []
    for place in places.tolist():
        message = (
            "the branch that is merged deleted it and the other one changed it"
            if sides.ours_at[place] >= 0
            else "the branch that is merged changed it and the other one deleted it"
        )
        found.append(_conflict(definition, str(ids[place].as_py()), DELETE_VS_UPDATE, message))
    return found


def _conflict(definition: TypeDef, entity: str, kind: str, message: str) -> MergeConflict:
    return MergeConflict(definition.kind, definition.name, entity, kind, f"{definition.name} {entity!r}: {message}")


def _values(sides: _Sides, column: str, place: int) -> list[str]:
    found = ((sides.ours, sides.ours_at[place]), (sides.theirs, sides.theirs_at[place]))
    return [format_value(rows.column(column)[int(at)].as_py()) for rows, at in found]
