"""The rules of language.md on loads, each as a test."""

from __future__ import annotations

import datetime as dt
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from omnigraph.errors import BadRequest, BranchNotFound, ConstraintViolation, InvalidInput
from omnigraph.manifest.repository import init_repository
from omnigraph.manifest.settings import Settings
from omnigraph.schema.lang.compile import compile_schema
from omnigraph.storage.table.read import point_lookup
from omnigraph.write.load.input.load_input import UNLIMITED, LoadLimits, TooLargeForProcess
from write.world import World, edge, make_world, person, touched


def lines(path: Path, *entities: Any) -> Path:
    """A file with one entity a line; texts are written as they are."""
    text = "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in entities)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


ADA, BOB = person("ada", age=36), person("bob")
KNOWS = edge("Knows", "ada", "bob", since="2026-01-01")


# Sources


def test_a_file_is_loaded_as_one_commit_with_counts_and_cost(world: World, tmp_path: Path) -> None:
    result = world.load(lines(tmp_path / "people.jsonl", ADA, "", BOB, "   ", KNOWS))

    assert touched(result.commit) == {"Person": {"inserted": 2}, "Knows": {"inserted": 1}}
    assert result.commit is not None
    assert result.commit.commit.kind == "load"
    assert (result.counts, result.rejected, result.quarantine, result.reports) == (
        {"Person": 2, "Knows": 1},
        0,
        None,
        (),
    )
    assert result.cost == result.commit.cost
    assert result.cost.requests > 0


def test_edges_may_stand_before_their_nodes(world: World) -> None:
    world.load([KNOWS, BOB, ADA])

    assert world.pairs("Knows") == [("ada", "bob")]


@pytest.mark.parametrize("kind", ["path", "text", "gz", "glob", "directory", "list", "generator", "uri"])
def test_sources_of_every_kind_load_alike(world: World, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    name = "b.jsonl.gz" if kind == "gz" else "b.jsonl"
    first, second = lines(folder / "a.jsonl", ADA), lines(folder / name, BOB)
    sources: dict[str, Any] = {
        "path": [first, second],
        "text": [str(first), str(second)],
        "gz": [first, second],
        "glob": str(folder / "*.jsonl"),
        "directory": folder,
        "list": [ADA, BOB],
        "generator": (entity for entity in (ADA, BOB)),
        "uri": [first.as_uri(), second.as_uri()],
    }

    world.load(sources[kind])

    assert world.ids("Person") == ["ada", "bob"]


def test_files_of_one_name_are_distinguished_by_their_folders(world: World, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        lines(tmp_path / name / "x.jsonl", "{")

    with pytest.raises(InvalidInput) as raised:
        world.load(str(tmp_path / "*" / "x.jsonl"))

    assert raised.value.total == 2


def test_tables_are_loaded_by_type(world: World) -> None:
    import pandas

    people = pandas.DataFrame({"slug": ["ada", "bob"], "name": ["Ada", "Bob"], "age": [36, None]})
    knows = pa.table({"src": ["ada"], "dst": ["bob"], "since": pa.array([dt.date(2026, 1, 1)])})

    result = world.load({"Person": people, "Knows": knows})

    assert result.counts == {"Person": 2, "Knows": 1}
    assert [row["age"] for row in world.rows("Person")] == [36, None]
    assert [row["role"] for row in world.rows("Person")] == ["ops", "ops"], "a column that is not there says nothing"


@pytest.mark.parametrize("source", ["missing.jsonl", "ftp://host/x.jsonl", "people.xml", "empty"])
def test_a_source_that_can_not_be_read_is_refused(world: World, tmp_path: Path, source: str) -> None:
    (tmp_path / "people.xml").touch()
    (tmp_path / "empty").mkdir()

    with pytest.raises(BadRequest):
        world.load(source if "://" in source else tmp_path / source)


def test_more_than_a_process_should_load_is_refused_with_what_to_do(world: World, tmp_path: Path) -> None:
    path = lines(tmp_path / "people.jsonl", ADA, BOB)

    for limits in (LoadLimits(rows=1), LoadLimits(bytes=50)):
        with pytest.raises(TooLargeForProcess, match="bulk engine"):
            world.load(path, limits=limits)
    with pytest.raises(TooLargeForProcess):
        world.load({"Note": pa.table({"text": ["x"] * 100_001})})

    assert world.load({"Note": pa.table({"text": ["x"] * 100_001})}, limits=UNLIMITED).counts == {"Note": 100_001}


# Lines


BAD_LINES = {
    "{": "not JSON",
    "[]": "an entity is an object",
    '{"data": {}}': 'neither "type" nor "edge"',
    '{"type": "Person", "from": "a", "data": {}}': "unknown field 'from'",
    '{"type": "Ghost", "data": {}}': "no type 'Ghost'",
    '{"type": "Knows", "data": {}}': "Knows is an edge type",
    '{"edge": "Person", "from": "a", "to": "b"}': "Person is a node type",
    '{"edge": "Knows", "from": "a"}': "no 'to'",
    '{"edge": "Knows", "from": 7, "to": "b"}': "'from' is not text",
    '{"type": "Person", "data": {"slug": "z", "nme": "Z"}}': "no property 'nme'",
    '{"type": "Person", "data": {"id": 7, "slug": "z", "name": "Z"}}': "the id 7 is not text",
    '{"type": "Person", "data": 7}': '"data" is not an object',
}


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_bad_line_is_reported_with_its_number_and_nothing_is_written(world: World, tmp_path: Path, line: str) -> None:
    before = world.head

    with pytest.raises(InvalidInput) as raised:
        world.load(lines(tmp_path / "people.jsonl", ADA, "", line, BOB))

    assert str(raised.value).startswith("people.jsonl line 3: ")
    assert BAD_LINES[line] in str(raised.value)
    assert world.head == before
    assert raised.value.exit_code == 1


def test_all_bad_lines_are_reported_the_first_twenty_by_number(world: World, tmp_path: Path) -> None:
    bad = ["{", {"type": "Ghost"}, person("ada", age="old"), *["nonsense"] * 30]

    with pytest.raises(InvalidInput) as raised:
        world.load(lines(tmp_path / "people.jsonl", BOB, *bad))

    details = raised.value.to_json()["details"]
    assert details["total"] == 33
    assert [error["place"] for error in details["errors"]] == [f"people.jsonl line {n}" for n in range(2, 22)]


def test_one_bad_line_in_ten_thousand_leaves_nothing(world: World, tmp_path: Path) -> None:
    many = [{"type": "Note", "data": {"text": f"n{n}"}} for n in range(10_000)]
    many[7_776] = {"type": "Note", "data": {"text": 5}}

    with pytest.raises(
        ConstraintViolation, match=r"^notes.jsonl line 7777: Note has a bad text, 5 is not a String"
    ) as raised:
        world.load(lines(tmp_path / "notes.jsonl", *many))

    assert raised.value.exit_code == 5
    assert world.rows("Note") == []


def test_a_violation_names_the_lines_of_its_rows(people: World, tmp_path: Path) -> None:
    path = lines(tmp_path / "more.jsonl", person("zed"), edge("Knows", "zed", "nobody"), person("ada"))

    error = people.refused(lambda: people.load(path), "Knows.dst in Person")

    places = {v["constraint"]: v["places"] for v in error.details["violations"]}
    assert places == {"Person key (slug)": ["more.jsonl line 3"], "Knows.dst in Person": ["more.jsonl line 2"]}


def test_an_id_that_occurs_twice_in_one_input_is_an_error(world: World) -> None:
    error = world.refused(lambda: world.load([ADA, BOB, person("ada", age=1)]), "Person key (slug)")
    assert str(error).startswith("entity 3: Person 'ada' occurs twice, first at entity 1")

    note = {"type": "Note", "data": {"id": "n", "text": "x"}}
    world.refused(lambda: world.load([note, note]), "Note id")
    world.refused(lambda: world.load([ADA, person("ada")], mode="merge"), "Person key (slug)")


def test_an_explicit_id_must_agree_with_the_key(world: World) -> None:
    world.load([person("ada", id="ada")])

    world.refused(lambda: world.load([person("bob", id="robert")]), "Person key (slug)")


def test_values_are_given_as_the_language_says(tmp_path: Path) -> None:
    schema = "node T { k: I64 @key  u: U64  d: Date  t: DateTime  b: Blob  f: F32  l: [Date]?  v: Vector(2) }"
    world = make_world(tmp_path / "graph", schema)
    data = {
        "k": "-9007199254740993",
        "u": "18446744073709551615",
        "d": "2026-01-31",
        "t": "2026-01-31T12:00:00",
        "b": "base64:aGk=",
        "f": 0.1,
        "l": ["2026-01-01"],
        "v": [1, 0.1],
    }

    world.load([{"type": "T", "data": data}])

    (row,) = world.rows("T")
    assert row["id"] == "-9007199254740993"
    assert (row["u"], row["b"], row["d"]) == (2**64 - 1, b"hi", dt.date(2026, 1, 31))
    assert row["t"] == dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)


# Modes


def test_append_refuses_an_id_that_exists(people: World) -> None:
    error = people.refused(lambda: people.load([person("ada", name="X"), person("zed")]), "Person key (slug)")

    assert error.entity_ids == ("ada",)


def test_merge_keeps_what_is_absent_and_clears_what_is_null(people: World) -> None:
    result = people.load([{"type": "Person", "data": {"slug": "ada", "age": None}}, person("zed", age=1)], mode="merge")

    assert touched(result.commit) == {"Person": {"inserted": 1, "updated": 1}}
    ada = people.row("Person", "ada")
    assert (ada["name"], ada["age"], ada["bio"], ada["face"]) == ("Ada", None, "first", [1.0, 2.0])
    assert people.row("Person", "zed")["role"] == "ops", "a new row has its defaults"


def test_merge_sets_a_vector_to_null_when_its_text_changes_without_it(people: World) -> None:
    people.load([{"type": "Person", "data": {"slug": "ada", "bio": "first", "age": 1}}], mode="merge")
    assert people.row("Person", "ada")["face"] == [1.0, 2.0]

    people.load([{"type": "Person", "data": {"slug": "ada", "bio": "other"}}], mode="merge")
    assert people.row("Person", "ada")["face"] is None


def test_merging_the_same_again_makes_no_commit(people: World) -> None:
    entities = [json.loads(line) for line in people.export().splitlines()]

    result = people.load(entities, mode="merge")

    assert result.commit is None
    assert result.counts == {"Company": 1, "Knows": 1, "Needs": 1, "Person": 3}


def test_merge_matches_an_edge_without_id_by_its_first_unique_over_both_ends(people: World) -> None:
    (before,) = people.ids("Knows")

    result = people.load([KNOWS, edge("Knows", "bob", "ada")], mode="merge")

    assert touched(result.commit) == {"Knows": {"inserted": 1, "updated": 1}}
    assert result.reports == ()
    assert str(people.row("Knows", before)["since"]) == "2026-01-01"


def test_merge_of_two_edges_that_match_the_same_is_an_error(people: World) -> None:
    people.refused(lambda: people.load([KNOWS, KNOWS], mode="merge"), "Knows id")
    people.refused(lambda: people.load([edge("Knows", "bob", "eve")] * 2, mode="merge"), "Knows unique (src, dst)")


def test_merge_of_edges_without_such_a_constraint_adds_them_each_time_and_says_so(people: World) -> None:
    for _ in range(2):
        result = people.load([edge("Likes", "ada", "bob")], mode="merge")
        assert result.reports == ("1 Likes edges without id are new: with @unique(src, dst) they would be matched.",)

    assert people.pairs("Likes") == [("ada", "bob")] * 2


def test_merge_of_an_edge_with_id_updates_it(people: World) -> None:
    people.load([edge("Likes", "ada", "bob", id="e1", much=1.0)], mode="merge")
    result = people.load([edge("Likes", "ada", "bob", id="e1", much=2.0)], mode="merge")

    assert touched(result.commit) == {"Likes": {"updated": 1}}
    assert result.reports == ()


def test_overwrite_replaces_all_rows_of_every_type_in_the_input_and_of_no_other(people: World) -> None:
    people.mutate('insert Note { text: "stays" }')

    result = people.load([edge("Knows", "eve", "ada")], mode="overwrite")

    assert touched(result.commit) == {"Knows": {"inserted": 1, "deleted": 1}}
    assert people.pairs("Knows") == [("eve", "ada")]
    assert len(people.rows("Note")) == 1
    assert people.ids("Person") == ["ada", "bob", "eve"]


def test_overwriting_nodes_that_edges_still_reference_is_refused_unless_the_edges_go_too(people: World) -> None:
    error = people.refused(lambda: people.load([ADA, person("eve")], mode="overwrite"), "Knows.dst in Person")
    assert error.entity_ids == ("bob",)

    people.load([ADA, person("eve"), edge("Knows", "eve", "ada")], mode="overwrite")
    assert people.ids("Person") == ["ada", "eve"]


def test_overwrite_checks_edges_against_the_new_nodes_only(people: World) -> None:
    people.refused(lambda: people.load([ADA, edge("Knows", "ada", "bob")], mode="overwrite"), "Knows.dst in Person")


def test_overwrite_checks_the_minimum_of_sources_that_lose_their_edges(people: World) -> None:
    people.mutate('insert Company { name: "zeta" }')

    people.refused(lambda: people.load([edge("Needs", "zeta", "ada")], mode="overwrite"), "Needs card 1..2")


def test_overwrite_with_an_empty_table_empties_the_type(people: World) -> None:
    people.load(
        {"Knows": pa.table({"src": pa.array([], pa.string()), "dst": pa.array([], pa.string())})}, mode="overwrite"
    )

    assert people.rows("Knows") == []


def test_overwrite_is_strict(people: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from omnigraph.errors import ExpectedVersionMismatch

    create = people.repository.manifests.create

    def late(manifest: Any) -> Any:
        monkeypatch.setattr(people.repository.manifests, "create", create)
        people.elsewhere.mutate('insert Knows { from: "eve", to: "bob" }')
        return create(manifest)

    monkeypatch.setattr(people.repository.manifests, "create", late)
    with pytest.raises(ExpectedVersionMismatch):
        people.load([edge("Knows", "eve", "ada")], mode="overwrite")


@pytest.mark.parametrize(
    ("rows_a_value", "way"), [(10, "one scan"), (0, "filters")], ids=["one scan", "one filter after another"]
)
def test_constraints_hold_for_more_values_than_one_filter_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_a_value: int, way: str
) -> None:
    """A table that is not much larger than the values are many is scanned once, a larger one is asked with one filter
    after another: both find every row that breaks a constraint."""
    asked: list[tuple[str, str, int]] = []
    scan_once, filter_of = point_lookup._scan_for, point_lookup._all_of

    def scanned(handles: Any, at: Any, columns: Any, column: str, values: Any) -> pa.Table:
        asked.append(("one scan", column, len(values)))
        return scan_once(handles, at, columns, column, values)

    def filtered(values: Any) -> str:
        asked.extend(("filters", column, len(some)) for column, some in values.items())
        return filter_of(values)

    monkeypatch.setattr(point_lookup, "VALUES_MAX", 3)
    monkeypatch.setattr(point_lookup, "ROWS_A_VALUE_MAX", rows_a_value)
    monkeypatch.setattr(point_lookup, "_scan_for", scanned)
    monkeypatch.setattr(point_lookup, "_all_of", filtered)
    schema = "node T { f: F64? @unique  s: String? @unique } edge E: T -> T @card(0..1)"
    staged = Settings(inline_rows=0, maintenance=0)  # what is inline is in no table that could be asked
    world = World(init_repository(str(tmp_path / "graph"), compile_schema(schema), settings=staged))
    world.load([{"type": "T", "data": {"id": f"t{n}", "f": n, "s": f"s{n}"}} for n in range(10)])

    def asked_for(column: str) -> list[tuple[str, int]]:
        found = sorted((how, values) for how, name, values in asked if name == column)
        asked.clear()
        return found

    in_one, in_parts = [("one scan", 10)], [("filters", 1), *[("filters", 3)] * 3]
    more = [{"type": "T", "data": {"f": n - 0.5, "s": f"more {n}"}} for n in range(9)]
    asked.clear()
    world.refused(lambda: world.load([*more, {"type": "T", "data": {"f": -0.0}}]), "T unique (f)")
    assert asked_for("f") == (in_one if way == "one scan" else in_parts)
    world.refused(lambda: world.load([*more, {"type": "T", "data": {"s": "s7"}}]), "T unique (s)")
    assert asked_for("s") == (in_one if way == "one scan" else in_parts)
    world.load(more)
    world.load([edge("E", f"t{n}", "t0") for n in range(9)])
    asked.clear()
    world.refused(lambda: world.load([edge("E", f"t{n}", "t0") for n in range(9)]), "E card 0..1")
    assert asked_for("src") == ([("one scan", 9)] if way == "one scan" else [("filters", 3)] * 3)


# Branches, quarantine


def test_from_forks_a_missing_branch_first(people: World) -> None:
    result = people.load([person("zed")], branch="agent/1", from_="main")
    people.load([person("yan")], branch="agent/1", from_="main")

    assert result.commit is not None
    assert result.commit.branch == "agent/1"
    assert [row["id"] for row in people.rows("Person", "agent/1")] == ["ada", "bob", "eve", "yan", "zed"]
    assert people.ids("Person") == ["ada", "bob", "eve"]


def test_a_missing_branch_without_from_is_refused_and_a_bad_input_forks_none(people: World) -> None:
    with pytest.raises(BranchNotFound):
        people.load([person("zed")], branch="agent/1")
    with pytest.raises(InvalidInput):
        people.load([{"type": "Ghost"}], branch="agent/1", from_="main")

    assert people.repository.branches.names() == ["main"]


def test_quarantine_loads_the_rest_and_writes_the_rejected_with_their_reasons(people: World, tmp_path: Path) -> None:
    path = lines(
        tmp_path / "more.jsonl",
        person("zed"),
        "{",
        person("yan", age=200),
        person("zed", age=1),
        edge("Knows", "zed", "yan"),
        edge("Knows", "zed", "ada"),
        person("xi", age="old"),
        person("ada"),
        edge("WorksAt", "zed", "acme"),
        edge("WorksAt", "zed", "acme"),
    )

    result = people.load(path, on_error="quarantine")

    assert touched(result.commit) == {"Person": {"inserted": 1}, "Knows": {"inserted": 1}, "WorksAt": {"inserted": 1}}
    assert result.counts == {"Person": 1, "Knows": 1, "WorksAt": 1}
    assert result.rejected == 7
    assert result.quarantine is not None
    assert result.quarantine.parent == tmp_path
    rejected = [json.loads(line) for line in result.quarantine.read_text().splitlines()]
    reasons = {entry["place"].rpartition(" ")[2]: " ".join(entry["reasons"]) for entry in rejected}
    assert list(reasons) == ["2", "3", "4", "5", "7", "8", "10"]
    assert "not JSON" in reasons["2"]
    assert "Person.age range 0..150" in reasons["3"]
    assert "occurs twice" in reasons["4"]
    assert "Knows.dst in Person" in reasons["5"], "its node was rejected, so it is too"
    assert "Person.age type I32" in reasons["7"]
    assert "Person key (slug)" in reasons["8"]
    assert "WorksAt card 0..1" in reasons["10"]
    assert rejected[1]["line"] == json.dumps(person("yan", age=200))


def test_quarantine_without_a_bad_line_writes_no_file(world: World, tmp_path: Path) -> None:
    result = world.load(lines(tmp_path / "people.jsonl", ADA), on_error="quarantine")

    assert (result.rejected, result.quarantine) == (0, None)
    assert [path.name for path in tmp_path.glob("*.json*")] == ["people.jsonl"]


def test_max_errors_bounds_a_quarantine(world: World, tmp_path: Path) -> None:
    entities = [ADA, person("bob", age=200), person("eve", age=200)]
    where = tmp_path / "rejected"

    with pytest.raises(ConstraintViolation) as raised:
        world.load(entities, on_error="quarantine", max_errors=1, quarantine=where)
    assert raised.value.details["violations"][0]["places"] == ["entity 2", "entity 3"]
    assert not where.exists()
    assert world.rows("Person") == []

    assert world.load(entities, on_error="quarantine", max_errors=2, quarantine=where).rejected == 2
    assert len(where.read_text().splitlines()) == 2


def test_quarantine_does_not_empty_a_type_whose_every_row_is_bad(people: World, tmp_path: Path) -> None:
    entities = [edge("Knows", "ada", "nobody"), edge("Likes", "ada", "bob")]

    result = people.load(entities, mode="overwrite", on_error="quarantine", quarantine=tmp_path / "rejected")

    assert people.pairs("Knows") == [("ada", "bob")]
    assert result.reports == ("Knows was left unchanged: all of its 1 rows were rejected.",)


def test_what_no_rejected_row_would_mend_is_an_error_in_a_quarantine_too(people: World, tmp_path: Path) -> None:
    with pytest.raises(ConstraintViolation, match="Knows edges still have it"):
        people.load([ADA, person("eve")], mode="overwrite", on_error="quarantine", quarantine=tmp_path / "rejected")


@pytest.mark.parametrize(
    "wrong", [{"mode": "upsert"}, {"on_error": "ignore"}, {"max_errors": -1}, {"job_id": "j", "txn_id": "t"}]
)
def test_wrong_options_are_refused(world: World, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        world.load([ADA], **wrong)


def test_the_same_txn_id_loads_once(world: World) -> None:
    first = world.load([ADA], txn_id="once")
    second = world.load([ADA], txn_id="once")

    assert first.commit is not None
    assert second.commit is not None
    assert first.commit.id == second.commit.id


def test_a_merge_that_lost_a_race_keeps_what_the_winner_wrote(people: World, monkeypatch: pytest.MonkeyPatch) -> None:
    create = people.repository.manifests.create

    def late(manifest: Any) -> Any:
        monkeypatch.setattr(people.repository.manifests, "create", create)
        people.elsewhere.mutate('update Person set { tags: ["t"] } where slug = "ada"')
        return create(manifest)

    monkeypatch.setattr(people.repository.manifests, "create", late)
    people.load([{"type": "Person", "data": {"slug": "ada", "age": 1}}], mode="merge")

    ada = people.row("Person", "ada")
    assert (ada["age"], ada["tags"]) == (1, ["t"])
