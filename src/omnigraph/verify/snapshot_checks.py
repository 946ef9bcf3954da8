"""One state of the graph: a manifest with all its tables, their rows, and the saved adjacency of its edges.

Rows are read in batches. DuckDB compares rows with each other, in bounded memory and a scratch directory.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from omnigraph.errors import BadRequest, Violation
from omnigraph.manifest.commit.txn import Snapshot
from omnigraph.manifest.model.manifest import Manifest, TableKey
from omnigraph.manifest.repository import Repository
from omnigraph.schema.catalog import Schema, TypeDef
from omnigraph.schema.constraints import Cardinality, Endpoint, Key, Unique, type_constraints
from omnigraph.schema.lang.compile import compile_schema
from omnigraph.storage.table.table_content import TableContent
from omnigraph.storage.table.tables import Tables
from omnigraph.verify.duckdb_scratch import ScratchDatabase, StreamedRows, quote_identifier
from omnigraph.verify.indexes import IndexChecks
from omnigraph.verify.lineage import schema_problems
from omnigraph.verify.report import NOTICE, REWRITE, Findings, named
from omnigraph.verify.tables import TableChecks
from omnigraph.write.validate.row_checks import value_violations

if TYPE_CHECKING:
    import pyarrow as pa

REMOVE_ADJACENCY = "remove the file, or run `optimize`: queries that need it build it from the tables"
ADJACENCY_ROWS_MAX = 20_000_000  # edges and nodes, which are numbered in memory
IDS_NAMED_MAX = 100  # in one problem; the others are counted


class SnapshotChecks:
    def __init__(self, repository: Repository, query: ScratchDatabase, *, full: bool, seed: int) -> None:
        self._repository = repository
        self._tables = TableChecks(repository, full=full, seed=seed)
        self._rows = RowChecks(repository.tables, query, full=full)
        self._indexes = IndexChecks(repository.tables, query, full=full, seed=seed)

    def check_schema(self, found: Findings, where: str, manifest: Manifest) -> Schema | None:
        """The schema of a manifest: it exists, matches its hash, and compiles."""
        schema: Schema | None = None
        with found.catching(where):
            schema = self._repository.schemas.read(manifest.schema)
            if found.is_first("schema", manifest.schema):
                found.count("schemas")
                self._check_source(found, where, schema)
            for what in schema_problems(manifest, schema.catalog):
                found.add(where, what, REWRITE)
        return schema

    def _check_source(self, found: Findings, where: str, schema: Schema) -> None:
        """The catalog is authoritative; its text must compile and have the same types."""
        try:
            names = {one.name for one in compile_schema(schema.source).catalog.types} if schema.source else None
        except BadRequest as error:
            found.add(where, f"the text of schema {schema.hash} does not compile: {error}", REWRITE)
            return
        if names is not None and names != {one.name for one in schema.catalog.types}:
            found.add(where, f"the text of schema {schema.hash} has other types than its catalog", REWRITE)

    def check(self, found: Findings, where: str, manifest: Manifest, *, rows: bool) -> None:
        """Check all tables of a manifest; with `rows` also their rows and indexes."""
        found.count("states")
        schema = self.check_schema(found, where, manifest)
        sound = [
            key
            for key, ref in sorted(manifest.tables.items())
            if self._tables.check(found, where, key, ref) and schema is not None and key in schema.catalog.by_key
        ]
        if schema is None:
            return
        for key in sound:
            self._tables.check_columns(found, where, manifest.tables[key], schema.catalog.by_key[key])
        if not rows:
            return
        snapshot = Snapshot(manifest, schema)
        self._rows.check(found, where, snapshot, sound)
        for key in sound:
            self._check_derived(found, f"{where}, {key}", snapshot, key, sound)

    def _check_derived(self, found: Findings, place: str, snapshot: Snapshot, key: str, sound: list[str]) -> None:
        definition = snapshot.catalog.by_key[key]
        stored = snapshot.manifest.tables[key].stored
        if stored is None:
            return
        if found.is_first("indexes", stored):
            with found.catching(place):
                self._indexes.check(found, f"{place} ({stored})", definition, stored)
        if definition.kind != "edge" or not all(node in sound for node in _ends(snapshot, key)):
            return
        nodes = [snapshot.manifest.tables[node].stored for node in _ends(snapshot, key)]
        if found.is_first("adjacency", stored, *nodes):
            with found.catching(place):
                _check_adjacency(found, self._repository, snapshot, definition)


def _ends(snapshot: Snapshot, key: str) -> Iterator[str]:
    """The node tables of an edge type that exist in the manifest."""
    definition = snapshot.catalog.by_key[key]
    for node in (definition.source, definition.target):
        if f"node:{node}" in snapshot.manifest.tables:
            yield f"node:{node}"


def _check_adjacency(found: Findings, repository: Repository, snapshot: Snapshot, edge: TypeDef) -> None:
    """Check the saved adjacency of a stored version, if there is one; tails are not part of it."""
    from omnigraph.read.graph.adjacency_file import adjacency_key

    ref = snapshot.manifest.tables[edge.table_key]
    keys = (edge.table_key, f"node:{edge.source}", f"node:{edge.target}")
    sizes = [snapshot.manifest.tables[key].rows for key in keys if key in snapshot.manifest.tables]
    if (
        ref.stored is None
        or max(sizes) > ADJACENCY_ROWS_MAX
        or repository.store.head(adjacency_key(ref.stored)) is None
    ):
        return
    found.count("adjacencies")
    is_equal = _adjacency_equals_rebuilt(repository, snapshot, keys)
    where = f"{edge.table_key}, {adjacency_key(ref.stored)}"
    if is_equal is None:
        found.add(
            where, "the saved adjacency can't be used: it is damaged or of another format", REMOVE_ADJACENCY, NOTICE
        )
    elif not is_equal:
        found.add(where, "the saved adjacency differs from the edges", REMOVE_ADJACENCY)


def _adjacency_equals_rebuilt(repository: Repository, snapshot: Snapshot, keys: tuple[str, str, str]) -> bool | None:
    """Whether the saved adjacency equals a rebuilt one; None if it can't be used."""
    import numpy as np

    from omnigraph.read.graph.adjacency import Adjacency, build_adjacency
    from omnigraph.read.graph.adjacency_file import load_adjacency
    from omnigraph.read.reader import SnapshotReader
    from omnigraph.read.tables.read_cache import ReadCache
    from omnigraph.read.tables.resident_table import ResidentTable

    caches = ReadCache()
    reader = SnapshotReader(repository.tables, snapshot, caches, store=repository.store)
    edges, source, target = (ResidentTable(repository.tables, caches, reader.state(key)) for key in keys)
    saved = load_adjacency(repository.store, edges, source, target)
    if saved is None:
        return None
    built = build_adjacency(edges, source, target)

    def arrays(of: Adjacency) -> list[object]:
        parts = [(csr.starts, csr.targets, csr.edges) for csr in (of.forward, of.backward)]
        return [array for part in parts for array in part] + [np.sort(of.loose)]

    pairs = zip(arrays(saved), arrays(built), strict=True)
    return all(np.array_equal(np.asarray(one), np.asarray(other)) for one, other in pairs)


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
            ids = [str(one) for one, _ in same[:IDS_NAMED_MAX]]
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
            ids = [str(one) for one, _ in odd[:IDS_NAMED_MAX]]
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
            ids = [str(one) for one, _, _ in missing[:IDS_NAMED_MAX]]
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
            ids = violation.entity_ids[:IDS_NAMED_MAX]
            self._found.add(self._place, f"{named(ids, count)} {violation.problem}", REWRITE)


class _RowCounter:
    def __init__(self, found: Findings, name: str) -> None:
        self._found, self._name = found, name

    def __call__(self, batch: "pa.RecordBatch") -> None:
        self._found.count(self._name, batch.num_rows)


def _constraints_of(definition: TypeDef, kind: type[Any]) -> list[Any]:
    return [one for one in type_constraints(definition) if isinstance(one, kind)]
