"""Jobs on Spark: the first starts a session, the next ones find it, and the server takes it with it when it ends."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import httpx
import pytest

from omnigraph.graph.graph import Graph
from support.server import PEOPLE, ServerProcess, ndjson

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


def javas(pid: int) -> list[int]:
    """The processes of Java below one."""
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    for task in Path(f"/proc/{pid}/task").iterdir():
        children += [int(child) for child in (task / "children").read_text().split()]
    return sorted({child for child in children if "java" in Path(f"/proc/{child}/comm").read_text()})


@pytest.mark.timeout(300)
def test_loads_on_spark_share_one_warm_session(graph: Graph, store: Path) -> None:
    with ServerProcess("--store", str(store)) as server, server.client() as client:
        client.timeout = httpx.Timeout(240)

        def load(name: str) -> str:
            body = ndjson([{"type": "Person", "data": {"slug": f"{name}{number}"}} for number in range(20)])
            path = "/graphs/default/load?engine=spark"
            accepted = client.post(path, content=body, headers={"Prefer": "respond-async"})
            assert accepted.status_code == 202
            while True:
                job = client.get(accepted.headers["Location"], headers={"Prefer": "wait=20"}).json()
                if job["ended_at"] is not None:
                    return str(job["state"])

        assert javas(server.process.pid) == []
        assert load("a") == "done"
        warm = javas(server.process.pid)
        assert load("b") == "done"

        assert len(warm) == 1
        assert javas(server.process.pid) == warm
        assert _cancelled_while_it_runs(client)
        server.signal(signal.SIGTERM)
        assert server.wait(60) == 0
        assert not Path(f"/proc/{warm[0]}").exists()

    assert len(graph.query(PEOPLE).rows) == 42


def _cancelled_while_it_runs(client: httpx.Client) -> bool:
    """A job on Spark ends soon after it was cancelled, wherever it stands, and has committed nothing."""
    body = ndjson([{"type": "Person", "data": {"slug": f"c{number}"}} for number in range(50_000)])
    path, prefer = "/graphs/default/load?engine=spark", {"Prefer": "respond-async"}
    where = client.post(path, content=body, headers=prefer).headers["Location"]
    while client.get(where).json()["state"] == "waiting":
        continue
    client.delete(where)
    return bool(client.get(where, headers={"Prefer": "wait=20"}).json()["state"] == "cancelled")


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_session_whose_java_died_is_started_again_for_the_next_job(graph: Graph, store: Path) -> None:
    with ServerProcess("--store", str(store)) as server, server.client() as client:
        client.timeout = httpx.Timeout(240)
        for name in ("a", "b"):
            body = ndjson([{"type": "Person", "data": {"slug": name}}])
            answer = client.post("/graphs/default/load?engine=spark", content=body)
            assert answer.status_code == 200, answer.text
            (java,) = javas(server.process.pid)
            os.kill(java, signal.SIGKILL)
            time.sleep(0.5)

    assert [row["slug"] for row in graph.query(PEOPLE).rows] == ["a", "ada", "b", "bob"]
