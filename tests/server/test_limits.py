"""Work at a server: deadlines, limits, streams, jobs."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import omnigraph
from omnigraph.cancellation import Stopped, StopToken, checkpoint, interruptible, stop_scope
from omnigraph.errors import AlreadyExists, TooManyRequests
from omnigraph.graph.graph import Graph
from omnigraph.runtime import Runtime
from omnigraph.server.http.admission import Admission, Workers
from omnigraph.server.http.pipe import CHUNK_BYTES, CHUNKS_MAX, Pipe, write_to_pipe
from omnigraph.server.scratch import Scratch
from omnigraph.server.settings import Limits, ServerSettings
from support.server import ADD, PEOPLE, QUICK, Served, ndjson, people_graph, served

PAIRS = "query q() { match { $x: N  $y: N  $x.a < $y.a  $x.b != $y.b } return { count($x) as n } }"
ROWS = "query q() { match { $x: N } return { $x.slug as slug, $x.b as b, $x.text as text } }"


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph over which a query may take its time."""
    folder = tmp_path_factory.mktemp("heavy") / "graph"
    graph = omnigraph.init(folder, "node N { slug: String @key  a: I32  b: F64  text: String }", QUICK)
    rows = [
        {"type": "N", "data": {"slug": f"n{i}", "a": i * 7919 % 4000, "b": i / 3, "text": "x" * 200}}
        for i in range(4000)
    ]
    graph.load(rows)
    return folder


@pytest.fixture
def busy(heavy: Path) -> Iterator[Served]:
    limits = Limits(running=2, running_per_actor=2, waiting=1, waiting_s=0.3, stall_s=1.0)
    with served({"g": heavy}, ServerSettings(limits=limits, grace_s=5.0)) as running:
        yield running


def idle(server: Served, within_s: float = 10.0) -> bool:
    """Whether all places become free."""
    end = time.monotonic() + within_s
    while server.service.admission.running and time.monotonic() < end:
        time.sleep(0.02)
    return server.service.admission.running == 0


# Deadlines


def test_a_query_is_stopped_at_its_deadline_and_its_thread_is_free(busy: Served) -> None:
    with busy.client() as client:
        client.post("/graphs/g/query", json={"query": ROWS})  # what is read once is kept
        answer = client.post("/graphs/g/query", json={"query": PAIRS}, headers={"Request-Timeout": "0.05"})

        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
        assert "longer than 0.05 s" in answer.json()["details"]["stopped"]
        assert idle(busy, 2.0)
        assert client.post("/graphs/g/query", json={"query": PAIRS}).json()["rows"] == [{"n": 7_998_000}]


def test_a_query_is_stopped_when_its_client_goes_away(busy: Served) -> None:
    host, port = busy.url.removeprefix("http://").split(":")
    body = json.dumps({"query": PAIRS}).encode()
    with socket.create_connection((host, int(port))) as raw:
        head = (
            f"POST /graphs/g/query HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        )
        raw.sendall(head.encode() + b"\r\n\r\n" + body)
        while not busy.service.admission.running:
            time.sleep(0.005)
    began = time.monotonic()

    assert idle(busy, 5.0)
    assert time.monotonic() - began < 5.0


def test_a_deadline_that_is_none_is_refused(busy: Served) -> None:
    with busy.client() as client:
        for value in ("0", "-1", "soon", "1e9"):
            answer = client.post("/graphs/g/query", json={"query": ROWS}, headers={"Request-Timeout": value})
            assert answer.status_code == 400


def test_work_ends_at_a_checkpoint_or_by_an_interrupt() -> None:
    stop, called = StopToken(), threading.Event()
    with stop_scope(stop):
        checkpoint()
        threading.Timer(0.01, stop.set, [Stopped("it is late", "hurry")]).start()
        with pytest.raises(Stopped, match="it is late"):
            _blocked_in_a_library(called)
        with pytest.raises(Stopped):
            checkpoint()
    checkpoint()


def test_a_join_that_runs_in_duckdb_says_how_to_interrupt_it(heavy: Path) -> None:
    seen: list[Callable[[], None]] = []

    class Noting(StopToken):
        @contextmanager
        def interrupting(self, interrupt: Callable[[], None]) -> Iterator[None]:
            seen.append(interrupt)
            with super().interrupting(interrupt):
                yield

    with stop_scope(Noting()):
        omnigraph.open(heavy, QUICK).query(PAIRS)

    assert seen  # before it starts, and for each part of its result


def _blocked_in_a_library(called: threading.Event) -> None:
    with interruptible(called.set):
        assert called.wait(5)
        raise RuntimeError("what the library says when it is interrupted")


def test_only_the_first_cause_of_a_stop_counts() -> None:
    stop = StopToken()
    stop.set(Stopped("first", "x"))
    stop.set(Stopped("second", "x"))

    with pytest.raises(Stopped, match="first"):
        stop.check()


# Places


def test_a_request_that_finds_no_place_gets_a_retry_after(busy: Served) -> None:
    def ask(_: int) -> httpx.Response:
        with busy.client() as client:
            return client.post("/graphs/g/query", json={"query": PAIRS})

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(ask, range(12)))

    codes = {answer.status_code for answer in answers}
    assert codes == {200, 429}
    for answer in answers:
        if answer.status_code == 429:
            assert answer.json()["code"] == "too_many_requests"
            assert int(answer.headers["Retry-After"]) == answer.json()["details"]["retry_after_s"] >= 1


def test_one_actor_can_not_take_all_places() -> None:
    async def scenario() -> None:
        admission = Admission(Limits(running=3, running_per_actor=2, waiting=5, waiting_s=0.05))
        await admission.enter("ada")
        await admission.enter("ada")
        with pytest.raises(TooManyRequests):
            await admission.enter("ada")
        await admission.enter("bob")
        assert (admission.running, admission.waiting) == (3, 0)

    asyncio.run(scenario())


def test_places_are_given_in_order_and_past_those_who_have_enough() -> None:
    async def scenario() -> list[str]:
        admission = Admission(Limits(running=2, running_per_actor=1, waiting=9, waiting_s=5))
        order: list[str] = []

        async def come(name: str, actor: str) -> None:
            await admission.enter(actor)
            order.append(name)

        await admission.enter("ada")
        await admission.enter("bob")
        tasks = []
        for name, actor in (("ada again", "ada"), ("cy", "cy"), ("dan", "dan")):
            tasks.append(asyncio.create_task(come(name, actor)))
            await asyncio.sleep(0)
        admission.leave("bob")
        await asyncio.sleep(0.01)
        admission.leave("cy")
        await asyncio.sleep(0.01)
        admission.leave("ada")
        await asyncio.gather(*tasks)
        return order

    assert asyncio.run(scenario()) == ["cy", "dan", "ada again"]


def test_a_caller_that_gives_up_in_line_leaves_no_trace() -> None:
    async def scenario() -> None:
        admission = Admission(Limits(running=1, running_per_actor=1, waiting=1, waiting_s=5))
        await admission.enter("ada")
        waiting = asyncio.create_task(admission.enter("bob"))
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        admission.leave("ada")
        assert (admission.running, admission.waiting) == (0, 0)
        await admission.enter("cy")

    asyncio.run(scenario())


def test_a_place_is_kept_until_the_thread_is_done() -> None:
    async def scenario() -> None:
        limits = Limits(running=1, running_per_actor=1, waiting=0)
        admission = Admission(limits)
        workers = Workers(limits, admission)
        go_on = threading.Event()
        running = asyncio.create_task(workers.run("ada", go_on.wait))
        await asyncio.sleep(0.05)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert admission.running == 1
        go_on.set()
        await asyncio.sleep(0.05)
        assert admission.running == 0
        workers.close()

    asyncio.run(scenario())


# Streams


def test_a_stream_is_written_no_faster_than_it_is_read_and_ends_if_nobody_does(busy: Served) -> None:
    """Four thousand rows of 200 characters are more than the buffers between here and there hold."""
    with busy.client() as client, client.stream("POST", "/graphs/g/export", json={}) as answer:
        pieces = answer.iter_raw(1024)
        next(pieces)
        assert busy.service.admission.running == 1
        assert sum(map(len, pieces)) > 800_000

    assert idle(busy)


def test_a_stream_that_nobody_reads_is_given_up() -> None:
    async def scenario() -> int:
        stop = StopToken()
        pipe = Pipe(stop, 0.2, lambda: False)

        def produce() -> int:
            written = 0
            try:
                while True:
                    written += pipe.write(b"x" * 10_000)
            except Stopped:
                return written

        written = await asyncio.to_thread(produce)
        assert "took nothing" in str(stop.cause)
        return written

    assert asyncio.run(scenario()) <= (CHUNKS_MAX + 2) * (CHUNK_BYTES + 10_000)


def test_a_reader_that_goes_away_before_a_piece_is_there_leaves_no_task_behind() -> None:
    async def scenario() -> int:
        pipe = Pipe(StopToken(), 5.0, lambda: False)
        work: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        reading = asyncio.ensure_future(anext(pipe.pieces(work)))
        await asyncio.sleep(0.01)
        reading.cancel()
        await asyncio.wait({reading})
        await asyncio.sleep(0)
        return len(asyncio.all_tasks() - {asyncio.current_task()})

    assert asyncio.run(scenario()) == 0


def test_a_stream_waits_for_a_slow_reader_and_is_whole() -> None:
    async def scenario() -> int:
        pipe = Pipe(StopToken(), 5.0, lambda: False)
        ahead = []

        def produce(to: Pipe) -> None:
            for number in range(40):
                to.write(b"x" * CHUNK_BYTES)
                ahead.append(number + 1 - len(taken))

        taken: list[bytes] = []
        work = asyncio.ensure_future(asyncio.to_thread(write_to_pipe, pipe, produce))
        async for piece in pipe.pieces(work):
            taken.append(piece)
            await asyncio.sleep(0.002)
        assert max(ahead) <= CHUNKS_MAX + 2
        return sum(map(len, taken))

    assert asyncio.run(scenario()) == 40 * CHUNK_BYTES


def test_a_reader_that_goes_away_ends_the_stream_and_leaves_no_trace(
    busy: Served, caplog: pytest.LogCaptureFixture
) -> None:
    gc.collect()  # what others have left behind is told before
    caplog.clear()
    host, port = busy.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = json.dumps(
            {"query": "query q() { match { $x: N  $y: N  $x.a = $y.a } return { $x.text as t } }"}
        ).encode()
        head = (
            "POST /graphs/g/query HTTP/1.1\r\nHost: x\r\nAccept: application/x-ndjson\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        raw.sendall(head.encode() + body)
        assert raw.recv(100).startswith(b"HTTP/1.1 200")

    assert idle(busy)
    gc.collect()  # an error that nobody heard is told when it is collected
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


def test_an_error_behind_the_first_byte_cuts_the_connection(busy: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    from omnigraph.read.export import export as module
    from omnigraph.read.export.export_formats import line_encoder

    def breaking(definition: Any) -> Any:
        line = line_encoder(definition)

        def lines(batch: Any) -> Iterator[bytes]:
            for number, text in enumerate(line(batch)):
                if number == 2000:
                    raise Stopped("a test", "x")
                yield text

        return lines

    monkeypatch.setattr(module, "line_encoder", breaking)
    with busy.client() as client, pytest.raises(httpx.RemoteProtocolError):
        client.post("/graphs/g/export", json={})
    assert idle(busy)


def test_a_body_that_comes_in_pieces_is_one_commit(http: httpx.Client, graph: Graph) -> None:
    def pieces() -> Iterator[bytes]:
        text = ndjson([{"type": "Person", "data": {"slug": f"p{number}"}} for number in range(3000)]).encode()
        for start in range(0, len(text), 777):
            yield text[start : start + 777]

    answer = http.post("/load", content=pieces())

    assert answer.json()["counts"] == {"Person": 3000}
    assert len(graph.commits()) == 3


def test_nothing_of_a_load_is_left_on_the_servers_disk(graph: Graph, store: Path, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    with served({"people": store}, ServerSettings(spool=spool, grace_s=1.0)) as server, server.client() as client:
        client.post("/graphs/people/load", content=ndjson([{"type": "Person", "data": {"slug": "cy"}}]))
        client.post("/graphs/people/load", content="{")
        client.post("/graphs/people/export", json={"directory": True})
        assert list(server.service.scratch.path.iterdir()) == []
        job = client.post("/graphs/people/export", json={}, headers={"Prefer": "respond-async"}).json()["id"]
        client.get(f"/graphs/people/jobs/{job}", headers={"Prefer": "wait=20"})
        assert len(list(server.service.scratch.path.iterdir())) == 1
    assert list(spool.iterdir()) == []


# Jobs


def test_a_load_as_a_job_is_asked_after_by_its_id(http: httpx.Client, graph: Graph) -> None:
    body = ndjson([{"type": "Person", "data": {"slug": "cy"}}])
    accepted = http.post("/load", content=body, headers={"Prefer": "respond-async"})
    job = http.get(f"/jobs/{accepted.json()['id']}", headers={"Prefer": "wait=20"}).json()

    assert accepted.status_code == 202
    assert (job["state"], job["kind"], job["error"]) == ("done", "load", None)
    assert job["result"]["counts"] == {"Person": 1}
    assert job["result"]["commit"]["id"] == graph.snapshot().commit_id


def test_an_export_as_a_job_tells_how_far_it_is_and_leaves_a_file(http: httpx.Client) -> None:
    whole = http.post("/export", json={}).content
    job = http.post("/export", json={}, headers={"Prefer": "respond-async"}).json()["id"]
    done = http.get(f"/jobs/{job}", headers={"Prefer": "wait=20"}).json()

    assert done["state"] == "done"
    assert done["progress"] == {"stage": "export", "tasks": 3, "done": 3, "rows": 3}
    assert http.get(done["files"]["export"].removeprefix("/graphs/people")).content == whole


def test_a_large_body_is_loaded_split_by_split_as_one_commit(
    http: httpx.Client, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omnigraph.server.routes.bulk.MEMORY_BYTES", 1000)
    body = ndjson([{"type": "Person", "data": {"slug": f"p{number}"}} for number in range(2000)])
    accepted = http.post("/load", content=body, headers={"Prefer": "respond-async"}).json()
    job = http.get(f"/jobs/{accepted['id']}", headers={"Prefer": "wait=20"}).json()

    assert job["result"]["counts"] == {"Person": 2000}
    assert job["progress"]["stage"] == "publishing"
    assert len(graph.commits()) == 3


def test_a_load_with_a_job_id_is_known_again_when_the_same_body_comes(http: httpx.Client, graph: Graph) -> None:
    body = ndjson([{"type": "Person", "data": {"slug": "cy"}}])
    first = http.post("/load?job_id=monday&engine=local", content=body).json()
    again = http.post("/load?job_id=monday&engine=local", content=body).json()

    assert first["commit"]["id"] == again["commit"]["id"]
    assert len(graph.query(PEOPLE).rows) == 3


def test_files_of_a_job_have_the_same_place_and_time_each_time(tmp_path: Path) -> None:
    seen = []
    for text in ("a", "a", "b"):
        scratch = Scratch(tmp_path, Runtime())
        folder = scratch.new_folder()
        (folder / "body.jsonl").write_text(text)
        with scratch.claim_name(folder, "people/monday") as named:
            file = named / "body.jsonl"
            seen.append((file, file.stat().st_mtime))
            other = Scratch(tmp_path, Runtime())  # as of another server
            with pytest.raises(AlreadyExists), other.claim_name(other.new_folder(), "people/monday"):
                pass
            other.close()
        assert (folder / "body.jsonl").exists()

    assert seen[0] == seen[1]
    assert seen[2][0] == seen[0][0]
    assert seen[2][1] != seen[0][1]


def test_a_job_that_fails_has_the_error_that_the_command_has(http: httpx.Client) -> None:
    body = ndjson([{"type": "Person", "data": {"slug": "cy", "age": 999}}])
    accepted = http.post("/load", content=body, headers={"Prefer": "respond-async"}).json()
    job = http.get(f"/jobs/{accepted['id']}", headers={"Prefer": "wait=20"}).json()
    waited = http.post("/load", content=body, headers={"Prefer": "respond-async, wait=20"})

    assert job["state"] == "failed"
    assert job["error"]["code"] == "constraint_violation"
    assert waited.status_code == 422
    assert waited.json()["details"] == job["error"]["details"]


def test_a_job_is_cancelled_before_it_commits(server: Served, http: httpx.Client, graph: Graph) -> None:
    """Two jobs keep all places; the third is cancelled while it waits, a bulk load while it stages."""
    before = graph.snapshot().commit_id
    hold = threading.Event()
    jobs = server.service.jobs
    for _ in range(2):
        jobs.submit(jobs.new("hold", "people", None), lambda _: {"held": hold.wait(30)})
    body = ndjson([{"type": "Person", "data": {"slug": f"p{number}"}} for number in range(100)])
    waiting = http.post("/load?job_id=big", content=body, headers={"Prefer": "respond-async"}).json()

    assert waiting["state"] == "waiting"
    assert http.delete(f"/jobs/{waiting['id']}").status_code == 202
    job = http.get(f"/jobs/{waiting['id']}", headers={"Prefer": "wait=20"}).json()

    hold.set()
    assert (job["state"], job["result"]) == ("cancelled", None)
    assert graph.snapshot().commit_id == before


def test_a_running_job_ends_at_its_next_step(server: Served) -> None:
    jobs = server.service.jobs
    started, states = threading.Event(), []

    def work(job: Any) -> dict[str, Any]:
        job.progress.stage("counting", 1000)
        started.set()
        for _ in range(1000):
            time.sleep(0.01)
            job.progress.done(rows=10)
            states.append(job.progress.state)
        return {}

    job = jobs.submit(jobs.new("count", "people", None), work)
    assert started.wait(5)
    with server.client() as client:
        time.sleep(0.05)
        assert client.get(f"/graphs/people/jobs/{job.id}").json()["progress"]["stage"] == "counting"
        client.delete(f"/graphs/people/jobs/{job.id}")

    assert job.ended.wait(5)
    assert job.state == "cancelled"
    assert 0 < len(states) < 1000


def test_too_many_jobs_are_refused_with_429(graph: Graph, store: Path) -> None:
    hold = threading.Event()
    limits = Limits(jobs_running=1, jobs_waiting=1)
    with served({"people": store}, ServerSettings(limits=limits, grace_s=1.0)) as server, server.client() as client:
        jobs = server.service.jobs
        for _ in range(2):
            jobs.submit(jobs.new("hold", "people", None), lambda _: {"held": hold.wait(30)})
        answer = client.post("/graphs/people/verify", json={})
        hold.set()

    assert (answer.status_code, answer.json()["code"]) == (429, "too_many_requests")
    assert answer.headers["Retry-After"]


def test_old_jobs_are_forgotten_by_their_number_and_by_what_their_results_take(graph: Graph, store: Path) -> None:
    limits = Limits(jobs_kept=3, result_bytes=1000)
    with served({"people": store}, ServerSettings(limits=limits, grace_s=1.0)) as server:
        jobs = server.service.jobs

        def done(size: int) -> None:
            assert jobs.submit(jobs.new("x", "people", None), lambda _: {"x": "y" * size}).ended.wait(5)

        for _ in range(5):
            done(1)
        assert len(jobs.of_graph("people")) == 3
        done(5000)
        assert [job.size > 5000 for job in jobs.of_graph("people")] == [True]


def test_writes_that_meet_are_each_a_commit_of_their_own(server: Served, graph: Graph) -> None:
    """Group commit and caches are the graph's: all requests of a server share them."""

    def write(number: int) -> str:
        with server.client() as client:
            made = client.post("/graphs/people/mutate", json={"query": ADD, "params": {"slug": f"w{number}"}})
            return str(made.json()["commit"]["id"])

    with ThreadPoolExecutor(16) as pool:
        ids = list(pool.map(write, range(48)))

    assert len(set(ids)) == 48
    assert {commit.id for commit in graph.commits(limit=None)} >= set(ids)
    assert len(graph.query(PEOPLE).rows) == 50


def test_every_graph_is_maintained_behind_its_writers_until_the_server_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNIGRAPH_TAIL_MANIFESTS", "4")
    graphs = {name: people_graph(tmp_path / name) for name in ("one", "two")}
    with served({name: tmp_path / name for name in graphs}) as server, server.client() as client:
        for name in graphs:
            for number in range(6):
                body = {"query": ADD, "params": {"slug": f"p{number}"}}
                assert client.post(f"/graphs/{name}/mutate", json=body).status_code == 200
        maintained = [hosted.maintenance for _, hosted in server.service.hosted.all_open()]
        assert len(maintained) == 2
        for maintenance in maintained:
            assert maintenance.settle(20)

    for name, graph in graphs.items():
        assert "fold" in {commit.kind for commit in graph.commits(maintenance=True)}, name
        assert len(graph.query(PEOPLE).rows) == 8
    assert all(maintenance.settle(0.0) and maintenance._closing.is_set() for maintenance in maintained)
