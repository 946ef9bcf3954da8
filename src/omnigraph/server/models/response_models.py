"""Answers as OpenAPI describes them, for whoever generates a client.

They are made in `answers.py` and sent as they are: what is said here is the least that holds, and tests see to that.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from omnigraph.schema.evolve.migration_step import StepKind


class Answer(BaseModel):
    model_config = ConfigDict(extra="allow")


class Cost(Answer):
    requests: int
    stages: int
    bytes: int
    retries: int


class Touch(Answer):
    """Only what happened is told."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0


class CommitMade(Answer):
    id: str
    manifest_version: int
    branch: str
    parent: str | None
    actor: str | None
    kind: str
    touched: dict[str, Touch]


class WriteAnswer(Answer):
    """`commit` is null where nothing changed."""

    commit: CommitMade | None
    cost: Cost


class PlanStep(Answer):
    step: str
    estimated_rows: float | None
    rows: int | None
    inside: list["PlanStep"] = Field(default_factory=list)


class QueryAnswer(Answer):
    """Every row has every column, in the order of `columns`; what a value is depends on the type of its column."""

    query: str
    branch: str
    commit_id: str
    columns: list[str]
    rows: list[dict[str, Any]]
    plan: list[PlanStep] = Field(default_factory=list, description="With `explain`.")


class RejectedRows(Answer):
    type: str | None
    reason: str
    rows: int


class LoadAnswer(WriteAnswer):
    counts: dict[str, int]
    rejected: int
    quarantine: str | None = Field(description="Where to fetch the rows that were left out.")
    notes: list[str]
    summary: list[RejectedRows] = Field(default_factory=list)


class ExportAnswer(Answer):
    out: str
    rows: int
    bytes: int
    files: int | None = None
    engine: str | None = None


class StoredParam(Answer):
    name: str
    type: str
    optional: bool


class StoredEntry(Answer):
    name: str
    kind: Literal["read", "write"]
    description: str | None
    params: list[StoredParam]
    error: str | None = Field(description="Why it does not fit the schema of main; null where it does.")


class StoredAnswer(Answer):
    queries: list[StoredEntry]


class LintFinding(Answer):
    severity: Literal["error", "warning"]
    code: str
    message: str
    remedy: str
    query: str | None
    source: str
    line: int
    column: int
    excerpt: str


class BranchesAnswer(Answer):
    branches: list[str]


class BranchAnswer(Answer):
    branch: str
    cost: Cost


class MergeConflictEntry(Answer):
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


class MergeAnswer(WriteAnswer):
    """`conflicts` are those that a dry run found."""

    source: str
    into: str
    outcome: str
    dry_run: bool
    types: dict[str, Touch]
    conflicts: list[MergeConflictEntry]
    deleted: bool
    not_deleted: str | None


class LoggedCommit(Answer):
    id: str
    parent: str | None
    merged_parent: str | None
    actor: str | None
    authored_at: str
    kind: str
    class_: str = Field(alias="class")
    touched: dict[str, Touch]


class CommitsAnswer(Answer):
    commits: list[LoggedCommit]


class CommitAnswer(Answer):
    commit: LoggedCommit
    branch: str
    manifest_version: int
    schema_changed: bool | None
    expired: bool


class Change(Answer):
    """One node or edge; `before` and `after` have its values, null where it was not or is not any more."""

    operation: Literal["insert", "update", "delete"]
    kind: Literal["node", "edge"]
    type_name: str
    id: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    changed: list[str]


class Comparison(Answer):
    older: str | None
    newer: str | None


class TypeRead(Answer):
    type_name: str
    comparisons: list[Comparison]
    rows: int


class ChangesExplained(Answer):
    method: str
    reason: str
    commits: int
    reads: list[TypeRead]


class ChangesAnswer(Answer):
    """Between two states; `next_page` is the `page` to ask for next, null at the end."""

    from_: str = Field(alias="from")
    to: str
    schema_changed: bool
    changes: list[Change]
    next_page: str | None
    explain: ChangesExplained | None = None


class FeedChange(Change):
    commit_id: str
    cursor: str


class FeedAnswer(Answer):
    """The feed of a branch; `cursor` goes on behind it, `more` says whether there is more already."""

    changes: list[FeedChange]
    cursor: str
    more: bool


class TagEntry(Answer):
    name: str
    commit_id: str
    created_at: str
    actor: str | None


class TagsAnswer(Answer):
    tags: list[TagEntry]


class TagAnswer(Answer):
    tag: TagEntry


class TagGone(Answer):
    tag: str


class SchemaAnswer(Answer):
    schema_: str = Field(alias="schema")


class SchemaStep(Answer):
    kind: StepKind
    type_name: str
    property_name: str | None
    supported: bool
    code: str | None
    message: str
    before: Any = None
    after: Any = None
    count: int | None = None


class SchemaPlanAnswer(Answer):
    supported: bool
    step_count: int
    steps: list[SchemaStep]


class SchemaApplyAnswer(SchemaPlanAnswer):
    applied: bool
    commit: CommitMade | None
    cost: Cost


class TypeEntry(Answer):
    type_name: str
    kind: str
    rows: int
    changed_at: str | None


class SnapshotAnswer(Answer):
    branch: str
    commit_id: str
    manifest_version: int
    types: list[TypeEntry]


class HealthAnswer(Answer):
    status: Literal["ok"]
    release: str
    format_version: int
    libraries: dict[str, str | None]


class ReadyAnswer(Answer):
    status: Literal["ready"]
    graphs: dict[str, bool] = Field(description="Which graphs are open.")
