"""Maintenance, analyses and embedding, which run as jobs; the jobs themselves."""

from typing import Annotated, Any

from fastapi import Path
from starlette.responses import FileResponse, Response

from omnigraph.api.documents import finite
from omnigraph.api.job_models import CleanupAnswer, JobAnswer, JobsAnswer, OptimizeAnswer, RecoverAnswer, VerifyAnswer
from omnigraph.api.models import AnalyzeAnswer, EmbedAnswer
from omnigraph.api.wire_model import Document
from omnigraph.errors import BadRequest, NotFound
from omnigraph.graph.graph import Graph
from omnigraph.server.auth import access
from omnigraph.server.auth.access import Action
from omnigraph.server.http.request_context import Context, RequestContext
from omnigraph.server.jobs import Job, job_not_found
from omnigraph.server.models.request_models import (
    AnalyzeRequest,
    CleanupRequest,
    EmbedRequest,
    OptimizeRequest,
    RecoverRequest,
    VerifyRequest,
)
from omnigraph.server.routes.shared import IfCommitHeader, TxnIdHeader, describe_responses, graph_router

router = graph_router("maintenance")


def _job_responses(model: Any) -> dict[Any, Any]:
    """202, or the answer itself for who waits and sees the end."""
    return describe_responses(model, writes=True, job=True)


@router.post("/optimize", responses=_job_responses(OptimizeAnswer), status_code=202, name="optimize")
async def optimize(context: Context, body: OptimizeRequest) -> Response:
    """Fold, compact and index the tables of a branch; the content stays as it is."""
    context.require(Action.MAINTAIN, body.branch)

    def work(graph: Graph, _job: Job) -> Document:
        return OptimizeAnswer.encode(
            graph.optimize(body.branch, body.types, context.engine(body.engine), actor=context.principal.actor)
        )

    return await context.run_job("optimize", work)


@router.post("/cleanup", responses=_job_responses(CleanupAnswer), status_code=202, name="cleanup")
async def cleanup(context: Context, body: CleanupRequest) -> Response:
    """Expire old history on all branches and delete what nothing needs; without `confirm`, only say what would go."""
    context.require(Action.MAINTAIN, None)

    def work(graph: Graph, _job: Job) -> Document:
        done = graph.cleanup(
            body.older_than,
            body.keep,
            not body.confirm,
            intent_ttl=body.intent_ttl,
            actor=context.principal.actor,
        )
        return CleanupAnswer.encode(done)

    return await context.run_job("cleanup", work)


@router.post("/verify", responses=_job_responses(VerifyAnswer), status_code=202, name="verify")
async def verify(context: Context, body: VerifyRequest) -> Response:
    """Look whether everything stored exists, reads back and agrees; changes nothing."""
    context.require(Action.MAINTAIN, body.branch)

    def work(graph: Graph, job: Job) -> Document:
        report = graph.verify(body.branch, full=body.full, seed=body.seed)
        job.stop.check()  # what was stopped on the way may look like damage: then there is no report
        return VerifyAnswer.encode(report)

    return await context.run_job("verify", work)


@router.post("/recover", responses=describe_responses(RecoverAnswer, writes=True), name="recover")
async def recover(context: Context, body: RecoverRequest) -> Response:
    """List the bulk writes that have not ended, after completing or discarding dead ones."""
    context.require(Action.MAINTAIN, None)
    if body.all and (body.complete or body.discard):
        raise BadRequest("all ends every dead job: leave out complete and discard.")

    def work(graph: Graph) -> Document:
        return RecoverAnswer.encode(graph.recover(body.complete, body.discard, all=body.all))

    return context.respond(await context.write(work))


@router.post("/analyze", responses=_job_responses(AnalyzeAnswer), status_code=202, name="analyze")
async def analyze(
    context: Context, body: AnalyzeRequest, if_commit: IfCommitHeader = None, txn_id: TxnIdHeader = None
) -> Response:
    """PageRank, components, degrees or triangles; with `write` every row gets its value, as one commit."""
    context.require(Action.READ, body.branch)
    if body.write is not None:
        context.require(Action.CHANGE, body.branch)
    elif if_commit is not None or txn_id is not None:
        raise BadRequest("If-Graph-Commit and Idempotency-Key are about a commit: give write too.")

    most = context.service.settings.limits.result_rows

    def work(graph: Graph, _job: Job) -> Document:
        found = graph.analyze(
            body.algorithm,
            body.edges,
            body.write,
            context.engine(body.engine),
            direction=body.direction,
            damping=body.damping,
            tolerance=body.tolerance,
            iterations=body.iterations,
            branch=body.branch,
            at=body.at,
            limit=min(body.limit, most) if body.limit is not None else most,
            actor=context.principal.actor,
            if_commit=if_commit,
            txn_id=txn_id,
        )
        rows = [finite(row) for row in found.table.to_pylist()]
        return AnalyzeAnswer.encode(found, rows=rows)

    return await context.run_job("analyze", work)


@router.post("/embed", responses=_job_responses(EmbedAnswer), status_code=202, name="embed")
async def embed(context: Context, body: EmbedRequest) -> Response:
    """Fill vectors declared with `@embed` in the rows that lack them; the server's own provider is asked."""
    context.require(Action.READ if body.dry_run else Action.CHANGE, body.branch)

    def work(graph: Graph, job: Job) -> Document:
        def report(done: int, total: int) -> None:
            if job.progress.state.tasks != total:
                job.progress.stage("embedding", total)
            job.progress.done(done - job.progress.state.done)

        result = graph.embed(
            body.type,
            body.property,
            body.branch,
            batch=body.batch,
            commit_every=body.commit_every,
            rate_limit=body.rate_limit,
            concurrency=body.concurrency,
            dry_run=body.dry_run,
            price_per_1k=body.price_per_1k,
            actor=context.principal.actor,
            on_progress=report,
        )
        return EmbedAnswer.encode(result)

    return await context.run_job("embed", work)


jobs_router = graph_router("jobs")

JobId = Annotated[str, Path(max_length=100)]


def _may_see(context: RequestContext, job: Job) -> bool:
    """An actor sees its own jobs, started with a token of the same grants; one that may maintain the graph sees all."""
    own = job.actor == context.principal.actor and job.grants == context.principal.grants
    return own or access.allows(context.principal, Action.MAINTAIN, context.graph_id, None)


def _visible_job(context: RequestContext, job_id: str) -> Job:
    """One that may not be seen is as one that is not there."""
    job = context.service.jobs.find(context.graph_id, job_id)
    if not _may_see(context, job):
        raise job_not_found(job_id)
    return job


@jobs_router.get("/jobs", responses=describe_responses(JobsAnswer), name="list_jobs")
async def list_jobs(context: Context) -> Response:
    """The jobs of this server on the graph, the oldest first."""
    context.service.hosted.find(context.graph_id)
    jobs = [job for job in context.service.jobs.of_graph(context.graph_id) if _may_see(context, job)]
    return context.respond({"jobs": [job.to_json() for job in jobs]})


@jobs_router.get("/jobs/{job}", responses=describe_responses(JobAnswer), name="show_job")
async def show_job(context: Context, job: JobId) -> Response:
    """How far a job is; `Prefer: wait=N` answers when it ends, or after N seconds."""
    found = _visible_job(context, job)
    await found.wait_for_end(context.wait_s)
    return context.respond(found.to_json())


@jobs_router.delete(
    "/jobs/{job}", responses=describe_responses(JobAnswer, status=202), status_code=202, name="cancel_job"
)
async def cancel_job(context: Context, job: JobId) -> Response:
    """End a job. What it has committed stays; what it was about to commit is not."""
    found = _visible_job(context, job)
    context.service.jobs.cancel(found)
    return context.respond(found.to_json(), 202)


_BYTES = {"schema": {"type": "string", "format": "binary"}}
_FILE = {200: {"description": "The file.", "content": {"application/octet-stream": _BYTES}}}


@jobs_router.get(
    "/jobs/{job}/{file}", responses=describe_responses(None) | _FILE, response_class=Response, name="fetch_job_file"
)
async def fetch_job_file(context: Context, job: JobId, file: Annotated[str, Path(max_length=100)]) -> Response:
    """What a job left: `export` of an export, `quarantine` of a load."""
    found = _visible_job(context, job)
    path = found.files.get(file) if found.ended.is_set() else None
    if path is None:
        raise NotFound(f"The job {job!r} has no file {file!r}, or not yet: see its files.")
    return FileResponse(path, media_type="application/octet-stream", filename=path.name)
