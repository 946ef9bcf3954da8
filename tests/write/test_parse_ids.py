"""Ids derived for whole columns are those that `identity.py` gives one by one; minted ids are reproducible."""

from __future__ import annotations

import datetime as dt
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnigraph.errors import BadRequest
from omnigraph.schema.arrow import arrow_schema
from omnigraph.schema.catalog import TypeDef
from omnigraph.schema.identity import id_of
from omnigraph.schema.lang.compile import compile_schema
from omnigraph.write.load.parse.keyed_ids import derive_ids
from omnigraph.write.load.parse.parsed import IdMinter

KEYS = compile_schema(
    """
    node Text { k: String @key }
    node Flag { k: Bool @key }
    node Whole { k: I64 @key }
    node Large { k: U64 @key }
    node Single { k: F32 @key }
    node Double { k: F64 @key }
    node Day { k: Date @key }
    node Time { k: DateTime @key }
    node Colour { k: enum(red, green) @key }
    node Several { a: String  b: I32  c: DateTime  d: String  @key(a, b, c, d) }
    """
).catalog

texts = st.text(max_size=8) | st.sampled_from(['"', "\\", "\n", "\x7f", "a\x00b", "é", "[1]", '","'])
moments = st.datetimes(timezones=st.just(dt.UTC)).map(lambda m: m.replace(microsecond=m.microsecond // 1000 * 1000))
VALUES: dict[str, Any] = {
    "Text": texts,
    "Flag": st.booleans(),
    "Whole": st.integers(-(2**63), 2**63 - 1),
    "Large": st.integers(0, 2**64 - 1),
    "Single": st.floats(width=32, allow_nan=True),
    "Double": st.floats(),
    "Day": st.dates(),
    "Time": moments,
    "Colour": st.sampled_from(["red", "green"]),
}


def one_by_one(definition: TypeDef, rows: list[dict[str, Any]]) -> list[str | None]:
    def derived(row: dict[str, Any]) -> str | None:
        try:
            return id_of(definition, row)
        except BadRequest:
            return None

    return [derived(row) for row in rows]


def all_at_once(definition: TypeDef, rows: list[dict[str, Any]]) -> list[str | None]:
    named = [{definition.column(name): value for name, value in row.items()} for row in rows]
    found: list[str | None] = derive_ids(definition, pa.Table.from_pylist(named, arrow_schema(definition))).to_pylist()
    return found


@pytest.mark.parametrize("name", VALUES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_key_of_one_property_gives_the_same_id_both_ways(name: str, data: Any) -> None:
    rows = [{"k": value} for value in data.draw(st.lists(st.none() | VALUES[name], max_size=6))]

    assert all_at_once(KEYS.by_name[name], rows) == one_by_one(KEYS.by_name[name], rows)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {"a": texts | st.none(), "b": st.integers(-9, 9) | st.none(), "c": moments, "d": texts | st.none()}
        ),
        max_size=6,
    )
)
def test_a_key_of_several_properties_gives_the_same_id_both_ways(rows: list[dict[str, Any]]) -> None:
    assert all_at_once(KEYS.by_name["Several"], rows) == one_by_one(KEYS.by_name["Several"], rows)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=5), st.integers(0, 10**6), st.lists(st.integers(0, 2**40), max_size=5))
def test_ids_minted_together_are_those_minted_one_by_one(salt: str, split: int, numbers: list[int]) -> None:
    mint = IdMinter(1_700_000_000_000, salt, split)

    assert mint.mint_many(np.array(numbers, np.int64)).to_pylist() == [mint(number) for number in numbers]


def test_minted_ids_look_like_others_and_never_meet_within_a_job() -> None:
    mint = IdMinter(1_700_000_000_000, "job")
    ids = [mint.for_split(split)(number) for split in range(50) for number in range(1, 51)]

    assert len(set(ids)) == 2500
    assert ids == sorted(ids)
    assert {len(one) for one in ids} == {26}
    assert pickle.loads(pickle.dumps(mint))(7) == mint(7)
    assert IdMinter(1_700_000_000_000, "other")(7) != mint(7)
