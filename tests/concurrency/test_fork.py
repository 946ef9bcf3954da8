"""A forked child can use a graph that its parent has open, whatever the parent's other threads were doing."""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import omnigraph
from omnigraph.graph.graph import Graph
from omnigraph.manifest.settings import Settings
from omnigraph.storage.location import parse_location
from omnigraph.storage.objects.local import LocalBackend
from omnigraph.storage.objects.object_store import ObjectStore, PutResult, ReplaceOutcome, open_store
from omnigraph.storage.objects.posix import directory_lock
from support.s3 import S3Location

pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe", "ignore:This process.*is multi-threaded")

SCHEMA = "node Person { slug: String @key age: I32? }"
PUT = "query put($slug: String) { insert Person { slug: $slug } }"
ALL = "query all() { match { $p: Person } return { $p.slug } order { $p.slug } }"
CHILD_S = 30
LOCK = type(threading.Lock())


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    """Whose rows are all inline: Lance, which can't be used after a fork, has no part in it."""
    return graph_of_one(tmp_path, Settings(maintenance=0))


def graph_of_one(root: Path, settings: Settings) -> Graph:
    made = omnigraph.init(root / "graph", SCHEMA, {"fsync": "false"}, settings=settings)
    put(made, "before")
    return made


def put(graph: Graph, slug: str) -> None:
    assert graph.mutate(PUT, params={"slug": slug}) is not None


def slugs(graph: Graph) -> list[str]:
    return [row["p.slug"] for row in graph.query(ALL).rows]


def in_child(work: Callable[[], object]) -> str:
    """What the work returns in a forked child, as text; a child that hangs is ended by its alarm."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # not the handler of a test's own time limit
        signal.alarm(CHILD_S)
        try:
            answer = str(work())
        except BaseException:
            answer = traceback.format_exc()
        os.write(writing, answer.encode()[-4000:])
        os._exit(0)
    os.close(writing)
    try:
        select.select([reading], [], [], CHILD_S + 5)
        parts = list(iter(lambda: os.read(reading, 4096), b""))
    finally:
        os.close(reading)
        _, status = os.waitpid(child, 0)
    assert status == 0, "the child waited for ever"
    return b"".join(parts).decode()


@pytest.fixture
def stalled_leader(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A thread of this process leads a group: it has begun its put, which takes until the end of the test."""
    begun, over, create = threading.Event(), threading.Event(), LocalBackend.create

    def stall(self: LocalBackend, key: str, data: bytes) -> PutResult:
        if threading.current_thread().name == "leader":
            begun.set()
            over.wait()
        return create(self, key, data)

    monkeypatch.setattr(LocalBackend, "create", stall)
    leader = threading.Thread(target=put, args=(graph, "leader"), name="leader")
    leader.start()
    assert begun.wait(20)
    yield
    over.set()
    leader.join()


@pytest.mark.usefixtures("stalled_leader")
def test_a_child_writes_and_reads_though_a_thread_of_its_parent_leads_a_group(graph: Graph) -> None:
    def write() -> list[str]:
        put(graph, "child")
        put(graph, "child again")
        return slugs(graph)

    assert in_child(write) == "['before', 'child', 'child again']"


def test_what_parent_and_child_write_is_all_there(graph: Graph, stalled_leader: None) -> None:
    in_child(lambda: put(graph, "child"))

    put_later = threading.Thread(target=put, args=(graph, "parent"))
    put_later.start()  # behind the leader

    assert in_child(lambda: put(graph, "second child")) == "None"
    assert {"before", "child", "second child"} <= set(slugs(omnigraph.open(graph.uri)))


@contextmanager
def every_lock_held() -> Iterator[list[str]]:
    """As if other threads were in the middle of everything: all locks that our objects and modules have are held."""
    owners = [(type(one).__qualname__, vars(one)) for one in gc.get_objects() if _is_ours(one)]
    owners += [(name, vars(module)) for name, module in list(sys.modules.items()) if name.startswith("omnigraph")]
    locks = [(f"{owner}.{name}", held) for owner, found in owners for name, held in list(found.items())]
    taken = [(name, held) for name, held in locks if isinstance(held, LOCK) and held.acquire(blocking=False)]
    try:
        yield [name for name, _ in taken]
    finally:
        for _, held in taken:
            held.release()


def _is_ours(one: object) -> bool:
    module = str(type(one).__module__)
    return module.startswith("omnigraph") and hasattr(one, "__dict__") and not isinstance(one, type)


def test_no_lock_that_was_held_at_the_fork_stops_a_child(graph: Graph) -> None:
    slugs(graph)

    def work() -> list[str]:
        put(graph, "child")
        graph.branches.create("b")
        return slugs(graph)

    with every_lock_held() as names:
        answer = in_child(work)

    assert answer == "['before', 'child']"
    assert {
        "CommitQueue._lock",
        "Manifests._lock",
        "SingleFlightCache._lock",
        "DirPool._lock",
        "omnigraph.storage.meter._lock",
    } <= {*names}


def test_a_child_shares_no_file_without_a_name_with_its_parent(graph: Graph) -> None:
    for number in range(5):  # so that files are made ahead
        put(graph, f"parent {number}")

    def work() -> None:
        for number in range(5):
            put(graph, f"child {number}")

    assert in_child(work) == "None"
    for number in range(5, 10):
        put(graph, f"parent {number}")

    fresh = omnigraph.open(graph.uri)
    assert slugs(fresh) == sorted(
        ["before", *(f"child {number}" for number in range(5)), *(f"parent {number}" for number in range(10))]
    )


def test_a_child_has_ids_of_its_own(graph: Graph) -> None:
    ids = graph.repository.runtime.ids
    ids.txn_id()

    answers = [in_child(ids.txn_id) for _ in range(3)]

    assert len({answer[10:] for answer in [*answers, ids.txn_id()]}) == 4


def test_a_child_is_refused_lance_that_its_parent_has_used(tmp_path: Path) -> None:
    """Its threads are gone: one child in ten crashed in it, and others hung."""
    staged = graph_of_one(tmp_path, Settings(inline_rows=0, maintenance=0))
    slugs(staged)

    for work in (lambda: put(staged, "child"), lambda: slugs(staged), staged.optimize):
        answer = in_child(work)
        assert "BadRequest" in answer
        assert "Lance" in answer
        assert "forkserver" in answer

    put(staged, "parent")
    assert slugs(staged) == ["before", "parent"]


@contextmanager
def replacing(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A thread of this process is in the middle of replacing an object, whose directory it has locked."""
    begun, over, written = threading.Event(), threading.Event(), LocalBackend._temporary_file

    @contextmanager
    def slowly(self: LocalBackend, path: Path, data: bytes, fsync: bool) -> Iterator[Path]:
        with written(self, path, data, fsync) as temporary:
            if threading.current_thread().name == "slow":
                begun.set()
                over.wait()
            yield temporary

    monkeypatch.setattr(LocalBackend, "_temporary_file", slowly)
    slow = threading.Thread(target=replace_object, args=(store,), name="slow")
    slow.start()
    assert begun.wait(20)
    try:
        yield
    finally:
        over.set()
        slow.join()


def replace_object(store: ObjectStore) -> ReplaceOutcome:
    found = store.get("tags/one.json")
    assert found is not None
    return store.replace("tags/one.json", found.data + b"+", found.etag)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    made = open_store(parse_location(tmp_path / "store", {"fsync": "false"}))
    made.put("tags/one.json", b"{}")
    return made


def lock_is_free(folder: Path) -> bool:
    fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(fd)


@contextmanager
def living_child(beginning: Callable[[], object] = lambda: None) -> Iterator[None]:
    """A child that is forked here, does this and then nothing for as long as the block lasts."""
    (its_end, end), (begun, its_begin) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        beginning()
        os.write(its_begin, b"1")
        os.read(its_end, 1)
        os._exit(0)
    os.close(its_end)
    os.close(its_begin)
    try:
        assert select.select([begun], [], [], CHILD_S)[0]
        yield
    finally:
        os.close(end)
        os.waitpid(child, 0)
        os.close(begun)


def test_the_lock_on_a_directory_ends_with_its_holder_though_a_child_was_forked_meanwhile(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as child:
        with replacing(store, monkeypatch):
            child.enter_context(living_child())
            assert not lock_is_free(tmp_path / "store" / "tags")
        assert lock_is_free(tmp_path / "store" / "tags")
        assert replace_object(store) is ReplaceOutcome.REPLACED


def test_a_child_without_the_fork_hook_does_not_keep_the_lock_either(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that a library forks, without the system's hooks of Python."""
    fork = ctypes.CDLL(None).fork
    with replacing(store, monkeypatch):
        child = fork()
        if child == 0:
            signal.pause()
    try:
        assert lock_is_free(tmp_path / "store" / "tags")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_child_replaces_what_a_thread_of_its_parent_was_replacing_once_that_is_over(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor(1) as pool:
        with replacing(store, monkeypatch):
            waiting = pool.submit(in_child, lambda: replace_object(store))
            time.sleep(0.2)
            assert not waiting.done()
        assert waiting.result(CHILD_S) in (str(ReplaceOutcome.REPLACED), str(ReplaceOutcome.CHANGED))

    assert replace_object(store) is ReplaceOutcome.REPLACED


def test_the_lock_of_a_parent_that_was_killed_is_not_kept_by_its_child(store: ObjectStore, tmp_path: Path) -> None:
    folder = tmp_path / "store" / "tags"
    reading, writing = os.pipe()
    parent = os.fork()
    if parent == 0:
        with directory_lock(folder):
            if os.fork() == 0:
                os.write(writing, str(os.getpid()).encode())
                signal.alarm(CHILD_S)
            while True:
                signal.pause()
    grandchild = int(os.read(reading, 20))
    try:
        assert not lock_is_free(folder)
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)

        assert lock_is_free(folder)
        assert replace_object(store) is ReplaceOutcome.REPLACED
    finally:
        os.kill(grandchild, signal.SIGKILL)
        os.close(reading)
        os.close(writing)


def test_a_child_that_was_forked_under_a_lock_does_not_unlock_it(store: ObjectStore, tmp_path: Path) -> None:
    folder = tmp_path / "store" / "tags"
    lock = directory_lock(folder)
    lock.__enter__()
    with living_child(lambda: lock.__exit__(None, None, None)):
        assert not lock_is_free(folder)
        lock.__exit__(None, None, None)
        assert lock_is_free(folder)


FORKS_BEFORE_LANCE = """
import os, sys
import omnigraph

graph = omnigraph.open(sys.argv[1])
graph.mutate('query put() { insert Person { slug: "parent" } }')
child = os.fork()
if child == 0:
    graph.mutate('query put() { insert Person { slug: "child" } }')
    graph.optimize()
    os._exit(0)
sys.exit(os.waitpid(child, 0)[1])
"""


def test_a_child_may_use_lance_that_its_parent_has_not(graph: Graph) -> None:
    done = subprocess.run([sys.executable, "-c", FORKS_BEFORE_LANCE, graph.uri], timeout=60, check=False)

    assert done.returncode == 0
    assert graph.snapshot().types[0].rows == 3
    assert not graph.begin().base.tables["node:Person"].tail


@pytest.mark.s3
def test_on_an_object_store_a_child_is_refused_at_once_with_a_remedy(s3: S3Location) -> None:
    graph = omnigraph.init(s3.uri, SCHEMA, s3.options, settings=Settings(maintenance=0))
    put(graph, "parent")

    for work in (lambda: put(graph, "child"), lambda: omnigraph.open(s3.uri, s3.options)):
        answer = in_child(work)
        assert "BadRequest" in answer
        assert "forkserver" in answer

    put(graph, "parent again")
    assert slugs(graph) == ["parent", "parent again"]
