"""What every command answers, as one JSON document: the command line prints it, the server sends it.

A document is made here and nowhere else, so that the two can't drift apart. `surface.md` says what scripts may rely on.
"""

import json
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from omnigraph.api.interface import ChangesLike, SnapshotLike
    from omnigraph.diff.feed import FeedPage
    from omnigraph.gc.cleanup import Cleaned
    from omnigraph.gc.recovery import Recovery
    from omnigraph.graph.history import CommitDetails
    from omnigraph.maintenance.report import OptimizeResult
    from omnigraph.manifest.branch.tags import Tag
    from omnigraph.manifest.commit.publish import PublishedCommit
    from omnigraph.manifest.history.log_graph import LoggedCommit
    from omnigraph.manifest.model.manifest import Commit
    from omnigraph.merge.merge import MergeResult
    from omnigraph.pipeline.analytics.analyze import Analysis
    from omnigraph.pipeline.embedding.embed import EmbedResult
    from omnigraph.read.export.export import Exported
    from omnigraph.read.result import QueryResult
    from omnigraph.storage.meter import Cost
    from omnigraph.verify.report import VerifyReport
    from omnigraph.write.load.load import LoadResult
    from omnigraph.write.migrate.migrate import SchemaApplied

Document: TypeAlias = Mapping[str, Any]
LIBRARIES = ("pylance", "pyarrow", "duckdb", "obstore", "click")


def iso_time(moment: datetime) -> str:
    """A time as everywhere on the surface: UTC, to the millisecond."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def finite(value: Any) -> Any:
    """JSON has no infinity, which a sum may overflow to: it is written as null."""
    match value:
        case float():
            return value if value - value == 0 else None
        case list():
            return [finite(item) for item in value]
        case dict():
            return {name: finite(item) for name, item in value.items()}
        case _:
            return value


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def json_text(value: Any) -> str:
    """The shortest JSON of a value; what is not finite in it becomes null."""
    try:
        return _encode(value)
    except ValueError:
        return _encode(finite(value))


def cost_document(cost: "Cost") -> Document:
    return {"requests": cost.requests, "stages": cost.stages, "bytes": cost.bytes, "retries": cost.retries}


def version_document() -> Document:
    from omnigraph import __version__
    from omnigraph.manifest.model.document import FORMAT

    libraries = {"python": platform.python_version()} | {name: _installed(name) for name in LIBRARIES}
    return {"release": __version__, "format_version": FORMAT, "libraries": libraries}


def _installed(name: str) -> str | None:
    """From the package's metadata: importing it would cost a second."""
    try:
        return installed_version(name)
    except PackageNotFoundError:
        return None


# Writes


def commit_document(published: "PublishedCommit") -> Document:
    return {
        "id": published.id,
        "manifest_version": published.manifest_version,
        "branch": published.branch,
        "parent": published.commit.parent,
        "actor": published.commit.actor,
        "kind": published.commit.kind,
        "touched": published.touched,
    }


def write_document(commit: "PublishedCommit | None", cost: "Cost") -> Document:
    """Of `mutate` and `revert`."""
    return {"commit": _or_null(commit), "cost": cost_document(cost)}


def load_document(result: "LoadResult") -> Document:
    document: dict[str, Any] = {
        "commit": _or_null(result.commit),
        "cost": cost_document(result.cost),
        "counts": dict(result.counts),
        "rejected": result.rejected,
        "quarantine": None if result.quarantine is None else str(result.quarantine),
        "notes": list(result.reports),
    }
    if result.summary:
        document["summary"] = [{"type": name, "reason": why, "rows": rows} for name, why, rows in result.summary]
    return document


def merge_document(result: "MergeResult") -> Document:
    commit = _or_null(result.commit)
    if commit is not None and result.commit is not None:
        commit = {**commit, "merged_parent": result.commit.commit.merged_parent}
    return {**result.to_json(), "commit": commit, "cost": cost_document(result.cost)}


def schema_applied_document(applied: "SchemaApplied") -> Document:
    return {
        **applied.plan.to_json(),
        "applied": applied.applied,
        "commit": _or_null(applied.commit),
        "cost": cost_document(applied.cost),
    }


def branch_document(name: str, cost: "Cost") -> Document:
    return {"branch": name, "cost": cost_document(cost)}


def _or_null(commit: "PublishedCommit | None") -> Document | None:
    return None if commit is None else commit_document(commit)


# Reads


def query_head(result: "QueryResult", name: str, branch: str) -> dict[str, Any]:
    """What a query's document says before its rows."""
    return {"query": name, "branch": branch, "commit_id": result.commit_id, "columns": result.columns}


def snapshot_document(pinned: "SnapshotLike") -> Document:
    return {
        "branch": pinned.branch,
        "commit_id": pinned.commit_id,
        "manifest_version": pinned.manifest_version,
        "types": [
            {"type_name": entry.type_name, "kind": entry.kind, "rows": entry.rows, "changed_at": entry.changed_at}
            for entry in pinned.types
        ],
    }


def export_document(out: str, done: "Exported", *, directory: bool) -> Document:
    document: dict[str, Any] = {"out": out, "rows": done.rows, "bytes": done.bytes}
    return document | ({"files": done.files, "engine": done.engine} if directory else {})


def analysis_document(algorithm: str, found: "Analysis", rows: Sequence[Document]) -> Document:
    return {
        "algorithm": algorithm,
        "engine": found.engine,
        "commit_id": found.commit_id,
        "vertices": found.vertices,
        "edges": found.edges,
        "iterations": found.iterations,
        "converged": found.converged,
        "rows": rows,
        "commit": _or_null(found.commit),
        "cost": cost_document(found.cost),
    }


# History


def logged_document(entry: "Commit") -> dict[str, Any]:
    """A commit as `commit list` tells it."""
    from omnigraph.manifest.model.codec import recovered_to_json, touch_to_json

    recovered = {} if entry.recovered is None else {"recovered": recovered_to_json(entry.recovered)}
    return {
        "id": entry.id,
        "parent": entry.parent,
        "merged_parent": entry.merged_parent,
        "actor": entry.actor,
        "authored_at": iso_time(entry.authored_at),
        "kind": entry.kind,
        "class": entry.commit_class.value,
        "touched": {key: touch_to_json(touch) for key, touch in entry.touched.items()},
        **recovered,
    }


def commits_document(commits: "Iterable[Commit]") -> Document:
    return {"commits": [logged_document(entry) for entry in commits]}


def commit_graph_document(commits: "Iterable[LoggedCommit]") -> Document:
    return {
        "commits": [
            {**logged_document(entry.commit), "branch": entry.branch, "parents": [*entry.parents]} for entry in commits
        ]
    }


def commit_details_document(details: "CommitDetails") -> Document:
    return {
        "commit": logged_document(details.commit),
        "branch": details.branch,
        "manifest_version": details.manifest_version,
        "schema_changed": details.schema_changed,
        "expired": details.expired,
    }


def changes_text(found: "ChangesLike", *, explain: bool = False) -> Iterator[str]:
    """The document of `changes`, piece by piece while they are found; what fails at once fails at the first piece."""
    dumps = json.JSONEncoder(ensure_ascii=True).encode
    changes = iter(found)
    first = list(islice(changes, 1))
    head = {"from": found.from_commit, "to": found.to_commit, "schema_changed": found.schema_changed}
    yield dumps(head)[:-1] + ', "changes": ['
    for number, change in enumerate(chain(first, changes)):
        yield (", " if number else "") + dumps(change.to_json())
    tail: dict[str, Any] = {"next_page": found.next_page}
    if explain:
        cost = {"requests": found.cost.requests, "stages": found.cost.stages, "bytes": found.cost.bytes}
        tail["explain"] = found.explained.to_json() | {"cost": cost}
    yield "], " + dumps(tail)[1:] + "\n"


def feed_document(page: "FeedPage") -> Document:
    return {"changes": [told.to_json() for told in page], "cursor": page.cursor, "more": page.more}


def tag_document(entry: "Tag") -> Document:
    return {
        "name": entry.name,
        "commit_id": entry.commit_id,
        "created_at": iso_time(entry.created_at),
        "actor": entry.actor,
    }


# Maintenance


def optimize_document(result: "OptimizeResult") -> Document:
    return {"commit": _or_null(result.commit), **result.to_json(), "cost": cost_document(result.cost)}


def cleanup_document(done: "Cleaned") -> Document:
    return {
        "dry_run": done.dry_run,
        "manifests": done.manifests,
        "files": done.files,
        "bytes": done.bytes,
        "kept": {"files": done.kept_files, "bytes": done.kept_bytes, "young": done.young_files},
        "oldest_retained": dict(done.branches),
        "jobs": {"kept": [*done.jobs], "discarded": [*done.discarded]},
        "cost": cost_document(done.cost),
    }


def verify_document(report: "VerifyReport") -> Document:
    return report.to_json() | {"cost": cost_document(report.cost)}


def recovery_document(found: "Recovery") -> Document:
    return {
        "jobs": [
            {
                "txn_id": job.txn_id,
                "kind": job.kind,
                "branch": job.branch,
                "actor": job.actor,
                "state": job.state,
                "can_complete": job.can_complete,
                "since": iso_time(job.since),
                "refreshed_s_ago": round(job.refreshed_ago.total_seconds(), 3),
                "host": job.host,
                "pid": job.pid,
            }
            for job in found.jobs
        ],
        "ended": [
            {"txn_id": one.txn_id, "outcome": one.outcome, "commit_id": one.commit_id, "branch": one.branch}
            for one in found.ended
        ],
        "left": [{"txn_id": txn_id, "reason": reason} for txn_id, reason in found.left.items()],
    }


def embed_document(result: "EmbedResult") -> Document:
    return {
        "provider": result.provider,
        "model": result.model,
        "properties": [
            {
                "property": f"{estimate.type_name}.{estimate.property_name}",
                "rows": estimate.rows,
                "skipped": estimate.skipped,
                "characters": estimate.characters,
                "tokens": estimate.tokens,
                "requests": estimate.requests,
            }
            for estimate in result.estimates
        ],
        "tokens": result.tokens,
        "price": result.price,
        "embedded": result.embedded,
        "commits": [commit_document(commit) for commit in result.commits],
        "cost": cost_document(result.cost),
    }
