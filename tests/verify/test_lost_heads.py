"""`verify` reports a branch whose newest manifests are gone, whatever contradicts it, and never one that is whole."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

import omnigraph
from manifest.schedules import Client, World
from omnigraph.errors import HeadLost, OmnigraphError
from omnigraph.gc.cleanup import cleanup
from omnigraph.gc.retention import Retention
from omnigraph.graph.graph import Graph
from omnigraph.manifest.model.manifest import MAIN
from omnigraph.manifest.model.paths import hint_key
from omnigraph.manifest.settings import Settings
from omnigraph.manifest.store import manifest_store as store
from omnigraph.manifest.store.head_search import encode_hint
from omnigraph.storage.location import Location
from omnigraph.verify.verify import VerifyProblem, VerifyReport
from support.lost_heads import branch_id_of, lose_hint, lose_newest, numbers
from support.s3 import S3Location

SCHEMA = "node Person { slug: String @key  age: I32? }"
INLINE = Settings(maintenance=0)
REQUESTS_MAX = 80
KINDS = 9  # of what a writer does; the last ones are all commits
Open = Callable[[], Graph]


@pytest.fixture(params=["disk", "s3"])
def open_graph(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """A graph with five people, one commit each (manifests 2 to 6), opened again by every call."""
    if request.param == "disk":
        place, options = str(tmp_path / "graph"), {"fsync": "false"}
    else:
        s3: S3Location = request.getfixturevalue("s3")
        place, options = s3.uri, s3.options
    graph = omnigraph.init(place, schema=SCHEMA, storage_options=options, settings=INLINE)
    for number in range(5):
        add(graph, f"p{number}")
    return lambda: omnigraph.open(place, options, settings=INLINE)


def add(graph: Graph, slug: str, branch: str = MAIN) -> None:
    graph.mutate(f'query q() {{ insert Person {{ slug: "{slug}" }} }}', branch=branch)


def lost(report: VerifyReport) -> list[VerifyProblem]:
    return [problem for problem in report.problems if "its head is lost" in problem.what]


def the_loss(graph: Graph, *, branch: str | None = None) -> str:
    """What is reported as the one lost head."""
    report = graph.verify(branch=branch)
    (problem,) = lost(report)
    assert not report.ok
    assert "restore its manifests" in problem.remedy
    return f"{problem.where}: {problem.what}"


# What contradicts the head that is left.


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_memory_of_the_process_that_verifies(open_graph: Open, count: int) -> None:
    graph = open_graph()
    lose_newest(graph.repository.store, branch_id_of(graph), count)

    assert the_loss(graph) == (
        f"branch 'main': its head is lost: its newest manifest is {6 - count}, but number 6 was used, because this "
        "process has read or written it"
    )


def test_the_hint(open_graph: Open) -> None:
    graph = open_graph()
    store, main = graph.repository.store, branch_id_of(graph)
    store.put(hint_key(main), encode_hint(main, 5))
    lose_newest(store, main, 3)

    cold = open_graph()

    assert "number 5 was used, because the hint beside its manifests names it" in the_loss(cold)
    assert "number 5" in the_loss(cold, branch="main")
    with pytest.raises(HeadLost):
        add(cold, "eve")
    lose_hint(store, main)
    assert open_graph().verify().ok


def test_a_hint_without_a_checksum_is_reported_and_stops_no_operation(open_graph: Open) -> None:
    graph = open_graph()
    store, main = graph.repository.store, branch_id_of(graph)
    store.put(hint_key(main), b"9")

    cold = open_graph()

    assert the_loss(cold).endswith("without a checksum: the hint itself may be damaged")
    add(cold, "eve")


def test_a_branch_that_was_forked_from_what_was_lost(open_graph: Open) -> None:
    graph = open_graph()
    graph.branches.create("side")
    lose_newest(graph.repository.store, branch_id_of(graph), 2)

    cold = open_graph()

    assert the_loss(cold).startswith("branch 'main': its head is lost: its newest manifest is 4, but number 6 was used")
    assert not lost(cold.verify(branch="side"))


def test_the_ref_of_a_branch_that_was_never_finished(open_graph: Open) -> None:
    graph = open_graph()
    graph.branches.create("side")
    store = graph.repository.store
    side = branch_id_of(graph, "side")
    lose_newest(store, side, 1)
    lose_newest(store, branch_id_of(graph), 1)

    assert "because branch 'side' was forked from it" in the_loss(open_graph())


def test_a_branch_that_merged_what_was_lost(open_graph: Open) -> None:
    graph = open_graph()
    graph.branches.create("work")
    add(graph, "ada", "work")
    work = branch_id_of(graph, "work")
    graph.branches.merge("work")
    lose_newest(graph.repository.store, work, 1)

    loss = the_loss(open_graph())

    assert loss.startswith("branch 'work': its head is lost: its newest manifest is 1, but number 2 was used")


def test_a_tag(open_graph: Open) -> None:
    graph = open_graph()
    graph.tags.create("v1")
    lose_newest(graph.repository.store, branch_id_of(graph), 1)

    assert "number 6 was used, because tag 'v1' names it" in the_loss(open_graph())


def test_the_note_of_a_cleanup(open_graph: Open) -> None:
    """What is left may be stubs alone: then there is no state to go on with."""
    graph = open_graph()
    graph.optimize()
    add(graph, "ada")
    clean(graph)
    main = branch_id_of(graph)
    store = graph.repository.store
    below = graph.repository.manifests.read_stub_index(main).below
    lose_hint(store, main)
    lose_newest(store, main, len(numbers(store, main)) - 2)

    cold = open_graph()

    (problem,) = lost(cold.verify())
    assert problem.what == (
        f"its head is lost: its newest manifest is 2, but number {below - 1} was used, because cleanup has noted it as "
        "expired"
    )
    assert "branch create" not in problem.remedy
    with pytest.raises(HeadLost, match="its newest manifest is a stub"):
        add(cold, "eve")


def test_a_job_that_was_begun_on_what_was_lost(open_graph: Open) -> None:
    graph = open_graph()
    txn = graph.repository.open_txn()
    graph.repository.intents.acquire(txn, "job-1", kind="load", actor=None, details={})
    lose_newest(graph.repository.store, branch_id_of(graph), 1)

    assert "number 6 was used, because the job job-1 started from it" in the_loss(open_graph())


def test_the_end_of_a_deleted_branch(open_graph: Open) -> None:
    """Without its tombstone a branch would live again."""
    graph = open_graph()
    graph.branches.create("gone")
    add(graph, "ada", "gone")
    gone = branch_id_of(graph, "gone")
    graph.branches.delete("gone")
    lose_newest(graph.repository.store, gone, 1)

    assert "its life 1 is marked as deleted, but the tombstone that ended it is gone" in the_loss(open_graph())


def test_nothing_contradicts_a_whole_old_copy(open_graph: Open) -> None:
    """As the docs say: what was made later is not there to say so."""
    graph = open_graph()
    lose_newest(graph.repository.store, branch_id_of(graph), 2)

    assert not lost(open_graph().verify())


def test_the_graph_can_be_continued_from_what_is_left_as_the_report_says(open_graph: Open) -> None:
    graph = open_graph()
    graph.tags.create("v1")
    main = branch_id_of(graph)
    lose_newest(graph.repository.store, main, 2)
    (problem,) = lost(open_graph().verify())
    assert f"`branch create NAME --from {main}.4`" in problem.remedy

    cold = open_graph()
    cold.branches.create("rescued", from_=f"{main}.4")
    add(cold, "eve", "rescued")

    assert not [one for one in lost(open_graph().verify()) if "rescued" in one.where]


# No false report.


def clean(graph: Graph) -> None:
    cleanup(graph.repository, Retention(timedelta(), 1), dry_run=False, floor=timedelta())


def act(graph: Graph, dice: random.Random, kind: int, name: str) -> None:
    """Something that may meet what others do; that it is refused then is as it should be, but for a lost head."""
    names = [f"b{number}" for number in range(3)]
    branch = dice.choice([MAIN, MAIN, *names])
    match kind:
        case 0:
            graph.branches.create(dice.choice(names), from_=dice.choice([MAIN, *names]))
        case 1:
            if dice.random() < 0.5:
                graph.branches.delete(dice.choice(names))
            graph.branches.create(dice.choice(names))
        case 2:
            graph.branches.merge(dice.choice(names), dice.choice([MAIN, *names]), delete_branch=dice.random() < 0.3)
        case 3:
            graph.tags.create(name, branch=branch)
        case 4:
            clean(graph)
        case 5:
            graph.optimize(branch=branch)
        case 6:
            lose_hint(graph.repository.store, branch_id_of(graph, branch))
        case _:
            for number in range(4):
                add(graph, f"{name}-{number}", branch)


@pytest.mark.parametrize("ordered", [False, True], ids=["by hint and gallop", "by listing"])
@pytest.mark.parametrize("seed", range(2))
def test_random_histories_with_concurrent_writers_never_report_a_lost_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, ordered: bool
) -> None:
    """Three threads in two processes, as far as memory goes; some processes end without a word and new ones begin."""
    monkeypatch.setattr(store, "HINT_EVERY", 2)
    monkeypatch.setattr(store, "HEAD_UNSEEN_MAX_S", 0.0)  # the head in memory is looked for before every use
    place, options = str(tmp_path / "graph"), {"fsync": "false"}
    omnigraph.init(place, schema=SCHEMA, storage_options=options, settings=INLINE)
    if ordered:
        monkeypatch.setattr(Location, "lists_in_name_order", True)
    for name in ("b0", "b1"):
        omnigraph.open(place, options, settings=INLINE).branches.create(name)
    processes = [omnigraph.open(place, options, settings=INLINE) for _ in range(2)]
    alarms: list[str] = []
    done: Counter[int] = Counter()
    working = threading.Semaphore(0)

    def work(who: str) -> None:
        dice = random.Random(f"{seed} {who}")
        for step in range(40):
            slot, kind = dice.randrange(2), dice.randrange(KINDS)
            if dice.random() < 0.1:
                processes[slot] = omnigraph.open(place, options, settings=INLINE)
            try:
                act(processes[slot], dice, kind, f"{who}-{step}")
                done[kind] += 1
            except HeadLost as error:
                alarms.append(str(error))
            except OmnigraphError:
                pass

    def watch() -> None:
        while not working.acquire(blocking=False):
            alarms.extend(problem.sentence for problem in lost(processes[0].verify()))

    watcher = threading.Thread(target=watch)
    writers = [threading.Thread(target=work, args=(f"w{number}",)) for number in range(3)]
    for thread in (watcher, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    working.release()
    watcher.join()

    assert not alarms
    assert sum(done.values()) > 40, f"hardly anything was done: {done}"
    assert not lost(omnigraph.open(place, options, settings=INLINE).verify())


ACTS: dict[str, Callable[[Client], object]] = {
    "a commit": lambda client: client.insert("new"),
    "a branch is made": lambda client: client.graph.branches.create("new"),
    "a branch is deleted": lambda client: client.graph.branches.delete("side"),
    "a merge": lambda client: client.graph.branches.merge("side", delete_branch=True),
    "a tag": lambda client: client.graph.tags.create("new"),
    "a cleanup": lambda client: clean(client.graph),
    "a fold": lambda client: client.graph.optimize(),
}


@pytest.mark.parametrize("ordered", [False, True], ids=["by hint and gallop", "by listing"])
@pytest.mark.parametrize("what", ACTS)
def test_a_process_that_is_killed_anywhere_leaves_no_lost_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, ordered: bool
) -> None:
    monkeypatch.setattr(store, "HINT_EVERY", 1)
    for requests in range(REQUESTS_MAX):
        world = World(tmp_path / f"{requests}", lists_in_name_order=ordered)
        client = world.client("client")
        client.insert("ada")
        client.graph.branches.create("side")
        client.insert("bob", branch="side")
        with client.start(lambda client=client: ACTS[what](client)) as stepper:  # type: ignore[misc]
            while requests > 0 and not stepper.done:
                stepper.step()
                requests -= 1
            ended = stepper.done

        after = world.client("after")
        assert not lost(after.graph.verify())
        after.insert("eve")
        if ended:
            stepper.result()
            return
    raise AssertionError(f"{what} takes more than {REQUESTS_MAX} requests")
