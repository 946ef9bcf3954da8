"""The public façade: `init`, `open`, `Graph`. Every capability in one place, every verb metered."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from itertools import islice
from typing import IO, TYPE_CHECKING, Any

from omnigraph.errors import BadRequest
from omnigraph.manifest.history import find_commit, log
from omnigraph.manifest.model import MAIN, Commit, CommitId, TxnId
from omnigraph.manifest.plan import Check, TableAction
from omnigraph.manifest.publish import PublishedCommit
from omnigraph.manifest.repository import Repository, init_repository, open_repository
from omnigraph.manifest.txn import Snapshot, WriteTxn
from omnigraph.query.compile import compile_queries
from omnigraph.read import table as read_table
from omnigraph.schema.catalog import Catalog, Schema, catalog_from_json
from omnigraph.schema.compile import compile_schema
from omnigraph.schema.printer import print_schema
from omnigraph.storage import meter
from omnigraph.storage.meter import Cost
from omnigraph.write.commit import Changes, OnConflict, Planner, commit_changes

if TYPE_CHECKING:
    import pyarrow as pa

    from omnigraph.query.ir import MutationQuery
    from omnigraph.read.caches import ReadCaches
    from omnigraph.read.export import Exported
    from omnigraph.read.result import QueryResult
    from omnigraph.write.load import Engine, LoadResult, OnError
    from omnigraph.write.modes import Mode
    from omnigraph.write.ndjson import Source

NO_PARAMS: Mapping[str, object] = {}


def init(
    uri: str | os.PathLike[str],
    schema: str | Catalog | Mapping[str, Any],
    storage_options: Mapping[str, str] | None = None,
    *,
    actor: str | None = None,
) -> "Graph":
    """Make a graph from the text of a schema, or a catalog; refuses a place that holds one."""
    wanted = compile_schema(schema) if isinstance(schema, str) else Schema(_catalog(schema))
    with meter.operation("init") as operation:
        repository = init_repository(os.fspath(uri), wanted, storage_options, actor=actor)
    return Graph(repository, operation.cost)


def _require_text(gq: object) -> None:
    if not isinstance(gq, str):
        raise BadRequest(f"A query is text, not {type(gq).__name__}: give what a .gq file holds.")


def _catalog(schema: Catalog | Mapping[str, Any]) -> Catalog:
    return schema if isinstance(schema, Catalog) else catalog_from_json(schema)


def open(
    uri: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None, read_only: bool = False
) -> "Graph":
    """Open a graph. Nothing is written and nothing needs repair, however its last writer ended."""
    with meter.operation("open") as operation:
        repository = open_repository(os.fspath(uri), storage_options, read_only=read_only)
    return Graph(repository, operation.cost)


@dataclass(frozen=True, slots=True)
class TypeSummary:
    """What a snapshot knows of one type without reading its rows."""

    type_name: str
    kind: str
    rows: int
    changed_at: CommitId | None


@dataclass(frozen=True, slots=True)
class GraphSnapshot:
    """A pinned state of the graph: later commits do not show in it."""

    pinned: Snapshot
    repository: Repository = field(repr=False)
    cost: Cost = field(default_factory=Cost)

    @property
    def branch(self) -> str:
        return self.pinned.manifest.branch

    @property
    def commit_id(self) -> CommitId:
        return self.pinned.commit_id

    @property
    def manifest_version(self) -> int:
        return self.pinned.manifest.manifest_version

    @property
    def types(self) -> list[TypeSummary]:
        refs = self.pinned.manifest.tables
        return [
            TypeSummary(
                definition.name,
                definition.kind,
                refs[definition.table_key].rows if definition.table_key in refs else 0,
                refs[definition.table_key].changed_at if definition.table_key in refs else None,
            )
            for definition in self.pinned.catalog.types
        ]

    def to_arrow(self, table_key: str, columns: Sequence[str] | None = None, filter: str | None = None) -> "pa.Table":
        """The rows of one type, such as `node:Person`."""
        with meter.operation("scan"):
            return read_table.scan(self.repository.tables, self.pinned, table_key, columns, filter)

    def lookup(self, table_key: str, ids: Iterable[str], columns: Sequence[str] | None = None) -> "pa.Table":
        """The rows of one type that have these ids."""
        with meter.operation("lookup"):
            return read_table.lookup(self.repository.tables, self.pinned, table_key, ids, columns)


class BranchCommands:
    """`g.branches`: create, list, delete."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository

    def create(self, name: str, from_: str = MAIN, *, actor: str | None = None) -> Cost:
        """Fork a branch: nothing is copied, whatever the size. Answers what it cost."""
        self._repository.require_writable("Creating a branch")
        with meter.operation("branch_create") as operation:
            fork = self._repository.branches.find(from_).head
            self._repository.branches.create(name, fork, actor)
        return operation.cost

    def list(self) -> list[str]:
        with meter.operation("branch_list"):
            return self._repository.branches.names()

    def delete(self, name: str, *, actor: str | None = None) -> Cost:
        self._repository.require_writable("Deleting a branch")
        with meter.operation("branch_delete") as operation:
            self._repository.branches.delete(name, actor)
        return operation.cost


class SchemaCommands:
    """`g.schema`: what types the graph has."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository

    def show(self, branch: str = MAIN, at: str | datetime | None = None) -> str:
        """The schema as text: as it was given, or printed from the catalog that was."""
        with meter.operation("schema_show"):
            schema = self._repository.snapshot(branch, at).schema
        return schema.source or print_schema(schema.catalog)


class Graph:
    """An open graph. Usable from threads; opening it again elsewhere is as good as sharing it."""

    def __init__(self, repository: Repository, cost: Cost) -> None:
        self.repository = repository
        self.cost = cost  # of opening or making it
        self.branches = BranchCommands(repository)
        self.schema = SchemaCommands(repository)

    @property
    def uri(self) -> str:
        return self.repository.location.uri

    def snapshot(self, branch: str = MAIN, at: str | datetime | None = None) -> GraphSnapshot:
        """What is there: at the head of a branch, or `at` a commit id or a time."""
        with meter.operation("snapshot") as operation:
            pinned = self.repository.snapshot(branch, at)
        return GraphSnapshot(pinned, self.repository, operation.cost)

    def commits(
        self, branch: str = MAIN, limit: int | None = 50, actor: str | None = None, *, maintenance: bool = False
    ) -> list[Commit]:
        """The commits of a branch, newest first, on through its fork point."""
        if limit is not None and limit < 0:
            raise BadRequest(f"A limit of {limit} makes no sense: give 0 or more.")
        with meter.operation("commits"):
            wanted = None if limit is None else min(limit, sys.maxsize)
            return list(islice(self._log(branch, actor, maintenance), wanted))

    def commit(self, commit_id: CommitId) -> Commit:
        with meter.operation("commit_show"):
            return find_commit(self.repository.manifests, commit_id)[1]

    def query(
        self,
        gq: str,
        name: str | None = None,
        params: Mapping[str, object] | None = None,
        branch: str = MAIN,
        at: str | datetime | None = None,
        *,
        explain: bool = False,
    ) -> "QueryResult":
        """Run a read query at one pinned state; `name` may be left out where the text holds one query."""
        _require_text(gq)
        from omnigraph.read.run import run_query
        from omnigraph.read.state import Reader

        with meter.operation("query") as operation:
            snapshot = self.repository.snapshot(branch, at)
            compiled = compile_queries(gq, snapshot.catalog, name, schema_hash=snapshot.manifest.schema)
            bound = compiled.bind_read(NO_PARAMS if params is None else params, now=self.repository.runtime.clock.now())
            reader = Reader(self.repository.tables, snapshot, self._read_caches, store=self.repository.store)
            result = run_query(reader, bound, explain=explain)
        result.branch, result.query, result.cost = branch, compiled.name, operation.cost
        return result

    def mutate(
        self,
        gq: str,
        name: str | None = None,
        params: Mapping[str, object] | None = None,
        branch: str = MAIN,
        actor: str | None = None,
        if_commit: CommitId | None = None,
        on_conflict: OnConflict = "retry",
        *,
        txn_id: TxnId | None = None,
    ) -> PublishedCommit | None:
        """Run a mutation as one atomic commit; None where it changes nothing."""
        _require_text(gq)
        from omnigraph.write.mutate import mutate

        now = self.repository.runtime.clock.now()

        def prepared(txn: WriteTxn) -> "MutationQuery":
            compiled = compile_queries(gq, txn.catalog, name, schema_hash=txn.base.schema)
            return compiled.bind_mutation(NO_PARAMS if params is None else params, now=now)

        return mutate(
            self.repository,
            prepared,
            branch=branch,
            actor=actor,
            if_commit=if_commit,
            txn_id=txn_id,
            on_conflict=on_conflict,
        )

    def load(
        self,
        source: "Source",
        mode: "Mode" = "append",
        branch: str = MAIN,
        engine: "Engine" = "auto",
        on_error: "OnError" = "fail",
        *,
        from_: str | None = None,
        max_errors: int | None = None,
        actor: str | None = None,
        if_commit: CommitId | None = None,
        txn_id: TxnId | None = None,
    ) -> "LoadResult":
        """Load entities of any number of types as one atomic commit."""
        from omnigraph.write.load import load

        return load(
            self.repository,
            source,
            mode=mode,
            branch=branch,
            engine=engine,
            on_error=on_error,
            from_=from_,
            max_errors=max_errors,
            actor=actor,
            if_commit=if_commit,
            txn_id=txn_id,
        )

    def export(
        self,
        dest: "str | os.PathLike[str] | IO[bytes]",
        branch: str = MAIN,
        at: str | datetime | None = None,
        types: Sequence[str] | None = None,
    ) -> "Exported":
        """Write the entities of a state as NDJSON, ordered by type and id, so that loading them gives the same."""
        from omnigraph.read.export import export

        with meter.operation("export"):
            return export(self.repository.tables, self.repository.snapshot(branch, at), dest, types)

    @cached_property
    def _read_caches(self) -> "ReadCaches":
        from omnigraph.read.caches import ReadCaches

        return ReadCaches()

    def begin(self, branch: str = MAIN) -> WriteTxn:
        """Hold a base: what is written with it lands only if nothing it touches has changed since."""
        self.repository.require_writable("Writing")
        with meter.operation("begin"):
            return self.repository.open_txn(branch)

    def write(
        self,
        changes: Sequence[TableAction] | Changes | Planner,
        *,
        checks: Sequence[Check] = (),
        branch: str = MAIN,
        txn: WriteTxn | None = None,
        actor: str | None = None,
        if_commit: CommitId | None = None,
        txn_id: TxnId | None = None,
        on_conflict: OnConflict = "retry",
    ) -> PublishedCommit | None:
        """Change rows of any number of types in one atomic commit; None where nothing changes."""
        planned = Changes(tuple(changes), tuple(checks)) if isinstance(changes, Sequence) else changes
        return commit_changes(
            self.repository,
            planned,
            branch=branch,
            txn=txn,
            actor=actor,
            if_commit=if_commit,
            txn_id=txn_id,
            on_conflict=on_conflict,
        )

    def _log(self, branch: str, actor: str | None, maintenance: bool) -> Iterator[Commit]:
        head = self.repository.branches.find(branch).head
        for _, commit in log(self.repository.manifests, head, maintenance=maintenance):
            if actor is None or commit.actor == actor:
                yield commit
