"""One graph on one server: addresses, writes under their ids, jobs until they end, schemas by their commits."""

from collections.abc import Mapping
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any

from omnigraph.api.models import CommitAnswer
from omnigraph.api.wire_model import Document
from omnigraph.caches import LruCache
from omnigraph.errors import AnswerLost, BadRequest, Forbidden, NotFound, OmnigraphError, Unauthorized
from omnigraph.fork_safety import renew_after_fork
from omnigraph.remote.transport import (
    IF_COMMIT,
    JOB_WAIT_S,
    HttpRequest,
    JsonResponse,
    StreamReader,
    Transport,
    Write,
    check_header,
    quote_segment,
)
from omnigraph.remote.wire.decode import cost_in_header, decode_write
from omnigraph.remote.wire.errors import error_from

if TYPE_CHECKING:
    from omnigraph.graph.history import CommitDetails
    from omnigraph.manifest.commit.publish import PublishedCommit
    from omnigraph.manifest.model.manifest import Commit
    from omnigraph.pipeline.progress import Progress
    from omnigraph.read.result import QueryResult
    from omnigraph.schema.catalog import Schema

ARROW = "application/vnd.apache.arrow.stream"
SCHEMAS_MAX = 16
BRANCHES_MAX = 1024
SEEN_COMMIT_TTL_S = 30.0  # what others wrote meanwhile has to be looked through, so it should not be much
PROGRESS_WAIT_S = 1  # how long the answer about a job is held back where somebody looks at a bar


class Session:
    """What the parts of a `RemoteGraph` share."""

    def __init__(self, transport: Transport, graph: str) -> None:
        self.transport = transport
        self.graph = graph
        self.base = f"/graphs/{quote_segment(graph)}"
        self._schemas: LruCache[str, Schema] = LruCache(SCHEMAS_MAX)
        self._seen: LruCache[str, tuple[str, float]] = LruCache(BRANCHES_MAX)  # by branch: a commit of it, and when
        renew_after_fork(self, Session._renew)

    def _renew(self) -> None:
        self._lock = Lock()

    @property
    def uri(self) -> str:
        return f"{self.transport.url}{self.base}"

    # Requests

    def get(self, path: str, params: Mapping[str, Any] | None = None) -> JsonResponse:
        return self.transport.call(HttpRequest("GET", self.base + path, params or {}))

    def post(self, path: str, document: Any, text: str = "") -> JsonResponse:
        """Ask something that changes nothing."""
        return self.transport.call(HttpRequest("POST", self.base + path, document=document, source=text))

    def rows(self, path: str, document: Mapping[str, Any], branch: str, text: str = "") -> "QueryResult":
        """The rows that a read answers, as Arrow: with their types, and with infinities."""
        import pyarrow as pa

        from omnigraph.remote.wire.tables import query_result

        request = HttpRequest("POST", self.base + path, document=document, headers={"Accept": ARROW}, source=text)
        with self.transport.stream(request) as response:
            source = pa.PythonFile(StreamReader(self.transport.pieces(response)), mode="r")
            with pa.ipc.open_stream(source) as reader:
                table = reader.read_all()
            headers = response.headers
        result = query_result(table, headers["omnigraph-commit"], None)
        result.branch, result.query = branch, headers["omnigraph-query"]
        result.cost = cost_in_header(headers.get("omnigraph-cost"))
        return result

    def write(
        self, method: str, path: str, document: Any, write: Write, *, if_commit: str | None = None, text: str = ""
    ) -> JsonResponse:
        headers = {} if if_commit is None else {IF_COMMIT: check_header(if_commit, "A commit id")}
        request = HttpRequest(method, self.base + path, document=document, headers=headers, write=write, source=text)
        answer = self.transport.call(self._with_seen_commit(request))
        commit = answer.document.get("commit")
        if commit is not None:
            self._remember_commit(write.branch, commit["id"])
        return answer

    def commit_request(self, branch: str, txn_id: str | None = None) -> Write:
        """Under the caller's id, or a fresh one: an answer that was lost can be asked for again."""
        if txn_id is None:
            return Write(branch, self.transport.new_txn_id(), fresh=True)
        return Write(branch, txn_id)

    def name_request(self, branch: str, txn_id: str | None = None, *, repeatable: bool = True) -> Write:
        """What changes something without a commit; repeatable where doing it twice is as good as once."""
        return Write(branch, self.transport.new_txn_id() if txn_id is None else txn_id, repeatable)

    def _with_seen_commit(self, request: HttpRequest) -> HttpRequest:
        """A write under a fresh id names a commit that it can only come after, where a search for it may stop."""
        if request.write is None or not request.write.fresh:
            return request
        return replace(request, write=replace(request.write, seen=self._seen_commit(request.write.branch)))

    def _seen_commit(self, branch: str) -> str | None:
        """A commit that this client has seen on a branch not long ago; None where it may see none."""
        with self._lock:
            commit_id, at = self._seen.get(branch) or ("", 0.0)
        if commit_id and self.transport.runtime.clock.monotonic() - at < SEEN_COMMIT_TTL_S:
            return commit_id
        try:
            found = str(self.get("/snapshot", {"branch": branch}).document["commit_id"])
        except (BadRequest, NotFound, Forbidden, Unauthorized):
            return None  # the write itself will get the error, or needs no such branch
        self._remember_commit(branch, found)
        return found

    def _remember_commit(self, branch: str, commit_id: str) -> None:
        with self._lock:
            self._seen.put(branch, (commit_id, self.transport.runtime.clock.monotonic()))

    def read_details(self, commit_id: str) -> "CommitDetails":
        found: CommitDetails = CommitAnswer.decode(self.get(f"/commits/{quote_segment(commit_id)}").document)
        return found

    def read_commit(self, commit_id: str) -> "Commit":
        return self.read_details(commit_id).commit

    def commit_in(self, document: Document, txn_id: str = "") -> "PublishedCommit | None":
        """The commit in the response to a write."""
        return decode_write(document, txn_id, self.read_commit)

    # Jobs

    def run_job(self, request: HttpRequest, progress: "Progress | None" = None) -> JsonResponse:
        """Start something long and wait for its end; the answer is its own.

        If the wait is interrupted, the job is cancelled.
        """
        wait = PROGRESS_WAIT_S if progress is not None else JOB_WAIT_S
        answer = self.transport.call(_with_prefer(self._with_seen_commit(request), f"respond-async, wait={wait}"))
        if answer.status != 202:
            return answer
        ended = self._wait_for_job(answer, request, wait, progress)
        return JsonResponse(ended["result"], 200, answer.headers)

    def run_job_with_files(
        self, request: HttpRequest, progress: "Progress | None" = None
    ) -> tuple[Any, Mapping[str, str]]:
        """The same for who wants the files that it leaves: its result, and their addresses."""
        answer = self.transport.call(_with_prefer(request, "respond-async"))
        ended = self._wait_for_job(answer, request, PROGRESS_WAIT_S if progress is not None else JOB_WAIT_S, progress)
        return ended["result"], ended["files"]

    def _wait_for_job(self, answer: JsonResponse, request: HttpRequest, wait: int, progress: "Progress | None") -> Any:
        path = f"/jobs/{quote_segment(answer.document['id'])}"
        look = HttpRequest("GET", self.base + path, headers={"Prefer": f"wait={wait}"})
        try:
            while answer.document["state"] in ("waiting", "running"):
                if progress is not None:
                    _show_progress(progress, answer.document["progress"])
                answer = self.transport.call(look)
        except OmnigraphError as error:
            if request.write is None:
                raise
            ended = isinstance(error, NotFound)
            reason = (
                "the server that ran its job has ended" if ended else f"its job can't be asked for any more: {error}"
            )
            raise AnswerLost(request.write.txn_id, request.write.branch, reason.rstrip(".")) from error
        except BaseException:
            self._cancel(path)
            raise
        if answer.document["error"] is not None:
            raise error_from(answer.document["error"], request.source)
        return answer.document

    def _cancel(self, path: str) -> None:
        try:
            self.transport.call(HttpRequest("DELETE", self.base + path))
        except OmnigraphError:
            pass  # it ends by itself then

    # Schemas

    def schema_at(self, commit_id: str, branch: str) -> "Schema":
        """The schema of a commit, by way of a branch that may be read: it never changes, so it is asked for once."""
        from omnigraph.schema.lang.compile import compile_schema

        with self._lock:
            schema = self._schemas.get(commit_id)
        if schema is None:
            text = self.get("/schema", {"branch": branch, "at": commit_id}).document["schema"]
            schema = compile_schema(text)
            with self._lock:
                self._schemas.put(commit_id, schema)
        return schema


def _with_prefer(request: HttpRequest, what: str) -> HttpRequest:
    return replace(request, headers={**request.headers, "Prefer": what})


def _show_progress(progress: "Progress", job: Mapping[str, Any]) -> None:
    """Show what the server reports of a job on the progress bar."""
    state = progress.state
    if job["stage"] and (job["stage"], job["tasks"]) != (state.stage, state.tasks):
        progress.stage(job["stage"], job["tasks"])
        state = progress.state
    if job["done"] > state.done or job["rows"] > state.rows:
        progress.done(job["done"] - state.done, job["rows"] - state.rows)


def refuse_actor(actor: str | None) -> None:
    """Who writes, the token says."""
    if actor is not None:
        raise BadRequest("A server records the actor of the token, nobody else: leave out actor (--as).")


def refuse_spark(spark: object, master: str | None) -> None:
    if spark is not None or master is not None:
        raise BadRequest("A server has a Spark of its own: leave out spark and master (--master).")
