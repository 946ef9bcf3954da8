"""Drives a graph through two handles beside its model, step by step, and compares whatever can be asked.

A step is a verb and a seed, which chooses everything else from what is there when it runs. So a run is a list of
steps, any part of which is a run too: that is how a failure is made small.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from support.whole.base import Step
from support.whole.branches import Branches
from support.whole.maintenance import Upkeep
from support.whole.schemas import Schemas
from support.whole.writes import Writes


class Driver(Writes, Branches, Schemas, Upkeep):
    """All of it."""


VERBS = {
    "mutate": 12, "load": 6, "together": 4, "beside": 3, "fork": 4, "unfork": 1, "tag": 2, "untag": 1, "merge": 4,
    "revert": 2, "schema": 3, "optimize": 2, "fold": 3, "clean": 2, "reopen": 1, "verify": 1, "travel": 3,
    "changes": 3, "feed": 2,
}  # fmt: skip


def steps(seed: int, count: int, verbs: Mapping[str, int] = VERBS) -> list[Step]:
    chooser = random.Random(seed)
    names = chooser.choices(list(verbs), list(verbs.values()), k=count)
    return [Step(name, chooser.randrange(1 << 30)) for name in names]


def shrunk(fails: Callable[[list[Step]], bool], run: list[Step]) -> list[Step]:
    """A part of a failing run that fails too, and of which no step can be left out."""
    size = max(1, len(run) // 2)
    while True:
        for start in range(0, len(run), size):
            part = run[:start] + run[start + size :]
            if part and fails(part):
                run = part
                break
        else:
            if size == 1:
                return run
            size = max(1, size // 2)
