"""Which engine runs a query. Importing this loads neither of them."""

from typing import TYPE_CHECKING

from omnigraph.engine import Engine, require_engine
from omnigraph.errors import SparkNotReady
from omnigraph.query.ir import ReadQuery
from omnigraph.storage.location import Location

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from omnigraph.read.reader import Reader
    from omnigraph.read.result import QueryResult


def run_with(
    engine: Engine,
    reader: "Reader",
    location: Location,
    query: ReadQuery,
    *,
    explain: bool = False,
    spark: "SparkSession | None" = None,
    master: str | None = None,
    on_start: "Callable[[str], None] | None" = None,
) -> "QueryResult":
    """The result of a bound query: of this process, or of Spark's executors. It is the same.

    `auto` starts Spark only for what has outgrown this process; a result is wholly here before Spark is stopped.
    """
    from omnigraph.read.execute import run_query
    from omnigraph.read.graph.csr import NoRoom

    require_engine(engine)
    if engine != "spark":
        try:
            return run_query(reader, query, explain=explain)
        except NoRoom as error:
            if engine == "local":
                raise
            try:
                return _on_spark(reader, location, query, explain, spark, master, on_start)
            except SparkNotReady:
                raise error from None
    return _on_spark(reader, location, query, explain, spark, master, on_start)


def _on_spark(
    reader: "Reader",
    location: Location,
    query: ReadQuery,
    explain: bool,
    spark: "SparkSession | None",
    master: str | None,
    on_start: "Callable[[str], None] | None",
) -> "QueryResult":
    from omnigraph.pipeline.spark.session import obtain
    from omnigraph.pipeline.spark.session_scope import given_back

    with obtain(spark, master, on_start=on_start) as session:
        from omnigraph.pipeline.querying.query import run_on_spark, session_for_queries

        with given_back(session.spark):
            return run_on_spark(session_for_queries(session.spark), reader, location, query, explain=explain)
