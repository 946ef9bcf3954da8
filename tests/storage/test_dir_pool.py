"""Directories that stay open, with files at hand for the objects to come."""

import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from omnigraph.storage.location import PREALLOCATION_BLOCK as BLOCK
from omnigraph.storage.objects.local import DIRS_MAX, SPARES_MAX, SPARES_MIN, DirPool, LocalBackend, OpenDirectory
from omnigraph.storage.objects.object_store import PutOutcome

OBJECTS = 4 * SPARES_MAX


@pytest.fixture
def backend(tmp_path: Path) -> LocalBackend:
    backend = LocalBackend(tmp_path, fsync=False)
    for number in range(3):
        backend.create(f"folder/{number}", b"before")
    return backend


def eventually(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + 10
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.001)
    return True


def folder_of(backend: LocalBackend) -> OpenDirectory:
    ((_, folder),) = backend._dirs._open.items()
    return folder


def open_files(root: Path) -> int:
    """How many files and directories of a root are open: other threads of the process open and close theirs."""
    return sum(behind(int(fd)).is_relative_to(root) for fd in os.listdir("/proc/self/fd"))


def behind(fd: int) -> Path:
    try:
        return Path(os.readlink(f"/proc/self/fd/{fd}"))
    except FileNotFoundError:  # closed meanwhile
        return Path()


def test_behind_the_second_object_files_are_made_for_those_to_come(backend: LocalBackend) -> None:
    assert eventually(lambda: len(folder_of(backend)._spares) >= SPARES_MAX - 1)


def test_one_object_alone_makes_no_files_for_others(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path, fsync=False)
    backend.create("folder/only", b"content")

    assert folder_of(backend)._spares == []


def test_files_without_a_name_are_seen_by_nobody(backend: LocalBackend, tmp_path: Path) -> None:
    assert eventually(lambda: len(folder_of(backend)._spares) >= SPARES_MIN)

    (page,) = backend.pages("folder", repeat_pages=False)
    assert [listed.key for listed in page] == ["folder/0", "folder/1", "folder/2"]
    assert sorted(os.listdir(tmp_path / "folder")) == ["0", "1", "2"]


def test_each_object_has_its_own_content_in_a_pooled_file(backend: LocalBackend) -> None:
    for number in range(OBJECTS):
        backend.create(f"folder/own-{number}", f"content {number}".encode())

    found = [backend.get(f"folder/own-{number}") for number in range(OBJECTS)]

    assert [stored.data for stored in found if stored] == [f"content {number}".encode() for number in range(OBJECTS)]


def test_a_name_that_is_taken_stays_as_it_is(backend: LocalBackend) -> None:
    assert backend.create("folder/0", b"another").outcome is PutOutcome.EXISTS
    assert backend.get("folder/0").data == b"before"  # type: ignore[union-attr]


@pytest.mark.parametrize("way", ["removed", "moved away"])
def test_a_directory_that_is_not_the_same_any_more_is_made_again(
    backend: LocalBackend, tmp_path: Path, way: str
) -> None:
    if way == "removed":
        for number in range(3):
            (tmp_path / "folder" / str(number)).unlink()
        (tmp_path / "folder").rmdir()
    else:
        (tmp_path / "folder").rename(tmp_path / "elsewhere")
        (tmp_path / "folder").mkdir()

    backend.create("folder/new", b"content")

    assert (tmp_path / "folder" / "new").read_bytes() == b"content"
    assert not (tmp_path / "elsewhere" / "new").exists()


FORKING = """
import os, sys, time
from pathlib import Path
from omnigraph.storage.objects.local import LocalBackend

backend, objects = LocalBackend(Path(sys.argv[1]), fsync=False), int(sys.argv[2])
for number in range(3):
    backend.create(f"folder/{number}", b"before")
((_, folder),) = backend._dirs._open.items()
while not folder._spares:
    time.sleep(0.001)
child = os.fork()
who = "parent" if child else "child"
for number in range(objects):
    backend.create(f"folder/{who}-{number}", f"{who} {number}".encode())
if not child:
    os._exit(0)
os.waitpid(child, 0)
"""


def test_a_forked_child_names_no_file_of_its_parent(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", FORKING, str(tmp_path), str(OBJECTS)], check=True, timeout=60)

    for who in ("child", "parent"):
        for number in range(OBJECTS):
            assert (tmp_path / "folder" / f"{who}-{number}").read_bytes() == f"{who} {number}".encode()


def test_directories_are_closed_when_others_come(tmp_path: Path) -> None:
    folders = DirPool()
    for number in range(3 * DIRS_MAX):
        (tmp_path / str(number)).mkdir()
        folders.open(str(tmp_path / str(number)))
    gc.collect()

    assert open_files(tmp_path) == DIRS_MAX


def test_a_directory_that_is_dropped_closes_its_files(tmp_path: Path) -> None:
    folder = OpenDirectory(str(tmp_path))
    folder.refill()
    assert open_files(tmp_path) == 1 + SPARES_MAX
    del folder
    gc.collect()

    assert open_files(tmp_path) == 0


# Files that are laid out ahead


@pytest.fixture
def flushing(tmp_path: Path) -> LocalBackend:
    """With files at hand that are a block long."""
    backend = LocalBackend(tmp_path, fsync=True)
    for number in range(SPARES_MAX + 3):
        backend.create(f"folder/{number}", b"x" * BLOCK)
        assert number < 1 or eventually(lambda: len(folder_of(backend)._spares) >= SPARES_MIN)
    assert {length for _, length in folder_of(backend)._spares} == {BLOCK}
    return backend


@pytest.mark.parametrize("length", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
def test_an_object_of_any_length_is_all_of_its_content_and_nothing_else(flushing: LocalBackend, length: int) -> None:
    content = bytes(number % 251 for number in range(length))

    flushing.create("folder/own", content)

    found = flushing.get("folder/own")
    assert found is not None
    assert found.data == content


def test_an_object_as_long_as_those_before_leaves_the_inode_of_its_file_alone(
    flushing: LocalBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[tuple[int, int]] = []
    write = os.pwrite

    def watched(fd: int, data: bytes, offset: int) -> int:
        before = os.fstat(fd).st_size
        written = write(fd, data, offset)
        if behind(fd).is_relative_to(tmp_path):
            lengths.append((before, os.fstat(fd).st_size))
        return written

    monkeypatch.setattr(os, "pwrite", watched)
    flushing.create("folder/own", b"y" * BLOCK)

    assert lengths == [(BLOCK, BLOCK)]


def test_where_nothing_is_flushed_files_are_empty(backend: LocalBackend) -> None:
    for number in range(3):
        backend.create(f"folder/block-{number}", b"x" * BLOCK)
    assert eventually(lambda: len(folder_of(backend)._spares) >= SPARES_MIN)

    assert {length for _, length in folder_of(backend)._spares} == {0}
