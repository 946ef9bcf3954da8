"""A listing has every key exactly once, whatever order a store lists in and wherever its pages end."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import omnigraph
from omnigraph.errors import Unavailable
from omnigraph.storage import meter
from omnigraph.storage.location import parse_location
from omnigraph.storage.objects.cloud import PAGE_ROWS
from omnigraph.storage.objects.object_store import ObjectStore, RetryPolicy, open_store
from support.proxy import Answer, Proxy, Request, error_body
from support.s3 import S3Location, S3Server
from support.unordered import unordered_store

KEYS = [f"folder/{number:05d}" for number in range(20)]
PATIENT = RetryPolicy(first_wait_s=0.0, wait_max_s=0.0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for key in KEYS:
        path = tmp_path / key
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    return tmp_path


@pytest.fixture
def directory_bucket(s3_server: S3Server) -> Iterator[S3Location]:
    location = s3_server.bucket(f"test-{random.getrandbits(40):x}--use1-az4--x-s3")
    yield location
    s3_server.drop(location.bucket)


def keys(store: ObjectStore, prefix: str = "folder") -> list[str]:
    return [listed.key for listed in store.list(prefix)]


def test_a_listing_in_no_order_has_every_key_once(root: Path) -> None:
    store = unordered_store(parse_location(root))

    first, second = keys(store), keys(store)

    assert sorted(first) == sorted(second) == KEYS
    assert first != second != KEYS


@pytest.mark.parametrize("failing", range(1, 8))
def test_a_page_that_fails_starts_the_listing_again_and_no_key_is_missing_or_listed_twice(
    root: Path, failing: int
) -> None:
    store = unordered_store(parse_location(root), faults_at=[failing])
    store._retry = PATIENT

    with meter.operation("list") as listing:
        found = keys(store)

    assert sorted(found) == KEYS
    assert listing.cost.retries == 1
    assert listing.cost.requests == failing + 7


def test_a_listing_that_fails_again_and_again_is_unavailable_never_short(root: Path) -> None:
    store = unordered_store(parse_location(root), faults_at=range(3, 100))
    store._retry = PATIENT
    found: list[str] = []

    with pytest.raises(Unavailable):
        found.extend(listed.key for listed in store.list("folder"))


def test_a_key_that_is_there_all_the_time_is_listed_though_others_come_and_go_between_the_pages(root: Path) -> None:
    store = unordered_store(parse_location(root), faults_at=[4])
    store._retry = PATIENT
    listing = store.list("folder")

    found = [next(listing).key for _ in range(9)]
    gone, stays = sorted(set(KEYS) - set(found))[0], set(KEYS) - set(found)
    store.delete(gone)
    store.put("folder/a-new-one", b"")
    found += [listed.key for listed in listing]

    assert len(found) == len(set(found))
    assert set(found) >= set(KEYS) - {gone}
    assert stays - {gone} <= set(found)


@pytest.mark.s3
def test_a_directory_bucket_of_more_than_a_page_is_listed_whole(directory_bucket: S3Location) -> None:
    store = open_store(parse_location(directory_bucket.uri, directory_bucket.options))
    many = [f"many/{number}" for number in range(PAGE_ROWS + 301)]
    for key in many:
        store.put(key, b"")

    with meter.operation("list") as listing:
        found = keys(store, "many")

    assert found != sorted(found)
    assert sorted(found) == sorted(many)
    assert listing.cost.requests == 2


@pytest.mark.s3
def test_a_fault_after_the_first_page_of_a_bucket_leaves_no_key_out(s3_server: S3Server, proxy: Proxy) -> None:
    bucket = s3_server.bucket()
    store = open_store(parse_location(bucket.uri, bucket.options))
    many = [f"many/{number:05d}" for number in range(PAGE_ROWS + 50)]
    for key in many:
        store.put(key, b"")
    proxy.on(_a_later_page, Answer(503, error_body("SlowDown")), times=2)
    proxied = open_store(parse_location(bucket.uri, bucket.via(proxy.endpoint).options), retry=PATIENT)

    assert keys(proxied, "many") == many
    s3_server.drop(bucket.bucket)


@pytest.mark.s3
def test_a_graph_in_a_directory_bucket_lists_all_branches_and_tags(directory_bucket: S3Location) -> None:
    graph = omnigraph.init(directory_bucket.uri, "node Person { slug: String @key }", directory_bucket.options)
    names = [f"b{number}" for number in range(5)]
    for name in names:
        graph.branches.create(name)
        graph.tags.create(f"tag-{name}")

    fresh = omnigraph.open(directory_bucket.uri, directory_bucket.options)

    assert fresh.branches.list() == [*names, "main"]
    assert [tag.name for tag in fresh.tags.list()] == [f"tag-{name}" for name in names]


def _a_later_page(request: Request) -> bool:
    return request.method == "GET" and "continuation-token" in request.query
