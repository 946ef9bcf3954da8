"""Ids derived from keys: one canonical text for equal values, different ids for different keys."""

from __future__ import annotations

import json
import math
import struct
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from omnigraph.errors import BadRequest
from omnigraph.schema.identity import canonical_text, id_from_texts, id_of
from omnigraph.schema.lang.compile import compile_schema
from omnigraph.schema.types import parse_type


@pytest.mark.parametrize(
    ("type_", "value", "text"),
    [
        ("String", "ada", "ada"),
        ("String", "", ""),
        ("enum(a, b-c)", "b-c", "b-c"),
        ("I32", 10, "10"),
        ("I64", -(2**63), "-9223372036854775808"),
        ("U64", 2**64 - 1, "18446744073709551615"),
        ("Bool", True, "true"),
        ("Bool", False, "false"),
        ("F64", 1, "1.0"),
        ("F64", 0.1, "0.1"),
        ("F64", -0.0, "0.0"),
        ("F64", 1e22, "1e+22"),
        ("F32", 0.1, "0.1"),
        ("F32", 16777216, "16777216.0"),
        ("F32", -0.0, "0.0"),
        ("Date", date(2026, 1, 31), "2026-01-31"),
        ("Date", "2026-01-31", "2026-01-31"),
        ("DateTime", datetime(2026, 1, 31, 12, tzinfo=UTC), "2026-01-31T12:00:00.000Z"),
        ("DateTime", datetime(2026, 1, 31, 12), "2026-01-31T12:00:00.000Z"),
        ("DateTime", datetime(2026, 1, 31, 13, tzinfo=timezone(timedelta(hours=1))), "2026-01-31T12:00:00.000Z"),
        ("DateTime", "2026-01-31T12:00:00.250+00:00", "2026-01-31T12:00:00.250Z"),
    ],
)
def test_canonical_text(type_: str, value: object, text: str) -> None:
    assert canonical_text(value, parse_type(type_)) == text


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("F64", math.nan),
        ("F64", math.inf),
        ("F32", -math.inf),
        ("F32", 1e39),
        ("String", None),
        ("String", 7),
        ("I32", True),
        ("I32", 1.0),
        ("Bool", 1),
        ("Date", "31.1.2026"),
        ("Date", datetime(2026, 1, 31, tzinfo=UTC)),
        ("DateTime", "noon"),
        ("[String]", ["a"]),
        ("Blob", b"a"),
        ("Vector(2)", [1.0, 2.0]),
    ],
)
def test_values_without_canonical_text_are_refused(type_: str, value: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        canonical_text(value, parse_type(type_))


def test_one_property_is_its_own_id_and_several_are_a_compact_array_in_the_order_of_the_key() -> None:
    one, two = compile_schema(
        "node One { slug: String @key } node Two { number: I32 region: String @key(region, number) }"
    ).catalog.types

    assert id_of(one, {"slug": "ada"}) == "ada"
    assert id_of(two, {"number": 10, "region": "north"}) == '["north","10"]'
    assert id_of(two, {"number": 10, "region": 'nörd "x"'}) == '["nörd \\"x\\"","10"]'


def test_an_incomplete_key_is_refused_by_name() -> None:
    (two,) = compile_schema("node Two { number: F64 region: String @key(region, number) }").catalog.types

    with pytest.raises(BadRequest, match=r"Two\.number is null"):
        id_of(two, {"region": "north"})
    with pytest.raises(BadRequest, match=r"Two\.number is nan"):
        id_of(two, {"region": "north", "number": math.nan})


@given(st.lists(st.lists(st.text(), min_size=2, max_size=2), min_size=2, max_size=2))
def test_different_keys_have_different_ids(keys: list[list[str]]) -> None:
    first, second = keys

    assert (id_from_texts(first) == id_from_texts(second)) == (first == second)
    assert json.loads(id_from_texts(first)) == first


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_reads_back_from_its_text(value: float) -> None:
    assert float(canonical_text(value, parse_type("F64"))) == value


@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
@example(999999995904.0)  # as 1000000000000.0: one digit that counts, though more characters
def test_a_single_float_reads_back_from_its_text_which_has_no_more_digits_than_needed(value: float) -> None:
    text = canonical_text(value, parse_type("F32"))

    assert struct.unpack("<f", struct.pack("<f", float(text)))[0] == value
    assert significant_digits(text) <= significant_digits(repr(value))


def significant_digits(text: str) -> int:
    return len(Decimal(text).normalize().as_tuple().digits)
