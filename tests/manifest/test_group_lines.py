"""Who is told what when: the line of those that wait to write to one branch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from omnigraph.errors import ConflictError
from omnigraph.manifest.group import Land, Lines, Member, NothingToDo
from omnigraph.manifest.recourse import Recourse
from omnigraph.manifest.settings import Settings


def member() -> Member:
    txn = SimpleNamespace(base=SimpleNamespace(branch_id="main"), branch="main")
    return Member(cast("Any", txn), cast("Any", SimpleNamespace(inline={}, txn_id="t")), Recourse(), 0.0)


class Line:
    """Members that come one after the other; each group lands, or fails, when its gate is opened."""

    def __init__(self, gates: int) -> None:
        self.lines = Lines(Settings())
        self.gates = [threading.Event() for _ in range(gates)]
        self.tells: list[bool] = [True] * gates
        self.fails: list[BaseException | None] = [None] * gates
        self.led: list[Sequence[Member]] = []
        self.over: dict[int, object] = {}
        self._threads: list[threading.Thread] = []

    def land(self, group: Sequence[Member]) -> None:
        number = len(self.led)
        self.led.append(tuple(group))
        if self.tells[number]:
            group[0].tell_others()
        assert self.gates[number].wait(10)
        if (failure := self.fails[number]) is not None:
            raise failure
        for one in group:
            one.outcome = NothingToDo()

    def come(self, name: int) -> None:
        def run(land: Land) -> None:
            try:
                self.over[name] = self.lines.join(member(), land)
            except BaseException as error:
                self.over[name] = error

        self._threads.append(threading.Thread(target=run, args=(self.land,), daemon=True))
        self._threads[-1].start()

    def waiting(self) -> int:
        return sum(map(len, self.lines._waiting.values()))

    def end(self) -> None:
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive(), "somebody waits for ever"


def eventually(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.001)


@pytest.fixture
def line() -> Line:
    """One leads; two wait and lead next, together; when their put is under way a third has come behind them."""
    line = Line(3)
    line.come(0)
    eventually(lambda: len(line.led) == 1)
    for name in (1, 2):
        line.come(name)
        eventually(lambda name=name: line.waiting() == name)  # type: ignore[misc]
    line.gates[0].set()
    eventually(lambda: len(line.led) == 2)
    line.come(3)
    eventually(lambda: line.waiting() == 1)
    return line


def test_who_has_landed_goes_on_when_the_next_put_is_on_its_way(line: Line) -> None:
    line.tells[2] = False
    line.gates[1].set()
    eventually(lambda: len(line.led) == 3)
    time.sleep(0.05)
    assert set(line.over) == {0, 1}, "the one that led knows; the other would only be in the way"

    line.led[2][0].tell_others()
    eventually(lambda: set(line.over) == {0, 1, 2})

    line.gates[2].set()
    line.end()


def test_who_has_landed_goes_on_though_the_next_put_never_comes(line: Line) -> None:
    line.tells[2], line.fails[2] = False, ConflictError("no")
    line.gates[1].set()
    line.gates[2].set()
    line.end()

    assert [type(line.over[name]) for name in range(4)] == [NothingToDo, NothingToDo, NothingToDo, ConflictError]


def test_who_has_landed_goes_on_though_the_next_leader_is_interrupted(line: Line) -> None:
    line.tells[2], line.fails[2] = False, KeyboardInterrupt()
    line.gates[1].set()
    line.gates[2].set()
    line.end()

    assert [type(line.over[name]) for name in range(4)] == [NothingToDo, NothingToDo, NothingToDo, KeyboardInterrupt]


def test_who_has_landed_goes_on_at_once_where_nobody_waits(line: Line) -> None:
    line.gates[2].set()
    line.gates[1].set()
    line.end()

    assert all(isinstance(line.over[name], NothingToDo) for name in range(4))


def test_who_has_landed_does_not_wait_for_one_that_tries_alone(line: Line) -> None:
    held, done = threading.Event(), threading.Event()

    def alone() -> None:
        with line.lines.held(member()):
            held.set()
            assert done.wait(10)

    thread = threading.Thread(target=alone, daemon=True)
    thread.start()
    eventually(lambda: line.waiting() == 2)
    line.gates[1].set()
    line.gates[2].set()
    assert held.wait(10)
    eventually(lambda: set(line.over) == {0, 1, 2, 3})
    done.set()
    thread.join(10)
