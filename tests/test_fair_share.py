"""Long queries take turns, short ones never wait, and nobody waits for one that is blocked or stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from omnigraph import fair_share as module
from omnigraph.cancellation import Stopped, StopToken, checkpoint, stop_scope
from omnigraph.fair_share import fair_share, short_work, without_pauses

ENDS_S = 30.0


@pytest.fixture(autouse=True)
def _one_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_scheduler", module._Scheduler(1))
    monkeypatch.setattr(module, "SLICE_S", 0.01)
    monkeypatch.setattr(module, "_short_work", {})


@pytest.fixture
def all_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHORT_S", -1.0)


@contextmanager
def running(*works: Callable[[], object]) -> Iterator[list[threading.Thread]]:
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    yield threads
    for thread in threads:
        thread.join(ENDS_S)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.usefixtures("all_are_long")
def test_long_queries_take_turns_and_never_compute_at_once() -> None:
    computing: set[int] = set()
    most = 0
    slices: list[int] = []
    ended = threading.Event()

    def query(number: int) -> None:
        nonlocal most
        with fair_share():
            while not ended.is_set():
                checkpoint()
                computing.add(number)
                most = max(most, len(computing))
                if slices[-1:] != [number]:
                    slices.append(number)
                computing.discard(number)
                if len(slices) > 12:
                    ended.set()

    with running(lambda: query(1), lambda: query(2), lambda: query(3)):
        assert ended.wait(ENDS_S)

    assert most == 1
    assert set(slices) == {1, 2, 3}


def test_a_query_that_has_computed_little_goes_on_whoever_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCKED_S", ENDS_S)
    begun, ended = threading.Event(), threading.Event()

    def long_query() -> None:
        with fair_share():
            checkpoint()
            begun.set()
            ended.wait(ENDS_S)

    monkeypatch.setattr(module, "SHORT_S", -1.0)
    with running(long_query):
        assert begun.wait(ENDS_S)
        monkeypatch.setattr(module, "SHORT_S", ENDS_S)
        with fair_share():
            for _ in range(1_000):
                checkpoint()
        ended.set()


@pytest.mark.usefixtures("all_are_long")
def test_a_query_that_is_blocked_does_not_keep_its_slice() -> None:
    begun, other_ended = threading.Event(), threading.Event()

    def blocked() -> None:
        with fair_share():
            checkpoint()
            begun.set()
            assert other_ended.wait(ENDS_S)
            checkpoint()

    with running(blocked):
        assert begun.wait(ENDS_S)
        with fair_share():
            checkpoint()
        other_ended.set()


@pytest.mark.usefixtures("all_are_long")
def test_a_query_that_waits_for_its_turn_ends_when_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCKED_S", ENDS_S)
    begun, ended = threading.Event(), threading.Event()
    stop = StopToken()

    def first() -> None:
        with fair_share():
            checkpoint()
            begun.set()
            ended.wait(ENDS_S)

    with running(first):
        assert begun.wait(ENDS_S)
        timer = threading.Timer(0.1, stop.set, [Stopped("of the test", "go on")])
        timer.start()
        with stop_scope(stop), fair_share(), pytest.raises(Stopped):
            checkpoint()
        ended.set()


@pytest.mark.usefixtures("all_are_long")
def test_what_others_wait_for_is_not_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCKED_S", ENDS_S)
    begun, ended = threading.Event(), threading.Event()

    def first() -> None:
        with fair_share():
            checkpoint()
            begun.set()
            ended.wait(ENDS_S)

    with running(first):
        assert begun.wait(ENDS_S)
        with fair_share(), without_pauses():
            checkpoint()
        ended.set()


@pytest.mark.usefixtures("all_are_long")
def test_a_long_query_gives_way_to_a_request_that_began_a_moment_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GIVE_WAY_S", "SHORT_WORK_S"):
        monkeypatch.setattr(module, name, ENDS_S)
    begun, came, ended = threading.Event(), threading.Event(), threading.Event()
    passed: list[bool] = []

    def long_query() -> None:
        with fair_share():
            checkpoint()
            begun.set()
            assert came.wait(ENDS_S)
            time.sleep(2 * module.PROGRESS_S)
            checkpoint()
            passed.append(ended.is_set())

    with running(long_query):
        assert begun.wait(ENDS_S)
        with short_work():
            came.set()
            time.sleep(0.2)
            ended.set()

    assert passed == [True]


@pytest.mark.usefixtures("all_are_long")
def test_a_long_query_goes_on_beside_work_that_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GIVE_WAY_S", ENDS_S)
    monkeypatch.setattr(module, "SHORT_WORK_S", 0.01)
    with short_work(), fair_share():
        for _ in range(100):
            checkpoint()
