"""Whether the tables of a manifest have all columns of its schema (`rebase`).

A table's entry names the schema that the columns of its stored version were made for, so that takes two catalogs and
no table. Ordinary commits compare nothing: what they stage is made for the manifest's schema, and the rest was whole
before. Columns are compared by the id of their type and their own name in the table, never by the property's name: a
property that was dropped and added again has another column, and no column of a type is ever used for another property.
The id of a property does not identify its column, because a merge may have to number a property again.
"""

from collections.abc import Callable, Mapping

from omnigraph.manifest.commit.plan import DataChange
from omnigraph.manifest.model.manifest import Manifest, TableKey, TableRef
from omnigraph.schema.catalog import Schema
from omnigraph.schema.definitions import TypeDef

ReadSchema = Callable[[str], Schema]


class TablesLackColumns(Exception):
    """A manifest was composed that must not be put: the physical part of these tables has to be derived again."""

    def __init__(self, missing: Mapping[TableKey, str]) -> None:
        super().__init__(missing)
        self.missing = missing  # by table, the name of a property that has no column


def missing_columns(base: Manifest, after: Manifest, change: DataChange, read: ReadSchema) -> dict[TableKey, str]:
    """The tables of `after` that lack a column of its schema, each with a property that has none.

    `after` is composed of `base`, which lacks nothing, and `change`.
    """
    found: dict[TableKey, str] = {}
    origins = change.origins
    if after.schema != base.schema:
        keys = list(after.tables)
    else:
        keys = [*change.staged, *(change.merged.adopted if change.merged is not None else ())]
    for key in keys:
        ref = after.tables.get(key)
        if ref is None or ref.columns in (None, after.schema):
            continue
        before = base.tables.get(origins.get(key, key))
        missing = _missing(key, ref, before, base, after, read)
        if missing is not None:
            found[key] = missing
    return found


def _missing(
    key: TableKey, ref: TableRef, before: TableRef | None, base: Manifest, after: Manifest, read: ReadSchema
) -> str | None:
    wanted = read(after.schema).catalog.by_key.get(key)
    if wanted is None or ref.columns is None:
        return None
    if before is not None and before.stored == ref.stored and lacking_property(read(base.schema), wanted) is None:
        return None  # it was whole in the base: nothing that came with the new schema is missing
    return lacking_property(read(ref.columns), wanted)


def lacking_property(made_for: Schema, wanted: TypeDef) -> str | None:
    """The name of a property of `wanted` that has no column in a table made for that schema; None if all have one."""
    known = made_for.catalog.by_id.get((wanted.kind, wanted.id))
    columns = {prop.column for prop in known.properties} if known is not None else set()
    return next((prop.name for prop in wanted.properties if prop.column not in columns), None)
