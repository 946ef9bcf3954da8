"""Several independent clients of one graph, each driven request by request: the cast of docs/protocol.md.

    world = World(tmp_path)
    writer, cleaner = world.client("writer"), world.client("cleaner")
    with writer.start(lambda: writer.insert("ada")) as stalled:
        stalled.run_until(a_put_of_manifest(2))      # staged, about to put
        stand_in_cleanup(cleaner)                   # what happens meanwhile
        stalled.run_to_end()
        commit = stalled.result()

A client is a process of its own as far as the protocol goes: own caches, own clock, own ids, own connection. Only the
requests of our object store are stepped; Lance's files go straight to the temporary directory. Nobody really sleeps.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import pytest

from omnigraph.graph.graph import Graph
from omnigraph.manifest import repository as repository_module
from omnigraph.manifest.commit.plan import Append, ConflictPolicy, PublishPlan, RaiseFence
from omnigraph.manifest.commit.publish import PublishedCommit, PublishPolicy
from omnigraph.manifest.model.manifest import MAIN, Entry, Manifest, Point, TxnId
from omnigraph.manifest.model.paths import manifest_key, manifest_number
from omnigraph.manifest.repository import Repository, init_repository
from omnigraph.manifest.settings import Settings
from omnigraph.runtime import Runtime, ulid
from omnigraph.schema.catalog import Catalog, Schema
from omnigraph.storage.location import Location, parse_location
from omnigraph.storage.meter import Cost
from omnigraph.storage.objects.object_store import PutOutcome, PutResult, open_store
from omnigraph.write.validate.checks import IdsAbsent
from support.catalogs import PERSON, ids_of, people, person_rows
from support.steps import Call, Gate, LoseAnswer, LoseRequest, SteppedStore, Stepper, raising, returning
from support.unordered import ordered_store

T = TypeVar("T")

START = datetime(2026, 1, 1, tzinfo=UTC)
NO_FSYNC = {"fsync": "false"}
SMALL = Settings(maintenance=0)  # commits of a few rows ride in manifests; nobody folds them meanwhile
STAGED = Settings(inline_rows=0, maintenance=0)
staged_only = pytest.mark.parametrize("settings", [STAGED], ids=["staged"])  # a schedule of what is staged
small_only = pytest.mark.parametrize("settings", [SMALL], ids=["small"])
_BASE32 = "abcdefghijklmnopqrstuvwxyz234567"


@dataclass
class FakeClock:
    """Stands still but for sleeps, which return at once."""

    at: datetime = START
    elapsed_s: float = 0.0

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return self.elapsed_s

    def sleep(self, seconds: float) -> None:
        self.elapsed_s += seconds
        self.at += timedelta(seconds=seconds)

    def pass_time(self, **span: float) -> datetime:
        self.at += timedelta(**span)
        return self.at


class SeededIds:
    """Fresh ids that are the same on every run, and different for every client."""

    def __init__(self, seed: str) -> None:
        self._dice = random.Random(seed)

    def txn_id(self) -> str:
        return ulid(0, self._dice.getrandbits(80))

    def short_id(self) -> str:
        return "".join(self._dice.choices(_BASE32, k=13))


def seeded_runtime(seed: str) -> Runtime:
    return Runtime(FakeClock(), SeededIds(seed), random.Random(seed))


class OrderedLocation(Location):
    """A local directory that passes for a store whose LIST is in name order, as S3's is."""

    lists_in_name_order = True


@dataclass(frozen=True)
class Client:
    """One process at work on the graph."""

    name: str
    graph: Graph
    gate: Gate = field(repr=False)

    @property
    def repository(self) -> Repository:
        return self.graph.repository

    @property
    def clock(self) -> FakeClock:
        clock = self.repository.runtime.clock
        assert isinstance(clock, FakeClock)
        return clock

    def start(self, run: Callable[[], T]) -> Stepper[T]:
        """Have the client do something, one request at a time."""
        return Stepper(run, self.gate, self.name)

    def insert(self, *ids: str, **options: Any) -> PublishedCommit:
        """Persons with new ids, as one commit; refused if an id is taken."""
        rows = person_rows(*ids)
        commit = self.graph.write([Append(PERSON, rows)], checks=[IdsAbsent(PERSON, frozenset(ids))], **options)
        assert commit is not None
        return commit

    def people(self, branch: str = MAIN, at: str | datetime | None = None) -> list[str]:
        return ids_of(self.graph.snapshot(branch, at).to_arrow(PERSON))

    def head(self, branch: str = MAIN) -> Manifest:
        """The branch's newest manifest, confirmed."""
        return self.repository.branches.find(branch).head

    def stored(self, branch_id: str, number: int) -> Entry | None:
        """What lies under a number now, whatever this client remembers."""
        return self.repository.manifests.read(Point(branch_id, number), cached=False)

    def chain(self, branch: str = MAIN) -> list[TxnId]:
        """The transactions on the branch, oldest first, stubs and maintenance included, from this branch id only."""
        head = self.head(branch)
        entries = (self.stored(head.branch_id, number) for number in range(1, head.manifest_version + 1))
        return [commit.txn_id for entry in entries if entry is not None for commit in entry.commits]


class World:
    """One graph in one directory, and as many clients as a schedule needs."""

    def __init__(
        self,
        root: Path,
        catalog: Catalog | None = None,
        *,
        lists_in_name_order: bool = False,
        settings: Settings | None = None,
    ) -> None:
        self.root = root
        self.settings = settings or SMALL
        self._ordered = lists_in_name_order
        made = init_repository(str(root), Schema(catalog or people()), NO_FSYNC, runtime=seeded_runtime("init"))
        self.main_id = made.stamp.main_id

    def client(self, name: str, policy: PublishPolicy | None = None) -> Client:
        """A process that has just opened the graph: it knows main's head and schema as they are now."""
        client = self.cold_client(name, policy)
        client.graph.snapshot()
        return client

    def cold_client(self, name: str, policy: PublishPolicy | None = None) -> Client:
        """A process that knows the stamp and nothing else."""
        runtime, gate = seeded_runtime(name), Gate()
        location = parse_location(str(self.root), NO_FSYNC)
        if self._ordered:
            opened = ordered_store(OrderedLocation(location.uri, location.options, location.fsync), runtime)
        else:
            opened = open_store(location, runtime)
        store: Any = SteppedStore(opened, gate)
        stamp = repository_module._read_stamp(store)
        repository = Repository(store, stamp, runtime=runtime, policy=policy, settings=self.settings)
        return Client(name, Graph(repository, Cost()), gate)

    def keys(self, prefix: str = "") -> list[str]:
        """What is on the store, without Lance's files."""
        found = sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file())
        return [key for key in found if key.startswith(prefix) and not key.startswith("tables/")]

    def table_files(self) -> set[Path]:
        return {path for path in (self.root / "tables").rglob("*") if path.is_file()}

    def manifest_path(self, number: int, branch_id: str | None = None) -> Path:
        return self.root / manifest_key(Point(branch_id or self.main_id, number))

    def told(self, calls: list[Call]) -> list[str]:
        """Requests in words, so that a schedule's order reads like the rule: `create main/2`, `get __refs/b/1.json`."""
        return [self._in_words(call) for call in calls]

    def _in_words(self, call: Call) -> str:
        place = re.match(r"__manifest/([^/]+)/", call.key)
        number = manifest_number(call.key) if place else None
        if place and number is not None:
            return f"{call.method} {'main' if place[1] == self.main_id else 'branch'}/{number}"
        return f"{call.method} {call.key.replace(self.main_id, 'main')}"


def stand_in_cleanup(
    client: Client,
    branch: str = MAIN,
    *,
    oldest_retained: int | None = None,
    honoured: tuple[TxnId, ...] = (),
    retire: bool = True,
) -> Manifest:
    """The test-only cleanup, without mark and sweep: a fence through `publish`, then stubs for what expired.

    Everything older than the head that it found expires, unless `oldest_retained` says otherwise.
    """
    txn = client.repository.open_txn(branch)
    oldest = txn.base.manifest_version if oldest_retained is None else oldest_retained
    plan = PublishPlan(client.repository.runtime.ids.txn_id(), ConflictPolicy.MAINTENANCE, RaiseFence(oldest, honoured))
    assert client.repository.publisher.publish(txn, plan) is not None
    fence = client.head(branch)
    if retire:
        stand_in_retire(client, fence.branch_id, range(1, fence.oldest_retained))
    return fence


def stand_in_retire(client: Client, branch_id: str, numbers: range) -> None:
    """Turn manifests into stubs, as the last step of a cleanup does, but for those that a branch's tails still name."""
    heads = [client.head(name) for name in client.repository.branches.names()]
    tails = [entry for head in heads for ref in head.tables.values() for entry in ref.tail]
    kept = {Point(entry.branch_id, entry.manifest_version) for entry in tails}
    for number in numbers:
        entry = client.stored(branch_id, number)
        if isinstance(entry, Manifest) and entry.point not in kept:
            client.repository.manifests.replace_with_stub(entry)


def a_put_of_manifest(number: int) -> Callable[[Call], bool]:
    """Stop before the conditional put of this number."""
    return lambda call: call.method == "create" and _number_in(call.key) == number


def a_read_of_manifest(number: int) -> Callable[[Call], bool]:
    return lambda call: call.method == "get" and _number_in(call.key) == number


def a_put_of_ref(branch: str, life: int = 1) -> Callable[[Call], bool]:
    return lambda call: call == ("create", f"__refs/{branch}/{life}.json")


def _number_in(key: str) -> int | None:
    return manifest_number(key) if key.startswith("__manifest/") else None


# What can become of the answer to a put.

UNKNOWN = PutResult(PutOutcome.UNKNOWN, "the connection was cut")
APPLIED_ANSWER_LOST = LoseAnswer(returning(UNKNOWN))
NEITHER_APPLIED_NOR_ANSWERED = LoseRequest(returning(UNKNOWN))
AN_INNER_RETRY_SAYS_EXISTS = LoseAnswer(returning(PutResult(PutOutcome.EXISTS)))


def refused(error: Exception) -> LoseRequest:
    """The store refuses: it does nothing and says so."""
    return LoseRequest(raising(error))


@contextmanager
def stepped_stores(gate: Gate) -> Iterator[None]:
    """Within it `init_repository` and `open_repository` talk to their store through the gate."""

    def stepped(*args: Any, **kwargs: Any) -> Any:
        return SteppedStore(open_store(*args, **kwargs), gate)

    with mock.patch.object(repository_module, "open_store", stepped):
        yield
