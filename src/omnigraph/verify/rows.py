"""Checks of rows: ids exist, are unique and match the key; values are within their bounds; edge ends exist.

Rows are read in batches. DuckDB compares rows with each other, in bounded memory and a scratch directory.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from omnigraph.errors import Violation
from omnigraph.manifest.commit.txn import Snapshot
from omnigraph.manifest.model.manifest import TableKey
from omnigraph.schema.catalog import TypeDef
from omnigraph.schema.constraints import Cardinality, Endpoint, Key, Unique, type_constraints
from omnigraph.storage.table.table_content import TableContent
from omnigraph.storage.table.tables import Tables
from omnigraph.verify.duckdb_scratch import ScratchDatabase, StreamedRows, quote_identifier
from omnigraph.verify.report import REWRITE, Findings, named
from omnigraph.write.validate.row_checks import value_violations

if TYPE_CHECKING:
    import pyarrow as pa

KEPT_MAX = 100  # ids named in one problem; the others are counted


class RowChecks:
    def __init__(self, tables: Tables, query: ScratchDatabase, *, full: bool) -> None:
        self._tables = tables
        self._query = query
        self._full = full

    def check(self, found: Findings, where: str, snapshot: Snapshot, sound: Sequence[TableKey]) -> None:
        """Check the rows of all readable tables of a state."""
        for key in sound:
            definition = snapshot.catalog.by_key[key]
            place = f"{where}, {key}"
            if found.is_first("content", key, snapshot.content(key), snapshot.manifest.schema):
                with found.catching(place):
                    self._check_table(found, place, definition, snapshot)
            for endpoint in _constraints_of(definition, Endpoint):
                ends = (snapshot.content(key), snapshot.content(endpoint.node_table))
                nodes_read = endpoint.node_table in sound or endpoint.node_table not in snapshot.manifest.tables
                if nodes_read and found.is_first("ends", endpoint.columns, *ends):
                    with found.catching(place):
                        self._check_ends(found, place, endpoint, snapshot)

    def _check_table(self, found: Findings, place: str, definition: TypeDef, snapshot: Snapshot) -> None:
        """Ids and values in one pass; then uniqueness and cardinality, each over its own columns."""
        passing = _BatchChecks(found, place, definition, self._full)
        rows = self._rows(definition, snapshot, passing.columns, passing.check)
        twice = "SELECT id, count(*) FROM rows WHERE id IS NOT NULL GROUP BY id HAVING count(*) > 1 ORDER BY id"
        same = self._query(twice, {"rows": rows})
        if same:
            ids = [str(one) for one, _ in same[:KEPT_MAX]]
            found.add(place, f"ids occur more than once: {named(ids, len(same))}", REWRITE)
        passing.report()
        for unique in _constraints_of(definition, Unique):
            self._check_unique(found, place, definition, snapshot, unique)
        for cardinality in _constraints_of(definition, Cardinality):
            self._check_cardinality(found, place, definition, snapshot, cardinality)

    def _check_unique(
        self, found: Findings, place: str, definition: TypeDef, snapshot: Snapshot, unique: Unique
    ) -> None:
        found.count("constraints")
        columns = ", ".join(map(quote_identifier, unique.columns))
        given = " AND ".join(f"{quote_identifier(column)} IS NOT NULL" for column in unique.columns)
        sql = (
            f"SELECT min(id), max(id), count(*) FROM rows WHERE {given} GROUP BY {columns} HAVING count(*) > 1 "
            "ORDER BY 1"
        )
        same = self._query(sql, {"rows": self._rows(definition, snapshot, ("id", *unique.columns))})
        if same:
            one, other, _ = same[0]
            values = ", ".join(unique.properties)
            many = f", {len(same):,} values in all" if len(same) > 1 else ""
            found.add(place, f"{one!r} and {other!r} have the same {values}, which is unique{many}", REWRITE)

    def _check_cardinality(
        self, found: Findings, place: str, definition: TypeDef, snapshot: Snapshot, bounds: Cardinality
    ) -> None:
        """A node without any edge is not checked, as in every write."""
        found.count("constraints")
        source = quote_identifier(bounds.columns[0])
        beyond = f"count(*) < {bounds.minimum}" + ("" if bounds.maximum is None else f" OR count(*) > {bounds.maximum}")
        sql = f"SELECT {source}, count(*) FROM rows GROUP BY 1 HAVING {beyond} ORDER BY 1"
        odd = self._query(sql, {"rows": self._rows(definition, snapshot, bounds.columns)})
        if odd:
            ids = [str(one) for one, _ in odd[:KEPT_MAX]]
            bound = bounds.name.rpartition(" ")[2]
            found.add(place, f"{named(ids, len(odd))} have {odd[0][1]} edges, which is outside @card({bound})", REWRITE)

    def _check_ends(self, found: Findings, place: str, endpoint: Endpoint, snapshot: Snapshot) -> None:
        """Every end is an existing node. Null ends are reported with the values."""
        column = quote_identifier(endpoint.columns[0])
        edges = snapshot.catalog.by_key[endpoint.table_key]
        nodes = snapshot.catalog.by_key[endpoint.node_table]
        sql = (
            f"SELECT {column}, min(id), count(*) FROM rows WHERE {column} IS NOT NULL AND NOT EXISTS "
            f"(SELECT 1 FROM nodes WHERE nodes.id = rows.{column}) GROUP BY 1 ORDER BY 1"
        )
        count = _RowCounter(found, "ends")
        rows = self._rows(edges, snapshot, ("id", *endpoint.columns), count)
        missing = self._query(sql, {"rows": rows, "nodes": self._rows(nodes, snapshot, ("id",))})
        if missing:
            ids = [str(one) for one, _, _ in missing[:KEPT_MAX]]
            found.add(
                place,
                f"edges end at {endpoint.node_type} nodes that do not exist: {named(ids, len(missing))} "
                f"({endpoint.columns[0]} of {missing[0][1]!r})",
                REWRITE,
            )

    def _rows(
        self,
        definition: TypeDef,
        snapshot: Snapshot,
        columns: Sequence[str],
        seen: "Callable[[pa.RecordBatch], None] | None" = None,
    ) -> StreamedRows:
        """The rows of a table in these columns, tail included."""
        import pyarrow as pa

        from omnigraph.schema.arrow import arrow_schema

        whole = arrow_schema(definition)
        wanted = list(dict.fromkeys(columns))
        schema = pa.schema([whole.field(name) for name in wanted])
        content: TableContent | None = snapshot.content(definition.table_key)
        return StreamedRows(schema, lambda: self._tables.batches(content, wanted, schema=whole), seen)


class _BatchChecks:
    """Checks of single batches of rows: null ids, keys and, with `full`, all values."""

    def __init__(self, found: Findings, place: str, definition: TypeDef, full: bool) -> None:
        self._found = found
        self._place = place
        self._definition = definition
        alone = [one for one in type_constraints(definition) if not isinstance(one, Unique | Cardinality | Endpoint)]
        self._constraints = [one for one in alone if full or isinstance(one, Key)]
        ends = ["src", "dst"] if definition.kind == "edge" else []
        of_keys = [column for one in self._constraints for column in one.columns]
        self.columns = tuple(dict.fromkeys(["id", *ends, *of_keys]))
        self._nulls = dict.fromkeys(["id", *ends], 0)
        self._broken: dict[str, tuple[Violation, int]] = {}
        found.count("constraints", len(self._constraints))

    def check(self, batch: "pa.RecordBatch") -> None:
        import pyarrow as pa

        self._found.count("rows", batch.num_rows)
        for column in self._nulls:
            self._nulls[column] += batch.column(column).null_count
        if not batch.num_rows or not self._constraints:
            return
        for violation in value_violations(self._constraints, self._definition, pa.Table.from_batches([batch])):
            first, count = self._broken.get(violation.constraint, (violation, 0))
            self._broken[violation.constraint] = (first, count + len(violation.entity_ids))

    def report(self) -> None:
        for column, count in self._nulls.items():
            if count:
                self._found.add(self._place, f"{count:,} rows have no {column}", REWRITE)
        for violation, count in self._broken.values():
            ids = violation.entity_ids[:KEPT_MAX]
            self._found.add(self._place, f"{named(ids, count)} {violation.problem}", REWRITE)


class _RowCounter:
    def __init__(self, found: Findings, name: str) -> None:
        self._found, self._name = found, name

    def __call__(self, batch: "pa.RecordBatch") -> None:
        self._found.count(self._name, batch.num_rows)


def _constraints_of(definition: TypeDef, kind: type[Any]) -> list[Any]:
    return [one for one in type_constraints(definition) if isinstance(one, kind)]
