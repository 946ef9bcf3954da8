"""One run of a schedule: the world is made, the actors run their scripts, and what happened is collected."""

from __future__ import annotations

import gc
import hashlib
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from omnigraph.errors import OmnigraphError
from omnigraph.graph.graph import Graph
from omnigraph.manifest.repository import init_repository, open_repository
from omnigraph.schema.lang.compile import compile_schema
from omnigraph.storage.location import Location
from omnigraph.storage.meter import Cost
from omnigraph.storage.objects.object_store import ObjectStore
from simulation import ops
from simulation.actors import Hands
from simulation.checks import Checker
from simulation.choices import Choices, Notebook
from simulation.directed import Directed
from simulation.schedule import Decisions, Operation, Schedule, ThreadScript
from simulation.shims import Lock, installed, real_open_store
from simulation.store import Bucket, SimulatedBackend
from simulation.world import Killed, Process, World

NO_FSYNC = {"fsync": "false"}
SHM = Path("/dev/shm")
OPEN_ATTEMPTS = 5
RESTART_STEPS = (0, 20, 200)


@dataclass
class Run:
    """What happened in a run, and what is left of it. The directory with the tables exists until `run` ends."""

    schedule: Schedule
    world: World
    bucket: Bucket
    history: ops.History
    location: Location
    checker: Checker
    error: BaseException | None = None  # that broke the simulation, or that no call of the façade may raise
    notebook: Notebook = field(default_factory=Notebook)

    @property
    def decisions(self) -> Decisions:
        if self.schedule.decisions is not None:
            return self.schedule.decisions
        chooser: Any = self.world.chooser
        return Decisions(dict(chooser.switches), dict(getattr(self.world.faults, "struck", {})))

    @property
    def recorded(self) -> Schedule:
        """The same run with every decision listed."""
        return replace(self.schedule, decisions=self.decisions)

    def graph(self) -> Graph:
        """The graph as somebody sees it who comes when all is over."""
        runtime = self.world.runtime(Process("reader", 0, "outside", 1))
        store = ObjectStore(self.location, SimulatedBackend(self.world, self.bucket), runtime)
        with installed(self.world, lambda *_, **__: store, ordered_listings=self.schedule.listings.in_order):
            repository = open_repository(
                self.location.uri, NO_FSYNC, runtime=runtime, settings=self.schedule.mix.settings
            )
        return Graph(repository, Cost())

    def digest(self) -> str:
        """Of everything that happened, byte for byte as far as the names that Lance makes up don't come into it."""
        parts: list[object] = [sorted(self.decisions.switches.items()), sorted(self.decisions.faults.items(), key=repr)]
        parts += [self.world.step, self.world.now_us, *self.world.requests]
        parts += [(call.name, call.start, call.end) for call in self.history.calls.values()]
        self.bucket.files.stamp()  # mixes that are meant to be inline store a table now and then: by a merge, say
        if not self.bucket.files.were_there:
            parts += [repr(call) for call in self.history.calls.values()]
            parts += [(write.step, write.key, write.body) for write in self.history.writes]
        return hashlib.sha256(repr(parts).encode()).hexdigest()


@contextmanager
def run(schedule: Schedule, *, tracing: bool = False) -> Iterator[Run]:
    folder = Path(tempfile.mkdtemp(prefix="simulation-", dir=SHM if SHM.is_dir() else None))
    collected = gc.isenabled()
    gc.disable()  # cycles are collected between runs: no object's end must depend on when that happens
    try:
        yield _Runner(schedule, folder, tracing).run()
    finally:
        if collected:
            gc.enable()
        shutil.rmtree(folder, ignore_errors=True)


class _Runner:
    def __init__(self, schedule: Schedule, folder: Path, tracing: bool) -> None:
        self._schedule = schedule
        self._root = folder / "graph"
        self._inputs = folder / "inputs"
        (self._root / "tables").mkdir(parents=True)
        self._world = World(
            f"{schedule.seed}", schedule.chooser(), schedule.faults(), schedule.tick_us, tracing=tracing
        )
        if isinstance(self._world.chooser, Directed):
            self._world.chooser.world = self._world
        self._history = ops.History()
        self._bucket = Bucket(self._world, self._root, self._history, schedule.listings)
        self._checker = Checker(self._history)
        self._bucket.on_manifest = self._checker.step
        self._world.on_fault = self._history.strike
        if schedule.mix.stores_tables:
            self._world.on_time = self._bucket.files.stamp
        names = (ops.MAIN, *(f"b{number}" for number in range(schedule.mix.branches)))
        self._notebook = Notebook(names)
        self._next: dict[str, int] = {}  # thread → its next operation
        self._location = Location(str(self._root), {}, fsync=False)

    def run(self) -> Run:
        world = self._world
        result = Run(
            self._schedule, world, self._bucket, self._history, self._location, self._checker, None, self._notebook
        )
        with installed(world, self._open_store, ordered_listings=self._schedule.listings.in_order):
            self._init()
            count = max(script.process for script in self._schedule.scripts) + 1
            for number in range(count):
                self._start(number, 0, 0)
            try:
                world.run()
            except BaseException as error:
                result.error = error
        for name, call in self._history.calls.items():
            if isinstance(call.outcome, ops.Pending):
                self._history.calls[name] = replace(call, outcome=ops.Crashed())
        return result

    def _open_store(self, location: Location, runtime: Any = None, retry: Any = None, **how: Any) -> ObjectStore:
        if location.uri != self._location.uri:
            return real_open_store(location, runtime, retry, **how)
        if runtime is None:
            task = self._world.here()
            process = Process("init", 0, "outside", 1) if task is None else task.process
            runtime = self._world.runtime(process)
        return ObjectStore(location, SimulatedBackend(self._world, self._bucket), runtime, retry, **how)

    def _init(self) -> None:
        world = self._world
        world_dice = random.Random(f"init {self._schedule.seed}")
        world.outside = world_dice
        init_repository(
            str(self._root),
            compile_schema(ops.schema_text()),
            NO_FSYNC,
            runtime=world.runtime(Process("init", 0, "outside", 1)),
            settings=self._schedule.mix.settings,
        )

    def _start(self, number: int, life: int, after: int) -> None:
        """A process with its threads, each with what is left of its script."""
        world = self._world
        machine = "m" if self._schedule.one_machine else f"m{number}"
        process = world.process(f"p{number}", life, machine)
        process.rate = self._schedule.rates[number]
        process.opening = Lock(world)
        for script in self._schedule.scripts:
            if script.process == number and self._next.get(script.name, 0) < len(script.operations):
                task = world.spawn(script.name, process, partial(self._follow, script, process))
                task.operation = self._next.get(script.name, 0)
                task.paused_until = world.step + after

    def _follow(self, script: ThreadScript, process: Process) -> None:
        """The thread's operations one after the other; if the process crashes, the next life goes on behind them."""
        world, task = self._world, self._world.here()
        assert task is not None
        try:
            while (number := self._next.get(script.name, 0)) < len(script.operations):
                self._next[script.name] = number + 1
                operation = script.operations[number]
                task.operation, task.point, task.children = number, 0, 0
                task.call = f"{script.name}.{number}"
                task.ids = random.Random(f"{world.seed} {script.name} {number}")
                if operation is not None:
                    task.work_kind = operation.kind
                    self._operate(script, process, operation, task.call)
        finally:
            if not process.alive and world.failure is None:
                self._restart(script.process, process)

    def _restart(self, number: int, dead: Process) -> None:
        newest = [process for process in self._world.processes if process.name == dead.name][-1]
        if newest is dead:
            dice = random.Random(f"{self._world.seed} {dead.title}")
            self._start(number, dead.life + 1, dice.choice(RESTART_STEPS))

    def _operate(self, script: ThreadScript, process: Process, operation: Operation, name: str) -> None:
        world, history, notes, mix = self._world, self._history, self._notebook, self._schedule.mix
        graph = self._graph(process)
        if graph is None:
            return
        world.point("begins")
        notes.moment = world.store_now().isoformat()
        dice = random.Random(f"{operation.nonce}")
        verb = (
            operation.verb(notes)
            if operation.verb is not None
            else Choices(dice, notes, script.name, mix.main_share, mix.newest_share).verb(operation.kind)
        )
        txn = None
        if isinstance(verb, ops.WriteHeld):
            try:
                txn = graph.begin(verb.branch)
            except OmnigraphError:
                return
            verb = replace(verb, base=txn.base.logical_head)
            world.point("holds its base")
        call, began_us = ops.Call(name, process.title, script.name, verb, world.step), world.now_us
        history.begin(call)
        notes.begun(verb)
        if world.tracing:
            world.trace.append((world.step, script.name, task_operation(name), f"BEGINS {verb}"))
        try:
            outcome = Hands(graph, name, self._inputs, txn).perform(verb)
        except OmnigraphError as error:
            outcome = ops.refused(error)
        except Killed:
            history.calls[name] = replace(call, outcome=ops.Crashed())
            notes.broken_off(verb)
            raise
        except Exception as error:
            outcome = ops.refused(error)
        if not process.alive:
            history.calls[name] = replace(call, outcome=ops.Crashed())
            notes.broken_off(verb)
            raise Killed
        history.calls[name] = replace(call, end=world.step, outcome=outcome, seconds=(world.now_us - began_us) / 1e6)
        notes.ended(verb, outcome)
        if isinstance(verb, ops.Maintain) and verb.what == "cleanup":
            self._checker.after_cleanup()
        if world.tracing:
            world.trace.append((world.step, script.name, task_operation(name), f"ENDS {outcome}"))

    def _graph(self, process: Process) -> Graph | None:
        """The process's graph, opened by the first thread that wants it; None if the store does not answer."""
        with process.opening:
            for _ in range(OPEN_ATTEMPTS):
                if process.graph is not None:
                    break
                try:
                    repository = open_repository(
                        str(self._root),
                        NO_FSYNC,
                        runtime=self._world.runtime(process),
                        settings=self._schedule.mix.settings,
                    )
                    process.graph = Graph(repository, Cost())
                except OmnigraphError:
                    continue
        found: Graph | None = process.graph
        return found


def task_operation(name: str) -> int:
    return int(name.rpartition(".")[2])
