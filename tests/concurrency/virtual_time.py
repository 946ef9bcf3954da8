"""Many processes on one distant store, in virtual time: who gets through how often, whatever else the machine does.

    world = World(tmp_path, people(), seed=1)
    writers = [world.spawn(f"w{n}", write_for_ever) for n in range(12)]
    world.run(seconds=10.0)

Each client is a thread with a graph, caches and dice of its own, but one runs at a time: it goes on until it sleeps or
sends a request, and then the one whose time comes first does. What a client would send at once it sends one after the
other. So a schedule depends on the seed alone, and what a client computes takes as long as the world says. Lance's
files go to a directory, in no time.
"""

from __future__ import annotations

import heapq
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar
from unittest import mock

from omnigraph import threads
from omnigraph.graph.graph import Graph
from omnigraph.manifest import repository as repository_module
from omnigraph.manifest.repository import Repository, init_repository
from omnigraph.manifest.settings import Settings
from omnigraph.runtime import SHORT_ID_LENGTH, Runtime, ulid
from omnigraph.schema.catalog import Catalog, Schema
from omnigraph.storage.location import Location
from omnigraph.storage.meter import Cost
from omnigraph.storage.objects.object_store import ETag, ObjectInfo, ObjectStore, PutOutcome, PutResult, StoredObject

P = ParamSpec("P")
T = TypeVar("T")

START = datetime(2026, 1, 1, tzinfo=UTC)
CALM = Settings(maintenance=0)  # nothing happens behind a client's back
PAGE = 1000
LETTERS = "abcdefghijklmnopqrstuvwxyz234567"


class _Over(BaseException):
    """The world has ended: raised where a client would have gone on."""


@dataclass(eq=False)
class Client:
    """A process as far as the protocol goes."""

    name: str
    work: Callable[[Graph], None]
    may_run: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None
    puts: int = 0
    lost: int = 0  # of them, those that found the number taken
    thread: threading.Thread | None = None


class World:
    """The store, the clock and everybody in it."""

    def __init__(
        self, root: Path, catalog: Catalog, seed: int, *, rtt_s: float = 0.02, compute_s: float = 0.002
    ) -> None:
        self.dice = random.Random(seed)
        self.rtt_s = rtt_s
        self.compute_s = compute_s  # before each request
        self.now_s = 0.0
        self.objects: dict[str, StoredObject] = {}
        self._location = _OrderedLocation(str(root), {}, fsync=False)
        self._due: list[tuple[float, int, Client]] = []
        self._count = 0
        self._current: Client | None = None
        self._clients: list[Client] = []
        self._ended = threading.Event()
        self._until_s = 0.0
        store = ObjectStore(self._location, _Store(self, None))
        with mock.patch.object(repository_module, "open_store", return_value=store), _one_request_at_a_time():
            runtime = self._runtime("init")
            self._stamp = init_repository(str(root), Schema(catalog), runtime=runtime, settings=CALM).stamp

    def spawn(self, name: str, work: Callable[[Graph], None]) -> Client:
        client = Client(name, work)
        self._clients.append(client)
        return client

    def run(self, seconds: float) -> None:
        """Everybody works until the time is over; what a client raised before is raised here."""
        self._until_s = self.now_s + seconds
        for client in self._clients:
            client.thread = threading.Thread(target=self._live, args=(client,), name=client.name)
            self._wait(client, self.dice.uniform(0, self.rtt_s))
            client.thread.start()
        with _one_request_at_a_time():
            self._wake_next()
            self._ended.wait()
            for client in self._clients:
                assert client.thread is not None
                client.thread.join()
        for client in self._clients:
            if client.error is not None:
                raise client.error

    def graph(self, client: Client | None = None) -> Graph:
        """Opened by a client, or by somebody who has all the time there is."""
        runtime = self._runtime("reader" if client is None else client.name)
        store = ObjectStore(self._location, _Store(self, client), runtime)
        return Graph(Repository(store, self._stamp, runtime=runtime, settings=CALM), Cost())

    def pass_time(self, seconds: float) -> None:
        """The client that runs waits; whose time comes first runs meanwhile."""
        client = self._current
        if client is None:  # before the beginning, and after the end
            self.now_s += seconds
            return
        client.may_run.clear()
        self._wait(client, seconds)
        self._wake_next()
        client.may_run.wait()
        if self.now_s > self._until_s:
            raise _Over

    def _wait(self, client: Client, seconds: float) -> None:
        self._count += 1
        heapq.heappush(self._due, (self.now_s + seconds, self._count, client))

    def _wake_next(self) -> None:
        if not self._due:
            self._current = None
            self._ended.set()
            return
        self.now_s, _, self._current = heapq.heappop(self._due)
        self._current.may_run.set()

    def _live(self, client: Client) -> None:
        client.may_run.wait()
        try:
            client.work(self.graph(client))
        except _Over:
            pass
        except BaseException as error:
            client.error = error
        finally:
            self._wake_next()

    def _runtime(self, name: str) -> Runtime:
        dice = random.Random(f"{name} {self.dice.random()}")
        return Runtime(_Clock(self), _Ids(dice), dice)


class _OneByOne(Executor):
    """Runs each call where it is submitted, since only the thread that the world has woken may go on."""

    def __init__(self, max_workers: int) -> None:
        pass

    def submit(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(call(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def _one_request_at_a_time() -> AbstractContextManager[object]:
    return mock.patch.object(threads, "ThreadPoolExecutor", _OneByOne)


class _OrderedLocation(Location):
    """A local directory that passes for a store whose LIST is in name order, as S3's is."""

    lists_in_name_order = True


@dataclass(frozen=True)
class _Clock:
    world: World

    def now(self) -> datetime:
        return START + timedelta(seconds=self.world.now_s)

    def monotonic(self) -> float:
        return self.world.now_s

    def sleep(self, seconds: float) -> None:
        self.world.pass_time(seconds)


@dataclass(frozen=True)
class _Ids:
    dice: random.Random

    def txn_id(self) -> str:
        return ulid(0, self.dice.getrandbits(80))

    def short_id(self) -> str:
        return "".join(self.dice.choices(LETTERS, k=SHORT_ID_LENGTH))


@dataclass(frozen=True)
class _Store:
    """What a client sees of the store: each request takes half a round trip there and half a round trip back."""

    world: World
    client: Client | None

    def get(self, key: str) -> StoredObject | None:
        return self._request(lambda: self.world.objects.get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        found = self.get(key)
        return None if found is None else found.data[start : start + length]

    def create(self, key: str, data: bytes) -> PutResult:
        def request() -> PutResult:
            if key in self.world.objects:
                return PutResult(PutOutcome.EXISTS)
            self._store(key, data)
            return PutResult(PutOutcome.CREATED)

        answer = self._request(request)
        if self.client is not None:
            self.client.puts += 1
            self.client.lost += answer.outcome is PutOutcome.EXISTS
        return answer

    def put(self, key: str, data: bytes, durable: bool) -> None:
        self._request(lambda: self._store(key, data))

    def replace(self, key: str, data: bytes, seen: ETag) -> bool:
        def request() -> bool:
            found = self.world.objects.get(key)
            if found is None or found.etag != seen:
                return False
            self._store(key, data)
            return True

        return self._request(request)

    def head(self, key: str) -> ObjectInfo | None:
        found = self.get(key)
        return None if found is None else ObjectInfo(key, len(found.data), found.modified)

    def pages(self, prefix: str, *, repeat_pages: bool) -> Iterator[Sequence[ObjectInfo]]:
        def request() -> list[ObjectInfo]:
            keys = sorted(key for key in self.world.objects if key.startswith(f"{prefix}/"))
            there = [(key, self.world.objects[key]) for key in keys]
            return [ObjectInfo(key, len(found.data), found.modified) for key, found in there]

        listed = self._request(request)
        yield listed[:PAGE]
        for start in range(PAGE, len(listed), PAGE):
            yield self._request(partial(_part, listed, start))

    def delete(self, key: str) -> None:
        self._request(lambda: self.world.objects.pop(key, None))

    def _store(self, key: str, data: bytes) -> None:
        self.world.objects[key] = StoredObject(data, START + timedelta(seconds=self.world.now_s))

    def _request(self, perform: Callable[[], T]) -> T:
        world = self.world
        there, back = (world.rtt_s * world.dice.uniform(0.45, 0.55) for _ in range(2))
        world.pass_time(world.compute_s + there)
        answer = perform()
        world.pass_time(back)
        return answer


def _part(listed: list[ObjectInfo], start: int) -> list[ObjectInfo]:
    return listed[start : start + PAGE]
