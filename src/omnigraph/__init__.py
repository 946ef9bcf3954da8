"""Omnigraph: a typed property graph that lives in object storage.

Everything public can be imported from here: the ways to a graph (`init`, `open`, `connect`), what `Graph.write` takes,
results, and errors. Names whose modules `import omnigraph` does not need are imported on first use. `__all__` has what
every installation can import: not `OmnigraphDataSource` and `graph_frames`, which need pyspark.

graph/            init, open, Graph: the façade
api/              the interface GraphLike, and JSON documents
cli/              the command line
server/           the HTTP server
remote/           the HTTP client
pipeline/         operations over whole tables, here or on Spark
merge/            three-way merge, revert
diff/             differences between states, the change feed
gc/               garbage collection and recovery
maintenance/      fold, compaction, indexes
verify/           verification of everything stored
write/            the write path: mutations, loads, schema changes
read/             the query engine
manifest/         the state of a graph, and the commit protocol
storage/          object stores and Lance tables: all I/O
query/            the query language
schema/           the schema language and the types of a graph
errors/           every error a caller may see
lexer.py          tokens of both languages
cancellation.py   deadlines and cancellation
fair_share.py     time slices of long queries
memory_budget.py  the memory that one query may use
engine.py         where an operation runs: auto, local or spark
runtime.py        clock, random numbers and ids, as arguments
fork_safety.py    locks and caches after a fork
caches.py         LRU cache, with single-flight construction, and derived values
threads.py        calls in parallel, and a hook before a thread blocks
"""

from typing import TYPE_CHECKING, Any

from omnigraph.cancellation import Stopped
from omnigraph.errors import (
    AccessDenied,
    AlreadyExists,
    AnswerLost,
    BadRequest,
    BranchNotFound,
    ClockAhead,
    CommitNotFound,
    ConflictError,
    ConstraintViolation,
    CursorExpired,
    CursorRefused,
    Damaged,
    DiscardUnsettled,
    ExpectedVersionMismatch,
    Forbidden,
    HeadLost,
    InvalidInput,
    JobDiscarded,
    JobEnding,
    JobFailed,
    JobInputDiffers,
    JobLost,
    JobRunning,
    KeyReused,
    MergeBaseExpired,
    MergeConflict,
    MergeConflicts,
    NotAGraph,
    NotFound,
    OmnigraphError,
    OutcomeUnknown,
    PreconditionFailed,
    ReadOnly,
    RetriesExhausted,
    RevertConflicts,
    SchemaChangeRefused,
    SchemasDiverged,
    ServerUnreachable,
    SparkNotReady,
    StorageFull,
    TagNotFound,
    TooLarge,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    UnsupportedFormat,
    Violation,
)
from omnigraph.graph.graph import Graph, GraphSnapshot, TypeSummary, init, open
from omnigraph.graph.history import CommitDetails
from omnigraph.lexer import LanguageError
from omnigraph.maintenance.report import OptimizeResult
from omnigraph.manifest.branch.tags import Tag
from omnigraph.manifest.commit.plan import Append, Check, Delete, Overwrite, TableAction, Upsert
from omnigraph.manifest.commit.publish import PublishedCommit
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.history.log_graph import LoggedCommit
from omnigraph.manifest.model.manifest import Commit
from omnigraph.manifest.settings import Settings
from omnigraph.memory_budget import NoRoom, ProcessBusy
from omnigraph.pipeline.progress import Progress
from omnigraph.query.compile import ParameterError
from omnigraph.query.values import BadValue
from omnigraph.remote import connect
from omnigraph.schema.catalog import Catalog
from omnigraph.schema.consistency import InvalidCatalog
from omnigraph.storage.meter import Cost
from omnigraph.write.commit import Changes, Planner
from omnigraph.write.validate.checks import IdsAbsent, NodesExist, Unreferenced

if TYPE_CHECKING:
    from omnigraph.api.interface import BranchesLike, ChangesLike, GraphLike, SchemaLike, SnapshotLike, TagsLike
    from omnigraph.diff.changes import Explained, GraphChanges
    from omnigraph.diff.entity_changes import EntityChange
    from omnigraph.diff.feed import FeedChange, FeedPage
    from omnigraph.gc.cleanup import Cleaned
    from omnigraph.gc.mark import Overtaken
    from omnigraph.gc.recovery import Recovery
    from omnigraph.merge.merge import MergeResult
    from omnigraph.pipeline import OmnigraphDataSource as OmnigraphDataSource
    from omnigraph.pipeline import graph_frames as graph_frames
    from omnigraph.pipeline.analytics.analyze import Analysis
    from omnigraph.pipeline.embedding.embed import EmbedResult
    from omnigraph.read.export.export import Exported
    from omnigraph.read.result import QueryResult
    from omnigraph.read.search.embedding import Embedder, ProviderUnavailable
    from omnigraph.read.tables.read_cache import CacheCounts
    from omnigraph.remote.graph import RemoteGraph
    from omnigraph.schema.evolve.migration import MigrationPlan
    from omnigraph.verify.report import VerifyReport
    from omnigraph.write.load.input.load_input import TooLargeForProcess
    from omnigraph.write.load.load import LoadResult
    from omnigraph.write.migrate.migrate import SchemaApplied

__all__ = [
    "AccessDenied",
    "AlreadyExists",
    "Analysis",
    "AnswerLost",
    "Append",
    "BadRequest",
    "BadValue",
    "BranchNotFound",
    "BranchesLike",
    "CacheCounts",
    "Catalog",
    "Changes",
    "ChangesLike",
    "Check",
    "Cleaned",
    "ClockAhead",
    "Commit",
    "CommitDetails",
    "CommitNotFound",
    "ConflictError",
    "ConstraintViolation",
    "Cost",
    "CursorExpired",
    "CursorRefused",
    "Damaged",
    "Delete",
    "DiscardUnsettled",
    "EmbedResult",
    "Embedder",
    "EntityChange",
    "ExpectedVersionMismatch",
    "Explained",
    "Exported",
    "FeedChange",
    "FeedPage",
    "Forbidden",
    "Graph",
    "GraphChanges",
    "GraphLike",
    "GraphSnapshot",
    "HeadLost",
    "IdsAbsent",
    "InvalidCatalog",
    "InvalidInput",
    "JobDiscarded",
    "JobEnding",
    "JobFailed",
    "JobInputDiffers",
    "JobLost",
    "JobRunning",
    "KeyReused",
    "LanguageError",
    "LoadResult",
    "LoggedCommit",
    "MergeBaseExpired",
    "MergeConflict",
    "MergeConflicts",
    "MergeResult",
    "MigrationPlan",
    "NoRoom",
    "NodesExist",
    "NotAGraph",
    "NotFound",
    "OmnigraphError",
    "OptimizeResult",
    "OutcomeUnknown",
    "Overtaken",
    "Overwrite",
    "ParameterError",
    "Planner",
    "PreconditionFailed",
    "ProcessBusy",
    "Progress",
    "ProviderUnavailable",
    "PublishedCommit",
    "QueryResult",
    "ReadOnly",
    "Recovery",
    "RemoteGraph",
    "RetriesExhausted",
    "RevertConflicts",
    "SchemaApplied",
    "SchemaChangeRefused",
    "SchemaLike",
    "SchemasDiverged",
    "ServerUnreachable",
    "Settings",
    "SnapshotLike",
    "SparkNotReady",
    "Stopped",
    "StorageFull",
    "TableAction",
    "Tag",
    "TagNotFound",
    "TagsLike",
    "TooLarge",
    "TooLargeForProcess",
    "TooManyRequests",
    "TypeSummary",
    "Unauthorized",
    "Unavailable",
    "Unreferenced",
    "UnsupportedFormat",
    "Upsert",
    "VerifyReport",
    "Violation",
    "WriteTxn",
    "__version__",
    "connect",
    "init",
    "open",
]

__version__ = "0.1.0"

_LAZY = {
    "omnigraph.diff.changes": ("Explained", "GraphChanges"),
    "omnigraph.diff.entity_changes": ("EntityChange",),
    "omnigraph.diff.feed": ("FeedChange", "FeedPage"),
    "omnigraph.merge.merge": ("MergeResult",),
    "omnigraph.gc.cleanup": ("Cleaned",),
    "omnigraph.gc.mark": ("Overtaken",),
    "omnigraph.gc.recovery": ("Recovery",),
    "omnigraph.verify.report": ("VerifyReport",),
    "omnigraph.pipeline": ("OmnigraphDataSource", "graph_frames"),
    "omnigraph.pipeline.analytics.analyze": ("Analysis",),
    "omnigraph.pipeline.embedding.embed": ("EmbedResult",),
    "omnigraph.api.interface": ("BranchesLike", "ChangesLike", "GraphLike", "SchemaLike", "SnapshotLike", "TagsLike"),
    "omnigraph.read.tables.read_cache": ("CacheCounts",),
    "omnigraph.read.search.embedding": ("Embedder", "ProviderUnavailable"),
    "omnigraph.read.export.export": ("Exported",),
    "omnigraph.read.result": ("QueryResult",),
    "omnigraph.remote.graph": ("RemoteGraph",),
    "omnigraph.schema.evolve.migration": ("MigrationPlan",),
    "omnigraph.write.load.load": ("LoadResult",),
    "omnigraph.write.migrate.migrate": ("SchemaApplied",),
    "omnigraph.write.load.input.load_input": ("TooLargeForProcess",),
}
_MODULE_OF = {name: module for module, names in _LAZY.items() for name in names}

if not TYPE_CHECKING:  # a type checker would take any name for one that is there

    def __getattr__(name: str) -> Any:
        """Import a public name on first use."""
        module = _MODULE_OF.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = globals()[name] = getattr(import_module(module), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
