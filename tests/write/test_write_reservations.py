"""Write reservations by the writers of one process: when one is made, and that its writer is not held up by it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from omnigraph.manifest.commit import publish
from omnigraph.manifest.commit.commit_queue import PendingCommit
from omnigraph.manifest.commit.compose import compose_manifest
from omnigraph.manifest.commit.contention import RESERVATION_MAX_S, reservation_plan
from omnigraph.manifest.commit.plan import ConflictPolicy, PublishPlan, RaiseFence
from omnigraph.manifest.repository import init_repository
from omnigraph.manifest.settings import Settings
from omnigraph.schema.lang.compile import compile_schema
from omnigraph.storage.objects.object_store import PutOutcome
from write.world import World

IN_LINE_S = 3.0
LOSSES = 5


def test_time_spent_in_the_commit_queue_does_not_cause_a_reservation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the line, which waits out the turn, makes the next one twice as long, and that the one after it."""
    schema = compile_schema("node T { name: String @key }")
    staged = Settings(inline_rows=0, maintenance=0)
    world = World(init_repository(str(tmp_path / "graph"), schema, {"fsync": "false"}, settings=staged))
    publisher: Any = world.repository.publisher
    clock = publisher._runtime.clock
    monotonic, held, create = clock.monotonic, publisher._queue.turn, world.repository.manifests.create
    waited = [0.0]
    asked: list[float] = []
    others = iter(range(LOSSES))

    @contextmanager
    def long_line(member: Any) -> Iterator[Any]:
        waited[0] += IN_LINE_S
        line: AbstractContextManager[Any] = held(member)
        with line as batch:
            yield batch

    def late(manifest: Any) -> Any:
        """Somebody elsewhere is always first, for a while."""
        number = None if manifest.reservation is not None else next(others, None)
        if number is not None:
            world.elsewhere.mutate(f'insert T {{ name: "other{number}" }}')
        return create(manifest)

    def noted(plan: Any, attempt_s: float, txn_id: Any) -> Any:
        asked.append(attempt_s)
        return reservation_plan(plan, attempt_s, txn_id)

    monkeypatch.setattr(type(clock), "monotonic", lambda _: monotonic() + waited[0])
    monkeypatch.setattr(publisher._queue, "turn", long_line)
    monkeypatch.setattr(world.repository.manifests, "create", late)
    monkeypatch.setattr(publish, "reservation_plan", noted)

    assert world.mutate('insert T { name: "own" }') is not None

    assert asked
    assert max(asked) < IN_LINE_S


@pytest.mark.parametrize("is_there_first", [True, False], ids=["that waits already", "that comes later"])
def test_a_writer_that_leaves_a_turn_to_another_of_its_own_process_lets_it_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there_first: bool
) -> None:
    """Otherwise both wait until the turn is over: the one for it, and the other behind it in line."""
    schema = compile_schema("node T { name: String @key }")
    repository = init_repository(str(tmp_path / "graph"), schema, {"fsync": "false"}, settings=Settings(maintenance=0))
    world, publisher, clock = World(repository), repository.publisher, repository.runtime.clock
    stale = repository.open_txn("main")
    fence = PublishPlan("01ASKS", ConflictPolicy.MAINTENANCE, RaiseFence(1))
    waits, came = threading.Event(), threading.Event()
    sleep, leave, stand = clock.sleep, publisher._reservations.yield_to, PendingCommit.enqueue

    def standing(member: PendingCommit, line: Any) -> None:
        stand(member, line)
        came.set()

    def leaving(head: Any, wait_s: float) -> None:
        if is_there_first:
            waits.set()
            assert came.wait(10)
        leave(head, wait_s)

    def sleeping(_: Any, seconds: float) -> None:
        waits.set()
        sleep(seconds)

    asked = compose_manifest(stale.base, reservation_plan(fence, 30.0, "01TURN"), clock.now())
    assert repository.manifests.create(asked).outcome is PutOutcome.CREATED
    monkeypatch.setattr(publisher._reservations, "yield_to", leaving)
    monkeypatch.setattr(type(clock), "sleep", sleeping)
    monkeypatch.setattr(PendingCommit, "enqueue", standing)
    began = clock.monotonic()

    with ThreadPoolExecutor(2) as pool:
        writer = pool.submit(world.mutate, 'insert T { name: "polite" }')
        assert waits.wait(10)
        passing = pool.submit(publisher.publish, stale, fence)
        first, second = passing.result(30), writer.result(30)

    assert first is not None
    assert (first.manifest_version, second.manifest_version) == (3, 4)
    assert clock.monotonic() - began < RESERVATION_MAX_S
