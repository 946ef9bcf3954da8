"""Task runners: the same task code runs in this process or on Spark's executors.

A task is a function of one picklable value that does its own I/O and returns something small. It may run twice, on two
machines, or be killed half-way: whatever it writes must be garbage unless its result is used.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from omnigraph.cancellation import checkpoint

T = TypeVar("T")
R = TypeVar("R")


class Runner(Protocol):
    """Runs tasks. `stage` is the label of the progress bar; `on_done` is called with each result as it arrives."""

    @property
    def name(self) -> str: ...

    @property
    def parallelism(self) -> int:
        """How many tasks run at once."""

    def run(
        self,
        task: Callable[[T], R],
        items: Sequence[T],
        *,
        stage: str,
        on_done: Callable[[R], None] | None = None,
    ) -> list[R]:
        """The results, in the order of the items. The first task that fails for good ends the job with its error."""


class LocalRunner:
    """Runs tasks one after another in this process: without Spark, or for work too small for a Spark session."""

    name = "local"
    parallelism = 1

    def run(
        self,
        task: Callable[[T], R],
        items: Sequence[T],
        *,
        stage: str,
        on_done: Callable[[R], None] | None = None,
    ) -> list[R]:
        results = []
        for item in items:
            checkpoint()
            result = task(item)
            if on_done is not None:
                on_done(result)
            results.append(result)
        return results
