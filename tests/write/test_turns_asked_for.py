"""How long a turn a writer asks for that keeps losing: for its own try, not for waiting behind its own process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from writing import World

from omnigraph.manifest import publish
from omnigraph.manifest.repository import init_repository
from omnigraph.manifest.settings import Settings
from omnigraph.manifest.turns import asking
from omnigraph.schema.compile import compile_schema

IN_LINE_S = 3.0
LOSSES = 5


def test_a_turn_is_not_asked_for_the_time_that_was_waited_in_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the line, which waits out the turn, makes the next one twice as long, and that the one after it."""
    schema = compile_schema("node T { name: String @key }")
    staged = Settings(inline_rows=0, maintenance=0)
    world = World(init_repository(str(tmp_path / "graph"), schema, {"fsync": "false"}, settings=staged))
    publisher: Any = world.repository.publisher
    clock = publisher._runtime.clock
    monotonic, held, create = clock.monotonic, publisher._lines.held, world.repository.manifests.create
    waited = [0.0]
    asked: list[float] = []
    others = iter(range(LOSSES))

    @contextmanager
    def long_line(member: Any) -> Iterator[None]:
        waited[0] += IN_LINE_S
        line: AbstractContextManager[None] = held(member)
        with line:
            yield

    def late(manifest: Any) -> Any:
        """Somebody elsewhere is always first, for a while."""
        number = None if manifest.turn is not None else next(others, None)
        if number is not None:
            world.elsewhere.mutate(f'insert T {{ name: "other{number}" }}')
        return create(manifest)

    def noted(plan: Any, attempt_s: float, txn_id: Any) -> Any:
        asked.append(attempt_s)
        return asking(plan, attempt_s, txn_id)

    monkeypatch.setattr(type(clock), "monotonic", lambda _: monotonic() + waited[0])
    monkeypatch.setattr(publisher._lines, "held", long_line)
    monkeypatch.setattr(world.repository.manifests, "create", late)
    monkeypatch.setattr(publish, "asking", noted)

    assert world.mutate('insert T { name: "own" }') is not None

    assert asked
    assert max(asked) < IN_LINE_S
