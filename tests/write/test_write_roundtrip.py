"""Export → load into an empty graph → export gives the same bytes; columns built fast equal those built by value."""

from __future__ import annotations

import base64
import datetime as dt
import gzip
import io
import itertools
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omnigraph.errors import BadRequest
from omnigraph.read.export import export as exporting
from omnigraph.read.export.export import export
from omnigraph.schema.types import parse_type
from omnigraph.write.load.parse import arrow_builder as columns
from write.world import World, make_world, person

SCHEMA = """
node Thing {
    a: I32  b: String  @key(b, a)
    flag: Bool?  i: I64? @default(7)  u: U64?  u32: U32?
    f: F32?  g: F64?  d: Date?  t: DateTime?  blob: Blob?  e: enum(x, y-z)?
    ls: [String]?  lf: [F32]?  lg: [F64]?  li: [I64]?  ld: [Date]?  lt: [DateTime]?  v: Vector(3)?
}
node Free { name: String? }
edge Link: Thing -> Free { w: F32? }
"""
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
DATES = st.dates().map(dt.date.isoformat)
TIMES = st.datetimes(timezones=st.just(dt.UTC)).map(lambda moment: moment.isoformat())
F32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
F64 = st.floats(allow_nan=False, allow_infinity=False)
BLOBS = st.binary(max_size=9).map(lambda data: "base64:" + base64.b64encode(data).decode())
I64 = st.integers(-(2**63), 2**63 - 1)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "flag": st.booleans(),
    "i": I64 | I64.map(str),
    "u": st.integers(0, 2**64 - 1),
    "u32": st.integers(0, 2**32 - 1),
    "f": F32 | st.integers(-(10**30), 10**30),
    "g": F64 | st.integers(-(2**80), 2**80),
    "d": DATES,
    "t": TIMES,
    "blob": BLOBS,
    "e": st.sampled_from(["x", "y-z"]),
    "ls": st.lists(TEXTS, max_size=3),
    "lf": st.lists(F32, max_size=3),
    "lg": st.lists(F64, max_size=3),
    "li": st.lists(I64, max_size=3),
    "ld": st.lists(DATES, max_size=2),
    "lt": st.lists(TIMES, max_size=2),
    "v": st.lists(F32 | st.integers(-9, 9), min_size=3, max_size=3),
}
OPTIONAL = st.fixed_dictionaries({}, optional={name: st.none() | value for name, value in VALUES.items()})
THINGS = st.lists(
    st.tuples(st.integers(-(2**31), 2**31 - 1), TEXTS, OPTIONAL), max_size=6, unique_by=lambda one: (one[0], one[1])
)
FREE = st.lists(st.tuples(TEXTS.filter(bool), st.none() | TEXTS), max_size=3, unique_by=lambda one: one[0])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(THINGS, FREE, st.data())
def test_export_then_load_is_the_identity(things: list[Any], free: list[Any], data: st.DataObject) -> None:
    entities: list[Any] = [{"type": "Thing", "data": {"a": a, "b": b, **more}} for a, b, more in things]
    entities += [{"type": "Free", "data": {"id": entity, "name": name}} for entity, name in free]
    folder = Path(tempfile.mkdtemp())
    try:
        first = make_world(folder / "first", SCHEMA)
        first.load(entities)
        ids = first.ids("Thing")
        if ids and free:
            ends = st.tuples(st.sampled_from(ids), st.sampled_from([entity for entity, _ in free]), F32)
            links = data.draw(st.lists(ends, max_size=4))
            first.load([{"edge": "Link", "from": src, "to": dst, "data": {"w": w}} for src, dst, w in links])

        exported = first.export()
        second = make_world(folder / "second", SCHEMA)
        second.load([json.loads(line) for line in exported.splitlines()])

        assert second.export() == exported
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_an_export_is_ordered_by_type_and_id_and_has_every_id_and_value(people: World) -> None:
    lines = [json.loads(line) for line in people.export().splitlines()]

    order = [(line.get("type") or line["edge"], line["data"]["id"]) for line in lines]
    assert order == sorted(order)
    assert people.export().splitlines()[-1].decode() == (
        '{"type":"Person","data":{"id":"eve","slug":"eve","name":"Eve","age":null,"role":"lead","tags":null,'
        '"bio":null,"face":null}}'
    )


def test_a_null_where_the_schema_has_a_default_stays_null(tmp_path: Path) -> None:
    first, second = (make_world(tmp_path / name, "node T { k: String @key  n: I32? @default(7) }") for name in "ab")
    first.load([{"type": "T", "data": {"k": "a", "n": None}}, {"type": "T", "data": {"k": "b"}}])

    second.load([json.loads(line) for line in first.export().splitlines()])

    assert [row["n"] for row in second.rows("T")] == [None, 7]


def test_a_table_too_large_to_sort_at_once_is_exported_range_by_range(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.load([person(f"p{n:03d}") for n in itertools.chain(range(50, 100), range(50))])
    whole = world.export()
    monkeypatch.setattr(exporting, "SORTED_ROWS_MAX", 7)
    monkeypatch.setattr(exporting, "BATCH_ROWS", 3)

    assert world.export() == whole
    assert whole.count(b"\n") == 100


def test_an_export_goes_to_a_file_or_a_stream_complete_or_not_at_all(people: World, tmp_path: Path) -> None:
    tables, snapshot = people.repository.tables, people.repository.snapshot()
    stream = io.BytesIO()

    done = export(tables, snapshot, tmp_path / "all.jsonl")
    export(tables, snapshot, tmp_path / "all.jsonl.gz")
    export(tables, snapshot, stream, types=["Company"])

    whole = people.export()
    assert (done.rows, done.bytes) == (whole.count(b"\n"), len(whole))
    assert (tmp_path / "all.jsonl").read_bytes() == whole
    assert gzip.decompress((tmp_path / "all.jsonl.gz").read_bytes()) == whole
    assert stream.getvalue() == b'{"type":"Company","data":{"id":"acme","name":"acme"}}\n'
    assert sorted(path.name for path in tmp_path.glob("all*")) == ["all.jsonl", "all.jsonl.gz"]
    with pytest.raises(BadRequest):
        export(tables, snapshot, tmp_path / "missing" / "all.jsonl")
    with pytest.raises(BadRequest):
        export(tables, snapshot, stream, types=["Ghost"])


SCALARS = ["String", "Bool", "I32", "I64", "U32", "U64", "F32", "F64", "Date", "DateTime", "Blob"]
KINDS = [*SCALARS, "[String]", "[Bool]", "[I32]", "[U64]", "[F32]", "Vector(3)"]
ODD = [1 << 31, -1, 1 << 64, 1e39, "7", "2026-01-31", "2026-13-01", "base64:aGk="]
ODD_LISTS = [[1, 2, 3], [1.0, None, 2], ["a"], [[1]]]
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
ANYTHING = PLAIN | st.sampled_from([*ODD, *ODD_LISTS])


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(KINDS), st.lists(ANYTHING, max_size=4), st.booleans())
def test_a_column_read_at_once_is_the_one_read_value_by_value(kind: str, values: list[Any], plain: bool) -> None:
    wanted = parse_type(kind)
    if plain:  # mostly values that fit, so that the quick way is taken
        values = [value for value in values if not columns._build_value_by_value([value], wanted)[1]]

    slow, problems = columns._build_value_by_value(values, wanted)
    quick, found = columns.build_column(values, wanted)

    assert found == problems
    assert quick.equals(slow)


@pytest.mark.parametrize("kind", KINDS)
def test_ordinary_columns_are_read_at_once(kind: str) -> None:
    ordinary: dict[str, Any] = {"String": "a", "Bool": True, "F32": 0.5, "F64": 1, "[String]": ["a"], "[Bool]": [True]}
    ordinary |= {"Vector(3)": [1, 2.0, 3], "[I32]": [1], "[U64]": [1]} | dict.fromkeys(["I32", "I64", "U32", "U64"], 3)
    if kind in ordinary:
        assert columns._build_fast([ordinary[kind], None], parse_type(kind)) is not None
