"""Results of tasks on the driver as tasks end: an accumulator that puts them into a queue.

Spark adds a task's updates if, and only if, it takes the task's result: of two runs of one task the driver gets one.
Apart from `runner.py` because it can't be imported without pyspark.
"""

from typing import Any

from pyspark.accumulators import AccumulatorParam


class TaskAccumulator(AccumulatorParam[list[Any]]):
    """A list in a worker; on the driver, items go into a queue."""

    def __init__(self, queue: Any = None) -> None:
        self._queue = queue

    def __reduce__(self) -> tuple[type["TaskAccumulator"], tuple[()]]:
        return TaskAccumulator, ()  # a worker has no queue

    def zero(self, value: list[Any]) -> list[Any]:
        return []

    def addInPlace(self, value1: list[Any], value2: list[Any]) -> list[Any]:  # noqa: N802
        if self._queue is None:
            return value1 + value2
        for item in value2:
            self._queue.put(item)
        return value1
