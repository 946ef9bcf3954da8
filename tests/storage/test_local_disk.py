"""A local disk as a store: what was acknowledged survives a power cut, and nothing is seen half-written.

No test can cut the power. What can be seen is the order of the calls that promise durability: a file is synced
before it gets its name, a directory after it got a new name in it, and all that before the caller hears of it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from omnigraph.errors import AccessDenied, BadRequest, OutcomeUnknown, StorageFull, Unavailable
from omnigraph.graph import graph as omnigraph
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import Append, Delete, Overwrite, TableAction, Upsert
from omnigraph.manifest.commit.publish import PublishPolicy
from omnigraph.manifest.settings import Settings
from omnigraph.storage.location import parse_location
from omnigraph.storage.objects import local
from omnigraph.storage.objects.local import LocalBackend
from omnigraph.storage.objects.object_store import (
    ObjectStore,
    PutOutcome,
    ReplaceOutcome,
    RetryPolicy,
    content_etag,
    open_store,
)
from support.catalogs import COMPANY, KNOWS, PERSON, company_rows, ids_of, knows_rows, people, person_rows


class Event(NamedTuple):
    verb: str  # "sync", "mkdir", and for a new name "from" the temporary file, then "link"
    path: Path


@dataclass
class Trace:
    """What was asked of the operating system below a root, in order: other graphs of the process may be at work."""

    root: Path
    events: list[Event] = field(default_factory=list)

    def add(self, *events: tuple[str, str | os.PathLike[str]]) -> None:
        """What belongs together stays together, whoever adds something meanwhile."""
        told = [Event(verb, Path(path)) for verb, path in events]
        self.events += [event for event in told if event.path.is_relative_to(self.root)]

    @property
    def syncs(self) -> list[Path]:
        return [event.path for event in self.events if event.verb == "sync"]

    def linked(self, path: Path) -> int:
        """When the file got its name."""
        return self.events.index(Event("link", path))

    def synced_between(self, path: Path, after: int, before: int | None = None) -> bool:
        return Event("sync", path) in self.events[after + 1 : before]


def behind(fd: int) -> Path:
    """What is open: for a file without a name, its directory and a name that tells so."""
    return Path(os.readlink(f"/proc/self/fd/{fd}"))


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trace:
    trace = Trace(tmp_path)
    fsync, fdatasync, link, replace, mkdir = os.fsync, os.fdatasync, os.link, os.replace, os.mkdir

    def traced_fsync(fd: int) -> None:
        fsync(fd)
        trace.add(("sync", behind(fd)))

    def traced_fdatasync(fd: int) -> None:
        fdatasync(fd)
        trace.add(("sync", behind(fd)))

    def traced_link(source: str | Path, target: str | Path, *, dst_dir_fd: int | None = None, **how: Any) -> None:
        unnamed = str(source).isdigit()  # a descriptor, in the directory that shows them
        shown = behind(int(str(source))) if unnamed else source
        link(source, target, dst_dir_fd=dst_dir_fd, **how)
        folder = Path() if dst_dir_fd is None else behind(dst_dir_fd)
        trace.add(("from", shown), ("link", folder / target))

    def traced_replace(source: Path, target: Path) -> None:
        replace(source, target)
        trace.add(("from", source), ("link", target))

    def traced_mkdir(path: Path, *args: int) -> None:
        mkdir(path, *args)
        trace.add(("mkdir", path))

    monkeypatch.setattr(os, "fsync", traced_fsync)
    monkeypatch.setattr(os, "fdatasync", traced_fdatasync)
    monkeypatch.setattr(os, "link", traced_link)
    monkeypatch.setattr(os, "replace", traced_replace)
    monkeypatch.setattr(os, "mkdir", traced_mkdir)
    return trace


def without_unnamed_files(backend: LocalBackend) -> LocalBackend:
    """As on a file system that has none."""
    backend._unnamed = False
    return backend


VERBS: dict[str, Callable[[LocalBackend], object]] = {
    "create": lambda backend: backend.create("deep/folder/key", b"content"),
    "create by a temporary name": lambda backend: without_unnamed_files(backend).create("deep/folder/key", b"content"),
    "put": lambda backend: backend.put("deep/folder/key", b"content", True),
}


def test_what_replaces_an_object_is_synced_before_it_has_its_name_and_the_folder_after(trace: Trace) -> None:
    backend = LocalBackend(trace.root, fsync=True)
    backend.create("deep/folder/key", b"old")
    trace.events.clear()

    assert backend.replace("deep/folder/key", b"new", content_etag(b"old"))

    named = trace.linked(trace.root / "deep/folder/key")
    temporary = trace.events[named - 1].path
    assert trace.synced_between(temporary, after=-1, before=named)
    assert trace.synced_between(trace.root / "deep/folder", after=named)


@pytest.mark.parametrize("verb", VERBS)
def test_an_object_is_synced_before_it_has_its_name_and_the_folder_after(trace: Trace, verb: str) -> None:
    VERBS[verb](LocalBackend(trace.root, fsync=True))

    named = trace.linked(trace.root / "deep/folder/key")
    temporary = trace.events[named - 1].path
    assert trace.synced_between(temporary, after=-1, before=named)
    assert trace.synced_between(trace.root / "deep/folder", after=named)


@pytest.mark.parametrize("verb", VERBS)
def test_a_new_folder_is_synced_into_its_parent_before_anything_is_named_in_it(trace: Trace, verb: str) -> None:
    VERBS[verb](LocalBackend(trace.root / "new/graph", fsync=True))

    root = trace.root / "new/graph"
    named = trace.linked(root / "deep/folder/key")
    for folder in (trace.root / "new", root, root / "deep", root / "deep/folder"):
        made = trace.events.index(Event("mkdir", folder))
        assert trace.synced_between(folder.parent, after=made, before=named), folder


def test_a_folder_that_another_writer_made_and_perhaps_not_synced_is_synced_as_well(trace: Trace) -> None:
    os.makedirs(trace.root / "deep/folder")
    backend = LocalBackend(trace.root, fsync=True)

    backend.create("deep/folder/key", b"content")

    named = trace.linked(trace.root / "deep/folder/key")
    assert trace.synced_between(trace.root, after=-1, before=named)
    assert trace.synced_between(trace.root / "deep", after=-1, before=named)


def test_folders_that_are_known_to_be_durable_are_not_synced_again(trace: Trace) -> None:
    backend = LocalBackend(trace.root, fsync=True)
    backend.create("deep/folder/1", b"content")
    trace.events.clear()

    backend.create("deep/folder/2", b"content")

    assert len(trace.syncs) == 2  # the file, and the folder that it has its name in


def test_a_put_that_need_not_last_syncs_nothing(trace: Trace) -> None:
    backend = LocalBackend(trace.root, fsync=True)
    backend.create("folder/key", b"content")
    trace.events.clear()

    backend.put("folder/_hint", b"32", False)

    assert trace.syncs == []


CHANGES: dict[str, list[TableAction]] = {
    "first rows of a type": [Append(COMPANY, company_rows("acme"))],
    "append": [Append(PERSON, person_rows("carl"))],
    "upsert of a row that is there and one that is not": [Upsert(PERSON, person_rows("ada", "carl", age=7))],
    "delete": [Delete(PERSON, ("ada",))],
    "delete of every row": [Delete(PERSON, ("ada", "bob", "eve"))],
    "overwrite": [Overwrite(PERSON, person_rows("zoe"))],
    "three tables": [
        Append(PERSON, person_rows("carl")),
        Append(COMPANY, company_rows("acme")),
        Upsert(KNOWS, knows_rows(("ada", "eve"))),
    ],
    "two actions on one table": [Append(PERSON, person_rows("carl")), Delete(PERSON, ("ada",))],
}


@pytest.mark.parametrize("change", CHANGES)
def test_everything_that_a_commit_refers_to_is_synced_before_its_manifest_has_its_name(
    trace: Trace, change: str
) -> None:
    root = trace.root / "graph"
    graph = some_graph(root, Settings(inline_rows=0))
    before = paths_below(root)
    trace.events.clear()

    commit = graph.write(CHANGES[change])

    assert commit is not None
    manifest = manifest_path(graph, commit.manifest_version)
    named = trace.linked(manifest)
    new = paths_below(root) - before - {manifest}
    assert new, "the commit staged something"
    for path in sorted(new):
        if path.is_file():
            assert trace.synced_between(path, after=-1, before=named), f"{path} is not synced"
            synced = trace.events.index(Event("sync", path))
            assert trace.synced_between(path.parent, synced, named), f"{path.parent} is not synced after {path.name}"
        else:
            assert trace.synced_between(path.parent, after=-1, before=named), f"{path.parent} is not synced"
    assert trace.synced_between(manifest.parent, after=named), "the manifest's own name is not synced"


def test_rows_that_ride_in_a_manifest_are_synced_with_it(trace: Trace) -> None:
    graph = some_graph(trace.root / "graph")
    before = paths_below(trace.root)
    trace.events.clear()

    commit = graph.write([Append(PERSON, person_rows("carl"))])

    assert commit is not None
    manifest = manifest_path(graph, commit.manifest_version)
    named = trace.linked(manifest)
    assert paths_below(trace.root) - before == {manifest}
    assert trace.synced_between(trace.events[named - 1].path, after=-1, before=named)
    assert trace.synced_between(manifest.parent, after=named)


def test_a_rebased_commit_syncs_what_it_carried_to_the_new_base(trace: Trace) -> None:
    root = trace.root / "graph"
    graph, other = some_graph(root, Settings(inline_rows=0)), omnigraph.open(root, settings=Settings(inline_rows=0))
    seen_by_the_loser = graph.repository.open_txn()
    other.write([Append(PERSON, person_rows("carl"))])
    before = paths_below(root)
    trace.events.clear()

    graph.repository.open_txn = lambda *_, **__: seen_by_the_loser  # type: ignore[method-assign]
    commit = graph.write([Append(PERSON, person_rows("dora"), fresh_ids=True)])

    assert commit is not None
    manifest = manifest_path(graph, commit.manifest_version)
    named = trace.linked(manifest)
    assert ids_of(other.snapshot().to_arrow(PERSON)) == ["ada", "bob", "carl", "dora", "eve"]
    for path in paths_below(root) - before - {manifest}:
        assert trace.synced_between(path, after=-1, before=named), f"{path} is not synced"


def test_everything_of_a_new_graph_is_synced_before_its_stamp_has_its_name(trace: Trace) -> None:
    root = trace.root / "deep/graph"
    omnigraph.init(root, people())

    stamp = root / "_omnigraph.json"
    named = trace.linked(stamp)
    for path in paths_below(root) - {stamp}:
        assert trace.synced_between(path.parent, after=-1, before=named), path
    assert trace.synced_between(root.parent, after=-1, before=named)
    assert trace.synced_between(root, after=named)


@contextmanager
def fsync_turned_off_by(way: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    if way == "variable":
        monkeypatch.setenv("OMNIGRAPH_FSYNC", "0")
    yield {} if way == "variable" else {"fsync": "false"}


@pytest.mark.parametrize("way", ["option", "variable"])
def test_syncing_can_be_turned_off(trace: Trace, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    with fsync_turned_off_by(way, monkeypatch) as options:
        graph = omnigraph.init(trace.root / "graph", people(), options)
        graph.write([Append(PERSON, person_rows("ada")), Append(COMPANY, company_rows("acme"))])
        graph.write([Upsert(PERSON, person_rows("ada", age=3)), Delete(COMPANY, ("acme",))])
        graph.branches.create("b")
        graph.branches.delete("b")
        omnigraph.open(trace.root / "graph", options).write([Overwrite(PERSON, person_rows("bob"))])

    assert trace.syncs == []
    assert ids_of(graph.snapshot().to_arrow(PERSON)) == ["bob"]


def test_what_a_crash_left_half_written_is_not_listed(tmp_path: Path) -> None:
    store = open_store(parse_location(tmp_path))
    store.put("folder/key", b"content")
    (tmp_path / "folder/.tmp-1234-abcdef").write_bytes(b"half of a mani")

    assert [entry.key for entry in store.list("folder")] == ["folder/key"]
    assert [entry.key for entry in store.list("")] == ["folder/key"]


def test_no_temporary_file_is_left_behind(tmp_path: Path) -> None:
    store = open_store(parse_location(tmp_path))
    store.create("folder/key", b"first")
    store.create("folder/key", b"second")
    store.put("folder/key", b"third")

    assert os.listdir(tmp_path / "folder") == ["key"]


def test_an_object_is_seen_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(parse_location(tmp_path))
    seen = []
    fsync = os.fsync

    def look(fd: int) -> None:
        fsync(fd)
        if behind(fd).is_relative_to(tmp_path):
            stored = store.get("folder/key")
            seen.append(None if stored is None else stored.data)

    monkeypatch.setattr(os, "fsync", look)
    store.create("folder/key", b"the whole of it")
    store.put("folder/key", b"the next")

    assert set(seen) == {None, b"the whole of it", b"the next"}


FAULTS = {
    "full": (28, StorageFull),
    "over quota": (122, StorageFull),
    "too large": (27, StorageFull),
    "denied": (13, AccessDenied),
    "read-only": (30, AccessDenied),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_write_that_the_disk_refuses_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    number, kind = FAULTS[fault]
    store = open_store(parse_location(tmp_path))
    store.put("folder/other", b"")

    write = os.pwrite

    def refuse(fd: int, data: bytes, offset: int) -> int:
        if not behind(fd).is_relative_to(tmp_path):
            return write(fd, data, offset)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(kind):
        store.create("folder/key", b"content")
    with pytest.raises(kind):
        store.put("folder/key", b"content")

    assert os.listdir(tmp_path / "folder") == ["other"]


AFTER_THE_NAME = [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.ENOENT]


class FailingSyncs:
    """Syncs of one folder fail for as long as the test says."""

    def __init__(self, folder: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fail = True
        fsync = os.fsync

        def maybe(fd: int) -> None:
            if self.fail and behind(fd) == folder:
                raise OSError(code, os.strerror(code))
            fsync(fd)

        monkeypatch.setattr(os, "fsync", maybe)


@pytest.mark.parametrize("unnamed", [True, False], ids=["file without a name", "temporary file"])
@pytest.mark.parametrize("code", AFTER_THE_NAME)
def test_a_sync_that_fails_after_the_object_has_its_name_leaves_the_outcome_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, unnamed: bool
) -> None:
    """The name may be there after a power cut, or not: neither "created" nor "nothing happened" is true."""
    backend = LocalBackend(tmp_path, fsync=True)
    backend._unnamed = backend._unnamed and unnamed
    store = ObjectStore(parse_location(tmp_path), backend, retry=RetryPolicy(2, 0.0, 0.0))
    store.put("folder/other", b"")
    syncs = FailingSyncs(tmp_path / "folder", code, monkeypatch)

    assert store.create("folder/key", b"content").outcome is PutOutcome.UNKNOWN
    assert store.replace("folder/other", b"new", content_etag(b"")) is ReplaceOutcome.UNKNOWN
    assert (tmp_path / "folder/key").read_bytes() == b"content"

    with pytest.raises(Unavailable):  # whoever wants to settle it by reading must not take it for landed yet
        store.get("folder/key")
    syncs.fail = False
    assert store.get("folder/key").data == b"content"  # type: ignore[union-attr]
    assert store.create("folder/key", b"again").outcome is PutOutcome.EXISTS


@pytest.mark.parametrize("code", AFTER_THE_NAME)
def test_a_commit_whose_directory_could_not_be_synced_is_neither_acknowledged_nor_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    graph = some_graph(tmp_path / "graph")
    graph.repository.publisher._policy = PublishPolicy(time_limit_s=0.0)
    graph.repository.store._retry = RetryPolicy(2, 0.0, 0.0)
    folder = manifest_path(graph, 1).parent
    syncs = FailingSyncs(folder, code, monkeypatch)

    with pytest.raises(OutcomeUnknown):
        graph.write([Append(PERSON, person_rows("zoe"))])

    syncs.fail = False
    assert "zoe" in graph.snapshot().to_arrow(PERSON)["id"].to_pylist()


def test_that_no_thread_can_be_started_does_not_make_a_failure_of_an_object_that_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(parse_location(tmp_path))

    def refuse() -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(local, "_preallocator", refuse)

    assert {store.create(f"folder/{number}", b"").outcome for number in range(5)} == {PutOutcome.CREATED}


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: write(fd, bytes(data[:3]), offset))
    store = open_store(parse_location(tmp_path))

    store.create("key", b"more than three bytes")

    assert store.get("key").data == b"more than three bytes"  # type: ignore[union-attr]


@pytest.mark.parametrize("below", ["", "deeper", "deeper/still"])
def test_a_root_that_is_a_file_is_refused_by_name(tmp_path: Path, below: str) -> None:
    file = tmp_path / "file"
    file.write_text("not a graph")

    with pytest.raises(BadRequest, match=f"{file} is a file"):
        open_store(parse_location(file / below)).create("folder/key", b"content")

    assert file.read_text() == "not a graph"


def test_a_name_that_the_file_system_can_not_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="too long"):
        open_store(parse_location(tmp_path)).create("k" * 300, b"content")


def some_graph(root: Path, settings: Settings | None = None) -> Graph:
    graph = omnigraph.init(root, people(), settings=settings)
    graph.write([Append(PERSON, person_rows("ada", "bob", "eve")), Append(KNOWS, knows_rows(("ada", "bob")))])
    return graph


def manifest_path(graph: Graph, manifest_version: int) -> Path:
    folder = graph.repository.location.path / "__manifest" / graph.repository.stamp.main_id
    return folder / f"{2**64 - 1 - manifest_version:020d}.json"


def paths_below(root: Path) -> set[Path]:
    return {Path(folder) / name for folder, folders, files in os.walk(root) for name in (*folders, *files)}


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EISDIR])
def test_where_there_are_no_files_without_a_name_a_temporary_one_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    opened, tried = os.open, []

    def refusing(path: str, flags: int, *args: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE and Path(path).is_relative_to(tmp_path):
            tried.append(path)
            raise OSError(code, "no such files here")
        return opened(path, flags, *args)

    monkeypatch.setattr(os, "open", refusing)
    backend = LocalBackend(tmp_path, fsync=True)

    assert backend.create("one", b"1").outcome is PutOutcome.CREATED
    assert backend.create("two", b"2").outcome is PutOutcome.CREATED
    assert backend.create("two", b"3").outcome is PutOutcome.EXISTS

    assert len(tried) == 1
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"one": b"1", "two": b"2"}
