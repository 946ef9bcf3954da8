"""`settle-by-reading`: whatever the answer to a put, unless it is "created", read N+1 first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from omnigraph.errors import AccessDenied, BadRequest, OmnigraphError, OutcomeUnknown, StorageFull, Unavailable
from omnigraph.manifest.commit.publish import PublishedCommit, PublishPolicy
from omnigraph.storage.location import parse_location
from omnigraph.storage.objects.object_store import ObjectStore, PutOutcome, PutResult, TransientError
from support.steps import Fault, Stepper

from .schedules import (
    AN_INNER_RETRY_SAYS_EXISTS,
    APPLIED_ANSWER_LOST,
    NEITHER_APPLIED_NOR_ANSWERED,
    START,
    Client,
    World,
    a_put_of_manifest,
    refused,
)

IMPATIENT = PublishPolicy(time_limit_s=0.05)
DENIED = AccessDenied("the store", "403")
DOWN = Unavailable("the store", "503")
TOKEN_EXPIRED = BadRequest("The store refused (400 ExpiredToken)")


def assert_committed_once(world: World, commit: PublishedCommit, number: int) -> None:
    fresh = world.client("fresh")
    assert commit.manifest_version == number
    assert fresh.chain().count(commit.commit.txn_id) == 1
    assert fresh.graph.commit(commit.id) == commit.commit


def run_with(stepper: Stepper[PublishedCommit], *, puts: Fault | None = None, reads: Fault | None = None) -> None:
    """Go on to the end with every put and every read meeting the same fate."""
    while (call := stepper.next) is not None:
        stepper.step(puts if call.method == "create" else reads)


def at_its_put(client: Client, person: str = "ada") -> Stepper[PublishedCommit]:
    stepper = client.start(lambda: client.insert(person))
    stepper.run_until(a_put_of_manifest(2))
    return stepper


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(AN_INNER_RETRY_SAYS_EXISTS, id="an inner retry answers that our own put exists"),
        pytest.param(APPLIED_ANSWER_LOST, id="applied, and the answer lost"),
    ],
)
def test_a_put_that_succeeded_is_found_by_its_txn_id_and_reported_and_applied_once(world: World, fault: Fault) -> None:
    writer = world.client("writer")
    with at_its_put(writer) as stepper:
        stepper.step(fault)
        assert world.told(stepper.run_to_end()) == ["get main/2"]

        assert_committed_once(world, stepper.result(), 2)

    assert writer.head().manifest_version == 2
    assert writer.people() == world.client("other").people() == ["ada"]


def test_a_put_that_was_lost_goes_to_the_same_number_again_with_the_same_body(world: World) -> None:
    writer = world.client("writer")
    with at_its_put(writer) as stepper:
        files = world.table_files()
        stepper.step(NEITHER_APPLIED_NOR_ANSWERED)
        assert world.told(stepper.run_to_end()) == ["get main/2", "create main/2"]

        commit = stepper.result()

    assert_committed_once(world, commit, 2)
    assert writer.clock.at > START, "it waited"
    assert commit.commit.authored_at == START, "but did not compose anew"
    assert world.table_files() == files, "nor stage anew"


def test_a_put_that_takes_effect_after_it_was_seen_absent_is_not_applied_twice(world: World) -> None:
    writer = world.client("writer")
    target = world.manifest_path(2)
    under_way = target.with_name("late")
    with at_its_put(writer) as stepper:
        stepper.step(APPLIED_ANSWER_LOST)
        target.rename(under_way)
        assert world.told([stepper.step()]) == ["get main/2"]  # absent
        under_way.rename(target)  # now it lands
        assert world.told(stepper.run_to_end()) == ["create main/2", "get main/2"]

        assert_committed_once(world, stepper.result(), 2)

    assert writer.people() == ["ada"]


def test_a_late_put_finds_its_number_taken_by_its_own_second_try(world: World) -> None:
    writer, network = world.client("writer"), world.client("network")
    target = world.manifest_path(2)
    with at_its_put(writer) as stepper:
        stepper.step(NEITHER_APPLIED_NOR_ANSWERED)
        stepper.run_to_end()
        commit = stepper.result()

    late = network.repository.store.create(str(target.relative_to(world.root)), target.read_bytes())

    assert late.outcome is PutOutcome.EXISTS
    assert_committed_once(world, commit, 2)


def test_a_lost_put_whose_number_another_took_goes_on_by_the_conflict_rules(world: World) -> None:
    writer, other = world.client("writer"), world.client("other")
    with at_its_put(writer) as stepper:
        stepper.step(NEITHER_APPLIED_NOR_ANSWERED)
        stepper.step()  # absent
        other.insert("bob")
        stepper.run_to_end()

        assert_committed_once(world, stepper.result(), 3)

    assert writer.people() == ["ada", "bob"]


def test_giving_up_says_that_the_outcome_is_unknown_and_names_what_to_ask_for(world: World) -> None:
    writer = world.client("writer", IMPATIENT)
    with at_its_put(writer) as stepper:
        run_with(stepper, puts=NEITHER_APPLIED_NOR_ANSWERED)
        with pytest.raises(OutcomeUnknown) as unknown:
            stepper.result()

    error = unknown.value
    assert (error.branch, error.number, error.code) == ("main", 2, "outcome_unknown")
    commit = writer.insert("ada", txn_id=error.txn_id)
    assert commit.commit.txn_id == error.txn_id
    assert_committed_once(world, commit, 2)


def test_a_commit_that_was_reported_unknown_is_found_by_its_txn_id(world: World) -> None:
    writer = world.client("writer", IMPATIENT)
    with at_its_put(writer) as stepper:
        stepper.step(APPLIED_ANSWER_LOST)
        run_with(stepper, puts=refused(DOWN), reads=refused(DOWN))
        with pytest.raises(OutcomeUnknown) as unknown:
            stepper.result()

    again = world.client("again").insert("ada", txn_id=unknown.value.txn_id)

    assert_committed_once(world, again, 2)
    assert world.client("reader").head().manifest_version == 2


@pytest.mark.parametrize("answer", [APPLIED_ANSWER_LOST, AN_INNER_RETRY_SAYS_EXISTS], ids=["lost", "exists"])
@pytest.mark.parametrize("later", [DOWN, DENIED, TOKEN_EXPIRED], ids=["unavailable", "denied", "token expired"])
def test_a_commit_that_may_exist_is_never_reported_as_a_failure(
    world: World, answer: Fault, later: OmnigraphError
) -> None:
    writer = world.client("writer", IMPATIENT)
    with at_its_put(writer) as stepper:
        stepper.step(answer)
        run_with(stepper, puts=refused(later), reads=refused(later))

        with pytest.raises(OutcomeUnknown) as unknown:
            stepper.result()

    assert (unknown.value.branch, unknown.value.number) == ("main", 2)
    assert world.client("other").people() == ["ada"]


@pytest.mark.parametrize("later", [DOWN, DENIED], ids=["unavailable", "denied"])
def test_a_lost_put_is_not_a_failure_either_while_it_may_land_later(world: World, later: OmnigraphError) -> None:
    writer = world.client("writer", IMPATIENT)
    with at_its_put(writer) as stepper:
        stepper.step(NEITHER_APPLIED_NOR_ANSWERED)
        run_with(stepper, puts=refused(later))
        with pytest.raises(OutcomeUnknown):
            stepper.result()


def test_settlement_goes_on_when_the_store_comes_back(world: World) -> None:
    writer = world.client("writer")
    with at_its_put(writer) as stepper:
        stepper.step(APPLIED_ANSWER_LOST)
        stepper.step(refused(DOWN))  # the read of 2
        stepper.step(refused(DENIED))  # the put of 2
        assert world.told(stepper.run_to_end()) == ["get main/2"]

        assert_committed_once(world, stepper.result(), 2)


@pytest.mark.parametrize("refusal", [DENIED, StorageFull("the disk", "ENOSPC")], ids=["denied", "full"])
def test_a_first_put_that_the_store_refuses_is_a_plain_failure_and_writes_nothing(
    world: World, refusal: OmnigraphError
) -> None:
    writer = world.client("writer")
    with at_its_put(writer) as stepper:
        run_with(stepper, puts=refused(refusal))
        with pytest.raises(type(refusal)):
            stepper.result()

    assert world.client("other").head().manifest_version == 1


def test_a_store_that_denies_everything_from_the_first_put_on_is_reported_at_once(world: World) -> None:
    writer = world.client("writer")
    with at_its_put(writer) as stepper:
        run_with(stepper, puts=refused(DENIED), reads=refused(DENIED))
        with pytest.raises(AccessDenied):
            stepper.result()

    assert writer.clock.elapsed_s == 0.0


def test_a_refusal_that_hides_our_own_commit_is_seen_through(world: World) -> None:
    """A disk that is full when the directory is synced has linked the manifest already."""
    writer = world.client("writer")
    with at_its_put(writer) as stepper:
        full = replace(APPLIED_ANSWER_LOST, outcome=refused(StorageFull("the disk", "ENOSPC")).outcome)
        stepper.step(full)
        stepper.run_to_end()

        assert_committed_once(world, stepper.result(), 2)


def test_the_store_itself_never_repeats_a_conditional_put(tmp_path: Path) -> None:
    class Cut:
        puts = 0

        def create(self, key: str, data: bytes) -> PutResult:
            self.puts += 1
            raise TransientError("cut")

    backend = Cut()
    answer = ObjectStore(parse_location(tmp_path), backend).create("k", b"")  # type: ignore[arg-type]

    assert (answer.outcome, backend.puts) == (PutOutcome.UNKNOWN, 1)
