"""The fast path for NDJSON gives what row-by-row parsing gives, line by line, for all kinds of lines."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnigraph.write.load.parse import parse_ndjson
from omnigraph.write.load.parse.parse_ndjson import parse_lines
from write.parsing import MINT, carefully, every_type, summary

CATALOG = every_type()

# What may stand where a value is expected: things that are right for some type, and things that are right for none.
VALUES = [
    *(
        "null",
        "true",
        "false",
        "0",
        "1",
        "-1",
        "-0",
        "-0.0",
        "12",
        "12.0",
        "1e3",
        "0.1",
        "3.4028236e38",
        "1e39",
        "1e400",
    ),
    *("2147483647", "2147483648", "4294967295", "4294967296", "9007199254740993", "9223372036854775807"),
    *("9223372036854775808", "18446744073709551615", "18446744073709551616", "16777217", "1e-50", "9007199791611905"),
    *(
        "NaN",
        "Infinity",
        "-Infinity",
        "Inf",
        "01",
        "+1",
        "1.",
        ".5",
        "1" * 99,
        "-" + "1" * 100,
        "1" * 101,
        "0." + "1" * 120,
    ),
    *('"12"', '"-12"', '""', '"red"', '"blue"', '"a"', r'"\u0061"', r'"\ud800"', r'"\ud83d\ude00"', r'"a\/b"', r'"\x"'),
    *(r'"\u0000"', '"\t"', '"\x7f"', '"é"', '"name"', '"id"', '"\\"', r'"\""', r'"\\"', '"words"', '"words":'),
    *(r'"\"words"', r'"\"id"', r'"\"id\":"', r'"\u0069d"', r'"\u00e9"'),
    *('"2026-01-31"', '"2026-02-30"', '"0000-01-01"', '"0001-01-01"', '"9999-12-31"', '"2026-1-31"', '"20260131"'),
    *('"2026-01-31T12:00:00Z"', '"2026-01-31 12:00:00"', '"2026-01-31T12:00"', '"2026-01-31T12:00:00.1234567Z"'),
    *('"2026-01-31T12:00:00.999999Z"', '"1969-12-31T23:59:59.999999Z"', '"2026-01-31T12:00:00+01:00"'),
    *('"2026-01-31T24:00:00Z"', '"2026-01-31T23:59:60Z"', '"2026-01-31T12:00:00+0100"', '"0001-01-01T00:00:00+01:00"'),
    *('"0000-01-01T00:00:00Z"', '"2026-01-31T12:00:00z"', '"2026-01-31T12:00:00 Z"', '"2026-01-31T12:00:00.Z"'),
    *('"base64:aGk="', '"base64:aGk"', '"base64:"', '"aGk="', '"base64:a GI="'),
    *("[]", "[1]", "[1,2]", "[1, null]", "[1.5,-2]", "[1e39,0]", "[-0,1]", "[1,2,3]", '["a","b"]', '["2026-01-31"]'),
    *('["x"]', "[[1]]", "{}", '{"a":1}', "[NaN,1]", "[true]", "[9007199254740993,1]", "[", "}", "", "nul", "1 2"),
]
NAMES = [prop.name for prop in CATALOG.by_name["Thing"].properties]

fields = st.lists(st.tuples(st.sampled_from([*NAMES, *NAMES, "id", "nothing"]), st.sampled_from(VALUES)), max_size=5)


@st.composite
def thing_lines(draw: Any) -> str:
    """A Thing with some fields, most of them plausible, in one of the forms in which JSON may be written."""
    slug = draw(st.sampled_from(['"slug":"x"', '"slug":"y"', '"slug" : "z"', '"slug":null', '"slug":7', ""]))
    odd = draw(st.sampled_from(["", "", "", r'"\u0069d":null', r'"w\u006frds":null', r'"\"id":1', '"words" :null']))
    pairs = [slug, odd, *(f'"{name}":{value}' for name, value in draw(fields))]
    data = ",".join(pair for pair in pairs if pair)
    form = draw(
        st.sampled_from(
            [
                '{"type":"Thing","data":{%s}}',
                '{"type":"Thing","data":{%s}}',
                '{"type":"Thing","data":{%s}}',
                '{"type": "Thing", "data": {%s}}',
                '{"data":{%s},"type":"Thing"}',
                ' {"type":"Thing","data":{%s}}',
                '{"type":"Thing","data":{%s}} ',
                '{"type":"Thing","data":{%s}}\r',
                '{"type":"Thing","data":{%s}}{"type":"Thing","data":{}}',
                '{"type":"Thing","data":{%s},"from":"a"}',
                '{"type":"Thing","type":"Thing","data":{%s}}',
                '{"type":"Th\\u0069ng","data":{%s}}',
            ]
        )
    )
    return str(form % data)


OTHERS = [
    '{"type":"Note","data":{"text":"words","type":null}}',
    '{"type":"Note","data":{"text":null}}',
    '{"type":"Note","data":{}}',
    '{"type":"Note"}',
    '{"type":"Note","data":null}',
    '{"type":"Note","data":[]}',
    '{"type":"Note","data":{"id":"n1","text":"x"}}',
    '{"type":"Note","data":{"id":null,"text":"x"}}',
    '{"type":"Note","data":{"id":"n1"}}',
    '{"type":"Note","data":{"text":"id"}}',
    '{"edge":"Knows","from":"x","to":"y","data":{"since":"2026-01-31"}}',
    '{"edge":"Knows","from":"x","to":"y"}',
    '{"edge":"Knows","from":"x","to":"y","data":{"from":null}}',
    '{"edge":"Likes","from":"x","to":"y","data":{"much":1}}',
    '{"edge":"Likes","to":"y","from":"x","data":{"much":-0}}',
    '{"from":"x","to":"y","edge":"Likes","data":{}}',
    '{"edge":"Likes","from":null,"to":"y","data":{}}',
    '{"edge":"Likes","from":"x","data":{}}',
    '{"edge":"Likes","from":7,"to":"y","data":{}}',
    r'{"edge":"Likes","from":"\ud800","to":"y","data":{}}',
    '{"edge":"Thing","from":"x","to":"y","data":{}}',
    '{"type":"Likes","data":{}}',
    '{"type":"Ghost","data":{}}',
    '{"type":7}',
    '{"type":"Pair","data":{"a":"q\\"","b":1,"c":"2026-01-31T12:00:00Z"}}',
    '{"type":"Pair","data":{"a":"q","b":1,"c":"2026-01-31T12:00:00Z"}}',
    '{"type":"Pair","data":{"a":"q","b":1}}',
    "{}",
    "[]",
    "nonsense",
    "",
    "   ",
    "\r",
    '{"type":"Note","data":{"text":"x"',
    "}",
    '"x":1}}',
]
hostile = st.one_of(thing_lines(), st.sampled_from(OTHERS)).map(str.encode)
bad_bytes = st.sampled_from(
    [b'{"type":"Note","data":{"text":"\xff"}}', b'{"type":"Note","data":{"text":"\xed\xa0\x80"}}', b"\xfe\xff", b"\0"]
)
files = st.builds(
    lambda lines, end: b"\n".join(lines) + end,
    st.lists(st.one_of(hostile, hostile, hostile, bad_bytes), max_size=12),
    st.sampled_from([b"\n", b"", b"\r\n"]),
)


@settings(max_examples=120, deadline=None)
@given(files)
def test_both_ways_read_every_file_alike(data: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parse_ndjson, "FEW_LINES", 1)  # so that small files are halved too
        fast = parse_lines(data, 0, CATALOG, MINT)

    assert summary(fast) == summary(carefully(data, CATALOG))
    assert fast.lines == data.count(b"\n") + (not data.endswith(b"\n") and data != b"")


@pytest.mark.parametrize("name", NAMES)
def test_both_ways_read_every_value_of_a_type_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse_ndjson, "FEW_LINES", 1)
    for value in VALUES:
        data = b'{"type":"Thing","data":{"slug":"x","%s":%s}}\n' % (name.encode(), value.encode())

        assert summary(parse_lines(data, 0, CATALOG, MINT)) == summary(carefully(data, CATALOG)), value


def test_plain_lines_are_read_by_the_fast_way_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("a line went the careful way")

    full = {
        "slug": "x", "flag": True, "small": 1, "big": 2, "count": 3, "huge": 2**64 - 1, "single": 0.5, "double": 0.1,
        "day": "2026-01-31", "moment": "2026-01-31T12:00:00.250Z", "blob": "base64:aGk=", "colour": "green",
        "words": ["a"], "numbers": [1], "singles": [0.5], "days": ["2026-01-31"], "vector": [1.0, 2],
    }  # fmt: skip
    entities = [
        {"type": "Thing", "data": full},
        {"type": "Thing", "data": {"slug": 'quoted "text"', **dict.fromkeys(NAMES[1:])}},
        {"type": "Note", "data": {"text": "é"}},
        {"edge": "Likes", "from": "x", "to": "x", "data": {"much": 1.5}},
    ]
    compact = b"".join(json.dumps(one, separators=(",", ":")).encode() + b"\n" for one in entities)
    spaced = b"".join(json.dumps(one).encode() + b"\r\n" for one in entities)
    expected = summary(carefully(compact + spaced, CATALOG))
    monkeypatch.setattr(parse_ndjson, "parse_one_by_one", never)

    assert summary(parse_lines(compact + spaced, 0, CATALOG, MINT)) == expected


def test_lines_are_numbered_after_those_before() -> None:
    data = b'{"type":"Note","data":{"text":"a"}}\n\n{\n{"type":"Note","data":{"text":"b"}}\n'

    parsed = parse_lines(data, 10, CATALOG, MINT)

    assert parsed.types["node:Note"].numbers.tolist() == [11, 14]
    assert [one.number for one in parsed.rejected] == [13]
    assert parsed.lines == 4
