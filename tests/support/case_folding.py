"""A file system that does not tell upper from lower case, as those of macOS and Windows are by default.

fold_case(monkeypatch)     # every store on a local disk that the test opens from now on
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from omnigraph.storage.objects.local import LocalBackend
from omnigraph.storage.objects.object_store import ObjectInfo

_BY_KEY = ("get", "get_range", "create", "put", "replace", "head", "delete")


def fold_case(monkeypatch: pytest.MonkeyPatch) -> None:
    for verb in _BY_KEY:
        monkeypatch.setattr(LocalBackend, verb, _folded(getattr(LocalBackend, verb)))
    listed = LocalBackend.pages

    def pages(self: LocalBackend, prefix: str, *, repeat_pages: bool) -> Iterator[Sequence[ObjectInfo]]:
        there = _found(self, prefix)
        for page in listed(self, there, repeat_pages=repeat_pages):
            yield [replace(entry, key=prefix + entry.key[len(there) :]) for entry in page]

    monkeypatch.setattr(LocalBackend, "pages", pages)


def _folded(request: Callable[..., Any]) -> Callable[..., Any]:
    def with_any_case(self: LocalBackend, key: str, *args: Any) -> Any:
        found = request(self, _found(self, key), *args)
        return replace(found, key=key) if isinstance(found, ObjectInfo) else found

    return with_any_case


def _found(backend: LocalBackend, key: str) -> str:
    """The key with each part as it is on the disk; a part that is not there stays as it was asked for."""
    found: list[str] = []
    for part in key.split("/"):
        folder = backend._root.joinpath(*found)
        names = os.listdir(folder) if folder.is_dir() else []
        found.append(next((name for name in names if name.casefold() == part.casefold()), part))
    return "/".join(found)
