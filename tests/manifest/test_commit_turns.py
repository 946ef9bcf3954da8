"""The turns of exclusive writes and of batches in the commit loop: what interrupts, races and lost responses leave."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pytest

from omnigraph.manifest.commit.commit_queue import CommitQueue, Committed, PendingCommit
from omnigraph.manifest.commit.plan import PublishPlan
from omnigraph.manifest.commit.publish import PublishPolicy
from omnigraph.manifest.commit.txn import WriteOp, WriteTxn
from omnigraph.manifest.model.manifest import Manifest, TableKey
from omnigraph.manifest.settings import Settings
from omnigraph.storage.objects.object_store import PutOutcome, PutResult
from omnigraph.write.stage import Stager

from .schedules import Client, World, small_only, staged_only
from .test_commit_queue import member
from .test_group_commit_faults import _some_plan

WAIT_S = 10.0


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


class InterruptedTurn(AbstractContextManager[Sequence[PendingCommit]]):
    """A turn whose context manager is interrupted, just after it has begun or just before it would end."""

    def __init__(self, turn: AbstractContextManager[Sequence[PendingCommit]], where: str) -> None:
        self._turn = turn
        self._where = where

    def __enter__(self) -> Sequence[PendingCommit]:
        batch = self._turn.__enter__()
        if self._where == "enter":
            raise KeyboardInterrupt
        return batch

    def __exit__(self, *error: Any) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize("where", ["enter", "exit"])
def test_a_turn_whose_context_manager_is_interrupted_keeps_no_other_write_waiting(
    world: World, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = world.client("writer")
    queue = client.repository.publisher._queue
    turn = queue.turn
    interrupted: list[InterruptedTurn] = []

    def begin(write: PendingCommit) -> AbstractContextManager[Sequence[PendingCommit]]:
        if interrupted:
            return turn(write)
        interrupted.append(InterruptedTurn(turn(write), where))  # as long as a traceback keeps it
        return interrupted[0]

    monkeypatch.setattr(queue, "turn", begin)
    with pytest.raises(KeyboardInterrupt):
        client.insert("ada")

    other = in_thread(lambda: client.insert("bob"))
    other.join(WAIT_S)
    assert not other.is_alive(), "a write waits for one that is over"
    assert client.people() == (["bob"] if where == "enter" else ["ada", "bob"])


class InterruptingTheLeader(PendingCommit):
    """The leader that wakes it for its reservation is interrupted before it has taken it out of the queue."""

    wakes = 0

    def wake(self) -> None:
        super().wake()
        self.wakes += 1
        if self.wakes == 1:
            raise KeyboardInterrupt


def test_a_write_that_was_woken_for_its_reservation_takes_itself_out_of_the_queue() -> None:
    queue, leader, reserved = CommitQueue(Settings()), member(), member(InterruptingTheLeader)
    reserved.exclusive = True

    def take_reserved_turn() -> None:
        with queue.turn(reserved):
            pass

    with queue.turn(leader):
        thread = in_thread(take_reserved_turn)
        until = time.monotonic() + WAIT_S
        while not queue._waiting["main"]:
            assert time.monotonic() < until
        with pytest.raises(KeyboardInterrupt), queue.reserve_for("main", "t"):
            pass
        thread.join(WAIT_S)

    assert not queue._waiting, "the next write would wait for one that is over"


class StagedAgain(WriteOp):
    def __init__(self, client: Client) -> None:
        repository = client.repository
        self._stager = Stager(repository.tables, repository.runtime.ids, repository.settings)

    def restage(self, txn: WriteTxn, plan: PublishPlan, tables: frozenset[TableKey], from_scratch: bool) -> PublishPlan:
        return self._stager.restage(txn, plan, tables, from_scratch)


@small_only
def test_writes_back_off_as_long_as_one_of_them_has_time_left(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    client, other = world.client("writer"), world.client("other")
    publisher, base = client.repository.publisher, client.graph.begin()
    late, early = (
        PendingCommit(base, _some_plan(client, name, name), StagedAgain(client), 60.0, 60.0)
        for name in ("late", "early")
    )
    late.losses, late.deadline = 1, -1.0
    put, backed_off = publisher._conditional_put.put, []
    back_off = publisher._back_off_and_refresh

    def put_after_another_process(manifest: Manifest, *args: Any) -> object:
        if manifest.manifest_version < 5:
            other.insert(f"other{manifest.manifest_version}")
        return put(manifest, *args)

    def backing_off(*args: Any) -> Manifest:
        backed_off.append(args)
        return back_off(*args)

    monkeypatch.setattr(publisher._conditional_put, "put", put_after_another_process)
    monkeypatch.setattr(publisher, "_back_off_and_refresh", backing_off)

    publisher._run([late, early])

    assert isinstance(early.outcome, Committed)
    assert len(backed_off) == 2, "after each loss but the first"


@staged_only
def test_other_writes_do_not_wait_while_the_outcome_of_an_exclusive_put_is_unknown(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client: Client = world.client("writer", PublishPolicy(time_limit_s=3600.0))
    manifests, clock = client.repository.manifests, client.clock
    create, sleep = manifests.create, clock.sleep
    unknown, others = iter([PutResult(PutOutcome.UNKNOWN)]), iter(["bob"])

    def lose_the_first(manifest: Manifest) -> PutResult:
        return next(unknown, None) or create(manifest)

    def insert_meanwhile(seconds: float) -> None:
        sleep(seconds)
        for name in others:
            thread = in_thread(lambda name=name: client.insert(name))  # type: ignore[misc]
            thread.join(WAIT_S)
            assert not thread.is_alive(), "it waits until the store has answered another write"

    monkeypatch.setattr(manifests, "create", lose_the_first)
    monkeypatch.setattr(clock, "sleep", insert_meanwhile)

    client.insert("ada")

    assert world.client("third").people() == ["ada", "bob"]
