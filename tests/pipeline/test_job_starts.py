"""Starts of one job (`intent-tokens`, `fence-tokens`): one that was discarded publishes nothing, an input that differs
is never reported as loaded, and cleanup spares what a job stages by the tables that the job names."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.errors import BadRequest, ConflictError, JobDiscarded, JobInputDiffers, JobLost
from omnigraph.gc import recovery
from omnigraph.gc.cleanup import list_intents
from omnigraph.gc.recovery import ACTOR
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.publish import Publisher
from omnigraph.manifest.intent.intent_store import Intents, OwnedIntent
from omnigraph.manifest.model.manifest import Manifest
from omnigraph.manifest.model.paths import intent_key
from omnigraph.manifest.settings import Settings
from omnigraph.pipeline.bulk.load import bulk_load
from omnigraph.pipeline.bulk.staging import stage
from omnigraph.pipeline.progress import Progress
from omnigraph.storage.table.write.fragments import write_rows
from omnigraph.storage.util.runner import LocalRunner
from omnigraph.write.load.load import LoadResult
from omnigraph.write.load.load_options import LoadOptions
from support.cleanup import assert_sound, clean, table_files
from support.jobs import left_over, refusing_unnamed_tables

SCHEMA = "node Person { slug: String @key age: I32? }\nnode Note { slug: String @key }"
PEOPLE = "query all() { match { $p: Person } return { $p.slug, $p.age } order { $p.slug } }"
NOTES = "query all() { match { $n: Note } return { $n.slug } order { $n.slug } }"
NO_FSYNC = {"fsync": "false"}
JOB = "load-nightly"


@pytest.fixture(autouse=True)
def _publishes_what_its_intent_names(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing_unnamed_tables(monkeypatch)


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    """Person has a stored table, Note has none yet."""
    made = omnigraph.init(str(tmp_path / "graph"), SCHEMA, NO_FSYNC, settings=Settings(maintenance=0, inline_rows=0))
    made.mutate('query q() { insert Person { slug: "old", age: 1 } }')
    return made


def fresh(graph: Graph) -> Graph:
    return omnigraph.open(graph.uri, NO_FSYNC, settings=Settings(maintenance=0, inline_rows=0))


def much_later(graph: Graph) -> Graph:
    """A process that opens the graph after every intent's time to live."""
    other = fresh(graph)
    other.repository.intents = Intents(other.repository.store, other.repository.runtime, dead_after=timedelta())
    return other


def written(path: Path, *numbers: int) -> Path:
    lines = [{"type": "Person", "data": {"slug": f"p{number}", "age": number}} for number in numbers]
    lines += [{"type": "Note", "data": {"slug": f"n{number}"}} for number in numbers]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def given(tmp_path: Path) -> Path:
    return written(tmp_path / "people.jsonl", 1, 2)


def start(graph: Graph, given: Path, progress: Progress | None = None, **options: Any) -> LoadResult:
    settings = {"job_id": "nightly", "actor": "ada"} | options
    return bulk_load(graph.repository, LocalRunner(), str(given), LoadOptions(**settings), progress=progress)


class At(Progress):
    """Calls a function when the load comes to a stage."""

    def __init__(self, stage: str, act: Callable[[], None]) -> None:
        super().__init__()
        self._at, self._act = stage, act

    def stage(self, name: str, tasks: int | None = None) -> None:
        super().stage(name, tasks)
        if name == self._at:
            self._act()


PUTS = {"at its put": 1, "at its second put": 2}


class Stalled:
    """A load in a thread of its own that has staged everything and stops at a point before its put, until `wake`."""

    def __init__(self, graph: Graph, given: Path, where: str, **options: Any) -> None:
        self.graph = fresh(graph)
        self._stopped, self._go_on = threading.Event(), threading.Event()
        self._results: list[LoadResult] = []
        self._errors: list[BaseException] = []
        if where in PUTS:
            self._stop_at_put(PUTS[where])
        else:
            options["progress"] = At(options.pop("until", "publishing"), self._stop)
        self._thread = threading.Thread(target=self._run, args=(given, options))
        self._thread.start()
        assert self._stopped.wait(60), self._errors

    def _stop(self) -> None:
        self._stopped.set()
        assert self._go_on.wait(60)

    def _stop_at_put(self, nth: int) -> None:
        manifests = self.graph.repository.manifests
        create, numbers = manifests.create, set[int]()

        def late(manifest: Manifest) -> Any:
            if any(commit.txn_id == JOB for commit in manifest.commits):
                numbers.add(manifest.manifest_version)
                if len(numbers) == nth and not self._stopped.is_set():
                    self._stop()
            return create(manifest)

        manifests.create = late  # type: ignore[method-assign]

    def _run(self, given: Path, options: dict[str, Any]) -> None:
        try:
            self._results.append(start(self.graph, given, **options))
        except BaseException as error:
            self._errors.append(error)

    def wake(self) -> LoadResult:
        self._go_on.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self._errors:
            raise self._errors[0]
        return self._results[0]


@contextmanager
def stalled(graph: Graph, given: Path, where: str, **options: Any) -> Iterator[Stalled]:
    run = Stalled(graph, given, where, **options)
    try:
        yield run
    finally:
        run._go_on.set()
        run._thread.join(60)


def slugs(graph: Graph) -> list[str]:
    return [row["p.slug"] for row in fresh(graph).query(PEOPLE).rows]


def notes(graph: Graph) -> list[str]:
    return [row["n.slug"] for row in fresh(graph).query(NOTES).rows]


WHERE = pytest.mark.parametrize("where", ["before its checks", "at its put"])


# A start that was discarded


@WHERE
def test_a_discarded_start_does_not_publish_what_a_cleanup_swept_while_it_honoured_the_next_start(
    graph: Graph, given: Path, where: str
) -> None:
    with stalled(graph, given, where) as first:
        assert much_later(graph).recover(discard=[JOB]).ended[0].outcome == "discarded"
        with stalled(graph, given, "before its checks") as second:
            assert clean(fresh(graph)).jobs == (JOB,)
            with pytest.raises(JobDiscarded, match=r"nightly was discarded.*nothing was written"):
                first.wake()
            assert notes(graph) == []
            result = second.wake()

    assert result.counts == {"Person": 2, "Note": 2}
    assert slugs(graph) == ["old", "p1", "p2"]
    assert notes(graph) == ["n1", "n2"]
    assert [commit.txn_id for commit in fresh(graph).commits()].count(JOB) == 1
    assert_sound(fresh(graph))


@WHERE
@pytest.mark.parametrize("cleaned", [False, True], ids=["found in a manifest", "found in a stub"])
def test_a_discarded_start_that_nobody_started_again_does_not_commit(
    graph: Graph, given: Path, where: str, cleaned: bool
) -> None:
    with stalled(graph, given, where) as first:
        much_later(graph).recover(discard=[JOB])
        if cleaned:
            for age in range(3):
                fresh(graph).mutate(f'query q() {{ insert Person {{ slug: "later{age}" }} }}')
            clean(fresh(graph))
        before = slugs(graph)
        with pytest.raises(JobDiscarded) as refused:
            first.wake()

    assert refused.value.job_id == JOB
    assert slugs(graph) == before
    assert notes(graph) == []
    assert_sound(fresh(graph))


@WHERE
def test_a_discard_by_cleanup_stops_the_start_as_an_operators_does(graph: Graph, given: Path, where: str) -> None:
    with stalled(graph, given, where) as first:
        assert clean(much_later(graph), intent_ttl=timedelta()).discarded == (JOB,)
        with pytest.raises(JobDiscarded):
            first.wake()

    assert notes(graph) == []
    (note,) = fresh(graph).commits(actor=ACTOR)
    assert note.recovered is not None
    assert note.recovered.outcome == "discarded"


@WHERE
def test_a_start_that_was_taken_over_and_discarded_with_the_next_one_does_not_commit(
    graph: Graph, given: Path, where: str
) -> None:
    with stalled(graph, given, where) as first, stalled(released(graph), given, "before its checks"):
        much_later(graph).recover(discard=[JOB])
        with pytest.raises(JobDiscarded):
            first.wake()

    assert notes(graph) == []


def released(graph: Graph) -> Graph:
    """The owner's intent is released, as a process does that is interrupted, so that the next start takes it over."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("omnigraph.manifest.intent.intent_store.is_gone", lambda _: True)
        held = Intents(graph.repository.store, graph.repository.runtime).take_over(JOB)
    assert held.release()
    return graph


@WHERE
def test_a_start_that_was_taken_over_says_so_and_writes_nothing(graph: Graph, given: Path, where: str) -> None:
    with stalled(graph, given, where) as first, stalled(released(graph), given, "before its checks") as second:
        if where == "at its put":
            fresh(graph).mutate('query q() { insert Person { slug: "between" } }')
        with pytest.raises(JobLost, match="taken over"):
            first.wake()
        assert notes(graph) == []
        assert second.wake().counts == {"Person": 2, "Note": 2}

    assert notes(graph) == ["n1", "n2"]


def test_a_start_on_a_branch_that_it_makes_does_not_commit_there_after_its_discard(graph: Graph, given: Path) -> None:
    with stalled(graph, given, "at its put", branch="draft", from_="main") as first:
        (ended,) = much_later(graph).recover(discard=[JOB]).ended
        with pytest.raises(JobDiscarded):
            first.wake()

    assert (ended.outcome, ended.branch) == ("discarded", "draft")
    assert fresh(graph).query(NOTES, branch="draft").rows == []


def test_a_start_that_makes_its_branch_after_its_discard_does_not_commit_there(
    graph: Graph, given: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from omnigraph.manifest.branch.branches import Branches

    create = Branches.create

    def late(self: Branches, *args: Any, **options: Any) -> Any:
        monkeypatch.undo()
        much_later(graph).recover(discard=[JOB])
        return create(self, *args, **options)

    monkeypatch.setattr(Branches, "create", late)
    with pytest.raises(JobDiscarded):
        start(fresh(graph), given, branch="draft", from_="main")

    assert fresh(graph).query(NOTES, branch="draft").rows == []


def test_a_start_that_was_discarded_before_it_makes_its_branch_does_not_make_it(graph: Graph, given: Path) -> None:
    with stalled(graph, given, "before its checks", branch="draft", from_="main", until="verifying") as first:
        (ended,) = much_later(graph).recover(discard=[JOB]).ended
        with pytest.raises(JobDiscarded):
            first.wake()

    assert (ended.outcome, ended.branch) == ("discarded", "main")
    assert "draft" not in fresh(graph).branches.list()


# First tables, which all starts of a job derive alike


def test_a_start_stages_rows_in_a_first_table_that_an_earlier_start_made_meanwhile(
    graph: Graph, given: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The earlier start does not know yet that it has lost its job: it stages its rows and commits the table."""
    with stalled(graph, given, "before its checks", until="loading") as first:

        def late(*args: Any, **options: Any) -> Any:
            monkeypatch.setattr(f"{stage.__name__}.write_rows", write_rows)
            with pytest.raises(JobLost):
                first.wake()
            return write_rows(*args, **options)

        monkeypatch.setattr(f"{stage.__name__}.write_rows", late)
        assert start(released(graph), given).counts == {"Person": 2, "Note": 2}

    assert notes(graph) == ["n1", "n2"]
    assert_sound(fresh(graph))


def test_a_start_that_stages_its_rows_after_another_has_committed_them_is_answered_by_that_commit(
    graph: Graph, given: Path
) -> None:
    with stalled(graph, given, "before its checks", until="loading") as first:
        committed = start(released(graph), given).commit
        answered = first.wake().commit

    assert committed is not None
    assert answered is not None
    assert answered.id == committed.id
    assert notes(graph) == ["n1", "n2"]


# A branch that was deleted and made again


@pytest.fixture
def made_again(graph: Graph, given: Path) -> Graph:
    """The job was interrupted on a branch `draft`, whose name is that of another branch now."""
    source = graph.repository.open_txn().base
    graph.repository.branches.create("draft", source, None)
    with pytest.raises(KeyboardInterrupt):
        start(fresh(graph), given, progress=At("publishing", interrupt), branch="draft")
    graph.repository.branches.delete("draft")
    graph.repository.branches.create("draft", source, None)
    return graph


def test_a_job_of_a_branch_that_was_deleted_is_not_gone_on_with_on_the_next_one_of_its_name(
    made_again: Graph, given: Path
) -> None:
    with pytest.raises(BadRequest, match=r"begun on a branch 'draft' that was deleted since: discard it first"):
        start(fresh(made_again), given, branch="draft")
    assert fresh(made_again).query(NOTES, branch="draft").rows == []

    (ended,) = fresh(made_again).recover(discard=[JOB]).ended

    assert (ended.outcome, ended.branch) == ("discarded", "main")
    assert start(fresh(made_again), given, branch="draft").counts == {"Person": 2, "Note": 2}


def test_a_job_of_a_branch_that_was_deleted_is_not_begun_on_the_branch_that_it_would_be_forked_from(
    made_again: Graph, given: Path
) -> None:
    made_again.repository.branches.delete("draft")

    with pytest.raises(BadRequest, match="begun on a branch 'draft' that was deleted since"):
        start(fresh(made_again), given, branch="draft", from_="main")

    assert "draft" not in fresh(made_again).branches.list()


def test_a_job_of_a_branch_that_was_deleted_is_not_completed_on_the_next_one_of_its_name(made_again: Graph) -> None:
    with pytest.raises(ConflictError, match="deleted since"):
        fresh(made_again).recover(complete=[JOB])

    assert fresh(made_again).query(NOTES, branch="draft").rows == []


@pytest.mark.parametrize("killed", ["at its put", "after its commit"])
def test_a_job_on_the_second_branch_that_it_made_is_discarded_or_found_there(
    graph: Graph, given: Path, killed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was interrupted when it had made its branch; that was deleted, and its next start makes another one."""
    options: dict[str, Any] = {"branch": "draft", "from_": "main"}
    with monkeypatch.context() as patch:
        patch.setattr(Publisher, "publish", lambda *_, **__: interrupt())
        with pytest.raises(KeyboardInterrupt):
            start(fresh(graph), given, **options)
    graph.repository.branches.delete("draft")

    if killed == "at its put":
        with stalled(graph, given, "at its put", **options) as second:
            (ended,) = much_later(graph).recover(discard=[JOB]).ended
            with pytest.raises(JobDiscarded):
                second.wake()
    else:
        with monkeypatch.context() as patch:
            patch.setattr(OwnedIntent, "finish", lambda _: False)
            start(fresh(graph), given, **options)
        (ended,) = much_later(graph).recover(discard=[JOB]).ended

    assert (ended.outcome, ended.branch) == ("discarded" if killed == "at its put" else "landed", "draft")
    assert len(fresh(graph).query(NOTES, branch="draft").rows) == (0 if killed == "at its put" else 2)


# Another input


@pytest.mark.parametrize("change", ["rows", "bytes of the same size and time"])
def test_a_corrected_file_is_not_reported_as_loaded_while_the_first_files_rows_are_in_the_graph(
    graph: Graph, given: Path, change: str
) -> None:
    assert start(graph, given).commit is not None
    times = given.stat().st_mtime_ns
    if change == "rows":
        written(given, 1, 2, 3)
    else:
        given.write_text(given.read_text().replace('"age": 2', '"age": 7'))
        os.utime(given, ns=(times, times))

    with pytest.raises(JobInputDiffers, match=r"nightly.*was loaded with another input .*another job id") as refused:
        start(fresh(graph), given)

    assert refused.value.loaded != refused.value.given
    assert refused.value.loaded in str(refused.value)
    assert refused.value.given in str(refused.value)
    assert slugs(graph) == ["old", "p1", "p2"]


def test_the_same_file_elsewhere_and_touched_is_the_same_input(graph: Graph, given: Path, tmp_path: Path) -> None:
    first = start(graph, given)
    moved = tmp_path / "moved" / given.name
    moved.parent.mkdir()
    moved.write_bytes(given.read_bytes())

    again = start(fresh(graph), moved)

    assert first.commit is not None
    assert again.commit is not None
    assert again.commit.id == first.commit.id
    assert again.counts == first.counts


def test_a_stalled_start_whose_job_was_committed_with_another_input_says_so(
    graph: Graph, given: Path, tmp_path: Path
) -> None:
    other = written(tmp_path / "other.jsonl", 8)
    with stalled(graph, given, "at its put") as first:
        much_later(graph).recover(discard=[JOB])
        assert start(fresh(graph), other).counts == {"Person": 1, "Note": 1}
        with pytest.raises(JobInputDiffers):
            first.wake()

    assert slugs(graph) == ["old", "p8"]


def test_a_commit_that_records_no_input_is_answered_with_a_note(graph: Graph, given: Path) -> None:
    """As a commit of format 1 is, or of a load that was started without an id."""
    made = start(graph, given, job_id=None)
    assert made.commit is not None

    again = start(fresh(graph), written(given, 5), job_id=None, txn_id=made.commit.commit.txn_id)

    assert again.commit is not None
    assert again.commit.id == made.commit.id
    assert again.counts == {"Person": 2, "Note": 2}, "of the load that was committed"
    assert "not compared" in again.reports[0]


# Cleanup beside a job


def test_cleanup_spares_what_a_job_stages_though_the_clock_stepped_back_an_hour_meanwhile(
    graph: Graph, given: Path
) -> None:
    tables = graph.repository.location.path / "tables"
    before = {path for path in tables.rglob("*") if path.is_file()}
    with stalled(graph, given, "before its checks") as run:
        staged = {path for path in tables.rglob("*") if path.is_file()} - before
        assert staged
        for path in staged:
            earlier = path.stat().st_mtime - 3600
            os.utime(path, (earlier, earlier))
        assert clean(fresh(graph)).jobs == (JOB,)
        assert {path for path in staged if not path.exists()} == set()
        assert run.wake().counts == {"Person": 2, "Note": 2}

    assert notes(graph) == ["n1", "n2"]
    assert_sound(fresh(graph))


@pytest.mark.parametrize("mode", ["append", "merge"])
def test_cleanup_spares_the_table_that_a_job_makes_where_a_merge_has_put_rows_in_manifests_in_the_place_of_one(
    tmp_path: Path, mode: str
) -> None:
    """Person has a stored table on main when the job stages, and none when it is planned again behind the merge."""
    inline = Settings(maintenance=0, inline_rows=100)
    graph = omnigraph.init(str(tmp_path / "graph"), SCHEMA, NO_FSYNC, settings=inline)
    graph.mutate('query q() { insert Person { slug: "old", age: 1 } }')
    graph.branches.create("draft")
    graph.optimize()
    assert stored(graph)
    given = written(tmp_path / "people.jsonl", 1, 2)
    meanwhile = omnigraph.open(graph.uri, NO_FSYNC, settings=inline)

    def merge() -> None:
        meanwhile.mutate('query q() { insert Person { slug: "drafted" } }', branch="draft")
        assert meanwhile.branches.merge("draft").outcome == "fast_forward"
        assert not stored(graph)

    with stalled(graph, given, "at its second put", mode=mode, progress=At("publishing", merge)) as run:
        assert clean(fresh(graph)).jobs == (JOB,)
        assert run.wake().counts == {"Person": 2, "Note": 2}

    assert slugs(graph) == ["drafted", "old", "p1", "p2"]
    assert notes(graph) == ["n1", "n2"]
    assert_sound(fresh(graph))


def stored(graph: Graph) -> bool:
    """Whether Person has a stored table on main."""
    return fresh(graph).repository.open_txn().base.tables["node:Person"].stored is not None


def test_cleanup_spares_what_a_second_start_of_the_job_needs_to_go_on(graph: Graph, given: Path) -> None:
    stop_before_publishing(graph, given)
    clean(fresh(graph))

    assert staged_and_loaded(graph, given) == (0, {"Person": 2, "Note": 2})
    assert_sound(fresh(graph))


def staged_and_loaded(graph: Graph, given: Path) -> tuple[int, Any]:
    """How many splits the next start stages, and what it loads."""
    runner = Counting()
    result = bulk_load(fresh(graph).repository, runner, str(given), LoadOptions(job_id="nightly"))
    return runner.staged, result.counts


class Counting(LocalRunner):
    staged = 0

    def run(self, task: Any, items: Any, *, stage: str, on_done: Any = None) -> Any:
        self.staged += len(items) if stage == "loading" else 0
        return super().run(task, items, stage=stage, on_done=on_done)


def interrupt() -> None:
    raise KeyboardInterrupt


def stop_before_publishing(graph: Graph, given: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        start(fresh(graph), given, progress=At("publishing", interrupt))


def after_listing_jobs(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """The next cleanup is held up when it has listed the jobs, before its fences."""

    def slow(*args: Any) -> Any:
        found = list_intents(*args)
        monkeypatch.undo()
        act()
        return found

    monkeypatch.setattr("omnigraph.gc.cleanup.list_intents", slow)


@pytest.mark.parametrize("same_input", [True, False], ids=["the same input", "another input"])
def test_cleanup_removes_what_an_ended_start_left_and_nothing_of_the_next_one(
    graph: Graph, given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same_input: bool
) -> None:
    stop_before_publishing(graph, given)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Intents, "delete_job_objects", lambda *_: None)  # killed before that
        fresh(graph).recover(discard=[JOB])
    old, new = set(left_over(graph.repository)), set[str]()
    second = given if same_input else written(tmp_path / "other.jsonl", 7, 8, 9)

    def start_again() -> None:
        stop_before_publishing(graph, second)
        new.update(set(left_over(graph.repository)) - old)

    after_listing_jobs(monkeypatch, start_again)

    clean(fresh(graph))

    assert old
    assert set(left_over(graph.repository)) == new
    rows = 2 if same_input else 3
    assert staged_and_loaded(graph, second)[1] == {"Person": rows, "Note": rows}
    assert_sound(fresh(graph))


def test_a_dead_job_that_is_taken_over_before_cleanup_discards_it_is_loaded_once_and_whole(
    graph: Graph, given: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_before_publishing(graph, given)
    fresh(graph).mutate('query q() { insert Person { slug: "old", age: 2 } }')
    after_listing_jobs(monkeypatch, lambda: stop_before_publishing(graph, given))

    clean(much_later(graph), intent_ttl=timedelta())

    assert fresh(graph).commits(actor=ACTOR) == []
    staged, loaded = staged_and_loaded(graph, given)
    assert staged > 0, "no fence honoured what was staged"
    assert loaded == {"Person": 2, "Note": 2}
    assert_sound(fresh(graph))


def test_an_intent_of_format_1_spares_the_files_of_all_tables(graph: Graph, given: Path) -> None:
    stop_before_publishing(graph, given)
    store = graph.repository.store
    stored = store.get(intent_key(JOB))
    assert stored is not None
    new = ("tokens", "tables", "prefix", "named", "checksum")
    document = {name: value for name, value in json.loads(stored.data).items() if name not in new} | {"format": 1}
    store.put(intent_key(JOB), json.dumps(document).encode())
    before = table_files(graph.repository.location.path)

    assert clean(fresh(graph)).jobs == (JOB,)

    assert table_files(graph.repository.location.path) == before


def test_the_object_of_an_ended_job_goes_when_it_is_old(graph: Graph, given: Path) -> None:
    start(graph, given)
    store = graph.repository.store
    clean(fresh(graph))
    assert store.get(intent_key(JOB)) is not None
    head = fresh(graph).repository.open_txn().base.point

    clean(fresh(graph), intent_ttl=timedelta())

    assert store.get(intent_key(JOB)) is None
    assert fresh(graph).repository.open_txn().base.point == head, "nothing else was to be done"


# What a start does with a discard that was left half-way


@pytest.mark.parametrize("where", ["close", "_record_discard", "remove"])
def test_a_start_ends_a_discard_that_was_killed_and_then_loads(
    graph: Graph, given: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    stop_before_publishing(graph, given)
    of: Any = recovery if where == "_record_discard" else Intents
    original = getattr(of, where)

    def killed(*args: Any) -> None:
        original(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(of, where, killed)
    with pytest.raises(KeyboardInterrupt):
        fresh(graph).recover(discard=[JOB])
    monkeypatch.undo()

    staged, loaded = staged_and_loaded(graph, given)

    assert (staged > 0, loaded) == (True, {"Person": 2, "Note": 2})
    assert [commit.recovered.outcome for commit in fresh(graph).commits(actor=ACTOR) if commit.recovered] == [
        "discarded"
    ]
    assert left_over(graph.repository) == []


def test_completing_a_job_that_is_being_discarded_ends_the_discard(
    graph: Graph, given: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_before_publishing(graph, given)
    seen = graph.repository.intents.read(JOB)
    assert seen is not None
    graph.repository.intents.close(seen)

    with pytest.raises(ConflictError, match=r"was being discarded, which is finished now: start it again"):
        fresh(graph).recover(complete=[JOB])

    assert fresh(graph).recover().jobs == ()
    assert notes(graph) == []


def test_the_commit_names_its_start_and_its_input(graph: Graph, given: Path) -> None:
    made = start(graph, given)
    assert made.commit is not None

    commit = made.commit.commit

    assert commit.token
    assert commit.input is not None
    assert re.fullmatch(rf"1 file of {given.stat().st_size} bytes, append, [0-9a-f]{{32}}", commit.input)


def test_what_recovery_completes_names_the_same_input(graph: Graph, given: Path) -> None:
    stop_before_publishing(graph, given)
    fresh(graph).recover(complete=[JOB])

    again = start(fresh(graph), given)

    assert again.counts == {"Person": 2, "Note": 2}
    with pytest.raises(JobInputDiffers):
        start(fresh(graph), written(given, 1))


def test_a_load_without_an_id_that_recovery_completed_meanwhile_says_so(graph: Graph, given: Path) -> None:
    def complete() -> None:
        (job,) = much_later(graph).recover().jobs
        much_later(graph).recover(complete=[job.txn_id])

    result = start(fresh(graph), given, job_id=None, progress=At("publishing", complete))

    assert result.commit is not None
    assert result.commit.commit.recovered is not None
    txn_id = result.commit.commit.txn_id
    assert result.reports == (f"Another process has completed the load {txn_id} meanwhile: its input is loaded, once.",)
    assert result.counts == {"Person": 2, "Note": 2}
    assert notes(graph) == ["n1", "n2"]


def test_a_start_of_a_job_that_is_committed_leaves_what_the_job_of_another_branch_staged(
    graph: Graph, given: Path
) -> None:
    graph.repository.branches.create("draft", graph.repository.open_txn().base, None)
    start(graph, given)
    with pytest.raises(KeyboardInterrupt):
        start(fresh(graph), given, branch="draft", progress=At("publishing", interrupt))
    kept = left_over(graph.repository)

    assert "was committed before" in start(fresh(graph), given).reports[0]

    assert kept
    assert left_over(graph.repository) == kept
