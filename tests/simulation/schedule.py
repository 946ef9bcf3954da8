"""A schedule: all that decides a run. Made from a seed, recorded from a run, written down for a named test.

A schedule from a seed has dice for what it leaves open (who runs next, which fault strikes); one that was recorded has
every decision listed, and any of them can be left out.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from simulation.choices import Notebook
from simulation.faults import Fault, FaultSource, ListedFaults, NoFaults, Place, SeededFaults
from simulation.mixes import MIXES, Mix, mix_of
from simulation.ops import Verb
from simulation.scheduling import ByPriority, ByWeight, Recorded
from simulation.store import Listings
from simulation.world import Chooser


@dataclass(frozen=True, slots=True)
class Operation:
    """`kind` names what is done; its parameters come from the dice of `nonce`, unless the verb is given."""

    kind: str
    nonce: int
    verb: Callable[[Notebook], Verb] | None = None


@dataclass(frozen=True, slots=True)
class ThreadScript:
    process: int
    thread: int
    operations: tuple[Operation | None, ...]  # None: left out

    @property
    def name(self) -> str:
        return f"p{self.process}.t{self.thread}"


@dataclass(frozen=True, slots=True)
class Decisions:
    """Every decision of a run: where another thread than the one that ran went on, and the faults."""

    switches: Mapping[Place, str] = field(default_factory=dict)
    faults: Mapping[tuple[Place, str], Fault] = field(default_factory=dict)


@dataclass(frozen=True)
class Schedule:
    seed: int
    mix: Mix
    scripts: tuple[ThreadScript, ...]
    listings: Listings
    tick_us: int
    one_machine: bool
    rates: tuple[float, ...]  # of the processes' clocks
    decisions: Decisions | None = None  # None: by chance
    director: Callable[[], Chooser] | None = None  # decides instead, without faults

    @property
    def steps(self) -> int:
        return sum(one is not None for script in self.scripts for one in script.operations)

    def faults(self) -> FaultSource:
        if self.director is not None:
            return NoFaults()
        if self.decisions is not None:
            return ListedFaults(self.decisions.faults)
        return SeededFaults(f"faults {self.seed}", self.mix.rates)

    def chooser(self) -> Chooser:
        if self.director is not None:
            return self.director()
        if self.decisions is not None:
            return Recorded(self.decisions.switches)
        dice = random.Random(f"choices {self.seed}")
        if dice.random() < 0.3:
            return ByPriority(dice, dice.choice((0.005, 0.02, 0.05)))
        return ByWeight(dice, dice.choice((0.0, 0.5, 0.8, 0.9, 0.95)))


def scheduled(seed: int, mix: Mix | None = None) -> Schedule:
    """The schedule of a seed."""
    mix = mix or mix_of(seed)
    dice = random.Random(f"schedule {seed} {mix.name}")
    places = [
        (process, thread)
        for process in range(dice.randint(*mix.processes))
        for thread in range(dice.randint(*mix.threads))
    ]
    kinds, weights = list(mix.weights), list(mix.weights.values())
    each = -(-mix.operations // len(places))
    scripts = tuple(
        ThreadScript(
            process,
            thread,
            tuple(
                Operation(
                    "populate" if (process, thread, number) == (0, 0, 0) else dice.choices(kinds, weights)[0],
                    dice.getrandbits(32),
                )
                for number in range(each)
            ),
        )
        for process, thread in places
    )
    unordered = dice.random() < mix.unordered
    count = max(process for process, _ in places) + 1
    return Schedule(
        seed,
        mix,
        scripts,
        Listings(not unordered, dice.choice(mix.pages)),
        dice.choice((1_000, 10_000, 100_000)),
        dice.random() < mix.same_machine,
        tuple(dice.choice((0.9, 0.999)) if dice.random() < mix.slow_clock else 1.0 for _ in range(count)),
    )


# As text, for named tests.


def to_json(schedule: Schedule) -> str:
    decisions = schedule.decisions or Decisions()
    document = {
        "seed": schedule.seed,
        "mix": schedule.mix.name,
        "scripts": [
            [
                script.process,
                script.thread,
                [None if one is None else [one.kind, one.nonce] for one in script.operations],
            ]
            for script in schedule.scripts
        ],
        "listings": [schedule.listings.in_order, schedule.listings.page],
        "tick_us": schedule.tick_us,
        "one_machine": schedule.one_machine,
        "rates": list(schedule.rates),
        "switches": [[*place, name] for place, name in decisions.switches.items()],
        "faults": [
            [*place, what, fault.kind, fault.steps, fault.seconds] for (place, what), fault in decisions.faults.items()
        ],
    }
    return json.dumps(document)


def from_json(text: str) -> Schedule:
    found: dict[str, Any] = json.loads(text)
    scripts = tuple(
        ThreadScript(process, thread, tuple(None if one is None else Operation(*one) for one in operations))
        for process, thread, operations in found["scripts"]
    )
    switches = {(task, operation, point): name for task, operation, point, name in found["switches"]}
    faults = {
        ((task, operation, point), what): Fault(kind, steps, seconds)
        for task, operation, point, what, kind, steps, seconds in found["faults"]
    }
    return Schedule(
        found["seed"],
        MIXES[found["mix"]],
        scripts,
        Listings(*found["listings"]),
        found["tick_us"],
        found["one_machine"],
        tuple(found["rates"]),
        Decisions(switches, faults),
    )
