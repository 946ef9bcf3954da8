"""JSON bodies: what is long is parsed in steps, and as if it were short."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnigraph.errors import BadRequest, TooLarge
from omnigraph.server.http import json_body
from omnigraph.server.http.json_body import parse_json

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
)
FRAGMENTS = st.sampled_from(
    [
        *'{}[]:," \\',
        "\\u",
        "\\ud83d",
        "\\ude00",
        "\\n",
        "\\\\",
        '\\"',
        "a",
        "é",
        "😀",
        "0",
        "-1",
        "1.5e3",
        "1e999",
        "true",
        "null",
        "NaN",
        "\n",
        "\x00",
        '"a":',
        '"a":1',
        "[1,2]",
        "{}",
    ]
)


def outcome(data: bytes) -> Any:
    try:
        return "value", repr(parse_json(data, 5, 10_000))
    except BadRequest as error:
        return "refused", "levels" in str(error)


def both(data: bytes, step_bytes: int) -> tuple[Any, Any]:
    """What is made of a text as a short one and as a long one."""
    limits = json_body.SHORT_BYTES, json_body.STEP_BYTES
    try:
        json_body.SHORT_BYTES = sys.maxsize
        short = outcome(data)
        json_body.SHORT_BYTES, json_body.STEP_BYTES = -1, step_bytes
        return short, outcome(data)
    finally:
        json_body.SHORT_BYTES, json_body.STEP_BYTES = limits


@given(VALUES, st.booleans(), st.sampled_from([None, 1]), st.integers(12, 40))
def test_a_long_text_has_the_value_that_it_would_have_as_a_short_one(
    value: Any, ascii_only: bool, indent: int | None, step_bytes: int
) -> None:
    short, long = both(json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode(), step_bytes)

    assert long == short


@given(st.lists(FRAGMENTS, max_size=12).map("".join), st.integers(12, 40))
def test_what_is_refused_as_a_short_text_is_refused_as_a_long_one(text: str, step_bytes: int) -> None:
    for data in (text.encode(), f'"{text}"'.encode(), f"[{text}]".encode()):
        short, long = both(data, step_bytes)
        assert long[0] == short[0], data  # where a text has two faults, each way finds another one first


@given(st.binary(max_size=40), st.integers(12, 40))
def test_any_bytes_are_refused_alike(data: bytes, step_bytes: int) -> None:
    for one in (data, b'"%s"' % data):
        short, long = both(one, step_bytes)
        assert long == short


def test_a_long_body_has_a_bounded_number_of_values() -> None:
    text = json.dumps([0] * 20_000).encode()

    assert parse_json(text, 5, 20_010) == [0] * 20_000
    with pytest.raises(TooLarge, match="larger than 20,000 values") as caught:
        parse_json(text, 5, 20_000)
    assert (caught.value.limit, caught.value.unit) == (20_000, "values")


def test_an_array_or_object_counts_as_several_values() -> None:
    text = json.dumps([[], {}] * 10_000).encode()

    assert parse_json(text, 5, 200_010) == [[], {}] * 10_000
    with pytest.raises(TooLarge):
        parse_json(text, 5, 200_009)


def test_an_object_has_a_bounded_number_of_members() -> None:
    text = json.dumps({f"member-{number}": number for number in range(json_body.MEMBERS_MAX + 1)}).encode()

    with pytest.raises(TooLarge, match="members"):
        parse_json(text, 5, 10**6)


@pytest.mark.parametrize(
    ("text", "pauses"),
    [
        (b"[" + b"0," * 100_000 + b"0]", 90),
        (b"[" + b"[]," * 20_000 + b"0]", 90),
        (b'"' + b"\\n" * 3_000_000 + b'"', 80),
        (b'"' + b"x" * 8_000_000 + b'"', 100),
        (b'"' + "é😀".encode() * 1_000_000 + b'"', 80),
        (b" " * 8_000_000 + b"0", 100),
    ],
    ids=["numbers", "arrays", "escapes", "letters", "wide characters", "spaces"],
)
def test_a_long_text_is_parsed_with_pauses(text: bytes, pauses: int, monkeypatch: pytest.MonkeyPatch) -> None:
    paused: list[float] = []
    monkeypatch.setattr(time, "sleep", paused.append)

    parse_json(text, 64, 250_000)

    assert len(paused) > pauses


def test_a_number_without_end_is_refused_at_once() -> None:
    with pytest.raises(BadRequest, match="no JSON"):
        parse_json(b"9" * 8_000_000, 64, 250_000)
