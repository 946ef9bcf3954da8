"""`branch merge` with a place for its large tables: the verb is `merge/merge.py`, here it gets its Spark.

Nothing is started unless a table asks for it. Where the engine was not chosen and Spark is not there, the same tasks
run in this process one after another: slower, and in no more memory.
"""

from contextlib import ExitStack
from typing import TYPE_CHECKING

from omnigraph.engine import Engine
from omnigraph.errors import SparkNotReady
from omnigraph.manifest.model.manifest import MAIN, CommitId, TxnId
from omnigraph.manifest.repository import Repository
from omnigraph.merge.merge import MergeResult, merge
from omnigraph.storage.util.runner import LocalRunner, Runner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def merge_branches(
    repository: Repository,
    source: str,
    into: str = MAIN,
    *,
    delete_branch: bool = False,
    dry_run: bool = False,
    actor: str | None = None,
    if_commit: CommitId | None = None,
    txn_id: TxnId | None = None,
    engine: Engine = "auto",
    spark: "SparkSession | None" = None,
    master: str | None = None,
) -> MergeResult:
    """Merge one branch into another; see `branch.merge.merge`."""
    with ExitStack() as open_sessions:
        known: list[Runner] = []

        def runner() -> Runner:
            if not known:
                known.append(_start(open_sessions, engine, spark, master))
            return known[0]

        return merge(
            repository,
            source,
            into,
            delete_branch=delete_branch,
            dry_run=dry_run,
            actor=actor,
            if_commit=if_commit,
            txn_id=txn_id,
            engine=engine,
            runner=runner,
        )


def _start(sessions: ExitStack, engine: Engine, spark: "SparkSession | None", master: str | None) -> Runner:
    from omnigraph.pipeline.spark.session import obtain

    try:
        return sessions.enter_context(obtain(spark, master)).runner
    except SparkNotReady:
        if engine == "spark":
            raise
        return LocalRunner()
