"""What never falls, what a condition compares with, how a head is found, how a graph begins.

The rule is `monotone-and-complete-listings`.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnigraph.errors import AlreadyExists, NotAGraph, PreconditionFailed
from omnigraph.manifest.commit.plan import ConflictPolicy, PublishPlan, RaiseFence
from omnigraph.manifest.model.codec import encode_entry
from omnigraph.manifest.model.manifest import Manifest, Point, Position
from omnigraph.manifest.model.paths import STAMP, hint_key, manifest_number
from omnigraph.manifest.repository import Repository, init_repository, open_repository
from omnigraph.manifest.store.head_search import Hint, decode_hint
from omnigraph.manifest.store.manifest_store import HINT_EVERY, Manifests
from omnigraph.schema.catalog import Schema
from omnigraph.storage.objects.object_store import ObjectInfo, StoredObject
from support.catalogs import people
from support.steps import ClientKilled, Gate, Stepper

from .schedules import (
    APPLIED_ANSWER_LOST,
    NEITHER_APPLIED_NOR_ANSWERED,
    NO_FSYNC,
    START,
    World,
    a_put_of_manifest,
    seeded_runtime,
    stand_in_cleanup,
    stepped_stores,
)


def test_oldest_retained_never_falls(world: World) -> None:
    client = world.client("client")
    for person in ("ada", "bob", "cleo"):
        client.insert(person)

    assert stand_in_cleanup(client, oldest_retained=3).oldest_retained == 3
    assert stand_in_cleanup(client, oldest_retained=1).oldest_retained == 3
    client.insert("dan")
    assert client.head().oldest_retained == 3


def test_a_stalled_cleanup_does_not_lower_what_another_has_raised(world: World) -> None:
    slow, fast = world.client("slow"), world.client("fast")
    for person in ("ada", "bob"):
        fast.insert(person)
    txn = slow.repository.open_txn()
    plan = PublishPlan("slow", ConflictPolicy.MAINTENANCE, RaiseFence(oldest_retained=1))
    with slow.start(lambda: slow.repository.publisher.publish(txn, plan)) as stalled:
        stalled.run_until(a_put_of_manifest(4))
        first = stand_in_cleanup(fast)
        stalled.run_to_end()
        stalled.result()

    head = world.client("fresh").head()
    assert (head.manifest_version, head.oldest_retained) == (5, first.oldest_retained)
    assert head.fence is not None
    assert head.fence.previous == first.manifest_version, "the chain of fences has no gap"


def test_authored_at_is_at_least_the_parents_though_the_clock_goes_backwards(world: World) -> None:
    early, late = world.client("early"), world.client("late")
    late.clock.pass_time(hours=1)
    early.clock.pass_time(hours=-1)

    times = [client.insert(person).commit.authored_at for client, person in ((late, "a"), (early, "b"), (late, "c"))]
    fence = stand_in_cleanup(early, oldest_retained=1)
    early.graph.branches.create("b")
    on_branch = early.insert("d", branch="b").commit.authored_at

    hour = START + timedelta(hours=1)
    assert times == [hour, hour, hour]
    assert fence.authored_at == on_branch == early.head("b").authored_at == hour


def test_if_commit_compares_with_the_last_logical_commit(world: World) -> None:
    client, cleaner = world.client("client"), world.client("cleaner")
    logical = client.insert("ada")
    fence = stand_in_cleanup(cleaner)

    with pytest.raises(PreconditionFailed):
        client.insert("bob", if_commit=fence.commits[0].id)
    commit = client.insert("bob", if_commit=logical.id)

    assert commit.manifest_version == fence.manifest_version + 1
    assert commit.commit.parent == logical.id, "maintenance is nobody's parent"


def test_a_fence_that_comes_between_does_not_fail_a_conditional_write(world: World) -> None:
    client, cleaner = world.client("client"), world.client("cleaner")
    logical = client.insert("ada")
    with client.start(lambda: client.insert("bob", if_commit=logical.id)) as stalled:
        stalled.run_until(a_put_of_manifest(3))
        stand_in_cleanup(cleaner)
        stalled.run_to_end()

        assert stalled.result().commit.parent == logical.id


# Finding the head where LIST is not in name order


class Shelf:
    """A store that holds manifests 1 … n of one branch, and a hint."""

    location = SimpleNamespace(lists_in_name_order=False, preallocates_files=False)

    def __init__(self, head: int, hint: bytes | None) -> None:
        self._head, self._hint = head, hint
        self.requests = 0

    def _holds(self, key: str) -> bool:
        number = manifest_number(key)
        return number is not None and 1 <= number <= self._head

    def get(self, key: str) -> StoredObject | None:
        self.requests += 1
        if key == hint_key("b"):
            return None if self._hint is None else StoredObject(self._hint, START)
        return StoredObject(encode_entry(entry(manifest_number(key) or 0)), START) if self._holds(key) else None

    def head(self, key: str) -> ObjectInfo | None:
        self.requests += 1
        return ObjectInfo(key, 1, START) if self._holds(key) else None


def entry(number: int) -> Manifest:
    return Manifest("main", "b", number, "sha256:0", "b.1", START, {"b": Position(number)})


HINTS = st.one_of(st.none(), st.integers(-5, 10**25).map(lambda number: str(number).encode()), st.binary(max_size=24))


@settings(deadline=None, max_examples=300)
@given(head=st.integers(0, 5000), hint=HINTS)
def test_any_hint_leads_to_the_head(head: int, hint: bytes | None) -> None:
    shelf = Shelf(head, hint)

    newest = Manifests(shelf).find_head("b")  # type: ignore[arg-type]

    assert (newest.manifest_version if newest else 0) == head
    assert shelf.requests <= 2 * head.bit_length() + 6


@settings(deadline=None, max_examples=100)
@given(head=st.integers(1, 10**6), behind=st.integers(0, HINT_EVERY))
def test_from_a_fresh_hint_the_head_is_a_few_requests_away_whatever_the_depth(head: int, behind: int) -> None:
    shelf = Shelf(head, str(max(1, head - behind)).encode())

    newest = Manifests(shelf).find_head("b")  # type: ignore[arg-type]

    assert newest == entry(head)
    assert shelf.requests <= 14


def test_writers_leave_a_hint_that_is_never_above_the_head(world: World) -> None:
    client = world.client("client")
    for _ in range(HINT_EVERY + 3):
        stand_in_cleanup(client, oldest_retained=1)

    hint = decode_hint((world.root / hint_key(world.main_id)).read_bytes(), world.main_id)
    assert hint == Hint(HINT_EVERY, is_proof=True)
    assert world.client("fresh").head() == client.head()


def test_a_hint_may_be_anything_on_the_disk(world: World) -> None:
    client = world.client("client")
    client.insert("ada")
    path = world.root / hint_key(world.main_id)
    for hint in (b"", b"garbage", b"0", b"1", b"2", b"3", b"999999", b"\xff\x00"):
        path.write_bytes(hint)
        assert world.client("fresh").people() == ["ada"]


# `init` writes the stamp last


def init(root: Path, seed: str) -> Repository:
    return init_repository(str(root), Schema(people()), NO_FSYNC, runtime=seeded_runtime(seed))


def is_whole(root: Path) -> None:
    repository = open_repository(str(root), NO_FSYNC)
    assert repository.snapshot().manifest.manifest_version == 1
    assert repository.snapshot().catalog == people()
    assert repository.branches.names() == ["main"]


def test_an_init_that_is_killed_after_any_request_leaves_no_graph_or_a_whole_one(tmp_path: Path) -> None:
    endings = []
    for requests in range(20):
        root, gate = tmp_path / str(requests), Gate()
        with stepped_stores(gate):
            stepper = Stepper(lambda root=root: init(root, "first"), gate)  # type: ignore[misc]
            for _ in range(requests):
                if stepper.done:
                    break
                stepper.step()
            finished = stepper.done
            stepper.kill()
        if (root / STAMP).exists():
            endings.append("whole")
            is_whole(root)
            with pytest.raises(AlreadyExists):
                init(root, "second")
        else:
            endings.append("none")
            with pytest.raises(NotAGraph):
                open_repository(str(root), NO_FSYNC)
            init(root, "second")
            is_whole(root)
        if finished:
            break
        with pytest.raises(ClientKilled):
            stepper.result()

    assert endings == ["none"] * (len(endings) - 1) + ["whole"], "only the last request makes the graph"
    assert len(endings) == 6, "look for a stamp, ref, schema, manifest 1, stamp"


def test_of_two_inits_at_once_one_makes_the_graph_and_the_other_fails(tmp_path: Path) -> None:
    gate = Gate()
    with stepped_stores(gate), Stepper(lambda: init(tmp_path, "slow"), gate) as slow:
        slow.run_until(lambda call: call == ("create", STAMP))
        gate.held = False  # the other one is not stepped
        fast = init(tmp_path, "fast")
        gate.held = True
        slow.run_to_end()
        with pytest.raises(AlreadyExists):
            slow.result()

    is_whole(tmp_path)
    assert open_repository(str(tmp_path), NO_FSYNC).stamp == fast.stamp


@pytest.mark.parametrize("fault", [APPLIED_ANSWER_LOST, NEITHER_APPLIED_NOR_ANSWERED], ids=["applied", "not applied"])
def test_every_lost_answer_during_init_is_settled(tmp_path: Path, fault: object) -> None:
    gate = Gate()
    with stepped_stores(gate), Stepper(lambda: init(tmp_path, "first"), gate) as stepper:
        faulted = set()
        while (call := stepper.next) is not None:
            first_time = call.method == "create" and call.key not in faulted
            faulted.add(call.key)
            stepper.step(fault if first_time else None)  # type: ignore[arg-type]
        made = stepper.result()

    is_whole(tmp_path)
    assert open_repository(str(tmp_path), NO_FSYNC).stamp == made.stamp
    assert made.manifests.read(Point(made.stamp.main_id, 2)) is None
