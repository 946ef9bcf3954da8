"""`optimize` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import omnigraph
from cli.runs import Cli, process
from support.table_layout import tails

SCHEMA = "node Person { slug: String @key vec: Vector(2)? @index } edge Knows: Person -> Person"


@pytest.fixture
def people(store: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("OMNIGRAPH_MAINTENANCE", "0")
    graph = omnigraph.init(store, SCHEMA)
    for name in ("ada", "bob"):
        graph.mutate(f'query q() {{ insert Person {{ slug: "{name}", vec: [1.0, 0.0] }} }}')
    graph.mutate('query q() { insert Knows { from: "ada", to: "bob" } }')
    return store


def test_it_says_for_each_type_what_was_done_and_what_is_pending(cli: Cli, people: str) -> None:
    run = cli("optimize", people, "--as", "ada")

    assert run.code == 0
    head, *lines = run.out.splitlines()
    assert head.startswith("Optimized main as ")
    assert "  Knows: folded 1 row of 1 commit; built id_btree, src_btree, dst_btree; saved its adjacency" in lines
    assert any(line.startswith("  Person: folded 2 rows of 2 commits; built id_btree") for line in lines)
    assert any(line.startswith("  Person: pending: ") and "10000 vectors, there are 2" in line for line in lines)
    commit = omnigraph.open(people).commits(maintenance=True, limit=1)[0]
    assert (commit.kind, commit.actor) == ("optimize", "ada")


def test_the_same_as_json(cli: Cli, people: str) -> None:
    answer = cli("optimize", people, "--json").json

    assert answer["commit"]["kind"] == "optimize"
    assert answer["branch"] == "main"
    assert answer["types"]["node:Person"]["folded"] == {"commits": 2, "rows": 2}
    assert answer["types"]["edge:Knows"]["adjacency"] is True
    assert set(answer["types"]["node:Person"]) == {"folded", "fragments", "indexes", "adjacency", "pending"}
    assert answer["cost"]["requests"] > 0


def test_where_nothing_is_due_there_is_no_commit(cli: Cli, people: str) -> None:
    cli("optimize", people)

    assert cli("optimize", people, "--json").json["commit"] is None
    assert cli("optimize", people).out.startswith("Nothing to optimize on main (")


def test_only_the_types_that_are_named(cli: Cli, people: str) -> None:
    assert cli("optimize", people, "--type", "Knows").code == 0

    assert tails(omnigraph.open(people)) == {"node:Person": 2, "edge:Knows": 0}


def test_a_type_or_branch_that_is_not_there_is_an_error_in_a_sentence(cli: Cli, people: str) -> None:
    no_type, no_branch = cli("optimize", people, "--type", "Robot"), cli("optimize", people, "--branch", "nowhere")

    assert (no_type.code, no_branch.code) == (1, 1)
    assert "Robot" in no_type.err
    assert "nowhere" in no_branch.err
    assert cli("optimize", people, "--engine", "duck").code == 2


def test_it_runs_as_a_user_runs_it(people: str, tmp_path: Path) -> None:
    done = process("optimize", people, "--json", cwd=tmp_path)

    assert done.returncode == 0
    assert json.loads(done.stdout)["commit"]["kind"] == "optimize"


def test_a_command_folds_before_it_exits_only_where_twice_the_limit_is_due(
    cli: Cli, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    omnigraph.init(store, SCHEMA)
    monkeypatch.setenv("OMNIGRAPH_TAIL_MANIFESTS", "1")
    seen = []
    for n in range(3):
        run = cli("mutate", "--store", store, "-e", f'query q() {{ insert Person {{ slug: "p{n}" }} }}', "--json")
        assert run.json["commit"]["touched"] == {"node:Person": {"inserted": 1}}
        seen.append(tails(omnigraph.open(store))["node:Person"])

    assert seen == [1, 2, 0]
