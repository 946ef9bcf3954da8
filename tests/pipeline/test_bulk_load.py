"""The bulk load as a caller sees it: one commit or nothing, what was rejected and why, from files of every kind."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from omnigraph.errors import (
    BadRequest,
    BranchNotFound,
    ConstraintViolation,
    InvalidInput,
    PreconditionFailed,
)
from pipeline.bulk import SMALL_SPLITS, BulkWorld, edge, node, person, write_lines
from support import jobs

PEOPLE = [person(f"p{number:03}", age=number % 90) for number in range(200)]
KNOWS = [edge("Knows", f"p{number:03}", f"p{(number * 7 + 1) % 200:03}") for number in range(150)]


@pytest.fixture
def world(tmp_path: Path) -> BulkWorld:
    return BulkWorld.make(tmp_path / "graph")


def left_over(world: BulkWorld) -> list[str]:
    """What lies among the intents."""
    return jobs.left_over(world.repository)


def refused(world: BulkWorld, kind: type[Exception], source: Any, **options: Any) -> Any:
    """The load fails and leaves nothing: no commit, no intent, nothing to resume."""
    before = (world.head, world.everything())
    with pytest.raises(kind) as raised:
        world.bulk(source, **options)
    assert (world.head, world.everything()) == before
    assert left_over(world) == []
    return raised.value


def test_many_splits_and_types_are_one_commit(world: BulkWorld, tmp_path: Path) -> None:
    given = write_lines(tmp_path / "given.jsonl", [*PEOPLE, *KNOWS])
    before = world.repository.snapshot().manifest.manifest_version

    result = world.bulk(str(given), actor="ada")

    assert result.commit is not None
    assert (result.commit.commit.kind, result.commit.commit.actor) == ("load", "ada")
    assert world.repository.snapshot().manifest.manifest_version == before + 1
    assert result.commit.touched == {"node:Person": {"inserted": 200}, "edge:Knows": {"inserted": 150}}
    assert result.counts == {"Person": 200, "Knows": 150}
    assert (world.count("Person"), world.count("Knows")) == (200, 150)
    assert left_over(world) == []


def test_a_file_that_was_loaded_once_is_refused_as_a_whole(world: BulkWorld, tmp_path: Path) -> None:
    given = str(write_lines(tmp_path / "given.jsonl", PEOPLE))
    world.bulk(given)

    error = refused(world, ConstraintViolation, given)

    assert error.constraint == "Person key (slug)"
    assert error.details["total"] == 200
    assert error.violations[0].places[0] == "given.jsonl line 1"


def test_an_input_without_effect_makes_no_commit(world: BulkWorld, tmp_path: Path) -> None:
    given = str(write_lines(tmp_path / "given.jsonl", PEOPLE))
    world.bulk(given)
    head = world.head

    result = world.bulk(given, mode="merge")

    assert (result.commit, result.counts, world.head) == (None, {"Person": 200}, head)
    assert left_over(world) == []


def test_places_count_lines_through_splits_and_files(world: BulkWorld, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write_lines(folder / "a.jsonl", [*PEOPLE[:100], "", person("x", age=500), *PEOPLE[100:]])
    packed = gzip.compress(write_lines(tmp_path / "b", [*KNOWS, edge("Knows", "p001", "ghost", id="k")]).read_bytes())
    (folder / "b.jsonl.gz").write_bytes(packed)

    error = refused(world, ConstraintViolation, str(folder))

    assert [one.places for one in error.violations] == [("a.jsonl line 102",), ("b.jsonl.gz line 151",)]


def test_lines_that_are_no_rows_are_counted_and_the_first_are_shown(world: BulkWorld, tmp_path: Path) -> None:
    given = write_lines(tmp_path / "given.jsonl", [*PEOPLE[:50], *(["{"] * 60), *PEOPLE[50:]])

    error = refused(world, InvalidInput, str(given))

    assert error.total == 60
    assert [place for place, _ in error.problems][:2] == ["given.jsonl line 51", "given.jsonl line 52"]
    assert len(error.problems) == 20


def test_a_quarantine_has_the_rows_with_reasons_and_places(world: BulkWorld, tmp_path: Path) -> None:
    bad = [person("x", age=500), "{", person("p003", name="again"), edge("Likes", "x", "p001"), person("y", age="?")]
    given = write_lines(tmp_path / "given.jsonl", [*PEOPLE[:100], *bad, *PEOPLE[100:]])

    result = world.bulk(str(given), on_error="quarantine")

    assert (result.rejected, world.count("Person"), world.count("Likes")) == (5, 200, 0)
    assert result.quarantine is not None
    lines = [json.loads(line) for line in result.quarantine.read_text().splitlines()]
    assert [line["place"] for line in lines] == [f"given.jsonl line {number}" for number in range(101, 106)]
    assert json.loads(lines[0]["line"]) == bad[0]
    assert "outside 0..150" in lines[0]["reasons"][0]
    assert "occurs twice, first at given.jsonl line 4" in lines[2]["reasons"][0]
    assert "does not exist" in lines[3]["reasons"][0]  # the node that it needs was rejected
    assert sorted(result.summary) == [
        ("", "no readable entity", 1),
        ("Likes", "Likes.src in Person", 1),
        ("Person", "Person.age range 0..150", 1),
        ("Person", "Person.age type I32", 1),
        ("Person", "id given twice", 1),
    ]


def test_too_many_rejected_rows_fail_the_load(world: BulkWorld, tmp_path: Path) -> None:
    given = str(write_lines(tmp_path / "given.jsonl", [*PEOPLE, *(person(f"b{n}", age=999) for n in range(5))]))

    refused(world, ConstraintViolation, given, on_error="quarantine", max_errors=4)

    assert world.bulk(given, on_error="quarantine", max_errors=5).rejected == 5


def test_a_quarantine_that_cannot_be_written_stops_the_load(world: BulkWorld, tmp_path: Path) -> None:
    given = str(write_lines(tmp_path / "given.jsonl", [*PEOPLE, "{"]))

    error = refused(world, BadRequest, given, on_error="quarantine", quarantine=tmp_path / "none" / "q.json")

    assert "nothing was loaded" in str(error)


def test_a_type_whose_rows_were_all_rejected_is_not_emptied(world: BulkWorld, tmp_path: Path) -> None:
    world.bulk(str(write_lines(tmp_path / "first.jsonl", PEOPLE)))
    given = write_lines(tmp_path / "given.jsonl", [person("x", age=999), node("Company", name="acme")])

    result = world.bulk(str(given), mode="overwrite", on_error="quarantine")

    assert result.reports == ("Person was left unchanged: all of its 1 rows were rejected.",)
    assert (world.count("Person"), world.count("Company")) == (200, 1)


def test_a_file_without_rows_empties_its_type_in_an_overwrite_and_is_nothing_else(
    world: BulkWorld, tmp_path: Path
) -> None:
    world.bulk(str(write_lines(tmp_path / "first.jsonl", [node("Company", name="acme"), *PEOPLE])))
    none = pa.table({"name": pa.array([], pa.string())})
    pq.write_table(none, tmp_path / "Company.parquet")

    assert world.bulk(str(tmp_path / "Company.parquet")).commit is None
    result = world.bulk(str(tmp_path / "Company.parquet"), mode="overwrite")

    assert result.commit is not None
    assert result.commit.touched == {"node:Company": {"deleted": 1}}
    assert (world.count("Company"), world.count("Person")) == (0, 200)


def test_rows_of_parquet_and_csv_are_taken_and_placed_by_row_and_line(world: BulkWorld, tmp_path: Path) -> None:
    rows = pa.table({"slug": [f"q{n}" for n in range(300)], "name": [f"Q{n}" for n in range(300)]})
    pq.write_table(rows, tmp_path / "Person.parquet", row_group_size=50)
    (tmp_path / "Company.csv").write_text("name\n" + "".join(f"c{n}\n" for n in range(20)) + "c3\n")

    error = refused(world, ConstraintViolation, [str(tmp_path / "Person.parquet"), str(tmp_path / "Company.csv")])
    assert error.violations[0].places == ("Company.csv line 22",)
    (tmp_path / "Company.csv").write_text("name\n" + "".join(f"c{n}\n" for n in range(20)))

    world.bulk([str(tmp_path / "Person.parquet"), str(tmp_path / "Company.csv")])

    assert (world.count("Person"), world.count("Company")) == (300, 20)
    pq.write_table(rows.slice(250), tmp_path / "more.parquet", row_group_size=10)
    error = refused(world, ConstraintViolation, str(tmp_path / "more.parquet"), type_name="Person")
    assert error.violations[0].places[0] == "more.parquet row 1"


def test_a_txn_id_applies_a_load_once(world: BulkWorld, tmp_path: Path) -> None:
    given = str(write_lines(tmp_path / "given.jsonl", [*PEOPLE, node("Note", text="hello")]))

    first = world.bulk(given, txn_id="load-7")
    again = world.bulk(given, txn_id="load-7")

    assert first.commit is not None
    assert again.commit is not None
    assert again.commit.id == first.commit.id
    assert again.counts == {"Person": 200, "Note": 1}
    assert world.count("Note") == 1


def test_a_load_on_another_commit_than_wanted_is_refused(world: BulkWorld, tmp_path: Path) -> None:
    given = str(write_lines(tmp_path / "given.jsonl", PEOPLE))
    head = world.head
    world.bulk(str(write_lines(tmp_path / "one.jsonl", [node("Company", name="acme")])))

    refused(world, PreconditionFailed, given, if_commit=head)

    assert world.bulk(given, if_commit=world.head).commit is not None


def test_a_branch_that_is_not_there_is_forked_for_a_load_that_fits(world: BulkWorld, tmp_path: Path) -> None:
    world.bulk(str(write_lines(tmp_path / "first.jsonl", PEOPLE)))
    fits = str(write_lines(tmp_path / "given.jsonl", KNOWS))
    fits_not = str(write_lines(tmp_path / "bad.jsonl", [edge("Knows", "p001", "ghost")]))

    refused(world, ConstraintViolation, fits_not, branch="draft", from_="main")
    with pytest.raises(BranchNotFound):
        world.repository.snapshot("draft")
    result = world.bulk(fits, branch="draft", from_="main")

    assert result.commit is not None
    assert result.commit.branch == "draft"
    assert (world.count("Knows", "draft"), world.count("Knows")) == (150, 0)
    assert world.count("Person", "draft") == 200
    assert left_over(world) == []
    with pytest.raises(BranchNotFound):
        world.bulk(fits, branch="other")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"mode": "replace"}, "load mode"),
        ({"on_error": "ignore"}, "fail or quarantine"),
        ({"max_errors": -1}, "0 or more"),
        ({"job_id": "a/b"}, "job id"),
        ({"job_id": "a", "txn_id": "b"}, "both"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    world: BulkWorld, tmp_path: Path, options: dict[str, Any], told: str
) -> None:
    given = str(write_lines(tmp_path / "given.jsonl", PEOPLE[:1]))

    assert told in str(refused(world, BadRequest, given, **options))


def test_a_file_that_can_not_be_read_is_one_sentence(world: BulkWorld, tmp_path: Path) -> None:
    whole = gzip.compress(write_lines(tmp_path / "x", PEOPLE).read_bytes())
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])

    error = refused(world, BadRequest, str(tmp_path / "cut.jsonl.gz"))

    assert "cut.jsonl.gz" in str(error)
    assert "cut off" in str(error)


def test_verification_spills_to_disk_rather_than_fail(world: BulkWorld, tmp_path: Path) -> None:
    from dataclasses import replace

    rows = pa.table({"slug": [f"q{n:07}" for n in range(200_000)], "name": [f"Q{n}" for n in range(200_000)]})
    pq.write_table(rows, tmp_path / "Person.parquet", row_group_size=50_000)

    settings = replace(SMALL_SPLITS, split_bytes=500_000, memory_mb=48)
    result = world.bulk(str(tmp_path / "Person.parquet"), settings=settings)

    assert result.counts == {"Person": 200_000}
