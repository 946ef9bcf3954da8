"""Merges among writers that do not wait for them: nothing is lost, and no write is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import omnigraph
from support.merge import QUICK, Merging, make_merging

COMMITS = 8


def test_concurrent_merges_and_writes_are_all_committed(tmp_path: Path) -> None:
    graph = make_merging(tmp_path / "graph")
    graph.change(Person={"ada": {"age": 0}})
    sources = ("b", "c")
    for name in sources:
        graph.fork(name)

    def client() -> Merging:
        return Merging(omnigraph.open(graph.graph.uri, QUICK))

    def write() -> None:
        own = client()
        for number in range(COMMITS):
            own.change("main", Person={f"main-{number}": {}})

    def write_and_merge(source: str) -> None:
        own = client()
        for number in range(COMMITS):
            own.change(source, Person={f"{source}-{number}": {}}, Company={f"{source}-{number}": {}})
            own.merge(source)

    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(write), *(pool.submit(write_and_merge, source) for source in sources)]
        for one in running:
            one.result()

    names = [f"{branch}-{number}" for branch in ("main", *sources) for number in range(COMMITS)]
    assert graph.ids("Person") == sorted(["ada", *names])
    assert graph.ids("Company") == sorted(name for name in names if not name.startswith("main"))
    commits = graph.graph.commits(limit=None)
    assert sum(commit.kind == "merge" for commit in commits) == 2 * COMMITS
