"""States of the graph: one manifest with all tables that it names."""

from collections.abc import Iterator

from omnigraph.errors import BadRequest
from omnigraph.manifest.commit.txn import Snapshot
from omnigraph.manifest.model.manifest import Manifest
from omnigraph.manifest.repository import Repository
from omnigraph.schema.catalog import Schema
from omnigraph.schema.lang.compile import compile_schema
from omnigraph.verify.adjacency import check_adjacency
from omnigraph.verify.duckdb_scratch import ScratchDatabase
from omnigraph.verify.indexes import IndexChecks
from omnigraph.verify.lineage import schema_problems
from omnigraph.verify.report import REWRITE, Findings
from omnigraph.verify.rows import RowChecks
from omnigraph.verify.tables import TableChecks


class SnapshotChecks:
    def __init__(self, repository: Repository, query: ScratchDatabase, *, full: bool, seed: int) -> None:
        self._repository = repository
        self._tables = TableChecks(repository, full=full, seed=seed)
        self._rows = RowChecks(repository.tables, query, full=full)
        self._indexes = IndexChecks(repository.tables, query, full=full, seed=seed)

    def check_schema(self, found: Findings, where: str, manifest: Manifest) -> Schema | None:
        """The schema of a manifest, which exists, is what its name promises, and compiles."""
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
        """The text is what people read; the catalog beside it is what counts."""
        try:
            names = {one.name for one in compile_schema(schema.source).catalog.types} if schema.source else None
        except BadRequest as error:
            found.add(where, f"the text of schema {schema.hash} does not compile: {error}", REWRITE)
            return
        if names is not None and names != {one.name for one in schema.catalog.types}:
            found.add(where, f"the text of schema {schema.hash} has other types than its catalog", REWRITE)

    def check(self, found: Findings, where: str, manifest: Manifest, *, rows: bool) -> None:
        """All tables of a manifest; with `rows` also what is in them, and what indexes make of it."""
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
                check_adjacency(found, self._repository, snapshot, definition)


def _ends(snapshot: Snapshot, key: str) -> Iterator[str]:
    """The node tables of an edge type that have rows at all."""
    definition = snapshot.catalog.by_key[key]
    for node in (definition.source, definition.target):
        if f"node:{node}" in snapshot.manifest.tables:
            yield f"node:{node}"
