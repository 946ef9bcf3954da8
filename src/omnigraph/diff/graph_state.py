"""States that merges and diffs compare: for each type its definition, and a stored table with rows on top.

Types are identified by id, not by name, so that a renamed type is still compared with itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from omnigraph.manifest.commit.conflicts import may_have_removed
from omnigraph.manifest.model.manifest import Ancestry, CommitId, Manifest, TableRef
from omnigraph.schema.catalog import Schema
from omnigraph.schema.definitions import Kind, TypeDef
from omnigraph.storage.table.overlay import Overlay
from omnigraph.storage.table.table_content import TableContent, make_content
from omnigraph.storage.table.tables import Tables

TypeId: TypeAlias = tuple[Kind, str]


@dataclass(frozen=True, slots=True, eq=False)
class TypeState:
    """The rows of one type in one state, and its definition there.

    A `virtual` state combines several merge bases and belongs to no commit; its `overlay` is on top of the table.
    """

    definition: TypeDef
    ref: TableRef | None
    overlay: Overlay = Overlay.EMPTY
    virtual: bool = False

    @property
    def content(self) -> TableContent | None:
        """The content of the table, without the overlay."""
        return None if self.ref is None else make_content(self.ref.stored, self.ref.tail)

    @property
    def changed_at(self) -> CommitId | None:
        return None if self.ref is None else self.ref.changed_at


@dataclass(frozen=True, slots=True, eq=False)
class GraphState:
    """A state of the whole graph and its position in history."""

    schema: Schema
    ancestry: Ancestry
    types: Mapping[TypeId, TypeState] = field(default_factory=dict)

    def of(self, type_id: TypeId) -> TypeState | None:
        return self.types.get(type_id)


def state_of(manifest: Manifest, schema: Schema) -> GraphState:
    types = {
        type_id_of(definition): TypeState(definition, manifest.tables.get(definition.table_key))
        for definition in schema.catalog.types
    }
    return GraphState(schema, manifest.ancestry, types)


def type_id_of(definition: TypeDef) -> TypeId:
    return definition.kind, definition.id


def same_content(one: TypeState | None, other: TypeState | None) -> bool:
    """By `changed-at` alone: tables with equal rows may count as different, but never the reverse."""
    if one is None or other is None:
        return _ref(one) is None and _ref(other) is None
    if one.virtual or other.virtual:
        return one is other
    return one.changed_at == other.changed_at


def without_tail(tables: Tables, state: TypeState | None) -> TypeState | None:
    """The same rows without a tail, for a task on another machine, which does not read manifests."""
    if state is None or state.ref is None or not state.ref.tail:
        return state
    _, own = tables.resolve(state.content)
    return replace(state, ref=replace(state.ref, tail=()), overlay=own.compose(state.overlay))


def may_have_lost_rows(before: TypeState | None, after: TypeState | None) -> bool:
    """Whether rows may have been removed in between, without reading them."""
    if before is not None and before.virtual and not same_content(before, after):
        return True
    return may_have_removed(_ref(before), _ref(after))


def _ref(state: TypeState | None) -> TableRef | None:
    return None if state is None else state.ref
