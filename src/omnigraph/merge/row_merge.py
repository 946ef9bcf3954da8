"""Three-way merge of rows: the only place that decides what becomes of a row which two sides may have changed.

It is a pure function over whole columns. Merges in this process, merges on Spark, the combination of several merge
bases and reverts all use it. Each side's row is compared, by id, with the row of the base. What only one side changed
is taken, property by property; where both changed a property to different values, they conflict. Equal results are no
conflict, however they came about: a row that was deleted and inserted again counts as updated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from omnigraph.diff.entity_changes import row_numbers
from omnigraph.errors import MergeConflict
from omnigraph.manifest.model.manifest import TableKey
from omnigraph.query.values import format_value
from omnigraph.schema.definitions import ID, TypeDef
from omnigraph.storage.table.diff.equality import equal_values
from omnigraph.write.delta import TableDelta

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Mask: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]
    from omnigraph.diff.entity_changes import RowNumbers


DIVERGENT_INSERT, DIVERGENT_UPDATE, DELETE_VS_UPDATE = "DivergentInsert", "DivergentUpdate", "DeleteVsUpdate"
PROPERTIES_SHOWN_MAX = 3


@dataclass(frozen=True, slots=True, eq=False)
class MergedRows:
    """What a merge does to our rows: those to write, those to remove, and the conflicts."""

    rows: "pa.Table"
    removed: tuple[str, ...]
    before: "pa.Table"  # our images of the rows that are overwritten or removed
    conflicts: tuple[MergeConflict, ...] = ()

    def delta(self, key: TableKey) -> TableDelta:
        return TableDelta(key, self.rows, frozenset(self.removed), self.before)


@dataclass(frozen=True, slots=True, eq=False)
class _Sides:
    """The three images of the same ids; row number -1 stands for a side without that row."""

    base: "pa.Table"
    ours: "pa.Table"
    theirs: "pa.Table"
    base_at: "RowNumbers"
    ours_at: "RowNumbers"
    theirs_at: "RowNumbers"

    def equal(self, column: str, one: "tuple[pa.Table, RowNumbers]", other: "tuple[pa.Table, RowNumbers]") -> "Mask":
        """Where both sides have the row with the same value."""
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
    """Merge three tables with the same columns, in each of which an id occurs at most once.

    A row that a side left unchanged may be missing from both `base` and that side only if all three lack it.
    """
    import numpy as np
    import pyarrow as pa

    ids = _all_ids(base, ours, theirs)
    sides = _Sides(base, ours, theirs, *(row_numbers(ids, rows) for rows in (base, ours, theirs)))
    has_b, has_o, has_t = sides.base_at >= 0, sides.ours_at >= 0, sides.theirs_at >= 0
    columns = [
        _ColumnComparison(name, sides.base_ours(name), sides.base_theirs(name), sides.ours_theirs(name))
        for name in theirs.column_names
        if name != ID
    ]
    vector_sources = _vector_sources(definition, {column.name: column for column in columns})
    ours_unchanged = _all([column.ours_unchanged for column in columns], has_b & has_o)
    theirs_unchanged = _all([column.theirs_unchanged for column in columns], has_b & has_t)
    sides_equal = _all([column.sides_equal for column in columns], has_o & has_t)
    in_all = has_b & has_o & has_t
    conflicting = {column.name: in_all & column.conflicting for column in columns}
    for name, (from_ours, from_theirs) in vector_sources.items():
        conflicting[name] &= ~(from_ours | from_theirs)
    divergent_update = ~_all([~mask for mask in conflicting.values()], np.ones(len(ids), bool))

    inserted = ~has_b & ~has_o & has_t
    divergent_insert = ~has_b & has_o & has_t & ~sides_equal
    removed = has_b & has_o & ~has_t & ours_unchanged
    delete_vs_update = (has_b & has_o & ~has_t & ~ours_unchanged) | (has_b & ~has_o & has_t & ~theirs_unchanged)
    updated = in_all & ~theirs_unchanged & ~sides_equal & ~divergent_update

    rows = _combine(sides, columns, vector_sources, inserted, updated)
    changed = _really_updated(sides, rows, np.flatnonzero(updated), int(inserted.sum()))
    deleted = np.flatnonzero(removed)
    before = ours.take(np.concatenate([sides.ours_at[changed], sides.ours_at[deleted]]))
    rows = rows.filter(pa.array(_written_mask(np.flatnonzero(updated), changed, int(inserted.sum()))))
    different = {column.name: ~column.sides_equal for column in columns}
    conflicts = [
        *_divergence_conflicts(DIVERGENT_INSERT, np.flatnonzero(divergent_insert), sides, different, definition, ids),
        *_divergence_conflicts(DIVERGENT_UPDATE, np.flatnonzero(divergent_update), sides, conflicting, definition, ids),
        *_deletion_conflicts(np.flatnonzero(delete_vs_update), sides, definition, ids),
    ]
    conflicts.sort(key=lambda conflict: conflict.entity_id)
    return MergedRows(rows, tuple(ids.take(pa.array(deleted)).to_pylist()), before, tuple(conflicts))


def _all_ids(*tables: "pa.Table") -> Any:
    import pyarrow as pa

    return pa.chunked_array([chunk for rows in tables for chunk in rows.column(ID).chunks], pa.string()).unique()


def _all(masks: "Sequence[Mask]", where: "Mask") -> "Mask":
    """Where all masks are true; for a type without columns besides the id, `where`."""
    same = where.copy()
    for mask in masks:
        same &= mask
    return same


def _vector_sources(definition: TypeDef, columns: "dict[str, _ColumnComparison]") -> "dict[str, tuple[Mask, Mask]]":
    """A vector that is computed from a text is taken from the same side as the text, or searches would find it wrongly.

    For each such vector, the rows where exactly one side changed the text: (ours, theirs). In other rows it is merged
    like any property.
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
    vector_sources: "dict[str, tuple[Mask, Mask]]",
    inserted: "Mask",
    updated: "Mask",
) -> "pa.Table":
    """Updated rows, combined property by property, then the rows that only the other side inserted."""
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
        if field.name in vector_sources:
            from_ours, from_theirs = (mask[both] for mask in vector_sources[field.name])
            takes_theirs = (takes_theirs & ~from_ours) | from_theirs
        numbers = np.concatenate([np.where(takes_theirs, count + sides.theirs_at[both], sides.ours_at[both]), new])
        values = pa.chunked_array(
            [*sides.ours.column(field.name).chunks, *sides.theirs.column(field.name).chunks], field.type
        )
        arrays.append(values.take(pa.array(numbers)))
    return pa.table(arrays, schema=sides.theirs.schema)


def _really_updated(sides: _Sides, rows: "pa.Table", updated: "RowNumbers", inserted: int) -> "RowNumbers":
    """The updated rows that differ from ours: rows that are equal to ours need not be written."""
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
    kind: str, numbers: "RowNumbers", sides: _Sides, different: "Mapping[str, Mask]", definition: TypeDef, ids: Any
) -> list[MergeConflict]:
    """Rows that both sides have with different values, with the properties that differ (`different`, by column)."""
    names = {definition.column(name): name for name in (*definition.physical_columns, *definition.by_name)}
    verb = "inserted it with a different" if kind == DIVERGENT_INSERT else "changed its"
    conflicts = []
    for number in numbers.tolist():
        differing = [name for name, mask in different.items() if mask[number]]
        described = [
            f"{names[name]} ({' and '.join(_values(sides, name, number))})" for name in differing[:PROPERTIES_SHOWN_MAX]
        ]
        more = f" and {len(differing) - len(described)} more" if len(differing) > len(described) else ""
        message = f"both sides {verb} {', '.join(described)}{more}"
        conflicts.append(_conflict(definition, str(ids[number].as_py()), kind, message))
    return conflicts


def _deletion_conflicts(numbers: "RowNumbers", sides: _Sides, definition: TypeDef, ids: Any) -> list[MergeConflict]:
    conflicts = []
    for number in numbers.tolist():
        message = (
            "the branch that is merged deleted it and the other one changed it"
            if sides.ours_at[number] >= 0
            else "the branch that is merged changed it and the other one deleted it"
        )
        conflicts.append(_conflict(definition, str(ids[number].as_py()), DELETE_VS_UPDATE, message))
    return conflicts


def _conflict(definition: TypeDef, entity: str, kind: str, message: str) -> MergeConflict:
    return MergeConflict(definition.kind, definition.name, entity, kind, f"{definition.name} {entity!r}: {message}")


def _values(sides: _Sides, column: str, number: int) -> list[str]:
    both = ((sides.ours, sides.ours_at[number]), (sides.theirs, sides.theirs_at[number]))
    return [format_value(rows.column(column)[int(at)].as_py()) for rows, at in both]
