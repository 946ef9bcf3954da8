"""A writer that keeps losing gets through: after some losses it asks for a turn, and the others leave it one."""

import sys
from datetime import datetime
from pathlib import Path

import pytest

import omnigraph
from concurrency.workers import workers
from omnigraph.manifest.commit.commit_queue import CommitQueue
from omnigraph.manifest.commit.compose import compose_manifest
from omnigraph.manifest.commit.contention import RESERVE_AFTER_LOSSES, Reservations, reservation_plan
from omnigraph.manifest.commit.plan import ConflictPolicy, DataChange, DeleteBranch, PublishPlan
from omnigraph.manifest.settings import Settings
from omnigraph.runtime import Runtime
from omnigraph.storage import meter
from omnigraph.storage.objects.object_store import PutOutcome
from support.catalogs import people
from support.proxy import Proxy
from support.s3 import S3Location

COMMITS = 4
LOSSES_MAX = 5 * RESERVE_AFTER_LOSSES  # without turns: more than 40, and then it gives up


@pytest.mark.s3
def test_a_busy_writer_does_not_starve_another_where_requests_take_time(s3_proxied: S3Location, proxy: Proxy) -> None:
    graph = omnigraph.init(s3_proxied.uri, people(), s3_proxied.options)
    proxy.delay_s = 0.02

    with workers(2, s3_proxied.uri, s3_proxied.options) as (seldom, busy):
        busy.ask("insert_many", name="busy", commits=100_000, fresh_ids=True)
        losses = []
        for number in range(COMMITS):
            seldom.ask("insert_many", name=f"seldom{number}", commits=1, fresh_ids=True)
            losses += seldom.answer()["losses"]
        proxy.delay_s = 0.0

    print(f"\nlost races of each commit beside a busy writer: {losses}", file=sys.stderr)
    assert max(losses) <= LOSSES_MAX
    landed = [commit for commit in graph.commits(limit=None) if commit.actor and commit.actor.startswith("seldom")]
    assert len(landed) == COMMITS


def test_a_turn_is_left_to_the_write_that_asked_and_over_when_its_time_is(tmp_path: Path) -> None:

    graph = omnigraph.init(tmp_path / "graph", people())
    runtime = graph.repository.runtime
    base = graph.begin().base
    clock = _Clock()
    plan = _some_plan()
    asked = compose_manifest(base, reservation_plan(plan, 0.1, "01ASK"), runtime.clock.now())
    turns = Reservations(Runtime(clock=clock), CommitQueue(Settings()))

    assert turns.remaining_s(base, "other") == 0
    assert turns.remaining_s(asked, plan.txn_id) == 0
    assert turns.remaining_s(asked, "other") == pytest.approx(0.2)
    clock.now_s += 0.15
    assert turns.remaining_s(asked, "other") == pytest.approx(0.05)
    clock.now_s += 0.1
    assert turns.remaining_s(asked, "other") == 0


def test_a_turn_changes_nothing_and_is_nobodys_parent(tmp_path: Path) -> None:

    graph = omnigraph.init(tmp_path / "graph", people())
    base = graph.begin().base

    asked = compose_manifest(base, reservation_plan(_some_plan(), 0.1, "01ASK"), graph.repository.runtime.clock.now())

    assert (asked.tables, asked.schema, asked.logical_head) == (base.tables, base.schema, base.logical_head)
    assert asked.commits[0].commit_class == "maintenance"
    assert (
        compose_manifest(
            asked, PublishPlan("01END", ConflictPolicy.MAINTENANCE, DeleteBranch()), asked.authored_at
        ).reservation
        is None
    )


@pytest.mark.s3
def test_asking_for_a_turn_is_one_request_after_which_the_turn_begins(s3: S3Location) -> None:
    """A hint, which other maintenance leaves beside its manifest, would take up a part of the turn."""
    graph = omnigraph.init(s3.uri, people(), s3.options)
    repository = graph.repository
    repository.publisher.publish(
        graph.begin(), PublishPlan("01OTHER", ConflictPolicy.CONSTRUCTIVE, DataChange("mutation"))
    )
    asked = compose_manifest(
        graph.begin().base, reservation_plan(_some_plan(), 0.1, "01ASK"), repository.runtime.clock.now()
    )

    with meter.operation("ask") as operation:
        answer = repository.manifests.create(asked)

    assert answer.outcome is PutOutcome.CREATED
    assert operation.cost.requests == 1


def _some_plan() -> PublishPlan:
    return PublishPlan("01WRITE", ConflictPolicy.CONSTRUCTIVE, DataChange("mutation"))


class _Clock:
    now_s = 100.0

    def now(self) -> datetime:
        raise AssertionError("a turn asks no calendar")

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
