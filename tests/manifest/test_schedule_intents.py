"""`intent-tokens`, publishing an intent's plan: whichever start does it, however late: applied once, or discarded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from omnigraph.errors import (
    BadRequest,
    ConflictError,
    ConstraintViolation,
    JobDiscarded,
    JobLost,
    JobRunning,
    NotFound,
)
from omnigraph.gc.recovery import end_job
from omnigraph.graph.graph import Graph
from omnigraph.manifest import repository as repository_module
from omnigraph.manifest.commit.plan import Append, ConflictPolicy, DataChange, PublishPlan, Upsert
from omnigraph.manifest.commit.publish import PublishedCommit, PublishPolicy
from omnigraph.manifest.commit.txn import WriteOp, WriteTxn
from omnigraph.manifest.intent.guard import JobGuard
from omnigraph.manifest.intent.intent_store import OwnedIntent
from omnigraph.manifest.model.manifest import Manifest, Point, Stub, TableKey
from omnigraph.manifest.repository import Repository, init_repository
from omnigraph.pipeline.bulk.load_intent import take_after_discard
from omnigraph.schema.catalog import Schema
from omnigraph.storage.location import parse_location
from omnigraph.storage.meter import Cost
from omnigraph.storage.objects.object_store import open_store
from omnigraph.write.stage import Stager
from omnigraph.write.validate.checks import IdsAbsent, run_checks
from support.catalogs import PERSON, people, person_rows
from support.s3 import S3Location
from support.steps import Gate, SteppedStore

from .schedules import (
    NEITHER_APPLIED_NOR_ANSWERED,
    STAGED,
    Client,
    World,
    a_put_of_manifest,
    seeded_runtime,
    stand_in_cleanup,
)


class S3World(World):
    """The cast of a schedule on a graph in S3."""

    def __init__(self, s3: S3Location) -> None:
        self._s3 = s3
        made = init_repository(s3.uri, Schema(people()), s3.options, runtime=seeded_runtime("init"))
        self.main_id = made.stamp.main_id

    def cold_client(self, name: str, policy: PublishPolicy | None = None) -> Client:
        runtime, gate = seeded_runtime(name), Gate()
        store: Any = SteppedStore(open_store(parse_location(self._s3.uri, self._s3.options), runtime), gate)
        repository = Repository(store, repository_module._read_stamp(store), runtime=runtime, policy=policy)
        return Client(name, Graph(repository, Cost()), gate)


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.s3)])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return World(tmp_path / "graph") if request.param == "local" else S3World(request.getfixturevalue("s3"))


class Driver(WriteOp):
    """A long write as a bulk load does it: an intent, staged work, one publish; it can be resumed elsewhere."""

    def __init__(self, client: Client, held: OwnedIntent, txn: WriteTxn) -> None:
        self._client, self.held, self.txn = client, held, txn
        self._stager = Stager(client.repository.tables, client.repository.runtime.ids, STAGED)
        self.staged_again: list[bool] = []
        self.planned: list[int] = []

    @classmethod
    def start(cls, client: Client) -> Driver:
        txn = client.repository.open_txn()
        return cls(client, client.repository.intents.acquire(txn, "job", kind="load", actor="ada"), txn)

    def release(self) -> None:
        """Though its client sleeps: as good as dead."""
        stepped = self.held._store
        self.held._store = self._client.repository.store._inner  # type: ignore[attr-defined]
        assert self.held.release()
        self.held._store = stepped

    @property
    def guard(self) -> JobGuard:
        return JobGuard(self._client.repository.manifests, self.held, self.held.base)

    def plan(self, txn: WriteTxn) -> PublishPlan:
        self.planned.append(txn.base.manifest_version)
        plan = PublishPlan(
            "job",
            ConflictPolicy.CONSTRUCTIVE,
            DataChange("load", (Append(PERSON, person_rows("ada")),)),
            checks=(IdsAbsent(PERSON, frozenset({"ada"})),),
            intent=self.held.intent.tokens[0],
            guard=self.guard,
            token=self.held.token,
        )
        return self._stager.stage(txn, plan)

    def publish(self) -> PublishedCommit:
        return self.put(self.plan(self.txn))

    def put(self, plan: PublishPlan) -> PublishedCommit:
        commit = self._client.repository.publisher.publish(self.txn, plan, self)
        assert commit is not None
        return commit

    def validate(self, txn: WriteTxn, plan: PublishPlan) -> None:
        run_checks(plan.checks, txn, self._client.repository.tables)

    def restage(self, txn: WriteTxn, plan: PublishPlan, tables: frozenset[TableKey], from_scratch: bool) -> PublishPlan:
        self.staged_again.append(from_scratch)
        return self._stager.restage(txn, plan, tables, from_scratch)


def another_goes_on(world: World, driver: Driver) -> PublishedCommit:
    """Its owner counts as dead; somebody resumes the job and finishes it."""
    driver.release()
    other = Driver.start(world.client("resumer"))
    assert other.held.resumed
    commit = other.publish()
    other.held.finish()
    return commit


def nothing(world: World) -> None:
    pass


def others_commit(world: World) -> None:
    for name in ("bob", "cleo", "dora"):
        world.client(name).insert(name)


def others_commit_and_stubs_are_made(world: World) -> None:
    others_commit(world)
    stand_in_cleanup(world.client("cleaner"))


def others_commit_for_days(world: World) -> None:
    for day, name in enumerate(("bob", "cleo", "dora"), start=2):
        client = world.client(name)
        client.clock.pass_time(days=day)
        client.insert(name)


AFTERWARDS = [nothing, others_commit, others_commit_and_stubs_are_made, others_commit_for_days]


@pytest.mark.parametrize("afterwards", AFTERWARDS)
def test_a_writer_that_was_only_asleep_finds_that_its_load_was_applied(
    world: World, afterwards: Callable[[World], None]
) -> None:
    client = world.client("writer")
    driver = Driver.start(client)
    with client.start(driver.publish) as asleep:
        asleep.run_until(a_put_of_manifest(2))
        landed = another_goes_on(world, driver)
        afterwards(world)
        asleep.run_to_end()
        commit = asleep.result()

    assert commit.commit == landed.commit
    assert driver.planned == [1]
    assert world.client("fresh").chain().count("job") == 1


@pytest.mark.parametrize("afterwards", AFTERWARDS)
def test_a_writer_that_falls_asleep_before_it_captures_its_base_finds_it_too(
    world: World, afterwards: Callable[[World], None]
) -> None:
    client = world.client("writer")
    driver = Driver.start(client)
    landed = another_goes_on(world, driver)
    afterwards(world)
    client.clock.pass_time(days=9)
    driver.txn = client.repository.open_txn()

    commit = driver.put(driver.plan(driver.txn))

    assert commit.commit == landed.commit
    assert world.client("fresh").chain().count("job") == 1


def test_to_ask_before_planning_finds_it_in_a_stub_of_long_ago(world: World) -> None:
    client = world.client("writer")
    driver = Driver.start(client)
    landed = another_goes_on(world, driver)
    others_commit_for_days(world)
    stand_in_cleanup(world.client("cleaner"))
    client.clock.pass_time(days=9)
    txn = client.repository.open_txn()
    assert isinstance(client.stored(txn.base.branch_id, landed.manifest_version), Stub)

    found = client.repository.publisher.find_earlier_commit(txn, "job", driver.held.base)

    assert found is not None
    assert found.commit == landed.commit
    assert client.repository.publisher.find_earlier_commit(txn, "job") is None, "a day is over"


def test_a_sleepers_late_put_that_comes_first_is_found_by_the_writer_that_went_on(world: World) -> None:
    client, resumer = world.client("writer"), world.client("resumer")
    driver = Driver.start(client)
    with client.start(driver.publish) as asleep:
        asleep.run_until(a_put_of_manifest(2))
        driver.release()
        other = Driver.start(resumer)
        with resumer.start(other.publish) as second:
            second.run_until(a_put_of_manifest(2))
            asleep.step()  # the late put lands
            second.run_to_end()
            commit = second.result()
        asleep.run_to_end()
        assert asleep.result().commit == commit.commit

    assert world.client("fresh").chain().count("job") == 1
    assert world.client("fresh").people() == ["ada"]


def test_a_late_put_below_a_commit_is_found_before_the_next_put(world: World) -> None:
    """The resumer's own first try is lost on the way; the sleeper's lands there, and somebody else's on top."""
    client, resumer = world.client("writer"), world.client("resumer")
    driver = Driver.start(client)
    with client.start(driver.publish) as asleep:
        asleep.run_until(a_put_of_manifest(2))
        driver.release()
        other = Driver.start(resumer)
        with resumer.start(other.publish) as second:
            second.run_until(a_put_of_manifest(2))
            second.step(NEITHER_APPLIED_NOR_ANSWERED)
            asleep.step()
            world.client("bob").insert("bob")
            second.run_to_end()
            commit = second.result()

    assert (commit.manifest_version, other.planned) == (2, [1])
    assert world.client("fresh").people() == ["ada", "bob"]


def test_without_its_intents_base_the_same_load_would_break_its_own_constraint(world: World) -> None:
    client = world.client("writer")
    driver = Driver.start(client)
    another_goes_on(world, driver)
    driver.txn = client.repository.open_txn()
    again = driver.plan(driver.txn)

    with pytest.raises(ConstraintViolation):
        run_checks(again.checks, driver.txn, client.repository.tables)

    assert driver.put(again).manifest_version == 2


def test_a_plan_that_would_change_nothing_is_answered_with_the_commit_that_did(world: World) -> None:
    client = world.client("writer")
    driver = Driver.start(client)
    landed = another_goes_on(world, driver)
    plan = PublishPlan("job", ConflictPolicy.CONSTRUCTIVE, DataChange("load"), intent="x", guard=driver.guard)
    driver.txn = client.repository.open_txn()
    assert plan.changes_nothing

    assert driver.put(plan).commit == landed.commit


def test_a_plan_that_is_made_again_keeps_its_intent(world: World) -> None:
    client = world.client("writer")
    driver = Driver.start(client)
    plans: list[PublishPlan] = []

    class Replanned(WriteOp):
        can_replan = True

        def plan(self, txn: WriteTxn) -> PublishPlan:
            plan = PublishPlan(
                "another id",
                ConflictPolicy.CONSTRUCTIVE,
                DataChange("load", (Upsert(PERSON, person_rows("ada")),)),
                read_rows=frozenset({PERSON}),
            )
            plans.append(driver._stager.stage(txn, plan))
            return plans[-1]

        def restage(
            self, txn: WriteTxn, plan: PublishPlan, tables: frozenset[TableKey], from_scratch: bool
        ) -> PublishPlan:
            return driver.restage(txn, plan, tables, from_scratch)

    first = PublishPlan(
        "job", ConflictPolicy.CONSTRUCTIVE, Replanned().plan(driver.txn).change,
        read_rows=frozenset({PERSON}), guard=driver.guard,
        intent=driver.held.intent.tokens[0],
    )  # fmt: skip
    publisher = client.repository.publisher
    with client.start(lambda: publisher.publish(driver.txn, first, Replanned())) as stalled:
        stalled.run_until(a_put_of_manifest(2))
        world.client("bob").insert("bob")
        stalled.run_until(a_put_of_manifest(3))
        assert len(plans) == 2
        landed = another_goes_on(world, driver)
        stalled.run_to_end()
        commit = stalled.result()

    assert commit is not None
    assert commit.commit == landed.commit
    assert len(plans) == 2


# Fences


def honoured_by(cleaner: Client) -> tuple[str, ...]:
    """What a cleanup spares: all starts of intents that are not over."""
    open_ = [seen.intent for seen in cleaner.repository.intents.list() if not seen.closed]
    return tuple(token for intent in open_ for token in intent.tokens)


def test_staged_work_is_used_as_it_is_when_its_intent_was_honoured(world: World) -> None:
    client, cleaner = world.client("writer"), world.client("cleaner")
    client.insert("base")
    driver = Driver.start(client)
    plan = driver.plan(driver.txn)
    stand_in_cleanup(cleaner, oldest_retained=1, honoured=honoured_by(cleaner))

    commit = driver.put(plan)

    assert commit.manifest_version == 4
    assert driver.staged_again == []
    assert client.head().tables[PERSON].stored == plan.staged[PERSON].at


def test_a_resumed_publish_from_the_first_base_obeys_fences_like_the_writer(world: World) -> None:
    """Who goes on bases his plan on the manifest that the intent pins, so that every fence since then counts."""
    client, cleaner, resumer = world.client("writer"), world.client("cleaner"), world.client("resumer")
    client.insert("base")
    driver = Driver.start(client)
    plan = driver.plan(driver.txn)
    driver.release()
    stand_in_cleanup(cleaner, oldest_retained=1)  # that it did not honour it: it had been declared dead for good

    resumed = Driver.start(resumer)
    first = resumer.stored(resumed.held.base.branch_id, resumed.held.base.manifest_version)
    assert isinstance(first, Manifest)
    resumed.txn = WriteTxn(first, resumed.txn.schema)
    commit = resumed.put(replace(plan, guard=resumed.guard, token=resumed.held.token))

    assert resumed.staged_again == [True]
    assert commit.manifest_version == 4
    assert world.client("fresh").people() == ["ada", "base"]


def test_work_that_an_earlier_start_staged_survives_a_fence_that_honoured_that_start(world: World) -> None:
    client, cleaner, resumer = world.client("writer"), world.client("cleaner"), world.client("resumer")
    client.insert("base")
    driver = Driver.start(client)
    plan = driver.plan(driver.txn)
    stand_in_cleanup(cleaner, oldest_retained=1, honoured=honoured_by(cleaner))
    driver.release()

    resumed = Driver.start(resumer)
    resumed.txn = driver.txn
    resumed.put(replace(plan, guard=resumed.guard, token=resumed.held.token))

    assert resumed.staged_again == []
    assert resumed.held.token != plan.intent == driver.held.token


# Discards


def discarded(client: Client) -> str | None:
    """What a discard of the job as it is answers; None if there is nothing to discard, or it was taken up meanwhile."""
    seen = client.repository.intents.read("job")
    ended = None if seen is None or seen.ended else end_job(client.repository, seen)
    return None if ended is None else ended.outcome


def published(driver: Driver, plan: PublishPlan) -> str:
    try:
        driver.put(plan)
    except (JobDiscarded, JobLost) as error:
        return type(error).__name__
    return "committed"


PUBLISHES = 5  # requests: the number on top, the intent, the put; and after a loss the new head and the intent
DISCARDS = 8


@pytest.mark.parametrize("steps", range(PUBLISHES + 2))
def test_a_discard_after_any_request_of_a_publish_excludes_it_or_finds_its_commit(world: World, steps: int) -> None:
    client = world.client("writer")
    driver = Driver.start(client)
    plan = driver.plan(driver.txn)
    with client.start(lambda: published(driver, plan)) as stalled:
        for _ in range(steps):
            if not stalled.done:
                stalled.step()
        outcome = discarded(world.client("operator"))
        stalled.run_to_end()
        answer = stalled.result()

    chain = world.client("fresh").chain()
    assert chain.count("job") == (1 if answer == "committed" else 0)
    assert outcome == ("landed" if answer == "committed" else "discarded")
    assert answer in ("committed", "JobDiscarded", "JobLost")


@pytest.mark.parametrize("steps", range(DISCARDS + 2))
@pytest.mark.parametrize("again", [False, True], ids=["the writer wakes", "the job is started again"])
def test_a_publish_after_any_request_of_a_discard_is_excluded_or_found(world: World, steps: int, again: bool) -> None:
    client, operator = world.client("writer"), world.client("operator")
    driver = Driver.start(client)
    plan = driver.plan(driver.txn)
    with operator.start(lambda: discarded(operator)) as stalled:
        for _ in range(steps):
            if not stalled.done:
                stalled.step()
        answer = published(driver, plan)
        second = world.client("second")
        started = start_again(world, second, driver) if again else None
        stalled.run_to_end()
        outcome = stalled.result()

    chain = world.client("fresh").chain()
    assert chain.count("job") == [answer, started].count("committed") <= 1
    if answer == "committed":
        assert outcome in ("landed", None), "None: it was over when the operator looked"
    if outcome == "discarded":
        assert answer in ("JobDiscarded", "JobLost")


def start_again(world: World, client: Client, first: Driver) -> str:
    """Another start of the job, as a load does it: a discard that has begun is ended first."""
    try:
        held = take_after_discard(client.repository, "job", lambda: Driver.start(client).held)
    except JobRunning:  # the first start is still alive, as far as anybody knows
        return "running"
    driver = Driver(client, held, client.repository.open_txn())
    if client.repository.publisher.find_earlier_commit(driver.txn, "job", Point(world.main_id, 0)) is not None:
        return "committed before"
    try:
        return published(driver, driver.plan(driver.txn))
    finally:
        held.finish()


def test_two_discards_at_once_are_recorded_once(world: World) -> None:
    one, other = world.client("one"), world.client("other")
    Driver.start(world.client("writer")).release()
    with one.start(lambda: discarded(one)) as first, other.start(lambda: discarded(other)) as second:
        first.run_until(a_put_of_manifest(2))
        second.run_until(a_put_of_manifest(2))
        first.run_to_end()
        second.run_to_end()
        assert (first.result(), second.result()) == ("discarded", "discarded")

    fresh = world.client("fresh")
    assert [txn_id for txn_id in fresh.chain() if txn_id.startswith("discard ")] == fresh.chain()[1:]
    assert len(fresh.chain()) == 2


def test_a_discard_names_the_starts_that_were_taken_over_from_too(world: World) -> None:
    client = world.client("writer")
    driver = Driver.start(client)
    plan = driver.plan(driver.txn)
    driver.release()
    second = Driver.start(world.client("second"))
    second.release()

    assert discarded(world.client("operator")) == "discarded"

    assert client.head().discards == (driver.held.token, second.held.token)
    assert published(driver, plan) == "JobDiscarded"


def test_a_discard_of_a_job_that_is_started_again_does_not_stop_the_new_start(world: World) -> None:
    client = world.client("writer")
    driver = Driver.start(client)
    plan = driver.plan(driver.txn)
    driver.release()
    discarded(world.client("operator"))
    second = Driver.start(world.client("second"))
    stand_in_cleanup(world.client("cleaner"))

    assert published(driver, plan) == "JobDiscarded", "though the record is a stub by now"
    assert published(second, second.plan(second.txn)) == "committed"
    assert world.client("fresh").people() == ["ada"]


def test_a_discard_does_not_answer_before_it_is_in_the_log(world: World) -> None:
    operator = world.client("operator")
    Driver.start(world.client("writer")).release()
    with operator.start(lambda: discarded(operator)) as stalled:
        calls = world.told(stalled.run_to_end())

    changes = [call for call in calls if call.split()[0] in ("replace", "create", "delete")]
    assert changes == ["replace __recovery/job.json", "create main/2", "replace __recovery/job.json"]


def test_a_put_is_preceded_by_the_log_and_then_the_intent(world: World) -> None:
    client = world.client("writer")
    driver = Driver.start(client)
    plan = driver.plan(driver.txn)
    with client.start(lambda: published(driver, plan)) as stalled:
        stalled.run_until(a_put_of_manifest(2))
        for name in ("bob", "cleo"):
            world.client(name).insert(name)
        calls = world.told(stalled.run_to_end())

    assert calls[calls.index("create main/4") - 1] == "get __recovery/job.json"
    assert "get main/3" in calls[: calls.index("create main/4")]


# Branches


def test_a_job_of_a_branch_that_was_deleted_and_made_again_is_refused(world: World) -> None:
    client = world.client("writer")
    client.graph.branches.create("b")
    txn = client.repository.open_txn("b")
    held = client.repository.intents.acquire(txn, "job", kind="load")
    client.graph.branches.delete("b")
    client.graph.branches.create("b")
    again = client.repository.open_txn("b")
    guard = JobGuard(client.repository.manifests, held, held.base)
    plan = PublishPlan("job", ConflictPolicy.CONSTRUCTIVE, DataChange("load"), intent=held.token, guard=guard)

    with pytest.raises(ConflictError, match="'b' that was deleted since"):
        client.repository.publisher.publish(again, plan)


def test_a_job_is_gone_on_with_on_its_own_branch_only(world: World) -> None:
    client = world.client("writer")
    client.graph.branches.create("b")
    intents = client.repository.intents
    intents.acquire(client.repository.open_txn("b"), "job", kind="load").release()

    with pytest.raises(BadRequest, match="begun on the branch 'b'"):
        intents.acquire(client.repository.open_txn(), "job", kind="load")

    assert intents.acquire(client.repository.open_txn("b"), "job", kind="load").resumed


def test_opening_and_writing_never_look_at_intents(world: World) -> None:
    Driver.start(world.client("writer"))
    client = world.client("short")
    with client.start(lambda: client.insert("bob")) as stepped:
        calls = stepped.run_to_end()

    assert not [call for call in calls if "__recovery" in call.key]
    with pytest.raises(NotFound):
        client.repository.intents.take_over("nothing")
    assert client.head().point == Point(world.main_id, 2)
