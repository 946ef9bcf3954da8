"""The simulated object store: a bucket in memory, the tables' files in a directory, and each process's way to them.

Every request is two scheduling points: before it takes effect, and before its answer returns. Files below `tables/`
are written by Lance without the store's knowledge, in no time: they get their modification time before the next write,
listing, wait or jump of a clock, by the store's clock.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from omnigraph.storage.objects import object_store as objects
from omnigraph.storage.objects.object_store import (
    CREATED,
    EXISTS,
    ETag,
    ObjectInfo,
    PutOutcome,
    PutResult,
    StoredObject,
    TransientError,
)
from simulation.faults import (
    CRASH_AFTER,
    CRASH_BEFORE,
    CUT_OFF,
    DUPLICATE,
    FAIL,
    LATE,
    LOSE,
    NO_LISTINGS,
    OUTAGE,
    OWN_EXISTS,
    Fault,
)
from simulation.ops import History
from simulation.world import Killed, Process, World

T = TypeVar("T")

TABLES = "tables/"
MANIFESTS = "__manifest/"
PAGE_MAX = 1000


@dataclass(frozen=True, slots=True)
class Listings:
    """How the store lists: in name order or in one of its own, and how many keys a page has."""

    in_order: bool = True
    page: int = PAGE_MAX


@dataclass
class Bucket:
    """What is stored."""

    world: World
    root: Path
    history: History
    listings: Listings = Listings()
    objects: dict[str, StoredObject] = field(default_factory=dict)
    on_manifest: Callable[[], object] | None = None  # when one was put: the files that it names must be there now

    def __post_init__(self) -> None:
        self.files = Files(self.root / "tables", self.world.store_now)
        self.history.tables = str(self.root / "tables")

    def get(self, key: str) -> StoredObject | None:
        if key.startswith(TABLES):
            return self.files.get(key)
        return self.objects.get(key)

    def create(self, key: str, data: bytes, call: str) -> PutResult:
        if self.get(key) is not None:
            return EXISTS
        self.put(key, data, call)
        return CREATED

    def put(self, key: str, data: bytes, call: str) -> None:
        self.history.write(self.world.step, key, data, call)
        if key.startswith(TABLES):
            self.files.put(key, data)
        else:
            self.objects[key] = StoredObject(data, self.world.store_now())
            if self.on_manifest is not None and key.startswith(MANIFESTS):
                self.on_manifest()

    def replace(self, key: str, data: bytes, seen: ETag, call: str) -> bool:
        found = self.get(key)
        if found is None or found.etag != seen:
            return False
        self.put(key, data, call)
        return True

    def delete(self, key: str, call: str) -> None:
        gone = self.files.delete(key) if key.startswith(TABLES) else self.objects.pop(key, None) is not None
        if gone:
            self.history.write(self.world.step, key, None, call)

    def page(self, prefix: str, behind: str) -> tuple[list[ObjectInfo], str]:
        """The next page of a listing in the store's order, and the place where it goes on: empty at the end."""
        found = [(place, listed) for place, listed in self._listed(prefix) if place > behind]
        shown = found[: self.listings.page]
        return [listed for _, listed in shown], shown[-1][0] if len(found) > len(shown) else ""

    def page_after(self, prefix: str, key: str | None) -> tuple[list[ObjectInfo], str | None]:
        """The next page for a client that goes on "after the last key".

        A store that lists in an order of its own knows no such place: it leaves out what is not greater by name, as
        S3 directory buckets do.
        """
        last = None if key is None else self._name(key)
        found = [one for _, one in self._listed(prefix) if last is None or self._name(one.key) > last]
        shown = found[: self.listings.page]
        return shown, shown[-1].key if len(found) > len(shown) else None

    def _listed(self, prefix: str) -> list[tuple[str, ObjectInfo]]:
        """What is below a prefix, each with its place in the store's order."""
        below = f"{prefix}/" if prefix else ""
        found = [
            ObjectInfo(key, len(stored.data), stored.modified)
            for key, stored in self.objects.items()
            if key.startswith(below)
        ]
        if below.startswith(TABLES) or TABLES.startswith(below):
            found += self.files.listed(below if below.startswith(TABLES) else "")
        return sorted(((self._order(self._name(one.key)), one) for one in found), key=lambda pair: pair[0])

    def _name(self, key: str) -> str:
        """What the order goes by: Lance makes up names, and no run may depend on them."""
        return self.files.alias(key) if key.startswith(TABLES) else key

    def _order(self, name: str) -> str:
        if self.listings.in_order:
            return name
        return hashlib.blake2b(f"{self.world.seed} {name}".encode(), digest_size=8).hexdigest()


class Files:
    """The tables' files on disk, with modification times by a virtual clock."""

    def __init__(self, root: Path, now: Callable[[], datetime]) -> None:
        self._root = root
        self._now = now
        self._modified: dict[str, datetime] = {}  # by path below the root
        self._alias: dict[str, str] = {}
        self._folders: list[str] = []
        self._known: set[str] = set()

    def stamp(self) -> None:
        """New files get the time of now. A directory whose own time is not 0 has changed since the last look."""
        if not self._folders:
            if not self._root.exists():
                return
            self._folders.append("")
        changed = [folder for folder in self._folders if os.stat(f"{self._root}/{folder}").st_mtime_ns]
        while changed:
            folder = changed.pop()
            path = f"{self._root}/{folder}"
            os.utime(path, ns=(0, 0))
            with os.scandir(path) as entries:
                found = sorted((entry.stat().st_size, entry.name, entry.is_dir()) for entry in entries)
            for _, name, is_folder in found:
                inside = f"{folder}{name}"
                if is_folder:
                    inside += "/"
                    if inside not in self._known:
                        self._known.add(inside)
                        self._folders.append(inside)
                        changed.append(inside)
                elif inside not in self._modified:
                    self._modified[inside] = self._now()
                    self._alias[inside] = f"{TABLES}{inside.partition('/')[0]}/{len(self._alias):06d}"

    def get(self, key: str) -> StoredObject | None:
        self.stamp()
        inside = key.removeprefix(TABLES)
        if inside not in self._modified:
            return None
        try:
            return StoredObject((self._root / inside).read_bytes(), self._modified[inside])
        except FileNotFoundError:
            return None

    def put(self, key: str, data: bytes) -> None:
        path = self._root / key.removeprefix(TABLES)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self._modified.pop(key.removeprefix(TABLES), None)
        os.utime(path.parent)
        self.stamp()

    def delete(self, key: str) -> bool:
        self.stamp()
        inside = key.removeprefix(TABLES)
        if self._modified.pop(inside, None) is None:
            return False
        (self._root / inside).unlink(missing_ok=True)
        return True

    def listed(self, below: str) -> list[ObjectInfo]:
        self.stamp()
        start = below.removeprefix(TABLES)
        found = []
        for inside, modified in self._modified.items():
            if inside.startswith(start):
                try:
                    found.append(ObjectInfo(TABLES + inside, os.stat(f"{self._root}/{inside}").st_size, modified))
                except FileNotFoundError:  # Lance removed it by itself
                    continue
        return found

    @property
    def were_there(self) -> bool:
        """Whether any table was stored in this run."""
        return bool(self._alias)

    def alias(self, key: str) -> str:
        """A name that does not depend on what Lance made up: the table, and when the file was first seen."""
        return self._alias[key.removeprefix(TABLES)]


@dataclass(frozen=True)
class SimulatedBackend:
    """The store as one process sees it: `omnigraph.storage.objects.object_store.Backend`."""

    world: World
    bucket: Bucket

    def get(self, key: str) -> StoredObject | None:
        return self._request("get", key, lambda: self.bucket.get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        found = self._request("get", key, lambda: self.bucket.get(key))
        return None if found is None else found.data[start : start + length]

    def create(self, key: str, data: bytes) -> PutResult:
        call = self._call()
        return self._request("create", key, lambda: self.bucket.create(key, data, call))

    def put(self, key: str, data: bytes, durable: bool) -> None:
        call = self._call()
        self._request("put", key, lambda: self.bucket.put(key, data, call))

    def replace(self, key: str, data: bytes, seen: ETag) -> bool:
        call = self._call()
        return self._request("replace", key, lambda: self.bucket.replace(key, data, seen, call))

    def head(self, key: str) -> ObjectInfo | None:
        found = self._request("head", key, lambda: self.bucket.get(key))
        return None if found is None else ObjectInfo(key, len(found.data), found.modified)

    def pages(self, prefix: str, *, repeat_pages: bool = False) -> Iterator[Sequence[ObjectInfo]]:
        """A listing that the store continues by its own token, one request a page."""
        behind = ""
        while True:
            listed, behind = self._request("list", prefix, partial(self.bucket.page, prefix, behind))
            yield listed
            if not behind:
                return

    def page(self, prefix: str, after: str | None) -> Any:
        """One page of a listing that the client continues after the last key: no code should, but some did."""
        listed, key = self._request("list", prefix, partial(self.bucket.page_after, prefix, after))
        return objects.Page(tuple(listed), key)  # type: ignore[attr-defined,unused-ignore]  # gone where nobody asks

    def delete(self, key: str) -> None:
        call = self._call()
        self._request("delete", key, lambda: self.bucket.delete(key, call))

    def _call(self) -> str:
        """The call on whose behalf the thread works."""
        task = self.world.here()
        return "" if task is None else task.call

    def _request(self, verb: str, key: str, effect: Callable[[], T]) -> T:
        world, task = self.world, self.world.here()
        if task is None:  # whoever looks at the store from outside of the world
            return effect()
        world.point(f"{verb} {key}", verb, key)
        self._require_service(verb)
        fault = world.faults.request_fault(task.place, verb, key, task.work_kind)
        kind = "" if fault is None else fault.kind
        if fault is not None:
            world.note_fault(task.process, kind)
            if world.tracing:
                world.trace.append((world.step, task.name, task.operation, f"FAULT {kind} of {verb} {key}"))
        if kind == FAIL:
            raise TransientError("simulated: the request was lost")
        if fault is not None and kind in (OUTAGE, NO_LISTINGS):
            self._cut_off(task.process, fault)
            raise TransientError("simulated: the store does not answer")
        if kind == CRASH_BEFORE:
            world.kill(task.process)
            raise Killed
        if fault is not None and kind == LATE:
            world.later(fault.steps, _quietly(effect), f"late {verb} {key} of {task.name} takes effect")
            world.point(f"{verb} {key}: no answer")
            raise TransientError("simulated: no answer in time")
        answer = effect()
        return self._answered(fault, answer, verb, key, effect)

    def _require_service(self, verb: str) -> None:
        """During an outage a request gets nowhere."""
        world, task = self.world, self.world.here()
        assert task is not None
        process = task.process
        if world.now_us < process.out_until_us or (verb == "list" and world.now_us < process.unlisted_until_us):
            world.note_fault(process, OUTAGE)
            raise TransientError("simulated: the store does not answer")

    def _cut_off(self, process: Process, fault: Fault) -> None:
        until = self.world.now_us + int(fault.seconds * 1e6)
        if fault.kind == NO_LISTINGS:
            process.unlisted_until_us = until
        else:
            process.out_until_us = until

    def _answered(self, fault: Fault | None, answer: T, verb: str, key: str, effect: Callable[[], T]) -> T:
        world, task = self.world, self.world.here()
        assert task is not None
        kind = "" if fault is None else fault.kind
        if kind == CRASH_AFTER:
            world.kill(task.process)
            raise Killed
        if fault is not None and kind == DUPLICATE:
            world.later(fault.steps, _quietly(effect), f"duplicate {verb} {key} of {task.name} takes effect")
        said = f" {answer.outcome.value}" if world.tracing and isinstance(answer, PutResult) else ""
        world.point(f"{verb} {key}: answer{said}")
        if fault is not None and kind == CUT_OFF:
            self._cut_off(task.process, fault)
        if kind in (LOSE, CUT_OFF):
            raise TransientError("simulated: the answer was lost")
        if kind == OWN_EXISTS and isinstance(answer, PutResult) and answer.outcome is PutOutcome.CREATED:
            return EXISTS  # type: ignore[return-value]  # a create's answer is a PutResult
        return answer


def _quietly(effect: Callable[[], object]) -> Callable[[], None]:
    def take_effect() -> None:
        effect()

    return take_effect
