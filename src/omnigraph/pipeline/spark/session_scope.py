"""A second session on the caller's executors, with settings of its own, that leaves no trace in the caller's."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session_beside(spark: "SparkSession") -> "SparkSession":
    """A new session. Spark binds `rdd.toDF` to whichever session was made last: it stays the caller's."""
    from pyspark import RDD

    bound = RDD.toDF
    try:
        return spark.newSession()
    finally:
        type.__setattr__(RDD, "toDF", bound)


@contextmanager
def given_back(spark: "SparkSession") -> Iterator[None]:
    """Whoever makes a frame becomes the thread's active session, by which data sources are found: the caller again."""
    try:
        yield
    finally:
        spark.createDataFrame([], "nothing int")
