"""The driver itself: it lets exactly the requests happen that a test asks for."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from . import steps
from .steps import (
    Call,
    ClientKilled,
    Gate,
    LoseAnswer,
    LoseRequest,
    ScheduleError,
    SteppedStore,
    Stepper,
    raising,
    returning,
)


class DictStore:
    name = "dict"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def get(self, key: str) -> bytes | None:
        return self.objects.get(key)

    def create(self, key: str, data: bytes) -> bool:
        return self.objects.setdefault(key, data) is data

    def list(self, prefix: str) -> Iterator[str]:
        yield from (key for key in self.objects if key.startswith(prefix))


class AnswerLost(Exception):
    pass


def commit(store: SteppedStore, data: bytes) -> str:
    """Put the next free number, as a manifest is."""
    number = len(list(store.list("m/")))
    while not store.create(f"m/{number}", data):
        assert store.get(f"m/{number}") is not None
        number += 1
    return f"m/{number}"


def client(inner: DictStore, data: bytes) -> Stepper[str]:
    gate = Gate()
    return Stepper(lambda: commit(SteppedStore(inner, gate), data), gate, name=data.decode())


def test_a_client_makes_one_request_a_step_and_blocks_before_the_next() -> None:
    inner = DictStore()
    with client(inner, b"a") as a:
        assert a.next == Call("list", "m/")
        assert a.step() == ("list", "m/")
        assert a.next == ("create", "m/0")
        assert inner.objects == {}

        a.step()

        assert a.done
        assert inner.objects == {"m/0": b"a"}
        assert a.result() == "m/0"


def test_two_clients_interleave_as_the_schedule_says() -> None:
    inner = DictStore()
    with client(inner, b"a") as a, client(inner, b"b") as b:
        a.run_until(lambda call: call.method == "create")
        assert b.run_to_end() == [("list", "m/"), ("create", "m/0")]

        assert a.run_to_end() == [("create", "m/0"), ("get", "m/0"), ("create", "m/1")]

        assert (a.result(), b.result()) == ("m/1", "m/0")


def test_a_lost_answer_is_applied_and_a_lost_request_is_not() -> None:
    inner = DictStore()
    with client(inner, b"a") as a, client(inner, b"b") as b:
        a.run_until(lambda call: call.method == "create")
        a.step(LoseAnswer(raising(AnswerLost())))
        assert inner.objects == {"m/0": b"a"}
        with pytest.raises(AnswerLost):
            a.result()

        b.run_until(lambda call: call.method == "create")
        b.step(fault=LoseRequest(returning(True)))
        assert b.result() == "m/1"
        assert inner.objects == {"m/0": b"a"}


def test_a_killed_client_makes_no_further_request() -> None:
    inner = DictStore()
    a = client(inner, b"a")
    a.run_until(lambda call: call.method == "create")

    a.kill()

    assert a.done
    assert inner.objects == {}
    with pytest.raises(ClientKilled):
        a.result()


def test_requests_pass_while_nobody_steps_and_other_attributes_always() -> None:
    inner, gate = DictStore(), Gate()
    store = SteppedStore(inner, gate)
    assert store.create("m/0", b"before") is True

    with Stepper(lambda: store.name, gate) as reader:
        assert reader.result() == "dict"

    assert store.get("m/0") == b"before"


def test_a_schedule_that_does_not_fit_the_client_fails_with_what_it_did() -> None:
    with client(DictStore(), b"a") as a:
        with pytest.raises(ScheduleError, match="blocked before"):
            a.result()
        with pytest.raises(ScheduleError, match="it returned 'm/0'"):
            a.run_until(lambda call: call.method == "delete")
        with pytest.raises(ScheduleError, match="no request to step"):
            a.step()


def test_a_client_that_neither_asks_nor_ends_is_reported_with_its_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "STEP_TIMEOUT_S", 0.1)
    gate, forgotten = Gate(), threading.Event()
    stuck = Stepper(forgotten.wait, gate, name="stuck")
    with pytest.raises(ScheduleError, match=r"stuck: waited .*(?s:.*)wait"):
        stuck.step()
    forgotten.set()
    assert stuck.done
