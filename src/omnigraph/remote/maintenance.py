"""What keeps a graph well, and what computes over all of it, over HTTP: jobs that are waited for."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from omnigraph.api.job_models import CleanupAnswer, OptimizeAnswer, RecoverAnswer, VerifyAnswer
from omnigraph.api.models import EmbedAnswer
from omnigraph.errors import BadRequest
from omnigraph.remote.session import Session, refuse_actor, refuse_spark
from omnigraph.remote.transport import IF_COMMIT, HttpRequest, Write, check_header
from omnigraph.remote.wire.decode import decode_commit
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
    from omnigraph.read.search.embedding import Embedder
    from omnigraph.verify.report import VerifyReport

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
