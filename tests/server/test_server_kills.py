"""A server that is killed at any moment: nothing that it acknowledged is lost, nothing comes twice, nothing is left.

Every client sends what was not answered again, under the same key or job id, to the server that comes next.
"""

from __future__ import annotations

import math
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

import omnigraph
from omnigraph.errors import AnswerLost, OmnigraphError
from omnigraph.graph.graph import Graph
from omnigraph.manifest.store.manifest_store import HINT_EVERY
from omnigraph.pipeline.progress import Progress
from omnigraph.runtime import Runtime
from omnigraph.server.scratch import Scratch
from support.killable_server import Clients, Write
from support.proxy import Proxy
from support.s3 import S3Location
from support.server import PEOPLE, SCHEMA, ServerProcess, ndjson
from support.soak import SoakReport

LONGEST_S = 1.2  # from the first request to the kill
BRANCHES = ("one", "two")
# A disk does not list the newest first: a hint that is at most 32 behind is followed by doubling, then halving.
HINT_STEPS = 2 * int(math.log2(HINT_EVERY))


@contextmanager
def killed_soon(server: ServerProcess, name: str, dice: random.Random) -> Iterator[list[Write]]:
    """What clients have asked of a server that was killed in the midst of it."""
    clients = Clients(server.url, name)
    time.sleep(dice.uniform(0.0, LONGEST_S))
    server.signal(signal.SIGKILL)
    server.__exit__()
    yield clients.ended()


def settle(server: ServerProcess, writes: list[Write]) -> None:
    """Each client asks again for what it was not told, and for what it was: the answer stays the same."""
    with server.client() as client:
        for write in writes:
            known = write.commit
            if known is None or write is writes[-1]:
                write.send(client)
                assert known in (None, write.commit)


def require_all_there_once(graph: Graph, writes: list[Write]) -> None:
    for branch in {write.branch for write in writes}:
        own = [write for write in writes if write.branch == branch]
        commits = graph.commits(branch, limit=None)
        known = {commit.id for commit in commits}
        assert {write.commit for write in own} <= known
        assert [txn for txn, times in Counter(commit.txn_id for commit in commits).items() if times > 1] == []
        found = Counter(row["slug"] for row in graph.query(PEOPLE, branch=branch).rows)
        for write in own:
            assert [found[slug] for slug in write.slugs] == [1] * len(write.slugs), write
    assert len({write.commit for write in writes}) == len(writes)
    report = graph.verify()
    assert report.ok, report
    assert graph.recover().jobs == ()


def left_over(spool: Path) -> list[str]:
    return sorted(path.name for path in spool.iterdir())


def kill_again_and_again(
    start: Callable[[], ServerProcess],
    cost_of_start: Callable[[ServerProcess], int],
    spool: Path,
    times: int,
    seed: int,
) -> tuple[list[Write], list[int]]:
    """Everything that was ever written, and what each start asked of the store; the last server ends by itself."""
    dice = random.Random(seed)
    server = start()
    costs = [cost_of_start(server)]
    writes: list[Write] = []
    try:
        for number in range(times):
            with killed_soon(server, f"k{seed}-{number}", dice) as asked:
                writes += asked
            server = start()
            costs.append(cost_of_start(server))
            assert len([name for name in left_over(spool) if not name.endswith(".lock")]) == 1, left_over(spool)
            settle(server, asked)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
    finally:
        server.__exit__()
    assert left_over(spool) == []
    return writes, costs


def requests_of_start(server: ServerProcess) -> int:
    """As the server itself counts them."""
    with httpx.Client(trust_env=False) as client:
        lines = client.get(f"{server.url}/metrics").text.splitlines()
    found = [line for line in lines if line.startswith('omnigraph_storage_requests_total{kind="open"}')]
    return int(float(found[0].rpartition(" ")[2]))


@pytest.mark.parametrize(
    ("times", "seed"), [(2, 1), *[pytest.param(25, seed, marks=pytest.mark.soak) for seed in (2, 3, 4)]]
)
def test_a_server_on_a_disk_is_killed_at_any_moment(
    times: int, seed: int, graph: Graph, store: Path, tmp_path: Path, soak_report: SoakReport
) -> None:
    for branch in BRANCHES:
        graph.branches.create(branch)
    spool = tmp_path / "spool"
    spool.mkdir()

    def start() -> ServerProcess:
        return ServerProcess("--store", str(store), env={"TMPDIR": str(spool)})

    writes, costs = kill_again_and_again(start, requests_of_start, spool, times, seed)

    require_all_there_once(omnigraph.open(store), writes)
    assert max(costs) <= costs[0] + HINT_STEPS
    soak_report.line(
        f"{times} kills, {len(writes):,} writes, all there once; a start took {max(costs)} requests at most."
    )


def at_rest(proxy: Proxy) -> None:
    """Wait for what a killed server had asked for: it may be under way for a while."""
    requests = 1
    while requests:
        with proxy.recording() as log:
            time.sleep(0.3)
        requests = len(log)


@pytest.mark.s3
@pytest.mark.parametrize(("times", "seed"), [(1, 1), pytest.param(25, 2, marks=pytest.mark.soak)])
def test_a_server_on_s3_is_killed_at_any_moment(
    times: int, seed: int, s3: S3Location, s3_proxied: S3Location, proxy: Proxy, tmp_path: Path, soak_report: SoakReport
) -> None:
    graph = omnigraph.init(s3.uri, SCHEMA, s3.options)
    graph.load([{"type": "Person", "data": {"slug": "ada"}}])
    for branch in BRANCHES:
        graph.branches.create(branch)
    spool = tmp_path / "spool"
    spool.mkdir()
    options = [word for key, value in s3_proxied.options.items() for word in ("--storage-option", f"{key}={value}")]
    seen: list[int] = []

    def start() -> ServerProcess:
        at_rest(proxy)
        with proxy.recording() as log:
            server = ServerProcess("--store", s3_proxied.uri, *options, env={"TMPDIR": str(spool)})
        seen.append(len(log))
        return server

    writes, costs = kill_again_and_again(start, lambda _: seen[-1], spool, times, seed)

    require_all_there_once(omnigraph.open(s3.uri, s3.options), writes)
    assert set(costs) == {costs[0]}
    soak_report.line(f"{times} kills, {len(writes):,} writes, all there once; each start took {costs[0]} requests.")


ALL_ARE_LARGE = "import omnigraph.server.routes.bulk as bulk; bulk.MEMORY_BYTES = 1"


def test_a_large_load_that_a_kill_cut_off_goes_on_when_it_is_sent_again_under_its_key(
    graph: Graph, store: Path, tmp_path: Path
) -> None:
    """By way of another server: its files lie elsewhere, and are known for the same."""
    body = ndjson([{"type": "Person", "data": {"slug": f"p{number}"}} for number in range(20_000)])
    key = {"Idempotency-Key": "once"}
    answers: list[httpx.Response] = []
    arguments = ("--store", str(store), "--no-spark")
    environment = {"TMPDIR": str(tmp_path)}
    with ServerProcess(*arguments, env=environment, before=ALL_ARE_LARGE) as server:

        def load() -> None:
            with server.client() as client, suppress(httpx.TransportError):
                answers.append(client.post("/graphs/default/load", content=body, headers=key))

        loading = threading.Thread(target=load)
        loading.start()
        while not graph.recover().jobs and not answers:
            time.sleep(0.002)
        server.signal(signal.SIGKILL)
        loading.join(30)

    assert answers == []
    assert [job.state for job in graph.recover().jobs] == ["dead"]
    assert len(graph.query(PEOPLE).rows) == 2
    with ServerProcess(*arguments, env=environment, before=ALL_ARE_LARGE) as server, server.client() as client:
        made, again = (client.post("/graphs/default/load", content=body, headers=key) for _ in range(2))

    assert made.status_code == 200, made.text
    assert made.json()["counts"] == {"Person": 20_000}
    assert again.json()["commit"]["id"] == made.json()["commit"]["id"]
    assert len(graph.query(PEOPLE).rows) == 20_002
    assert graph.recover().jobs == ()


def test_a_job_of_a_server_that_was_killed_is_not_known_to_the_next(graph: Graph, store: Path) -> None:
    body = ndjson([{"type": "Person", "data": {"slug": "cy"}}])
    wanted: dict[str, Any] = {"content": body, "headers": {"Prefer": "respond-async"}}
    with ServerProcess("--store", str(store)) as server, server.client() as client:
        job = client.post("/graphs/default/load?job_id=monday", **wanted).json()["id"]
        server.signal(signal.SIGKILL)
    with ServerProcess("--store", str(store)) as server, server.client() as client:
        unknown = client.get(f"/graphs/default/jobs/{job}")
        wanted["headers"] = {"Prefer": "respond-async, wait=20"}
        done = client.post("/graphs/default/load?job_id=monday", **wanted)

    assert unknown.status_code == 404
    assert "the server was started again since" in unknown.json()["error"]
    assert done.json()["counts"] == {"Person": 1}
    assert [row["slug"] for row in graph.query(PEOPLE).rows] == ["ada", "bob", "cy"]
    assert len(graph.commits()) == 3


SLOW_LOADS = "import time; import omnigraph.server.routes.bulk as bulk; bulk._Load._load = lambda *_: time.sleep(60)"


def test_a_client_whose_job_went_with_its_server_hears_that_and_is_served_once_by_the_next(
    graph: Graph, store: Path
) -> None:
    lost: list[BaseException] = []
    with ServerProcess("--store", str(store), before=SLOW_LOADS) as server:
        client = omnigraph.connect(server.url)

        def load() -> None:
            try:
                client.load([{"type": "Person", "data": {"slug": "cy"}}], txn_id="mine", progress=Progress())
            except OmnigraphError as error:
                lost.append(error)

        loading = threading.Thread(target=load)
        loading.start()
        while not any(line.get("job") for line in list(server.log)):
            time.sleep(0.01)
        server.signal(signal.SIGKILL)
    with ServerProcess("--store", str(store), "--bind", server.url.removeprefix("http://")):
        loading.join(30)
        made = client.load([{"type": "Person", "data": {"slug": "cy"}}], txn_id="mine")
        again = client.load([{"type": "Person", "data": {"slug": "cy"}}], txn_id="mine")

    (error,) = lost
    assert isinstance(error, AnswerLost)
    assert (error.txn_id, error.branch) == ("mine", "main")
    assert made.commit is not None
    assert again.commit is not None
    assert made.commit.id == again.commit.id
    assert len(graph.query(PEOPLE).rows) == 3


# Temporary files


def test_a_start_removes_what_dead_servers_left_and_nothing_of_those_who_live(tmp_path: Path) -> None:
    words = "from omnigraph.server.scratch import Scratch; from omnigraph.runtime import Runtime; import os, sys"
    make = (
        f"{words}; s = Scratch(__import__('pathlib').Path(sys.argv[1]), Runtime()); print(s.new_folder()); os._exit(9)"
    )
    dead = Path(
        subprocess.run([sys.executable, "-c", make, str(tmp_path)], capture_output=True, text=True).stdout.strip()
    )
    alive = Scratch(tmp_path, Runtime())
    folder, file = alive.new_folder(), tmp_path / "omnigraph-server-file"
    file.write_text("somebody's")
    with alive.claim_name(alive.new_folder(), "a") as named:
        assert dead.is_dir()
        Scratch(tmp_path, Runtime()).start()

        assert not dead.parent.exists()
        assert folder.is_dir()
        assert named.is_dir()
    alive.close()

    assert list(tmp_path.iterdir()) == [file]


def test_a_load_that_comes_again_while_it_is_under_way_waits_for_the_first(tmp_path: Path) -> None:
    scratch, order = Scratch(tmp_path, Runtime()), []

    def second() -> None:
        with scratch.claim_name(scratch.new_folder(), "key", wait_s=10):
            order.append("second")

    with scratch.claim_name(scratch.new_folder(), "key"):
        waiting = threading.Thread(target=second)
        waiting.start()
        time.sleep(0.1)
        order.append("first")
    waiting.join(10)
    scratch.close()

    assert order == ["first", "second"]
