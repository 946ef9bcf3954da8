"""The rules of language.md and query/ir, one by one: every way of running a query gives the answer written here."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from omnigraph.errors import BadRequest

from .graphs import (
    CITY,
    KNOWS,
    LIVES_IN,
    MODES,
    PERSON,
    Data,
    answers,
    city,
    edge,
    graph_of,
    names,
    person,
    reader_of,
    run,
)

CHAIN: Data = {
    PERSON: [person(slug) for slug in "abcd"],
    KNOWS: [edge("a", "b"), edge("b", "c"), edge("c", "d")],
}


def people(*rows: dict[str, Any], **more: Any) -> Data:
    return {PERSON: list(rows), **more}


def ids(data: Data, clauses: str, shown: str = "$a.id") -> list[Any]:
    return names(answers(data, f"match {{ {clauses} }} return {{ {shown} as x }}"))


def pairs(data: Data, clauses: str) -> list[tuple[Any, ...]]:
    rows = answers(data, f"match {{ {clauses} }} return {{ $a.id as a, $b.id as b }}")
    return [tuple(row.values()) for row in rows]


# Patterns


def test_one_row_for_each_assignment_in_the_order_of_ids() -> None:
    assert pairs(CHAIN, "$a: Person  $a knows $b") == [("a", "b"), ("b", "c"), ("c", "d")]


def test_a_hidden_variable_multiplies_rows_too() -> None:
    data = people(person("a"), person("b"), **{KNOWS: [edge("a", "a"), edge("a", "b")]})
    assert ids(data, "$a: Person  $a knows $_") == ["a", "a"]


def test_parts_that_share_no_variable_multiply() -> None:
    data: Data = {PERSON: [person("a"), person("b")], CITY: [city("x"), city("y")]}
    assert len(answers(data, "match { $a: Person  $c: City } return { $a.id as a, $c.id as c }")) == 4


def test_two_variables_may_be_the_same_entity() -> None:
    data = people(person("a"), **{KNOWS: [edge("a", "a")]})
    assert pairs(data, "$a: Person  $a knows $b") == [("a", "a")]


def test_one_variable_at_both_ends_fits_self_loops_only() -> None:
    data = people(person("a"), person("b"), **{KNOWS: [edge("a", "b"), edge("b", "b")]})
    assert ids(data, "$a: Person  $a knows $a") == ["b"]


def test_parallel_edges_count_once_without_an_edge_variable() -> None:
    data = people(person("a"), person("b"), **{KNOWS: [edge("a", "b", "1"), edge("a", "b", "2")]})
    assert pairs(data, "$a: Person  $a knows $b") == [("a", "b")]
    assert names(answers(data, "match { $a: Person  $a knows $_ } return { count($a) as n }")) == [1]


def test_an_edge_variable_gives_a_row_for_each_edge() -> None:
    data = people(person("a"), person("b"), **{KNOWS: [edge("a", "b", "1"), edge("a", "b", "2")]})
    assert ids(data, "$a: Person  $a $k:knows $b", "$k.id") == ["1", "2"]
    assert names(answers(data, "match { $a: Person  $a $k:knows $_ } return { count($a) as n }")) == [2]


def test_ties_are_broken_by_edges_too() -> None:
    edges = [edge("a", "b", "2", weight=1.0), edge("a", "b", "1", weight=1.0)]
    data = people(person("a"), person("b"), **{KNOWS: edges})
    assert ids(data, "$a: Person  $a $k:knows $b  $k.weight = 1.0", "$k.id") == ["1", "2"]


def test_the_direction_is_the_declared_one() -> None:
    assert ids(CHAIN, '$a: Person  $a knows $b  $b.slug = "c"') == ["b"]


def test_undirected_pairs_come_once_each_way_and_a_loop_once() -> None:
    data = people(person("a"), person("b"), **{KNOWS: [edge("a", "b"), edge("b", "a"), edge("a", "a")]})
    assert pairs(data, "$a: Person  $a <knows> $b") == [("a", "a"), ("a", "b"), ("b", "a")]


def test_an_undirected_edge_variable_fits_both_ways_and_a_loop_once() -> None:
    data = people(person("a"), person("b"), **{KNOWS: [edge("a", "b", "1"), edge("a", "a", "2")]})
    rows = answers(data, "match { $a: Person  $a $k:<knows> $b } return { $a.id as a, $b.id as b, $k.id as k }")
    assert [tuple(row.values()) for row in rows] == [("a", "a", "2"), ("a", "b", "1"), ("b", "a", "1")]


# Hop bounds


def test_hops_reach_each_target_once_and_not_the_source_by_a_cycle() -> None:
    data = people(*(person(slug) for slug in "abc"), **{KNOWS: [edge("a", "b"), edge("b", "c"), edge("c", "a")]})
    assert pairs(data, '$a: Person { slug: "a" }  $a knows{1,} $b') == [("a", "b"), ("a", "c")]


def test_the_lower_bound_is_a_distance_not_a_length_of_walks() -> None:
    data = people(*(person(slug) for slug in "abc"), **{KNOWS: [edge("a", "b"), edge("b", "c"), edge("a", "c")]})
    assert pairs(data, '$a: Person { slug: "a" }  $a knows{2,3} $b') == []


def test_a_self_loop_reports_its_node_at_the_hop_that_takes_it() -> None:
    data = people(*(person(slug) for slug in "ab"), **{KNOWS: [edge("a", "a"), edge("a", "b"), edge("b", "b")]})
    start = '$a: Person { slug: "a" }'
    assert pairs(data, f"{start}  $a knows{{1,1}} $b") == [("a", "a"), ("a", "b")]
    assert pairs(data, f"{start}  $a knows{{2,2}} $b") == [("a", "b")]
    assert pairs(data, f"{start}  $a knows{{3,3}} $b") == []


def test_reachability_is_the_same_from_the_other_end() -> None:
    data = people(*(person(slug) for slug in "abc"), **{KNOWS: [edge("a", "b"), edge("b", "c"), edge("c", "c")]})
    assert pairs(data, '$a: Person  $a knows{2,3} $b  $b.slug = "c"') == [("a", "c"), ("b", "c")]


def test_a_traversal_between_bound_nodes_checks_reachability() -> None:
    assert pairs(CHAIN, '$a: Person { slug: "a" }  $b: Person { slug: "d" }  $a knows{1,3} $b') == [("a", "d")]
    assert pairs(CHAIN, '$a: Person { slug: "a" }  $b: Person { slug: "d" }  $a knows{1,2} $b') == []


def test_nodes_on_the_way_need_not_pass_the_filters() -> None:
    data = people(person("a", age=1), person("b", age=9), person("c", age=1), **{KNOWS: CHAIN[KNOWS][:2]})
    assert pairs(data, "$a: Person { age: 1 }  $a knows{1,2} $b  $b.age = 1") == [("a", "c")]


def test_an_edge_between_two_types_has_one_hop() -> None:
    data: Data = {PERSON: [person("a")], CITY: [city("x")], LIVES_IN: [edge("a", "x")]}
    assert ids(data, "$a: Person  $a livesIn{1,3} $c") == ["a"]
    assert ids(data, "$a: Person  $a livesIn{2,3} $c") == []


# Filters


def test_null_never_matches_not_even_unequal() -> None:
    data = people(person("a", age=None), person("b", age=1))
    for clause in ("$a.age = 1", "$a.age != 2", "$a.age < 5", "$a.age = $a.age", "$a.name != $a.name"):
        assert "a" not in ids(data, f"$a: Person  {clause}")


def test_a_null_inside_not_makes_the_not_hold() -> None:
    assert ids(people(person("a", age=None), person("b", age=1)), "$a: Person  not { $a.age = 1 }") == ["a"]


def test_percent_and_underscore_are_ordinary() -> None:
    data = people(person("a", name="x%y"), person("b", name="xzy"), person("c", name="x_y"))
    assert ids(data, '$a: Person  $a.name contains "%"') == ["a"]
    assert ids(data, '$a: Person  $a.name starts_with "x_"') == ["c"]
    assert ids(data, '$a: Person  $a.name contains ""') == ["a", "b", "c"]


def test_quotes_and_backslashes_in_constants_mean_themselves() -> None:
    data = people(person("a", name="it's"), person("b", name='say "x"\\'), person("c", name="' OR true --"))
    assert ids(data, '$a: Person  $a.name = "it\'s"') == ["a"]
    assert ids(data, '$a: Person  $a.name contains "\\"x\\"\\\\"') == ["b"]
    assert ids(data, '$a: Person { name: "\' OR true --" }') == ["c"]


def test_text_is_ordered_by_code_point() -> None:
    data = people(
        person("a", name="\uffff"), person("b", name="\U00010000"), person("c", name="Z"), person("d", name="a")
    )
    rows = answers(data, "match { $a: Person } return { $a.name as n } order { n }")
    assert names(rows) == ["Z", "a", "\uffff", "\U00010000"]
    assert ids(data, '$a: Person  $a.name > "\uffff"') == ["b"]


def test_large_integers_compare_exactly() -> None:
    data = people(person("a", big=2**53), person("b", big=2**53 + 1), person("c", big=-(2**63)))
    assert ids(data, f"$a: Person  $a.big = {2**53 + 1}") == ["b"]
    assert ids(data, f"$a: Person  $a.big > {2.0**53:.1f}") == ["b"]
    assert ids(data, f"$a: Person  $a.big <= {-(2**63)}") == ["c"]


def test_unsigned_and_signed_compare_by_value() -> None:
    data = people(person("a", vast=2**64 - 1, big=-1), person("b", vast=5, big=5))
    assert ids(data, "$a: Person  $a.vast > $a.big") == ["a"]
    assert ids(data, "$a: Person  $a.vast = $a.big") == ["b"]


def test_integers_and_floats_compare_by_value() -> None:
    data = people(
        person("a", age=2, score=2.5), person("b", age=3, score=3.0), person("c", big=2**53 + 1, score=2.0**53)
    )
    assert ids(data, "$a: Person  $a.age < $a.score") == ["a"]
    assert ids(data, "$a: Person  $a.age = $a.score") == ["b"]
    assert ids(data, "$a: Person  $a.big > $a.score") == ["c"]
    assert ids(data, "$a: Person  $a.age > 2.5") == ["b"]


def test_an_f32_meets_numbers_rounded_to_f32() -> None:
    tenth = 0.10000000149011612
    data = people(person("a", weight=tenth), person("b", weight=16777216.0, big=16777217))
    assert ids(data, "$a: Person  $a.weight = 0.1") == ["a"]
    assert ids(data, "$a: Person  $a.weight = $a.big") == ["b"]


def test_a_list_property_matches_by_membership() -> None:
    data = people(person("a", tags=["x", "y"]), person("b", tags=[]), person("c", tags=None))
    assert ids(data, '$a: Person { tags: "y" }') == ["a"]
    assert ids(data, '$a: Person  $a.tags contains "y"') == ["a"]


def test_enums_are_texts_and_false_comes_before_true() -> None:
    data = people(person("a", role="ops", ok=True), person("b", role="lead", ok=False))
    assert ids(data, '$a: Person  $a.role < "m"') == ["b"]
    assert ids(data, "$a: Person  $a.ok < true") == ["b"]


def test_dates_and_times_compare() -> None:
    late = dt.datetime(2026, 1, 1, 0, 0, 0, 250000, tzinfo=dt.UTC)
    data = people(person("a", born=dt.date(2026, 1, 1), seen=late), person("b", born=dt.date(1960, 1, 1)))
    assert ids(data, '$a: Person  $a.born < date("2000-01-01")') == ["b"]
    assert ids(data, '$a: Person  $a.seen > datetime("2026-01-01T00:00:00.249Z")') == ["a"]


def test_a_filter_of_two_constants_holds_for_all_rows_or_none() -> None:
    query = "query q($x: I32) { match { $a: Person  $x > 3 } return { $a.id as x } }"
    assert names(answers(CHAIN, query, {"x": 4})) == list("abcd")
    assert names(answers(CHAIN, query, {"x": 3})) == []


def test_edges_are_filtered_by_their_own_properties() -> None:
    edges = [edge("a", "b", since=dt.date(2026, 1, 1)), edge("b", "c", since=dt.date(2025, 1, 1))]
    data = people(*(person(slug) for slug in "abc"), **{KNOWS: edges})
    assert ids(data, '$a: Person  $a $k:knows $b  $k.since >= date("2026-01-01")') == ["a"]


# Negation


def test_not_uses_outer_variables_and_keeps_its_own() -> None:
    assert ids(CHAIN, "$a: Person  not { $a knows $_ }") == ["d"]
    assert ids(CHAIN, '$a: Person  not { $a knows $b  $b.slug = "c" }') == ["a", "c", "d"]
    assert pairs(CHAIN, "$a: Person  $b: Person  $a knows{1,} $b  not { $a knows $b }") == [
        ("a", "c"),
        ("a", "d"),
        ("b", "d"),
    ]


def test_not_inside_not() -> None:
    assert ids(CHAIN, "$a: Person  not { $a knows $b  not { $b knows $_ } }") == ["a", "b", "d"]


# Results


def test_aggregates_alone_give_one_row_and_groups_none_over_nothing() -> None:
    empty: Data = {}
    shown = "count($a) as n, count($a.age) as m, sum($a.age) as s, avg($a.age) as v, min($a.name) as lo"
    assert answers(empty, f"match {{ $a: Person }} return {{ {shown} }}") == [
        {"n": 0, "m": 0, "s": None, "v": None, "lo": None}
    ]
    assert answers(empty, "match { $a: Person } return { $a.name as n, count($a) as c }") == []


def test_null_is_a_group_and_aggregates_skip_nulls() -> None:
    data = people(person("a", name=None, age=1), person("b", name=None), person("c", name="x", age=5))
    rows = answers(data, "match { $a: Person } return { $a.name as n, count($a) as c, sum($a.age) as s }")
    assert rows == [{"n": None, "c": 2, "s": 1}, {"n": "x", "c": 1, "s": 5}]


def test_the_two_zeros_are_one_group() -> None:
    data = people(person("a", score=0.0), person("b", score=-0.0))
    assert len(answers(data, "match { $a: Person } return { $a.score as s, count($a) as n }")) == 1


def test_counted_variables_count_as_often_as_they_are_bound() -> None:
    data = people(
        *(person(slug, age=age) for slug, age in zip("abc", (1, 2, 3), strict=True)),
        **{KNOWS: [edge("a", "b"), edge("a", "c"), edge("b", "c"), edge("c", "c")]},
    )
    rows = answers(
        data, "match { $a: Person  $a knows $b  $b.age > 2 } return { $a.id as a, count($b) as n, sum($a.age) as s }"
    )
    assert [row["n"] for row in rows] == [1, 1, 1]
    rows = answers(
        data,
        "match { $a: Person  $a knows $b  $a knows $c } return { count($c) as n, sum($a.age) as s, avg($a.age) as m }",
    )
    assert rows == [{"n": 6, "s": 9, "m": 1.5}]


def test_sums_are_exact_and_a_sum_that_leaves_64_bits_is_an_error() -> None:
    data = people(
        person("a", big=2**53 + 1, score=1e16), person("b", big=2, score=1.0), person("c", big=0, score=-1e16)
    )
    rows = answers(data, "match { $a: Person } return { sum($a.big) as n, sum($a.score) as f, avg($a.big) as m }")
    assert rows == [{"n": 2**53 + 3, "f": 1.0, "m": (2**53 + 3) / 3}]
    beyond = people(person("a", big=2**63 - 1), person("b", big=1))
    with graph_of(beyond) as graph, pytest.raises(BadRequest, match=r"sum\(a\.big\)"):
        run(reader_of(graph), "match { $a: Person } return { sum($a.big) as n }")


def test_nulls_sort_first_ascending_and_last_descending() -> None:
    data = people(person("a", age=1), person("b", age=None), person("c", age=2))
    for ending, expected in (("asc", ["b", "a", "c"]), ("desc", ["c", "a", "b"])):
        assert (
            names(answers(data, f"match {{ $a: Person }} return {{ $a.id as x }} order {{ $a.age {ending} }}"))
            == expected
        )


def test_ties_are_broken_by_id_and_a_limit_takes_the_first() -> None:
    data = people(*(person(slug, age=1) for slug in "dcba"))
    assert names(answers(data, "match { $a: Person } return { $a.id as x } order { $a.age desc } limit 2")) == [
        "a",
        "b",
    ]
    assert names(answers(data, "match { $a: Person } return { $a.id as x } limit 3")) == ["a", "b", "c"]


def test_a_limit_breaks_ties_correctly_among_many_rows() -> None:
    data = people(*(person(f"p{i:04}", age=i % 7 if i % 5 else None) for i in range(600)))
    for order in ("$a.age", "$a.age desc", "$a.name", "$a.age desc, $a.id desc"):
        answers(data, f"match {{ $a: Person }} return {{ $a.id as x }} order {{ {order} }} limit 3")


def test_a_whole_node_has_its_id_and_all_properties() -> None:
    data: Data = {CITY: [city("x", size=3)]}
    assert answers(data, "match { $c: City } return { $c }") == [{"c": {"id": "x", "name": "x", "size": 3}}]


def test_literals_and_now_are_columns() -> None:
    with graph_of(CHAIN) as graph:
        for options in MODES.values():
            result = run(
                reader_of(graph, **options), 'match { $a: Person { slug: "a" } } return { 1 as one, "x" as t }'
            )
            assert result.rows == [{"one": 1, "t": "x"}]


def test_a_key_finds_its_node_with_other_filters() -> None:
    data = people(person("a", age=1), person("b", age=2))
    assert ids(data, '$a: Person { slug: "a", age: 1 }') == ["a"]
    assert ids(data, '$a: Person { slug: "a", age: 2 }') == []
    assert ids(data, '$a: Person { slug: "nobody" }') == []
    assert ids(data, '$a: Person  $a.slug = "a"  $a.slug = "b"') == []


def test_types_without_rows_have_none() -> None:
    empty: Data = {}
    assert ids(empty, "$a: Person  $a knows $b") == []
    assert ids(people(person("a")), "$a: Person  not { $a livesIn $_ }") == ["a"]
