"""Writes that share a manifest: a group commit, made on purpose."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from omnigraph.graph.graph import Graph
from omnigraph.manifest.model.manifest import Manifest

PATIENCE_S = 5.0
Write = Callable[[], Any]


def together(graph: Graph, first: Write, *others: Write) -> list[str]:
    """The commits of writes that meet: while the first is being put the others wait in line, in this order."""
    repository = graph.repository
    create = repository.manifests.create
    put, lined_up = threading.Event(), threading.Event()
    landed: list[Any] = [None] * (1 + len(others))

    def slow(manifest: Manifest) -> Any:
        repository.manifests.create = create  # type: ignore[method-assign]
        put.set()
        assert lined_up.wait(PATIENCE_S)
        return create(manifest)

    def run(number: int, write: Write) -> None:
        landed[number] = write()

    def waiting() -> int:
        return len(repository.publisher._queue._waiting.get(repository.stamp.main_id, ()))

    repository.manifests.create = slow  # type: ignore[method-assign]
    threads = [threading.Thread(target=run, args=each, daemon=True) for each in enumerate((first, *others))]
    threads[0].start()
    assert put.wait(PATIENCE_S)
    for number, thread in enumerate(threads[1:], start=1):
        thread.start()
        until = time.monotonic() + PATIENCE_S
        while waiting() < number:
            assert time.monotonic() < until, "the writes did not line up"
            time.sleep(0.001)
    lined_up.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    return [commit.id for commit in landed]
