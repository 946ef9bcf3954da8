"""Chooses local load or bulk load: in this process up to its limits, above them as a bulk load, or as the caller says.

A load that was begun in this process and proves too large has written nothing: it starts again as a bulk load. With
`engine="auto"` and no Spark, the tasks of the bulk load run in this process one after the other.
"""

from collections.abc import Mapping
from typing import Any

from omnigraph.errors import BadRequest
from omnigraph.manifest.repository import Repository
from omnigraph.pipeline.compute import ComputeOptions, SparkProvider
from omnigraph.pipeline.spark.dataframes import has_frames
from omnigraph.write.load.input.load_input import UNLIMITED, TooLargeForProcess
from omnigraph.write.load.input.sources import is_files
from omnigraph.write.load.load import LoadResult, load
from omnigraph.write.load.load_options import LoadOptions


def load_with(repository: Repository, source: Any, options: LoadOptions, compute: ComputeOptions) -> LoadResult:
    """Load everything or nothing as one commit. A job id makes it a bulk load, whatever its size."""
    if not _in_bulk(source, options.job_id, compute):
        try:
            return load(repository, source, options, limits=UNLIMITED if compute.engine == "local" else None)
        except TooLargeForProcess:
            if compute.engine == "local" or not (is_files(source) or isinstance(source, Mapping)):
                raise  # what was read of an iterator can't be read again
    from omnigraph.pipeline.bulk.dataframe_source import load_tables  # a small load does without all that
    from omnigraph.pipeline.bulk.load import bulk_load

    with SparkProvider(compute) as provider:
        runner = provider.runner()
        if isinstance(source, Mapping):
            return load_tables(repository, runner, source, options, progress=compute.progress)
        return bulk_load(repository, runner, source, options, progress=compute.progress)


def check_job(source: Any, job_id: str | None) -> None:
    if job_id is not None and not is_files(source):
        raise BadRequest("A job id is for loads of files, which can be read again: leave it out, or load files.")


def _in_bulk(source: Any, job_id: str | None, compute: ComputeOptions) -> bool:
    """Whether the load is for the bulk engine from the start."""
    engine, frames = compute.engine, has_frames(source)
    if frames and engine == "local":
        raise BadRequest("A Spark DataFrame is loaded by Spark: leave the engine out, or convert it with toArrow().")
    check_job(source, job_id)
    if engine == "spark" and not is_files(source) and not isinstance(source, Mapping):
        raise BadRequest(
            "The Spark engine loads files, tables and DataFrames: write the entities to a .jsonl file first."
        )
    if engine == "local" and compute.names_spark:
        raise BadRequest("The engine is local, but a Spark session or master was given: leave one of them out.")
    return frames or engine == "spark" or job_id is not None
