"""Methods of the façade for whole tables and for maintenance, which changes how a graph is stored, not its content."""

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import IO, TYPE_CHECKING

from omnigraph.engine import Engine
from omnigraph.manifest.model.manifest import MAIN, CommitId, TxnId
from omnigraph.manifest.model.request_key import request_key
from omnigraph.manifest.repository import Repository
from omnigraph.pipeline.compute import ComputeOptions, SparkProvider
from omnigraph.pipeline.progress import Progress
from omnigraph.storage import meter

if TYPE_CHECKING:
    from datetime import timedelta

    from pyspark.sql import SparkSession

    from omnigraph.gc.cleanup import Cleaned
    from omnigraph.gc.recovery import Recovery
    from omnigraph.maintenance.report import OptimizeResult
    from omnigraph.pipeline.analytics.analyze import Analysis
    from omnigraph.pipeline.analytics.spec import Algorithm, Direction
    from omnigraph.pipeline.embedding.embed import EmbedResult
    from omnigraph.read.export.export import Exported
    from omnigraph.read.export.export_formats import Format
    from omnigraph.read.search.embedding import Embedder
    from omnigraph.verify.verify import VerifyReport
    from omnigraph.write.load.input.load_input import Source
    from omnigraph.write.load.load import LoadResult
    from omnigraph.write.load.load_options import Mode, OnError


class BulkCommands:
    """Methods of `Graph` for data of any size."""

    repository: Repository

    def load(
        self,
        source: "Source",
        mode: "Mode" = "append",
        branch: str = MAIN,
        engine: Engine = "auto",
        spark: "SparkSession | None" = None,
        on_error: "OnError" = "fail",
        *,
        from_: str | None = None,
        type: str | None = None,
        job_id: str | None = None,
        max_errors: int | None = None,
        actor: str | None = None,
        if_commit: CommitId | None = None,
        txn_id: TxnId | None = None,
        master: str | None = None,
        progress: Progress | None = None,
    ) -> "LoadResult":
        """Load entities of any number of types as one atomic commit.

        `source` is a path, glob or URI (.jsonl, .csv, .parquet, directories too), a list of them, entity dicts, or a
        dict of type → table: Arrow, pandas, or a Spark DataFrame. `type` is the type of rows in CSV and Parquet files
        that are not named after theirs. `engine="auto"` loads small inputs in this process and others on Spark; a
        load with a `job_id` can be started again after a crash and resumes.
        """
        from omnigraph.pipeline.bulk.dispatch import load_with
        from omnigraph.write.load.load_options import LoadOptions

        options = LoadOptions(
            mode=mode,
            branch=branch,
            from_=from_,
            type_name=type,
            on_error=on_error,
            max_errors=max_errors,
            job_id=job_id,
            actor=actor,
            if_commit=if_commit,
            txn_id=txn_id,
        )
        compute = ComputeOptions(engine, spark, master, progress or Progress())
        return load_with(self.repository, source, options, compute)

    def export(
        self,
        dest: "str | os.PathLike[str] | IO[bytes]",
        branch: str = MAIN,
        at: str | datetime | None = None,
        types: Sequence[str] | None = None,
        engine: Engine = "auto",
        *,
        format: "Format | None" = None,
        overwrite: bool = False,
        storage_options: Mapping[str, str] | None = None,
        spark: "SparkSession | None" = None,
        master: str | None = None,
        progress: Progress | None = None,
    ) -> "Exported":
        """Write the entities of a state, ordered by type and id, so that loading them gives the same.

        One file of NDJSON, or of one type as CSV or Parquet by its ending; with a `format`, or to a URI, a directory.
        """
        from omnigraph.pipeline.exporting.export import export

        compute = ComputeOptions(engine, spark, master, progress or Progress())
        with meter.operation("export"):
            return export(
                self.repository,
                self.repository.snapshot(branch, at),
                dest,
                types,
                format,
                compute=compute,
                overwrite=overwrite,
                storage_options=storage_options,
            )

    def analyze(
        self,
        algorithm: "Algorithm",
        edges: Sequence[str] | None = None,
        write: str | None = None,
        engine: Engine = "auto",
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
        if_commit: CommitId | None = None,
        txn_id: TxnId | None = None,
    ) -> "Analysis":
        """PageRank, components, degrees or triangles; `write="Person.rank"` gives every row its value, as one commit.

        `edges` are edge types, by default all. The table of the answer has the first `limit` rows, None for all.
        """
        from omnigraph.pipeline.analytics.analyze import analyze

        spec = (algorithm, edges, write, direction, damping, tolerance, iterations)
        txn_id = request_key(txn_id, actor, "analyze", branch, at, *spec)
        return analyze(
            self.repository,
            algorithm,
            edges=edges,
            write=write,
            direction=direction,
            damping=damping,
            tolerance=tolerance,
            iterations=iterations,
            branch=branch,
            at=at,
            limit=limit,
            compute=ComputeOptions(engine, spark, master),
            actor=actor,
            if_commit=if_commit,
            txn_id=txn_id,
        )

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
        engine: Engine = "local",
        spark: "SparkSession | None" = None,
        master: str | None = None,
        actor: str | None = None,
        embedder: "Embedder | None" = None,
        on_progress: "Callable[[int, int], None] | None" = None,
    ) -> "EmbedResult":
        """Fill vectors declared with `@embed` in the rows that lack them; run it again to resume.

        `rate_limit` is in requests a minute, `commit_every` in batches (None: one commit at the end). With `dry_run`
        nothing is requested or written: the result says how many rows, tokens and requests it would take.
        """
        from omnigraph.pipeline.embedding.embed import embed

        return embed(
            self.repository,
            type,
            property,
            branch=branch,
            batch=batch,
            commit_every=commit_every,
            rate_limit=rate_limit,
            concurrency=concurrency,
            dry_run=dry_run,
            price_per_1k=price_per_1k,
            compute=ComputeOptions(engine, spark, master),
            actor=actor,
            embedder=embedder,
            on_progress=on_progress,
        )


class MaintenanceCommands:
    """Methods of `Graph` that maintain its storage."""

    repository: Repository

    def optimize(
        self,
        branch: str = MAIN,
        types: Sequence[str] | None = None,
        engine: Engine = "auto",
        spark: "SparkSession | None" = None,
        master: str | None = None,
        *,
        actor: str | None = None,
    ) -> "OptimizeResult":
        """Fold, compact and index the tables of a branch as one commit, and save the adjacency of its edges.

        The content stays as it is, and no write that runs meanwhile fails because of it. `engine="auto"` works here
        and on Spark where there is much to rewrite; the result says for each type what was done and what is pending.
        """
        from omnigraph.maintenance.commit import optimize

        with SparkProvider(ComputeOptions(engine, spark, master)) as provider:
            return optimize(self.repository, branch, types, actor=actor, choose=provider.runner_for_optimize)

    def cleanup(
        self,
        older_than: "str | timedelta" = "7d",
        keep: int = 10,
        dry_run: bool = True,
        *,
        intent_ttl: "str | timedelta" = "7d",
        actor: str | None = None,
    ) -> "Cleaned":
        """Expire history and delete what nothing refers to; unless `dry_run` is False, only report what would go.

        Every branch keeps the states of the last `older_than`, and its last `keep` commits whatever their age. What
        tags, other branches and jobs that are under way need stays too. Jobs that died longer than `intent_ttl` ago
        are discarded.
        """
        from omnigraph.gc.cleanup import cleanup
        from omnigraph.gc.retention import Retention, parse_span

        retention = Retention(parse_span(older_than), keep)
        return cleanup(self.repository, retention, dry_run=dry_run, intent_ttl=parse_span(intent_ttl), actor=actor)

    def recover(self, complete: Sequence[str] = (), discard: Sequence[str] = (), *, all: bool = False) -> "Recovery":
        """List the long writes that have not ended, after completing or discarding dead ones by their txn ids.

        `all` completes every dead one that staged everything, and discards the others. One that somebody works on is
        left alone.
        """
        from omnigraph.gc.recovery import recover
        from omnigraph.pipeline.bulk.load import COMPLETER

        named = [(txn_id,) if isinstance(txn_id, str) else tuple(txn_id) for txn_id in (complete, discard)]
        completers = {"load": COMPLETER}
        return recover(self.repository, completers, to_complete=named[0], to_discard=named[1], everything=all)

    def verify(self, branch: str | None = None, *, full: bool = False, seed: int = 0) -> "VerifyReport":
        """Check that everything exists, can be read and is consistent: one branch or all, by samples or in `full`.

        Changes nothing. The report says what was checked and what is damaged; the same seed takes the same samples.
        """
        from omnigraph.verify.verify import verify

        return verify(self.repository, branch=branch, full=full, seed=seed)
