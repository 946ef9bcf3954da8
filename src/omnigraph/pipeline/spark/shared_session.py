"""One local Spark session of a process that runs for long, such as a server."""

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from omnigraph.pipeline.spark.session import OnStart, Session, share

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Warm:
    """Whoever would start a session shares it, and nobody's end stops it.

    Started by the first who needs it, kept until `close`, and started anew should its Java have died.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._keeps = False

    def keep(self) -> None:
        """From now on, for the whole process, unless it has one already."""
        before = share(self.spark)
        self._keeps = before is None
        if before is not None:
            share(before)

    def spark(self, on_start: OnStart = None) -> "SparkSession":
        with self._lock:
            if self._session is not None and not self._session.is_alive:
                _end_dead(self._session)
                self._session = None
            if self._session is None:
                self._session = Session(None, None, quiet=True, cores=None, memory=None, config={}, on_start=on_start)
            return self._session.spark

    def close(self) -> None:
        if self._keeps:
            share(None)
            self._keeps = False
        with self._lock:
            if self._session is not None:
                self._session.close()
                self._session = None


def _end_dead(session: Session) -> None:
    """Clear away a session whose Java is gone: it can't be told, and pyspark would believe that it runs."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    with suppress(Exception):  # whatever the remains say
        session.close()
    SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = None
