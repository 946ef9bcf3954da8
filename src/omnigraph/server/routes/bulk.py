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
from omnigraph.server.http.request_body import unpacked
from omnigraph.server.http.request_context import Call, TheCall
from omnigraph.server.jobs import Job
from omnigraph.server.models.request_models import ExportRequest
from omnigraph.server.routes.shared import NDJSON, IfCommit, TxnId, described, graph_router
from omnigraph.storage.util.runner import LocalRunner
from omnigraph.write.load.load import LoadResult

router = graph_router("data")

QUARANTINE = "quarantine"
EXPORT = "export"
MEMORY_BYTES = 16 * 1024 * 1024  # from which on nothing is loaded by way of memory, but split by split
SPARK_BYTES = 64 * 1024 * 1024  # from which on `auto` may take Spark
LINES_TOLD = 1000  # at once
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


@router.post("/load", responses=described(LoadAnswer, writes=True, job=True), openapi_extra=_BODY, name="load")
async def load(
    call: TheCall,
    mode: Literal["append", "merge", "overwrite"] = "append",
    branch: Annotated[str, Query(max_length=200)] = "main",
    from_: Annotated[str | None, Query(alias="from", max_length=200)] = None,
    type_: Annotated[str | None, Query(alias="type", max_length=300)] = None,
    on_error: Literal["fail", "quarantine"] = "fail",
    max_errors: Annotated[int | None, Query(ge=0, le=10**12)] = None,
    engine: Engine = "auto",
    job_id: Annotated[str | None, Query(max_length=200)] = None,
    if_commit: IfCommit = None,
    txn_id: TxnId = None,
) -> Response:
    """Load nodes and edges as one atomic commit. The body is spooled as it comes, so it may be of any size.

    `Prefer: respond-async` answers 202 as soon as the body is here. What a quarantine took is a file of the job that
    `quarantine` names.
    """
    call.require(Action.CHANGE, branch)
    if from_ is not None:
        call.require(Action.READ, from_)
        call.require(Action.BRANCH_CREATE, branch)
    if max_errors is not None and on_error == "fail":
        raise BadRequest("max_errors bounds what on_error=quarantine leaves out: give that too.")
    loading = _Loading(
        call,
        engine,
        {
            "mode": mode,
            "branch": branch,
            "on_error": on_error,
            "from_": from_,
            "type": type_,
            "job_id": job_id,
            "max_errors": max_errors,
            "actor": call.principal.actor,
            "if_commit": if_commit,
            "txn_id": txn_id,
        },
    )
    return await loading.answer()


@dataclass(frozen=True, slots=True)
class _Loading:
    """A load on its way from the socket through a file into the graph."""

    call: Call
    engine: Engine
    options: Mapping[str, Any]

    async def answer(self) -> Response:
        """What came in goes when it was loaded, unless a job is left that needs it."""
        call, jobs = self.call, self.call.service.jobs
        folder = call.service.scratch.new_folder()
        kept = False
        try:
            path = await self._spooled(folder)
            job = jobs.new("load", call.graph_id, call.principal.actor, folder)
            if call.wants_job:
                response = await call.job("load", lambda graph, running: self._load(graph, path, running), job)
                kept = True
                return response
            document = await call.write(lambda graph: self._load(graph, path, job))
            if job.files:
                job.grants = call.principal.grants
                jobs.keep(job, document)
                kept = True
            return call.answer(document)
        finally:
            if not kept:
                files.remove_folder(folder)

    async def _spooled(self, folder: Path) -> Path:
        limits, request = self.call.service.settings.limits, self.call.request
        self._hide(folder)
        ending = files.ending_for(request.headers.get("content-type", ""))
        return await files.spooled(unpacked(request, limits.load_bytes, limits.stall_s), folder, ending)

    def _hide(self, folder: Path) -> None:
        """Messages name files as the caller does."""
        for place in (f"{folder}/files/", f"{folder}/"):
            self.call.info.hide(place, "")

    def _name(self) -> str | None:
        """What tells this load from all others, also after the server was killed: see `Scratch.under_name`."""
        for kind in ("job_id", "txn_id"):
            if self.options[kind] is not None:
                return f"{self.call.graph_id}/{kind}/{self.options[kind]}"
        return None

    def _load(self, graph: Graph, path: Path, job: Job) -> Document:
        sources = files.sources_of(path)
        size, engine = _size(sources), self.call.engine(self.engine)
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
            wait_s = 0.0 if self.options["job_id"] is not None else self.call.service.settings.limits.deadline_s
            with self.call.service.scratch.under_name(folder, name, wait_s) as named:
                self._hide(named)
                job.hidden.append(named)
                moved = [str(named / Path(source).relative_to(folder)) for source in sources]
                result = into(moved, progress=job.progress, **self.options)
            if result.quarantine is not None:
                result = replace(result, quarantine=folder / result.quarantine.relative_to(named))
        document = dict(LoadAnswer.encode(result))
        if result.quarantine is not None:
            job.files[QUARANTINE] = result.quarantine
            document["quarantine"] = f"/graphs/{self.call.graph_id}/jobs/{job.id}/{QUARANTINE}"
        told: Document = self.call.info.redaction.document(document)
        return told


def _bulk_load(graph: Graph, sources: list[str], *, type: str | None, progress: Progress, **options: Any) -> LoadResult:
    """What is large is loaded split by split, also without Spark: a server's memory does not grow with a body."""
    from omnigraph.pipeline.bulk.load import bulk_load
    from omnigraph.write.load.load_options import LoadOptions

    return bulk_load(
        graph.repository, LocalRunner(), sources, LoadOptions(type_name=type, **options), progress=progress
    )


def _size(sources: list[str]) -> int:
    return sum(Path(source).stat().st_size for source in sources)


@router.post(
    "/export",
    responses=described(None, job=True) | {200: {"description": "The entities, one a line.", "content": _STREAMED}},
    response_class=Response,
    name="export",
)
async def export(call: TheCall, body: ExportRequest) -> Response:
    """Stream nodes and edges by type and id: loading that gives the same graph.

    CSV and Parquet have one type, unless `directory` asks for a tar. `Prefer: respond-async` makes it a job, whose
    file `export` can be fetched when it is done.
    """
    call.require(Action.EXPORT, body.branch)
    if call.wants_job:
        return await _export_job(call, body)
    if body.directory:
        return await call.stream(lambda graph, pipe: _write_tar(call, graph, body, pipe), _TAR)

    def produce(graph: Graph, pipe: Pipe) -> None:
        call.require_state(graph, body.branch, body.at)
        graph.export(pipe, body.branch, body.at, body.types, "local", format=body.format)  # type: ignore[arg-type]

    return await call.stream(produce, _MEDIA[body.format])


async def _export_job(call: Call, body: ExportRequest) -> Response:
    folder = call.service.scratch.new_folder()
    job = call.service.jobs.new("export", call.graph_id, call.principal.actor, folder)
    ending = "tar" if body.directory else body.format

    def work(graph: Graph, running: Job) -> Document:
        call.require_state(graph, body.branch, body.at)
        path = folder / f"{EXPORT}.{ending}"
        if body.directory:
            with path.open("wb") as file:
                document = _tarred(call, graph, body, folder, file, running)
        else:
            with path.open("wb") as file:
                counted = _Counted(file, running, graph, body)
                to = cast(IO[bytes], counted)
                done = graph.export(to, body.branch, body.at, body.types, "local", format=body.format)
                counted.told()
            document = ExportAnswer.encode(done, out=path.name, **SINGLE_FILE)
        running.files[EXPORT] = path
        return document

    return await call.job("export", work, job)


class _Counted(io.RawIOBase):
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
        if self._rows == LINES_TOLD or not self._counts:
            self.told()
        return self._file.write(data)

    def told(self) -> None:
        rows, self._rows = self._rows, 0
        self._job.progress.done(rows, rows)


def _write_tar(call: Call, graph: Graph, body: ExportRequest, pipe: Pipe) -> None:
    folder = call.service.scratch.new_folder()
    try:
        call.require_state(graph, body.branch, body.at)
        _tarred(call, graph, body, folder, pipe, None)
    finally:
        files.remove_folder(folder)


def _tarred(call: Call, graph: Graph, body: ExportRequest, folder: Path, file: object, running: Job | None) -> Document:
    """A directory as `export --format` writes it, as one stream."""
    engine = call.engine(body.engine)
    place = folder / "files"
    progress = None if running is None else running.progress
    done = graph.export(place, body.branch, body.at, body.types, engine, format=body.format, progress=progress)
    with tarfile.open(fileobj=file, mode="w|") as archive:  # type: ignore[call-overload]  # it only writes
        for path in sorted(place.rglob("*")):
            if path.is_file():
                archive.add(path, str(path.relative_to(place)), recursive=False)
    return ExportAnswer.encode(done, out="export.tar")
