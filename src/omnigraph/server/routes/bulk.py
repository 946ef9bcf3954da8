"""Load and export: streams in and out, or jobs for those who don't want to hold a connection."""

import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Annotated, Any, BinaryIO, Literal, cast

from fastapi import Query
from starlette.responses import Response

from omnigraph.api.models import SINGLE_FILE, ExportAnswer, LoadAnswer
from omnigraph.api.wire_model import Document
from omnigraph.engine import Engine
from omnigraph.errors import BadRequest
from omnigraph.graph.graph import Graph
from omnigraph.pipeline.progress import Progress
from omnigraph.server import scratch as files
from omnigraph.server.auth.access import Action
from omnigraph.server.http.pipe import Pipe
from omnigraph.server.http.request_body import read_body
from omnigraph.server.http.request_context import Context, RequestContext
from omnigraph.server.jobs import Job
from omnigraph.server.models.request_models import ExportRequest
from omnigraph.server.routes.shared import NDJSON, IfCommitHeader, TxnIdHeader, describe_responses, graph_router
from omnigraph.storage.util.runner import LocalRunner
from omnigraph.write.load.load import LoadResult

router = graph_router("data")

QUARANTINE = "quarantine"
EXPORT = "export"
MEMORY_BYTES = 16 * 1024 * 1024  # from which on nothing is loaded by way of memory, but split by split
SPARK_BYTES = 64 * 1024 * 1024  # from which on `auto` may take Spark
REPORT_ROWS = 1000  # at once
_MEDIA = {"jsonl": NDJSON, "csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}
_TAR = "application/x-tar"
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            NDJSON: {"schema": {"type": "string", "description": "An entity a line."}},
            "text/csv": {"schema": {"type": "string", "description": "Rows of the type that `type` names."}},
            "application/vnd.apache.parquet": {"schema": {"type": "string", "format": "binary"}},
            _TAR: {"schema": {"type": "string", "format": "binary", "description": "Any number of such files."}},
        },
    }
}
_STREAMED = {
    media: {"schema": {"type": "string", "format": "binary"}}
    for media in (NDJSON, "text/csv", "application/vnd.apache.parquet", _TAR)
}


@router.post("/load", responses=describe_responses(LoadAnswer, writes=True, job=True), openapi_extra=_BODY, name="load")
async def load(
    context: Context,
    mode: Literal["append", "merge", "overwrite"] = "append",
    branch: Annotated[str, Query(max_length=200)] = "main",
    from_: Annotated[str | None, Query(alias="from", max_length=200)] = None,
    type_: Annotated[str | None, Query(alias="type", max_length=300)] = None,
    on_error: Literal["fail", "quarantine"] = "fail",
    max_errors: Annotated[int | None, Query(ge=0, le=10**12)] = None,
    engine: Engine = "auto",
    job_id: Annotated[str | None, Query(max_length=200)] = None,
    if_commit: IfCommitHeader = None,
    txn_id: TxnIdHeader = None,
) -> Response:
    """Load nodes and edges as one atomic commit. The body is spooled as it comes, so it may be of any size.

    `Prefer: respond-async` answers 202 as soon as the body is here. What a quarantine took is a file of the job that
    `quarantine` names.
    """
    context.require(Action.CHANGE, branch)
    if from_ is not None:
        context.require(Action.READ, from_)
        context.require(Action.BRANCH_CREATE, branch)
    if max_errors is not None and on_error == "fail":
        raise BadRequest("max_errors bounds what on_error=quarantine leaves out: give that too.")
    loading = _Load(
        context,
        engine,
        {
            "mode": mode,
            "branch": branch,
            "on_error": on_error,
            "from_": from_,
            "type": type_,
            "job_id": job_id,
            "max_errors": max_errors,
            "actor": context.principal.actor,
            "if_commit": if_commit,
            "txn_id": txn_id,
        },
    )
    return await loading.respond()


@dataclass(frozen=True, slots=True)
class _Load:
    """A load on its way from the socket through a file into the graph."""

    context: RequestContext
    engine: Engine
    options: Mapping[str, Any]

    async def respond(self) -> Response:
        """What came in goes when it was loaded, unless a job is left that needs it."""
        context, jobs = self.context, self.context.service.jobs
        folder = context.service.scratch.new_folder()
        kept = False
        try:
            path = await self._spool(folder)
            job = jobs.new("load", context.graph_id, context.principal.actor, folder)
            if context.wants_job:
                response = await context.run_job("load", lambda graph, running: self._load(graph, path, running), job)
                kept = True
                return response
            document = await context.write(lambda graph: self._load(graph, path, job))
            if job.files:
                job.grants = context.principal.grants
                jobs.add_finished(job, document)
                kept = True
            return context.respond(document)
        finally:
            if not kept:
                files.remove_folder(folder)

    async def _spool(self, folder: Path) -> Path:
        limits, request = self.context.service.settings.limits, self.context.request
        self._hide(folder)
        ending = files.ending_for(request.headers.get("content-type", ""))
        request.hold(files.WRITE_BYTES)
        return await files.spool(read_body(request, limits.load_bytes), folder, ending)

    def _hide(self, folder: Path) -> None:
        """Messages name files as the caller does."""
        for place in (f"{folder}/files/", f"{folder}/"):
            self.context.info.hide(place, "")

    def _name(self) -> str | None:
        """What tells this load from all others, also after the server was killed: see `Scratch.claim_name`."""
        for kind in ("job_id", "txn_id"):
            if self.options[kind] is not None:
                return f"{self.context.graph_id}/{kind}/{self.options[kind]}"
        return None

    def _load(self, graph: Graph, path: Path, job: Job) -> Document:
        sources = files.sources_of(path)
        size, engine = sum(Path(source).stat().st_size for source in sources), self.context.engine(self.engine)
        if engine == "auto" and size < SPARK_BYTES:
            engine = "local"  # of many rows too: starting Spark for so few bytes takes longer
        job.progress.stage("loading")
        in_splits = engine == "local" and size >= MEMORY_BYTES
        into = partial(_bulk_load, graph) if in_splits else partial(graph.load, engine=engine)
        name, folder = self._name(), path.parent
        if name is None:
            result = into(sources, progress=job.progress, **self.options)
        else:
            # A job is refused while it runs; a key that comes again is the same request, and gets the same answer.
            wait_s = 0.0 if self.options["job_id"] is not None else self.context.service.settings.limits.deadline_s
            with self.context.service.scratch.claim_name(folder, name, wait_s) as named:
                self._hide(named)
                job.hidden.append(named)
                moved = [str(named / Path(source).relative_to(folder)) for source in sources]
                result = into(moved, progress=job.progress, **self.options)
            if result.quarantine is not None:
                result = replace(result, quarantine=folder / result.quarantine.relative_to(named))
        document = dict(LoadAnswer.encode(result))
        if result.quarantine is not None:
            job.files[QUARANTINE] = result.quarantine
            document["quarantine"] = f"/graphs/{self.context.graph_id}/jobs/{job.id}/{QUARANTINE}"
        shown: Document = self.context.info.redaction.document(document)
        return shown


def _bulk_load(graph: Graph, sources: list[str], *, type: str | None, progress: Progress, **options: Any) -> LoadResult:
    """What is large is loaded split by split, also without Spark: a server's memory does not grow with a body."""
    from omnigraph.pipeline.bulk.load import bulk_load
    from omnigraph.write.load.load_options import LoadOptions

    return bulk_load(
        graph.repository, LocalRunner(), sources, LoadOptions(type_name=type, **options), progress=progress
    )


@router.post(
    "/export",
    responses=describe_responses(None, job=True)
    | {200: {"description": "The entities, one a line.", "content": _STREAMED}},
    response_class=Response,
    name="export",
)
async def export(context: Context, body: ExportRequest) -> Response:
    """Stream nodes and edges by type and id: loading that gives the same graph.

    CSV and Parquet have one type, unless `directory` asks for a tar. `Prefer: respond-async` makes it a job, whose
    file `export` can be fetched when it is done.
    """
    context.require(Action.EXPORT, body.branch)
    if context.wants_job:
        return await _export_job(context, body)
    if body.directory:
        return await context.stream(lambda graph, pipe: _write_tar(context, graph, body, pipe), _TAR)

    def produce(graph: Graph, pipe: Pipe) -> None:
        graph.export(pipe, body.branch, body.at, body.types, "local", format=body.format)  # type: ignore[arg-type]

    return await context.stream(produce, _MEDIA[body.format])


async def _export_job(context: RequestContext, body: ExportRequest) -> Response:
    folder = context.service.scratch.new_folder()
    job = context.service.jobs.new("export", context.graph_id, context.principal.actor, folder)
    ending = "tar" if body.directory else body.format

    def work(graph: Graph, running: Job) -> Document:
        path = folder / f"{EXPORT}.{ending}"
        if body.directory:
            with path.open("wb") as file:
                document = _write_directory(context, graph, body, folder, file, running)
        else:
            with path.open("wb") as file:
                counted = _ReportingFile(file, running, graph, body)
                to = cast(IO[bytes], counted)
                done = graph.export(to, body.branch, body.at, body.types, "local", format=body.format)
                counted.report()
            document = ExportAnswer.encode(done, out=path.name, **SINGLE_FILE)
        running.files[EXPORT] = path
        return document

    return await context.run_job("export", work, job)


class _ReportingFile(io.RawIOBase):
    """A file that is written, and tells a job how far that is: of lines it is known how many there will be."""

    def __init__(self, file: BinaryIO, job: Job, graph: Graph, body: ExportRequest) -> None:
        self._file, self._job = file, job
        self._rows = 0
        self._counts = body.format == "jsonl"
        types = graph.snapshot(body.branch, body.at).types if self._counts else []
        rows = sum(one.rows for one in types if body.types is None or one.type_name in body.types)
        job.progress.stage(EXPORT, rows if self._counts else None)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._rows += self._counts  # a line at a time
        if self._rows == REPORT_ROWS or not self._counts:
            self.report()
        return self._file.write(data)

    def report(self) -> None:
        rows, self._rows = self._rows, 0
        self._job.progress.done(rows, rows)


def _write_tar(context: RequestContext, graph: Graph, body: ExportRequest, pipe: Pipe) -> None:
    folder = context.service.scratch.new_folder()
    try:
        _write_directory(context, graph, body, folder, pipe, None)
    finally:
        files.remove_folder(folder)


def _write_directory(
    context: RequestContext, graph: Graph, body: ExportRequest, folder: Path, file: object, running: Job | None
) -> Document:
    """A directory as `export --format` writes it, as one stream."""
    engine = context.engine(body.engine)
    place = folder / "files"
    progress = None if running is None else running.progress
    done = graph.export(place, body.branch, body.at, body.types, engine, format=body.format, progress=progress)
    with tarfile.open(fileobj=file, mode="w|") as archive:  # type: ignore[call-overload]  # it only writes
        for path in sorted(place.rglob("*")):
            if path.is_file():
                archive.add(path, str(path.relative_to(place)), recursive=False)
    return ExportAnswer.encode(done, out="export.tar")
