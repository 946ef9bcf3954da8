"""The verdict on a run: what the checks and, now and then, the product's own `verify --full` find wrong with it."""

from __future__ import annotations

from dataclasses import dataclass

from omnigraph.errors import OmnigraphError
from simulation.schedule import Schedule
from simulation.simulate import Run, run

VERIFY_EVERY = 50
SHOWN_MAX = 12


@dataclass(frozen=True, slots=True)
class Verdict:
    """`problems` begin with the name of the check in brackets."""

    seed: int
    mix: str
    steps: int
    problems: tuple[str, ...]
    verified: bool

    @property
    def checks(self) -> frozenset[str]:
        return frozenset(problem[1:].partition("]")[0] for problem in self.problems)


def judge(schedule: Schedule, *, verify: bool | None = None) -> Verdict:
    """Run a schedule and check it; verified too if so many seeds have passed, or if anything is wrong."""
    with run(schedule) as found:
        return verdict_on(found, verify=is_verified(schedule.seed) if verify is None else verify)


def is_verified(seed: int) -> bool:
    """One seed of every fifty, not always at the same place: so that every mix of a rotation gets its share."""
    return seed % VERIFY_EVERY == seed // VERIFY_EVERY % VERIFY_EVERY


def verdict_on(found: Run, *, verify: bool) -> Verdict:
    problems: list[str] = []
    if found.error is not None:
        problems.append(f"[simulation] {type(found.error).__name__}: {found.error}")
    else:
        problems += [str(violation) for violation in found.checker.finish()]
        if verify or problems:
            problems += _verified(found)
    schedule = found.schedule
    return Verdict(schedule.seed, schedule.mix.name, schedule.steps, tuple(problems), verify)


def _verified(found: Run) -> list[str]:
    try:
        report = found.graph().verify(full=True)
    except OmnigraphError as error:
        return [f"[verify] {type(error).__name__}: {error}"]
    return [] if report.ok else [f"[verify] {problem}" for problem in report.problems]


def told(verdict: Verdict) -> str:
    """The verdict for people."""
    head = f"seed {verdict.seed} of the mix {verdict.mix}: "
    if not verdict.problems:
        return f"{head}nothing is wrong"
    more = len(verdict.problems) - SHOWN_MAX
    lines = [f"{head}{len(verdict.problems)} problems", *(f"  {one[:1500]}" for one in verdict.problems[:SHOWN_MAX])]
    return "\n".join([*lines, f"  and {more} more"] if more > 0 else lines)
