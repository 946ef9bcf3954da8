"""`load` and `export`: what they take, print and leave behind."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from cli.runs import Cli, process
from omnigraph.graph.graph import Graph

SCHEMA = """\
node Person {
    slug: String @key
    name: String
    age:  I32?
    @range(age, 0..150)
    @check(slug, "[a-z0-9-]+")
}
node Company { name: String @key }
edge Knows: Person -> Person { since: Date? }
edge WorksAt: Person -> Company @card(0..1)
"""
ADA = {"type": "Person", "data": {"slug": "ada", "name": "Ada", "age": 36}}
BOB = {"type": "Person", "data": {"slug": "bob", "name": "Bob"}}
ACME = {"type": "Company", "data": {"name": "acme"}}
KNOWS = {"edge": "Knows", "from": "ada", "to": "bob", "data": {"since": "2020-01-31"}}
WORKS = {"edge": "WorksAt", "from": "ada", "to": "acme"}


@pytest.fixture
def graph(store: str) -> Graph:
    return omnigraph.init(store, SCHEMA)


def write(path: Path, *entities: Any) -> str:
    lines = (entity if isinstance(entity, str) else json.dumps(entity) for entity in entities)
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def rows(graph: Graph, branch: str = "main") -> dict[str, int]:
    return {entry.type_name: entry.rows for entry in graph.snapshot(branch).types if entry.rows}


def names(graph: Graph) -> dict[str, str]:
    found = graph.query("query q() { match { $p: Person } return { $p.slug as slug, $p.name as name } }")
    return {row["slug"]: row["name"] for row in found.rows}


# Loading


def test_load_json_has_the_promised_fields(graph: Graph, store: str, tmp_path: Path, cli: Cli) -> None:
    before = graph.snapshot().commit_id
    data = write(tmp_path / "a.jsonl", KNOWS, ADA, "", BOB, ACME, WORKS)  # edges may stand before their nodes

    run = cli("load", "--data", data, "--store", store, "--as", "ada", "--json")

    assert (run.code, run.err) == (0, "")
    assert run.json["commit"] == {
        "id": graph.snapshot().commit_id,
        "manifest_version": 2,
        "branch": "main",
        "parent": before,
        "actor": "ada",
        "kind": "load",
        "touched": {
            "node:Person": {"inserted": 2},
            "node:Company": {"inserted": 1},
            "edge:Knows": {"inserted": 1},
            "edge:WorksAt": {"inserted": 1},
        },
    }
    assert list(run.json["cost"]) == ["requests", "stages", "bytes", "retries"]
    assert run.json["counts"] == {"Person": 2, "Company": 1, "Knows": 1, "WorksAt": 1}
    assert (run.json["rejected"], run.json["quarantine"]) == (0, None)


def test_load_says_in_text_what_it_did(graph: Graph, store: str, tmp_path: Path, cli: Cli) -> None:
    run = cli("load", "--data", write(tmp_path / "a.jsonl", ADA), "--store", store)

    assert run.out.startswith(f"Committed {graph.snapshot().commit_id} on main: Person +1 (")
    assert (run.out.count("\n"), run.err) == (1, "")


def test_the_modes_do_what_they_are_called(graph: Graph, store: str, tmp_path: Path, cli: Cli) -> None:
    first = write(tmp_path / "first.jsonl", ADA, BOB)
    later = write(tmp_path / "later.jsonl", {"type": "Person", "data": {"slug": "bob", "name": "Rob"}})

    def load(data: str, mode: str) -> int:
        return cli("load", "--data", data, "--mode", mode, "--store", store).code

    assert load(first, "append") == 0
    assert load(later, "append") == 5
    assert names(graph) == {"ada": "Ada", "bob": "Bob"}
    assert load(later, "merge") == 0
    assert names(graph) == {"ada": "Ada", "bob": "Rob"}
    assert load(later, "overwrite") == 0
    assert names(graph) == {"bob": "Rob"}


def test_several_files_directories_patterns_and_packed_files_are_one_commit(
    graph: Graph, store: str, tmp_path: Path, cli: Cli
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    write(folder / "ada.jsonl", ADA)
    (folder / "bob.jsonl.gz").write_bytes(gzip.compress(json.dumps(BOB).encode()))
    acme, knows = write(tmp_path / "acme.jsonl", ACME), write(tmp_path / "k1.jsonl", KNOWS)

    run = cli(
        "load", "--data", str(folder), "--data", acme, "--data", f"{tmp_path}/k?.jsonl", "--store", store, "--json"
    )

    assert run.json["counts"] == {"Person": 2, "Company": 1, "Knows": 1}
    assert len(graph.commits()) == 2
    assert knows


def test_rows_of_csv_and_parquet_have_the_type_that_is_given_or_their_name(
    graph: Graph, store: str, tmp_path: Path, cli: Cli
) -> None:
    (tmp_path / "people.csv").write_text("slug,name,age\nada,Ada,36\nbob,Bob,\n")
    (tmp_path / "Knows.csv").write_text("from,to\nada,bob\n")

    untyped = cli("load", "--data", str(tmp_path / "people.csv"), "--store", store)
    assert untyped.code == 1
    assert "The type of the rows of people.csv is unknown: give it (--type" in untyped.err
    cli("load", "--type", "Person", "--data", str(tmp_path / "people.csv"), "--store", store)
    cli("load", "--data", str(tmp_path / "Knows.csv"), "--store", store)

    assert rows(graph) == {"Person": 2, "Knows": 1}


def test_files_that_a_shell_puts_behind_data_are_loaded_too(graph: Graph, store: str, tmp_path: Path, cli: Cli) -> None:
    ada, bob = write(tmp_path / "ada.jsonl", ADA), write(tmp_path / "bob.jsonl", BOB)

    assert cli("load", "--data", ada, bob, store).code == 0
    assert rows(graph) == {"Person": 2}


def test_the_store_may_be_the_argument(graph: Graph, store: str, tmp_path: Path, cli: Cli) -> None:
    assert cli("load", "--data", write(tmp_path / "a.jsonl", ADA), store).code == 0
    assert rows(graph) == {"Person": 1}


def test_data_comes_from_stdin_with_line_numbers(graph: Graph, store: str) -> None:
    lines = [json.dumps(ADA), "", "{bad"]

    bad = process("load", "--data", "-", "--store", store, stdin="\n".join(lines))
    good = process("load", "--data", "-", "--store", store, stdin=lines[0])

    assert (bad.returncode, good.returncode) == (1, 0)
    assert "stdin.jsonl line 3: " in bad.stderr
    assert rows(graph) == {"Person": 1}


def test_a_branch_is_forked_first_where_it_is_missing(graph: Graph, store: str, tmp_path: Path, cli: Cli) -> None:
    arguments = ["load", "--data", write(tmp_path / "a.jsonl", ADA), "--store", store, "--branch", "try"]

    assert cli(*arguments).code == 1
    assert cli(*arguments, "--from", "main").code == 0
    assert (rows(graph), rows(graph, "try")) == ({}, {"Person": 1})


def test_if_commit_and_txn_id_hold_for_loads(graph: Graph, store: str, tmp_path: Path, cli: Cli) -> None:
    before = graph.snapshot().commit_id
    arguments = ["load", "--data", write(tmp_path / "a.jsonl", ADA), "--store", store, "--json"]

    first = cli(*arguments, "--txn-id", "once", "--if-commit", before)
    again = cli(*arguments, "--txn-id", "once")
    stale = cli(*arguments, "--if-commit", before, "--mode", "merge")

    assert first.json["commit"] == again.json["commit"]
    assert (stale.code, stale.error["code"]) == (4, "precondition_failed")


# What is refused


def test_one_bad_line_in_ten_thousand_loads_nothing(graph: Graph, store: str, tmp_path: Path, cli: Cli) -> None:
    people = [{"type": "Person", "data": {"slug": f"p{i}", "name": "P"}} for i in range(10_000)]
    people[4_321]["data"]["age"] = "old"  # type: ignore[index]

    run = cli("load", "--data", write(tmp_path / "many.jsonl", *people), "--store", store)

    assert run.code in (1, 5)
    assert "many.jsonl line 4322" in run.err
    assert "age" in run.err
    assert rows(graph) == {}


def test_every_bad_line_is_named(graph: Graph, store: str, tmp_path: Path, cli: Cli) -> None:
    data = write(tmp_path / "a.jsonl", ADA, "{bad", '{"type": "Nobody"}', '{"type": "Person", "x": 1}')

    run = cli("load", "--data", data, "--store", store)
    body = cli("load", "--data", data, "--store", store, "--json").error

    assert (run.code, run.out) == (1, "")
    for line, number in zip(run.err.splitlines(), (2, 3, 4), strict=True):
        assert f"a.jsonl line {number}: " in line
    assert (body["code"], body["details"]["total"]) == ("bad_request", 3)
    assert rows(graph) == {}


def test_every_broken_constraint_is_named_with_its_lines(graph: Graph, store: str, tmp_path: Path, cli: Cli) -> None:
    old = {"type": "Person", "data": {"slug": "old", "name": "Old", "age": 200}}
    older = {"type": "Person", "data": {"slug": "older", "name": "Old", "age": 200}}
    data = write(tmp_path / "a.jsonl", ADA, old, older, {"edge": "Knows", "from": "ada", "to": "nobody"})

    run = cli("load", "--data", data, "--store", store)
    body = cli("load", "--data", data, "--store", store, "--json").error

    assert (run.code, body["code"]) == (5, "constraint_violation")
    assert "a.jsonl line 2" in run.err
    assert "'nobody' does not exist" in run.err
    assert {"constraint", "type_name", "property", "entity_ids", "violations", "total"} == set(body["details"])
    assert rows(graph) == {}


def test_quarantine_loads_the_rest_and_tells_where_the_others_are(
    graph: Graph, store: str, tmp_path: Path, cli: Cli
) -> None:
    bad = {"type": "Person", "data": {"slug": "Not A Slug", "name": "X"}}
    data = write(tmp_path / "a.jsonl", ADA, "{bad", bad)

    run = cli("load", "--data", data, "--store", store, "--on-error", "quarantine")
    (path,) = tmp_path.glob("a.rejected-*")

    assert (run.code, run.err) == (0, f"2 rows rejected: see {path}.\n")
    assert [json.loads(line)["place"] for line in path.read_text().splitlines()] == ["a.jsonl line 2", "a.jsonl line 3"]
    assert rows(graph) == {"Person": 1}


def test_max_errors_bounds_a_quarantine(graph: Graph, store: str, tmp_path: Path, cli: Cli) -> None:
    data = write(tmp_path / "a.jsonl", ADA, "{bad", "{worse")
    arguments = ["load", "--data", data, "--store", store, "--on-error", "quarantine", "--max-errors"]

    assert cli(*arguments, "1").code == 1
    assert rows(graph) == {}
    assert cli(*arguments, "2").code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["load"], "--data"),
        (["load", "--data", "a.jsonl"], "OMNIGRAPH_STORE"),
        (["load", "--data", "a.jsonl", "one", "two"], "can't both be the store"),
        (["load", "--data", "a.jsonl", "--store", "g", "--mode", "replace"], "--mode"),
        (["load", "--data", "a.jsonl", "--store", "g", "--engine", "duck"], "--engine"),
        (["load", "--data", "a.jsonl", "--store", "g", "--max-errors", "3"], "--on-error"),
        (["load", "--data", "a.jsonl", "--store", "g", "--max-errors", "-3"], "--max-errors"),
        (["load", "--data", "-", "--store", "g", "--on-error", "quarantine"], "stdin"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error(arguments: list[str], words: str, cli: Cli) -> None:
    run = cli(*arguments)

    assert (run.code, run.out) == (2, "")
    assert words in run.err


@pytest.mark.parametrize(
    ("name", "words"), [("nowhere.jsonl", "does not exist"), ("folder", "has no"), ("notes.txt", "notes.txt")]
)
def test_data_that_cant_be_loaded_is_named(
    name: str, words: str, graph: Graph, store: str, tmp_path: Path, cli: Cli
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "notes.txt").write_text("hello")

    run = cli("load", "--data", str(tmp_path / name), "--store", store)

    assert (run.code, run.out) == (1, "")
    assert words in run.err


# Exporting


@pytest.fixture
def full(graph: Graph) -> Graph:
    rows: list[dict[str, Any]] = [ADA, BOB, ACME, KNOWS, WORKS]
    graph.load(rows)
    return graph


def test_export_writes_lines_by_type_and_id(full: Graph, store: str, cli: Cli) -> None:
    run = cli("export", store)

    entities = [json.loads(line) for line in run.out.splitlines()]
    assert [entity.get("type") or entity["edge"] for entity in entities] == [
        "Company", "Knows", "Person", "Person", "WorksAt",
    ]  # fmt: skip
    assert entities[2] == {"type": "Person", "data": {"id": "ada", "slug": "ada", "name": "Ada", "age": 36}}
    assert run.err == ""


def test_what_is_exported_loads_as_the_same_graph(full: Graph, store: str, tmp_path: Path, cli: Cli) -> None:
    omnigraph.init(tmp_path / "copy", SCHEMA)
    out, copy = str(tmp_path / "all.jsonl.gz"), str(tmp_path / "copy")

    assert cli("export", store, "--out", out).out == f"Wrote 5 rows to {out}.\n"
    assert cli("load", "--data", out, copy).code == 0
    assert cli("export", copy).out == cli("export", store).out


def test_an_export_can_be_piped_into_a_load(full: Graph, store: str, tmp_path: Path) -> None:
    omnigraph.init(tmp_path / "copy", SCHEMA)

    exported = process("export", store)
    loaded = process("load", "--data", "-", str(tmp_path / "copy"), stdin=exported.stdout)

    assert loaded.returncode == 0
    assert process("export", str(tmp_path / "copy")).stdout == exported.stdout


def test_export_of_types_states_and_branches(full: Graph, store: str, cli: Cli) -> None:
    before = full.snapshot().commit_id
    full.branches.create("try")
    full.mutate('query q() { delete Person where slug = "bob" }', branch="try")
    full.mutate('query q() { delete Person where slug = "ada" }')

    def people(*flags: str) -> list[str]:
        return [
            json.loads(line)["data"]["slug"]
            for line in cli("export", store, "--type", "Person", *flags).out.splitlines()
        ]

    assert (people(), people("--at", before), people("--branch", "try")) == (["bob"], ["ada", "bob"], ["ada"])
    assert cli("export", store, "--type", "Company", "--type", "Person", "--at", before).out.count("\n") == 3
    assert cli("export", store, "--type", "Nobody").code == 1


def test_export_to_a_file_answers_in_json(full: Graph, store: str, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "all.jsonl"

    answer = cli("export", store, "--out", str(out), "--json").json

    assert answer == {"out": str(out), "rows": 5, "bytes": out.stat().st_size}


def test_export_is_utf8_whatever_the_locale(full: Graph, store: str) -> None:
    full.load([{"type": "Company", "data": {"name": "Ärger"}}])

    run = process("export", store, "--type", "Company", PYTHONIOENCODING="utf-8", LC_ALL="C")

    assert "Ärger" in run.stdout


def test_a_full_disk_behind_an_export_is_an_error(full: Graph, store: str) -> None:
    disk = os.open("/dev/full", os.O_WRONLY)
    try:
        run = process("export", store, stdout=disk)
    finally:
        os.close(disk)

    assert run.returncode == 1
    assert run.stderr.count("\n") == 1
