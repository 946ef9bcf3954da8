"""The merge base of two heads as a state; after a criss-cross merge, a virtual one that exists in memory only.

`manifest/branch/merge_base.py` finds the positions. After two branches were merged into each other there are several,
and none of them alone is what both sides started from. They are merged first, in a fixed order, as in a recursive
merge. Where the bases conflict with each other, their own base counts: either the sides agree by now, or the conflict
is real.
"""

from collections.abc import Iterable

from omnigraph.diff.graph_state import GraphState, TypeState, same_content, state_of, type_id_of
from omnigraph.errors import SchemasDiverged
from omnigraph.manifest.branch.merge_base import find_bases
from omnigraph.manifest.model.ancestry import all_ancestors
from omnigraph.manifest.model.manifest import Manifest
from omnigraph.manifest.repository import Repository
from omnigraph.merge.table_merge import ContestedTable, merge_changes, read_changes
from omnigraph.schema.catalog import Schema
from omnigraph.schema.evolve.schema_merge import merge_schemas
from omnigraph.storage.table.overlay import Overlay, with_ids
from omnigraph.storage.table.tables import Tables


def find_base_state(repository: Repository, ours: Manifest, theirs: Manifest) -> GraphState:
    """The common base of two confirmed heads: the state of a commit, or a virtual one."""
    manifests = repository.manifests
    heads = (ours.branch_id, theirs.branch_id)

    def load(manifest: Manifest) -> GraphState:
        return state_of(manifest, repository.schemas.read(manifest.schema))

    def base_of(one: GraphState, other: GraphState) -> GraphState:
        return combine(load(base) for base in find_bases(manifests, one.ancestry, other.ancestry, heads))

    def combine(bases: Iterable[GraphState]) -> GraphState:
        whole, *others = bases
        for another in others:
            whole = _merge_states(repository.tables, base_of(whole, another), whole, another)
        return whole

    return combine(load(base) for base in find_bases(manifests, ours.ancestry, theirs.ancestry, heads))


def _merge_states(tables: Tables, base: GraphState, one: GraphState, other: GraphState) -> GraphState:
    schema = _merge_schemas(base.schema, one.schema, other.schema)
    types = {}
    for definition in schema.catalog.types:
        type_id = type_id_of(definition)
        was, left, right = base.of(type_id), one.of(type_id), other.of(type_id)
        if right is None or same_content(was, right) or same_content(left, right):
            types[type_id] = left or right
        elif left is None or same_content(was, left):
            types[type_id] = right
        else:
            types[type_id] = _merge_contested(tables, ContestedTable(definition, was, left, right))
    known = {type_id: state for type_id, state in types.items() if state is not None}
    return GraphState(schema, all_ancestors(one.ancestry, other.ancestry), known)


def _merge_contested(tables: Tables, table: ContestedTable) -> TypeState:
    """The left table with the changes of the right one on top; conflicting rows are as in their base."""
    wanted = table.wanted
    left = read_changes(tables, table.base, table.ours, wanted)
    right = read_changes(tables, table.base, table.theirs, wanted)
    merged = merge_changes(left, right, wanted)
    conflicting = [conflict.entity_id for conflict in merged.conflicts]
    overlay = table.ours.overlay.compose(Overlay.of(merged.rows, merged.removed))
    overlay = overlay.compose(Overlay.of(with_ids(right.before, conflicting), conflicting))
    return TypeState(table.ours.definition, table.ours.ref, overlay, virtual=True)


def _merge_schemas(base: Schema, one: Schema, other: Schema) -> Schema:
    try:
        return merge_schemas(base, one, other)
    except SchemasDiverged:
        return base  # the sides have to agree on a schema, or the merge is refused
