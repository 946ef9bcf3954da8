"""Writes of one process that meet at one branch, in an order that the test knows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from omnigraph.manifest.commit.commit_queue import CommitOutcome, CommitQueue, PendingCommit
from support.steps import Stepper

from .schedules import Client

PATIENCE_S = 10.0

Write = Callable[[], Any]


def together(client: Client, *writes: Write) -> Stepper[list[Any]]:
    """The first write leads and is stopped before its put; the others wait in line behind it, in order.

    Only puts are stepped: what a write reads before it joins, it reads at once.
    The result of the stepper has for each what it returned, or raised.
    """
    outcomes: list[Any] = [None] * len(writes)
    lined_up = threading.Event()
    client.repository.store._requests = ("create",)  # type: ignore[attr-defined]  # it is a `SteppedStore`

    def run(number: int) -> None:
        try:
            outcomes[number] = writes[number]()
        except BaseException as error:
            outcomes[number] = error

    def process() -> list[Any]:
        threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(writes))]
        for number, thread in enumerate(threads):
            thread.start()
            _wait_until(partial(_is_line_of, client, number))
        lined_up.set()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "somebody waits for ever"
        return outcomes

    stepper = Stepper(process, client.gate, client.name)
    assert lined_up.wait(PATIENCE_S), "the writes did not line up"
    return stepper


def waiting(client: Client) -> int | None:
    """How many wait behind the leader of main; None if there is no leader."""
    line = client.repository.publisher._queue._waiting.get(client.repository.stamp.main_id)
    return None if line is None else len(line)


def _is_line_of(client: Client, number: int) -> bool:
    return waiting(client) == number


def _wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, "the writes did not line up"
        time.sleep(0.0005)


def take_turn(
    queue: CommitQueue, write: PendingCommit, run: Callable[[Sequence[PendingCommit]], None]
) -> CommitOutcome:
    """A write in its turn: it leads a batch, or another has decided its outcome."""
    with queue.turn(write) as batch:
        if batch:
            run(batch)
    assert write.outcome is not None
    return write.outcome
