"""Which graph a command line means: a store or a server, by flags, arguments and the environment."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from omnigraph.cli.main import main
from omnigraph.graph.graph import Graph
from omnigraph.server.settings import ServerSettings
from support.server import ADD, Served, served, token

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    for name in ("OMNIGRAPH_STORE", "OMNIGRAPH_SERVER", "OMNIGRAPH_TOKEN"):
        monkeypatch.delenv(name, raising=False)

    def ran(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return ran


def test_the_flags_go_before_or_behind_the_command(run: Run, server: Served) -> None:
    assert run("--server", server.url, "--graph", "people", "branch", "list")[:2] == (0, "main\n")
    assert run("branch", "list", "--server", server.url, "--graph", "people")[:2] == (0, "main\n")
    assert run("--server", server.url, "branch", "--graph", "people", "list")[:2] == (0, "main\n")


def test_the_graph_is_default_unless_it_is_named(run: Run, graph: Graph, store: Path) -> None:
    with served({"default": store}) as running:
        assert run("branch", "list", "--server", running.url)[0] == 0


def test_the_environment_names_the_server(run: Run, server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIGRAPH_SERVER", server.url)
    assert run("branch", "list", "--graph", "people")[:2] == (0, "main\n")


def test_a_store_on_the_line_counts_more_than_a_server_in_the_environment(
    run: Run, graph: Graph, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNIGRAPH_SERVER", "http://127.0.0.1:1")
    assert run("branch", "list", "--store", str(store))[:2] == (0, "main\n")
    assert run("branch", "list", str(store))[:2] == (0, "main\n")


def test_a_server_on_the_line_counts_more_than_a_store_in_the_environment(
    run: Run, server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNIGRAPH_STORE", "/nowhere")
    assert run("branch", "list", "--server", server.url, "--graph", "people")[:2] == (0, "main\n")


def test_two_of_the_same_rank_are_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = run("branch", "list", "--server", "http://127.0.0.1:1", "--store", "x")
    assert (code, out) == (2, "")
    assert "choose one" in err
    code, _, err = run("branch", "list", "x", "--server", "http://127.0.0.1:1")
    assert (code, "choose one" in err) == (2, True)
    monkeypatch.setenv("OMNIGRAPH_SERVER", "http://127.0.0.1:1")
    monkeypatch.setenv("OMNIGRAPH_STORE", "x")
    code, _, err = run("branch", "list")
    assert (code, "--server or --store" in err) == (2, True)


def test_a_graph_without_a_server_is_refused(run: Run) -> None:
    code, _, err = run("snapshot", "--graph", "people")
    assert (code, "give --server URL too" in err) == (2, True)


def test_nobody_names_themselves_to_a_server(run: Run, server: Served) -> None:
    code, out, err = run(
        "mutate", "-e", ADD, "--params", '{"slug": "x"}', "--as", "ada", "--server", server.url, "--graph", "people"
    )
    assert (code, out) == (2, "")
    assert "leave out --as" in err


def test_options_of_a_store_are_not_for_a_server(run: Run, server: Served) -> None:
    code, _, err = run("snapshot", "--server", server.url, "--storage-option", "a=b")
    assert (code, "leave it out" in err) == (2, True)


def test_a_token_is_taken_from_the_line_or_the_environment(
    run: Run, graph: Graph, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = tmp_path / "tokens.json"
    ada = token(tokens, "ada", "write@people")
    line = ("mutate", "-e", ADD, "--json", "--params", '{"slug": "x"}', "--graph", "people")
    with served({"people": store}, ServerSettings(tokens=tokens, grace_s=5.0)) as running:
        code, out, err = run(*line, "--server", running.url)
        assert (code, out, json.loads(err)["code"]) == (1, "", "unauthorized")
        code, out, _ = run(*line, "--server", running.url, "--token", ada)
        assert (code, json.loads(out)["commit"]["actor"]) == (0, "ada")
        monkeypatch.setenv("OMNIGRAPH_TOKEN", ada)
        code, out, err = run("branch", "list", "--graph", "people", "--server", running.url)
        assert (code, out, ada in err) == (0, "main\n", False)


def test_a_server_that_is_not_there_is_one_sentence(run: Run) -> None:
    code, out, err = run("branch", "list", "--server", "http://127.0.0.1:1")
    assert (code, out) == (1, "")
    assert err.startswith("error: The server http://127.0.0.1:1 did not answer (")


def test_a_drawing_and_a_graph_of_a_server_have_one_flag(run: Run, server: Served, store: Path) -> None:
    """`commit list --graph` draws; with a server and an id it names the graph, as everywhere."""
    _, drawn, _ = run("commit", "list", "--graph", "--store", str(store))
    assert drawn.startswith("*  ")
    assert run("commit", "list", "--graph", str(store))[1] == drawn
    assert run("commit", "list", str(store), "--draw")[1] == drawn
    named = ("--server", server.url, "--graph", "people")
    assert run("commit", "list", *named)[1].startswith("COMMIT")
    assert run("commit", "list", *named, "--draw")[1] == drawn
    assert run(*named, "commit", "list", "--graph")[1] == drawn
    assert run("commit", "list", "--graph", *named)[1] == drawn
    assert run("commit", "list", *named, "--graph")[1] == drawn


def test_a_lint_against_a_file_needs_no_server(run: Run, tmp_path: Path) -> None:
    (tmp_path / "q.gq").write_text("query q() { match { $p: Person } return { $p } }")
    (tmp_path / "s.pg").write_text("node Person { slug: String @key }")
    line = ("lint", str(tmp_path / "q.gq"), "--schema", str(tmp_path / "s.pg"))
    assert run(*line)[0] == 0
    code, _, err = run(*line, "--server", "http://127.0.0.1:1")
    assert (code, "check against one of them" in err) == (2, True)
