"""Parameter values: their types, what is missing, and what null does in each place."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from omnigraph.query import ir
from omnigraph.query.compile import ParameterError, bind, bind_values
from omnigraph.schema.types import Scalar, parse_type
from query.gq import NOW, mutation, read, read_text

DAY = dt.date(2026, 1, 31)


def refused(text: str, code: str, parameter: str, **values: object) -> ParameterError:
    query: Any = mutation(text) if "match" not in text else read(text)
    with pytest.raises(ParameterError) as caught:
        bind(query, values, now=NOW)
    assert (caught.value.language_code, caught.value.parameter) == (code, parameter)
    assert caught.value.code == "bad_request"
    return caught.value


def test_a_missing_or_null_required_parameter_is_an_error() -> None:
    text = read_text("$p: Person { slug: $s }", params="$s: String")

    assert "missing" in str(refused(text, "OG-GQ-701", "s"))
    assert "null" in str(refused(text, "OG-GQ-701", "s", s=None))


def test_an_ill_typed_parameter_is_an_error() -> None:
    text = read_text("$p: Person { age: $a }", params="$a: I32?")

    error = refused(text, "OG-GQ-702", "a", a="x")

    assert str(error) == ('$a: "x" is not an integer: give a number from -2147483648 to 2147483647 (I32). [OG-GQ-702]')
    refused(text, "OG-GQ-702", "a", a=2**31)
    refused(text, "OG-GQ-702", "a", a=True)
    refused(text, "OG-GQ-702", "a", a=1.0)


def test_an_unknown_parameter_is_an_error() -> None:
    error = refused(
        read_text("$p: Person { slug: $slug }", params="$slug: String"), "OG-GQ-703", "slg", slug="a", slg="b"
    )

    assert "did you mean slug" in str(error)
    refused(read_text("$p: Person"), "OG-GQ-703", "x", x=1)


def test_null_in_a_search_function_is_an_error() -> None:
    text = read_text("$p: Person", "return { $p.slug } order { bm25($p.bio, $q) }", "$q: String?")

    refused(text, "OG-GQ-704", "q")
    assert bind(read(text), {"q": "x"}, now=NOW).keeps[0].query == ir.Literal("x", ir.STRING)  # type: ignore[union-attr]


def test_null_as_an_edges_end_is_an_error() -> None:
    refused('query q($a: String?) { insert Knows { from: $a, to: "b" } }', "OG-GQ-705", "a")


def test_null_in_where_is_refused() -> None:
    refused("query q($a: I32?) { delete Person where age = $a }", "OG-GQ-706", "a")
    refused(
        "query q($a: I32?) { update Person set { note: $n } where age = $a }".replace("$n", '"x"'), "OG-GQ-706", "a"
    )


def test_null_in_return_is_null_and_in_an_assignment_writes_null() -> None:
    query = bind(read(read_text("$p: Person", "return { $n, $p.slug }", "$n: String?")), {}, now=NOW)
    assert query.returns[0] == ir.Projection("n", ir.Literal(None, ir.STRING))

    (insert,) = bind(mutation("query q($n: String?) { insert Person { note: $n } }"), {}, now=NOW).statements
    assert isinstance(insert, ir.InsertRow)
    assert insert.assignments[0].value == ir.Literal(None, ir.STRING)


def test_a_bound_query_has_no_parameters_and_no_now() -> None:
    text = read_text(
        "$p: Person { slug: $s } $p.seen < now() not { $p.age > $a }",
        "return { now(), $p.slug } order { nearest($p.face, $v) } limit 3",
        "$s: String, $a: I32?, $v: [F64]",
    )

    query = bind(read(text), {"s": "x", "a": 3, "v": [0.1, 1]}, now=NOW)

    assert "ParamRef" not in repr(query)
    assert "Now(" not in repr(query)
    assert query.params == ()
    rank = query.order[0].expr
    assert isinstance(rank, ir.Nearest)
    assert rank.query == ir.Literal((0.10000000149011612, 1.0), parse_type("Vector(2)"))
    assert hash(query) == hash(bind(read(text), {"s": "x", "a": 3, "v": [0.1, 1]}, now=NOW))


def test_now_is_one_instant_in_utc_to_the_millisecond() -> None:
    zone = dt.timezone(dt.timedelta(hours=2))
    moment = dt.datetime(2026, 1, 31, 14, 0, 0, 123_456, tzinfo=zone)

    query = bind(read(read_text("$p: Person", "return { now() }")), {}, now=moment)

    assert query.returns[0].expr == ir.Literal(dt.datetime(2026, 1, 31, 12, 0, 0, 123_000, tzinfo=dt.UTC), ir.DATETIME)


def test_a_number_that_meets_an_f32_is_rounded() -> None:
    text = read_text("$p: Person  $p.height = $h  $p.marks contains $h", params="$h: F64")

    first, second = bind(read(text), {"h": 0.1}, now=NOW).pattern.filters

    assert isinstance(first, ir.Compare)
    assert (first.domain, first.right) == ("f32", ir.Literal(0.10000000149011612, Scalar("F32")))
    assert isinstance(second, ir.ListContains)
    assert (second.domain, second.item) == ("f32", ir.Literal(0.10000000149011612, Scalar("F32")))


def test_ranges_of_what_a_parameter_is_assigned_to() -> None:
    text = "query q($a: I64) { insert Person { age: $a } }"

    refused(text, "OG-GQ-702", "a", a=2**31)
    refused("query q($v: [F64]) { insert Person { face: $v } }", "OG-GQ-702", "v", v=[1.0])
    refused("query q($h: F64) { insert Person { height: $h } }", "OG-GQ-702", "h", h=1e39)


def test_ranges_of_search_functions() -> None:
    text = read_text('$p: Person  fuzzy($p.bio, "x", $n)', params="$n: I32?")

    refused(text, "OG-GQ-702", "n", n=-1)
    assert bind(read(text), {}, now=NOW).pattern.filters == ()
    rrf = "rrf(bm25($p.bio, $q), bm25($p.note, $q), $k)"
    fused = read_text("$p: Person", f"return {{ $p.slug }} order {{ {rrf} }}", "$q: String, $k: I32")
    refused(fused, "OG-GQ-702", "k", q="x", k=0)


def test_an_enum_property_takes_texts_and_leaves_the_judgement_to_the_validator() -> None:
    (insert,) = bind(mutation("query q($r: String) { insert Person { role: $r } }"), {"r": "boss"}, now=NOW).statements

    assert isinstance(insert, ir.InsertRow)
    assert insert.assignments[0].value == ir.Literal("boss", parse_type("enum(engineer, lead, ops)"))


def test_a_dropped_filter_takes_its_variable_out_of_the_negations_outer_ones() -> None:
    text = read_text("$p: Person  $q: Person  not { $p knows $_  $q.age > $a }", params="$a: I32?")

    assert read(text).pattern.negations[0].pattern.outer == ("p", "q")
    assert bind(read(text), {}, now=NOW).pattern.negations[0].pattern.outer == ("p",)


def test_bind_values_alone() -> None:
    params = read(read_text("$p: Person", params="$a: Date, $b: I64?")).params

    assert bind_values(params, {"a": "2026-01-31", "b": "7"}) == {"a": DAY, "b": 7}
    assert bind_values(params, {"a": DAY}) == {"a": DAY, "b": None}


def test_a_query_without_parameters_is_bound_as_it_is() -> None:
    query = read(read_text("$p: Person"))

    assert bind(query, {}, now=NOW) is query
