"""`query`, `mutate`, `lint`, `init` and `schema show`: what they print, and how they exit."""

from __future__ import annotations

import io
import json
import math
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

import omnigraph
from cli.runs import Cli, process, without_heavy_libraries
from omnigraph.graph.graph import Graph

SCHEMA = """\
node Person {
    slug: String @key
    name: String
    age:  I32?
    role: enum(engineer, lead, ops)
    @range(age, 0..150)
}
edge Knows: Person -> Person { since: Date? }
"""
PEOPLE = [
    {"type": "Person", "data": {"slug": "ada", "name": "Ada", "age": 36, "role": "lead"}},
    {"type": "Person", "data": {"slug": "bob", "name": 'Bob, the "builder"', "role": "ops"}},
    {"type": "Person", "data": {"slug": "cy", "name": "Cy\nTwo", "age": 7, "role": "engineer"}},
    {"edge": "Knows", "from": "ada", "to": "bob", "data": {"since": "2020-01-31"}},
    {"edge": "Knows", "from": "ada", "to": "cy", "data": {}},
]
QUERIES = """\
query people() {
    match { $p: Person }
    return { $p.slug as slug, $p.name as name, $p.age as age }
    order { slug }
}
query friends($slug: String, $min: I32?) {
    match { $p: Person { slug: $slug }  $p $k:knows $f  $f.age >= $min }
    return { $f.slug as friend, $k.since as since }
    order { friend }
}
query rename($slug: String, $name: String) { update Person set { name: $name } where slug = $slug }
query fill($slug: String) {
    insert Person { slug: $slug, name: "New", role: "ops" }
    insert Knows { from: "ada", to: $slug }
    insert Person { slug: "old", name: "Old", role: "ops", age: 200 }
}
"""
EVERYONE = "query q() { match { $p: Person } return { $p.slug as slug } order { slug } }"


@pytest.fixture
def graph(store: str) -> Graph:
    """`init`, then a load of ada, who knows bob and cy."""
    graph = omnigraph.init(store, SCHEMA)
    graph.load(PEOPLE)
    return graph


@pytest.fixture
def gq(tmp_path: Path) -> str:
    path = tmp_path / "people.gq"
    path.write_text(QUERIES)
    return str(path)


def head(graph: Graph) -> str:
    return graph.snapshot().commit_id


# How rows are printed


def test_json_has_the_promised_fields_and_every_column_of_every_row(
    graph: Graph, store: str, gq: str, cli: Cli
) -> None:
    run = cli("query", "people", "--query", gq, "--store", store, "--format", "json")

    assert (run.code, run.err) == (0, "")
    assert list(run.json) == ["query", "branch", "commit_id", "columns", "rows"]
    assert (run.json["query"], run.json["branch"], run.json["commit_id"]) == ("people", "main", head(graph))
    assert run.json["columns"] == ["slug", "name", "age"]
    assert [list(row.values()) for row in run.json["rows"]] == [
        ["ada", "Ada", 36],
        ["bob", 'Bob, the "builder"', None],
        ["cy", "Cy\nTwo", 7],
    ]
    assert run.out.count("\n") == 1


def test_json_without_rows_is_a_document_too(graph: Graph, store: str, cli: Cli) -> None:
    text = 'query q() { match { $p: Person { slug: "nobody" } } return { $p.name } }'

    assert cli("query", "-e", text, "--store", store, "--json").json["rows"] == []
    assert cli("query", "-e", text, "--store", store, "--format", "jsonl").out == ""
    assert cli("query", "-e", text, "--store", store, "--format", "csv").out == "p.name\n"
    assert cli("query", "-e", text, "--store", store, "--format", "kv").out == ""
    run = cli("query", "-e", text, "--store", store)
    assert (run.out, run.err) == ("p.name\n", f"0 rows at commit {head(graph)}\n")


def test_json_is_the_same_as_format_json(graph: Graph, store: str, gq: str, cli: Cli) -> None:
    flag = cli("query", "people", "--query", gq, "--store", store, "--json")

    assert flag == cli("query", "people", "--query", gq, "--store", store, "--format", "json")


def test_jsonl_is_one_object_a_line(graph: Graph, store: str, gq: str, cli: Cli) -> None:
    run = cli("query", "people", "--query", gq, "--store", store, "--format", "jsonl")

    assert [json.loads(line) for line in run.out.splitlines()] == [
        {"slug": "ada", "name": "Ada", "age": 36},
        {"slug": "bob", "name": 'Bob, the "builder"', "age": None},
        {"slug": "cy", "name": "Cy\nTwo", "age": 7},
    ]
    assert run.err == ""


def test_csv_quotes_what_it_must_and_leaves_null_empty(graph: Graph, store: str, gq: str, cli: Cli) -> None:
    graph.mutate(QUERIES, "rename", {"slug": "ada", "name": ""})

    run = cli("query", "people", "--query", gq, "--store", store, "--format", "csv")

    assert run.out == 'slug,name,age\nada,"",36\nbob,"Bob, the ""builder""",\ncy,"Cy\nTwo",7\n'


def test_kv_is_one_line_a_column_and_an_empty_line_between_rows(graph: Graph, store: str, gq: str, cli: Cli) -> None:
    run = cli("query", "people", "--query", gq, "--store", store, "--format", "kv")

    assert run.out.split("\n\n") == [
        "slug: ada\nname: Ada\nage: 36",
        'slug: bob\nname: Bob, the "builder"\nage: null',
        "slug: cy\nname: Cy\\nTwo\nage: 7\n",
    ]


def test_a_table_is_aligned_and_the_row_count_goes_to_stderr(graph: Graph, store: str, gq: str, cli: Cli) -> None:
    run = cli("query", "people", "--query", gq, "--store", store)

    assert run.out.splitlines() == [
        "slug  name                age",
        "ada   Ada                  36",
        'bob   Bob, the "builder"    -',
        "cy    Cy\\nTwo               7",
    ]
    assert run.err == f"3 rows at commit {head(graph)}\n"
    assert cli("query", "people", "--query", gq, "--store", store, "--quiet").err == ""


def test_a_table_is_cut_to_the_width_of_a_terminal_and_nowhere_else(graph: Graph, store: str, gq: str) -> None:
    graph.mutate(QUERIES, "rename", {"slug": "ada", "name": "äöü" * 40})
    command = [sys.executable, "-m", "omnigraph", "query", "people", "--query", gq, "--store", store]
    ours, theirs = pty.openpty()
    try:
        environment = os.environ | {"COLUMNS": "40", "NO_COLOR": "1"}
        subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, env=environment, check=True, timeout=60)
        shown = os.read(ours, 100_000).decode().replace("\r\n", "\n").splitlines()
    finally:
        os.close(theirs)
        os.close(ours)

    assert max(map(len, shown)) == 40
    assert shown[1].endswith("…   36")
    assert "äöü" * 40 in process(*command[3:], COLUMNS="40").stdout


THINGS = """\
node Thing {
    slug: String @key
    yes: Bool?  small: I32?  long: I64?  huge: U64?  single: F32?  double: F64?  day: Date?  at: DateTime?
    data: Blob?  spot: Vector(2)?  tags: [String]?  days: [Date]?  kind: enum(a, b-c)?
}
"""
VALUES = {
    "yes": True,
    "small": -5,
    "long": 9007199254740993,
    "huge": 18446744073709551615,
    "single": 0.1,
    "double": 0.1,
    "day": "2026-01-31",
    "at": "2026-01-31T12:00:00.250Z",
    "data": "base64:AP8=",
    "spot": [0.1, -2.5],
    "tags": ["x", "y"],
    "days": ["2026-01-31"],
    "kind": "b-c",
}


@pytest.fixture
def things(store: str) -> Graph:
    graph = omnigraph.init(store, THINGS)
    graph.load([{"type": "Thing", "data": {"slug": "a"} | VALUES}, {"type": "Thing", "data": {"slug": "b"}}])
    return graph


def test_values_print_as_the_surface_says_and_as_a_load_takes_them(things: Graph, store: str, cli: Cli) -> None:
    columns = ", ".join(f"$t.{name} as {name}" for name in VALUES)
    text = f"query q() {{ match {{ $t: Thing }} return {{ {columns} }} order {{ $t.slug }} }}"

    full, empty = cli("query", "-e", text, "--store", store, "--json").json["rows"]

    assert full == VALUES
    assert empty == dict.fromkeys(VALUES)


def test_a_whole_node_is_its_id_and_all_its_properties(things: Graph, store: str, cli: Cli) -> None:
    run = cli(
        "query", "-e", 'query q() { match { $t: Thing { slug: "a" } } return { $t } }', "--store", store, "--json"
    )

    assert run.json["rows"] == [{"t": {"id": "a", "slug": "a"} | VALUES}]
    assert next(iter(run.json["rows"][0]["t"])) == "id"


def test_whole_seconds_have_milliseconds_and_zones_become_utc(things: Graph, store: str, cli: Cli) -> None:
    things.load([{"type": "Thing", "data": {"slug": "c", "at": "2026-01-31T12:00:00+02:00"}}])

    run = cli(
        "query", "-e", 'query q() { match { $t: Thing { slug: "c" } } return { $t.at } }', "--store", store, "--json"
    )

    assert run.json["rows"] == [{"t.at": "2026-01-31T10:00:00.000Z"}]


@pytest.mark.parametrize("format_", ["json", "jsonl", "csv", "kv", "table"])
def test_numbers_are_exact_in_every_format(format_: str, things: Graph, store: str, cli: Cli) -> None:
    text = 'query q() { match { $t: Thing { slug: "a" } } return { $t.long, $t.huge, $t.single } }'

    out = cli("query", "-e", text, "--store", store, "--format", format_).out

    assert "9007199254740993" in out
    assert "18446744073709551615" in out
    assert "0.1" in out
    assert "0.10000000149" not in out


def test_what_json_has_no_number_for_is_null(monkeypatch: pytest.MonkeyPatch) -> None:
    from omnigraph.cli.commands.query import write_result

    class Result:
        columns = ("a", "b")

        def json_batches(self) -> object:
            return iter([[{"a": math.inf, "b": [math.nan, 1.5]}]])

    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)

    assert write_result("jsonl", Result(), {}) == 1  # type: ignore[arg-type]
    assert json.loads(out.getvalue()) == {"a": None, "b": [None, 1.5]}


def test_text_in_rows_cant_steer_the_terminal(graph: Graph, store: str, gq: str, cli: Cli) -> None:
    graph.mutate(QUERIES, "rename", {"slug": "ada", "name": "\x1b[31mred\x07"})

    for format_ in ("table", "kv"):
        assert "\x1b" not in cli("query", "people", "--query", gq, "--store", store, "--format", format_).out


def test_a_locale_without_unicode_still_gets_valid_json(graph: Graph, store: str, gq: str) -> None:
    graph.mutate(QUERIES, "rename", {"slug": "ada", "name": "Ädä"})

    for format_ in ("json", "jsonl"):
        run = process("query", "people", "--query", gq, "--store", store, "--format", format_, PYTHONIOENCODING="ascii")

        assert run.returncode == 0
        assert "Ädä" in json.dumps(json.loads(run.stdout.splitlines()[0]), ensure_ascii=False)


# Which query, on what, with what


def test_params_come_from_the_command_line_a_file_or_stdin(graph: Graph, store: str, gq: str, tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text('{"slug": "ada", "min": 5}')
    ways = [
        ('{"slug": "ada", "min": 5}', None),
        (f"@{tmp_path}/params.json", None),
        ("@-", '{"slug": "ada", "min": 5}'),
    ]

    for value, stdin in ways:
        run = process("query", "friends", "--query", gq, "--store", store, "--params", value, "--json", stdin=stdin)

        assert json.loads(run.stdout)["rows"] == [{"friend": "cy", "since": None}]


def test_a_query_comes_from_stdin_too(graph: Graph, store: str) -> None:
    run = process("query", "--query", "-", "--store", store, "--format", "csv", stdin=EVERYONE)

    assert run.stdout.split() == ["slug", "ada", "bob", "cy"]


def test_the_only_query_of_a_text_needs_no_name(graph: Graph, store: str, cli: Cli) -> None:
    assert cli("query", "-e", EVERYONE, "--store", store).code == 0


def test_at_reads_an_older_commit_and_branch_another_branch(graph: Graph, store: str, gq: str, cli: Cli) -> None:
    first, before = graph.commits()[-1].id, head(graph)
    graph.branches.create("try")
    graph.mutate(QUERIES, "rename", {"slug": "ada", "name": "Countess"}, branch="try")
    graph.mutate(QUERIES, "rename", {"slug": "ada", "name": "Lady"})

    def name(*flags: str) -> str | None:
        rows = cli("query", "people", "--query", gq, "--store", store, "--json", *flags).json["rows"]
        return rows[0]["name"] if rows else None

    assert [name(), name("--branch", "try"), name("--at", before), name("--at", first)] == [
        "Lady",
        "Countess",
        "Ada",
        None,
    ]


def test_explain_prints_the_plan_with_estimated_and_actual_rows_instead_of_rows(
    graph: Graph, store: str, gq: str, cli: Cli
) -> None:
    arguments = ["query", "friends", "--query", gq, "--store", store, "--params", '{"slug": "ada"}', "--explain"]

    text, document = cli(*arguments), cli(*arguments, "--json").json

    assert "estimated" in text.out
    assert "rows 2" in text.out
    assert "since" not in text.out
    assert list(document) == ["query", "branch", "commit_id", "columns", "plan", "rows"]
    assert {"step", "estimated_rows", "rows"} <= set(document["plan"][0])
    assert len(document["rows"]) == 2


@pytest.mark.parametrize("engine", ["auto", "local"])
def test_both_engines_run_here(engine: str, graph: Graph, store: str, cli: Cli) -> None:
    assert cli("query", "-e", EVERYONE, "--store", store, "--engine", engine).code == 0


# Refusals


def test_an_error_of_the_language_points_at_its_place(graph: Graph, store: str, tmp_path: Path, cli: Cli) -> None:
    path = tmp_path / "bad.gq"
    path.write_text("query q() {\n\tmatch { $p: Person  $p.nme = 3 }\n\treturn { $p }\n}")

    run = cli("query", "--query", str(path), "--store", store)

    assert (run.code, run.out) == (1, "")
    sentence, line, caret = run.err.splitlines()
    assert sentence == f"error: {path}:2:25: Person has no property nme: did you mean name. [OG-GQ-204]"
    assert line == "2 |  match { $p: Person  $p.nme = 3 }"
    assert line[caret.index("^") :].startswith("nme")


def test_with_json_it_has_the_place_in_its_details(graph: Graph, store: str, cli: Cli) -> None:
    run = cli("query", "-e", "query q() { match { $p: Nobody } return { $p } }", "--store", store, "--json")

    assert (run.code, run.out, run.error["code"]) == (1, "", "bad_request")
    details = run.error["details"]
    assert (details["language_code"], details["source"], details["line"], details["column"]) == (
        "OG-GQ-202",
        "-e",
        1,
        25,
    )
    assert details["excerpt"].endswith("^")


def test_a_body_alone_is_a_query(graph: Graph, store: str, cli: Cli) -> None:
    run = cli("query", "-e", "match { $p: Person } return { count($p) as people }", "--store", store, "--format", "csv")

    assert run.code == 0
    assert run.out.splitlines()[0] == "people"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["query", "--query", "{gq}"], "name one of people, friends"),
        (["query", "nope", "--query", "{gq}"], "has no query nope"),
        (["query", "rename", "--query", "{gq}", "--params", '{"slug": "a", "name": "b"}'], "run it with mutate"),
        (["mutate", "people", "--query", "{gq}"], "run it with query"),
        (["query", "friends", "--query", "{gq}"], "$slug: it is missing"),
        (["query", "friends", "--query", "{gq}", "--params", '{"slug": 3}'], "$slug"),
        (["query", "friends", "--query", "{gq}", "--params", '{"slug": "a", "min": "x"}'], "$min"),
        (["query", "people", "--query", "{gq}", "--params", '{"x": 1}'], "$x"),
        (["query", "people", "--query", "{gq}", "--branch", "nope"], "'nope'"),
        (["query", "people", "--query", "{gq}", "--at", "yesterday"], "yesterday"),
        (["query", "people", "--query", "nowhere.gq"], "nowhere.gq does not exist"),
        (["query", "people", "--query", "."], ". can't be read"),
        (["query", "-e", "/* nothing */"], "has no query"),
    ],
)
def test_what_cant_be_run_is_refused_by_name(
    arguments: list[str], words: str, graph: Graph, store: str, gq: str, cli: Cli
) -> None:
    run = cli(*(word.replace("{gq}", gq) for word in arguments), "--store", store)

    assert (run.code, run.out) == (1, "")
    assert run.err.startswith("error: ")
    assert words in run.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["query"], "--query FILE or -e"),
        (["mutate"], "--query FILE or -e"),
        (["query", "-e", EVERYONE, "--query", "x.gq"], "--query FILE or -e"),
        (["query", "-e", EVERYONE], "OMNIGRAPH_STORE"),
        (["query", "-e", EVERYONE, "--store", "a", "--params", '{"a":'], "--params"),
        (["query", "-e", EVERYONE, "--store", "a", "--params", "[1]"], "not a JSON object"),
        (["query", "-e", EVERYONE, "--store", "a", "--params", '{"a": 1, "a": 2}'], "'a' is given twice"),
        (["query", "-e", EVERYONE, "--store", "a", "--params", '{"a": NaN}'], "NaN"),
        (["query", "-e", EVERYONE, "--store", "a", "--params", "[" * 100_000], "nested"),
        (["query", "-e", EVERYONE, "--store", "a", "--params", "@nowhere.json"], "nowhere.json does not exist"),
        (["query", "-e", EVERYONE, "--store", "a", "--format", "xml"], "--format"),
        (["query", "-e", EVERYONE, "--store", "a", "--engine", "flink"], "--engine"),
        (["query", "-e", EVERYONE, "--store", "a", "--json", "--format", "csv"], "choose one"),
        (["lint"], "FILE"),
        (["lint", "x.gq"], "OMNIGRAPH_STORE"),
        (["lint", "x.gq", "--schema", "x.pg", "--store", "a"], "one of them"),
        (["lint", "x.gq", "--schema", "x.pg", "--at", "2026-01-31"], "applies to a graph"),
        (["init", "a"], "--schema"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error(
    arguments: list[str], words: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.gq").write_text(EVERYONE)

    run = cli(*arguments)

    assert (run.code, run.out) == (2, "")
    assert words in run.err


def test_a_file_that_is_no_text_or_too_long_is_named(store: str, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "bad.gq").write_bytes(b"query q()\n\xff")
    (tmp_path / "long.gq").write_text("// é" * 400_000)

    assert "bad.gq is not UTF-8 text (line 2)" in cli("query", "--query", f"{tmp_path}/bad.gq", "--store", store).err
    assert "OG-LX-101" in cli("query", "--query", f"{tmp_path}/long.gq", "--store", store).err


# Mutations


def test_mutate_json_has_exactly_the_promised_fields(graph: Graph, store: str, gq: str, cli: Cli) -> None:
    before = head(graph)

    run = cli(
        "mutate", "rename", "--query", gq, "--params", '{"slug": "ada", "name": "A"}', "--store", store, "--json",
        "--as", "bob",
    )  # fmt: skip

    commit, cost = run.json["commit"], run.json["cost"]
    assert list(run.json) == ["commit", "cost"]
    assert commit == {
        "id": head(graph),
        "manifest_version": 3,
        "branch": "main",
        "parent": before,
        "actor": "bob",
        "kind": "mutation",
        "touched": {"node:Person": {"updated": 1}},
    }
    assert list(cost) == ["requests", "stages", "bytes", "retries"]
    assert cost["requests"] >= cost["stages"] > 0


def test_mutate_says_in_text_what_it_did(graph: Graph, store: str, gq: str, cli: Cli) -> None:
    run = cli("mutate", "rename", "--query", gq, "--params", '{"slug": "ada", "name": "A"}', "--store", store)

    assert run.out.startswith(f"Committed {head(graph)} on main: Person ~1 (")
    assert (run.out.count("\n"), run.err) == (1, "")


def test_a_mutation_that_changes_nothing_makes_no_commit(graph: Graph, store: str, gq: str, cli: Cli) -> None:
    before = head(graph)
    arguments = ["mutate", "rename", "--query", gq, "--params", '{"slug": "nobody", "name": "A"}', "--store", store]

    answer = cli(*arguments, "--json").json

    assert answer["commit"] is None
    assert answer["cost"]["requests"] > 0
    assert cli(*arguments).out == "Nothing changed, so there is no commit.\n"
    assert head(graph) == before


def test_if_commit_is_a_precondition(graph: Graph, store: str, gq: str, cli: Cli) -> None:
    arguments = ["mutate", "rename", "--query", gq, "--params", '{"slug": "ada", "name": "A"}', "--store", store]
    first, before = graph.commits()[-1].id, head(graph)

    stale = cli(*arguments, "--if-commit", first, "--json")

    assert (stale.code, stale.error["code"]) == (4, "precondition_failed")
    assert stale.error["details"] == {"expected": first, "actual": before}
    assert head(graph) == before
    assert cli(*arguments, "--if-commit", before).code == 0


def test_the_same_txn_id_returns_the_first_commit(graph: Graph, store: str, cli: Cli) -> None:
    add = (
        'query q() { insert Person { slug: "new", name: "New", role: "ops" }  insert Knows { from: "ada", to: "new" } }'
    )

    first, second = (cli("mutate", "-e", add, "--store", store, "--txn-id", "once", "--json").json for _ in range(2))

    assert first["commit"] == second["commit"]
    assert len(graph.commits()) == 3


def test_a_mutation_that_fails_in_its_third_statement_leaves_nothing(
    graph: Graph, store: str, gq: str, cli: Cli
) -> None:
    before = head(graph)

    run = cli("mutate", "fill", "--query", gq, "--params", '{"slug": "new"}', "--store", store, "--json")

    assert (run.code, run.out, run.error["code"]) == (5, "", "constraint_violation")
    assert run.error["details"]["type_name"] == "Person"
    assert run.error["details"]["property"] == "age"
    assert head(graph) == before
    assert len(cli("query", "-e", EVERYONE, "--store", store, "--json").json["rows"]) == 3


def test_a_wrong_parameter_writes_nothing(graph: Graph, store: str, gq: str, cli: Cli) -> None:
    before = head(graph)

    run = cli("mutate", "rename", "--query", gq, "--params", '{"slug": "ada", "name": 3}', "--store", store)

    assert (run.code, run.out) == (1, "")
    assert run.err.startswith("error: $name: ")
    assert head(graph) == before


def test_mutations_that_mix_deletes_with_others_are_refused_with_how_to_split(
    graph: Graph, store: str, cli: Cli
) -> None:
    text = 'query q() { update Person set { name: "A" } where slug = "ada"  delete Person where slug = "bob" }'

    run = cli("mutate", "-e", text, "--store", store)

    assert run.code == 1
    assert "quer" in run.err
    assert run.err.splitlines()[2].endswith("^")


# Schemas


def test_init_makes_a_graph_once(store: str, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "people.pg").write_text(SCHEMA)

    run = cli("init", "--schema", f"{tmp_path}/people.pg", store)
    again = cli("init", "--schema", f"{tmp_path}/people.pg", "--store", store, "--json")

    assert run.code == 0
    assert run.out.startswith(f"Created a graph at {store} with 1 node type and 1 edge type in ")
    assert (again.code, again.error["code"]) == (3, "conflict")
    assert cli("schema", "show", store).out == SCHEMA
    assert cli("schema", "show", store, "--json").json == {"schema": SCHEMA}


def test_init_answers_in_json(store: str, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "people.pg").write_text(SCHEMA)

    answer = cli("init", "--schema", f"{tmp_path}/people.pg", store, "--json").json

    assert (answer["store"], answer["node_types"], answer["edge_types"]) == (store, ["Person"], ["Knows"])
    assert list(answer["cost"]) == ["requests", "stages", "bytes", "retries"]


def test_a_schema_with_an_error_makes_no_graph(store: str, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "bad.pg").write_text("node Person {\n    slug: Sting @key\n}")

    run = cli("init", "--schema", f"{tmp_path}/bad.pg", store)

    assert run.code == 1
    assert run.err.startswith(f"error: {tmp_path}/bad.pg:2:11: ")
    assert run.err.splitlines()[1:] == ["2 |     slug: Sting @key", "  |           ^"]
    assert not Path(store).exists()


def test_schema_show_prints_a_schema_that_was_given_as_a_catalog(store: str, tmp_path: Path, cli: Cli) -> None:
    omnigraph.init(store, {"types": [{"id": "1", "kind": "node", "name": "Person", "properties": []}]})

    assert cli("schema", "show", store).out.startswith("node Person")


# Lint


@pytest.fixture
def pg(tmp_path: Path) -> str:
    path = tmp_path / "people.pg"
    path.write_text(SCHEMA)
    return str(path)


WARNS = "query w($unused: I32) { match { $p: Person } return { $p.slug } }\n"
FAILS = "query e() { match { $p: Nobody } return { $p } }\n"


def test_lint_of_good_queries_exits_0(gq: str, pg: str, cli: Cli) -> None:
    run = cli("lint", gq, "--schema", pg)

    assert (run.code, run.out, run.err) == (0, "", f"{gq}: 0 errors, 0 warnings\n")
    assert cli("lint", gq, "--schema", pg, "--json").json == []


def test_lint_with_warnings_alone_exits_0_with_errors_1(tmp_path: Path, pg: str, cli: Cli) -> None:
    path = tmp_path / "q.gq"

    path.write_text(WARNS)
    warned = cli("lint", str(path), "--schema", pg)
    path.write_text(WARNS + FAILS)
    failed = cli("lint", str(path), "--schema", pg)

    assert (warned.code, failed.code) == (0, 1)
    assert warned.out.splitlines()[0].startswith(f"{path}:1:9: warning: ")
    assert warned.out.splitlines()[2].endswith("^")
    assert failed.out.count("error: ") == 1
    assert failed.err == f"{path}: 1 error, 1 warning\n"


def test_lint_against_an_older_state_of_a_graph(gq: str, graph: Graph, store: str, cli: Cli) -> None:
    before = head(graph)
    graph.schema.apply(SCHEMA.replace("name: String", 'title: String @rename_from("name")'))

    assert cli("lint", gq, "--store", store).code == 1
    assert cli("lint", gq, "--store", store, "--at", before).code == 0


def test_lint_json_is_the_list_of_findings(tmp_path: Path, pg: str, cli: Cli) -> None:
    path = tmp_path / "q.gq"
    path.write_text(WARNS + FAILS)

    run = cli("lint", str(path), "--schema", pg, "--json")

    assert (run.code, run.err) == (1, "")
    assert [(entry["severity"], entry["query"], entry["line"]) for entry in run.json] == [
        ("warning", "w", 1),
        ("error", "e", 2),
    ]
    assert set(run.json[0]) == {
        "severity", "code", "message", "remedy", "query", "source", "line", "column", "excerpt",
    }  # fmt: skip


def test_lint_checks_against_a_graph_too(graph: Graph, store: str, gq: str, cli: Cli) -> None:
    assert cli("lint", gq, "--store", store).code == 0


# As a real process


@pytest.mark.parametrize("command", ["init", "schema show", "lint --schema", "lint --store"])
def test_commands_of_the_languages_import_no_heavy_library(
    command: str, graph: Graph, store: str, gq: str, pg: str, tmp_path: Path
) -> None:
    arguments = {
        "init": ["init", "--schema", pg, str(tmp_path / "other"), "--quiet"],
        "schema show": ["schema", "show", store],
        "lint --schema": ["lint", gq, "--schema", pg, "--quiet"],
        "lint --store": ["lint", gq, "--store", store, "--quiet"],
    }

    run = without_heavy_libraries(*arguments[command])

    assert (run.returncode, run.stderr) == (0, b"")
