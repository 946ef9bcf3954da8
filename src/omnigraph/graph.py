"""The public façade: `init`, `open`, `Graph`. Every capability in one place, every verb metered."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from omnigraph.errors import BadRequest
from omnigraph.manifest.history import find_commit, log
from omnigraph.manifest.model import MAIN, Commit, CommitId, TxnId
from omnigraph.manifest.plan import Check, TableAction
from omnigraph.manifest.publish import PublishedCommit
from omnigraph.manifest.repository import Repository, init_repository, open_repository
from omnigraph.manifest.txn import Snapshot, WriteTxn
from omnigraph.read import table as read_table
from omnigraph.schema.catalog import Catalog, Schema, catalog_from_json
from omnigraph.storage import meter
from omnigraph.storage.meter import Cost
from omnigraph.write.commit import Changes, OnConflict, Planner, commit_changes

if TYPE_CHECKING:
    import pyarrow as pa


def init(
    uri: str | os.PathLike[str],
    schema: Catalog | Mapping[str, Any],
    storage_options: Mapping[str, str] | None = None,
    *,
    actor: str | None = None,
) -> "Graph":
    """Make a graph from a catalog, a value or its stored JSON form; refuses a place that holds one."""
    catalog = schema if isinstance(schema, Catalog) else catalog_from_json(schema)
    with meter.operation("init") as operation:
        repository = init_repository(os.fspath(uri), Schema(catalog), storage_options, actor=actor)
    return Graph(repository, operation.cost)


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


class Graph:
    """An open graph. Usable from threads; opening it again elsewhere is as good as sharing it."""

    def __init__(self, repository: Repository, cost: Cost) -> None:
        self.repository = repository
        self.cost = cost  # of opening or making it
        self.branches = BranchCommands(repository)

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
