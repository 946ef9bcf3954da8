"""Which engine runs a query. Importing this loads neither of them."""

from typing import TYPE_CHECKING

from omnigraph.errors import SparkNotReady
from omnigraph.pipeline.compute import ComputeOptions, SparkProvider
from omnigraph.query.ir import ReadQuery
from omnigraph.storage.location import Location

if TYPE_CHECKING:
    from omnigraph.read.reader import SnapshotReader
    from omnigraph.read.result import QueryResult


def run_query_with(
    compute: ComputeOptions, reader: "SnapshotReader", location: Location, query: ReadQuery, *, explain: bool = False
) -> "QueryResult":
    """The result of a bound query: of this process, or of Spark's executors. It is the same.

    `auto` starts Spark only for what has outgrown this process; a result is wholly here before Spark is stopped.
    """
    from omnigraph.read.execute import run_query
    from omnigraph.read.graph.csr import NoRoom

    if compute.engine != "spark":
        try:
            return run_query(reader, query, explain=explain)
        except NoRoom as error:
            if compute.engine == "local":
                raise
            try:
                return _on_spark(compute, reader, location, query, explain)
            except SparkNotReady:
                raise error from None
    return _on_spark(compute, reader, location, query, explain)


def _on_spark(
    compute: ComputeOptions, reader: "SnapshotReader", location: Location, query: ReadQuery, explain: bool
) -> "QueryResult":
    with SparkProvider(compute) as provider:
        spark = provider.session.spark  # the next imports need pyspark, of which this says that it is missing
        from omnigraph.pipeline.querying.query import query_session, run_on_spark
        from omnigraph.pipeline.spark.session import restore_active_session

        with restore_active_session(spark):
            return run_on_spark(query_session(spark), reader, location, query, explain=explain)
