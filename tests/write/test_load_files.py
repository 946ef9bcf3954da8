"""Loads of CSV, Parquet, directories and URIs in this process: as one commit, or not at all with one sentence."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from omnigraph.errors import BadRequest, ConstraintViolation, InvalidInput, NotFound, OmnigraphError
from omnigraph.read.export.export_formats import FORMATS, write_rows
from omnigraph.storage.location import parse_location
from omnigraph.storage.objects.object_store import open_store
from omnigraph.write.load.input.load_input import UNLIMITED, LoadLimits, TooLargeForProcess
from support.s3 import S3Location
from write.world import World, edge, make_world, person, touched

PEOPLE_CSV = b'slug,name,age,tags\nada,Ada,36,"[""a"",""b""]"\nbob,"Bob, B.",,\n'
KNOWS_CSV = b"from,to,since\nada,bob,2026-01-01\n"


def put(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def parquet(path: Path, rows: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(rows), path)
    return path


# Sources


def test_csv_is_loaded_with_its_type(world: World, tmp_path: Path) -> None:
    people = put(tmp_path / "people.csv", PEOPLE_CSV)
    knows = put(tmp_path / "knows.csv.gz", gzip.compress(KNOWS_CSV))

    world.load(people, type_name="Person")
    result = world.load(str(knows), type_name="Knows")

    assert touched(result.commit) == {"Knows": {"inserted": 1}}
    assert [(row["name"], row["age"], row["tags"]) for row in world.rows("Person")] == [
        ("Ada", 36, ["a", "b"]),
        ("Bob, B.", None, None),
    ]
    assert [row["role"] for row in world.rows("Person")] == ["ops", "ops"]


def test_a_directory_of_several_kinds_and_types_is_one_commit(world: World, tmp_path: Path) -> None:
    put(tmp_path / "in/Person.csv", PEOPLE_CSV)
    put(tmp_path / "in/more.jsonl", json.dumps(person("eve")).encode() + b"\n")
    parquet(tmp_path / "in/Company/part-0.parquet", {"name": ["acme"]})
    parquet(tmp_path / "in/type=Knows/0.parquet", {"src": ["ada"], "dst": ["eve"]})
    put(tmp_path / "in/Needs.csv", b"from,to\nacme,bob\n")

    result = world.load(tmp_path / "in")

    assert result.counts == {"Person": 3, "Company": 1, "Knows": 1, "Needs": 1}
    assert world.pairs("Knows") == [("ada", "eve")]


def test_parquet_is_loaded_with_its_columns_cast_where_nothing_is_lost(world: World, tmp_path: Path) -> None:
    rows = {
        "slug": pa.array(["ada", "bob"]).dictionary_encode(),
        "name": ["Ada", "Bob"],
        "age": pa.array([36, None], pa.int64()),
    }

    world.load(parquet(tmp_path / "people.parquet", rows), type_name="Person")

    assert [(row["id"], row["age"]) for row in world.rows("Person")] == [("ada", 36), ("bob", None)]


def test_a_file_without_rows_empties_its_type_when_it_overwrites(people: World, tmp_path: Path) -> None:
    people.load(put(tmp_path / "Knows.csv", b"from,to\n"), mode="overwrite")

    assert people.pairs("Knows") == []


def test_a_merge_leaves_columns_that_are_not_in_the_file(people: World, tmp_path: Path) -> None:
    people.load(put(tmp_path / "Person.csv", b"slug,age\nada,37\n"), mode="merge")

    row = people.row("Person", "ada")
    assert (row["name"], row["age"], row["bio"]) == ("Ada", 37, "first")


@pytest.mark.parametrize("format", FORMATS)
def test_files_of_every_format_of_an_export_load_back_to_the_same_graph(
    people: World, tmp_path: Path, format: Any
) -> None:
    from omnigraph.read.tables.scan import scan

    people.load([person("zoe", name='say "hi"\n', tags=["", "x,y"], bio="", role="lead", face=[0.5, 1])])
    snapshot = people.repository.snapshot()
    for definition in snapshot.catalog.types:
        rows = scan(people.repository.tables, snapshot, definition.table_key).sort_by("id")
        with put(tmp_path / f"out/{definition.name}.{format}", b"").open("wb") as file:
            write_rows(file, definition, format, [rows] if rows.num_rows else [])
    again = make_world(tmp_path / "again")

    again.load(tmp_path / "out")

    assert again.export() == people.export()


@pytest.mark.s3
def test_objects_are_loaded_into_a_graph_beside_them_and_into_one_on_disk(
    s3: S3Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(parse_location(s3.uri, s3.options))
    store.put("in/Person.csv", PEOPLE_CSV)
    store.put("in/knows.jsonl.gz", gzip.compress(json.dumps(edge("Knows", "ada", "bob")).encode()))
    beside = make_world(f"{s3.uri}/graph", options=s3.options)

    beside.load([f"{s3.uri}/in/*.csv", f"{s3.uri}/in/knows.jsonl.gz"])

    for name, value in s3.options.items():
        monkeypatch.setenv({"aws_endpoint": "AWS_ENDPOINT_URL"}.get(name, name.upper()), value)
    local = make_world(tmp_path / "graph")
    local.load(f"{s3.uri}/in")
    assert beside.pairs("Knows") == local.pairs("Knows") == [("ada", "bob")]
    with pytest.raises(NotFound, match="The bucket 'no-such-bucket' does not exist"):
        local.load("s3://no-such-bucket/in/a.jsonl")


# Limits


def test_the_rows_of_parquet_are_counted_before_they_are_read(world: World, tmp_path: Path) -> None:
    path = parquet(tmp_path / "Note.parquet", {"text": ["x"] * 11})

    with pytest.raises(TooLargeForProcess, match='engine="spark"'):
        world.load(path, limits=LoadLimits(rows=10))
    with pytest.raises(TooLargeForProcess):
        world.load(put(tmp_path / "Note.csv", b"text\n" + b"x\n" * 11), limits=LoadLimits(rows=10))
    with pytest.raises(TooLargeForProcess):
        world.load(path, limits=LoadLimits(bytes=10))

    assert world.load(path).counts == {"Note": 11}


# Bad input


def bad_inputs(folder: Path) -> dict[str, tuple[Any, str | None, type[OmnigraphError], str]]:
    """Case: source, type, error, and what its sentence says."""
    long = b'{"type":"Note","data":{"text":"' + b"x" * 50_000_000 + b'"}}\n'
    (folder / "empty").mkdir(parents=True, exist_ok=True)
    lines = json.dumps(person("zed")).encode() + b"\n"
    return {
        "unknown column in CSV": (
            put(folder / "a/Person.csv", b"slug,name,nme\nx,y,z\n"),
            None,
            BadRequest,
            "Person.csv has a column 'nme', which is unknown in Person: its columns are id, slug, name, age",
        ),
        "unknown column in Parquet": (
            parquet(folder / "b/Person.parquet", {"slug": ["x"], "nme": ["y"]}),
            None,
            BadRequest,
            "Person.parquet has a column 'nme'",
        ),
        "unknown property in a line": (
            put(folder / "c.jsonl", b'{"type":"Person","data":{"nme":"x"}}\n'),
            None,
            InvalidInput,
            "c.jsonl line 1: Person has no property 'nme'",
        ),
        "wrong type in CSV": (
            put(folder / "d/Person.csv", b"slug,name,age\nx,X,1\ny,Y,old\n"),
            None,
            ConstraintViolation,
            "Person.csv line 3: Person 'y' has a bad age, \"old\" is not an integer",
        ),
        "wrong type in Parquet": (
            parquet(folder / "e/Person.parquet", {"slug": ["x"], "name": ["X"], "age": ["1"]}),
            None,
            BadRequest,
            "Person.parquet has string in the column 'age', but Person.age is I32",
        ),
        "missing file in a list": (
            [put(folder / "f.jsonl", lines), folder / "g.jsonl"],
            None,
            BadRequest,
            "g.jsonl does not exist",
        ),
        "glob that matches nothing": (
            str(folder / "*.no.jsonl"),
            None,
            BadRequest,
            "matches no file: check the pattern",
        ),
        "unreadable URI": ("ftp://host/a.jsonl", None, BadRequest, "unknown scheme"),
        "truncated gzip": (
            put(folder / "h.jsonl.gz", gzip.compress(lines * 1000)[:-30]),
            None,
            BadRequest,
            "h.jsonl.gz is cut off and can't be read to its end",
        ),
        "mixed encodings": (
            put(folder / "i.jsonl", lines + '{"type":"Note","data":{"text":"é"}}\n'.encode("latin-1")),
            None,
            InvalidInput,
            "i.jsonl line 2: the line is not UTF-8",
        ),
        "mixed encodings in CSV": (
            put(folder / "j/Note.csv", b"text\nx\n" + "é\n".encode("latin-1")),
            None,
            InvalidInput,
            "Note.csv line 3: the line is not UTF-8",
        ),
        "a line of 50 MB": (
            put(folder / "k.jsonl", lines + long),
            None,
            InvalidInput,
            "k.jsonl line 2: the line is longer than 16 MiB",
        ),
        "an empty directory": (folder / "empty", None, BadRequest, "has no .jsonl"),
        "CSV without a header": (
            put(folder / "l/people.csv", b"ada,Ada,36\nbob,Bob,7\n"),
            "Person",
            BadRequest,
            "people.csv has a column 'ada', which is unknown in Person: its columns are id, slug, name, age, role, "
            "tags, bio, face; the first line must be a header.",
        ),
        "CSV without a type": (
            put(folder / "m/people.csv", PEOPLE_CSV),
            None,
            BadRequest,
            "The type of the rows of people.csv is unknown",
        ),
        "no Parquet": (
            put(folder / "n/Person.parquet", b"nonsense"),
            None,
            BadRequest,
            "Person.parquet can't be read as Parquet",
        ),
    }


def test_bad_input_is_one_sentence_and_changes_nothing(people: World, tmp_path: Path) -> None:
    before = (people.head, people.export())

    for case, (source, type_name, error, sentence) in bad_inputs(tmp_path / "in").items():
        with pytest.raises(OmnigraphError) as raised:
            people.load(source, type_name=type_name, limits=UNLIMITED)

        assert type(raised.value) is error, case
        text = str(raised.value)
        assert sentence in text, case
        assert "\n" not in text.strip(), case
    assert (people.head, people.export()) == before


# Quarantine


def quarantined(result: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.quarantine.read_text().splitlines()]


def test_rows_of_csv_are_quarantined_with_reason_file_and_line(world: World, tmp_path: Path) -> None:
    path = put(
        tmp_path / "Person.csv", b'slug,name,age\nada,"A\nda",36\nbob,Bob,old\nc,C\neve,Eve,400\n\xff,X,1\nzed,Zed,\n'
    )

    result = world.load(path, on_error="quarantine")

    assert world.ids("Person") == ["ada", "zed"]
    assert result.rejected == 4
    found = {entry["place"]: entry for entry in quarantined(result)}
    assert sorted(found) == [f"Person.csv line {n}" for n in (4, 5, 6, 7)]
    assert found["Person.csv line 4"]["entity"] == {
        "type": "Person",
        "data": {"slug": "bob", "name": "Bob", "age": "old"},
    }
    assert found["Person.csv line 5"]["line"] == "c,C"
    assert found["Person.csv line 5"]["reasons"] == ["the line has 2 fields, the header 3: give each column one"]
    assert "outside 0..150" in found["Person.csv line 6"]["reasons"][0]
    assert "not UTF-8" in found["Person.csv line 7"]["reasons"][0]


def test_rows_of_parquet_are_quarantined_with_reason_file_and_row(world: World, tmp_path: Path) -> None:
    rows = {"src": ["ada", "ada", None], "dst": ["bob", "nobody", "bob"]}
    parquet(tmp_path / "in/Knows.parquet", rows)
    parquet(tmp_path / "in/Person.parquet", {"slug": ["ada", "bob", None], "name": ["Ada", "Bob", "C"]})

    result = world.load(tmp_path / "in", on_error="quarantine")

    assert world.pairs("Knows") == [("ada", "bob")]
    assert {entry["place"] for entry in quarantined(result)} == {
        "Knows.parquet row 2",
        "Knows.parquet row 3",
        "Person.parquet row 3",
    }
    assert result.quarantine is not None
    assert result.quarantine.parent == tmp_path / "in"


def test_a_line_that_is_too_long_is_quarantined_by_its_beginning(world: World, tmp_path: Path) -> None:
    line = b'{"type":"Note","data":{"text":"' + b"x" * 17_000_000 + b'"}}\n'

    result = world.load(
        put(tmp_path / "a.jsonl", line + b'{"type":"Note","data":{"text":"y"}}\n'), on_error="quarantine"
    )

    assert result.counts == {"Note": 1}
    (entry,) = quarantined(result)
    assert entry["place"] == "a.jsonl line 1"
    assert len(entry["line"]) == 1000


# Tables


def test_the_columns_of_a_table_are_properties_where_its_type_has_them(tmp_path: Path) -> None:
    world = make_world(
        tmp_path / "graph",
        "node Mail { name: String @key  from: String?  to: String? }\nedge Heard: Mail -> Mail { from: String? }",
    )

    world.load({"Mail": pa.table({"name": ["a", "b"], "from": ["x", None], "to": [None, "y"]})})
    world.load({"Heard": pa.table({"src": ["a"], "dst": ["b"], "from": ["hearsay"]})})

    assert [row["from"] for row in world.rows("Mail")] == ["x", None]
    assert [(row["src"], row["dst"], row["from"]) for row in world.rows("Heard")] == [("a", "b", "hearsay")]


def test_times_that_nobody_can_hold_are_refused_by_their_rows(tmp_path: Path) -> None:
    world = make_world(tmp_path / "graph", "node Event { name: String @key  at: DateTime }")
    times = pa.array([0, 253_402_300_800], pa.timestamp("s"))

    with pytest.raises(ConstraintViolation, match="Event row 2: Event 'b' has a bad at"):
        world.load({"Event": pa.table({"name": ["a", "b"], "at": times})})
