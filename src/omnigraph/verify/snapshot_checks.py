"""One state of the graph: a manifest with all tables that it names, and the saved adjacency of its edges."""

from collections.abc import Iterator

from omnigraph.errors import BadRequest
from omnigraph.manifest.commit.txn import Snapshot
from omnigraph.manifest.model.manifest import Manifest
from omnigraph.manifest.repository import Repository
from omnigraph.schema.catalog import Schema, TypeDef
from omnigraph.schema.lang.compile import compile_schema
from omnigraph.verify.duckdb_scratch import ScratchDatabase
from omnigraph.verify.indexes import IndexChecks
from omnigraph.verify.lineage import schema_problems
from omnigraph.verify.report import NOTICE, REWRITE, Findings
from omnigraph.verify.rows import RowChecks
from omnigraph.verify.tables import TableChecks

REMOVE_ADJACENCY = "remove the file, or run `optimize`: queries that need it build it from the tables"
ADJACENCY_ROWS_MAX = 20_000_000  # edges and nodes, which are numbered in memory


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
