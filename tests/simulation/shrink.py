"""Reduce a run that fails to a short schedule that fails in the same way.

Operations are left out first, whole threads before halves before single ones; then faults; then the places where the
scheduler switched threads. A candidate counts if it breaks the same check.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from simulation.mixes import MIXES
from simulation.schedule import Decisions, Schedule, scheduled, to_json
from simulation.simulate import run
from simulation.verdict import Verdict, judge, told

T = TypeVar("T")

SECONDS_MAX = 600.0


@dataclass
class Shrinker:
    """`wanted` are the checks of which at least one must still fail."""

    schedule: Schedule
    wanted: frozenset[str]
    seconds_max: float = SECONDS_MAX
    verify: bool = False  # if only `verify` sees the failure
    tries: int = 0
    started: float = field(default_factory=time.monotonic)

    def shrunk(self) -> Schedule:
        while True:
            before = _size(self.schedule)
            self._drop_operations()
            self._drop_faults()
            self._drop_switches()
            if _size(self.schedule) >= before or self._is_over():
                return self._trimmed()

    def _drop_operations(self) -> None:
        places = [
            (script, number)
            for script, one in enumerate(self.schedule.scripts)
            for number, operation in enumerate(one.operations)
            if operation is not None
        ]
        self._reduced(places, self._with_operations)

    def _drop_faults(self) -> None:
        def with_faults(kept: Sequence[object]) -> Schedule:
            faults = {place: fault for place, fault in self._decisions.faults.items() if place in set(kept)}
            return replace(self.schedule, decisions=replace(self._decisions, faults=faults))

        self._reduced(list(self._decisions.faults), with_faults)

    def _drop_switches(self) -> None:
        def with_switches(kept: Sequence[object]) -> Schedule:
            switches = {place: name for place, name in self._decisions.switches.items() if place in set(kept)}
            return replace(self.schedule, decisions=replace(self._decisions, switches=switches))

        self._reduced(list(self._decisions.switches), with_switches)

    @property
    def _decisions(self) -> Decisions:
        assert self.schedule.decisions is not None
        return self.schedule.decisions

    def _with_operations(self, kept: Sequence[tuple[int, int]]) -> Schedule:
        wanted = set(kept)
        scripts = tuple(
            replace(
                one,
                operations=tuple(
                    operation if (script, number) in wanted else None for number, operation in enumerate(one.operations)
                ),
            )
            for script, one in enumerate(self.schedule.scripts)
        )
        return replace(self.schedule, scripts=scripts)

    def _reduced(self, items: list[T], made: Callable[[Sequence[T]], Schedule]) -> None:
        """Leave out as many items as possible, in pieces that become smaller and smaller."""
        size = max(1, len(items) // 2)
        while items:
            start, smaller = 0, False
            while start < len(items):
                if self._is_over():
                    return
                rest = items[:start] + items[start + size :]
                candidate = made(rest)
                if self._fails(candidate):
                    items, self.schedule, smaller = rest, candidate, True
                else:
                    start += size
            if size == 1 and not smaller:
                return
            size = max(1, size // 2) if not smaller or size > len(items) else size

    def _fails(self, candidate: Schedule) -> bool:
        self.tries += 1
        return bool(judge(candidate, verify=self.verify).checks & self.wanted)

    def _is_over(self) -> bool:
        return time.monotonic() - self.started > self.seconds_max

    def _trimmed(self) -> Schedule:
        """Without decisions of operations that are gone."""
        threads = {
            (script.name, number)
            for script in self.schedule.scripts
            for number, operation in enumerate(script.operations)
            if operation is not None
        }
        known = {script.name for script in self.schedule.scripts}
        switches = {
            place: name
            for place, name in self._decisions.switches.items()
            if place[0] not in known or (place[0], place[1]) in threads
        }
        candidate = replace(self.schedule, decisions=replace(self._decisions, switches=switches))
        return candidate if self._fails(candidate) else self.schedule


def shrink(schedule: Schedule, seconds_max: float = SECONDS_MAX) -> tuple[Schedule, Verdict]:
    """A short schedule that breaks one of the checks that this one breaks, and the verdict on it."""
    with run(schedule) as found:
        recorded = found.recorded
    wanted = judge(recorded, verify=False).checks
    verify = not wanted
    if verify:
        wanted = judge(recorded, verify=True).checks
    assert wanted, "the schedule does not fail"
    serious = wanted - {"verify"} or wanted
    short = Shrinker(recorded, serious, seconds_max, verify).shrunk()
    return short, judge(short, verify=verify)


def main(failure: Verdict) -> None:
    from simulation.run import shown

    short, verdict = shrink(scheduled(failure.seed, MIXES[failure.mix]))
    print(f"\nShrunk to {short.steps} operations, {_size(short)} decisions and operations in all:")
    print(shown(short)[1])
    print(told(verdict))
    print(to_json(short))


def _size(schedule: Schedule) -> int:
    decisions = schedule.decisions or Decisions()
    return schedule.steps + len(decisions.faults) + len(decisions.switches)
