"""Where files without a name get theirs: one open directory for all threads of a process."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from omnigraph.storage.objects import local
from omnigraph.storage.objects.local import DirPool, OpenDirectory


def test_threads_that_ask_for_the_descriptors_at_once_all_get_an_open_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever has got one would name its file by way of it, however late the others come."""
    both_are_there = threading.Barrier(2)

    def slow(path: str) -> OpenDirectory:
        try:
            both_are_there.wait(0.3)
        except threading.BrokenBarrierError:
            pass  # the other one waits for this
        return OpenDirectory(path)

    monkeypatch.setattr(local, "OpenDirectory", slow)
    kept = DirPool()

    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda _: kept.proc_fd, range(2)))

    for fd in found:
        assert os.path.samestat(os.fstat(fd), os.stat("/proc/self/fd"))
