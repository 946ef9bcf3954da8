"""Schedules written by hand: which thread runs up to where, in the words of the requests that it sends.

    Let("p0.t0", "create __manifest")   until it is about to send that request, which has not taken effect yet
    Let("p0.t0")                        until its operation has ended
    Elapse(1200)                        time passes for everybody
    StepStoreClock(-3600)               the store's clock jumps, and with it the disk's

Threads that a directive does not name stand still, those that a named one has started run with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from simulation.choices import Notebook
from simulation.faults import Place
from simulation.mixes import Mix
from simulation.ops import Verb
from simulation.schedule import Operation, Schedule, ThreadScript
from simulation.store import Listings
from simulation.world import State, Task, World


@dataclass(frozen=True, slots=True)
class Let:
    thread: str
    until: str | None = None  # how the request begins; `waits for an event` and `sleeps` are possible too
    times: int = 1


@dataclass(frozen=True, slots=True)
class Elapse:
    seconds: float


@dataclass(frozen=True, slots=True)
class StepStoreClock:
    seconds: float


Directive: TypeAlias = Let | Elapse | StepStoreClock
Step: TypeAlias = "Verb | Callable[[Notebook], Verb]"


@dataclass
class Directed:
    """Follows the directives; behind the last one every thread runs to its end."""

    directives: Sequence[Directive]
    world: World | None = None
    switches: dict[Place, str] = field(default_factory=dict)
    _tasks: list[Task] = field(default_factory=list)
    _number: int = 0
    _seen: int = 0
    _operation: int | None = None
    _last: dict[str, Place] = field(default_factory=dict)  # thread → where it was seen

    def welcome(self, task: Task) -> None:
        self._tasks.append(task)
        task.held = not self._is_meant(task)

    def prepare(self) -> None:
        while self._is_over():
            self._go_on()

    def choose(self, place: Place, current: Task | None, runnable: list[Task]) -> Task:
        return current or runnable[0]

    def _directive(self) -> Directive | None:
        return self.directives[self._number] if self._number < len(self.directives) else None

    def _is_meant(self, task: Task) -> bool:
        directive = self._directive()
        if not isinstance(directive, Let):
            return True
        return task.name == directive.thread or task.name.startswith(f"{directive.thread}/")

    def _is_over(self) -> bool:
        directive = self._directive()
        if directive is None:
            return False
        if not isinstance(directive, Let):
            return True
        named = [task for task in self._tasks if task.name == directive.thread]
        if not named or named[-1].state is State.DONE:
            return bool(named)
        task = named[-1]
        if self._operation is None:
            self._operation = task.operation
        if directive.until is None:
            return task.operation > self._operation
        is_new = task.place != self._last.get(task.name)
        if is_new and task.at.startswith(directive.until) and ": answer" not in task.at:
            self._last[task.name] = task.place
            self._seen += 1
        return self._seen >= directive.times

    def _go_on(self) -> None:
        directive = self._directive()
        assert self.world is not None
        if isinstance(directive, Elapse):
            self.world.now_us += int(directive.seconds * 1e6)
        elif isinstance(directive, StepStoreClock):
            if self.world.on_time is not None:
                self.world.on_time()
            self.world.store_offset_us += int(directive.seconds * 1e6)
        self._number, self._seen, self._operation = self._number + 1, 0, None
        for task in self._tasks:
            task.held = not self._is_meant(task)


def directed(
    mix: Mix,
    scripts: Mapping[str, Sequence[Step]],
    directives: Sequence[Directive],
    *,
    listings: Listings | None = None,
    seed: int = 1,
) -> Schedule:
    """A schedule of given verbs: `scripts` has the calls of each thread, such as `p0.t1`."""
    return Schedule(
        seed,
        mix,
        tuple(
            ThreadScript(int(name[1]), int(name[4]), tuple(_operation(step) for step in steps))
            for name, steps in scripts.items()
        ),
        listings or Listings(),
        10_000,
        False,
        (1.0,) * 10,
        None,
        lambda: Directed(directives),
    )


def _operation(step: Step) -> Operation:
    return Operation("given", 0, step if callable(step) else lambda _: step)
