"""Writes that share a put: lost answers, lost races, keys that come twice, leaders that die.

The rules are `settle-by-reading`, `one-txn-id` and `confirmed-head`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import partial

import pytest

from omnigraph.errors import AccessDenied, ConstraintViolation, OutcomeUnknown, RetriesExhausted
from omnigraph.manifest.commit import commit_queue as group
from omnigraph.manifest.commit.commit_queue import CommitQueue, Committed, PendingCommit
from omnigraph.manifest.commit.plan import Append, ConflictPolicy, DataChange, PublishPlan
from omnigraph.manifest.commit.publish import PublishPolicy
from omnigraph.manifest.commit.txn import WriteOp, WriteTxn
from omnigraph.manifest.settings import Settings
from omnigraph.write.commit import Changes
from omnigraph.write.stage import Stager
from support.catalogs import PERSON, person_rows
from support.steps import Fault, LoseAnswer, LoseRequest, raising

from .concurrent_writes import Write, take_turn, together, waiting
from .schedules import (
    AN_INNER_RETRY_SAYS_EXISTS,
    APPLIED_ANSWER_LOST,
    NEITHER_APPLIED_NOR_ANSWERED,
    Client,
    World,
    refused,
)

INTERRUPTED = KeyboardInterrupt("by the user")


class InterruptedMember(PendingCommit):
    def wait(self) -> None:
        raise INTERRUPTED


def inserting(client: Client, *names: str) -> list[Write]:
    return [partial(client.insert, name) for name in names]


@pytest.mark.parametrize("fault", [APPLIED_ANSWER_LOST, AN_INNER_RETRY_SAYS_EXISTS, NEITHER_APPLIED_NOR_ANSWERED])
def test_whatever_the_answer_to_a_shared_put_every_write_is_committed_once(world: World, fault: Fault) -> None:
    client = world.client("writer")
    with together(client, *inserting(client, "ada", "bob", "cy", "dee")) as stepper:
        stepper.step()
        stepper.step(fault)
        stepper.run_to_end()
        commits = stepper.result()

    assert [commit.manifest_version for commit in commits] == [2, 3, 3, 3]
    chain = world.client("other").chain()
    assert [chain.count(commit.commit.txn_id) for commit in commits] == [1, 1, 1, 1]
    assert world.client("other").people() == ["ada", "bob", "cy", "dee"]


def test_a_group_that_lost_to_another_process_is_judged_again_on_what_won(world: World) -> None:
    client, other = world.client("writer"), world.client("other")
    with together(client, *inserting(client, "ada", "bob", "cy", "dee")) as stepper:
        stepper.step()
        other.insert("cy")
        stepper.run_to_end()
        _, bob, cy, dee = stepper.result()

    assert isinstance(cy, ConstraintViolation)
    assert (bob.id, dee.id) == (f"{world.main_id}.4.0", f"{world.main_id}.4.1")
    assert bob.cost.retries == dee.cost.retries == 1
    assert world.client("third").people() == ["ada", "bob", "cy", "dee"]


def test_giving_up_on_a_lost_answer_tells_every_write_its_own_txn_id_and_the_number_that_was_put(world: World) -> None:
    client = world.client("writer", PublishPolicy(time_limit_s=0.05))
    with together(client, *inserting(client, "ada", "bob", "bob", "cy")) as stepper:
        stepper.step()
        while not stepper.done:
            stepper.step(NEITHER_APPLIED_NOR_ANSWERED)
        ada, bob, taken, cy = stepper.result()

    assert ada.manifest_version == 2
    assert all(isinstance(error, OutcomeUnknown) and error.number == 3 for error in (bob, cy))
    assert bob.txn_id != cy.txn_id
    assert not isinstance(taken, OutcomeUnknown), "it was in no put"
    assert isinstance(taken, Exception)
    assert "nothing was written" in str(taken)


def test_a_refusal_by_the_store_is_everybodys_and_nobody_shares_the_error_itself(world: World) -> None:
    client = world.client("writer")
    with together(client, *inserting(client, "ada", "bob", "cy")) as stepper:
        stepper.step()
        while not stepper.done:
            stepper.step(refused(AccessDenied("the store", "403")))
        _, bob, cy = stepper.result()

    assert isinstance(bob, AccessDenied)
    assert isinstance(cy, AccessDenied)
    assert bob is not cy
    assert str(bob) == str(cy)
    assert world.client("other").people() == ["ada"]


def test_the_same_idempotency_key_twice_in_a_group_is_one_commit(world: World) -> None:
    client = world.client("writer")
    writes = [partial(client.graph.write, [Append(PERSON, person_rows(name))], txn_id="key") for name in ("bob", "bob")]
    with together(client, partial(client.insert, "ada"), *writes, partial(client.insert, "cy")) as stepper:
        stepper.run_to_end()
        _, one, two, cy = stepper.result()

    assert one.id == two.id
    assert cy.id == f"{world.main_id}.3.1"
    assert world.client("other").chain().count("key") == 1


def test_a_key_that_is_committed_while_its_other_call_waits_in_line_is_not_put_again(world: World) -> None:
    client = world.client("writer")

    def write() -> object:
        rows = [Append(PERSON, person_rows("ada"), fresh_ids=True)]
        return client.graph.write(rows, txn_id="key")

    with together(client, write, write, partial(client.insert, "bob")) as stepper:
        stepper.run_to_end()
        one, two, bob = stepper.result()

    assert one.id == two.id == f"{world.main_id}.2"
    assert bob.manifest_version == 3
    assert world.client("other").chain().count("key") == 1


def test_a_key_that_another_process_commits_first_is_found_there(world: World) -> None:
    client, other = world.client("writer"), world.client("other")
    rows = [Append(PERSON, person_rows("bob"), fresh_ids=True)]
    keyed = partial(client.graph.write, rows, txn_id="key")
    with together(client, partial(client.insert, "ada"), keyed, partial(client.insert, "cy")) as stepper:
        stepper.step()
        there = other.graph.write(rows, txn_id="key")
        stepper.run_to_end()
        _, here, cy = stepper.result()

    assert there is not None
    assert here.id == there.id == f"{world.main_id}.3"
    assert cy.id == f"{world.main_id}.4"
    assert world.client("third").chain().count("key") == 1


def test_if_the_leader_is_interrupted_before_the_put_the_others_go_on_without_it(world: World) -> None:
    client = world.client("writer")

    def interrupted_when_planned_again(txn: WriteTxn) -> Changes:
        planned.append(txn)
        if len(planned) > 1:
            raise INTERRUPTED
        return Changes((Append(PERSON, person_rows("bob")),), read_rows=frozenset({PERSON}))

    planned: list[object] = []
    leader = partial(client.graph.write, interrupted_when_planned_again)
    with together(client, partial(client.insert, "ada"), leader, *inserting(client, "cy", "dee")) as stepper:
        stepper.run_to_end()
        _, interrupted, cy, dee = stepper.result()

    assert interrupted is INTERRUPTED
    assert (cy.id, dee.id) == (f"{world.main_id}.3.0", f"{world.main_id}.3.1")
    assert waiting(client) is None


@pytest.mark.parametrize("fault", [LoseAnswer(raising(INTERRUPTED)), LoseRequest(raising(INTERRUPTED))])
def test_if_the_leader_is_interrupted_in_its_put_no_write_reports_more_than_is_known(
    world: World, fault: Fault
) -> None:
    client = world.client("writer")
    with together(client, *inserting(client, "ada", "bob", "cy", "cy")) as stepper:
        stepper.step()
        stepper.step(fault)
        stepper.run_to_end()
        _, bob, cy, twice = stepper.result()

    assert bob is INTERRUPTED
    assert isinstance(cy, OutcomeUnknown)
    assert cy.number == 3
    landed = isinstance(fault, LoseAnswer)
    assert isinstance(twice, ConstraintViolation) == landed, "it was in no put, so it is judged again"
    assert world.client("other").people() == (["ada", "bob", "cy"] if landed else ["ada", "cy"])


def test_a_write_that_is_interrupted_while_it_waits_leaves_the_line_and_nobody_waits_for_it(world: World) -> None:
    client = world.client("writer")
    lines, outcome = CommitQueue(Settings()), Committed(client.head())
    begun, go_on = threading.Event(), threading.Event()
    landed: list[int] = []

    def land(group: Sequence[PendingCommit]) -> None:
        begun.set()
        go_on.wait(10)
        for member in group:
            landed.append(member.losses)
            member.outcome = outcome

    def member(number: int) -> PendingCommit:
        return PendingCommit(client.graph.begin(), plan, WriteOp(), 0.0, 60.0, losses=number)

    plan = _some_plan(client)
    interrupted = InterruptedMember(client.graph.begin(), plan, WriteOp(), 0.0, 60.0)
    threads = [threading.Thread(target=take_turn, args=(lines, member(0), land))]
    threads[0].start()
    assert begun.wait(10)
    with pytest.raises(KeyboardInterrupt):
        take_turn(lines, interrupted, land)
    threads.append(threading.Thread(target=take_turn, args=(lines, member(2), land)))
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert landed == [0, 2]


def test_a_leader_that_is_done_names_nobody_so_that_no_write_waits_for_the_collector(world: World) -> None:
    client = world.client("writer")
    outcome = Committed(client.head())
    led: list[int] = []

    def land(group: Sequence[PendingCommit]) -> None:
        led.append(len(group))
        for one in group:
            one.outcome = outcome

    member = PendingCommit(client.graph.begin(), _some_plan(client), WriteOp(), 0.0, 60.0)

    assert take_turn(CommitQueue(Settings()), member, land) is outcome
    assert (led, member.batch) == ([1], ())


def test_a_leader_whose_time_is_spent_puts_the_write_that_is_left_and_not_its_own(world: World) -> None:
    client = world.client("writer")
    base, publisher = client.graph.begin(), client.repository.publisher
    late, other = (
        PendingCommit(base, _some_plan(client, name, name), WriteOp(), time.monotonic() + 60.0, 60.0)
        for name in ("late", "other")
    )
    late.losses, late.deadline = 1, -1.0

    publisher._run([late, other])

    assert isinstance(late.outcome, RetriesExhausted)
    assert isinstance(other.outcome, Committed)
    assert world.client("other").people() == ["other"]


def test_a_leader_interrupted_while_it_hands_over_leaves_nobody_waiting(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = world.client("writer")
    lines, base, plan = CommitQueue(Settings()), client.graph.begin(), _some_plan(client)
    begun, go_on = threading.Event(), threading.Event()
    told: list[object] = []
    interrupts = iter([INTERRUPTED])

    def unknown(*what: object) -> OutcomeUnknown:
        for interrupt in interrupts:
            raise interrupt
        return OutcomeUnknown(*what)  # type: ignore[arg-type]

    def land(members: Sequence[PendingCommit]) -> None:
        if not begun.is_set():
            begun.set()
            assert go_on.wait(10)
            members[0].outcome = Committed(client.head())
            return
        for member in members:
            member.put_at = 2  # and nobody hears what became of it

    def join() -> None:
        try:
            told.append(take_turn(lines, PendingCommit(base, plan, WriteOp(), 0.0, 60.0), land))
        except (AssertionError, KeyboardInterrupt) as error:
            told.append(error)

    monkeypatch.setattr(group, "OutcomeUnknown", unknown)
    threads = [threading.Thread(target=join, daemon=True) for _ in range(4)]
    for number, thread in enumerate(threads):
        thread.start()
        assert begun.wait(10)
        while len(lines._waiting[world.main_id]) < number:
            pass
    go_on.set()
    for thread in threads:
        thread.join(10)

    assert len(told) == 4, "somebody waits for ever"
    assert told.count(INTERRUPTED) == 1
    assert not lines._waiting


def test_three_hundred_that_wait_are_taken_in_the_order_of_their_arrival(world: World) -> None:
    client = world.client("writer")
    lines, outcome = CommitQueue(Settings()), Committed(client.head())
    plan, go_on, sizes = _some_plan(client), threading.Event(), []
    order: list[int] = []
    base = client.graph.begin()

    def land(group: Sequence[PendingCommit]) -> None:
        go_on.wait(10)
        sizes.append(len(group))
        for member in group:
            order.append(member.losses)
            member.outcome = outcome

    threads = []
    for number in range(301):
        member = PendingCommit(base, plan, WriteOp(), 0.0, 60.0, losses=number)
        threads.append(threading.Thread(target=take_turn, args=(lines, member, land)))
        threads[-1].start()
        while len(lines._waiting.get(world.main_id, ())) < number:
            pass
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert order == list(range(301))
    assert sizes == [1, 256, 44]


def _some_plan(client: Client, name: str = "ada", txn_id: str = "some") -> PublishPlan:
    plan = PublishPlan(
        txn_id, ConflictPolicy.CONSTRUCTIVE, DataChange("test", (Append(PERSON, person_rows(name), True),))
    )
    return Stager(client.repository.tables, client.repository.runtime.ids).stage(client.graph.begin(), plan)
