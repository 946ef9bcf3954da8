"""Stores that list as an S3 directory bucket does: every key, in no order, a few to a page.

    store = unordered_store(parse_location(tmp_path / "graph"))
    store = unordered_store(location, faults_at=[3])     # the third page fails, once

    from support.unordered import unordered_listings     # in a conftest.py: every store on a local disk

The order changes from one listing to the next, so that nothing can depend on it, and is the same in every run.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

from omnigraph.runtime import Runtime
from omnigraph.storage.location import Location
from omnigraph.storage.objects.local import LocalBackend
from omnigraph.storage.objects.object_store import Backend, ObjectInfo, ObjectStore, TransientError, open_store

PAGE_ROWS = 3


class UnorderedBackend:
    """Another backend whose listings are shuffled and paged; everything else is that backend's."""

    def __init__(
        self, inner: Backend, *, page_rows: int = PAGE_ROWS, seed: int = 0, faults_at: Iterable[int] = ()
    ) -> None:
        self._inner = inner
        self._page_rows = page_rows
        self._random = random.Random(seed)
        self._faults_at = set(faults_at)  # numbers of pages, counted over all listings from 1
        self.pages_read = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def pages(self, prefix: str, *, repeat_pages: bool) -> Iterator[Sequence[ObjectInfo]]:
        found = [listed for page in self._inner.pages(prefix, repeat_pages=repeat_pages) for listed in page]
        for page in shuffled_pages(found, self._random, self._page_rows):
            self.pages_read += 1
            if self.pages_read in self._faults_at:
                raise TransientError("the connection was cut")
            yield page


class OrderedBackend:
    """Another backend whose listings are sorted by name and come in one page."""

    def __init__(self, inner: Backend) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def pages(self, prefix: str, *, repeat_pages: bool) -> Iterator[Sequence[ObjectInfo]]:
        found = [listed for page in self._inner.pages(prefix, repeat_pages=repeat_pages) for listed in page]
        yield sorted(found, key=lambda listed: listed.key)


def unordered_store(location: Location, runtime: Runtime | None = None, **listing: Any) -> ObjectStore:
    """The store behind a location, with listings in no order."""
    store = open_store(location, runtime)
    store._backend = UnorderedBackend(store._backend, **listing)
    return store


def ordered_store(location: Location, runtime: Runtime | None = None) -> ObjectStore:
    """The store behind a location, with listings by name, whatever `list_local_disks_unordered` says."""
    store = open_store(location, runtime)
    store._backend = OrderedBackend(store._backend)
    return store


def list_local_disks_unordered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the end of a test, local disks list in no order and a few keys to a page."""
    sorted_pages, order = LocalBackend.pages, random.Random(0)

    def pages(self: LocalBackend, prefix: str, *, repeat_pages: bool) -> Iterator[Sequence[ObjectInfo]]:
        found = [listed for page in sorted_pages(self, prefix, repeat_pages=repeat_pages) for listed in page]
        if vars(Location)["lists_in_name_order"] is True:  # a test that has its disks pass for a store with order
            return iter([found])
        return shuffled_pages(found, order, PAGE_ROWS)

    monkeypatch.setattr(LocalBackend, "pages", pages)


def shuffled_pages(found: list[ObjectInfo], order: random.Random, page_rows: int) -> Iterator[Sequence[ObjectInfo]]:
    order.shuffle(found)
    for start in range(0, max(len(found), 1), page_rows):
        yield found[start : start + page_rows]


@pytest.fixture(autouse=True)
def unordered_listings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here may depend on the order of a listing, nor on how many keys a page has."""
    list_local_disks_unordered(monkeypatch)
