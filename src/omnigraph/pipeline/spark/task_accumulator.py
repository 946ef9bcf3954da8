"""How the driver hears of each task as it ends: an accumulator that passes on what it is sent.

Spark adds up what a task sent when, and only when, it takes the task's answer: of two runs of one task the driver
hears one. Apart from `runner.py` because it can't be imported without pyspark.
"""

from typing import Any

from pyspark.accumulators import AccumulatorParam


class Ear(AccumulatorParam[list[Any]]):
    """Gathers in a worker; on the driver, puts what comes into a queue."""

    def __init__(self, queue: Any = None) -> None:
        self._queue = queue

    def __reduce__(self) -> tuple[type["Ear"], tuple[()]]:
        return Ear, ()  # a worker has no queue

    def zero(self, value: list[Any]) -> list[Any]:
        return []

    def addInPlace(self, value1: list[Any], value2: list[Any]) -> list[Any]:  # noqa: N802
        if self._queue is None:
            return value1 + value2
        for item in value2:
            self._queue.put(item)
        return value1
