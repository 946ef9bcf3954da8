"""CSV: the meaning of records and fields, and that the fast path gives what row-by-row parsing gives."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnigraph.errors import BadRequest
from omnigraph.write.load.input.chunks import LINE_BYTES_MAX
from omnigraph.write.load.input.csv_records import parse_records, read_csv_entities, read_record_blocks
from omnigraph.write.load.parse import parse as module
from omnigraph.write.load.parse.parse import parse_csv
from omnigraph.write.load.parse.parse_rows import combine_blocks, parse_one_by_one
from write.parsing import MINT, every_type, summary

CATALOG = every_type()
THING = CATALOG.by_name["Thing"]
HEADER = ",".join(["id", *(prop.name for prop in THING.properties)])


def chunks(data: bytes, size: int = 7) -> Any:
    return (data[start : start + size] for start in range(0, len(data), size))


def read(data: bytes, type_name: str = "Thing", size: int = 10**6) -> Any:
    definition = CATALOG.by_name[type_name]
    return combine_blocks(parse_csv(chunks(data, size), "x.csv", definition, CATALOG, MINT), 0)


def read_carefully(data: bytes, type_name: str = "Thing") -> Any:
    definition = CATALOG.by_name[type_name]
    raws = [(number, raw) for number, raw, _ in read_csv_entities(chunks(data), "x.csv", definition)]
    parsed = parse_one_by_one(raws, "line", CATALOG.by_name, MINT)
    parsed.seen.setdefault(definition.table_key, 0)
    return parsed


def rows(data: bytes, type_name: str = "Note") -> list[dict[str, Any]]:
    parsed = read(data, type_name)
    assert not parsed.rejected, parsed.rejected
    return [row for one in parsed.types.values() for row in one.rows.to_pylist()]


def texts(data: bytes) -> list[Any]:
    return [row["text"] for row in rows(data)]


# Records


def test_quoted_fields_hold_commas_quotes_and_newlines() -> None:
    assert texts(b'text\n"a,b"\n"say ""hi"""\n"two\nlines"\nplain\n') == ["a,b", 'say "hi"', "two\nlines", "plain"]


def test_an_empty_field_is_null_and_quotes_with_nothing_in_them_are_empty_text() -> None:
    assert texts(b'id,text\na,\nb,""\nc,x\n') == [None, "", "x"]


def test_lines_may_end_with_a_carriage_return_and_the_last_with_nothing() -> None:
    assert texts(b'text\r\na\r\n"b"\r\nc') == ["a", "b", "c"]


def test_a_byte_order_mark_and_blank_lines_are_passed_over() -> None:
    assert texts(b"\xef\xbb\xbftext,type\n\na,\n   \n\r\nb,\n") == ["a", "b"]


def test_a_record_has_the_number_of_the_line_at_which_it_begins() -> None:
    parsed = read(b'id,text\na,"1\n2\n3"\nb,x\nc\nd,y\n', "Note")

    assert parsed.types["node:Note"].numbers.tolist() == [2, 5, 7]
    assert [(one.number, one.raw) for one in parsed.rejected] == [(6, b"c\n")]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b'5" pipe,x', "there is a quote inside a field"),
        (b'"a"b,x', "there is a quote inside a field"),
        (b"a", "the line has 1 field, the header 2"),
        (b"a,b,c", "the line has 3 fields, the header 2"),
        (b"\xff,x", "the line is not UTF-8"),
    ],
)
def test_a_malformed_record_is_rejected_and_those_around_it_are_loaded(record: bytes, reason: str) -> None:
    parsed = read(b"id,text\na,x\n" + record + b"\nz,y\n", "Note")

    assert parsed.types["node:Note"].rows.column("id").to_pylist() == ["a", "z"]
    (rejected,) = parsed.rejected
    assert rejected.number == 3
    assert str(rejected.reason).startswith(reason)


def test_a_quote_that_is_never_closed_is_reported_at_the_line_where_it_opens() -> None:
    parsed = read(b'id,text\na,x\nb,"open\nc,y\n', "Note")

    assert [(one.number, one.reason.partition(":")[0]) for one in parsed.rejected] == [
        (3, "a quoted field is never closed")
    ]


def test_a_record_longer_than_the_limit_is_rejected_in_bounded_memory() -> None:
    long = (b"id,text\na,x\nb," + b"y" * 2**20 if n == 0 else b"y" * 2**20 for n in range(LINE_BYTES_MAX // 2**20 + 4))
    parts = [*long, b"\nc,z\n"]

    parsed = combine_blocks(parse_csv(iter(parts), "x.csv", CATALOG.by_name["Note"], CATALOG, MINT), 0)

    assert parsed.types["node:Note"].rows.column("id").to_pylist() == ["a", "c"]
    assert [(one.number, len(one.raw) <= 1000) for one in parsed.rejected] == [(3, True)]
    reason = parsed.rejected[0].reason
    assert isinstance(reason, str)
    assert "longer than 16 MiB" in reason


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet='ab,"\n\r', max_size=60), st.integers(1, 20))
def test_records_do_not_depend_on_the_chunks_of_the_file(text: str, size: int) -> None:
    data = text.encode()

    stretches = list(read_record_blocks(chunks(data, size)))

    assert b"".join(stretch.data for stretch in stretches) == data
    if '"' not in re.sub(r'(?:(?<=[,\n])|^)"(?:[^"]|"")*"(?=,|\r?\n|$)', "", text):  # quotes only where they should be
        assert summary(read(b"text\n" + data, "Note", size + 5)) == summary(read_carefully(b"text\n" + data, "Note"))


def test_a_file_may_come_in_cut_between_a_closing_quote_and_the_end_of_its_line() -> None:
    data = b'"a\nb"\r\n"c"\r\n'

    for size in range(1, len(data)):
        stretches = read_record_blocks(chunks(data, size))
        found = [record for stretch in stretches for record in parse_records(stretch.data, stretch.line)]
        assert [(record.line, record.fields, record.problem) for record in found] == [
            (1, ("a\nb",), None),
            (3, ("c",), None),
        ]


# Values


VALUES = {
    "flag": ["true", "False", "TRUE", "yes", "1", "", '""', " true "],
    "small": ["1", "-1", "007", "+5", "1.0", "2147483648", "x", "", '""', " 4", "-0", "1e3"],
    "huge": ["18446744073709551615", "-1", "1", "9" * 30, "9" * 101, ""],
    "single": ["0.1", "1", "1e39", "-0", "-0.0", "16777217", ".5", "5.", "+1", "NaN", "inf", "", "9007199791611905"],
    "double": ["0.1", "9007199254740993", "1e400", "1e-400", "-0", "nan", "", "1_0", "0x1p3", "1" * 60],
    "day": ["2026-01-31", "2026-02-30", "31.01.2026", "", " 2026-01-31", "0000-01-01"],
    "moment": ["2026-01-31T12:00:00Z", "2026-01-31 12:00:00", "2026-01-31T12:00:00+01:00", "", "x", "2026-01-31"],
    "blob": ["base64:aGk=", "aGk=", "", "base64:"],
    "colour": ["red", "blue", "", '""', " red"],
    "words": ['"[""a"",""b""]"', "[]", "a", "", '"[1]"', '"[null]"', "null", '"{""a"":1,""a"":2}"'],
    "numbers": ['"[1,2]"', "[1]", "[x", "", '"[1.5]"'],
    "vector": ['"[1,2]"', '"[1,2,3]"', "", '"[NaN,1]"', '"[-0,1e39]"'],
}


@pytest.mark.parametrize("name", VALUES)
def test_both_ways_read_every_value_alike_alone_and_among_others(name: str) -> None:
    alone = [b"slug,%s\nx,%s\n" % (name.encode(), value.encode()) for value in VALUES[name]]
    among = b"slug,%s\n" % name.encode() + b"".join(
        b"s%d,%s\n" % (number, value.encode()) for number, value in enumerate(VALUES[name])
    )
    for data in (*alone, among):
        assert summary(read(data)) == summary(read_carefully(data)), data


def test_values_are_those_of_their_types() -> None:
    header = b"slug,flag,small,double,day,moment,blob,words,vector\n"
    data = header + b'x,True,007,.5,2026-01-31,2026-01-31 12:00,base64:aGk=,"[""a""]","[1,2]"\n'

    (row,) = rows(data, "Thing")

    assert (row["flag"], row["small"], row["double"], row["blob"]) == (True, 7, 0.5, b"hi")
    assert (str(row["day"]), str(row["moment"])) == ("2026-01-31", "2026-01-31 12:00:00+00:00")
    assert (row["words"], row["vector"]) == (["a"], [1.0, 2.0])


def test_a_column_that_is_not_there_gets_the_default_and_an_empty_field_does_not() -> None:
    (row,) = rows(b"slug,colour\nx,\n", "Thing")

    assert (row["colour"], row["words"]) == (None, ["a"])


def test_plain_files_are_read_by_the_fast_way_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b'slug,small,day,flag,colour\n"a\nb",1,2026-01-31,true,red\n"say ""x""",,,,\n'
    expected = summary(read_carefully(data))
    monkeypatch.setattr(module, "parse_one_by_one", None)

    assert summary(read(data)) == expected


# Edges and ids


def test_an_edge_has_from_and_to_or_src_and_dst() -> None:
    for header in (b"from,to,much", b"src,dst,much", b"much,to,from"):
        data = header + (b"\n1,b,a\n" if header.startswith(b"much") else b"\na,b,1\n")
        (row,) = rows(data, "Likes")
        assert (row["src"], row["dst"], row["much"]) == ("a", "b", 1.0)


def test_an_edge_type_with_a_property_called_from_has_src_and_dst_for_its_ends() -> None:
    (row,) = rows(b"src,dst,from\na,b,hearsay\n", "Knows")
    assert (row["src"], row["dst"]) == ("a", "b")

    with pytest.raises(BadRequest, match=r"x\.csv has no column 'src', but Knows is an edge type"):
        read(b"from,since\na,\n", "Knows")


def test_an_edge_without_an_end_is_rejected() -> None:
    parsed = read(b"from,to\na,\n", "Likes")

    assert [(one.number, one.reason) for one in parsed.rejected] == [
        (2, "the edge has no 'to': give the id of a node as text")
    ]


def test_an_empty_id_is_none() -> None:
    ids = [row["id"] for row in rows(b'id,text\na,x\n,y\n"",z\n')]

    assert ids == ["a", MINT(3), MINT(4)]


# Headers


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"slug,nme\nx,y\n", "x.csv has a column 'nme', which is unknown in Thing: its columns are id, slug, flag"),
        (b"ada,36\nbob,7\n", "; the first line must be a header."),
        (b"", "x.csv is empty: the first line of CSV names the columns."),
        (b"\nslug\n", "x.csv does not begin with a header"),
        (b"slug,slug\nx,y\n", "x.csv has the column 'slug' twice"),
        (b"slug,\nx,y\n", "x.csv has a column '', which is unknown in Thing"),
    ],
)
def test_a_header_that_is_none_is_one_sentence(data: bytes, sentence: str) -> None:
    with pytest.raises(BadRequest) as raised:
        read(data)

    assert sentence in str(raised.value)


def test_a_file_with_a_header_alone_names_its_type_and_has_no_rows() -> None:
    parsed = read(b"slug\n")

    assert (parsed.types, parsed.seen) == ({}, {"node:Thing": 0})
