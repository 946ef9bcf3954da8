"""Exports of many files: their layout, that they load back as they were, and that there is never half of one."""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import omnigraph
from omnigraph.errors import AlreadyExists, BadRequest, OmnigraphError
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import Append
from omnigraph.manifest.settings import Settings
from omnigraph.pipeline.exporting import export as exporting
from omnigraph.pipeline.exporting.destination import destination_at
from omnigraph.read.export.export import select_types
from omnigraph.schema.arrow import arrow_schema
from omnigraph.storage.util.runner import LocalRunner
from support.s3 import S3Location

Format = Literal["jsonl", "csv", "parquet"]
FORMATS: list[Format] = ["jsonl", "csv", "parquet"]
OPTIONS = {"fsync": "false"}
PHASES = [Phase.explicit, Phase.generate]  # to shrink a graph takes minutes

SCHEMA = """
node Thing {
    a: I32  b: String  @key(b, a)
    flag: Bool?  i: I64? @default(7)  u: U64?  u32: U32?
    f: F32?  g: F64?  d: Date?  t: DateTime?  blob: Blob?  e: enum(x, y-z)?
    ls: [String]?  lf: [F32]?  lg: [F64]?  li: [I64]?  lu: [U64]?  lb: [Bool]?  ld: [Date]?  lt: [DateTime]?
    v: Vector(3)?
}
node Word { text: String @key }
node Free { name: String? }
edge Link: Thing -> Free { w: F32?  note: String? }
edge Said: Word -> Word { from: I32?  to: String? }
"""
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    [
        "",
        '"',
        '""',
        ",",
        "\n",
        "\r\n",
        "\r",
        "\t",
        " ",
        "null",
        "NULL",
        "\\N",
        "\0",
        "\ufeff",
        "é\U0001f600",
        "'",
        'a\nb,"c"',
    ]
)
F32 = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.sampled_from(
    [-0.0, 3.4028234663852886e38, -3.4028234663852886e38, 1.401298464324817e-45]
)
F64 = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([-0.0, 1.7976931348623157e308, 5e-324])
DATES = st.dates()
TIMES = st.datetimes(timezones=st.just(dt.UTC)).map(lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000))
I64 = st.integers(-(2**63), 2**63 - 1)
U64 = st.integers(0, 2**64 - 1)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "flag": st.booleans(),
    "i": I64,
    "u": U64,
    "u32": st.integers(0, 2**32 - 1),
    "f": F32,
    "g": F64,
    "d": DATES,
    "t": TIMES,
    "blob": st.binary(max_size=9),
    "e": st.sampled_from(["x", "y-z"]),
    "ls": st.lists(TEXTS, max_size=3),
    "lf": st.lists(F32, max_size=3),
    "lg": st.lists(F64, max_size=3),
    "li": st.lists(I64, max_size=3),
    "lu": st.lists(U64, max_size=3),
    "lb": st.lists(st.booleans(), max_size=3),
    "ld": st.lists(DATES, max_size=2),
    "lt": st.lists(TIMES, max_size=2),
    "v": st.lists(F32, min_size=3, max_size=3),
}
OPTIONAL = st.fixed_dictionaries({}, optional={name: st.none() | value for name, value in VALUES.items()})
THINGS = st.lists(
    st.tuples(st.integers(-(2**31), 2**31 - 1), TEXTS, OPTIONAL), max_size=6, unique_by=lambda one: (one[0], one[1])
)
WORDS = st.lists(TEXTS, max_size=4, unique=True)
FREE = st.lists(st.tuples(TEXTS.filter(bool), st.none() | TEXTS), max_size=3, unique_by=lambda one: one[0])


def made(folder: Path, schema: str = SCHEMA) -> Graph:
    return omnigraph.init(folder, schema, OPTIONS)


def everything(graph: Graph, **options: Any) -> bytes:
    """The graph as one file of lines: what two graphs are compared by."""
    out = io.BytesIO()
    graph.export(out, **options)
    return out.getvalue()


def json_value(value: Any) -> Any:
    """A value as load data has it."""
    if isinstance(value, list):
        return [json_value(item) for item in value]
    if isinstance(value, bytes):
        return "base64:" + base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, dt.date) else value


def entities(things: list[Any], words: list[str], free: list[Any], data: st.DataObject) -> Iterator[dict[str, Any]]:
    for a, b, more in things:
        yield {"type": "Thing", "data": {"a": a, "b": b, **{name: json_value(v) for name, v in more.items()}}}
    yield from ({"type": "Word", "data": {"text": word}} for word in words)
    yield from ({"type": "Free", "data": {"id": name, "name": shown}} for name, shown in free)
    if words:
        said = st.tuples(
            st.sampled_from(words), st.sampled_from(words), st.none() | st.integers(-9, 9), st.none() | TEXTS
        )
        for source, target, number, text in data.draw(st.lists(said, max_size=4)):
            yield {"edge": "Said", "from": source, "to": target, "data": {"from": number, "to": text}}


def linked(graph: Graph, free: list[Any], data: st.DataObject) -> None:
    ids = graph.snapshot().to_arrow("node:Thing", ["id"]).column("id").to_pylist()
    if ids and free:
        ends = st.tuples(st.sampled_from(ids), st.sampled_from([name for name, _ in free]), F32, st.none() | TEXTS)
        links = data.draw(st.lists(ends, max_size=4))
        graph.load([{"edge": "Link", "from": s, "to": t, "data": {"w": w, "note": note}} for s, t, w, note in links])


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, phases=PHASES)
@given(things=THINGS, words=WORDS, free=FREE, data=st.data())
def test_what_is_exported_loads_as_the_identical_graph(
    format: Format, things: list[Any], words: list[str], free: list[Any], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        first = made(Path(folder) / "first")
        first.load(list(entities(things, words, free, data)))
        linked(first, free, data)
        whole = everything(first)

        done = first.export(f"{folder}/out", format=format)
        second = made(Path(folder) / "second")
        if done.rows:
            second.load(f"{folder}/out")

        assert everything(second) == whole
        assert done.rows == whole.count(b"\n")


@pytest.fixture
def people(tmp_path: Path) -> Graph:
    schema = "node Person { name: String @key  age: I32? }  edge Knows: Person -> Person { w: F64? }"
    graph = omnigraph.init(tmp_path / "people", schema, OPTIONS, settings=Settings(inline_rows=0))
    graph.load([{"type": "Person", "data": {"name": f"p{i:03}", "age": i % 7 or None}} for i in range(100)])
    graph.load(
        [{"edge": "Knows", "from": f"p{i:03}", "to": f"p{(i * 7) % 100:03}", "data": {"w": i / 3}} for i in range(50)]
    )
    return graph


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def in_parts(monkeypatch: pytest.MonkeyPatch, rows: int, ordered: int = 1_000) -> None:
    monkeypatch.setattr(exporting, "PART_ROWS_MAX", rows)
    monkeypatch.setattr(exporting, "ORDERED_PARTS_MAX", ordered)


@pytest.mark.parametrize("format", FORMATS)
def test_each_type_is_a_folder_and_a_summary_names_every_file(people: Graph, tmp_path: Path, format: Format) -> None:
    done = people.export(tmp_path / "out", format=format)

    assert files(tmp_path / "out") == [f"Knows/part-00000.{format}", f"Person/part-00000.{format}", "_export.json"]
    summary = json.loads((tmp_path / "out/_export.json").read_text())
    assert (summary["format"], summary["commit_id"]) == (format, people.snapshot().commit_id)
    assert {name: entry["rows"] for name, entry in summary["types"].items()} == {"Knows": 50, "Person": 100}
    size = (tmp_path / f"out/Person/part-00000.{format}").stat().st_size
    assert summary["types"]["Person"]["files"] == [{"name": f"Person/part-00000.{format}", "rows": 100, "bytes": size}]
    assert (done.rows, done.files, done.engine) == (150, 2, "local")


def test_parts_are_in_the_order_of_ids_within_and_among_each_other(
    people: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_parts(monkeypatch, 30)

    people.export(tmp_path / "out", format="jsonl", types=["Person"])

    names = [f"Person/part-0000{i}.jsonl" for i in range(4)]
    assert files(tmp_path / "out") == [*names, "_export.json"]
    together = b"".join((tmp_path / "out" / name).read_bytes() for name in names)
    assert together == everything(people, types=["Person"])


@pytest.mark.parametrize("format", FORMATS)
def test_a_large_table_goes_fragment_by_fragment_and_loads_back(
    people: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: Format
) -> None:
    people.load([{"type": "Person", "data": {"name": f"o{i:03}"}} for i in range(20)])
    people.mutate('query q() { delete Person where name = "o007" }')
    in_parts(monkeypatch, 30, ordered=1)
    second = made(tmp_path / "second", people.schema.show())

    done = people.export(tmp_path / "out", format=format)
    second.load(tmp_path / "out")

    assert done.files >= 3
    assert everything(second) == everything(people)


def test_columns_have_the_types_of_the_schema_and_ends_are_from_and_to(people: Graph, tmp_path: Path) -> None:
    people.export(tmp_path / "out", format="parquet")

    rows = pq.read_table(tmp_path / "out/Knows/part-00000.parquet")
    assert rows.schema.names == ["id", "from", "to", "w"]
    assert rows.schema.types == [pa.string(), pa.string(), pa.string(), pa.float64()]


def test_csv_tells_null_from_empty_text_and_prints_values_as_a_load_reads_them(tmp_path: Path) -> None:
    graph = made(tmp_path / "g")
    graph.load(
        [
            {
                "type": "Thing",
                "data": {"a": 1, "b": "", "i": None, "f": 0.1, "g": -0.0, "t": "2026-01-31T12:00:00.250Z"},
            },
            {
                "type": "Thing",
                "data": {"a": 2, "b": 'say "x"', "ls": ["", "y"], "v": [1, 2.5, 3], "blob": "base64:aGk="},
            },
        ]
    )

    graph.export(tmp_path / "out", format="csv", types=["Thing"])

    head, one, two = (tmp_path / "out/Thing/part-00000.csv").read_text().splitlines()
    assert head == "id,a,b,flag,i,u,u32,f,g,d,t,blob,e,ls,lf,lg,li,lu,lb,ld,lt,v"
    assert one == '"["""",""1""]",1,"",,,,,0.1,-0.0,,2026-01-31T12:00:00.250Z,,,,,,,,,,,'
    assert two.startswith('"[""say \\""x\\"""",""2""]",2,"say ""x""",,7,,')
    assert two.endswith(',base64:aGk=,,"["""",""y""]",,,,,,,,"[1.0,2.5,3.0]"')


def test_an_older_commit_and_another_branch_are_exported_as_they_were(people: Graph, tmp_path: Path) -> None:
    before, whole = people.snapshot().commit_id, everything(people)
    people.branches.create("try")
    people.mutate('query q() { insert Person { name: "only here" } }', branch="try")
    people.mutate("query q() { delete Person where age = 3 }")
    for number, options in enumerate(({"at": before}, {"branch": "try"}, {})):
        second = made(tmp_path / f"copy{number}", people.schema.show())
        people.export(tmp_path / f"out{number}", format="parquet", **options)  # type: ignore[arg-type]
        second.load(tmp_path / f"out{number}")
        assert everything(second) == everything(people, **options)
        assert (everything(second) == whole) == (number == 0)


def test_an_export_is_not_written_over_another_unless_that_is_wanted(people: Graph, tmp_path: Path) -> None:
    out = tmp_path / "out"
    people.export(out, format="csv")

    with pytest.raises(AlreadyExists, match="overwrite"):
        people.export(out, format="parquet")
    assert "Person/part-00000.csv" in files(out)

    people.export(out, format="parquet", types=["Person"], overwrite=True)
    assert files(out) == ["Person/part-00000.parquet", "_export.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "people"]


def test_files_that_no_export_wrote_are_never_replaced(people: Graph, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")

    with pytest.raises(BadRequest, match=r"thesis\.txt"):
        people.export(out, format="csv", overwrite=True)

    assert (out / "thesis.txt").read_text() == "years of work"
    assert files(tmp_path / "out") == ["thesis.txt"]


def test_an_empty_directory_may_be_the_destination(people: Graph, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()

    people.export(tmp_path / "out", format="csv")

    assert "_export.json" in files(tmp_path / "out")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), BadRequest("no")])
@pytest.mark.parametrize("overwrite", [False, True])
def test_an_export_that_does_not_end_leaves_what_was_there(
    people: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, overwrite: bool
) -> None:
    in_parts(monkeypatch, 30)
    if overwrite:
        people.export(tmp_path / "out", format="csv")
    before = files(tmp_path)
    write = exporting.write_part

    def failing(part: exporting.ExportPart) -> exporting.WrittenPart:
        if part.key.endswith("part-00002.csv"):
            raise error
        return write(part)

    monkeypatch.setattr(exporting, "write_part", failing)
    with pytest.raises(type(error)):
        people.export(tmp_path / "out", format="csv", overwrite=overwrite)

    assert files(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_what_a_killed_export_leaves_is_in_nobodys_way(people: Graph, tmp_path: Path) -> None:
    script = f"""
import os, omnigraph
from omnigraph.pipeline.exporting import export
write = export.write_part
def killed(part):
    write(part)
    os.kill(os.getpid(), 9)
export.write_part = killed
omnigraph.open({str(tmp_path / "people")!r}).export({str(tmp_path / "out")!r}, format="csv")
"""
    ended = subprocess.run([sys.executable, "-c", script], timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()

    people.export(tmp_path / "out", format="csv")

    assert files(tmp_path / "out") == ["Knows/part-00000.csv", "Person/part-00000.csv", "_export.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "people"]


def test_two_exports_into_one_place_at_once_do_not_mix(
    people: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, refused = exporting.write_part, []

    def another(part: exporting.ExportPart) -> exporting.WrittenPart:
        monkeypatch.setattr(exporting, "write_part", write)
        try:
            people.export(tmp_path / "out", format="csv")
        except AlreadyExists as error:
            refused.append(str(error))
        return write(part)

    monkeypatch.setattr(exporting, "write_part", another)
    people.export(tmp_path / "out", format="csv")

    assert all("wait for its end" in sentence for sentence in refused)
    assert refused
    assert files(tmp_path / "out") == ["Knows/part-00000.csv", "Person/part-00000.csv", "_export.json"]


def test_one_type_goes_into_one_file_whose_name_says_the_format(people: Graph, tmp_path: Path) -> None:
    for format in ("csv", "parquet"):
        people.export(tmp_path / f"Person.{format}", types=["Person"])
        second = made(tmp_path / format, people.schema.show())
        second.load(tmp_path / f"Person.{format}")
        assert everything(second) == everything(people, types=["Person"])

    with pytest.raises(BadRequest, match="one type"):
        people.export(tmp_path / "all.csv")
    assert not (tmp_path / "all.csv").exists()


def test_a_column_that_older_rows_lack_is_null_in_an_export(people: Graph, tmp_path: Path) -> None:
    people.schema.apply(people.schema.show().replace("age: I32?", "age: I32?  nick: String?"))

    people.export(tmp_path / "out", format="parquet", types=["Person"])

    rows = pq.read_table(tmp_path / "out/Person/part-00000.parquet")
    assert rows.schema.names == ["id", "name", "age", "nick"]
    assert rows.column("nick").null_count == 100


@pytest.mark.parametrize(
    ("dest", "options", "sentence"),
    [
        ("out", {"format": "xml"}, "is not a format"),
        ("out", {"format": "csv", "types": ["Ghost"]}, "no type 'Ghost'"),
        ("out", {"format": "csv", "engine": "duck"}, "Unknown engine"),
        ("out.jsonl", {"engine": "spark"}, "directories"),
        ("people", {"format": "csv"}, "inside the graph"),
        ("people/tables/x", {"format": "csv"}, "inside the graph"),
        ("file.txt", {"format": "csv"}, "is a file"),
        ("file.txt/below", {"format": "csv"}, "can't be written"),
        ("s3://bucket/all.jsonl", {}, "looks like a file"),
        ("ftp://host/out", {}, "unknown scheme"),
    ],
)
def test_a_destination_that_can_not_be_is_refused_in_a_sentence(
    people: Graph, tmp_path: Path, dest: str, options: Any, sentence: str
) -> None:
    (tmp_path / "file.txt").write_text("x")

    with pytest.raises(OmnigraphError, match=sentence):
        people.export(dest if "://" in dest else tmp_path / dest, **options)

    assert (tmp_path / "file.txt").read_text() == "x"
    assert not (tmp_path / "out").exists()


@pytest.mark.s3
class TestObjectStores:
    @pytest.mark.parametrize("format", FORMATS)
    def test_an_export_to_a_uri_loads_back(self, s3: S3Location, tmp_path: Path, format: Format) -> None:
        graph = omnigraph.init(f"{s3.uri}/graph", SCHEMA, s3.options)
        graph.load([{"type": "Word", "data": {"text": f"w{i}"}} for i in range(9)])

        graph.export(f"{s3.uri}/out", format=format)
        second = omnigraph.init(f"{s3.uri}/second", SCHEMA, s3.options)
        second.load(f"{s3.uri}/out")

        assert everything(second) == everything(graph)

    def test_after_an_error_nothing_is_left_and_after_the_end_nothing_stale(
        self, s3: S3Location, people: Graph, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place: dict[str, Any] = {"dest": f"{s3.uri}/out", "format": "csv", "storage_options": s3.options}
        in_parts(monkeypatch, 30)
        write = exporting.write_part

        def failing(part: exporting.ExportPart) -> exporting.WrittenPart:
            write(part)
            raise KeyboardInterrupt

        monkeypatch.setattr(exporting, "write_part", failing)
        with pytest.raises(KeyboardInterrupt):
            people.export(**place)
        assert listed(s3) == []

        monkeypatch.setattr(exporting, "write_part", write)
        people.export(**place)
        assert len(listed(s3)) == 7
        with pytest.raises(AlreadyExists):
            people.export(**place)
        monkeypatch.setattr(exporting, "PART_ROWS_MAX", 1_000)
        people.export(**place, overwrite=True)
        assert listed(s3) == ["Knows/part-00000.csv", "Person/part-00000.csv", "_export.json"]


def listed(s3: S3Location) -> list[str]:
    from omnigraph.storage.location import parse_location
    from omnigraph.storage.objects.object_store import open_store

    return [entry.key for entry in open_store(parse_location(f"{s3.uri}/out", s3.options)).list("")]


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
class TestOnSpark:
    @pytest.mark.parametrize("format", FORMATS)
    def test_the_files_are_the_same_wherever_they_are_written(
        self, people: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: Any, format: Format
    ) -> None:
        in_parts(monkeypatch, 30)

        done = people.export(tmp_path / "there", format=format, engine="spark", spark=spark)
        people.export(tmp_path / "here", format=format, engine="local")

        assert done.engine == "spark"
        names = files(tmp_path / "here")
        assert files(tmp_path / "there") == names
        for name in names:
            assert (tmp_path / "there" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()

    def test_auto_takes_spark_when_there_are_many_rows(
        self, people: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: Any
    ) -> None:
        assert people.export(tmp_path / "few", format="csv").engine == "local"
        monkeypatch.setattr(exporting, "SPARK_ROWS_MIN", 149)
        assert people.export(tmp_path / "many", format="csv").engine == "spark"


def test_a_part_is_the_same_bytes_however_often_it_is_written(people: Graph, tmp_path: Path) -> None:
    class Twice(LocalRunner):
        def run(self, task: Any, items: Any, **options: Any) -> Any:
            first = super().run(task, items, **options)
            held = {item.key: (item.dest.path / item.key).read_bytes() for item in items}
            assert super().run(task, items, **options) == first
            assert held == {item.key: (item.dest.path / item.key).read_bytes() for item in items}
            return first

    repository = people.repository
    place = destination_at(str(tmp_path / "out"), repository.location, None)
    types = select_types(repository.snapshot(), None)

    for_parquet = exporting.export_parts(repository, repository.snapshot(), place, types, "parquet", Twice())

    assert for_parquet.rows == 150


def test_a_part_has_as_many_rows_as_memory_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = made(tmp_path / "g", "node Person { name: String @key  bio: String? }")
    definition = graph.repository.snapshot().catalog.by_name["Person"]
    names = [f"p{i:07}" for i in range(20_000)]
    rows = pa.table([names, names, ["x" * 500] * len(names)], schema=arrow_schema(definition))
    graph.write([Append("node:Person", rows)])
    monkeypatch.setattr(exporting, "PART_BYTES", 4 * 1024 * 1024)

    graph.export(tmp_path / "out", format="parquet")

    written = json.loads((tmp_path / "out/_export.json").read_text())["types"]["Person"]["files"]
    assert len(written) == 3
    assert [entry["rows"] for entry in written] == sorted((entry["rows"] for entry in written), reverse=True)
    assert sum(entry["rows"] for entry in written) == 20_000
