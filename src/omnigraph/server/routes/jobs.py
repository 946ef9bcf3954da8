"""Jobs: look at them, cancel them, fetch what they made."""

from typing import Annotated

from fastapi import Path
from starlette.responses import FileResponse, Response

from omnigraph.api.job_models import JobAnswer, JobsAnswer
from omnigraph.errors import NotFound
from omnigraph.server.auth import access
from omnigraph.server.auth.access import Action
from omnigraph.server.http.request_context import Call, TheCall
from omnigraph.server.jobs import Job, no_job
from omnigraph.server.routes.shared import described, graph_router

router = graph_router("jobs")

JobId = Annotated[str, Path(max_length=100)]


def _may_see(call: Call, job: Job) -> bool:
    """One's own, begun with a token of the same grants; or everybody's for who maintains the graph."""
    own = job.actor == call.principal.actor and job.grants == call.principal.grants
    return own or access.allows(call.principal, Action.MAINTAIN, call.graph_id, None)


def _job(call: Call, job_id: str) -> Job:
    """One that may not be seen is as one that is not there."""
    job = call.service.jobs.find(call.graph_id, job_id)
    if not _may_see(call, job):
        raise no_job(job_id)
    return job


@router.get("/jobs", responses=described(JobsAnswer), name="list_jobs")
async def list_jobs(call: TheCall) -> Response:
    """The jobs of this server on the graph, the oldest first."""
    call.service.hosted.hosted(call.graph_id)
    jobs = [job for job in call.service.jobs.of(call.graph_id) if _may_see(call, job)]
    return call.answer({"jobs": [job.to_json() for job in jobs]})


@router.get("/jobs/{job}", responses=described(JobAnswer), name="show_job")
async def show_job(call: TheCall, job: JobId) -> Response:
    """How far a job is; `Prefer: wait=N` answers when it ends, or after N seconds."""
    found = _job(call, job)
    await found.ends_within(call.wait_s)
    return call.answer(found.to_json())


@router.delete("/jobs/{job}", responses=described(JobAnswer, status=202), status_code=202, name="cancel_job")
async def cancel_job(call: TheCall, job: JobId) -> Response:
    """End a job. What it has committed stays; what it was about to commit is not."""
    found = _job(call, job)
    call.service.jobs.cancel(found)
    return call.answer(found.to_json(), 202)


_BYTES = {"schema": {"type": "string", "format": "binary"}}
_FILE = {200: {"description": "The file.", "content": {"application/octet-stream": _BYTES}}}


@router.get("/jobs/{job}/{file}", responses=described(None) | _FILE, response_class=Response, name="fetch_job_file")
async def fetch_job_file(call: TheCall, job: JobId, file: Annotated[str, Path(max_length=100)]) -> Response:
    """What a job left: `export` of an export, `quarantine` of a load."""
    found = _job(call, job)
    path = found.files.get(file) if found.ended.is_set() else None
    if path is None:
        raise NotFound(f"The job {job!r} has no file {file!r}, or not yet: see its files.")
    return FileResponse(path, media_type="application/octet-stream", filename=path.name)
