"""What the product code uses of the operating system, replaced while a simulated world runs.

Locks, events, conditions and threads become those of the scheduler, parallel calls are made one after the other in
seeded order, stores are opened on the simulated bucket, and a process is asked for at the world. A thread that is none
of the world's keeps the real things.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from types import SimpleNamespace
from typing import Any
from unittest import mock

import omnigraph
from omnigraph import threads
from omnigraph.manifest.intent import process_liveness as owners
from omnigraph.pipeline.bulk.verification import sql_engine as engines
from omnigraph.storage.location import Location
from omnigraph.storage.objects import object_store as objects
from omnigraph.storage.table import handles
from omnigraph.storage.table.maintain.inspect import fresh_session
from simulation.world import Process, State, Task, World

# These hold a lock for a moment only, also in threads of Lance.
_REAL_LOCKS = frozenset({f"omnigraph.storage.{name}" for name in ("meter", "objects.local", "table.lance_io_stats")})
_LEFT_OUT = ("omnigraph.server", "omnigraph.cli", "omnigraph.remote", "omnigraph.__main__", "omnigraph.pipeline.spark")


class Lock:
    def __init__(self, world: World) -> None:
        self._world = world
        self._held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._held:
            if not blocking:
                return False
            while self._held:
                limit = None if timeout < 0 else timeout
                if not self._world.wait(lambda: not self._held, limit, "waits for a lock") and limit is not None:
                    return False
        self._held = True
        return True

    def release(self) -> None:
        self._held = False

    def locked(self) -> bool:
        return self._held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Event:
    def __init__(self, world: World) -> None:
        self._world = world
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            self._world.wait(self.is_set, timeout, "waits for an event")
        return self._set


class Condition:
    def __init__(self, world: World, lock: Any = None) -> None:
        self._world = world
        self._lock = lock or Lock(world)
        self._waiting: list[Event] = []
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return bool(self._lock.acquire())

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        mine = Event(self._world)
        self._waiting.append(mine)
        self._lock.release()
        try:
            return mine.wait(timeout)
        finally:
            if mine in self._waiting:
                self._waiting.remove(mine)
            self._lock.acquire()

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        while not predicate():
            if not self.wait(timeout) and timeout is not None:
                return predicate()
        return True

    def notify(self, n: int = 1) -> None:
        for event in self._waiting[:n]:
            event.set()
        del self._waiting[:n]

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class Semaphore:
    def __init__(self, world: World, value: int = 1) -> None:
        self._world = world
        self._value = value

    def acquire(self, blocking: bool = True) -> bool:
        while self._value <= 0:
            if not blocking:
                return False
            self._world.wait(lambda: self._value > 0, None, "waits for a semaphore")
        self._value -= 1
        return True

    def release(self) -> None:
        self._value += 1

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Thread:
    """A thread that product code starts: it belongs to the process of the thread that starts it."""

    def __init__(
        self,
        target: Callable[..., object],
        args: Iterable[Any] = (),
        name: str | None = None,
        daemon: bool | None = None,
        kwargs: dict[str, Any] | None = None,
        *,
        world: World,
    ) -> None:
        self._world = world
        self._call = (target, tuple(args), dict(kwargs or {}))
        self._task: Task | None = None
        self.name, self.daemon = name or "thread", bool(daemon)

    def start(self) -> None:
        parent = self._world.here()
        assert parent is not None
        parent.children += 1
        target, args, kwargs = self._call
        name = f"{parent.name}/{parent.operation}.{parent.children}"

        def work() -> None:
            target(*args, **kwargs)

        self._task = self._world.spawn(name, parent.process, work, background=self.daemon)
        self._task.handle, self._task.call = self, parent.call

    def is_alive(self) -> bool:
        return self._task is not None and self._task.state is not State.DONE

    def join(self, timeout: float | None = None) -> None:
        if self.is_alive():
            self._world.wait(lambda: not self.is_alive(), timeout, f"joins the {self.name}")


class Threading:
    """Stands for the module `threading` inside the product code."""

    def __init__(self, world: World) -> None:
        self._world = world
        for kind in (Lock, Event, Condition, Semaphore):
            setattr(self, kind.__name__, self._either(kind))
        self.BoundedSemaphore = self.Semaphore

    def _either(self, kind: Any) -> Callable[..., Any]:
        real = getattr(threading, kind.__name__)
        return lambda *args: kind(self._world, *args) if self._world.here() is not None else real(*args)

    def Thread(self, *args: Any, **kwargs: Any) -> Any:  # noqa: N802 - the module's name for it
        inside = self._world.here() is not None
        return Thread(*args, world=self._world, **kwargs) if inside else threading.Thread(*args, **kwargs)

    def current_thread(self) -> Any:
        task = self._world.here()
        return threading.current_thread() if task is None or task.handle is None else task.handle

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)


def gathering(world: World) -> Callable[[Iterable[Callable[[], Any]]], list[Any]]:
    """`threads.gather` whose calls run one after the other, in an order of the seed's."""

    def gather(calls: Iterable[Callable[[], Any]]) -> list[Any]:
        todo = list(calls)
        if world.here() is None or len(todo) <= 1:
            return [call() for call in todo]
        order = list(range(len(todo)))
        world.dice().shuffle(order)
        answers: dict[int, Any] = {}
        errors: dict[int, Exception] = {}
        for number in order:
            try:
                answers[number] = copy_context().run(todo[number])
            except Exception as error:
                errors[number] = error
        if errors:
            raise errors[min(errors)]
        return [answers[number] for number in range(len(todo))]

    return gather


_modules: list[Any] = []


def _product_modules() -> list[Any]:
    """All modules that a run may use, imported before anything is replaced in them."""
    if not _modules:
        for found in pkgutil.walk_packages(omnigraph.__path__, "omnigraph.", onerror=lambda _: None):
            if not found.name.startswith(_LEFT_OUT):
                importlib.import_module(found.name)
        _modules.extend(
            module
            for name, module in sorted(sys.modules.items())
            if name.startswith("omnigraph.") and not name.startswith(_LEFT_OUT)
        )
    return _modules


def _processes(world: World) -> dict[str, Any]:
    """What `owners` asks the system about processes."""

    def process() -> Process | None:
        task = world.here()
        return None if task is None else task.process

    def machine() -> str:
        mine = process()
        return "outside" if mine is None else mine.machine

    def pid() -> int:
        mine = process()
        return 1 if mine is None else mine.pid

    def started(wanted: int) -> str | None:
        found = next((one for one in world.processes if one.pid == wanted and one.alive), None)
        return None if found is None else found.title

    return {
        "_machine": machine,
        "_start_time": started,
        "os": SimpleNamespace(getpid=pid),
        "socket": SimpleNamespace(gethostname=machine),
    }


def _sessions(world: World) -> Callable[[], Any]:
    """Each process has its own Lance session: what another has cached is not there for it."""
    outside: list[Any] = []

    def session() -> Any:
        task = world.here()
        kept = outside if task is None else task.process.sessions
        if not kept:
            kept.append(fresh_session())
        return kept[0]

    return session


real_open_store, real_gather, real_connected = objects.open_store, threads.gather, engines.connect_duckdb
_duckdb_connections: list[Any] = []


@contextmanager
def _duckdb(_memory_mb: int | None = None) -> Iterator[Any]:
    """One database for all runs, with one thread: making one takes as long as a whole load."""
    import duckdb

    if not _duckdb_connections:
        _duckdb_connections.append(duckdb.connect(config={"threads": 1}))
    cursor = _duckdb_connections[0].cursor()
    try:
        yield cursor
    finally:
        cursor.close()


@contextmanager
def installed(world: World, open_store: Callable[..., Any], *, ordered_listings: bool) -> Iterator[None]:
    """The product code runs in this world."""
    modules = _product_modules()
    shim, gather = Threading(world), gathering(world)
    replaced: list[tuple[Any, str, Any]] = []
    for module in modules:
        names = vars(module)
        for name, real, new in (
            ("threading", threading, shim),
            ("gather", real_gather, gather),
            ("open_store", real_open_store, open_store),
            ("connect_duckdb", real_connected, _duckdb),
        ):
            if names.get(name) is real and not (real is threading and module.__name__ in _REAL_LOCKS):
                replaced.append((module, name, real))
                setattr(module, name, new)
    try:
        with (
            mock.patch.multiple(owners, **_processes(world)),
            mock.patch.object(handles, "default_session", _sessions(world)),
            mock.patch.object(Location, "lists_in_name_order", property(lambda _: ordered_listings)),
        ):
            yield
    finally:
        for module, name, real in replaced:
            setattr(module, name, real)
