"""Tables of a side with the narrower schema, made to fit the merged one.

Empty columns are added without touching a data file. Only where rows get values that they never had, a default or a
wider type, are new columns written, as `schema apply` does it.
"""

from dataclasses import replace

from omnigraph.diff.graph_state import TypeState
from omnigraph.manifest.commit.plan import Adopted
from omnigraph.runtime import IdSource
from omnigraph.schema.definitions import TypeDef
from omnigraph.schema.evolve.migration import column_fills
from omnigraph.storage.table.tables import StagedVersion, Tables, TableVersion
from omnigraph.write.delta import TableDelta
from omnigraph.write.migrate.reshape import fitted


def fits(state: TypeState, wanted: TypeDef) -> bool:
    """Whether the table can stay as it is, told from the definitions alone."""
    return state.definition == wanted or not column_fills(state.definition, wanted)


def align_table(tables: Tables, ids: IdSource, state: TypeState, wanted: TypeDef, schema: str) -> Adopted:
    """The state's table with the columns of the wanted definition, which is the schema's; one that fits keeps its tail.

    It also keeps the name of the schema that its columns were made for: only what is widened here is made for another.
    """
    ref = state.ref
    assert ref is not None, "a type without a table has nothing to conform"
    if fits(state, wanted):
        return Adopted(ref)
    made = fitted(tables, _resolve(tables, ids, state), state.definition, wanted)
    files = tables.new_files(ref.stored, made.at)
    return Adopted(replace(ref, stored=made.at, tail=(), columns=schema), made.says_more, files)


def align_table_with_delta(
    tables: Tables, ids: IdSource, state: TypeState, wanted: TypeDef, schema: str, delta: TableDelta
) -> Adopted:
    """The same with a delta applied on top, which is in the wanted columns already."""
    if delta.is_empty:
        return align_table(tables, ids, state, wanted, schema)
    assert state.ref is not None, "a type without a table has nothing to conform"
    at = fitted(tables, _resolve(tables, ids, state), state.definition, wanted).at
    staged: StagedVersion | None = None
    if delta.removed:
        staged = tables.delete(at, delta.removed)
    if delta.rows.num_rows:
        staged = tables.upsert(at if staged is None else staged.at, delta.rows)
    assert staged is not None
    files = tables.new_files(state.ref.stored, staged.at)
    ref = replace(state.ref, stored=staged.at, tail=(), rows=staged.rows, columns=schema)
    return Adopted(ref, converted=True, files=files)


def _resolve(tables: Tables, ids: IdSource, state: TypeState) -> TableVersion:
    """A stored version with all rows, to which columns can be added."""
    from omnigraph.schema.arrow import arrow_schema

    assert state.content is not None
    return tables.fold_tail(state.content, ids.short_id(), arrow_schema(state.definition)).at
