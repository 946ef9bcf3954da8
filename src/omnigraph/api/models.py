"""The wire models of all responses: what `--json` prints, the server sends, OpenAPI describes and the client reads.

What a document lacks is left at what a result has without it: the transaction id of a commit that somebody else made,
for one. Times have the millisecond that documents give them.
"""

from datetime import UTC, datetime
from typing import Any, Literal

from omnigraph.api.wire_model import AS_IS, Converter, Document, WireModel, class_named, derived, member
from omnigraph.schema.evolve.migration_step import StepKind


def iso_time(moment: datetime) -> str:
    """A time as everywhere on the surface: UTC, to the millisecond."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def _enum(full_name: str) -> Converter:
    """A string enumeration, which is imported where a document is decoded."""
    return Converter(lambda member: member.value, lambda text: class_named(full_name)(text))


TIME = Converter(iso_time, parse_time)


class CostEntry(WireModel, openapi_name="Cost", result="omnigraph.storage.meter.Cost"):
    requests: int
    stages: int
    bytes: int
    retries: int


# Commits


class TouchCounts(WireModel, openapi_name="Touch", result="omnigraph.manifest.model.manifest.RowCounts"):
    """Counts of rows; those that are 0 are left out."""

    inserted: int = member(omit_empty=True)
    updated: int = member(omit_empty=True)
    deleted: int = member(omit_empty=True)


class CommitMade(WireModel):
    id: str  # no `result`: the client decodes it with what it knows of the request
    manifest_version: int
    branch: str
    parent: str | None = derived("commit.parent")
    actor: str | None = derived("commit.actor")
    kind: str = derived("commit.kind")
    touched: dict[str, TouchCounts] = derived("commit.touched")


class MergeCommitMade(CommitMade):
    merged_parent: str | None = derived("commit.merged_parent")


class WriteAnswer(WireModel):
    """`commit` is null where nothing changed."""

    commit: CommitMade | None
    cost: CostEntry


class RecoveredEntry(WireModel, openapi_name="Recovered", result="omnigraph.manifest.model.manifest.Recovered"):
    """The abandoned write that this commit completed or discarded."""

    txn_id: str
    kind: str
    actor: str | None
    outcome: str


class CommitEntry(WireModel, openapi_name="LoggedCommit", result="omnigraph.manifest.model.manifest.Commit", txn_id=""):
    id: str
    parent: str | None
    merged_parent: str | None
    actor: str | None
    authored_at: str = member(via=TIME)
    kind: str
    class_: str = member("commit_class", key="class", via=_enum("omnigraph.manifest.model.manifest.CommitClass"))
    touched: dict[str, TouchCounts]
    recovered: RecoveredEntry | None = member(omit_empty=True)


class CommitsAnswer(WireModel):
    commits: list[CommitEntry]


class CommitAnswer(WireModel, result="omnigraph.graph.history.CommitDetails"):
    commit: CommitEntry
    branch: str
    manifest_version: int
    schema_changed: bool | None
    expired: bool


class CommitInGraph(WireModel, result="omnigraph.manifest.history.log_graph.LoggedCommit"):
    """What a graph of commits adds to each."""

    branch: str
    parents: list[str]

    @classmethod
    def encode(cls, value: Any = None, **given: Any) -> dict[str, Any]:
        return CommitEntry.encode(value.commit) | super().encode(value, **given)

    @classmethod
    def decode(cls, document: Document, **given: Any) -> Any:
        return super().decode(document, commit=CommitEntry.decode(document), **given)


class CommitGraphAnswer(WireModel):
    commits: list[CommitInGraph]


class TagEntry(WireModel, result="omnigraph.manifest.branch.tags.Tag", txn_id=""):
    name: str
    commit_id: str
    created_at: str = member(via=TIME)
    actor: str | None


class TagsAnswer(WireModel):
    tags: list[TagEntry]


class TagAnswer(WireModel):
    tag: TagEntry


class TagGone(WireModel):
    tag: str


# Branches


class BranchesAnswer(WireModel):
    branches: list[str]


class BranchAnswer(WireModel):
    branch: str
    cost: CostEntry


class MergeConflictEntry(WireModel, result="omnigraph.errors.MergeConflict"):
    entity_kind: Literal["node", "edge"]
    type_name: str
    entity_id: str
    kind: Literal[
        "DivergentInsert",
        "DivergentUpdate",
        "DeleteVsUpdate",
        "OrphanEdge",
        "UniqueViolation",
        "CardinalityViolation",
        "ValueConstraintViolation",
    ]
    message: str


class MergeAnswer(WireModel, result="omnigraph.merge.merge.MergeResult"):
    """`conflicts` are those that a dry run found."""

    source: str
    into: str
    outcome: str = member(via=_enum("omnigraph.merge.plan.MergeOutcome"))
    dry_run: bool
    types: dict[str, TouchCounts]
    conflicts: list[MergeConflictEntry]
    deleted: bool
    not_deleted: str | None
    commit: MergeCommitMade | None
    cost: CostEntry


# Changes


class Change(WireModel):
    """One node or edge; `before` and `after` have its values, null where it was not or is not any more."""

    operation: Literal["insert", "update", "delete"]
    kind: Literal["node", "edge"]
    type_name: str
    id: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    changed: list[str]


class FeedChangeEntry(Change, openapi_name="FeedChange"):
    commit_id: str
    cursor: str


class TableVersions(WireModel, openapi_name="Comparison"):
    older: str | None
    newer: str | None


_PAIRS = Converter(
    lambda pairs: [{"older": older, "newer": newer} for older, newer in pairs],
    lambda documents: tuple((pair["older"], pair["newer"]) for pair in documents),
)


class TypeReadEntry(WireModel, openapi_name="TypeRead", result="omnigraph.diff.changes.TypeRead"):
    type_name: str
    comparisons: list[TableVersions] = member(via=_PAIRS)
    rows: int


class ChangesExplained(WireModel, result="omnigraph.diff.changes.Explained"):
    method: str
    reason: str
    commits: int
    reads: list[TypeReadEntry]


class ChangesHead(WireModel):
    """What precedes the changes, which are written one by one while they are found."""

    from_: str = member("from_commit", key="from")
    to: str = member("to_commit")
    schema_changed: bool


class ChangesAnswer(ChangesHead):
    """Between two states; `next_page` is the `page` to ask for next, null at the end."""

    changes: list[Change]
    next_page: str | None
    explain: ChangesExplained | None = member(omit_empty=True)


class FeedAnswer(WireModel):
    """The feed of a branch; `cursor` goes on behind it, `more` says whether there is more already."""

    changes: list[FeedChangeEntry] = member(
        via=Converter(lambda changes: [change.to_json() for change in changes], AS_IS.decode)
    )
    cursor: str
    more: bool


# Schema


class SchemaAnswer(WireModel):
    schema_: str = member(key="schema")


class SchemaStep(WireModel, result="omnigraph.schema.evolve.migration_step.Step"):
    kind: StepKind
    type_name: str
    property_name: str | None
    supported: bool
    code: str | None
    message: str
    before: Any
    after: Any
    count: int | None


class SchemaPlanAnswer(WireModel):
    supported: bool
    step_count: int
    steps: list[SchemaStep]


class SchemaApplyAnswer(WireModel):
    supported: bool = derived("plan.supported")
    step_count: int = derived("plan.step_count")
    steps: list[SchemaStep]
    applied: bool
    commit: CommitMade | None
    cost: CostEntry


# Queries and data


class PlanStepEntry(WireModel, openapi_name="PlanStep", result="omnigraph.read.explain.ExecutedStep"):
    step: str = member("text")
    estimated_rows: float | None = member("estimated")
    rows: int | None
    inside: list["PlanStepEntry"] = member("nested", omit_empty=True)


class QueryHead(WireModel):
    """What precedes the rows, which are written batch by batch."""

    query: str
    branch: str
    commit_id: str
    columns: list[str]


class QueryAnswer(QueryHead):
    """Every row has every column, in the order of `columns`; what a value is depends on the type of its column."""

    rows: list[dict[str, Any]]
    plan: list[PlanStepEntry] = member(omit_empty=True, description="With `explain`.")


class LintFinding(WireModel):
    severity: Literal["error", "warning"]
    code: str
    message: str
    remedy: str
    query: str | None
    source: str = member("source_name")
    line: int
    column: int
    excerpt: str


class StoredParam(WireModel):
    name: str
    type: str
    optional: bool


_PARAMS = Converter(
    lambda params: [{"name": name, "type": kind, "optional": optional} for name, kind, optional in params], AS_IS.decode
)


class StoredEntry(WireModel):
    name: str
    kind: Literal["read", "write"] = derived(lambda query: "write" if query.writes else "read", target="kind")
    description: str | None
    params: list[StoredParam] = member(via=_PARAMS)
    error: str | None = member(description="Why it does not fit the schema of main; null where it does.")


class StoredAnswer(WireModel):
    queries: list[StoredEntry]


class TypeEntry(WireModel, result="omnigraph.graph.graph.TypeSummary"):
    type_name: str
    kind: str
    rows: int
    changed_at: str | None


class SnapshotAnswer(WireModel):
    branch: str
    commit_id: str
    manifest_version: int
    types: list[TypeEntry]


class RejectedRows(WireModel):
    type: str | None
    reason: str
    rows: int


_REJECTED = Converter(
    lambda summary: [{"type": name, "reason": reason, "rows": rows} for name, reason, rows in summary],
    lambda documents: tuple((entry["type"], entry["reason"], entry["rows"]) for entry in documents),
)


class LoadAnswer(WireModel, result="omnigraph.write.load.load.LoadResult"):
    commit: CommitMade | None
    cost: CostEntry
    counts: dict[str, int]
    rejected: int
    quarantine: str | None = member(
        via=Converter(str, AS_IS.decode), description="Where to fetch the rows that were left out."
    )
    notes: list[str] = member("reports")
    summary: list[RejectedRows] = member(via=_REJECTED, omit_empty=True)


class ExportAnswer(WireModel, result="omnigraph.read.export.export.Exported"):
    """`files` and `engine` are of directories."""

    out: str = derived()
    rows: int
    bytes: int
    files: int | None = member(omit_empty=True)
    engine: str | None = member(omit_empty=True)


SINGLE_FILE = {"files": None, "engine": None}  # what an export to one file does not say


class AnalyzeAnswer(WireModel, result="omnigraph.pipeline.analytics.analyze.Analysis"):
    """The columns of `rows` depend on the algorithm."""

    algorithm: Literal["pagerank", "components", "degrees", "triangles"]
    engine: str
    commit_id: str
    vertices: int
    edges: int
    iterations: int | None
    converged: bool | None
    rows: list[dict[str, Any]] = derived()
    commit: CommitMade | None
    cost: CostEntry


class EmbedProperty(WireModel, result="omnigraph.pipeline.embedding.embed.Estimate"):
    property: str = derived(lambda estimate: f"{estimate.type_name}.{estimate.property_name}")
    rows: int
    skipped: int
    characters: int
    tokens: int = derived()
    requests: int

    @classmethod
    def decode(cls, document: Document, **given: Any) -> Any:
        type_name, _, property_name = document["property"].partition(".")
        return super().decode(document, type_name=type_name, property_name=property_name, **given)


class EmbedSummary(WireModel):
    """What the command prints; a server adds the refused rows, which the command lists itself."""

    provider: str
    model: str
    properties: list[EmbedProperty] = member("estimates")
    tokens: int = derived()
    price: float | None = derived()
    embedded: int
    commits: list[CommitMade]
    cost: CostEntry


class EmbedRefused(WireModel):
    count: int
    rows: list[str]


REFUSED_LISTED_MAX = 20
_UNLISTED = ("a row that the server did not list", "")


def _refused_from(document: Document) -> tuple[tuple[str, str], ...]:
    """A server lists the first rows that its provider refused, and counts the others."""
    listed = [row.partition(": ") for row in document["rows"]]
    named = [(str(row), str(reason)) for row, _, reason in listed]
    return (*named, *[_UNLISTED] * (int(document["count"]) - len(named)))


_REFUSED = Converter(
    lambda refused: {
        "count": len(refused),
        "rows": [f"{row}: {reason}" for row, reason in refused[:REFUSED_LISTED_MAX]],
    },
    _refused_from,
)


class EmbedAnswer(EmbedSummary, result="omnigraph.pipeline.embedding.embed.EmbedResult"):
    refused: EmbedRefused = member(via=_REFUSED)
