"""Methods of the façade for maintenance, which changes how a graph is stored and never its content."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from omnigraph.engine import Engine
from omnigraph.manifest.model.manifest import MAIN
from omnigraph.manifest.repository import Repository
from omnigraph.pipeline.compute import ComputeOptions, SparkProvider

if TYPE_CHECKING:
    from datetime import timedelta

    from pyspark.sql import SparkSession

    from omnigraph.gc.cleanup import Cleaned
    from omnigraph.gc.recovery import Recovery
    from omnigraph.maintenance.report import OptimizeResult
    from omnigraph.verify.verify import VerifyReport


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
        from omnigraph.maintenance.optimize import optimize

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
