"""`demo`: the tour that a newcomer takes first."""

from __future__ import annotations

import os
import resource
import shlex
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

import omnigraph
from cli.runs import Cli, process
from omnigraph.query.lint import lint
from omnigraph.schema.lang.compile import compile_schema

pytestmark = pytest.mark.xdist_group("demo")  # one process, which takes the tour once

CPU_SECONDS_MAX = 15
PACKAGE = Path(omnigraph.__file__).parent


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The directory of a demo, and what it said; run from a copy of the package alone, as a wheel installs it."""
    base = tmp_path_factory.mktemp("demo")
    shutil.copytree(PACKAGE, base / "site" / "omnigraph", ignore=shutil.ignore_patterns("__pycache__"))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)

    run = process("demo", str(base / "here"), cwd=base, PYTHONPATH=str(base / "site"), OMNIGRAPH_STORE="/nowhere")

    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (run.returncode, run.stderr) == (0, "")
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < CPU_SECONDS_MAX
    return base / "here", run.stdout


def test_the_demo_shows_the_main_job(tour: tuple[Path, str]) -> None:
    _, said = tour

    for words in (
        "Created a graph at ",
        "Note +7, Person +8, Team +3, Cites +4, Knows +7, WorksIn +6, Wrote +7",
        "Bob     engineer   41  2019-03-01",
        "Hana  engineer",
        "Vectors for text  Fay",
        "Created branch what-if",
        "Ines    engineer    -  2026-01-05",
        "error: Team 'sorting' does not exist",
        "Person -1, Knows -3, WorksIn -1, Wrote -1",
    ):
        assert words in said


def test_the_commands_it_ends_with_work(tour: tuple[Path, str], cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    place, said = tour
    _, _, ending = said.partition(". Continue\n")
    cd, export, *rest = [line.strip() for line in ending.splitlines() if line.startswith("  ")]
    commands = [line for line in rest if line.startswith("omnigraph ")]
    environment = dict(word.split("=") for word in shlex.split(export)[1:])

    assert cd == f"cd {place}"
    assert len(commands) >= 5
    monkeypatch.chdir(place)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for command in commands:
        run = cli(*shlex.split(command)[1:])
        assert (command, run.code) == (command, 0), run.err
        assert run.out or "lint" in command


def test_a_second_demo_in_one_place_is_refused_and_changes_nothing(tour: tuple[Path, str], cli: Cli) -> None:
    place, _ = tour
    before = sorted(path.name for path in place.iterdir())

    run = cli("demo", str(place))

    assert run.code == 3
    assert "already exists" in run.err
    assert sorted(path.name for path in place.iterdir()) == before


def test_the_demo_leaves_process_and_environment_as_they_were(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNIGRAPH_EMBED_PROVIDER", "openai")
    environment, folder = dict(os.environ), Path.cwd()

    run = cli("demo", str(tmp_path / "here"), "--json")

    assert (run.code, run.err) == (0, "")
    assert run.json["store"] == str(tmp_path / "here" / "graph")
    assert run.json["commands"][0] == "omnigraph init --schema team.pg graph"
    assert (dict(os.environ), Path.cwd()) == (environment, folder)


def test_without_a_path_it_makes_a_fresh_directory(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    run = cli("demo", "--json")

    (made,) = tmp_path.glob("omnigraph-demo-*")
    assert run.json["directory"] == str(made)


def test_a_directory_that_cant_be_written_is_named(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "file").write_text("")

    run = cli("demo", str(tmp_path / "file"))

    assert run.code == 1
    assert f"{tmp_path}/file" in run.err
    assert cli("demo", "--store", str(tmp_path)).code == 2


def test_there_is_nothing_to_warn_of_in_the_sample() -> None:
    data = resources.files("omnigraph.cli") / "demo_data"
    queries = (data / "team.gq").read_text()

    assert lint(queries, compile_schema((data / "team.pg").read_text()).catalog) == ()


def test_a_reader_that_goes_away_ends_the_demo_quietly(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "omnigraph", "demo", str(tmp_path / "here")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        run.stdout.readline()
        run.stdout.close()
        error = run.stderr.read()
        code = run.wait(timeout=120)

    assert (code, error) == (141, b"")
