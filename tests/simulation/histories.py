"""What the tests of the checks share: short ways to make a history, and to spoil one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from simulation import ops
from simulation.checks import check_run
from simulation.ops import Insert, Mutate
from simulation.reader import LAST


def person(slug: str, **values: Any) -> Insert:
    return Insert("Person", (("slug", slug), *values.items()))


def knows(source: str, target: str) -> Insert:
    return Insert("Knows", (("from", source), ("to", target)))


def mutate(*statements: ops.Statement, **more: Any) -> Mutate:
    return Mutate(statements, **more)


def manifest_key(branch_id: str, number: int) -> str:
    return f"__manifest/{branch_id}/{LAST - number:020}.json"


def manifests(history: ops.History) -> list[tuple[int, dict[str, Any]]]:
    """The manifests of a history as they were put, with their places among the writes."""
    return [
        (place, json.loads(write.body))
        for place, write in enumerate(history.writes)
        if write.key.startswith("__manifest/") and write.key.endswith(".json") and write.body is not None
    ]


def change_manifest(history: ops.History, number: int, change: Callable[[dict[str, Any]], None]) -> None:
    """Change one manifest of the history, counted from 0 over all branches."""
    place, document = manifests(history)[number]
    change(document)
    history.writes[place] = replace(history.writes[place], body=json.dumps(document).encode())


def found(history: ops.History) -> set[str]:
    return {violation.check for violation in check_run(history)}
