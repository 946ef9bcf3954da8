"""The façade as a protocol: `Graph` is it over a store, `RemoteGraph` over HTTP. Code that takes a `GraphLike` need
not know which.

What only makes sense inside one process is no part of it: `begin` and `write`, which take tables and functions, and
what `Graph` is made of. Types are named for readers and checkers only: nothing is imported when the program runs.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import IO, TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from omnigraph.diff.changes import Explained
    from omnigraph.diff.entity_changes import EntityChange
    from omnigraph.diff.feed import FeedChange, FeedPage
    from omnigraph.engine import Engine
    from omnigraph.gc.cleanup import Cleaned
    from omnigraph.gc.recovery import Recovery
    from omnigraph.graph.graph import TypeSummary
    from omnigraph.graph.history import CommitDetails
    from omnigraph.maintenance.report import OptimizeResult
    from omnigraph.manifest.branch.tags import Tag
    from omnigraph.manifest.commit.publish import PublishedCommit
    from omnigraph.manifest.history.log_graph import LoggedCommit
    from omnigraph.manifest.model.manifest import Commit, CommitId, TxnId
    from omnigraph.merge.merge import MergeResult
    from omnigraph.pipeline.analytics.analyze import Analysis
    from omnigraph.pipeline.analytics.spec import Algorithm, Direction
    from omnigraph.pipeline.embedding.embed import EmbedResult
    from omnigraph.pipeline.progress import Progress
    from omnigraph.read.export.export import Exported
    from omnigraph.read.export.export_formats import Format
    from omnigraph.read.result import QueryResult
    from omnigraph.read.search.embedding import Embedder
    from omnigraph.schema.evolve.migration import MigrationPlan
    from omnigraph.storage.meter import Cost
    from omnigraph.verify.report import VerifyReport
    from omnigraph.write.commit import OnConflict
    from omnigraph.write.load.input.load_input import Source
    from omnigraph.write.load.load import LoadResult
    from omnigraph.write.load.load_options import Mode, OnError
    from omnigraph.write.migrate.migrate import SchemaApplied

MAIN = "main"


class SnapshotLike(Protocol):
    """A pinned state: later commits do not show in it."""

    @property
    def branch(self) -> str: ...
    @property
    def commit_id(self) -> "CommitId": ...
    @property
    def manifest_version(self) -> int: ...
    @property
    def types(self) -> "list[TypeSummary]": ...
    @property
    def cost(self) -> "Cost": ...
    def to_arrow(
        self, table_key: str, columns: Sequence[str] | None = None, filter: str | None = None
    ) -> "pa.Table": ...
    def lookup(self, table_key: str, ids: Iterable[str], columns: Sequence[str] | None = None) -> "pa.Table": ...


class ChangesLike(Protocol):
    """Changes between two states, read while they are iterated; `next_page`, `explained` and `cost` count then."""

    @property
    def from_commit(self) -> "CommitId": ...
    @property
    def to_commit(self) -> "CommitId": ...
    @property
    def schema_changed(self) -> bool: ...
    @property
    def next_page(self) -> str | None: ...
    @property
    def explained(self) -> "Explained": ...
    @property
    def cost(self) -> "Cost": ...
    def __iter__(self) -> "Iterator[EntityChange]": ...


class BranchesLike(Protocol):
    """`g.branches`."""

    def create(
        self,
        name: str,
        from_: str = MAIN,
        at: str | datetime | None = None,
        *,
        actor: str | None = None,
        txn_id: "TxnId | None" = None,
    ) -> "Cost": ...
    def delete(self, name: str, *, actor: str | None = None, txn_id: "TxnId | None" = None) -> "Cost": ...
    def merge(
        self,
        source: str,
        into: str = MAIN,
        delete_branch: bool = False,
        dry_run: bool = False,
        *,
        actor: str | None = None,
        if_commit: "CommitId | None" = None,
        txn_id: "TxnId | None" = None,
        engine: "Engine" = "auto",
        spark: "SparkSession | None" = None,
        master: str | None = None,
    ) -> "MergeResult": ...
    def list(self) -> list[str]: ...


class SchemaLike(Protocol):
    """`g.schema`."""

    def show(self, branch: str = MAIN, at: str | datetime | None = None) -> str: ...
    def plan(self, text: str, branch: str = MAIN, *, name: str = "schema.pg") -> "MigrationPlan": ...
    def apply(
        self,
        text: str,
        allow_data_loss: bool = False,
        branch: str = MAIN,
        *,
        actor: str | None = None,
        if_commit: "CommitId | None" = None,
        txn_id: "TxnId | None" = None,
        name: str = "schema.pg",
    ) -> "SchemaApplied": ...


class TagsLike(Protocol):
    """`g.tags`."""

    def create(
        self,
        name: str,
        commit: str | None = None,
        *,
        branch: str = MAIN,
        actor: str | None = None,
        txn_id: "TxnId | None" = None,
    ) -> "Tag": ...
    def delete(self, name: str) -> None: ...
    def list(self) -> "list[Tag]": ...


class GraphLike(Protocol):
    """A graph, wherever it is."""

    @property
    def uri(self) -> str: ...
    @property
    def branches(self) -> BranchesLike: ...
    @property
    def schema(self) -> SchemaLike: ...
    @property
    def tags(self) -> TagsLike: ...

    def snapshot(self, branch: str = MAIN, at: str | datetime | None = None) -> SnapshotLike: ...
    def query(
        self,
        gq: str,
        name: str | None = None,
        params: Mapping[str, object] | None = None,
        branch: str = MAIN,
        at: str | datetime | None = None,
        *,
        explain: bool = False,
        engine: "Engine" = "auto",
        spark: "SparkSession | None" = None,
        master: str | None = None,
        on_start: Callable[[str], None] | None = None,
    ) -> "QueryResult": ...
    def mutate(
        self,
        gq: str,
        name: str | None = None,
        params: Mapping[str, object] | None = None,
        branch: str = MAIN,
        actor: str | None = None,
        if_commit: "CommitId | None" = None,
        on_conflict: "OnConflict" = "retry",
        *,
        txn_id: "TxnId | None" = None,
    ) -> "PublishedCommit | None": ...

    # History

    def commits(
        self,
        branch: str = MAIN,
        limit: int | None = 50,
        actor: str | None = None,
        *,
        kind: str | None = None,
        types: Iterable[str] = (),
        maintenance: bool = False,
        at: str | datetime | None = None,
    ) -> "list[Commit]": ...
    def commit_graph(
        self, branches: Iterable[str] | None = None, limit: int | None = 50, *, maintenance: bool = False
    ) -> "list[LoggedCommit]": ...
    def commit(self, commit_id: "CommitId") -> "Commit": ...
    def commit_details(self, commit_id: "CommitId") -> "CommitDetails": ...
    def changes(
        self,
        a: str,
        b: str,
        kinds: Iterable[str] | None = None,
        types: Iterable[str] | None = None,
        operations: Iterable[str] | None = None,
        *,
        limit: int | None = None,
        page: str | None = None,
        branch: str = MAIN,
    ) -> ChangesLike: ...
    def commit_changes(
        self,
        commit_id: "CommitId",
        kinds: Iterable[str] | None = None,
        types: Iterable[str] | None = None,
        operations: Iterable[str] | None = None,
        *,
        limit: int | None = None,
        page: str | None = None,
    ) -> ChangesLike: ...
    def poll_changes(
        self, cursor: str | None = None, start: str | None = None, limit: int = 1000, branch: str | None = None
    ) -> "FeedPage": ...
    def follow_changes(
        self, cursor: str | None = None, start: str | None = None, branch: str | None = None
    ) -> "Iterator[FeedChange]": ...
    def revert(
        self,
        commit_id: "CommitId",
        branch: str = MAIN,
        *,
        actor: str | None = None,
        if_commit: "CommitId | None" = None,
        txn_id: "TxnId | None" = None,
    ) -> "PublishedCommit | None": ...

    # Data of any size

    def load(
        self,
        source: "Source",
        mode: "Mode" = "append",
        branch: str = MAIN,
        engine: "Engine" = "auto",
        spark: "SparkSession | None" = None,
        on_error: "OnError" = "fail",
        *,
        from_: str | None = None,
        type: str | None = None,
        job_id: str | None = None,
        max_errors: int | None = None,
        actor: str | None = None,
        if_commit: "CommitId | None" = None,
        txn_id: "TxnId | None" = None,
        master: str | None = None,
        progress: "Progress | None" = None,
    ) -> "LoadResult": ...
    def export(
        self,
        dest: "str | os.PathLike[str] | IO[bytes]",
        branch: str = MAIN,
        at: str | datetime | None = None,
        types: Sequence[str] | None = None,
        engine: "Engine" = "auto",
        *,
        format: "Format | None" = None,
        overwrite: bool = False,
        storage_options: Mapping[str, str] | None = None,
        spark: "SparkSession | None" = None,
        master: str | None = None,
        progress: "Progress | None" = None,
    ) -> "Exported": ...
    def analyze(
        self,
        algorithm: "Algorithm",
        edges: Sequence[str] | None = None,
        write: str | None = None,
        engine: "Engine" = "auto",
        *,
        direction: "Direction | None" = None,
        damping: float = 0.85,
        tolerance: float = 1e-6,
        iterations: int = 100,
        branch: str = MAIN,
        at: str | datetime | None = None,
        limit: int | None = 20,
        spark: "SparkSession | None" = None,
        master: str | None = None,
        actor: str | None = None,
        if_commit: "CommitId | None" = None,
        txn_id: "TxnId | None" = None,
    ) -> "Analysis": ...
    def embed(
        self,
        type: str | None = None,
        property: str | None = None,
        branch: str = MAIN,
        *,
        batch: int = 128,
        commit_every: int | None = 100,
        rate_limit: float | None = None,
        concurrency: int = 4,
        dry_run: bool = False,
        price_per_1k: float | None = None,
        engine: "Engine" = "local",
        spark: "SparkSession | None" = None,
        master: str | None = None,
        actor: str | None = None,
        embedder: "Embedder | None" = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> "EmbedResult": ...

    # Maintenance

    def optimize(
        self,
        branch: str = MAIN,
        types: Sequence[str] | None = None,
        engine: "Engine" = "auto",
        spark: "SparkSession | None" = None,
        master: str | None = None,
        *,
        actor: str | None = None,
    ) -> "OptimizeResult": ...
    def cleanup(
        self,
        older_than: "str | timedelta" = "7d",
        keep: int = 10,
        dry_run: bool = True,
        *,
        intent_ttl: "str | timedelta" = "7d",
        actor: str | None = None,
    ) -> "Cleaned": ...
    def recover(
        self, complete: Sequence[str] = (), discard: Sequence[str] = (), *, all: bool = False
    ) -> "Recovery": ...
    def verify(self, branch: str | None = None, *, full: bool = False, seed: int = 0) -> "VerifyReport": ...
