"""The wire models of maintenance, of a server's jobs, and of what a server says about itself."""

from dataclasses import asdict, fields
from datetime import timedelta
from typing import Any, Literal

from omnigraph.api.models import TIME, AnalyzeAnswer, CommitMade, CostEntry, EmbedAnswer, ExportAnswer, LoadAnswer
from omnigraph.api.wire_model import AS_IS, Converter, Document, WireModel, derived, member, part


class Folded(WireModel):
    commits: int = member("folded_commits")
    rows: int = member("folded_rows")


class FragmentCounts(WireModel, openapi_name="Fragments"):
    before: int = member("fragments_before")
    after: int = member("fragments_after")
    rewritten: int = member("compacted")


class IndexChanges(WireModel, openapi_name="Indexes"):
    built: list[str]
    extended: list[str]


class TypeOptimized(WireModel, result="omnigraph.maintenance.report.TypeReport"):
    folded: Folded = part()
    fragments: FragmentCounts = part()
    indexes: IndexChanges = part()
    adjacency: bool
    pending: list[str]


_BY_TYPE = Converter(
    lambda reports: {key: TypeOptimized.encode(report) for key, report in reports.items()},
    lambda documents: {key: TypeOptimized.decode(entry, table_key=key) for key, entry in documents.items()},
)


class OptimizeAnswer(WireModel, result="omnigraph.maintenance.report.OptimizeResult"):
    """`commit` is null where nothing changed."""

    commit: CommitMade | None
    branch: str
    types: dict[str, TypeOptimized] = member(via=_BY_TYPE)
    cost: CostEntry


class FilesKept(WireModel, openapi_name="Kept"):
    files: int = member("kept_files")
    bytes: int = member("kept_bytes")
    young: int = member("young_files")


class JobsKept(WireModel):
    kept: list[str] = member("jobs")
    discarded: list[str]


class CleanupAnswer(WireModel, result="omnigraph.gc.cleanup.Cleaned"):
    dry_run: bool
    manifests: int
    files: int
    bytes: int
    kept: FilesKept = part()
    oldest_retained: dict[str, int] = member("branches")
    jobs: JobsKept = part()
    cost: CostEntry


class ProblemEntry(WireModel, openapi_name="VerifyProblem", result="omnigraph.verify.report.VerifyProblem"):
    where: str
    what: str
    remedy: str
    severity: Literal["damage", "notice"]


def _checked_from(document: Document) -> Any:
    from omnigraph.verify.report import Checked

    known = {entry.name for entry in fields(Checked)}
    return Checked(**{name: count for name, count in document.items() if name in known})


class VerifyAnswer(WireModel, result="omnigraph.verify.report.VerifyReport"):
    """`checked` counts what was looked at, by kind."""

    ok: bool = derived()
    branches: list[str]
    full: bool
    seed: int
    checked: dict[str, int] = member(via=Converter(asdict, _checked_from))
    problems: list[ProblemEntry]
    more: int
    cost: CostEntry


_SECONDS = Converter(lambda span: round(span.total_seconds(), 3), lambda seconds: timedelta(seconds=seconds))


class BulkWrite(WireModel, result="omnigraph.gc.recovery.UnfinishedJob"):
    txn_id: str
    kind: str
    branch: str
    actor: str | None
    state: str
    can_complete: bool
    since: str = member(via=TIME)
    refreshed_s_ago: float = member("refreshed_ago", via=_SECONDS)
    host: str
    pid: int


class BulkWriteEnded(WireModel, result="omnigraph.gc.recovery.RecoveredJob"):
    txn_id: str
    outcome: str
    commit_id: str | None
    branch: str


class BulkWriteLeft(WireModel):
    txn_id: str
    reason: str


_LEFT = Converter(
    lambda left: [{"txn_id": txn_id, "reason": reason} for txn_id, reason in left.items()],
    lambda documents: {entry["txn_id"]: entry["reason"] for entry in documents},
)


class RecoverAnswer(WireModel, result="omnigraph.gc.recovery.Recovery"):
    jobs: list[BulkWrite]
    ended: list[BulkWriteEnded]
    left: list[BulkWriteLeft] = member(via=_LEFT)


# Servers


class ErrorBody(WireModel):
    """Every error has this form. `details` depend on the code."""

    error: str = member(description="One sentence that names the thing and the remedy.")
    code: Literal[
        "bad_request",
        "unauthorized",
        "forbidden",
        "not_found",
        "conflict",
        "precondition_failed",
        "too_large",
        "constraint_violation",
        "key_reused",
        "too_many_requests",
        "internal",
        "unavailable",
        "outcome_unknown",
    ]
    details: dict[str, Any]


class JobProgressAnswer(WireModel):
    stage: str
    tasks: int | None
    done: int
    rows: int


class JobAnswer(WireModel):
    """`result` is what the command would have answered, `error` the body that it would have failed with."""

    id: str
    kind: str
    state: Literal["waiting", "running", "done", "failed", "cancelled"]
    actor: str | None
    created_at: str = member(via=TIME)
    started_at: str | None = member(via=TIME)
    ended_at: str | None = member(via=TIME)
    progress: JobProgressAnswer = derived("progress.state", target="progress")
    result: (
        LoadAnswer | ExportAnswer | OptimizeAnswer | CleanupAnswer | VerifyAnswer | AnalyzeAnswer | EmbedAnswer | None
    ) = member(via=AS_IS)
    error: ErrorBody | None = member(via=AS_IS)
    files: dict[str, str]


class JobsAnswer(WireModel):
    jobs: list[JobAnswer]


class GraphEntry(WireModel):
    id: str
    open: bool = derived(lambda hosted: hosted.graph is not None)
    error: ErrorBody | None = member(via=AS_IS, description="Why it can't be opened.")
    roles: list[str] = member(description="What this token has on it, somewhere.")


class GraphsAnswer(WireModel):
    graphs: list[GraphEntry]


class HealthAnswer(WireModel):
    status: Literal["ok"]
    release: str
    format_version: int
    libraries: dict[str, str | None]


class ReadyAnswer(WireModel):
    status: Literal["ready"]
    graphs: dict[str, bool] = member(description="Which graphs are open.")
