"""Automatic maintenance: behind the writers, never in their way, and in front of one only at the hard limit."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.errors import Unavailable
from omnigraph.graph.graph import Graph
from omnigraph.maintenance import background
from omnigraph.maintenance.background import ACTOR, Maintainer, fold_due
from omnigraph.maintenance.policy import FAN
from omnigraph.manifest.commit.plan import Append
from omnigraph.manifest.settings import EXIT_LIMIT, HARD_LIMIT, Settings
from support.catalogs import PERSON, ids_of, people, person_rows
from support.table_layout import content, head_of, stored, tails

LIMIT = 4
SETTLED_S = 60


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Graph]:
    monkeypatch.setattr(background, "WAIT_MAX_S", 0.0)

    def graph(*, background: bool = True, **settings: int) -> Graph:
        given = Settings(**{"tail_manifests": LIMIT, **settings})
        made = omnigraph.init(tmp_path / "graph", people(), {"fsync": "false"}, settings=given)
        made.maintenance.background = background
        return made

    return graph


def insert(graph: Graph, *ids: str, branch: str = "main") -> None:
    for id_ in ids:
        graph.write([Append(PERSON, person_rows(id_))], branch=branch)


def names(count: int, letter: str = "p") -> list[str]:
    return [f"{letter}{n:03}" for n in range(count)]


def kinds(graph: Graph) -> list[str]:
    return [commit.kind for commit in graph.commits(maintenance=True, limit=None)]


# Behind the writers


def test_a_writer_that_crosses_a_limit_has_the_table_folded_behind_it(make: Callable[..., Graph]) -> None:
    graph = make()
    insert(graph, *names(LIMIT))
    assert graph.maintenance.settle(SETTLED_S)
    assert tails(graph) == {PERSON: LIMIT}, "at the limit nothing is due"

    insert(graph, "last")
    assert graph.maintenance.settle(SETTLED_S)

    assert tails(graph) == {PERSON: 0}
    newest = graph.commits(maintenance=True, limit=1)[0]
    assert (newest.kind, newest.actor) == ("fold", ACTOR)
    assert ids_of(graph.snapshot().to_arrow(PERSON)) == sorted([*names(LIMIT), "last"])


def test_a_writer_is_not_kept_waiting(make: Callable[..., Graph], monkeypatch: pytest.MonkeyPatch) -> None:
    graph = make()
    begun, go_on = threading.Event(), threading.Event()

    def slow(*args: Any, **options: Any) -> Any:
        begun.set()
        assert go_on.wait(SETTLED_S)
        return fold_due(*args, **options)

    monkeypatch.setattr(background, "fold_due", slow)
    insert(graph, *names(LIMIT + 1))
    assert begun.wait(SETTLED_S)
    insert(graph, *names(5, "q"))
    assert not graph.maintenance.settle(0.0)
    assert tails(graph) == {PERSON: LIMIT + 6}
    go_on.set()

    assert graph.maintenance.settle(SETTLED_S)
    assert tails(graph)[PERSON] <= LIMIT
    assert len(ids_of(graph.snapshot().to_arrow(PERSON))) == LIMIT + 6


def test_commits_during_a_run_cause_one_more_run(make: Callable[..., Graph], monkeypatch: pytest.MonkeyPatch) -> None:
    graph = make()
    runs, begun, go_on = [], threading.Event(), threading.Event()

    def counted(*args: Any, **options: Any) -> Any:
        runs.append(threading.current_thread())
        begun.set()
        assert go_on.wait(SETTLED_S)
        return fold_due(*args, **options)

    monkeypatch.setattr(background, "fold_due", counted)
    insert(graph, *names(LIMIT + 1))
    assert begun.wait(SETTLED_S)
    insert(graph, *names(10, "q"))
    go_on.set()

    assert graph.maintenance.settle(SETTLED_S)
    assert len(runs) == 2
    assert len(set(runs)) == 1, "one thread, one run after the other"


def test_each_branch_is_looked_after(make: Callable[..., Graph]) -> None:
    graph = make()
    graph.branches.create("agent")
    insert(graph, *names(LIMIT + 1))
    insert(graph, *names(LIMIT + 1), branch="agent")

    assert graph.maintenance.settle(SETTLED_S)

    assert tails(graph) == tails(graph, "agent") == {PERSON: 0}


def test_of_many_branches_the_latest_are_remembered(
    make: Callable[..., Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "BRANCHES_MAX", 2)
    graph = make()
    for name in ("one", "two", "three"):
        graph.branches.create(name)
        insert(graph, *names(LIMIT + 1), branch=name)
    insert(graph, "last", branch="one")

    assert graph.maintenance.settle(SETTLED_S)

    assert {branch.name for branch in graph.maintenance._branches.values()} == {"three", "one"}
    assert all(tails(graph, name)[PERSON] <= LIMIT for name in ("one", "two", "three"))


def test_a_branch_that_is_gone_by_then_is_no_failure(
    make: Callable[..., Graph], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    graph = make()
    graph.branches.create("agent")
    go_on = threading.Event()

    def late(*args: Any, **options: Any) -> Any:
        assert go_on.wait(SETTLED_S)
        return fold_due(*args, **options)

    monkeypatch.setattr(background, "fold_due", late)
    insert(graph, *names(LIMIT + 1), branch="agent")
    graph.branches.delete("agent")
    go_on.set()

    assert graph.maintenance.settle(SETTLED_S)
    ours = [record for record in caplog.records if record.name.startswith("omnigraph")]
    assert not [record for record in ours if record.levelno >= logging.WARNING]


def test_a_failure_is_only_logged_and_retried_later(
    make: Callable[..., Graph], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    graph = make()

    def failing(*args: Any, **options: Any) -> Any:
        raise Unavailable("the store", "it is on fire")

    with monkeypatch.context() as broken:
        broken.setattr(background, "fold_due", failing)
        insert(graph, *names(LIMIT + 1))
        assert graph.maintenance.settle(SETTLED_S)
        insert(graph, *names(5, "q"))
        assert graph.maintenance.settle(SETTLED_S)
    warnings = [record for record in caplog.records if record.name == "omnigraph.maintain"]
    assert len(warnings) == 1, "it rests before it tries again"
    assert "main" in warnings[0].getMessage()

    branch = next(iter(graph.maintenance._branches.values()))
    branch.backoff_until = 0.0
    insert(graph, "last")
    assert graph.maintenance.settle(SETTLED_S)
    assert tails(graph) == {PERSON: 0}


def test_under_a_stream_of_small_commits_everything_stays_bounded(make: Callable[..., Graph]) -> None:
    graph = make()
    fragments = []
    for n in range(30):
        insert(graph, *names(LIMIT + 1, f"{n:02}-"))
        assert graph.maintenance.settle(SETTLED_S)
        fragments.append(stored(graph, PERSON).fragments)
        assert tails(graph) == {PERSON: 0}

    assert max(fragments) <= 2 * FAN
    assert fragments[-1] <= 2 * FAN
    assert graph.snapshot().to_arrow(PERSON).num_rows == 30 * (LIMIT + 1)


def test_under_a_stream_of_staged_commits_fragments_stay_bounded(make: Callable[..., Graph]) -> None:
    graph = make(inline_rows=0)
    for n in range(4 * FAN):
        insert(graph, f"p{n:02}")
        assert graph.maintenance.settle(SETTLED_S)

    assert stored(graph, PERSON).fragments < 2 * FAN
    assert "optimize" in kinds(graph)
    assert graph.snapshot().to_arrow(PERSON).num_rows == 4 * FAN


def test_threads_that_write_while_it_runs_lose_nothing(make: Callable[..., Graph]) -> None:
    graph = make()
    before = content(graph)
    threads = [threading.Thread(target=insert, args=(graph, *names(25, letter))) for letter in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SETTLED_S)

    assert graph.maintenance.settle(SETTLED_S)

    assert before == {}
    assert ids_of(graph.snapshot().to_arrow(PERSON)) == sorted(name for x in "abcd" for name in names(25, x))
    assert tails(graph)[PERSON] <= LIMIT
    assert "fold" in kinds(graph)


# Not at all


def test_it_can_be_switched_off(make: Callable[..., Graph]) -> None:
    graph = make(maintenance=0)
    insert(graph, *names(LIMIT * HARD_LIMIT + 2))

    assert graph.maintenance.settle(0.0)
    graph.maintenance.finish()
    assert tails(graph) == {PERSON: LIMIT * HARD_LIMIT + 2}
    assert "fold" not in kinds(graph)


def test_once_closed_it_begins_nothing_more(make: Callable[..., Graph]) -> None:
    graph = make()
    assert graph.maintenance.close()
    insert(graph, *names(LIMIT + 1))

    assert graph.maintenance.settle(0.0)
    assert tails(graph) == {PERSON: LIMIT + 1}


# In front of a writer


def test_a_writer_at_the_hard_limit_folds_first(make: Callable[..., Graph]) -> None:
    graph = make(background=False)
    insert(graph, *names(LIMIT * HARD_LIMIT + 1))
    assert tails(graph) == {PERSON: LIMIT * HARD_LIMIT + 1}, "no writer has waited so far"

    insert(graph, "last")

    assert tails(graph) == {PERSON: 1}
    assert kinds(graph)[:2] == ["mutation", "fold"]
    assert len(ids_of(graph.snapshot().to_arrow(PERSON))) == LIMIT * HARD_LIMIT + 2


def test_of_many_writers_at_the_hard_limit_one_folds(make: Callable[..., Graph]) -> None:
    graph = make(background=False)
    insert(graph, *names(LIMIT * HARD_LIMIT + 1))

    threads = [threading.Thread(target=insert, args=(graph, f"q{n}")) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SETTLED_S)

    assert kinds(graph).count("fold") == 1
    assert len(ids_of(graph.snapshot().to_arrow(PERSON))) == LIMIT * HARD_LIMIT + 7


def test_writers_that_waited_for_the_fold_of_another_make_no_requests(
    make: Callable[..., Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = make(background=False)
    insert(graph, *names(LIMIT * HARD_LIMIT + 1))
    full, looks = head_of(graph), []
    find = graph.repository.branches.find

    def watched(name: str) -> Any:
        looks.append(name)
        return find(name)

    monkeypatch.setattr(graph.repository.branches, "find", watched)
    (branch,) = graph.maintenance._branches.values()
    waiting: list[bool] = []
    threads = [threading.Thread(target=lambda: waiting.append(graph.maintenance.before_write(full))) for _ in range(20)]
    with branch.running:
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join(SETTLED_S)

    assert waiting == [True] * 20
    assert kinds(graph).count("fold") == 1
    assert len(looks) <= 4, "the one that folded looked; of 200 writers far away each would wait for all looks before"


def test_a_writer_with_an_old_base_looks_at_the_head_before_it_folds(make: Callable[..., Graph]) -> None:
    graph = make(background=False)
    insert(graph, *names(LIMIT * HARD_LIMIT + 1))
    old = head_of(graph)
    insert(graph, *names(LIMIT + 1, "q"))
    assert kinds(graph).count("fold") == 1

    assert graph.maintenance.before_write(old), "there is a newer base than this"

    assert kinds(graph).count("fold") == 1
    assert tails(graph) == {PERSON: LIMIT + 1}, "due, but not at the hard limit"


def test_a_writer_whose_fold_fails_writes_all_the_same(
    make: Callable[..., Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = make(background=False)
    insert(graph, *names(LIMIT * HARD_LIMIT + 1))

    def failing(*args: Any, **options: Any) -> Any:
        raise Unavailable("the store", "it is on fire")

    monkeypatch.setattr(background, "fold_due", failing)
    insert(graph, "last")

    assert tails(graph) == {PERSON: LIMIT * HARD_LIMIT + 2}


# At the end of a one-shot command


@pytest.mark.parametrize(("commits", "folds"), [(LIMIT * EXIT_LIMIT, 0), (LIMIT * EXIT_LIMIT + 1, 1)])
def test_a_one_shot_command_folds_at_its_end_only_above_twice_the_limit(
    make: Callable[..., Graph], commits: int, folds: int
) -> None:
    graph = make(background=False)
    insert(graph, *names(commits))

    graph.maintenance.finish()

    assert kinds(graph).count("fold") == folds
    assert tails(graph) == {PERSON: 0 if folds else commits}


def test_a_command_that_wrote_nothing_has_nothing_to_finish(make: Callable[..., Graph]) -> None:
    graph = make(background=False)
    insert(graph, *names(LIMIT * EXIT_LIMIT + 1))
    reader = Maintainer(graph.repository, background=False)

    reader.finish()

    assert "fold" not in kinds(graph)


# Several processes

WRITER = """
import sys, omnigraph
sys.path[:0] = sys.argv[3].split(":")
from omnigraph.manifest.commit.plan import Append
from omnigraph.manifest.settings import Settings
from support.catalogs import PERSON, person_rows
graph = omnigraph.open(sys.argv[1], {"fsync": "false"}, settings=Settings(tail_manifests=4))
for n in range(30):
    graph.write([Append(PERSON, person_rows(f"{sys.argv[2]}-{n:02}"))])
assert graph.maintenance.settle(60)
"""


def test_processes_that_maintain_one_branch_lose_nothing_and_end_folded(make: Callable[..., Graph]) -> None:
    graph = make()
    tests = str(Path(__file__).parent.parent)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(graph.uri), name, tests],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for name in ("one", "two")
    ]
    for process in processes:
        assert process.wait(120) == 0

    rows = ids_of(graph.snapshot().to_arrow(PERSON))
    assert rows == sorted(f"{name}-{n:02}" for name in ("one", "two") for n in range(30))
    assert tails(graph)[PERSON] <= LIMIT
    assert stored(graph, PERSON).fragments <= 2 * FAN


def test_a_process_that_ends_in_the_middle_of_a_run_harms_nothing(make: Callable[..., Graph]) -> None:
    graph = make()
    script = WRITER.replace("assert graph.maintenance.settle(60)\n", "")
    tests = str(Path(__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", script, str(graph.uri), "one", tests],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert len(ids_of(graph.snapshot().to_arrow(PERSON))) == 30


def test_a_commit_succeeds_whatever_fails_after_it(make: Callable[..., Graph]) -> None:
    def failing(_manifest: object) -> None:
        raise RuntimeError("can't start new thread")

    graph = make()
    graph.repository.publisher.listeners.insert(0, failing)
    commit = graph.write([Append(PERSON, person_rows("ada"))])
    assert commit is not None
    assert graph.snapshot().commit_id == commit.id
