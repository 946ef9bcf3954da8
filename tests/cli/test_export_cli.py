"""`export` into directories, and `query` on Spark, from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from cli.runs import Cli

SCHEMA = "node Person { name: String @key  age: I32? }  edge Knows: Person -> Person"


@pytest.fixture
def full(store: str) -> str:
    graph = omnigraph.init(store, SCHEMA)
    people: list[dict[str, Any]] = [
        {"type": "Person", "data": {"name": name, "age": age}} for name, age in (("ada", 36), ("bob", None))
    ]
    graph.load([*people, {"edge": "Knows", "from": "ada", "to": "bob"}])
    return store


@pytest.mark.parametrize("format", ["jsonl", "csv", "parquet"])
def test_a_directory_is_exported_and_loaded_back(full: str, tmp_path: Path, cli: Cli, format: str) -> None:
    out, copy = str(tmp_path / "out"), str(tmp_path / "copy")
    (tmp_path / "people.pg").write_text(SCHEMA)

    said = cli("export", full, "--format", format, "--out", out)
    assert (said.code, said.out) == (0, f"Wrote 3 rows to {out} in 2 files.\n")

    cli("init", "--schema", str(tmp_path / "people.pg"), copy)
    assert cli("load", "--data", out, "--store", copy).code == 0
    assert cli("export", copy).out == cli("export", full).out


def test_json_says_how_much_was_written_where(full: str, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "out"
    answer = cli("export", full, "--format", "csv", "--type", "Person", "--out", str(out), "--json").json

    written = json.loads((out / "_export.json").read_text())["types"]["Person"]["files"]
    assert answer == {"out": str(out), "rows": 2, "bytes": written[0]["bytes"], "files": 1, "engine": "local"}


def test_an_export_in_the_way_is_replaced_only_on_request(full: str, tmp_path: Path, cli: Cli) -> None:
    arguments = ("export", full, "--format", "csv", "--out", str(tmp_path / "out"))
    assert cli(*arguments).code == 0

    refused = cli(*arguments)
    assert refused.code == 3
    assert "overwrite" in refused.err
    assert cli(*arguments, "--overwrite").code == 0


def test_a_format_that_stdout_can_not_hold_needs_a_place(full: str, cli: Cli) -> None:
    refused = cli("export", full, "--format", "parquet")

    assert refused.code == 2
    assert "--out" in refused.err


def test_a_type_goes_into_a_file_of_its_own(full: str, tmp_path: Path, cli: Cli) -> None:
    cli("export", full, "--type", "Person", "--out", str(tmp_path / "Person.csv"))

    assert (tmp_path / "Person.csv").read_text() == 'id,name,age\n"ada","ada",36\n"bob","bob",\n'


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.usefixtures("spark")
def test_a_query_runs_on_spark_and_shows_its_plan(full: str, cli: Cli) -> None:
    text = "query q() { match { $a knows $b } return { $a.name, $b.age } }"
    here = cli("query", "-e", text, "--store", full, "--format", "csv")
    there = cli("query", "-e", text, "--store", full, "--format", "csv", "--engine", "spark")
    plan = cli("query", "-e", text, "--store", full, "--engine", "spark", "--explain")

    assert (there.code, there.out) == (0, here.out)
    assert "Physical Plan" in plan.out
    assert "edge:Knows" in plan.out
