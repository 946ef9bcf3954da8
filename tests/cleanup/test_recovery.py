"""Recovery (`intent-tokens`): long writes whose process is gone are listed, and completed or discarded once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.errors import BadRequest, ConflictError, NotFound, ReadOnly
from omnigraph.gc import recovery
from omnigraph.gc.recovery import ACTOR, RecoveredJob
from omnigraph.graph.graph import Graph
from omnigraph.manifest.intent.intent_store import Intents, OwnedIntent
from omnigraph.manifest.model.manifest import Recovered
from omnigraph.manifest.settings import Settings
from omnigraph.pipeline.bulk.load import bulk_load
from omnigraph.pipeline.progress import Progress
from omnigraph.storage.util.runner import LocalRunner
from omnigraph.write.load.load_options import LoadOptions
from support import jobs
from support.cleanup import assert_sound, clean, table_files

SCHEMA = "node Person { slug: String @key age: I32? }"
ALL = "query all() { match { $p: Person } return { $p.slug, $p.age } order { $p.slug } }"
NO_FSYNC = {"fsync": "false"}
JOB = "load-nightly"


class At(Progress):
    """Does something when the load comes to a stage."""

    def __init__(self, stage: str, act: Callable[[], None]) -> None:
        super().__init__()
        self._at, self._act = stage, act

    def stage(self, name: str, tasks: int | None = None) -> None:
        super().stage(name, tasks)
        if name == self._at:
            self._act()


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    made = omnigraph.init(str(tmp_path / "graph"), SCHEMA, NO_FSYNC, settings=Settings(maintenance=0))
    made.mutate('query q() { insert Person { slug: "old", age: 1 } }')
    return made


@pytest.fixture
def given(tmp_path: Path) -> Path:
    lines = [json.dumps({"type": "Person", "data": {"slug": f"p{number}", "age": number}}) for number in range(5)]
    path = tmp_path / "people.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def fresh(graph: Graph) -> Graph:
    return omnigraph.open(graph.uri, NO_FSYNC, settings=Settings(maintenance=0))


def load(graph: Graph, given: Path, progress: Progress | None = None, **options: Any) -> Any:
    settings = {"job_id": "nightly", "actor": "ada", "mode": "merge"} | options
    return bulk_load(graph.repository, LocalRunner(), str(given), LoadOptions(**settings), progress=progress)


def die_at(graph: Graph, given: Path, stage: str, **options: Any) -> None:
    """The load ends there; its process has let go of the job."""
    with pytest.raises(KeyboardInterrupt):
        load(graph, given, At(stage, interrupt), **options)


def slugs(graph: Graph, branch: str = "main") -> list[str]:
    return [row["p.slug"] for row in fresh(graph).query(ALL, branch=branch).rows]


def much_later(graph: Graph) -> Graph:
    """A process that takes every job for dead that was not refreshed this instant."""
    other = fresh(graph)
    other.repository.intents = Intents(other.repository.store, other.repository.runtime, dead_after=timedelta())
    return other


LOADED = ["old", "p0", "p1", "p2", "p3", "p4"]


def left_over(graph: Graph) -> list[Path]:
    return [graph.repository.location.path / key for key in jobs.left_over(graph.repository)]


# Listing


def test_without_long_writes_there_is_nothing_to_recover(graph: Graph) -> None:
    assert graph.recover() == recovery.Recovery()


def test_a_running_job_and_a_dead_one_are_distinguished(graph: Graph, given: Path) -> None:
    die_at(graph, given, "publishing")
    point = graph.snapshot().pinned.manifest.point
    graph.repository.intents.create("alive", "main", point, "load", "grace")

    found = {job.txn_id: job for job in graph.recover().jobs}

    assert (found[JOB].state, found[JOB].can_complete, found[JOB].actor, found[JOB].branch) == (
        "released",
        True,
        "ada",
        "main",
    )
    assert (found["alive"].state, found["alive"].can_complete, found["alive"].pid) == ("running", False, os.getpid())
    assert found[JOB].since <= found["alive"].since


def test_listing_works_on_a_graph_that_may_only_be_read(graph: Graph, given: Path) -> None:
    die_at(graph, given, "publishing")
    reader = omnigraph.open(graph.uri, NO_FSYNC, read_only=True)
    assert [job.txn_id for job in reader.recover().jobs] == [JOB]
    for act in ({"complete": [JOB]}, {"discard": [JOB]}, {"all": True}):
        with pytest.raises(ReadOnly):
            reader.recover(**act)


# Completing


@pytest.mark.parametrize("mode", ["append", "merge", "overwrite"])
@pytest.mark.parametrize("stage", ["verifying", "publishing"])
def test_a_job_that_staged_everything_is_completed_without_its_input(
    graph: Graph, given: Path, stage: str, mode: str
) -> None:
    die_at(graph, given, stage, mode=mode)
    given.unlink()
    assert slugs(graph) == ["old"]

    (done,) = fresh(graph).recover(complete=[JOB]).ended

    assert slugs(graph) == (LOADED if mode != "overwrite" else LOADED[1:])
    commit = fresh(graph).commit(str(done.commit_id))
    assert done == RecoveredJob(JOB, "completed", commit.id, "main")
    assert (commit.txn_id, commit.actor, commit.kind, commit.commit_class) == (JOB, ACTOR, "recovery", "logical")
    assert commit.recovered == Recovered(JOB, "load", "ada", "completed")
    assert commit.touched["node:Person"].inserted == 5
    assert left_over(graph) == []
    assert_sound(graph)


def test_what_recovery_did_is_found_by_its_actor(graph: Graph, given: Path) -> None:
    die_at(graph, given, "publishing")
    point = graph.snapshot().pinned.manifest.point
    graph.repository.intents.create("other", "main", point, "load", "grace").release()
    assert fresh(graph).recover(all=True).ended == (), "a released job may be continued"
    ended = much_later(graph).recover(all=True).ended

    commits = fresh(graph).commits(actor=ACTOR)

    assert {commit.id for commit in commits} == {one.commit_id for one in ended}
    assert {commit.recovered.outcome for commit in commits if commit.recovered} == {"completed", "discarded"}
    assert commits == fresh(graph).commits(kind="recovery")
    assert len(fresh(graph).commits()) == 3, "init, a mutation, the load"


def test_a_job_on_a_branch_that_it_was_to_fork_is_completed_there(graph: Graph, given: Path) -> None:
    die_at(graph, given, "verifying", branch="agent", from_="main")
    assert fresh(graph).branches.list() == ["main"]

    (done,) = fresh(graph).recover(complete=[JOB]).ended

    assert done.branch == "agent"
    assert slugs(graph, "agent") == LOADED
    assert slugs(graph) == ["old"]


def test_what_was_committed_to_the_branch_meanwhile_is_kept(graph: Graph, given: Path) -> None:
    die_at(graph, given, "publishing", mode="append")
    graph.mutate('query q() { insert Person { slug: "between" } }')
    graph.optimize()

    fresh(graph).recover(complete=JOB)  # a single one may be given as it is

    assert slugs(graph) == ["between", *LOADED]
    assert_sound(graph)


def test_a_job_that_had_not_staged_everything_is_not_completed(graph: Graph, given: Path) -> None:
    die_at(graph, given, "loading")

    with pytest.raises(BadRequest, match=f"The job {JOB} had not staged everything.*or discard the job"):
        fresh(graph).recover(complete=[JOB])

    assert [job.can_complete for job in graph.recover().jobs] == [False]
    assert load(graph, given).commit is not None, "its own command goes on with it"


def test_what_can_no_longer_be_used_is_left_to_its_command(graph: Graph, given: Path) -> None:
    die_at(graph, given, "publishing")
    graph.schema.apply("node Person { slug: String @key age: I32? name: String? }")

    with pytest.raises(ConflictError, match=r"can't be used any more.*start it again with the same job id, or discard"):
        fresh(graph).recover(complete=[JOB])

    assert [job.state for job in much_later(graph).recover().jobs] == ["dead"]
    assert load(fresh(graph), given).commit is not None
    assert slugs(graph) == LOADED


def test_rows_that_have_become_invalid_are_refused_and_the_job_stays(graph: Graph, given: Path) -> None:
    die_at(graph, given, "publishing", mode="append")
    graph.mutate('query q() { insert Person { slug: "p3" } }')

    found = much_later(graph).recover(all=True)

    assert JOB in found.left
    assert "p3" in found.left[JOB]
    assert [job.txn_id for job in found.jobs] == [JOB]
    assert slugs(graph) == ["old", "p3"]


@pytest.mark.parametrize("branch", ["main", "agent"])
@pytest.mark.parametrize("verb", ["complete", "discard"])
def test_a_job_whose_process_was_killed_after_its_put_is_committed_once(
    graph: Graph, given: Path, monkeypatch: pytest.MonkeyPatch, verb: str, branch: str
) -> None:
    """It is neither applied again nor called discarded: only its intent was left."""
    monkeypatch.setattr(OwnedIntent, "finish", lambda _: interrupt())
    with pytest.raises(KeyboardInterrupt):
        load(graph, given, branch=branch, from_="main")
    monkeypatch.undo()
    committed = fresh(graph).commits(branch, limit=1)[0]

    ended = much_later(graph).recover(**{verb: [JOB]}).ended  # type: ignore[arg-type]

    assert ended == (RecoveredJob(JOB, "landed", committed.id, branch),)
    assert left_over(graph) == []
    assert slugs(graph, branch) == LOADED
    assert fresh(graph).commits(branch, limit=1)[0] == committed


def test_a_writer_that_was_only_asleep_finds_that_its_load_was_applied(graph: Graph, given: Path) -> None:
    """Without looking for its transaction it would apply the load a second time."""
    asleep, wake = threading.Event(), threading.Event()
    results: list[Any] = []

    def sleep() -> None:
        asleep.set()
        assert wake.wait(30)

    writer = threading.Thread(target=lambda: results.append(load(fresh(graph), given, At("publishing", sleep))))
    writer.start()
    assert asleep.wait(30)
    (done,) = much_later(graph).recover(complete=[JOB]).ended
    wake.set()
    writer.join(30)

    (result,) = results
    assert (done.outcome, result.commit.id) == ("completed", done.commit_id)
    assert [commit.txn_id for commit in fresh(graph).commits()].count(JOB) == 1
    assert slugs(graph) == LOADED


def test_a_job_with_a_live_process_is_never_touched(graph: Graph, given: Path) -> None:
    messages: list[str] = []

    def meddle() -> None:
        other = fresh(graph)
        for act in ({"complete": [JOB]}, {"discard": [JOB]}):
            with pytest.raises(ConflictError, match=r"is run by process .* wait for it or stop it") as refusal:
                other.recover(**act)  # type: ignore[arg-type]
            messages.append(str(refusal.value))
        assert other.recover(all=True).ended == ()

    assert load(graph, given, At("publishing", meddle)).commit is not None
    assert len(messages) == 2
    assert str(os.getpid()) in messages[0]


def test_a_driver_that_was_killed_is_dead_at_once_on_its_machine(graph: Graph, given: Path) -> None:
    script = (
        "import sys, os, signal; sys.path.insert(0, 'tests')\n"
        "import omnigraph, cleanup.test_recovery as t; from pathlib import Path\n"
        f"t.load(omnigraph.open({graph.uri!r}), Path({str(given)!r}), "
        "t.At('publishing', lambda: os.kill(os.getpid(), signal.SIGKILL)))"
    )
    ended = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[2], timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert [(job.txn_id, job.state, job.can_complete) for job in graph.recover().jobs] == [(JOB, "dead", True)]

    assert [one.outcome for one in graph.recover(all=True).ended] == ["completed"]
    assert slugs(graph) == LOADED


# Discarding


def test_a_discarded_job_is_noted_and_leaves_garbage_only(graph: Graph, given: Path) -> None:
    before = table_files(graph.repository.location.path)
    die_at(graph, given, "publishing")
    head = graph.snapshot().commit_id

    (done,) = fresh(graph).recover(discard=[JOB]).ended

    commit = fresh(graph).commit(str(done.commit_id))
    assert (done.outcome, commit.actor, commit.kind, commit.commit_class) == (
        "discarded",
        ACTOR,
        "recovery",
        "maintenance",
    )
    assert commit.recovered == Recovered(JOB, "load", "ada", "discarded")
    assert fresh(graph).snapshot().commit_id == head, "the record is no parent"
    assert slugs(graph) == ["old"]
    assert left_over(graph) == []
    clean(graph)
    assert table_files(graph.repository.location.path) <= before
    assert load(graph, given).commit is not None, "the job id can be used again"


def test_the_note_of_a_job_on_a_branch_that_is_gone_is_on_main(graph: Graph, given: Path) -> None:
    graph.branches.create("agent")
    die_at(graph, given, "publishing", branch="agent")
    graph.branches.delete("agent")

    (done,) = fresh(graph).recover(discard=[JOB]).ended

    assert done.branch == "main"
    assert [commit.id for commit in fresh(graph).commits(actor=ACTOR)] == [done.commit_id]


@pytest.mark.parametrize("verb", ["complete", "discard"])
def test_an_unknown_job_is_not_found(graph: Graph, verb: str) -> None:
    with pytest.raises(NotFound, match="There is no unfinished job nothing: `recover` lists"):
        graph.recover(**{verb: ["nothing"]})  # type: ignore[arg-type]


def test_contradictions_are_refused(graph: Graph) -> None:
    with pytest.raises(BadRequest, match="both completed and discarded"):
        graph.recover(complete=["a"], discard=["a"])
    with pytest.raises(BadRequest, match="not both"):
        graph.recover(complete=["a"], all=True)


@pytest.mark.parametrize("where", ["close", "_record_discard", "remove"])
def test_a_discard_that_is_killed_anywhere_is_finished_and_noted_once(
    graph: Graph, given: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    die_at(graph, given, "publishing")
    of: Any = recovery if where == "_record_discard" else Intents
    original = getattr(of, where)

    def killed(*args: Any, **kwargs: Any) -> Any:
        original(*args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(of, where, killed)
    with pytest.raises(KeyboardInterrupt):
        fresh(graph).recover(discard=[JOB])
    monkeypatch.undo()

    clean(fresh(graph))

    assert left_over(graph) == []
    assert [commit.recovered.outcome for commit in fresh(graph).commits(actor=ACTOR) if commit.recovered] == [
        "discarded"
    ]


# Beside cleanup


def test_cleanup_honours_a_dead_job_until_it_has_been_dead_for_long(graph: Graph, given: Path) -> None:
    die_at(graph, given, "publishing", mode="append")
    for number in range(3):
        graph.mutate(f'query q() {{ insert Person {{ slug: "old", age: {number} }} }}')
        graph.optimize()

    done = clean(graph)

    assert (done.jobs, done.discarded) == ((JOB,), ())
    assert fresh(graph).recover(complete=[JOB]).ended[0].outcome == "completed"
    assert slugs(graph) == LOADED
    assert_sound(graph)


def test_cleanup_discards_what_has_been_dead_for_too_long_and_says_so(graph: Graph, given: Path) -> None:
    before = table_files(graph.repository.location.path)
    die_at(graph, given, "publishing")
    assert clean(graph, intent_ttl=timedelta()).jobs == (JOB,), "a released job may be continued"
    later = much_later(graph)
    assert clean(later, dry_run=True, intent_ttl=timedelta()).discarded == (JOB,)
    assert len(graph.recover().jobs) == 1

    done = clean(later, intent_ttl=timedelta())

    assert (done.jobs, done.discarded) == ((), (JOB,))
    (commit,) = fresh(graph).commits(actor=ACTOR)
    assert commit.recovered == Recovered(JOB, "load", "ada", "discarded")
    assert table_files(graph.repository.location.path) <= before
    assert left_over(graph) == []


def test_completing_obeys_fences_like_the_writer(graph: Graph, given: Path) -> None:
    """A cleanup that did not know of the job may have swept what it staged."""
    die_at(graph, given, "publishing")
    path = next(path for path in left_over(graph) if path.name == f"{JOB}.json")
    intent = path.read_bytes()
    folder = path.with_suffix("")
    kept = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    for file in (path, *kept):
        file.unlink()
    clean(graph)
    path.write_bytes(intent)
    for file, data in kept.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)

    with pytest.raises(ConflictError, match="a cleanup has passed"):
        fresh(graph).recover(complete=[JOB])

    assert slugs(graph) == ["old"]
    assert load(fresh(graph), given).commit is not None
    assert slugs(graph) == LOADED
    assert_sound(graph)


def test_a_load_that_forks_its_branch_after_a_cleanup_stages_again(graph: Graph, given: Path) -> None:
    """Nothing on the new branch says that a cleanup passed where the rows were staged."""

    def sweep() -> None:
        path = next(path for path in left_over(graph) if path.suffix == ".json" and path.parent.name == "__recovery")
        intent = path.read_bytes()
        path.unlink()  # as if it had been dead for too long, while its owner only slept
        clean(fresh(graph))
        path.write_bytes(intent)

    from omnigraph.manifest.branch.branches import Branches

    original = Branches.create
    swept: list[bool] = []

    def create(self: Branches, *args: Any, **kwargs: Any) -> Any:
        if not swept:
            swept.append(True)
            sweep()
        return original(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Branches, "create", create)
        load(graph, given, branch="agent", from_="main", job_id=None)

    assert swept
    assert slugs(graph, "agent") == LOADED
    assert_sound(fresh(graph))


def test_a_load_that_falls_asleep_before_its_intent_is_put_and_wakes_behind_a_cleanup_is_refused(
    graph: Graph, given: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Intents.create

    def begin(self: Intents, *args: Any, **kwargs: Any) -> OwnedIntent:
        for age in range(2):
            graph.mutate(f'query q() {{ insert Person {{ slug: "old", age: {age} }} }}')
        clean(fresh(graph))
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Intents, "create", begin)
    with pytest.raises(ConflictError, match="A cleanup passed while the load began: nothing was written, run it again"):
        load(fresh(graph), given)
    monkeypatch.undo()

    assert left_over(graph) == []
    assert load(fresh(graph), given).commit is not None
    assert slugs(graph) == LOADED
