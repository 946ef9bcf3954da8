"""Operations over whole tables, as tasks in this process or on Spark.

spark/          sessions, Java, tasks on executors
bulk/           bulk load
exporting/      parallel export
source/         the Spark data source and sink
querying/       queries on Spark
analytics/      graph algorithms
embedding/      vectors for texts
compute.py      where an operation runs, its Spark session, the engine of a query
progress.py     progress of a bulk job
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omnigraph.pipeline.source.datasource import OmnigraphDataSource
    from omnigraph.pipeline.source.scans import graph_frames

__all__ = ["OmnigraphDataSource", "graph_frames"]


def __getattr__(name: str) -> Any:
    """What needs Spark is imported when it is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from omnigraph.pipeline.spark.session import require_pyspark

    require_pyspark()
    from omnigraph.pipeline.source.datasource import OmnigraphDataSource
    from omnigraph.pipeline.source.scans import graph_frames

    return {"OmnigraphDataSource": OmnigraphDataSource, "graph_frames": graph_frames}[name]
