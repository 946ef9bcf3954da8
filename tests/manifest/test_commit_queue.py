"""Who is told what when: the line of those that wait to write to one branch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from omnigraph.caches import LruCache
from omnigraph.errors import ConflictError
from omnigraph.manifest.commit.commit_queue import CommitQueue, NoChange, PendingCommit
from omnigraph.manifest.commit.plan import Append
from omnigraph.manifest.commit.txn import WriteOp, WriteTxn
from omnigraph.manifest.model.manifest import Point
from omnigraph.manifest.model.paths import manifest_key
from omnigraph.manifest.settings import Settings
from omnigraph.write.commit import Changes
from support.catalogs import PERSON, person_rows

from .concurrent_writes import take_turn, waiting
from .schedules import SMALL, Client, World


def member(kind: type[PendingCommit] = PendingCommit) -> PendingCommit:
    txn = SimpleNamespace(base=SimpleNamespace(branch_id="main"), branch="main")
    return kind(cast("Any", txn), cast("Any", SimpleNamespace(inline={}, txn_id="t")), WriteOp(), 0.0, 60.0)


class Line:
    """Members that come one after the other; each group lands, or fails, when its gate is opened."""

    def __init__(self, gates: int) -> None:
        self.lines = CommitQueue(Settings())
        self.gates = [threading.Event() for _ in range(gates)]
        self.tells: list[bool] = [True] * gates
        self.fails: list[BaseException | None] = [None] * gates
        self.led: list[Sequence[PendingCommit]] = []
        self.over: dict[int, object] = {}
        self._threads: list[threading.Thread] = []

    def land(self, group: Sequence[PendingCommit]) -> None:
        number = len(self.led)
        self.led.append(tuple(group))
        if self.tells[number]:
            group[0].ack_previous()
        assert self.gates[number].wait(10)
        if (failure := self.fails[number]) is not None:
            raise failure
        for one in group:
            one.outcome = NoChange()

    def come(self, name: int, kind: type[PendingCommit] = PendingCommit) -> None:
        def run() -> None:
            try:
                self.over[name] = take_turn(self.lines, member(kind), self.land)
            except BaseException as error:
                self.over[name] = error

        self._threads.append(threading.Thread(target=run, daemon=True))
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


def test_a_committed_write_returns_when_the_next_put_is_on_its_way(line: Line) -> None:
    line.tells[2] = False
    line.gates[1].set()
    eventually(lambda: len(line.led) == 3)
    time.sleep(0.05)
    assert set(line.over) == {0, 1}, "the one that led knows; the other would only be in the way"

    line.led[2][0].ack_previous()
    eventually(lambda: set(line.over) == {0, 1, 2})

    line.gates[2].set()
    line.end()


def test_a_committed_write_returns_though_the_next_put_never_comes(line: Line) -> None:
    line.tells[2], line.fails[2] = False, ConflictError("no")
    line.gates[1].set()
    line.gates[2].set()
    line.end()

    assert [type(line.over[name]) for name in range(4)] == [NoChange, NoChange, NoChange, ConflictError]


def test_a_committed_write_returns_though_the_next_leader_is_interrupted(line: Line) -> None:
    line.tells[2], line.fails[2] = False, KeyboardInterrupt()
    line.gates[1].set()
    line.gates[2].set()
    line.end()

    assert [type(line.over[name]) for name in range(4)] == [NoChange, NoChange, NoChange, KeyboardInterrupt]


def test_a_committed_write_returns_at_once_where_nobody_waits(line: Line) -> None:
    line.gates[2].set()
    line.gates[1].set()
    line.end()

    assert all(isinstance(line.over[name], NoChange) for name in range(4))


def test_a_committed_write_does_not_wait_for_one_that_tries_alone(line: Line) -> None:
    held, done = threading.Event(), threading.Event()

    def put_alone() -> None:
        alone = member()
        alone.exclusive = True
        with line.lines.turn(alone):
            held.set()
            assert done.wait(10)

    thread = threading.Thread(target=put_alone, daemon=True)
    thread.start()
    eventually(lambda: line.waiting() == 2)
    line.gates[1].set()
    line.gates[2].set()
    assert held.wait(10)
    eventually(lambda: set(line.over) == {0, 1, 2, 3})
    done.set()
    thread.join(10)


class Interrupting(PendingCommit):
    """Whoever tells this one for the first time is interrupted at that moment."""

    calls = 0

    def wake(self) -> None:
        self.calls += 1
        if self.calls == 1:
            raise KeyboardInterrupt
        super().wake()


def test_a_committed_write_returns_though_the_leader_is_interrupted_while_it_wakes_others() -> None:
    line = Line(2)
    line.come(0)
    eventually(lambda: len(line.led) == 1)
    for name, kind in ((1, PendingCommit), (2, Interrupting), (3, PendingCommit)):
        line.come(name, kind)
        eventually(lambda name=name: line.waiting() == name)  # type: ignore[misc]
    for gate in line.gates:
        gate.set()
    line.end()

    assert len(line.led[1]) == 3
    assert [type(line.over[name]) for name in range(4)] == [NoChange, KeyboardInterrupt, NoChange, NoChange]


# What the next leader asks the store for while it forms its group


class Held:
    """A store some of whose answers the test holds back."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._held: dict[tuple[str, str], threading.Event] = {}
        self.asked: set[tuple[str, str]] = set()

    def hold(self, verb: str, key: str) -> threading.Event:
        return self._held.setdefault((verb, key), threading.Event())

    def __getattr__(self, verb: str) -> Any:
        def request(key: str, *args: Any) -> Any:
            self.asked.add((verb, key))
            gate = self._held.get((verb, key))
            assert gate is None or gate.wait(10), f"nobody answered {verb} {key}"
            return getattr(self._inner, verb)(key, *args)

        return request


class Meeting:
    """Ada leads, and her put is held back; bob and cy stand behind her and lead next, together; dee leads after them,
    and what she is told to do goes on when their put has landed."""

    def __init__(self, tmp_path: Path) -> None:
        self.world = World(tmp_path / "graph", settings=replace(SMALL, group_commits=2))
        self.client: Client = self.world.client("writer")
        store = self.client.repository.store._inner  # type: ignore[attr-defined]  # it is a `SteppedStore`
        self.store = store._backend = Held(store._backend)
        self.over: dict[str, Any] = {}
        self._ada = self.store.hold("create", self.key(2))
        self._threads: list[threading.Thread] = []

    def key(self, number: int) -> str:
        return manifest_key(Point(self.world.main_id, number))

    def line_up(self, dee: Callable[[], object]) -> None:
        insert = self.client.insert
        writes = {name: partial(insert, name) for name in ("ada", "bob", "cy")}
        for number, (name, write) in enumerate({**writes, "dee": dee}.items()):
            self._threads.append(threading.Thread(target=self._write, args=(name, write), daemon=True))
            self._threads[-1].start()
            eventually(lambda number=number: waiting(self.client) == number)  # type: ignore[misc]

    def _write(self, name: str, write: Callable[[], object]) -> None:
        try:
            self.over[name] = write()
        except BaseException as error:
            self.over[name] = error

    def go_on(self) -> None:
        self._ada.set()

    def only_dee_waits_until(self, answer: threading.Event) -> None:
        eventually(self.all_but_dee_are_over)
        assert "dee" not in self.over
        answer.set()
        self.end()
        assert self.over["dee"].manifest_version == 4

    def all_but_dee_are_over(self) -> bool:
        return {"ada", "bob", "cy"} <= set(self.over)

    def end(self) -> None:
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive(), "somebody waits for ever"
        assert [self.over[name].manifest_version for name in ("ada", "bob", "cy")] == [2, 3, 3]


@pytest.fixture
def meeting(tmp_path: Path) -> Meeting:
    return Meeting(tmp_path)


def asking_when_planned_again(meeting: Meeting, ask: Callable[[], object]) -> Callable[[], object]:
    """A write of dee's that depends on what others have written."""
    planned: list[WriteTxn] = []

    def plan(txn: WriteTxn) -> Changes:
        planned.append(txn)
        if len(planned) > 1:
            ask()
        return Changes((Append(PERSON, person_rows("dee")),), read_rows=frozenset({PERSON}))

    return lambda: meeting.client.graph.write(plan)


def test_a_committed_write_does_not_wait_for_requests_of_the_next_leader(meeting: Meeting) -> None:
    answer = meeting.store.hold("get", "a note")
    store = meeting.client.repository.store
    meeting.line_up(asking_when_planned_again(meeting, lambda: store.get("a note")))

    meeting.go_on()
    eventually(lambda: ("get", "a note") in meeting.store.asked)
    meeting.only_dee_waits_until(answer)


def test_a_committed_write_does_not_wait_while_the_next_leader_looks_for_its_key(meeting: Meeting) -> None:
    rows = [Append(PERSON, person_rows("dee"), fresh_ids=True)]
    meeting.line_up(lambda: meeting.client.graph.write(rows, txn_id="key"))
    meeting.client.repository.manifests._cache = LruCache(1)  # of which it remembers the newest alone
    answer = meeting.store.hold("get", meeting.key(2))
    meeting.store.asked.clear()

    meeting.go_on()
    eventually(lambda: ("get", meeting.key(2)) in meeting.store.asked)
    meeting.only_dee_waits_until(answer)


def test_a_committed_write_returns_with_the_next_put_if_that_one_needs_no_request(meeting: Meeting) -> None:
    """They would only be in its way."""
    answer = meeting.store.hold("create", meeting.key(4))
    thinking, thought = threading.Event(), threading.Event()

    def think() -> None:
        thinking.set()
        assert thought.wait(10)

    meeting.line_up(asking_when_planned_again(meeting, think))

    meeting.go_on()
    assert thinking.wait(10)
    time.sleep(0.05)
    assert set(meeting.over) == {"ada", "bob"}

    thought.set()
    eventually(lambda: ("create", meeting.key(4)) in meeting.store.asked)
    eventually(meeting.all_but_dee_are_over)
    assert "dee" not in meeting.over
    answer.set()
    meeting.end()


@pytest.mark.parametrize("error", [ConflictError("no"), KeyboardInterrupt()], ids=["refused", "interrupted"])
def test_a_committed_write_returns_though_a_request_of_the_next_leader_fails(
    meeting: Meeting, error: BaseException
) -> None:
    def ask() -> None:
        meeting.client.repository.store.get("a note")
        raise error

    meeting.line_up(asking_when_planned_again(meeting, ask))

    meeting.go_on()
    meeting.end()
    assert type(meeting.over["dee"]) is type(error)
    assert waiting(meeting.client) is None
