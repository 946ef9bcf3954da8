"""Tables of a side with the narrower schema, made to fit the merged one.

Empty columns are added without touching a data file. Only where rows get values that they never had, a default or a
wider type, are new columns written, as `schema apply` does it.
"""

from dataclasses import replace

from omnigraph.branch.states import TypeState
from omnigraph.manifest.model import TableRef
from omnigraph.manifest.plan import Adopted
from omnigraph.schema.definitions import TypeDef
from omnigraph.schema.migration import fillings
from omnigraph.storage.tables import Staged, Tables, TableVersion
from omnigraph.write.delta import TableDelta
from omnigraph.write.reshape import fitted


def fits(state: TypeState, wanted: TypeDef) -> bool:
    """Whether the table can stay as it is, told from the definitions alone."""
    return state.definition == wanted or not fillings(state.definition, wanted)


def conformed(tables: Tables, state: TypeState, wanted: TypeDef) -> Adopted:
    """The state's table with the columns of the wanted definition."""
    ref = state.ref
    assert ref is not None, "a type without a table has nothing to conform"
    if fits(state, wanted):
        return Adopted(ref)
    made = fitted(tables, TableVersion(ref.table_id, ref.table_version), state.definition, wanted)
    moved = replace(ref, table_id=made.at.table_id, table_version=made.at.table_version)
    return Adopted(moved, made.says_more)


def conformed_with(tables: Tables, state: TypeState, wanted: TypeDef, delta: TableDelta) -> Adopted:
    """The same with a delta applied on top, which is in the wanted columns already."""
    adopted = conformed(tables, state, wanted)
    at = TableVersion(adopted.ref.table_id, adopted.ref.table_version)
    staged = tables.delete(at, delta.removed) if delta.removed else None
    at = at if staged is None else staged.at
    staged = tables.upsert(at, delta.rows) if delta.rows.num_rows else staged
    return adopted if staged is None else Adopted(_moved(adopted.ref, staged), converted=True)


def _moved(ref: TableRef, staged: Staged) -> TableRef:
    return replace(ref, table_id=staged.at.table_id, table_version=staged.at.table_version, rows=staged.rows)
