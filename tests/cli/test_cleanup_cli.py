"""`cleanup` and `recover` on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from cli.runs import Cli, Run
from omnigraph.gc import cleanup as cleanup_module
from omnigraph.pipeline.bulk.load import bulk_load
from omnigraph.pipeline.progress import Progress
from omnigraph.storage.util.runner import LocalRunner
from omnigraph.write.load.load_options import LoadOptions

PUT = 'query q() { insert Person { slug: "ada", age: 1 } }'


@pytest.fixture
def made(cli: Cli, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A graph with some past, staged."""
    monkeypatch.setenv("OMNIGRAPH_INLINE_ROWS", "0")
    (tmp_path / "people.pg").write_text("node Person { slug: String @key age: I32? }")
    assert cli("init", "--schema", str(tmp_path / "people.pg"), store).code == 0
    for age in range(5):
        assert cli("mutate", "--store", store, "-e", PUT.replace("1 }", f"{age} }}")).code == 0
    return store


@pytest.fixture
def no_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    from datetime import timedelta

    monkeypatch.setattr(cleanup_module.cleanup, "__kwdefaults__", {
        **(cleanup_module.cleanup.__kwdefaults__ or {}), "floor": timedelta()
    })  # fmt: skip


def files(store: str) -> int:
    return sum(path.is_file() for path in (Path(store) / "tables").rglob("*"))


def run_json(cli: Cli, *arguments: str) -> Any:
    run = cli(*arguments, "--json")
    assert run.code == 0, run.err
    return run.json


def test_without_confirm_cleanup_shows_what_would_go(cli: Cli, made: str, no_floor: None) -> None:
    before = files(made)

    run = cli("cleanup", made, "--older-than", "0s", "--keep", "1")

    assert run.code == 0
    assert run.out.startswith("Would delete ")
    assert "Would keep " in run.out
    assert run.err == "Nothing was changed: run it again with --confirm to delete.\n"
    assert files(made) == before
    assert run_json(cli, "commit", "list", made, "--all")["commits"][0]["kind"] == "mutation"


def test_with_confirm_it_is_done_and_reported_in_json(cli: Cli, made: str, no_floor: None) -> None:
    before = files(made)
    said = run_json(cli, "cleanup", made, "--older-than", "0s", "--keep", "2")

    done = run_json(cli, "cleanup", made, "--older-than", "0s", "--keep", "2", "--confirm", "--as", "ada")

    assert (said["dry_run"], done["dry_run"]) == (True, False)
    assert {key: done[key] for key in ("files", "bytes", "manifests")} == {
        key: said[key] for key in ("files", "bytes", "manifests")
    }
    assert files(made) == before - done["files"]
    assert done["oldest_retained"] == {"main": 5}
    assert done["kept"]["young"] == 0
    assert done["jobs"] == {"kept": [], "discarded": []}
    assert done["cost"]["requests"] > 0
    newest = run_json(cli, "commit", "list", made, "--all")["commits"][0]
    assert (newest["kind"], newest["class"], newest["actor"]) == ("cleanup", "maintenance", "ada")
    again = cli("cleanup", made, "--older-than", "0s", "--keep", "2", "--confirm")
    assert again.out.startswith("Deleted 0 files (0 B) and expired 0 states.")


def test_an_hour_is_left_to_running_queries(cli: Cli, made: str) -> None:
    done = run_json(cli, "cleanup", made, "--older-than", "0s", "--keep", "1", "--confirm")
    assert done["files"] == 0
    assert done["kept"]["young"] == files(made)
    assert done["manifests"] == 0, "states get the hour too"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--older-than", "7"), "Invalid span of time '7': use a number and s, m, h, d or w, such as 7d."),
        (("--older-than", "-7d"), "Invalid span of time '-7d'"),
        (("--older-than", ""), "Invalid span of time ''"),
        (("--older-than", "soon"), "Invalid span of time 'soon'"),
        (("--intent-ttl", "1y"), "Invalid span of time '1y'"),
        (("--keep", "0"), "0 is not in the range"),
        (("--keep", "-3"), "-3 is not in the range"),
        (("--keep", "many"), "'many' is not a valid integer"),
        (("--floor", "0s"), "No such option"),
    ],
)
def test_a_cleanup_line_that_makes_no_sense_is_refused(
    cli: Cli, made: str, arguments: tuple[str, str], told: str
) -> None:
    run = cli("cleanup", made, *arguments, "--confirm")
    assert run.code == 2
    assert told in run.err
    assert "Traceback" not in run.err


@pytest.mark.parametrize("command", ["cleanup", "recover"])
def test_where_no_graph_is_nothing_is_made(cli: Cli, tmp_path: Path, command: str) -> None:
    run = cli(command, str(tmp_path / "nowhere"), "--json")
    assert run.code == 1
    assert run.error["code"] == "not_found"
    assert not (tmp_path / "nowhere").exists()


# recover


class DyingBeforeItsPut(Progress):
    def stage(self, name: str, tasks: int | None = None) -> None:
        super().stage(name, tasks)
        if name == "publishing":
            raise KeyboardInterrupt


@pytest.fixture
def job(made: str, tmp_path: Path) -> str:
    """A load that staged everything and was interrupted."""
    lines = [json.dumps({"type": "Person", "data": {"slug": f"p{number}"}}) for number in range(3)]
    (tmp_path / "given.jsonl").write_text("\n".join(lines))
    with pytest.raises(KeyboardInterrupt):
        bulk_load(
            omnigraph.open(made).repository,
            LocalRunner(),
            str(tmp_path / "given.jsonl"),
            LoadOptions(job_id="nightly", actor="ada"),
            progress=DyingBeforeItsPut(),
        )
    return "load-nightly"


def test_nothing_unfinished_is_said_so(cli: Cli, made: str) -> None:
    run = cli("recover", made)
    assert (run.code, run.out, run.err) == (0, "", "There are no unfinished jobs.\n")
    assert run_json(cli, "recover", made) == {"jobs": [], "ended": [], "left": []}


def test_a_job_is_listed_and_completed_by_its_name(cli: Cli, made: str, job: str) -> None:
    listed = cli("recover", made)
    assert "load-nightly" in listed.out
    assert "released, can be completed" in listed.out
    (told,) = run_json(cli, "recover", made)["jobs"]
    assert (told["txn_id"], told["kind"], told["actor"], told["can_complete"]) == (job, "load", "ada", True)

    done = run_json(cli, "recover", made, "--complete", job)

    assert done["jobs"] == []
    assert [one["outcome"] for one in done["ended"]] == ["completed"]
    found = run_json(cli, "commit", "list", made, "--filter", "actor=omnigraph:recovery")["commits"]
    assert [commit["id"] for commit in found] == [done["ended"][0]["commit_id"]]
    assert found[0]["recovered"] == {"txn_id": job, "kind": "load", "actor": "ada", "outcome": "completed"}
    assert "recovered actor" in cli("commit", "show", found[0]["id"], "--store", made).out
    rows = run_json(cli, "query", "--store", made, "-e", "query q() { match { $p: Person } return { $p.slug } }")
    assert len(rows["rows"]) == 4


def test_a_job_is_discarded_and_the_note_is_found(cli: Cli, made: str, job: str) -> None:
    run = cli("recover", "--store", made, "--discard", job)

    assert run.code == 0
    assert run.out.startswith("Discarded load-nightly, recorded as ")
    (found,) = run_json(cli, "commit", "list", made, "--filter", "actor=omnigraph:recovery")["commits"]
    assert (found["kind"], found["class"], found["recovered"]["outcome"]) == ("recovery", "maintenance", "discarded")


def test_what_may_still_be_gone_on_with_is_left_by_all(cli: Cli, made: str, job: str) -> None:
    done = run_json(cli, "recover", made, "--all")
    assert done["ended"] == []
    assert [one["txn_id"] for one in done["jobs"]] == [job]


def refusals() -> list[tuple[tuple[str, ...], int, str]]:
    return [
        (("--complete", "nothing"), 1, "There is no unfinished job nothing: `recover` lists them."),
        (("--discard", "nothing"), 1, "There is no unfinished job nothing: `recover` lists them."),
        (("--complete", "../x"), 1, "There is no unfinished job ../x: `recover` lists them."),
        (("--complete", "a", "--discard", "a"), 1, "The job a can't be both completed and discarded: choose one."),
        (("--all", "--discard", "a"), 2, "--all ends every dead job: leave out --complete and --discard."),
    ]


@pytest.mark.parametrize(("arguments", "code", "told"), refusals())
def test_a_recover_line_that_makes_no_sense_is_refused(
    cli: Cli, made: str, arguments: tuple[str, ...], code: int, told: str
) -> None:
    run: Run = cli("recover", made, *arguments)
    assert run.code == code
    assert told in run.err
    assert "Traceback" not in run.err
