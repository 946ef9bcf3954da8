"""Constraint violations of the merged graph: each side is valid by itself, but both together need not be.

The validator of all writes (`write/validate/`) checks the rows against the state that the merge would publish. What
can't be violated is not read: a table that is taken from one side as a whole is as valid as it was there, and an edge
can only have lost its node where one side changed edges and the other one removed nodes, which the table map shows.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from omnigraph.diff.graph_state import GraphState, TypeId, TypeState, may_have_lost_rows, same_content, type_id_of
from omnigraph.errors import ConstraintViolation, MergeConflict, Violation
from omnigraph.manifest.commit.plan import Check
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.model.manifest import TableKey
from omnigraph.merge.table_merge import read_changes
from omnigraph.schema.constraints import Cardinality, Constraint, Constraints, Endpoint, Unique, type_constraints
from omnigraph.schema.definitions import TypeDef
from omnigraph.storage.table.diff.row_diff import Difference
from omnigraph.storage.table.overlay import without_ids
from omnigraph.storage.table.tables import Tables
from omnigraph.threads import gather
from omnigraph.write.delta import Delta, TableDelta, texts
from omnigraph.write.validate.graph_checks import (
    CardinalityHolds,
    EndsExist,
    NoDanglingEdges,
    PrefetchedRows,
    UniqueInGraph,
)
from omnigraph.write.validate.validate import constraints_for, graph_checks, row_violations
from omnigraph.write.validate.violations import violations_of

ORPHAN_EDGE, UNIQUE, CARDINALITY, VALUE = (
    "OrphanEdge",
    "UniqueViolation",
    "CardinalityViolation",
    "ValueConstraintViolation",
)


@dataclass(frozen=True, slots=True, eq=False)
class MergeStates:
    """The states of a merge, and what it writes: adopted tables, and deltas to ours."""

    base: GraphState
    ours: GraphState
    theirs: GraphState
    after: WriteTxn  # what would be published, without the deltas
    adopted: frozenset[TableKey]
    deltas: Mapping[TableKey, TableDelta]

    def of(self, definition: TypeDef) -> tuple[TypeState | None, TypeState | None, TypeState | None]:
        type_id: TypeId = type_id_of(definition)
        return self.base.of(type_id), self.ours.of(type_id), self.theirs.of(type_id)


def find_graph_conflicts(tables: Tables, states: MergeStates) -> list[MergeConflict]:
    """All violations of constraints in the merged graph."""
    constraints = constraints_for(states.after)
    catalog = states.after.catalog
    checked = _deltas_to_check(tables, states)
    ends_only = _tables_to_check_ends(tables, states, constraints, frozenset(checked))
    if not checked and not ends_only:
        return []
    delta = Delta.of([*checked.values(), *ends_only.values()])
    checks = [
        check
        for check in graph_checks(constraints, delta, PrefetchedRows())
        if not (isinstance(check, UniqueInGraph | CardinalityHolds) and check.reads <= ends_only.keys())
    ]
    found = row_violations(catalog, constraints, Delta.of(checked.values()))
    results = gather([partial(_run_check, check, states.after, tables) for check in checks])
    kinds = {one.name: one for every in constraints.by_table.values() for one in every}
    conflicts = [conflict for violation in found for conflict in _to_conflicts(violation, kinds, states)]
    for result in results:
        conflicts += [
            conflict
            for one in result
            for conflict in ([one] if isinstance(one, MergeConflict) else _to_conflicts(one, kinds, states))
        ]
    return list(dict.fromkeys(conflicts))


def _deltas_to_check(tables: Tables, states: MergeStates) -> dict[TableKey, TableDelta]:
    """The deltas, and the changes of a side with other constraints, which were never checked by the merged ones."""
    checked = {key: delta for key, delta in states.deltas.items() if not delta.is_empty}
    if states.ours.schema.hash == states.theirs.schema.hash:
        return checked
    for definition in states.after.catalog.types:
        base, ours, theirs = states.of(definition)
        key, wanted = definition.table_key, type_constraints(definition)
        for side, is_taken in ((theirs, key in states.adopted), (ours, key not in states.adopted)):
            if side is None or not is_taken or same_content(base, side):
                continue
            if type_constraints(side.definition) != wanted:
                changed = read_changes(tables, base, side, definition)
                checked[key] = _with_rows_of(checked.get(key), _delta(key, changed))
    return checked


def _tables_to_check_ends(
    tables: Tables, states: MergeStates, constraints: Constraints, checked: frozenset[TableKey]
) -> dict[TableKey, TableDelta]:
    """Adopted tables where an edge may have lost its node."""
    by_key = states.after.catalog.by_key
    needed: list[TypeDef] = []
    for key in sorted(states.adopted - checked):
        definition = by_key[key]
        base, _, theirs = states.of(definition)
        if definition.kind == "edge":
            ends = {by_key[one.node_table] for one in constraints.of(key) if isinstance(one, Endpoint)}
            if any(may_have_lost_rows(states.of(node)[0], states.of(node)[1]) for node in ends):
                needed.append(definition)
        elif may_have_lost_rows(base, theirs):
            edges = {by_key[one.table_key] for one in constraints.referring_to(key)}
            if any(not same_content(states.of(edge)[0], states.of(edge)[1]) for edge in edges):
                needed.append(definition)

    def read(definition: TypeDef) -> TableDelta:
        base, _, theirs = states.of(definition)
        return _delta(definition.table_key, read_changes(tables, base, theirs, definition))

    return {one.table: one for one in gather([partial(read, definition) for definition in needed])}


def _delta(key: TableKey, changed: Difference) -> TableDelta:
    removed = frozenset(texts(changed.before, "id")) - frozenset(texts(changed.after, "id"))
    return TableDelta(key, changed.after, removed, changed.before)


def _with_rows_of(delta: TableDelta | None, other: TableDelta) -> TableDelta:
    """A delta with the rows of another one that it does not write itself, to be checked together."""
    import pyarrow as pa

    if delta is None:
        return other
    rows = pa.concat_tables([delta.rows, without_ids(other.rows, delta.affected_ids)])
    parts = [without_ids(other.before, delta.affected_ids)] if other.before is not None else []
    parts += [delta.before] if delta.before is not None else []
    return TableDelta(delta.table, rows, delta.removed, pa.concat_tables(parts) if parts else None)


def _run_check(check: Check, txn: WriteTxn, tables: Tables) -> "tuple[Violation | MergeConflict, ...]":
    if isinstance(check, NoDanglingEdges):
        return tuple(_edges_of_removed_nodes(check, txn, tables))
    if isinstance(check, EndsExist):
        return tuple(_edges_without_node(check, txn, tables))
    try:
        check.run(txn, tables)
    except ConstraintViolation as error:
        return violations_of(error)
    return ()


def _edges_of_removed_nodes(check: NoDanglingEdges, txn: WriteTxn, tables: Tables) -> Iterator[MergeConflict]:
    """Edges whose node is removed. The validator names the nodes, a merge conflict names the edges."""
    end = check.endpoint
    at, column = txn.content(end.table_key), end.columns[0]
    if at is not None:
        rows = tables.find_rows(at, ["id", column], {column: check.ids})
        for edge, node in zip(texts(rows, "id"), texts(rows, column), strict=True):
            if edge not in check.ignoring:
                yield _orphan(end.type_name, edge, f"{end.node_type} {node!r}")


def _edges_without_node(check: EndsExist, txn: WriteTxn, tables: Tables) -> Iterator[MergeConflict]:
    """New edges whose node is removed."""
    wanted = frozenset(node for end in check.ends for node in end.edges) - check.removed
    existing = tables.exists(txn.content(check.node_table), wanted) if wanted else frozenset()
    for one in check.ends:
        for node, edges in one.edges.items():
            if node not in existing:
                for edge in edges:
                    yield _orphan(one.endpoint.type_name, edge, f"{one.endpoint.node_type} {node!r}")


def _orphan(edge_type: str, edge: str, node: str) -> MergeConflict:
    message = f"{edge_type} {edge!r} needs {node}, which one of the sides deleted"
    return MergeConflict("edge", edge_type, edge, ORPHAN_EDGE, message)


def _to_conflicts(
    violation: Violation, constraints: Mapping[str, Constraint], states: MergeStates
) -> Iterable[MergeConflict]:
    """A violation as merge conflicts, one for each entity."""
    name = violation.type_name
    entity_kind = states.after.catalog.by_name[name].kind
    kind = _conflict_kind(constraints.get(violation.constraint))
    return [
        MergeConflict(entity_kind, name, entity, kind, f"{name} {entity!r} {violation.problem}")
        for entity in violation.entity_ids
    ]


def _conflict_kind(constraint: Constraint | None) -> str:
    match constraint:
        case Unique():
            return UNIQUE
        case Cardinality():
            return CARDINALITY
        case _:
            return VALUE
