"""The base of a criss-cross: several common ancestors, merged into a state that exists in memory only.

Both branches have been merged into each other, so they have several newest common ancestors, and none of them alone
says what both sides started from. They are merged first, in a fixed order. What the ancestors themselves disagree about
stays as it was before them: then the sides either agree about it by now, or it is a conflict that is really there.
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
    """What both sides started from: a state of some commit, or one that is made up. Both are confirmed heads."""
    manifests = repository.manifests
    heads = (ours.branch_id, theirs.branch_id)

    def load(manifest: Manifest) -> GraphState:
        return state_of(manifest, repository.schemas.read(manifest.schema))

    def between(one: GraphState, other: GraphState) -> GraphState:
        return united_state(load(base) for base in find_bases(manifests, one.ancestry, other.ancestry, heads))

    def united_state(bases: Iterable[GraphState]) -> GraphState:
        whole, *others = bases
        for another in others:
            whole = _merge_states(repository.tables, between(whole, another), whole, another)
        return whole

    return united_state(load(base) for base in find_bases(manifests, ours.ancestry, theirs.ancestry, heads))


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


def _merge_contested(tables: Tables, contest: ContestedTable) -> TypeState:
    """The left table with what the right one did on top; rows that they disagree about as they were."""
    wanted = contest.wanted
    left = read_changes(tables, contest.base, contest.ours, wanted)
    right = read_changes(tables, contest.base, contest.theirs, wanted)
    decided = merge_changes(left, right, wanted)
    disputed = [conflict.entity_id for conflict in decided.conflicts]
    overlay = contest.ours.overlay.compose(Overlay.of(decided.rows, decided.removed))
    overlay = overlay.compose(Overlay.of(with_ids(right.before, disputed), disputed))
    return TypeState(contest.ours.definition, contest.ours.ref, overlay, virtual=True)


def _merge_schemas(base: Schema, one: Schema, other: Schema) -> Schema:
    try:
        return merge_schemas(base, one, other)
    except SchemasDiverged:
        return base  # the sides will have to agree, or be refused
