"""Without one of the fixes a seed fails that passes with it: the simulation would have found each bug (`reverts.py`).

The seeds are the first ones of the rotation that `make soak` runs; docs/reliability.md has the table. If another change
moves a schedule so that its seed passes, `python -m simulation.run --without NAME --seeds 1..2000 --stop-at-first`
finds the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from simulation.reverts import REVERTS, taken_back
from simulation.run import run_seeds
from simulation.schedule import scheduled
from simulation.verdict import judge, told


@dataclass(frozen=True, slots=True)
class Found:
    seed: int
    mix: str
    checks: frozenset[str]  # that report the bug


FOUND: Mapping[str, Found] = {
    "jobs": Found(67, "jobs", frozenset({"discard"})),
    "positions": Found(82, "groups", frozenset({"refusal"})),
    "columns": Found(5, "schemas", frozenset({"readable"})),
    "listings": Found(7, "branches", frozenset({"refusal"})),
    "clocks": Found(8, "clocks", frozenset({"refusal", "readable"})),
    "merges": Found(197, "groups", frozenset({"merged-twice"})),
    "keys": Found(13, "tables", frozenset({"done"})),
    "ids": Found(174, "groups", frozenset({"refusal"})),
}


def test_every_revert_has_a_seed() -> None:
    assert FOUND.keys() == REVERTS.keys()


@pytest.mark.parametrize("name", FOUND)
def test_a_seed_fails_without_the_fix_and_passes_with_it(name: str) -> None:
    found = FOUND[name]
    schedule = scheduled(found.seed)
    assert schedule.mix.name == found.mix

    with taken_back(name):
        without = judge(schedule, verify=False)
    with_fix = judge(schedule, verify=False)

    assert without.checks & found.checks, told(without)
    assert not with_fix.problems, told(with_fix)


def test_a_fix_is_taken_back_in_worker_processes_too() -> None:
    found = FOUND["listings"]

    summary = run_seeds([found.seed], workers=2, without="listings")

    assert [verdict.seed for verdict in summary.failures] == [found.seed]
