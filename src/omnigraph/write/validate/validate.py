"""The one validator: what a delta must fulfil, derived from the constraints of the schema.

Mutations, loads and merges all use it, so that they can't drift apart. Constraints of single rows are evaluated at once
(`row_checks.py`). Constraints between rows and the rest of the graph become check values (`graph_checks.py`): a commit
runs them in parallel, and again when a table that they read has changed.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from omnigraph.caches import DerivedCache
from omnigraph.errors import Violation
from omnigraph.manifest.commit.plan import Check
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.model.manifest import TableKey
from omnigraph.schema.catalog import Catalog
from omnigraph.schema.constraints import Cardinality, Constraint, Constraints, Endpoint, Key, Unique, constraints_of
from omnigraph.write.delta import Delta, TableDelta, values_by_id
from omnigraph.write.validate.checks import IdsAbsent, KnownViolations
from omnigraph.write.validate.graph_checks import (
    CardinalityHolds,
    EdgeEnds,
    EndsExist,
    NoDanglingEdges,
    PrefetchedRows,
    ReplacedNodesHaveEdgeEnds,
    UniqueInGraph,
)
from omnigraph.write.validate.row_checks import passes_fast_checks, value_violations

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMAS_MAX = 64
_CONSTRAINTS = DerivedCache(constraints_of, SCHEMAS_MAX)


def constraints_for(txn: WriteTxn) -> Constraints:
    """The constraints of the transaction's schema, derived once: for 500 types that is slow."""
    return _CONSTRAINTS.of(txn.schema.catalog)


def checks_for(
    txn: WriteTxn, delta: Delta, known: Iterable[Violation] = (), prefetched: PrefetchedRows | None = None
) -> tuple[Check, ...]:
    """All checks of a delta.

    `known` are violations that the caller found while it made the rows, `prefetched` the rows that it has read already.
    """
    constraints = constraints_for(txn)
    found = [*known, *row_violations(txn.schema.catalog, constraints, delta)]
    checks = graph_checks(constraints, delta, PrefetchedRows() if prefetched is None else prefetched)
    return (KnownViolations(tuple(found)), *checks) if found else tuple(checks)


def row_violations(catalog: Catalog, constraints: Constraints, delta: Delta) -> list[Violation]:
    """Violations of single rows and between rows of the delta; nothing is read."""
    found: list[Violation] = []
    for key, table in delta.tables.items():
        definition, row = catalog.by_key[key], table.single_row
        if table.count and not (row is not None and passes_fast_checks(definition, row.values)):
            found += value_violations(constraints.of(key), definition, table.rows)
    return found


def graph_checks(constraints: Constraints, delta: Delta, prefetched: PrefetchedRows) -> list[Check]:
    """Checks of a delta against the rest of the graph."""
    checks: list[Check] = []
    ends: list[EdgeEnds] = []
    for key, table in delta.tables.items():
        if table.ids_must_be_new and not table.fresh_ids and not table.replaces_all and table.ids:
            checks.append(IdsAbsent(key, table.ids, id_constraint_name(constraints.of(key), key)))
        for constraint in constraints.between_rows.get(key, ()):
            if isinstance(constraint, Unique) and not table.replaces_all:
                checks += unique_checks(constraint, table, prefetched)
            elif isinstance(constraint, Endpoint):
                ends += _required_ends(constraint, table, delta)
            elif isinstance(constraint, Cardinality):
                checks += _cardinality_checks(constraint, table, delta)
        if table.removed or table.replaces_all:
            for endpoint in constraints.referring_to(key):
                checks += _removal_checks(endpoint, table, delta)
    return [*checks, *_end_checks(ends, delta)] if ends else checks


def id_constraint_name(constraints: Iterable[Constraint], key: TableKey) -> str:
    """The name, in reports, of the constraint that an id is unique."""
    keys = (constraint.name for constraint in constraints if isinstance(constraint, Key))
    return next(keys, f"{key.partition(':')[2]} id")


def unique_checks(constraint: Unique, table: TableDelta, prefetched: PrefetchedRows) -> list[UniqueInGraph]:
    """Only rows whose unique values change are checked: an update of another property needs no lookup."""
    if not table.count:
        return []
    rows = table.rows.select(["id", *constraint.columns])
    before = table.before_by_id(constraint.columns)
    if before:
        now = values_by_id(rows, constraint.columns)
        rows = _rows_of(rows, [entity for entity, values in now.items() if before.get(entity) != values])
    return [UniqueInGraph(constraint, rows, table.affected_ids, prefetched)] if rows.num_rows else []


def _required_ends(constraint: Endpoint, table: TableDelta, delta: Delta) -> list[EdgeEnds]:
    """Ends to look up: not nodes that the delta writes, nor ends that an edge keeps while the node stays."""
    nodes = delta.of_table(constraint.node_table)
    written: frozenset[str] = frozenset() if nodes is None else nodes.ids
    removed, all_replaced = delta.removed(constraint.node_table), delta.replaces_all(constraint.node_table)
    before = table.before_by_id(constraint.columns)
    edges: dict[str, list[str]] = {}
    for edge, node in zip(table.texts("id"), table.texts(constraint.columns[0]), strict=True):
        if node not in written and (all_replaced or node in removed or before.get(edge) != (node,)):
            edges.setdefault(node, []).append(edge)
    return [EdgeEnds(constraint, {node: tuple(ids) for node, ids in edges.items()})] if edges else []


def _end_checks(ends: Iterable[EdgeEnds], delta: Delta) -> list[Check]:
    by_table: dict[TableKey, list[EdgeEnds]] = {}
    for one in ends:
        by_table.setdefault(one.endpoint.node_table, []).append(one)
    checks: list[Check] = []
    for key, group in sorted(by_table.items()):
        needed = frozenset(node for one in group for node in one.edges)
        gone = needed if delta.replaces_all(key) else needed & delta.removed(key)
        checks.append(EndsExist(key, tuple(group), gone))
    return checks


def _cardinality_checks(constraint: Cardinality, table: TableDelta, delta: Delta) -> list[Check]:
    if not constraint.minimum and constraint.maximum is None:
        return []
    before, now = table.before_by_id(constraint.columns), values_by_id(table.rows, constraint.columns)
    changed = {source for edge, (source,) in now.items() if before.get(edge) != (source,)}
    written: dict[str, list[str]] = {}
    for edge, (source,) in now.items():
        written.setdefault(str(source), []).append(edge)
    lost = frozenset(str(source) for edge, (source,) in before.items() if now.get(edge) != (source,))
    counted = {source: tuple(edges) for source, edges in written.items() if source in changed or source in lost}
    if not counted and not lost and not table.replaces_all:
        return []
    gone = delta.removed(constraint.source_table)
    return [CardinalityHolds(constraint, counted, lost, gone, table.affected_ids, table.replaces_all)]


def _removal_checks(endpoint: Endpoint, table: TableDelta, delta: Delta) -> list[Check]:
    """Checks of removed nodes. Where all edges are replaced, those are checked as rows of the delta."""
    if delta.replaces_all(endpoint.table_key) or table.removes_edges:
        return []
    ignoring = delta.affected_ids(endpoint.table_key)
    if table.replaces_all:
        return [ReplacedNodesHaveEdgeEnds(endpoint, table.ids, ignoring)]
    removed = delta.removed(table.table)
    return [NoDanglingEdges(endpoint, removed, ignoring)] if removed else []


def _rows_of(rows: "pa.Table", ids: Iterable[str]) -> "pa.Table":
    from omnigraph.storage.table.overlay import with_ids

    return with_ids(rows, ids)
