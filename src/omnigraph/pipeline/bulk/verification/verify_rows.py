"""Verification of staged rows: constraints between rows, and between them and the graph, by SQL over key columns.

Constraints and violations are those of every other write, word for word; only the way to find them differs. A load
without violations needs one pass for each check; describing violations costs more, and only the first are named.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from omnigraph.errors import IDS_KEPT_MAX, Violation
from omnigraph.manifest.model.manifest import TableKey
from omnigraph.pipeline.bulk.verification import verification_sql as questions
from omnigraph.pipeline.bulk.verification.sql_engine import KeyColumns, SqlEngine
from omnigraph.schema.catalog import TypeDef
from omnigraph.schema.constraints import Cardinality, Constraints, Endpoint, Unique
from omnigraph.storage.location import Location
from omnigraph.storage.table.handles import TableVersion
from omnigraph.storage.table.write.fragments import rows_at
from omnigraph.write.delta import texts
from omnigraph.write.validate.graph_checks import (
    EdgeEnds,
    dangling_edges,
    duplicate_of_stored,
    too_few_edges,
    too_many_edges,
)
from omnigraph.write.validate.row_checks import duplicate_in_write, value_violations
from omnigraph.write.validate.validate import id_constraint_name
from omnigraph.write.validate.violations import already_exists

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Addresses = np.ndarray[Any, np.dtype[np.int64]]

BaseVersion: TypeAlias = Callable[[TableKey], "TableVersion | None"]
FLAWED_ROWS_A_TIME = 100_000


@dataclass(frozen=True)
class StagedRows:
    """The rows that a load brings to one table, in a version that has them, and the table as it is in the base."""

    definition: TypeDef
    at: TableVersion
    fragments: tuple[int, ...]  # of the load, in the order of the input
    base: TableVersion | None = None
    replaces_all: bool = False
    ids_must_be_new: bool = False
    only_fresh_ids: bool = False

    @property
    def key(self) -> TableKey:
        return self.definition.table_key


@dataclass(frozen=True, eq=False)
class Finding:
    """A constraint that is broken, and the rows that would have to go: their addresses in the staged version."""

    violation: Violation
    rows: "Addresses"


@dataclass
class Verifier:
    """Checks one load on one base."""

    engine: SqlEngine
    location: Location
    constraints: Constraints
    tables: Mapping[TableKey, StagedRows]
    stored: BaseVersion
    reads: set[TableKey] = field(default_factory=set)  # stored tables that were read

    def later_rows(self, key: TableKey) -> "pa.Table":
        """Rows whose id another row of the load had before them: `rowaddr`, `first_at`."""
        import pyarrow as pa

        table = self.tables[key]
        nothing = pa.table({"rowaddr": pa.array([], pa.int64()), "first_at": pa.array([], pa.int64())})
        if table.only_fresh_ids:
            return nothing
        found = self.engine.rows(questions.DUPLICATE_IDS, {"n": self._rows(table, "id")})
        if not found.num_rows:
            return nothing
        return self.engine.rows(questions.LATER_ROWS_OF_ID, {"n": self._rows(table, "id"), "d": found})

    def findings(self, flawed: "Mapping[TableKey, Addresses]") -> list[Finding]:
        """Broken constraints, in the order in which every write reports them; `flawed` rows break one by themselves."""
        found = [one for key in self.tables for one in self._own(key, flawed.get(key))]
        ends: dict[TableKey, list[Finding]] = {}
        for key, table in self.tables.items():
            again = self._stored_ids(table) if table.ids_must_be_new and not table.only_fresh_ids else []
            found += again
            for constraint in self.constraints.of(key):
                if isinstance(constraint, Unique) and not table.replaces_all:
                    found += self._stored_values(table, constraint)
                elif isinstance(constraint, Cardinality):
                    found += self._counted(table, constraint, bool(again))
                elif isinstance(constraint, Endpoint):
                    ends.setdefault(constraint.node_table, []).extend(self._ends(table, constraint))
            for endpoint in self.constraints.referring_to(key):
                found += self._edges_that_stay(table, endpoint)
        return [*found, *(one for node_table in sorted(ends) for one in ends[node_table])]

    def replaced(self, key: TableKey, fragments: Sequence[int], among: tuple[int, ...] | None = None) -> "Addresses":
        """Where the stored rows are whose ids these fragments of the load have; in some stored fragments, or in all."""
        table = self.tables[key]
        assert table.base is not None
        stored = KeyColumns(self.location, table.base, aliases(["id"]), among)
        inputs = {"n": self._rows(replace(table, fragments=tuple(fragments)), "id"), "o": stored}
        return _numbers(self.engine.rows(questions.ADDRESS_OF_STORED, inputs), "rowaddr")

    # One method for each check.

    def _own(self, key: TableKey, flawed: "Addresses | None") -> Iterator[Finding]:
        table = self.tables[key]
        by_constraint = {} if flawed is None or not len(flawed) else self._flaws(table, flawed)
        for constraint in self.constraints.of(key):
            if isinstance(constraint, Unique):
                yield from self._written_values(table, constraint)
            elif constraint.name in by_constraint:
                yield by_constraint[constraint.name]

    def _flaws(self, table: StagedRows, flawed: "Addresses") -> dict[str, Finding]:
        """Rows that a task found flawed, checked again by the function that checks rows of every write."""
        import numpy as np

        own = [one for one in self.constraints.of(table.key) if not isinstance(one, Unique)]
        found: dict[str, list[tuple[Violation, Any]]] = {}
        names = _column_names(table.definition)
        for start in range(0, len(flawed), FLAWED_ROWS_A_TIME):
            addresses = flawed[start : start + FLAWED_ROWS_A_TIME]
            rows = rows_at(self.location, table.at, addresses, names)
            where = dict(zip(texts(rows, "id"), addresses, strict=True))
            for violation in value_violations(own, table.definition, rows):
                bad = np.array([where[entity] for entity in violation.entity_ids], np.int64)
                found.setdefault(violation.constraint, []).append((violation, bad))
        return {name: _combine_findings(parts) for name, parts in found.items()}

    def _written_values(self, table: StagedRows, unique: Unique) -> list[Finding]:
        width = len(unique.columns)
        found = self.engine.rows(questions.duplicate_values(width), {"n": self._rows(table, *unique.columns)})
        if not found.num_rows:
            return []
        rows = self._rows(table, *unique.columns)
        later = self.engine.rows(questions.later_of_values(width), {"n": rows, "d": found})
        ids = self._ids(table, _numbers(later, "rowaddr"))
        first = self._ids(table, _numbers(later, "first_at")[:1])[0]
        return self._found(duplicate_in_write(unique, ids, first), later)

    def _stored_ids(self, table: StagedRows) -> list[Finding]:
        self.reads.add(table.key)
        if table.base is None:
            return []
        inputs = {"n": self._rows(table, "id"), "o": self._keys(table.base, "id")}
        taken = self.engine.rows(questions.ID_STORED, inputs)
        ids = self._ids(table, _numbers(taken, "rowaddr"))
        name = id_constraint_name(self.constraints.of(table.key), table.key)
        return [one for violation in already_exists(table.key, ids, name) for one in self._found(violation, taken)]

    def _stored_values(self, table: StagedRows, unique: Unique) -> list[Finding]:
        self.reads.add(table.key)
        if table.base is None:
            return []
        width = len(unique.columns)
        inputs = {"n": self._rows(table, *unique.columns, "id"), "o": self._keys(table.base, *unique.columns, "id")}
        met = self.engine.rows(questions.values_stored(width), inputs)
        if not met.num_rows:
            return []
        taken = self.engine.rows(questions.still_stored(width), {"d": met, "n": self._rows(table, "id")})
        if not taken.num_rows:
            return []
        ids = self._ids(table, _numbers(taken, "rowaddr"))
        [violation] = duplicate_of_stored(unique, ids, str(taken.column("other")[0]))
        return self._found(violation, taken)

    def _ends(self, table: StagedRows, endpoint: Endpoint) -> list[Finding]:
        """Every end is a node of the load or a stored one, unless the load replaces all stored ones."""
        nodes = self.tables.get(endpoint.node_table)
        inputs = {"n": self._rows(table, *endpoint.columns)}
        if nodes is not None:
            inputs["w"] = self._rows(nodes, "id")
        if nodes is None or not nodes.replaces_all:
            self.reads.add(endpoint.node_table)
            at = self.stored(endpoint.node_table)
            if at is not None:
                inputs["o"] = self._keys(at, "id")
        missing = self.engine.rows(questions.ends_missing("w" in inputs, "o" in inputs), inputs)
        if not missing.num_rows:
            return []
        every = missing.column("node").unique()
        named = [str(node) for node in every.slice(0, IDS_KEPT_MAX).to_pylist()]
        edges: dict[str, tuple[str, ...]] = dict.fromkeys(named, ())
        kept = missing.slice(0, IDS_KEPT_MAX)
        for node, edge in zip(texts(kept, "node"), self._ids(table, _numbers(kept, "rowaddr")), strict=True):
            edges[node] += (edge,)
        [violation] = EdgeEnds(endpoint, edges).missing_from(frozenset())
        return self._found(violation, missing, len(every))

    def _counted(self, table: StagedRows, cardinality: Cardinality, again: bool) -> list[Finding]:
        """`again`: some edges of the load are stored already; that they must not be is another matter than how many."""
        low, high = cardinality.minimum, cardinality.maximum
        if not low and high is None:
            return []
        column = cardinality.columns[0]
        inputs = {"n": self._rows(table, column)}
        stored = table.base is not None and (not table.replaces_all or bool(low))
        if not table.replaces_all or low:
            self.reads.add(table.key)
        if stored and table.base is not None:
            inputs["o"] = self._keys(table.base, column, "id")
        may_replace = again or not (table.only_fresh_ids or table.ids_must_be_new)
        replaces = stored and may_replace and not table.replaces_all
        if replaces:
            inputs["r"] = self._rows(table, "id")
        sql = questions.edges_counted(low, high, stored, replaces, table.replaces_all)
        wrong = self.engine.rows(sql, inputs)
        return self._out_of_bounds(table, cardinality, wrong) if wrong.num_rows else []

    def _out_of_bounds(self, table: StagedRows, cardinality: Cardinality, wrong: "pa.Table") -> list[Finding]:
        import numpy as np
        import pyarrow as pa

        counts = wrong.column("edges").to_numpy()
        found: list[Finding] = []
        high = cardinality.maximum
        if high is not None and (counts > high).any():
            over = wrong.filter(pa.array(counts > high))
            many: Any = over.column("edges").to_numpy()
            wanted = pa.table({"source": over.column("source"), "surplus": pa.array(many - high, pa.int64())})
            inputs: dict[str, Any] = {"n": self._rows(table, *cardinality.columns), "d": wanted}
            surplus = self.engine.rows(questions.SURPLUS_EDGES, inputs)
            edges = self._ids(table, _numbers(surplus, "rowaddr"))
            sources = texts(over.slice(0, IDS_KEPT_MAX), "source")
            for violation in too_many_edges(cardinality, sources, int(many[0]), edges):
                found += self._found(violation, surplus, over.num_rows)
        if (counts < cardinality.minimum).any():
            under = wrong.filter(pa.array(counts < cardinality.minimum))
            few: Any = under.column("edges").to_numpy()
            sources = texts(under.slice(0, IDS_KEPT_MAX), "source")
            for violation in too_few_edges(cardinality, sources, int(few[0])):
                more = under.num_rows - len(sources)
                found.append(Finding(replace(violation, more_ids=more, more_rows=more), np.zeros(0, np.int64)))
        return found

    def _edges_that_stay(self, table: StagedRows, endpoint: Endpoint) -> list[Finding]:
        """All nodes are replaced: stored edges, unless they are replaced too, must find theirs among the new ones."""
        import numpy as np

        if not table.replaces_all or endpoint.table_key in self.tables:
            return []
        self.reads.add(endpoint.table_key)
        at = self.stored(endpoint.table_key)
        if at is None:
            return []
        inputs = {"n": self._rows(table, "id"), "o": self._keys(at, endpoint.columns[0])}
        gone = self.engine.rows(questions.NODES_MISSING, inputs)
        nodes = tuple(texts(gone.slice(0, IDS_KEPT_MAX), "node"))
        more = gone.num_rows - len(nodes)
        return [
            Finding(replace(violation, more_ids=more, more_rows=more), np.zeros(0, np.int64))
            for violation in dangling_edges(endpoint, nodes)
        ]

    # Inputs and results.

    def _rows(self, table: StagedRows, *columns: str) -> KeyColumns:
        return KeyColumns(self.location, table.at, aliases(columns), table.fragments)

    def _keys(self, at: TableVersion, *columns: str) -> KeyColumns:
        return KeyColumns(self.location, at, aliases(columns))

    def _ids(self, table: StagedRows, addresses: "Addresses") -> list[str]:
        """The ids of the first of these rows: as many as are named."""
        return texts(rows_at(self.location, table.at, addresses[:IDS_KEPT_MAX], ["id"]), "id")

    def _found(self, violation: Violation | None, rows: "pa.Table", entities: int | None = None) -> list[Finding]:
        """A violation that names the first of its rows, with the others counted."""
        if violation is None:
            return []
        more_rows = rows.num_rows - len(violation.offenders)
        more_ids = (rows.num_rows if entities is None else entities) - len(violation.entity_ids)
        return [Finding(replace(violation, more_ids=more_ids, more_rows=more_rows), _numbers(rows, "rowaddr"))]


def _combine_findings(parts: "Sequence[tuple[Violation, Any]]") -> Finding:
    """Violations of several batches as one finding."""
    import numpy as np

    rows = np.concatenate([bad for _, bad in parts])
    first = parts[0][0]
    ids = tuple(entity for violation, _ in parts for entity in violation.entity_ids[:IDS_KEPT_MAX])[:IDS_KEPT_MAX]
    more = len(rows) - len(ids)
    return Finding(replace(first, entity_ids=ids, more_ids=more, more_rows=more), rows)


def aliases(columns: Sequence[str]) -> dict[str, str]:
    """`id` under its own name, the columns of a constraint as k0, k1 …: a property may have any name."""
    keys = [name for name in columns if name != "id"]
    return {name: f"k{number}" for number, name in enumerate(keys)} | ({"id": "id"} if "id" in columns else {})


def _column_names(definition: TypeDef) -> list[str]:
    from omnigraph.schema.arrow import arrow_schema

    return list(arrow_schema(definition).names)


def _numbers(rows: "pa.Table", column: str) -> "Addresses":
    import numpy as np

    return np.asarray(rows.column(column).to_numpy(), np.int64)
