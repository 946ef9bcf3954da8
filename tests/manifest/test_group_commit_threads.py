"""Group commit: writes of one process to one branch that meet share one put, and nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from omnigraph.errors import BranchNotFound, ConstraintViolation, ExpectedVersionMismatch, OutcomeUnknown
from omnigraph.manifest.commit.commit_queue import PendingCommit
from omnigraph.manifest.commit.plan import Append, Delete, Upsert
from omnigraph.manifest.commit.publish import PublishedCommit, PublishPolicy
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.model.manifest import MAIN, Manifest
from omnigraph.manifest.settings import Settings
from omnigraph.write.commit import Changes
from omnigraph.write.validate.checks import NodesExist
from support.catalogs import KNOWS, PERSON, knows_rows, person_rows
from support.steps import Stepper

from .schedules import (
    AN_INNER_RETRY_SAYS_EXISTS,
    APPLIED_ANSWER_LOST,
    NEITHER_APPLIED_NOR_ANSWERED,
    Client,
    World,
    a_put_of_manifest,
)

Write = Callable[[], Any]
Outcomes = list[Any]


@pytest.fixture
def server(world: World) -> Client:
    """A process that many writes go through."""
    return world.client("server")


@contextmanager
def meeting(client: Client, first: Write, *others: Write, at: int = 2) -> Iterator[Stepper[Outcomes]]:
    """`first` stands before its put of this manifest, and all others wait in line behind it, in this order."""
    outcomes: Outcomes = [None] * (1 + len(others))

    def keep(place: int, write: Write) -> None:
        try:
            outcomes[place] = write()
        except Exception as error:
            outcomes[place] = error

    def run() -> Outcomes:
        threads = []
        for place, write in enumerate((first, *others)):
            threads.append(threading.Thread(target=keep, args=(place, write), daemon=True))
            threads[-1].start()
            if place < len(others):
                _await(lambda place=place: in_line(client) == place and bool(client.gate.waiting))  # type: ignore[misc]
        for thread in threads:
            thread.join()
        return outcomes

    with client.start(run) as crowd:
        crowd.run_until(a_put_of_manifest(at))
        _await(lambda: in_line(client) == len(others))
        yield crowd


def in_line(client: Client) -> int:
    return sum(map(len, client.repository.publisher._queue._waiting.values()))


def _await(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until, "nobody came"
        time.sleep(0.001)


def commits_of(client: Client, number: int) -> list[str]:
    entry = client.stored(client.repository.stamp.main_id, number)
    return [] if entry is None else [commit.id.removeprefix(entry.branch_id) for commit in entry.commits]


def test_a_write_that_is_alone_waits_for_nobody_and_has_its_number_to_itself(server: Client) -> None:
    with server.start(lambda: server.insert("ada", actor="ada")) as alone:
        assert [call.method for call in alone.run_to_end()] == ["create"]

    assert commits_of(server, 2) == [".2"]


def test_those_that_come_while_a_put_is_under_way_share_the_next_one(world: World, server: Client) -> None:
    others = [lambda name=name: server.insert(name, actor=name) for name in ("bob", "cyd", "dan")]
    with meeting(server, lambda: server.insert("ada"), *others) as crowd:
        crowd.step()
        assert world.told(crowd.run_to_end()) == ["create main/3"]
        first, *rest = crowd.result()

    assert first.id == f"{world.main_id}.2"
    assert [commit.id for commit in rest] == [f"{world.main_id}.3.{n}" for n in range(3)]
    assert [commit.commit.actor for commit in rest] == ["bob", "cyd", "dan"]
    assert [commit.commit.parent for commit in rest] == [first.id, rest[0].id, rest[1].id]
    assert [commit.touched for commit in rest] == [{PERSON: {"inserted": 1}}] * 3
    assert len({commit.commit.txn_id for commit in rest}) == 3
    fresh = world.client("fresh")
    assert fresh.people() == ["ada", "bob", "cyd", "dan"]
    assert fresh.head().logical_head == rest[-1].id
    assert fresh.head().tables[PERSON].rows == 4


def test_each_commit_of_a_group_is_a_state_of_its_own(world: World, server: Client) -> None:
    with meeting(server, *(lambda name=name: server.insert(name) for name in ("ada", "bob", "cyd"))) as crowd:
        crowd.run_to_end()
        _, bob, cyd = crowd.result()

    fresh = world.client("fresh")
    assert fresh.people(at=bob.id) == ["ada", "bob"]
    assert fresh.people(at=cyd.id) == ["ada", "bob", "cyd"]


def test_one_bad_write_fails_alone(world: World, server: Client) -> None:
    """Bob comes twice: each is judged with the ones before it on top, though none of them has landed yet."""
    names = ("bob", "bob", "cyd")
    with meeting(server, lambda: server.insert("ada"), *(lambda name=name: server.insert(name) for name in names)) as c:
        c.step()
        assert world.told(c.run_to_end()) == ["create main/3"], "the put that landed seals the refusal too"
        _, bob, again, cyd = c.result()

    assert isinstance(again, ConstraintViolation)
    assert [bob.id, cyd.id] == [f"{world.main_id}.3.0", f"{world.main_id}.3.1"]
    assert world.client("fresh").people() == ["ada", "bob", "cyd"]


def test_a_write_sees_the_rows_of_those_before_it(world: World, server: Client) -> None:
    """An edge to a node that is only about to be there, and partial upserts of it."""

    def birthday(txn: WriteTxn) -> Changes:
        content = txn.content(PERSON)
        rows = [] if content is None else server.repository.tables.lookup(content, ["bob"]).to_pylist()
        age = 1 + (rows[0]["age"] or 0) if rows else None
        return Changes((Upsert(PERSON, person_rows("bob", age=age)),), read_rows=frozenset({PERSON}))

    def befriend() -> PublishedCommit | None:
        return server.graph.write(
            [Append(KNOWS, knows_rows(("ada", "bob")), fresh_ids=True)],
            checks=[NodesExist(PERSON, frozenset({"ada", "bob"}), KNOWS)],
        )

    writes = [lambda: server.graph.write(birthday)] * 3
    with meeting(server, lambda: server.insert("ada"), *writes) as crowd:
        crowd.step()
        assert world.told(crowd.run_to_end()) == ["create main/3"]
        outcomes = crowd.result()

    assert [one.id for one in outcomes[1:]] == [f"{world.main_id}.3.{n}" for n in range(3)]
    assert [one.touched for one in outcomes[1:]] == [{PERSON: {"inserted": 1}}, *[{PERSON: {"updated": 1}}] * 2]
    rows = world.client("fresh").graph.snapshot().to_arrow(PERSON).to_pylist()
    assert {row["id"]: row["age"] for row in rows} == {"ada": None, "bob": 2}
    assert befriend() is not None


def test_what_one_removes_another_may_put_again_in_the_same_group(world: World, server: Client) -> None:
    server.insert("ada")

    def remove() -> PublishedCommit | None:
        return server.graph.write([Delete(PERSON, ("ada",))])

    def upsert() -> PublishedCommit | None:
        return server.graph.write([Upsert(PERSON, person_rows("ada"))])

    with meeting(server, lambda: server.insert("bob"), remove, upsert, upsert, at=3) as crowd:
        crowd.run_to_end()
        outcomes = crowd.result()

    assert [one.touched[PERSON] for one in outcomes[1:]] == [{"deleted": 1}, {"inserted": 1}, {"updated": 1}]
    assert commits_of(server, 4) == [".4.0", ".4.1", ".4.2"]
    fresh = world.client("fresh")
    assert fresh.people() == ["ada", "bob"]
    assert fresh.people(at=outcomes[1].id) == ["bob"]


def test_a_write_that_would_change_nothing_after_those_before_it_has_no_commit(world: World, server: Client) -> None:
    server.insert("ada")

    def remove() -> PublishedCommit | None:
        return server.graph.write([Delete(PERSON, ("ada",))])

    with meeting(server, lambda: server.insert("bob"), remove, remove, lambda: server.insert("cyd"), at=3) as crowd:
        crowd.step()
        assert world.told(crowd.run_to_end()) == ["create main/4"]
        _, removed, again, cyd = crowd.result()

    assert (removed.touched, again) == ({PERSON: {"deleted": 1}}, None)
    assert [removed.id, cyd.id] == [f"{world.main_id}.4.0", f"{world.main_id}.4.1"]
    assert world.client("fresh").people() == ["bob", "cyd"]


def test_a_strict_write_loses_to_any_of_a_group(world: World, server: Client) -> None:
    held = world.client("holder").graph.begin()
    holder = world.client("holder")
    befriend = [Append(KNOWS, knows_rows(("a", "b")), fresh_ids=True)]
    with meeting(
        server, lambda: server.graph.write(befriend), lambda: server.insert("bob"), lambda: server.insert("cyd")
    ) as crowd:
        crowd.run_to_end()
        _, bob, cyd = crowd.result()

    assert commits_of(server, 3) == [".3.0", ".3.1"]
    with pytest.raises(ExpectedVersionMismatch) as refusal:
        holder.graph.write([Append(PERSON, person_rows("eve"))], txn=held)
    assert (refusal.value.expected, refusal.value.actual) == (None, cyd.id)
    assert cyd.commit.parent == bob.id


def test_a_write_that_has_grown_too_large_goes_alone(tmp_path: Any) -> None:
    """Planned again after those before it, it has more rows than ride in a manifest."""
    world = World(tmp_path / "graph", settings=Settings(inline_rows=4))
    server = world.client("server")

    def age_everybody(txn: WriteTxn) -> Changes:
        content = txn.content(PERSON)
        rows = person_rows() if content is None else server.repository.tables.scan(content)
        ids = sorted(row["id"] for row in rows.to_pylist())
        return Changes((Upsert(PERSON, person_rows(*ids, "zoe", age=9)),), read_rows=frozenset({PERSON}))

    writes = [lambda: server.insert("b1", "b2", "b3"), lambda: server.graph.write(age_everybody)]
    with meeting(server, lambda: server.insert("ada"), *writes, lambda: server.insert("cyd")) as crowd:
        crowd.run_to_end()
        _, three, everybody, cyd = crowd.result()

    assert [three.id, cyd.id] == [f"{world.main_id}.3.0", f"{world.main_id}.3.1"]
    assert everybody.id == f"{world.main_id}.4"
    rows = world.client("fresh").graph.snapshot().to_arrow(PERSON).to_pylist()
    assert {row["id"]: row["age"] for row in rows} == dict.fromkeys(("ada", "b1", "b2", "b3", "cyd", "zoe"), 9)


@pytest.mark.parametrize("fault", [APPLIED_ANSWER_LOST, NEITHER_APPLIED_NOR_ANSWERED, AN_INNER_RETRY_SAYS_EXISTS])
def test_a_lost_answer_to_a_group_is_settled_for_all_of_it(world: World, server: Client, fault: Any) -> None:
    """`settle-by-reading` and `one-txn-id`: the same group goes to the same number until it is known whose it is."""
    with meeting(server, *(lambda name=name: server.insert(name) for name in ("ada", "bob", "cyd"))) as crowd:
        crowd.step()
        crowd.run_until(a_put_of_manifest(3))
        crowd.step(fault)
        crowd.run_to_end()
        _, bob, cyd = crowd.result()

    assert [bob.id, cyd.id] == [f"{world.main_id}.3.0", f"{world.main_id}.3.1"]
    fresh = world.client("fresh")
    assert fresh.people() == ["ada", "bob", "cyd"]
    assert fresh.head().manifest_version == 3


def test_a_group_whose_fate_stays_unknown_says_so_to_each(world: World) -> None:
    server = world.client("server", PublishPolicy(time_limit_s=0.0, first_wait_s=0.01))
    with meeting(server, *(lambda name=name: server.insert(name) for name in ("ada", "bob", "cyd"))) as crowd:
        crowd.step()
        crowd.run_until(a_put_of_manifest(3))
        while not crowd.done:
            crowd.step(NEITHER_APPLIED_NOR_ANSWERED if crowd.next and crowd.next.method == "create" else None)
        _, bob, cyd = crowd.result()

    assert all(isinstance(one, OutcomeUnknown) and one.number == 3 for one in (bob, cyd))
    assert bob.txn_id != cyd.txn_id
    assert world.client("fresh").people() == ["ada"]


def test_a_group_that_loses_is_formed_again_on_the_new_head(world: World, server: Client) -> None:
    """What the winner took is refused, the others keep their order."""
    other = world.client("other")
    with meeting(server, *(lambda name=name: server.insert(name) for name in ("ada", "bob", "cyd", "dan"))) as crowd:
        crowd.step()
        crowd.run_until(a_put_of_manifest(3))
        other.insert("cyd")
        crowd.run_to_end()
        _, bob, cyd, dan = crowd.result()

    assert isinstance(cyd, ConstraintViolation)
    assert [bob.id, dan.id] == [f"{world.main_id}.4.0", f"{world.main_id}.4.1"]
    assert [bob.commit.parent, dan.commit.parent] == [f"{world.main_id}.3", bob.id]
    assert world.client("fresh").people() == ["ada", "bob", "cyd", "dan"]


def test_a_group_on_a_branch_that_was_deleted_fails_with_that_error(world: World, server: Client) -> None:
    server.graph.branches.create("side")
    server.repository.open_txn("side")
    with meeting(server, *(lambda name=name: server.insert(name, branch="side") for name in ("ada", "bob"))) as crowd:
        world.client("other").graph.branches.delete("side")
        crowd.run_to_end()
        outcomes = crowd.result()

    assert [type(one) for one in outcomes] == [BranchNotFound, BranchNotFound]


def test_one_key_twice_at_once_is_applied_once(world: World, server: Client) -> None:
    """`one-txn-id`, where planning takes so long that another call with the same key is through before it ends."""
    landed: list[PublishedCommit | None] = []

    def slowly(txn: WriteTxn) -> Changes:
        if not landed:
            landed.append(None)
            landed[0] = server.graph.write(bob, txn_id="order-1")
        return Changes((Append(PERSON, person_rows("eve"), fresh_ids=True),))

    def bob(_: WriteTxn) -> Changes:
        return Changes((Append(PERSON, person_rows("bob"), fresh_ids=True),))

    second = server.graph.write(slowly, txn_id="order-1")

    assert landed[0] is not None
    assert second is not None
    assert second.id == landed[0].id
    assert world.client("fresh").people() == ["bob"]


def test_one_key_from_several_threads_is_one_commit(world: World, server: Client) -> None:
    def with_key() -> None:
        results.append(server.graph.write([Append(PERSON, person_rows("bob"), fresh_ids=True)], txn_id="order-1"))

    results: Outcomes = []
    threads = [threading.Thread(target=with_key) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    assert [one.id for one in results] == [results[0].id] * 8
    assert world.client("fresh").people() == ["bob"]


def test_an_interrupted_write_leaves_the_line_to_the_others(world: World, server: Client) -> None:
    """In an interactive session the process lives on: nobody must wait for a leader that never comes."""

    class Interrupted(BaseException):
        pass

    def interrupted(member: PendingCommit) -> None:
        raise Interrupted

    with server.start(lambda: server.insert("ada")) as first:
        first.run_until(a_put_of_manifest(2))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PendingCommit, "wait", interrupted)
            with pytest.raises(Interrupted):
                server.insert("bob")
        first.run_to_end()
    server.insert("cyd")

    assert world.client("fresh").people() == ["ada", "cyd"]


def test_a_group_keeps_to_its_limits(tmp_path: Any) -> None:
    world = World(tmp_path / "graph", settings=Settings(group_commits=2))
    server = world.client("server")
    with meeting(server, *(lambda n=n: server.insert(f"p{n}") for n in range(6))) as crowd:
        crowd.run_to_end()
        crowd.result()

    head = world.client("fresh").head()
    assert isinstance(head, Manifest)
    assert [len(commits_of(server, number)) for number in range(2, head.manifest_version + 1)] == [1, 2, 2, 1]
    assert len(world.client("fresh").people(MAIN)) == 6
