"""Bulk data through many workers, on Spark or in this process: load, export, data source, queries, analytics."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omnigraph.pipeline.source.datasource import OmnigraphDataSource
    from omnigraph.pipeline.source.frames import graph_frames

__all__ = ["OmnigraphDataSource", "graph_frames"]


def __getattr__(name: str) -> Any:
    """What needs Spark is imported when it is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from omnigraph.pipeline.spark.session import require_pyspark

    require_pyspark()
    from omnigraph.pipeline.source.datasource import OmnigraphDataSource
    from omnigraph.pipeline.source.frames import graph_frames

    return {"OmnigraphDataSource": OmnigraphDataSource, "graph_frames": graph_frames}[name]
