"""Single rows as Arrow messages: what is written by hand is what Arrow would have written, or is left to Arrow."""

import copy
import math
import pickle
import struct
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from omnigraph.schema.arrow import arrow_rows
from omnigraph.schema.ipc_row import (
    _TEMPLATES_MAX,
    EncodedRow,
    RowEncoder,
    encode_row,
    same_encoder,
    stream_of,
    table_of,
)
from omnigraph.schema.lang.compile import compile_schema

Row = dict[str, Any]

SINGLE_MAX = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]
TYPES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "date": pa.date32(),
    "instant": pa.timestamp("ms", tz="UTC"),
}
ZONES = st.sampled_from([UTC, timezone(timedelta(hours=14)), timezone(timedelta(hours=-12)), ZoneInfo("Europe/Berlin")])


def to_the_millisecond(moment: datetime) -> datetime:
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


TEXTS = st.one_of(
    st.text(),
    st.integers(0, 33).map("x".__mul__),  # lengths around multiples of a word
    st.integers(0, 3_000).map("ä€😀".__mul__),
    st.sampled_from(["", "\0", "a\0b", "'", "\U0010ffff"]),
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "string": TEXTS,
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "float32": st.one_of(
        st.floats(-SINGLE_MAX, SINGLE_MAX), st.floats(width=32), st.sampled_from([-0.0, math.nan, math.inf, 1e-320])
    ),
    "float64": st.floats(),
    "bool": st.booleans(),
    "date": st.dates(),
    "instant": st.datetimes(timezones=ZONES).map(to_the_millisecond),
}
KINDS = st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=8)


def schema_of(kinds: Sequence[str]) -> pa.Schema:
    return pa.schema([pa.field(f"c{number}", TYPES[kind]) for number, kind in enumerate(kinds)])


def by_arrow(row: Mapping[str, Any], schema: pa.Schema) -> bytes:
    return pa.RecordBatch.from_pylist([dict(row)], schema=schema).serialize().to_pybytes()


def bytes_of(table: pa.Table) -> list[bytes]:
    """What a table has, nan being equal to itself."""
    return [batch.serialize().to_pybytes() for batch in table.combine_chunks().to_batches()]


@st.composite
def rows_of(draw: st.DrawFn, kinds: Sequence[str]) -> Row:
    """A row with nulls in some columns; others it does not name at all."""
    row: Row = {}
    for number, kind in enumerate(kinds):
        said = draw(st.sampled_from(["value", "value", "value", "null", "missing"]))
        if said != "missing":
            row[f"c{number}"] = draw(VALUES[kind]) if said == "value" else None
    return row


TABLES = KINDS.flatmap(lambda kinds: st.tuples(st.just(kinds), st.lists(rows_of(kinds), min_size=1, max_size=6)))


@settings(deadline=None)
@given(TABLES)
@example((["string"], [{"c0": "the first row's own"}, {"c0": ""}, {"c0": "y" * 9}]))
def test_a_row_is_written_byte_for_byte_as_arrow_writes_it(table: tuple[list[str], list[Row]]) -> None:
    kinds, rows = table
    schema, one_row = schema_of(kinds), RowEncoder(schema_of(kinds))

    for row in rows:  # of one maker: the later ones are written after what Arrow made of an earlier one
        assert one_row.message(row) == by_arrow(row, schema)


@settings(deadline=None)
@given(TABLES)
@example((["instant"], [{"c0": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))}]))
def test_rows_of_one_maker_become_the_table_that_arrow_makes_of_them(table: tuple[list[str], list[Row]]) -> None:
    kinds, rows = table
    schema, one_row = schema_of(kinds), RowEncoder(schema_of(kinds))
    made = [one_row.encode(row) for row in rows]
    known = [one for one in made if one is not None]

    assert len(known) == len(rows)
    whole, found = pa.Table.from_pylist(rows, schema=schema), table_of(known)
    found.validate(full=True)
    assert found.schema.equals(schema)
    assert bytes_of(found) == bytes_of(whole)


def test_nothing_of_the_first_row_with_the_same_nulls_is_in_a_later_one() -> None:
    schema = schema_of(["string", "int64", "string", "string"])
    one_row = RowEncoder(schema)
    first = {"c0": "secret" * 50, "c1": 0x5EC12E7, "c2": None, "c3": "hidden"}
    assert one_row.message(first) == by_arrow(first, schema)

    later = one_row.message({"c0": "", "c1": 0, "c2": None, "c3": ""})

    assert later is not None
    assert b"secret" not in later
    assert b"hidden" not in later
    assert (0x5EC12E7).to_bytes(4, "little") not in later


def test_a_property_that_the_schema_does_not_have_is_not_written() -> None:
    schema = schema_of(["string"])

    assert RowEncoder(schema).message({"c0": "a", "other": "b"}) == by_arrow({"c0": "a"}, schema)


def test_a_made_row_is_a_table_and_a_stream_of_one_row() -> None:
    row = {"c0": "ada", "c1": 36}
    schema = schema_of(["string", "int32"])
    made = RowEncoder(schema).encode(row)

    assert isinstance(made, EncodedRow)
    assert made.num_rows == 1
    assert made.schema.equals(schema)
    assert table_of([made]).to_pylist() == [row]
    assert pa.ipc.open_stream(made.stream).read_all().to_pylist() == [row]
    assert made.stream == stream_of([made])


# What only Arrow can tell.


class Text(str):
    """A text that may think otherwise of itself."""


NO_ZONE = datetime(2026, 1, 31, 12)
STRANGE: list[tuple[str, Any]] = [
    ("string", 1),
    ("string", b"bytes"),
    ("string", Text("a")),
    ("string", np.str_("a")),
    ("string", "\ud800"),
    ("string", "ok until \udfff here"),
    ("int32", True),
    ("int32", 1.0),
    ("int32", "1"),
    ("int32", np.int32(1)),
    ("int32", 2**31),
    ("int32", -(2**31) - 1),
    ("int64", False),
    ("int64", np.int64(1)),
    ("int64", 2**63),
    ("int64", -(2**63) - 1),
    ("uint32", -1),
    ("uint32", 2**32),
    ("uint32", True),
    ("uint64", -1),
    ("uint64", 2**64),
    ("uint64", 10**400),
    ("float32", 1),
    ("float32", True),
    ("float32", np.float32(1)),
    ("float32", SINGLE_MAX * 2),
    ("float32", -sys.float_info.max),
    ("float64", 1),
    ("float64", np.float64(1)),
    ("float64", "1.0"),
    ("bool", 1),
    ("bool", 0),
    ("bool", "true"),
    ("bool", np.bool_(True)),
    ("date", "2026-01-31"),
    ("date", NO_ZONE),
    ("date", NO_ZONE.replace(tzinfo=UTC)),
    ("date", np.datetime64("2026-01-31")),
    ("date", 20_000),
    ("instant", NO_ZONE),
    ("instant", date(2026, 1, 31)),
    ("instant", NO_ZONE.replace(tzinfo=UTC, microsecond=1)),
    ("instant", datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
    ("instant", "2026-01-31T12:00:00Z"),
    ("instant", 0),
    ("instant", np.datetime64("2026-01-31T12:00")),
    ("string", ["a"]),
    ("int64", {"a": 1}),
]


@pytest.mark.parametrize(("kind", "value"), STRANGE, ids=lambda part: ascii(part)[:40])
def test_a_value_of_another_class_or_out_of_bounds_is_left_to_arrow(kind: str, value: Any) -> None:
    one_row = RowEncoder(schema_of(["string", kind]))
    ordinary = {"c0": "a", "c1": None}

    assert one_row.message({"c0": "a", "c1": value}) is None
    assert one_row.encode({"c0": "a", "c1": value}) is None
    assert one_row.message(ordinary) == by_arrow(ordinary, one_row.schema), "the next row is none the worse"


ANYTHING = st.one_of(
    *VALUES.values(),
    st.integers(),
    st.floats(),
    st.datetimes(),
    st.datetimes(timezones=st.just(UTC)),
    st.text(st.characters(categories=["Cs", "L"])),
    st.binary(),
    st.lists(st.integers()),
    st.sampled_from([np.float32(1), np.float64(1), np.int64(1), np.bool_(True), Text("a")]),
)


@settings(deadline=None)
@given(st.sampled_from(sorted(TYPES)), st.lists(st.one_of(ANYTHING, st.none()), min_size=1, max_size=5))
def test_whatever_is_given_a_message_is_what_arrow_writes_or_there_is_none(kind: str, values: list[Any]) -> None:
    one_row = RowEncoder(schema_of([kind]))

    for value in values:
        message = one_row.message({"c0": value})
        assert message is None or message == by_arrow({"c0": value}, one_row.schema)


@pytest.mark.parametrize(
    "other",
    [
        pa.list_(pa.string()),
        pa.list_(pa.float32(), 2),
        pa.large_binary(),
        pa.binary(),
        pa.large_string(),
        pa.timestamp("us", tz="UTC"),
        pa.timestamp("ms"),
        pa.date64(),
        pa.int8(),
        pa.dictionary(pa.int32(), pa.string()),
    ],
    ids=str,
)
def test_a_schema_with_another_type_is_left_to_arrow_even_where_it_is_null(other: pa.DataType) -> None:
    one_row = RowEncoder(pa.schema([pa.field("id", pa.string()), pa.field("other", other)]))

    assert one_row.message({"id": "a", "other": None}) is None
    assert one_row.message({"id": "a"}) is None


# One maker for many rows.


def with_nulls(columns: int) -> list[Row]:
    """A row for every set of columns that may be null; no two have the same values."""
    return [
        {f"c{n}": None if nulls >> n & 1 else f"{nulls}-{'x' * (n * nulls % 23)}" for n in range(columns)}
        for nulls in range(2**columns)
    ]


def test_more_sets_of_nulls_than_are_remembered_are_written_right_again_and_again() -> None:
    rows = with_nulls(7)
    schema = schema_of(["string"] * 7)
    one_row = RowEncoder(schema)
    assert len(rows) > _TEMPLATES_MAX

    for _ in range(2):
        for row in rows:
            assert one_row.message(row) == by_arrow(row, schema)
    assert len(one_row._templates) <= _TEMPLATES_MAX


def test_several_threads_may_use_one_maker_at_once() -> None:
    rows = with_nulls(7)
    schema = schema_of(["string"] * 7)
    one_row = RowEncoder(schema)
    wanted = [by_arrow(row, schema) for row in rows]

    def written(start: int) -> bool:
        order = [*range(start, len(rows)), *range(start)]
        return all(one_row.message(rows[n]) == wanted[n] for _ in range(3) for n in order)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as threads:
            assert all(threads.map(written, range(0, len(rows), len(rows) // 4)))
    finally:
        sys.setswitchinterval(interval)


# A task elsewhere gets types and rows that were used here.


def test_a_type_whose_rows_were_made_can_be_pickled_and_copied() -> None:
    definition = compile_schema("node Person { slug: String @key  age: I32? }").catalog.by_name["Person"]
    row = {"id": "ada", "slug": "ada", "age": 36}
    assert encode_row(definition, row) is not None

    for again in (pickle.loads(pickle.dumps(definition)), copy.deepcopy(definition)):
        assert again == definition
        made = encode_row(again, row)
        assert made is not None
        assert table_of([made]).equals(arrow_rows(definition, [row]))


def test_a_made_row_can_be_pickled_and_copied() -> None:
    row = {"c0": "ada", "c1": 36, "c2": datetime(2026, 1, 31, tzinfo=UTC)}
    made = RowEncoder(schema_of(["string", "int32", "instant"])).encode(row)
    assert made is not None

    for again in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
        assert again.values == row
        assert again.stream == made.stream
        assert table_of([again]).equals(table_of([made]))


def test_rows_of_one_maker_that_went_together_are_still_of_one_maker() -> None:
    one_row = RowEncoder(schema_of(["string"]))
    made = [one_row.encode({"c0": text}) for text in ("ada", "grace")]

    again = pickle.loads(pickle.dumps(made))

    assert same_encoder(*again)
    assert table_of(again).to_pylist() == [{"c0": "ada"}, {"c0": "grace"}]
