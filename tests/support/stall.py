"""Work that is held up somewhere, until a cleanup has taken away what it stands on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import Append, Upsert
from support.catalogs import PERSON, person_rows
from support.cleanup import clean


def taken_away(other: Graph, number: int, branch: str = "main") -> None:
    """The table of Person that a branch has is rewritten, and what it was is cleaned up."""
    other.write([Upsert(PERSON, person_rows("first", f"of-another-{branch}-{number}"))], branch=branch)
    other.optimize(branch=branch)
    other.write([Append(PERSON, person_rows(f"again-{branch}-{number}"))], branch=branch)
    clean(other)


def stalled(
    monkeypatch: pytest.MonkeyPatch, of: Any, verb: str, times: int, stall: Callable[[int], object], *only: Any
) -> list[int]:
    """The first answers of a verb, or of the verb with these arguments, are held up; tells how many were."""
    original: Callable[..., Any] = getattr(of, verb)
    happened: list[int] = []

    def slow(*args: Any, **how: Any) -> Any:
        answer = original(*args, **how)
        if len(happened) < times and only in ((), args):
            happened.append(len(happened))
            stall(len(happened))
        return answer

    monkeypatch.setattr(of, verb, slow)
    return happened
