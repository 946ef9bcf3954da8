"""The contract of the object store, the same on a local disk and on S3."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from omnigraph.errors import BadRequest, NotFound, ReadOnly
from omnigraph.storage import meter
from omnigraph.storage.location import Location, parse_location
from omnigraph.storage.objects.cloud import PAGE_ROWS
from omnigraph.storage.objects.object_store import ETag, ObjectStore, PutOutcome, ReplaceOutcome, open_store
from support.s3 import S3Location

AWKWARD_KEYS = (
    "folder/with space.json",
    "folder/agent%2F42/1.json",
    "folder/100%.json",
    "folder/a+b=c&d#e?f.json",
    "folder/ünïcode.json",
    "folder/_hint",
    "folder/..dots",
)
MANY = PAGE_ROWS + 50


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.s3)])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    if request.param == "local":
        return parse_location(tmp_path / "graph")
    s3: S3Location = request.getfixturevalue("s3")
    return parse_location(s3.uri, s3.options)


@pytest.fixture
def store(location: Location) -> ObjectStore:
    return open_store(location)


def names(listed: Iterator[object]) -> list[str]:
    return [entry.key for entry in listed]  # type: ignore[attr-defined]


def test_what_was_put_is_read_back(store: ObjectStore) -> None:
    store.put("a/b", b"content")

    stored = store.get("a/b")

    assert stored is not None
    assert stored.data == b"content"
    assert datetime.now(UTC) - stored.modified < timedelta(minutes=1)


def test_a_put_replaces(store: ObjectStore) -> None:
    store.put("a", b"old")
    store.put("a", b"new", durable=False)

    assert store.get("a").data == b"new"  # type: ignore[union-attr]


def test_an_empty_object_is_an_object(store: ObjectStore) -> None:
    assert store.create("empty", b"").outcome is PutOutcome.CREATED

    assert store.get("empty").data == b""  # type: ignore[union-attr]
    assert store.head("empty").size == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("key", ["nothing", "no/folder/either", "a/below a file"])
def test_what_is_not_there_is_none(store: ObjectStore, key: str) -> None:
    store.put("a", b"a file, where the last key wants a folder")

    assert store.get(key) is None
    assert store.head(key) is None
    assert names(store.list(key)) == []
    store.delete(key)


def test_a_folder_is_not_an_object(store: ObjectStore) -> None:
    store.put("folder/a", b"")

    assert store.get("folder") is None
    assert store.head("folder") is None


def test_head_tells_the_size_without_the_content(store: ObjectStore) -> None:
    store.put("a/b", b"12345")

    head = store.head("a/b")

    assert head is not None
    assert (head.key, head.size) == ("a/b", 5)


def test_create_takes_a_free_key_and_leaves_a_taken_one_alone(store: ObjectStore) -> None:
    assert store.create("a", b"first").outcome is PutOutcome.CREATED
    assert store.create("a", b"second").outcome is PutOutcome.EXISTS

    assert store.get("a").data == b"first"  # type: ignore[union-attr]


def test_create_sees_what_a_put_left(store: ObjectStore) -> None:
    store.put("a", b"put")

    assert store.create("a", b"created").outcome is PutOutcome.EXISTS


def test_a_key_is_free_again_after_its_object_was_deleted(store: ObjectStore) -> None:
    store.create("a", b"first")

    store.delete("a")

    assert store.get("a") is None
    assert store.create("a", b"second").outcome is PutOutcome.CREATED


def test_of_many_threads_that_create_one_key_exactly_one_does(store: ObjectStore) -> None:
    threads, rounds = 16, 10
    together = threading.Barrier(threads, timeout=20)

    def race(thread: int) -> list[PutOutcome]:
        answers = []
        for number in range(rounds):
            together.wait()
            answers.append(store.create(f"race/{number}", b"%d" % thread).outcome)
        return answers

    with ThreadPoolExecutor(threads) as pool:
        answers = list(pool.map(race, range(threads)))

    for number in range(rounds):
        of_round = [answers[thread][number] for thread in range(threads)]
        assert sorted(outcome.value for outcome in of_round) == ["created"] + ["exists"] * (threads - 1)
        assert store.get(f"race/{number}").data == b"%d" % of_round.index(PutOutcome.CREATED)  # type: ignore[union-attr]


def seen(store: ObjectStore, key: str) -> ETag:
    stored = store.get(key)
    assert stored is not None
    return stored.etag


def test_a_replace_takes_the_place_of_what_was_seen_and_of_nothing_else(store: ObjectStore) -> None:
    store.create("a", b"first")
    first = seen(store, "a")

    assert store.replace("a", b"second", first) is ReplaceOutcome.REPLACED
    assert store.replace("a", b"third", first) is ReplaceOutcome.CHANGED
    assert store.get("a").data == b"second"  # type: ignore[union-attr]


def test_a_replace_makes_no_object_where_none_is(store: ObjectStore) -> None:
    store.create("a", b"first")
    first = seen(store, "a")
    store.delete("a")

    assert store.replace("a", b"second", first) is ReplaceOutcome.CHANGED
    assert store.replace("no/folder/a", b"second", first) is ReplaceOutcome.CHANGED
    assert names(store.list("")) == []


def test_of_many_threads_that_replace_one_content_exactly_one_does(location: Location) -> None:
    threads, rounds = 8, 5
    stores = [open_store(location) for _ in range(threads)]
    stores[0].create("race", b"start")
    together = threading.Barrier(threads, timeout=20)

    def race(thread: int) -> list[ReplaceOutcome]:
        answers = []
        for number in range(rounds):
            tag = seen(stores[thread], "race")
            together.wait()
            answers.append(stores[thread].replace("race", b"%d by %d" % (number, thread), tag))
            together.wait()
        return answers

    with ThreadPoolExecutor(threads) as pool:
        answers = list(pool.map(race, range(threads)))

    for of_round in zip(*answers, strict=True):
        assert sorted(swap.value for swap in of_round) == ["changed"] * (threads - 1) + ["replaced"]


@pytest.mark.parametrize("key", AWKWARD_KEYS)
def test_a_key_is_taken_as_it_is(store: ObjectStore, key: str) -> None:
    assert store.create(key, b"here").outcome is PutOutcome.CREATED
    assert store.create(key, b"again").outcome is PutOutcome.EXISTS

    assert store.get(key).data == b"here"  # type: ignore[union-attr]
    assert store.head(key).key == key  # type: ignore[union-attr]
    assert names(store.list("folder")) == [key]

    store.delete(key)
    assert names(store.list("")) == []


def test_keys_that_decode_to_the_same_text_stay_apart(store: ObjectStore) -> None:
    store.put("a/b/1", b"a folder")
    store.put("a%2Fb/1", b"a quoted name")

    assert store.get("a/b/1").data == b"a folder"  # type: ignore[union-attr]
    assert store.get("a%2Fb/1").data == b"a quoted name"  # type: ignore[union-attr]
    assert names(store.list("a%2Fb")) == ["a%2Fb/1"]


def test_a_listing_is_of_a_folder_in_name_order_and_deep(store: ObjectStore) -> None:
    for key in ("f/2", "f/10", "f/1", "f/deep/3", "fool/1", "f", "e/1"):
        if key != "f" or not store.location.is_local:  # on a disk a name is a file or a folder, never both
            store.put(key, b"x" * 3)

    found = list(store.list("f"))

    assert [entry.key for entry in found] == ["f/1", "f/10", "f/2", "f/deep/3"]
    assert {entry.size for entry in found} == {3}


def test_a_listing_of_more_than_a_page_is_whole_and_stops_early_if_asked(store: ObjectStore) -> None:
    keys = [f"many/{number:05d}" for number in range(MANY)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda key: store.put(key, b"", durable=False), keys))

    with meter.operation("first") as first:
        newest = next(store.list("many"))
    with meter.operation("all") as everything:
        found = names(store.list("many"))

    assert newest.key == keys[0]
    assert found == keys
    assert first.cost.requests == 1
    assert everything.cost.requests == (1 if store.location.is_local else 2)


def test_a_page_that_is_exactly_full_is_followed_by_an_empty_one(location: Location) -> None:
    store = open_store(location)
    keys = [f"full/{number:05d}" for number in range(PAGE_ROWS)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda key: store.put(key, b"", durable=False), keys))

    assert names(store.list("full")) == keys


def test_every_request_is_counted_with_its_bytes(store: ObjectStore) -> None:
    with meter.operation("test") as operation:
        store.put("a", b"12345")
        store.create("b", b"123")
        store.get("a")
        store.get("nothing")
        store.head("a")
        list(store.list(""))
        store.delete("a")

    assert operation.cost == meter.Cost(requests=7, stages=7, bytes=5 + 3 + 5)


VERBS: dict[str, Callable[[ObjectStore], object]] = {
    "put": lambda store: store.put("a", b"changed"),
    "create": lambda store: store.create("b", b"new"),
    "replace": lambda store: store.replace("a", b"changed", seen(store, "a")),
    "delete": lambda store: store.delete("a"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_read_only_store_refuses_to_change_anything(location: Location, verb: str) -> None:
    open_store(location).put("a", b"as it was")
    store = open_store(location, read_only=True)

    with pytest.raises(ReadOnly):
        VERBS[verb](store)

    assert store.get("a").data == b"as it was"  # type: ignore[union-attr]
    assert names(store.list("")) == ["a"]


@pytest.mark.s3
def test_a_bucket_that_does_not_exist_is_an_error_not_an_absent_object(s3: S3Location) -> None:
    store = open_store(parse_location("s3://there-is-no-such-bucket/graph", s3.options))

    for verb in (lambda: store.get("a"), lambda: list(store.list("a")), lambda: store.create("a", b"")):
        with pytest.raises(NotFound, match="'there-is-no-such-bucket' does not exist"):
            verb()


@pytest.mark.s3
@pytest.mark.parametrize(("option", "named"), [("colour", "'colour'"), ("aws_colour", "aws_colour")])
def test_an_unknown_storage_option_is_refused_by_name(s3: S3Location, option: str, named: str) -> None:
    with pytest.raises(BadRequest, match=named):
        open_store(parse_location(s3.uri, s3.options | {option: "green"}))


def test_an_unknown_storage_option_for_a_local_disk_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="'colour'"):
        open_store(parse_location(tmp_path, {"colour": "green"}))
