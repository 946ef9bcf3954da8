"""The command line: what it prints where, and how it exits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

import omnigraph
from cli.runs import Cli, Run, process, without_heavy_libraries
from omnigraph.errors import ConstraintViolation, OutcomeUnknown, PreconditionFailed
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import Append, ConflictPolicy, PublishPlan, RaiseFence
from omnigraph.manifest.repository import init_repository
from omnigraph.manifest.settings import Settings
from omnigraph.runtime import Runtime, SystemClock
from omnigraph.schema.catalog import Schema
from omnigraph.storage.meter import Cost
from support.catalogs import KNOWS, PERSON, knows_rows, people, person_rows
from support.documents import sealed


@pytest.fixture
def graph(store: str) -> Graph:
    """Two commits: `init`, then ada's two persons and an edge."""
    graph = omnigraph.init(store, people())
    rows = [Append(PERSON, person_rows("ada", "grace")), Append(KNOWS, knows_rows(("ada", "grace")))]
    graph.write(rows, actor="ada")
    return graph


def head(graph: Graph, branch: str = "main") -> str:
    return graph.commits(branch, 1)[0].id


# What commands answer


def test_snapshot_shows_every_type_with_its_rows_in_aligned_columns(graph: Graph, store: str, cli: Cli) -> None:
    run = cli("snapshot", store)

    commit = head(graph)
    assert run.code == 0
    assert run.out.splitlines() == [
        "branch    main",
        f"commit    {commit}",
        "manifest  2",
        "",
        "TYPE     KIND  ROWS  CHANGED AT",
        f"Person   node     2  {commit}",
        "Company  node     0  -",
        f"Knows    edge     1  {commit}",
        "WorksAt  edge     0  -",
    ]
    assert run.err == ""


def test_snapshot_json_says_the_same(graph: Graph, store: str, cli: Cli) -> None:
    answer = cli("snapshot", store, "--json").json

    assert (answer["branch"], answer["commit_id"], answer["manifest_version"]) == ("main", head(graph), 2)
    assert answer["types"][:2] == [
        {"type_name": "Person", "kind": "node", "rows": 2, "changed_at": head(graph)},
        {"type_name": "Company", "kind": "node", "rows": 0, "changed_at": None},
    ]


def test_snapshot_at_a_commit_shows_that_state(graph: Graph, store: str, cli: Cli) -> None:
    first = graph.commits()[-1].id

    answer = cli("snapshot", store, "--at", first, "--json").json

    assert answer["commit_id"] == first
    assert {entry["rows"] for entry in answer["types"]} == {0}


HOURLY = [datetime(2026, 1, 31, hour, tzinfo=UTC) for hour in (1, 2, 3)]


class SetClock(SystemClock):
    """Says the time that it is set to."""

    def __init__(self) -> None:
        self.time = HOURLY[0]

    def now(self) -> datetime:
        return self.time


@pytest.fixture
def hourly(store: str) -> list[str]:
    """The ids of three commits, made at one, two and three o'clock: `init` and one person each."""
    clock = SetClock()
    graph = Graph(
        init_repository(store, Schema(people()), runtime=Runtime(clock), settings=Settings(maintenance=0)), Cost()
    )
    for clock.time, slug in zip(HOURLY[1:], ("ada", "grace"), strict=True):
        graph.write([Append(PERSON, person_rows(slug))])
    return [commit.id for commit in reversed(graph.commits())]


@pytest.mark.parametrize(
    ("time", "commit", "persons"),
    [
        ("2026-01-31T01:00:00Z", 0, 0),
        ("2026-01-31T01:59:59.999Z", 0, 0),
        ("2026-01-31T02:00:00Z", 1, 1),
        ("2026-01-31T02:30:00", 1, 1),
        ("2026-01-31T03:30:00+01:00", 1, 1),
        ("2026-01-31T03:00:00Z", 2, 2),
        ("2026-02-01", 2, 2),
    ],
)
def test_snapshot_at_a_time_shows_the_newest_state_by_then(
    hourly: list[str], store: str, cli: Cli, time: str, commit: int, persons: int
) -> None:
    answer = cli("snapshot", store, "--at", time, "--json").json

    assert answer["commit_id"] == hourly[commit]
    assert answer["types"][0]["rows"] == persons


def test_snapshot_at_a_time_before_the_graph_is_not_found(hourly: list[str], store: str, cli: Cli) -> None:
    run = cli("snapshot", store, "--at", "2026-01-31T00:59:59Z", "--json")

    assert (run.code, run.error["code"]) == (1, "not_found")


def test_snapshot_of_a_branch_shows_that_branch(graph: Graph, store: str, cli: Cli) -> None:
    graph.branches.create("try")
    graph.write([Append(PERSON, person_rows("hedy"))], branch="try")

    answer = cli("snapshot", store, "--branch", "try", "--json").json

    assert (answer["branch"], answer["types"][0]["rows"]) == ("try", 3)


def test_branch_create_answers_its_name_and_cost(graph: Graph, store: str, cli: Cli) -> None:
    answer = cli("branch", "create", "agent/42", "--store", store, "--json").json

    assert answer["branch"] == "agent/42"
    assert set(answer["cost"]) == {"requests", "stages", "bytes", "retries"}
    assert 0 < answer["cost"]["stages"] <= 4
    assert graph.branches.list() == ["agent/42", "main"]


def test_branch_create_says_in_text_what_it_did(graph: Graph, store: str, cli: Cli) -> None:
    run = cli("branch", "create", "try", "--store", store)

    assert run.code == 0
    assert run.out.startswith("Created branch try from main")
    assert run.out.count("\n") == 1


def test_branch_create_forks_the_branch_that_from_names(graph: Graph, store: str, cli: Cli) -> None:
    graph.branches.create("a")
    graph.write([Append(PERSON, person_rows("hedy"))], branch="a")

    assert cli("branch", "create", "b", "--from", "a", "--store", store).code == 0
    assert head(graph, "b") == head(graph, "a")


def test_branch_list_json_names_all_and_main(graph: Graph, store: str, cli: Cli) -> None:
    graph.branches.create("try")

    assert cli("branch", "list", store, "--json").json == {"branches": ["main", "try"]}
    assert cli("branch", "list", store).out == "main\ntry\n"


def test_branch_delete_removes_the_name_and_answers_its_cost(graph: Graph, store: str, cli: Cli) -> None:
    graph.branches.create("try")

    answer = cli("branch", "delete", "try", "--store", store, "--json").json

    assert answer["branch"] == "try"
    assert set(answer["cost"]) == {"requests", "stages", "bytes", "retries"}
    assert cli("branch", "list", store).out == "main\n"


def test_commit_list_json_has_exactly_the_promised_fields_newest_first(graph: Graph, store: str, cli: Cli) -> None:
    newest, first = cli("commit", "list", store, "--json").json["commits"]

    assert list(newest) == ["id", "parent", "merged_parent", "actor", "authored_at", "kind", "class", "touched"]
    assert newest["id"] == head(graph)
    assert newest["parent"] == first["id"]
    assert (newest["merged_parent"], newest["actor"], newest["kind"]) == (None, "ada", "mutation")
    assert newest["class"] == "logical"
    assert newest["touched"] == {"node:Person": {"inserted": 2}, "edge:Knows": {"inserted": 1}}
    assert (first["kind"], first["parent"], first["actor"], first["touched"]) == ("init", None, None, {})


def test_times_are_utc_to_the_millisecond(graph: Graph, store: str, cli: Cli) -> None:
    authored_at = cli("commit", "list", store, "--json").json["commits"][0]["authored_at"]

    assert len(authored_at) == len("2026-01-31T12:00:00.250Z")
    assert authored_at.endswith("Z")
    assert authored_at[:23] == graph.commits()[0].authored_at.isoformat()[:23]


def test_commit_list_filters_by_actor(graph: Graph, store: str, cli: Cli) -> None:
    graph.write([Append(PERSON, person_rows("hedy"))], actor="bob")

    actors = [c["actor"] for c in cli("commit", "list", store, "--filter", "actor=bob", "--json").json["commits"]]

    assert actors == ["bob"]


def test_commit_list_stops_at_the_limit_and_says_so_on_stderr(graph: Graph, store: str, cli: Cli) -> None:
    run = cli("commit", "list", store, "--limit", "1")

    assert len(run.out.splitlines()) == 2  # the heading and one commit
    assert "--limit" in run.err


def test_commit_list_of_a_branch_runs_on_through_its_fork_point(graph: Graph, store: str, cli: Cli) -> None:
    graph.branches.create("try")
    graph.write([Append(PERSON, person_rows("hedy"))], branch="try")

    listed = [c["id"] for c in cli("--branch", "try", "commit", "list", store, "--json").json["commits"]]

    assert listed[1:] == [commit.id for commit in graph.commits()]


def test_commit_list_all_adds_maintenance(graph: Graph, store: str, cli: Cli) -> None:
    raise_a_fence(graph)

    plain = cli("commit", "list", store, "--json").json["commits"]
    every = cli("commit", "list", store, "--all", "--json").json["commits"]

    assert [c["class"] for c in plain] == ["logical", "logical"]
    assert next((c["class"], c["kind"]) for c in every) == ("maintenance", "cleanup")


def test_commit_show_answers_one_commit(graph: Graph, store: str, cli: Cli) -> None:
    answer = cli("commit", "show", head(graph), "--store", store, "--json").json

    assert answer["commit"] == cli("commit", "list", store, "--json").json["commits"][0]
    assert "ada" in cli("commit", "show", head(graph), "--store", store).out


def test_version_names_release_format_and_libraries(cli: Cli) -> None:
    answer = cli("version", "--json").json

    assert (answer["release"], answer["format_version"]) == (omnigraph.__version__, 2)
    assert set(answer["libraries"]) == {"python", "pylance", "pyarrow", "duckdb", "obstore", "click"}
    assert all(answer["libraries"].values())
    assert cli("version").out.splitlines()[0].split() == ["omnigraph", omnigraph.__version__]


# How the store and the flags are given


@pytest.mark.parametrize("order", ["before", "between", "after"])
def test_common_flags_go_before_or_after_the_commands_name(order: str, graph: Graph, store: str, cli: Cli) -> None:
    flags = ["--store", store, "--json", "--as", "ada", "--quiet", "--storage-option", "fsync=false"]
    places = {"before": [*flags, "branch", "list"], "between": ["branch", *flags, "list"]}

    assert cli(*places.get(order, ["branch", "list", *flags])).json == {"branches": ["main"]}


def test_the_flag_nearest_to_the_end_wins(graph: Graph, store: str, cli: Cli) -> None:
    graph.branches.create("try")

    assert cli("--branch", "nope", "snapshot", store, "--branch", "try", "--json").json["branch"] == "try"


def test_the_environment_names_the_store(graph: Graph, store: str, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIGRAPH_STORE", store)

    assert cli("branch", "list").out == "main\n"


def test_an_explicit_store_beats_the_environment(
    graph: Graph, store: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNIGRAPH_STORE", "/nowhere")

    assert cli("branch", "list", store).code == 0
    assert cli("branch", "list", "--store", store).code == 0


def test_a_file_uri_names_a_local_store(graph: Graph, store: str, cli: Cli) -> None:
    assert cli("snapshot", f"file://{store}").code == 0


def test_quiet_leaves_data_only(graph: Graph, store: str, cli: Cli) -> None:
    assert cli("branch", "create", "try", "--store", store, "--quiet") == Run(0, "", "")
    assert cli("branch", "list", store, "--quiet").out == "main\ntry\n"
    assert cli("commit", "list", store, "--limit", "1", "--quiet").err == ""


def test_as_names_the_actor_of_a_deleted_branch(graph: Graph, store: str, cli: Cli) -> None:
    graph.branches.create("try")
    branch_id = graph.repository.branches.find("try").head.branch_id

    cli("branch", "delete", "try", "--store", store, "--as", "ada")

    tombstone = graph.repository.manifests.find_head(branch_id)
    assert tombstone is not None
    assert tombstone.tombstone is not None
    assert tombstone.tombstone.actor == "ada"


# Errors


def test_an_error_is_one_sentence_on_stderr(store: str, cli: Cli) -> None:
    assert cli("snapshot", store) == Run(
        1, "", f"error: {store} holds no graph: check the URI, or make a graph there with init.\n"
    )


def test_an_error_with_json_is_the_http_body_on_stderr(store: str, cli: Cli) -> None:
    run = cli("snapshot", store, "--json")

    body = json.loads(run.err)
    assert (run.code, run.out) == (1, "")
    assert set(body) == {"error", "code", "details"}
    assert body["code"] == "not_found"


def test_a_path_that_is_a_file_is_no_graph(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "file").write_text("hello")

    run = cli("snapshot", str(tmp_path / "file"))

    assert run.code == 1
    assert "holds no graph" in run.err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["snapshot", "--branch", "nope"], "'nope'"),
        (["snapshot", "--branch", ""], "name a branch"),
        (["commit", "list", "--branch", "nope"], "'nope'"),
        (["branch", "create", "new", "--from", "nope"], "'nope'"),
        (["branch", "delete", "nope"], "'nope'"),
        (["branch", "delete", "main"], "main"),
        (["branch", "create", "bad name"], "bad name"),
        (["branch", "create", "../up"], "../up"),
        (["branch", "create", "x" * 201], "200"),
        (["commit", "show", "garbage"], "garbage"),
        (["commit", "show", "aaaaaaaaaaaaa.1"], "aaaaaaaaaaaaa.1"),
        (["snapshot", "--at", "yesterday"], "yesterday"),
        (["snapshot", "--at", "2001-01-01"], "did not exist"),
    ],
)
def test_bad_input_is_refused_by_name(arguments: list[str], word: str, graph: Graph, store: str, cli: Cli) -> None:
    run = cli(*arguments, "--store", store)

    assert (run.code, run.out) == (1, "")
    assert run.err.startswith("error: ")
    assert run.err.count("\n") == 1
    assert word in run.err


@pytest.mark.parametrize("name", ["main", "try"])
def test_creating_a_branch_that_exists_is_a_conflict(name: str, graph: Graph, store: str, cli: Cli) -> None:
    graph.branches.create("try")

    run = cli("branch", "create", name, "--store", store, "--json")

    assert run.code == 3
    assert json.loads(run.err)["code"] == "conflict"


@pytest.mark.parametrize(
    ("stamp", "words"),
    [
        (b"\x00garbage", "damaged"),
        (b"{}", "damaged"),
        (b'{"format": 1}', "damaged"),
        (b'{"format": 3, "graph_id": "x"}', "upgrade omnigraph"),
    ],
)
def test_a_stamp_that_cant_be_read_is_named(stamp: bytes, words: str, graph: Graph, store: str, cli: Cli) -> None:
    (Path(store) / "_omnigraph.json").write_bytes(stamp)

    for arguments in (["snapshot", store], ["branch", "create", "try", "--store", store]):
        run = cli(*arguments)

        assert (run.code, run.out) == (1, "")
        assert words in run.err
        assert run.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Usage: omnigraph"),
        (["nope"], "No such command 'nope'"),
        (["snapshot"], "OMNIGRAPH_STORE"),
        (["snapshot", "a", "--store", "b"], "given twice"),
        (["snapshot", "a", "--nope"], "--nope"),
        (["branch", "create", "--store", "a"], "NAME"),
        (["commit", "list", "a", "--limit", "many"], "--limit"),
        (["commit", "list", "a", "--limit", "-1"], "--limit"),
        (["commit", "list", "a", "--filter", "author=ada"], "actor=…"),
        (["commit", "list", "a", "--filter", "actor"], "actor=…"),
        (["snapshot", "a", "--storage-option", "novalue"], "key=value"),
        (["snapshot", "a", "--as", ""], "actor"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error(arguments: list[str], words: str, cli: Cli) -> None:
    run = cli(*arguments)

    assert (run.code, run.out) == (2, "")
    assert words in run.err


def test_a_usage_error_with_json_has_the_same_body(cli: Cli) -> None:
    run = cli("snapshot", "--nope", "--json")

    assert run.code == 2
    assert json.loads(run.err)["code"] == "bad_request"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PreconditionFailed("a.1", "a.2"), 4),
        (ConstraintViolation("key", "Person", ("ada",), "Person 'ada' already exists: use an upsert."), 5),
        (OutcomeUnknown("01J", "main", 7), 6),
    ],
)
def test_the_exit_code_follows_from_the_kind_of_error(
    error: Exception, code: int, graph: Graph, store: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("omnigraph.graph.graph.BranchCommands.create", fail)

    run = cli("branch", "create", "try", "--store", store)

    assert (run.code, run.err) == (code, f"error: {error}\n")


def test_a_bug_is_one_line_without_a_traceback_unless_debug(
    graph: Graph, store: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("omnigraph.graph.graph.BranchCommands.list", fail)

    plain, debug = cli("branch", "list", store), cli("branch", "list", store, "--debug")

    assert (plain.code, debug.code) == (1, 1)
    assert "Traceback" not in plain.err
    assert "ZeroDivisionError: oops" in plain.err
    assert "Traceback" in debug.err


def test_names_in_the_log_cant_steer_the_terminal(graph: Graph, store: str, cli: Cli) -> None:
    graph.write([Append(PERSON, person_rows("hedy"))], actor="red")
    (newest,) = [path for path in Path(store).glob("__manifest/*/*.json") if b'"red"' in path.read_bytes()]
    changed = newest.read_text().replace('"red"', r'"\u001b[31mred\nnew line"')  # as no writer of ours would
    newest.write_bytes(sealed(json.loads(changed)))

    run = cli("commit", "list", store)

    assert "\x1b" not in run.out
    assert len(run.out.splitlines()) == 4


# As a real process


def test_process_data_goes_to_stdout_and_errors_to_stderr(graph: Graph, store: str) -> None:
    good, bad = process("branch", "list", store), process("snapshot", store, "--branch", "nope")

    assert (good.returncode, good.stdout, good.stderr) == (0, "main\n", "")
    assert (bad.returncode, bad.stdout) == (1, "")
    assert bad.stderr.startswith("error: ")


def test_process_exits_with_the_code_of_the_error(graph: Graph, store: str) -> None:
    assert process("branch", "create", "main", "--store", store).returncode == 3


def test_process_colours_nothing_in_a_pipe(graph: Graph, store: str) -> None:
    assert "\x1b" not in process("snapshot", store, FORCE_COLOR="1").stdout


def test_a_reader_that_goes_away_ends_the_run_without_a_traceback(graph: Graph, store: str) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        run = process("commit", "list", store, stdout=write)
    finally:
        os.close(write)

    assert (run.returncode, run.stderr) == (141, "")


def test_a_full_disk_behind_stdout_is_an_error(graph: Graph, store: str) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        run = process("commit", "list", store, stdout=full)
    finally:
        os.close(full)

    assert run.returncode == 1
    assert run.stderr.count("\n") == 1


# Whoever starts the tests may ignore SIGINT, as a background job of a shell does, and children inherit that.
HEARS_INTERRUPTS = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def test_an_interrupted_run_exits_130_with_a_short_line(graph: Graph, store: str) -> None:
    """The interrupt comes while the command waits for its store: here, for a stamp that is a pipe.

    A background job ignores interrupts, and so does what it starts: the command must not inherit that.
    """
    stamp = Path(store) / "_omnigraph.json"
    stamp.unlink()
    os.mkfifo(stamp)
    run = subprocess.Popen(
        [sys.executable, "-c", HEARS_INTERRUPTS, "-m", "omnigraph", "snapshot", store],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    writer = os.open(stamp, os.O_WRONLY)  # returns once the command has opened it to read
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=30)
    os.close(writer)

    assert (run.returncode, out) == (130, "")
    assert err.split() == ["interrupted"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["version"],
        ["snapshot"],
        ["snapshot", "--at", "2026-01-31T02:30:00Z"],
        ["branch", "create", "b"],
        ["branch", "list"],
        ["branch", "delete", "try"],
        ["commit", "list"],
    ],
    ids=" ".join,
)
def test_commands_that_read_no_rows_import_no_heavy_library(
    arguments: list[str], hourly: list[str], store: str
) -> None:
    omnigraph.open(store).branches.create("try")

    run = without_heavy_libraries(*arguments, OMNIGRAPH_STORE=store)

    assert (run.returncode, run.stderr) == (0, b"")


def raise_a_fence(graph: Graph) -> None:
    """A maintenance commit, as cleanup will make them."""
    repository = graph.repository
    plan = PublishPlan(repository.runtime.ids.txn_id(), ConflictPolicy.MAINTENANCE, RaiseFence(1))
    repository.publisher.publish(repository.open_txn(), plan)
