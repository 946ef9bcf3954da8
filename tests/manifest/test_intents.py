"""`intent-tokens`, the intent itself: put once, kept alive, taken over when its owner is dead, ended as it was seen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from omnigraph.errors import (
    BadRequest,
    Damaged,
    DiscardUnsettled,
    JobDiscarded,
    JobEnding,
    JobLost,
    JobRunning,
    NotFound,
    OmnigraphError,
)
from omnigraph.manifest.intent import process_liveness as owners
from omnigraph.manifest.intent.intent import Intent, State, StoredIntent, encode_intent
from omnigraph.manifest.intent.intent_store import DEAD_AFTER, Intents, OwnedIntent
from omnigraph.manifest.intent.process_liveness import this_process
from omnigraph.manifest.model.document import encode_document
from omnigraph.manifest.model.manifest import Point
from omnigraph.manifest.model.paths import intent_key, intent_txn, recovery_folder
from omnigraph.storage.location import Location, parse_location
from omnigraph.storage.objects.object_store import ObjectStore, ReplaceOutcome, open_store
from support.s3 import S3Location
from support.steps import Call, Gate, LoseAnswer, LoseRequest, SteppedStore, Stepper, raising, returning

from .schedules import APPLIED_ANSWER_LOST, NEITHER_APPLIED_NOR_ANSWERED, START, seeded_runtime

BASE = Point("aaaaaaaaaaaaa", 7)
SHORT = timedelta(seconds=2)  # a life that a test on S3, whose clock can't be set, may wait for


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.s3)])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    if request.param == "local":
        return parse_location(tmp_path / "graph", {"fsync": "false"})
    s3: S3Location = request.getfixturevalue("s3")
    return parse_location(s3.uri, s3.options)


@pytest.fixture
def store(location: Location) -> ObjectStore:
    return open_store(location)


def client(store: Any, name: str = "client", **options: Any) -> Intents:
    """A process of its own as far as intents go: but for its number, which is this one's."""
    return Intents(store, seeded_runtime(name), **options)


def begin(intents: Intents, txn_id: str = "job", **options: Any) -> OwnedIntent:
    return intents.create(txn_id, "main", BASE, "load", "ada", **options)


def belongs_to_another_machine(store: ObjectStore, held: OwnedIntent) -> None:
    """From now on only time tells whether its owner lives."""
    owner = replace(held.intent.owner, machine="elsewhere", token="theirs")
    tokens = (*held.intent.tokens, owner.token)
    intent = replace(held.intent, owner=owner, tokens=tokens, refreshes=held.intent.refreshes + 1)
    store.put(intent_key(held.txn_id), encode_intent(intent))


def let_it_die(store: ObjectStore, key: str = "__recovery/job.json") -> None:
    """Have the store believe that the intent was last touched long ago; where its clock can't be set, wait."""
    if store.location.is_local:
        long_ago = (datetime.now(UTC) - DEAD_AFTER - timedelta(seconds=5)).timestamp()
        os.utime(store.location.path / key, (long_ago, long_ago))
    else:
        time.sleep(SHORT.total_seconds() + 1)


def impatient(store: ObjectStore, name: str) -> Intents:
    return client(store, name, dead_after=DEAD_AFTER if store.location.is_local else SHORT)


# Beginning


def test_an_intent_says_what_is_going_on(store: ObjectStore) -> None:
    begin(client(store), details={"source": "people.jsonl"})

    seen = client(store, "reader").read("job")

    assert seen is not None
    assert seen.alive
    assert seen.age < timedelta(minutes=1)
    intent = seen.intent
    assert (intent.txn_id, intent.branch, intent.base, intent.kind, intent.actor) == (
        "job",
        "main",
        BASE,
        "load",
        "ada",
    )
    assert intent.details == {"source": "people.jsonl"}
    assert intent.owner.pid == os.getpid()


def test_a_start_that_was_discarded_while_it_began_does_not_believe_that_it_owns_the_intent(store: ObjectStore) -> None:
    """It was held up after its put; the ended intent that it finds then still carries its token."""
    gate = Gate()
    slow, operator = client(SteppedStore(store, gate), "slow"), client(store, "operator")
    with Stepper(lambda: begin(slow), gate) as stalled:
        stalled.step()  # the put
        seen = operator.read("job")
        assert seen is not None
        closed = operator.close(seen)
        assert closed is not None
        assert operator.remove(closed)
        stalled.run_to_end()

        with pytest.raises(JobDiscarded, match="nothing was written, start it again"):
            stalled.result()


def test_the_first_puts_time_is_the_stores_and_stays(store: ObjectStore) -> None:
    before = datetime.now(UTC) - timedelta(seconds=2)
    intents = client(store)  # whose own clock stands still elsewhere
    held = begin(intents)
    first = held.first_put
    if not store.location.is_local:
        time.sleep(1.1)
    held.refresh()

    seen = intents.read("job")

    assert before <= first <= datetime.now(UTC) + timedelta(seconds=2)
    assert first != START
    assert seen is not None
    assert seen.first_put == first <= seen.modified


def test_an_intent_whose_first_put_was_not_recorded_yet_has_its_objects_time(store: ObjectStore) -> None:
    gate = Gate()
    with Stepper(lambda: begin(client(SteppedStore(store, gate))), gate) as stalled:
        stalled.run_until(lambda call: call.method == "replace")
        seen = client(store, "cleaner").read("job")

    assert seen is not None
    assert seen.intent.first_put is None
    assert seen.first_put == seen.modified


def test_what_is_there_is_not_begun_again(store: ObjectStore) -> None:
    begin(client(store))

    with pytest.raises(JobRunning, match=f"process {os.getpid()} on .*: wait for it, or end it there") as refusal:
        begin(client(store, "other"))

    assert refusal.value.details["job_id"] == "job"


def test_of_many_who_begin_one_job_exactly_one_does(store: ObjectStore) -> None:
    def race(number: int) -> bool:
        try:
            begin(client(store, str(number)))
        except JobRunning:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(race, range(6))) == [False] * 5 + [True]


@pytest.mark.parametrize("fault", [APPLIED_ANSWER_LOST, NEITHER_APPLIED_NOR_ANSWERED], ids=["applied", "not applied"])
def test_a_lost_answer_to_the_first_put_is_settled(store: ObjectStore, fault: Any) -> None:
    gate = Gate()
    with Stepper(lambda: begin(client(SteppedStore(store, gate))), gate) as running:
        assert running.step(fault).method == "create"
        running.run_to_end()
        held = running.result()

    seen = client(store, "reader").read("job")
    assert seen is not None
    assert seen.intent == held.intent


# Names


@pytest.mark.parametrize("txn_id", ["a/b", "..", ".", ".tmp-1", "ü", "50%", "a b", "x.json"])
def test_any_txn_id_names_an_intent_of_its_own(store: ObjectStore, txn_id: str) -> None:
    intents = client(store)
    begin(intents, "other")
    begin(intents, txn_id)

    assert [seen.intent.txn_id for seen in intents.list()] == sorted([txn_id, "other"])
    assert intent_txn(intent_key(txn_id)) == txn_id


def test_what_a_job_keeps_beside_its_intent_is_no_intent(store: ObjectStore) -> None:
    intents = client(store)
    begin(intents)
    store.put(f"{recovery_folder('job')}/splits/1.json", b"{}")

    assert [seen.intent.txn_id for seen in intents.list()] == ["job"]


# Keeping


def test_a_refresh_may_tell_what_was_done(store: ObjectStore) -> None:
    intents = client(store)
    held = begin(intents, details={"splits": 0})

    held.refresh({"splits": 4})
    held.refresh()

    seen = intents.read("job")
    assert seen is not None
    assert seen.intent.details == {"splits": 4}
    assert seen.intent.refreshes == 3


LOST_SWAPS: dict[str, LoseAnswer | LoseRequest] = {
    "applied": LoseAnswer(returning(ReplaceOutcome.UNKNOWN)),
    "not applied": LoseRequest(returning(ReplaceOutcome.UNKNOWN)),
    "applied, answered by an inner retry": LoseAnswer(returning(ReplaceOutcome.CHANGED)),
}


@pytest.mark.parametrize("fault", LOST_SWAPS.values(), ids=LOST_SWAPS)
def test_a_lost_answer_to_a_refresh_is_settled(store: ObjectStore, fault: Any) -> None:
    gate = Gate()
    held = begin(client(SteppedStore(store, gate)))
    with Stepper(lambda: held.refresh({"done": 1}), gate) as running:
        assert running.step(fault).method == "replace"
        running.run_to_end()
        running.result()

    assert client(store, "reader").read("job").intent.details == {"done": 1}  # type: ignore[union-attr]
    held.refresh({"done": 2})
    assert client(store, "reader").read("job").intent.details == {"done": 2}  # type: ignore[union-attr]


def test_a_refresh_whose_answer_could_not_be_read_does_not_lose_the_intent(store: ObjectStore) -> None:
    gate = Gate()
    held = begin(client(SteppedStore(store, gate)))
    with Stepper(lambda: held.refresh({"done": 1}), gate) as running:
        running.step()
        running.step(LoseRequest(raising(OSError("the store is gone"))))
        with pytest.raises(OSError, match="gone"):
            running.result()

    held.refresh({"done": 2})

    assert client(store, "reader").read("job").intent.details == {"done": 2}  # type: ignore[union-attr]


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that within 10 s"
        time.sleep(0.01)


def test_a_keeper_refreshes_until_the_work_is_done(store: ObjectStore) -> None:
    intents = client(store)
    held = begin(intents)
    others = set(threading.enumerate())
    with intents.keep_refreshed(held, every_s=0.01):
        (keeper,) = {thread for thread in threading.enumerate() if thread.name == "intent keeper"} - others
        wait_for(lambda: held.intent.refreshes > 3)
        held.finish()

    assert [seen.ended for seen in intents.list()] == [True]
    assert not keeper.is_alive()


def test_a_keeper_tells_that_the_intent_was_lost(store: ObjectStore) -> None:
    intents, lost = client(store), threading.Event()
    held = begin(intents)
    with intents.keep_refreshed(held, on_lost=lost.set, every_s=0.05):
        belongs_to_another_machine(store, held)
        assert lost.wait(10)

        assert held.lost
        with pytest.raises(JobLost, match="taken over or ended by another process"):
            held.check()


def test_a_keeper_outlives_a_store_that_does_not_serve_for_a_while(store: ObjectStore) -> None:
    class Flaky:
        """The store, but for two refreshes that it fails."""

        failures = 2

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def replace(self, *args: Any) -> ReplaceOutcome:
            if refreshing.is_set() and self.failures:
                self.failures -= 1
                raise OmnigraphError("not now")
            return store.replace(*args)

    refreshing = threading.Event()
    intents = client(Flaky())
    held = begin(intents)
    refreshing.set()
    with intents.keep_refreshed(held, every_s=0.01):
        wait_for(lambda: held.intent.refreshes > 2)


# Taking over


def test_a_live_intent_is_not_taken(store: ObjectStore) -> None:
    held = begin(client(store))
    belongs_to_another_machine(store, held)

    with pytest.raises(JobRunning):
        client(store, "other").take_over("job")


def test_an_intent_that_was_not_refreshed_for_a_quarter_of_an_hour_by_the_stores_clock_is_dead(
    store: ObjectStore,
) -> None:
    held = begin(client(store), details={"splits": 3})
    belongs_to_another_machine(store, held)
    let_it_die(store)
    other = impatient(store, "other")
    seen = other.read("job")

    adopted = other.take_over("job")

    assert seen is not None
    assert not seen.alive
    assert adopted.resumed
    assert (adopted.base, adopted.intent.details, adopted.intent.actor) == (BASE, {"splits": 3}, "ada")
    assert adopted.first_put == held.first_put
    assert adopted.intent.tokens == (held.token, "theirs", adopted.token), "what it staged before is honoured as well"
    assert adopted.intent.prefix == held.intent.prefix
    assert client(store, "reader").read("job").alive  # type: ignore[union-attr]


def test_a_clock_of_the_reader_that_is_wrong_kills_nobody(location: Location, store: ObjectStore) -> None:
    held = begin(client(store))
    belongs_to_another_machine(store, held)
    intents = client(store, "other")
    intents._runtime.clock.pass_time(days=3650)  # type: ignore[attr-defined]

    assert intents.read("job").alive  # type: ignore[union-attr]


@pytest.mark.parametrize("act", ["refresh", "finish", "discard", "release"])
def test_a_sleeper_whose_intent_was_taken_over_can_do_nothing_to_it(store: ObjectStore, act: str) -> None:
    sleeper = begin(client(store))
    sleeper.release()  # as good as dead
    taken = client(store, "other").take_over("job")
    sleeper._intent = replace(sleeper._intent, state=State.WORKING)  # it does not know

    if act == "refresh":
        with pytest.raises(JobLost):
            sleeper.refresh()
    else:
        assert getattr(sleeper, act)() is False

    assert sleeper.lost
    seen = client(store, "reader").read("job")
    assert seen is not None
    assert seen.intent == taken.intent
    taken.refresh()


def test_a_sleeper_whose_refresh_is_under_way_when_the_intent_is_taken_over_has_lost_it(store: ObjectStore) -> None:
    gate = Gate()
    sleeper = begin(client(SteppedStore(store, gate)))
    with Stepper(sleeper.refresh, gate) as stalled:
        stalled.run_until(lambda call: call.method == "replace")
        belongs_to_another_machine(store, sleeper)
        let_it_die(store)
        taken = impatient(store, "other").take_over("job")
        stalled.run_to_end()
        with pytest.raises(JobLost):
            stalled.result()

    assert client(store, "reader").read("job").intent == taken.intent  # type: ignore[union-attr]


def test_a_refresh_between_the_look_and_the_taking_keeps_the_owner(store: ObjectStore) -> None:
    held = begin(client(store))
    held.release()
    gate = Gate()
    other = client(SteppedStore(store, gate), "other")
    with Stepper(lambda: other.take_over("job"), gate) as stalled:
        stalled.run_until(lambda call: call.method == "replace")
        held.refresh()  # it was not dead after all
        stalled.run_to_end()
        with pytest.raises(JobRunning):
            stalled.result()

    held.refresh()


def test_of_many_who_take_over_exactly_one_does(store: ObjectStore) -> None:
    begin(client(store)).release()

    def race(number: int) -> bool:
        try:
            client(store, str(number)).take_over("job")
        except JobRunning:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(race, range(6))) == [False] * 5 + [True]


@pytest.mark.parametrize("fault", LOST_SWAPS.values(), ids=LOST_SWAPS)
def test_a_lost_answer_to_a_takeover_is_settled(store: ObjectStore, fault: Any) -> None:
    begin(client(store)).release()
    gate = Gate()
    other = client(SteppedStore(store, gate), "other")
    with Stepper(lambda: other.take_over("job"), gate) as running:
        running.run_until(lambda call: call.method == "replace")
        running.step(fault)
        running.run_to_end()
        held = running.result()

    assert client(store, "reader").read("job").intent == held.intent  # type: ignore[union-attr]


BEGIN_AND_WAIT = """
import sys
from omnigraph.manifest.intent.intent_store import Intents
from omnigraph.manifest.model.manifest import Point
from omnigraph.runtime import Runtime
from omnigraph.storage.location import parse_location
from omnigraph.storage.objects.object_store import open_store
options = dict(pair.split("=", 1) for pair in sys.argv[2:])
store = open_store(parse_location(sys.argv[1], options))
Intents(store, Runtime()).create("job", "main", Point("aaaaaaaaaaaaa", 7), "load")
print("begun", flush=True)
sys.stdin.read()
"""


def test_a_killed_drivers_intent_can_be_taken_at_once_on_its_machine(location: Location, store: ObjectStore) -> None:
    options = [f"{key}={value}" for key, value in location.options.items()]
    command = [sys.executable, "-c", BEGIN_AND_WAIT, location.uri, *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == b"begun\n"
        intents = client(store)
        with pytest.raises(JobRunning, match=f"process {driver.pid} "):
            intents.take_over("job")

        driver.send_signal(signal.SIGKILL)
        wait_for(lambda: not intents.read("job").alive)  # type: ignore[union-attr]

        assert intents.take_over("job").resumed, "though nobody has reaped it yet"


def test_a_process_number_that_was_given_again_is_not_the_owner() -> None:
    me = this_process("token")

    assert not owners.is_gone(me)
    assert owners.is_gone(replace(me, started="0"))


@pytest.mark.parametrize("machine", ["", "elsewhere"])
def test_of_processes_elsewhere_nothing_is_known(machine: str) -> None:
    assert not owners.is_gone(replace(this_process("token"), machine=machine, pid=2**22 + 1))


def test_work_that_ends_with_an_error_leaves_an_intent_that_can_be_gone_on_with_at_once(store: ObjectStore) -> None:
    intents = client(store)
    with pytest.raises(ValueError, match="bad luck"), intents.keep_refreshed(begin(intents)):
        raise ValueError("bad luck")

    assert client(store, "other").take_over("job").resumed


def test_what_never_began_can_not_be_taken(store: ObjectStore) -> None:
    with pytest.raises(NotFound, match="no unfinished job job"):
        client(store).take_over("job")


# Ending


@pytest.mark.parametrize("end", ["finish", "discard"])
def test_what_ends_is_gone_where_nobody_can_use_its_id_again(store: ObjectStore, end: str) -> None:
    intents = client(store)
    held = begin(intents, named=False)

    assert getattr(held, end)() is True

    assert intents.list() == []
    assert intents.read("job") is None
    assert getattr(held, end)() is True, "once more is as good"


@pytest.mark.parametrize("end", ["finish", "discard"])
def test_what_ends_under_a_name_is_taken_over_by_nobody_and_may_begin_again(store: ObjectStore, end: str) -> None:
    held = begin(client(store), details={"splits": 3}, tables={"t"})
    assert getattr(held, end)() is True
    intents = client(store, "other")
    (seen,) = intents.list()
    assert (seen.ended, seen.alive, seen.intent.details, seen.intent.tables) == (True, False, {}, frozenset())
    with pytest.raises(NotFound):
        intents.take_over("job")

    again = begin(intents)

    assert not again.resumed
    assert again.intent.tokens == (again.token,), "it shares nothing with the one before"
    assert again.intent.prefix != held.intent.prefix
    assert getattr(held, end)() is True
    again.refresh()


def test_of_many_who_begin_an_ended_job_again_exactly_one_does(store: ObjectStore) -> None:
    begin(client(store)).finish()

    def race(number: int) -> bool:
        try:
            begin(client(store, str(number)))
        except JobRunning:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(race, range(6))) == [False] * 5 + [True]


def test_a_slow_start_that_found_an_ended_intent_leaves_that_of_a_faster_one_alone(store: ObjectStore) -> None:
    begin(client(store)).finish()
    gate = Gate()
    slow = client(SteppedStore(store, gate), "slow")
    with Stepper(lambda: begin(slow), gate) as stalled:
        stalled.run_until(lambda call: call.method == "replace")
        fast = begin(client(store, "fast"))
        stalled.run_to_end()
        with pytest.raises(JobRunning):
            stalled.result()

    assert client(store, "reader").read("job").intent == fast.intent  # type: ignore[union-attr]
    fast.refresh()


def closed(store: ObjectStore, name: str = "cleaner") -> StoredIntent:
    """A discard of the job has begun."""
    intents = client(store, name)
    seen = intents.read("job")
    assert seen is not None
    found = intents.close(seen)
    assert found is not None
    return found


def test_a_closed_intent_is_neither_resumed_nor_replaced(store: ObjectStore) -> None:
    begin(client(store)).release()
    closed(store)

    with pytest.raises(JobEnding, match="being discarded"):
        client(store, "other").take_over("job")
    with pytest.raises(JobEnding):
        begin(client(store, "other"))


@pytest.mark.parametrize("act", ["refresh", "finish", "discard", "release", "is_owned"])
def test_an_owner_whose_intent_was_closed_does_not_open_it_again(store: ObjectStore, act: str) -> None:
    held = begin(client(store))
    before = closed(store)

    if act == "refresh":
        with pytest.raises(JobLost):
            held.refresh()
    else:
        assert getattr(held, act)() is False

    assert held.lost
    seen = client(store, "reader").read("job")
    assert seen is not None
    assert (seen.intent, seen.closed) == (before.intent, True)


def test_another_ends_a_dead_intent_as_he_saw_it(store: ObjectStore) -> None:
    held = begin(client(store))
    held.release()
    store.put(f"{held.intent.prefix}/1.json", b"{}")
    cleaner = client(store, "cleaner")

    assert cleaner.remove(closed(store)) is True

    assert [seen.ended for seen in cleaner.list()] == [True]
    assert [listed.key for listed in store.list(recovery_folder("job")) if listed.key.endswith("1.json")] == []


def test_another_can_not_end_an_intent_that_has_moved_since_he_saw_it(store: ObjectStore) -> None:
    held = begin(client(store))
    held.release()
    cleaner = client(store, "cleaner")
    (seen,) = cleaner.list()
    adopted = client(store, "resumer").take_over("job")

    assert cleaner.close(seen) is None

    adopted.refresh()


def test_a_slow_removal_leaves_the_intent_and_the_files_of_the_next_start_alone(store: ObjectStore) -> None:
    begin(client(store)).release()
    slow, fast = closed(store, "slow"), closed(store, "fast")
    assert fast.intent == slow.intent, "two discard it at once"
    client(store, "fast").remove(fast)
    again = begin(client(store, "again"))
    store.put(f"{again.intent.prefix}/1.json", b"{}")

    assert client(store, "slow").remove(slow) is False

    assert client(store, "reader").read("job").intent == again.intent  # type: ignore[union-attr]
    assert store.get(f"{again.intent.prefix}/1.json") is not None
    again.refresh()


@pytest.mark.parametrize("fault", LOST_SWAPS.values(), ids=LOST_SWAPS)
def test_a_lost_answer_to_a_discard_by_another_is_settled(store: ObjectStore, fault: Any) -> None:
    begin(client(store)).release()
    gate = Gate()
    cleaner = client(SteppedStore(store, gate), "cleaner")
    (seen,) = cleaner.list()
    with Stepper(lambda: cleaner.close(seen), gate) as running:
        assert running.step(fault) == Call("replace", "__recovery/job.json")
        running.run_to_end()
        found = running.result()

    now = client(store, "reader").read("job")
    assert now is not None
    assert now.closed
    assert found is not None
    assert (found.intent, found.tag) == (now.intent, now.tag)


@pytest.mark.parametrize("fault", LOST_SWAPS.values(), ids=LOST_SWAPS)
def test_a_lost_answer_to_a_discard_never_closes_the_intent_of_who_took_it_over_meanwhile(
    store: ObjectStore, fault: Any
) -> None:
    begin(client(store)).release()
    gate = Gate()
    cleaner = client(SteppedStore(store, gate), "cleaner")
    (seen,) = cleaner.list()
    adopted = client(store, "resumer").take_over("job")
    with Stepper(lambda: cleaner.close(seen), gate) as running:
        running.step(fault)
        running.run_to_end()
        assert running.result() is None

    adopted.refresh()


def test_a_discard_none_of_whose_puts_is_answered_says_that_its_outcome_is_unknown(store: ObjectStore) -> None:
    """One of the puts may be late: it is not said that nothing was discarded, nor that somebody took the job up."""
    begin(client(store)).release()
    gate = Gate()
    cleaner = client(SteppedStore(store, gate), "cleaner")
    (seen,) = cleaner.list()
    with Stepper(lambda: cleaner.close(seen), gate) as running:
        while not running.done:
            running.step(LOST_SWAPS["not applied"] if running.next == Call("replace", "__recovery/job.json") else None)
        with pytest.raises(DiscardUnsettled, match=r"job.*may be discarded.*discard it once more"):
            running.result()

    assert closed(store).closed


def test_the_object_of_an_ended_job_is_not_deleted_once_the_job_is_started_again(store: ObjectStore) -> None:
    begin(client(store)).finish()
    cleaner = client(store, "cleaner")
    (seen,) = cleaner.list()
    again = begin(client(store, "again"))

    cleaner.delete_ended(seen)

    again.refresh()
    assert again.finish()
    (seen,) = cleaner.list()
    cleaner.delete_ended(seen)
    assert cleaner.list() == []


def test_tables_are_named_before_they_are_written_and_stay_named(store: ObjectStore) -> None:
    held = begin(client(store), tables={"a"})
    held.add_tables(frozenset({"a"}))
    assert held.intent.refreshes == 1, "nothing to say"
    held.add_tables(frozenset({"b"}))
    held.refresh()

    assert client(store, "reader").read("job").intent.tables == {"a", "b"}  # type: ignore[union-attr]


# Reading


def test_a_store_that_may_only_be_read_still_shows_intents(location: Location, store: ObjectStore) -> None:
    begin(client(store))

    (seen,) = client(open_store(location, read_only=True), "reader").list()

    assert seen.intent.txn_id == "job"


@pytest.mark.parametrize("data", [b"", b"[]", b'{"format":1}', b'{"format":2}', b'{"format":1,"txn_id":"x"}'])
def test_a_damaged_intent_is_named(store: ObjectStore, data: bytes) -> None:
    store.put("__recovery/job.json", data)

    with pytest.raises((Damaged, BadRequest), match="the intent of job"):
        client(store).read("job")


@pytest.mark.parametrize("prefix", ["", "tables", "__recovery/other", "__recovery/job/../..", 7])
def test_an_intent_whose_prefix_is_not_its_own_is_damaged(store: ObjectStore, prefix: object) -> None:
    document = json.loads(encode_intent(begin(client(store)).intent))
    del document["format"], document["checksum"]
    store.put("__recovery/job.json", encode_document(document | {"prefix": prefix}))

    with pytest.raises(Damaged, match="the intent of job"):
        client(store).read("job")


def of_format_1(intent: Intent) -> bytes:
    document = json.loads(encode_intent(intent)) | {"format": 1}
    return json.dumps({k: v for k, v in document.items() if k not in NEW_IN_FORMAT_2}).encode()


NEW_IN_FORMAT_2 = ("tokens", "tables", "prefix", "named", "checksum")


def test_an_intent_of_format_1_is_read_and_taken_over(store: ObjectStore) -> None:
    held = begin(client(store), details={"splits": 3})
    held.release()
    store.put("__recovery/job.json", of_format_1(held.intent))

    seen = client(store, "reader").read("job")
    adopted = client(store, "other").take_over("job")

    assert seen is not None
    assert (seen.intent.tokens, seen.intent.tables, seen.intent.prefix) == ((held.token,), None, "__recovery/job")
    assert adopted.intent.tokens == (held.token, adopted.token)
    assert adopted.intent.details == {"splits": 3}
    adopted.add_tables(frozenset({"a"}))
    adopted.refresh(tables=frozenset({"a"}))
    assert adopted.intent.tables is None, "what the start before may have written is not known"
