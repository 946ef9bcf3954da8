"""The public façade: `init`, `open` and `Graph`. Every operation is metered."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from omnigraph.engine import Engine
from omnigraph.errors import BadRequest
from omnigraph.graph.bulk import BulkCommands, MaintenanceCommands
from omnigraph.graph.history import HistoryCommands, TagCommands
from omnigraph.maintenance.background import Maintainer
from omnigraph.manifest.commit.plan import Check, TableAction
from omnigraph.manifest.commit.publish import PublishedCommit
from omnigraph.manifest.commit.txn import Snapshot, WriteTxn
from omnigraph.manifest.model.manifest import MAIN, CommitId, TxnId
from omnigraph.manifest.model.request_key import request_key
from omnigraph.manifest.repository import Repository, Visibility, init_repository, open_repository
from omnigraph.manifest.settings import Settings
from omnigraph.pipeline.compute import ComputeOptions, SparkProvider
from omnigraph.query.compile import compile_queries
from omnigraph.read.tables import scan as read_table
from omnigraph.schema.catalog import Catalog, Schema, catalog_from_json
from omnigraph.schema.lang.compile import compile_schema
from omnigraph.schema.lang.printer import print_schema
from omnigraph.storage import meter
from omnigraph.storage.meter import Cost
from omnigraph.write.commit import Changes, CommitOptions, OnConflict, PlannedWrite, Planner, content_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from omnigraph.merge.merge import MergeResult
    from omnigraph.read.result import QueryResult
    from omnigraph.read.tables.read_cache import CacheCounts, ReadCache
    from omnigraph.schema.evolve.migration import MigrationPlan
    from omnigraph.write.migrate.migrate import SchemaApplied

NO_PARAMS: Mapping[str, object] = {}


def init(
    uri: str | os.PathLike[str],
    schema: str | Catalog | Mapping[str, Any],
    storage_options: Mapping[str, str] | None = None,
    *,
    actor: str | None = None,
    settings: Settings | None = None,
) -> "Graph":
    """Create a graph from the text of a schema, or from a catalog; AlreadyExists if there is one at this URI."""
    if isinstance(schema, str):
        wanted = compile_schema(schema)
    else:
        wanted = Schema(schema if isinstance(schema, Catalog) else catalog_from_json(schema))
    with meter.operation("init") as operation:
        repository = init_repository(os.fspath(uri), wanted, storage_options, actor=actor, settings=settings)
    return Graph(repository, operation.cost)


def _require_text(gq: object) -> None:
    if not isinstance(gq, str):
        raise BadRequest(f"A query is text, not {type(gq).__name__}: give what a .gq file holds.")


def _schema_text(text: object) -> str:
    if not isinstance(text, str):
        raise BadRequest(f"A schema is text, not {type(text).__name__}: give what a .pg file holds.")
    return text


def open(
    uri: str | os.PathLike[str],
    storage_options: Mapping[str, str] | None = None,
    read_only: bool = False,
    *,
    settings: Settings | None = None,
) -> "Graph":
    """Open a graph. Nothing is written, and nothing needs repair, however its last writer ended.

    Without `settings` those of the environment apply, such as `OMNIGRAPH_INLINE_ROWS`.
    """
    with meter.operation("open") as operation:
        repository = open_repository(os.fspath(uri), storage_options, read_only=read_only, settings=settings)
    return Graph(repository, operation.cost)


@dataclass(frozen=True, slots=True)
class TypeSummary:
    """The facts about one type that a snapshot has without reading rows."""

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
    """`g.branches`: create, list, delete, merge."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository

    def create(
        self,
        name: str,
        from_: str = MAIN,
        at: str | datetime | None = None,
        *,
        actor: str | None = None,
        txn_id: TxnId | None = None,
    ) -> Cost:
        """Fork a branch from the head of another, or `at` an older state of it; returns the cost. Nothing is copied.

        `from_` may also be a commit or a tag.
        """
        self._repository.require_writable("Creating a branch")
        with meter.operation("branch_create") as operation:
            known = self._repository
            txn_id = request_key(txn_id, actor, "branch_create", name, from_, at)
            known.branches.create_once(
                name,
                lambda: known.find_state(from_) if at is None else known.snapshot(from_, at).manifest,
                actor,
                txn_id,
            )
        return operation.cost

    def list(self) -> list[str]:
        with meter.operation("branch_list"):
            return self._repository.branch_names()

    def delete(self, name: str, *, actor: str | None = None, txn_id: TxnId | None = None) -> Cost:
        self._repository.require_writable("Deleting a branch")
        with meter.operation("branch_delete") as operation:
            self._repository.branches.delete(name, actor, request_key(txn_id, actor, "branch_delete", name))
        return operation.cost

    def merge(
        self,
        source: str,
        into: str = MAIN,
        delete_branch: bool = False,
        dry_run: bool = False,
        *,
        actor: str | None = None,
        if_commit: CommitId | None = None,
        txn_id: TxnId | None = None,
        engine: Engine = "auto",
        spark: "SparkSession | None" = None,
        master: str | None = None,
    ) -> "MergeResult":
        """Merge a branch into another as one atomic commit, or raise all conflicts at once and change nothing."""
        from omnigraph.merge.merge import merge

        txn_id = request_key(txn_id, actor, "merge", source, into, delete_branch)
        with SparkProvider(ComputeOptions(engine, spark, master)) as provider:
            return merge(
                self._repository,
                source,
                into,
                delete_branch=delete_branch,
                dry_run=dry_run,
                actor=actor,
                if_commit=if_commit,
                txn_id=txn_id,
                engine=engine,
                runner=provider.runner,
            )


class SchemaCommands:
    """`g.schema`: what types the graph has, and how they change."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository

    def show(self, branch: str = MAIN, at: str | datetime | None = None) -> str:
        """The schema as text: the text that was applied, or one printed from the catalog."""
        with meter.operation("schema_show"):
            schema = self._repository.snapshot(branch, at).schema
        return schema.source or print_schema(schema.catalog)

    def plan(self, text: str, branch: str = MAIN, *, name: str = "schema.pg") -> "MigrationPlan":
        """The steps from the branch's schema to another one, checked against the stored rows; changes nothing."""
        from omnigraph.write.migrate.migrate import plan_schema

        return plan_schema(self._repository, _schema_text(text), branch=branch, name=name)

    def apply(
        self,
        text: str,
        allow_data_loss: bool = False,
        branch: str = MAIN,
        *,
        actor: str | None = None,
        if_commit: CommitId | None = None,
        txn_id: TxnId | None = None,
        name: str = "schema.pg",
    ) -> "SchemaApplied":
        """Change the branch's schema as one atomic commit; without a commit if nothing changes."""
        from omnigraph.write.migrate.migrate import apply_schema

        text = _schema_text(text)
        txn_id = request_key(txn_id, actor, "schema_apply", text, allow_data_loss, branch)
        return apply_schema(
            self._repository,
            text,
            allow_data_loss=allow_data_loss,
            branch=branch,
            actor=actor,
            if_commit=if_commit,
            txn_id=txn_id,
            name=name,
        )


class Graph(HistoryCommands, BulkCommands, MaintenanceCommands):
    """An open graph, usable from several threads.

    Its methods are in this class and in three bases that share no names and only use `repository`.
    """

    def __init__(self, repository: Repository, cost: Cost) -> None:
        self.repository = repository
        self.cost = cost  # of opening or making it
        self.branches = BranchCommands(repository)
        self.schema = SchemaCommands(repository)
        self.tags = TagCommands(repository)
        self.maintenance = Maintainer(repository)
        repository.before_write = self.maintenance.before_write
        repository.publisher.listeners.append(self.maintenance.on_commit)

    @property
    def uri(self) -> str:
        return self.repository.location.uri

    def snapshot(self, branch: str = MAIN, at: str | datetime | None = None) -> GraphSnapshot:
        """A pinned state: the head of a branch, or its state `at` a commit id or a time."""
        with meter.operation("snapshot") as operation:
            pinned = self.repository.snapshot(branch, at)
        return GraphSnapshot(pinned, self.repository, operation.cost)

    def query(
        self,
        gq: str,
        name: str | None = None,
        params: Mapping[str, object] | None = None,
        branch: str = MAIN,
        at: str | datetime | None = None,
        *,
        explain: bool = False,
        engine: Engine = "auto",
        spark: "SparkSession | None" = None,
        master: str | None = None,
        on_start: "Callable[[str], None] | None" = None,
    ) -> "QueryResult":
        """Run a read query at one pinned state; `name` may be left out where the text holds one query.

        `engine="auto"` runs here, and on Spark what outgrows this process. `spark` is a session of the caller's.
        """
        compute = ComputeOptions(engine, spark, master, on_start=on_start)
        _require_text(gq)
        from omnigraph.pipeline.compute import run_query_with
        from omnigraph.read.reader import ReadOptions, SnapshotReader

        options = ReadOptions(memory_bytes=self.repository.settings.query_bytes)
        with meter.operation("query") as operation:
            snapshot = self.repository.snapshot(branch, at)
            compiled = compile_queries(gq, snapshot.catalog, name, schema_hash=snapshot.manifest.schema)
            bound = compiled.bind_read(NO_PARAMS if params is None else params, now=self.repository.runtime.clock.now())
            reader = SnapshotReader(
                self.repository.tables, snapshot, self._read_caches, store=self.repository.store, options=options
            )
            result = run_query_with(compute, reader, self.repository.location, bound, explain=explain)
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
        """Run a mutation as one atomic commit; None if it changes nothing."""
        _require_text(gq)
        from omnigraph.write.mutate.mutate import Mutation, MutationText

        text = MutationText(gq, name, NO_PARAMS if params is None else params, self.repository.runtime.clock.now())
        if txn_id is not None:
            txn_id = request_key(txn_id, actor, "mutate", gq, name, text.params, branch)
        options = CommitOptions(branch, actor, if_commit, txn_id, on_conflict)
        return Mutation(self.repository, text, options).commit()

    @cached_property
    def _read_caches(self) -> "ReadCache":
        from omnigraph.read.tables.read_cache import ReadCache

        return ReadCache()

    @property
    def cache_counts(self) -> "CacheCounts":
        """Hits, misses and sizes of the read caches."""
        return self._read_caches.counts

    def begin(self, branch: str = MAIN) -> WriteTxn:
        """Pin a base: a write with it is committed only if nothing that it touches has changed since."""
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
        """Change rows of any number of types in one atomic commit; None if nothing changes."""
        planned = Changes(tuple(changes), tuple(checks)) if isinstance(changes, Sequence) else changes
        if txn_id is not None:
            txn_id = request_key(txn_id, actor, "write", branch, content_of(planned))
        options = CommitOptions(branch, actor, if_commit, txn_id, on_conflict)
        return PlannedWrite(self.repository, planned, options, txn=txn).commit()


def limit_graph(graph: Graph, visibility: Visibility) -> Graph:
    """The graph, with its caches, for somebody who may not see all of it."""
    repository = graph.repository.limit_to(visibility)
    limited = copy(graph)
    limited.repository = repository
    limited.branches, limited.schema = BranchCommands(repository), SchemaCommands(repository)
    limited.tags = TagCommands(repository)
    limited.__dict__["_read_caches"] = graph._read_caches  # made by the first who reads
    return limited
