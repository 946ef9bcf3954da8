"""What only a server has: its jobs, and queries that are stored with it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from omnigraph.api.job_models import JobAnswer
from omnigraph.api.models import StoredEntry
from omnigraph.errors import BadRequest, NotFound, OmnigraphError
from omnigraph.remote.session import Session
from omnigraph.remote.transport import HttpRequest, quote_segment
from omnigraph.remote.wire.values import wire_params, wire_time

if TYPE_CHECKING:
    from omnigraph.manifest.commit.publish import PublishedCommit
    from omnigraph.manifest.model.manifest import CommitId, TxnId
    from omnigraph.read.result import QueryResult

MAIN = "main"


@dataclass(frozen=True, slots=True)
class ServerJob:
    """Long work of a server: `result` is the command's document, `error` its error body."""

    id: str
    kind: str
    state: str  # waiting, running, done, failed or cancelled
    actor: str | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    progress: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None
    files: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(document: Mapping[str, Any]) -> "ServerJob":
        return ServerJob(**JobAnswer.arguments(document))


class RemoteJobs:
    """`g.jobs`: those of this server on the graph, the token's own or all for who may maintain it."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def show(self, job_id: str) -> ServerJob:
        return ServerJob.of(self._session.get(f"/jobs/{quote_segment(job_id)}").document)

    def cancel(self, job_id: str) -> ServerJob:
        """End a job at its next step. What it has committed stays."""
        answer = self._session.transport.call(
            HttpRequest("DELETE", f"{self._session.base}/jobs/{quote_segment(job_id)}")
        )
        return ServerJob.of(answer.document)

    def list(self) -> list[ServerJob]:
        return [ServerJob.of(job) for job in self._session.get("/jobs").document["jobs"]]


@dataclass(frozen=True, slots=True)
class StoredQuery:
    """A query that the server has by name; `error` says why it does not fit the schema, if it does not."""

    name: str
    kind: str  # read or write
    description: str | None
    params: Sequence[Mapping[str, Any]]
    error: str | None


class RemoteQueries:
    """`g.queries`: what the server was given with `--queries`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._reads: set[str] = set()  # a server would run a write, whatever form of answer is wanted

    def run(
        self,
        name: str,
        params: Mapping[str, object] | None = None,
        branch: str = MAIN,
        at: str | datetime | None = None,
    ) -> "QueryResult":
        """A stored read, with the result of `query`."""
        if name not in self._reads:
            self._reads = {entry.name for entry in self.list() if entry.kind == "read"}
            if name not in self._reads:
                raise self._no_read(name)
        document = {"params": wire_params(params), "branch": branch, "at": wire_time(at)}
        return self._session.rows(f"/queries/{quote_segment(name)}", document, branch)

    def mutate(
        self,
        name: str,
        params: Mapping[str, object] | None = None,
        branch: str = MAIN,
        *,
        if_commit: "CommitId | None" = None,
        txn_id: "TxnId | None" = None,
    ) -> "PublishedCommit | None":
        """A stored write, with the result of `mutate`."""
        write = self._session.commit_request(branch, txn_id)
        document = {"params": wire_params(params), "branch": branch}
        answer = self._session.write(
            "POST", f"/queries/{quote_segment(name)}", document, write, if_commit=if_commit
        ).document
        if "commit" not in answer:
            raise BadRequest(f"{name} only reads: run it with queries.run.")
        return self._session.commit_in(answer, write.txn_id)

    def _no_read(self, name: str) -> OmnigraphError:
        if any(entry.name == name for entry in self.list()):
            return BadRequest(f"{name} writes: run it with queries.mutate.")
        return NotFound(f"The server has no stored query {name}: see queries.list.")

    def list(self) -> list[StoredQuery]:
        found = self._session.get("/queries").document["queries"]
        return [StoredQuery(**StoredEntry.arguments(entry)) for entry in found]
