"""Omnigraph: a typed property graph that lives in object storage.

Everything public can be imported from here: the ways to a graph (`init`, `open`, `connect`), what `Graph.write` takes,
results, and errors. Names whose modules `import omnigraph` does not need are imported on first use. `__all__` has what
every installation can import: not `OmnigraphDataSource` and `graph_frames`, which need pyspark.
"""

from typing import TYPE_CHECKING, Any

from omnigraph.branch.commands import CommitDetails
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
from omnigraph.graph import Graph, GraphSnapshot, TypeSummary, init, open
from omnigraph.lexing import LanguageError
from omnigraph.maintain.report import OptimizeResult
from omnigraph.manifest.graph_log import LoggedCommit
from omnigraph.manifest.model import Commit
from omnigraph.manifest.plan import Append, Check, Delete, Overwrite, TableAction, Upsert
from omnigraph.manifest.publish import PublishedCommit
from omnigraph.manifest.settings import Settings
from omnigraph.manifest.tags import Tag
from omnigraph.manifest.txn import WriteTxn
from omnigraph.query.bind import ParameterError
from omnigraph.remote import connect
from omnigraph.schema.catalog import Catalog
from omnigraph.schema.consistency import InvalidCatalog
from omnigraph.storage.meter import Cost
from omnigraph.write.checks import IdsAbsent, NodesExist, Unreferenced
from omnigraph.write.commit import Changes, Planner

if TYPE_CHECKING:
    from omnigraph.branch.changes import Explained, GraphChanges
    from omnigraph.branch.entities import EntityChange
    from omnigraph.branch.feed import FeedChange, FeedPage
    from omnigraph.branch.merge import MergeResult
    from omnigraph.maintain.cleanup import Cleaned
    from omnigraph.maintain.recovery import Recovery
    from omnigraph.maintain.verifying.report import VerifyReport
    from omnigraph.pipeline import OmnigraphDataSource as OmnigraphDataSource
    from omnigraph.pipeline import graph_frames as graph_frames
    from omnigraph.pipeline.analytics.analyze import Analysis
    from omnigraph.pipeline.embedding.embed import EmbedResult
    from omnigraph.pipeline.progress import Progress
    from omnigraph.protocol import BranchesLike, ChangesLike, GraphLike, SchemaLike, SnapshotLike, TagsLike
    from omnigraph.read.caches import CacheCounts
    from omnigraph.read.embedding import Embedder, ProviderUnavailable
    from omnigraph.read.export import Exported
    from omnigraph.read.result import QueryResult
    from omnigraph.remote.graph import RemoteGraph
    from omnigraph.schema.migration import MigrationPlan
    from omnigraph.write.load import LoadResult
    from omnigraph.write.migrate import SchemaApplied
    from omnigraph.write.ndjson import TooLargeForProcess

__all__ = [
    "AccessDenied",
    "AlreadyExists",
    "Analysis",
    "AnswerLost",
    "Append",
    "BadRequest",
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
    "LanguageError",
    "LoadResult",
    "LoggedCommit",
    "MergeBaseExpired",
    "MergeConflict",
    "MergeConflicts",
    "MergeResult",
    "MigrationPlan",
    "NodesExist",
    "NotAGraph",
    "NotFound",
    "OmnigraphError",
    "OptimizeResult",
    "OutcomeUnknown",
    "Overwrite",
    "ParameterError",
    "Planner",
    "PreconditionFailed",
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
    "omnigraph.branch.changes": ("Explained", "GraphChanges"),
    "omnigraph.branch.entities": ("EntityChange",),
    "omnigraph.branch.feed": ("FeedChange", "FeedPage"),
    "omnigraph.branch.merge": ("MergeResult",),
    "omnigraph.maintain.cleanup": ("Cleaned",),
    "omnigraph.maintain.recovery": ("Recovery",),
    "omnigraph.maintain.verifying.report": ("VerifyReport",),
    "omnigraph.pipeline": ("OmnigraphDataSource", "graph_frames"),
    "omnigraph.pipeline.analytics.analyze": ("Analysis",),
    "omnigraph.pipeline.embedding.embed": ("EmbedResult",),
    "omnigraph.pipeline.progress": ("Progress",),
    "omnigraph.protocol": ("BranchesLike", "ChangesLike", "GraphLike", "SchemaLike", "SnapshotLike", "TagsLike"),
    "omnigraph.read.caches": ("CacheCounts",),
    "omnigraph.read.embedding": ("Embedder", "ProviderUnavailable"),
    "omnigraph.read.export": ("Exported",),
    "omnigraph.read.result": ("QueryResult",),
    "omnigraph.remote.graph": ("RemoteGraph",),
    "omnigraph.schema.migration": ("MigrationPlan",),
    "omnigraph.write.load": ("LoadResult",),
    "omnigraph.write.migrate": ("SchemaApplied",),
    "omnigraph.write.ndjson": ("TooLargeForProcess",),
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
