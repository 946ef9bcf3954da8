"""Over HTTP: load and export, as streams of bytes that neither side holds as a whole, and the jobs of maintenance."""

import json
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from omnigraph.api.job_models import CleanupAnswer, OptimizeAnswer, RecoverAnswer, VerifyAnswer
from omnigraph.api.models import EmbedAnswer, ExportAnswer, LoadAnswer
from omnigraph.engine import Engine, require_engine
from omnigraph.errors import BadRequest, ConstraintViolation, InvalidInput
from omnigraph.remote.session import Session, refuse_actor, refuse_spark
from omnigraph.remote.transport import IF_COMMIT, HttpRequest, StreamReader, Write, check_header
from omnigraph.remote.wire.decode import decode_commit
from omnigraph.remote.wire.errors import error_from, with_places
from omnigraph.remote.wire.upload import Upload, prepare_upload
from omnigraph.remote.wire.values import wire_time
from omnigraph.storage.meter import NO_COST

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from omnigraph.engine import Engine
    from omnigraph.gc.cleanup import Cleaned
    from omnigraph.gc.recovery import Recovery
    from omnigraph.maintenance.report import OptimizeResult
    from omnigraph.manifest.model.manifest import CommitId, TxnId
    from omnigraph.pipeline.analytics.analyze import Analysis
    from omnigraph.pipeline.analytics.spec import Algorithm, Direction
    from omnigraph.pipeline.embedding.embed import EmbedResult
    from omnigraph.pipeline.progress import Progress
    from omnigraph.read.export.export import Exported
    from omnigraph.read.export.export_formats import Format
    from omnigraph.read.search.embedding import Embedder
    from omnigraph.schema.catalog import Catalog
    from omnigraph.verify.report import VerifyReport
    from omnigraph.write.load.input.load_input import Source
    from omnigraph.write.load.load import LoadResult
    from omnigraph.write.load.load_options import Mode, OnError


MAIN = "main"
EXPORTED = "export"


class RemoteBulk:
    """The part of `RemoteGraph` that moves whole tables."""

    _session: Session

    def load(
        self,
        source: "Source",
        mode: "Mode" = "append",
        branch: str = MAIN,
        engine: "Engine" = "auto",
        spark: "SparkSession | None" = None,
        on_error: "OnError" = "fail",
        *,
        from_: str | None = None,
        type: str | None = None,
        job_id: str | None = None,
        max_errors: int | None = None,
        actor: str | None = None,
        if_commit: "CommitId | None" = None,
        txn_id: "TxnId | None" = None,
        master: str | None = None,
        progress: "Progress | None" = None,
    ) -> "LoadResult":
        """Send the source and load it there: the files are those of this process, wherever the graph is."""
        refuse_actor(actor)
        refuse_spark(spark, master)
        write = self._session.commit_request(branch, txn_id)
        if job_id is not None:
            write = _as_job(source, job_id, write, keyed=txn_id is not None)
        params = {
            "mode": mode,
            "branch": branch,
            "from": from_,
            "on_error": on_error,
            "max_errors": max_errors,
            "engine": engine,
            "job_id": job_id,
        }
        with ExitStack() as stack:
            body = prepare_upload(source, type, lambda: self._catalog(branch, from_), stack)
            if progress is not None:
                progress.stage("sending")
            pieces = body.body if self._may_write() else lambda: iter(())
            headers = {
                **body.headers,
                **({} if if_commit is None else {IF_COMMIT: check_header(if_commit, "A commit id")}),
            }
            request = HttpRequest("POST", f"{self._session.base}/load", params, None, pieces, headers, write)
            with _with_local_names(body):
                document = self._session.run_job(request, progress).document
        quarantine = self._fetch_quarantine(document["quarantine"], body)
        result: LoadResult = LoadAnswer.decode(
            document,
            commit=self._session.commit_in(document, write.txn_id),
            quarantine=quarantine,
            job_id=job_id,
            reports=tuple(body.local_message(note) for note in document["notes"]),
        )
        return result

    def _may_write(self) -> bool:
        """Whether the token writes anywhere in the graph.

        If not, nothing is sent and the server says why: it would only say so behind the last byte. Besides, a server
        that is busy or away is found out before an input is used up that can be read once.
        """
        known = self._session.transport.call(HttpRequest("GET", "/graphs")).document["graphs"]
        roles: list[str] = next((entry["roles"] for entry in known if entry["id"] == self._session.graph), [])
        return bool({"write", "admin"} & set(roles))

    def _catalog(self, branch: str, from_: str | None) -> "Catalog":
        """The schema by which files are taken for a type's: of the branch, or of the one it will be forked from."""
        from omnigraph.errors import BranchNotFound
        from omnigraph.schema.lang.compile import compile_schema

        try:
            text = self._session.get("/schema", {"branch": branch}).document["schema"]
        except BranchNotFound:
            if from_ is None:
                raise
            text = self._session.get("/schema", {"branch": from_}).document["schema"]
        return compile_schema(text).catalog

    def _fetch_quarantine(self, address: str | None, body: Upload) -> Path | None:
        """Fetch what was left out, to where the embedded graph would have put it."""
        from omnigraph.write.load.quarantine import default_quarantine_path

        if address is None:
            return None
        path = default_quarantine_path(body.files, self._session.transport.runtime.ids.short_id())
        with self._session.transport.stream(HttpRequest("GET", address)) as response:
            pieces = self._session.transport.pieces(response)
            try:
                with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
                    for line in _lines(pieces):
                        file.write(json.dumps(_with_local_places(json.loads(line), body), ensure_ascii=False) + "\n")
            except OSError as error:
                raise BadRequest(
                    f"The rows were loaded, but those left out can't be written to {path} ({error.strerror}): fetch "
                    f"them from {self._session.transport.url}{address}."
                ) from error
        return path

    def export(
        self,
        dest: "str | os.PathLike[str] | IO[bytes]",
        branch: str = MAIN,
        at: str | datetime | None = None,
        types: Sequence[str] | None = None,
        engine: "Engine" = "auto",
        *,
        format: "Format | None" = None,
        overwrite: bool = False,
        storage_options: Mapping[str, str] | None = None,
        spark: "SparkSession | None" = None,
        master: str | None = None,
        progress: "Progress | None" = None,
    ) -> "Exported":
        """Write to a file or directory of this process: a stream, or for a directory a job whose files are fetched."""
        from omnigraph.pipeline.exporting.export import file_format
        from omnigraph.read.export.export_formats import FORMATS

        refuse_spark(spark, master)
        require_engine(engine)
        if format is not None and format not in FORMATS:
            raise BadRequest(f"{format!r} is not a format: use {', '.join(FORMATS)}.")
        whole = file_format(dest, format)
        state: dict[str, Any] = {"branch": branch, "at": wire_time(at), "types": None if types is None else list(types)}
        if whole is None:
            assert isinstance(dest, str | os.PathLike)
            wanted = {**state, "format": format or "jsonl", "directory": True, "engine": engine}
            return self._export_directory(os.fspath(dest), wanted, overwrite, storage_options, progress)
        if engine == "spark":
            raise BadRequest("Spark writes directories of files: name a directory and a format, or use engine local.")
        return self._export_file(dest, state, whole)

    def _export_file(
        self, dest: "str | os.PathLike[str] | IO[bytes]", state: dict[str, Any], whole: "Format"
    ) -> "Exported":
        """At a pinned commit, so that its rows are known, whatever is written meanwhile."""
        from omnigraph.read.export.export import Exported

        params = {"branch": state["branch"], "at": state["at"]}
        pinned = self._session.get("/snapshot", params).document
        counts = {entry["type_name"]: entry["rows"] for entry in pinned["types"]}
        chosen = (
            counts if state["types"] is None else [name for name in dict.fromkeys(state["types"]) if name in counts]
        )
        document = {**state, "at": state["at"] or pinned["commit_id"], "format": whole}
        request = HttpRequest("POST", f"{self._session.base}/export", document=document)
        with self._session.transport.stream(request) as response:
            pieces = self._session.transport.pieces(response)
            size = _write_file(dest, pieces) if isinstance(dest, str | os.PathLike) else _copy(pieces, dest)
        return Exported(sum(counts[name] for name in chosen), size)

    def _export_directory(
        self,
        dest: str,
        wanted: dict[str, Any],
        overwrite: bool,
        storage_options: Mapping[str, str] | None,
        progress: "Progress | None",
    ) -> "Exported":
        from omnigraph.pipeline.exporting.destination import SUMMARY, destination_at
        from omnigraph.read.export.export import Exported
        from omnigraph.storage.location import Location
        from omnigraph.storage.objects.object_store import open_store

        place = destination_at(dest, Location(self._session.uri), storage_options)
        place.require_free(overwrite)
        request = HttpRequest("POST", f"{self._session.base}/export", document=wanted)
        done, files = self._session.run_job_with_files(request, progress)
        with (
            self._session.transport.stream(HttpRequest("GET", files[EXPORTED])) as response,
            tarfile.open(fileobj=StreamReader(self._session.transport.pieces(response)), mode="r|") as archive,
            place.writing() as location,
        ):
            store = open_store(location)
            summary: Mapping[str, Any] = {}
            for member in archive:
                content = archive.extractfile(member) if member.isreg() else None
                if content is None:
                    continue
                if member.name == SUMMARY:
                    summary = json.loads(content.read())
                    place.expect([file["name"] for entry in summary["types"].values() for file in entry["files"]])
                    continue
                store.put(_part_key(member.name), content.read())
            place.finish(summary)
        exported: Exported = ExportAnswer.decode(done)
        return exported


def _part_key(name: str) -> str:
    """The name of a part, which no server can make a way out of the directory."""
    from omnigraph.pipeline.exporting.destination import is_part_name

    if not is_part_name(name):
        raise BadRequest(f"The server sent {name!r}, which is no part of an export: nothing was kept.")
    return name


# Loads


def _as_job(source: "Source", job_id: str, write: Write, *, keyed: bool) -> Write:
    """A load with a job id is committed once under that; the server refuses a transaction id beside it."""
    from omnigraph.pipeline.bulk.dispatch import check_job
    from omnigraph.pipeline.bulk.resume import txn_id_of_job

    check_job(source, job_id)
    return write if keyed else Write(write.branch, txn_id_of_job(job_id), keyed=False)


@contextmanager
def _with_local_names(body: Upload) -> Iterator[None]:
    """Errors that name places in what was sent, by the names that the caller knows."""
    try:
        yield
    except (InvalidInput, ConstraintViolation) as error:
        raise with_places(error, body.local_place) from error.__cause__
    except BadRequest as error:
        said = error.to_json()
        shown = body.local_message(said["error"])
        if shown == said["error"]:
            raise
        raise error_from({**said, "error": shown}) from error.__cause__


def _with_local_places(entry: dict[str, Any], body: Upload) -> dict[str, Any]:
    """A line of a quarantine, as it would be if the rows had been read here."""
    found = {**entry, "place": body.local_place(entry["place"])}
    if body.entities and "line" in found:
        return {name: value for name, value in found.items() if name != "line"} | {"entity": json.loads(found["line"])}
    return found


def _lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole
    if rest:
        yield rest


# Exports


def _write_file(dest: "str | os.PathLike[str]", pieces: Iterator[bytes]) -> int:
    from omnigraph.read.export.export import new_file

    with new_file(dest) as file:
        return _copy(pieces, file)


def _copy(pieces: Iterator[bytes], file: Any) -> int:
    size = 0
    for piece in pieces:
        file.write(piece)
        size += len(piece)
    return size


MAIN = "main"
EVERY_BRANCH = "*"  # in what is said of a lost answer


class RemoteMaintenance:
    """The part of `RemoteGraph` whose work is long."""

    _session: Session

    def optimize(
        self,
        branch: str = MAIN,
        types: Sequence[str] | None = None,
        engine: "Engine" = "auto",
        spark: "SparkSession | None" = None,
        master: str | None = None,
        *,
        actor: str | None = None,
    ) -> "OptimizeResult":
        refuse_actor(actor)
        refuse_spark(spark, master)
        document = {"branch": branch, "types": None if types is None else list(types), "engine": engine}
        answer = self._run("/optimize", document, self._session.name_request(branch))
        result: OptimizeResult = OptimizeAnswer.decode(answer, commit=self._session.commit_in(answer))
        return result

    def cleanup(
        self,
        older_than: "str | timedelta" = "7d",
        keep: int = 10,
        dry_run: bool = True,
        *,
        intent_ttl: "str | timedelta" = "7d",
        actor: str | None = None,
    ) -> "Cleaned":
        refuse_actor(actor)
        document = {
            "older_than": _span_text(older_than),
            "keep": keep,
            "intent_ttl": _span_text(intent_ttl),
            "confirm": not dry_run,
        }
        done: Cleaned = CleanupAnswer.decode(self._run("/cleanup", document, self._session.name_request(EVERY_BRANCH)))
        return done

    def recover(self, complete: Sequence[str] = (), discard: Sequence[str] = (), *, all: bool = False) -> "Recovery":
        named = [[txn_id] if isinstance(txn_id, str) else list(txn_id) for txn_id in (complete, discard)]
        document = {"complete": named[0], "discard": named[1], "all": all}
        if not (named[0] or named[1] or all):
            answer = self._session.post("/recover", document)
        else:
            write = self._session.name_request(EVERY_BRANCH, repeatable=False)
            answer = self._session.write("POST", "/recover", document, write)
        found: Recovery = RecoverAnswer.decode(answer.document)
        return found

    def verify(self, branch: str | None = None, *, full: bool = False, seed: int = 0) -> "VerifyReport":
        answer = self._run("/verify", {"branch": branch, "full": full, "seed": seed}, None)
        report: VerifyReport = VerifyAnswer.decode(answer)
        return report

    def analyze(
        self,
        algorithm: "Algorithm",
        edges: Sequence[str] | None = None,
        write: str | None = None,
        engine: "Engine" = "auto",
        *,
        direction: "Direction | None" = None,
        damping: float = 0.85,
        tolerance: float = 1e-6,
        iterations: int = 100,
        branch: str = MAIN,
        at: str | datetime | None = None,
        limit: int | None = 20,
        spark: "SparkSession | None" = None,
        master: str | None = None,
        actor: str | None = None,
        if_commit: "CommitId | None" = None,
        txn_id: "TxnId | None" = None,
    ) -> "Analysis":
        refuse_actor(actor)
        refuse_spark(spark, master)
        document = {
            "algorithm": algorithm,
            "edges": None if edges is None else list(edges),
            "write": write,
            "direction": direction,
            "damping": damping,
            "tolerance": tolerance,
            "iterations": iterations,
            "limit": limit,
            "branch": branch,
            "at": wire_time(at),
            "engine": engine,
        }
        writes = self._session.commit_request(branch, txn_id) if write is not None else None
        answer = self._run("/analyze", document, writes, if_commit)
        commit = self._session.commit_in(answer, "" if writes is None else writes.txn_id)
        from omnigraph.remote.wire.tables import decode_analysis

        return decode_analysis(answer, commit)

    def embed(
        self,
        type: str | None = None,
        property: str | None = None,
        branch: str = MAIN,
        *,
        batch: int = 128,
        commit_every: int | None = 100,
        rate_limit: float | None = None,
        concurrency: int = 4,
        dry_run: bool = False,
        price_per_1k: float | None = None,
        engine: "Engine" = "local",
        spark: "SparkSession | None" = None,
        master: str | None = None,
        actor: str | None = None,
        embedder: "Embedder | None" = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> "EmbedResult":
        refuse_actor(actor)
        refuse_spark(spark, master)
        if embedder is not None or engine != "local":
            raise BadRequest("A server asks the provider that it was configured with, from its own process: leave out "
                             "embedder and engine.")  # fmt: skip
        document = {
            "type": type,
            "property": property,
            "branch": branch,
            "batch": batch,
            "commit_every": commit_every,
            "rate_limit": rate_limit,
            "concurrency": concurrency,
            "dry_run": dry_run,
            "price_per_1k": price_per_1k,
        }
        # A run that is asked for twice does what is left: every row that has its vector is left alone.
        answer = self._run("/embed", document, None if dry_run else self._session.name_request(branch))
        if on_progress is not None:
            on_progress(answer["embedded"], answer["embedded"])
        commits = tuple(decode_commit(made, NO_COST, "", self._session.read_commit) for made in answer["commits"])
        result: EmbedResult = EmbedAnswer.decode(answer, price_per_1k=price_per_1k, commits=commits)
        return result

    def _run(self, path: str, document: Any, write: Write | None, if_commit: str | None = None) -> Any:
        headers = {} if if_commit is None else {IF_COMMIT: check_header(if_commit, "A commit id")}
        request = HttpRequest("POST", self._session.base + path, document=document, headers=headers, write=write)
        return self._session.run_job(request).document


def _span_text(span: str | timedelta) -> str:
    """As text; what is no span is the server's to refuse, in the words of the embedded graph."""
    from omnigraph.gc.retention import parse_span

    return f"{int(parse_span(span).total_seconds())}s" if isinstance(span, timedelta) else span
