"""Jobs: long work that continues after its request was answered, and is polled by its id.

Jobs exist in this process only. What a job has committed is in the graph; a job that the end of the server cut off has
committed nothing, or everything. A load that is sent again under the same job id or key shows which: it is answered
with the existing commit, or resumes.
"""

import asyncio
import json
import logging
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from omnigraph.api.job_models import JobAnswer
from omnigraph.api.models import CostEntry
from omnigraph.api.wire_model import Document
from omnigraph.cancellation import Stopped, StopToken, stop_scope
from omnigraph.errors import NotFound, OmnigraphError
from omnigraph.pipeline.progress import Progress
from omnigraph.pipeline.spark.session import SharedSession
from omnigraph.runtime import Runtime
from omnigraph.server.auth.tokens import Grant
from omnigraph.server.http.errors import Internal, Redaction, error_body, too_many_requests
from omnigraph.server.metrics import REQUEST
from omnigraph.server.settings import Limits
from omnigraph.storage import meter
from omnigraph.storage.meter import Cost

PUBLISHING = "publishing"
POLL_S = 0.05
STOP_WAIT_S = 5.0  # for a job that was stopped to come to its next step
JobState = Literal["waiting", "running", "done", "failed", "cancelled"]

_SHUTDOWN = Stopped("the server ends", "start it again at the next server")
_log = logging.getLogger("omnigraph.server")


class JobProgress(Progress):
    """Progress that also ends a job which was cancelled: between its stages and tasks, until it publishes."""

    def __init__(self, stop: StopToken) -> None:
        super().__init__()
        self._stop = stop

    def stage(self, name: str, tasks: int | None = None) -> None:
        self._stop.check()
        super().stage(name, tasks)

    def done(self, tasks: int = 1, rows: int = 0) -> None:
        if self.state.stage != PUBLISHING:
            self._stop.check()
        super().done(tasks, rows)


@dataclass(slots=True, eq=False)
class Job:
    """One of them. `folder` holds its files, if it has any, for as long as it is remembered."""

    id: str
    kind: str
    graph: str
    actor: str | None
    created_at: datetime
    stop: StopToken
    progress: JobProgress
    folder: Path | None = None
    state: JobState = "waiting"
    started_at: datetime | None = None
    ended_at: datetime | None = None
    result: Document | None = None
    error: dict[str, Any] | None = None
    failure: OmnigraphError | None = None
    cost: Cost | None = None
    grants: tuple[Grant, ...] = ()  # of the token that began it: another of the same actor may not see as much
    size: int = 0  # about what its result takes
    files: dict[str, Path] = field(default_factory=dict)
    hidden: list[Path] = field(default_factory=list)  # other places of its files, which no message names
    ended: threading.Event = field(default_factory=threading.Event)
    run: "Future[None] | None" = None

    async def wait_for_end(self, seconds: float) -> bool:
        """Wait without a thread: many may wait for long."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not self.ended.is_set() and loop.time() < end:
            await asyncio.sleep(min(POLL_S, max(0.0, end - loop.time())))
        return seconds > 0 and self.ended.is_set()

    def to_json(self) -> Document:
        files = {name: f"/graphs/{self.graph}/jobs/{self.id}/{name}" for name in self.files}
        return JobAnswer.encode(self, files=files)


Work = Callable[[Job], Document]


class Jobs:
    """All jobs of a server: those that wait, those that run, and the last that ended."""

    def __init__(self, limits: Limits, runtime: Runtime, redaction: Redaction) -> None:
        self._limits = limits
        self._runtime = runtime
        self._redaction = redaction
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(limits.jobs_running, thread_name_prefix="omnigraph-job")
        self._closing = False
        self.spark = SharedSession()

    def new(self, kind: str, graph: str, actor: str | None, folder: Path | None = None) -> Job:
        stop = StopToken()
        now = self._runtime.clock.now()
        return Job(self._runtime.ids.short_id(), kind, graph, actor, now, stop, JobProgress(stop), folder)

    def submit(self, job: Job, work: Work) -> Job:
        """Run it when there is a place; refused where too many wait already."""
        with self._lock:
            self._evict()
            unfinished = sum(not known.ended.is_set() for known in self._jobs.values())
            if self._closing:
                raise _SHUTDOWN
            if unfinished >= self._limits.jobs_running + self._limits.jobs_waiting:
                raise too_many_requests("Too many jobs are waiting", 10)
            own = sum(known.actor == job.actor and not known.ended.is_set() for known in self._jobs.values())
            if own >= self._limits.jobs_per_actor:
                raise too_many_requests("Too many jobs of the same actor are waiting", 10)
            self._jobs[job.id] = job
            job.run = self._pool.submit(self._run, job, work)
        return job

    def add_finished(self, job: Job, result: Document) -> None:
        """Remember work that was done elsewhere, because it has files that somebody may fetch."""
        job.state, job.result, job.started_at, job.ended_at = "done", result, job.created_at, self._runtime.clock.now()
        job.ended.set()
        with self._lock:
            self._evict()
            self._jobs[job.id] = job

    def find(self, graph: str, job_id: str) -> Job:
        with self._lock:
            self._evict()
            job = self._jobs.get(job_id)
        if job is None or job.graph != graph:
            raise job_not_found(job_id)
        return job

    def of_graph(self, graph: str) -> list[Job]:
        with self._lock:
            self._evict()
            return [job for job in self._jobs.values() if job.graph == graph]

    def cancel(self, job: Job) -> None:
        self._stop(job, Stopped("it was cancelled", "start it again if it is wanted after all"))

    def _stop(self, job: Job, cause: Stopped) -> None:
        """One that runs ends at its next step, one that waits ends now."""
        job.stop.set(cause)
        if job.run is not None and job.run.cancel():
            job.state, job.failure, job.error = "cancelled", cause, self._error_body(job, cause)
            job.ended_at = self._runtime.clock.now()
            job.ended.set()

    def stop_accepting(self) -> None:
        """The server ends: what waits is not begun."""
        for job in self._close():
            if job.state == "waiting":
                self._stop(job, _SHUTDOWN)

    def _close(self) -> list[Job]:
        with self._lock:
            self._closing = True
            return [job for job in self._jobs.values() if not job.ended.is_set()]

    def close(self, grace_s: float) -> bool:
        """Let what runs end, for a while; then stop it. False if something goes on."""
        self.stop_accepting()
        open_jobs = self._close()
        self._wait_for(open_jobs, grace_s)
        for job in open_jobs:
            self._stop(job, _SHUTDOWN)
        ended = self._wait_for(open_jobs, STOP_WAIT_S)
        self._pool.shutdown(wait=False, cancel_futures=True)
        for job in self._jobs.values():
            _remove(job)
        if ended:
            self.spark.close()
        return ended

    def _wait_for(self, jobs: list[Job], seconds: float) -> bool:
        clock = self._runtime.clock
        ends_at = clock.monotonic() + seconds
        return all(job.ended.wait(max(0.0, ends_at - clock.monotonic())) for job in jobs)

    def _run(self, job: Job, work: Work) -> None:
        job.started_at, job.state = self._runtime.clock.now(), "running"
        try:
            with stop_scope(job.stop), meter.operation(REQUEST) as operation:
                job.stop.check()
                job.result = work(job)
            job.size = len(json.dumps(job.result, default=str))
            job.state = "done"
        except OmnigraphError as error:
            job.state = "cancelled" if isinstance(error, Stopped) else "failed"
            job.failure, job.error = error, self._error_body(job, error)
        except Exception:
            fields = {"job": job.id, "kind": job.kind, "graph": job.graph}
            _log.exception("A job failed for a reason that is a bug.", extra={"fields": fields})
            job.failure = Internal(job.id)
            job.state, job.error = "failed", self._error_body(job, job.failure)
        finally:
            job.cost = operation.cost
            job.ended_at = self._runtime.clock.now()
            ended = {"job": job.id, "kind": job.kind, "graph": job.graph, "actor": job.actor, "state": job.state}
            _log.info("job", extra={"fields": {**ended, "cost": CostEntry.encode(job.cost)}})
            job.ended.set()

    def _error_body(self, job: Job, error: OmnigraphError) -> dict[str, Any]:
        redaction = self._redaction
        for folder in job.hidden if job.folder is None else (job.folder, *job.hidden):
            redaction = redaction.hiding(f"{folder}/files/", "").hiding(f"{folder}/", "")
        return error_body(error, redaction)

    def _evict(self) -> None:
        """Jobs that ended long ago, and the oldest where they are too many or too large; with their files."""
        now = self._runtime.clock.now()
        ended = [job for job in self._jobs.values() if job.ended_at is not None]
        surplus = len(self._jobs) - self._limits.jobs_kept
        held = sum(job.size for job in ended) - self._limits.result_bytes
        for place, job in enumerate(ended):
            age_s = (now - (job.ended_at or now)).total_seconds()
            if age_s > self._limits.job_ttl_s or place < surplus or (held > 0 and place < len(ended) - 1):
                held -= job.size
                del self._jobs[job.id]
                _remove(job)


def job_not_found(job_id: str) -> NotFound:
    """What is known of a job that is not known."""
    return NotFound(
        f"There is no job {job_id!r} here: it never was, it ended too long ago, or the server was started again since; "
        "a load that is sent again under the same job_id or Idempotency-Key is made once."
    )


def _remove(job: Job) -> None:
    if job.folder is not None:
        shutil.rmtree(job.folder, ignore_errors=True)
