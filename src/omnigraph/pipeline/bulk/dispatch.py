"""Which way a load goes: in this process up to its limits, above them as a bulk load on Spark, or as the caller says.

A load that was begun in this process and proves too large has written nothing: it begins anew. Where nobody asked for
Spark and there is none, the tasks of the bulk load run here one after the other.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from omnigraph.engine import Engine, require_engine
from omnigraph.errors import BadRequest, SparkNotReady
from omnigraph.manifest.repository import Repository
from omnigraph.pipeline.progress import Progress
from omnigraph.pipeline.spark.dataframes import has_frames
from omnigraph.storage.util.runner import LocalRunner, Runner
from omnigraph.write.load.input.load_input import UNLIMITED, TooLargeForProcess
from omnigraph.write.load.input.sources import is_files
from omnigraph.write.load.load import LoadResult, load
from omnigraph.write.load.load_options import LoadOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def load_with(
    repository: Repository,
    source: Any,
    options: LoadOptions,
    *,
    engine: Engine = "auto",
    spark: "SparkSession | None" = None,
    master: str | None = None,
    progress: Progress | None = None,
) -> LoadResult:
    """Load everything or nothing as one commit. A job id makes it a bulk load, whatever its size."""
    require_engine(engine)
    progress = progress or Progress()
    if not _in_bulk(source, engine, options.job_id, spark is not None or master is not None):
        try:
            return load(repository, source, options, limits=UNLIMITED if engine == "local" else None)
        except TooLargeForProcess:
            if engine == "local" or not (is_files(source) or isinstance(source, Mapping)):
                raise  # what was read of an iterator can't be read again
    from omnigraph.pipeline.bulk.dataframe_source import load_tables  # a small load does without all that
    from omnigraph.pipeline.bulk.load import bulk_load

    with _runner(engine, spark, master, progress) as runner:
        if isinstance(source, Mapping):
            return load_tables(repository, runner, source, options, progress=progress)
        return bulk_load(repository, runner, source, options, progress=progress)


def check_job(source: Any, job_id: str | None) -> None:
    if job_id is not None and not is_files(source):
        raise BadRequest("A job id is for loads of files, which can be read again: leave it out, or load files.")


def _in_bulk(source: Any, engine: Engine, job_id: str | None, has_spark: bool) -> bool:
    """Whether the load is for the bulk engine from the start."""
    frames = has_frames(source)
    if frames and engine == "local":
        raise BadRequest("A Spark DataFrame is loaded by Spark: leave the engine out, or convert it with toArrow().")
    check_job(source, job_id)
    if engine == "spark" and not is_files(source) and not isinstance(source, Mapping):
        raise BadRequest(
            "The Spark engine loads files, tables and DataFrames: write the entities to a .jsonl file first."
        )
    if engine == "local" and has_spark:
        raise BadRequest("The engine is local, so a Spark session or master makes no sense: leave one of them out.")
    return frames or engine == "spark" or job_id is not None


@contextmanager
def _runner(engine: Engine, spark: "SparkSession | None", master: str | None, progress: Progress) -> Iterator[Runner]:
    if engine == "local":
        yield LocalRunner()
        return
    from omnigraph.pipeline.spark.session import obtain

    on_start: Callable[[str], None] = progress.stage
    try:
        session = obtain(spark, master, on_start=on_start)
        if engine == "auto" and spark is None and master is None:
            session.spark  # noqa: B018  # started now, while there is another way
    except SparkNotReady:
        if engine == "spark" or spark is not None or master is not None:
            raise
        yield LocalRunner()
        return
    with session:
        yield session.runner
