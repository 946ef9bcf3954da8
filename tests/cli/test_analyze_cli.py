"""`omnigraph analyze` from the outside."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.runs import Cli

SCHEMA = "node Person { name: String @key  rank: F64?  group: I64? }\nedge Knows: Person -> Person {}\n"
LINES = """\
{"type": "Person", "data": {"name": "ada"}}
{"type": "Person", "data": {"name": "bob"}}
{"type": "Person", "data": {"name": "zoe"}}
{"edge": "Knows", "from": "ada", "to": "bob"}
"""


@pytest.fixture
def people(cli: Cli, store: str, tmp_path: Path) -> str:
    (tmp_path / "s.pg").write_text(SCHEMA)
    (tmp_path / "d.jsonl").write_text(LINES)
    assert cli("init", "--schema", str(tmp_path / "s.pg"), store).code == 0
    loaded = cli("load", "--data", str(tmp_path / "d.jsonl"), store)
    assert loaded.code == 0, loaded.err
    return store


def test_it_prints_the_largest_values_first(cli: Cli, people: str) -> None:
    run = cli("analyze", "degrees", people, "--limit", "2")

    assert run.code == 0, run.err
    assert run.out.splitlines() == ["type    id   degree", "Person  ada       1", "Person  bob       1"]
    assert "3 nodes and 1 edge at commit" in run.err


def test_it_writes_to_a_property_as_one_commit(cli: Cli, people: str) -> None:
    run = cli("analyze", "pagerank", people, "--write", "Person.rank", "--edge", "Knows", "--as", "grace", "--json")

    assert run.code == 0, run.err
    assert run.json["commit"]["touched"] == {"node:Person": {"updated": 3}}
    assert (run.json["commit"]["actor"], run.json["commit"]["kind"]) == ("grace", "analyze")
    assert [row["id"] for row in run.json["rows"]] == ["bob", "ada", "zoe"]
    assert (run.json["vertices"], run.json["edges"], run.json["converged"]) == (3, 1, True)


def test_a_rank_that_did_not_settle_is_said(cli: Cli, people: str) -> None:
    run = cli("analyze", "pagerank", people, "--iterations", "1", "--tolerance", "1e-12")

    assert run.code == 0
    assert "Not converged after 1 iterations" in run.err


def test_a_second_run_says_that_nothing_changed(cli: Cli, people: str) -> None:
    cli("analyze", "components", people, "--write", "Person.group")

    run = cli("analyze", "components", people, "--write", "Person.group")

    assert (run.code, "Nothing changed" in run.err) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["fame"], 2, "'fame' is not one of"),
        (["pagerank", "--write", "Person.name"], 1, "Person.name is String, pagerank needs F64 or F32"),
        (["pagerank", "--edge", "Likes"], 1, "no edge type 'Likes'"),
        (["pagerank", "--txn-id", "x"], 2, "give --write too"),
        (["pagerank", "--write", "Person.rank", "--if-commit", "aaaaaaaaaaaaa.1"], 4, "nothing was written"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(cli: Cli, people: str, arguments: list[str], code: int, said: str) -> None:
    run = cli("analyze", *arguments, "--store", people)

    assert run.code == code
    assert said in run.err
    assert "Traceback" not in run.err
