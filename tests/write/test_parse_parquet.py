"""Typed Arrow rows: the fast path gives what row-by-row parsing gives."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from omnigraph.errors import BadRequest
from omnigraph.write.load.input.input_splits import plan_splits
from omnigraph.write.load.input.sources import resolve_files
from omnigraph.write.load.input.table_rows import edge_end_columns, read_table_entities
from omnigraph.write.load.parse import parse as module
from omnigraph.write.load.parse.parse import parse_split, parse_table
from omnigraph.write.load.parse.parse_rows import combine_blocks, parse_one_by_one
from write.parsing import MINT, every_type, summary

CATALOG = every_type()


def carefully(rows: pa.Table, type_name: str) -> Any:
    definition = CATALOG.by_name[type_name]
    is_edge = definition.kind == "edge"
    entities = read_table_entities(rows, type_name, edge_end_columns(definition), is_edge=is_edge)
    return parse_one_by_one(list(enumerate(entities, 1)), "row", CATALOG.by_name, MINT)


def table(rows: pa.Table, type_name: str = "Thing", first_row: int = 0) -> Any:
    return parse_table(rows, CATALOG.by_name[type_name], first_row, MINT)


YEAR_10000 = 253_402_300_800
COLUMNS: dict[str, tuple[str, pa.Array[Any]]] = {
    "int8 for I32": ("small", pa.array([1, None, -1], pa.int8())),
    "int64 for I32": ("small", pa.array([1, None, 2**31], pa.int64())),
    "int64 for U64": ("huge", pa.array([1, None, -1], pa.int64())),
    "text for I64": ("big", pa.array(["12", None, "x"])),
    "uint64 for I64": ("big", pa.array([1, None, 2**63], pa.uint64())),
    "int64 for F32": ("single", pa.array([1, 2**53 + 1, -(2**62) - 1], pa.int64())),
    "int64 for F64": ("double", pa.array([1, 2**53 + 1, None], pa.int64())),
    "float64 for F32": ("single", pa.array([0.1, 1e39, float("nan")], pa.float64())),
    "float32 for F64": ("double", pa.array([0.1, None, float("inf")], pa.float32())),
    "float16 for F32": ("single", pa.array([0.5, None, -0.0], pa.float16())),
    "float64 for F64": ("double", pa.array([0.1, -0.0, float("nan")], pa.float64())),
    "dictionary for String": ("slug", pa.array(["a", "b", "a"]).dictionary_encode()),
    "large text for String": ("slug", pa.array(["a", "b", "c"], pa.large_string())),
    "text view for String": ("slug", pa.array(["a", "b", "c"], pa.string_view())),
    "dictionary for enum": ("colour", pa.array(["red", None, "blue"]).dictionary_encode()),
    "dictionary of ints": ("small", pa.array([1, 2, None]).dictionary_encode()),
    "nulls": ("vector", pa.nulls(3)),
    "date32": ("day", pa.array([0, None, -719_163], pa.date32())),
    "date64": ("day", pa.array([0, None, 86_400_000], pa.date64())),
    "text for Date": ("day", pa.array(["2026-01-31", None, "x"])),
    "timestamp s": ("moment", pa.array([-1, None, YEAR_10000], pa.timestamp("s"))),
    "timestamp ms": ("moment", pa.array([-1, None, 1], pa.timestamp("ms", "UTC"))),
    "timestamp us": ("moment", pa.array([-1, None, 1999], pa.timestamp("us", "Europe/Paris"))),
    "timestamp ns": ("moment", pa.array([-1, None, 1_999_999], pa.timestamp("ns"))),
    "text for DateTime": ("moment", pa.array(["2026-01-31T12:00:00Z", None, "x"])),
    "binary": ("blob", pa.array([b"a", None, b""], pa.binary())),
    "fixed binary": ("blob", pa.array([b"ab", None, b"cd"], pa.binary(2))),
    "text for Blob": ("blob", pa.array(["base64:aGk=", None, "aGk="])),
    "list of text": ("words", pa.array([["a"], None, ["b", None]])),
    "large list": ("words", pa.array([["a"], [], ["b"]], pa.large_list(pa.large_string()))),
    "list of int32": ("numbers", pa.array([[1], [], None], pa.list_(pa.int32()))),
    "list of uint64": ("numbers", pa.array([[1], [2**63], None], pa.list_(pa.uint64()))),
    "list of float64": ("singles", pa.array([[0.1], [1e39], None], pa.list_(pa.float64()))),
    "list of dates": ("days", pa.array([[dt.date(2026, 1, 31)], [], None])),
    "vector": ("vector", pa.array([[1, 2], None, [3, 4]], pa.list_(pa.float32(), 2))),
    "list for vector": ("vector", pa.array([[1, 2], None, [3]], pa.list_(pa.float64()))),
    "longer vector": ("vector", pa.array([[1, 2, 3], None, [3, 4, 5]], pa.list_(pa.float32(), 3))),
    "ints for vector": ("vector", pa.array([[1, 2], [None, 1], [2**53 + 1, 1]], pa.list_(pa.int64()))),
    "nan in vector": ("vector", pa.array([[1, 2], [float("nan"), 1], None], pa.list_(pa.float64(), 2))),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_both_ways_take_a_column_alike(case: str) -> None:
    name, column = COLUMNS[case]
    rows = pa.table({"slug": ["x", "y", "z"], name: column})
    rows = pa.table({"slug": column}) if name == "slug" else rows

    assert summary(table(rows)) == summary(carefully(rows, "Thing"))
    chunked = pa.concat_tables([rows.slice(0, 1), rows.slice(1)])
    assert summary(table(chunked)) == summary(carefully(rows, "Thing"))


def test_edges_and_rows_without_ids_are_parsed_alike() -> None:
    knows = pa.table({"src": ["a", None], "dst": ["b", "c"], "from": ["x", None]})
    assert summary(table(knows, "Knows")) == summary(carefully(knows, "Knows"))

    likes = pa.table({"id": ["e1", None], "from": ["a", "b"], "to": ["b", "c"]})
    assert summary(table(likes, "Likes")) == summary(carefully(likes, "Likes"))
    assert table(likes, "Likes").types["edge:Likes"].minted.tolist() == [False, True]


def test_a_row_without_its_key_is_rejected_by_its_number() -> None:
    rows = pa.table({"slug": ["a", None, "c"], "id": [None, "given", "given"]})

    parsed = table(rows, first_row=100)

    assert parsed.types["node:Thing"].numbers.tolist() == [101, 103]
    assert [one.number for one in parsed.rejected] == [102]
    assert summary(table(rows)) == summary(carefully(rows, "Thing"))


def test_typed_rows_in_the_schema_of_the_table_need_only_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    from omnigraph.schema.arrow import arrow_schema

    definition = CATALOG.by_name["Thing"]
    rows = pa.Table.from_pylist([{"id": "a", "slug": "a", "vector": [1.0, 2.0]}], arrow_schema(definition))
    monkeypatch.setattr(module, "parse_one_by_one", None)

    assert table(rows).types["node:Thing"].rows.equals(rows)


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (
            {"slug": ["a"], "nme": ["b"]},
            "Thing has a column 'nme', which is unknown in Thing: its columns are id, slug",
        ),
        ({"slug": [1]}, "Thing has int64 in the column 'slug', but Thing.slug is String: cast the column"),
        ({"slug": ["a"], "small": ["1"]}, "has string in the column 'small', but Thing.small is I32"),
        ({"slug": ["a"], "small": [1.0]}, "has double in the column 'small', but Thing.small is I32"),
        ({"slug": ["a"], "flag": [1]}, "has int64 in the column 'flag', but Thing.flag is Bool"),
        ({"slug": ["a"], "vector": [["a"]]}, "in the column 'vector', but Thing.vector is Vector(2)"),
        ({"slug": ["a"], "blob": [{"a": 1}]}, "in the column 'blob', but Thing.blob is Blob"),
    ],
)
def test_a_column_that_can_not_be_the_property_is_one_sentence(rows: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadRequest) as raised:
        table(pa.table(rows))

    assert sentence in str(raised.value)


def test_splits_of_row_groups_give_every_row_once_with_its_number_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "Thing.parquet"
    rows = pa.table({"slug": [f"s{n}" for n in range(1000)], "small": list(range(1000))})
    pq.write_table(rows, path, row_group_size=100)

    splits = plan_splits(resolve_files(path, CATALOG), split_bytes=2500)
    parts = [part for split in splits for part in parse_split(split, CATALOG, None, MINT)]

    assert len(splits) > 2
    whole = combine_blocks(parts, 0).types["node:Thing"]
    assert whole.numbers.tolist() == list(range(1, 1001))
    assert whole.rows.column("small").to_pylist() == list(range(1000))
    assert sum(part.lines for part in parts) == 1000


def test_a_file_without_rows_names_its_type(tmp_path: Path) -> None:
    path = tmp_path / "Thing.parquet"
    pq.write_table(pa.table({"slug": pa.array([], pa.string())}), path)

    (split,) = plan_splits(resolve_files(path, CATALOG))

    assert [part.seen for part in parse_split(split, CATALOG, None, MINT)] == [{"node:Thing": 0}]


@pytest.mark.parametrize("content", [b"", b"no parquet at all", b"PAR1" + b"\0" * 100 + b"PAR1"])
def test_a_file_that_is_no_parquet_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "Thing.parquet"
    path.write_bytes(content)

    with pytest.raises(BadRequest, match=r"Thing\.parquet can't be read as Parquet"):
        plan_splits(resolve_files(path, CATALOG))
