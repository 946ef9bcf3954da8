"""Clients driven request by request, in one process: how a test replays a schedule of docs/protocol.md.

    gate = Gate()
    graph = open_graph(SteppedStore(store, gate))   # nobody steps yet: requests pass
    with Stepper(lambda: graph.commit(...), gate) as writer:
        writer.run_until(lambda call: call.method == "create")   # staged, about to put its manifest
        ...                                                      # what others do in between
        writer.run_to_end()
        commit = writer.result()

A client is a thread that blocks before each of its requests, so only one request runs at a time and the schedule is
the one the test wrote, on every run.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")

REQUESTS = ("get", "create", "put", "replace", "head", "list", "delete")
STEP_TIMEOUT_S = 10.0

Outcome = Callable[[], Any]


class ScheduleError(AssertionError):
    """The client did not do what the test's schedule says it does."""


class ClientKilled(BaseException):
    """Raised in a client that was killed. Not an Exception: no handler may mend what a dead process can't."""


class Call(NamedTuple):
    """One request of a client to its store; the key (or prefix) is the method's first argument, as in `ObjectStore`."""

    method: str
    key: str


@dataclass(frozen=True, slots=True)
class LoseAnswer:
    """The store does the request; the client gets `outcome()` (a value, or what it raises) instead of the answer."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class LoseRequest:
    """The store never sees the request; the client gets `outcome()` (a value, or what it raises)."""

    outcome: Outcome


Fault = LoseAnswer | LoseRequest


def raising(error: BaseException) -> Outcome:
    def outcome() -> Any:
        raise error

    return outcome


def returning(value: Any) -> Outcome:
    return lambda: value


@dataclass(slots=True)
class _Pending:
    """A call that waits at the gate, and the orders it was given."""

    call: Call
    may_run: bool = False
    fault: Fault | None = None
    finished: bool = False


@dataclass(slots=True)
class Gate:
    """Where a client's requests wait for the test; open as long as no `Stepper` holds it.

    Requests that a client sends from several threads at once wait together and are let through in order of arrival.
    """

    changed: threading.Condition = field(default_factory=threading.Condition)
    waiting: list[_Pending] = field(default_factory=list)
    held: bool = False
    killed: bool = False

    def enter(self, call: Call) -> _Pending | None:
        """Block until the test lets this call through; None if nobody steps."""
        with self.changed:
            if not self.held and not self.killed:
                return None
            pending = _Pending(call)
            self.waiting.append(pending)
            self.changed.notify_all()
            self.changed.wait_for(lambda: pending.may_run or self.killed)
            if not pending.may_run:
                self.waiting.remove(pending)
                raise ClientKilled(f"before {call}")
            return pending

    def leave(self, pending: _Pending) -> None:
        with self.changed:
            pending.finished = True
            self.waiting.remove(pending)
            self.changed.notify_all()


class SteppedStore:
    """An object store whose requests wait at a gate; everything else it is asked for is the inner store's."""

    def __init__(self, inner: Any, gate: Gate, requests: tuple[str, ...] = REQUESTS) -> None:
        self._inner = inner
        self._gate = gate
        self._requests = requests

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if name not in self._requests:
            return attribute

        def request(*args: Any, **kwargs: Any) -> Any:
            about = args[0] if args else next(iter(kwargs.values()), "")
            pending = self._gate.enter(Call(name, str(about)))
            if pending is None:
                return attribute(*args, **kwargs)
            try:
                return _perform(lambda: attribute(*args, **kwargs), pending.fault)
            finally:
                self._gate.leave(pending)

        return request


def _perform(request: Callable[[], Any], fault: Fault | None) -> Any:
    match fault:
        case LoseRequest(outcome):
            return outcome()
        case LoseAnswer(outcome):
            with suppress(Exception):  # an error is an answer too, and as lost
                _at_once(request())
            return outcome()
        case None:
            return _at_once(request())


def _at_once(answer: Any) -> Any:
    """A lazy listing would do its requests after its step, so take all of it now."""
    return iter(list(answer)) if isinstance(answer, Iterator) else answer


class Stepper(Generic[T]):
    """A client: `run` in a thread of its own, with its gate held from now until it is done."""

    def __init__(self, run: Callable[[], T], gate: Gate, name: str = "client") -> None:
        if gate.held:
            raise ScheduleError(f"{name}: its gate is held by another client; give each client its own")
        self._gate = gate
        self._name = name
        self._result: T | None = None
        self._error: BaseException | None = None
        self._ended = False
        gate.held, gate.killed = True, False
        self._thread = threading.Thread(target=self._live, args=(run,), name=name, daemon=True)
        self._thread.start()

    def _live(self, run: Callable[[], T]) -> None:
        try:
            self._result = run()
        except BaseException as error:
            self._error = error
        with self._gate.changed:
            self._ended, self._gate.held = True, False
            self._gate.changed.notify_all()

    def __enter__(self) -> Stepper[T]:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()

    @property
    def next(self) -> Call | None:
        """The request the client is about to make; None if it is done."""
        with self._gate.changed:
            pending = self._await_request()
            return pending.call if pending else None

    @property
    def done(self) -> bool:
        """Whether the client has ended. Waits until it has either ended or asks for its next request."""
        return self.next is None

    def step(self, fault: Fault | None = None) -> Call:
        """Let exactly one request happen; returns once the client blocks at its next one, or is done."""
        with self._gate.changed:
            pending = self._await_request()
            if pending is None:
                raise ScheduleError(f"{self._name} is done, there is no request to step: {self._ending()}")
            pending.may_run, pending.fault = True, fault
            self._gate.changed.notify_all()
            self._wait(lambda: pending.finished, f"{pending.call} to finish")
            self._await_request()
            return pending.call

    def run_until(self, stop: Callable[[Call], bool]) -> Call:
        """Step until the next request is one that `stop` names; that one is not executed yet."""
        while (call := self.next) is not None:
            if stop(call):
                return call
            self.step()
        raise ScheduleError(f"{self._name} was done before the request to stop at came: {self._ending()}")

    def run_to_end(self) -> list[Call]:
        """Step until the client is done; the requests it still made."""
        calls = []
        while not self.done:
            calls.append(self.step())
        return calls

    def result(self) -> T:
        """What the client returned; raises what it raised."""
        if (call := self.next) is not None:
            raise ScheduleError(f"{self._name} is not done: it is blocked before {call}")
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # None is a T here: run() returned it

    def kill(self) -> None:
        """End the client where it stands, as a crash would: its next request and all later ones never happen."""
        with self._gate.changed:
            self._gate.killed = True
            self._gate.changed.notify_all()
            self._wait(lambda: self._ended, "its end")
            self._gate.killed = False

    def _await_request(self) -> _Pending | None:
        self._wait(lambda: self._ended or bool(self._gate.waiting), "its next request or its end")
        return None if self._ended else self._gate.waiting[0]

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        if not self._gate.changed.wait_for(condition, STEP_TIMEOUT_S):
            frame = sys._current_frames().get(self._thread.ident or 0)
            stack = "".join(traceback.format_stack(frame)) if frame else "(its thread is gone)"
            raise ScheduleError(f"{self._name}: waited {STEP_TIMEOUT_S:.0f} s for {what}; it is at\n{stack}")

    def _ending(self) -> str:
        return f"it raised {self._error!r}" if self._error else f"it returned {self._result!r}"
