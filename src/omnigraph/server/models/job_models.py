"""Answers of long work, and of what tells of errors: as OpenAPI describes them."""

from typing import Any, Literal

from pydantic import Field

from omnigraph.server.models.error_models import ErrorBody
from omnigraph.server.models.response_models import Answer, CommitMade, Cost, ExportAnswer, LoadAnswer, WriteAnswer


class Folded(Answer):
    commits: int
    rows: int


class Fragments(Answer):
    before: int
    after: int
    rewritten: int


class Indexes(Answer):
    built: list[str]
    extended: list[str]


class TypeOptimized(Answer):
    folded: Folded
    fragments: Fragments
    indexes: Indexes
    adjacency: bool
    pending: list[str]


class OptimizeAnswer(WriteAnswer):
    branch: str
    types: dict[str, TypeOptimized]


class Kept(Answer):
    files: int
    bytes: int
    young: int


class JobsKept(Answer):
    kept: list[str]
    discarded: list[str]


class CleanupAnswer(Answer):
    dry_run: bool
    manifests: int
    files: int
    bytes: int
    kept: Kept
    oldest_retained: dict[str, int]
    jobs: JobsKept
    cost: Cost


class VerifyProblem(Answer):
    where: str
    what: str
    remedy: str
    severity: Literal["damage", "notice"]


class VerifyAnswer(Answer):
    """`checked` counts what was looked at, by kind."""

    ok: bool
    branches: list[str]
    full: bool
    seed: int
    checked: dict[str, int]
    problems: list[VerifyProblem]
    more: int
    cost: Cost


class AnalyzeAnswer(WriteAnswer):
    """The columns of `rows` depend on the algorithm."""

    algorithm: Literal["pagerank", "components", "degrees", "triangles"]
    engine: str
    commit_id: str
    vertices: int
    edges: int
    iterations: int | None
    converged: bool | None
    rows: list[dict[str, Any]]


class EmbedProperty(Answer):
    property: str
    rows: int
    skipped: int
    characters: int
    tokens: int
    requests: int


class EmbedRefused(Answer):
    count: int
    rows: list[str]


class EmbedAnswer(Answer):
    provider: str
    model: str
    properties: list[EmbedProperty]
    tokens: int
    price: float | None
    embedded: int
    commits: list[CommitMade]
    refused: EmbedRefused
    cost: Cost


class JobProgressAnswer(Answer):
    stage: str
    tasks: int | None
    done: int
    rows: int


class JobAnswer(Answer):
    """`result` is what the command would have answered, `error` the body that it would have failed with."""

    id: str
    kind: str
    state: Literal["waiting", "running", "done", "failed", "cancelled"]
    actor: str | None
    created_at: str
    started_at: str | None
    ended_at: str | None
    progress: JobProgressAnswer
    result: (
        LoadAnswer | ExportAnswer | OptimizeAnswer | CleanupAnswer | VerifyAnswer | AnalyzeAnswer | EmbedAnswer | None
    )
    error: ErrorBody | None
    files: dict[str, str]


class JobsAnswer(Answer):
    jobs: list[JobAnswer]


class BulkWrite(Answer):
    txn_id: str
    kind: str
    branch: str
    actor: str | None
    state: str
    can_complete: bool
    since: str
    refreshed_s_ago: float
    host: str
    pid: int


class BulkWriteEnded(Answer):
    txn_id: str
    outcome: str
    commit_id: str | None
    branch: str


class BulkWriteLeft(Answer):
    txn_id: str
    reason: str


class RecoverAnswer(Answer):
    jobs: list[BulkWrite]
    ended: list[BulkWriteEnded]
    left: list[BulkWriteLeft]


class GraphEntry(Answer):
    id: str
    open: bool
    error: ErrorBody | None = Field(description="Why it can't be opened.")
    roles: list[str] = Field(description="What this token has on it, somewhere.")


class GraphsAnswer(Answer):
    graphs: list[GraphEntry]
