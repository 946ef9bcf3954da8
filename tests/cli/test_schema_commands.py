"""`schema plan` and `schema apply`: what they print, and how they exit."""

from __future__ import annotations

from pathlib import Path

import pytest

import omnigraph
from cli.runs import Cli
from omnigraph.graph.graph import Graph

BASE = """node Person { slug: String @key  age: I32?  name: String? }
node City { n: String @key }
edge Knows: Person -> Person { since: Date? }
"""


@pytest.fixture
def graph(store: str) -> Graph:
    graph = omnigraph.init(store, BASE)
    graph.load([{"type": "Person", "data": {"slug": "ada", "age": 36}}, {"type": "Person", "data": {"slug": "bob"}}])
    return graph


@pytest.fixture
def wanted(tmp_path: Path) -> Path:
    return tmp_path / "wanted.pg"


def test_a_plan_shows_each_step_with_a_sign(graph: Graph, store: str, cli: Cli, wanted: Path) -> None:
    wanted.write_text(
        'node Person { slug: String @key  title: String? @rename_from("name") role: String @default("x")}\n'
        "node City { n: String @key }\nnode Town { t: String }"
    )

    run = cli("schema", "plan", "--schema", str(wanted), store)

    assert (run.code, run.err) == (0, "")
    assert run.out.splitlines() == [
        "-  drop_type        Knows         edge           "
        "this edge type is hidden at once, readable at older commits until cleanup [OG-DS-103]",
        "+  add_type         Town          node           a new node type",
        "~  rename_property  Person.title  name -> title  name is renamed to title, with its values",
        "-  drop_property    Person.age    I32?           "
        "hidden at once, readable at older commits until cleanup [OG-DS-104]",
        '+  add_property     Person.role   String         "x" in existing rows (2 rows)',
        "5 steps: 2 to add, 1 to change, 2 to drop.",
    ]
    assert graph.schema.show() == BASE


def test_a_plan_that_is_not_supported_exits_with_0(graph: Graph, store: str, cli: Cli, wanted: Path) -> None:
    wanted.write_text(BASE.replace("age: I32?", "age: I32 score: F64").replace("n: String", "n: I32"))

    run = cli("schema", "plan", "--schema", str(wanted), "--store", store, "--json")

    assert (run.code, run.err) == (0, "")
    assert (run.json["supported"], run.json["step_count"]) == (False, 3)
    steps = [(s["kind"], s["type_name"], s["property_name"], s["supported"], s["code"]) for s in run.json["steps"]]
    assert steps == [
        ("add_property", "Person", "score", False, "OG-MF-103"),
        ("change_property", "Person", "age", False, "OG-MF-104"),
        ("change_property", "City", "n", False, "OG-MF-106"),
    ]
    assert [s["count"] for s in run.json["steps"]] == [2, 1, None]
    assert all(s["message"] for s in run.json["steps"])


def test_a_plan_of_what_is_there_says_so(graph: Graph, store: str, cli: Cli, wanted: Path) -> None:
    wanted.write_text(BASE)

    assert (
        cli("schema", "plan", "--schema", str(wanted), store).out
        == "Nothing to change: the schema is already in place.\n"
    )
    answer = cli("schema", "plan", "--schema", str(wanted), store, "--json").json
    assert answer == {"supported": True, "step_count": 0, "steps": []}


def test_apply_prints_the_steps_and_the_commit(graph: Graph, store: str, cli: Cli, wanted: Path) -> None:
    wanted.write_text(BASE.replace("age: I32?", 'age: I64? role: String @default("x")'))

    run = cli("schema", "apply", "--schema", str(wanted), store, "--as", "ada")

    commit = graph.commits(limit=1)[0]
    assert (run.code, run.err) == (0, "")
    assert (commit.kind, commit.actor) == ("schema_apply", "ada")
    assert run.out.splitlines()[:-1] == [
        '+  add_property     Person.role  String      "x" in existing rows (2 rows)',
        "~  change_property  Person.age   I32 -> I64  "
        "widened: the values are written as I64, no other column is touched",
        "2 steps: 1 to add, 1 to change, 0 to drop.",
    ]
    assert run.out.splitlines()[-1].startswith(f"Committed {commit.id} on main (")


def test_apply_json_adds_the_commit_to_the_plan(graph: Graph, store: str, cli: Cli, wanted: Path) -> None:
    wanted.write_text(BASE.replace("age: I32?", "age: I32? @index"))

    answer = cli("schema", "apply", "--schema", str(wanted), store, "--json").json

    head = graph.commits(limit=1)[0]
    assert (answer["supported"], answer["step_count"], answer["applied"]) == (True, 1, True)
    assert (answer["commit"]["id"], answer["commit"]["kind"]) == (head.id, "schema_apply")
    assert answer["commit"]["parent"] == head.parent
    assert set(answer["cost"]) == {"requests", "stages", "bytes", "retries"}
    again = cli("schema", "apply", "--schema", str(wanted), store, "--json").json
    assert (again["applied"], again["commit"], again["step_count"]) == (False, None, 0)
    text = cli("schema", "apply", "--schema", str(wanted), store)
    assert text.out == "Nothing to change: the schema is already in place, so there is no commit.\n"
    assert graph.commits(limit=1)[0].id == head.id


def test_apply_refuses_what_is_not_supported_and_shows_the_steps(
    graph: Graph, store: str, cli: Cli, wanted: Path
) -> None:
    wanted.write_text(BASE.replace("age: I32?", "age: String? extra: F64?"))
    head = graph.snapshot().commit_id

    run = cli("schema", "apply", "--schema", str(wanted), store)

    assert (run.code, run.out) == (1, "")
    assert run.err.splitlines()[0] == (
        "error: The schema can't be applied, Person.age: I32 does not become String: add another property, fill it, "
        "and drop this one [OG-MF-106]. Nothing was changed, see `schema plan`."
    )
    assert run.err.splitlines()[1].startswith("  +  add_property     Person.extra")
    assert run.err.splitlines()[2].startswith("  !  change_property  Person.age ")
    body = cli("schema", "apply", "--schema", str(wanted), store, "--json").error
    assert body["code"] == "bad_request"
    assert (body["details"]["applied"], body["details"]["supported"], body["details"]["step_count"]) == (
        False,
        False,
        2,
    )
    assert graph.snapshot().commit_id == head


def test_all_steps_that_cant_be_are_counted(graph: Graph, store: str, cli: Cli, wanted: Path) -> None:
    wanted.write_text(BASE.replace("age: I32?  name: String?", "age: I32  name: I32?  @range(age, ..35)"))

    run = cli("schema", "apply", "--schema", str(wanted), store)

    assert (run.code, run.err.count("  !  ")) == (1, 3)
    assert "(and 2 more steps)" in run.err.splitlines()[0]


def test_rows_that_break_a_new_constraint_are_named(graph: Graph, store: str, cli: Cli, wanted: Path) -> None:
    wanted.write_text(BASE.replace("name: String?", "name: String? @range(age, ..35)"))

    run = cli("schema", "apply", "--schema", str(wanted), store, "--json")

    assert run.code == 5
    assert run.error["code"] == "constraint_violation"
    assert run.error["details"]["entity_ids"] == ["ada"]
    plan = cli("schema", "plan", "--schema", str(wanted), store)
    assert plan.code == 0
    assert "!  add_constraint  Person.age  @range(age, ..35)" in plan.out
    assert "1 row of Person would violate it, 'ada' has age 36, outside ..35" in plan.out


def test_a_conditional_apply_misses_with_4(graph: Graph, store: str, cli: Cli, wanted: Path) -> None:
    wanted.write_text(BASE.replace("age: I32?", ""))

    run = cli("schema", "apply", "--schema", str(wanted), store, "--if-commit", graph.commits()[-1].id)

    assert run.code == 4


def test_data_loss_is_asked_for(graph: Graph, store: str, cli: Cli, wanted: Path) -> None:
    wanted.write_text(BASE.replace("age: I32?", ""))

    assert cli("schema", "apply", "--schema", str(wanted), store, "--allow-data-loss", "--quiet").out == ""
    assert graph.query("query q() { match { $p: Person } return { $p } order { $p.slug } limit 1 }").rows == [
        {"p": {"id": "ada", "slug": "ada", "name": None}}
    ]


def test_a_schema_is_applied_to_its_branch(graph: Graph, store: str, cli: Cli, wanted: Path) -> None:
    graph.branches.create("b")
    wanted.write_text(BASE.replace("age: I32?", ""))

    answer = cli("schema", "apply", "--schema", str(wanted), store, "--branch", "b", "--json").json

    assert answer["commit"]["branch"] == "b"
    assert (graph.schema.show("b"), graph.schema.show()) == (wanted.read_text(), BASE)


def test_a_text_that_is_no_schema_is_named_with_its_file(graph: Graph, store: str, cli: Cli, wanted: Path) -> None:
    wanted.write_text("node Person { slug: String @key } edge Knows: Person -> Nobody")

    for command in ("plan", "apply"):
        run = cli("schema", command, "--schema", str(wanted), store)
        assert run.code == 1
        assert f"{wanted}:1:" in run.err
        assert "OG-PG-120" in run.err


def test_a_file_that_is_not_there_is_an_error(graph: Graph, store: str, cli: Cli, tmp_path: Path) -> None:
    assert cli("schema", "plan", "--schema", str(tmp_path / "none.pg"), store).code == 1
    assert cli("schema", "plan", store).code == 2
