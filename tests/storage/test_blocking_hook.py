"""Whatever waits for the store says so first, so that whoever keeps others waiting can let them go."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from omnigraph.caches import SingleFlightCache
from omnigraph.storage.location import Location, parse_location
from omnigraph.storage.objects.object_store import ObjectStore, content_etag, open_store
from omnigraph.storage.table.overlay import Overlay
from omnigraph.storage.table.tables import Tables, TableVersion
from omnigraph.threads import gather, run_blocking_hook, with_blocking_hook
from support.arrow import values_of


class Watched:
    """A backend that knows whether it was announced that it would be asked."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.announced = False
        self.asked: list[bool] = []

    def announce(self) -> None:
        self.announced = True

    def __getattr__(self, verb: str) -> Any:
        def request(*args: Any, **options: Any) -> Any:
            self.asked.append(self.announced)
            return getattr(self._inner, verb)(*args, **options)

        return request


VERBS: dict[str, Callable[[ObjectStore], object]] = {
    "get": lambda store: store.get("key"),
    "get a range": lambda store: store.get_range("key", 0, 1),
    "create": lambda store: store.create("other", b""),
    "put": lambda store: store.put("other", b""),
    "replace": lambda store: store.replace("key", b"new", content_etag(b"content")),
    "head": lambda store: store.head("key"),
    "list": lambda store: list(store.list("")),
    "delete": lambda store: store.delete("key"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_request_is_announced_before_it_is_made(tmp_path: Path, verb: str) -> None:
    store = open_store(parse_location(tmp_path, {"fsync": "false"}))
    store.put("key", b"content")
    backend = Watched(store._backend)
    store._backend = backend

    with_blocking_hook(backend.announce, VERBS[verb])(store)

    assert backend.asked == [True]


def people(*ids: str) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.string()), "name": pa.array([f"{i}'s" for i in ids], pa.string())})


READS: dict[str, Callable[[Tables, TableVersion], object]] = {
    "exists": lambda tables, at: tables.exists(at, ["ada", "nobody"]),
    "lookup": lambda tables, at: tables.lookup(at, ["ada"]),
    "having": lambda tables, at: tables.find_rows(at, ["id"], {"name": ["ada's"]}),
    "matching": lambda tables, at: tables.present_values(at, "name", ["ada's"]),
    "scan": lambda tables, at: tables.scan(at),
    "scan with rows on top": lambda tables, at: tables.scan(at, overlay=Overlay.of(people("ada", "cy"))),
    "append": lambda tables, at: tables.append(at, people("cy")),
}


@pytest.mark.parametrize("cold", [True, False], ids=["cold", "open"])
@pytest.mark.parametrize("read", READS)
def test_what_lance_asks_for_is_announced_before(tmp_path: Path, read: str, cold: bool) -> None:
    at = Tables(Location(str(tmp_path), fsync=False)).create("t", people("ada", "bob")).at
    tables = Tables(Location(str(tmp_path), fsync=False))
    if not cold:
        tables.open(at)
    counter, announced = tables._handles.counter, list[int]()
    before = counter.read().requests

    with_blocking_hook(lambda: announced.append(counter.read().requests), READS[read])(tables, at)

    assert announced[0] == before
    assert counter.read().requests > before, "it asked for something"


@pytest.mark.parametrize("read", ["exists", "lookup", "having"])
def test_what_is_remembered_is_not_asked_for_and_nothing_is_announced(tmp_path: Path, read: str) -> None:
    tables = Tables(Location(str(tmp_path), fsync=False))
    at = tables.create("t", people("ada", "bob")).at
    READS[read](tables, at)
    announced: list[bool] = []

    with_blocking_hook(lambda: announced.append(True), READS[read])(tables, at)

    assert announced == []


PARTS: dict[str, Callable[[Tables, TableVersion], object]] = {
    "the ids": lambda tables, at: tables.exists(at, ["cy", "dee"]),
    "the rows": lambda tables, at: tables.lookup(at, ["cy"], ["id"]).num_rows,
    "the values": lambda tables, at: tables.find_rows(at, ["id", "name"], {"name": ["cy's"]}).num_rows,
    "all at once": lambda tables, at: tables.find_rows(at, ["id"], {"id": ["cy"]}, {"name": ["cy's"]}).num_rows,
}


@pytest.mark.parametrize("part", PARTS)
def test_of_what_was_asked_together_and_nobody_has_no_part_is_asked_again(tmp_path: Path, part: str) -> None:
    """A write that is judged again asks for less than it did when it was planned."""
    tables = Tables(Location(str(tmp_path), fsync=False))
    at = tables.create("t", people("ada", "bob")).at
    tables.find_rows(at, ["id", "name"], {"id": ["cy", "dee"]}, {"name": ["cy's"]})
    announced: list[bool] = []

    assert not with_blocking_hook(lambda: announced.append(True), PARTS[part])(tables, at)

    assert announced == []


def test_of_what_was_asked_together_each_part_is_answered_as_if_it_were_asked_alone(tmp_path: Path) -> None:
    tables = Tables(Location(str(tmp_path), fsync=False))
    at = tables.create("t", people("ada", "bob", "cy")).at
    found = tables.find_rows(at, ["id", "name"], {"id": ["ada", "nobody"]}, {"name": ["bob's", "nobody's"]})

    assert sorted(values_of(found["id"])) == ["ada", "bob"]
    assert tables.exists(at, ["ada", "bob", "cy", "nobody"]) == {"ada", "bob", "cy"}
    assert tables.find_rows(at, ["id"], {"name": ["bob's", "nobody's"]})["id"].to_pylist() == ["bob"]
    assert tables.find_rows(at, ["id"], {"name": ["cy's"]}, {"id": ["nobody"]})["id"].to_pylist() == ["cy"]


def test_waiting_for_what_another_thread_makes_is_announced() -> None:
    kept, making, made, announced = (
        SingleFlightCache[str, int](1),
        threading.Event(),
        threading.Event(),
        threading.Event(),
    )

    def make() -> int:
        making.set()
        assert made.wait(10)
        return 1

    first = threading.Thread(target=kept.get_or_create, args=("key", make))
    first.start()
    assert making.wait(10)
    second = threading.Thread(target=with_blocking_hook(announced.set, kept.get_or_create), args=("key", lambda: 2))
    second.start()
    assert announced.wait(10)
    made.set()
    for thread in (first, second):
        thread.join(10)

    announced.clear()
    assert with_blocking_hook(announced.set, kept.get_or_create)("key", lambda: 2) == 1
    assert not announced.is_set(), "it was there"


def test_work_that_is_done_side_by_side_announces_as_well() -> None:
    announced: list[int] = []

    with_blocking_hook(lambda: announced.append(threading.get_ident()), gather)([run_blocking_hook, run_blocking_hook])

    assert len(announced) == 2


def test_nothing_is_announced_for_work_that_comes_after() -> None:
    announced: list[bool] = []

    def failing() -> None:
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        with_blocking_hook(lambda: announced.append(True), failing)()
    run_blocking_hook()

    assert announced == []
