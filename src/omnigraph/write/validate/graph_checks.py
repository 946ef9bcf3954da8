"""Constraints between rows and the rest of the graph, evaluated by point lookups: one check value each.

A check holds only what it needs of the delta, so that it can be run again on another base. Stored rows that the write
itself replaces or removes are in `ignoring`: for those only the delta counts.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from omnigraph.errors import Violation
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.model.manifest import TableKey
from omnigraph.schema.constraints import Cardinality, Endpoint, Unique
from omnigraph.storage.table.table_content import TableContent
from omnigraph.storage.table.tables import Tables
from omnigraph.write.delta import texts
from omnigraph.write.validate.row_checks import unique_values, violation_of
from omnigraph.write.validate.violations import raise_violations

if TYPE_CHECKING:
    import pyarrow as pa


_ROLES = {"src": "from", "dst": "to"}  # as a user writes them


@dataclass(frozen=True, slots=True, eq=False)
class EdgeEnds:
    """The nodes that edges of one type need at one end."""

    endpoint: Endpoint
    edges: Mapping[str, tuple[str, ...]]  # the node's id → the edges that need it

    def missing_from(self, nodes: frozenset[str]) -> list[Violation]:
        """The violations if only these nodes exist."""
        end = self.endpoint
        missing = sorted(frozenset(self.edges) - nodes)
        rows = [edge for node in missing for edge in self.edges[node]]
        problem = f"does not exist, and {end.type_name} edges have it as {_ROLES[end.columns[0]]}"
        found = violation_of(end, missing, problem, "insert it first or in the same write", rows)
        return [replace(violation, type_name=end.node_type) for violation in _as_list(found)]


@dataclass(frozen=True, slots=True, eq=False)
class EndsExist:
    """Every end of the written edges is a node of the graph that this write does not remove.

    All ends in one node table are one lookup.
    """

    node_table: TableKey
    ends: tuple[EdgeEnds, ...]
    removed: frozenset[str] = frozenset()  # removed by this write, or not among the rows that replace all others

    @property
    def reads(self) -> frozenset[TableKey]:
        return frozenset({self.node_table})

    def run(self, txn: WriteTxn, tables: Tables) -> None:
        wanted = frozenset(node for end in self.ends for node in end.edges) - self.removed
        existing = tables.exists(txn.content(self.node_table), wanted) if wanted else frozenset()
        raise_violations(violation for end in self.ends for violation in end.missing_from(existing))


@dataclass(frozen=True, slots=True)
class NoDanglingEdges:
    """Removed nodes are the end of no edge that stays."""

    endpoint: Endpoint
    ids: frozenset[str]
    ignoring: frozenset[str]

    @property
    def reads(self) -> frozenset[TableKey]:
        return frozenset({self.endpoint.table_key})

    def run(self, txn: WriteTxn, tables: Tables) -> None:
        at, column = txn.content(self.endpoint.table_key), self.endpoint.columns[0]
        if at is None:
            return
        rows = tables.find_rows(at, ["id", column], {column: self.ids})
        raise_violations(_dangling(self.endpoint, _edge_ends(rows, column, self.ignoring)))


@dataclass(frozen=True, slots=True)
class ReplacedNodesHaveEdgeEnds:
    """All rows of a node type are replaced: every edge that stays has its node among the new rows."""

    endpoint: Endpoint
    nodes: frozenset[str]
    ignoring: frozenset[str]

    @property
    def reads(self) -> frozenset[TableKey]:
        return frozenset({self.endpoint.table_key})

    def run(self, txn: WriteTxn, tables: Tables) -> None:
        at, column = txn.content(self.endpoint.table_key), self.endpoint.columns[0]
        if at is None:
            return
        found: list[tuple[str, str]] = []
        for batch in tables.batches(at, ["id", column]):
            found += [pair for pair in _edge_ends(batch, column, self.ignoring) if pair[1] not in self.nodes]
        raise_violations(_dangling(self.endpoint, found))


class PrefetchedRows(dict[object, "pa.Table"]):
    """Rows that planning has read for the checks of one write, by the lookup that would find them.

    Planning reads them together with its own rows. That has to be one scan, not two at the same time: the second would
    wait for the first to learn what is in a new file, a round trip each. Table versions are immutable, so the rows
    stay valid for their version.
    """

    def find_rows(
        self, tables: Tables, at: TableContent, columns: Sequence[str], values: Mapping[str, Collection[object]]
    ) -> "pa.Table":
        """The rows that have one of the values given for each column; read now if they were not prefetched."""
        rows = self.get(_lookup_key(at, columns, values))
        return tables.find_rows(at, columns, values) if rows is None else rows

    def add(
        self, at: TableContent, columns: Sequence[str], values: Mapping[str, Collection[object]], rows: "pa.Table"
    ) -> None:
        """Remember rows among which are all that have these values."""
        self[_lookup_key(at, columns, values)] = rows.select(list(columns))


def _lookup_key(at: TableContent, columns: Sequence[str], values: Mapping[str, Collection[object]]) -> object:
    return at, tuple(columns), tuple((name, tuple(some)) for name, some in values.items())


@dataclass(frozen=True, slots=True, eq=False)
class UniqueInGraph:
    """No stored row has the unique values of a written one."""

    unique: Unique
    rows: "pa.Table"
    ignoring: frozenset[str]
    prefetched: PrefetchedRows

    @property
    def reads(self) -> frozenset[TableKey]:
        return frozenset({self.unique.table_key})

    @property
    def lookup_values(self) -> dict[str, list[object]]:
        """The values that stored rows must not have, by column; empty if every written row has a null among them."""
        wanted = dict.fromkeys(values for _, values in unique_values(self.unique, self.rows))
        if not wanted:
            return {}
        return {
            name: list(dict.fromkeys(each))
            for name, each in zip(self.unique.columns, zip(*wanted, strict=True), strict=True)
        }

    @property
    def columns(self) -> tuple[str, ...]:
        return "id", *self.unique.columns

    def run(self, txn: WriteTxn, tables: Tables) -> None:
        at, values = txn.content(self.unique.table_key), self.lookup_values
        if at is None or not values:
            return
        stored = self.prefetched.find_rows(tables, at, self.columns, values)
        wanted = {values: entity for entity, values in unique_values(self.unique, self.rows)}
        taken = {
            wanted[values]: entity
            for entity, values in unique_values(self.unique, stored)
            if values in wanted and entity not in self.ignoring
        }
        bad = [entity for entity in wanted.values() if entity in taken]
        raise_violations(duplicate_of_stored(self.unique, bad, taken[bad[0]] if bad else ""))


@dataclass(frozen=True, slots=True, eq=False)
class CardinalityHolds:
    """The number of edges that leave each source whose edges the write changes is within its bounds afterwards."""

    cardinality: Cardinality
    written: Mapping[str, tuple[str, ...]]  # source → its edges among the rows written
    lost_sources: frozenset[str]  # sources of removed edges
    removed_sources: frozenset[str]  # sources that are removed as well
    ignoring: frozenset[str]
    replaces_all: bool = False

    @property
    def reads(self) -> frozenset[TableKey]:
        return frozenset({self.cardinality.table_key})

    def run(self, txn: WriteTxn, tables: Tables) -> None:
        stays, sources = self._count_stored(txn, tables)
        low, high = self.cardinality.minimum, self.cardinality.maximum
        counts = {source: stays[source] + len(self.written.get(source, ())) for source in sources}
        over = sorted(source for source, count in counts.items() if high is not None and count > high)
        under = sorted(source for source, count in counts.items() if count < low and source not in self.removed_sources)
        surplus = [edge for source in over for edge in self._surplus(source, counts[source] - (high or 0))]
        many = too_many_edges(self.cardinality, over, counts[over[0]] if over else 0, surplus)
        raise_violations([*many, *too_few_edges(self.cardinality, under, counts[under[0]] if under else 0)])

    def _count_stored(self, txn: WriteTxn, tables: Tables) -> tuple[Counter[str], frozenset[str]]:
        """How many stored edges each source keeps, and the sources to count."""
        at, column = txn.content(self.cardinality.table_key), self.cardinality.columns[0]
        sources = frozenset(self.written) | self.lost_sources
        stays: Counter[str] = Counter()
        if at is None:
            return stays, sources
        if self.replaces_all:
            if self.cardinality.minimum:
                for batch in tables.batches(at, [column]):
                    sources |= frozenset(texts(batch, column))
            return stays, sources
        if sources:
            rows = tables.find_rows(at, ["id", column], {column: sources})
            stays.update(source for _, source in _edge_ends(rows, column, self.ignoring))
        return stays, sources

    def _surplus(self, source: str, count: int) -> tuple[str, ...]:
        """The last edges written for a source, as many as exceed the maximum."""
        return self.written.get(source, ())[-count:]


def duplicate_of_stored(unique: Unique, ids: Sequence[str], other: str) -> list[Violation]:
    """Rows with unique values that stored rows have; `other` is the stored row that the first of them repeats."""
    named = ", ".join(unique.properties)
    problem = f"has the same {named} as the stored {other!r}"
    return _as_list(violation_of(unique, ids, problem, f"give another {named}, or update that one"))


def too_many_edges(
    cardinality: Cardinality, sources: Sequence[str], first: int, surplus: Sequence[str]
) -> list[Violation]:
    """Sources with too many edges: `first` is the count of the first source, `surplus` the edges beyond the maximum."""
    problem = f"would have {first} {cardinality.type_name} edges, at most {cardinality.maximum} may leave it"
    return _out_of_bounds(cardinality, sources, problem, surplus)


def too_few_edges(cardinality: Cardinality, sources: Sequence[str], first: int) -> list[Violation]:
    problem = f"would have {first} {cardinality.type_name} edges, at least {cardinality.minimum} must leave it"
    return _out_of_bounds(cardinality, sources, problem)


def _out_of_bounds(
    cardinality: Cardinality, sources: Sequence[str], problem: str, rows: Sequence[str] = ()
) -> list[Violation]:
    bound = cardinality.name.rpartition(" ")[2]
    found = _as_list(violation_of(cardinality, sources, problem, f"keep within @card({bound})", rows))
    return [replace(violation, type_name=cardinality.source_table.partition(":")[2]) for violation in found]


def _edge_ends(rows: "pa.Table | pa.RecordBatch", column: str, ignoring: frozenset[str]) -> Iterable[tuple[str, str]]:
    """Edges with one of their ends, without those that the write replaces or removes."""
    pairs = zip(texts(rows, "id"), texts(rows, column), strict=True)
    return [(edge, node) for edge, node in pairs if edge not in ignoring]


def _dangling(endpoint: Endpoint, pairs: Iterable[tuple[str, str]]) -> list[Violation]:
    return dangling_edges(endpoint, tuple(sorted({node for _, node in pairs})))


def dangling_edges(endpoint: Endpoint, nodes: tuple[str, ...]) -> list[Violation]:
    """Removed nodes that edges still refer to. The nodes are reported, because the write has to keep those."""
    problem = f"would go, and {endpoint.type_name} edges still have it as {_ROLES[endpoint.columns[0]]}"
    remedy = f"remove those {endpoint.type_name} edges in the same write, or keep the node"
    if not nodes:
        return []
    name = endpoint.columns[0]
    return [Violation(endpoint.name, endpoint.node_type, name, nodes, problem, remedy, endpoint.node_table)]


def _as_list(violation: Violation | None) -> list[Violation]:
    return [] if violation is None else [violation]
