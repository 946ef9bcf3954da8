"""`omnigraph verify`: a report for people and for programs, and an exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

import omnigraph
from cli.runs import Cli


@pytest.fixture
def graph(store: str) -> str:
    made = omnigraph.init(store, schema="node Person { slug: String @key }")
    made.mutate('query q() { insert Person { slug: "ada" } }')
    return store


def break_it(store: str) -> None:
    for path in (Path(store) / "__schema").iterdir():
        path.write_text("{}")


def test_a_healthy_graph_exits_with_0_and_says_what_was_looked_at(cli: Cli, graph: str) -> None:
    run = cli("verify", graph)
    assert run.code == 0
    assert "no damage" in run.out
    assert "manifests" in run.out
    assert "main" in run.out


def test_quiet_says_nothing_of_a_healthy_graph(cli: Cli, graph: str) -> None:
    run = cli("verify", graph, "--quiet")
    assert (run.code, run.out, run.err) == (0, "", "")


def test_json_has_the_counts_and_no_problems(cli: Cli, graph: str) -> None:
    run = cli("verify", "--store", graph, "--full", "--json")
    assert run.code == 0
    assert run.json["ok"] is True
    assert run.json["full"] is True
    assert run.json["branches"] == ["main"]
    assert run.json["checked"]["rows"] == 1
    assert run.json["problems"] == []
    assert set(run.json["cost"]) == {"requests", "stages", "bytes", "retries"}


def test_damage_exits_with_1_and_is_named(cli: Cli, graph: str) -> None:
    break_it(graph)
    run = cli("verify", graph)
    assert run.code == 1
    assert "damage: manifest 2 of branch 'main': schema sha256:" in run.out
    assert "Traceback" not in run.out + run.err


def test_damage_in_json_has_where_what_and_remedy(cli: Cli, graph: str) -> None:
    break_it(graph)
    run = cli("verify", graph, "--json")
    assert run.code == 1
    assert run.json["ok"] is False
    assert all(set(one) == {"where", "what", "remedy", "severity"} for one in run.json["problems"])


def test_an_unknown_branch_is_an_error(cli: Cli, graph: str) -> None:
    run = cli("verify", graph, "--branch", "nobody")
    assert run.code == 1
    assert "no branch 'nobody'" in run.err
