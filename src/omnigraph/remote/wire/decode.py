"""Documents as the results that the embedded graph gives: the way back from `answers.py`.

What no document says is left at what a result has without it: the transaction id of a commit somebody else made.
Times have the millisecond that documents give them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omnigraph.manifest.commit.publish import PublishedCommit
from omnigraph.manifest.model.manifest import Commit, CommitClass, Recovered, RowCounts
from omnigraph.storage.meter import Cost

if TYPE_CHECKING:
    from omnigraph.diff.changes import Explained
    from omnigraph.gc.cleanup import Cleaned
    from omnigraph.gc.recovery import Recovery
    from omnigraph.graph.history import CommitDetails
    from omnigraph.maintenance.report import OptimizeResult, TypeReport
    from omnigraph.manifest.branch.tags import Tag
    from omnigraph.manifest.history.log_graph import LoggedCommit
    from omnigraph.merge.merge import MergeResult
    from omnigraph.pipeline.analytics.analyze import Analysis
    from omnigraph.pipeline.embedding.embed import EmbedResult
    from omnigraph.read.explain import ExecutedStep, QueryPlan
    from omnigraph.verify.report import VerifyReport
    from omnigraph.write.load.load import LoadResult

Document = Mapping[str, Any]
MAINTENANCE_KINDS = ("fold", "optimize", "cleanup", "recovery")
NEVER = datetime.fromtimestamp(0, UTC)


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def cost_of(document: Document | None) -> Cost:
    if not document:
        return Cost()
    return Cost(document["requests"], document["stages"], document["bytes"], document["retries"])


def cost_in(header: str | None) -> Cost:
    """`requests=3, stages=2, bytes=10, retries=0`."""
    pairs = (part.split("=", 1) for part in (header or "").replace(" ", "").split(",") if "=" in part)
    found = {name: int(value) for name, value in pairs if value.isascii() and value.isdigit()}
    return cost_of(dict.fromkeys(("requests", "stages", "bytes", "retries"), 0) | found)


# Commits


def commit_of(document: Document, txn_id: str = "") -> Commit:
    """A commit as a list of them tells it, or a write that made it."""
    recovered = document.get("recovered")
    kind = document["kind"]
    told = document.get("class") or ("maintenance" if kind in MAINTENANCE_KINDS else "logical")
    return Commit(
        id=document["id"],
        txn_id=txn_id,
        parent=document["parent"],
        merged_parent=document.get("merged_parent"),
        actor=document["actor"],
        authored_at=moment(document["authored_at"]) if "authored_at" in document else NEVER,
        kind=kind,
        commit_class=CommitClass(told),
        touched={key: RowCounts(**touch) for key, touch in document["touched"].items()},
        recovered=None if recovered is None else Recovered(**recovered),
    )


class WrittenCommit(Commit):
    """A commit that a write has just made: when that was, the answer does not say, so it is asked for if needed."""

    __slots__ = ("_when",)
    _when: Any  # a time, or how to find it out

    @property
    def authored_at(self) -> datetime:
        if not isinstance(self._when, datetime):
            object.__setattr__(self, "_when", self._when())
        found: datetime = self._when
        return found

    @authored_at.setter
    def authored_at(self, value: Any) -> None:
        object.__setattr__(self, "_when", value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Commit):
            return NotImplemented
        return all(getattr(self, entry.name) == getattr(other, entry.name) for entry in fields(Commit))

    __hash__ = None  # type: ignore[assignment]  # as the class above, which has a dict inside

    def __repr__(self) -> str:
        return f"<commit {self.id} by {self.actor}: {self.kind}>"


ReadCommit = Callable[[str], Commit]


def published(
    document: Document | None, cost: Cost, txn_id: str = "", read: ReadCommit | None = None
) -> PublishedCommit | None:
    """What a write made; `read` tells more of a commit by its id."""
    if document is None:
        return None
    commit = commit_of(document, txn_id)
    if read is not None:
        told = {entry.name: getattr(commit, entry.name) for entry in fields(Commit)}
        commit = WrittenCommit(**told | {"authored_at": lambda: read(commit.id).authored_at})
    return PublishedCommit(commit, document["branch"], document["manifest_version"], cost)


def logged(document: Document) -> "LoggedCommit":
    from omnigraph.manifest.history.log_graph import LoggedCommit

    return LoggedCommit(commit_of(document), document["branch"], tuple(document["parents"]))


def details_of(document: Document) -> "CommitDetails":
    from omnigraph.graph.history import CommitDetails

    return CommitDetails(
        commit_of(document["commit"]),
        document["branch"],
        document["manifest_version"],
        document["expired"],
        document["schema_changed"],
    )


def tag_of(document: Document) -> "Tag":
    from omnigraph.manifest.branch.tags import Tag

    return Tag(document["name"], document["commit_id"], moment(document["created_at"]), document["actor"], "")


def merged(document: Document, txn_id: str, read: ReadCommit) -> "MergeResult":
    from omnigraph.errors import MergeConflict
    from omnigraph.merge.merge import MergeResult
    from omnigraph.merge.plan import MergeOutcome

    cost = cost_of(document["cost"])
    return MergeResult(
        document["source"],
        document["into"],
        MergeOutcome(document["outcome"]),
        published(document["commit"], cost, txn_id, read),
        {key: RowCounts(**touch) for key, touch in document["types"].items()},
        tuple(MergeConflict(**conflict) for conflict in document["conflicts"]),
        document["dry_run"],
        document["deleted"],
        document["not_deleted"],
        cost,
    )


def explained(document: Document) -> "Explained":
    from omnigraph.diff.changes import Explained, TypeRead

    reads = (
        TypeRead(read["type_name"], tuple((pair["older"], pair["newer"]) for pair in read["comparisons"]), read["rows"])
        for read in document["reads"]
    )
    return Explained(document["method"], document["reason"], document["commits"], tuple(reads))


# Data


def loaded(
    document: Document, txn_id: str, read: ReadCommit, job_id: str | None, quarantine: Path | None
) -> "LoadResult":
    from omnigraph.write.load.load import LoadResult

    cost = cost_of(document["cost"])
    return LoadResult(
        published(document["commit"], cost, txn_id, read),
        document["counts"],
        document["rejected"],
        quarantine,
        tuple(document["notes"]),
        cost,
        job_id,
        tuple((row["type"], row["reason"], row["rows"]) for row in document.get("summary", ())),
    )


def plan_of(steps: Sequence[Document]) -> "QueryPlan":
    from omnigraph.read.explain import QueryPlan

    return QueryPlan([_plan_step(step) for step in steps])


def _plan_step(step: Document) -> "ExecutedStep":
    from omnigraph.read.explain import ExecutedStep

    inside = [_plan_step(inner) for inner in step.get("inside", ())]
    return ExecutedStep(step["step"], step["estimated_rows"], step["rows"], inside)


def analysis(document: Document, txn_id: str, read: ReadCommit) -> "Analysis":
    import pyarrow as pa

    from omnigraph.pipeline.analytics.analyze import Analysis

    cost = cost_of(document["cost"])
    rows = list(document["rows"])
    table: Any = pa.Table.from_pylist(rows) if rows else _no_rows(document["algorithm"])
    return Analysis(
        document["algorithm"],
        document["engine"],
        document["commit_id"],
        document["vertices"],
        document["edges"],
        table,
        document["iterations"],
        document["converged"],
        published(document["commit"], cost, txn_id, read),
        cost,
    )


def _no_rows(algorithm: str) -> Any:
    import pyarrow as pa

    from omnigraph.pipeline.analytics.spec import VALUE_NAMES

    value: Any = {"pagerank": pa.float64(), "components": pa.string()}.get(algorithm, pa.int64())
    name = VALUE_NAMES.get(algorithm, "value")  # type: ignore[call-overload]  # a server may know more algorithms
    return pa.schema([("type", pa.string()), ("id", pa.string()), (name, value)]).empty_table()


def embedded(document: Document, price_per_1k: float | None, read: ReadCommit) -> "EmbedResult":
    from omnigraph.pipeline.embedding.embed import EmbedResult, Estimate

    cost = cost_of(document["cost"])
    estimates = []
    for entry in document["properties"]:
        type_name, _, property_name = entry["property"].partition(".")
        facts = (entry["rows"], entry["characters"], entry["requests"], entry["skipped"])
        estimates.append(Estimate(type_name, property_name, *facts))
    commits = [published(commit, Cost(), "", read) for commit in document["commits"]]
    return EmbedResult(
        tuple(estimates),
        document["provider"],
        document["model"],
        price_per_1k,
        document["embedded"],
        _refused(document.get("refused")),
        tuple(commit for commit in commits if commit is not None),
        cost,
    )


def _refused(document: Document | None) -> tuple[tuple[str, str], ...]:
    """A server lists the first rows that its provider refused, and counts the others."""
    if not document:
        return ()
    listed = [row.partition(": ") for row in document["rows"]]
    named = [(str(row), str(reason)) for row, _, reason in listed]
    return (*named, *[("a row that the server did not list", "")] * (int(document["count"]) - len(named)))


# Maintenance


def optimized(document: Document, read: ReadCommit) -> "OptimizeResult":
    from omnigraph.maintenance.report import OptimizeResult

    cost = cost_of(document["cost"])
    types = {key: _type_report(key, entry) for key, entry in document["types"].items()}
    return OptimizeResult(document["branch"], published(document["commit"], cost, "", read), types, cost)


def _type_report(key: str, entry: Document) -> "TypeReport":
    from omnigraph.maintenance.report import TypeReport

    return TypeReport(
        key,
        entry["folded"]["commits"],
        entry["folded"]["rows"],
        entry["fragments"]["before"],
        entry["fragments"]["after"],
        entry["fragments"]["rewritten"],
        tuple(entry["indexes"]["built"]),
        tuple(entry["indexes"]["extended"]),
        entry["adjacency"],
        tuple(entry["pending"]),
    )


def cleaned(document: Document) -> "Cleaned":
    from omnigraph.gc.cleanup import Cleaned

    kept, jobs = document["kept"], document["jobs"]
    return Cleaned(
        document["dry_run"],
        document["oldest_retained"],
        document["manifests"],
        document["files"],
        document["bytes"],
        kept["files"],
        kept["bytes"],
        kept["young"],
        tuple(jobs["kept"]),
        tuple(jobs["discarded"]),
        cost_of(document["cost"]),
    )


def verified(document: Document) -> "VerifyReport":
    from omnigraph.verify.report import Checked, VerifyProblem, VerifyReport

    known = {entry.name for entry in fields(Checked)}
    return VerifyReport(
        tuple(document["branches"]),
        document["full"],
        document["seed"],
        Checked(**{name: count for name, count in document["checked"].items() if name in known}),
        tuple(VerifyProblem(**problem) for problem in document["problems"]),
        document["more"],
        cost_of(document["cost"]),
    )


def recovery(document: Document) -> "Recovery":
    from omnigraph.gc.recovery import RecoveredJob, Recovery, UnfinishedJob

    jobs = (
        UnfinishedJob(
            job["txn_id"],
            job["kind"],
            job["branch"],
            job["actor"],
            job["state"],
            job["can_complete"],
            moment(job["since"]),
            timedelta(seconds=job["refreshed_s_ago"]),
            job["host"],
            job["pid"],
        )
        for job in document["jobs"]
    )
    ended = (RecoveredJob(one["txn_id"], one["outcome"], one["commit_id"], one["branch"]) for one in document["ended"])
    return Recovery(tuple(jobs), tuple(ended), {left["txn_id"]: left["reason"] for left in document["left"]})
