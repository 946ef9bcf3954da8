"""Where tasks over whole tables run: in this process, or on Spark's executors. The code is the same.

A task is a function of one picklable value that does its own I/O and answers something small. It may run twice, on
two machines, or be killed half-way: whatever it writes must be garbage unless its answer is used.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from omnigraph.cancellation import checkpoint

T = TypeVar("T")
R = TypeVar("R")


class Runner(Protocol):
    """Runs tasks. `stage` names what is going on, for the progress bar; `on_done` hears of each answer as it comes."""

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
        """The answers, in the order of the items. The first task that fails for good ends the job with its error."""


class LocalRunner:
    """One task after the other, here: for machines without Spark, and for work that is not worth a session."""

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
        answers = []
        for item in items:
            checkpoint()
            answer = task(item)
            if on_done is not None:
                on_done(answer)
            answers.append(answer)
        return answers
