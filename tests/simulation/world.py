"""The simulated world: processes with threads, one scheduler, and clocks that say what the schedule says.

One operating-system thread runs at any moment. A simulated thread runs until it reaches a scheduling point (before a
request takes effect, before its answer returns, a sleep, a wait for a lock or an event); there the scheduler counts a
step, lets a little virtual time pass and decides who runs next. All chance comes from the seed, by way of the place
(thread, operation, point) at which it is asked for, so a run depends on its seed alone.
"""

from __future__ import annotations

import heapq
import random
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Protocol

from omnigraph.runtime import SHORT_ID_LENGTH, Runtime, ulid
from simulation.faults import CLOCK, ELAPSE, PAUSE, STOP, STORE_CLOCK, FaultSource, NoFaults, Place

START = datetime(2026, 1, 1, tzinfo=UTC)
STEPS_MAX = 60_000  # a run that takes more has got stuck
REAL_SECONDS_MAX = 240.0
NOTICED = frozenset({"create", "put", "replace", "list"})  # requests whose time is compared with that of files
NOWHERE: Place = ("", 0, 0)  # where the first choice of a run is made
_BASE32 = "abcdefghijklmnopqrstuvwxyz234567"


class Killed(BaseException):
    """The process of this thread has crashed: raised wherever it would have gone on."""


class Stuck(Exception):
    """The run can't go on: every thread waits for another, or it takes for ever."""


class State(Enum):
    READY = "ready"
    WAITING = "waiting"
    DONE = "done"


@dataclass(eq=False)
class Process:
    """A simulated process: what its threads share, and its clock."""

    name: str
    life: int
    machine: str
    pid: int
    alive: bool = True
    stopped_until: int = 0  # the step at which its threads run again
    out_until_us: int = 0  # its requests fail until then
    unlisted_until_us: int = 0  # its listings do
    offset_us: int = 0  # of its wall clock
    rate: float = 1.0  # of both of its clocks
    graph: Any = None
    sessions: list[Any] = field(default_factory=list)  # Lance's
    opening: Any = None  # the lock under which the graph is opened

    @property
    def title(self) -> str:
        return f"{self.name}#{self.life}"


@dataclass(eq=False)
class Task:
    """A simulated thread."""

    name: str
    process: Process
    work: Callable[[], None]
    background: bool = False  # the run does not wait for it
    weight: float = 1.0
    priority: float = 0.0
    state: State = State.READY
    ready: Callable[[], bool] | None = None  # while it waits: whether it may go on
    deadline_us: int | None = None  # while it waits: when it goes on anyway
    paused_until: int = 0
    held: bool = False  # it does not run until the chooser says so
    at: str = ""  # what it does at its scheduling point
    operation: int = 0
    point: int = 0
    children: int = 0
    work_kind: str = ""  # the kind of operation that it is at
    call: str = ""  # what the thread works on, for the history
    baton: threading.Lock = field(default_factory=threading.Lock)
    thread: threading.Thread | None = None
    handle: Any = None  # the thread object that the product code holds
    ids: random.Random = field(default_factory=random.Random)

    @property
    def place(self) -> Place:
        return (self.name, self.operation, self.point)


class Chooser(Protocol):
    """Decides who runs next."""

    def prepare(self) -> None:
        """Before a choice: it may hold threads back, and let others go."""

    def choose(self, place: Place, current: Task | None, runnable: list[Task]) -> Task:
        """One of `runnable`, which is in the order in which the threads were made; `current` is one of them or None."""

    def welcome(self, task: Task) -> None:
        """A new thread: it gets what the choice depends on."""


@dataclass
class World:
    seed: str
    chooser: Chooser
    faults: FaultSource = field(default_factory=NoFaults)
    tick_us: int = 10_000
    tracing: bool = False
    now_us: int = 0
    step: int = 0
    store_offset_us: int = 0
    tasks: list[Task] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    trace: list[tuple[int, str, int, str]] = field(default_factory=list)
    requests: list[tuple[str, str, str]] = field(
        default_factory=list
    )  # thread, verb, key; not the names of table files
    failure: BaseException | None = None
    on_time: Callable[[], None] | None = None  # before a moment passes that matters: see `Files.stamp`
    on_fault: Callable[[int, str, str], object] | None = None  # told the step, the process that it concerns, the kind
    outside: random.Random = field(default_factory=lambda: random.Random(0))  # the dice of whoever is no thread here

    def __post_init__(self) -> None:
        self.current: Task | None = None
        self._late: list[tuple[int, int, Callable[[], None], str]] = []
        self._late_count = 0
        self._over = threading.Event()
        self._by_thread: dict[int, Task] = {}

    # Making processes and threads.

    def process(self, name: str, life: int, machine: str) -> Process:
        made = Process(name, life, machine, 1000 + len(self.processes))
        self.processes.append(made)
        return made

    def spawn(self, name: str, process: Process, work: Callable[[], None], *, background: bool = False) -> Task:
        task = Task(name, process, work, background)
        task.ids = random.Random(f"{self.seed} {name} {process.life}")
        task.baton.acquire()
        self.chooser.welcome(task)
        self.tasks.append(task)
        task.thread = threading.Thread(target=self._live, args=(task,), name=name, daemon=True)
        task.thread.start()
        return task

    def here(self) -> Task | None:
        """The simulated thread that asks, None for any other thread of the real process."""
        return self._by_thread.get(threading.get_ident())

    # Running.

    def run(self) -> None:
        """Until all threads have ended and every late effect has taken place; raises what broke the simulation."""
        first = self._next(None)
        if first is not None:
            self.current = first
            first.baton.release()
            if not self._over.wait(REAL_SECONDS_MAX):
                raise Stuck(f"A thread did not come back to the scheduler:\n{self._stacks()}")
            for task in self.tasks:
                assert task.thread is not None
                task.thread.join(10.0)
        self._take_late_effects(all_of_them=True)
        if self.failure is not None:
            raise self.failure

    def _live(self, task: Task) -> None:
        task.baton.acquire()
        self._by_thread[threading.get_ident()] = task
        try:
            if task.process.alive:
                task.work()
        except Killed:
            pass
        except BaseException as error:
            self._break(error)
        finally:
            task.state = State.DONE
            task.point += 1
            del self._by_thread[threading.get_ident()]
            self._hand_over(task)

    def _break(self, error: BaseException) -> None:
        """The simulation itself is broken: everything ends."""
        if self.failure is None:
            self.failure = error
        for process in self.processes:
            process.alive = False

    def _hand_over(self, task: Task) -> None:
        try:
            following = self._next(task)
        except BaseException as error:
            self._break(error)
            following = self._next(task)
        self.current = following
        if following is None:
            self._over.set()
        else:
            following.baton.release()

    # Scheduling points.

    def point(self, what: str, verb: str = "", key: str = "") -> None:
        """The thread that runs lets the scheduler decide. Raises `Killed` if its process is gone."""
        task = self.here()
        if task is None:
            return
        self._require_alive(task)
        task.point += 1
        task.at = what
        if self.tracing:
            self.trace.append((self.step, task.name, task.operation, what))
        if verb:
            self.requests.append((task.name, verb, "" if key.startswith("tables/") else key))
        fault = self.faults.time_fault(task.place, verb, key, task.work_kind)
        if self.on_time is not None and (fault is not None or verb in NOTICED):
            self.on_time()
        self._advance()
        if fault is not None:
            self._strike(task, fault.kind, fault.steps, fault.seconds)
        self._switch(task)

    def wait(self, ready: Callable[[], bool] | None, seconds: float | None, what: str) -> bool:
        """Wait until `ready`, or so long by this process's clock; whether it is ready."""
        task = self.here()
        assert task is not None
        self._require_alive(task)
        task.point += 1
        task.at = what
        if self.tracing:
            self.trace.append((self.step, task.name, task.operation, what))
        if self.on_time is not None:
            self.on_time()
        self._advance()
        task.state, task.ready = State.WAITING, ready
        if seconds is not None:
            task.deadline_us = self.now_us + max(0, int(seconds * 1e6 / task.process.rate))
        self._switch(task)
        return ready is None or ready()

    def later(self, steps: int, effect: Callable[[], None], what: str) -> None:
        """An effect that takes place when so many steps have passed, or at the end of the run."""
        self._late_count += 1
        heapq.heappush(self._late, (self.step + steps, self._late_count, effect, what))

    def kill(self, process: Process) -> None:
        """The process crashes: no thread of it does anything any more."""
        process.alive = False
        if self.tracing:
            self.trace.append((self.step, process.title, -1, "CRASHES"))

    def _require_alive(self, task: Task) -> None:
        if not task.process.alive:
            raise Killed

    def _advance(self) -> None:
        self.step += 1
        self.now_us += self.tick_us
        if self.step > STEPS_MAX and self.failure is None:
            raise Stuck(f"The run has taken {STEPS_MAX} steps and goes on:\n{self._stacks()}")
        self._take_late_effects()

    def _take_late_effects(self, *, all_of_them: bool = False) -> None:
        while self._late and (all_of_them or self._late[0][0] <= self.step):
            _, _, effect, what = heapq.heappop(self._late)
            if self.tracing:
                self.trace.append((self.step, "store", -1, what))
            effect()

    def note_fault(self, process: Process, kind: str) -> None:
        """For the checks: what happened to a process (`""` if it happened to all)."""
        if self.on_fault is not None:
            self.on_fault(self.step, "" if kind in (ELAPSE, STOP, STORE_CLOCK) else process.title, kind)

    def _strike(self, task: Task, kind: str, steps: int, seconds: float) -> None:
        self.note_fault(task.process, kind)
        if self.tracing:
            self.trace.append((self.step, task.name, task.operation, f"FAULT {kind} steps={steps} seconds={seconds}"))
        if kind == PAUSE:
            task.paused_until = self.step + steps
        elif kind == STOP:
            task.process.stopped_until = self.step + steps
            self.now_us += int(seconds * 1e6)
        elif kind == ELAPSE:
            self.now_us += int(seconds * 1e6)
        elif kind == CLOCK:
            task.process.offset_us += int(seconds * 1e6)
        elif kind == STORE_CLOCK:
            self.store_offset_us += int(seconds * 1e6)

    def _switch(self, task: Task) -> None:
        following = self._next(task)
        assert following is not None, "the thread that asks has not ended"
        if following is not task:
            self.current = following
            following.baton.release()
            task.baton.acquire()
        if not task.process.alive:
            raise Killed

    def _next(self, current: Task | None) -> Task | None:
        """Who runs now: whose process has crashed comes first and unwinds, without taking a step."""
        while True:
            alive = [task for task in self.tasks if task.state is not State.DONE]
            for task in alive:
                if not task.process.alive:
                    return task
            if all(task.background for task in alive):
                for process in {id(task.process): task.process for task in alive}.values():
                    process.alive = False
                if not alive:
                    return None
                continue
            self.tasks = alive if len(alive) < len(self.tasks) - 16 else self.tasks
            self.chooser.prepare()
            runnable = [task for task in alive if self._runs(task)]
            if runnable:
                place = NOWHERE if current is None else current.place
                chosen = self.chooser.choose(place, current if current in runnable else None, runnable)
                chosen.state, chosen.ready, chosen.deadline_us = State.READY, None, None
                return chosen
            self._skip_ahead(alive)

    def _runs(self, task: Task) -> bool:
        if task.held or task.paused_until > self.step or task.process.stopped_until > self.step:
            return False
        return task.state is State.READY or self._has_waited(task)

    def _has_waited(self, task: Task) -> bool:
        if task.deadline_us is not None and task.deadline_us <= self.now_us:
            return True
        return task.ready is not None and task.ready()

    def _skip_ahead(self, alive: list[Task]) -> None:
        """Nobody can run now: on to the first moment at which somebody can."""
        alive = [task for task in alive if not task.held]
        held = [
            until
            for task in alive
            if (until := max(task.paused_until, task.process.stopped_until)) > self.step
            and (task.state is State.READY or self._has_waited(task))
        ]
        due = [task.deadline_us for task in alive if task.deadline_us is not None]
        later_due = [deadline for deadline in due if deadline > self.now_us]
        if held:
            self.step = max(self.step, min(held))
        elif later_due:
            self.now_us = min(later_due)
        elif self._late:
            self.step = max(self.step, self._late[0][0])
        else:
            raise Stuck(f"Every thread waits for another:\n{self._stacks()}")
        self._take_late_effects()

    def _stacks(self) -> str:
        frames = sys._current_frames()
        parts = []
        for task in self.tasks:
            if task.state is State.DONE or task.thread is None:
                continue
            frame = frames.get(task.thread.ident or 0)
            stack = traceback.format_stack(frame) if frame is not None else ["(no stack)\n"]
            parts.append(f"{task.name} ({task.state.value}, operation {task.operation}):\n{''.join(stack[-14:])}")
        return "\n".join(parts)

    # Clocks and names.

    def store_now(self) -> datetime:
        return START + timedelta(microseconds=self.now_us + self.store_offset_us)

    def runtime(self, process: Process) -> Runtime:
        dice = _TaskDice(self)
        return Runtime(_Clock(self, process), _Ids(self, process), dice)

    def dice(self) -> random.Random:
        task = self.here()
        return self.outside if task is None else task.ids


@dataclass(frozen=True)
class _Clock:
    world: World
    process: Process

    def now(self) -> datetime:
        passed = int(self.world.now_us * self.process.rate) + self.process.offset_us
        return START + timedelta(microseconds=passed)

    def monotonic(self) -> float:
        return self.world.now_us * self.process.rate / 1e6

    def sleep(self, seconds: float) -> None:
        if self.world.here() is not None:
            self.world.wait(None, seconds, f"sleeps {seconds:.3f} s")


@dataclass(frozen=True)
class _Ids:
    """Names by the thread and operation that asks for them: they don't depend on what other threads do."""

    world: World
    process: Process

    def txn_id(self) -> str:
        now = _Clock(self.world, self.process).now()
        return ulid(int(now.timestamp() * 1000), self.world.dice().getrandbits(80))

    def short_id(self) -> str:
        return "".join(self.world.dice().choices(_BASE32, k=SHORT_ID_LENGTH))


class _TaskDice(random.Random):
    """The dice of a process, of which each thread and operation has its own."""

    def __init__(self, world: World) -> None:
        super().__init__(0)
        self._world = world

    def random(self) -> float:
        return self._world.dice().random()

    def getrandbits(self, k: int, /) -> int:
        return self._world.dice().getrandbits(k)
