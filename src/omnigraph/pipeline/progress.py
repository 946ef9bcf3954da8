"""Progress of a long operation: its stage, rows, rate and time left.

The operation counts here; a terminal shows `line()` as often as it likes (`cli/progress.py`).
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from omnigraph.storage.util.runner import Runner

T = TypeVar("T")
R = TypeVar("R")

WIDTH = 24
LEFT_SHOWN_AFTER_S = 1.0  # an earlier guess is a bad one


@dataclass(frozen=True, slots=True)
class StageProgress:
    """The state of a stage. `tasks` is None if their number is unknown."""

    stage: str = ""
    tasks: int | None = None
    done: int = 0
    rows: int = 0
    started_s: float = 0.0

    def line(self, now_s: float) -> str:
        """The stage in words: name, bar, share, rows, rate, time left; what is not known is left out."""
        elapsed = max(now_s - self.started_s, 0.0)
        words = []
        if self.rows:
            words.append(f"{format_count(self.rows)} rows")
            if elapsed > 0:
                words.append(f"{format_count(self.rows / elapsed)} rows/s")
        if not self.tasks:
            return " · ".join([self.stage, *words, format_duration(elapsed)])
        share = min(self.done / self.tasks, 1.0)
        if self.done and elapsed >= LEFT_SHOWN_AFTER_S:
            words.append(f"{format_duration(elapsed * (1 - share) / share)} left")
        return " · ".join([f"{self.stage} {format_bar(share)} {share:4.0%}", *words])


class Progress:
    """The state of a job, counted from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._state = StageProgress(started_s=clock())

    @property
    def state(self) -> StageProgress:
        return self._state

    def stage(self, name: str, tasks: int | None = None) -> None:
        """Something else begins: `tasks` pieces of work, or one thing of unknown length."""
        with self._lock:
            self._state = StageProgress(name, tasks, started_s=self._clock())

    def done(self, tasks: int = 1, rows: int = 0) -> None:
        with self._lock:
            state = self._state
            self._state = replace(state, done=state.done + tasks, rows=state.rows + rows)

    def line(self) -> str:
        return self._state.line(self._clock())


class ProgressRunner:
    """A runner that counts its tasks in a `Progress`, and the rows of results that have `rows`."""

    def __init__(self, runner: Runner, progress: Progress) -> None:
        self._runner = runner
        self._progress = progress

    @property
    def name(self) -> str:
        return self._runner.name

    @property
    def parallelism(self) -> int:
        return self._runner.parallelism

    def run(
        self,
        task: Callable[[T], R],
        items: Sequence[T],
        *,
        stage: str,
        on_done: Callable[[R], None] | None = None,
    ) -> list[R]:
        self._progress.stage(stage, len(items))

        def report(answer: R) -> None:
            rows = getattr(answer, "rows", 0)
            self._progress.done(rows=rows if isinstance(rows, int) else 0)
            if on_done is not None:
                on_done(answer)

        return self._runner.run(task, items, stage=stage, on_done=report)


def format_bar(share: float) -> str:
    full = int(share * WIDTH)
    return f"[{'█' * full}{'·' * (WIDTH - full)}]"


def format_count(value: float) -> str:
    """Three digits are enough to see: 950, 12.3k, 1.20M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size * 0.9995:
            scaled = value / size
            return f"{scaled:.{2 if scaled < 9.995 else 1 if scaled < 99.95 else 0}f}{letter}"
    return f"{value:.0f}"


def format_duration(seconds: float) -> str:
    """12 s, 3 min 20 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
