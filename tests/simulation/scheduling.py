"""Who runs next: by chance in one of two ways, or as a recorded schedule says."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from simulation.faults import Place
from simulation.world import Task

Switches: TypeAlias = Mapping[Place, str]  # where the scheduler did not let the thread go on → which thread ran then


@dataclass
class ByWeight:
    """At each point the thread goes on with some probability, otherwise one is drawn, some threads oftener."""

    dice: random.Random
    stay: float
    switches: dict[Place, str] = field(default_factory=dict)

    def welcome(self, task: Task) -> None:
        task.weight = self.dice.choice((0.3, 1.0, 1.0, 1.0, 4.0))

    def prepare(self) -> None:
        pass

    def choose(self, place: Place, current: Task | None, runnable: list[Task]) -> Task:
        if current is not None and (len(runnable) == 1 or self.dice.random() < self.stay):
            return current
        chosen = runnable[0]
        if len(runnable) > 1:
            chosen = self.dice.choices(runnable, [task.weight for task in runnable])[0]
        _note(self.switches, place, current or runnable[0], chosen)
        return chosen


@dataclass
class ByPriority:
    """The thread of the highest priority runs; at rare points the one that runs becomes the last of all."""

    dice: random.Random
    change: float
    switches: dict[Place, str] = field(default_factory=dict)
    _lowest: float = 0.0

    def welcome(self, task: Task) -> None:
        task.priority = self.dice.random()

    def prepare(self) -> None:
        pass

    def choose(self, place: Place, current: Task | None, runnable: list[Task]) -> Task:
        if current is not None and self.dice.random() < self.change:
            self._lowest -= 1.0
            current.priority = self._lowest
        chosen = max(runnable, key=lambda task: task.priority)
        _note(self.switches, place, current or runnable[0], chosen)
        return chosen


def _note(switches: dict[Place, str], place: Place, default: Task, chosen: Task) -> None:
    """Only what `Recorded` would not do by itself."""
    if chosen is not default:
        switches[place] = chosen.name


@dataclass
class Recorded:
    """As recorded; where nothing is recorded, the thread goes on, or the first that can run does."""

    switches: Switches

    def welcome(self, task: Task) -> None:
        pass

    def prepare(self) -> None:
        pass

    def choose(self, place: Place, current: Task | None, runnable: list[Task]) -> Task:
        wanted = self.switches.get(place)
        if wanted is not None:
            for task in runnable:
                if task.name == wanted:
                    return task
        return current or runnable[0]
